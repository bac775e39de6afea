//! The requester of a reliable connection against a scripted peer. Unless noted otherwise: PMTU 1024, PSN 0x100 both ways, timeout
//! 14, 7 retries of each kind, 4 READs and atomics. A `q` and a number name the case.

use std::time::Duration;

use sim::node::SendWr;
use sim::peer::{Pkt, REMOTE_KEY, REMOTE_VA, Rig, ack, ack_with, opcodes, pkt, psns};
use sim::seen::Seen;
use stack::config::{ACK_REQ_STRIDE, GAP_LONGEST, RETRY_PATIENCE, WINDOW_PACKETS};
use stack::id::{Mtu, PdId, Psn, QpState};
use stack::mem::{Access, Sge};
use stack::proto::attr::{AttrMask, QpAttr};
use stack::proto::requester::{Idle, Policies, Requester, RequesterConfig, Segment, SendRing, UNSHARED};
use stack::proto::state::Gates;
use stack::proto::status::{SendFlags, WcOpcode, WcStatus, WrOpcode};
use stack::proto::tables::{ack_timeout, rnr_delay};
use stack::proto::wqe::{Granule, SendWqe, put_sges, send_stride};
use stack::time::Instant;
use stack::wire::{Ext, Opcode, Reth};

use Opcode as O;
use WcStatus::{
    BadRespErr, LocLenErr, LocProtErr, RemAccessErr, RemInvReqErr, RemOpErr, RetryExcErr, RnrRetryExcErr,
    Success, WrFlushErr,
};
use WrOpcode::{AtomicCmpAndSwp, AtomicFetchAndAdd, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send};

const MS: Duration = Duration::from_millis(1);
/// The ACK timeout of the set-up.
const T: Duration = Duration::from_nanos(4096 << 14);

fn response(opcode: Opcode, psn: u32, len: usize) -> Pkt {
    let p = pkt(opcode, psn).len(len);
    if opcode == O::RC_READ_RESPONSE_MIDDLE { p } else { p.aeth(0x1f, 1) }
}

/// A rig whose peer never runs out of receives.
fn rig() -> Rig {
    with(|_| ())
}

fn with(change: impl FnOnce(&mut sim::peer::RigConfig)) -> Rig {
    let mut rig = Rig::with(|c| {
        c.receives = 0;
        change(c);
    });
    rig.unlimited();
    rig
}

fn reth(va: u64, len: u32) -> Ext {
    Ext::Reth(Reth { va, rkey: REMOTE_KEY, len })
}

