//! Connection management, case by case: two machines on a link, in virtual time.

use core::time::Duration;

use sim::mads::{MadFaults, MadWorld, SentMad};
use stack::cm::mad::Mad;
use stack::cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Disconnect, Error, Event, IpHeader, Limits, Listen, ListenId,
    Machine, PeerAnswer, PortSpace, QpParams, RDMA_UDP_QKEY, Reason, Reject, ServiceId, SidrReply,
    SidrRequest, SidrStatus, Timing,
};
use stack::config::RD_ATOMIC_MAX;
use stack::id::{Gid, Mtu, Psn, Qpn};
use stack::time::Instant;

/// The active and the passive side.
const A: usize = 0;
const B: usize = 1;
const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 4420);
const A_QPN: Qpn = Qpn::new(0x11);
const B_QPN: Qpn = Qpn::new(0x22);

fn config(node: usize) -> Config {
    Config { ca_guid: 0x0200_00ff_fe00_0000 + node as u64, seed: 77 + node as u64, ..Config::default() }
}

fn world() -> MadWorld {
    MadWorld::new(1, 2, MadFaults::NONE, config)
}

/// Managers that send MRAs.
fn polite() -> MadWorld {
    MadWorld::new(1, 2, MadFaults::NONE, |node| Config { mra: Some(24), ..config(node) })
}

fn ip() -> IpHeader {
    let ip = |node| MadWorld::gid(node).to_ip();
    IpHeader { src_port: 40000, src: ip(A), dst: ip(B) }
}

fn listen(w: &mut MadWorld) -> ListenId {
    w.nodes[B].listen(&Listen { service_id: SERVICE, address: None, backlog: 16 }).unwrap()
}

fn to_b(qpn: Qpn) -> Connect {
    Connect { ip: Some(ip()), ..Connect::new(SERVICE, MadWorld::path(A, B), qpn) }
}

fn connect(w: &mut MadWorld) -> ConnId {
    let now = w.now;
    w.nodes[A].connect(now, &to_b(A_QPN)).unwrap()
}

const MOMENT: Duration = Duration::from_millis(1);

/// The request that arrives at B.
fn request(w: &mut MadWorld) -> (ConnId, stack::cm::Request) {
    w.run(MOMENT);
    match w.event(B) {
        Some(Event::ConnectRequest { id, request, .. }) => (id, request),
        other => panic!("{other:?} instead of a request"),
    }
}

fn accept(w: &mut MadWorld, id: ConnId) -> QpParams {
    let now = w.now;
    w.nodes[B].accept(now, id, &Accept::new(B_QPN)).unwrap()
}

/// The response that arrives at A.
fn response(w: &mut MadWorld) -> stack::cm::Response {
    w.run(MOMENT);
    match w.event(A) {
        Some(Event::ConnectResponse { response, .. }) => response,
        other => panic!("{other:?} instead of a response"),
    }
}

fn confirm(w: &mut MadWorld, id: ConnId) {
    let now = w.now;
    w.nodes[A].confirm(now, id, b"").unwrap();
    w.run(MOMENT);
}

/// A connection; its id on each side.
fn established(w: &mut MadWorld) -> (ConnId, ConnId) {
    listen(w);
    let a = connect(w);
    let (b, _) = request(w);
    accept(w, b);
    response(w);
    confirm(w, a);
    assert!(matches!(w.event(B), Some(Event::Established { id, .. }) if id == b));
    (a, b)
}

/// The MADs that a node sent.
fn sent(w: &MadWorld, from: usize) -> Vec<SentMad> {
    w.log.as_ref().unwrap().iter().filter(|s| s.from == from).cloned().collect()
}

/// A requests another connection, and B's host accepts it with the queue pair that is connected already.
fn accept_with_connected_qp(w: &mut MadWorld) {
    let now = w.now;
    w.nodes[A].connect(now, &to_b(Qpn::new(0x12))).unwrap();
    w.run(MOMENT);
    let mad = sent(w, A).last().unwrap().mad();
    let Message::Req(req) = mad.message else { panic!() };
    let rep = Rep {
        local_comm_id: 77,
        remote_comm_id: req.local_comm_id,
        local_qpn: B_QPN,
        local_ca_guid: config(B).ca_guid,
        ..Rep::default()
    };
    inject(w, A, mad.tid, rep);
    assert!(matches!(w.event(A), Some(Event::Rejected { reason: Reason::STALE_CONNECTION, .. })));
}

fn attributes(w: &MadWorld, from: usize) -> Vec<u16> {
    sent(w, from).iter().map(|s| s.mad().message.attribute()).collect()
}

fn count(w: &MadWorld, node: usize, counter: Counter) -> u64 {
    w.nodes[node].counters().get(counter)
}

fn first_req(w: &MadWorld) -> (u64, Req) {
    match sent(w, A)[0].mad() {
        Mad { tid, message: Message::Req(req), .. } => (tid, *req),
        other => panic!("{other:?} instead of a REQ"),
    }
}

fn last_rej(w: &MadWorld, from: usize) -> (u64, Rej) {
    match sent(w, from).last().expect("something was sent").mad() {
        Mad { tid, message: Message::Rej(rej), .. } => (tid, *rej),
        other => panic!("{other:?} instead of a REJ"),
    }
}

/// Delivers a message to a node as if from its peer.
fn inject(w: &mut MadWorld, to: usize, tid: u64, message: impl Into<Message>) {
    let path = MadWorld::path(to, 1 - to);
    let now = w.now;
    w.inject(now, to, path, Mad::new(tid, message).encode().to_vec());
    w.run(MOMENT);
}

// Goal: the three messages are exchanged, and each side learns the parameters of the other.
#[test]
fn a_connection_from_request_to_disconnect() {
    let mut w = world();
    let (a, b) = established(&mut w);
    assert_eq!(
        (attributes(&w, A), attributes(&w, B)),
        (vec![Req::ATTRIBUTE, Rtu::ATTRIBUTE], vec![Rep::ATTRIBUTE])
    );
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"bye").unwrap();
    w.run(MOMENT);
    let Some(Event::Disconnected { id, how: Disconnect::ByPeer, private_data }) = w.event(B) else {
        panic!()
    };
    assert_eq!((id, &private_data[..3], private_data.len()), (b, &b"bye"[..], 220));
    assert!(matches!(w.event(A), Some(Event::Disconnected { id, how: Disconnect::Agreed, .. }) if id == a));
    assert!(w.nodes[A].qp_busy(A_QPN) && w.nodes[B].qp_busy(B_QPN));
    w.run(Duration::from_secs(1));
    assert_eq!(w.event(A), Some(Event::TimeWaitExit { id: a, qpn: A_QPN }));
    assert_eq!(w.event(B), Some(Event::TimeWaitExit { id: b, qpn: B_QPN }));
    assert_eq!(w.nodes[A].connections() + w.nodes[B].connections(), 0);
    assert_eq!(w.nodes[A].next_timer(), None);
    assert!(!w.nodes[A].qp_busy(A_QPN));
}

#[test]
fn m09_nobody_listens() {
    let mut w = world();
    let a = connect(&mut w);
    w.run(MOMENT);
    let (tid, req) = first_req(&w);
    let (rej_tid, rej) = last_rej(&w, B);
    assert_eq!((rej_tid, rej.remote_comm_id, rej.local_comm_id), (tid, req.local_comm_id, 0));
    assert_eq!((rej.reason, rej.message), (Reason::INVALID_SERVICE_ID, 0));
    let Some(Event::Rejected { id, reason, timewait: false, .. }) = w.event(A) else { panic!() };
    assert_eq!((id, reason), (a, Reason::INVALID_SERVICE_ID));
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));
    assert_eq!(count(&w, B, Counter::NoListener), 1);
    // A listener on another local address does not match; a listener on the right address does.
    let elsewhere = Listen { service_id: SERVICE, address: Some(MadWorld::gid(7)), backlog: 1 };
    w.nodes[B].listen(&elsewhere).unwrap();
    connect(&mut w);
    w.run(MOMENT);
    assert!(matches!(w.event(A), Some(Event::Rejected { reason: Reason::INVALID_SERVICE_ID, .. })));
    let here = w.nodes[B].listen(&Listen { address: Some(MadWorld::gid(B)), ..elsewhere }).unwrap();
    connect(&mut w);
    w.run(MOMENT);
    assert!(matches!(w.event(B), Some(Event::ConnectRequest { listener, .. }) if listener == here));
}

#[test]
fn m10_the_listener_rejects() {
    let mut w = world();
    listen(&mut w);
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    let words: Vec<u8> = (0..148).collect();
    let now = w.now;
    let long = Reject::consumer([&words[..], &[1]].concat());
    assert_eq!(w.nodes[B].reject(now, b, &long), Err(Error::PrivateData { given: 149, max: 148 }));
    w.nodes[B].reject(now, b, &Reject::consumer(words.clone())).unwrap();
    w.run(MOMENT);
    let Some(Event::Rejected { id, reason, private_data, timewait, .. }) = w.event(A) else { panic!() };
    assert_eq!((id, reason, timewait), (a, Reason::CONSUMER_DEFINED, false));
    assert_eq!(private_data, words);
    assert_eq!(w.nodes[B].reject(now, b, &Reject::consumer([])), Err(Error::NoConnection(b)), "it has ended");
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));
    assert!(!w.nodes[A].qp_busy(A_QPN), "the queue pair was never connected: it may be used at once");
}

#[test]
fn m11_a_request_twice() {
    let mut w = polite();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    let (tid, req) = first_req(&w);
    // Before the REP: a repeated REQ makes no second request, and the peer gets an MRA.
    inject(&mut w, B, tid, req);
    assert_eq!((w.event(B), w.nodes[B].connections()), (None, 1));
    assert_eq!(attributes(&w, B), [Mra::ATTRIBUTE]);
    inject(&mut w, B, tid, req);
    assert_eq!(attributes(&w, B), [Mra::ATTRIBUTE], "once");
    // After the REP: the REP is repeated by its own timer, not because of the REQ.
    w.lose = vec![Rep::ATTRIBUTE];
    accept(&mut w, b);
    w.run(MOMENT);
    inject(&mut w, B, tid, req);
    assert_eq!((w.event(B), w.nodes[B].connections()), (None, 1));
    assert_eq!(attributes(&w, B), [Mra::ATTRIBUTE, Rep::ATTRIBUTE]);
    assert_eq!(count(&w, B, Counter::DuplicateReq), 3);
    w.run(Duration::from_millis(4095));
    assert_eq!(attributes(&w, B).len(), 3);
    assert!(matches!(w.event(A), Some(Event::ConnectResponse { .. })));
    // Established: a repeated REQ changes nothing either.
    let a = w.nodes[A].connections();
    inject(&mut w, B, tid, req);
    assert_eq!((w.event(B), w.nodes[B].connections(), a), (None, 1, 1));
}

