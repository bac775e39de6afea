//! Any bytes as MADs, and any calls, in any state of a connection manager.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use super::Input;
use stack::cm::mad::Mad;
use stack::cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Event, IpHeader, Listen, ListenId, MAD_LEN, Machine, Path,
    PeerAnswer, PortSpace, Reason, Reject, ServiceId, SidrId, SidrReply, SidrRequest, SidrStatus, Timing,
};
use stack::id::{Gid, Mtu, Psn, Qpn};
use stack::time::Instant;

/// Steps of one input.
const OPS: usize = 200;
const HERE: Gid = Gid::v4([10, 0, 0, 1]);
const THERE: Gid = Gid::v4([10, 0, 0, 2]);
/// A host with which there is nothing but what it begins itself.
const STRANGER: Gid = Gid::v4([10, 0, 0, 3]);
const CONNECTIONS: usize = 24;
const HALF_OPEN: usize = 8;
const SENDS: usize = 32;
const EVENTS: usize = 12;
const SIDRS: usize = 6;

/// A machine, and its observed MADs and events: the material of messages and calls that fit.
struct Machines {
    now: Instant,
    machine: Machine,
    listeners: Vec<ListenId>,
    conns: Vec<ConnId>,
    sidrs: Vec<SidrId>,
    /// Connections that the stranger began.
    strange: BTreeSet<ConnId>,
    /// Its last MADs: messages can answer them, or repeat them.
    sent: VecDeque<Mad>,
}

/// Runs a program.
///
/// # Panics
/// If a stranger moves a connection that it did not begin, if a limit is exceeded, if a MAD that is sent is none of connection
/// management, or if anything but an established connection is left when nothing happens any more.
pub fn cm_bytes(data: &[u8]) {
    let mut input = Input(data);
    let mut m = Machines::new(&mut input);
    for _ in 0..OPS {
        if input.is_empty() {
            break;
        }
        // Sent MADs and events are checked after most steps.
        let op = input.u8();
        match op % 16 {
            0 => {
                let bytes = input.take(MAD_LEN).to_vec();
                m.receive(&bytes, &mut input);
            }
            1 => {
                // Nearly right: bytes of the input over a sound message.
                let mut bytes = m.message(&mut input).encode();
                let at = input.below(MAD_LEN);
                let patch = input.take(input.0.len().min(8).min(MAD_LEN - at));
                bytes[at..at + patch.len()].copy_from_slice(patch);
                m.receive(&bytes, &mut input);
            }
            2..=6 => {
                let mad = m.message(&mut input);
                m.receive(&mad.encode(), &mut input);
            }
            7 => m.own_again(&mut input),
            8 => m.wait(Duration::from_millis(1 << input.below(18))),
            9..=13 => m.call(&mut input),
            14 => m.look(),
            _ => m.serve(&mut input),
        }
        if op < 192 {
            m.look();
        }
        m.check();
    }
    m.end();
}

impl Machines {
    fn new(input: &mut Input) -> Self {
        let mut config = Config { ca_guid: 1, seed: input.u64(), mtu: Mtu::Mtu1024, ..Config::default() };
        config.mra = input.pick(&[None, Some(24), Some(255)]);
        config.limits.connections = CONNECTIONS;
        config.limits.half_open = HALF_OPEN;
        config.limits.listeners = 3;
        config.limits.sends = SENDS;
        config.limits.events = EVENTS;
        config.limits.sidr = SIDRS;
        let mut machine = Machine::new(config);
        machine.set_gids(&[HERE]);
        let mut m = Self {
            now: Instant::ZERO,
            machine,
            listeners: Vec::new(),
            conns: Vec::new(),
            sidrs: Vec::new(),
            strange: BTreeSet::new(),
            sent: VecDeque::new(),
        };
        m.serve(&mut Input(&[0, 0]));
        m.serve(&mut Input(&[1, 0]));
        m
    }

    fn service(input: &mut Input) -> ServiceId {
        input.pick(&[
            ServiceId::new(PortSpace::Tcp, 1),
            ServiceId::new(PortSpace::Udp, 1),
            ServiceId(7),
            ServiceId(8),
        ])
    }

    fn header(service_id: ServiceId) -> Option<IpHeader> {
        let (src, dst) = (THERE.to_ip(), HERE.to_ip());
        service_id.port_space().map(|_| IpHeader { src_port: 9, src, dst })
    }

