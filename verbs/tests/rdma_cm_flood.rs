//! Hostile peers: thousands of requests, and malformed messages, beside a working connection.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::cm::{self, World, addrs};
use allocation_counter::measure;
use stack::cm::mad::Mad;
use stack::cm::message::{Dreq, Message, Rej, Rep};
use stack::cm::{
    Config, Connect, Event, IpHeader, MAD_LEN, Machine, Path, PortSpace, QpParams, Reason, ServiceId,
    SidrRequest, SidrStatus, Timing,
};
use stack::time::Instant;
use verbs::rdma_cm::{CmEvent, CmEventType as E, CmId, ConnParam, EventChannel, IdState};
use verbs::{
    Ah, Counter, Cq, Discard, GRH_LEN, GSI_QKEY, Gid, Qp, QpInitAttr, QpState, QpType, Qpn, RecvWr, SendWr,
    Wc, ah_attr_to,
};

const PORT: u16 = 7471;

/// A listener of B with this backlog, and its channel.
fn listening(w: &World, addr: SocketAddr, backlog: u32) -> (EventChannel, CmId) {
    let channel = w.b.channel();
    let listener = w.b.id(&channel);
    listener.bind_addr(addr).unwrap();
    listener.listen(backlog).unwrap();
    (channel, listener)
}

// A's program owns queue pair 1, and sends arbitrary messages to B.
#[test]
fn a_flood_of_requests_leaves_connections_alone() {
    let w = World::new();
    // An existing connection, made without connection management at A.
    let (cb, _listener) = listening(&w, cm::any(PORT), 4);
    let qps = [&w.a, &w.b].map(|h| h.pd.create_qp(&QpInitAttr::rc(&h.cq, &h.cq)).unwrap());
    let options = verbs::RcOptions::default().sgid_index(1);
    qps[0].connect_rc(&qps[1].endpoint(1).unwrap(), &options).unwrap();
    qps[1].connect_rc(&qps[0].endpoint(1).unwrap(), &options).unwrap();
    let message = |n| {
        w.b.post_recv(&qps[1], n);
        w.a.send(&qps[0], n);
        assert!(w.take(&w.a.cq, 1)[0].is_ok() && w.take(&w.b.cq, 1)[0].is_ok());
    };
    message(0);

    let silent = w.a.context.create_cq(16).unwrap();
    let mut init = QpInitAttr::new(QpType::Gsi, &silent, &silent);
    (init.cap.max_inline_data, init.cap.max_send_wr) = (MAD_LEN as u32, 64);
    let gsi = w.a.pd.create_qp(&init).unwrap();
    gsi.activate_ud(GSI_QKEY).unwrap();
    let [from, to] = addrs(false);
    let (sgid, dgid) = (Gid::from_ip(from), Gid::from_ip(to));
    let ah = w.a.pd.create_ah(&ah_attr_to(dgid, 1)).unwrap();
    let send = |mad: &[u8]| {
        w.until("room for a message", || {
            gsi.post_send(&[SendWr::send(0, &[]).inline(mad).to(&ah, Qpn::GSI, GSI_QKEY)]).ok()
        });
    };
    let mut forged = 0;
    for guid in 1..=60 {
        // Each machine is another node, with fifty requests and as many malformed messages.
        let mut node = Machine::new(Config { ca_guid: guid, seed: guid, ..Config::default() });
        let path = Path { sgid, dgid, ..Path::default() };
        for qpn in 2..52 {
            let mut connect = Connect::new(ServiceId::new(PortSpace::Tcp, PORT), path, Qpn::new(qpn));
            connect.ip = Some(IpHeader { src_port: 9, src: from, dst: to });
            node.connect(Instant::ZERO, &connect).unwrap();
            let mut mad = node.poll_send().unwrap().mad;
            send(&mad);
            mad[usize::from((qpn % 24) as u8)] ^= 0x55;
            send(&mad);
            forged += 2;
        }
        message(guid);
    }
    assert_eq!(forged, 6000);
    let counters: std::collections::HashMap<_, _> = cb.counters().into_iter().collect();
    assert!(counters["mad_received"] > 5000, "{counters:?}");
    // Four requests wait at the listener. The others are refused, and malformed messages are counted by reason.
    let waiting: Vec<_> = std::iter::from_fn(|| cb.try_get_event()).collect();
    assert_eq!(waiting.len(), 4);
    assert!(waiting.iter().all(|e| e.event() == E::ConnectRequest));
    assert!(counters["rejected_by_us"] + counters["reject_backlog_full"] > 2000, "{counters:?}");
    assert!(counters["ignored_class"] > 0 && counters["ignored_method"] > 0, "{counters:?}");
    drop(waiting);
    drop((gsi, ah, silent));

    // A well-behaved client is still served.
    let ca = w.a.channel();
    let client = w.resolved(&ca, SocketAddr::new(to, PORT));
    let server = w.request(&client, &cb, &ConnParam::default());
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    w.event(&cb, E::Established).ack();
    w.exchange(&client, &server);
    message(99);
}