#[test]
fn m12_rtu_lost() {
    let mut w = world();
    listen(&mut w);
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    w.lose = vec![Rtu::ATTRIBUTE, Rtu::ATTRIBUTE];
    confirm(&mut w, a);
    assert_eq!(w.event(B), None);
    // Each repeated REP gets the same RTU again; the third RTU arrives.
    w.run(Duration::from_millis(2 * 4096 + 10));
    assert!(matches!(w.event(B), Some(Event::Established { id, .. }) if id == b));
    let rtus: Vec<_> =
        sent(&w, A).into_iter().filter(|s| s.mad().message.attribute() == Rtu::ATTRIBUTE).collect();
    assert_eq!(rtus.len(), 3);
    assert!(rtus.iter().all(|r| r.bytes == rtus[0].bytes));
    let reps = attributes(&w, B).iter().filter(|a| **a == Rep::ATTRIBUTE).count();
    w.run(Duration::from_secs(100));
    assert_eq!(attributes(&w, B).iter().filter(|a| **a == Rep::ATTRIBUTE).count(), reps, "the RTU ended it");
    assert_eq!((reps, w.event(A), w.event(B)), (3, None, None));
}

#[test]
fn m13_data_before_the_rtu() {
    let mut w = world();
    listen(&mut w);
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    let now = w.now;
    assert!(matches!(w.nodes[B].established(now, b), Err(Error::State { .. })), "not accepted yet");
    accept(&mut w, b);
    response(&mut w);
    w.lose = vec![Rtu::ATTRIBUTE];
    confirm(&mut w, a);
    // A SEND has arrived: the queue pair raises its event, and the connection manager is notified.
    let now = w.now;
    w.nodes[B].established(now, b).unwrap();
    assert_eq!(w.event(B), Some(Event::Established { id: b, private_data: Vec::new() }));
    w.nodes[B].established(now, b).unwrap();
    w.run(Duration::from_secs(100));
    assert_eq!(w.event(B), None, "said once");
    assert_eq!(attributes(&w, B), [Rep::ATTRIBUTE], "nothing is repeated any more");
}

#[test]
fn m14_rep_lost() {
    let mut w = world();
    listen(&mut w);
    // The passive side is slower than the active one, so that the REQ is repeated first.
    let now = w.now;
    let mut slow = to_b(A_QPN);
    slow.timing = Timing { local_response: 24, ..Timing::default() };
    let a = w.nodes[A].connect(now, &slow).unwrap();
    let (b, _) = request(&mut w);
    w.lose = vec![Rep::ATTRIBUTE];
    accept(&mut w, b);
    w.run(Duration::from_millis(4608));
    let reqs = sent(&w, A);
    assert_eq!(reqs.len(), 2);
    assert_eq!(reqs[0].bytes, reqs[1].bytes, "the same transaction, ids and bytes");
    w.run(Duration::from_secs(70));
    assert!(matches!(w.event(A), Some(Event::ConnectResponse { id, .. }) if id == a));
    assert_eq!(w.nodes[B].connections(), 1);
}

#[test]
fn m15_the_peer_is_silent() {
    for (lifetime, response, retries, interval_ms) in
        [(16, 20, 15, 4608), (16, 20, 0, 4608), (18, 22, 3, 2048 + 16384), (8, 8, 2, 3), (10, 12, 7, 8 + 16)]
    {
        assert_eq!(interval_ms, (1u64 << (lifetime - 7)) + (1 << (response - 8)), "the rule");
        let mut w = world();
        w.dead[B] = true;
        let mut connect = to_b(A_QPN);
        connect.timing = Timing {
            packet_lifetime: lifetime,
            remote_response: response,
            max_cm_retries: retries,
            ..Timing::default()
        };
        let begin = w.now;
        let a = w.nodes[A].connect(begin, &connect).unwrap();
        let end = Duration::from_millis(interval_ms * (u64::from(retries) + 1));
        w.run(end - Duration::from_nanos(1));
        let reqs = sent(&w, A);
        assert_eq!(reqs.len(), usize::from(retries) + 1);
        for (i, req) in reqs.iter().enumerate() {
            assert_eq!(req.at.nanos_since(begin), i as u64 * interval_ms * 1_000_000, "REQ {i}");
            assert_eq!(req.bytes, reqs[0].bytes);
        }
        assert_eq!(w.event(A), None, "not a moment too early");
        w.run(Duration::from_nanos(1));
        assert_eq!(w.event(A), Some(Event::Unreachable { id: a, timewait: false }));
        assert_eq!((w.nodes[A].connections(), w.nodes[A].next_timer()), (0, None));
        // The peer gets a REJ, if a REJ arrives: it may have answered all the time.
        let (_, rej) = last_rej(&w, A);
        assert_eq!((rej.reason, rej.message), (Reason::TIMEOUT, 2));
        assert_eq!(rej.info[..8], config(A).ca_guid.to_be_bytes());
    }
}

// Goal: a side whose answers are lost learns that the other side gave up, although that side never learnt its id.
#[test]
fn m15_the_peer_is_told_that_its_answers_were_lost() {
    let mut w = world();
    listen(&mut w);
    let mut impatient = to_b(A_QPN);
    impatient.timing.max_cm_retries = 0;
    let now = w.now;
    w.nodes[A].connect(now, &impatient).unwrap();
    let (b, _) = request(&mut w);
    w.run(Duration::from_secs(5));
    assert_eq!(
        w.event(B),
        Some(Event::Rejected {
            id: b,
            reason: Reason::TIMEOUT,
            info: config(A).ca_guid.to_be_bytes().to_vec(),
            private_data: vec![0; 148],
            timewait: false
        })
    );
    assert_eq!(w.nodes[B].connections(), 0);
}

#[test]
fn m16_mra_extends_the_wait() {
    let mut w = world();
    w.dead[B] = true;
    let a = connect(&mut w);
    w.run(Duration::from_millis(1));
    let (tid, req) = first_req(&w);
    let mra = |message, service_timeout| Mra {
        local_comm_id: 0x55,
        remote_comm_id: req.local_comm_id,
        message,
        service_timeout,
        private_data: [0; 222],
    };
    inject(&mut w, A, tid ^ 1, mra(0, 22));
    inject(&mut w, A, tid, mra(1, 22));
    let begin = w.now;
    inject(&mut w, A, tid, mra(0, 22));
    inject(&mut w, A, tid, mra(0, 24));
    // 2^14 ms for the peer's service, 2^8 ms for the path.
    let wait = Duration::from_millis(16384 + 256);
    w.run(wait - 3 * MOMENT);
    assert_eq!(sent(&w, A).len(), 1, "nothing is sent meanwhile");
    w.run(3 * MOMENT);
    let reqs = sent(&w, A);
    assert_eq!(reqs.len(), 2);
    assert_eq!(reqs[1].at.nanos_since(begin), wait.as_nanos() as u64);
    assert_eq!(count(&w, A, Counter::WrongTransaction), 1);
    assert_eq!(count(&w, A, Counter::WrongState), 2, "one MRA a wait, and of the right message");
    // The MRA postpones the repeated requests, but the program's own timeouts still end the wait, after 16 times 4608 ms.
    inject(&mut w, A, tid, mra(0, 31));
    let left = reqs[0].at.after(Duration::from_millis(16 * 4608)).nanos_since(w.now);
    w.run(Duration::from_nanos(left - 1));
    assert_eq!((sent(&w, A).len(), w.event(A)), (2, None));
    w.run(Duration::from_nanos(1));
    assert_eq!(w.event(A), Some(Event::Unreachable { id: a, timewait: false }));

    // The passive side waits for an RTU in the same way.
    let mut w = polite();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    w.run(Duration::from_millis(4096)); // the program has not confirmed yet: the second REP is answered with an MRA
    assert_eq!(attributes(&w, A), [Req::ATTRIBUTE, Mra::ATTRIBUTE]);
    w.run(Duration::from_secs(60));
    assert_eq!(attributes(&w, B), [Rep::ATTRIBUTE, Rep::ATTRIBUTE]);
}

#[test]
fn m17_requests_to_disconnect() {
    let mut w = world();
    let (a, b) = established(&mut w);
    let Message::Rtu(rtu) = sent(&w, A)[1].mad().message else { panic!() };
    let dreq = Dreq {
        local_comm_id: rtu.local_comm_id,
        remote_comm_id: rtu.remote_comm_id,
        remote_qpn: B_QPN,
        private_data: [0; 220],
    };
    let before = sent(&w, B).len();
    inject(&mut w, B, 9, Dreq { remote_qpn: A_QPN, ..dreq });
    assert_eq!((count(&w, B, Counter::WrongQpn), w.event(B), sent(&w, B).len()), (1, None, before));
    // For no connection of this node: a DREP with the ids mirrored, and no other effect.
    for unknown in [Dreq { remote_comm_id: 1, ..dreq }, Dreq { local_comm_id: 1, ..dreq }] {
        inject(&mut w, B, 10, unknown);
        let mad = sent(&w, B).pop().unwrap().mad();
        let Message::Drep(drep) = mad.message else { panic!() };
        assert_eq!(
            (mad.tid, drep.local_comm_id, drep.remote_comm_id),
            (10, unknown.remote_comm_id, unknown.local_comm_id)
        );
        assert_eq!(w.event(B), None);
    }
    assert_eq!(count(&w, B, Counter::DreqMirrored), 2);
    inject(&mut w, B, 11, dreq);
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::ByPeer, .. }) if id == b));
    let mad = sent(&w, B).pop().unwrap().mad();
    assert!(matches!(mad, Mad { tid: 11, message: Message::Drep(_), .. }));
    // A DREP with unknown ids has no effect.
    let (now, before) = (w.now, count(&w, A, Counter::UnknownId));
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.lose = vec![Dreq::ATTRIBUTE];
    let drep = Drep { local_comm_id: 1, remote_comm_id: rtu.local_comm_id, private_data: [0; 224] };
    inject(&mut w, A, 12, drep);
    assert_eq!((w.event(A), count(&w, A, Counter::UnknownId)), (None, before + 1));
}

