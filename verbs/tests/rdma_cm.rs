//! Connecting by address and port: synchronous and by events, every outcome, and no leaks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::cm::{Host, PATIENCE, SOON, World, addrs, any, inner, short_timeouts, wildcard};
use verbs::errno::{ECONNREFUSED, ENOTCONN, ETIMEDOUT};
use verbs::limits::RD_ATOMIC_MAX;
use verbs::port::{Port, PortLayer, PortOptions};
use verbs::rdma_cm::{
    CmEventType as E, CmId, CmOption, ConnParam, EventChannel, IdState, PortSpace, UDP_QKEY,
};
use verbs::{
    AsyncEvent, Clock, Context, Counter, DeviceConfig, Drive, GRH_LEN, Mtu, QpInitAttr, QpState, QpType, Qpn,
    RecvWr, SendWr, Wc, WcStatus,
};

const PORT: u16 = 7471;

fn b(v6: bool) -> SocketAddr {
    SocketAddr::new(addrs(v6)[1], PORT)
}

// A single thread does everything: events report progress, private data passes both ways, and both sides learn of the end.
#[test]
fn m26_events_tell_of_connections_over_both_ip_versions_and_vlans() {
    for (v6, vlan) in [(false, None), (true, None), (false, Some(7)), (true, Some(7))] {
        let w = World::with(|config| config.vlan(vlan));
        let (ca, cb) = (w.a.channel(), w.b.channel());
        let listener = w.b.id(&cb);
        listener.bind_addr(SocketAddr::new(addrs(v6)[1], PORT)).unwrap();
        listener.listen(1).unwrap();
        listener.set_context(99);

        let client = w.resolved(&ca, b(v6));
        assert_eq!(client.local_addr().map(|l| l.ip()), Some(addrs(v6)[0]));
        assert!(client.src_port() >= 49152);
        assert_eq!((client.dst_port(), client.state()), (PORT, IdState::RouteResolved));
        client
            .connect(&ConnParam {
                private_data: b"hello",
                initiator_depth: 5,
                flow_control: false,
                ..ConnParam::default()
            })
            .unwrap();

        let mut request = w.event(&cb, E::ConnectRequest);
        assert!(request.is_of(&listener));
        assert_eq!((request.context(), request.status()), (99, 0));
        assert_eq!((&request.private_data()[..6], request.private_data().len()), (&b"hello\0"[..], 56));
        let said = *request.peer().unwrap();
        assert_eq!((said.responder_resources, said.initiator_depth, said.retry_count), (5, RD_ATOMIC_MAX, 7));
        assert!(!said.flow_control);
        assert_eq!(said.qp_num, client.qp().unwrap().qp_num().get());
        let server = request.take_id().unwrap();
        assert!(request.take_id().is_none());
        drop(request);
        assert_eq!(server.peer_addr(), client.local_addr());
        assert_eq!(server.local_addr(), client.peer_addr());
        let qp = w.b.qp(&server);
        w.b.post_recv(&qp, 1);
        server
            .accept(&ConnParam { private_data: b"welcome", initiator_depth: 3, ..ConnParam::default() })
            .unwrap();

        let there = w.event(&ca, E::Established);
        assert!(there.is_of(&client));
        assert_eq!((&there.private_data()[..8], there.private_data().len()), (&b"welcome\0"[..], 196));
        assert_eq!(there.peer().unwrap().initiator_depth, 5, "what the other side answers at once");
        assert!(there.peer().unwrap().flow_control);
        drop(there);
        assert!(w.event(&cb, E::Established).is_of(&server));
        let (attr, _) = qp.query().unwrap();
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.retry_cnt), (3, 5, 7));
        let of_client = client.qp().unwrap();
        let (attr, _) = of_client.query().unwrap();
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (5, 3));
        assert_eq!(attr.qp_state, QpState::Rts);

        // Messages both ways, and then the disconnection, which flushes posted receives.
        w.a.post_recv(&of_client, 3);
        w.a.send(&of_client, 2);
        assert!(w.take(&w.a.cq, 1)[0].is_ok());
        assert!(w.take(&w.b.cq, 1)[0].is_ok());
        w.b.send(&qp, 4);
        assert!(w.take(&w.b.cq, 1)[0].is_ok() && w.take(&w.a.cq, 1)[0].is_ok());
        w.b.post_recv(&qp, 5);
        w.a.post_recv(&of_client, 6);
        client.disconnect().unwrap();
        assert_eq!(of_client.state().unwrap(), QpState::Err);
        for (channel, id) in [(&cb, &server), (&ca, &client)] {
            let gone = w.event(channel, E::Disconnected);
            assert!(gone.is_of(id));
            assert_eq!(gone.status(), 0);
            assert_eq!(id.state(), IdState::Disconnected);
            id.disconnect().unwrap();
        }
        assert_eq!(qp.state().unwrap(), QpState::Err);
        for cq in [&w.a.cq, &w.b.cq] {
            assert_eq!(w.take(cq, 1)[0].status, WcStatus::WrFlushErr);
        }
        drop((client, server, listener, qp, of_client, ca, cb));
        w.close();
    }
}

/// Runs a server on this thread that accepts `n` connections, and echoes a message on each.
fn echo(host: &Host, n: usize) {
    let listener = host.context.create_id(None, PortSpace::Tcp).unwrap();
    listener.bind_addr(wildcard(PORT)).unwrap();
    listener.listen(8).unwrap();
    for _ in 0..n {
        let id = listener.get_request(PATIENCE).unwrap().expect("a request");
        assert_eq!(&id.event().unwrap().private_data()[..2], b"hi");
        let qp = host.qp(&id);
        host.post_recv(&qp, 1);
        id.accept(&ConnParam::with_data(b"ho")).unwrap();
        poll(host, 1);
        host.send(&qp, 2);
        poll(host, 1);
        let end = id.get_event(PATIENCE).unwrap().expect("the end");
        assert_eq!(end.event(), E::Disconnected);
        drop(end);
        id.destroy().unwrap();
    }
}

/// Waits for `n` completions, which must all succeed.
fn poll(host: &Host, n: usize) {
    let (mut got, start) = (0, std::time::Instant::now());
    let mut wc = [Wc::default(); 4];
    while got < n {
        assert!(start.elapsed() < PATIENCE);
        host.pump();
        let more = host.cq.poll(&mut wc[..n - got]).unwrap();
        assert!(wc[..more].iter().all(Wc::is_ok), "{wc:?}");
        got += more;
    }
}