#[test]
fn q01_psn_wraps_inside_a_message() {
    let mut rig = with(|c| c.qp.sq_psn = 0xff_fffe);
    let said = rig.post(&rig.wr(1, RdmaWrite, 5000));
    assert_eq!(psns(&said), [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    assert!(rig.done().is_empty());
    rig.send(&ack(2, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q03_packets_of_a_message() {
    for (len, packets) in [(0, 1), (1, 1), (1023, 1), (1024, 1), (1025, 2), (2048, 2), (2049, 3)] {
        for (opcode, names) in [
            (Send, [O::RC_SEND_ONLY, O::RC_SEND_FIRST, O::RC_SEND_MIDDLE, O::RC_SEND_LAST]),
            (RdmaWrite, [O::RC_WRITE_ONLY, O::RC_WRITE_FIRST, O::RC_WRITE_MIDDLE, O::RC_WRITE_LAST]),
        ] {
            let mut rig = rig();
            let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            rig.node.mr(rig.buf).write(0, &bytes);
            let said = rig.post(&rig.wr(1, opcode, len));
            let want = match packets {
                1 => vec![names[0]],
                2 => vec![names[1], names[3]],
                _ => vec![names[1], names[2], names[3]],
            };
            assert_eq!(opcodes(&said), want, "{opcode:?} of {len}");
            assert_eq!(said.iter().flat_map(|s| s.payload.clone()).collect::<Vec<_>>(), bytes);
            assert!(said.iter().rev().skip(1).all(|s| s.payload.len() == 1024 && !s.ack_req));
            assert!(said.last().unwrap().ack_req);
        }
    }
}

/// A send queue of one request, without memory.
struct OneRequest(Vec<Granule>);

impl SendRing for OneRequest {
    fn published(&self) -> u32 {
        1
    }
    fn slot(&self, _: u32) -> &[Granule] {
        &self.0
    }
}

/// The settings of a requester without a device.
fn config() -> RequesterConfig {
    RequesterConfig {
        mtu: Mtu::Mtu1024,
        sq_psn: Psn::new(0),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
    }
}

// Goal: the ACK timer of a packet starts when the packet left, even if every turn takes long, and is corrected only once.
#[test]
fn a_timer_is_corrected_once() {
    let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
    let mut wqe = SendWqe::new(1, RdmaWrite, SendFlags::SIGNALED);
    (wqe.length, wqe.num_sge) = (8, 1);
    wqe.put(&mut slot);
    let mut requester = Requester::new(1, Policies::default());
    requester.start(&config());
    let at = [0, 1, 2].map(|ms| Instant::from_nanos(ms * 1_000_000));
    let gates = Gates::of(QpState::Rts, stack::id::QpType::Rc);
    poll(&mut requester, at[0], gates, 0, &OneRequest(slot), UNSHARED).unwrap();
    assert!(requester.deadline() >= at[0].after(T));
    requester.left_by(at[0], at[1]);
    let deadline = requester.deadline();
    assert!(deadline >= at[1].after(T));
    requester.left_by(at[1], at[2]);
    assert_eq!(requester.deadline(), deadline);
}

// Goal: 2^31 bytes are one message of 524288 packets; the peer acknowledges at intervals.
#[test]
fn q04_write_of_2_31_bytes() {
    let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
    let mut wqe = SendWqe::new(1, RdmaWrite, SendFlags::SIGNALED);
    (wqe.remote_addr, wqe.rkey, wqe.length, wqe.num_sge) = (REMOTE_VA, REMOTE_KEY, 1 << 31, 1);
    put_sges(wqe.put(&mut slot), &[Sge { addr: 0, length: 1 << 31, lkey: 1 }]);
    let sq = OneRequest(slot);
    let mut requester = Requester::new(1, Policies::default());
    let config = RequesterConfig { mtu: Mtu::Mtu4096, sq_psn: Psn::new(0xff_0000), ..config() };
    requester.start(&config);
    let gates = Gates::of(QpState::Rts, stack::id::QpType::Rc);
    let now = Instant::from_nanos(1);
    let (mut packets, mut bytes, mut in_flight) = (0u32, 0u64, 0);
    let mut last = None;
    loop {
        match poll(&mut requester, now, gates, 0, &sq, UNSHARED) {
            Ok(segment) => {
                assert_eq!(segment.psn, Psn::new(0xff_0000).add(packets));
                assert_eq!(u64::from(segment.offset), bytes);
                if packets == 0 {
                    assert_eq!(segment.ext, reth(REMOTE_VA, 0x8000_0000));
                }
                packets += 1;
                in_flight += 1;
                bytes += u64::from(segment.len);
                last = Some(segment);
            }
            Err(Idle::Waiting) => {
                assert!(in_flight <= WINDOW_PACKETS);
                let acked = last.expect("something is sent").psn;
                assert!(last.is_some_and(|s| s.ack_req), "the window never closes without a question");
                acknowledge(&mut requester, now, acked, &sq);
                in_flight = 0;
            }
            Err(_) => break,
        }
    }
    assert_eq!((packets, bytes), (524_288, 1 << 31));
    assert_eq!(last.unwrap().offset, (1 << 31) - 4096);
    assert_eq!(requester.head(), 0);
    acknowledge(&mut requester, now, last.unwrap().psn, &sq);
    assert_eq!(requester.head(), 1, "complete");
}

/// A send queue of four requests, each accepted under an epoch, without memory.
struct Epochs {
    slots: [Vec<Granule>; 4],
    published: u32,
}

impl SendRing for Epochs {
    fn published(&self) -> u32 {
        self.published
    }
    fn slot(&self, seq: u32) -> &[Granule] {
        assert!(seq < self.published, "slot {seq} of {}", self.published);
        &self.slots[seq as usize % 4]
    }
}

// Goal: with nothing after it, a request of an earlier epoch is skipped. Found with threads that post while another resets: the requester
// read a slot that was not posted yet.
#[test]
fn the_last_request_of_an_earlier_epoch_is_passed_over() {
    let slot = |epoch| {
        let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
        let mut wqe = SendWqe::new(1, Send, SendFlags::SIGNALED);
        wqe.epoch = epoch;
        wqe.put(&mut slot);
        slot
    };
    let mut sq = Epochs { slots: [slot(1), slot(1), slot(0), slot(1)], published: 2 };
    let mut requester = Requester::new(2, Policies::default());
    requester.start(&config());
    let gates = Gates::of(QpState::Rts, stack::id::QpType::Rc);
    let now = Instant::from_nanos(1);
    for seq in 0..2 {
        assert_eq!(poll(&mut requester, now, gates, 1, &sq, UNSHARED).unwrap().seq, seq);
        acknowledge(&mut requester, now, Psn::new(seq), &sq);
    }
    sq.published = 3;
    assert_eq!(poll(&mut requester, now, gates, 1, &sq, UNSHARED).unwrap_err(), Idle::NothingToDo);
    assert_eq!(requester.head(), 3);
    sq.published = 4;
    assert_eq!(poll(&mut requester, now, gates, 1, &sq, UNSHARED).unwrap().seq, 3);
}

// Goal: a probe is over when the acknowledgement arrives before the probe left. A READ that may not be sent, posted next, fails. (The
// requester used to retry that READ for ever, in order to send the probe first.)
#[test]
fn a_probe_that_an_acknowledgement_overtakes_is_over() {
    let slot = |opcode| {
        let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
        SendWqe::new(1, opcode, SendFlags::empty()).put(&mut slot);
        slot
    };
    let mut sq = Epochs { slots: [RdmaWrite, RdmaRead, RdmaRead, RdmaRead].map(slot), published: 1 };
    let mut requester = Requester::new(4, Policies::default());
    requester.start(&RequesterConfig { max_rd_atomic: 0, ..config() });
    let gates = Gates::of(QpState::Rts, stack::id::QpType::Rc);
    let now = Instant::from_nanos(1);
    assert!(!poll(&mut requester, now, gates, 0, &sq, UNSHARED).unwrap().ack_req);
    requester.drain();
    acknowledge(&mut requester, now, Psn::new(0), &sq);
    sq.published = 2;
    assert_eq!(poll(&mut requester, now, gates, 0, &sq, UNSHARED).unwrap_err(), Idle::Failed);
}

// Goal: if a share shrinks below what is in flight, one more packet may leave if no packet in flight requested an acknowledgement.
#[test]
fn a_share_that_shrinks_leaves_a_packet_that_is_answered() {
    let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
    let mut wqe = SendWqe::new(1, RdmaWrite, SendFlags::empty());
    (wqe.length, wqe.num_sge) = (1 << 20, 1);
    put_sges(wqe.put(&mut slot), &[Sge { addr: 0, length: 1 << 20, lkey: 1 }]);
    let sq = OneRequest(slot);
    let mut requester = Requester::new(1, Policies::default());
    requester.start(&config());
    let (gates, now) = (Gates::of(QpState::Rts, stack::id::QpType::Rc), Instant::from_nanos(1));
    for _ in 0..5 {
        assert!(!poll(&mut requester, now, gates, 0, &sq, 100).unwrap().ack_req);
    }
    assert!(poll(&mut requester, now, gates, 0, &sq, 2).unwrap().ack_req);
    assert_eq!(poll(&mut requester, now, gates, 0, &sq, 2).unwrap_err(), Idle::Waiting);
    assert_eq!((requester.packets_in_flight(), waiting(&requester, now, &sq, 2)), (6, 0));
    acknowledge(&mut requester, now, Psn::new(5), &sq);
    assert_eq!(waiting(&requester, now, &sq, 2), 2);
}

/// The next packet of a queue pair that may have `share` packets in flight.
fn poll<'a>(
    requester: &mut Requester,
    now: Instant,
    gates: Gates,
    epoch: u32,
    sq: &'a impl SendRing,
    share: u32,
) -> Result<Segment<'a>, Idle> {
    let window = requester.send_window(now, share);
    requester.poll_transmit(&window, gates, epoch, sq)
}

/// Packets that the requester may send now.
fn waiting(requester: &Requester, now: Instant, sq: &impl SendRing, share: u32) -> u32 {
    requester.waiting(&requester.send_window(now, share), sq)
}

/// Passes an acknowledgement to the requester as if it came from the wire.
fn acknowledge(requester: &mut Requester, now: Instant, psn: Psn, sq: &impl SendRing) {
    let frame = sim::peer::frame(&stack::wire::Flow::default(), &ack(psn.get(), 1));
    let Ok(stack::wire::Ingress::Roce(layout)) = stack::wire::locate(&frame) else {
        panic!("an acknowledgement is a packet")
    };
    requester.handle_response(now, &layout.packet(&frame), sq).expect("it answers something");
}

#[test]
fn q05_one_acknowledgement_completes_three() {
    let mut rig = rig();
    let wrs = [1, 2, 3].map(|id| rig.wr(id, Send, 10));
    assert_eq!(psns(&rig.post_all(&wrs)), [0x100, 0x101, 0x102]);
    rig.send(&ack(0x102, 3));
    assert_eq!(rig.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn q06_q07_acknowledgements_of_nothing_outstanding() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 10));
    for psn in [0xff, 0x80, 0x101, 0x102, 0x100 + (1 << 22), 0x100 + (1 << 23)] {
        assert!(rig.send(&ack(psn, 1)).is_empty(), "{psn:#x}");
        assert!(rig.done().is_empty(), "{psn:#x}");
    }
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q08_acknowledgement_inside_a_message() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 4096));
    assert!(rig.send(&ack(0x101, 0)).is_empty());
    assert!(rig.done().is_empty());
    let said = rig.wait(T + MS);
    assert_eq!(opcodes(&said), [O::RC_SEND_MIDDLE, O::RC_SEND_LAST]);
    assert_eq!(psns(&said), [0x102, 0x103]);
}

