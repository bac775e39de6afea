//! Errors that a program can make with identifiers: each call returns its error with its number, and changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cm::{SOON, World, addrs, any, inner};
use verbs::errno::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EBUSY, EINVAL, ENETUNREACH, ENOTCONN};
use verbs::rdma_cm::{CmEventType as E, CmOption, ConnParam, IdState, PortSpace};
use verbs::{Drive, Mtu, QpInitAttr, QpState, QpType, VerbsError};

const PORT: u16 = 4000;

#[track_caller]
fn refused<T>(result: Result<T, VerbsError>, errno: i32, variant: &str) {
    let e = result.err().expect("it should be refused");
    assert_eq!((e.errno(), inner(&e).as_str()), (errno, variant), "{e}");
    assert!(e.to_string().len() > 20, "says what was wrong: {e}");
}

#[test]
fn addresses_and_ports() {
    let w = World::new();
    let ca = w.a.channel();
    let id = w.a.id(&ca);
    let ours = |port| SocketAddr::new(addrs(false)[0], port);
    refused(id.bind_addr(([10, 0, 0, 9], 1)), EADDRNOTAVAIL, "AddrNotAvail");
    assert_eq!((id.state(), id.local_addr(), id.src_port()), (IdState::Idle, None, 0));
    id.bind_addr(ours(PORT)).unwrap();
    refused(id.bind_addr(ours(PORT)), EINVAL, "State");
    let second = w.a.id(&ca);
    refused(second.bind_addr(ours(PORT)), EADDRINUSE, "AddrInUse");
    refused(second.bind_addr(any(PORT)), EADDRINUSE, "AddrInUse");
    let datagrams = w.a.context.create_id(Some(&ca), PortSpace::Udp).unwrap();
    datagrams.bind_addr(ours(PORT)).unwrap();
    // The port is released with the identifier.
    id.destroy().unwrap();
    second.bind_addr(ours(PORT)).unwrap();
    let free: Vec<_> = (0..50).map(|_| w.a.id(&ca)).collect();
    let mut ports = std::collections::HashSet::new();
    for id in &free {
        id.bind_addr(any(0)).unwrap();
        assert!(id.src_port() >= 49152 && ports.insert(id.src_port()));
    }

    // REUSEADDR lets two bind, but only one listen.
    let shared = [w.a.id(&ca), w.a.id(&ca)];
    for id in &shared {
        id.set_option(CmOption::ReuseAddr(true)).unwrap();
        id.bind_addr(ours(PORT + 1)).unwrap();
        refused(id.set_option(CmOption::ReuseAddr(false)), EINVAL, "State");
        assert!(id.options().reuse_addr);
    }
    refused(shared[0].listen(0), EADDRINUSE, "AddrInUse");
    assert_eq!(shared[0].state(), IdState::Bound);
    let [first, second] = shared;
    second.destroy().unwrap();
    first.listen(0).unwrap();

    // A listener for all IPv6 addresses leaves IPv4 to another only with AFONLY.
    let all = SocketAddr::from(([0u16; 8], PORT + 2));
    let both = w.a.id(&ca);
    both.bind_addr(all).unwrap();
    refused(w.a.id(&ca).bind_addr(any(PORT + 2)), EADDRINUSE, "AddrInUse");
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
    refused(id.resolve_addr(None, ([192, 168, 7, 7], 1), SOON), ENETUNREACH, "NoRoute");
    refused(id.resolve_addr(None, any(1), SOON), EINVAL, "Unsuitable");
    refused(id.resolve_addr(None, ([239, 1, 1, 1], 1), SOON), EINVAL, "Unsuitable");
    refused(id.resolve_addr(Some(any(0)), SocketAddr::new(addrs(true)[1], 1), SOON), EAFNOSUPPORT, "Family");
    refused(id.resolve_addr(Some(([10, 0, 0, 9], 0).into()), there, SOON), EADDRNOTAVAIL, "AddrNotAvail");
    assert_eq!((id.state(), id.local_addr(), id.peer_addr()), (IdState::Idle, None, None));
    refused(id.resolve_route(SOON), EINVAL, "State");
    refused(id.connect(&ConnParam::default()), EINVAL, "State");
    id.bind_addr(any(PORT)).unwrap();
    refused(id.resolve_addr(Some(any(PORT + 1)), there, SOON), EINVAL, "Unsuitable");
    w.resolve(&id, &ca, there);
    assert_eq!(id.local_addr(), Some(SocketAddr::new(addrs(false)[0], PORT)));
    refused(id.resolve_addr(None, there, SOON), EINVAL, "State");
    refused(id.resolve_route(SOON), EINVAL, "State");
    refused(id.listen(0), EINVAL, "State");
    // After an error the address can be resolved again.
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
    let bad = |p: ConnParam<'_>| refused(client.connect(&p), EINVAL, "Range");
    let usual = ConnParam::default();
    let beyond = verbs::limits::RD_ATOMIC_MAX + 1;
    bad(ConnParam { private_data: &[0; 57], ..usual });
    bad(ConnParam { responder_resources: beyond, ..usual });
    bad(ConnParam { initiator_depth: beyond, ..usual });
    bad(ConnParam { retry_count: 8, ..usual });
    bad(ConnParam { rnr_retry_count: 8, ..usual });
    assert_eq!(client.state(), IdState::RouteResolved);
    for call in [client.disconnect(), client.notify(verbs::AsyncEvent::CommEst)] {
        refused(call, ENOTCONN, "NotConnected");
    }
    for call in [client.accept(&usual), client.reject(&[]), client.reject_ece(&[]), client.establish()] {
        refused(call, EINVAL, "State");
    }
    refused(client.get_request(SOON), EINVAL, "State");
    refused(client.get_event(SOON), EINVAL, "Unsuitable");
    refused(listener.get_request(SOON), EINVAL, "Unsuitable");
    refused(listener.connect(&usual), EINVAL, "State");

    client.connect(&ConnParam { private_data: &[1; 56], ..usual }).unwrap();
    refused(client.connect(&usual), EINVAL, "State");
    refused(client.destroy_qp(), EBUSY, "Busy");
    let mut request = w.event(&cb, E::ConnectRequest);
    assert_eq!(request.private_data(), [1; 56]);
    let server = request.take_id().unwrap();
    refused(server.accept(&usual), EINVAL, "Unsuitable"); // no queue pair
    w.b.qp(&server);
    for p in [
        ConnParam { private_data: &[0; 197], ..usual },
        ConnParam { responder_resources: beyond, ..usual },
        ConnParam { rnr_retry_count: 8, ..usual },
    ] {
        refused(server.accept(&p), EINVAL, "Range");
    }
    assert_eq!(server.qp().unwrap().state().unwrap(), QpState::Init, "nothing has changed");
    // The listener's event is not acknowledged yet.
    let (e, listener) = listener.destroy().unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(request);
    server.accept(&ConnParam { private_data: &[2; 196], ..usual }).unwrap();
    refused(server.accept(&usual), EINVAL, "State");
    refused(server.reject(&[]), EINVAL, "State");
    let there = w.event(&ca, E::Established);
    assert_eq!(there.private_data(), [2; 196]);
    let (e, client) = client.destroy_wait(Duration::from_millis(2)).unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(there);
    refused(client.destroy_qp(), EBUSY, "Busy");
    refused(client.set_option(CmOption::AckTimeout(1)), EINVAL, "State");
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    w.event(&ca, E::Disconnected).ack();
    let kept = client.qp().unwrap();
    refused(client.destroy_qp(), EBUSY, "Busy");
    drop(kept);
    client.destroy_qp().unwrap();
    refused(client.destroy_qp(), EINVAL, "Unsuitable");
    refused(client.release_qp(), EINVAL, "Unsuitable");
    client.destroy_wait(SOON).unwrap();
    listener.destroy().unwrap();
    // The channel of two existing identifiers.
    let (e, _cb) = cb.destroy().unwrap_err();
    assert_eq!(e.errno(), EBUSY, "{e}");
    drop(server);
}

