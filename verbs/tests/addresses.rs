//! Addresses: those that a device accepts, the source address of a packet, and what happens to packets whose source address is
//! removed.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::common::{self, PATIENCE, enter, pump};
use stack::device::Gid;
use verbs::errno::EINVAL;
use verbs::port::{PortOptions, pair, pair_with};
use verbs::{
    Access, Ah, AttrMask, Context, Cq, DeviceConfig, Discard, Drive, GRH_LEN, Mr, Mtu, Pd, Qp, QpAttr,
    QpInitAttr, QpState, QpType, RcEndpoint, RcOptions, RecvWr, SendWr, Wc, XrcdInitAttr, ah_attr_to,
    attr_to,
};

const QKEY: u32 = 7;

/// A device that the test polls, with the objects that it needs to send.
struct Host {
    mr: Mr,
    cq: Cq,
    pd: Pd,
    context: Context,
}

impl Host {
    fn new(config: DeviceConfig) -> Self {
        let context = Context::open(config.drive(Drive::Embedded)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { mr, cq: context.create_cq(256).unwrap(), pd, context }
    }
    fn ud(&self, shard: usize) -> Qp {
        let qp = self.pd.create_qp(&QpInitAttr::ud(&self.cq, &self.cq).on_shard(shard)).unwrap();
        qp.activate_ud(QKEY).unwrap();
        qp
    }
    fn rc(&self) -> Qp {
        self.pd.create_qp(&QpInitAttr::rc(&self.cq, &self.cq)).unwrap()
    }
    fn index_of(&self, gid: Gid) -> u8 {
        self.context.gid_table().iter().position(|g| *g == gid).unwrap() as u8
    }
    fn ah(&self, from: Gid, to: Gid) -> Ah {
        self.pd.create_ah(&ah_attr_to(to, self.index_of(from))).unwrap()
    }
    fn dropped(&self, reason: Discard) -> u64 {
        self.context.counters().discarded(reason)
    }
}

/// Two such devices on a cable, with this many shards each.
struct World {
    a: Host,
    b: Host,
}

/// 10.8.0.`last`, or fd00:8::`last`.
fn ip(v6: bool, last: u8) -> IpAddr {
    if v6 { Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, last.into()).into() } else { [10, 8, 0, last].into() }
}
fn gid(v6: bool, last: u8) -> Gid {
    Gid::from_ip(ip(v6, last))
}
fn prefix(v6: bool) -> u8 {
    if v6 { 64 } else { 24 }
}

impl World {
    /// A has the address 2, B the address 1, of both IP versions.
    fn new(shards: usize) -> Self {
        let (a, b) = pair(shards);
        let host = |port, last| {
            let config = DeviceConfig::new(port).shards(shards);
            Host::new(config.addr(ip(false, last), 24).addr(ip(true, last), 64))
        };
        Self { a: host(a, 2), b: host(b, 1) }
    }
    fn pump(&self) {
        pump(&self.a.context);
        pump(&self.b.context);
    }
    fn take(&self, cq: &Cq) -> Wc {
        let start = std::time::Instant::now();
        let mut wc = [Wc::default()];
        while cq.poll(&mut wc).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE, "no completion");
            self.pump();
        }
        wc[0]
    }
    fn post(&self, from: &Qp, to: &Qp, ah: &Ah) {
        from.post_send(&[SendWr::send(2, &[]).inline(b"x").to(ah, to.qp_num(), QKEY).signaled()]).unwrap();
    }
    fn receive(&self, to: &Qp) {
        to.post_recv(&[RecvWr::new(1, &[self.b.mr.sge(0..GRH_LEN + 8).unwrap()])]).unwrap();
    }
    /// The source address of the next datagram at B.
    fn came_from(&self) -> Gid {
        let wc = self.take(&self.b.cq);
        let mut grh = [0; GRH_LEN];
        self.b.mr.read(0, &mut grh).unwrap();
        self.b.context.init_ah_from_wc(&wc, &grh).unwrap().grh.unwrap().dgid
    }
    /// Sends a datagram with that handle; returns its source address.
    fn send(&self, from: &Qp, to: &Qp, ah: &Ah) -> Gid {
        self.receive(to);
        self.post(from, to, ah);
        assert!(self.take(&self.a.cq).is_ok());
        self.came_from()
    }
    /// Replaces A's address by another one, which gets the same index.
    fn replace(&self, v6: bool, old: u8, new: u8) {
        let index = self.a.index_of(gid(v6, old));
        self.a.context.remove_address(ip(v6, old)).unwrap();
        assert_eq!(self.a.context.add_address(ip(v6, new), prefix(v6)).unwrap(), usize::from(index));
    }
}

