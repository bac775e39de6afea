//! A port with two links, and a peer behind each: frames leave by the route to their peer, and a link that takes nothing for a while
//! delays only its own peer.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{all_rights, assert_no_completion, options, pump};
use verbs::port::{
    Armed, Build, Destination, Farewell, Frame, Host, NoRoute, Port, PortLayer, PortOptions, PortQueue,
    PortStats, QueueLayer, Route, Routes, RxBurst, TxBurst, pair_with,
};
use verbs::{
    Ah, Clock, Context, Counter, Cq, DeviceConfig, Discard, Drive, Gid, Mac, Mr, Mtu, Pd, Qp, QpInitAttr,
    QpType, Qpn, RecvWr, SendWr, Wc, WcOpcode, WcStatus, ah_attr_to,
};

const HUB: [u8; 4] = [192, 0, 2, 1];
/// The peer behind each link.
const PEERS: [[u8; 4]; 2] = [[192, 0, 2, 11], [192, 0, 2, 12]];

/// How long a link may refuse everything before frames that wait for it are lost.
const TX_STALL: Duration = Duration::from_millis(20);

/// A port whose only address is that of a host.
struct OfHost {
    port: Box<dyn Port>,
    addr: IpAddr,
}

impl PortLayer for OfHost {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }
    fn host(&self) -> Option<&dyn Host> {
        Some(self)
    }
}

impl Host for OfHost {
    fn addresses(&self) -> Vec<IpAddr> {
        vec![self.addr]
    }
    fn generation(&self) -> u64 {
        0
    }
    fn source_to(&self, _: IpAddr, _: u32) -> Option<IpAddr> {
        Some(self.addr)
    }
    fn mtu_to(&self, _: IpAddr) -> Option<usize> {
        Some(4200)
    }
    fn join(&self, group: IpAddr) -> Result<(), verbs::port::PortError> {
        Err(verbs::port::PortError::Group { group, reason: "this host is in no groups".into() })
    }
    fn leave(&self, _: IpAddr) {}
    fn farewell(&self, _: Frame) -> Option<Box<dyn Farewell>> {
        None
    }
}

/// Two ports joined to one with two links.
struct Joined {
    ports: [Box<dyn Port>; 2],
    shut: Arc<[AtomicBool; 2]>,
    paces: Arc<[AtomicU64; 2]>,
}

impl PortLayer for Joined {
    fn inner(&self) -> &dyn Port {
        &*self.ports[0]
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let links = [self.ports[0].take_queue(index)?, self.ports[1].take_queue(index)?];
        Some(Box::new(Links { links, shut: self.shut.clone(), paces: self.paces.clone() }))
    }
    fn stats(&self) -> PortStats {
        let [a, b] = [0, 1].map(|n| self.ports[n].stats());
        let mut sum = PortStats::default();
        (sum.rx_frames, sum.tx_frames) = (a.rx_frames + b.rx_frames, a.tx_frames + b.tx_frames);
        (sum.rx_bytes, sum.tx_bytes) = (a.rx_bytes + b.rx_bytes, a.tx_bytes + b.tx_bytes);
        sum
    }
}

struct Links {
    links: [Box<dyn PortQueue>; 2],
    shut: Arc<[AtomicBool; 2]>,
    /// Most frames that each link takes in a burst; 0 for no limit.
    paces: Arc<[AtomicU64; 2]>,
}

impl Links {
    fn is_shut(&self, route: Route) -> bool {
        self.shut[usize::from(route.0)].load(Ordering::Relaxed)
    }
    fn pace(&self, route: Route) -> usize {
        self.paces[usize::from(route.0)].load(Ordering::Relaxed) as usize
    }
}

impl Routes for Links {
    fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute> {
        let link = PEERS.iter().position(|addr| to == Destination::Host((*addr).into())).expect("a peer");
        Ok(Route(link as u8))
    }
    fn segment_on(&mut self, _: Route) -> Option<Mtu> {
        None
    }
    fn longest_segment(&mut self) -> Option<Mtu> {
        None
    }
    fn next_ended(&mut self) -> Option<Route> {
        None
    }
}

