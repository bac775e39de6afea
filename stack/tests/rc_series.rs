//! Compares series with single packets. Whatever is posted, answered, refused and lost: a requester that starts series where possible
//! sends the same packets, and has the same state afterwards, as one that is polled for each packet.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use sim::peer::{Pkt, ack_with, frame, pkt};
use stack::config::{ACK_REQ_STRIDE, WINDOW_PACKETS};
use stack::id::{Mtu, Psn, QpState, QpType};
use stack::proto::completer::Response;
use stack::proto::requester::{
    Idle, Policies, Requester, RequesterConfig, SendRing, SeriesKind, SeriesLimits, SeriesRequest, UNSHARED,
    Unbuilt,
};
use stack::proto::state::Gates;
use stack::proto::status::{SendFlags, WcStatus, WrOpcode};
use stack::proto::wqe::{Granule, SendWqe, send_stride};
use stack::sync::spsc::{Consumer, Producer, ring_at};
use stack::time::Instant;
use stack::wire::{Ext, Flow, Ingress, Opcode, locate};

const DEPTH: u32 = 64;
const RTS: Gates = Gates::of(QpState::Rts, QpType::Rc);
const SQD: Gates = Gates::of(QpState::Sqd, QpType::Rc);
/// Longer messages are not part of a series.
const LONGEST: u32 = 900;

/// The consumer's end of the send queue, as the shard has it.
struct Queue(Consumer<Granule>);

impl SendRing for Queue {
    fn published(&self) -> u32 {
        self.0.published()
    }
    fn slot(&self, seq: u32) -> &[Granule] {
        self.0.slot(seq)
    }
    fn contiguous(&self, seq: u32, max: u32) -> (&[Granule], usize) {
        (self.0.contiguous(seq, max), self.0.stride())
    }
}

/// The fields of a packet that a requester determines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SentPacket {
    opcode: Opcode,
    psn: Psn,
    ack_req: bool,
    solicited: bool,
    wr_id: u64,
    offset: u32,
    /// Bytes that a READ requests.
    asked: u32,
}

#[derive(Clone, Debug)]
struct Wr {
    opcode: WrOpcode,
    flags: SendFlags,
    length: u32,
    stale: bool,
}

#[derive(Clone, Debug)]
enum Op {
    /// Post the same request this many times.
    Post(Wr, u32),
    /// Send up to this many packets; the one with this index cannot be built.
    Send(u32, Option<u32>),
    /// Answer the oldest sent requests, with this credit code.
    Answer(u32, u8),
    /// Refuse the oldest unanswered packet with this syndrome.
    Nak(u8),
    /// Let a long time pass.
    Timeout,
    /// Change to SQD, and back.
    Drain,
    /// Change the share of what may be in flight.
    Share(u32),
}

