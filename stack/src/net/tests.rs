//! Frames seen on a real link, timelines of resolution, and invalid frames.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

mod groups;
mod liars;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscRepr};

use super::frame::{self, FrameHeader};
use super::*;
use crate::config::{
    NEIGHBOUR_FAILED_HOLD, NEIGHBOUR_LIFETIME, NEIGHBOUR_MAX, NEIGHBOUR_RETRY, NEIGHBOUR_STRANGERS_MAX,
    NEIGHBOUR_TRIES, NEIGHBOUR_UNICAST_TRIES,
};

const A: Mac = Mac([2, 0, 0, 0, 0x99, 2]);
const B: Mac = Mac([2, 0, 0, 0, 0x99, 3]);
const C: Mac = Mac([2, 0, 0, 0, 0x99, 4]);
const T0: Instant = Instant::from_nanos(1_000_000_000);

// Two Linux hosts, A and B, setting up a connection: requests and answers.
#[rustfmt::skip]
const ARP_REQUEST_A: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x08, 0x06, 0x00, 0x01,
    0x08, 0x00, 0x06, 0x04, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x0a, 0x63, 0x00, 0x02,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x63, 0x00, 0x03,
];
#[rustfmt::skip]
const ARP_REPLY_B: [u8; 42] = [
    0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x02, 0x00, 0x00, 0x00, 0x99, 0x03, 0x08, 0x06, 0x00, 0x01,
    0x08, 0x00, 0x06, 0x04, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x99, 0x03, 0x0a, 0x63, 0x00, 0x03,
    0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x0a, 0x63, 0x00, 0x02,
];
#[rustfmt::skip]
const SOLICITATION_A: [u8; 86] = [
    0x33, 0x33, 0xff, 0x00, 0x00, 0x03, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x86, 0xdd, 0x60, 0x00,
    0x00, 0x00, 0x00, 0x20, 0x3a, 0xff, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xff, 0xfe, 0x00, 0x99, 0x02, 0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x01, 0xff, 0x00, 0x00, 0x03, 0x87, 0x00, 0x4a, 0x79, 0x00, 0x00, 0x00, 0x00, 0xfd, 0x00,
    0x00, 0x99, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x01, 0x01,
    0x02, 0x00, 0x00, 0x00, 0x99, 0x02,
];
#[rustfmt::skip]
const ADVERTISEMENT_B: [u8; 86] = [
    0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x02, 0x00, 0x00, 0x00, 0x99, 0x03, 0x86, 0xdd, 0x60, 0x00,
    0x00, 0x00, 0x00, 0x20, 0x3a, 0xff, 0xfd, 0x00, 0x00, 0x99, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xff, 0xfe, 0x00, 0x99, 0x02, 0x88, 0x00, 0xe8, 0xe2, 0x60, 0x00, 0x00, 0x00, 0xfd, 0x00,
    0x00, 0x99, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x02, 0x01,
    0x02, 0x00, 0x00, 0x00, 0x99, 0x03,
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(ip(text))
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn config(mac: Mac) -> NetConfig {
    let last = mac.0[5];
    let v6 = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, last.into());
    NetConfig {
        addrs: vec![(IpAddr::V4([10, 99, 0, last].into()), 24), (IpAddr::V6(v6), 64)],
        ..NetConfig::new(mac)
    }
}

fn host(mac: Mac) -> Net {
    Net::new(&config(mac))
}

fn vlan_host(mac: Mac, vlan: u16) -> Net {
    Net::new(&NetConfig { vlan: Some(vlan), ..config(mac) })
}

/// The answer to a frame, in a buffer that was not zero.
fn answer(net: &mut Net, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
    let mut reply = [0xa5; 2048];
    net.handle_frame(now, frame, &mut reply).map(|len| reply[..len].to_vec())
}

/// The next request.
fn request(net: &mut Net, now: Instant) -> Option<Vec<u8>> {
    let mut out = [0xa5; FRAME_MAX];
    net.poll_transmit(now, &mut out).map(|len| out[..len].to_vec())
}

fn arp(op: u8, src: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut out = ARP_REQUEST_A.to_vec();
    out[6..12].copy_from_slice(&src.0);
    out[21] = op;
    out[22..28].copy_from_slice(&src.0);
    out[28..32].copy_from_slice(&sender);
    out[38..42].copy_from_slice(&target);
    out
}

fn icmpv6(header: FrameHeader, src: &str, dst: &str, icmp: &Icmpv6Repr<'_>) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let len = frame::icmpv6(&mut out, header, v6(src), v6(dst), icmp).unwrap();
    out.truncate(len);
    out
}

fn to_b() -> FrameHeader {
    FrameHeader { src: A, dst: B, vlan: None }
}

fn advertisement(src: Mac, target: &str, dst: &str, flags: NdiscNeighborFlags, mac: Option<Mac>) -> Vec<u8> {
    let lladdr = mac.map(|m| EthernetAddress(m.0).into());
    let advert = NdiscRepr::NeighborAdvert { flags, target_addr: v6(target), lladdr };
    icmpv6(FrameHeader { src, ..to_b() }, target, dst, &Icmpv6Repr::Ndisc(advert))
}

fn solicitation(src: &str, dst: &str, target: &str, mac: Option<Mac>) -> Vec<u8> {
    let lladdr = mac.map(|m| EthernetAddress(m.0).into());
    let solicit = NdiscRepr::NeighborSolicit { target_addr: v6(target), lladdr };
    icmpv6(
        FrameHeader { dst: frame::group(v6("ff02::1:ff00:3")), ..to_b() },
        src,
        dst,
        &Icmpv6Repr::Ndisc(solicit),
    )
}

fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    out.extend([0x81, 0]);
    out.extend(tci.to_be_bytes());
    out.extend(&frame[12..]);
    out
}