impl QueueLayer for Links {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.links[0]
    }
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.links.iter_mut().map(|link| link.rx_burst(out)).sum()
    }
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        Some(self)
    }
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        if self.is_shut(route) {
            return 0;
        }
        let (pace, link) = (self.pace(route), &mut self.links[usize::from(route.0)]);
        if pace == 0 || frames.len() <= pace {
            return link.tx_burst(route, frames);
        }
        let mut first: TxBurst = frames.drain(..pace).collect();
        let sent = link.tx_burst(route, &mut first);
        first.extend(frames.drain(..));
        *frames = first;
        sent
    }
    fn arm(&mut self) -> Armed {
        Armed::Unable // two links have no common descriptor
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear(); // each frame returns to the pool that it came from
    }
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        if self.is_shut(route) {
            return Some(0);
        }
        if self.pace(route) > 0 {
            return None;
        }
        self.links[usize::from(route.0)].build_burst(route, most, builder)
    }
}

/// A device with its objects.
struct Node {
    context: Context,
    pd: Pd,
    mr: Mr,
}

const REGION: usize = 64 << 10;
const LONG: usize = 3000;

impl Node {
    fn new(config: DeviceConfig, clock: &Arc<AtomicU64>) -> Self {
        let config = config.drive(Drive::Embedded).clock(Clock::Manual(clock.clone()));
        let context = Context::open(config).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(REGION, all_rights()).unwrap();
        Self { context, pd, mr }
    }
}

/// A connection between the hub and a peer, with completion queues of its own.
struct Line {
    ours: Qp,
    theirs: Qp,
    our_sends: Cq,
    our_receives: Cq,
    their_sends: Cq,
}

/// A datagram queue pair and its completion queue.
fn datagrams(node: &Node, ty: QpType) -> (Qp, Cq) {
    let cq = node.context.create_cq(256).unwrap();
    let qp = node.pd.create_qp(&QpInitAttr::new(ty, &cq, &cq)).unwrap();
    qp.activate_ud(QKEY).unwrap();
    (qp, cq)
}

const QKEY: u32 = 0x1111_1111;

struct World {
    hub: Node,
    peers: [Node; 2],
    shut: Arc<[AtomicBool; 2]>,
    paces: Arc<[AtomicU64; 2]>,
    clock: Arc<AtomicU64>,
}

impl World {
    fn new() -> Self {
        // A port with a host's addresses sends to the Ethernet address next to its own.
        let options = |last| PortOptions { mac: Some(Mac([2, 0, 0, 0, 0, last])), ..PortOptions::default() };
        let link = || pair_with(&options(2), &options(3), Arc::new(|queue, _, _| queue));
        let [(hub_a, a), (hub_b, b)] = [link(), link()];
        let (clock, shut) = (Arc::new(AtomicU64::new(1)), Arc::<[AtomicBool; 2]>::default());
        let paces = Arc::<[AtomicU64; 2]>::default();
        let joined = Joined { ports: [hub_a, hub_b], shut: shut.clone(), paces: paces.clone() };
        let hub = OfHost { port: Box::new(joined), addr: HUB.into() };
        let hub = Node::new(DeviceConfig::new(Box::new(hub) as Box<dyn Port>), &clock);
        let peer = |port: Box<dyn Port>, addr| {
            let hub = options(2).mac.expect("it has one");
            Node::new(DeviceConfig::new(port).addr(addr, 24).neighbour(HUB, hub), &clock)
        };
        let peers = [peer(a, PEERS[0]), peer(b, PEERS[1])];
        Self { hub, peers, shut, paces, clock }
    }

    fn shut(&self, link: usize, on: bool) {
        self.shut[link].store(on, Ordering::Relaxed);
    }

    fn pump(&self) {
        [&self.hub, &self.peers[0], &self.peers[1]].into_iter().for_each(|node| pump(&node.context));
    }

    fn connect(&self, peer: usize) -> Line {
        let queue = |node: &Node| node.context.create_cq(4096).unwrap();
        let (hub, peer) = (&self.hub, &self.peers[peer]);
        let [our_sends, our_receives] = [queue(hub), queue(hub)];
        let their_sends = queue(peer);
        let ours = hub.pd.create_qp(&QpInitAttr::rc(&our_sends, &our_receives)).unwrap();
        let theirs = peer.pd.create_qp(&QpInitAttr::rc(&their_sends, &their_sends)).unwrap();
        let of = |sgid_index| options().sgid_index(sgid_index);
        ours.connect_rc(&theirs.endpoint(1).unwrap(), &of(0)).unwrap();
        theirs.connect_rc(&ours.endpoint(0).unwrap(), &of(1)).unwrap();
        Line { ours, theirs, our_sends, our_receives, their_sends }
    }

