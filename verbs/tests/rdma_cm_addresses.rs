//! Addresses of identifiers: IPv4-mapped ones, repeated resolutions, and addresses that are added and removed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::cm::{Host, SOON, World, addrs, any, inner, short_timeouts, wildcard};
use verbs::errno::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL};
use verbs::rdma_cm::{
    CmEventType as E, CmId, CmOption, ConnParam, EventChannel, IdState, PortSpace, UDP_QKEY,
};
use verbs::{DeviceConfig, Gid, QpInitAttr, VerbsError, ah_attr_to};

const PORT: u16 = 7100;

#[track_caller]
fn refused<T>(result: Result<T, VerbsError>, errno: i32, variant: &str, says: &str) {
    let e = result.err().expect("it should be refused");
    assert_eq!((e.errno(), inner(&e).as_str()), (errno, variant), "{e}");
    assert!(e.to_string().contains(says), "{e}");
}

fn v4(addr: IpAddr) -> Ipv4Addr {
    let IpAddr::V4(addr) = addr else { panic!("{addr} is IPv4") };
    addr
}
fn mapped(addr: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(v4(addr).to_ipv6_mapped().into(), port)
}
fn plain(addr: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(addr, port)
}

/// Connects A to an address of B, whose listener's events go to `cb`, and exchanges messages; returns the two ends.
fn connect(w: &World, ca: &EventChannel, cb: &EventChannel, dst: SocketAddr) -> (CmId, CmId) {
    let ends = w.connect(ca, cb, dst);
    w.exchange(&ends.0, &ends.1);
    ends
}

// In whichever form a dual-stack socket reports an IPv4 address, the address is the same, for listeners and for peers.
#[test]
fn mapped_addresses_connect_over_ipv4() {
    let w = World::new();
    let [ours, theirs] = addrs(false);
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let ways =
        [any(0), plain(theirs, 0), wildcard(0), mapped(theirs, 0), "[::ffff:0.0.0.0]:0".parse().unwrap()];
    for (n, bind) in ways.into_iter().enumerate() {
        let port = PORT + n as u16;
        let listener = w.b.id(&cb);
        listener.bind_addr(SocketAddr::new(bind.ip(), port)).unwrap();
        listener.listen(0).unwrap();
        for dst in [plain(theirs, port), mapped(theirs, port)] {
            let (client, server) = connect(&w, &ca, &cb, dst);
            assert_eq!(client.peer_addr(), Some(plain(theirs, port)));
            assert_eq!(client.local_addr().map(|l| l.ip()), Some(ours));
            assert_eq!((server.peer_addr(), server.local_addr()), (client.local_addr(), client.peer_addr()));
            drop(client);
            w.event(&cb, E::Disconnected).ack();
        }
    }
    // A source address in that form, too; and a link-local address with a scope.
    let port = PORT + 50;
    let listener = w.b.id(&cb);
    listener.bind_addr(wildcard(port)).unwrap();
    listener.listen(0).unwrap();
    let client = w.a.id(&ca);
    client.resolve_addr(Some(mapped(ours, 0)), plain(theirs, port), SOON).unwrap();
    w.event(&ca, E::AddrResolved).ack();
    assert_eq!(client.local_addr().unwrap().ip(), ours);
    let IpAddr::V6(link_local) = w.b.context.query_gid(1, 0).unwrap().to_ip() else { panic!("it is IPv6") };
    let scoped = std::net::SocketAddrV6::new(link_local, port, 5, 3);
    let (client, server) = connect(&w, &ca, &cb, scoped.into());
    assert_eq!(client.peer_addr(), Some(plain(link_local.into(), port)));
    assert_eq!(server.local_addr(), client.peer_addr());
}

#[test]
fn a_loopback_address_that_the_port_has_not_is_any_address() {
    let w = World::new();
    let [_, theirs] = addrs(false);
    let (ca, cb) = (w.a.channel(), w.b.channel());
    for (n, addr) in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"].into_iter().enumerate() {
        let port = PORT + n as u16;
        let listener = w.b.id(&cb);
        listener.bind_addr(SocketAddr::new(addr.parse().unwrap(), port)).unwrap();
        assert!(listener.local_addr().unwrap().ip().is_unspecified());
        listener.listen(0).unwrap();
        let (client, _server) = connect(&w, &ca, &cb, plain(theirs, port));
        drop(client);
        w.event(&cb, E::Disconnected).ack();
    }
}

