//! What a program can do wrong with identifiers: each has its error and its number, and changes nothing.

mod cm;

use std::net::SocketAddr;
use std::time::Duration;

use cm::{SOON, World, addrs, any};
use verbs::error::errno::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EBUSY, EINVAL, ENETUNREACH, ENOTCONN};
use verbs::rdma_cm::{CmEventType as E, CmOption, ConnParam, IdState, PortSpace};
use verbs::{Mtu, QpInitAttr, QpState, QpType, VerbsError};

const PORT: u16 = 4000;

#[track_caller]
fn refused<T>(result: Result<T, VerbsError>, errno: i32) {
    let e = result.err().expect("it should be refused");
    assert_eq!(e.errno(), errno, "{e}");
    assert!(e.to_string().len() > 20, "says what was wrong: {e}");
}

#[test]
fn addresses_and_ports() {
    let w = World::new();
    let ca = w.a.channel();
    let id = w.a.id(&ca);
    let ours = |port| SocketAddr::new(addrs(false)[0], port);
    refused(id.bind_addr(([10, 0, 0, 9], 1)), EADDRNOTAVAIL);
    assert_eq!((id.state(), id.local_addr(), id.src_port()), (IdState::Idle, None, 0));
    id.bind_addr(ours(PORT)).unwrap();
    refused(id.bind_addr(ours(PORT)), EINVAL);
    let second = w.a.id(&ca);
    refused(second.bind_addr(ours(PORT)), EADDRINUSE);
    refused(second.bind_addr(any(PORT)), EADDRINUSE);
    let datagrams = w.a.context.create_id(Some(&ca), PortSpace::Udp).unwrap();
    datagrams.bind_addr(ours(PORT)).unwrap();
    // Given back with the identifier.
    id.destroy().unwrap();
    second.bind_addr(ours(PORT)).unwrap();
    let free: Vec<_> = (0..50).map(|_| w.a.id(&ca)).collect();
    let mut ports = std::collections::HashSet::new();
    for id in &free {
        id.bind_addr(any(0)).unwrap();
        assert!(id.src_port() >= 49152 && ports.insert(id.src_port()));
    }

    // REUSEADDR lets two bind, and one listen alone.
    let shared = [w.a.id(&ca), w.a.id(&ca)];
    for id in &shared {
        id.set_option(CmOption::ReuseAddr(true)).unwrap();
        id.bind_addr(ours(PORT + 1)).unwrap();
        refused(id.set_option(CmOption::ReuseAddr(false)), EINVAL);
        assert!(id.options().reuse_addr);
    }
    refused(shared[0].listen(0), EADDRINUSE);
    assert_eq!(shared[0].state(), IdState::Bound);
    let [first, second] = shared;
    second.destroy().unwrap();
    first.listen(0).unwrap();

    // One listener for all IPv6 addresses leaves IPv4 to another only if it says so.
    let all = SocketAddr::from(([0u16; 8], PORT + 2));
    let both = w.a.id(&ca);
    both.bind_addr(all).unwrap();
    refused(w.a.id(&ca).bind_addr(any(PORT + 2)), EADDRINUSE);
    both.destroy().unwrap();
    let v6 = w.a.id(&ca);
    v6.set_option(CmOption::AfOnly(true)).unwrap();
    v6.bind_addr(all).unwrap();
    let v4 = w.a.id(&ca);
    v4.bind_addr(any(PORT + 2)).unwrap();
    v4.listen(0).unwrap();
    v6.listen(0).unwrap();
}