    /// Drives all devices until `n` requests have completed, successfully.
    fn take(&self, cq: &Cq, n: usize) -> Vec<Wc> {
        let (mut done, mut wc) = (Vec::new(), [Wc::default(); 16]);
        for _ in 0..10_000 {
            let room = (n - done.len()).min(wc.len());
            let got = cq.poll(&mut wc[..room]).unwrap();
            done.extend_from_slice(&wc[..got]);
            if done.len() == n {
                assert!(done.iter().all(Wc::is_ok), "{done:?}");
                return done;
            }
            self.pump();
        }
        panic!("{} of {n} completions: {done:?}", done.len());
    }

    /// The peer sends `n` messages, numbered from `first`; the hub has a receive for each.
    fn peer_sends(&self, line: &Line, first: u64, n: u64) {
        let wrs: Vec<_> = (first..first + n).map(|id| RecvWr::new(id, &[])).collect();
        line.ours.post_recv(&wrs).unwrap();
        let wrs: Vec<_> = (first..first + n).map(|id| SendWr::send(id, &[]).signaled()).collect();
        line.theirs.post_send(&wrs).unwrap();
    }

    /// The hub posts `n` WRITEs, numbered from `first`: short and long ones in turn.
    fn hub_writes(&self, line: &Line, peer: usize, first: u64, n: u64) {
        let remote = &self.peers[peer].mr;
        for id in first..first + n {
            let sge = [self.hub.mr.sge(0..if id % 2 == 0 { 8 } else { LONG }).unwrap()];
            let write = SendWr::write(id, &sge, remote.addr(), remote.rkey()).signaled();
            line.ours.post_send(&[write]).unwrap();
        }
    }
}

fn ids(done: &[Wc]) -> Vec<u64> {
    done.iter().map(|wc| wc.wr_id).collect()
}

// Goal: while a link takes nothing, the other peer notices nothing, whatever waits for the link: requests in frames and in the port's
// memory, and answers with the completions after them. When the link takes frames again everything continues, in order, and nothing was
// lost.
#[test]
fn a_link_that_takes_nothing_holds_up_its_own_peer_alone() {
    for stuck in [1, 0] {
        let w = World::new();
        let (free, lines) = (1 - stuck, [w.connect(0), w.connect(1)]);
        let (slow, fast) = (&lines[stuck], &lines[free]);
        // First both directions over both links.
        for (peer, line) in lines.iter().enumerate() {
            w.hub_writes(line, peer, 0, 8);
            w.peer_sends(line, 0, 8);
            assert_eq!(ids(&w.take(&line.our_sends, 8)), (0..8).collect::<Vec<_>>());
            assert_eq!(ids(&w.take(&line.our_receives, 8)), (0..8).collect::<Vec<_>>());
            w.take(&line.their_sends, 8);
        }

        w.shut(stuck, true);
        // More than the backlogs of a route can hold.
        w.hub_writes(slow, stuck, 100, 100);
        w.peer_sends(slow, 100, 100);
        for round in 0..50 {
            let first = 100 + 4 * round;
            w.hub_writes(fast, free, first, 4);
            w.peer_sends(fast, first, 4);
            let expected: Vec<u64> = (first..first + 4).collect();
            assert_eq!(ids(&w.take(&fast.our_sends, 4)), expected);
            assert_eq!(ids(&w.take(&fast.our_receives, 4)), expected, "round {round}");
            assert_eq!(ids(&w.take(&fast.their_sends, 4)), expected);
        }
        // No completion appears whose acknowledgement has not left yet.
        assert_no_completion(&w.hub.context, &slow.our_receives);
        assert_no_completion(&w.hub.context, &slow.our_sends);
        assert_no_completion(&w.peers[stuck].context, &slow.their_sends);

        w.shut(stuck, false);
        let expected: Vec<u64> = (100..200).collect();
        assert_eq!(ids(&w.take(&slow.our_receives, 100)), expected);
        assert_eq!(ids(&w.take(&slow.our_sends, 100)), expected);
        assert_eq!(ids(&w.take(&slow.their_sends, 100)), expected);
        for node in [&w.hub, &w.peers[0], &w.peers[1]] {
            let counters = node.context.counters();
            let dropped: Vec<_> = Discard::ALL.iter().filter(|why| counters.discarded(**why) > 0).collect();
            assert_eq!((dropped, counters.get(Counter::Retransmitted)), (vec![], 0), "{stuck}");
        }
    }
}