#[track_caller]
fn ignored(net: &mut Net, frame: &[u8], why: NetCounter) {
    let before = net.counter(why);
    assert_eq!(answer(net, T0, frame), None);
    assert_eq!(net.counter(why), before + 1, "{}", why.name());
}

// The request of one Linux host gets the answer that the other Linux host gave, byte for byte.
#[test]
fn p36_arp_request_is_answered_as_captured() {
    let mut net = host(B);
    assert_eq!(answer(&mut net, T0, &ARP_REQUEST_A).unwrap(), ARP_REPLY_B);
    assert_eq!(net.resolve(T0, &gid("10.99.0.2")), Resolution::Known(A), "the requester is remembered");
    assert_eq!(request(&mut net, T0), None);
    let mut padded = ARP_REQUEST_A.to_vec();
    padded.resize(60, 0);
    assert_eq!(answer(&mut net, T0, &padded).unwrap(), ARP_REPLY_B);
}

#[test]
fn p36_solicitation_is_answered_as_captured() {
    let mut net = host(B);
    assert_eq!(answer(&mut net, T0, &SOLICITATION_A).unwrap(), ADVERTISEMENT_B);
    assert_eq!(net.resolve(T0, &gid("fe80::ff:fe00:9902")), Resolution::Known(A));
}

// A refresh is unicast, and may leave out its own Ethernet address.
#[test]
fn p36_unicast_solicitation_is_answered() {
    let mut net = host(B);
    let asked = solicitation("fd00:99::2", "fd00:99::3", "fd00:99::3", None);
    let reply = answer(&mut net, T0, &asked).unwrap();
    assert_eq!(reply.len(), FRAME_MAX - 4);
    assert_eq!(&reply[..6], &A.0, "to the station it came from");
    assert_eq!(&reply[38..54], &v6("fd00:99::2").octets());
    assert_eq!(net.counter(NetCounter::NeighbourLearned), 0, "no Ethernet address was given");
}

