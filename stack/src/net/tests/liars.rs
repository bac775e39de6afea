//! Hosts that claim the addresses of others, and strangers that want to be remembered.

use super::*;
use crate::config::{NEIGHBOUR_CLAIM_GAP, REPLY_MACS};
use crate::mark::steps;

const PEER: &str = "10.99.0.3";
const PEER6: &str = "fd00:99::3";
const OVERRIDE: NdiscNeighborFlags = NdiscNeighborFlags::OVERRIDE;

fn is(net: &mut Net, now: Instant, peer: &str, mac: Mac) {
    assert_eq!(net.hold(now, &gid(peer), None).1, Resolution::Known(mac), "{peer} at {now:?}");
}

/// A host whose queue pair holds B's addresses, found at T0.
fn in_use() -> Net {
    let mut net = host(A);
    for (peer, reply) in [(PEER, &ARP_REPLY_B[..]), (PEER6, &ADVERTISEMENT_B)] {
        net.hold(T0, &gid(peer), None);
        while request(&mut net, T0).is_some() {}
        answer(&mut net, T0, reply);
        is(&mut net, T0, peer, B);
    }
    net
}

/// Every way in which C can claim an address of B.
fn lies() -> Vec<Vec<u8>> {
    let (own, both) = ([10, 99, 0, 2], NdiscNeighborFlags::SOLICITED | OVERRIDE);
    let mut asks = solicitation(PEER6, "ff02::1:ff00:2", "fd00:99::2", Some(C));
    asks[6..12].copy_from_slice(&C.0);
    asks[..6].copy_from_slice(&frame::group(v6("ff02::1:ff00:2")).0);
    let mut own_reply = arp(2, C, [10, 99, 0, 3], own);
    own_reply[..6].copy_from_slice(&A.0);
    let to_us = |mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&A.0);
        frame
    };
    vec![
        arp(1, C, [10, 99, 0, 3], [10, 99, 0, 3]),
        arp(2, C, [10, 99, 0, 3], [10, 99, 0, 3]),
        arp(1, C, [10, 99, 0, 3], own),
        arp(1, C, [10, 99, 0, 3], [10, 99, 0, 77]),
        own_reply,
        asks,
        to_us(advertisement(C, PEER6, "fd00:99::2", both, Some(C))),
        to_us(advertisement(C, PEER6, "ff02::1", OVERRIDE, Some(C))),
    ]
}

/// B's answer to a request that reaches it: broadcast, or to it.
fn truth(asked: &[u8]) -> Option<Vec<u8>> {
    answer(&mut host(B), T0, asked)
}

/// Runs a host from `now` until `end`; `reply` answers its requests. Returns when its requests went and where.
fn run(
    net: &mut Net,
    now: Instant,
    end: Instant,
    mut reply: impl FnMut(&[u8]) -> Vec<Vec<u8>>,
) -> Vec<(Instant, Mac)> {
    let (mut now, mut sent) = (now, Vec::new());
    while now <= end {
        while let Some(asked) = request(net, now) {
            sent.push((now, Mac(*asked.first_chunk().unwrap())));
            for frame in reply(&asked) {
                answer(net, now, &frame);
            }
        }
        let Some(next) = net.poll_timeout() else { break };
        now = next.max(now.after_nanos(1));
    }
    sent
}

#[test]
fn a_claim_moves_no_neighbour_in_use_whose_station_answers() {
    for lie in lies() {
        let mut net = in_use();
        let generation = net.generation();
        let end = T0.after(Duration::from_secs(5));
        answer(&mut net, T0, &lie);
        assert_eq!(net.counter(NetCounter::NeighbourDisputed), 1, "{lie:x?}");
        // The liar answers first, too, every request to any host.
        let sent = run(&mut net, T0, end, |asked| {
            let mut all = lies();
            all.extend(truth(asked));
            all
        });
        assert!(!sent.is_empty(), "the station is asked");
        assert!(sent.iter().all(|(_, to)| *to == B), "it alone: {sent:?}");
        is(&mut net, end, PEER, B);
        is(&mut net, end, PEER6, B);
        assert_eq!(net.generation(), generation, "nobody had to look again");
    }
}