fn connect_once(host: &Host, dst: SocketAddr) {
    let id = host.context.create_id(None, PortSpace::Tcp).unwrap();
    // The server thread may not have its listener yet.
    let start = std::time::Instant::now();
    id.resolve_addr(None, dst, SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    let qp = host.qp(&id);
    host.post_recv(&qp, 1);
    if let Err(e) = id.connect(&ConnParam::with_data(b"hi")) {
        assert_eq!((e.errno(), inner(&e).as_str()), (ECONNREFUSED, "Rejected"), "{e}");
        assert!(start.elapsed() < PATIENCE);
        drop((qp, id));
        return connect_once(host, dst);
    }
    assert_eq!(&id.event().unwrap().private_data()[..2], b"ho");
    host.send(&qp, 2);
    poll(host, 2);
    id.disconnect().unwrap();
    assert_eq!(qp.state().unwrap(), QpState::Err);
    drop(qp);
    id.destroy().unwrap();
}

// Without a channel each call blocks, in every drive; in the embedded drive each thread drives its own device meanwhile.
#[test]
fn synchronous_calls_wait_in_every_drive() {
    for drive in [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }] {
        let w = World::with(|config| config.drive(drive.clone()));
        std::thread::scope(|s| {
            let server = s.spawn(|| echo(&w.b, 3));
            for v6 in [false, true, false] {
                connect_once(&w.a, b(v6));
            }
            server.join().unwrap();
        });
        w.close();
    }
}

#[test]
fn a_refusal_carries_its_reason_and_private_data() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    let server = w.request(&client, &cb, &ConnParam::default());
    assert!(server.reject(&[7; 149]).is_err());
    server.reject(&[7; 148]).unwrap();
    assert!(server.reject(&[]).is_err(), "once");
    let refused = w.event(&ca, E::Rejected);
    assert_eq!((refused.status(), refused.private_data()), (28, &[7; 148][..]));
    assert_eq!(client.state(), IdState::Disconnected);
    assert_eq!(client.disconnect().map_err(|e| e.errno()), Ok(()));
    drop(refused);

    // A request that is not taken from its event is refused, and so is a request whose event was not fetched.
    let client = w.resolved(&ca, b(false));
    client.connect(&ConnParam::default()).unwrap();
    drop(w.event(&cb, E::ConnectRequest));
    assert!(w.event(&ca, E::Rejected).is_of(&client));
    let client = w.resolved(&ca, b(false));
    client.connect(&ConnParam::default()).unwrap();
    for _ in 0..100 {
        w.pump();
    }
    drop(listener);
    assert_eq!(w.event(&ca, E::Rejected).status(), 28, "it had come to the listener");
    assert!(cb.try_get_event().is_none(), "the request went with its listener");
}

#[test]
fn m09_nobody_listens() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let other = w.b.id(&cb);
    // Another address of the same port, and another port of the same address.
    other.bind_addr(SocketAddr::new(addrs(true)[1], PORT)).unwrap();
    other.listen(0).unwrap();
    let another = w.b.listen(&cb, PORT + 1);
    let client = w.resolved(&ca, b(false));
    client.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Rejected).status(), 8);
    assert_eq!(client.state(), IdState::Disconnected);
    assert!(cb.try_get_event().is_none());
    drop((other, another));
}

#[test]
fn m15_whoever_does_not_answer_is_unreachable() {
    let w = World::new();
    let ca = w.a.channel();
    // No host has the address.
    let nobody = w.a.id(&ca);
    nobody.resolve_addr(None, ([10, 0, 0, 77], PORT), std::time::Duration::from_millis(20)).unwrap();
    assert_eq!(w.event(&ca, E::AddrError).status(), -ETIMEDOUT);
    // The host answers, but runs no connection management.
    let client = w.resolved(&ca, b(false));
    short_timeouts(&client);
    client.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Unreachable).status(), -ETIMEDOUT);
    assert_eq!(client.qp().unwrap().state().unwrap(), QpState::Err);
    // The same with synchronous calls.
    let w = World::with(|config| config.drive(Drive::Caller));
    let id = w.a.context.create_id(None, PortSpace::Tcp).unwrap();
    let e = id.resolve_addr(None, ([10, 0, 0, 77], PORT), std::time::Duration::from_millis(20)).unwrap_err();
    assert_eq!((e.errno(), inner(&e).as_str()), (ETIMEDOUT, "TimedOut"), "{e}");
    id.resolve_addr(None, b(false), SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    w.a.qp(&id);
    short_timeouts(&id);
    let e = id.connect(&ConnParam::default()).unwrap_err();
    assert_eq!((e.errno(), inner(&e).as_str()), (ETIMEDOUT, "TimedOut"), "{e}");
}

// Hundreds of connections one after the other, then hundreds at once, on one listener.
#[test]
fn m27_hundreds_of_connections_come_and_go() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let listener = w.b.id(&cb);
    listener.bind_addr(wildcard(PORT)).unwrap();
    listener.listen(0).unwrap();
    let mut numbers = std::collections::HashSet::new();
    for n in 0..200 {
        let (client, server) = w.connect(&ca, &cb, b(n % 2 == 1));
        assert!(numbers.insert((0, client.qp().unwrap().qp_num())), "a number is used again too soon");
        assert!(numbers.insert((1, server.qp().unwrap().qp_num())), "a number is used again too soon");
        w.exchange(&client, &server);
        if n % 3 == 0 {
            client.disconnect().unwrap();
        }
        if n % 3 != 2 {
            server.disconnect().unwrap();
        }
        if n % 3 != 2 {
            w.event(&ca, E::Disconnected).ack();
            w.event(&cb, E::Disconnected).ack();
        }
        for id in [client, server] {
            id.destroy().unwrap();
        }
    }
    // The last connections are never disconnected by a call: the other end, if it still exists, gets the event nevertheless.
    let clients: Vec<CmId> = (0..300).map(|_| w.resolved(&ca, b(false))).collect();
    for client in &clients {
        client.connect(&ConnParam::default()).unwrap();
    }
    let (mut servers, mut up) = (Vec::new(), [0, 0]);
    w.until("300 connections", || {
        while let Some(mut event) = cb.try_get_event() {
            match event.event() {
                E::ConnectRequest => {
                    let server = event.take_id().unwrap();
                    w.b.qp(&server);
                    server.accept(&ConnParam::default()).unwrap();
                    servers.push(server);
                }
                E::Established => up[1] += 1,
                E::Disconnected | E::TimewaitExit => {}
                other => panic!("{other}"),
            }
        }
        while let Some(event) = ca.try_get_event() {
            assert!(matches!(event.event(), E::Established | E::TimewaitExit), "{event:?}");
            up[0] += usize::from(event.event() == E::Established);
        }
        (up == [300, 300]).then_some(())
    });
    for client in &clients {
        client.disconnect().unwrap();
    }
    let mut down = [0, 0];
    w.until("300 ends", || {
        for (n, channel) in [&ca, &cb].into_iter().enumerate() {
            while let Some(event) = channel.try_get_event() {
                down[n] += usize::from(event.event() == E::Disconnected);
            }
        }
        (down == [300, 300]).then_some(())
    });
    drop((clients, servers, listener, ca, cb));
    w.close();
}