// A host that probes for our address gets an answer, which goes to all hosts (RFC 4862 5.4, RFC 5227).
#[test]
fn p36_address_probes_are_answered() {
    let mut net = host(B);
    let reply = answer(&mut net, T0, &solicitation("::", "ff02::1:ff00:3", "fd00:99::3", None)).unwrap();
    assert_eq!(&reply[..6], &[0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(&reply[38..54], &v6("ff02::1").octets());
    assert_eq!(reply[58], 0x20, "override, not solicited");

    let reply = answer(&mut net, T0, &arp(1, A, [0; 4], [10, 99, 0, 3])).unwrap();
    assert_eq!(&reply[..6], &A.0);
    assert_eq!(&reply[28..32], &[10, 99, 0, 3]);
    assert_eq!(net.counter(NetCounter::NeighbourLearned), 0);

    ignored(&mut net, &solicitation("::", "ff02::1:ff00:3", "fd00:99::3", Some(A)), NetCounter::BadNd);
    ignored(&mut net, &solicitation("::", "fd00:99::3", "fd00:99::3", None), NetCounter::BadNd);
}

#[test]
fn p36_questions_for_others_are_ignored() {
    let mut net = host(B);
    ignored(&mut net, &arp(1, A, [10, 99, 0, 2], [10, 99, 0, 9]), NetCounter::NotForUs);
    ignored(&mut net, &arp(1, A, [0; 4], [10, 99, 0, 9]), NetCounter::NotForUs);
    ignored(&mut net, &arp(3, A, [10, 99, 0, 2], [10, 99, 0, 3]), NetCounter::BadArp);
    // The group is ours because its last three bytes are, the target is not.
    let asked = solicitation("fe80::1", "ff02::1:ff00:3", "fd00:77::3", Some(A));
    ignored(&mut net, &asked, NetCounter::NotForUs);
    let other_group = solicitation("fe80::1", "ff02::1:ff00:9", "fd00:99::9", Some(A));
    ignored(&mut net, &other_group, NetCounter::BadIpAddress);
}

#[test]
fn p35_first_use_asks_and_the_answer_resolves() {
    let mut net = host(A);
    let peer = gid("10.99.0.3");
    assert_eq!(net.poll_timeout(), None);
    let generation = net.generation();
    assert_eq!(net.resolve(T0, &peer), Resolution::Pending);
    assert_eq!(net.poll_timeout(), Some(T0));
    assert_eq!(request(&mut net, T0).unwrap(), ARP_REQUEST_A, "as the Linux host asked");
    assert_eq!(request(&mut net, T0), None);
    assert_eq!(net.resolve(T0, &peer), Resolution::Pending, "one question is enough");
    assert_eq!(request(&mut net, T0), None);
    assert_eq!(net.generation(), generation);
    assert_eq!(answer(&mut net, T0, &ARP_REPLY_B), None);
    assert_ne!(net.generation(), generation);
    assert_eq!(net.resolve(T0, &peer), Resolution::Known(B));
}

#[test]
fn p35_ipv6_first_use_asks_and_the_answer_resolves() {
    let mut net = host(A);
    assert_eq!(net.resolve(T0, &gid("fd00:99::3")), Resolution::Pending);
    let asked = request(&mut net, T0).unwrap();
    // As the Linux host sent it, except for our source address and the checksum that covers it.
    assert_eq!(asked.len(), SOLICITATION_A.len());
    assert_eq!(asked[..22], SOLICITATION_A[..22]);
    assert_eq!(asked[22..38], v6("fd00:99::2").octets());
    assert_eq!(asked[38..56], SOLICITATION_A[38..56]);
    assert_eq!(asked[58..], SOLICITATION_A[58..]);
    assert!(answer(&mut host(B), T0, &asked).is_some(), "its checksum is right");
    // The captured answer went to the link-local address of A, which is ours too.
    assert_eq!(answer(&mut net, T0, &ADVERTISEMENT_B), None);
    assert_eq!(net.resolve(T0, &gid("fd00:99::3")), Resolution::Known(B));
}

// A link-local GID is on the link whatever the prefixes are, and resolved from our own.
#[test]
fn p35_link_local_gids_resolve_on_the_link() {
    let mut net = Net::new(&NetConfig::new(A));
    let peer = Gid::link_local(B);
    assert_eq!(net.resolve(T0, &peer), Resolution::Pending);
    let asked = request(&mut net, T0).unwrap();
    assert_eq!(asked[22..38], Gid::link_local(A).0);
    let reply = answer(&mut Net::new(&NetConfig::new(B)), T0, &asked).unwrap();
    assert_eq!(answer(&mut net, T0, &reply), None);
    assert_eq!(net.resolve(T0, &peer), Resolution::Known(B));
}

// Sixteen requests a quarter of a second apart, then an error for a second, then the next try.
#[test]
fn p35_nobody_answers() {
    let mut net = host(A);
    let peer = gid("10.99.0.3");
    let mut now = T0;
    assert_eq!(net.resolve(now, &peer), Resolution::Pending);
    let mut times = Vec::new();
    let generation = net.generation();
    while net.resolve(now, &peer) == Resolution::Pending {
        now = net.poll_timeout().unwrap();
        while request(&mut net, now).is_some() {
            times.push(now.nanos_since(T0));
        }
    }
    let step = NEIGHBOUR_RETRY.as_nanos() as u64;
    assert_eq!(times, (0..u64::from(NEIGHBOUR_TRIES)).map(|n| n * step).collect::<Vec<_>>());
    assert_eq!(now.nanos_since(T0), u64::from(NEIGHBOUR_TRIES) * step);
    assert_eq!(net.resolve(now, &peer), Resolution::Failed);
    assert_eq!(net.counter(NetCounter::NeighbourUnreachable), 1);
    assert!(net.generation() > generation);

    let generation = net.generation();
    let hold = now.after(NEIGHBOUR_FAILED_HOLD);
    assert_eq!(net.resolve(Instant::from_nanos(hold.as_nanos() - 1), &peer), Resolution::Failed);
    assert_eq!(net.poll_timeout(), Some(hold));
    assert_eq!(request(&mut net, hold), None);
    assert!(net.generation() > generation, "whoever was refused may ask again");
    assert_eq!(net.resolve(hold, &peer), Resolution::Pending);
    assert!(request(&mut net, hold).is_some());
}

#[test]
fn a_late_answer_still_counts() {
    let mut net = host(A);
    let peer = gid("10.99.0.3");
    net.resolve(T0, &peer);
    let mut now = T0;
    while net.resolve(now, &peer) != Resolution::Failed {
        now = net.poll_timeout().unwrap();
        while request(&mut net, now).is_some() {}
    }
    assert_eq!(answer(&mut net, now, &ARP_REPLY_B), None);
    assert_eq!(net.resolve(now, &peer), Resolution::Known(B));
}

/// A host that has resolved 10.99.0.3 to B at T0, and the moment its entry is old.
fn resolved() -> (Net, Instant) {
    let mut net = host(A);
    net.resolve(T0, &gid("10.99.0.3"));
    request(&mut net, T0).unwrap();
    answer(&mut net, T0, &ARP_REPLY_B);
    assert_eq!(net.resolve(T0, &gid("10.99.0.3")), Resolution::Known(B));
    (net, T0.after(NEIGHBOUR_LIFETIME))
}

// An old entry stays in use while it is refreshed: by unicast first, then by broadcast.
#[test]
fn refresh_keeps_the_old_station_in_use() {
    let peer = gid("10.99.0.3");
    let (mut net, old) = resolved();
    while request(&mut net, Instant::from_nanos(old.as_nanos() - 1)).is_some() {}
    let generation = net.generation();
    assert_eq!(net.poll_timeout(), Some(old));
    assert_eq!(request(&mut net, old), None, "nobody needs it yet");
    assert!(net.generation() > generation, "callers that need it have to resolve again");
    assert_eq!(net.resolve(old, &peer), Resolution::Known(B));

    let mut now = old;
    let mut stations = Vec::new();
    while net.resolve(now, &peer) == Resolution::Known(B) {
        while let Some(asked) = request(&mut net, now) {
            stations.push(Mac(asked[..6].try_into().unwrap()));
        }
        now = net.poll_timeout().unwrap();
        if net.counter(NetCounter::NeighbourUnreachable) == 1 {
            break;
        }
    }
    let (alone, all) = stations.split_at(NEIGHBOUR_UNICAST_TRIES.into());
    assert!(alone.iter().all(|to| *to == B), "{alone:?}");
    assert_eq!(all.len(), usize::from(NEIGHBOUR_TRIES - NEIGHBOUR_UNICAST_TRIES));
    assert!(all.iter().all(|to| *to == Mac::BROADCAST), "{all:?}");
    assert_eq!(net.resolve(old.after(NEIGHBOUR_RETRY * NEIGHBOUR_TRIES.into()), &peer), Resolution::Failed);
}

#[test]
fn refresh_that_is_answered_lasts_again() {
    let peer = gid("10.99.0.3");
    let (mut net, old) = resolved();
    assert_eq!(request(&mut net, old), None);
    assert_eq!(net.resolve(old, &peer), Resolution::Known(B));
    assert!(request(&mut net, old).is_some());
    let generation = net.generation();
    answer(&mut net, old, &ARP_REPLY_B);
    assert_eq!(net.generation(), generation, "the same station: no answer changed");
    let later = old.after(NEIGHBOUR_LIFETIME - Duration::from_nanos(1));
    assert_eq!(net.resolve(later, &peer), Resolution::Known(B));
    assert_eq!(request(&mut net, later), None);
}

// Entries that are not resolved again are never refreshed.
#[test]
fn unused_entries_grow_old_in_silence() {
    let mut net = host(B);
    answer(&mut net, T0, &ARP_REQUEST_A).unwrap();
    let generation = net.generation();
    let day = T0.after(Duration::from_secs(86_400));
    assert_eq!(request(&mut net, day), None);
    assert_eq!(net.poll_timeout(), None);
    assert_eq!(net.generation(), generation, "its answer was never given out");
    assert_eq!(net.resolve(day, &gid("10.99.0.2")), Resolution::Known(A));
    assert!(request(&mut net, day).is_some());
}

// An announcement is learned if the host is known and not in use. An unknown host is not added.
#[test]
fn gratuitous_arp_updates_known_entries_only() {
    let peer = gid("10.99.0.3");
    let (mut net, old) = resolved();
    for op in [1, 2] {
        ignored(
            &mut net,
            &arp(op, C, [10, 99, 0, 9], [10, 99, 0, 9]),
            [NetCounter::NotForUs, NetCounter::UnsolicitedAnswer][usize::from(op == 2)],
        );
    }
    let generation = net.generation();
    assert_eq!(answer(&mut net, old, &arp(1, C, [10, 99, 0, 3], [10, 99, 0, 3])), None);
    assert!(net.generation() > generation, "callers that have the other answer resolve again");
    assert_eq!(net.resolve(old, &peer), Resolution::Known(C));
}

#[test]
fn requesters_off_the_link_are_answered_but_not_remembered() {
    let mut net = host(B);
    assert!(answer(&mut net, T0, &arp(1, A, [10, 77, 0, 2], [10, 99, 0, 3])).is_some());
    assert_eq!(net.counter(NetCounter::NeighbourLearned), 0);
}

#[test]
fn our_own_address_in_foreign_hands() {
    let mut net = host(B);
    ignored(&mut net, &arp(1, A, [10, 99, 0, 3], [10, 99, 0, 3]), NetCounter::AddressConflict);
    let claim = advertisement(A, "fd00:99::3", "ff02::1", NdiscNeighborFlags::OVERRIDE, Some(A));
    ignored(&mut net, &claim, NetCounter::AddressConflict);
    let own = arp(1, B, [10, 99, 0, 3], [10, 99, 0, 3]);
    ignored(&mut net, &own, NetCounter::OwnFrame);
}

#[test]
fn advertisements_follow_their_flags() {
    const SOLICITED: NdiscNeighborFlags = NdiscNeighborFlags::SOLICITED;
    const OVERRIDE: NdiscNeighborFlags = NdiscNeighborFlags::OVERRIDE;
    const PEER: &str = "fd00:99::2";
    const OWN: &str = "fd00:99::3";
    let both = SOLICITED | OVERRIDE;
    let mut net = host(B);
    ignored(&mut net, &advertisement(A, PEER, OWN, both, Some(A)), NetCounter::UnsolicitedAnswer);
    net.resolve(T0, &gid(PEER));
    // The first answer must name the Ethernet address; later ones may leave it out, and change it only if they override.
    ignored(&mut net, &advertisement(A, PEER, OWN, SOLICITED, None), NetCounter::UnsolicitedAnswer);
    ignored(&mut net, &advertisement(A, PEER, "ff02::1", both, Some(A)), NetCounter::BadNd);
    assert_eq!(answer(&mut net, T0, &advertisement(A, PEER, OWN, SOLICITED, Some(A))), None);
    assert_eq!(net.resolve(T0, &gid(PEER)), Resolution::Known(A));
    ignored(&mut net, &advertisement(C, PEER, OWN, SOLICITED, Some(C)), NetCounter::NoOverride);
    assert_eq!(net.resolve(T0, &gid(PEER)), Resolution::Known(A));
    let generation = net.generation();
    assert_eq!(answer(&mut net, T0, &advertisement(A, PEER, OWN, SOLICITED, None)), None);
    assert_eq!(net.generation(), generation);
    let (moved, unused) =
        (advertisement(C, PEER, "ff02::1", OVERRIDE, Some(C)), T0.after(NEIGHBOUR_LIFETIME));
    assert_eq!(answer(&mut net, unused, &moved), None);
    assert_eq!(net.resolve(unused, &gid(PEER)), Resolution::Known(C));
}

// A hop limit below 255 proves that the packet crossed a router.
#[test]
fn neighbour_discovery_from_afar_is_ignored() {
    let mut net = host(B);
    let mut asked = SOLICITATION_A;
    asked[21] = 254;
    ignored(&mut net, &asked, NetCounter::BadHopLimit);
    let mut net = host(A);
    net.resolve(T0, &gid("fd00:99::3"));
    let mut reply = ADVERTISEMENT_B;
    reply[21] = 64;
    ignored(&mut net, &reply, NetCounter::BadHopLimit);
    assert_eq!(net.resolve(T0, &gid("fd00:99::3")), Resolution::Pending);
}

#[test]
fn routed_destinations_go_to_the_gateway() {
    let gateway = Some([10, 99, 0, 1].into());
    let mut net = Net::new(&NetConfig { gateway, gateway6: Some(v6("fe80::1")), ..config(A) });
    assert_eq!(net.resolve(T0, &gid("192.168.7.7")), Resolution::Pending);
    let asked = request(&mut net, T0).unwrap();
    assert_eq!(asked[38..42], [10, 99, 0, 1]);
    answer(&mut net, T0, &arp(2, C, [10, 99, 0, 1], [10, 99, 0, 2]));
    for far in ["192.168.7.7", "192.168.7.8", "10.98.255.255", "10.99.1.0"] {
        assert_eq!(net.resolve(T0, &gid(far)), Resolution::Known(C), "{far}");
    }
    assert_eq!(net.resolve(T0, &gid("10.99.0.255")), Resolution::Pending, "on the link");
    assert_eq!(net.resolve(T0, &gid("2001:db8::1")), Resolution::Pending);
    let target = |asked: Vec<u8>| asked[asked.len() - 24..asked.len() - 8].to_vec();
    let asked = std::iter::from_fn(|| request(&mut net, T0)).last().unwrap();
    assert_eq!(target(asked), v6("fe80::1").octets());
}

#[test]
fn answers_that_need_nobody() {
    let mut net = host(A);
    for own in net.gids().clone().iter() {
        assert_eq!(net.resolve(T0, &own), Resolution::Known(A));
    }
    let group = gid("239.1.2.3");
    assert_eq!(net.resolve(T0, &group), Resolution::Known(Mac::multicast(&group)));
    for nowhere in ["192.168.7.7", "2001:db8::1", "0.0.0.0", "::", "255.255.255.255"] {
        assert_eq!(net.resolve(T0, &gid(nowhere)), Resolution::Failed, "{nowhere}");
    }
    assert_eq!(request(&mut net, T0), None);
}

#[test]
fn p30_vlans() {
    let (untagged, priority) = (host(B), 0x6000);
    assert!(untagged.accepts_vlan(None) && untagged.accepts_vlan(Some(priority)));
    assert!(!untagged.accepts_vlan(Some(100)));
    let mut net = vlan_host(B, 100);
    assert!(net.accepts_vlan(Some(100)) && net.accepts_vlan(Some(priority | 100)));
    for other in [None, Some(priority), Some(101)] {
        assert!(!net.accepts_vlan(other));
    }

    ignored(&mut net, &ARP_REQUEST_A, NetCounter::WrongVlan);
    ignored(&mut net, &tagged(&ARP_REQUEST_A, 101), NetCounter::WrongVlan);
    ignored(&mut net, &tagged(&ARP_REQUEST_A, 0), NetCounter::WrongVlan);
    for tci in [100, priority | 100] {
        assert_eq!(answer(&mut net, T0, &tagged(&ARP_REQUEST_A, tci)).unwrap(), tagged(&ARP_REPLY_B, 100));
        let advert = answer(&mut net, T0, &tagged(&SOLICITATION_A, tci)).unwrap();
        assert_eq!(advert, tagged(&ADVERTISEMENT_B, 100));
    }
    let mut net = host(B);
    ignored(&mut net, &tagged(&ARP_REQUEST_A, 100), NetCounter::WrongVlan);
    assert_eq!(answer(&mut net, T0, &tagged(&ARP_REQUEST_A, priority)).unwrap(), ARP_REPLY_B);

    let mut net = vlan_host(A, 100);
    net.resolve(T0, &gid("10.99.0.3"));
    assert_eq!(request(&mut net, T0).unwrap(), tagged(&ARP_REQUEST_A, 100));
    net.resolve(T0, &gid("fd00:99::3"));
    assert_eq!(request(&mut net, T0).unwrap().len(), FRAME_MAX);
}

#[test]
fn p30_gids_of_the_addresses() {
    let net = host(B);
    let gids: Vec<_> = net.gids().iter().map(|g| g.to_string()).collect();
    assert_eq!(gids, ["fe80::ff:fe00:9903", "::ffff:10.99.0.3", "fd00:99::3"]);
    assert_eq!(net.gids().len(), 3);
    for (index, gid) in net.gids().iter().enumerate() {
        assert_eq!(net.gids().get(index), Some(gid));
        assert!(net.gids().is_local(&gid));
    }
    assert_eq!((net.gids().get(3), net.gids().is_local(&gid("10.99.0.2"))), (None, false));
    assert!(!net.gids().is_local(&gid("10.99.0.2")));
    let mut twice = config(B);
    twice.addrs.insert(1, (ip("fe80::ff:fe00:9903"), 64));
    twice.addrs.push((ip("10.99.0.3"), 32));
    assert_eq!(GidTable::new(&twice), *net.gids());
}

fn echo_v4(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let echo = Icmpv4Repr::EchoRequest { ident: 0x1234, seq_no: 7, data };
    let (src, dst) = (Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 3));
    let len = frame::icmpv4(&mut out, to_b(), src, dst, &echo).unwrap();
    out.truncate(len);
    out
}

#[test]
fn echo_requests_are_answered() {
    for len in [0, 1, 56, 1472] {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let asked = echo_v4(&data);
        let reply = answer(&mut host(B), T0, &asked).unwrap();
        assert_eq!(reply.len(), asked.len());
        assert_eq!((&reply[..6], &reply[6..12]), (&A.0[..], &B.0[..]));
        assert_eq!((&reply[26..30], &reply[30..34]), (&asked[30..34], &asked[26..30]));
        assert_eq!((reply[34], &reply[38..]), (0, &asked[38..]));
        let ip = Ipv4Packet::new_checked(&reply[14..]).unwrap();
        assert!(ip.verify_checksum() && Icmpv4Packet::new_checked(ip.payload()).unwrap().verify_checksum());

        let echo = Icmpv6Repr::EchoRequest { ident: 0x1234, seq_no: 7, data: &data };
        let asked = icmpv6(to_b(), "fd00:99::2", "fd00:99::3", &echo);
        let reply = answer(&mut host(B), T0, &asked).unwrap();
        let ip = Ipv6Packet::new_checked(&reply[14..]).unwrap();
        let (src, dst) = (ip.src_addr(), ip.dst_addr());
        assert_eq!((src, dst), (v6("fd00:99::3"), v6("fd00:99::2")));
        let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
        assert!(icmp.verify_checksum(&src, &dst));
        let parsed = Icmpv6Repr::parse(&src, &dst, &icmp, &ChecksumCapabilities::default()).unwrap();
        assert_eq!(parsed, Icmpv6Repr::EchoReply { ident: 0x1234, seq_no: 7, data: &data });
    }
}

#[test]
fn echo_requests_that_are_not_answered() {
    let mut net = host(B);
    let good = echo_v4(b"abcd");
    let change = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        // Keeps the IP header's checksum right, so that the change itself is what matters.
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        frame
    };
    let mut bad_sum = good.clone();
    bad_sum[24] ^= 1;
    ignored(&mut net, &bad_sum, NetCounter::BadIp);
    ignored(&mut net, &change(14, 0x55), NetCounter::BadIp);
    ignored(&mut net, &change(20, 0x20), NetCounter::Fragment);
    ignored(&mut net, &change(21, 1), NetCounter::Fragment);
    ignored(&mut net, &change(23, 17), NetCounter::OtherProtocol);
    ignored(&mut net, &change(33, 9), NetCounter::BadIpAddress);
    ignored(&mut net, &change(26, 224), NetCounter::BadIpAddress);
    ignored(&mut net, &change(29, 3), NetCounter::BadIpAddress);
    ignored(&mut net, &change(41, 9), NetCounter::BadIcmp);
    let mut broadcast = good.clone();
    broadcast[..6].fill(0xff);
    ignored(&mut net, &broadcast, NetCounter::BadIpAddress);
    assert_eq!(net.handle_frame(T0, &good, &mut [0; 20]), None);
    assert_eq!(net.counter(NetCounter::ReplyTooLong), 1);
    assert_eq!(net.handle_frame(T0, &good, &mut []), None);
    assert_eq!((net.counter(NetCounter::NoReplyBuffer), net.counter(NetCounter::ReplyTooLong)), (1, 1));
    ignored(&mut net, &bad_sum, NetCounter::BadIp);
    let reply = answer(&mut net, T0, &good).unwrap();
    ignored(&mut host(A), &reply, NetCounter::OtherIcmp);
}