#[test]
fn q09_sequence_nak_inside_a_message() {
    let mut rig = rig();
    rig.node.mr(rig.buf).write(0, &(0..4096).map(|i| (i / 7) as u8).collect::<Vec<_>>());
    let first = rig.post_all(&[rig.wr(1, Send, 8), rig.wr(2, RdmaWrite, 4096)]);
    let again = rig.send(&ack_with(0x103, 0x60, 1));
    assert_eq!(rig.done(), [(1, Success)]);
    assert_eq!(again.len(), 2);
    for (a, b) in again.iter().zip(&first[3..]) {
        assert_eq!((a.opcode, a.psn, a.ext, &a.payload), (b.opcode, b.psn, b.ext, &b.payload));
    }
    assert!(again[0].ack_req, "what goes out again asks for an answer");
}

#[test]
fn q10_sequence_nak_outside_of_the_window() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 10));
    for psn in [0xff, 0x101, 0x200] {
        assert!(rig.send(&ack_with(psn, 0x60, 0)).is_empty(), "{psn:#x}");
    }
    assert!(rig.done().is_empty());
}

#[test]
fn q11_last_packet_lost() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 2048));
    rig.send(&ack(0x100, 0));
    let said = rig.wait(T + MS);
    assert_eq!(opcodes(&said), [O::RC_SEND_LAST]);
    assert!(said[0].ack_req);
    rig.send(&ack(0x101, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

/// No program waits for an unsignalled request: it is acknowledged with a later one, or when the timer requests that.
#[test]
fn unsignalled_requests_ask_for_their_ack_late() {
    let mut rig = with(|c| (c.qp.send_depth, c.qp.retry_cnt) = (16, 0));
    let said = rig.post_all(&[rig.wr(2, Send, 8).unsignaled(), rig.wr(3, Send, 2000).unsignaled()]);
    assert_eq!(opcodes(&said), [O::RC_SEND_ONLY, O::RC_SEND_FIRST, O::RC_SEND_LAST]);
    assert!(said.iter().all(|s| !s.ack_req));
    // The timer sends the last packet again, which does not count as a retry: no retries are allowed here.
    let said = rig.wait(T + MS);
    assert_eq!(opcodes(&said), [O::RC_SEND_LAST]);
    assert!(said[0].psn == 0x102 && said[0].ack_req);
    rig.send(&ack(0x102, 2));
    assert_eq!(rig.node.sends_in_use(rig.qp), 0, "all slots are free");
    assert_eq!(rig.wait(T * 4).len(), 0);
    assert_eq!(rig.state(), QpState::Rts);
    // A signalled request requests an acknowledgement, and so does one that leaves less than half of the slots free.
    assert!(rig.post(&rig.wr(4, Send, 8))[0].ack_req);
    let wrs: Vec<SendWr> = (5..14).map(|id| rig.wr(id, Send, 8).unsignaled()).collect();
    let asked: Vec<bool> = rig.post_all(&wrs).iter().map(|s| s.ack_req).collect();
    assert_eq!(asked, [false, false, false, false, false, false, false, true, true]);
    // That request may be lost, too: then the peer counts as silent.
    rig.wait(T * 8);
    let status = |id| if id == 4 { RetryExcErr } else { WrFlushErr };
    assert_eq!(rig.done(), (4..14).map(|id| (id, status(id))).collect::<Vec<_>>());
}

/// SQD does not wait for the timer.
#[test]
fn sqd_asks_for_the_ack_of_unsignalled_requests() {
    let mut rig = rig();
    assert!(!rig.post(&rig.wr(2, Send, 8).unsignaled())[0].ack_req);
    let attr = QpAttr { qp_state: QpState::Sqd, ..QpAttr::default() };
    rig.node.modify(rig.now, rig.qp, &attr, AttrMask::STATE).unwrap();
    let said = rig.run();
    assert!(said.len() == 1 && said[0].psn == 0x100 && said[0].ack_req, "{said:?}");
}

/// Posts a request to a silent peer. Returns the times of its transmissions, from the first one on, and the rig.
fn silent(timeout: u8, retry_cnt: u8) -> (Vec<Duration>, Rig) {
    let mut rig = with(|c| (c.qp.timeout, c.qp.retry_cnt) = (timeout, retry_cnt));
    let start = rig.now;
    let mut said = rig.post_all(&[rig.wr(1, Send, 10), rig.wr(2, Send, 10).unsignaled()]);
    said.extend(rig.wait(Duration::from_secs(2)));
    let times = said.iter().filter(|s| s.psn == 0x100).map(|s| Duration::from_nanos(s.at.nanos_since(start)));
    (times.collect(), rig)
}

#[test]
fn q13_q14_q15_silent_peer() {
    let t = ack_timeout(8).unwrap();
    for retry_cnt in [3, 0, 7] {
        let (times, mut rig) = silent(8, retry_cnt);
        assert_eq!(times.len(), 1 + usize::from(retry_cnt));
        for (i, at) in times.iter().enumerate() {
            let due = t * i as u32;
            assert!((due..due * 4 + t).contains(at), "transmission {i} after {at:?}");
        }
        assert_eq!(rig.done(), [(1, RetryExcErr), (2, WrFlushErr)]);
        assert_eq!(rig.state(), QpState::Err);
    }
}

#[test]
fn answers_to_retries_are_waited_for_longer() {
    // Goal: at the usual timeout of 67 ms and 7 retries, a peer whose process does not run for a second is not taken for dead.
    let mut rig = with(|c| (c.qp.timeout, c.qp.retry_cnt) = (14, 7));
    let start = rig.now;
    let mut said = rig.post(&rig.wr(1, Send, 10));
    said.extend(rig.wait(Duration::from_secs(1)));
    let times: Vec<_> = said.iter().map(|s| Duration::from_nanos(s.at.nanos_since(start))).collect();
    assert!((T..T + MS).contains(&times[1]), "the first time-out is short: {times:?}");
    assert!(times[1..].windows(2).all(|two| (T * 3..T * 4).contains(&(two[1] - two[0] + MS))), "{times:?}");
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
    // A peer that sends a sequence NAK is alive: packets that are lost afterwards are resent soon.
    rig.post(&rig.wr(2, Send, 10));
    assert_eq!(rig.send(&ack_with(0x101, 0x60, 1)).len(), 1);
    assert_eq!(rig.wait(T + MS).len(), 1);
    rig.send(&ack(0x101, 2));
    // A long timeout is extended by a bounded time.
    let t = ack_timeout(17).unwrap();
    let mut rig = with(|c| (c.qp.timeout, c.qp.retry_cnt) = (17, 1));
    rig.post(&rig.wr(1, Send, 10));
    rig.wait(t * 2 + RETRY_PATIENCE + MS);
    assert_eq!(rig.done(), [(1, RetryExcErr)]);
}

#[test]
fn q16_no_timer() {
    let (times, mut rig) = silent(0, 7);
    assert_eq!(times.len(), 1);
    assert!(rig.done().is_empty());
    assert_eq!(rig.state(), QpState::Rts);
    assert_eq!(psns(&rig.send(&ack_with(0x100, 0x60, 0))), [0x100, 0x101], "a sequence NAK is still handled");
}

#[test]
fn q17_progress_renews_the_retries() {
    let mut rig = with(|c| c.qp.timeout = 8);
    let t = ack_timeout(8).unwrap();
    rig.post_all(&[rig.wr(1, Send, 10), rig.wr(2, Send, 10)]);
    let said = rig.wait(t * 11 / 2);
    assert_eq!(said.iter().filter(|s| s.psn == 0x100).count(), 2);
    rig.send(&ack(0x100, 1));
    let said = rig.wait(t * 30);
    assert_eq!(said.iter().filter(|s| s.psn == 0x101).count(), 7, "all seven retries again");
    assert_eq!(rig.done(), [(1, Success), (2, RetryExcErr)]);
}

#[test]
fn q18_rnr_delays() {
    for code in 0..32 {
        let mut rig = with(|c| c.qp.timeout = 20);
        rig.post(&rig.wr(1, Send, 10));
        let start = rig.now;
        assert!(rig.send(&ack_with(0x100, 0x20 | code, 0)).is_empty());
        let said = rig.wait(rnr_delay(code) * 2);
        assert_eq!(psns(&said), [0x100], "code {code}");
        let waited = Duration::from_nanos(said[0].at.nanos_since(start));
        assert!(waited >= rnr_delay(code), "code {code}: {waited:?}");
        assert!(waited <= rnr_delay(code) + Duration::from_micros(10), "code {code}: {waited:?}");
    }
}

#[test]
fn q19_q20_rnr_retries() {
    for retries in [0u8, 3] {
        let mut rig = with(|c| c.qp.rnr_retry = retries);
        rig.post(&rig.wr(1, Send, 10));
        for _ in 0..retries {
            assert!(rig.send(&ack_with(0x100, 0x21, 0)).is_empty());
            assert_eq!(rig.wait(MS).len(), 1);
            assert!(rig.done().is_empty());
        }
        rig.send(&ack_with(0x100, 0x21, 0));
        assert_eq!(rig.done(), [(1, RnrRetryExcErr)]);
        assert_eq!(rig.state(), QpState::Err);
    }
}

#[test]
fn q21_rnr_for_ever() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 10));
    for i in 0..1000 {
        assert!(rig.send(&ack_with(0x100, 0x21, 0)).is_empty());
        assert_eq!(rig.wait(MS / 10).len(), 1, "round {i}");
    }
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