// Both sides disconnect at once: each gets one event, and no error.
#[test]
fn both_disconnect_at_once() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let (client, server) = w.connect(&ca, &cb, b(false));
    client.disconnect().unwrap();
    server.disconnect().unwrap();
    for (channel, id) in [(&ca, &client), (&cb, &server)] {
        let event = w.event(channel, E::Disconnected);
        assert!(event.is_of(id));
        assert_eq!(event.status(), 0);
    }
}

/// How long a test lets a device wait for a peer that is not driven.
const SHORT: std::time::Duration = std::time::Duration::from_millis(20);

/// Goal: a process that is about to end takes leave: its connections end at its peers, and what it has posted arrives.
#[test]
fn who_takes_leave_tells_its_peers() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let (client, server) = w.connect(&ca, &cb, b(false));
    w.a.post_recv(&client.qp().unwrap(), 1);
    w.b.send(&server.qp().unwrap(), 2);
    // A is not driven, and so answers nothing, until B is no longer driven.
    assert_eq!(w.b.context.take_leave(SHORT), 1);
    let start = Instant::now();
    let end = loop {
        w.a.pump();
        if let Some(event) = ca.try_get_event() {
            break event;
        }
        assert!(start.elapsed() < PATIENCE, "nobody told A");
    };
    assert_eq!((end.event(), end.status()), (E::Disconnected, 0));
    let mut wc = [Wc::default()];
    assert_eq!(w.a.cq.poll(&mut wc).unwrap(), 1);
    assert_eq!(wc[0].status, WcStatus::Success);
}

// Goal: when a process ends, neither peers whose requests it has not decided on, nor peers that it has sent requests, wait for it.
#[test]
fn who_takes_leave_gives_up_what_is_not_connected() {
    let w = World::new();
    let [ca, cb, theirs, unread, datagrams] = [&w.a, &w.b, &w.a, &w.b, &w.a].map(Host::channel);
    let _listeners = [w.b.listen(&cb, PORT), w.b.listen(&unread, PORT + 1), w.a.listen(&theirs, PORT)];
    let service = w.b.context.create_id(Some(&cb), PortSpace::Udp).unwrap();
    service.bind_addr(any(PORT)).unwrap();
    service.listen(0).unwrap();
    // A request of its own; and of requests by its peers: one not fetched, two undecided, and one accepted but not confirmed.
    let own = w.b.id(&cb);
    w.resolve(&own, &cb, SocketAddr::new(addrs(false)[0], PORT));
    w.b.qp(&own);
    own.connect(&ConnParam::default()).unwrap();
    let _at_peer = w.event(&theirs, E::ConnectRequest).take_id().unwrap();
    let not_fetched = w.resolved(&ca, SocketAddr::new(addrs(false)[1], PORT + 1));
    not_fetched.connect(&ConnParam::default()).unwrap();
    let asks = w.a.context.create_id(Some(&datagrams), PortSpace::Udp).unwrap();
    w.resolve(&asks, &datagrams, b(false));
    let asked = w.request(&asks, &cb, &ConnParam::default());
    let clients = [w.resolved(&ca, b(false)), w.resolved(&ca, b(false))];
    let [undecided, accepted] =
        [&clients[0], &clients[1]].map(|client| w.request(client, &cb, &ConnParam::default()));
    w.b.qp(&accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    w.b.pump();
    w.a_sends_no_mads.store(true, Ordering::Release);
    w.event(&ca, E::Established).ack();
    assert_eq!(accepted.state(), IdState::Accepting);

    // From here on B is not driven. The peer has not confirmed the accepted connection.
    assert_eq!(w.b.context.take_leave(SHORT), 1);
    let told = |channel: &EventChannel| {
        let start = Instant::now();
        loop {
            w.a.pump();
            if let Some(event) = channel.try_get_event() {
                break (event.event(), event.status());
            }
            assert!(start.elapsed() < PATIENCE, "nobody told A");
        }
    };
    let mut ends = [(); 3].map(|()| told(&ca));
    ends.sort_by_key(|(_, status)| *status);
    assert_eq!(ends, [(E::Disconnected, 0), (E::Rejected, 28), (E::Rejected, 28)]);
    assert_eq!(told(&theirs), (E::Rejected, 4));
    assert_eq!(told(&datagrams), (E::Unreachable, 2));
    // No thread of B waits for ever for an answer.
    for id in [&own, &asked, &undecided, &accepted] {
        assert_eq!(id.state(), IdState::Disconnected);
        w.event(&cb, E::Disconnected).ack();
    }
    assert!(unread.try_get_event().is_none());
}

// A peer disappears: data fails with an error, and the disconnection with a timeout.
#[test]
fn a_killed_peer_is_noticed() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    short_timeouts(&client);
    let server = w.request(&client, &cb, &ConnParam { retry_count: 2, ..ConnParam::default() });
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    w.event(&cb, E::Established).ack();
    assert_eq!(client.qp().unwrap().query().unwrap().0.timeout, 8);
    assert_eq!(server.qp().unwrap().query().unwrap().0.retry_cnt, 2);

    w.a_sends_nothing.store(true, Ordering::Release);
    w.a.send(&client.qp().unwrap(), 1);
    assert_eq!(w.take(&w.a.cq, 1)[0].status, WcStatus::RetryExcErr);
    client.disconnect().unwrap();
    let end = w.event(&ca, E::Disconnected);
    assert_eq!(end.status(), -ETIMEDOUT);
    drop(end);
    w.event(&ca, E::TimewaitExit).ack();
}

#[test]
fn timewait_ends_with_an_event() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    short_timeouts(&client);
    let server = w.request(&client, &cb, &ConnParam::default());
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    client.disconnect().unwrap();
    w.event(&ca, E::Disconnected).ack();
    assert!(w.event(&ca, E::TimewaitExit).is_of(&client));
}

// M13: the peer's last message is lost, and its data establishes the connection instead.
#[test]
fn m13_data_before_the_rtu_establishes() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    let server = w.request(&client, &cb, &ConnParam::default());
    let qp = w.b.qp(&server);
    w.b.post_recv(&qp, 1);
    server.accept(&ConnParam::default()).unwrap();
    w.b.pump();
    // The RTU is lost, and so is every RTU in answer to a repeated REP.
    w.a_sends_no_mads.store(true, Ordering::Release);
    w.event(&ca, E::Established).ack();
    assert_eq!(server.state(), IdState::Accepting);
    w.a.send(&client.qp().unwrap(), 1);
    assert!(w.event(&cb, E::Established).is_of(&server));
    assert!(w.take(&w.b.cq, 1)[0].is_ok());
}