#[test]
fn frames_that_are_not_for_us() {
    let mut net = host(B);
    let change = |at: usize, to: &[u8]| {
        let mut frame = ARP_REQUEST_A;
        frame[at..at + to.len()].copy_from_slice(to);
        frame
    };
    ignored(&mut net, &change(0, &C.0), NetCounter::NotOurStation);
    ignored(&mut net, &change(6, &[0xff; 6]), NetCounter::BadSourceStation);
    ignored(&mut net, &change(6, &[0; 6]), NetCounter::BadSourceStation);
    ignored(&mut net, &change(6, &B.0), NetCounter::OwnFrame);
    ignored(&mut net, &change(12, &[0x88, 0xcc]), NetCounter::OtherEthertype);
    ignored(&mut net, &change(15, &[6]), NetCounter::BadArp);
    ignored(&mut net, &change(18, &[8]), NetCounter::BadArp);
    ignored(&mut net, &change(22, &[0xff; 6]), NetCounter::BadArp);
    ignored(&mut net, &change(28, &[224, 0, 0, 1]), NetCounter::BadArp);
    ignored(&mut net, &ARP_REQUEST_A[..13], NetCounter::TooShort);
}

#[test]
fn counters_have_distinct_names() {
    let mut names: Vec<_> = host(A).counters().map(|(c, _)| c.name()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for (index, counter) in NetCounter::ALL.iter().enumerate() {
        assert_eq!(*counter as usize, index);
    }
}

// A flood of requests fills the table, and evicts neither the neighbour in use nor the one being resolved.
#[test]
fn a_flood_stays_within_the_table() {
    let mut net = Net::new(&NetConfig { addrs: vec![(ip("10.99.0.3"), 8)], ..NetConfig::new(B) });
    let (used, asked) = (gid("10.0.0.1"), gid("10.0.0.2"));
    net.resolve(T0, &used);
    answer(&mut net, T0, &arp(2, A, [10, 0, 0, 1], [10, 99, 0, 3]));
    net.resolve(T0, &asked);
    let generation = net.generation();
    for n in 0..4 * NEIGHBOUR_MAX as u32 {
        let [_, a, b, c] = (0x0001_0000 + n).to_be_bytes();
        let now = T0.after_nanos(n.into());
        assert!(answer(&mut net, now, &arp(1, C, [10, a, b, c], [10, 99, 0, 3])).is_some());
        assert!(net.neighbours.len() <= NEIGHBOUR_MAX);
    }
    assert_eq!(net.generation(), generation, "nobody's answer changed");
    assert_eq!(net.neighbours.mac(&used), Some(A));
    assert_eq!(net.resolve(T0, &asked), Resolution::Pending);
    assert_eq!(net.neighbours.len(), NEIGHBOUR_STRANGERS_MAX + 2);
    let evicted = 4 * NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX;
    assert_eq!(net.counter(NetCounter::NeighbourEvicted), evicted as u64);
}

// Hosts that merely send requests do not evict neighbours in use; among these the longest unused is evicted.
#[test]
fn a_table_full_of_neighbours_in_use() {
    const USED: usize = NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX;
    let mut net = Net::new(&NetConfig { addrs: vec![(ip("10.99.0.3"), 8)], ..NetConfig::new(B) });
    let peer = |n: u32| Gid::v4((0x0a00_0001 + n).to_be_bytes());
    for n in 0..USED as u32 {
        let now = T0.after_nanos(n.into());
        net.resolve(now, &peer(n));
        answer(&mut net, now, &arp(2, A, peer(n).as_v4().unwrap(), [10, 99, 0, 3]));
        assert_eq!(net.resolve(now, &peer(n)), Resolution::Known(A));
    }
    for n in 0..2 * NEIGHBOUR_STRANGERS_MAX as u32 {
        let [_, _, b, c] = n.to_be_bytes();
        assert!(answer(&mut net, T0, &arp(1, C, [10, 77, b, c], [10, 99, 0, 3])).is_some(), "still answered");
    }
    assert_eq!(net.neighbours.len(), NEIGHBOUR_MAX);
    assert!((0..USED as u32).all(|n| net.neighbours.mac(&peer(n)) == Some(A)));
    let (generation, later) = (net.generation(), T0.after(Duration::from_millis(1)));
    net.resolve(later, &peer(0));
    assert_eq!(net.resolve(later, &gid("10.78.0.1")), Resolution::Pending);
    assert!(net.generation() > generation, "whoever used the one that gave way must ask again");
    assert_eq!(net.neighbours.mac(&peer(0)), Some(A));
    assert_eq!(net.neighbours.mac(&peer(1)), None, "the longest unused gave way");
    assert_eq!(net.neighbours.len(), NEIGHBOUR_MAX);
}

// Goal: hosts that first send us a request and are then resolved, like clients of a datagram server, take no more room than others.
#[test]
fn strangers_that_are_resolved_stay_within_the_table() {
    let mut net = Net::new(&NetConfig { addrs: vec![(ip("10.99.0.3"), 8)], ..NetConfig::new(B) });
    for n in 0..2 * NEIGHBOUR_MAX as u32 {
        let (now, client) = (T0.after_nanos(n.into()), (0x0a01_0000 + n).to_be_bytes());
        assert!(answer(&mut net, now, &arp(1, C, client, [10, 99, 0, 3])).is_some());
        assert_eq!(net.resolve(now, &Gid::v4(client)), Resolution::Known(C));
        assert!(net.neighbours.len() <= NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX, "{n}");
    }
    let evicted = NEIGHBOUR_MAX + NEIGHBOUR_STRANGERS_MAX;
    assert_eq!(net.counter(NetCounter::NeighbourEvicted), evicted as u64);
}

#[test]
fn configurations_that_make_no_sense() {
    assert_eq!(config(A).check(), Ok(()));
    let with = |change: fn(&mut NetConfig)| {
        let mut config = config(A);
        change(&mut config);
        let _ = Net::new(&config); // it takes any configuration
        config.check().unwrap_err().to_string()
    };
    assert_eq!(with(|c| c.mac = Mac::BROADCAST), "ff:ff:ff:ff:ff:ff is not the address of a single station");
    assert_eq!(with(|c| c.addrs[0].1 = 33), "prefix /33 of 10.99.0.2 is too long, allowed are 0 to 32");
    assert_eq!(with(|c| c.addrs[1].1 = 129), "prefix /129 of fd00:99::2 is too long, allowed are 0 to 128");
    let group = "224.0.0.1 is not the address of a host: it is a multicast address";
    assert_eq!(with(|c| c.addrs[0].0 = ip("224.0.0.1")), group);
    let nobody = ":: is not the address of a host: it is the unspecified address";
    assert_eq!(with(|c| c.gateway6 = Some(Ipv6Addr::UNSPECIFIED)), nobody);
    assert_eq!(
        with(|c| c.neighbours.push((ip("10.99.0.9"), Mac::BROADCAST))),
        "ff:ff:ff:ff:ff:ff is not the address of a single station"
    );
    assert_eq!(with(|c| c.neighbours.push((ip("::"), C))), nobody);
    assert_eq!(with(|c| c.vlan = Some(4095)), "VLAN id 4095 is reserved, allowed are 1 to 4094");
    assert_eq!(with(|c| c.addrs = vec![c.addrs[0]; 256]), "256 addresses, allowed are up to 255");
}

/// Frames that reach every parser, to be broken.
fn samples() -> Vec<Vec<u8>> {
    vec![
        ARP_REQUEST_A.to_vec(),
        ARP_REPLY_B.to_vec(),
        SOLICITATION_A.to_vec(),
        ADVERTISEMENT_B.to_vec(),
        tagged(&SOLICITATION_A, 100),
        echo_v4(b"0123456789"),
        icmpv6(
            to_b(),
            "fd00:99::2",
            "fd00:99::3",
            &Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: b"01234" },
        ),
    ]
}

