//! Connection management under every fault: thousands of connections between nodes whose MADs are lost, duplicated and reordered,
//! whose programs accept, reject, hesitate and give up, and which die and come back.
//!
//! `CM_SEEDS` sets how many seeds run, `CM_SEED` runs one.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use sim::mads::{MadFaults, MadWorld};
use sim::rng::Rng;
use stack::cm::message::Message;
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Disconnect, Error, Event, IpHeader, Listen, Machine, PortSpace,
    Reject, ServiceId, SidrId, SidrReply, SidrRequest, SidrStatus, Timing, code,
};
use stack::id::Qpn;
use stack::port::fault::{Fault, Plan};
use stack::time::Instant;

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 4420);
/// The number of connections that a third host began.
const FORGED: u32 = u32::MAX;
const DATAGRAMS: ServiceId = ServiceId::new(PortSpace::Udp, 53);

/// The phase of one side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The REQ (active side) or the REP (passive side) was sent.
    Waiting,
    /// The program has to decide.
    Deciding,
    /// Established on this side.
    Up,
    /// This side disconnects.
    Closing,
    /// Over, and this side knows it.
    Over,
}

#[derive(Debug)]
struct Side {
    number: u32,
    active: bool,
    qpn: Option<Qpn>,
    phase: Phase,
    was_up: bool,
    /// When the program takes its next step.
    due: Instant,
    /// Queue pair of the other end, once known.
    remote: Option<Qpn>,
}

#[derive(Default, Debug)]
struct Report {
    connects: u32,
    established: u32,
    rejected: u32,
    unreachable: u32,
    given_up: u32,
    disconnected: u32,
    by_data: u32,
    deaths: u32,
    sidr: u32,
    sidr_answered: u32,
    qp_waited: u32,
    lies: u32,
    unmasked: u32,
    pushed_out: u32,
}

struct Run {
    w: MadWorld,
    rng: Rng,
    timing: Timing,
    base: Config,
    sides: Vec<BTreeMap<ConnId, Side>>,
    /// Sides that are over and whose id has ended, since the node's last start.
    gone: Vec<BTreeSet<ConnId>>,
    /// Datagram service requests without a result yet: own requests, and requests of others that the program never answers.
    sidrs: Vec<BTreeSet<SidrId>>,
    /// Queue pairs of each node in TIMEWAIT, and when they may be used again.
    rest: Vec<BTreeMap<Qpn, Instant>>,
    lives: Vec<u64>,
    /// The active side of each connection number. Numbers with a side on a node that died are in `excused`.
    active: BTreeMap<u32, (usize, ConnId)>,
    excused: BTreeSet<u32>,
    next_number: u32,
    /// Whether no MAD lives longer than TIMEWAIT: a late one would end the next connection of its queue pair. Queue pairs without a
    /// TIMEWAIT, after a refusal or a restart, are also not reused until late copies of their REQs are gone.
    dies_in_time: bool,
    /// When late copies of the REQs of a queue pair are gone.
    late: Vec<BTreeMap<Qpn, Instant>>,
    report: Report,
}