// A shard caches the path to a peer. A new handle of a replaced address must send from the new one nevertheless, repeatedly,
// on each shard, and back to the first.
#[test]
fn a_replaced_source_address_is_replaced_in_every_datagram() {
    for (v6, shards) in [(false, 1), (true, 1), (false, 2)] {
        let w = World::new(shards);
        let to = w.b.ud(0);
        let from: Vec<_> = (0..shards).map(|shard| w.a.ud(shard)).collect();
        let mut now = 2;
        for next in [3, 4, 2, 5, 5] {
            for qp in &from {
                for _ in 0..2 {
                    let ah = w.a.ah(gid(v6, now), gid(v6, 1));
                    assert_eq!(w.send(qp, &to, &ah), gid(v6, now));
                }
            }
            if next != now {
                w.replace(v6, now, next);
            }
            now = next;
        }
        assert_eq!(w.a.dropped(Discard::NoSource), 0);
    }
}

// A handle keeps its address, even when that address is removed from the port; its index is not reused meanwhile.
#[test]
fn a_handle_keeps_its_source_address() {
    let w = World::new(1);
    let (from, to) = (w.a.ud(0), w.b.ud(0));
    let old = w.a.ah(gid(false, 2), gid(false, 1));
    assert_eq!(w.send(&from, &to, &old), gid(false, 2));
    w.a.context.remove_address(ip(false, 2)).unwrap();
    assert_eq!(w.a.context.add_address(ip(false, 3), 24).unwrap(), 3, "the index is held");
    let new = w.a.ah(gid(false, 3), gid(false, 1));
    assert_eq!(w.send(&from, &to, &old), gid(false, 2));
    assert_eq!(w.send(&from, &to, &new), gid(false, 3));
    let e = w.a.pd.create_ah(&ah_attr_to(gid(false, 1), 1)).unwrap_err();
    assert!(e.errno() == EINVAL && e.to_string().contains("sgid_index is 1"), "{e}");
    old.destroy();
    assert_eq!(w.a.context.add_address(ip(false, 4), 24).unwrap(), 1, "free with its last holder");
}

// A datagram waits for address resolution, or in a drained queue pair, and its handle is destroyed: its source address may then be
// removed. The datagram must be dropped and counted, and must not leave without that address or with the one that reused the index.
#[test]
fn a_waiting_datagram_without_a_source_address_is_dropped_by_name() {
    for (v6, replaced, waits_for_arp) in [
        (false, false, true),
        (false, true, true),
        (true, true, true),
        (false, true, false),
        (true, false, false),
    ] {
        let w = World::new(1);
        let (from, to) = (w.a.ud(0), w.b.ud(0));
        w.receive(&to);
        let ah = w.a.ah(gid(v6, 2), gid(v6, 1));
        if !waits_for_arp {
            assert_eq!(w.send(&from, &to, &ah), gid(v6, 2));
            w.receive(&to);
            enter(&from, QpState::Sqd);
        }
        w.post(&from, &to, &ah);
        pump(&w.a.context); // B is not polled, and answers nothing
        ah.destroy();
        if replaced {
            w.replace(v6, 2, 3);
        } else {
            w.a.context.remove_address(ip(v6, 2)).unwrap();
        }
        if !waits_for_arp {
            let (attr, mask) = attr_to(QpState::Rts);
            from.modify(&attr, mask).unwrap();
        }
        assert!(w.take(&w.a.cq).is_ok(), "as any datagram that is lost");
        (0..50).for_each(|_| w.pump());
        common::assert_no_completion(&w.b.context, &w.b.cq);
        assert_eq!((w.a.dropped(Discard::NoSource), w.a.dropped(Discard::Unreachable)), (1, 0));
        assert_eq!(from.counters().discarded(Discard::NoSource), 1, "of its queue pair, too");
        // The queue pair continues, with whatever address the port has.
        if replaced {
            let ah = w.a.ah(gid(v6, 3), gid(v6, 1));
            w.post(&from, &to, &ah);
            assert_eq!((w.take(&w.a.cq).is_ok(), w.came_from()), (true, gid(v6, 3)));
        }
    }
}