#[test]
fn m18_drep_lost() {
    let mut w = world();
    let (a, b) = established(&mut w);
    w.lose = vec![Drep::ATTRIBUTE];
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.run(MOMENT);
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, .. }) if id == b));
    assert_eq!(w.event(A), None);
    // B would leave TIMEWAIT before the DREQ is repeated, so the test repeats the DREQ early.
    let again = sent(&w, A).pop().unwrap();
    inject(&mut w, B, again.mad().tid, again.mad().message);
    assert_eq!((w.event(B), count(&w, B, Counter::DuplicateDreq)), (None, 1), "in TIMEWAIT: DREP, no event");
    assert!(matches!(w.event(A), Some(Event::Disconnected { id, how: Disconnect::Agreed, .. }) if id == a));
    let dreqs = attributes(&w, A).iter().filter(|a| **a == Dreq::ATTRIBUTE).count();
    assert_eq!(dreqs, 1);

    // The timer repeats the DREQ, to a peer that has lost its state by now and finally answers.
    let mut w = world();
    let (a, _) = established(&mut w);
    w.lose = vec![Drep::ATTRIBUTE, Drep::ATTRIBUTE];
    let begin = w.now;
    w.nodes[A].disconnect(begin, a, b"").unwrap();
    w.run(Duration::from_millis(2 * 4608 + 1));
    let times: Vec<_> = sent(&w, A)[2..].iter().map(|s| s.at.nanos_since(begin) / 1_000_000).collect();
    assert_eq!(times, [0, 4608, 9216]);
    assert!(matches!(w.event(A), Some(Event::Disconnected { how: Disconnect::Agreed, .. })));
    assert_eq!(count(&w, B, Counter::DreqMirrored), 2);

    // Without any answer the connection ends as well.
    let mut w = world();
    let (a, _) = established(&mut w);
    w.dead[B] = true;
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.run(Duration::from_millis(16 * 4608));
    assert!(matches!(w.event(A), Some(Event::Disconnected { id, how: Disconnect::TimedOut, .. }) if id == a));
    w.run(Duration::from_secs(1));
    assert_eq!((w.event(A), w.nodes[A].connections()), (Some(Event::TimeWaitExit { id: a, qpn: A_QPN }), 0));
}

// Goal: a side that learns the end of its peer's process does not wait for the peer: established, half established, or ending already.
#[test]
fn a_peer_whose_process_has_ended_is_not_waited_for() {
    let mut w = world();
    let (_, b) = established(&mut w);
    w.dead[A] = true;
    let now = w.now;
    w.nodes[B].peer_ended(now, Qpn::new(0x7777));
    assert_eq!(w.event(B), None, "nobody's queue pair");
    for _ in 0..2 {
        w.nodes[B].peer_ended(now, B_QPN);
    }
    assert!(
        matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::PeerEnded, .. }) if id == b)
    );
    assert_eq!(w.event(B), None, "once");
    assert!(attributes(&w, B).iter().all(|attribute| *attribute != Dreq::ATTRIBUTE));
    w.run(Duration::from_secs(1));
    assert_eq!((w.event(B), w.nodes[B].connections()), (Some(Event::TimeWaitExit { id: b, qpn: B_QPN }), 0));

    let mut w = world();
    let (_, b) = established(&mut w);
    w.dead[A] = true;
    let now = w.now;
    w.nodes[B].disconnect(now, b, b"").unwrap();
    w.nodes[B].peer_ended(now, B_QPN);
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::Agreed, .. }) if id == b));
    assert_eq!(w.nodes[B].dreqs(), 0);
}

// Goal: both sides disconnect at the same moment. Each learns it once, and both agree on how the connection ended.
#[test]
fn m18_both_sides_disconnect_at_once() {
    let mut w = world();
    let (a, b) = established(&mut w);
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.nodes[B].disconnect(now, b, b"").unwrap();
    w.run(Duration::from_secs(10));
    for (node, id, qpn) in [(A, a, A_QPN), (B, b, B_QPN)] {
        assert!(matches!(w.event(node), Some(Event::Disconnected { id: i, .. }) if i == id));
        assert_eq!(w.event(node), Some(Event::TimeWaitExit { id, qpn }));
        assert_eq!((w.event(node), w.nodes[node].connections()), (None, 0));
    }
}

#[test]
fn m19_larger_mtu_than_ours() {
    let mut w = MadWorld::new(1, 2, MadFaults::NONE, |node| Config {
        mtu: if node == B { Mtu::Mtu1024 } else { Mtu::Mtu4096 },
        ..config(node)
    });
    listen(&mut w);
    let now = w.now;
    w.nodes[A].connect(now, &Connect { mtu: Mtu::Mtu2048, ..to_b(A_QPN) }).unwrap();
    w.run(MOMENT);
    let Some(Event::Rejected { reason, info, .. }) = w.event(A) else { panic!() };
    assert_eq!((reason, info), (Reason::INVALID_MTU, vec![Mtu::Mtu1024 as u8]));
    assert_eq!((w.event(B), count(&w, B, Counter::BadMtu)), (None, 1));
    // With the MTU that the refusal named the request succeeds, and a port does not request more than it carries.
    let now = w.now;
    w.nodes[A].connect(now, &Connect { mtu: Mtu::Mtu1024, ..to_b(A_QPN) }).unwrap();
    assert_eq!(request(&mut w).1.mtu, Mtu::Mtu1024);
    let more = Connect { mtu: Mtu::Mtu2048, ..to_b(B_QPN) };
    assert_eq!(w.nodes[B].connect(now, &more), Err(Error::Mtu { given: Mtu::Mtu2048, port: Mtu::Mtu1024 }));
    // The MTU that the port carries may change.
    w.nodes[B].set_mtu(Mtu::Mtu2048);
    let now = w.now;
    w.nodes[B].connect(now, &more).unwrap();
    w.nodes[A].connect(now, &Connect { mtu: Mtu::Mtu2048, ..to_b(Qpn::new(0x12)) }).unwrap();
    assert_eq!(request(&mut w).1.mtu, Mtu::Mtu2048);
}

#[test]
fn m20_a_request_for_an_address_that_is_not_ours() {
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    w.run(MOMENT);
    assert!(w.event(B).is_some());
    let (_, mut req) = first_req(&w);
    req.primary.remote_gid = MadWorld::gid(9);
    (req.local_comm_id, req.local_qpn) = (77, Qpn::new(77));
    inject(&mut w, B, 5, req);
    let (tid, rej) = last_rej(&w, B);
    assert_eq!((tid, rej.reason, rej.remote_comm_id), (5, Reason::INVALID_GID, 77));
    assert_eq!(
        (&rej.info[..16], rej.info_length),
        (&MadWorld::gid(B).0[..], 16),
        "the address that would do"
    );
    assert_eq!((w.event(B), count(&w, B, Counter::BadGid)), (None, 1));
    // Any local address is accepted as the primary address, whichever address the MAD was sent to.
    w.nodes[B].set_gids(&[MadWorld::gid(B), MadWorld::gid(9)]);
    inject(&mut w, B, 5, req);
    let Some(Event::ConnectRequest { request, .. }) = w.event(B) else { panic!() };
    assert_eq!(request.path.sgid, MadWorld::gid(9));
}

#[test]
fn m21_the_queue_pair_of_a_live_connection() {
    let mut w = world();
    let (_, b) = established(&mut w);
    // The peer restarts without its state, and its queue pair numbers begin again.
    w.restart(A, Config { seed: 1234, ..config(A) });
    let again = connect(&mut w);
    w.run(MOMENT);
    let rejs: Vec<_> = sent(&w, B)
        .into_iter()
        .filter_map(|s| match s.mad().message {
            Message::Rej(rej) => Some(rej),
            _ => None,
        })
        .collect();
    assert_eq!(rejs.len(), 1);
    assert_eq!(rejs[0].reason, Reason::STALE_CONNECTION);
    assert_eq!(count(&w, B, Counter::Stale), 1);
    // The old connection ends: the peer, which no longer has it, agrees.
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::Stale, .. }) if id == b));
    assert!(attributes(&w, B).contains(&Dreq::ATTRIBUTE));
    let Some(Event::Rejected { id, reason: Reason::STALE_CONNECTION, timewait: true, .. }) = w.event(A)
    else {
        panic!()
    };
    assert_eq!(id, again);
    // As long as the queue pair is in TIMEWAIT there, requests with it are refused as stale; afterwards they succeed.
    let now = w.now;
    assert_eq!(w.nodes[A].connect(now, &to_b(A_QPN)), Err(Error::QpBusy(A_QPN)));
    w.run(Duration::from_secs(1));
    assert!(matches!(w.event(B), Some(Event::TimeWaitExit { .. })));
    connect(&mut w);
    request(&mut w);
}

// Goal: the peer's communication ids begin again after a restart, with another queue pair.
#[test]
fn m21_the_ids_of_a_live_connection() {
    let mut w = world();
    let (_, b) = established(&mut w);
    let (tid, req) = first_req(&w);
    w.restart(A, config(A));
    inject(&mut w, B, tid ^ 5, Req { local_qpn: Qpn::new(0x99), ..req });
    assert_eq!(count(&w, B, Counter::Stale), 1);
    w.run(Duration::from_secs(5));
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::Stale, .. }) if id == b));
}

// Goal: whoever can send from the peer's address can name the peer's queue pair or ids in a new REQ or REP. Such messages, however many,
// end nothing while the peer has the connection.
#[test]
fn a_connection_stays_whose_peer_answers() {
    let mut w = world();
    let (a, b) = established(&mut w);
    let (tid, req) = first_req(&w);
    for i in 1..100 {
        inject(&mut w, B, tid ^ i, Req { local_comm_id: req.local_comm_id ^ i as u32, ..req });
        let (_, rej) = last_rej(&w, B);
        assert_eq!(rej.reason, Reason::STALE_CONNECTION);
        inject(&mut w, B, tid ^ i, Req { local_qpn: Qpn::new(0x4000 + i as u32), ..req });
    }
    let asked =
        |w: &MadWorld, node| [Counter::PeersChecked, Counter::PeersAnswered].map(|c| count(w, node, c));
    assert_eq!(asked(&w, B), [198, 198]);
    // The other side: a server on the peer's host accepts with the queue pair that is connected already.
    accept_with_connected_qp(&mut w);
    assert_eq!(asked(&w, A), [1, 1]);
    w.run(Duration::from_secs(60));
    assert!([A, B].iter().all(|node| count(&w, *node, Counter::Disconnected) == 0));
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.run(MOMENT);
    while let Some(event) = w.event(B) {
        let how = matches!(event, Event::Disconnected { id, how: Disconnect::ByPeer, .. } if id == b);
        assert!(how || matches!(event, Event::ConnectRequest { .. }), "{event:?}");
    }
}