// A READ whose response is lost is sent again after the wait, too, whether the loss is known before the RNR NAK or from it.
#[test]
fn q20_rnr_nak_behind_an_unanswered_read() {
    for acks in [&[][..], &[ack(0x101, 1)]] {
        let mut rig = rig();
        rig.post_all(&[rig.wr(1, RdmaRead, 8), rig.wr(2, Send, 8), rig.wr(3, Send, 8)]);
        let mut said = acks.to_vec();
        said.push(ack_with(0x102, 0x20 | 20, 1));
        assert!(rig.send_all(&said).is_empty(), "nothing before its delay is over");
        assert_eq!(psns(&rig.wait(rnr_delay(20) + MS)), [0x100, 0x101, 0x102]);
        // A retransmitted packet is lost: the peer's NAK is news.
        let again = rig.send_all(&[response(O::RC_READ_RESPONSE_ONLY, 0x100, 8), ack_with(0x101, 0x60, 1)]);
        assert_eq!(psns(&again), [0x101, 0x102]);
        rig.send(&ack(0x102, 3));
        assert_eq!(rig.done(), [(1, Success), (2, Success), (3, Success)]);
    }
}

// The refused packet is lost when it is sent again: the sequence NAK for it is no echo of an older one.
#[test]
fn q20_sequence_nak_after_an_rnr_wait() {
    let mut rig = rig();
    rig.post_all(&[rig.wr(1, Send, 8), rig.wr(2, Send, 8)]);
    assert_eq!(psns(&rig.send(&ack_with(0x100, 0x60, 0))), [0x100, 0x101]);
    rig.send(&ack_with(0x100, 0x20 | 20, 0));
    assert_eq!(psns(&rig.wait(rnr_delay(20) + MS)), [0x100, 0x101]);
    assert_eq!(psns(&rig.send(&ack_with(0x100, 0x60, 0))), [0x100, 0x101]);
}

#[test]
fn q22_rnr_wait_longer_than_the_ack_timeout() {
    let mut rig = with(|c| (c.qp.timeout, c.qp.retry_cnt) = (1, 0));
    rig.post(&rig.wr(1, Send, 10));
    rig.send(&ack_with(0x100, 0x20 | 20, 0)); // 10.24 ms, the ACK timeout is 8 us
    assert!(rig.wait(10 * MS).is_empty());
    assert_eq!(rig.wait(Duration::from_micros(245)).len(), 1);
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)], "retry_cnt 0 was not charged");
}