#[test]
fn a_flood_of_claims_asks_the_station_once_in_a_while() {
    let mut net = in_use();
    let (mut asked, seconds) = (0, 5u64);
    for ms in 0..seconds * 1000 {
        let now = T0.after(Duration::from_millis(ms));
        for lie in lies() {
            answer(&mut net, now, &lie);
        }
        while let Some(request) = request(&mut net, now) {
            asked += 1;
            answer(&mut net, now, &truth(&request).unwrap());
        }
    }
    assert!(asked >= 2 && asked <= 2 * (seconds + 1), "{asked} requests for two addresses");
    is(&mut net, T0.after(Duration::from_secs(seconds)), PEER, B);
}

// Failover: the address is at another Ethernet address, which claims it, and the old one is silent.
#[test]
fn a_neighbour_that_moved_is_followed_within_the_time_of_its_probe() {
    for (peer, claim) in [(PEER, lies().swap_remove(0)), (PEER6, lies().swap_remove(7))] {
        let mut net = in_use();
        answer(&mut net, T0, &claim);
        let quiet = NEIGHBOUR_CLAIM_GAP; // it was found a moment ago
        let probed = T0.after(quiet + NEIGHBOUR_RETRY * NEIGHBOUR_UNICAST_TRIES.into());
        let mut moved = host(C);
        moved.add_address(ip(PEER), 24);
        moved.add_address(ip(PEER6), 64);
        let generation = net.generation();
        let sent = run(&mut net, T0, probed, |asked| answer(&mut moved, T0, asked).into_iter().collect());
        assert_eq!(sent.len(), usize::from(NEIGHBOUR_UNICAST_TRIES) + 1, "{sent:?}");
        is(&mut net, probed, peer, C);
        assert!(net.generation() > generation);
        let mut changed = Vec::new();
        net.changes(generation, |id| changed.push(id));
        assert_eq!(changed, [net.hold(probed, &gid(peer), None).0.unwrap()]);
    }
}

// No claim announces the move: the refresh of the entry finds it, and a queue pair that gets no answer finds it sooner.
#[test]
fn a_neighbour_that_moved_in_silence_is_found() {
    for rechecked in [false, true] {
        let mut net = in_use();
        let (Some(id), _) = net.hold(T0, &gid(PEER), None) else { panic!() };
        let asked_at = match rechecked {
            true => T0.after(NEIGHBOUR_CLAIM_GAP),
            false => T0.after(NEIGHBOUR_LIFETIME),
        };
        if rechecked {
            net.recheck(T0, id);
        }
        let mut moved = host(C);
        moved.add_address(ip(PEER), 24);
        moved.add_address(ip(PEER6), 64);
        let probed = asked_at.after(NEIGHBOUR_RETRY * NEIGHBOUR_UNICAST_TRIES.into());
        run(&mut net, T0, probed, |asked| answer(&mut moved, T0, asked).into_iter().collect());
        is(&mut net, probed, PEER, C);
    }
}

// A held neighbour that does not answer is reported once, and requested again when its holder wants to.
#[test]
fn a_held_neighbour_that_is_gone() {
    let mut net = in_use();
    let (id, _) = net.hold(T0, &gid(PEER), None);
    let patience = NEIGHBOUR_RETRY * NEIGHBOUR_TRIES.into();
    assert!(patience >= Duration::from_secs(3), "as patient as Linux");
    let gone = T0.after(NEIGHBOUR_LIFETIME + patience);
    run(&mut net, T0, gone, |_| Vec::new());
    assert_eq!(net.hold(gone, &gid(PEER), id).1, Resolution::Failed);
    assert_eq!(net.poll_timeout(), None, "nothing is asked for its own sake");
    let later = gone.after(NEIGHBOUR_FAILED_HOLD);
    net.recheck(later, id.unwrap());
    assert_eq!(net.hold(later, &gid(PEER), id).1, Resolution::Pending);
    run(&mut net, later, later, |asked| truth(asked).into_iter().collect());
    is(&mut net, later, PEER, B);
}

// An entry that is not in use follows any claim, without a packet.
#[test]
fn an_unused_entry_follows() {
    let mut net = host(B);
    assert!(answer(&mut net, T0, &arp(1, A, [10, 99, 0, 2], [10, 99, 0, 3])).is_some());
    assert!(answer(&mut net, T0, &arp(1, C, [10, 99, 0, 2], [10, 99, 0, 3])).is_some());
    assert_eq!(net.resolve(T0, &gid("10.99.0.2")), Resolution::Known(C));
}