// Goal: a flood of such messages starts one check of each peer at a time, and no more checks per host and in total than the limits allow.
#[test]
fn peers_are_asked_once_at_a_time_and_within_the_limits() {
    const EACH: usize = 4;
    let mut w = MadWorld::new(1, 3, MadFaults::NONE, |node| {
        let mut config = config(node);
        (config.limits.checks_of_peer, config.limits.checks) = (2, 3);
        config
    });
    w.nodes[B].listen(&Listen { service_id: SERVICE, address: None, backlog: 100 }).unwrap();
    // Hosts 0 and 2 have connections to host 1.
    let qpn = |host: usize, i: usize| Qpn::new((0x100 * (host + 1) + i) as u32);
    let mut ids = Vec::new();
    for (host, i) in [0, 2].into_iter().flat_map(|host| (0..EACH).map(move |i| (host, i))) {
        let now = w.now;
        let request =
            Connect { ip: Some(ip()), ..Connect::new(SERVICE, MadWorld::path(host, B), qpn(host, i)) };
        w.nodes[host].connect(now, &request).unwrap();
        let (id, _) = self::request(&mut w);
        let now = w.now;
        w.nodes[B].accept(now, id, &Accept::new(qpn(B, host * EACH + i))).unwrap();
        w.nodes[B].established(now, id).unwrap();
        while w.event(B).is_some() {}
        ids.push(id);
    }
    let now = w.now;
    let flood = |node: &mut Machine| {
        for host in [0, 2] {
            for i in 0..EACH {
                let mut req = Req {
                    local_comm_id: 0x7700 + i as u32,
                    local_qpn: qpn(host, i),
                    local_ca_guid: config(host).ca_guid,
                    ..forged(i as u32)
                };
                req.primary.local_gid = MadWorld::gid(host);
                node.handle_mad(now, &MadWorld::path(B, host), &Mad::new(9, req).encode());
            }
        }
        core::iter::from_fn(|| node.poll_event()).collect::<Vec<_>>()
    };
    let asked = |events: &[Event]| {
        let id = |event: &Event| if let Event::CheckPeer { id, .. } = event { Some(*id) } else { None };
        events.iter().filter_map(id).collect::<Vec<_>>()
    };
    let first = flood(&mut w.nodes[B]);
    assert_eq!(asked(&first), [ids[0], ids[1], ids[EACH]], "two of the first host, one of the second");
    for _ in 0..10 {
        assert_eq!(flood(&mut w.nodes[B]), [], "those are being asked");
    }
    // One peer answers, one connection is closed by its program, one peer does not answer.
    w.nodes[B].peer_checked(now, ids[0], PeerAnswer::Answered);
    w.nodes[B].disconnect(now, ids[1], b"").unwrap();
    w.nodes[B].peer_checked(now, ids[1], PeerAnswer::Answered);
    w.nodes[B].peer_checked(now, ids[EACH], PeerAnswer::Silent);
    w.nodes[B].peer_checked(now, ids[EACH], PeerAnswer::Silent);
    let again = flood(&mut w.nodes[B]);
    assert_eq!(asked(&again), [ids[0], ids[2], ids[EACH + 1]], "there is room again");
    for id in &ids {
        w.nodes[B].peer_checked(now, *id, PeerAnswer::Silent);
    }
    let last = flood(&mut w.nodes[B]);
    assert_eq!(asked(&last), [ids[3], ids[EACH + 2], ids[EACH + 3]], "what is over counts no more");
}

// Goal: a peer that disappears silently is noticed. A peer that answers, or that cannot be checked, keeps its connection; a peer that is
// silent for a while is checked again, sooner. Messages of third hosts count also while a check is running.
#[test]
fn a_peer_is_asked_from_time_to_time_and_missed_when_it_answers_nothing() {
    const TIME: Duration = Duration::from_secs(30);
    let mut w = world();
    listen(&mut w);
    let a = w.nodes[A].connect(w.now, &Connect { keep_alive: Some(TIME), ..to_b(A_QPN) }).unwrap();
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    confirm(&mut w, a);
    assert!(matches!(w.event(B), Some(Event::Established { id, .. }) if id == b));
    let now = w.now;
    let asked = |node: &mut Machine, at: Instant| {
        node.poll_timers(at);
        core::iter::from_fn(|| node.poll_event()).collect::<Vec<_>>()
    };
    assert_eq!(
        asked(&mut w.nodes[B], now.after(100 * TIME)),
        [],
        "the passive side keeps nothing alive: it was not told to"
    );
    let node = &mut w.nodes[A];
    let mut at = now;
    let ask = |node: &mut Machine, at: &mut Instant, wait: Duration| {
        assert_eq!(asked(node, at.after(wait - Duration::from_secs(1))), []);
        *at = at.after(wait);
        assert!(matches!(asked(node, *at)[..], [Event::CheckPeer { id, .. }] if id == a));
    };
    for answer in [PeerAnswer::Answered, PeerAnswer::NotAsked, PeerAnswer::Silent] {
        ask(node, &mut at, TIME);
        node.peer_checked(at, a, answer);
    }
    // After one answer the intervals begin anew.
    ask(node, &mut at, TIME / 3);
    node.peer_checked(at, a, PeerAnswer::Answered);
    ask(node, &mut at, TIME);
    node.peer_checked(at, a, PeerAnswer::Silent);
    ask(node, &mut at, TIME / 3);
    node.peer_checked(at, a, PeerAnswer::Silent);
    ask(node, &mut at, TIME / 3);
    assert_eq!(asked(node, at.after(TIME / 3)), [], "it is being asked");
    node.peer_checked(at, a, PeerAnswer::Silent);
    let ended = asked(node, at);
    let how = Disconnect::TimedOut;
    assert!(
        matches!(ended[..], [Event::Disconnected { id, how: h, .. }] if id == a && h == how),
        "{ended:?}"
    );
    assert_eq!((node.counters().get(Counter::KeepAlives), node.counters().get(Counter::PeersSilent)), (7, 1));
    // The peer may still receive: it is sent a DREQ.
    let dreq = Mad::decode(&node.poll_send().expect("a DREQ").mad).unwrap();
    assert!(matches!(dreq.message, Message::Dreq(_)), "{dreq:?}");
}

#[test]
fn m22_depths_are_the_smaller_ones() {
    let mut w = world();
    listen(&mut w);
    let now = w.now;
    let connect = Connect { responder_resources: 4, initiator_depth: 8, ..to_b(A_QPN) };
    w.nodes[A].connect(now, &connect).unwrap();
    let (b, req) = request(&mut w);
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 8));
    let accept = Accept { responder_resources: RD_ATOMIC_MAX, initiator_depth: 2, ..Accept::new(B_QPN) };
    let plan = w.nodes[B].plan_accept(b, &accept).unwrap();
    let now = w.now;
    assert_eq!(w.nodes[B].accept(now, b, &accept), Ok(plan));
    assert_eq!((plan.max_dest_rd_atomic, plan.max_rd_atomic), (8, 2));
    let Message::Rep(rep) = w.nodes[B].poll_send().map(|s| Mad::decode(&s.mad).unwrap()).unwrap().message
    else {
        panic!()
    };
    assert_eq!((rep.responder_resources, rep.initiator_depth), (8, 2), "the REP says what was agreed on");
    let (tid, _) = first_req(&w);
    inject(&mut w, A, tid, *rep);
    let params = response(&mut w).params;
    assert_eq!((params.max_rd_atomic, params.max_dest_rd_atomic), (8, 2));
    // A value out of range is refused, not silently reduced.
    let above = RD_ATOMIC_MAX + 1;
    let most = Connect { responder_resources: above, ..to_b(B_QPN) };
    let refused =
        Error::Range { name: "responder resources", given: above.into(), max: RD_ATOMIC_MAX.into() };
    assert_eq!(w.nodes[A].connect(now, &most), Err(refused));
}

#[test]
fn m23_depth_zero_gives_no_right_to_read() {
    for (depth, right) in [(0, false), (1, true)] {
        let mut w = world();
        listen(&mut w);
        connect(&mut w);
        let (b, _) = request(&mut w);
        let now = w.now;
        let accept = Accept { initiator_depth: depth, ..Accept::new(B_QPN) };
        w.nodes[B].accept(now, b, &accept).unwrap();
        let params = response(&mut w).params;
        assert_eq!((params.max_dest_rd_atomic, params.remote_read()), (depth, right));
    }
}

// Goal: both queue pairs get the parameters of REQ and REP, each mapped to its side.
#[test]
fn m08_parameters_of_both_queue_pairs() {
    let mut w = world();
    listen(&mut w);
    let now = w.now;
    let mut path = MadWorld::path(A, B);
    (path.flow_label, path.traffic_class, path.hop_limit, path.sl) = (0x12345, 0x68, 33, 3);
    let connect = Connect {
        path,
        mtu: Mtu::Mtu2048,
        psn: Some(Psn::new(0xaaaaaa)),
        retry_count: 5,
        rnr_retry_count: 6,
        min_rnr_timer: 12,
        ..to_b(A_QPN)
    };
    w.nodes[A].connect(now, &connect).unwrap();
    let (b, req) = request(&mut w);
    assert_eq!(req.ip, Some(ip()));
    let accept = Accept { rnr_retry_count: 3, min_rnr_timer: 7, ..Accept::new(B_QPN) };
    let now = w.now;
    let passive = w.nodes[B].accept(now, b, &accept).unwrap();
    let active = response(&mut w).params;
    assert_eq!((active.qpn, active.dest_qpn), (A_QPN, B_QPN));
    assert_eq!((passive.qpn, passive.dest_qpn), (B_QPN, A_QPN));
    assert_eq!((active.rq_psn, passive.sq_psn), (Psn::new(0xaaaaaa), Psn::new(0xaaaaaa)));
    assert_eq!(active.sq_psn, passive.rq_psn);
    assert_eq!((active.path_mtu, passive.path_mtu), (Mtu::Mtu2048, Mtu::Mtu2048));
    assert_eq!((active.retry_cnt, passive.retry_cnt), (5, 5));
    assert_eq!((active.rnr_retry, passive.rnr_retry), (3, 6), "each has what the other one allows");
    assert_eq!((active.min_rnr_timer, passive.min_rnr_timer), (12, 7));
    assert_eq!((active.timeout, passive.timeout), (17, 17));
    assert_eq!((active.max_rd_atomic, active.max_dest_rd_atomic), (1, 1));
    assert_eq!(active.path, path);
    let back = stack::cm::Path { sgid: path.dgid, dgid: path.sgid, hop_limit: 64, ..path };
    assert_eq!(passive.path, back, "local and remote change places");
}

