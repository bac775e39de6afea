//! Any frames to an IP host whose queue pairs hold some neighbours, from hosts that tell the truth and liars.

use core::time::Duration;
use std::collections::BTreeMap;

use super::Input;
use stack::config::{NEIGHBOUR_MAX, NEIGHBOUR_UNICAST_TRIES};
use stack::id::{Gid, Mac};
use stack::net::{FRAME_MAX, NeighbourId, Net, NetConfig, Resolution};
use stack::time::Instant;

/// Steps of one input.
const STEPS: usize = 200;
/// Requests that one call of [`look`] may have to send: one for each entry, and announcements and reports.
const DUE_MAX: usize = 2 * NEIGHBOUR_MAX;

const OURS: [&str; 2] = ["10.0.0.1", "fd00::1"];
/// Neighbours that may be held, the configured ones last.
const PEERS: [&str; 6] = ["10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3", "10.0.0.4", "fd00::4"];
const FIXED: usize = 4;
const FIXED_AT: Mac = mac_of(0xf);

const fn mac_of(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, n])
}

fn addr(text: &str) -> core::net::IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str) -> u8 {
    if text.contains(':') { 64 } else { 24 }
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(addr(text))
}

/// Requests that an Ethernet address was sent.
type Asked = BTreeMap<Mac, u32>;

/// A held neighbour: its Ethernet address, and how many requests were sent there since the neighbour has that address. If it had
/// it before it was held, `asked` counts every request that was ever sent there.
#[derive(Debug)]
struct Held {
    id: Option<NeighbourId>,
    at: Option<Mac>,
    asked: u32,
}

/// Any bytes, and frames of hosts with the addresses that they claim or without, to an IP host.
///
/// # Panics
/// If a frame is not accounted for, an answer amplifies, a held neighbour moves before its Ethernet address was checked, a
/// configured one moves at all, or the host never finishes the work that is due.
pub fn net_frames(data: &[u8]) {
    let mut input = Input(data);
    let setup = input.u8();
    let mac = mac_of(1);
    let mut net = Net::new(&NetConfig {
        addrs: OURS.iter().map(|a| (addr(a), prefix(a))).collect(),
        neighbours: PEERS[FIXED..].iter().map(|a| (addr(a), FIXED_AT)).collect(),
        gateway: (setup & 1 != 0).then_some([10, 0, 0, 254].into()),
        ..NetConfig::new(mac)
    });
    let mut now = Instant::from_nanos(1);
    let (mut held, mut asked): (BTreeMap<usize, Held>, Asked) = Default::default();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 12 {
            0 => {
                let len = input.below(200);
                let frame = input.take(len).to_vec();
                handle(&mut net, now, &frame);
            }
            1 => now = now.after(Duration::from_millis(1 << (input.u8() % 18))),
            2 | 3 => look(&mut net, now, &mut held, &mut asked, None),
            // A host at an Ethernet address answers the requests that are due.
            4 | 5 => {
                let mac = mac_of(input.u8() % 5 + 2);
                look(&mut net, now, &mut held, &mut asked, Some(mac));
            }
            6 => {
                let who = input.below(PEERS.len());
                let before = held.get(&who).and_then(|held| held.id);
                let (id, answer) = net.hold(now, &gid(PEERS[who]), before);
                assert!(before.is_none() || before == id, "a held neighbour kept its entry");
                if before.is_none() {
                    let at = known(answer);
                    let asked = at.and_then(|mac| asked.get(&mac)).copied().unwrap_or(0);
                    held.insert(who, Held { id, at, asked });
                }
            }
            7 => {
                let who = input.below(PEERS.len());
                if let Some(Held { id: Some(id), .. }) = held.remove(&who) {
                    net.release(id);
                }
            }
            8 => {
                let who = input.below(PEERS.len());
                if let Some(Held { id: Some(id), .. }) = held.get(&who) {
                    net.recheck(now, *id);
                }
            }
            9 => {
                let far = Gid::v4([10, 0, input.u8() & 1, input.u8()]);
                match input.u8() % 3 {
                    0 => _ = net.resolve(now, &far),
                    1 => _ = net.resolve_answer(now, &far),
                    _ => net.note_reply_mac(now, &far, mac_of(input.u8())),
                }
            }
            _ => {
                let frames = claims(&mut input, now);
                for mut frame in frames {
                    if input.bool() {
                        let at = input.below(frame.len());
                        frame[at] ^= input.u8();
                    }
                    handle(&mut net, now, &frame);
                }
            }
        }
        check(&mut net, now, &mut held);
    }
    for (_, held) in held {
        held.id.into_iter().for_each(|id| net.release(id));
    }
}