#[test]
fn q23_sequence_nak_during_an_rnr_wait() {
    let mut rig = rig();
    rig.post_all(&[rig.wr(1, Send, 10), rig.wr(2, Send, 10)]);
    rig.send(&ack_with(0x100, 0x20 | 20, 0));
    assert!(rig.send(&ack_with(0x100, 0x60, 0)).is_empty(), "soft-RoCE's second NAK");
    assert!(rig.send(&ack_with(0x100, 0x20 | 20, 0)).is_empty());
    assert!(rig.wait(10 * MS).is_empty());
    assert_eq!(psns(&rig.wait(MS)), [0x100, 0x101]);
}

#[test]
fn q24_rnr_nak_acknowledges_what_is_before() {
    let mut rig = rig();
    let wrs = [1, 2, 3].map(|id| rig.wr(id, Send, 10));
    rig.post_all(&wrs);
    rig.send(&ack_with(0x102, 0x21, 2));
    assert_eq!(rig.done(), [(1, Success), (2, Success)]);
    assert_eq!(psns(&rig.wait(MS)), [0x102]);
}

#[test]
fn q25_fatal_naks() {
    for (nak, status) in [(0x61, RemInvReqErr), (0x62, RemAccessErr), (0x63, RemOpErr)] {
        let mut rig = rig();
        let wrs = [1, 2, 3].map(|id| rig.wr(id, RdmaWrite, 10));
        rig.post_all(&wrs);
        assert!(rig.send(&ack_with(0x101, nak, 1)).is_empty());
        assert_eq!(rig.done(), [(1, Success), (2, status), (3, WrFlushErr)]);
        assert_eq!(rig.state(), QpState::Err);
    }
}

#[test]
fn q26_reserved_syndromes() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 10));
    for syndrome in (0x40..0x60).chain(0x65..=0xff) {
        assert!(rig.send(&ack_with(0x100, syndrome, 1)).is_empty());
        assert!(rig.done().is_empty(), "{syndrome:#x}");
    }
    assert_eq!(psns(&rig.wait(T + MS)), [0x100], "then the timeout");
    assert_eq!(rig.state(), QpState::Rts);
}

#[test]
fn q27_read_of_four_packets() {
    let mut rig = rig();
    let said = rig.post(&rig.wr(1, RdmaRead, 4096));
    assert_eq!(opcodes(&said), [O::RC_READ_REQUEST]);
    assert_eq!(said[0].ext, reth(REMOTE_VA, 4096));
    for (opcode, psn) in [
        (O::RC_READ_RESPONSE_FIRST, 0x100),
        (O::RC_READ_RESPONSE_MIDDLE, 0x101),
        (O::RC_READ_RESPONSE_MIDDLE, 0x102),
        (O::RC_READ_RESPONSE_LAST, 0x103),
    ] {
        assert!(rig.done().is_empty());
        rig.send(&response(opcode, psn, 1024));
    }
    assert_eq!(rig.done(), [(1, Success)]);
    let packet: Vec<u8> = (0..1024).map(|i| i as u8).collect();
    assert_eq!(rig.node.mr(rig.buf).read(0, 4096), packet.repeat(4));
    assert_eq!(psns(&rig.post(&rig.wr(2, Send, 1))), [0x104]);
}

/// Posts a READ of 4096 bytes of which the first response and then the third arrive: the rest is requested again.
fn restarted(rig: &mut Rig) -> Vec<Seen> {
    rig.post(&rig.wr(1, RdmaRead, 4096));
    rig.send(&response(O::RC_READ_RESPONSE_FIRST, 0x100, 1024));
    rig.inject(&response(O::RC_READ_RESPONSE_MIDDLE, 0x102, 1024));
    rig.wait(2 * GAP_LONGEST)
}

#[test]
fn q28_read_response_lost() {
    let said = restarted(&mut rig());
    assert_eq!(opcodes(&said), [O::RC_READ_REQUEST]);
    assert_eq!((said[0].psn, said[0].ext), (0x101, reth(REMOTE_VA + 1024, 3072)));
}

#[test]
fn q29_q30_restarted_read_is_answered() {
    for first in [O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_MIDDLE] {
        let mut rig = rig();
        restarted(&mut rig);
        rig.send(&response(first, 0x101, 1024));
        rig.send(&response(O::RC_READ_RESPONSE_MIDDLE, 0x102, 1024));
        rig.send(&response(O::RC_READ_RESPONSE_LAST, 0x103, 1024));
        assert_eq!(rig.done(), [(1, Success)], "{first:?}");
    }
}

#[test]
fn q31_one_packet_of_a_read_left() {
    for last in [O::RC_READ_RESPONSE_ONLY, O::RC_READ_RESPONSE_LAST] {
        let mut rig = rig();
        rig.post(&rig.wr(1, RdmaRead, 1025));
        rig.send(&response(O::RC_READ_RESPONSE_FIRST, 0x100, 1024));
        let said = rig.wait(T + MS);
        assert_eq!((said[0].psn, said[0].ext), (0x101, reth(REMOTE_VA + 1024, 1)));
        rig.send(&response(last, 0x101, 1));
        assert_eq!(rig.done(), [(1, Success)], "{last:?}");
    }
}

#[test]
fn q32_read_passed_by_an_acknowledgement() {
    let mut rig = rig();
    rig.post_all(&[rig.wr(1, RdmaRead, 100), rig.wr(2, Send, 10)]);
    rig.inject(&ack(0x101, 2));
    assert_eq!(opcodes(&rig.wait(2 * GAP_LONGEST)), [O::RC_READ_REQUEST, O::RC_SEND_ONLY]);
    assert!(rig.done().is_empty(), "the SEND waits for the READ");
    rig.send(&response(O::RC_READ_RESPONSE_ONLY, 0x100, 100));
    rig.send(&ack(0x101, 2));
    assert_eq!(rig.done(), [(1, Success), (2, Success)]);
}

#[test]
fn q33_duplicate_read_response() {
    let mut rig = rig();
    rig.post(&rig.wr(1, RdmaRead, 2048));
    let first = response(O::RC_READ_RESPONSE_FIRST, 0x100, 1024);
    rig.send(&first);
    rig.node.mr(rig.buf).fill(0, 1024, 9);
    assert!(rig.send(&first).is_empty());
    assert_eq!(rig.node.mr(rig.buf).read(0, 1024), [9; 1024], "not written twice");
    rig.send(&response(O::RC_READ_RESPONSE_LAST, 0x101, 1024));
    rig.send(&first);
    assert_eq!(rig.done(), [(1, Success)]);
    assert_eq!(rig.state(), QpState::Rts);
}