// Goal: a REQ with an ACK timeout of 0, which means no timeout for a queue pair, leaves no queue pair that waits for ever.
#[test]
fn m08_an_ack_timeout_of_zero_is_replaced() {
    let mut w = world();
    listen(&mut w);
    for (i, given, taken) in [(1, 0, 17), (2, 1, 1), (3, 31, 31)] {
        let mut req = forged(i);
        req.primary.local_ack_timeout = given;
        inject(&mut w, B, u64::from(i), req);
        let (b, _) = request(&mut w);
        let qpn = Qpn::new(0x100 + i);
        assert_eq!(w.nodes[B].plan_accept(b, &Accept::new(qpn)).unwrap().timeout, taken, "{given}");
    }
}

fn udp(port: u16, private_data: &[u8]) -> SidrRequest {
    SidrRequest {
        service_id: ServiceId::new(PortSpace::Udp, port),
        path: MadWorld::path(A, B),
        timing: Timing::default(),
        ip: Some(ip()),
        private_data: private_data.to_vec(),
    }
}

#[test]
fn m25_the_queue_pair_of_a_datagram_service() {
    let mut w = world();
    let service_id = ServiceId::new(PortSpace::Udp, 53);
    let listener = w.nodes[B].listen(&Listen { service_id, address: None, backlog: 1 }).unwrap();
    let now = w.now;
    let a = w.nodes[A].sidr_request(now, &udp(53, b"who")).unwrap();
    w.run(MOMENT);
    let Some(Event::SidrRequest {
        listener: l, id: b, service_id: s, ip: Some(header), private_data, ..
    }) = w.event(B)
    else {
        panic!()
    };
    assert_eq!(
        (l, s, header, private_data.len(), &private_data[..3]),
        (listener, service_id, ip(), 180, &b"who"[..])
    );
    let reply = SidrReply {
        status: SidrStatus::SUCCESS,
        qpn: B_QPN,
        qkey: RDMA_UDP_QKEY,
        info: Vec::new(),
        private_data: b"me".to_vec(),
    };
    // The reply is lost; the request is repeated, and the program does not get it a second time.
    w.lose = vec![SidrRep::ATTRIBUTE];
    let now = w.now;
    w.nodes[B].sidr_reply(now, b, &reply).unwrap();
    assert_eq!(w.nodes[B].sidr_reply(now, b, &reply), Err(Error::NoSidr(b)), "it is answered");
    w.run(Duration::from_millis(4096));
    assert_eq!((w.event(B), count(&w, B, Counter::DuplicateSidr)), (None, 1));
    let Some(Event::SidrReply { id, status, qpn, qkey, private_data, .. }) = w.event(A) else { panic!() };
    assert_eq!((id, status, qpn, qkey), (a, SidrStatus::SUCCESS, B_QPN, 0x0123_4567));
    assert_eq!(&private_data[..2], b"me");
    assert_eq!(attributes(&w, A), [SidrReq::ATTRIBUTE; 2]);
    w.run(Duration::from_secs(10));
    assert_eq!((w.nodes[A].sidr_exchanges(), w.nodes[B].sidr_exchanges()), (0, 0));
    assert_eq!((w.nodes[A].next_timer(), w.nodes[B].next_timer()), (None, None));
}

/// Simulates a preemption between reading the clock and sending: the timer of the exchange that just began on a node moves by the
/// interruption, once.
fn was_interrupted(w: &mut MadWorld, node: usize) {
    const INTERRUPTION: Duration = Duration::from_secs(2);
    let (now, machine) = (w.now, &mut w.nodes[node]);
    let timer = machine.next_timer().expect("something waits");
    for _ in 0..2 {
        machine.left_by(now, now.after(INTERRUPTION));
        assert_eq!(machine.next_timer(), Some(timer.after(INTERRUPTION)));
    }
}

/// Goal: preemption between reading the clock and sending shortens no wait that means "at least": for the answer to a REQ, a REP,
/// a DREQ or a SIDR_REQ, and in TIMEWAIT.
#[test]
fn an_interruption_takes_nothing_from_a_wait() {
    let mut w = world();
    listen(&mut w);
    let a = connect(&mut w);
    was_interrupted(&mut w, A);
    let (b, _) = request(&mut w);
    w.nodes[B].left_by(w.now, w.now);
    accept(&mut w, b);
    was_interrupted(&mut w, B);
    response(&mut w);
    confirm(&mut w, a);
    for node in [A, B] {
        w.nodes[node].left_by(w.now, w.now);
    }
    w.nodes[A].disconnect(w.now, a, b"").unwrap();
    was_interrupted(&mut w, A);
    w.run(MOMENT);
    for node in [A, B] {
        was_interrupted(&mut w, node);
    }
    let mut w = world();
    w.nodes[A].sidr_request(w.now, &udp(53, b"")).unwrap();
    was_interrupted(&mut w, A);
}

/// Goal: a request that is not repeated waits for its full timeout, however late it left.
#[test]
fn an_interruption_ends_no_wait() {
    let mut w = world();
    let timing = Timing { max_cm_retries: 0, ..Timing::default() };
    let id = w.nodes[A].connect(w.now, &Connect { timing, ..to_b(A_QPN) }).unwrap();
    let end = w.nodes[A].next_timer().unwrap();
    let late = Duration::from_secs(3600);
    w.nodes[A].left_by(w.now, w.now.after(late));
    w.nodes[A].poll_timers(w.now.after(late));
    w.nodes[A].poll_timers(Instant::from_nanos(end.after(late).as_nanos() - 1));
    assert_eq!(w.event(A), None);
    w.nodes[A].poll_timers(end.after(late));
    assert_eq!(w.event(A), Some(Event::Unreachable { id, timewait: false }));
}

#[test]
fn m25_no_datagram_service() {
    let mut w = world();
    let now = w.now;
    let a = w.nodes[A].sidr_request(now, &udp(54, b"")).unwrap();
    w.run(MOMENT);
    assert!(
        matches!(w.event(A), Some(Event::SidrReply { id, status: SidrStatus::UNSUPPORTED, .. }) if id == a)
    );
    // The program refuses.
    let service_id = ServiceId::new(PortSpace::Udp, 54);
    w.nodes[B].listen(&Listen { service_id, address: None, backlog: 1 }).unwrap();
    w.nodes[A].sidr_request(now, &udp(54, b"")).unwrap();
    w.run(MOMENT);
    let Some(Event::SidrRequest { id, .. }) = w.event(B) else { panic!() };
    w.nodes[B].sidr_destroy(now, id).unwrap();
    w.run(MOMENT);
    assert!(matches!(w.event(A), Some(Event::SidrReply { status: SidrStatus::REJECT, .. })));
    // The peer does not answer at all: 16 requests, each 4096 ms after the one before.
    w.dead[B] = true;
    let now = w.now;
    let lost = w.nodes[A].sidr_request(now, &udp(54, b"")).unwrap();
    let before = sent(&w, A).len();
    w.run(Duration::from_millis(16 * 4096));
    assert_eq!((w.event(A), w.event(A)), (Some(Event::SidrUnreachable { id: lost }), None));
    assert_eq!(sent(&w, A).len(), before + 16);
    // This side gives up: nothing more is sent.
    let now = w.now;
    let given_up = w.nodes[A].sidr_request(now, &udp(54, b"")).unwrap();
    w.nodes[A].sidr_destroy(now, given_up).unwrap();
    assert_eq!(w.nodes[A].sidr_destroy(now, given_up), Err(Error::NoSidr(given_up)));
    w.run(Duration::from_secs(100));
    assert_eq!((w.event(A), w.nodes[A].sidr_exchanges()), (None, 0));
}

// Goal: a request that is never decided, and one whose peer vanishes, end by themselves.
#[test]
fn half_open_connections_end() {
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    let (undecided, _) = request(&mut w);
    w.dead[A] = true;
    w.run(Duration::from_secs(121));
    assert_eq!(w.event(B), Some(Event::Unreachable { id: undecided, timewait: false }));
    assert_eq!((w.nodes[B].connections(), w.nodes[B].half_open()), (0, 0));

    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    w.dead[A] = true;
    accept(&mut w, b);
    w.run(Duration::from_millis(16 * 4096));
    assert_eq!(w.event(B), Some(Event::Unreachable { id: b, timewait: true }));
    assert!(w.nodes[B].qp_busy(B_QPN), "it was connected: it rests");
    w.run(Duration::from_secs(1));
    assert_eq!(w.event(B), Some(Event::TimeWaitExit { id: b, qpn: B_QPN }));
    assert_eq!(w.nodes[B].connections(), 0);

    // A REQ with the longest times does not extend the life of a half-open connection.
    let mut w = world();
    listen(&mut w);
    let now = w.now;
    let timing = Timing { local_response: 31, ..Timing::default() };
    w.nodes[A].connect(now, &Connect { timing, ..to_b(A_QPN) }).unwrap();
    let (b, _) = request(&mut w);
    w.dead[A] = true;
    accept(&mut w, b);
    w.run(Duration::from_secs(122));
    assert_eq!(w.nodes[B].connections(), 0);
}