// Goal: packets that a link refuses for too long are dropped and counted on that link, their queue pair retransmits them, and the other
// peer notices nothing.
#[test]
fn what_a_link_refuses_for_too_long_is_lost_on_it_alone() {
    let w = World::new();
    let lines = [w.connect(0), w.connect(1)];
    w.shut(1, true);
    w.hub_writes(&lines[1], 1, 0, 20);
    w.peer_sends(&lines[1], 0, 20);
    for round in 0..10 {
        w.hub_writes(&lines[0], 0, round, 1);
        w.peer_sends(&lines[0], round, 1);
        w.take(&lines[0].our_sends, 1);
        w.take(&lines[0].our_receives, 1);
        w.clock.fetch_add(Duration::from_millis(5).as_nanos() as u64, Ordering::Relaxed);
    }
    assert!(w.hub.context.counters().discarded(Discard::TxStalled) > 0);
    assert_eq!(lines[0].ours.counters().get(Counter::Retransmitted), 0);
    // The messages have arrived, but their acknowledgements were dropped: both are sent again.
    w.shut(1, false);
    let mut received = Vec::new();
    for _ in 0..100 {
        w.clock.fetch_add(Duration::from_millis(100).as_nanos() as u64, Ordering::Relaxed);
        for _ in 0..50 {
            w.pump();
        }
        let mut wc = [Wc::default(); 32];
        let got = lines[1].our_receives.poll(&mut wc).unwrap();
        received.extend(ids(&wc[..got]));
    }
    assert_eq!(received, (0..20).collect::<Vec<_>>());
    assert_eq!(ids(&w.take(&lines[1].our_sends, 20)), (0..20).collect::<Vec<_>>());
    assert_eq!(ids(&w.take(&lines[1].their_sends, 20)), (0..20).collect::<Vec<_>>());
}

/// A datagram queue pair of the hub, and one at each peer.
struct Datagrams {
    hub: Qp,
    done: Cq,
    peers: [(Qp, Cq); 2],
    handles: [Ah; 2],
}

impl Datagrams {
    fn new(w: &World, ty: QpType) -> Self {
        let (hub, done) = datagrams(&w.hub, ty);
        let peers = [0, 1].map(|peer| datagrams(&w.peers[peer], ty));
        let handles = PEERS.map(|addr| w.hub.pd.create_ah(&ah_attr_to(Gid::v4(addr), 0)).unwrap());
        for ((qp, _), node) in peers.iter().zip(&w.peers) {
            for id in 0..32 {
                qp.post_recv(&[RecvWr::new(id, &[node.mr.sge(0..300).unwrap()])]).unwrap();
            }
        }
        Self { hub, done, peers, handles }
    }

    fn send(&self, id: u64, peer: usize) {
        let (qp, qkey) =
            (&self.peers[peer].0, if self.hub.qp_num() == Qpn::GSI { 0x8001_0000 } else { QKEY });
        let wr = SendWr::send(id, &[]).inline(b"datagram").to(&self.handles[peer], qp.qp_num(), qkey);
        self.hub.post_send(&[wr.signaled()]).unwrap();
    }
}

// Goal: each datagram of a queue pair leaves by the route to its own peer, and waits for that route only.
#[test]
fn datagrams_of_one_queue_pair_go_by_the_routes_of_their_peers() {
    let w = World::new();
    let d = Datagrams::new(&w, QpType::Ud);
    for id in 0..20 {
        d.send(id, (id % 2) as usize);
    }
    w.take(&d.done, 20);
    for (_, cq) in &d.peers {
        assert!(w.take(cq, 10).iter().all(|wc| wc.opcode == WcOpcode::Recv));
    }
    w.shut(1, true);
    for id in 20..24 {
        d.send(id, 1);
    }
    for id in 24..28 {
        d.send(id, 0);
    }
    assert_eq!(ids(&w.take(&d.peers[0].1, 4)), [10, 11, 12, 13]);
    assert_no_completion(&w.peers[1].context, &d.peers[1].1);
    w.shut(1, false);
    assert_eq!(ids(&w.take(&d.peers[1].1, 4)), [10, 11, 12, 13]);
    w.take(&d.done, 8);
}