#[test]
fn q34_read_response_of_the_wrong_length() {
    type Responses = [(Opcode, u32, usize)];
    let cases: [(usize, &Responses); 7] = [
        (100, &[(O::RC_READ_RESPONSE_ONLY, 0x100, 96)]),
        (100, &[(O::RC_READ_RESPONSE_ONLY, 0x100, 104)]),
        (2000, &[(O::RC_READ_RESPONSE_FIRST, 0x100, 1020)]),
        (2000, &[(O::RC_READ_RESPONSE_FIRST, 0x100, 1024), (O::RC_READ_RESPONSE_LAST, 0x101, 972)]),
        (2000, &[(O::RC_READ_RESPONSE_FIRST, 0x100, 1024), (O::RC_READ_RESPONSE_LAST, 0x101, 980)]),
        (3000, &[(O::RC_READ_RESPONSE_FIRST, 0x100, 1024), (O::RC_READ_RESPONSE_MIDDLE, 0x101, 1028)]),
        (3000, &[(O::RC_READ_RESPONSE_FIRST, 0x100, 1024), (O::RC_READ_RESPONSE_LAST, 0x101, 1024)]),
    ];
    for (len, responses) in cases {
        let mut rig = rig();
        rig.node.mr(rig.buf).fill(0, 8192, 0xa5);
        rig.post(&rig.wr(1, RdmaRead, len));
        for (opcode, psn, len) in responses {
            rig.send(&response(*opcode, *psn, *len));
        }
        assert_eq!(rig.done(), [(1, LocLenErr)], "{responses:?}");
        assert_eq!(rig.state(), QpState::Err);
        assert_eq!(rig.node.mr(rig.buf).read(len, 1000), [0xa5; 1000]);
        assert!(rig.node.regions().iter().all(|r| r.guards_intact()));
    }
}

#[test]
fn q35_read_response_to_a_send() {
    let mut rig = rig();
    rig.post(&rig.wr(1, Send, 10));
    rig.send(&response(O::RC_READ_RESPONSE_ONLY, 0x100, 10));
    assert_eq!(rig.done(), [(1, BadRespErr)]);
    assert_eq!(rig.state(), QpState::Err);
}

#[test]
fn q36_read_response_with_a_nak() {
    let mut rig = rig();
    rig.node.mr(rig.buf).fill(0, 10, 0xa5);
    rig.post(&rig.wr(1, RdmaRead, 10));
    rig.send(&pkt(O::RC_READ_RESPONSE_ONLY, 0x100).aeth(0x62, 0).len(10));
    assert_eq!(rig.node.mr(rig.buf).read(0, 10), [0xa5; 10]);
    assert_eq!(rig.state(), QpState::Err);
    assert_eq!(rig.done().len(), 1);
}

#[test]
fn q37_read_of_nothing() {
    let mut rig = rig();
    let wr = SendWr::new(1, RdmaRead).remote(0, 0);
    assert_eq!(rig.post(&wr)[0].ext, Ext::Reth(Reth { va: 0, rkey: 0, len: 0 }));
    rig.send(&response(O::RC_READ_RESPONSE_ONLY, 0x100, 0));
    let cqes = rig.cqes();
    assert_eq!((cqes.len(), cqes[0].status, cqes[0].byte_len), (1, Success, 0));
    assert_eq!(cqes[0].opcode, WcOpcode::RdmaRead);
    assert_eq!(psns(&rig.post(&rig.wr(2, Send, 1))), [0x101], "it took one PSN");
}

#[test]
fn q38_read_into_memory_that_is_not_writable() {
    let mut rig = rig();
    let mr = rig.node.register(64, Access::empty());
    let wr = SendWr::new(1, RdmaRead).sges(&[rig.node.mr(mr).sge(0, 8)]).remote(REMOTE_VA, REMOTE_KEY);
    rig.post(&wr);
    rig.send(&response(O::RC_READ_RESPONSE_ONLY, 0x100, 8));
    assert_eq!(rig.done(), [(1, LocProtErr)]);
    assert_eq!(rig.node.mr(mr).read(0, 64), [0; 64]);
}

#[test]
fn q39_read_into_odd_pieces() {
    let mut rig = rig();
    rig.node.mr(rig.buf).fill(0, 4096, 0xa5);
    let pieces = [(3, 500), (801, 1), (1203, 524)];
    let sges = pieces.map(|(at, len)| rig.sge(at, len));
    let wr = SendWr::new(1, RdmaRead).sges(&sges).remote(REMOTE_VA + 5, REMOTE_KEY);
    assert_eq!(rig.post(&wr)[0].ext, reth(REMOTE_VA + 5, 1025));
    rig.send(&response(O::RC_READ_RESPONSE_FIRST, 0x100, 1024));
    rig.send(&response(O::RC_READ_RESPONSE_LAST, 0x101, 1));
    assert_eq!(rig.done(), [(1, Success)]);
    let got = rig.node.mr(rig.buf).read(0, 4096);
    let mut want = vec![0xa5; 4096];
    let stream: Vec<u8> = (0..1024).map(|i| i as u8).chain([0]).collect();
    let mut from = 0;
    for (at, len) in pieces {
        want[at..at + len].copy_from_slice(&stream[from..from + len]);
        from += len;
    }
    assert_eq!(got, want);
}