// Goal: a peer that answers each request with an MRA, and whose program never decides, delays no program beyond the program's own
// times; nor does a peer that sends no MRA.
#[test]
fn the_programs_times_bound_a_connect() {
    for mra in [None, Some(0), Some(12), Some(24), Some(31)] {
        for (response, retries, ms) in [(20, 15, 16 * 4608), (20, 0, 4608), (8, 2, 3 * 513)] {
            let mut w = MadWorld::new(1, 2, MadFaults::NONE, |node| Config { mra, ..config(node) });
            listen(&mut w);
            let mut connect = to_b(A_QPN);
            connect.timing.remote_response = response;
            connect.timing.max_cm_retries = retries;
            let begin = w.now;
            let a = w.nodes[A].connect(begin, &connect).unwrap();
            let (b, _) = request(&mut w);
            w.run(Duration::from_millis(ms) - MOMENT - Duration::from_nanos(1));
            assert_eq!((w.event(A), w.event(B)), (None, None), "{mra:?}");
            w.run(MOMENT);
            assert_eq!(w.event(A), Some(Event::Unreachable { id: a, timewait: false }), "{mra:?}");
            assert!(
                matches!(w.event(B), Some(Event::Rejected { id, .. }) if id == b),
                "the listener gets an event"
            );
            assert!(sent(&w, A).len() <= usize::from(retries) + 2);
        }
    }
}

// Goal: the accepting side waits for the confirmation for the time that its own program sets, if any. Its disconnect waits no longer
// than the limit for a REQ, whatever times the REQ has.
#[test]
fn the_programs_times_bound_an_accept_and_a_disconnect() {
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    w.dead[A] = true;
    let now = w.now;
    let impatient = Accept { response_timeout: Some(10), max_cm_retries: Some(2), ..Accept::new(B_QPN) };
    for wrong in [
        Accept { response_timeout: Some(32), ..impatient.clone() },
        Accept { max_cm_retries: Some(16), ..impatient.clone() },
    ] {
        assert!(matches!(w.nodes[B].accept(now, b, &wrong), Err(Error::Range { .. })));
    }
    w.nodes[B].accept(now, b, &impatient).unwrap();
    w.run(Duration::from_millis(12));
    assert_eq!(w.event(B), Some(Event::Unreachable { id: b, timewait: true }));
    assert_eq!(attributes(&w, B), [Rep::ATTRIBUTE, Rep::ATTRIBUTE, Rep::ATTRIBUTE, Rej::ATTRIBUTE]);

    let mut w = world();
    listen(&mut w);
    let now = w.now;
    let timing = Timing { local_response: 31, ..Timing::default() };
    let a = w.nodes[A].connect(now, &Connect { timing, ..to_b(A_QPN) }).unwrap();
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    confirm(&mut w, a);
    w.event(B);
    w.dead[A] = true;
    let now = w.now;
    w.nodes[B].disconnect(now, b, b"").unwrap();
    w.run(Limits::default().half_open_time);
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::TimedOut, .. }) if id == b));
}

/// An address that is not the peer of any connection.
const STRANGER: Gid = Gid::v4([10, 0, 9, 9]);

/// Delivers a message from a third host to a node. A request for a listener is refused, and nothing else happens.
fn from_stranger(w: &mut MadWorld, to: usize, tid: u64, message: impl Into<Message>) {
    let message = message.into();
    let path = stack::cm::Path { dgid: STRANGER, ..MadWorld::path(to, 1 - to) };
    let now = w.now;
    w.nodes[to].handle_mad(now, &path, &Mad::new(tid, message.clone()).encode());
    while let Some(event) = w.nodes[to].poll_event() {
        let Event::ConnectRequest { id, request, .. } = event else { panic!("{message:?}: {event:?}") };
        assert_eq!(w.nodes[to].config().ca_guid, config(B).ca_guid);
        assert!(matches!(message, Message::Req(_)) && request.remote_guid == config(A).ca_guid);
        w.nodes[to].reject(now, id, &Reject::consumer([])).unwrap();
    }
    let others: Vec<_> = std::iter::from_fn(|| w.nodes[to].poll_send())
        .filter(|send| send.path.dgid != STRANGER)
        .map(|send| Mad::decode(&send.mad).unwrap().message)
        .collect();
    assert!(others.is_empty(), "{message:?} makes it say {others:?}");
}

/// A third host that has seen every MAD sends every message about the connection that its ends could send.
fn strangers_say_everything(w: &mut MadWorld) {
    let log = w.log.clone().unwrap();
    let now = w.now;
    let mads: Vec<(usize, Mad)> = log.iter().map(|s| (s.from, s.mad())).collect();
    let mut ids = [0, 0];
    let mut tids = std::collections::BTreeSet::from([0]);
    for (from, mad) in &mads {
        tids.insert(mad.tid);
        match &mad.message {
            Message::Req(m) => ids[*from] = m.local_comm_id,
            Message::Rep(m) => ids[*from] = m.local_comm_id,
            _ => {}
        }
    }
    for (from, mad) in &mads {
        from_stranger(w, 1 - from, mad.tid, mad.message.clone());
        if let Message::Req(req) = &mad.message {
            let other = Req { local_comm_id: req.local_comm_id ^ 1, ..**req };
            from_stranger(w, 1 - from, mad.tid ^ 1, other);
            from_stranger(w, 1 - from, mad.tid ^ 1, Req { local_qpn: Qpn::new(0x99), ..**req });
        }
    }
    for to in [A, B] {
        let (ours, theirs) = (ids[to], ids[1 - to]);
        let guid = config(1 - to).ca_guid.to_be_bytes();
        let mut info = [0; 72];
        info[..8].copy_from_slice(&guid);
        let qpn = [A_QPN, B_QPN];
        for tid in tids.clone() {
            for theirs in [theirs, 0, 1] {
                let rej = |message, reason| Rej {
                    local_comm_id: theirs,
                    remote_comm_id: ours,
                    message,
                    info_length: 8,
                    reason,
                    info,
                    private_data: [0; 148],
                };
                for message in 0..3 {
                    for reason in [Reason::TIMEOUT, Reason::STALE_CONNECTION, Reason::CONSUMER_DEFINED] {
                        from_stranger(w, to, tid, rej(message, reason));
                        from_stranger(w, to, tid, Rej { remote_comm_id: 0, ..rej(message, reason) });
                    }
                    let mra = Mra { local_comm_id: theirs, remote_comm_id: ours, message, ..Mra::default() };
                    from_stranger(w, to, tid, Mra { service_timeout: 31, ..mra });
                }
                let rep = Rep {
                    local_comm_id: theirs,
                    remote_comm_id: ours,
                    local_qpn: qpn[1 - to],
                    local_ca_guid: config(1 - to).ca_guid,
                    ..Rep::default()
                };
                from_stranger(w, to, tid, rep);
                from_stranger(w, to, tid, Rep { local_qpn: Qpn::new(0x99), ..rep });
                let (local_comm_id, remote_comm_id) = (theirs, ours);
                from_stranger(w, to, tid, Rtu { local_comm_id, remote_comm_id, ..Rtu::default() });
                from_stranger(w, to, tid, Drep { local_comm_id, remote_comm_id, ..Drep::default() });
                let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn[to], ..Dreq::default() };
                from_stranger(w, to, tid, dreq);
            }
        }
    }
    assert_eq!(w.now, now);
}

// Goal: no message of a third host, even with the right ids, affects a connection in any state; the two ends continue as if nothing had
// been sent.
#[test]
fn what_names_a_connection_comes_from_its_peer() {
    for closer in [A, B] {
        let mut w = world();
        listen(&mut w);
        let a = connect(&mut w);
        let (b, _) = request(&mut w);
        strangers_say_everything(&mut w); // REQ sent, REQ received
        accept(&mut w, b);
        w.lose = vec![Rep::ATTRIBUTE];
        w.run(MOMENT);
        strangers_say_everything(&mut w); // REP sent
        w.run(Duration::from_millis(4096));
        let resp = response(&mut w);
        assert_eq!(resp.params.dest_qpn, B_QPN);
        strangers_say_everything(&mut w); // REP received
        w.lose = vec![Rtu::ATTRIBUTE];
        confirm(&mut w, a);
        strangers_say_everything(&mut w); // established on one side
        w.run(Duration::from_millis(4096));
        assert!(matches!(w.event(B), Some(Event::Established { id, .. }) if id == b));
        strangers_say_everything(&mut w);
        assert!(count(&w, A, Counter::NotThePeer) > 20 && count(&w, B, Counter::NotThePeer) > 20);
        w.lose = vec![Dreq::ATTRIBUTE];
        let (now, ids) = (w.now, [a, b]);
        w.nodes[closer].disconnect(now, ids[closer], b"").unwrap();
        w.run(MOMENT);
        strangers_say_everything(&mut w); // DREQ sent
        assert_eq!((w.event(A), w.event(B)), (None, None));
        w.run(Duration::from_millis(4608));
        for (node, id) in [(A, a), (B, b)] {
            let how = if node == closer { Disconnect::Agreed } else { Disconnect::ByPeer };
            assert!(
                matches!(w.event(node), Some(Event::Disconnected { id: i, how: h, .. }) if i == id && h == how)
            );
        }
        strangers_say_everything(&mut w); // TIMEWAIT
        w.run(Duration::from_millis(600));
        assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));
    }
}

// Goal: a request with the GUID and the queue pair of another node, or its address, does not end that node's connection, reveal whether
// one exists, or keep the node out.
#[test]
fn the_guid_of_another_node_is_worth_nothing() {
    let mut w = world();
    listen(&mut w);
    let now = w.now;
    let mut forged = Req { local_ca_guid: config(A).ca_guid, local_qpn: A_QPN, ..forged(5) };
    let path = stack::cm::Path { dgid: STRANGER, ..MadWorld::path(B, A) };
    w.nodes[B].handle_mad(now, &path, &Mad::new(5, forged).encode());
    assert_eq!((w.event(B), count(&w, B, Counter::BadGid)), (None, 1), "nor its address");
    forged.primary.local_gid = STRANGER;
    w.nodes[B].handle_mad(now, &path, &Mad::new(5, forged).encode());
    assert!(matches!(w.event(B), Some(Event::ConnectRequest { .. })));
    // The node itself connects later.
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    confirm(&mut w, a);
    assert!(matches!(w.event(B), Some(Event::Established { id, .. }) if id == b));
    let mut again = Req { local_comm_id: 6, ..forged };
    let elsewhere = stack::cm::Path { dgid: Gid::v4([10, 0, 9, 10]), ..path };
    again.primary.local_gid = elsewhere.dgid;
    w.nodes[B].handle_mad(now, &elsewhere, &Mad::new(5, again).encode());
    assert!(matches!(w.event(B), Some(Event::ConnectRequest { .. })), "as if there were no connection");
    w.run(Duration::from_secs(1));
    assert_eq!((w.event(A), w.event(B), count(&w, B, Counter::Stale)), (None, None, 0));
    assert!(!attributes(&w, B).contains(&Dreq::ATTRIBUTE));
}