// A program's own events keep their order among those of connection management; the program cannot raise events of the latter.
#[test]
fn events_of_the_program() {
    let w = World::new();
    let channel = w.a.channel();
    let id = w.a.id(&channel);
    for what in [E::Established, E::Disconnected, E::ConnectRequest, E::DeviceRemoval] {
        refused(id.write_event(what, 0, 0), EINVAL, "Unsuitable");
    }
    assert!(channel.try_get_event().is_none());
    id.write_event(E::User, -5, u64::MAX).unwrap();
    id.write_event(E::AddrinfoResolved, 0, 7).unwrap();
    for (what, status, arg) in [(E::User, -5, u64::MAX), (E::AddrinfoResolved, 0, 7)] {
        let event = channel.try_get_event().unwrap();
        assert_eq!((event.event(), event.status(), event.arg()), (what, status, arg));
        assert!(event.is_of(&id));
        event.ack();
    }
    // The program's events disappear with their identifier.
    id.write_event(E::AddrinfoError, -1, 0).unwrap();
    id.destroy().unwrap();
    assert!(channel.try_get_event().is_none());
}

#[test]
fn queue_pairs_and_options() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    // A channel belongs to no device: a channel of B takes events of A's identifiers.
    let id = w.a.id(&cb);
    id.migrate_id(Some(&ca)).unwrap();
    for ty in [QpType::Ud, QpType::Uc, QpType::Gsi] {
        refused(id.create_qp(&w.a.pd, &QpInitAttr::new(ty, &w.a.cq, &w.a.cq)), EINVAL, "Unsuitable");
    }
    refused(id.create_qp(&w.b.pd, &QpInitAttr::rc(&w.b.cq, &w.b.cq)), EINVAL, "Foreign");
    refused(id.create_qp(&w.a.pd, &QpInitAttr::rc(&w.b.cq, &w.b.cq)), EINVAL, "Foreign");
    assert!(id.qp().is_none());
    let qp = w.a.qp(&id);
    assert_eq!(qp.state().unwrap(), QpState::Init);
    refused(id.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL, "Unsuitable");
    let listener = w.a.id(&ca);
    listener.listen(5).unwrap();
    refused(listener.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL, "State");
    for option in [CmOption::AckTimeout(32), CmOption::CmResponseTimeout(32), CmOption::MaxCmRetries(16)] {
        refused(id.set_option(option), EINVAL, "Range");
    }
    assert_eq!(id.options(), Default::default());
    let udp = w.a.context.create_id(Some(&ca), PortSpace::Udp).unwrap();
    refused(udp.set_option(CmOption::AckTimeout(14)), EINVAL, "Option");
    refused(udp.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL, "Unsuitable");
    // A queue pair that the identifier did not create must be of the identifier's type and device.
    refused(udp.set_qp(Some(qp.clone())), EINVAL, "Unsuitable");
    let foreign = Arc::new(w.b.pd.create_qp(&QpInitAttr::rc(&w.b.cq, &w.b.cq)).unwrap());
    refused(id.set_qp(Some(foreign)), EINVAL, "Foreign");
    assert!(udp.qp().is_none() && Arc::ptr_eq(&id.qp().unwrap(), &qp));
    id.set_qp(None).unwrap();
    assert!(id.qp().is_none() && qp.state().unwrap() == QpState::Init);
    id.set_qp(Some(qp.clone())).unwrap();
    refused(id.init_qp_attr(QpState::Sqd), EINVAL, "State");
    refused(id.join_multicast([239, 1, 1, 1].into()), EINVAL, "Unsuitable");
    refused(id.join_multicast_to_send([239, 1, 1, 1].into()), EINVAL, "Unsuitable");
    refused(id.resolve_addr(None, ([239, 1, 1, 1], PORT), SOON), EINVAL, "Unsuitable");
    refused(udp.leave_multicast([239, 1, 1, 1].into()), EADDRNOTAVAIL, "NotJoined");

    // Options that the program sets reach the queue pairs of both ends.
    let _listener = w.b.listen(&cb, PORT);
    let id = w.resolved(&ca, SocketAddr::new(addrs(false)[1], PORT));
    for option in [CmOption::Tos(0x68), CmOption::AckTimeout(13), CmOption::PathMtu(Mtu::Mtu512)] {
        id.set_option(option).unwrap();
    }
    let server = w.request(&id, &cb, &ConnParam { rnr_retry_count: 3, ..ConnParam::default() });
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