#[test]
fn a_mapped_address_is_bound_once() {
    let w = World::new();
    let ca = w.a.channel();
    let ours = addrs(false)[0];
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let new = || w.a.context.create_id(Some(&ca), space).unwrap();
        let all_mapped = "[::ffff:0.0.0.0]:0".parse::<SocketAddr>().unwrap().ip();
        for first in
            [mapped(ours, PORT), plain(ours, PORT), any(PORT), plain(all_mapped, PORT), wildcard(PORT)]
        {
            let id = new();
            id.bind_addr(first).unwrap();
            assert_eq!(id.local_addr().unwrap().is_ipv4(), first != wildcard(PORT));
            for second in [mapped(ours, PORT), plain(ours, PORT), any(PORT), plain(all_mapped, PORT)] {
                refused(new().bind_addr(second), EADDRINUSE, "AddrInUse", "port 7100");
            }
        }
    }
    let nobody = mapped([10, 0, 0, 99].into(), PORT);
    refused(w.a.id(&ca).bind_addr(nobody), EADDRNOTAVAIL, "AddrNotAvail", "10.0.0.99 is none");
    // A socket for IPv6 only does not reach IPv4 addresses.
    let id = w.a.id(&ca);
    id.set_option(CmOption::AfOnly(true)).unwrap();
    id.bind_addr(wildcard(PORT)).unwrap();
    refused(id.resolve_addr(None, mapped(addrs(false)[1], 1), SOON), EAFNOSUPPORT, "Family", "10.0.0.2");
}

/// A datagram identifier with its queue pair, bound to an address.
fn datagrams(host: &Host, channel: &EventChannel, addr: SocketAddr) -> CmId {
    let id = host.context.create_id(Some(channel), PortSpace::Udp).unwrap();
    id.bind_addr(addr).unwrap();
    id.create_qp(&host.pd, &QpInitAttr::ud(&host.cq, &host.cq)).unwrap();
    id
}

#[test]
fn groups_are_joined_and_left_by_either_form_of_an_address() {
    let w = World::new();
    let ca = w.a.channel();
    let id = datagrams(&w.a, &ca, mapped(addrs(false)[0], 0));
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let forms = [IpAddr::V4(group), IpAddr::V6(group.to_ipv6_mapped())];
    let not_joined = "has not joined 239.1.2.3; join_multicast does";
    for (join, leave) in [(0, 1), (1, 0), (1, 1)].map(|(j, l)| (forms[j], forms[l])) {
        refused(id.leave_multicast(leave), EADDRNOTAVAIL, "NotJoined", not_joined);
        id.join_multicast(join).unwrap();
        let event = w.event(&ca, E::MulticastJoin);
        let ud = *event.ud().unwrap();
        let grh = ud.ah_attr.grh.unwrap();
        assert_eq!((grh.dgid, grh.sgid_index, ud.qkey), (Gid::v4(group.octets()), 1, UDP_QKEY));
        w.a.pd.create_ah(&ud.ah_attr).unwrap();
        id.leave_multicast(leave).unwrap();
    }
    refused(id.leave_multicast(forms[1]), EADDRNOTAVAIL, "NotJoined", not_joined);
    refused(
        id.join_multicast("::ffff:10.0.0.2".parse().unwrap()),
        EINVAL,
        "McastGid",
        "::ffff:10.0.0.2 is no multicast",
    );
    refused(
        id.join_multicast_to_send("::ffff:10.0.0.2".parse().unwrap()),
        EINVAL,
        "McastGid",
        "::ffff:10.0.0.2 is no multicast",
    );
}