/// A host whose messages the test sends: A's program with queue pair 1.
struct Stranger {
    gsi: Qp,
    ah: Ah,
    cq: Cq,
}

const SLOTS: u64 = 64;

impl Stranger {
    fn new(w: &World) -> Self {
        let cq = w.a.context.create_cq(1024).unwrap();
        let mut init = QpInitAttr::new(QpType::Gsi, &cq, &cq);
        (init.cap.max_inline_data, init.cap.max_send_wr, init.cap.max_recv_wr) = (MAD_LEN as u32, 64, 64);
        let gsi = w.a.pd.create_qp(&init).unwrap();
        gsi.activate_ud(GSI_QKEY).unwrap();
        let ah = w.a.pd.create_ah(&ah_attr_to(Gid::from_ip(addrs(false)[1]), 1)).unwrap();
        let stranger = Self { gsi, ah, cq };
        (0..SLOTS).for_each(|slot| stranger.post_recv(w, slot));
        // A message that is sent before B's Ethernet address is known is lost.
        w.until("B to be found", || {
            stranger.send(w, &[], &mut Vec::new());
            (stranger.gsi.counters().get(Counter::TxFrames) > 0).then_some(())
        });
        stranger
    }
    fn post_recv(&self, w: &World, slot: u64) {
        let at = slot as usize * 512;
        let sge = [w.a.mr.sge(at..at + GRH_LEN + MAD_LEN).unwrap()];
        self.gsi.post_recv(&[RecvWr::new(slot, &sge)]).unwrap();
    }
    /// Sends a MAD, and receives the MADs that have arrived.
    fn send(&self, w: &World, mad: &[u8], answers: &mut Vec<[u8; MAD_LEN]>) {
        let wr = [SendWr::send(SLOTS, &[]).inline(mad).to(&self.ah, Qpn::GSI, GSI_QKEY)];
        w.until("room for a message", || self.gsi.post_send(&wr).ok());
        w.pump();
        w.pump();
        self.receive(w, answers);
    }
    fn receive(&self, w: &World, answers: &mut Vec<[u8; MAD_LEN]>) {
        let mut wc = [Wc::default(); 16];
        let n = self.cq.poll(&mut wc).unwrap();
        for wc in wc[..n].iter().filter(|wc| wc.opcode.is_recv()) {
            let mut mad = [0; MAD_LEN];
            w.a.mr.read(wc.wr_id as usize * 512 + GRH_LEN, &mut mad).unwrap();
            answers.push(mad);
            self.post_recv(w, wc.wr_id);
        }
    }
}

fn message(mad: &[u8; MAD_LEN]) -> Message {
    Mad::decode(mad).unwrap().message
}

fn path() -> Path {
    let [from, to] = addrs(false);
    Path { sgid: Gid::from_ip(from), dgid: Gid::from_ip(to), ..Path::default() }
}

fn header() -> IpHeader {
    let [src, dst] = addrs(false);
    IpHeader { src_port: 9, src, dst }
}

/// A REQ from an unknown node.
fn req(guid: u64) -> [u8; MAD_LEN] {
    let mut node = Machine::new(Config { ca_guid: guid, seed: guid, ..Config::default() });
    let service = ServiceId::new(PortSpace::Tcp, PORT);
    let connect = Connect { ip: Some(header()), ..Connect::new(service, path(), Qpn::new(0x99)) };
    node.connect(Instant::ZERO, &connect).unwrap();
    node.poll_send().unwrap().mad
}