// A released neighbour counts as unused after its lifetime, like any other.
#[test]
fn a_released_neighbour_grows_old() {
    let mut net = host(A);
    let (id, _) = net.hold(T0, &gid(PEER), None);
    assert!(request(&mut net, T0).is_some());
    answer(&mut net, T0, &ARP_REPLY_B);
    net.release(id.unwrap());
    let old = T0.after(NEIGHBOUR_LIFETIME);
    assert_eq!(request(&mut net, old), None);
    assert_eq!(net.poll_timeout(), None);
    answer(&mut net, old, &arp(2, C, [10, 99, 0, 3], [10, 99, 0, 3]));
    assert_eq!(net.resolve(old, &gid(PEER)), Resolution::Known(C));
}

#[test]
fn a_frame_that_tells_of_another_station_is_ignored() {
    let mut net = in_use();
    for mut lie in lies() {
        lie[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x66]);
        ignored(&mut net, &lie, NetCounter::StationMismatch);
    }
    assert_eq!(net.counter(NetCounter::NeighbourDisputed), 0);
    // An advertisement without an Ethernet address is valid only if it comes from the known one.
    let solicited = NdiscNeighborFlags::SOLICITED;
    let mut bare = advertisement(C, PEER6, "fd00:99::2", solicited, None);
    bare[..6].copy_from_slice(&A.0);
    ignored(&mut net, &bare, NetCounter::BadNd);
}

#[test]
fn configured_neighbours_stay_where_they_are() {
    let neighbours = vec![(ip(PEER), C), (ip(PEER), B), (ip(PEER6), B)];
    let mut net = Net::new(&NetConfig { neighbours, ..config(A) });
    let day = T0.after(Duration::from_secs(86_400));
    for now in [T0, day] {
        for lie in lies() {
            answer(&mut net, now, &lie);
        }
        assert_eq!(request(&mut net, now), None, "nobody is asked");
        for peer in [PEER, PEER6] {
            assert_eq!(net.resolve(now, &gid(peer)), Resolution::Known(B));
            is(&mut net, now, peer, B);
        }
    }
    assert_eq!(net.counter(NetCounter::NeighbourDisputed), 2 * lies().len() as u64);
    // A flood of strangers, and as many neighbours as the table takes.
    for n in 0..2 * NEIGHBOUR_MAX as u32 {
        let [_, _, b, c] = n.to_be_bytes();
        net.resolve(
            day,
            &Gid::from_ip(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 1, b.into(), c.into()))),
        );
    }
    assert_eq!(net.resolve(day, &gid(PEER)), Resolution::Known(B));
}

// Strangers of one prefix, far more than the table has entries: by requests to us, and by messages that we answer.
#[test]
fn strangers_move_out_nobody_who_is_in_use() {
    let mut net = in_use();
    let resolved = gid("fd00:99::4");
    net.resolve(T0, &resolved);
    let mut found = advertisement(C, "fd00:99::4", "fd00:99::2", NdiscNeighborFlags::SOLICITED, Some(C));
    found[..6].copy_from_slice(&A.0);
    while request(&mut net, T0).is_some() {}
    answer(&mut net, T0, &found);
    let generation = net.generation();
    for n in 0..8 * NEIGHBOUR_MAX as u16 {
        let src = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 1, 0, n).to_string();
        let mut asks = solicitation(&src, "ff02::1:ff00:2", "fd00:99::2", Some(B));
        asks[6..12].copy_from_slice(&B.0);
        asks[..6].copy_from_slice(&frame::group(v6("ff02::1:ff00:2")).0);
        let now = T0.after_nanos(n.into());
        assert!(answer(&mut net, now, &asks).is_some());
        let (hidden, message) = (Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 2, 0, n), Mac([2, 0, 0, 0, 0, 7]));
        net.note_reply_mac(now, &Gid(hidden.octets()), message);
        assert_eq!(net.resolve_answer(now, &Gid(hidden.octets())), Resolution::Known(message));
        net.resolve_answer(now, &Gid(Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 3, 0, n).octets()));
    }
    assert_eq!(net.generation(), generation, "nobody's answer changed");
    assert_eq!(net.neighbours.len(), 3 + NEIGHBOUR_STRANGERS_MAX);
    is(&mut net, T0, PEER, B);
    is(&mut net, T0, PEER6, B);
    assert_eq!(net.resolve(T0, &resolved), Resolution::Known(C));
}