/// The claims of a host with one of the peers' addresses, or a stranger's.
fn claims(input: &mut Input<'_>, now: Instant) -> Vec<Vec<u8>> {
    let mut other = Net::new(&NetConfig::new(mac_of(input.u8() % 5 + 2)));
    match input.u8() {
        who @ 0..128 => {
            let peer = PEERS[usize::from(who) % PEERS.len()];
            other.add_address(addr(peer), prefix(peer));
        }
        stranger => other.add_address([10, 0, 0, stranger].into(), 24),
    }
    if input.bool() {
        for ours in OURS {
            other.resolve(now, &gid(ours));
        }
    }
    let mut out = [0; FRAME_MAX];
    core::iter::from_fn(|| other.poll_transmit(now, &mut out).map(|len| out[..len].to_vec())).collect()
}

/// The frame goes to the host, and a counter has its outcome.
fn handle(net: &mut Net, now: Instant, frame: &[u8]) {
    let total = |net: &Net| net.counters().map(|(_, n)| n).sum::<u64>();
    let before = total(net);
    let mut reply = [0xa5; 2048];
    let len = net.handle_frame(now, frame, &mut reply);
    assert!(total(net) > before, "a frame without a name");
    assert!(len.is_none_or(|len| len <= frame.len().max(FRAME_MAX)), "an answer that amplifies");
}

/// Sends what is due; a host at `answers` has every address and answers each request that reaches it.
fn look(
    net: &mut Net,
    now: Instant,
    held: &mut BTreeMap<usize, Held>,
    asked: &mut Asked,
    answers: Option<Mac>,
) {
    let mut host = answers.map(|mac| {
        let addrs = PEERS.iter().map(|a| (addr(a), prefix(a))).collect();
        Net::new(&NetConfig { addrs, ..NetConfig::new(mac) })
    });
    let (mut out, mut reply) = ([0; FRAME_MAX], [0; FRAME_MAX]);
    for n in 0.. {
        assert!(n < DUE_MAX, "there is always more to send");
        let Some(len) = net.poll_transmit(now, &mut out) else { break };
        let to = Mac(*out.first_chunk().expect("it is longer"));
        *asked.entry(to).or_default() += 1;
        for held in held.values_mut().filter(|held| held.at == Some(to)) {
            held.asked += 1;
        }
        if let Some(len) = host.as_mut().and_then(|host| host.handle_frame(now, &out[..len], &mut reply)) {
            handle(net, now, &reply[..len]);
            check(net, now, held);
        }
    }
    assert!(net.poll_timeout().is_none_or(|at| at > now), "what is due was done");
}

fn known(answer: Resolution) -> Option<Mac> {
    match answer {
        Resolution::Known(mac) => Some(mac),
        Resolution::Pending | Resolution::Failed => None,
    }
}

/// Held neighbours are where they were, unless their Ethernet addresses were checked in vain.
fn check(net: &mut Net, now: Instant, held: &mut BTreeMap<usize, Held>) {
    for (who, held) in held {
        let Some(id) = held.id else { continue };
        let (again, answer) = net.hold(now, &gid(PEERS[*who]), Some(id));
        assert_eq!(again, Some(id), "a held neighbour keeps its entry");
        if *who >= FIXED {
            assert_eq!(answer, Resolution::Known(FIXED_AT), "a configured neighbour moved");
        }
        let at = known(answer);
        if at == held.at {
            continue;
        }
        let asked = held.asked >= NEIGHBOUR_UNICAST_TRIES.into();
        assert!(held.at.is_none() || asked, "{} moved to {at:?}: {held:?}", PEERS[*who]);
        (held.at, held.asked) = (at, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fires;
    use super::*;

    // Goal: the checkers see the faults that they are there for.
    #[test]
    fn checkers_fire() {
        let check_of = |asked, at, who| {
            let mut net = Net::new(&NetConfig {
                addrs: vec![(addr(OURS[0]), 24)],
                neighbours: vec![(addr(PEERS[0]), mac_of(3)), (addr(PEERS[FIXED]), mac_of(4))],
                ..NetConfig::new(mac_of(1))
            });
            let now = Instant::from_nanos(1);
            let (id, _) = net.hold(now, &gid(PEERS[who]), None);
            let mut held = BTreeMap::from([(who, Held { id, at: Some(at), asked })]);
            fires(|| check(&mut net, now, &mut held))
        };
        assert!(!check_of(0, mac_of(3), 0), "where it was");
        assert!(check_of(0, mac_of(9), 0), "moved without a check");
        assert!(!check_of(NEIGHBOUR_UNICAST_TRIES.into(), mac_of(9), 0), "checked in vain");
        assert!(check_of(100, mac_of(4), FIXED), "a configured one");
    }
}