// Goal: a datagram completes when the port has its own frame. Datagrams posted after it complete no earlier, by whichever route they leave,
// in one turn or in several.
#[test]
fn a_datagram_is_complete_when_its_own_frame_is_with_the_port() {
    for in_one_turn in [true, false] {
        let w = World::new();
        let d = Datagrams::new(&w, QpType::Ud);
        w.shut(1, true);
        for (id, peer) in (0..).zip([0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0]) {
            d.send(id, peer);
            if !in_one_turn {
                w.pump();
            }
        }
        assert_eq!(ids(&w.take(&d.done, 2)), [0, 1]);
        assert_eq!(w.take(&d.peers[0].1, 7).len(), 7, "they need not wait for the others");
        assert_no_completion(&w.hub.context, &d.done);
        w.shut(1, false);
        assert_eq!(ids(&w.take(&d.done, 10)), (2..12).collect::<Vec<_>>());
        assert_eq!(w.take(&d.peers[1].1, 5).len(), 5);
    }
}

// Goal: no MAD of queue pair 1 waits for another peer whose link takes nothing.
#[test]
fn no_mad_waits_for_the_link_of_another_peer() {
    let w = World::new();
    let (slow, d) = (w.connect(1), Datagrams::new(&w, QpType::Gsi));
    w.shut(1, true);
    w.hub_writes(&slow, 1, 0, 100);
    (0..10).for_each(|_| w.pump());
    for id in 0..8 {
        d.send(id, 1);
        d.send(10 + id, 0);
    }
    assert_eq!(w.take(&d.peers[0].1, 8).len(), 8);
    assert!(d.hub.counters().discarded(Discard::TxStalled) > 0, "the others are lost by name");
    w.take(&d.done, 16);
}

// Goal: a stopped peer delays a queue pair's datagrams to others once, for a moment, and not again while it is stopped: datagrams to it are
// dropped, counted, and complete in order. Packets of a connection to it wait, and it is reached as soon as it continues.
#[test]
fn a_peer_that_has_stopped_holds_up_datagrams_to_others_for_a_moment() {
    let w = World::new();
    let (slow, d) = (w.connect(1), Datagrams::new(&w, QpType::Ud));
    let lost = || w.hub.context.counters().discarded(Discard::TxStalled);
    w.shut(1, true);
    (0..60).for_each(|id| d.send(id, 1));
    (60..64).for_each(|id| d.send(id, 0));
    (0..50).for_each(|_| w.pump());
    assert_no_completion(&w.hub.context, &d.done);
    assert_eq!(lost(), 0, "it may go on in a moment");

    w.clock.fetch_add(TX_STALL.as_nanos() as u64, Ordering::Relaxed);
    // From here on the clock stands still.
    assert_eq!(ids(&w.take(&d.done, 64)), (0..64).collect::<Vec<_>>());
    assert_eq!((w.take(&d.peers[0].1, 4).len(), lost()), (4, 60));
    for id in 0..20 {
        d.send(id, (id % 2) as usize);
        assert_eq!(ids(&w.take(&d.done, 1)), [id]);
    }
    assert_eq!((w.take(&d.peers[0].1, 10).len(), lost()), (10, 70));

    // With a connection that waits for the stopped peer.
    w.hub_writes(&slow, 1, 0, 4);
    (0..4).for_each(|id| d.send(id, 1));
    assert_eq!((ids(&w.take(&d.done, 4)), lost()), (vec![0, 1, 2, 3], 74));
    w.shut(1, false);
    // The peer takes waiting packets first, and datagrams after them wait again.
    (4..12).for_each(|id| d.send(id, 1));
    assert_eq!(ids(&w.take(&d.done, 8)), (4..12).collect::<Vec<_>>());
    assert_eq!(w.take(&d.peers[1].1, 8).len(), 8);
    assert_eq!(ids(&w.take(&slow.our_sends, 4)), [0, 1, 2, 3]);
    assert_eq!((lost(), slow.ours.counters().get(Counter::Retransmitted)), (74, 0));
}

