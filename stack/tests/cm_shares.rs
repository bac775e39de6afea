//! Tables that several hosts share give each host a share: a host that takes all it can get of a table keeps no other host out.

use core::time::Duration;

use sim::mads::{MadFaults, MadWorld, STRANGER};
use stack::cm::mad::Mad;
use stack::cm::message::{Message, Req, SidrReq};
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Event, IpHeader, Limits, Listen, Path, PortSpace, Reject,
    ServiceId, SidrReply, SidrRequest, SidrStatus, Timing,
};
use stack::id::Qpn;

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 4420);
const DATAGRAMS: ServiceId = ServiceId::new(PortSpace::Udp, 53);
/// The nodes: a server, and an honest client.
const SERVER: usize = 0;
const CLIENT: usize = 1;
const MOMENT: Duration = Duration::from_millis(1);

fn world(limits: &Limits, backlog: u32) -> MadWorld {
    let config =
        |node| Config { ca_guid: node as u64 + 1, seed: 7, limits: limits.clone(), ..Config::default() };
    let mut w = MadWorld::new(1, 2, MadFaults::NONE, config);
    for service_id in [SERVICE, DATAGRAMS] {
        w.nodes[SERVER].listen(&Listen { service_id, address: None, backlog }).unwrap();
    }
    w
}

/// Which host sends message `i`: the same for all, or a made-up host for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    OneHost,
    ManyHosts,
}

impl From {
    fn host(self, i: u32) -> usize {
        match self {
            Self::OneHost => STRANGER,
            Self::ManyHosts => 0x100 + 2 * i as usize,
        }
    }
}

fn header(from: usize) -> IpHeader {
    IpHeader { src_port: 1, src: MadWorld::gid(from).to_ip(), dst: MadWorld::gid(SERVER).to_ip() }
}

fn send(w: &mut MadWorld, from: usize, tid: u64, message: impl Into<Message>) {
    let now = w.now;
    w.inject(now, SERVER, MadWorld::path(SERVER, from), Mad::new(tid, message).encode().to_vec());
    w.run(Duration::ZERO);
}

fn req(from: usize, i: u32) -> Req {
    let mut req = Req {
        local_comm_id: i + 1,
        service_id: SERVICE,
        local_ca_guid: 1000 + from as u64,
        local_qpn: Qpn::new(2 + i),
        pkey: 0xffff,
        path_mtu: 3,
        max_cm_retries: 15,
        local_response_timeout: 20,
        ..Req::default()
    };
    req.primary.local_gid = MadWorld::gid(from);
    req.primary.remote_gid = MadWorld::gid(SERVER);
    req.primary.local_ack_timeout = 31;
    header(from).write(req.private_data.first_chunk_mut().unwrap());
    req
}

fn sidr_req(from: usize, i: u32) -> SidrReq {
    let mut req = SidrReq { request_id: i + 1, service_id: DATAGRAMS, ..SidrReq::default() };
    header(from).write(req.private_data.first_chunk_mut().unwrap());
    req
}

fn requests(w: &mut MadWorld) -> Vec<ConnId> {
    std::iter::from_fn(|| w.event(SERVER))
        .filter_map(|event| match event {
            Event::ConnectRequest { id, .. } => Some(id),
            _ => None,
        })
        .collect()
}

/// The honest client makes `connections` connections: at once if one host has filled a table; one by one if made-up hosts have, because
/// each of those has the same share as an honest host.
fn connects(w: &mut MadWorld, from: From, connections: u32) {
    requests(w);
    match from {
        From::OneHost => connects_at_once(w, 0..connections),
        From::ManyHosts => (0..connections).for_each(|i| connects_at_once(w, i..i + 1)),
    }
    assert_eq!(w.nodes[SERVER].counters().get(Counter::Established), u64::from(connections));
}

/// The client connects all at once; the server accepts the requests that still wait when all have arrived.
fn connects_at_once(w: &mut MadWorld, numbers: std::ops::Range<u32>) {
    let connections = numbers.len();
    for i in numbers.clone() {
        let path = MadWorld::path(CLIENT, SERVER);
        let connect =
            Connect { ip: Some(header(CLIENT)), ..Connect::new(SERVICE, path, Qpn::new(0x77_0000 + i)) };
        let now = w.now;
        w.nodes[CLIENT].connect(now, &connect).unwrap();
    }
    w.run(MOMENT);
    let new = requests(w);
    assert_eq!(new.len(), connections);
    for (i, id) in numbers.zip(new) {
        let now = w.now;
        w.nodes[SERVER].accept(now, id, &Accept::new(Qpn::new(0x66_0000 + i))).unwrap();
    }
    w.run(MOMENT);
    let mut up = 0;
    while let Some(event) = w.event(CLIENT) {
        let Event::ConnectResponse { id, .. } = event else { panic!("{event:?}") };
        let now = w.now;
        w.nodes[CLIENT].confirm(now, id, b"").unwrap();
        up += 1;
    }
    w.run(MOMENT);
    assert_eq!(up, connections);
}