#[test]
fn identifiers_move_between_channels() {
    let w = World::new();
    let (ca, cb, other) = (w.a.channel(), w.b.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    client.connect(&ConnParam::default()).unwrap();
    let mut request = w.event(&cb, E::ConnectRequest);
    let server = request.take_id().unwrap();
    drop(request);
    server.migrate_id(Some(&other)).unwrap();
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    let event = w.event(&other, E::Established);
    assert!(event.is_of(&server));
    assert!(server.migrate_id(Some(&cb)).is_err(), "an event of it is out");
    drop(event);
    // Waiting events move along with the identifier; then it is made synchronous.
    client.disconnect().unwrap();
    w.until("the end", || (server.state() == IdState::Disconnected).then_some(()));
    server.migrate_id(Some(&cb)).unwrap();
    assert!(other.try_get_event().is_none());
    assert_eq!(w.event(&cb, E::Disconnected).id(), server.number());
    server.migrate_id(None).unwrap();
    assert!(server.get_event(std::time::Duration::ZERO).unwrap().is_none());
    other.destroy().unwrap();
    assert!(ca.destroy().is_err(), "the client uses it");
}

#[test]
fn a_listener_keeps_as_many_requests_as_it_says() {
    let w = World::with(|config| config.drive(Drive::Caller));
    let listener = w.b.context.create_id(None, PortSpace::Tcp).unwrap();
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(2).unwrap();
    let ca = w.a.channel();
    let clients: Vec<CmId> = (0..4).map(|_| w.resolved(&ca, b(false))).collect();
    for client in &clients {
        client.connect(&ConnParam::default()).unwrap();
    }
    for _ in 0..2 {
        let refused = w.event(&ca, E::Rejected);
        assert_eq!(refused.status(), 3);
    }
    for _ in 0..2 {
        let id = listener.get_request(PATIENCE).unwrap().unwrap();
        id.reject(b"no").unwrap();
        assert_eq!(&w.event(&ca, E::Rejected).private_data()[..2], b"no");
    }
    assert!(listener.get_request(std::time::Duration::from_millis(1)).unwrap().is_none());
}

// Goal: a server that never accepts delays a client no longer than the client's own timeouts. A request that the server has not fetched
// by then is no longer delivered.
#[test]
fn a_connect_ends_with_the_programs_times() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let listener = w.b.id(&cb);
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(1).unwrap();
    for fetched in [false, true, false] {
        let client = w.a.id(&ca);
        short_timeouts(&client);
        w.resolve(&client, &ca, b(false));
        w.a.qp(&client);
        client.connect(&ConnParam::default()).unwrap();
        let request = fetched.then(|| w.event(&cb, E::ConnectRequest));
        assert_eq!(w.event(&ca, E::Unreachable).status(), -ETIMEDOUT);
        if let Some(mut request) = request {
            let server = request.take_id().unwrap();
            request.ack();
            let end = w.event(&cb, E::Rejected);
            assert!(end.is_of(&server) && end.refusal().unwrap().reason == 4, "{end:?}");
            assert_eq!(server.state(), IdState::Disconnected);
        }
        for _ in 0..100 {
            w.pump();
        }
        assert!(cb.try_get_event().is_none());
    }
    // The listener has room again.
    w.connect(&ca, &cb, b(false));
}

/// Two hosts whose ports carry packets of these lengths.
fn with_ports_of(mtus: [usize; 2]) -> World {
    let [a, b] = mtus.map(|mtu| PortOptions { mtu, ..PortOptions::default() });
    let (pa, pb) = verbs::port::pair_with(&a, &b, Arc::new(|queue, _, _| queue));
    let config = |port, side: usize| DeviceConfig::new(port).addr(addrs(false)[side], 24);
    world_of(config(pa, 0), config(pb, 1))
}

/// Two hosts that are driven by their own threads.
fn world_of(a: DeviceConfig, b: DeviceConfig) -> World {
    let [a, b] = [a, b].map(|config| Host::new(config.drive(Drive::Dedicated { cores: vec![] })));
    World { a, b, a_sends_nothing: Default::default(), a_sends_no_mads: Default::default(), clock: None }
}

/// A port on a kernel's addresses; the kernel knows the MTU of the route to the peer.
struct Routed {
    port: Box<dyn Port>,
    addr: IpAddr,
    peer: IpAddr,
    way: Box<dyn Fn() -> usize + Send + Sync>,
}

impl PortLayer for Routed {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }
    fn host(&self) -> Option<&dyn verbs::port::Host> {
        Some(self)
    }
}

impl verbs::port::Host for Routed {
    fn addresses(&self) -> Vec<IpAddr> {
        vec![self.addr]
    }
    fn generation(&self) -> u64 {
        0
    }
    fn source_to(&self, peer: IpAddr, _scope: u32) -> Option<IpAddr> {
        (peer == self.peer).then_some(self.addr)
    }
    fn mtu_to(&self, peer: IpAddr) -> Option<usize> {
        (peer == self.peer).then(|| (self.way)())
    }
    fn join(&self, group: IpAddr) -> Result<(), verbs::port::PortError> {
        Err(verbs::port::PortError::Group { group, reason: "this host is in no groups".into() })
    }
    fn farewell(&self, _: verbs::port::Frame) -> Option<Box<dyn verbs::port::Farewell>> {
        None
    }
    fn leave(&self, _: IpAddr) {}
}

/// Two hosts whose kernels have routes; `way_back` returns the MTU of B's route to A.
fn with_a_way_back(way_back: impl Fn() -> usize + Send + Sync + 'static) -> World {
    // A port with a host's addresses sends to the Ethernet address next to its own.
    let options =
        |last| PortOptions { mac: Some(verbs::Mac([2, 0, 0, 0, 0, last])), ..PortOptions::default() };
    let (pa, pb) = verbs::port::pair_with(&options(2), &options(3), Arc::new(|queue, _, _| queue));
    let [addr_a, addr_b] = addrs(false);
    let a = Routed { port: pa, addr: addr_a, peer: addr_b, way: Box::new(|| 4200) };
    let b = Routed { port: pb, addr: addr_b, peer: addr_a, way: Box::new(way_back) };
    world_of(DeviceConfig::new(Box::new(a) as Box<dyn Port>), DeviceConfig::new(Box::new(b) as Box<dyn Port>))
}