// Goal: however many queue pairs wait for a link that takes nothing, the others are served as fast as without them.
#[test]
fn queue_pairs_that_wait_for_a_link_take_nothing_from_the_others() {
    let w = World::new();
    let fast = w.connect(0);
    let slow: Vec<Line> = (0..200).map(|_| w.connect(1)).collect();
    let read = |id| {
        let sge = [w.peers[0].mr.sge(0..REGION).unwrap()];
        let read = SendWr::read(id, &sge, w.hub.mr.addr(), w.hub.mr.rkey()).signaled();
        fast.theirs.post_send(&[read]).unwrap();
        let mut wc = [Wc::default(); 1];
        let turns = (1..1000).find(|_| {
            w.pump();
            fast.their_sends.poll(&mut wc).unwrap() == 1
        });
        turns.expect("it is answered")
    };
    let before = read(0);
    w.shut(1, true);
    for (id, line) in (0..).zip(&slow) {
        w.peer_sends(line, id, 1);
        w.hub_writes(line, 1, 2 * id, 1);
    }
    (0..100).for_each(|_| w.pump());
    let after = read(1);
    assert!(after <= before + 2, "{after} turns instead of {before}");
    for line in &slow {
        nothing_yet(&line.our_receives);
    }
    w.shut(1, false);
    for (id, line) in (0..).zip(&slow) {
        assert_eq!(ids(&w.take(&line.our_receives, 1)), [id]);
        w.take(&line.our_sends, 1);
        w.take(&line.their_sends, 1);
    }
}

fn nothing_yet(cq: &Cq) {
    assert_eq!(cq.poll(&mut [Wc::default(); 1]).unwrap(), 0);
}

// Goal: receives complete even if their link is never idle.
#[test]
fn receives_complete_over_a_link_that_always_has_more_to_send() {
    const TAKES: u64 = 4;
    let w = World::new();
    let (line, reader) = (w.connect(1), w.connect(1));
    w.paces[1].store(TAKES, Ordering::Relaxed);
    let read = |id| {
        let sge = [w.peers[1].mr.sge(0..REGION).unwrap()];
        let read = SendWr::read(id, &sge, w.hub.mr.addr(), w.hub.mr.rkey());
        reader.theirs.post_send(&[read]).unwrap();
    };
    (0..8).for_each(read);
    (0..20).for_each(|_| w.pump());
    w.peer_sends(&line, 0, 1);
    let (mut wc, mut turns) = ([Wc::default(); 1], 0);
    while line.our_receives.poll(&mut wc).unwrap() == 0 {
        read(8 + turns); // there are always more answers
        turns += 1;
        assert!(turns < 60, "it waits for a link without answers");
        w.pump();
    }
}

/// The route that [`RoutedPort`] knows: none yet; the network, which loses everything; a link; or none until the link delivers a frame.
#[derive(Clone, Default)]
struct Known(Arc<AtomicU64>);

impl Known {
    const NETWORK: u64 = 1;
    const LINK: u64 = 2;
    const AS_IT_BRINGS: u64 = 3;
    const NOBODY: u64 = 4;

    fn set(&self, way: u64) {
        self.0.store(way, Ordering::Relaxed);
    }
}

/// A port with a link that carries longer packets than the network, once its route is known.
struct RoutedPort {
    port: Box<dyn Port>,
    known: Known,
}

impl PortLayer for RoutedPort {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = self.port.take_queue(index)?;
        Some(Box::new(RoutedQueue { queue, known: self.known.clone() }))
    }
}

struct RoutedQueue {
    queue: Box<dyn PortQueue>,
    known: Known,
}

const NETWORK: Route = Route(0);
const LINK: Route = Route(1);

impl QueueLayer for RoutedQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.queue
    }
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        Some(self)
    }
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        if route == LINK {
            return self.queue.tx_burst(route, frames);
        }
        let lost = frames.len();
        frames.clear();
        lost
    }
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let got = self.queue.rx_burst(out);
        if got > 0 && self.known.0.load(Ordering::Relaxed) == Known::AS_IT_BRINGS {
            self.known.set(Known::LINK);
        }
        got
    }
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        if route == LINK { self.queue.build_burst(route, most, builder) } else { None }
    }
}

impl Routes for RoutedQueue {
    fn route_to(&mut self, _: Destination) -> Result<Route, NoRoute> {
        match self.known.0.load(Ordering::Relaxed) {
            Known::NETWORK => Ok(NETWORK),
            Known::LINK => Ok(LINK),
            Known::NOBODY => Err(NoRoute::Nobody),
            _ => Err(NoRoute::Pending),
        }
    }
    fn segment_on(&mut self, route: Route) -> Option<Mtu> {
        (route == LINK).then_some(Mtu::Mtu4096)
    }
    fn longest_segment(&mut self) -> Option<Mtu> {
        Some(Mtu::Mtu4096)
    }
    fn next_ended(&mut self) -> Option<Route> {
        None
    }
}