// The answer to a stranger's message goes to the Ethernet address from which that came, costs no request, and proves nothing to the table.
#[test]
fn an_answer_goes_to_the_station_that_asked() {
    let mut net = host(A);
    let stranger = gid("10.99.0.50");
    net.note_reply_mac(T0, &stranger, C);
    assert_eq!(net.resolve_answer(T0, &stranger), Resolution::Known(C));
    assert_eq!((request(&mut net, T0), net.neighbours.len()), (None, 0));
    // The program's own packets do not go there.
    assert_eq!(net.resolve(T0, &stranger), Resolution::Pending);
    // If the neighbour is known, its entry decides.
    let (mut net, _) = resolved();
    net.note_reply_mac(T0, &gid(PEER), C);
    assert_eq!(net.resolve_answer(T0, &gid(PEER)), Resolution::Known(B));
    // Long after, and for hosts that never sent a request, a request goes to the link.
    let mut net = host(A);
    net.note_reply_mac(T0, &stranger, C);
    for (now, who) in [(T0.after(NEIGHBOUR_LIFETIME), "10.99.0.50"), (T0, "10.99.0.51")] {
        assert_eq!(net.resolve_answer(now, &gid(who)), Resolution::Pending);
    }
    // For a host behind a gateway, the answer goes to the gateway.
    let gateway = Some([10, 99, 0, 1].into());
    let mut net = Net::new(&NetConfig { gateway, ..config(A) });
    net.note_reply_mac(T0, &gid("192.0.2.1"), C);
    assert_eq!(net.resolve_answer(T0, &gid("192.0.2.1")), Resolution::Pending);
    assert_eq!(request(&mut net, T0).unwrap()[38..42], [10, 99, 0, 1]);
    // Addresses that share a place share it; nothing grows.
    for n in 0..4 * REPLY_MACS as u32 {
        let [_, _, b, c] = n.to_be_bytes();
        net.note_reply_mac(T0, &Gid::v4([10, 99, b, c]), C);
    }
    assert_eq!(net.neighbours.len(), 1);
}

/// The most steps that one frame or one pass of a turn takes, with this many neighbours held.
fn dearest(held: u32) -> u64 {
    let mut net = Net::new(&NetConfig { addrs: vec![(ip("10.99.0.2"), 8)], ..NetConfig::new(A) });
    let peer = |n: u32| Gid::v4((0x0a80_0000 + n).to_be_bytes());
    for n in 0..held {
        net.hold(T0, &peer(n), None);
        answer(&mut net, T0, &arp(2, B, peer(n).as_v4().unwrap(), [10, 99, 0, 2]));
    }
    while request(&mut net, T0).is_some() {}
    let mut most = 0;
    for n in 0..20 * NEIGHBOUR_MAX as u32 {
        let [_, a, b, c] = (0x0001_0000 + n).to_be_bytes();
        let now = T0.after_nanos(1 + u64::from(n));
        for frame in [
            arp(1, C, [10, a, b, c], [10, 99, 0, 2]),
            arp(2, C, [10, a, b, c], [10, 99, 0, 2]),
            arp(1, C, peer(n % held).as_v4().unwrap(), [10, 99, 0, 2]),
        ] {
            let start = steps();
            answer(&mut net, now, &frame);
            most = most.max(steps() - start);
        }
    }
    most
}

// Goal: a stranger's frame costs the same whatever is in the table.
#[test]
fn a_strangers_frame_costs_a_bounded_number_of_steps() {
    let (few, many) = (dearest(1), dearest(10_000));
    assert!(few > 0 && few <= 32, "{few} steps");
    assert_eq!(few, many);
}

// Goal: as many neighbours as the table takes, all due at once, are one pass over it, not one each.
#[test]
fn neighbours_that_are_due_at_once_are_one_pass() {
    let mut net = Net::new(&NetConfig { addrs: vec![(ip("10.99.0.2"), 8)], ..NetConfig::new(A) });
    const USED: u32 = (NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX) as u32;
    for n in 0..USED {
        net.resolve(T0, &Gid::v4((0x0a80_0000 + n).to_be_bytes()));
    }
    let (start, mut sent) = (steps(), 0);
    while request(&mut net, T0).is_some() {
        sent += 1;
    }
    assert_eq!(sent, USED);
    assert!(steps() - start <= 8 * u64::from(USED), "{} steps", steps() - start);
}