// The last handle that holds a removed address is destroyed: a datagram that it leaves in the queue no longer has a source.
#[test]
fn an_address_is_gone_with_its_last_handle() {
    let w = World::new(1);
    let (from, to) = (w.a.ud(0), w.b.ud(0));
    let ah = w.a.ah(gid(false, 2), gid(false, 1));
    assert_eq!(w.send(&from, &to, &ah), gid(false, 2));
    w.a.context.add_address(ip(false, 9), 24).unwrap(); // for a route to the peer's subnet
    w.a.context.remove_address(ip(false, 2)).unwrap();
    assert_eq!(w.send(&from, &to, &ah), gid(false, 2), "held");
    w.receive(&to);
    w.post(&from, &to, &ah);
    ah.destroy();
    assert!(w.take(&w.a.cq).is_ok());
    (0..50).for_each(|_| w.pump());
    common::assert_no_completion(&w.b.context, &w.b.cq);
    assert_eq!(w.a.dropped(Discard::NoSource), 1);
}

// The datagram's handle is destroyed, but the address is still on the port: nothing is lost.
#[test]
fn a_waiting_datagram_leaves_without_its_handle() {
    let w = World::new(1);
    let (from, to) = (w.a.ud(0), w.b.ud(0));
    w.receive(&to);
    let ah = w.a.ah(gid(false, 2), gid(false, 1));
    w.post(&from, &to, &ah);
    pump(&w.a.context);
    ah.destroy();
    w.a.context.add_address(ip(false, 9), 24).unwrap();
    assert!(w.take(&w.a.cq).is_ok());
    assert_eq!((w.came_from(), w.a.dropped(Discard::NoSource)), (gid(false, 2), 0));
}

/// The error of a call with addresses of two IP versions.
#[track_caller]
fn mixed<T>(result: Result<T, verbs::VerbsError>, dgid: Gid, ours: Gid) {
    let e = result.err().expect("no packet has both addresses");
    let sentence =
        format!("dgid is {dgid}, the address at sgid_index is {ours}; both must be IPv4, or both IPv6");
    assert!(e.errno() == EINVAL && e.to_string().ends_with(&sentence), "{e}");
}

// Handles and queue pairs, in each transition that takes an address vector: source and destination are of one IP version.
// Nothing has changed after a refusal.
#[test]
fn addresses_of_two_ip_versions_are_refused_alike() {
    let w = World::new(1);
    let link_local = w.a.context.query_gid(1, 0).unwrap();
    let theirs = w.b.rc().endpoint(1).unwrap();
    for (index, ours, dgid) in [
        (0, link_local, gid(false, 1)),
        (2, gid(true, 2), gid(false, 1)),
        (1, gid(false, 2), gid(true, 1)),
        (1, gid(false, 2), w.b.context.query_gid(1, 0).unwrap()),
    ] {
        mixed(w.a.pd.create_ah(&ah_attr_to(dgid, index)), dgid, ours);
        let vector = QpAttr { ah_attr: ah_attr_to(dgid, index), ..QpAttr::default() };
        let peer = RcEndpoint { gid: dgid, ..theirs };
        for ty in [QpType::Rc, QpType::Uc] {
            let qp = w.a.pd.create_qp(&QpInitAttr::new(ty, &w.a.cq, &w.a.cq)).unwrap();
            qp.init_rc(&RcOptions::default()).unwrap();
            let before = qp.query().unwrap().0;
            let (rtr, mask) = match ty {
                QpType::Rc => verbs::attr_rtr(dgid, index, peer.qpn, peer.psn, Mtu::Mtu1024),
                _ => verbs::attr_rtr_uc(dgid, index, peer.qpn, peer.psn, Mtu::Mtu1024),
            };
            mixed(qp.modify(&rtr, mask), dgid, ours);
            assert_eq!(qp.query().unwrap().0, before);
            if index != 0 {
                let options = RcOptions::default().sgid_index(index);
                let connect = |peer: &RcEndpoint| match ty {
                    QpType::Rc => qp.connect_rc(peer, &options),
                    _ => qp.connect_uc(peer, &options),
                };
                mixed(connect(&peer), dgid, ours);
                assert_eq!(qp.query().unwrap().0, before);
            }
            // A valid path first, and then another one in SQD.
            let fits = RcEndpoint { gid: gid(false, 1), ..theirs };
            let options = RcOptions::default().sgid_index(1);
            if ty == QpType::Uc {
                qp.connect_uc(&fits, &options).unwrap();
                continue;
            }
            qp.connect_rc(&fits, &options).unwrap();
            enter(&qp, QpState::Sqd);
            let sqd = QpAttr { qp_state: QpState::Sqd, ..vector };
            while qp.query().unwrap().0.sq_draining {
                w.pump();
            }
            let before = qp.query().unwrap().0;
            mixed(qp.modify(&sqd, AttrMask::STATE | AttrMask::AV), dgid, ours);
            assert_eq!(qp.query().unwrap().0, before);
            let other = QpAttr { ah_attr: ah_attr_to(gid(true, 1), 2), ..sqd };
            qp.modify(&other, AttrMask::STATE | AttrMask::AV).unwrap();
            assert_eq!(qp.query().unwrap().0.ah_attr.grh.unwrap().dgid, gid(true, 1));
        }
        let xrcd = w.a.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        if index != 0 {
            let options = RcOptions::default().sgid_index(index);
            mixed(xrcd.accept_xrc(&peer, &options), dgid, ours);
        }
    }
    // The refused calls left no index held.
    w.a.context.remove_address(ip(false, 2)).unwrap();
    w.a.context.remove_address(ip(true, 2)).unwrap();
    assert_eq!(w.a.context.add_address(ip(false, 3), 24).unwrap(), 1);
    assert_eq!(w.a.context.add_address(ip(false, 4), 24).unwrap(), 2);
}