/// A synchronous identifier of A that is ready to connect to B.
fn ready(w: &World) -> CmId {
    let client = w.a.context.create_id(None, PortSpace::Tcp).unwrap();
    client.resolve_addr(None, b(false), SOON).unwrap();
    client.resolve_route(SOON).unwrap();
    w.a.qp(&client);
    client
}

/// Makes a connection, which must have this path MTU, and exchanges a message each way.
fn connects_at(w: &World, listener: &CmId, mtu: Mtu) {
    let client = ready(w);
    let server = std::thread::scope(|s| {
        let server = s.spawn(|| {
            let server = listener.get_request(PATIENCE).unwrap().expect("a request");
            w.b.qp(&server);
            server.accept(&ConnParam::default()).unwrap();
            server
        });
        client.connect(&ConnParam::default()).unwrap();
        server.join().unwrap()
    });
    assert_eq!((client.path_mtu(), server.path_mtu()), (mtu, mtu));
    for id in [&client, &server] {
        assert_eq!(id.qp().unwrap().query().unwrap().0.path_mtu, mtu as u8);
    }
    w.exchange(&client, &server);
}

/// Checks that a connection for which the program set this path MTU is refused: the error names both path MTUs, and says what to do.
fn refused_for(w: &World, asked: Mtu, named: Mtu) {
    let client = ready(w);
    client.set_option(CmOption::PathMtu(asked)).unwrap();
    let error = client.connect(&ConnParam::default()).unwrap_err();
    let text = error.to_string();
    assert_eq!((error.errno(), inner(&error).as_str()), (ECONNREFUSED, "Rejected"));
    for part in [&*asked.bytes().to_string(), &*named.bytes().to_string(), "reason 26", "PathMtu"] {
        assert!(text.contains(part), "{text}");
    }
    let event = client.event().unwrap();
    let refusal = event.refusal().unwrap();
    assert_eq!((event.event(), event.status()), (E::Rejected, 26));
    assert_eq!((refusal.mtu, refusal.peer_mtu), (Some(asked), Some(named)));
}

/// Number of requests that B has refused for their path MTU. No request may have been delivered.
fn refusals(listener: &CmId, channel: &EventChannel) -> u64 {
    assert!(listener.get_request(std::time::Duration::ZERO).unwrap().is_none());
    let counters = channel.counters();
    counters.iter().find(|(name, _)| *name == "reject_mtu").unwrap().1
}

/// A listener of B without a channel, and a channel for its counters.
fn listening(w: &World) -> (CmId, EventChannel) {
    let listener = w.b.context.create_id(None, PortSpace::Tcp).unwrap();
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(1).unwrap();
    let channel = w.b.channel();
    w.b.id(&channel).destroy().unwrap();
    (listener, channel)
}

// Goal: if the ports differ, connections have the path MTU of the smaller one, and no program sees the first refusal.
#[test]
fn a_smaller_mtu_of_the_peer_is_asked_for() {
    let w = with_ports_of([4200, 1500]);
    let (listener, channel) = listening(&w);
    connects_at(&w, &listener, Mtu::Mtu1024);
    assert_eq!(refusals(&listener, &channel), 1);
}

// Goal: if the program has set a path MTU that the peer refuses, the error names both, and says what to do.
#[test]
fn a_refusal_of_the_mtu_names_both() {
    let w = with_ports_of([4200, 1500]);
    let (listener, channel) = listening(&w);
    refused_for(&w, Mtu::Mtu4096, Mtu::Mtu1024);
    assert_eq!(refusals(&listener, &channel), 1);
}

// Goal: the path MTU fits both directions, even if only the peer knows the MTU of its route back, and that MTU changes meanwhile.
#[test]
fn a_narrow_way_back_bounds_the_path_mtu() {
    let way = Arc::new(AtomicUsize::new(4200));
    let of_b = way.clone();
    let w = with_a_way_back(move || {
        let now = of_b.load(Ordering::Acquire);
        // From 2048 over 1024 down to 512.
        of_b.store((now / 2).max(700), Ordering::Release);
        now
    });
    let (listener, channel) = listening(&w);
    way.store(2800, Ordering::Release);
    connects_at(&w, &listener, Mtu::Mtu512);
    assert_eq!(refusals(&listener, &channel), 3);
    refused_for(&w, Mtu::Mtu1024, Mtu::Mtu512);
    assert_eq!(refusals(&listener, &channel), 4);
}

/// A port on an interface whose MTU is changed while the port is open.
struct Resized(Box<dyn Port>, Arc<AtomicUsize>);

impl PortLayer for Resized {
    fn inner(&self) -> &dyn Port {
        &*self.0
    }
    fn mtu(&self) -> usize {
        self.1.load(Ordering::Acquire)
    }
}

// Goal: a connection's path MTU follows from what the ports carry when it is made, not when the first identifier was created.
#[test]
fn ports_that_carry_more_than_before_connect_at_that() {
    let mtu = Arc::new(AtomicUsize::new(1500));
    let (pa, pb) = verbs::port::pair(1);
    let config = |port, side: usize| {
        let port: Box<dyn Port> = Box::new(Resized(port, mtu.clone()));
        DeviceConfig::new(port).addr(addrs(false)[side], 24)
    };
    let w = world_of(config(pa, 0), config(pb, 1));
    let (listener, channel) = listening(&w);
    let _first = w.a.context.create_id(None, PortSpace::Tcp).unwrap();
    connects_at(&w, &listener, Mtu::Mtu1024);
    mtu.store(4200, Ordering::Release);
    for host in [&w.a, &w.b] {
        assert_eq!(host.context.query_port(1).unwrap().active_mtu, Mtu::Mtu4096);
    }
    connects_at(&w, &listener, Mtu::Mtu4096);
    assert_eq!(refusals(&listener, &channel), 0);
}

// Goal: a frame from the peer's address that the queue pair refuses does not establish the connection.
#[test]
fn a_refused_frame_establishes_nothing() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, b(false));
    let server = w.request(&client, &cb, &ConnParam::default());
    let qp = w.b.qp(&server);
    w.b.post_recv(&qp, 1);
    w.a_sends_nothing.store(true, Ordering::Release);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    (0..100).for_each(|_| w.pump()); // its last message is lost
    w.a_sends_nothing.store(false, Ordering::Release);
    // A sender at the peer's address that knows the queue pair number, but not the PSN.
    let forger = w.a.pd.create_qp(&QpInitAttr::rc(&w.a.cq, &w.a.cq)).unwrap();
    let peer = qp.endpoint(1).unwrap();
    let options = verbs::RcOptions::default().sgid_index(1).timeout(0);
    forger.connect_rc(&peer, &options).unwrap();
    w.a.send(&forger, 7);
    let came = || qp.counters().get(verbs::Counter::RxFrames);
    w.until("the forged packet", || (came() > 0).then_some(()));
    for _ in 0..200 {
        w.pump();
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    assert_eq!((server.state(), cb.try_get_event().is_none()), (IdState::Accepting, true));
    w.a.send(&client.qp().unwrap(), 2);
    assert!(w.event(&cb, E::Established).is_of(&server));
}

