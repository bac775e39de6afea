//! Tests that cost grows only with work, and that shards write no memory in common. They count steps and compare addresses, and never
//! read a clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::qp::QpSpec;
use super::shared::{Shared, SharedConfig};
use super::state::Shard;
use crate::config::NEIGHBOUR_VISITS;
use crate::id::{Gid, Mac, Mtu, PdId, QpState, QpType, Qpn};
use crate::mark::steps;
use crate::net::{FRAME_MAX, Net, NetConfig};
use crate::port::{Port, PortQueue, Route, RxBurst, TxBurst, pair};
use crate::proto::attr::{AhAttr, AttrMask, GlobalRoute, QpAttr, QpCap};
use crate::proto::requester::Policies;
use crate::proto::status::WcStatus;
use crate::proto::status::{SendFlags, WrOpcode};
use crate::proto::wqe::{Cqe, Granule, RecvWqe, SendWqe, recv_stride, send_stride};
use crate::sync::lanes::{CqReader, cq};
use crate::sync::spsc::{Producer, ring};
use crate::time::Instant;

const IP: [u8; 4] = [10, 0, 0, 1];

/// A shard with queue pairs, each connected to its neighbour.
struct Rig {
    shard: Shard,
    shared: Arc<Shared>,
    sqs: Vec<Producer<Granule>>,
    rqs: Vec<Producer<Granule>>,
    cq: CqReader<Cqe>,
    now: u64,
    /// The port at the other end of the link.
    far: Box<dyn PortQueue>,
    _ports: [Box<dyn Port>; 2],
}

pub(super) fn shared(shards: usize, qps_per_shard: usize) -> Arc<Shared> {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let net = Net::new(&NetConfig { addrs: vec![(IP.into(), 24)], ..NetConfig::new(mac) });
    let gids: Vec<Gid> = net.gids().iter().collect();
    let config = SharedConfig {
        net,
        gids,
        mac,
        vlan: None,
        mtu: Mtu::Mtu4096,
        shards,
        qps_per_shard,
        computes_ids: None,
    };
    Arc::new(Shared::new(config))
}

impl Rig {
    fn new(qps: u32) -> Self {
        Self::to(qps, IP)
    }

    /// A rig whose queue pairs are connected to this address.
    fn to(qps: u32, peer: [u8; 4]) -> Self {
        let (port, other) = pair(1);
        let shared = shared(1, qps as usize);
        let queue = port.take_queue(0).unwrap();
        let mut shard = Shard::new(0, shared.clone(), queue, Instant::ZERO);
        let (cq, mut lanes) = cq::<Cqe>(64, 1);
        let lane = shard.attach_lane(lanes.remove(0));
        let (mut sqs, mut rqs) = (Vec::new(), Vec::new());
        for slot in 0..qps {
            let (sq, sq_end) = ring(1, send_stride(0, 1, 0));
            let (rq, rq_end) = ring(1, recv_stride(1));
            shard.create_qp(QpSpec {
                slot,
                qpn: number(slot),
                ty: QpType::Rc,
                pd: PdId(1),
                sq: sq_end,
                rq: rq_end.into(),
                send_lane: lane,
                recv_lane: lane,
                cap: QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() },
                policies: Policies::default(),
            });
            sqs.push(sq);
            rqs.push(rq);
            connect(&mut shard, slot, peer);
        }
        let mut rig = Self {
            shard,
            shared,
            sqs,
            rqs,
            cq,
            now: 0,
            far: other.take_queue(0).unwrap(),
            _ports: [port, other],
        };
        while !rig.shard.quiet() {
            rig.turn(); // the shard visits each new send queue once
        }
        rig
    }

    fn turn(&mut self) {
        self.turn_after(1000);
    }

    fn turn_after(&mut self, ns: u64) {
        self.now += ns;
        self.shard.poll_once(Instant::from_nanos(self.now));
    }

    /// Delivers a frame from the link.
    fn deliver(&mut self, bytes: &[u8]) {
        let mut frame = self.far.alloc().unwrap();
        assert!(frame.fill(bytes));
        assert_eq!(self.far.tx_burst(Route::default(), &mut TxBurst::from_iter([frame])), 1);
    }

    /// The frames that the shard sent to the link.
    fn sent_by_host(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Box::<RxBurst>::default();
        self.far.rx_burst(&mut burst);
        burst.drain(..).map(|frame| frame.data().to_vec()).collect()
    }

    /// Sends an empty message from a queue pair to its neighbour; returns the number of turns.
    fn message(&mut self, from: u32) -> u32 {
        let rq = &mut self.rqs[(from ^ 1) as usize];
        RecvWqe { wr_id: 0, epoch: 0, num_sge: 0 }.put(rq.slot(0).unwrap());
        rq.publish(1);
        let sq = &mut self.sqs[from as usize];
        SendWqe::new(1, WrOpcode::Send, SendFlags::SIGNALED).put(sq.slot(0).unwrap());
        sq.publish(1);
        self.shared.doorbells[0].ring(from);
        let (mut done, mut turns) = (0, 0);
        while done < 2 {
            self.turn();
            turns += 1;
            self.cq.poll_with(8, |cqe| {
                assert_eq!(cqe.status, WcStatus::Success);
                done += 1;
            });
            assert!(turns < 100, "{done} completions");
        }
        turns
    }
}

