//! Arbitrary MADs to a device's connection manager, and arbitrary calls of its program: tests the machine, its service and queue pair 1
//! together.
//!
//! The bytes of an input are a sequence of operations, as in `sim::fuzz`. The fuzzer (`stack/fuzz`) and the tests run this file.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::cm::{World, addrs, any};
use stack::cm::{
    Accept, Config, ConnId, Connect, Event, IpHeader, Listen, MAD_LEN, Machine, Path, Reject, ServiceId,
    SidrRequest, Timing,
};
use stack::time::Instant;
use verbs::rdma_cm::{CmEventType, CmId, CmOption, ConnParam, EventChannel, IdState, PortSpace};
use verbs::{
    Ah, Clock, Counter, Cq, GRH_LEN, GSI_QKEY, Gid, Qp, QpInitAttr, QpType, Qpn, RecvWr, SendWr, Wc,
    ah_attr_to,
};

/// Steps of one input.
const OPS: usize = 120;
const PORT: u16 = 7471;
const BACKLOG: u32 = 3;
/// Most identifiers that the program holds.
const IDS: usize = 12;
/// Buffers of the peer.
const SLOTS: u64 = 48;
const SLOT: usize = 512;

/// Reads numbers from an input; after the end of the input they are zero.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n
    }
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// Runs an input; returns the names of the events that occurred, and of the counters that moved.
///
/// # Panics
/// If a listener keeps more than its backlog, or if an object is left at the end.
pub fn cm_service(data: &[u8]) -> BTreeSet<&'static str> {
    let mut input = Input(data);
    let mut run = Run::new(&mut input);
    for _ in 0..OPS {
        if input.0.is_empty() {
            break;
        }
        let op = input.u8();
        run.step(op, &mut input);
        run.carry(op & 0x80 != 0);
    }
    run.end()
}

struct Run {
    // Dropped in order: identifiers and queue pairs before their devices.
    ids: Vec<CmId>,
    listeners: Vec<CmId>,
    channel: EventChannel,
    peer: Peer,
    w: World,
    clock: Arc<AtomicU64>,
    reached: BTreeSet<&'static str>,
}

/// The other host: a correct machine, whose MADs may be lost, duplicated and modified on the way.
struct Peer {
    machine: Machine,
    conns: Vec<ConnId>,
    /// Received MADs, and sent ones.
    received: VecDeque<[u8; MAD_LEN]>,
    sent: VecDeque<[u8; MAD_LEN]>,
    ah: Ah,
    gsi: Qp,
    cq: Cq,
}

impl Peer {
    fn new(w: &World, seed: u8) -> Self {
        let mut config = Config { ca_guid: 7, seed: seed.into(), ..Config::default() };
        config.mra = (seed & 1 != 0).then_some(12);
        let mut machine = Machine::new(config);
        machine.set_gids(&[Gid::from_ip(addrs(false)[0])]);
        for space in [stack::cm::PortSpace::Tcp, stack::cm::PortSpace::Udp] {
            let listen = Listen { service_id: ServiceId::new(space, PORT), address: None, backlog: 4 };
            machine.listen(&listen).expect("nobody else listens");
        }
        let cq = w.a.context.create_cq(1024).unwrap();
        let mut init = QpInitAttr::new(QpType::Gsi, &cq, &cq);
        (init.cap.max_inline_data, init.cap.max_send_wr) = (MAD_LEN as u32, 64);
        init.cap.max_recv_wr = SLOTS as u32;
        let gsi = w.a.pd.create_qp(&init).unwrap();
        gsi.activate_ud(GSI_QKEY).unwrap();
        let ah = w.a.pd.create_ah(&ah_attr_to(Gid::from_ip(addrs(false)[1]), 1)).unwrap();
        let (received, sent) = (VecDeque::new(), VecDeque::new());
        let peer = Self { machine, conns: Vec::new(), received, sent, ah, gsi, cq };
        (0..SLOTS).for_each(|slot| peer.post_recv(w, slot));
        // A MAD that is sent before B's Ethernet address is known is lost.
        w.until("B to be found", || {
            peer.send(&[]);
            (peer.gsi.counters().get(Counter::TxFrames) > 0).then_some(())
        });
        peer
    }

    fn post_recv(&self, w: &World, slot: u64) {
        let at = slot as usize * SLOT;
        let sge = [w.a.mr.sge(at..at + GRH_LEN + MAD_LEN).unwrap()];
        self.gsi.post_recv(&[RecvWr::new(slot, &sge)]).unwrap();
    }

    fn send(&self, mad: &[u8]) {
        // If the queue is full, the MAD is lost.
        let _ = self.gsi.post_send(&[SendWr::send(SLOTS, &[]).inline(mad).to(&self.ah, Qpn::GSI, GSI_QKEY)]);
    }