// A source address may be repeated or left out, as on Linux: a bound identifier stays bound.
#[test]
fn a_bound_identifier_is_resolved_with_the_address_that_it_is_bound_to() {
    let w = World::new();
    let ca = w.a.channel();
    let ([ours, there], ours6) = (addrs(false), addrs(true)[0]);
    let there = plain(there, PORT);
    for bind in [plain(ours, 0), mapped(ours, 0), plain(ours, 5000), any(0), any(5000), wildcard(5000)] {
        for src in [None, Some(plain(ours, 0)), Some(mapped(ours, 0)), Some(any(0)), Some(wildcard(0))] {
            let id = w.a.id(&ca);
            id.bind_addr(bind).unwrap();
            let port = id.src_port();
            id.resolve_addr(src, there, SOON).unwrap();
            w.event(&ca, E::AddrResolved).ack();
            assert_eq!(id.local_addr(), Some(plain(ours, port)), "{bind}, then {src:?}");
        }
    }
    // A contradicting source address is refused, and nothing has changed.
    let id = w.a.id(&ca);
    id.bind_addr(plain(ours, 5000)).unwrap();
    for src in [plain(ours, 5001), plain([10, 0, 0, 9].into(), 0), plain(ours6, 0), any(5001)] {
        refused(
            id.resolve_addr(Some(src), there, SOON),
            EINVAL,
            "Unsuitable",
            "leave the source address out",
        );
    }
    refused(id.resolve_addr(None, plain(addrs(true)[1], 1), SOON), EAFNOSUPPORT, "Family", "10.0.0.1");
    assert_eq!((id.state(), id.local_addr()), (IdState::Bound, Some(plain(ours, 5000))));
    let id = w.a.id(&ca);
    id.bind_addr(any(5001)).unwrap();
    let nobody = Some(plain([10, 0, 0, 9].into(), 0));
    refused(id.resolve_addr(nobody, there, SOON), EADDRNOTAVAIL, "AddrNotAvail", "10.0.0.9 is none");
    assert_eq!((id.state(), id.local_addr()), (IdState::Bound, Some(any(5001))));
}

// After ADDR_ERROR an identifier is bound as before, and can resolve another address.
#[test]
fn a_failed_resolution_may_be_tried_again() {
    let w = World::with(|config| match config.addrs[0].0 == addrs(false)[0] {
        true => config.addr([10, 9, 0, 1], 24),
        false => config,
    });
    let ca = w.a.channel();
    let [ours, there] = addrs(false);
    let nobody = plain([10, 9, 0, 77].into(), PORT);
    for (bind, src) in [
        (None, None),
        (None, Some(any(5000))),
        (Some(any(0)), None),
        (Some(wildcard(5001)), Some(wildcard(0))),
    ] {
        let id = w.a.id(&ca);
        if let Some(bind) = bind {
            id.bind_addr(bind).unwrap();
        }
        for _ in 0..2 {
            id.resolve_addr(src, nobody, Duration::ZERO).unwrap();
            w.event(&ca, E::AddrError).ack();
            assert_eq!(id.state(), IdState::Bound);
            assert!(id.local_addr().unwrap().ip().is_unspecified(), "{:?}", id.local_addr());
        }
        // A destination on another subnet, so another source address.
        let port = id.src_port();
        assert_ne!(port, 0);
        id.resolve_addr(src, plain(there, PORT), SOON).unwrap();
        w.event(&ca, E::AddrResolved).ack();
        assert_eq!(id.local_addr(), Some(plain(ours, port)));
    }
    // An identifier that is bound to an address keeps it, and may name it again.
    let id = w.a.id(&ca);
    let own = plain([10, 9, 0, 1].into(), 0);
    for dst in [nobody, plain([10, 9, 0, 78].into(), PORT)] {
        id.resolve_addr(Some(own), dst, Duration::ZERO).unwrap();
        w.event(&ca, E::AddrError).ack();
        assert_eq!(id.local_addr().unwrap().ip(), own.ip());
    }
}

/// Replaces the address of a host by another one, which gets the same index.
fn replace(host: &Host, v6: bool, old: IpAddr, new: IpAddr) {
    let index = host.context.gid_table().iter().position(|g| *g == Gid::from_ip(old)).unwrap();
    host.context.remove_address(old).unwrap();
    assert_eq!(host.context.add_address(new, if v6 { 64 } else { 24 }).unwrap(), index);
}