    fn serve(&mut self, input: &mut Input) {
        let listen = Listen {
            service_id: Self::service(input),
            address: input.bool().then_some(HERE),
            backlog: u32::from(input.u8() % 6),
        };
        if let Ok(id) = self.machine.listen(&listen) {
            self.listeners.push(id);
        } else if listen.backlog == 5
            && let Some(id) = self.listeners.pop()
        {
            self.machine.close_listener(id).expect("it listens");
        }
    }

    /// A message that answers one of the machine's, or begins something: right in most inputs, and odd in one field in the
    /// others.
    fn message(&self, input: &mut Input) -> Mad {
        let about = (!self.sent.is_empty()).then(|| &self.sent[input.below(self.sent.len())]);
        let (ours, theirs) = match about.map(|mad| &mad.message) {
            Some(Message::Req(m)) => (m.local_comm_id, 3),
            Some(Message::Rep(m)) => (m.local_comm_id, m.remote_comm_id),
            Some(Message::Mra(m)) => (m.local_comm_id, m.remote_comm_id),
            Some(Message::Rtu(m)) => (m.local_comm_id, m.remote_comm_id),
            Some(Message::Dreq(m)) => (m.local_comm_id, m.remote_comm_id),
            Some(Message::SidrReq(m)) => (m.request_id, 0),
            _ => (0, 3),
        };
        let kind = input.u8() % 12;
        let qpn = match about.map(|mad| &mad.message) {
            // The queue pair that a DREQ has to name.
            Some(Message::Rep(m)) if kind == 5 => m.local_qpn,
            _ => Qpn::new(2 + u32::from(input.u8() % 6)),
        };
        let fresh = matches!(kind, 0 | 1 | 8);
        let mine = if fresh { 1 + u32::from(input.u8() % 6) } else { theirs };
        let tid = about.filter(|_| !fresh).map_or(u64::from(mine), |mad| mad.tid);
        let guid = 2 + u64::from(input.u8() % 3);
        // The odd field: none, most of the time.
        let odd = input.u8();
        let odd = |field: u8| odd == field;
        let tid = if odd(1) { tid ^ 1 } else { tid };
        let mine = if odd(2) { mine ^ 1 } else { mine };
        let yours = if odd(3) { ours ^ 1 } else { ours };
        let qpn = if odd(4) { Qpn::new(u32::from(input.u8() % 32)) } else { qpn };
        let message: Message = match kind {
            0 | 1 => {
                let service_id = Self::service(input);
                let mut req = Req {
                    local_comm_id: mine,
                    service_id,
                    local_ca_guid: guid,
                    local_qpn: qpn,
                    responder_resources: input.u8(),
                    initiator_depth: input.u8(),
                    transport: if odd(5) { input.u8() % 4 } else { 0 },
                    local_response_timeout: input.u8() % 32,
                    retry_count: 7,
                    pkey: if odd(6) { input.u16() } else { 0xffff },
                    path_mtu: if odd(7) { input.u8() % 16 } else { 3 },
                    max_cm_retries: input.u8() % 16,
                    ..Req::default()
                };
                req.primary.local_gid = THERE;
                req.primary.remote_gid = if odd(8) { THERE } else { HERE };
                req.primary.local_ack_timeout = input.u8() % 32;
                if let (Some(ip), Some(bytes)) =
                    (Self::header(service_id), req.private_data.first_chunk_mut())
                {
                    ip.write(bytes);
                }
                req.into()
            }
            2 | 10 => Rep {
                local_comm_id: mine,
                remote_comm_id: yours,
                local_qpn: qpn,
                starting_psn: Psn::new(7),
                responder_resources: input.u8(),
                initiator_depth: input.u8(),
                target_ack_delay: input.u8() % 32,
                local_ca_guid: guid,
                ..Rep::default()
            }
            .into(),
            3 | 11 => Rtu { local_comm_id: mine, remote_comm_id: yours, ..Rtu::default() }.into(),
            4 => Rej {
                local_comm_id: mine,
                remote_comm_id: yours,
                message: input.u8() % 4,
                info_length: input.pick(&[0, 8, 72, 73, 127]),
                reason: Reason(u16::from(input.u8() % 40)),
                info: [input.u8() % 3; 72],
                ..Rej::default()
            }
            .into(),
            5 => {
                Dreq { local_comm_id: mine, remote_comm_id: yours, remote_qpn: qpn, ..Dreq::default() }.into()
            }
            6 => Drep { local_comm_id: mine, remote_comm_id: yours, ..Drep::default() }.into(),
            7 => Mra {
                local_comm_id: mine,
                remote_comm_id: yours,
                message: input.u8() % 3,
                service_timeout: input.u8() % 32,
                ..Mra::default()
            }
            .into(),
            8 => {
                let service_id = Self::service(input);
                let mut req = SidrReq { request_id: mine, pkey: 0xffff, service_id, ..SidrReq::default() };
                if let (Some(ip), Some(bytes)) =
                    (Self::header(service_id), req.private_data.first_chunk_mut())
                {
                    ip.write(bytes);
                }
                req.into()
            }
            _ => SidrRep {
                request_id: yours,
                status: SidrStatus(input.u8()),
                info_length: input.u8() % 80,
                qpn,
                ..SidrRep::default()
            }
            .into(),
        };
        Mad::new(tid, message)
    }