/// A request from an unknown node for a datagram service.
fn sidr_req(seed: u64) -> [u8; MAD_LEN] {
    let mut node = Machine::new(Config { seed, ..Config::default() });
    let request = SidrRequest {
        service_id: ServiceId::new(PortSpace::Udp, PORT),
        path: path(),
        timing: Timing::default(),
        ip: Some(header()),
        private_data: Vec::new(),
    };
    node.sidr_request(Instant::ZERO, &request).unwrap();
    node.poll_send().unwrap().mad
}

/// Fetches requests, and neither accepts nor rejects any.
fn fetch(channel: &EventChannel, kept: &mut Vec<(CmEvent, CmId)>) {
    while let Some(mut event) = channel.try_get_event() {
        assert_eq!(event.event(), E::ConnectRequest);
        let id = event.take_id().unwrap();
        kept.push((event, id));
    }
}

// Goal: a listener whose program never fetches requests holds as many as its backlog, and uses no more memory after that. Other clients
// are refused with the reason.
#[test]
fn a_listener_whose_program_never_fetches_takes_its_backlog() {
    let w = World::new();
    let (cb, _listener) = listening(&w, cm::any(PORT), 16);
    let stranger = Stranger::new(&w);
    let (mut answers, mut kept) = (Vec::with_capacity(4096), Vec::with_capacity(64));
    let mut flood = |guids: std::ops::Range<u64>| {
        for guid in guids {
            stranger.send(&w, &req(guid), &mut answers);
        }
    };
    flood(1..500);
    // The first requests wait, and tables that grow only once have grown.
    let more = measure(|| flood(500..1500));
    assert!(more.bytes_current < 4096, "a thousand more requests cost {} bytes", more.bytes_current);
    w.until("the last answer", || {
        stranger.receive(&w, &mut answers);
        (answers.len() == 1499 - 16).then_some(())
    });
    for answer in answers.iter().map(message) {
        let Message::Rej(rej) = answer else { panic!("{answer:?}") };
        assert_eq!(rej.reason, Reason::NO_RESOURCES);
    }
    let counters: HashMap<_, _> = cb.counters().into_iter().collect();
    assert_eq!(counters["reject_backlog_full"], 1499 - 16, "{counters:?}");
    fetch(&cb, &mut kept);
    assert_eq!(kept.len(), 16);
}

// Goal: fetched requests do not count in the backlog, as on Linux: a program may fetch a thousand before it decides on the first.
#[test]
fn a_program_that_fetches_requests_makes_room_at_once() {
    let w = World::new();
    let (cb, _listener) = listening(&w, cm::any(PORT), 16);
    let stranger = Stranger::new(&w);
    let (mut answers, mut kept) = (Vec::new(), Vec::new());
    for guid in 1..=300 {
        stranger.send(&w, &req(guid), &mut answers);
        w.until("the request", || {
            fetch(&cb, &mut kept);
            (kept.len() as u64 == guid).then_some(())
        });
    }
    assert!(answers.is_empty(), "{} answers", answers.len());
}

// Goal: requests of one host that fill a backlog keep no other host out: the oldest of them is dropped, and its host is notified.
#[test]
fn requests_of_one_host_in_a_backlog_keep_no_other_host_out() {
    let w = World::new();
    let (cb, _listener) = listening(&w, cm::wildcard(PORT), 16);
    let stranger = Stranger::new(&w);
    let (mut answers, mut kept) = (Vec::new(), Vec::new());
    for guid in 1..=50 {
        stranger.send(&w, &req(guid), &mut answers);
    }
    w.until("refusals", || {
        stranger.receive(&w, &mut answers);
        (answers.len() == 34).then_some(())
    });
    // A request from another host, according to its address.
    let [src, dst] = addrs(true);
    let other = Path { sgid: Gid::from_ip(src), dgid: Gid::from_ip(dst), ..Path::default() };
    let mut node = Machine::new(Config { ca_guid: 99, seed: 99, ..Config::default() });
    let service = ServiceId::new(PortSpace::Tcp, PORT);
    let ip = Some(IpHeader { src_port: 9, src, dst });
    node.connect(Instant::ZERO, &Connect { ip, ..Connect::new(service, other, Qpn::new(0x99)) }).unwrap();
    let mad = node.poll_send().unwrap().mad;
    let ah = w.a.pd.create_ah(&ah_attr_to(other.dgid, 2)).unwrap();
    w.until("a refusal", || {
        // Until B has resolved the Ethernet address of that host, too.
        let wr = [SendWr::send(SLOTS, &[]).inline(&mad).to(&ah, Qpn::GSI, GSI_QKEY)];
        let _ = stranger.gsi.post_send(&wr);
        stranger.receive(&w, &mut answers);
        (answers.len() == 35).then_some(())
    });
    fetch(&cb, &mut kept);
    let from: Vec<_> = kept.iter().filter_map(|(_, id)| id.peer_addr()).map(|peer| peer.ip()).collect();
    assert_eq!(from.len(), 16);
    assert_eq!(from.last(), Some(&src));
}