// Default options select an address that reaches the peer, of either IP version and on any subnet; an explicit index is kept.
#[test]
fn the_default_source_address_fits_the_peer() {
    let (a, b) = pair(1);
    let host = |port, last| {
        let config = DeviceConfig::new(port)
            .addr([10, 1, 0, last], 24)
            .addr([10, 2, 0, last], 24)
            .addr([10, 2, 0, last + 200], 25)
            .addr(ip(true, last), 64)
            .addr(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, last.into()), 64);
        Host::new(config)
    };
    let w = World { a: host(a, 2), b: host(b, 1) };
    let chosen = |qp: &Qp| qp.query().unwrap().0.ah_attr.grh.unwrap().sgid_index;
    for index in 0..6 {
        for uc in [false, true] {
            let ty = if uc { QpType::Uc } else { QpType::Rc };
            let (qa, qb) = (&w.a, &w.b);
            let [qa, qb] = [qa, qb].map(|h| h.pd.create_qp(&QpInitAttr::new(ty, &h.cq, &h.cq)).unwrap());
            for (from, to) in [(&qa, &qb), (&qb, &qa)] {
                let peer = to.endpoint(index).unwrap();
                let o = RcOptions::default();
                if uc {
                    from.connect_uc(&peer, &o).unwrap()
                } else {
                    from.connect_rc(&peer, &o).unwrap()
                }
                assert_eq!(chosen(from), index);
            }
            qb.post_recv(&[RecvWr::new(1, &[])]).unwrap();
            qa.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
            assert!(w.take(&w.a.cq).is_ok() && w.take(&w.b.cq).is_ok());
        }
    }
    // A local peer is addressed from its own address.
    for index in 0..6 {
        let qp = w.a.rc();
        qp.connect_rc(&qp.endpoint(index).unwrap(), &RcOptions::default()).unwrap();
        assert_eq!(chosen(&qp), index);
    }
    // An explicit index is kept, whatever its subnet.
    let (qp, theirs) = (w.a.rc(), w.b.rc());
    let peer = theirs.endpoint(1).unwrap();
    qp.connect_rc(&peer, &RcOptions::default().sgid_index(2)).unwrap();
    assert_eq!(chosen(&qp), 2);
    // A peer behind a gateway is addressed from the gateway's subnet, not from a link-local address.
    let (gateway, gateway6) =
        (Some([10, 1, 0, 254].into()), Some(Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, 0xfe)));
    let config = DeviceConfig::default().gateway(gateway).gateway6(gateway6);
    let routed = Host::new(config.addr(ip(true, 2), 64).addr([10, 1, 0, 2], 24));
    for (far, index) in [(Gid::v4([172, 16, 0, 1]), 2), (Gid::from_ip("2001:db8::1".parse().unwrap()), 1)] {
        let qp = routed.rc();
        qp.connect_rc(&RcEndpoint { gid: far, ..peer }, &RcOptions::default()).unwrap();
        assert_eq!(chosen(&qp), index);
    }
    // Without an address of the peer's IP version the connection is refused, with the same message as in every call.
    let alone = Host::new(DeviceConfig::loopback());
    alone.context.remove_address([192, 0, 2, 1]).unwrap();
    let link_local = alone.context.query_gid(1, 0).unwrap();
    mixed(alone.rc().connect_rc(&peer, &RcOptions::default()), peer.gid, link_local);
}