// Goal: requests that are accepted and never established, or never decided, fill the table of half-open connections. A new host is
// served at once, with as many connections as its share.
#[test]
fn half_open_connections_of_one_host_keep_no_other_host_out() {
    let limits = Limits { half_open: 100, ..Limits::default() };
    for from in [From::OneHost, From::ManyHosts] {
        for accepts in [false, true] {
            let mut w = world(&limits, 10_000);
            for i in 0..1100 {
                send(&mut w, from.host(i), 1, req(from.host(i), i));
                if accepts {
                    for id in requests(&mut w) {
                        let now = w.now;
                        w.nodes[SERVER].accept(now, id, &Accept::new(Qpn::new(2 + i))).unwrap();
                    }
                }
            }
            let count = |w: &MadWorld, counter| w.nodes[SERVER].counters().get(counter);
            assert_eq!(w.nodes[SERVER].half_open(), 100);
            let (refused, out) = (count(&w, Counter::NoResources), count(&w, Counter::PushedOut));
            assert_eq!((refused, out), if from == From::OneHost { (1000, 0) } else { (0, 1000) });
            connects(&mut w, from, 50);
            assert_eq!(count(&w, Counter::NoResources), refused, "{from:?}, {accepts}");
        }
    }
}

// Goal: the same for a listener's backlog.
#[test]
fn requests_of_one_host_at_a_listener_keep_no_other_host_out() {
    for from in [From::OneHost, From::ManyHosts] {
        let mut w = world(&Limits::default(), 20);
        for i in 0..200 {
            send(&mut w, from.host(i), 1, req(from.host(i), i));
        }
        assert_eq!(w.nodes[SERVER].half_open(), 20);
        connects(&mut w, from, 10);
        // Each dropped request was reported to the program and refused to its host.
        let count = |counter| w.nodes[SERVER].counters().get(counter);
        assert_eq!(count(Counter::Undecided), count(Counter::PushedOut));
    }
}

// Goal: the same for requests for a datagram service.
#[test]
fn requests_for_datagrams_of_one_host_keep_no_other_host_out() {
    let limits = Limits { sidr: 50, ..Limits::default() };
    for from in [From::OneHost, From::ManyHosts] {
        let mut w = world(&limits, 10_000);
        for i in 0..200 {
            send(&mut w, from.host(i), 1, sidr_req(from.host(i), i));
        }
        assert_eq!(w.nodes[SERVER].sidr_exchanges(), 50);
        while w.event(SERVER).is_some() {}
        let at_once = if from == From::OneHost { 20 } else { 1 };
        for _ in 0..20 / at_once {
            ask(&mut w, at_once);
        }
        // The server's own request has room as well.
        let path: Path = MadWorld::path(SERVER, CLIENT);
        let (timing, ip, private_data) = (Timing::default(), Some(header(CLIENT)), Vec::new());
        let own = SidrRequest { service_id: DATAGRAMS, path, timing, ip, private_data };
        let now = w.now;
        w.nodes[SERVER].sidr_request(now, &own).unwrap();
    }
}

/// The honest client sends `requests` requests for a datagram service at once, and the server answers.
fn ask(w: &mut MadWorld, requests: u8) {
    for i in 0..requests {
        let request = SidrRequest {
            service_id: DATAGRAMS,
            path: MadWorld::path(CLIENT, SERVER),
            timing: Timing::default(),
            ip: Some(header(CLIENT)),
            private_data: vec![i],
        };
        let now = w.now;
        w.nodes[CLIENT].sidr_request(now, &request).unwrap();
    }
    w.run(MOMENT);
    let mut asked = 0;
    while let Some(event) = w.event(SERVER) {
        let Event::SidrRequest { id, .. } = event else { continue };
        let (status, now) = (SidrStatus::SUCCESS, w.now);
        let (info, private_data) = (Vec::new(), Vec::new());
        let reply = SidrReply { status, qpn: Qpn::new(5), qkey: 6, info, private_data };
        w.nodes[SERVER].sidr_reply(now, id, &reply).unwrap();
        asked += 1;
    }
    w.run(MOMENT);
    let answered = std::iter::from_fn(|| w.event(CLIENT))
        .filter(|event| matches!(event, Event::SidrReply { status: SidrStatus::SUCCESS, .. }));
    assert_eq!((asked, answered.count()), (requests, requests.into()));
}