    fn receive(&mut self, bytes: &[u8], input: &mut Input) {
        let path = match input.u8() {
            255 => Path::default(),
            254 => Path { sgid: HERE, dgid: HERE, ..Path::default() },
            200..=253 => return self.receive_strange(bytes),
            _ => Path { sgid: HERE, dgid: THERE, ..Path::default() },
        };
        self.machine.handle_mad(self.now, &path, bytes);
    }

    /// A message of a stranger: it affects only what the stranger began itself, and only the stranger gets an answer. But where a
    /// table is full, its request may push out one of a host that has more, or cut a rest short.
    fn receive_strange(&mut self, bytes: &[u8]) {
        self.look();
        let gone = |machine: &Machine| {
            [Counter::PushedOut, Counter::RestCut].map(|counter| machine.counters().get(counter))
        };
        let before = gone(&self.machine);
        self.machine.handle_mad(self.now, &Path { sgid: HERE, dgid: STRANGER, ..Path::default() }, bytes);
        let after = gone(&self.machine);
        let [mut pushed_out, mut rests] = [after[0] - before[0], after[1] - before[1]];
        let mut farewells = pushed_out;
        while let Some(send) = self.machine.poll_send() {
            let mad = Mad::decode(&send.mad);
            if send.path.dgid != STRANGER {
                let told = matches!(&mad, Ok(Mad { message: Message::Rej(rej), .. }) if rej.reason == Reason::TIMEOUT);
                assert!(told && farewells > 0, "{mad:?}");
                farewells -= 1;
            }
            self.sent.push_front(Mad::decode(&send.mad).expect("a MAD of connection management"));
        }
        self.sent.truncate(12);
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::ConnectRequest { id, .. } => {
                    self.strange.insert(id);
                    self.conns.push(id);
                }
                Event::SidrRequest { id, .. } => self.sidrs.push(id),
                Event::CheckPeer { id, .. } => {
                    assert!(self.strange.contains(&id), "{id:?} is doubted by a stranger");
                    self.machine.peer_checked(self.now, id, PeerAnswer::Answered);
                }
                Event::Established { id, .. }
                | Event::Rejected { id, .. }
                | Event::Disconnected { id, .. } => {
                    assert!(self.strange.contains(&id), "{id:?} is moved by a stranger: {event:?}");
                }
                Event::Unreachable { .. } | Event::SidrUnreachable { .. } if pushed_out > 0 => {
                    pushed_out -= 1
                }
                Event::TimeWaitExit { .. } if rests > 0 => rests -= 1,
                other => panic!("a stranger brings about {other:?}"),
            }
        }
    }

    /// A MAD of the machine comes back to it.
    fn own_again(&mut self, input: &mut Input) {
        if !self.sent.is_empty() {
            let mad = self.sent[input.below(self.sent.len())].encode();
            self.receive(&mad, input);
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        // A peer can choose a timer of a millisecond: bounded work, not one call a tick.
        for _ in 0..1000 {
            if self.machine.next_timer().is_none_or(|at| at > self.now) {
                return;
            }
            self.machine.poll_timers(self.now);
        }
        panic!("timers fire for ever");
    }

    fn call(&mut self, input: &mut Input) {
        let now = self.now;
        let qpn = Qpn::new(u32::from(input.u8() % 32));
        let service_id = Self::service(input);
        let path = Path { sgid: HERE, dgid: input.pick(&[THERE, HERE]), ..Path::default() };
        let data = vec![7; usize::from(input.u8())];
        let data = if data.len() > 240 { data } else { data[..data.len() % 30].to_vec() };
        let timing = Timing {
            packet_lifetime: input.u8() % 33,
            remote_response: input.u8() % 33,
            local_response: input.u8() % 33,
            max_cm_retries: input.u8() % 17,
        };
        let conn = (!self.conns.is_empty()).then(|| self.conns[input.below(self.conns.len())]);
        let sidr = (!self.sidrs.is_empty()).then(|| self.sidrs[input.below(self.sidrs.len())]);
        let depth = input.u8() % 18;
        match (input.u8() % 11, conn, sidr) {
            (0 | 1, ..) => {
                let connect = Connect {
                    timing,
                    ip: Self::header(service_id),
                    private_data: data,
                    initiator_depth: depth,
                    ..Connect::new(service_id, path, qpn)
                };
                self.conns.extend(self.machine.connect(now, &connect));
            }
            (2 | 3, Some(id), _) => {
                let accept = Accept { private_data: data, initiator_depth: depth, ..Accept::new(qpn) };
                let plan = self.machine.plan_accept(id, &accept);
                assert_eq!(self.machine.accept(now, id, &accept), plan, "a plan holds");
            }
            (4, Some(id), _) => {
                let _ = self.machine.reject(now, id, &Reject::consumer(data));
            }
            (5, Some(id), _) => {
                let _ = self.machine.confirm(now, id, &data);
            }
            (6, Some(id), _) => {
                let _ = self.machine.established(now, id);
            }
            (7, Some(id), _) => {
                let _ = self.machine.disconnect(now, id, &data);
            }
            (8, Some(id), _) => {
                let _ = self.machine.destroy(now, id);
            }
            (9, ..) => {
                let request = SidrRequest {
                    service_id,
                    path,
                    timing,
                    ip: Self::header(service_id),
                    private_data: data,
                };
                self.sidrs.extend(self.machine.sidr_request(now, &request));
            }
            (10, _, Some(id)) => {
                let reply = SidrReply {
                    status: SidrStatus(depth),
                    qpn,
                    qkey: 5,
                    info: data.clone(),
                    private_data: data,
                };
                if input.bool() {
                    let _ = self.machine.sidr_reply(now, id, &reply);
                } else {
                    let _ = self.machine.sidr_destroy(self.now, id);
                }
            }
            _ => {}
        }
    }

    /// Takes all MADs and events.
    fn look(&mut self) {
        let mut sends = 0;
        while let Some(send) = self.machine.poll_send() {
            sends += 1;
            let mad = Mad::decode(&send.mad).expect("a MAD of connection management");
            assert_eq!(mad.encode(), send.mad, "nothing reserved is set");
            self.sent.push_front(mad);
        }
        // Of connections and exchanges one each, and what is sent once: of connections, and to strangers.
        assert!(sends <= CONNECTIONS + SIDRS + 2 * SENDS, "{sends} MADs wait");
        self.sent.truncate(12);
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::ConnectRequest { id, .. } => self.conns.push(id),
                Event::SidrRequest { id, .. } => self.sidrs.push(id),
                // Any answer.
                Event::CheckPeer { id, .. } => {
                    let answers = [PeerAnswer::Answered, PeerAnswer::Silent, PeerAnswer::NotAsked];
                    self.machine.peer_checked(self.now, id, answers[self.sent.len() % answers.len()]);
                }
                _ => {}
            }
        }
    }

    fn check(&self) {
        let m = &self.machine;
        assert!(m.connections() <= CONNECTIONS && m.half_open() <= HALF_OPEN && m.sidr_exchanges() <= SIDRS);
    }

    /// Nothing happens any more: only established connections are left; and when those are given up, nothing is.
    fn end(&mut self) {
        for _ in 0..3000 {
            let Some(at) = self.machine.next_timer() else { break };
            self.now = self.now.max(at);
            self.machine.poll_timers(self.now);
            while self.machine.poll_send().is_some() {}
        }
        assert_eq!(self.machine.next_timer(), None, "something goes on for ever");
        self.look();
        assert_eq!((self.machine.half_open(), self.machine.sidr_exchanges()), (0, 0));
        for id in std::mem::take(&mut self.conns) {
            let _ = self.machine.destroy(self.now, id);
        }
        for _ in 0..3000 {
            let Some(at) = self.machine.next_timer() else { break };
            self.now = self.now.max(at);
            self.machine.poll_timers(self.now);
            while self.machine.poll_send().is_some() {}
        }
        assert_eq!(self.machine.connections(), 0, "something is left");
        for qpn in 0..32 {
            assert!(!self.machine.qp_busy(Qpn::new(qpn)));
        }
    }
}
