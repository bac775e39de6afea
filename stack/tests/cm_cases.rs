//! Connection management, story by story: two machines on a link, in virtual time.

use core::time::Duration;
use std::net::IpAddr;

use stack::cm::mad::Mad;
use stack::cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Disconnect, Error, Event, IpHeader, Listen, ListenId,
    PortSpace, QpParams, RDMA_UDP_QKEY, Reason, Reject, ServiceId, SidrReply, SidrRequest, SidrStatus,
    Timing,
};
use stack::id::{Gid, Mtu, Psn, Qpn};
use stack::sim::mads::{MadFaults, MadWorld, SentMad};
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

/// The request that comes to B.
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

/// The response that comes to A.
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

/// A connection; what each side calls it.
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

/// What was sent, from where.
fn sent(w: &MadWorld, from: usize) -> Vec<SentMad> {
    w.log.as_ref().unwrap().iter().filter(|s| s.from == from).cloned().collect()
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

/// A message comes to a node as if from its peer.
fn inject(w: &mut MadWorld, to: usize, tid: u64, message: impl Into<Message>) {
    let path = MadWorld::path(to, 1 - to);
    let now = w.now;
    w.inject(now, to, path, Mad::new(tid, message).encode().to_vec());
    w.run(MOMENT);
}

// Goal: the three messages, and what each side learns of the other, are there.
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