// An IPv4-mapped address, as a dual-stack socket reports it, is its IPv4 address, wherever addresses are given.
#[test]
fn mapped_addresses_are_ipv4() {
    let mapped = |last: u8| IpAddr::V6(std::net::Ipv4Addr::new(10, 8, 0, last).to_ipv6_mapped());
    let (a, b) = pair(1);
    let a = Host::new(DeviceConfig::new(a).addr(mapped(2), 24));
    let b = Host::new(DeviceConfig::new(b).addr(mapped(1), 96 + 24));
    let w = World { a, b };
    let (from, to) = (w.a.ud(0), w.b.ud(0));
    let ah = w.a.ah(gid(false, 2), gid(false, 1));
    assert_eq!(w.send(&from, &to, &ah), gid(false, 2));
    ah.destroy();
    // Both are the same address, and the prefix gives the IPv4 subnet.
    let e = w.a.context.add_address(mapped(2), 24).unwrap_err();
    assert_eq!(e.errno(), EINVAL, "{e}");
    w.a.context.remove_address(mapped(2)).unwrap();
    assert_eq!(w.a.context.add_address(mapped(3), 120).unwrap(), 1);
    let ah = w.a.ah(gid(false, 3), gid(false, 1));
    assert_eq!(w.send(&from, &to, &ah), gid(false, 3));
    for (addr, prefix, says) in [
        (mapped(9), 64, "prefix /64 of 10.8.0.9 is too long"),
        (mapped(9), 129, "prefix /33 of 10.8.0.9 is too long"),
        (mapped(255), 24, "10.8.0.255 is not the address of a host: it is the broadcast address"),
        (
            "::ffff:127.0.0.1".parse().unwrap(),
            128,
            "127.0.0.1 is not the address of a host: it is a loopback address",
        ),
        (
            "::ffff:0.0.0.0".parse().unwrap(),
            96,
            "0.0.0.0 is not the address of a host: it is the unspecified address",
        ),
    ] {
        let e = w.a.context.add_address(addr, prefix).unwrap_err();
        assert!(e.errno() == EINVAL && e.to_string().contains(says), "{e}");
        let open = Context::open(DeviceConfig::default().addr(addr, prefix)).unwrap_err();
        assert!(open.to_string().contains(says), "{open}");
    }
    let gateway6 = Some("::ffff:10.8.0.254".parse().unwrap());
    let e = Context::open(DeviceConfig::loopback().gateway6(gateway6)).unwrap_err();
    assert!(e.to_string().contains("give it as the IPv4 gateway"), "{e}");
}