/// Feeds a frame to hosts that it may concern; nothing panics and every frame is accounted for.
fn feed(frame: &[u8]) {
    for mut net in [host(A), host(B), vlan_host(B, 100)] {
        net.resolve(T0, &gid("10.99.0.3"));
        net.resolve(T0, &gid("fd00:99::3"));
        let before: u64 = net.counters().map(|(_, n)| n).sum();
        let reply = answer(&mut net, T0, frame);
        assert!(net.counters().map(|(_, n)| n).sum::<u64>() > before, "a frame without a name");
        assert!(reply.is_none_or(|r| r.len() <= frame.len().max(FRAME_MAX)), "an answer that amplifies");
    }
}

#[test]
fn truncated_frames() {
    for sample in samples() {
        for len in 0..sample.len() {
            feed(&sample[..len]);
        }
    }
}

proptest! {
    #[test]
    fn random_frames(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        feed(&bytes);
    }

    #[test]
    fn broken_frames(
        which in 0..7usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        fix in any::<bool>(),
    ) {
        let mut frame = samples().swap_remove(which);
        for (at, to) in changes {
            let at = at.index(frame.len());
            frame[at] = to;
        }
        if fix && frame[12..14] == [0x08, 0] && Ipv4Packet::new_checked(&frame[14..]).is_ok() {
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        feed(&frame);
    }

    // With correct checksums any body reaches the parsers.
    #[test]
    fn any_icmpv6_body(
        kind in prop::sample::select(vec![128u8, 133, 134, 135, 136, 137, 143, 155]),
        body in proptest::collection::vec(any::<u8>(), 3..120),
    ) {
        let mut frame = SOLICITATION_A[..54].to_vec();
        frame.push(kind);
        frame.push(0);
        frame.extend(&body);
        let len = frame.len() - 54;
        frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
        let (src, dst) = (v6("fe80::ff:fe00:9902"), v6("ff02::1:ff00:3"));
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&src, &dst);
        feed(&frame);
    }

    // Neighbour discovery options of any kind and length, after a correct header.
    #[test]
    fn any_nd_options(
        advert in any::<bool>(),
        options in proptest::collection::vec((0u8..8, 0u8..8, any::<u8>()), 0..5),
    ) {
        let mut frame = (if advert { &ADVERTISEMENT_B } else { &SOLICITATION_A })[..78].to_vec();
        for (kind, len, fill) in options {
            frame.extend([kind, len]);
            frame.extend(std::iter::repeat_n(fill, (usize::from(len) * 8).saturating_sub(2)));
        }
        let len = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        let (src, dst) = (ip.src_addr(), ip.dst_addr());
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&src, &dst);
        feed(&frame);
    }

    // Compares the table with a plain map, within a lifetime and before tries run out: what it knows is right, and what is due is done.
    #[test]
    fn table_agrees_with_a_map(steps in proptest::collection::vec((0u8..4, 0u8..8, 1u64..10), 1..200)) {
        let mut net = host(B);
        let (mut claimed, mut used) = (std::collections::BTreeMap::new(), std::collections::BTreeSet::new());
        let mut now = T0;
        for (what, who, ms) in steps {
            now = now.after(Duration::from_millis(ms));
            let addr = [10, 99, 0, 10 + who];
            match what {
                0 => {
                    let asked = arp(1, Mac([2, 0, 0, 0, 1, ms as u8]), addr, [10, 99, 0, 3]);
                    prop_assert!(answer(&mut net, now, &asked).is_some());
                    // A neighbour that was resolved does not follow.
                    if !used.contains(&addr) || !claimed.contains_key(&addr) {
                        claimed.insert(addr, Mac([2, 0, 0, 0, 1, ms as u8]));
                    }
                }
                1 => {
                    let known = net.resolve(now, &Gid::v4(addr));
                    used.insert(addr);
                    match claimed.get(&addr) {
                        Some(mac) => prop_assert_eq!(known, Resolution::Known(*mac)),
                        None => prop_assert!(!matches!(known, Resolution::Known(_))),
                    }
                }
                _ => {
                    let mut frames = 0;
                    while request(&mut net, now).is_some() {
                        frames += 1;
                        prop_assert!(frames <= 8, "a request each at most");
                    }
                    prop_assert!(net.poll_timeout().is_none_or(|at| at > now));
                }
            }
        }
    }
}