// Goal: a REJ without this side's id comes from a peer that never received the id; the peer of an established connection has received it.
#[test]
fn a_rejection_by_guid_ends_no_connection_that_stands() {
    let mut w = world();
    let (_, b) = established(&mut w);
    let (tid, req) = first_req(&w);
    let mut info = [0; 72];
    info[..8].copy_from_slice(&req.local_ca_guid.to_be_bytes());
    let rej = Rej {
        local_comm_id: req.local_comm_id,
        remote_comm_id: 0,
        message: 2,
        info_length: 8,
        reason: Reason::TIMEOUT,
        info,
        private_data: [0; 148],
    };
    inject(&mut w, B, tid, rej);
    assert_eq!((w.event(B), count(&w, B, Counter::WrongState)), (None, 1));
    let now = w.now;
    w.nodes[B].disconnect(now, b, b"").unwrap();
    inject(&mut w, B, tid, rej);
    assert!(matches!(w.event(B), Some(Event::Disconnected { how: Disconnect::Agreed, .. })));
    inject(&mut w, B, tid, rej);
    assert_eq!((w.event(B), count(&w, B, Counter::WrongState)), (None, 3));
}

// Goal: an attacker who can forge a peer's address has to guess its queue pair, and each guess costs an entry of a bounded table:
// a REQ that would not be accepted ends nothing.
#[test]
fn a_guess_costs_an_entry() {
    let mut w = MadWorld::new(1, 2, MadFaults::NONE, |node| {
        let mut config = config(node);
        config.limits.half_open = 4;
        config
    });
    let (_, b) = established(&mut w);
    let guess = |i| Req { local_ca_guid: config(A).ca_guid, ..forged(i) };
    let right = Req { local_qpn: A_QPN, ..guess(100) };
    inject(&mut w, B, 1, Req { service_id: ServiceId(3), ..right });
    assert_eq!((w.event(B), count(&w, B, Counter::NoListener)), (None, 1));
    for i in 200..204 {
        inject(&mut w, B, 1, guess(i));
        assert!(matches!(w.event(B), Some(Event::ConnectRequest { .. })));
    }
    inject(&mut w, B, 1, right);
    assert_eq!((w.event(B), count(&w, B, Counter::NoResources)), (None, 1));
    // When the table has room again, a peer that has come back is recognized.
    w.run(Limits::default().half_open_time);
    while w.event(B).is_some() {}
    w.restart(A, config(A));
    inject(&mut w, B, 1, right);
    w.run(Duration::from_secs(5));
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::Stale, .. }) if id == b));
}

// Goal: the answer of a datagram service comes from the address of the request.
#[test]
fn a_datagram_service_answers_for_itself() {
    let mut w = world();
    let service_id = ServiceId::new(PortSpace::Udp, 53);
    w.nodes[B].listen(&Listen { service_id, address: None, backlog: 1 }).unwrap();
    let now = w.now;
    let a = w.nodes[A].sidr_request(now, &udp(53, b"who")).unwrap();
    w.run(MOMENT);
    let Message::SidrReq(req) = sent(&w, A)[0].mad().message else { panic!() };
    let tid = sent(&w, A)[0].mad().tid;
    let forged = SidrRep { request_id: req.request_id, qpn: Qpn::new(0x66), ..SidrRep::default() };
    from_stranger(&mut w, A, tid, forged);
    assert_eq!(count(&w, A, Counter::NotThePeer), 1);
    inject(&mut w, A, tid, SidrRep { qpn: B_QPN, ..forged });
    assert!(matches!(w.event(A), Some(Event::SidrReply { id, qpn: B_QPN, .. }) if id == a));
}

// Goal: in whatever state a connection is destroyed, the peer learns it and nothing is left.
#[test]
fn given_up_in_every_state() {
    // REQ sent: the peer may have the request already.
    let mut w = world();
    listen(&mut w);
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    let now = w.now;
    w.nodes[A].destroy(now, a).unwrap();
    assert_eq!(w.nodes[A].destroy(now, a), Err(Error::NoConnection(a)));
    w.run(MOMENT);
    assert!(matches!(w.event(B), Some(Event::Rejected { id, reason: Reason::TIMEOUT, .. }) if id == b));
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));

    // REQ received.
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    let now = w.now;
    w.nodes[B].destroy(now, b).unwrap();
    w.run(MOMENT);
    assert!(
        matches!(w.event(A), Some(Event::Rejected { id, reason: Reason::CONSUMER_DEFINED, .. }) if id == a)
    );
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));

    // REP received.
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    let now = w.now;
    w.nodes[A].destroy(now, a).unwrap();
    w.run(Duration::from_secs(1));
    assert!(matches!(w.event(B), Some(Event::Rejected { id, timewait: true, .. }) if id == b));
    assert_eq!(w.event(A), Some(Event::TimeWaitExit { id: a, qpn: A_QPN }));
    assert_eq!(w.event(B), Some(Event::TimeWaitExit { id: b, qpn: B_QPN }));

    // REP sent, the RTU on its way: the peer believes that the connection is established, and then learns that it is not.
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    let now = w.now;
    w.nodes[B].destroy(now, b).unwrap();
    w.nodes[A].confirm(now, a, b"").unwrap();
    w.run(Duration::from_secs(1));
    let how = Disconnect::Rejected(Reason::CONSUMER_DEFINED);
    assert_eq!(w.event(A), Some(Event::Disconnected { id: a, how, private_data: Vec::new() }));
    w.run(Duration::from_secs(1));
    while w.event(A).is_some() || w.event(B).is_some() {}
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));

    // Established, with the first DREQ lost: it is repeated although no program waits for it.
    let a = connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    confirm(&mut w, a);
    w.event(B);
    w.lose = vec![Dreq::ATTRIBUTE];
    let now = w.now;
    w.nodes[A].destroy(now, a).unwrap();
    w.run(Duration::from_secs(6));
    assert!(matches!(w.event(B), Some(Event::Disconnected { id, how: Disconnect::ByPeer, .. }) if id == b));
    assert_eq!(w.event(A), Some(Event::TimeWaitExit { id: a, qpn: A_QPN }), "no other event");
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));
}

/// A REQ of a peer that does not exist.
fn forged(i: u32) -> Req {
    let mut req = Req {
        local_comm_id: i + 1,
        service_id: SERVICE,
        local_ca_guid: u64::from(i) << 20,
        local_qpn: Qpn::new(2 + i % 0xff_0000),
        pkey: 0xffff,
        path_mtu: 3,
        max_cm_retries: 15,
        local_response_timeout: 20,
        ..Req::default()
    };
    req.primary.local_gid = MadWorld::gid(A);
    req.primary.remote_gid = MadWorld::gid(B);
    ip().write(req.private_data.first_chunk_mut().unwrap());
    req
}

// Goal: a flood of requests costs a bounded number of entries, and the refusals have the right reasons. An established connection works
// all the while, and afterwards others can be made.
#[test]
fn a_flood_of_requests() {
    let mut w = MadWorld::new(1, 2, MadFaults::NONE, |node| {
        let mut config = config(node);
        config.limits.half_open = 100;
        config.limits.events = 150;
        config
    });
    let (a, b) = established(&mut w);
    let other = ServiceId::new(PortSpace::Tcp, 5);
    w.nodes[B].listen(&Listen { service_id: other, address: None, backlog: 1000 }).unwrap();
    w.log = None;
    for i in 0..20_000 {
        let service_id = if i % 2 == 0 { SERVICE } else { other };
        let mad = Mad::new(u64::from(i), Req { service_id, ..forged(i) });
        let now = w.now;
        w.nodes[B].handle_mad(now, &MadWorld::path(B, A), &mad.encode());
        if i % 16 == 0 {
            while w.nodes[B].poll_send().is_some() {}
        }
    }
    assert_eq!((w.nodes[B].half_open(), w.nodes[B].connections()), (100, 101));
    let (backlog, machine) = (count(&w, B, Counter::BacklogFull), count(&w, B, Counter::NoResources));
    assert_eq!(backlog + machine + 100, 20_000);
    assert!(backlog > 0 && machine > 0, "both limits were met");
    // The established connection is unaffected.
    let now = w.now;
    w.nodes[A].disconnect(now, a, b"").unwrap();
    w.run(MOMENT);
    assert!(matches!(w.event(A), Some(Event::Disconnected { id, how: Disconnect::Agreed, .. }) if id == a));
    let ended: Vec<_> = std::iter::from_fn(|| w.event(B))
        .filter(|e| matches!(e, Event::Disconnected { id, .. } if *id == b))
        .collect();
    assert_eq!(ended.len(), 1);
    // Requests without a decision time out, and then the table has room again.
    w.run(Duration::from_secs(130));
    assert_eq!((w.nodes[B].half_open(), w.nodes[B].connections()), (0, 0));
    while w.event(B).is_some() {}
    while w.event(A).is_some() {}
    connect(&mut w);
    request(&mut w);
}

// Goal: if events and MADs are not polled, nothing grows without bound.
#[test]
fn a_flood_that_nobody_looks_at() {
    let mut w = world();
    listen(&mut w);
    let service_id = ServiceId::new(PortSpace::Udp, 53);
    w.nodes[B].listen(&Listen { service_id, address: None, backlog: 1 }).unwrap();
    let node = &mut w.nodes[B];
    let path = MadWorld::path(B, A);
    for i in 0..10_000 {
        let now = Instant::from_nanos(u64::from(i) * 50_000_000);
        node.poll_timers(now);
        node.handle_mad(now, &path, &Mad::new(1, forged(i)).encode());
        let sidr = SidrReq { request_id: i, service_id, ..SidrReq::default() };
        let mut sidr = Mad::new(u64::from(i), sidr).encode();
        ip().write(sidr[40..76].first_chunk_mut().unwrap());
        node.handle_mad(now, &path, &sidr);
    }
    let (events, sends) =
        (std::iter::from_fn(|| node.poll_event()).count(), std::iter::from_fn(|| node.poll_send()).count());
    let limits = node.config().limits.clone();
    // Each request that was admitted may end with one more event.
    assert!(events <= limits.events + limits.half_open + limits.sidr, "{events} events");
    // Answers to unknown peers, and as many MADs of connections.
    assert!(sends <= 2 * limits.sends, "{sends} MADs");
    assert!(node.half_open() <= 16 && node.sidr_exchanges() <= limits.sidr);
}