// Goal: the same for the backlog of a datagram service.
#[test]
fn a_datagram_listener_whose_program_never_fetches_takes_its_backlog() {
    let w = World::new();
    let cb = w.b.channel();
    let listener = w.b.context.create_id(Some(&cb), verbs::rdma_cm::PortSpace::Udp).unwrap();
    listener.bind_addr(cm::any(PORT)).unwrap();
    listener.listen(3).unwrap();
    let stranger = Stranger::new(&w);
    let (mut answers, mut kept) = (Vec::new(), Vec::new());
    for seed in 1..=50 {
        stranger.send(&w, &sidr_req(seed), &mut answers);
    }
    w.until("the last answer", || {
        stranger.receive(&w, &mut answers);
        (answers.len() == 47).then_some(())
    });
    for answer in answers.iter().map(message) {
        let Message::SidrRep(rep) = answer else { panic!("{answer:?}") };
        assert_eq!(rep.status, SidrStatus::NO_QP);
    }
    fetch(&cb, &mut kept);
    assert_eq!(kept.len(), 3);
}

// Goal: a program may disconnect a connection that is ending already: its peer has restarted without it, and has not answered the DREQ
// yet.
#[test]
fn a_connection_that_its_peer_forgot_is_disconnected() {
    let w = World::new();
    let cb = w.b.channel();
    let _listener = w.b.listen(&cb, PORT);
    let (stranger, mut answers) = (Stranger::new(&w), Vec::new());
    let now = Instant::ZERO;
    let service = ServiceId::new(PortSpace::Tcp, PORT);
    // Times that keep the test's silence short.
    let timing = Timing { packet_lifetime: 8, ..Timing::default() };
    let connect = Connect { ip: Some(header()), timing, ..Connect::new(service, path(), Qpn::new(0x99)) };
    // The lives of a peer before and after its restart, whose queue pair numbers begin again.
    let mut lives = [1, 2].map(|seed| Machine::new(Config { ca_guid: 7, seed, ..Config::default() }));
    let [before, after] = &mut lives;
    let mut answer = |attribute| {
        w.until("an answer", || {
            stranger.receive(&w, &mut answers);
            let at = answers.iter().position(|mad| message(mad).attribute() == attribute)?;
            Some(answers.swap_remove(at))
        })
    };
    let say = |node: &mut Machine| {
        let mad = node.poll_send().unwrap().mad;
        stranger.send(&w, &mad, &mut Vec::new());
    };
    let conn = before.connect(now, &connect).unwrap();
    say(before);
    let server = w.event(&cb, E::ConnectRequest).take_id().unwrap();
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    before.handle_mad(now, &path(), &answer(Rep::ATTRIBUTE));
    before.confirm(now, conn, b"").unwrap();
    say(before);
    w.event(&cb, E::Established).ack();

    after.connect(now, &connect).unwrap();
    say(after);
    let dreq = answer(Dreq::ATTRIBUTE);
    assert_eq!(server.state(), IdState::Connected);
    server.disconnect().unwrap();
    assert_eq!(server.state(), IdState::Disconnecting);
    assert_eq!(server.qp().unwrap().state().unwrap(), QpState::Err);
    after.handle_mad(now, &path(), &dreq);
    say(after);
    w.event(&cb, E::Disconnected).ack();
    assert_eq!(server.state(), IdState::Disconnected);
}

