//! Cases of next hops: unresolved, gone, moved, claimed by other hosts; and of threads that are preempted at the wrong moment.

use std::time::Duration;

use sim::check;
use sim::liar::{LIAR, Liar};
use sim::link::{Conditions, Fate, Fault};
use sim::node::{NodeConfig, QpConfig, SendWr, remote_rights};
use sim::peer::{Rig, ack};
use sim::rng::Rng;
use sim::seen::Seen;
use sim::story::{A, B, Story, any, rnr_nak};
use sim::world::{Endpoint, World};
use stack::id::{Mac, QpState};
use stack::net::NetCounter;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::proto::tables::{ack_timeout, rnr_delay};
use stack::proto::vendor::VendorErr;
use stack::shard::counters::Counter;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn nothing_passes(world: &mut World, from: usize, to: usize) {
    world.link(from, to).conditions = Conditions::CLEAN.with(Fault::Partition, 1_000_000);
}

/// A connection whose ends have not resolved each other's addresses, and cannot.
fn strangers(change: impl FnOnce(&mut QpConfig)) -> (World, [Endpoint; 2]) {
    let mut config = QpConfig::default();
    change(&mut config);
    let mut world = World::pair(7);
    world.tap = Some(Vec::new());
    nothing_passes(&mut world, A, B);
    nothing_passes(&mut world, B, A);
    let ends = world.connected(config);
    (world, ends)
}

/// Posts an 8-byte WRITE from A to B.
fn write(world: &mut World, ends: &[Endpoint; 2]) {
    let [from, to] = [A, B].map(|node| {
        let mr = world.nodes[node].register(64, remote_rights());
        let mr = world.nodes[node].mr(mr);
        (mr.sge(0, 8), mr.va(0), mr.key)
    });
    let wr = SendWr::new(1, WrOpcode::RdmaWrite).sges(&[from.0]).remote(to.1, to.2);
    assert_eq!(world.nodes[A].post_send(ends[A].qp, &wr), Ok(()));
}

fn sent(world: &World, from: usize) -> Vec<Seen> {
    let tap = world.tap.as_ref().unwrap();
    tap.iter().filter(|(node, _)| *node == from).map(|(_, seen)| seen.clone()).collect()
}

/// Time between the first and the second packet of A.
fn gap(world: &World) -> Duration {
    let sent = sent(world, A);
    assert!(sent.len() >= 2, "{sent:?}");
    Duration::from_nanos(sent[1].at.nanos_since(sent[0].at))
}

// Goal: while the next hop is being resolved no timer runs and no retry is used up; the ACK timer starts with the first packet that is
// sent.
#[test]
fn nothing_is_timed_before_the_next_hop_is_found() {
    for timeout in [1, 8, 14] {
        let (mut world, ends) = strangers(|c| (c.timeout, c.retry_cnt) = (timeout, 1));
        write(&mut world, &ends);
        world.run_for(2 * SECOND);
        assert!(sent(&world, A).is_empty());
        assert_eq!(world.nodes[A].count(Counter::Timeouts), 0, "timeout {timeout}");
        // Now address resolution succeeds, but the first packet is lost.
        world.heal();
        world.link(A, B).rule = Some({
            let mut n = 0;
            Box::new(move |_| {
                n += 1;
                if n == 1 { Fate::Drop } else { Fate::Pass }
            })
        });
        world.run_for(2 * SECOND);
        let done = world.nodes[A].poll_cq(ends[A].cq, 8);
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, WcStatus::Success);
        let t = ack_timeout(timeout).unwrap();
        assert!(gap(&world) >= t && gap(&world) <= 4 * t, "{:?} where {t:?} is the timeout", gap(&world));
        assert_eq!(world.nodes[A].count(Counter::RetriesTimeout), 1);
    }
}

// Goal: nobody answers for the peer's address: the stack tries as long as Linux does, and then reports an error completion.
#[test]
fn a_peer_that_nobody_answers_for_is_unreachable() {
    for timeout in [0, 1, 14] {
        let (mut world, ends) = strangers(|c| c.timeout = timeout);
        let start = world.now;
        write(&mut world, &ends);
        write(&mut world, &ends);
        let mut done = Vec::new();
        let failed = world.run_until(10 * SECOND, |world| {
            done.extend(world.nodes[A].poll_cq(ends[A].cq, 8));
            done.len() == 2
        });
        assert!(failed, "{done:?}");
        assert!(world.now.nanos_since(start) >= 3_000_000_000, "after {:?}", world.now);
        let all: Vec<_> = done.iter().map(|cqe| (cqe.status, cqe.vendor_err)).collect();
        assert_eq!(all, [(WcStatus::RetryExcErr, 0x405), (WcStatus::WrFlushErr, 0x100)]);
        assert!(VendorErr(0x405).to_string().starts_with("unreachable"));
        let counters = world.nodes[A].counters();
        let counted =
            [Counter::Unreachable, Counter::Timeouts, Counter::RequestsSent].map(|c| counters.get(c));
        assert_eq!(counted, [1, 0, 0]);
        assert_eq!(world.nodes[A].state(ends[A].qp), QpState::Err);
    }
}