/// Longest time between two turns of a node.
const TURN: Duration = Duration::from_millis(2);
/// Number of queue pairs of a node.
const QPS: u32 = 24;

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let ms = Duration::from_millis;
        let mut path = Plan {
            delay: Duration::from_micros(rng.range(5, 500)),
            jitter: rng.pick(&[ms(1), ms(10), ms(20)]),
            late: rng.pick(&[ms(1), ms(10), ms(200)]),
            ..Plan::CLEAN
        };
        for (fault, rates) in [
            (Fault::Loss, [0, 10_000, 100_000, 300_000]),
            (Fault::Duplicate, [0, 0, 50_000, 300_000]),
            (Fault::LateDuplicate, [0, 0, 50_000, 300_000]),
            (Fault::Reorder, [0, 0, 300_000, 1_000_000]),
        ] {
            path = path.with(fault, rng.pick(&rates));
        }
        let timing = Timing {
            packet_lifetime: rng.range(8, 11) as u8,
            remote_response: rng.range(10, 13) as u8,
            local_response: rng.range(10, 13) as u8,
            max_cm_retries: rng.range(1, 15) as u8,
        };
        let mut base = Config { ack_delay: rng.range(6, 16) as u8, ..Config::default() };
        base.mra = rng.pick(&[None, Some(12), Some(16)]);
        base.limits.half_open_time = ms(rng.range(300, 2000));
        base.limits.half_open = rng.pick(&[8, 64]);
        base.limits.sends = rng.pick(&[4, 1024]);
        base.limits.under_way = rng.pick(&[1, 4, 128]);
        base.limits.under_way_time = ms(rng.range(1, 200));
        let nodes = rng.range(2, 4) as usize;
        // In half of the runs the network keeps to the packet lifetime that TIMEWAIT relies on.
        let rest = code::time(code::ack_timeout(timing.packet_lifetime, base.ack_delay));
        let dies_in_time = rng.one_in(2);
        if dies_in_time {
            (path.jitter, path.late) = (path.jitter.min(rest / 8), path.late.min(rest / 4));
            path.delay = path.delay.min(rest / 8);
        }
        let faults = MadFaults { path, lie_ppm: rng.pick(&[0, 200_000, 900_000]) };
        let mut w = MadWorld::new(seed, nodes, faults, |node| Self::config(&base, node, seed));
        for node in &mut w.nodes {
            Self::serve(node);
        }
        Self {
            w,
            rng,
            timing,
            base,
            sides: (0..nodes).map(|_| BTreeMap::new()).collect(),
            gone: vec![BTreeSet::new(); nodes],
            sidrs: vec![BTreeSet::new(); nodes],
            rest: vec![BTreeMap::new(); nodes],
            lives: vec![0; nodes],
            active: BTreeMap::new(),
            excused: BTreeSet::new(),
            next_number: 0,
            dies_in_time,
            late: vec![BTreeMap::new(); nodes],
            report: Report::default(),
        }
    }

    fn config(base: &Config, node: usize, seed: u64) -> Config {
        Config { ca_guid: 100 + node as u64, seed: seed ^ node as u64, ..base.clone() }
    }

    fn serve(node: &mut stack::cm::Machine) {
        for service_id in [SERVICE, DATAGRAMS] {
            node.listen(&Listen { service_id, address: None, backlog: 12 }).unwrap();
        }
    }

    fn later(&mut self, max_ms: u64) -> Instant {
        self.w.now.after_nanos(self.rng.below(max_ms * 1_000_000 + 1))
    }

    /// A queue pair that may be used now.
    fn free_qp(&mut self, node: usize) -> Option<Qpn> {
        let used: BTreeSet<Qpn> = self.sides[node].values().filter_map(|s| s.qpn).collect();
        let free: Vec<Qpn> = (0..QPS).map(|i| Qpn::new(0x100 + i)).filter(|q| !used.contains(q)).collect();
        // To the machine an unused queue pair is busy exactly while this test expects its TIMEWAIT, which ends with the machine's event.
        for qpn in &free {
            let resting = self.rest[node].contains_key(qpn);
            assert_eq!(self.w.nodes[node].qp_busy(*qpn), resting, "node {node} {qpn:?}");
            self.report.qp_waited += u32::from(resting);
        }
        let free: Vec<Qpn> = free.into_iter().filter(|q| !self.rest[node].contains_key(q)).collect();
        let (now, late) = (self.w.now, &self.late[node]);
        let free: Vec<Qpn> = free.into_iter().filter(|q| late.get(q).is_none_or(|u| *u <= now)).collect();
        (!free.is_empty()).then(|| self.rng.pick(&free))
    }

    fn connect(&mut self) {
        let nodes = self.w.nodes.len() as u64;
        let from = self.rng.below(nodes) as usize;
        let to = self.rng.below(nodes) as usize; // perhaps itself
        if self.w.dead[from] {
            return;
        }
        let Some(qpn) = self.free_qp(from) else { return };
        let number = self.next_number;
        self.next_number += 1;
        let ip = |node| MadWorld::gid(node).to_ip();
        let connect = Connect {
            ip: Some(IpHeader { src_port: 1, src: ip(from), dst: ip(to) }),
            timing: self.timing,
            private_data: number.to_be_bytes().to_vec(),
            ..Connect::new(SERVICE, MadWorld::path(from, to), qpn)
        };
        let now = self.w.now;
        let id = self.w.nodes[from].connect(now, &connect).unwrap();
        let due = if self.rng.one_in(20) { self.later(50) } else { Instant::FAR };
        let side = Side {
            number,
            active: true,
            qpn: Some(qpn),
            phase: Phase::Waiting,
            was_up: false,
            due,
            remote: None,
        };
        self.sides[from].insert(id, side);
        self.active.insert(number, (from, id));
        self.report.connects += 1;
    }

    fn sidr(&mut self) {
        let nodes = self.w.nodes.len() as u64;
        let (from, to) = (self.rng.below(nodes) as usize, self.rng.below(nodes) as usize);
        if self.w.dead[from] {
            return;
        }
        let ip = |node| MadWorld::gid(node).to_ip();
        let request = SidrRequest {
            service_id: DATAGRAMS,
            path: MadWorld::path(from, to),
            timing: self.timing,
            ip: Some(IpHeader { src_port: 1, src: ip(from), dst: ip(to) }),
            private_data: Vec::new(),
        };
        let now = self.w.now;
        let id = self.w.nodes[from].sidr_request(now, &request).unwrap();
        self.sidrs[from].insert(id);
        self.report.sidr += 1;
    }

    /// Marks a side as over, with or without a TIMEWAIT of its queue pair.
    fn over(&mut self, node: usize, id: ConnId, rests: bool) {
        let side = self.sides[node].get_mut(&id).expect("a side that is there");
        assert_ne!(side.phase, Phase::Over, "{side:?} ends twice");
        side.phase = Phase::Over;
        side.due = Instant::FAR;
        let qpn = side.qpn.take();
        if rests {
            // At the earliest after the lifetime of its packets, which began in this turn.
            let until = self.w.now.after(self.lifetime().saturating_sub(TURN));
            self.rest[node].insert(qpn.expect("only what was connected rests"), until);
        } else {
            self.gone[node].insert(id);
            self.wait_for_late(node, qpn);
        }
    }

    /// Duration of TIMEWAIT.
    fn lifetime(&self) -> Duration {
        code::time(code::ack_timeout(self.timing.packet_lifetime, self.base.ack_delay))
    }

    fn wait_for_late(&mut self, node: usize, qpns: impl IntoIterator<Item = Qpn>) {
        if self.dies_in_time {
            let until = self.w.now.after(self.lifetime());
            self.late[node].extend(qpns.into_iter().map(|qpn| (qpn, until)));
        }
    }

    fn events(&mut self, node: usize) {
        while let Some(event) = self.w.event(node) {
            let now = self.w.now;
            match event {
                Event::ConnectRequest { id, request, .. } => {
                    let number = u32::from_be_bytes(*request.private_data.first_chunk().unwrap());
                    // A third host reused another node's request: such a request has no other side here.
                    let from = self.active.get(&number).map(|(from, _)| MadWorld::gid(*from));
                    let forged = from != Some(request.path.dgid);
                    let number = if forged { FORGED } else { number };
                    let due = self.later(20);
                    let side = Side {
                        number,
                        active: false,
                        qpn: None,
                        phase: Phase::Deciding,
                        was_up: false,
                        due,
                        remote: Some(request.remote_qpn),
                    };
                    assert!(self.sides[node].insert(id, side).is_none(), "an id comes once");
                }
                Event::ConnectResponse { id, response } => {
                    let due = self.later(5);
                    let side = self.sides[node].get_mut(&id).expect("of a request of ours");
                    assert!(side.active && side.phase == Phase::Waiting, "{side:?}");
                    assert_eq!(Some(response.params.qpn), side.qpn);
                    side.phase = Phase::Deciding;
                    side.remote = Some(response.params.dest_qpn);
                    side.due = due;
                }
                Event::Established { id, .. } => {
                    let due = self.later(100);
                    let side = self.sides[node].get_mut(&id).expect("of an accepted request");
                    assert!(!side.active && side.phase == Phase::Waiting, "{side:?}");
                    (side.phase, side.was_up, side.due) = (Phase::Up, true, due);
                    self.report.established += 1;
                }
                Event::Rejected { id, timewait, .. } => {
                    let side = &self.sides[node][&id];
                    assert!(!side.was_up, "{side:?} was established");
                    self.report.rejected += 1;
                    self.over(node, id, timewait);
                }
                Event::Unreachable { id, timewait } => {
                    let side = &self.sides[node][&id];
                    assert!(!side.was_up, "{side:?} was established");
                    self.report.unreachable += 1;
                    self.over(node, id, timewait);
                }
                Event::CheckPeer { .. } => unreachable!("the world answers for the peer"),
                Event::Disconnected { id, how, .. } => {
                    let side = &self.sides[node][&id];
                    assert!(side.was_up, "{side:?} was never established");
                    self.check_end(node, side, how);
                    self.report.disconnected += 1;
                    self.over(node, id, true);
                }
                Event::TimeWaitExit { id, qpn } => {
                    assert!(self.gone[node].insert(id), "an id ends once");
                    let until = self.rest[node].remove(&qpn);
                    // A destroyed established connection is disconnected first, and no event reports when that ends.
                    assert!(
                        until.is_some_and(|u| u <= now),
                        "node {node} {qpn:?} rested until {now:?}, not {until:?}"
                    );
                }
                Event::SidrRequest { id, .. } => {
                    let reply = SidrReply {
                        status: SidrStatus::SUCCESS,
                        qpn: Qpn::new(5),
                        qkey: 6,
                        info: Vec::new(),
                        private_data: Vec::new(),
                    };
                    match self.rng.below(4) {
                        // The program forgets to answer; the exchange times out.
                        0 => assert!(self.sidrs[node].insert(id), "an id comes once"),
                        1 => self.w.nodes[node].sidr_destroy(now, id).unwrap(),
                        _ => self.w.nodes[node].sidr_reply(now, id, &reply).unwrap(),
                    }
                }
                Event::SidrReply { id, .. } => {
                    assert!(self.sidrs[node].remove(&id), "one answer a question");
                    self.report.sidr_answered += 1;
                }
                Event::SidrUnreachable { id } => {
                    assert!(self.sidrs[node].remove(&id), "one end of a question");
                }
            }
        }
    }

    /// The program of one side takes its next step.
    fn act(&mut self, node: usize, id: ConnId) {
        let now = self.w.now;
        let side = &self.sides[node][&id];
        let (active, phase, number) = (side.active, side.phase, side.number);
        let choice = self.rng.below(12);
        match phase {
            Phase::Over | Phase::Closing => {}
            Phase::Deciding if choice == 0 => self.give_up(node, id),
            Phase::Deciding if choice == 1 => {
                self.w.nodes[node].reject(now, id, &Reject::consumer(vec![1; 5])).unwrap();
                self.report.given_up += 1;
                self.over(node, id, active);
            }
            // The program forgets to decide; the request must time out.
            Phase::Deciding if choice == 2 => self.sides[node].get_mut(&id).unwrap().due = Instant::FAR,
            Phase::Deciding if active => {
                self.w.nodes[node].confirm(now, id, b"").unwrap();
                let due = self.later(100);
                let side = self.sides[node].get_mut(&id).unwrap();
                (side.phase, side.was_up, side.due) = (Phase::Up, true, due);
                self.report.established += 1;
            }
            Phase::Deciding => {
                let Some(qpn) = self.free_qp(node) else { return };
                self.w.nodes[node].accept(now, id, &Accept::new(qpn)).unwrap();
                let due = self.later(100);
                let side = self.sides[node].get_mut(&id).unwrap();
                (side.phase, side.qpn, side.due) = (Phase::Waiting, Some(qpn), due);
            }
            Phase::Waiting if active => self.give_up(node, id),
            Phase::Waiting => {
                // Data of a peer that is established may arrive before its RTU.
                let qpn = side.qpn;
                let peer_up = self.active.get(&number).and_then(|(n, id)| self.sides[*n].get(id));
                let sends = peer_up.is_some_and(|p| p.phase == Phase::Up && p.remote == qpn);
                self.sides[node].get_mut(&id).unwrap().due = Instant::FAR;
                match choice {
                    0 => self.give_up(node, id),
                    1..=6 if sends => {
                        self.w.nodes[node].established(now, id).unwrap();
                        self.report.by_data += 1;
                    }
                    _ => {}
                }
            }
            Phase::Up if choice == 0 => self.give_up(node, id),
            Phase::Up => match self.w.nodes[node].disconnect(now, id, b"") {
                Ok(()) => self.sides[node].get_mut(&id).unwrap().phase = Phase::Closing,
                // The connection has ended: the event is in the queue, or the other side is stale.
                Err(Error::State { .. }) => self.sides[node].get_mut(&id).unwrap().due = Instant::FAR,
                Err(other) => panic!("{other}"),
            },
        }
    }

    fn give_up(&mut self, node: usize, id: ConnId) {
        let now = self.w.now;
        self.w.nodes[node].destroy(now, id).unwrap();
        self.report.given_up += 1;
        let side = &self.sides[node][&id];
        let rests = match (side.phase, side.active) {
            (Phase::Waiting, true) | (Phase::Deciding, false) => false,
            _ => side.qpn.is_some(),
        };
        self.over(node, id, rests);
    }

    /// Ends a node, or restarts it without its state.
    fn death(&mut self, node: usize) {
        if !self.w.dead[node] {
            self.w.dead[node] = true;
            self.report.deaths += 1;
            return;
        }
        self.w.dead[node] = false;
        self.lives[node] += 1;
        let seed = self.rng.next();
        self.w.restart(node, Self::config(&self.base, node, seed));
        Self::serve(&mut self.w.nodes[node]);
        let sides = std::mem::take(&mut self.sides[node]);
        self.excused.extend(sides.values().map(|s| s.number));
        self.gone[node].clear();
        self.rest[node].clear();
        self.sidrs[node].clear();
        self.wait_for_late(node, (0..QPS).map(|i| Qpn::new(0x100 + i)));
    }

    fn turn(&mut self, faulty: bool) {
        let tick = Duration::from_micros(self.rng.range(50, TURN.as_micros() as u64));
        self.w.run(tick);
        for node in 0..self.w.nodes.len() {
            if self.w.dead[node] {
                continue;
            }
            self.events(node);
            let now = self.w.now;
            let due: Vec<ConnId> =
                self.sides[node].iter().filter(|(_, s)| s.due <= now).map(|(id, _)| *id).collect();
            for id in due {
                // The previous step may have ended this side.
                self.events(node);
                if self.sides[node][&id].due <= now {
                    self.act(node, id);
                }
            }
        }
        if faulty {
            if self.rng.one_in(2) {
                self.connect();
            }
            if self.rng.one_in(8) {
                self.sidr();
            }
            let node = self.rng.below(self.w.nodes.len() as u64) as usize;
            if self.rng.one_in(if self.w.dead[node] { 60 } else { 300 }) {
                self.death(node);
            }
        }
    }

    /// Checks that an established connection is ended only by its peer or its owner.
    fn check_end(&self, node: usize, side: &Side, how: Disconnect) {
        let by_owner = side.phase == Phase::Closing || !self.dies_in_time;
        let stands = |other: &&Side| {
            other.number == side.number
                && other.active != side.active
                && other.phase == Phase::Up
                && (other.qpn, other.remote) == (side.remote, side.qpn)
        };
        let peer = self.sides.iter().flat_map(|sides| sides.values()).find(stands);
        assert!(
            by_owner || peer.is_none(),
            "node {node}: {side:?} ends by nobody ({how:?}): {peer:?} stands"
        );
        assert!(
            by_owner || !matches!(how, Disconnect::Agreed | Disconnect::TimedOut),
            "node {node}: {side:?} ends {how:?}, and nobody asked for it"
        );
    }

    /// Checks on the wire that no two connections of a node have the same communication id, and that none is zero.
    fn check_ids(&mut self) {
        let mut owner: BTreeMap<(u64, usize, u32), u64> = BTreeMap::new();
        for sent in self.w.log.take().unwrap_or_default() {
            let mad = sent.mad();
            let id = match &mad.message {
                Message::Req(m) => m.local_comm_id,
                Message::Rep(m) => m.local_comm_id,
                _ => continue,
            };
            assert_ne!(id, 0);
            let is_req = u64::from(matches!(mad.message, Message::Req(_)));
            // Most connections of a run are alive or in TIMEWAIT at the same time, so ids never repeat within a run.
            let tid = owner.entry((is_req, sent.from, id)).or_insert(mad.tid);
            assert_eq!(*tid, mad.tid, "node {} used comm id {id:#x} for two connections", sent.from);
        }
        self.w.log = Some(Vec::new());
    }

    /// Checks that both sides agree, or that a side that is not established knows why.
    fn check_agreement(&self) {
        for (number, (node, id)) in &self.active {
            if self.excused.contains(number) {
                continue;
            }
            let active = &self.sides[*node][id];
            let passives: Vec<&Side> = self
                .sides
                .iter()
                .flat_map(|s| s.values())
                .filter(|s| !s.active && s.number == *number)
                .collect();
            let partner = passives.iter().find(|p| p.qpn.is_some() && p.qpn == active.remote);
            if active.phase == Phase::Up && partner.is_none() {
                assert!(
                    passives.iter().any(|p| p.phase == Phase::Over),
                    "{active:?} stands alone, {passives:?}"
                );
            }
            for passive in passives.iter().filter(|p| p.phase == Phase::Up) {
                assert!(
                    matches!(active.phase, Phase::Up | Phase::Closing | Phase::Over) && active.was_up,
                    "{passive:?} stands, {active:?} never did"
                );
            }
        }
    }

    fn run(mut self) -> Report {
        for _ in 0..900 {
            self.turn(true);
        }
        self.check_ids();
        // The link loses nothing from now on, and every node is up.
        self.w.faults = MadFaults::NONE;
        for node in 0..self.w.nodes.len() {
            if self.w.dead[node] {
                self.death(node);
            }
        }
        for _ in 0..3000 {
            self.turn(false);
        }
        self.w.run(Duration::from_secs(20));
        for node in 0..self.w.nodes.len() {
            self.events(node);
        }
        for side in self.sides.iter().flat_map(|s| s.values()) {
            assert!(matches!(side.phase, Phase::Up | Phase::Over), "{side:?} waits for ever");
        }
        self.check_agreement();
        // Sides that are still established disconnect; after that nothing may be left.
        for node in 0..self.w.nodes.len() {
            let up: Vec<ConnId> =
                self.sides[node].iter().filter(|(_, s)| s.phase == Phase::Up).map(|(id, _)| *id).collect();
            for id in up {
                self.events(node);
                if self.sides[node][&id].phase == Phase::Up {
                    self.act(node, id);
                }
            }
        }
        self.w.run(Duration::from_secs(60));
        for node in 0..self.w.nodes.len() {
            self.events(node);
            let machine = &self.w.nodes[node];
            assert_eq!((machine.connections(), machine.half_open(), machine.sidr_exchanges()), (0, 0, 0));
            assert_eq!(machine.next_timer(), None, "no timer is left");
            assert!(self.sidrs[node].is_empty(), "every question was answered");
            assert!(self.rest[node].is_empty(), "every queue pair was given back");
            for (id, side) in &self.sides[node] {
                assert_eq!(side.phase, Phase::Over, "{side:?}");
                assert!(self.gone[node].contains(id), "{side:?} has not ended");
            }
        }
        self.report.lies = self.w.forger.lies as u32;
        let unmasked = |node: &Machine| node.counters().get(Counter::NotThePeer) as u32;
        self.report.unmasked = self.w.nodes.iter().map(unmasked).sum();
        let pushed_out = |node: &Machine| node.counters().get(Counter::PushedOut) as u32;
        self.report.pushed_out = self.w.nodes.iter().map(pushed_out).sum();
        self.report
    }
}