#[test]
fn destinations() {
    let w = World::new();
    let ca = w.a.channel();
    let id = w.a.id(&ca);
    let there = SocketAddr::new(addrs(false)[1], PORT);
    refused(id.resolve_addr(None, ([192, 168, 7, 7], 1), SOON), ENETUNREACH);
    refused(id.resolve_addr(None, any(1), SOON), EINVAL);
    refused(id.resolve_addr(None, ([239, 1, 1, 1], 1), SOON), EINVAL);
    refused(id.resolve_addr(Some(any(0)), SocketAddr::new(addrs(true)[1], 1), SOON), EAFNOSUPPORT);
    refused(id.resolve_addr(Some(([10, 0, 0, 9], 0).into()), there, SOON), EADDRNOTAVAIL);
    assert_eq!((id.state(), id.local_addr(), id.peer_addr()), (IdState::Idle, None, None));
    refused(id.resolve_route(SOON), EINVAL);
    refused(id.connect(&ConnParam::default()), EINVAL);
    id.bind_addr(any(PORT)).unwrap();
    refused(id.resolve_addr(Some(any(PORT + 1)), there, SOON), EINVAL);
    w.resolve(&id, &ca, there);
    assert_eq!(id.local_addr(), Some(SocketAddr::new(addrs(false)[0], PORT)));
    refused(id.resolve_addr(None, there, SOON), EINVAL);
    refused(id.resolve_route(SOON), EINVAL);
    refused(id.listen(0), EINVAL);
    // After an error the address can be looked for again.
    let again = w.a.id(&ca);
    again.resolve_addr(None, ([10, 0, 0, 77], 1), Duration::ZERO).unwrap();
    w.event(&ca, E::AddrError).ack();
    assert_eq!(again.state(), IdState::Bound);
    w.resolve(&again, &ca, there);
}

#[test]
fn parameters_of_connections() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let listener = w.b.listen(&cb, PORT);
    let there = SocketAddr::new(addrs(false)[1], PORT);
    let client = w.resolved(&ca, there);
    let bad = |p: ConnParam<'_>| refused(client.connect(&p), EINVAL);
    let usual = ConnParam::default();
    let beyond = verbs::limits::RD_ATOMIC_MAX + 1;
    bad(ConnParam { private_data: &[0; 57], ..usual });
    bad(ConnParam { responder_resources: beyond, ..usual });
    bad(ConnParam { initiator_depth: beyond, ..usual });
    bad(ConnParam { retry_count: 8, ..usual });
    bad(ConnParam { rnr_retry_count: 8, ..usual });
    assert_eq!(client.state(), IdState::RouteResolved);
    for call in [client.disconnect(), client.notify(verbs::AsyncEvent::CommEst)] {
        refused(call, ENOTCONN);
    }
    for call in [client.accept(&usual), client.reject(&[]), client.establish()] {
        refused(call, EINVAL);
    }
    refused(client.get_request(SOON), EINVAL);
    refused(client.get_event(SOON), EINVAL);
    refused(listener.get_request(SOON), EINVAL);
    refused(listener.connect(&usual), EINVAL);

    client.connect(&ConnParam { private_data: &[1; 56], ..usual }).unwrap();
    refused(client.connect(&usual), EINVAL);
    refused(client.destroy_qp(), EBUSY);
    let mut request = w.event(&cb, E::ConnectRequest);
    assert_eq!(request.private_data(), [1; 56]);
    let server = request.take_id().unwrap();
    refused(server.accept(&usual), EINVAL); // no queue pair
    w.b.qp(&server);
    for p in [
        ConnParam { private_data: &[0; 197], ..usual },
        ConnParam { responder_resources: beyond, ..usual },
        ConnParam { rnr_retry_count: 8, ..usual },
    ] {
        refused(server.accept(&p), EINVAL);
    }
    assert_eq!(server.qp().unwrap().state().unwrap(), QpState::Init, "nothing has changed");
    // The listener's event is out.
    let (e, listener) = listener.destroy().unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(request);
    server.accept(&ConnParam { private_data: &[2; 196], ..usual }).unwrap();
    refused(server.accept(&usual), EINVAL);
    refused(server.reject(&[]), EINVAL);
    let there = w.event(&ca, E::Established);
    assert_eq!(there.private_data(), [2; 196]);
    let (e, client) = client.destroy_wait(Duration::from_millis(2)).unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(there);
    refused(client.destroy_qp(), EBUSY);
    refused(client.set_option(CmOption::AckTimeout(1)), EINVAL);
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    w.event(&ca, E::Disconnected).ack();
    let kept = client.qp().unwrap();
    refused(client.destroy_qp(), EBUSY);
    drop(kept);
    client.destroy_qp().unwrap();
    refused(client.destroy_qp(), EINVAL);
    client.destroy_wait(SOON).unwrap();
    listener.destroy().unwrap();
    // The channel of two that live.
    let (e, _cb) = cb.destroy().unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(server);
}