// The device has one queue pair 1, which either the program or connection management owns.
#[test]
fn queue_pair_1_is_the_connection_managers() {
    let w = World::new();
    let gsi = QpInitAttr::new(QpType::Gsi, &w.a.cq, &w.a.cq);
    let own = w.a.pd.create_qp(&gsi).unwrap();
    refused(w.a.context.create_id(None, PortSpace::Tcp), EINVAL, "Exists");
    drop(own);
    let channel = w.a.channel();
    drop(w.a.pd.create_qp(&gsi).unwrap());
    let id = w.a.id(&channel);
    refused(w.a.pd.create_qp(&gsi), EINVAL, "Exists");
    // Connection management ends with the last of its users, and can start again.
    let (_, channel) = channel.destroy().unwrap_err();
    drop(channel);
    refused(w.a.pd.create_qp(&gsi), EINVAL, "Exists");
    drop(id);
    drop(w.a.pd.create_qp(&gsi).unwrap());
    let channel = w.a.channel();
    drop(w.a.id(&channel));
    refused(w.a.pd.create_qp(&gsi), EINVAL, "Exists");
    drop(channel);
    w.close();
}

// Failures while a call waits: a queue pair whose state the program changed itself cannot make the transition. (A connection that ends
// before its last message has arrived was established nevertheless: a peer that disconnects had accepted it.)
#[test]
fn connections_that_fail_under_a_waiting_call() {
    let w = World::with(|config| config.drive(Drive::Caller));
    let ca = w.a.channel();
    let there = SocketAddr::new(addrs(false)[1], PORT);
    let listener = w.b.context.create_id(None, PortSpace::Tcp).unwrap();
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(4).unwrap();
    let serve = || {
        let id = listener.get_request(SOON).unwrap().expect("a client asks");
        w.b.qp(&id);
        id.accept(&ConnParam::default())
    };
    std::thread::scope(|s| {
        let server = s.spawn(serve);
        let client = w.a.id(&ca);
        w.resolve(&client, &ca, there);
        let qp = w.a.pd.create_qp(&QpInitAttr::rc(&w.a.cq, &w.a.cq)).unwrap();
        client.connect(&ConnParam { qp_num: qp.qp_num().get(), ..ConnParam::default() }).unwrap();
        w.event(&ca, E::ConnectResponse).ack();
        // The message that would establish the connection is lost.
        w.a_sends_nothing.store(true, Ordering::Release);
        client.establish().unwrap();
        (0..10).for_each(|_| w.a.pump());
        w.a_sends_nothing.store(false, Ordering::Release);
        client.disconnect().unwrap();
        server.join().unwrap().unwrap();
        w.event(&ca, E::Disconnected).ack();
    });
    std::thread::scope(|s| {
        let server = s.spawn(serve);
        let client = w.a.context.create_id(None, PortSpace::Tcp).unwrap();
        client.resolve_addr(None, there, SOON).unwrap();
        client.resolve_route(SOON).unwrap();
        let qp = w.a.qp(&client);
        let (attr, mask) = verbs::attr_to(QpState::Err);
        qp.modify(&attr, mask).unwrap();
        refused(client.connect(&ConnParam::default()), EINVAL, "Qp");
        assert_eq!(qp.state().unwrap(), QpState::Err);
        let at_server = server.join().unwrap().unwrap_err();
        assert_eq!(inner(&at_server), "Rejected");
    });
}