// Goal: MADs that were recorded and are replayed, all of them, at any later time, change nothing.
#[test]
fn replayed_mads_change_nothing() {
    let mut w = world();
    let (a, b) = established(&mut w);
    let log = w.log.take().unwrap();
    for node in [A, B] {
        for mad in log.iter().filter(|s| s.from != node) {
            let now = w.now;
            w.inject(now, node, MadWorld::path(node, 1 - node), mad.bytes.to_vec());
        }
    }
    w.run(MOMENT);
    assert_eq!((w.event(A), w.event(B)), (None, None));
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (1, 1));
    assert_eq!(
        count(&w, B, Counter::DuplicateReq) + count(&w, B, Counter::DuplicateRtu),
        3,
        "the REP brought an RTU"
    );
    assert_eq!(count(&w, A, Counter::DuplicateRep), 1);
    let now = w.now;
    w.nodes[B].disconnect(now, b, b"").unwrap();
    w.run(MOMENT);
    assert!(matches!(w.event(A), Some(Event::Disconnected { id, .. }) if id == a));
    // After the end, the recorded REQ is a new request. Nobody expects its REP, and it times out.
    w.run(Duration::from_secs(2));
    while w.event(A).is_some() || w.event(B).is_some() {}
    for mad in log.iter().filter(|s| s.from == A) {
        let now = w.now;
        w.inject(now, B, MadWorld::path(B, A), mad.bytes.to_vec());
    }
    let (again, _) = request(&mut w);
    accept(&mut w, again);
    w.run(Duration::from_secs(67));
    assert_eq!(w.event(B), Some(Event::Unreachable { id: again, timewait: true }));
    w.run(Duration::from_secs(2));
    assert_eq!((w.nodes[A].connections(), w.nodes[B].connections()), (0, 0));
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let mut w = world();
    let listener = listen(&mut w);
    let again = Listen { service_id: SERVICE, address: None, backlog: 0 };
    assert_eq!(w.nodes[B].listen(&again), Err(Error::InUse(SERVICE)));
    let now = w.now;
    let range = |name, given, max| Error::Range { name, given, max };
    let path = |dgid, flow_label| stack::cm::Path { dgid, flow_label, ..MadWorld::path(A, B) };
    let timing =
        |max_cm_retries, packet_lifetime| Timing { max_cm_retries, packet_lifetime, ..Timing::default() };
    let host = MadWorld::gid(B);
    let bad = [
        (Connect { qpn: Qpn::GSI, ..to_b(A_QPN) }, Error::Qpn(Qpn::GSI)),
        (Connect { qpn: Qpn::MULTICAST, ..to_b(A_QPN) }, Error::Qpn(Qpn::MULTICAST)),
        (Connect { retry_count: 8, ..to_b(A_QPN) }, range("retry count", 8, 7)),
        (Connect { rnr_retry_count: 8, ..to_b(A_QPN) }, range("RNR retry count", 8, 7)),
        (Connect { min_rnr_timer: 32, ..to_b(A_QPN) }, range("RNR timer", 32, 31)),
        (Connect { initiator_depth: RD_ATOMIC_MAX + 1, ..to_b(A_QPN) }, range("initiator depth", 129, 128)),
        (Connect { timing: timing(16, 16), ..to_b(A_QPN) }, range("CM retries", 16, 15)),
        (Connect { timing: timing(15, 32), ..to_b(A_QPN) }, range("packet lifetime", 32, 31)),
        (Connect { path: path(Gid::default(), 0), ..to_b(A_QPN) }, Error::Address),
        (Connect { path: path(host, 1 << 20), ..to_b(A_QPN) }, range("flow label", 1 << 20, (1 << 20) - 1)),
    ];
    for (connect, error) in bad {
        assert_eq!(w.nodes[A].connect(now, &connect), Err(error));
        assert!(error.to_string().len() > 20, "{error}");
        assert_eq!((w.nodes[A].connections(), w.nodes[A].poll_send()), (0, None));
    }
    let a = connect(&mut w);
    assert_eq!(w.nodes[A].connect(now, &to_b(A_QPN)), Err(Error::QpBusy(A_QPN)));
    for result in
        [w.nodes[A].confirm(now, a, b""), w.nodes[A].disconnect(now, a, b""), w.nodes[A].established(now, a)]
    {
        assert!(matches!(result, Err(Error::State { state: "REQ sent", .. })), "{result:?}");
    }
    assert!(matches!(w.nodes[A].reject(now, a, &Reject::consumer([])), Err(Error::State { .. })));
    let (b, _) = request(&mut w);
    let long = Accept { private_data: vec![0; 197], ..Accept::new(B_QPN) };
    assert_eq!(w.nodes[B].accept(now, b, &long), Err(Error::PrivateData { given: 197, max: 196 }));
    w.nodes[B].close_listener(listener).unwrap();
    assert_eq!(w.nodes[B].close_listener(listener), Err(Error::NoListener(listener)));
    // A request that arrived before the listener ended can still be accepted.
    accept(&mut w, b);
    assert!(matches!(w.nodes[B].accept(now, b, &Accept::new(B_QPN)), Err(Error::State { .. })));
    response(&mut w);
    assert_eq!(w.nodes[A].confirm(now, a, &[0; 225]), Err(Error::PrivateData { given: 225, max: 224 }));
    confirm(&mut w, a);
    assert!(matches!(w.event(B), Some(Event::Established { .. })));
}

// Goal: with one entry each table of the machine is full: the next entry is refused, and the first stays.
#[test]
fn full_tables_refuse() {
    let limits = Limits { connections: 1, listeners: 1, sidr: 1, ..Limits::default() };
    let mut w =
        MadWorld::new(1, 2, MadFaults::NONE, |node| Config { limits: limits.clone(), ..config(node) });
    listen(&mut w);
    let another = Listen { service_id: ServiceId::new(PortSpace::Udp, 53), address: None, backlog: 1 };
    assert_eq!(w.nodes[B].listen(&another), Err(Error::Limit("listeners")));
    let now = w.now;
    connect(&mut w);
    assert_eq!(w.nodes[A].connect(now, &to_b(Qpn::new(0x12))), Err(Error::Limit("connections")));
    w.nodes[A].sidr_request(now, &udp(53, b"")).unwrap();
    assert_eq!(w.nodes[A].sidr_request(now, &udp(53, b"")), Err(Error::Limit("SIDR exchanges")));
    assert_eq!(w.nodes[A].connections(), 1);
}

// A refusal has room for 72 bytes of additional information.
#[test]
fn additional_information_that_does_not_fit() {
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    let refusal = |len| Reject { info: vec![1; len], ..Reject::consumer([]) };
    let now = w.now;
    assert_eq!(w.nodes[B].reject(now, b, &refusal(73)), Err(Error::Info(73)));
    w.nodes[B].reject(now, b, &refusal(72)).unwrap();
    w.run(MOMENT);
    assert!(matches!(w.event(A), Some(Event::Rejected { .. })));
}

// Goal: each failure is counted for the side that caused it.
#[test]
fn counters_blame_nobody_else() {
    let counts = |w: &MadWorld, node, counters: [Counter; 2]| counters.map(|counter| count(w, node, counter));
    // The program does not decide on a request, on a response, or on a request for a datagram service.
    let mut w = world();
    listen(&mut w);
    w.nodes[B].listen(&Listen { service_id: udp(53, b"").service_id, address: None, backlog: 1 }).unwrap();
    let now = w.now;
    w.nodes[A].sidr_request(now, &udp(53, b"")).unwrap();
    connect(&mut w);
    w.run(MOMENT);
    w.dead[A] = true;
    w.run(Duration::from_secs(121));
    assert_eq!(counts(&w, B, [Counter::Unreachable, Counter::Undecided]), [0, 2]);
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    let (b, _) = request(&mut w);
    accept(&mut w, b);
    response(&mut w);
    w.dead[B] = true;
    w.run(Duration::from_secs(121));
    assert_eq!(counts(&w, A, [Counter::Unreachable, Counter::Undecided]), [0, 1]);
    // A silent peer.
    let mut w = world();
    w.dead[B] = true;
    let now = w.now;
    w.nodes[A].sidr_request(now, &udp(53, b"")).unwrap();
    connect(&mut w);
    w.run(Duration::from_secs(121));
    assert_eq!(counts(&w, A, [Counter::Unreachable, Counter::Undecided]), [2, 0]);
    // The peer requests a connection again, without the one that was not established yet.
    let mut w = world();
    listen(&mut w);
    connect(&mut w);
    request(&mut w);
    let (tid, req) = first_req(&w);
    inject(&mut w, B, tid ^ 5, Req { local_comm_id: req.local_comm_id ^ 5, ..req });
    assert!(matches!(w.event(B), Some(Event::Rejected { reason: Reason::STALE_CONNECTION, .. })));
    assert_eq!(counts(&w, B, [Counter::RejectedByPeer, Counter::Stale]), [0, 1]);
    // The peer accepts with a queue pair that is connected already.
    let mut w = world();
    established(&mut w);
    accept_with_connected_qp(&mut w);
    assert_eq!(counts(&w, A, [Counter::RejectedByPeer, Counter::Stale]), [0, 1]);
    // A message that waits for the port is not sent again; a message that is sent only once is lost if the queue is full.
    let limits = Limits { sends: 1, ..Limits::default() };
    let mut node = Machine::new(Config { limits, ..config(A) });
    node.connect(Instant::ZERO, &to_b(A_QPN)).unwrap();
    for (secs, repeated) in [(5, 0), (10, 1)] {
        node.poll_timers(Instant::ZERO.after(Duration::from_secs(secs)));
        assert!(node.poll_send().is_some() && node.poll_send().is_none());
        assert_eq!(node.counters().get(Counter::Retransmitted), repeated);
    }
    for full in [0, 1] {
        node.handle_mad(Instant::ZERO, &MadWorld::path(A, B), &Mad::new(1, forged(full)).encode());
        assert_eq!(node.counters().get(Counter::SendQueueFull), u64::from(full));
    }
}