// Goal: connections that a host began and ended, with the longest TIMEWAIT that it can request, keep no other host out; and no
// established connection is ended for another.
#[test]
fn resting_connections_of_one_host_keep_no_other_host_out() {
    let limits = Limits { connections: 60, ..Limits::default() };
    for from in [From::OneHost, From::ManyHosts] {
        let mut w = world(&limits, 10_000);
        for i in 0..200 {
            let host = from.host(i);
            send(&mut w, host, 1, req(host, i));
            let now = w.now;
            for id in requests(&mut w) {
                w.nodes[SERVER].accept(now, id, &Accept::new(Qpn::new(2 + i))).unwrap();
                w.nodes[SERVER].established(now, id).unwrap();
                w.nodes[SERVER].disconnect(now, id, b"").unwrap();
            }
            // The host's DREP: the answer to the DREQ.
            w.pump();
            let last = w.log.as_ref().and_then(|log| log.last().cloned());
            if let Some(Message::Dreq(dreq)) = last.map(|sent| sent.mad().message) {
                let tid = w.log.as_ref().map_or(0, |log| log[log.len() - 1].mad().tid);
                let drep = stack::cm::message::Drep {
                    local_comm_id: dreq.remote_comm_id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: [0; 224],
                };
                send(&mut w, host, tid, drep);
            }
        }
        assert_eq!(w.nodes[SERVER].connections(), 60);
        assert_eq!(w.nodes[SERVER].half_open(), 0);
        let before = w.nodes[SERVER].counters().get(Counter::Established);
        w.log = Some(Vec::new());
        let now = w.now;
        for i in 0..20 {
            let path = MadWorld::path(CLIENT, SERVER);
            let connect =
                Connect { ip: Some(header(CLIENT)), ..Connect::new(SERVICE, path, Qpn::new(0x77_0000 + i)) };
            w.nodes[CLIENT].connect(now, &connect).unwrap();
        }
        w.run(MOMENT);
        for (i, id) in requests(&mut w).into_iter().enumerate() {
            let now = w.now;
            w.nodes[SERVER].accept(now, id, &Accept::new(Qpn::new(0x66_0000 + i as u32))).unwrap();
            w.nodes[SERVER].established(now, id).unwrap();
        }
        let counters = w.nodes[SERVER].counters();
        assert_eq!(counters.get(Counter::Established), before + 20, "{from:?}");
        assert!(counters.get(Counter::RestCut) >= 20);
        assert_eq!(w.nodes[SERVER].connections(), 60);
    }
}

// Goal: answers to a host that sends more requests than can be answered do not take the room of answers to others.
#[test]
fn answers_to_one_host_keep_no_other_answer_out() {
    let limits = Limits { sends: 64, ..Limits::default() };
    let mut w = world(&limits, 100);
    let now = w.now;
    let refused = |from| Mad::new(1, Req { service_id: ServiceId(9), ..req(from, 5) }).encode();
    for _ in 0..500 {
        w.nodes[SERVER].handle_mad(now, &MadWorld::path(SERVER, STRANGER), &refused(STRANGER));
    }
    for _ in 0..10 {
        w.nodes[SERVER].handle_mad(now, &MadWorld::path(SERVER, CLIENT), &refused(CLIENT));
    }
    // A message of a connection has room, too.
    w.nodes[SERVER].handle_mad(now, &MadWorld::path(SERVER, CLIENT), &Mad::new(1, req(CLIENT, 5)).encode());
    let request = w.nodes[SERVER].poll_event();
    let Some(Event::ConnectRequest { id, .. }) = request else { panic!("{request:?}") };
    w.nodes[SERVER].reject(now, id, &Reject::consumer([])).unwrap();
    let sent: Vec<_> = std::iter::from_fn(|| w.nodes[SERVER].poll_send()).collect();
    let to = |node| sent.iter().filter(|send| send.path.dgid == MadWorld::gid(node)).count();
    assert_eq!((to(CLIENT), to(STRANGER)), (11, 54));
    assert_eq!(w.nodes[SERVER].counters().get(Counter::SendQueueFull), 446);
}