// The program creates its own queue pair: the library returns the attributes to bring it up with.
#[test]
fn programs_bring_up_their_own_queue_pairs() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.a.id(&ca);
    w.resolve(&client, &ca, b(false));
    let [qa, qb] = [&w.a, &w.b].map(|h| h.pd.create_qp(&QpInitAttr::rc(&h.cq, &h.cq)).unwrap());
    let up = |id: &CmId, qp: &verbs::Qp, states: &[QpState]| {
        for state in states {
            let (attr, mask) = id.init_qp_attr(*state).unwrap();
            qp.modify(&attr, mask).unwrap();
        }
    };
    assert!(client.connect(&ConnParam::default()).is_err(), "no queue pair");
    assert!(client.init_qp_attr(QpState::Rtr).is_err(), "nothing is known of the peer");
    up(&client, &qa, &[QpState::Init]);
    let server = w.request(&client, &cb, &ConnParam { qp_num: qa.qp_num().get(), ..ConnParam::default() });
    up(&server, &qb, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    w.b.post_recv(&qb, 1);
    server.accept(&ConnParam { qp_num: qb.qp_num().get(), ..ConnParam::default() }).unwrap();
    let response = w.event(&ca, E::ConnectResponse);
    assert_eq!(response.peer().unwrap().qp_num, qb.qp_num().get());
    up(&client, &qa, &[QpState::Rtr, QpState::Rts]);
    assert_eq!(client.state(), IdState::Responded);
    client.establish().unwrap();
    assert!(client.establish().is_err(), "once");
    w.event(&cb, E::Established).ack();
    w.a.send(&qa, 2);
    assert!(w.take(&w.a.cq, 1)[0].is_ok() && w.take(&w.b.cq, 1)[0].is_ok());
    // The program reports that data arrived before the last message; the connection is already established.
    server.notify(AsyncEvent::CommEst).unwrap();
    client.disconnect().unwrap();
    w.event(&cb, E::Disconnected).ack();
    assert_eq!(qa.state().unwrap(), QpState::Rts, "the program's own");
    // A response can be refused, too.
    let client = w.a.id(&ca);
    w.event(&ca, E::Disconnected).ack();
    w.resolve(&client, &ca, b(false));
    let qa = w.a.pd.create_qp(&QpInitAttr::rc(&w.a.cq, &w.a.cq)).unwrap();
    let server = w.request(&client, &cb, &ConnParam { qp_num: qa.qp_num().get(), ..ConnParam::default() });
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::ConnectResponse).ack();
    client.reject(b"changed my mind").unwrap();
    let refused = w.event(&cb, E::Rejected);
    assert!(refused.is_of(&server));
    assert_eq!(&refused.private_data()[..15], b"changed my mind");
}

// Datagrams: SIDR resolves a port to its service; the answer is enough for an address handle.
#[test]
fn m25_datagram_services_are_found() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let udp = |h: &Host, c| h.context.create_id(Some(c), PortSpace::Udp).unwrap();
    let listener = udp(&w.b, &cb);
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(0).unwrap();
    let client = udp(&w.a, &ca);
    w.resolve(&client, &ca, b(false));
    let qa = client.create_qp(&w.a.pd, &QpInitAttr::ud(&w.a.cq, &w.a.cq)).unwrap();
    assert_eq!((qa.qp_type(), qa.state().unwrap()), (QpType::Ud, QpState::Rts));
    client.connect(&ConnParam::with_data(&[5; 180])).unwrap();
    let mut request = w.event(&cb, E::ConnectRequest);
    assert_eq!(request.private_data(), [5; 180]);
    let server = request.take_id().unwrap();
    drop(request);
    assert!(server.accept(&ConnParam::default()).is_err(), "no queue pair");
    let qb = server.create_qp(&w.b.pd, &QpInitAttr::ud(&w.b.cq, &w.b.cq)).unwrap();
    qb.post_recv(&[RecvWr::new(1, &[w.b.mr.sge(0..256).unwrap()])]).unwrap();
    server.accept(&ConnParam::with_data(b"here")).unwrap();
    let there = w.event(&ca, E::Established);
    let ud = *there.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (qb.qp_num().get(), UDP_QKEY));
    assert_eq!(&there.private_data()[..5], b"here\0");
    drop(there);
    let ah = w.a.pd.create_ah(&ud.ah_attr).unwrap();
    let wr = SendWr::send(2, &[]).inline(b"datagram").to(&ah, Qpn::new(ud.qp_num), ud.qkey);
    qa.post_send(&[wr]).unwrap();
    let wc = w.take(&w.b.cq, 1)[0];
    assert_eq!((wc.byte_len as usize, wc.src_qp), (GRH_LEN + 8, qa.qp_num()));
    assert!(client.disconnect().is_err(), "datagrams have no connection");

    // A refused request, and a service that does not exist.
    for (port, status) in [(PORT, 2), (PORT + 1, 1)] {
        let client = udp(&w.a, &ca);
        w.resolve(&client, &ca, SocketAddr::new(addrs(false)[1], port));
        client.connect(&ConnParam::default()).unwrap();
        if port == PORT {
            w.event(&cb, E::ConnectRequest).take_id().unwrap().reject(b"no").unwrap();
        }
        assert_eq!(w.event(&ca, E::Unreachable).status(), status);
    }
}

#[test]
fn datagram_identifiers_join_groups() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let group: std::net::IpAddr = [239, 1, 2, 3].into();
    let joined = [(&w.a, &ca, 0), (&w.b, &cb, 1)].map(|(h, c, side)| {
        let id = h.context.create_id(Some(c), PortSpace::Udp).unwrap();
        id.bind_addr(SocketAddr::new(addrs(false)[side], 0)).unwrap();
        assert!(id.join_multicast(group).is_err(), "no queue pair");
        let qp = id.create_qp(&h.pd, &QpInitAttr::ud(&h.cq, &h.cq).block_self_mcast_lb()).unwrap();
        assert!(id.join_multicast([10, 0, 0, 9].into()).is_err(), "no group");
        id.join_multicast(group).unwrap();
        let event = w.event(c, E::MulticastJoin);
        let ud = *event.ud().unwrap();
        drop(event);
        assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, UDP_QKEY));
        (id, qp, ud)
    });
    let [(a, qa, ud), (id_b, qb, _)] = joined;
    qb.post_recv(&[RecvWr::new(1, &[w.b.mr.sge(0..256).unwrap()])]).unwrap();
    let ah = w.a.pd.create_ah(&ud.ah_attr).unwrap();
    qa.post_send(&[SendWr::send(2, &[]).inline(b"all").to(&ah, Qpn::new(ud.qp_num), ud.qkey)]).unwrap();
    assert_eq!(w.take(&w.b.cq, 1)[0].byte_len as usize, GRH_LEN + 3);
    a.leave_multicast(group).unwrap();
    assert!(a.leave_multicast(group).is_err(), "it left");
    drop((qa, qb, id_b, ah)); // a member is dropped without leaving
    a.destroy().unwrap();
    drop((ca, cb));
    w.close();
}