fn wr() -> impl Strategy<Value = Wr> {
    let opcode = prop_oneof![
        4 => Just(WrOpcode::Send),
        1 => Just(WrOpcode::SendWithImm),
        1 => Just(WrOpcode::SendWithInv),
        3 => Just(WrOpcode::RdmaWrite),
        1 => Just(WrOpcode::RdmaWriteWithImm),
        3 => Just(WrOpcode::RdmaRead),
        1 => Just(WrOpcode::AtomicCmpAndSwp),
        2 => Just(WrOpcode::AtomicFetchAndAdd),
        1 => Just(WrOpcode::LocalInv),
    ];
    let length = prop_oneof![4 => 0..=256u32, 1 => Just(LONGEST), 1 => 257..2000u32, 1 => Just(1 << 31)];
    (opcode, 0..16u32, length, prop::bool::weighted(0.05)).prop_map(|(opcode, bits, length, stale)| Wr {
        opcode,
        // Every other request is signalled; the other flags are rarer.
        flags: SendFlags::from_bits_truncate(if bits & 8 == 0 { bits & 2 } else { bits & 7 }),
        length,
        stale,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (wr(), 1..40u32).prop_map(|(wr, n)| Op::Post(wr, n)),
        8 => (1..40u32, prop::option::weighted(0.02, 0..40u32)).prop_map(|(n, bad)| Op::Send(n, bad)),
        6 => (1..40u32, 0..32u8).prop_map(|(n, credits)| Op::Answer(n, credits)),
        1 => prop_oneof![Just(0x60), Just(0x21)].prop_map(Op::Nak),
        1 => Just(Op::Timeout),
        1 => Just(Op::Drain),
        1 => prop_oneof![Just(UNSHARED), 1..=64u32].prop_map(Op::Share),
    ]
}

struct Rig {
    tx: Producer<Granule>,
    sq: Queue,
    /// A requester with series, and one without.
    both: [Requester; 2],
    now: Instant,
    gates: Gates,
    posted: u64,
    /// Number of answered requests: the peer's MSN.
    answered: u32,
    mtu: Mtu,
    /// First sequence number of each request, by its tag.
    first: HashMap<u64, Psn>,
    /// Where the parts of READs end: packet indices, by the tag of the request.
    ends: HashMap<u64, BTreeSet<u32>>,
    share: u32,
    series: usize,
}

const EPOCH: u32 = 3;

impl Rig {
    fn new(start: u32, sq_psn: u32, timeout: u8, max_rd_atomic: u8, mtu: Mtu) -> Self {
        let (tx, rx) = ring_at(DEPTH, send_stride(0, 1, 0), start);
        let both = [(); 2].map(|()| {
            let mut requester = Requester::new(DEPTH, Policies::default());
            requester.reset(start);
            requester.start(&RequesterConfig {
                mtu,
                sq_psn: Psn::new(sq_psn),
                timeout,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic,
            });
            requester
        });
        let now = Instant::from_nanos(1_000);
        Self {
            tx,
            sq: Queue(rx),
            both,
            now,
            gates: RTS,
            posted: 0,
            answered: 0,
            mtu,
            first: HashMap::new(),
            ends: HashMap::new(),
            share: UNSHARED,
            series: 0,
        }
    }

    fn post(&mut self, wr: &Wr, n: u32) {
        for _ in 0..n {
            let Some(slot) = self.tx.slot(0) else { return };
            let mut wqe = SendWqe::new(self.posted, wr.opcode, wr.flags);
            let atomic = matches!(wr.opcode, WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd);
            wqe.length = if atomic { 8 } else { wr.length };
            wqe.epoch = EPOCH - u32::from(wr.stale);
            wqe.num_sge = 1;
            wqe.put(slot);
            self.tx.publish(1);
            self.posted += 1;
        }
    }

    /// Sends from both requesters; both get the same handling of each stop of `poll_transmit`.
    fn send(&mut self, n: u32, bad: Option<u32>) {
        let [with, without] = &mut self.both;
        let (now, gates, sq, share) = (self.now, self.gates, &self.sq, self.share);
        let mut packets = Vec::new();
        while (packets.len() as u32) < n {
            let room = n - packets.len() as u32;
            let limits = SeriesLimits { packets: room, bytes: LONGEST };
            let window = with.send_window(now, share);
            if let Some(series) = with.begin_series(&window, gates, EPOCH, sq, limits) {
                let (kind, opcode, solicited) = (series.kind(), series.opcode(), series.solicited());
                let mut places = vec![None; room as usize];
                let sent = packets.len() as u32;
                let bad = bad.filter(|_| !matches!(kind, SeriesKind::Read | SeriesKind::Atomic));
                let place = |SeriesRequest { index, slot, psn, ack_req }: SeriesRequest<'_>,
                             place: &mut Option<SentPacket>| {
                    let SendWqe { wr_id, length, .. } = *SendWqe::of(slot);
                    let asked = if kind == SeriesKind::Read { length } else { 0 };
                    if Some(sent + index) == bad {
                        return Err(Unbuilt);
                    }
                    *place = Some(SentPacket { opcode, psn, ack_req, solicited, wr_id, offset: 0, asked });
                    Ok(())
                };
                let (outcome, result) = match kind {
                    SeriesKind::Read => {
                        (series.reads(&mut places, |next, p| place(next, p).unwrap_or_default()), Ok(()))
                    }
                    SeriesKind::Atomic => {
                        (series.atomics(&mut places, |next, p| place(next, p).unwrap_or_default()), Ok(()))
                    }
                    _ => series.messages(&mut places, place),
                };
                let started = outcome.started();
                assert!(started > 0, "a series has a packet");
                with.end_series(outcome);
                packets.extend(places.into_iter().map_while(|place| place));
                self.series += usize::from(started > 1);
                if let Err(unsent) = result {
                    with.take_back(unsent, WcStatus::LocProtErr);
                    break;
                }
                assert_eq!(packets.len() as u32, sent + started);
                continue;
            }
            if !one(with, now, gates, sq, share, bad, &mut packets) {
                break;
            }
        }
        let mut wanted = Vec::new();
        while (wanted.len() as u32) < n && one(without, now, gates, sq, share, bad, &mut wanted) {}
        assert_eq!(packets, wanted);
        for packet in packets {
            let first = *self.first.entry(packet.wr_id).or_insert(packet.psn);
            if packet.opcode == Opcode::RC_READ_REQUEST {
                let behind = (packet.psn.diff(first) & 0xff_ffff) as u32 + self.mtu.packets(packet.asked);
                self.ends.entry(packet.wr_id).or_default().insert(behind - 1);
            }
        }
    }

    /// Passes a packet from the wire to both.
    fn receive(&mut self, packet: &Pkt) {
        let bytes = frame(&Flow::default(), packet);
        let Ok(Ingress::Roce(layout)) = locate(&bytes) else { panic!("a response is a packet") };
        let packet = layout.packet(&bytes);
        let results = self.both.each_mut().map(|requester| {
            let result = requester.handle_response(self.now, &packet, &self.sq);
            if let Ok(Response::Place { .. } | Response::PlaceAtomic { .. }) = result {
                requester.placed(self.now, packet.psn);
            }
            result
        });
        assert_eq!(results[0], results[1]);
    }

    /// Answers the oldest sent request, if any.
    fn answer(&mut self, credits: u8) {
        let Some((first, wqe)) = self.oldest() else { return };
        self.answered += 1;
        let msn = self.answered;
        match wqe.opcode() {
            WrOpcode::RdmaRead => {
                let ends = self.ends[&wqe.wr_id].clone();
                let (mtu, packets) = (self.mtu.bytes() as u32, ends.last().map_or(0, |end| end + 1));
                if packets > 100 {
                    return; // READs of as many packets as may be outstanding wait for each other
                }
                for i in 0..packets {
                    let opcode = match (i == 0 || ends.contains(&(i - 1)), ends.contains(&i)) {
                        (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                        (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                        (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                        (false, true) => Opcode::RC_READ_RESPONSE_LAST,
                    };
                    let len = (wqe.length - i * mtu).min(mtu);
                    let packet = pkt(opcode, first.add(i).get()).len(len as usize);
                    let middle = opcode == Opcode::RC_READ_RESPONSE_MIDDLE;
                    self.receive(&if middle { packet } else { packet.aeth(credits, msn) });
                }
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                self.receive(&pkt(Opcode::RC_ATOMIC_ACKNOWLEDGE, first.get()).atomic_ack(msn, 7));
            }
            _ => {
                let last = first.add(self.mtu.packets(wqe.length) - 1);
                self.receive(&ack_with(last.get(), credits, msn));
            }
        }
    }

    /// The first sequence number of the oldest request, if it was sent, and the request.
    fn oldest(&self) -> Option<(Psn, SendWqe)> {
        let head = self.both[0].head();
        if head == self.both[0].started() {
            return None;
        }
        let wqe = *SendWqe::of(self.sq.slot(head));
        Some((*self.first.get(&wqe.wr_id)?, wqe))
    }

    fn run(&mut self, op: &Op) {
        self.step(op);
        let [with, without] = &self.both;
        assert_eq!(format!("{with:?}"), format!("{without:?}"), "after {op:?}");
    }

    fn step(&mut self, op: &Op) {
        self.now = self.now.after_nanos(1_000);
        match op {
            Op::Post(wr, n) => self.post(wr, *n),
            Op::Send(n, bad) => self.send(*n, *bad),
            Op::Answer(n, credits) => (0..*n).for_each(|_| self.answer(*credits)),
            Op::Nak(syndrome) => {
                if let Some((first, _)) = self.oldest() {
                    self.receive(&ack_with(first.get(), *syndrome, self.answered));
                }
            }
            Op::Timeout => {
                self.now = self.now.after_nanos(1 << 40);
                let told = self.both.each_mut().map(|requester| requester.handle_timeout(self.now));
                assert_eq!(told[0], told[1]);
            }
            Op::Share(share) => self.share = *share,
            Op::Drain => {
                self.gates = if self.gates == RTS { SQD } else { RTS };
                if self.gates == SQD {
                    self.both.iter_mut().for_each(Requester::drain);
                }
            }
        }
        let head = self.both[0].head();
        self.sq.0.release_to(head);
    }
}

/// Packets that a queue pair without a shared window may send now.
fn waiting(requester: &Requester, now: Instant, sq: &Queue) -> u32 {
    requester.waiting(&requester.send_window(now, UNSHARED), sq)
}

/// Sends one packet by [`Requester::poll_transmit`]; returns whether there was one.
fn one(
    requester: &mut Requester,
    now: Instant,
    gates: Gates,
    sq: &Queue,
    share: u32,
    bad: Option<u32>,
    packets: &mut Vec<SentPacket>,
) -> bool {
    let segment = loop {
        let window = requester.send_window(now, share);
        match requester.poll_transmit(&window, gates, EPOCH, sq) {
            Ok(segment) => break segment,
            Err(Idle::Local(seq)) => requester.local_done(seq),
            Err(_) => return false,
        }
    };
    let wqe = SendWqe::of(segment.slot);
    let has_data =
        !matches!(wqe.opcode(), WrOpcode::RdmaRead | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd);
    if Some(packets.len() as u32) == bad && has_data {
        requester.take_back(segment.unsent(), WcStatus::LocProtErr);
        return false;
    }
    packets.push(SentPacket {
        opcode: segment.opcode,
        psn: segment.psn,
        ack_req: segment.ack_req,
        solicited: segment.solicited,
        wr_id: wqe.wr_id,
        offset: segment.offset,
        asked: match segment.ext {
            Ext::Reth(reth) if segment.opcode == Opcode::RC_READ_REQUEST => reth.len,
            _ => 0,
        },
    });
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 512 }, ..ProptestConfig::default() })]
    #[test]
    fn a_run_is_what_its_packets_are_one_by_one(
        start in prop_oneof![Just(0), u32::MAX - 70..=u32::MAX],
        sq_psn in prop_oneof![Just(0u32), 0xff_ffc0..=0xff_ffff_u32],
        timeout in prop_oneof![1 => Just(0u8), 3 => Just(14)],
        max_rd_atomic in 0..=16u8,
        mtu in prop_oneof![Just(Mtu::Mtu256), Just(Mtu::Mtu1024)],
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 8 } else { 60 }),
    ) {
        let mut rig = Rig::new(start, sq_psn, timeout, max_rd_atomic, mtu);
        for op in &ops {
            rig.run(op);
        }
    }
}