#[test]
fn m27_swarm_of_connections() {
    if let Some(seed) = std::env::var("CM_SEED").ok().and_then(|s| s.parse().ok()) {
        println!("{:?}", Run::new(seed).run());
        return;
    }
    let seeds = std::env::var("CM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(24);
    let mut sum = Report::default();
    for seed in 0..seeds {
        let report = std::panic::catch_unwind(|| Run::new(seed).run()).unwrap_or_else(|panic| {
            eprintln!("CM_SEED={seed} cargo test -p roce-stack --test all cm_swarm::");
            std::panic::resume_unwind(panic)
        });
        for (to, from) in [
            (&mut sum.connects, report.connects),
            (&mut sum.established, report.established),
            (&mut sum.rejected, report.rejected),
            (&mut sum.unreachable, report.unreachable),
            (&mut sum.given_up, report.given_up),
            (&mut sum.disconnected, report.disconnected),
            (&mut sum.by_data, report.by_data),
            (&mut sum.deaths, report.deaths),
            (&mut sum.sidr, report.sidr),
            (&mut sum.sidr_answered, report.sidr_answered),
            (&mut sum.qp_waited, report.qp_waited),
            (&mut sum.lies, report.lies),
            (&mut sum.unmasked, report.unmasked),
            (&mut sum.pushed_out, report.pushed_out),
        ] {
            *to += from;
        }
    }
    println!("{sum:?}");
    // Each kind of end and each kind of fault has occurred.
    let all = [sum.connects, sum.established, sum.rejected, sum.unreachable, sum.given_up, sum.disconnected];
    assert!(all.iter().all(|n| *n > 100), "{sum:?}");
    assert!(sum.by_data > 0 && sum.deaths > 10 && sum.sidr_answered > 100 && sum.qp_waited > 100, "{sum:?}");
    assert!(sum.pushed_out > 10, "{sum:?}");
    assert!(sum.lies > 10_000 && sum.unmasked > 1000, "{sum:?}");
}

// Goal: the checker of ends fires. A forger that uses the peer's own address is believed, so connections end although neither side ended
// them.
#[test]
fn a_connection_that_neither_side_ended_is_noticed() {
    let noticed = (0..40).any(|seed| {
        let mut run = Run::new(seed);
        (run.w.faults.lie_ppm, run.w.lies_as_peer) = (900_000, true);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.run()));
        result
            .err()
            .is_some_and(|panic| panic.downcast_ref::<String>().is_some_and(|s| s.contains("ends by nobody")))
    });
    assert!(noticed);
}