// A group is resolved, too, which binds the identifier to the address from which the group is reached; and joined as a sender only.
#[test]
fn a_group_is_resolved_and_joined_to_send() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let group: std::net::IpAddr = [239, 1, 2, 4].into();
    let [(a, qa, ud), (b, qb, _)] = [(&w.a, &ca, true), (&w.b, &cb, false)].map(|(h, c, receives)| {
        let id = h.context.create_id(Some(c), PortSpace::Udp).unwrap();
        id.resolve_addr(None, SocketAddr::new(group, 9), PATIENCE).unwrap();
        w.event(c, E::AddrResolved).ack();
        assert!(id.local_addr().is_some_and(|addr| addr.is_ipv4() && !addr.ip().is_unspecified()));
        let qp = id.create_qp(&h.pd, &QpInitAttr::ud(&h.cq, &h.cq).block_self_mcast_lb()).unwrap();
        if receives { id.join_multicast(group) } else { id.join_multicast_to_send(group) }.unwrap();
        let ud = *w.event(c, E::MulticastJoin).ud().unwrap();
        id.resolve_route(PATIENCE).unwrap();
        w.event(c, E::RouteResolved).ack();
        assert_eq!(id.connect(&ConnParam::default()).unwrap_err().errno(), verbs::errno::EINVAL, "no peer");
        (id, qp, ud)
    });
    for (qp, h) in [(&qa, &w.a), (&qb, &w.b)] {
        qp.post_recv(&[RecvWr::new(1, &[h.mr.sge(0..256).unwrap()])]).unwrap();
    }
    for (qp, h, text) in [(&qa, &w.a, b"to nobody"), (&qb, &w.b, b"to A only")] {
        let ah = h.pd.create_ah(&ud.ah_attr).unwrap();
        let send = SendWr::send(2, &[]).inline(text).to(&ah, Qpn::new(ud.qp_num), ud.qkey).signaled();
        qp.post_send(&[send]).unwrap();
        w.take(&h.cq, 1);
    }
    assert_eq!(w.take(&w.a.cq, 1)[0].byte_len as usize, GRH_LEN + 9);
    assert_eq!(w.b.cq.poll(&mut [verbs::Wc::default()]).unwrap(), 0, "B is no receiver");
    b.leave_multicast(group).unwrap();
    a.leave_multicast(group).unwrap();
    drop((qa, qb));
    for id in [a, b] {
        id.destroy_qp().unwrap();
        id.destroy().unwrap();
    }
}

// A queue pair is detached from its identifier while connected; the peer learns of the end when the identifier is destroyed.
#[test]
fn a_queue_pair_is_released_while_it_is_connected() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listener = w.b.listen(&cb, PORT);
    let client = w.resolved(&ca, SocketAddr::new(addrs(false)[1], PORT));
    assert_eq!(client.path_mtu(), w.a.context.query_port(1).unwrap().active_mtu);
    client.set_option(verbs::rdma_cm::CmOption::PathMtu(verbs::Mtu::Mtu512)).unwrap();
    let server = w.request(&client, &cb, &ConnParam::default());
    assert_eq!((client.path_mtu(), server.path_mtu()), (verbs::Mtu::Mtu512, verbs::Mtu::Mtu512));
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    w.event(&cb, E::Established).ack();
    assert_eq!(client.qp_state(), Some(QpState::Rts));
    let qp = client.release_qp().unwrap();
    assert_eq!(qp.state().unwrap(), QpState::Err);
    assert!(client.qp().is_none() && client.qp_state().is_none());
    std::sync::Arc::try_unwrap(qp).unwrap().destroy().map_err(|(e, _)| e).unwrap();
    client.destroy().unwrap();
    w.event(&cb, E::Disconnected).ack();
    // The vendor data in a peer's request can be a reason to refuse it.
    let client = w.resolved(&ca, SocketAddr::new(addrs(false)[1], PORT));
    let server = w.request(&client, &cb, &ConnParam::default());
    server.reject_ece(b"no").unwrap();
    let event = w.event(&ca, E::Rejected);
    assert_eq!((event.status(), &event.private_data()[..2]), (35, &b"no"[..]));
}

// A channel belongs to no device: one channel takes the events of two devices, in every drive, and its descriptor is readable for both.
#[test]
fn one_channel_serves_two_devices() {
    for drive in [Drive::Embedded, Drive::Caller] {
        let w = World::with(|config| config.drive(drive.clone()));
        let channel = EventChannel::new().unwrap();
        assert!(channel.try_get_event().is_none() && channel.counters().is_empty());
        assert!(channel.get_event(std::time::Duration::from_millis(1)).unwrap().is_none());
        let (listener, client) = (w.b.listen(&channel, PORT), w.a.id(&channel));
        assert_ne!(listener.number(), client.number());
        let next = |what| {
            let event = channel.get_event(PATIENCE).unwrap().expect("an event in time");
            assert_eq!(event.event(), what, "{event:?}");
            event
        };
        client.resolve_addr(None, b(false), SOON).unwrap();
        assert!(next(E::AddrResolved).is_of(&client));
        client.resolve_route(SOON).unwrap();
        assert!(next(E::RouteResolved).is_of(&client));
        w.a.qp(&client);
        client.connect(&ConnParam::default()).unwrap();
        let mut request = next(E::ConnectRequest);
        assert!(request.is_of(&listener));
        let server = request.take_id().unwrap();
        drop(request);
        w.b.qp(&server);
        server.accept(&ConnParam::default()).unwrap();
        let ends = [next(E::Established), next(E::Established)];
        assert!([&client, &server].iter().all(|id| ends.iter().any(|event| event.is_of(id))));
        drop(ends);
        w.exchange(&client, &server);
        client.disconnect().unwrap();
        let ends = [next(E::Disconnected), next(E::Disconnected)];
        assert!([&client, &server].iter().all(|id| ends.iter().any(|event| event.is_of(id))));
        drop(ends);
        let (e, channel) = channel.destroy().unwrap_err();
        assert_eq!(e.errno(), verbs::errno::EBUSY, "{e}");
        drop((client, server, listener));
        channel.destroy().unwrap();
        w.close();
    }
}