/// Ensures that the comparison above is not empty: a list of similar requests is one series, except at the end of the ring.
#[test]
fn a_list_of_like_requests_is_one_run() {
    let wr = Wr { opcode: WrOpcode::Send, flags: SendFlags::empty(), length: 64, stale: false };
    let mut rig = Rig::new(DEPTH - 8, 0, 14, 4, Mtu::Mtu1024);
    rig.receive(&ack_with(0xff_ffff, 0x1f, 0)); // credits without limit
    rig.run(&Op::Post(wr.clone(), 40));
    rig.run(&Op::Send(40, None));
    assert_eq!(rig.series, 2, "eight at the end of the ring, the others at its beginning");
    const { assert!(ACK_REQ_STRIDE < 40 && 40 < WINDOW_PACKETS, "the series crosses a packet that asks") };
}

/// Goal: every short history of a send queue gives the same packets wherever its positions and sequence numbers begin: across the wrap of
/// 32 and of 24 bits, and across the change of sign.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_short_history_is_the_same_wherever_numbers_begin() {
    let wr = |opcode, length| Wr { opcode, flags: SendFlags::empty(), length, stale: false };
    let ops = [
        Op::Post(wr(WrOpcode::RdmaWrite, 300), 1),
        Op::Post(wr(WrOpcode::RdmaRead, 300), 1),
        Op::Post(Wr { stale: true, ..wr(WrOpcode::Send, 0) }, 1),
        Op::Send(1, None),
        Op::Send(5, None),
        Op::Answer(1, 0x1f),
        Op::Nak(0x60),
        Op::Timeout,
    ];
    const LEN: u32 = 5;
    let starts = [
        (u32::MAX, 0x10),
        (u32::MAX - 1, 0xff_ffff),
        (u32::MAX - 2, 0xff_fffe),
        (i32::MAX as u32, 0x7f_ffff),
        (0x10, 0xff_fffc),
    ];
    let seen_from = |(start, sq_psn): (u32, u32), history: &[&Op]| {
        let mut rig = Rig::new(start, sq_psn, 14, 4, Mtu::Mtu256);
        let mut seen = Vec::new();
        for op in history {
            rig.step(op);
            let [with, without] = rig.both.each_ref().map(|requester| {
                [requester.head(), requester.started(), requester.next_to_send()]
                    .map(|at| at.wrapping_sub(start))
            });
            assert_eq!(with, without);
            let first = rig.oldest().map(|(first, wqe)| (first.sub(sq_psn), wqe.wr_id));
            seen.push((with, first, waiting(&rig.both[0], rig.now, &rig.sq)));
        }
        seen
    };
    for n in 0..ops.len().pow(LEN) {
        let history: Vec<&Op> = (0..LEN).map(|at| &ops[n / ops.len().pow(at) % ops.len()]).collect();
        let want = seen_from((0x1000, 0x1000), &history);
        for start in starts {
            assert_eq!(seen_from(start, &history), want, "{history:?} from {start:x?}");
        }
    }
}