/// Two connected nodes, each with its route to the other: the first knows the link, the second none yet.
struct Pair {
    nodes: [Node; 2],
    known: [Known; 2],
    cqs: [Cq; 2],
    qps: [Qp; 2],
    clock: Arc<AtomicU64>,
}

impl Pair {
    fn new() -> Self {
        let mtu = |last| PortOptions { mac: Some(Mac([2, 0, 0, 0, 0, last])), ..PortOptions::default() };
        let (a, b) = pair_with(&mtu(2), &mtu(3), Arc::new(|queue, _, _| queue));
        let (clock, known) = (Arc::new(AtomicU64::new(1)), <[Known; 2]>::default());
        known[0].set(Known::LINK);
        let node = |port, addr: [u8; 4], known: &Known| {
            let port =
                OfHost { port: Box::new(RoutedPort { port, known: known.clone() }), addr: addr.into() };
            Node::new(DeviceConfig::new(Box::new(port) as Box<dyn Port>), &clock)
        };
        let nodes = [node(a, PEERS[0], &known[0]), node(b, PEERS[1], &known[1])];
        let cqs = [0, 1].map(|n| nodes[n].context.create_cq(16).unwrap());
        let qps = [0, 1].map(|n| nodes[n].pd.create_qp(&QpInitAttr::rc(&cqs[n], &cqs[n])).unwrap());
        let of = options().sgid_index(0).path_mtu(Mtu::Mtu1024);
        qps[0].connect_rc(&qps[1].endpoint(0).unwrap(), &of).unwrap();
        qps[1].connect_rc(&qps[0].endpoint(0).unwrap(), &of).unwrap();
        Self { nodes, known, cqs, qps, clock }
    }

    /// Writes `len` bytes from a node to the other one.
    fn write(&self, node: usize, wr_id: u64, len: usize) {
        let (sge, remote) = ([self.nodes[node].mr.sge(0..len).unwrap()], &self.nodes[1 - node].mr);
        let write = SendWr::write(wr_id, &sge, remote.addr(), remote.rkey()).signaled();
        self.qps[node].post_send(&[write]).unwrap();
    }

    /// Drives both until each has this completion.
    fn take_from_each(&self, wr_id: u64) {
        let mut done = [0, 1].map(|_| Vec::new());
        for _ in 0..10_000 {
            for (node, done) in done.iter_mut().enumerate() {
                pump(&self.nodes[node].context);
                let mut wc = [Wc::default()];
                let got = self.cqs[node].poll(&mut wc).unwrap();
                done.extend_from_slice(&wc[..got]);
            }
            // Half a millisecond; the timeouts are longer.
            self.clock.fetch_add(500_000, Ordering::Relaxed);
        }
        for done in done {
            assert!(done.iter().all(Wc::is_ok) && ids(&done) == [wr_id], "{done:?}");
        }
    }
}

// Goal: a peer that has found a link sends packets as long as the link carries. This end accepts them even if it has not found the link yet:
// its answers wait, and nothing is refused. (Between PID namespaces a link at first works in one direction only.)
#[test]
fn packets_of_a_link_are_taken_before_the_way_back_is_known() {
    let Pair { nodes, known, cqs, qps, .. } = Pair::new();
    let (sge, remote) = ([nodes[0].mr.sge(0..REGION).unwrap()], &nodes[1].mr);
    let write = SendWr::write(0, &sge, remote.addr(), remote.rkey()).signaled();
    let read = SendWr::read(1, &sge, remote.addr(), remote.rkey()).signaled();
    qps[0].post_send(&[write, read]).unwrap();
    let (mut done, mut wc) = (Vec::new(), [Wc::default()]);
    for turn in 0..10_000 {
        nodes.iter().for_each(|node| pump(&node.context));
        let got = cqs[0].poll(&mut wc).unwrap();
        done.extend_from_slice(&wc[..got]);
        if turn == 100 {
            assert!(done.is_empty(), "the way back is not known yet: {done:?}");
            known[1].set(Known::LINK);
        }
    }
    assert!(done.iter().all(Wc::is_ok) && ids(&done) == [0, 1], "{done:?}");
    // Two requests of sixteen packets; at the path MTU the first alone would take sixty-four.
    let stats = nodes[1].context.port_stats();
    assert!(stats.rx_frames < 40, "{} frames", stats.rx_frames);
}