#[test]
fn q40_q41_one_read_at_a_time() {
    let mut rig = with(|c| c.qp.max_rd_atomic = 1);
    let wrs = [rig.wr(1, RdmaRead, 8), rig.wr(2, RdmaRead, 8), rig.wr(3, Send, 8)];
    assert_eq!(psns(&rig.post_all(&wrs)), [0x100]);
    let said = rig.send(&response(O::RC_READ_RESPONSE_ONLY, 0x100, 8));
    assert_eq!(
        opcodes(&said),
        [O::RC_READ_REQUEST, O::RC_SEND_ONLY],
        "the SEND stays behind the second READ"
    );
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q42_q43_fence() {
    for first in [RdmaRead, AtomicFetchAndAdd] {
        let mut rig = rig();
        let fenced = rig.wr(2, RdmaWrite, 8).with(SendFlags::FENCE);
        let said = rig.post_all(&[rig.wr(1, first, 8), fenced]);
        assert_eq!(said.len(), 1, "the fenced WRITE waits for {first:?}");
        let answer = match first {
            RdmaRead => response(O::RC_READ_RESPONSE_ONLY, 0x100, 8),
            _ => pkt(O::RC_ATOMIC_ACKNOWLEDGE, 0x100).atomic_ack(1, 0),
        };
        assert_eq!(opcodes(&rig.send(&answer)), [O::RC_WRITE_ONLY]);
        let mut free = self::rig();
        assert_eq!(free.post_all(&[free.wr(1, first, 8), free.wr(2, RdmaWrite, 8)]).len(), 2);
    }
}

#[test]
fn q45_atomic_response_lost() {
    let mut rig = rig();
    let first = rig.post(&rig.wr(1, AtomicCmpAndSwp, 8).operands(5, 6));
    assert_eq!((first[0].atomic().compare, first[0].atomic().swap_add), (5, 6));
    let again = rig.wait(T + MS);
    assert_eq!((again[0].opcode, again[0].psn, again[0].ext), (O::RC_CMP_SWAP, 0x100, first[0].ext));
    rig.send(&pkt(O::RC_ATOMIC_ACKNOWLEDGE, 0x100).atomic_ack(1, 0x0102_0304_0506_0708));
    assert_eq!(rig.done(), [(1, Success)]);
    assert_eq!(rig.node.mr(rig.buf).word(0), 0x0102_0304_0506_0708, "in host order");
}

#[test]
fn q47_solicited() {
    let mut rig = rig();
    for (opcode, solicits) in [(Send, true), (RdmaWriteWithImm, true), (RdmaWrite, false), (RdmaRead, false)]
    {
        let said = rig.post(&rig.wr(1, opcode, 2048).with(SendFlags::SOLICITED));
        let bits: Vec<bool> = said.iter().map(|s| s.solicited).collect();
        let want = if said.len() == 1 { vec![solicits] } else { vec![false, solicits] };
        assert_eq!(bits, want, "{opcode:?}");
    }
}

#[test]
fn q49_q50_inline() {
    let mut rig = rig();
    let mut wr = SendWr::new(1, Send).inline(b"as it was");
    wr.sges = vec![Sge { addr: 1, length: 9, lkey: 0xdead_beef }]; // never read
    assert_eq!(rig.post(&wr)[0].payload, b"as it was");
    wr.inline = Some(b"overwrite".to_vec());
    assert_eq!(rig.wait(T + MS)[0].payload, b"as it was");
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q52_empty_element_with_a_bad_key() {
    let mut rig = rig();
    rig.node.mr(rig.buf).write(0, b"abcdef");
    let sges = [rig.sge(0, 3), Sge { addr: 5, length: 0, lkey: 0xdead_beef }, rig.sge(3, 3)];
    assert_eq!(rig.post(&SendWr::new(1, Send).sges(&sges))[0].payload, b"abcdef");
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q53_bad_local_keys() {
    let bad: [fn(&Rig) -> Sge; 3] = [
        |rig| rig.sge((1 << 16) - 4, 8),
        |rig| Sge { lkey: rig.sge(0, 8).lkey ^ 1, ..rig.sge(0, 8) },
        |rig| rig.node.regions().last().unwrap().sge(0, 8),
    ];
    for bad in bad {
        let mut rig = rig();
        rig.node.register_in(PdId(2), 64, Access::LOCAL_WRITE);
        let wrs = [rig.wr(1, Send, 8), SendWr::new(2, Send).sges(&[bad(&rig)]), rig.wr(3, Send, 8)];
        assert_eq!(psns(&rig.post_all(&wrs)), [0x100], "nothing is sent from bad memory, nor behind it");
        assert!(rig.done().is_empty(), "the older request comes first");
        rig.send(&ack(0x100, 1));
        assert_eq!(rig.done(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
        assert_eq!(rig.state(), QpState::Err);
    }
}

/// A scatter/gather element with an invalid key.
fn bad_sge(rig: &Rig, len: usize) -> Sge {
    Sge { lkey: rig.sge(0, 8).lkey ^ 1, ..rig.sge(0, len) }
}

// Goal: after a request that fails locally, no later request will request the acknowledgement of those before it. So it is requested at
// once, and the error completion follows the acknowledgement, whichever of the requests is signalled.
#[test]
fn q53_behind_requests_that_nobody_waits_for() {
    for opcode in [Send, RdmaWrite] {
        for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
            for retries in [0, 7] {
                let mut rig = with(|c| c.qp.retry_cnt = retries);
                let mut bad = SendWr::new(2, opcode).sges(&[bad_sge(&rig, 8)]).remote(REMOTE_VA, REMOTE_KEY);
                bad.flags = flags;
                let wrs = [rig.wr(1, opcode, 8).unsignaled(), bad, rig.wr(3, opcode, 8)];
                let said: Vec<_> = rig.post_all(&wrs).iter().map(|s| (s.psn, s.ack_req)).collect();
                assert_eq!(said, [(0x100, false), (0x100, true)], "{opcode:?} {flags:?}");
                assert!(rig.send(&ack(0x101, 2)).is_empty() && rig.done().is_empty(), "that one never left");
                rig.send(&ack(0x100, 1));
                assert_eq!(rig.done(), [(2, LocProtErr), (3, WrFlushErr)], "{opcode:?} {flags:?}");
            }
        }
    }
}

// Goal: requests before one that failed locally are retransmitted as usual, until they are acknowledged.
#[test]
fn q53_behind_requests_that_are_lost() {
    for (first, len) in [(RdmaWrite, 8), (RdmaRead, 8), (Send, 2000)] {
        let mut rig = rig();
        let bad = SendWr::new(2, RdmaWrite).sges(&[bad_sge(&rig, 8)]).remote(REMOTE_VA, REMOTE_KEY);
        for wr in [rig.wr(1, first, len), bad.unsignaled()] {
            rig.node.post_send(rig.qp, &wr).unwrap();
        }
        let said = rig.run();
        let again = rig.wait(5 * T);
        assert!(again.len() >= said.len() && again.iter().any(|s| s.ack_req), "{first:?}: {again:?}");
        let reply = match first {
            RdmaRead => response(O::RC_READ_RESPONSE_ONLY, 0x100, len),
            _ => ack(said.last().unwrap().psn, 1),
        };
        rig.send(&reply);
        assert_eq!(rig.done(), [(1, Success), (2, LocProtErr)], "{first:?}");
    }
    // A peer that never answers.
    let mut rig = rig();
    let bad = SendWr::new(2, RdmaWrite).sges(&[bad_sge(&rig, 8)]).remote(REMOTE_VA, REMOTE_KEY);
    rig.post_all(&[rig.wr(1, RdmaWrite, 8).unsignaled(), bad.unsignaled()]);
    rig.wait(Duration::from_secs(10));
    assert_eq!(rig.done(), [(1, RetryExcErr), (2, WrFlushErr)]);
}

// The packets of a message whose end cannot be built have left.
#[test]
fn q53_the_end_of_a_message_cannot_be_built() {
    let mut rig = rig();
    let sges = [rig.sge(0, 1024), bad_sge(&rig, 8)];
    let bad = SendWr::new(2, RdmaWrite).sges(&sges).remote(REMOTE_VA, REMOTE_KEY);
    let said = rig.post_all(&[rig.wr(1, RdmaWrite, 8).unsignaled(), bad, rig.wr(3, RdmaWrite, 8)]);
    let said: Vec<_> = said.iter().map(|s| (s.psn, s.ack_req)).collect();
    assert_eq!(said, [(0x100, false), (0x101, false), (0x101, true)]);
    let again: Vec<_> = rig.wait(4 * T).iter().map(|s| (s.psn, s.ack_req)).collect();
    assert_eq!(again, [(0x100, true)], "lost: what is before goes out again");
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(2, LocProtErr), (3, WrFlushErr)]);
}

// The memory of a sent request is deregistered before a retransmission: if the peer nevertheless has the request, it succeeded.
#[test]
fn q53_memory_that_goes_before_a_repeat() {
    let mut rig = rig();
    let gone = rig.node.register(64, Access::LOCAL_WRITE);
    let sge = rig.node.mr(gone).sge(0, 8);
    let second = SendWr::new(2, RdmaWrite).sges(&[sge]).remote(REMOTE_VA, REMOTE_KEY);
    assert_eq!(psns(&rig.post_all(&[rig.wr(1, RdmaWrite, 8), second])), [0x100, 0x101]);
    rig.node.deregister(gone);
    assert_eq!(psns(&rig.wait(T + MS)), [0x100], "the second cannot be built");
    rig.send(&ack(0x101, 2));
    assert_eq!(rig.done(), [(1, Success), (2, Success)]);
    assert_eq!(psns(&rig.post(&rig.wr(3, RdmaWrite, 8))), [0x102], "the queue goes on");
}

#[test]
fn q54_one_signalled_of_ten() {
    let mut rig = with(|c| c.qp.send_depth = 16);
    for round in 0..5 {
        let wrs: Vec<SendWr> = (0..10)
            .map(|id| if id == 9 { rig.wr(id, Send, 8) } else { rig.wr(id, Send, 8).unsignaled() })
            .collect();
        let said = rig.post_all(&wrs);
        rig.send(&ack(said[9].psn, 10 * (round + 1)));
        assert_eq!(rig.done(), [(9, Success)]);
        assert_eq!(rig.node.sends_in_use(rig.qp), 0, "all slots are free");
    }
}

#[test]
fn q55_unsignalled_request_fails() {
    let mut rig = rig();
    rig.post(&rig.wr(1, RdmaWrite, 8).unsignaled());
    rig.send(&ack_with(0x100, 0x62, 0));
    assert_eq!(rig.done(), [(1, RemAccessErr)]);
}

#[test]
fn q56_q57_credits() {
    let mut rig = Rig::new();
    rig.post(&rig.wr(1, Send, 8));
    rig.send(&ack_with(0x100, 0x00, 1)); // no credits left
    let wrs = [2, 3, 4].map(|id| rig.wr(id, Send, 8));
    let said = rig.post_all(&wrs);
    assert_eq!(psns(&said), [0x101], "one may probe");
    assert!(said[0].ack_req);
    assert_eq!(psns(&rig.send(&ack_with(0x101, 0x1f, 2))), [0x102, 0x103], "no limit: all go");
    // Q57: a WRITE consumes no receive.
    let mut rig = Rig::new();
    rig.post(&rig.wr(1, Send, 8));
    rig.send(&ack_with(0x100, 0x00, 1));
    let wrs = [2, 3, 4].map(|id| rig.wr(id, RdmaWrite, 8));
    assert_eq!(rig.post_all(&wrs).len(), 3);
}

#[test]
fn q59_ten_megabytes() {
    let mut rig = with(|c| c.qp.mtu = Mtu::Mtu4096);
    let mr = rig.node.register(10 << 20, Access::empty());
    let wr = SendWr::new(1, RdmaWrite).sges(&[rig.node.mr(mr).sge(0, 10 << 20)]).remote(REMOTE_VA, 1);
    let mut said = rig.post(&wr);
    let (mut sent, mut since) = (0, 0);
    while !said.is_empty() {
        assert!(said.len() <= WINDOW_PACKETS as usize);
        for s in &said {
            since = if s.ack_req { 0 } else { since + 1 };
            assert!(since < ACK_REQ_STRIDE, "packet {:#x}", s.psn);
        }
        sent += said.len();
        let last = said.last().unwrap();
        assert!(last.ack_req, "the window closes with a question");
        said = rig.send(&ack(last.psn, u32::from(sent == 2560)));
    }
    assert_eq!(sent, 2560);
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q62_write_of_nothing() {
    let mut rig = rig();
    let said = rig.post(&SendWr::new(1, RdmaWrite));
    assert_eq!((said[0].opcode, said[0].ext), (O::RC_WRITE_ONLY, Ext::Reth(Reth { va: 0, rkey: 0, len: 0 })));
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn q63_error_stops_everything() {
    // During an RNR wait.
    let mut rig = rig();
    rig.post_all(&[rig.wr(1, Send, 8), rig.wr(2, Send, 8)]);
    rig.send(&ack_with(0x100, 0x20 | 20, 0));
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).unwrap();
    assert!(rig.wait(Duration::from_secs(2)).is_empty());
    let flushed: Vec<_> = rig.cqes().iter().filter(|c| c.opcode == WcOpcode::Send).map(|c| c.wr_id).collect();
    assert_eq!(flushed, [1, 2]);
    // While a READ is active.
    let mut rig = self::rig();
    rig.post(&rig.wr(1, RdmaRead, 4096));
    rig.send(&response(O::RC_READ_RESPONSE_FIRST, 0x100, 1024));
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).unwrap();
    rig.node.mr(rig.buf).fill(0, 4096, 7);
    assert!(rig.send(&response(O::RC_READ_RESPONSE_MIDDLE, 0x101, 1024)).is_empty());
    assert!(rig.wait(Duration::from_secs(2)).is_empty());
    assert_eq!(rig.node.mr(rig.buf).read(0, 4096), [7; 4096]);
    assert_eq!(rig.done()[0], (1, WrFlushErr));
}