// Requests, replies, rejects and disconnects after an address was replaced: all are sent from the new one, as a peer that checks the
// source requires.
#[test]
fn a_replaced_address_is_the_source_of_every_message() {
    for v6 in [false, true] {
        let w = World::new();
        let (ca, cb) = (w.a.channel(), w.b.channel());
        let _listener = match v6 {
            false => w.b.listen(&cb, PORT),
            true => {
                let id = w.b.id(&cb);
                id.bind_addr(wildcard(PORT)).unwrap();
                id.listen(0).unwrap();
                id
            }
        };
        let other = |n: u16| match v6 {
            false => IpAddr::from([10, 0, 0, n as u8]),
            true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n]),
        };
        let [mut a, mut b] = addrs(v6);
        for round in 0..3 {
            let (client, server) = connect(&w, &ca, &cb, plain(b, PORT));
            assert_eq!((client.local_addr().unwrap().ip(), client.peer_addr().unwrap().ip()), (a, b));
            assert_eq!(server.peer_addr(), client.local_addr());
            client.disconnect().unwrap();
            w.event(&ca, E::Disconnected).ack();
            w.event(&cb, E::Disconnected).ack();
            // A reject comes from the new address, too.
            let second = w.resolved(&ca, plain(b, PORT));
            second.connect(&ConnParam::default()).unwrap();
            drop(w.event(&cb, E::ConnectRequest));
            let event = w.event(&ca, E::Rejected);
            assert_eq!(event.status(), 28);
            drop((event, client, second, server));
            let next = [other(20 + round), other(30 + round)];
            replace(&w.a, v6, a, next[0]);
            replace(&w.b, v6, b, next[1]);
            [a, b] = next;
        }
        for host in [&w.a, &w.b] {
            assert_eq!(host.context.counters().discarded(verbs::Discard::NoSource), 0);
        }
    }
}

// Calls on a removed address fail, and messages from it are dropped and counted.
#[test]
fn an_address_that_goes_away_ends_what_depends_on_it() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let [ours, theirs] = addrs(false);
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, plain(theirs, PORT));
    short_timeouts(&client);
    let early = w.resolved(&ca, plain(theirs, PORT));
    let server = w.request(&client, &cb, &ConnParam::default());
    w.b.qp(&server);
    // The address that the request was sent to.
    w.b.context.remove_address(theirs).unwrap();
    refused(server.accept(&ConnParam::default()), EADDRNOTAVAIL, "AddrNotAvail", "10.0.0.2 is none");
    assert_eq!(server.state(), IdState::Requested, "nothing has changed");
    drop(server);
    w.pump();
    let lost = cb.counters().into_iter().find(|(name, _)| *name == "send_no_source").unwrap().1;
    assert_eq!(lost, 1, "its refusal, which nobody can send");
    w.event(&ca, E::Unreachable).ack();
    // The address that a client was resolved with.
    w.a.context.remove_address(ours).unwrap();
    refused(early.connect(&ConnParam::default()), EADDRNOTAVAIL, "AddrNotAvail", "10.0.0.1 is none");
    assert_eq!(early.state(), IdState::RouteResolved, "nothing has changed");
    w.b.context.add_address(theirs, 24).unwrap();
    w.a.context.add_address(ours, 24).unwrap();
    early.connect(&ConnParam::default()).unwrap();
    w.event(&cb, E::ConnectRequest).ack();
    w.event(&ca, E::Rejected).ack();

    // The source address of a pending resolution.
    let id = w.a.id(&ca);
    id.resolve_addr(None, ([10, 0, 0, 77], PORT), SOON).unwrap();
    w.a.context.remove_address(ours).unwrap();
    let event = w.event(&ca, E::AddrError);
    assert_eq!((event.status(), id.state()), (-EADDRNOTAVAIL, IdState::Bound));
}

// A waiting event names the address from which a group is reached, with the index that the address has when the event is fetched.
#[test]
fn an_event_that_waited_names_the_address_where_it_is_now() {
    let w = World::new();
    let ca = w.a.channel();
    let ours = addrs(false)[0];
    let id = datagrams(&w.a, &ca, plain(ours, 0));
    let group = IpAddr::from([239, 1, 2, 3]);
    id.join_multicast(group).unwrap();
    // The same address at another index, and another address at its old index.
    replace(&w.a, false, ours, [10, 0, 0, 50].into());
    assert_eq!(w.a.context.add_address(ours, 24).unwrap(), 3);
    let event = w.event(&ca, E::MulticastJoin);
    let attr = event.ud().unwrap().ah_attr;
    assert_eq!(attr, verbs::AhAttr { grh: attr.grh, ..ah_attr_to(Gid::from_ip(group), 3) });
    assert_eq!(attr.grh.unwrap().sgid_index, 3);
    drop(event);
    id.leave_multicast(group).unwrap();
    id.join_multicast(group).unwrap();
    w.a.context.remove_address(ours).unwrap();
    assert!(w.event(&ca, E::MulticastJoin).ud().is_none(), "the address is gone");
}