    /// Receives the MADs that have arrived.
    fn receive(&mut self, w: &World) {
        let mut wc = [Wc::default(); 32];
        let n = self.cq.poll(&mut wc).unwrap();
        for wc in wc[..n].iter().filter(|wc| wc.opcode.is_recv()) {
            let mut mad = [0; MAD_LEN];
            w.a.mr.read(wc.wr_id as usize * SLOT + GRH_LEN, &mut mad).unwrap();
            self.received.push_back(mad);
            self.post_recv(w, wc.wr_id);
        }
    }

    fn path() -> Path {
        let [from, to] = addrs(false).map(Gid::from_ip);
        Path { sgid: from, dgid: to, ..Path::default() }
    }

    fn header() -> Option<IpHeader> {
        let [src, dst] = addrs(false);
        Some(IpHeader { src_port: 9, src, dst })
    }

    fn conn(&self, input: &mut Input<'_>) -> Option<ConnId> {
        (!self.conns.is_empty()).then(|| self.conns[input.below(self.conns.len())])
    }

    fn act(&mut self, now: Instant, input: &mut Input<'_>) {
        let qpn = Qpn::new(2 + u32::from(input.u8() % 8));
        let timing = Timing {
            packet_lifetime: 8,
            remote_response: 8 + input.u8() % 6,
            local_response: 8 + input.u8() % 6,
            max_cm_retries: input.u8() % 4,
        };
        let service = |space| ServiceId::new(space, PORT);
        match (input.u8() % 8, self.conn(input)) {
            (0 | 1, _) => {
                let to = service(stack::cm::PortSpace::Tcp);
                let connect = Connect { timing, ip: Self::header(), ..Connect::new(to, Self::path(), qpn) };
                self.conns.extend(self.machine.connect(now, &connect));
            }
            (2, _) => {
                let request = SidrRequest {
                    service_id: service(stack::cm::PortSpace::Udp),
                    path: Self::path(),
                    timing,
                    ip: Self::header(),
                    private_data: vec![3; 9],
                };
                let _ = self.machine.sidr_request(now, &request);
            }
            (3, Some(conn)) => drop(self.machine.accept(now, conn, &Accept::new(qpn))),
            (4, Some(conn)) => drop(self.machine.confirm(now, conn, &[])),
            (5, Some(conn)) => drop(self.machine.disconnect(now, conn, &[])),
            (6, Some(conn)) => drop(self.machine.destroy(now, conn)),
            (7, Some(conn)) => drop(self.machine.reject(now, conn, &Reject::consumer([1]))),
            _ => {}
        }
        self.look();
    }

    /// Passes received MADs to the machine.
    fn listen(&mut self, now: Instant) {
        while let Some(mad) = self.received.pop_front() {
            self.machine.handle_mad(now, &Self::path(), &mad);
        }
        self.look();
    }

    fn look(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            if let Event::ConnectRequest { id, .. } = event {
                self.conns.push(id);
            }
        }
    }
}