// Goal: a request also fails if a port takes no frame, or has no buffer, whether the peer was resolved before or not.
#[test]
fn a_dead_port_ends_a_request() {
    for found in [true, false] {
        for starve in [true, false] {
            let (mut world, ends) = strangers(|c| (c.timeout, c.retry_cnt) = (10, 2));
            if found {
                world.heal();
                world.run_for(SECOND);
            }
            for node in [A, B] {
                world.nodes[node]
                    .wires
                    .iter()
                    .for_each(|wire| if starve { wire.starve(true) } else { wire.limit_tx(Some(0)) });
            }
            // A shard has one spare frame, so the first packet may leave even without buffers.
            (0..3).for_each(|_| write(&mut world, &ends));
            let mut done = Vec::new();
            let ended = world.run_until(10 * SECOND, |world| {
                done.extend(world.nodes[A].poll_cq(ends[A].cq, 8));
                done.retain(|cqe| cqe.status != WcStatus::Success);
                !done.is_empty()
            });
            assert!(ended, "found {found}, starved {starve}");
            assert_eq!(done[0].status, WcStatus::RetryExcErr, "found {found}, starved {starve}");
            let vendor = if found { 0x401 } else { 0x405 };
            assert_eq!(done[0].vendor_err, vendor, "found {found}, starved {starve}");
        }
    }
}

/// How stale a thread's clock value is after an interruption.
const INTERRUPTIONS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_micros(7),
    Duration::from_micros(15),
    Duration::from_micros(40),
    MS,
    SECOND,
];

// Goal: the delay of an RNR NAK starts when it arrived, not at the last reading of the clock before.
#[test]
fn an_interrupted_thread_waits_no_less_than_the_rnr_delay() {
    for code in [1, 12, 20] {
        for long in INTERRUPTIONS {
            let mut s = Story::with(|c| c.min_rnr_timer = code);
            s.post(A, WrOpcode::Send, 10);
            let refused = |world: &mut World| {
                world.tap.as_ref().unwrap().iter().any(|(n, seen)| *n == B && rnr_nak()(seen))
            };
            assert!(s.world.run_until(MS, refused));
            // The NAK arrives while the thread is preempted.
            s.world.interrupt = Some((A, long.max(Duration::from_micros(3))));
            s.world.step().unwrap();
            let came = s.world.now;
            let again = |world: &mut World| sent(world, A).len() > 1;
            assert!(s.world.run_until(2 * SECOND, again));
            let waited =
                Duration::from_nanos(sent(&s.world, A)[1].at.nanos_since(came)) + Duration::from_nanos(200);
            let delay = rnr_delay(code);
            assert!(waited >= delay, "{waited:?} of {delay:?}, interrupted for {long:?}");
            assert!(waited < delay + 2 * MS, "{waited:?} of {delay:?}, interrupted for {long:?}");
        }
    }
}

// Goal: the ACK timer runs T to 4T from when the packet was sent, not from the last reading of the clock before.
#[test]
fn an_interrupted_thread_retries_no_sooner_than_the_timeout() {
    for timeout in [1, 5, 10, 14] {
        for long in INTERRUPTIONS {
            let mut s = Story::with(|c| c.timeout = timeout);
            s.drop_all(A, any());
            s.post(A, WrOpcode::RdmaWrite, 10);
            s.world.interrupt = Some((A, long));
            assert!(s.world.run_until(3 * SECOND, |world| sent(world, A).len() > 2));
            let t = ack_timeout(timeout).unwrap();
            for pair in sent(&s.world, A).windows(2) {
                let gap = Duration::from_nanos(pair[1].at.nanos_since(pair[0].at));
                assert!(gap >= t && gap <= 4 * t, "{gap:?} where {t:?} is the timeout; {long:?}");
            }
        }
    }
}