fn number(slot: u32) -> Qpn {
    Qpn::new(0x100 + slot * 7)
}

fn connect(shard: &mut Shard, slot: u32, peer: [u8; 4]) {
    type M = AttrMask;
    let grh =
        GlobalRoute { dgid: Gid::v4(peer), sgid_index: 1, hop_limit: 64, flow_label: 0, traffic_class: 0 };
    let mut attr = QpAttr {
        port_num: 1,
        path_mtu: Mtu::Mtu1024 as u8,
        dest_qp_num: number(slot ^ 1).get(),
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ah_attr: AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() },
        ..QpAttr::default()
    };
    let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.qp_state = state;
        shard.modify_qp(Instant::ZERO, slot, &attr, mask).unwrap();
    }
}

/// Many queue pairs, or timers: idle ones must cost nothing.
const MANY_QPS: u32 = 100_000;

// A turn takes no step for an idle queue pair, and a message takes as many steps among a hundred thousand queue pairs as among ten.
#[test]
fn idle_queue_pairs_cost_nothing() {
    let cost = |qps: u32| {
        let mut rig = Rig::new(qps);
        assert_eq!(rig.shard.connected_qps(), qps as usize);
        let start = steps();
        (0..100).for_each(|_| rig.turn());
        let idle = steps() - start;
        let start = steps();
        let turns = rig.message(4);
        (idle, turns, steps() - start)
    };
    let (few, many) = (cost(10), cost(MANY_QPS));
    assert_eq!((few.0, many.0), (0, 0), "steps of a hundred idle turns");
    assert_eq!(few.1, many.1, "turns of a message");
    // Two lookups by number, each of a few probes in a table at most half full, and a doorbell word in a group.
    assert!(few.2 > 0 && many.2 <= few.2 + 48, "{} and {} steps of a message", few.2, many.2);
}

const PEER: [u8; 4] = [10, 0, 0, 9];
const AT: Mac = Mac([2, 0, 0, 0, 0, 9]);
const ELSEWHERE: Mac = Mac([2, 0, 0, 0, 0, 0x66]);

/// A host with this IP address and this MAC address.
fn host(addr: [u8; 4], mac: Mac) -> Net {
    Net::new(&NetConfig { addrs: vec![(addr.into(), 24)], ..NetConfig::new(mac) })
}