// An address that is added is announced once, as Linux announces it, answered for and routed by; one that is removed is not.
#[test]
fn addresses_come_and_go() {
    let mut net = Net::new(&NetConfig::new(A));
    let mut other = host(C);
    let mut out = [0; FRAME_MAX];
    let generation = net.generation();
    assert_eq!(net.resolve(T0, &gid("10.99.0.3")), Resolution::Failed);
    net.add_address(ip("10.99.0.2"), 24);
    net.add_address(ip("fd00:99::2"), 64);
    assert!(net.generation() > generation, "routes are looked up again");
    assert!(net.poll_timeout().is_some_and(|at| at <= T0));
    let len = net.poll_transmit(T0, &mut out).unwrap();
    let mut arp = ARP_REQUEST_A;
    arp[38..].copy_from_slice(&[10, 99, 0, 2]);
    assert_eq!(out[..len], arp);
    let len = net.poll_transmit(T0, &mut out).unwrap();
    let advert = out[..len].to_vec();
    assert_eq!(advert[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!((net.poll_transmit(T0, &mut out), net.poll_timeout()), (None, None));
    assert_eq!(net.counter(NetCounter::Announced), 2);
    // Hosts that know us learn the announcement, and no others do.
    other.resolve(T0, &gid("10.99.0.2"));
    other.resolve(T0, &gid("fd00:99::2"));
    for frame in [&arp[..], &advert] {
        assert_eq!(other.handle_frame(T0, frame, &mut out), None);
    }
    for ours in ["10.99.0.2", "fd00:99::2"] {
        assert_eq!(other.resolve(T0, &gid(ours)), Resolution::Known(A), "{ours}");
    }
    let mut stranger = host(B);
    assert_eq!(stranger.handle_frame(T0, &advert, &mut out), None);
    assert_eq!(stranger.counter(NetCounter::UnsolicitedAnswer), 1);

    assert_eq!(net.resolve(T0, &gid("10.99.0.3")), Resolution::Pending);
    let mut ask = ARP_REQUEST_A;
    ask[6..12].copy_from_slice(&B.0);
    ask[22..28].copy_from_slice(&B.0);
    ask[28..32].copy_from_slice(&[10, 99, 0, 3]);
    ask[38..].copy_from_slice(&[10, 99, 0, 2]);
    assert!(net.handle_frame(T0, &ask, &mut out).is_some());
    net.add_address(ip("10.99.1.2"), 24);
    net.remove_address(ip("10.99.1.2"));
    net.remove_address(ip("10.99.0.2"));
    assert_eq!(net.handle_frame(T0, &ask, &mut out), None);
    assert_eq!(net.resolve(T0, &gid("10.99.0.9")), Resolution::Failed);
    assert_eq!(
        net.poll_transmit(T0, &mut out),
        None,
        "what is removed before it is announced is not announced"
    );
}