// Datagrams to a group leave from the identifier's address: without the address the group cannot be joined, and nothing has changed.
#[test]
fn a_group_is_not_joined_from_an_address_that_is_gone() {
    let w = World::new();
    let ca = w.a.channel();
    let ours = addrs(false)[0];
    let id = datagrams(&w.a, &ca, plain(ours, 0));
    let group = IpAddr::from([239, 1, 2, 3]);
    w.a.context.remove_address(ours).unwrap();
    for join in [CmId::join_multicast, CmId::join_multicast_to_send] {
        refused(join(&id, group), EADDRNOTAVAIL, "AddrNotAvail", "10.0.0.1 is none");
        refused(id.leave_multicast(group), EADDRNOTAVAIL, "NotJoined", "has not joined");
    }
    assert!(id.qp().unwrap().detach_mcast(Gid::from_ip(group), 0).is_err(), "it is not attached");
    w.a.context.add_address(ours, 24).unwrap();
    id.join_multicast(group).unwrap();
    assert!(w.event(&ca, E::MulticastJoin).ud().is_some());
}

// A group that is joined twice, in either way, is left by one call.
#[test]
fn a_group_that_is_joined_again_is_left_all_the_same() {
    let w = World::new();
    let ca = w.a.channel();
    let id = datagrams(&w.a, &ca, plain(addrs(false)[0], 0));
    let group = IpAddr::from([239, 1, 2, 3]);
    let [both, send] = [CmId::join_multicast, CmId::join_multicast_to_send];
    for joins in [[both, send], [send, both], [both, both], [send, send]] {
        for join in joins {
            join(&id, group).unwrap();
            w.event(&ca, E::MulticastJoin).ack();
        }
        id.leave_multicast(group).unwrap();
        assert!(id.qp().unwrap().detach_mcast(Gid::from_ip(group), 0).is_err(), "it is attached still");
        refused(id.leave_multicast(group), EADDRNOTAVAIL, "NotJoined", "has not joined");
    }
}

// A synchronous call whose address is removed fails with that error.
#[test]
fn a_waiting_call_says_that_its_address_is_gone() {
    let context = verbs::Context::open(DeviceConfig::loopback()).unwrap();
    let id = context.create_id(None, PortSpace::Tcp).unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| id.resolve_addr(None, ([192, 0, 2, 77], PORT), Duration::from_secs(60)));
        while id.state() != IdState::ResolvingAddr {
            std::thread::yield_now();
        }
        context.remove_address([192, 0, 2, 1]).unwrap();
        refused(waiting.join().unwrap(), EADDRNOTAVAIL, "AddrNotAvail", "192.0.2.1 is none");
    });
}

// Goal: two connected processes have not chosen their addresses. A client reaches the other process by either address, whichever of the
// two it has itself, and whether or not the server is bound to the other address. If the client's own process listens, the client reaches
// that process; and if nobody does, it is refused at once.
#[test]
fn each_of_two_processes_that_meet_reaches_the_other_by_either_address() {
    let [own, other] = addrs(false);
    for bound in [any(PORT), plain(own, PORT), plain(other, PORT)] {
        let w = World::new();
        w.a.context.meet(own, other);
        w.b.context.meet(other, own);
        let (ca, cb) = (w.a.channel(), w.b.channel());
        let listener = w.b.id(&cb);
        listener.bind_addr(bound).unwrap();
        listener.listen(0).unwrap();
        for dst in [own, other] {
            let (client, server) = connect(&w, &ca, &cb, plain(dst, PORT));
            assert_eq!(client.peer_addr(), Some(plain(other, PORT)));
            assert_eq!(server.local_addr(), Some(plain(other, PORT)));
        }
        // Another port, where this process listens.
        let here = w.a.listen(&ca, PORT + 1);
        let client = w.resolved(&ca, plain(own, PORT + 1));
        assert_eq!(client.peer_addr(), Some(plain(own, PORT + 1)));
        drop(here);
    }
    let w = World::new();
    w.a.context.meet(own, other);
    w.a_sends_nothing.store(true, std::sync::atomic::Ordering::Release);
    let ca = w.a.channel();
    let client = w.a.id(&ca);
    client.resolve_addr(None, plain(own, PORT), Duration::from_millis(20)).unwrap();
    w.event(&ca, E::AddrResolved).ack();
    client.resolve_route(SOON).unwrap();
    w.event(&ca, E::RouteResolved).ack();
    w.a.qp(&client);
    client.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Rejected).status(), 8);
}