/// The ARP frames of such a host: announcements by broadcast, and a request for the shard's address.
fn claims(addr: [u8; 4], mac: Mac) -> Vec<Vec<u8>> {
    let mut net = Net::new(&NetConfig::new(mac));
    net.add_address(addr.into(), 24);
    net.resolve(Instant::ZERO, &Gid::v4(IP));
    let mut out = [0; FRAME_MAX];
    let mut sent_by_host = Vec::new();
    while let Some(len) = net.poll_transmit(Instant::ZERO, &mut out) {
        sent_by_host.push(out[..len].to_vec());
    }
    sent_by_host
}

/// A shard whose queue pairs have all resolved the same peer.
fn found(qps: u32) -> Rig {
    let mut rig = Rig::to(qps, PEER);
    answer_from(&mut rig, AT);
    while rig.shard.next_deadline() == Some(Instant::from_nanos(rig.now)) {
        rig.turn();
    }
    assert_eq!(stations(&mut rig), [AT]);
    rig
}

/// Has the peer answer the frames that the shard sent, from this MAC address. Returns the number of answered frames.
fn answer_from(rig: &mut Rig, mac: Mac) -> usize {
    let (mut peer, mut asked) = (host(PEER, mac), 0);
    let now = Instant::from_nanos(rig.now);
    for frame in rig.sent_by_host() {
        let mut reply = [0; FRAME_MAX];
        if let Some(len) = peer.handle_frame(now, &frame, &mut reply) {
            asked += 1;
            rig.deliver(&reply[..len]);
        }
    }
    asked
}

/// The MAC addresses that the queue pairs send to.
fn stations(rig: &mut Rig) -> Vec<Mac> {
    let mut all: Vec<Mac> = rig.shard.qps.iter_mut().map(|qp| qp.template.dst_mac()).collect();
    all.dedup();
    all
}