// Goal: a third host that can send from the peer's address, and knows its GUID and queue pair, ends no connection by a new request: the
// peer's queue pair is checked, and answers.
#[test]
fn a_connection_whose_peer_answers_is_not_ended_by_a_request() {
    let w = World::new();
    let cb = w.b.channel();
    let _listener = w.b.listen(&cb, PORT);
    let (stranger, mut answers) = (Stranger::new(&w), Vec::new());
    let now = Instant::ZERO;
    let qp = w.a.pd.create_qp(&QpInitAttr::rc(&w.a.cq, &w.a.cq)).unwrap();
    let service = ServiceId::new(PortSpace::Tcp, PORT);
    let connect = Connect { ip: Some(header()), ..Connect::new(service, path(), qp.qp_num()) };
    let mut peer = Machine::new(Config { ca_guid: 7, seed: 1, ..Config::default() });
    let mut answer = |attribute| {
        w.until("an answer", || {
            stranger.receive(&w, &mut answers);
            let at = answers.iter().position(|mad| message(mad).attribute() == attribute)?;
            Some(answers.swap_remove(at))
        })
    };
    let conn = peer.connect(now, &connect).unwrap();
    stranger.send(&w, &peer.poll_send().unwrap().mad, &mut Vec::new());
    let server = w.event(&cb, E::ConnectRequest).take_id().unwrap();
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    peer.handle_mad(now, &path(), &answer(Rep::ATTRIBUTE));
    let Some(Event::ConnectResponse { response, .. }) = peer.poll_event() else { panic!("no response") };
    let QpParams { dest_qpn: qpn, rq_psn: psn, .. } = response.params;
    let options = verbs::RcOptions::default().sgid_index(1);
    qp.connect_rc(&verbs::RcEndpoint { gid: path().dgid, qpn, psn }, &options).unwrap();
    peer.confirm(now, conn, b"").unwrap();
    stranger.send(&w, &peer.poll_send().unwrap().mad, &mut Vec::new());
    w.event(&cb, E::Established).ack();

    for seed in 2..12 {
        let mut forger = Machine::new(Config { ca_guid: 7, seed, ..Config::default() });
        forger.connect(now, &connect).unwrap();
        stranger.send(&w, &forger.poll_send().unwrap().mad, &mut Vec::new());
        let Message::Rej(rej) = message(&answer(Rej::ATTRIBUTE)) else { panic!("no REJ") };
        assert_eq!(rej.reason, Reason::STALE_CONNECTION);
        w.until("the peer's answer", || {
            let counters: HashMap<_, _> = cb.counters().into_iter().collect();
            (counters["peers_answered"] == seed - 1).then_some(())
        });
    }
    assert!(cb.try_get_event().is_none());
    assert_eq!((server.state(), server.qp().unwrap().state().unwrap()), (IdState::Connected, QpState::Rts));
    // Without its queue pair the peer does not answer the check.
    drop(qp);
    let mut forger = Machine::new(Config { ca_guid: 7, seed: 99, ..Config::default() });
    forger.connect(now, &connect).unwrap();
    stranger.send(&w, &forger.poll_send().unwrap().mad, &mut Vec::new());
    let dreq = answer(Dreq::ATTRIBUTE);
    forger.handle_mad(now, &path(), &dreq);
    stranger.send(&w, &forger.poll_send().unwrap().mad, &mut Vec::new());
    stranger.send(&w, &forger.poll_send().map_or([0; MAD_LEN], |send| send.mad), &mut Vec::new());
    w.event(&cb, E::Disconnected).ack();
}

// Goal: messages to hosts whose Ethernet address cannot be resolved are lost, and delay no messages to others.
#[test]
fn hosts_that_are_silent_hold_up_nobody() {
    let w = World::new();
    let cb = w.b.channel();
    let _listener = w.b.listen(&cb, PORT);
    let stranger = Stranger::new(&w);
    let mad = req(1);
    let before = stranger.gsi.counters().discarded(Discard::Unreachable);
    for n in 3..35 {
        let ah = w.a.pd.create_ah(&ah_attr_to(Gid::v4([10, 0, 0, n]), 1)).unwrap();
        let wr = SendWr::send(SLOTS, &[]).inline(&mad).to(&ah, Qpn::GSI, GSI_QKEY);
        stranger.gsi.post_send(&[wr]).unwrap();
    }
    stranger.send(&w, &mad, &mut Vec::new());
    // Far less time than a host may be silent.
    let event = (0..100).find_map(|_| {
        w.pump();
        cb.try_get_event()
    });
    assert_eq!(event.expect("it is not held up").event(), E::ConnectRequest);
    assert_eq!(stranger.gsi.counters().discarded(Discard::Unreachable) - before, 32);
}