#[test]
fn queue_pairs_and_options() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    refused(w.b.context.create_id(Some(&ca), PortSpace::Tcp), EINVAL);
    let id = w.a.id(&ca);
    refused(id.migrate_id(Some(&cb)), EINVAL);
    for ty in [QpType::Ud, QpType::Uc, QpType::Gsi] {
        refused(id.create_qp(&w.a.pd, &QpInitAttr::new(ty, &w.a.cq, &w.a.cq)), EINVAL);
    }
    refused(id.create_qp(&w.b.pd, &QpInitAttr::rc(&w.b.cq, &w.b.cq)), EINVAL);
    refused(id.create_qp(&w.a.pd, &QpInitAttr::rc(&w.b.cq, &w.b.cq)), EINVAL);
    assert!(id.qp().is_none());
    let qp = w.a.qp(&id);
    assert_eq!(qp.state().unwrap(), QpState::Init);
    refused(id.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL);
    let listener = w.a.id(&ca);
    listener.listen(5).unwrap();
    refused(listener.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL);
    for option in [CmOption::AckTimeout(32), CmOption::CmResponseTimeout(32), CmOption::MaxCmRetries(16)] {
        refused(id.set_option(option), EINVAL);
    }
    assert_eq!(id.options(), Default::default());
    let udp = w.a.context.create_id(Some(&ca), PortSpace::Udp).unwrap();
    refused(udp.set_option(CmOption::AckTimeout(14)), EINVAL);
    refused(udp.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL);
    refused(id.init_qp_attr(QpState::Sqd), EINVAL);
    refused(id.join_multicast([239, 1, 1, 1].into()), EINVAL);
    refused(udp.leave_multicast([239, 1, 1, 1].into()), EADDRNOTAVAIL);

    // What the program has its own mind about reaches the queue pairs of both ends.
    let _listener = w.b.listen(&cb, PORT);
    let id = w.resolved(&ca, SocketAddr::new(addrs(false)[1], PORT));
    for option in [CmOption::Tos(0x68), CmOption::AckTimeout(13), CmOption::PathMtu(Mtu::Mtu512)] {
        id.set_option(option).unwrap();
    }
    id.connect(&ConnParam { rnr_retry_count: 3, ..ConnParam::default() }).unwrap();
    let server = w.event(&cb, E::ConnectRequest).take_id().unwrap();
    assert_eq!(server.options().tos, 0x68);
    w.b.qp(&server);
    server.accept(&ConnParam { rnr_retry_count: 4, ..ConnParam::default() }).unwrap();
    w.event(&ca, E::Established).ack();
    for (qp, timeout, rnr_retry) in [(id.qp().unwrap(), 13, 4), (server.qp().unwrap(), 0, 3)] {
        let (attr, _) = qp.query().unwrap();
        assert_eq!(attr.ah_attr.grh.unwrap().traffic_class, 0x68);
        assert_eq!((attr.path_mtu, attr.rnr_retry), (Mtu::Mtu512 as u8, rnr_retry));
        assert!(timeout == 0 || attr.timeout == timeout, "{}", attr.timeout);
    }
}

// The device has one queue pair 1: whoever has it keeps the other out.
#[test]
fn queue_pair_1_is_the_connection_managers() {
    let w = World::new();
    let gsi = QpInitAttr::new(QpType::Gsi, &w.a.cq, &w.a.cq);
    let own = w.a.pd.create_qp(&gsi).unwrap();
    refused(w.a.context.create_event_channel(), EINVAL);
    drop(own);
    let channel = w.a.channel();
    refused(w.a.pd.create_qp(&gsi), EINVAL);
    // It ends with the last of its users, and starts again.
    let id = w.a.id(&channel);
    let (_, channel) = channel.destroy().unwrap_err();
    drop(channel);
    drop(id);
    drop(w.a.pd.create_qp(&gsi).unwrap());
    drop(w.a.channel());
    w.close();
}