// A stranger's frame costs as many steps with a hundred thousand queue pairs that send to one neighbour as with one.
#[test]
fn strangers_cost_the_same_whatever_the_number_of_queue_pairs() {
    let cost = |qps: u32| {
        let mut rig = found(qps);
        let mut most_steps = 0;
        for n in 0..2000u32 {
            let [_, _, _, d] = (n % 200 + 20).to_be_bytes();
            let stranger = Mac([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
            for frame in claims([10, 0, 0, d], stranger).into_iter().chain(claims(PEER, ELSEWHERE)) {
                rig.deliver(&frame);
                let start = steps();
                rig.turn();
                rig.turn();
                most_steps = most_steps.max(steps() - start);
            }
            answer_from(&mut rig, AT);
        }
        // The peer's entry grows old; it is probed again, and the peer confirms it.
        for _ in 0..8 {
            let start = steps();
            rig.turn_after(61_000_000_000);
            assert_eq!(answer_from(&mut rig, AT), 1, "one request, to the peer");
            rig.turn();
            most_steps = most_steps.max(steps() - start);
        }
        assert_eq!(stations(&mut rig), [AT]);
        most_steps
    };
    let few = cost(1);
    // The steps include a pass over the neighbour table.
    assert!(few > 0 && few < 2000, "{few} steps");
    assert_eq!(cost(MANY_QPS), few);
}

// When a neighbour has moved, all queue pairs that send to it follow, a bounded number in each turn.
#[test]
fn queue_pairs_follow_a_neighbour_that_moved_some_a_turn() {
    const QPS: u32 = 10_000;
    let mut rig = found(QPS);
    rig.turn_after(2_000_000_000);
    rig.deliver(&claims(PEER, ELSEWHERE)[0]);
    for _ in 0..100 {
        rig.turn_after(50_000_000);
        answer_from(&mut rig, ELSEWHERE); // the old Ethernet address no longer answers
        if stations(&mut rig) != [AT] {
            break;
        }
    }
    let (mut turns, mut most_steps) = (1, 0);
    while stations(&mut rig) != [ELSEWHERE] {
        let start = steps();
        rig.turn();
        most_steps = most_steps.max(steps() - start);
        turns += 1;
        assert!(turns <= QPS / NEIGHBOUR_VISITS as u32 + 2, "{turns} turns");
    }
    assert!(turns >= QPS / NEIGHBOUR_VISITS as u32, "{turns} turns");
    assert!(most_steps <= 8 * NEIGHBOUR_VISITS as u64, "{most_steps} steps in a turn");
}

// As many timers as queue pairs: a timer costs nothing before it is due, and a turn handles few of them at once.
#[test]
fn timers_of_others_cost_nothing() {
    let mut wheel = super::wheel::Wheel::new(Instant::ZERO);
    wheel.reserve(MANY_QPS);
    let at = |ns: u64| Instant::from_nanos(ns);
    let schedule = |wheel: &mut super::wheel::Wheel, id: u32| {
        let start = steps();
        wheel.schedule(id, at(67_000_000 + u64::from(id) * 10));
        steps() - start
    };
    let first = schedule(&mut wheel, 0);
    let most = (1..MANY_QPS).map(|id| schedule(&mut wheel, id)).max();
    assert_eq!(most, Some(first), "the last deadline costs what the first one cost");
    let start = steps();
    assert!(!wheel.expire(at(1_000_000), 64, |_| panic!("none is due")));
    assert_eq!(steps(), start, "none is due, none is looked at");
    let (mut fired, mut calls) = (0, 0);
    while fired < MANY_QPS {
        let start = steps();
        wheel.expire(at(100_000_000), 64, |_| fired += 1);
        assert!(steps() - start <= 2 * (64 + 256) + 1, "a call is bounded");
        calls += 1;
        assert!(calls <= MANY_QPS, "{fired} fired");
    }
}

// One rung doorbell among a hundred thousand is found without reading the words of the others.
#[test]
fn doorbells_of_others_cost_nothing() {
    let bells = crate::sync::doorbell::Doorbells::new(1 << 17);
    let start = steps();
    assert_eq!(bells.drain(64, |_| panic!("none rang")), 0);
    assert_eq!(steps(), start);
    for bell in [0, 77_777, (1 << 17) - 1] {
        bells.ring(bell);
        let start = steps();
        assert_eq!(bells.drain(64, |rang| assert_eq!(rang, bell)), 1);
        assert!((1..=64).contains(&(steps() - start)), "{} words", steps() - start);
    }
}

// What two shards write while they move packets lies on different cache lines: the turn number, the counters, the doorbells. So do the
// counters of two queue pairs.
#[test]
fn shards_write_no_line_in_common() {
    const LINE: usize = 64;
    for qps_per_shard in [1, 10, 4096, 100_000] {
        let shared = shared(4, qps_per_shard);
        let mut seen = BTreeSet::new();
        let mut take = |what: &str, shard: usize, at: usize, len: usize| {
            for line in at / LINE..=(at + len - 1) / LINE {
                assert!(seen.insert(line), "{what} of shard {shard} shares a line");
            }
        };
        for shard in 0..4 {
            let turn = &raw const shared.turn_counters[shard];
            take("the turn", shard, turn as usize, size_of_val(&shared.turn_counters[shard]));
            let counters = &raw const *shared.counters[shard];
            take("the counters", shard, counters as usize, size_of_val(&*shared.counters[shard]));
            for (at, len) in shared.doorbells[shard].written() {
                take("the doorbells", shard, at, len);
            }
        }
    }
    assert_eq!(align_of::<super::counters::QpCounters>() % LINE, 0);
    assert_eq!(align_of::<super::qp::Qp>() % LINE, 0);
}

// The state that a shard holds for each queue pair, without its rings and the requester's records of the requests in them.
#[test]
fn the_state_of_a_queue_pair_is_small() {
    use super::qp::Qp;
    assert!(size_of::<Qp>() <= 512, "{} bytes that packets touch", size_of::<Qp>());
    let mut rig = Rig::new(1024);
    let placed = |rig: &mut Rig, slot: u32| core::ptr::from_ref(rig.shard.qps.get(slot).unwrap()) as usize;
    assert!((0..1024).all(|slot| placed(&mut rig, slot) % 64 == 0));
}

// With very many queue pairs, bursts are received ahead of their handling, to prefetch for them. A waiting burst counts as work,
// and every frame is handled once.
#[test]
fn a_burst_received_early_is_work_to_do() {
    use crate::config::{RX_BURST, RX_BURSTS};
    const FRAMES: usize = RX_BURST * (RX_BURSTS + 1) + 5;
    let (a, b) = pair(1);
    let shared = shared(1, 1);
    let mut shard = Shard::new(0, shared, a.take_queue(0).unwrap(), Instant::ZERO);
    shard.prefetch_from(0);
    let mut peer = b.take_queue(0).unwrap();
    for _ in 0..FRAMES {
        let mut frame = peer.alloc().unwrap();
        frame.fill(&[0xff; 60]); // of a protocol that is not handled
        let mut burst = TxBurst::new();
        burst.push(frame);
        assert_eq!(peer.tx_burst(Route::default(), &mut burst), 1);
    }
    let now = Instant::from_nanos(1000);
    let first = shard.poll_once(now);
    assert_eq!((usize::from(first.rx), first.more), (RX_BURST * RX_BURSTS, true));
    assert_eq!(shard.next_deadline(), Some(now), "a burst is here");
    let second = shard.poll_once(now);
    assert_eq!((usize::from(second.rx), second.more), (FRAMES - RX_BURST * RX_BURSTS, false));
    assert_ne!(shard.next_deadline(), Some(now));
    assert!(shard.poll_once(now).idle());
}

// Bursts are received ahead until they bring enough messages: one burst of many messages, or several of few. Frames are handled in order,
// and once.
#[test]
fn bursts_are_received_early_until_they_bring_enough_messages() {
    use crate::config::{RX_BURST, RX_BURSTS};
    let bursts = |frames: usize, of_a_message: usize, most: usize| -> Vec<usize> {
        let (a, b) = pair(1);
        let mut shard = Shard::new(0, shared(1, 1), a.take_queue(0).unwrap(), Instant::ZERO);
        let mut peer = b.take_queue(0).unwrap();
        for n in 0..frames {
            let mut bytes = [0u8; 60];
            bytes[14] = 0x45;
            bytes[47..50].copy_from_slice(&((n / of_a_message) as u32).to_be_bytes()[1..]);
            bytes[59] = n as u8;
            let mut frame = peer.alloc().unwrap();
            frame.fill(&bytes);
            assert_eq!(peer.tx_burst(Route::default(), &mut TxBurst::from_iter([frame])), 1);
        }
        shard.lookahead.receive(&mut *shard.env.outbox.queue, &shard.qps, most);
        let (mut sizes, mut into) = (Vec::new(), Box::<RxBurst>::default());
        let mut seen = 0..=u8::MAX;
        while !shard.lookahead.is_empty() {
            shard.lookahead.take(&mut into, &shard.qps, &shard.env.shared.words);
            sizes.push(into.len());
            into.drain(..).for_each(|frame| assert_eq!(seen.next(), Some(frame.data()[59])));
        }
        sizes
    };
    const FULL: usize = RX_BURST;
    assert!(bursts(0, 1, RX_BURSTS).is_empty());
    assert_eq!(bursts(5, 1, RX_BURSTS), [5]);
    assert_eq!(bursts(4 * FULL, 1, RX_BURSTS), [FULL], "32 messages");
    assert_eq!(bursts(4 * FULL, 4, RX_BURSTS), [FULL], "8 messages");
    assert_eq!(bursts(4 * FULL, 8, RX_BURSTS), [FULL], "4 messages");
    assert_eq!(bursts(4 * FULL, 16, RX_BURSTS), [FULL; 2], "2 messages each");
    assert_eq!(bursts(3 * FULL + 4, 32, RX_BURSTS), [FULL, FULL, FULL, 4]);
    assert_eq!(bursts(5 * FULL, 32, RX_BURSTS), [FULL; RX_BURSTS]);
    assert_eq!(bursts(4 * FULL, 32, 1), [FULL]);
}