// Goal: connects and disconnects by the thousand on few queue pairs: each has its TIMEWAIT before it is reused, and nothing is left.
#[test]
fn m27_a_thousand_connects_and_disconnects() {
    let mut w = MadWorld::new(3, 2, MadFaults::NONE, |node| Run::config(&Config::default(), node, 9));
    w.log = None;
    Run::serve(&mut w.nodes[1]);
    let ip = |node| MadWorld::gid(node).to_ip();
    let rest = code::time(code::ack_timeout(16, 15));
    let mut ended: BTreeMap<Qpn, Instant> = BTreeMap::new();
    let mut refused = 0;
    for i in 0..1000u32 {
        let qpn = Qpn::new(0x100 + i % 8);
        let connect = Connect {
            ip: Some(IpHeader { src_port: 1, src: ip(0), dst: ip(1) }),
            ..Connect::new(SERVICE, MadWorld::path(0, 1), qpn)
        };
        let now = w.now;
        let resting = ended.get(&qpn).filter(|at| now < at.after(rest));
        let id = match (w.nodes[0].connect(now, &connect), resting) {
            (Ok(id), None) => id,
            (Err(Error::QpBusy(q)), Some(until)) => {
                assert_eq!(q, qpn);
                refused += 1;
                let left = until.after(rest).nanos_since(now);
                w.run(Duration::from_nanos(left));
                let now = w.now;
                w.nodes[0].connect(now, &connect).unwrap()
            }
            (result, resting) => panic!("{result:?} of a queue pair that rests since {resting:?}"),
        };
        let ms = Duration::from_millis(1);
        w.run(ms);
        let asked = std::iter::from_fn(|| w.event(1)).find_map(|e| match e {
            Event::ConnectRequest { id, .. } => Some(id),
            _ => None,
        });
        let now = w.now;
        w.nodes[1].accept(now, asked.unwrap(), &Accept::new(qpn)).unwrap();
        w.run(ms);
        let now = w.now;
        w.nodes[0].confirm(now, id, b"").unwrap();
        w.run(ms);
        let (now, by) = (w.now, (i % 2) as usize);
        w.nodes[by].disconnect(now, [id, asked.unwrap()][by], b"").unwrap();
        w.run(ms);
        let over = std::iter::from_fn(|| w.event(0))
            .any(|e| matches!(e, Event::Disconnected { id: i, .. } if i == id));
        assert!(over && w.nodes[0].qp_busy(qpn) && w.nodes[1].qp_busy(qpn));
        // Slightly later than the moment: the machine's timer began earlier.
        ended.insert(qpn, now.after(w.faults.path.delay * 2));
        assert!(w.nodes[0].connections() <= 8 && w.nodes[1].connections() <= 8);
    }
    assert!(refused > 100, "{refused} were too early");
    w.run(Duration::from_secs(1));
    for node in &w.nodes {
        assert_eq!((node.connections(), node.next_timer()), (0, None));
    }
}