impl Run {
    fn new(input: &mut Input<'_>) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let w = World::with(|config| config.clock(Clock::Manual(clock.clone())));
        let peer = Peer::new(&w, input.u8());
        let channel = w.b.channel();
        let mut run = Self {
            ids: Vec::new(),
            listeners: Vec::new(),
            channel,
            peer,
            w,
            clock,
            reached: BTreeSet::new(),
        };
        run.serve();
        run
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.load(Ordering::Acquire))
    }

    fn id(&self, space: PortSpace) -> CmId {
        self.w.b.context.create_id(Some(&self.channel), space).unwrap()
    }

    /// Listens; requests that the previous listeners had fetched and not decided are dropped with them.
    fn serve(&mut self) {
        self.ids.retain(|id| id.state() != IdState::Requested);
        self.listeners.clear();
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            let listener = self.id(space);
            listener.bind_addr(any(PORT)).unwrap();
            listener.listen(BACKLOG).unwrap();
            self.listeners.push(listener);
        }
    }

    fn step(&mut self, op: u8, input: &mut Input<'_>) {
        let now = self.now();
        match op % 16 {
            0..=3 => self.peer.act(now, input),
            4 | 5 => self.peer.listen(now),
            6 => drop(self.peer.received.pop_front()),
            7 if !self.peer.sent.is_empty() => {
                let mut mad = self.peer.sent[input.below(self.peer.sent.len())];
                let at = input.below(MAD_LEN);
                for (byte, change) in mad[at..].iter_mut().zip(input.take(usize::from(op >> 4 & 7))) {
                    *byte ^= change;
                }
                self.peer.send(&mad);
            }
            8 => {
                let mut mad = [0; MAD_LEN];
                let bytes = input.take(MAD_LEN);
                mad[..bytes.len()].copy_from_slice(bytes);
                self.peer.send(&mad[..if op & 16 != 0 { bytes.len() } else { MAD_LEN }]);
            }
            9 => {
                self.clock.fetch_add(1_000_000 << input.below(18), Ordering::AcqRel);
                let now = self.now();
                for _ in 0..64 {
                    self.peer.machine.poll_timers(now);
                }
                self.peer.look();
            }
            10 | 11 => self.fetch(input),
            12..=14 => self.call(input),
            _ => self.serve(),
        }
    }

    /// The program fetches an event.
    fn fetch(&mut self, input: &mut Input<'_>) {
        let Some(mut event) = self.channel.try_get_event() else { return };
        self.reached.insert(event.event().name());
        if let Some(refusal) = event.refusal() {
            assert!(refusal.to_string().len() > 10);
        }
        if let Some(id) = event.take_id()
            && self.ids.len() < IDS
        {
            self.ids.push(id);
        }
        let Some(id) = self.ids.iter().find(|id| event.is_of(id)) else { return };
        // Fails if the program has made another call meanwhile.
        let _ = match event.event() {
            CmEventType::AddrResolved => id.resolve_route(Duration::ZERO),
            CmEventType::RouteResolved => {
                self.queue_pair(id);
                id.connect(&ConnParam::with_data(
                    input.take(usize::from(input.0.len().is_multiple_of(7)) * 5),
                ))
            }
            CmEventType::ConnectResponse => id.establish(),
            _ => Ok(()),
        };
    }

    fn queue_pair(&self, id: &CmId) {
        let mut init = QpInitAttr::new(id.qp_type(), &self.w.b.cq, &self.w.b.cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
        let _ = id.create_qp(&self.w.b.pd, &init); // there may be one
    }

    /// The program makes a call, valid or not.
    fn call(&mut self, input: &mut Input<'_>) {
        let choice = input.u8() % 8;
        if choice == 0 && self.ids.len() < IDS {
            let id = self.id(if input.u8() & 1 == 0 { PortSpace::Tcp } else { PortSpace::Udp });
            for option in
                [CmOption::CmResponseTimeout(8 + input.u8() % 6), CmOption::MaxCmRetries(input.u8() % 4)]
            {
                id.set_option(option).unwrap();
            }
            id.resolve_addr(None, SocketAddr::new(addrs(false)[0], PORT), Duration::from_secs(1)).unwrap();
            self.ids.push(id);
            return;
        }
        if self.ids.is_empty() {
            return;
        }
        let at = input.below(self.ids.len());
        let id = &self.ids[at];
        let _ = match choice {
            1 | 2 => {
                self.queue_pair(id);
                id.accept(&ConnParam::default())
            }
            3 => id.reject(&[2; 3]),
            4 => id.disconnect(),
            5 => id.destroy_qp(),
            6 => id.establish(),
            _ => {
                drop(self.ids.swap_remove(at));
                Ok(())
            }
        };
    }

    /// Transfers MADs both ways; with `lose`, those of the peer are lost.
    fn carry(&mut self, lose: bool) {
        for _ in 0..6 {
            while let Some(send) = self.peer.machine.poll_send() {
                if !lose {
                    self.peer.send(&send.mad);
                }
                self.peer.sent.push_front(send.mad);
            }
            self.peer.sent.truncate(16);
            self.w.pump();
            self.peer.receive(&self.w);
        }
    }

    /// Drops everything, and checks that nothing is left.
    fn end(mut self) -> BTreeSet<&'static str> {
        // Fetched requests belong to the program, and do not count in a backlog.
        let left = core::iter::from_fn(|| self.channel.try_get_event());
        let requests = left.filter(|event| event.event() == CmEventType::ConnectRequest).count();
        assert!(requests <= 2 * BACKLOG as usize, "{requests} requests wait, of two listeners");
        let moved = self.channel.counters().into_iter().filter(|(_, n)| *n > 0).map(|(name, _)| name);
        self.reached.extend(moved);
        let Self { ids, listeners, channel, peer, w, clock, reached } = self;
        drop((ids, listeners));
        clock.fetch_add(1_000_000_000_000, Ordering::AcqRel);
        (0..10).for_each(|_| w.pump());
        while let Some(event) = channel.try_get_event() {
            assert_eq!(event.event(), CmEventType::TimewaitExit, "of an identifier that is gone: {event:?}");
        }
        drop((channel, peer));
        w.close();
        reached
    }
}