/// Two nodes with a connection, and a third host that claims the addresses of both.
fn with_a_liar(ipv6: bool, seed: u64) -> (World, [Endpoint; 2]) {
    let nodes = (0..2).map(|index| NodeConfig { index, ipv6, ..NodeConfig::default() });
    let mut world = World::new(seed, nodes.collect());
    let ends = world.connected(QpConfig::default());
    world.liar = Some(Liar::new(&[world.nodes[A].gid, world.nodes[B].gid]));
    (world, ends)
}

fn counted(world: &World, node: usize, what: NetCounter) -> u64 {
    world.nodes[node].shared.with_net(|net| net.counter(what))
}

// Goal: whatever addresses a third host claims, and however often, an established connection keeps its next hop. The world checks each
// packet's destination address.
#[test]
fn liars_move_and_end_no_connection() {
    for seed in 0..24u64 {
        let (mut world, ends) = with_a_liar(seed % 2 == 1, seed);
        let mut rng = Rng::new(seed);
        for (from, to) in [(A, B), (B, A)] {
            world.link(from, to).conditions = Conditions::CLEAN.with(Fault::Loss, rng.below(50_000) as u32);
        }
        let mut done = 0;
        let rounds = 40;
        for _ in 0..rounds {
            write(&mut world, &ends);
            for _ in 0..rng.below(4) {
                world.lie();
                world.run_for(Duration::from_micros(rng.below(400_000)));
            }
            // An old entry is probed again.
            if rng.below(10) == 0 {
                world.run_for(61 * SECOND);
            }
            let cqes = world.nodes[A].poll_cq(ends[A].cq, 64);
            assert!(cqes.iter().all(|cqe| cqe.status == WcStatus::Success), "seed {seed}: {cqes:?}");
            done += cqes.len();
        }
        world.heal();
        world.run_for(5 * SECOND);
        done += world.nodes[A].poll_cq(ends[A].cq, 64).len();
        assert_eq!(done, rounds, "seed {seed}");
        for node in [A, B] {
            let disputed = counted(&world, node, NetCounter::NeighbourDisputed);
            assert!(disputed > 0, "seed {seed}: no lie reached node {node}");
            assert_eq!(world.nodes[node].state(ends[node].qp), QpState::Rts);
        }
    }
}

// Goal: a flood of claims causes a probe at intervals, not one for each claim.
#[test]
fn a_flood_of_lies_is_asked_about_rarely() {
    for ipv6 in [false, true] {
        let (mut world, _) = with_a_liar(ipv6, 3);
        let before = counted(&world, A, NetCounter::RequestSent);
        for _ in 0..5000 {
            world.lie();
            world.run_for(MS);
        }
        let asked = counted(&world, A, NetCounter::RequestSent) - before;
        assert!((1..=8).contains(&asked), "{asked} requests in five seconds");
    }
}

// Goal: the checker of destination addresses fires.
#[test]
fn a_packet_to_a_liar_is_noticed() {
    // The third host alone answers the first request, so its claim is accepted.
    let mut world = World::pair(5);
    world.liar = Some(Liar::new(&[world.nodes[B].gid]));
    nothing_passes(&mut world, A, B);
    let ends = world.connected(QpConfig::default());
    write(&mut world, &ends);
    let complaint = (0..1000).find_map(|_| world.step().err()).expect("a packet went to the liar");
    assert!(complaint.contains(&format!("{:02x?}", LIAR.0)), "{complaint}");
    assert_eq!(check::dst_mac(&world.nodes, &[0; 60]), Ok(()), "no packet");
}

// Goal: failover. The peer's address moves to another Ethernet address, with or without an announcement, and the queue pair follows
// within the time of a probe.
#[test]
fn a_peer_that_moved_is_followed() {
    let moved = Mac([2, 0, 0, 0, 0, 0x77]);
    for (ipv6, announced) in [(false, true), (false, false), (true, true), (true, false)] {
        // Timeouts of the queue pair that suit failover: 8 x 0.54 s.
        let mut rig = Rig::with(|c| {
            c.ipv6 = ipv6;
            c.qp.timeout = 17;
        });
        rig.wait(2 * SECOND);
        let wr = rig.wr(1, WrOpcode::RdmaWrite, 8);
        assert_eq!((rig.post(&wr).len(), rig.dst_mac()), (1, rig.peer_mac()));
        rig.move_peer(moved, announced);
        let said = rig.wait(4 * SECOND);
        assert_eq!(rig.dst_mac(), moved, "{said:?}");
        assert!(!said.is_empty());
        rig.send(&ack(0x100, 1));
        assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    }
}