// Goal: a request that waits for its route continues even if another event finds the route: both ends have posted, and a packet of one end
// arrives over the link, from which the other end learns the route at that moment.
#[test]
fn a_request_goes_on_though_a_packet_of_the_peer_finds_the_way() {
    let pair = Pair::new();
    pair.write(1, 7, 64);
    for _ in 0..10 {
        pump(&pair.nodes[1].context);
    }
    pair.write(0, 7, 64);
    pair.known[1].set(Known::AS_IT_BRINGS);
    pair.take_from_each(7);
}

// Goal: a request that was lost on the network, and waits for its answer while its route changes to a link, is retransmitted.
#[test]
fn a_request_that_was_lost_is_repeated_though_the_way_was_looked_for_meanwhile() {
    let pair = Pair::new();
    pair.known[1].set(Known::NETWORK);
    pair.write(1, 7, 64);
    pump(&pair.nodes[1].context);
    pair.known[1].set(0);
    pair.write(0, 7, 64);
    for _ in 0..200 {
        pair.nodes.iter().for_each(|node| pump(&node.context));
        pair.clock.fetch_add(10_000_000, Ordering::Relaxed);
    }
    pair.known[1].set(Known::LINK);
    pair.take_from_each(7);
}

// Goal: a request that is posted after the peer's process has ended fails like one that was outstanding then: no process has the queue pair
// number, so nothing is sent or retried. A process that gets the number later is reached.
#[test]
fn a_request_to_a_number_that_nobody_has_fails_at_once() {
    let pair = Pair::new();
    let [here, _] = &pair.nodes;
    let ended = |node: &Node| node.context.counters().get(Counter::PeersEnded);
    pair.known[0].set(Known::NOBODY);
    let gone = here.pd.create_qp(&QpInitAttr::rc(&pair.cqs[0], &pair.cqs[0])).unwrap();
    let of = options().sgid_index(0).path_mtu(Mtu::Mtu1024);
    gone.connect_rc(&pair.qps[1].endpoint(0).unwrap(), &of).unwrap();
    pump(&here.context);
    assert_eq!(ended(here), 0, "nothing is requested yet");
    let (sge, remote) = ([here.mr.sge(0..64).unwrap()], &pair.nodes[1].mr);
    let write = SendWr::write(5, &sge, remote.addr(), remote.rkey()).signaled();
    let before = here.context.port_stats().tx_frames;
    gone.post_send(&[write]).unwrap();
    pump(&here.context);
    let mut wc = [Wc::default()];
    assert_eq!(pair.cqs[0].poll(&mut wc).unwrap(), 1, "no retry is waited for");
    assert_eq!((wc[0].wr_id, wc[0].status), (5, WcStatus::RetryExcErr));
    assert_eq!((ended(here), here.context.port_stats().tx_frames), (1, before));

    // The route to the peer's number is looked up again: the first lookup failed.
    pair.known[1].set(Known::NOBODY);
    pump(&pair.nodes[1].context);
    pair.known.iter().for_each(|known| known.set(Known::LINK));
    pair.write(0, 7, 64);
    pair.write(1, 7, 64);
    pair.take_from_each(7);
}

// Goal: a message that a process sent before it ended is received, although its acknowledgement no longer reaches anybody.
#[test]
fn the_last_message_of_a_process_is_received() {
    let Pair { nodes, known, cqs, qps, .. } = Pair::new();
    let sges = [0, 1].map(|node| [nodes[node].mr.sge(0..64).unwrap()]);
    qps[1].post_recv(&[RecvWr::new(3, &sges[1])]).unwrap();
    qps[0].post_send(&[SendWr::send(3, &sges[0])]).unwrap();
    nodes.iter().for_each(|node| pump(&node.context));
    let mut wc = [Wc::default()];
    assert_eq!(cqs[1].poll(&mut wc).unwrap(), 0, "its acknowledgement has not left");
    known[1].set(Known::NOBODY);
    pump(&nodes[1].context);
    assert_eq!(cqs[1].poll(&mut wc).unwrap(), 1);
    assert_eq!((wc[0].wr_id, wc[0].status), (3, WcStatus::Success));
}