// A device connects to itself: both ends belong to one connection manager.
#[test]
fn a_device_connects_to_itself() {
    let context = Context::open(DeviceConfig::loopback()).unwrap();
    let channel = EventChannel::new().unwrap();
    let listener = context.create_id(Some(&channel), PortSpace::Tcp).unwrap();
    listener.listen(0).unwrap();
    assert!(listener.src_port() >= 49152, "a free port");
    let next = |what| {
        let event = channel.get_event(PATIENCE).unwrap().unwrap();
        assert_eq!(event.event(), what);
        event
    };
    let client = context.create_id(Some(&channel), PortSpace::Tcp).unwrap();
    client.resolve_addr(None, ([192, 0, 2, 1], listener.src_port()), SOON).unwrap();
    next(E::AddrResolved).ack();
    client.resolve_route(SOON).unwrap();
    next(E::RouteResolved).ack();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    client.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
    client.connect(&ConnParam::default()).unwrap();
    let server = next(E::ConnectRequest).take_id().unwrap();
    server.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
    server.accept(&ConnParam::default()).unwrap();
    let first = next(E::Established);
    let second = next(E::Established);
    assert_ne!(first.id(), second.id());
    drop((first, second));
    client.disconnect().unwrap();
    next(E::Disconnected).ack();
    next(E::Disconnected).ack();
    assert_eq!(server.disconnect().map_err(|e| e.errno()), Ok(()));
    let e = listener.disconnect().unwrap_err();
    assert_eq!((e.errno(), inner(&e).as_str()), (ENOTCONN, "NotConnected"));
    assert!(matches!(server.set_option(CmOption::Tos(1)), Err(e) if e.errno() == 22));
}

// Goal: dropping the last identifier waits for the peer's answer to the DREQ, because the link of a guest behind vhost ends with this
// port; but not for ever. Ten times, because a thread of the test may be preempted for longer than that.
#[test]
fn the_last_identifier_waits_for_the_answer_of_its_peer() {
    let waited = || {
        let w = World::new();
        let (ca, cb) = (w.a.channel(), w.b.channel());
        let _listener = w.b.listen(&cb, PORT);
        let (client, _server) = w.connect(&ca, &cb, b(false));
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let peer = s.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let waits = !ended.load(Ordering::Acquire);
                while !ended.load(Ordering::Acquire) {
                    w.b.pump();
                }
                waits
            });
            drop((client, ca));
            ended.store(true, Ordering::Release);
            peer.join().unwrap()
        })
    };
    let waits = (0..10).filter(|_| waited()).count();
    assert!(waits > 5, "{waits} of 10");
}

// Goal: an identifier is destroyed as soon as its events are acknowledged, however many of them another thread fetches meanwhile.
#[test]
fn an_identifier_ends_while_another_thread_fetches_its_events() {
    let w = World::new();
    let channel = w.a.channel();
    let group: IpAddr = [239, 1, 2, 5].into();
    for _ in 0..3 {
        let id = w.a.context.create_id(Some(&channel), PortSpace::Udp).unwrap();
        id.bind_addr(SocketAddr::new(addrs(false)[0], 0)).unwrap();
        id.create_qp(&w.a.pd, &QpInitAttr::ud(&w.a.cq, &w.a.cq)).unwrap();
        (0..100_000).for_each(|_| id.join_multicast_to_send(group).unwrap());
        let first = w.event(&channel, E::MulticastJoin);
        std::thread::scope(|s| {
            let events = &channel;
            s.spawn(move || {
                drop(first);
                while let Some(event) = events.try_get_event() {
                    event.ack();
                }
            });
            id.destroy_wait(PATIENCE).map_err(|(e, _)| e).unwrap();
        });
    }
}

// Goal: the attributes for a request do not depend on the numbers of the connected queue pairs.
#[test]
fn a_request_has_attributes_whatever_else_is_connected() {
    let w = World::new();
    let [ca, cb, theirs] = [&w.a, &w.b, &w.a].map(Host::channel);
    let _listeners = [w.b.listen(&cb, PORT), w.a.listen(&theirs, PORT)];
    for qp_num in [2, 0xff_fffe] {
        let other = w.b.id(&cb);
        w.resolve(&other, &cb, SocketAddr::new(addrs(false)[0], PORT));
        other.connect(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        let client = w.resolved(&ca, b(false));
        let server = w.request(&client, &cb, &ConnParam::default());
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            server.init_qp_attr(state).unwrap();
        }
        let busy = server.accept(&ConnParam { qp_num, ..ConnParam::default() }).unwrap_err();
        assert_eq!(busy.errno(), verbs::errno::EBUSY);
    }
}

// Goal: keep-alive. A peer that disappears silently is noticed and reported to the program, although nothing was requested of the peer. A
// living peer is checked at intervals and notices nothing; and without keep-alive a connection waits for ever.
#[test]
fn a_peer_that_goes_without_a_word_is_missed() {
    let clock = Arc::new(AtomicU64::new(1));
    let mut w = World::with(|config| config.clock(Clock::Manual(clock.clone())));
    w.clock = Some(clock);
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let listener = w.b.listen(&cb, PORT);
    let other = w.b.listen(&cb, PORT + 1);
    other.set_option(CmOption::KeepAlive(Duration::ZERO)).unwrap();
    let (client, server) = w.connect(&ca, &cb, b(false));
    let (other_client, for_ever) = w.connect(&ca, &cb, SocketAddr::new(b(false).ip(), PORT + 1));
    assert_eq!(for_ever.options().keep_alive, Some(Duration::ZERO), "that of its listener");
    let pass = |seconds: u64| (0..seconds * 1000).for_each(|_| w.pump());
    let checks = || w.b.context.counters().get(Counter::PeerChecks);
    pass(29);
    assert_eq!(checks(), 0);
    pass(272);
    assert_eq!(checks(), 10, "every thirty seconds, on one of two connections");
    w.exchange(&client, &server);
    assert!(ca.try_get_event().is_none() && cb.try_get_event().is_none());

    w.a_sends_nothing.store(true, Ordering::Release);
    pass(40);
    assert!(cb.try_get_event().is_none(), "it is asked three times");
    pass(60);
    let event = cb.try_get_event().expect("it is missed");
    assert!(event.is_of(&server), "{event:?}");
    assert_eq!((event.event(), event.status()), (E::Disconnected, -ETIMEDOUT));
    assert_eq!(server.qp().unwrap().state().unwrap(), QpState::Err);
    assert_eq!(for_ever.state(), IdState::Connected);
    drop((event, listener, other, other_client));
}