// Addresses that no host can have are refused, each with a message; those next to them are accepted.
#[test]
fn addresses_that_no_host_can_have_are_refused() {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    for (addr, prefix, says) in [
        ("10.0.0.0", 24, "the address of its whole subnet /24"),
        ("10.0.0.4", 30, "the address of its whole subnet /30"),
        ("10.0.0.0", 8, "the address of its whole subnet /8"),
        ("10.0.0.255", 24, "the broadcast address of its subnet /24"),
        ("10.0.0.7", 30, "the broadcast address of its subnet /30"),
        ("10.0.255.255", 16, "the broadcast address of its subnet /16"),
        ("255.255.255.255", 32, "the broadcast address"),
        ("127.0.0.5", 8, "a loopback address"),
        ("239.1.2.3", 24, "a multicast address"),
        ("0.0.0.0", 0, "the unspecified address"),
        ("0.1.2.3", 8, "the unspecified address"),
        ("::", 64, "the unspecified address"),
        ("::1", 128, "a loopback address"),
        ("ff02::1", 64, "a multicast address"),
        ("fd00::", 64, "the address of its whole subnet /64"),
    ] {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let e = context.add_address(parse(addr), prefix).unwrap_err();
        let sentence = format!("{addr} is not the address of a host: it is {says}");
        assert!(e.errno() == EINVAL && e.to_string().starts_with(&sentence), "{e}");
        assert_eq!(context.gid_table().len(), 2, "nothing has changed");
        let e = Context::open(DeviceConfig::loopback().addr(parse(addr), prefix)).unwrap_err();
        assert!(e.to_string().contains(&sentence), "{e}");
    }
    for (addr, prefix) in [
        ("10.0.0.0", 31),
        ("10.0.0.1", 31),
        ("10.0.0.0", 32),
        ("10.0.0.255", 32),
        ("10.0.0.255", 23),
        ("10.0.1.0", 23),
        ("10.0.0.1", 0),
        ("fd00::", 127),
        ("fd00::", 128),
        ("fd00::ffff:ffff:ffff:ffff", 64),
    ] {
        let context = Context::open(DeviceConfig::loopback().addr(parse(addr), prefix)).unwrap();
        assert_eq!(context.query_gid(1, 2).unwrap(), Gid::from_ip(parse(addr)));
        context.remove_address(parse(addr)).unwrap();
        assert_eq!(context.add_address(parse(addr), prefix).unwrap(), 2);
    }
}

// A port carries the path MTU that it announces, in the longest packets, over both IP versions and with a VLAN tag; with one
// byte less it announces the next smaller path MTU, and a port too small for any is refused with a message.
#[test]
fn a_port_carries_the_path_mtu_that_it_announces() {
    let options = |mtu| PortOptions { mtu, ..PortOptions::default() };
    for mtu in Mtu::ALL {
        let smallest = mtu.of_packet();
        for (v6, vlan) in [(false, None), (true, None), (false, Some(9)), (true, Some(9))] {
            let (a, b) = pair_with(&options(smallest), &options(smallest), Arc::new(|_, _, _| 0));
            let host = |port, last| {
                let config = DeviceConfig::new(port).addr(ip(v6, last), prefix(v6));
                Host::new(config.vlan(vlan))
            };
            let w = World { a: host(a, 2), b: host(b, 1) };
            assert_eq!(w.a.context.query_port(1).unwrap().active_mtu, mtu);
            let (qa, qb) = (w.a.rc(), w.b.rc());
            qa.connect_rc(&qb.endpoint(1).unwrap(), &RcOptions::default()).unwrap();
            qb.connect_rc(&qa.endpoint(1).unwrap(), &RcOptions::default()).unwrap();
            qb.post_recv(&[RecvWr::new(1, &[])]).unwrap();
            let (len, pattern) = (mtu.bytes(), |i: usize| (i * 7 + 1) as u8);
            w.a.mr.write(0, &(0..len).map(pattern).collect::<Vec<_>>()).unwrap();
            let (whole, there) = ([w.a.mr.sge(0..len).unwrap()], w.b.mr.addr() + 8192);
            let write = SendWr::write_with_imm(2, &whole, there, w.b.mr.rkey(), 5);
            qa.post_send(&[write.signaled()]).unwrap();
            assert!(w.take(&w.a.cq).is_ok() && w.take(&w.b.cq).is_ok());
            assert!(w.b.mr.to_vec(8192..8192 + len).unwrap().into_iter().eq((0..len).map(pattern)));
        }
        let (below, _b) = pair_with(&options(smallest - 1), &options(smallest), Arc::new(|_, _, _| 0));
        let below = Context::open(DeviceConfig::new(below));
        if mtu == Mtu::Mtu256 {
            let e = below.unwrap_err();
            assert!(e.to_string().contains("carries packets of up to 351 bytes"), "{e}");
            assert!(e.to_string().contains("takes 352"), "{e}");
        } else {
            assert_eq!(below.unwrap().query_port(1).unwrap().active_mtu as u8, mtu as u8 - 1);
        }
    }
}
