//! A reliable connection in each of its states: requests that are posted, received, drained and flushed.

use std::time::Duration;

use sim::node::SendWr;
use sim::peer::{PEER_QPN, Rig, ack, opcodes, pkt, psns};
use stack::id::{Mtu, QpState};
use stack::proto::attr::{AttrMask, QpAttr};
use stack::proto::state::ModifyError;
use stack::proto::status::{AsyncEvent, WcOpcode, WcStatus, WrOpcode};
use stack::proto::tables::ack_timeout;
use stack::wire::{Discard, Opcode as O};

use WcStatus::{RetryExcErr, Success, WrFlushErr};
use WrOpcode::{RdmaRead, RdmaWrite, Send};

const MS: Duration = Duration::from_millis(1);

fn rig(receives: usize, state: QpState) -> Rig {
    let mut rig = Rig::with(|c| (c.receives, c.state) = (receives, state));
    if state == QpState::Rts {
        rig.unlimited();
    }
    rig
}

fn modify(rig: &mut Rig, to: QpState) -> Result<(), ModifyError> {
    rig.node.modify_state(rig.now, rig.qp, to)
}

fn to_sqd(rig: &mut Rig) {
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    rig.node.modify(rig.now, rig.qp, &attr, mask).unwrap();
}

fn read_response(psn: u32, len: usize) -> sim::peer::Pkt {
    pkt(O::RC_READ_RESPONSE_ONLY, psn).aeth(0x1f, 1).len(len)
}

#[test]
fn s20_posting_in_error() {
    let mut rig = rig(2, QpState::Rts);
    let wrs = [1, 2, 3].map(|id| rig.wr(id, Send, 8));
    rig.post_all(&wrs);
    modify(&mut rig, QpState::Err).unwrap();
    rig.post(&rig.wr(4, Send, 8).unsignaled());
    rig.node.post_recv(rig.qp, 9, &[]).unwrap();
    assert!(rig.run().is_empty());
    let cqes = rig.cqes();
    let of = |recv: bool| {
        let side = cqes.iter().filter(|c| (c.opcode == WcOpcode::Recv) == recv);
        side.map(|c| c.wr_id).collect::<Vec<_>>()
    };
    assert_eq!((of(false), of(true)), (vec![1, 2, 3, 4], vec![0, 1, 9]));
    assert!(cqes.iter().all(|c| c.status == WrFlushErr));
}

#[test]
fn s21_flush() {
    let mut rig = rig(5, QpState::Rts);
    let wrs: Vec<SendWr> = (10..15).map(|id| rig.wr(id, Send, 8).unsignaled()).collect();
    rig.post_all(&wrs);
    modify(&mut rig, QpState::Err).unwrap();
    rig.run();
    let done = rig.done();
    let want: Vec<_> = (10..15).chain(0..5).map(|id| (id, WrFlushErr)).collect();
    assert_eq!(done, want);
    assert_eq!((rig.node.sends_in_use(rig.qp), rig.node.receives_in_use(rig.qp)), (0, 0));
}

#[test]
fn s22_reset_and_start_again() {
    let mut rig = rig(5, QpState::Rts);
    let wrs: Vec<SendWr> = (0..5).map(|id| rig.wr(id, Send, 8)).collect();
    rig.post_all(&wrs);
    rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4)); // a completion that is not polled
    modify(&mut rig, QpState::Reset).unwrap();
    assert!(rig.run().is_empty());
    assert!(rig.cqes().is_empty(), "no completion of the old requests");
    let (now, qp, peer) = (rig.now, rig.qp, rig.peer_gid());
    rig.node.to_init(now, qp);
    rig.post_recv();
    rig.node.to_rtr(now, qp, peer, PEER_QPN);
    rig.node.to_rts(now, qp);
    assert!(rig.wait(Duration::from_secs(1)).is_empty(), "no old packet, no old timer");
    // PSN, MSN and SSN are those of a new queue pair: one SEND may go before credits are known.
    let said = rig.post_all(&[rig.wr(7, Send, 8), rig.wr(8, Send, 8)]);
    assert_eq!(psns(&said), [0x100]);
    rig.send(&ack(0x100, 1));
    let said = rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4));
    assert_eq!((said[0].psn, said[0].aeth().msn), (0x100, 1));
    let mut done = rig.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(5, Success), (7, Success)]);
}

#[test]
fn s23_request_in_init() {
    let mut rig = rig(1, QpState::Init);
    assert!(rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4)).is_empty());
    assert_eq!(rig.node.discarded(Discard::BadState), 1);
    assert!(rig.cqes().is_empty());
}

#[test]
fn s24_request_in_rtr() {
    let mut rig = rig(2, QpState::Rtr);
    for psn in [0x100, 0x101] {
        assert!(rig.send(&pkt(O::RC_SEND_ONLY, psn).a().len(4))[0].is_ack(psn));
    }
    assert_eq!(rig.done().len(), 2);
    assert_eq!(rig.events(), [AsyncEvent::CommEst], "once");
}

#[test]
fn s25_request_in_error() {
    let mut rig = rig(2, QpState::Rts);
    modify(&mut rig, QpState::Err).unwrap();
    assert!(rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4)).is_empty());
    assert_eq!(rig.node.discarded(Discard::BadState), 1);
}

#[test]
fn s26_idle_queue_is_drained_at_once() {
    let mut rig = rig(0, QpState::Rts);
    to_sqd(&mut rig);
    assert_eq!(rig.events(), [AsyncEvent::SqDrained]);
    assert!(!rig.node.query(rig.qp).sq_draining);
}

#[test]
fn s27_s28_s29_drain_and_go_on() {
    let mut rig = Rig::with(|c| (c.receives, c.qp.max_rd_atomic) = (0, 1));
    rig.unlimited();
    let wrs = [rig.wr(1, RdmaRead, 8), rig.wr(2, RdmaRead, 8), rig.wr(3, Send, 8)];
    assert_eq!(rig.post_all(&wrs).len(), 1);
    to_sqd(&mut rig);
    assert!(rig.node.query(rig.qp).sq_draining);
    assert!(rig.events().is_empty());
    for to in [QpState::Sqd, QpState::Rts] {
        assert_eq!(modify(&mut rig, to), Err(ModifyError::Draining));
    }
    assert!(rig.send(&read_response(0x100, 8)).is_empty(), "the others do not start");
    assert_eq!(rig.events(), [AsyncEvent::SqDrained]);
    assert_eq!(rig.done(), [(1, Success)]);
    assert!(rig.wait(Duration::from_secs(2)).is_empty(), "and no timer runs");
    assert_eq!(rig.state(), QpState::Sqd);
    modify(&mut rig, QpState::Rts).unwrap();
    assert_eq!(opcodes(&rig.run()), [O::RC_READ_REQUEST, O::RC_SEND_ONLY], "in order");
    rig.send_all(&[read_response(0x101, 8), ack(0x102, 3)]);
    assert_eq!(rig.done(), [(2, Success), (3, Success)]);
}

// Goal: SQD drains in the middle of a message: packets of a started message are retransmitted until they are acknowledged.
#[test]
fn s27_drain_inside_a_message() {
    let mut rig = rig(0, QpState::Rts);
    rig.post(&rig.wr(1, RdmaWrite, 4096));
    to_sqd(&mut rig);
    assert_eq!(psns(&rig.send(&sim::peer::ack_with(0x102, 0x60, 0))), [0x102, 0x103]);
    assert_eq!(psns(&rig.wait(70 * MS)), [0x102, 0x103], "the ACK timer runs on");
    rig.send(&ack(0x103, 1));
    assert_eq!(rig.done(), [(1, Success)]);
    assert_eq!(rig.events(), [AsyncEvent::SqDrained]);
}

#[test]
fn s30_posting_and_receiving_while_drained() {
    let mut rig = rig(1, QpState::Rts);
    to_sqd(&mut rig);
    assert!(rig.post(&rig.wr(1, Send, 8)).is_empty());
    rig.post_recv_of(20, &[rig.sge(0, 8)]);
    assert!(rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4))[0].is_ack(0x100));
    assert_eq!(rig.done(), [(0, Success)]);
    modify(&mut rig, QpState::Rts).unwrap();
    assert_eq!(opcodes(&rig.run()), [O::RC_SEND_ONLY]);
}

#[test]
fn s31_new_values_while_drained() {
    let mut rig = rig(0, QpState::Rts);
    to_sqd(&mut rig);
    let old = rig.node.attr_to(rig.qp, rig.peer_gid(), PEER_QPN);
    let mut attr = QpAttr { qp_state: QpState::Sqd, timeout: 8, retry_cnt: 1, ..old };
    attr.ah_attr.grh.as_mut().unwrap().traffic_class = 0x68;
    let mask = AttrMask::STATE | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::AV;
    rig.node.modify(rig.now, rig.qp, &attr, mask).unwrap();
    modify(&mut rig, QpState::Rts).unwrap();
    rig.node.post_send(rig.qp, &rig.wr(1, Send, 8)).unwrap();
    rig.node.turn(0, rig.now);
    let frame = rig.node.wires[0].take().expect("it is sent");
    assert_eq!(frame.data()[15], 0x68, "the new traffic class");
    drop(frame);
    let t = ack_timeout(8).unwrap();
    assert_eq!(rig.wait(t * 8).len(), 1, "one retry");
    assert_eq!(rig.done(), [(1, RetryExcErr)]);
}

// Goal: RTS to RTS changes the permitted attributes while requests run.
#[test]
fn new_rnr_timer_while_running() {
    let mut rig = rig(0, QpState::Rts);
    let attr = QpAttr { min_rnr_timer: 5, ..QpAttr::default() };
    rig.node.modify(rig.now, rig.qp, &attr, AttrMask::MIN_RNR_TIMER).unwrap();
    assert!(rig.send(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4))[0].is_rnr(0x100, 5));
    let mtu = Mtu::from_enum(rig.node.query(rig.qp).path_mtu);
    assert_eq!(mtu, Some(Mtu::Mtu1024));
}

// Goal: a program that has seen a receive completion may exit at once, and the peer still gets its acknowledgement.
#[test]
fn a_receive_completion_waits_for_its_acknowledgement() {
    let mut rig = rig(4, QpState::Rts);
    rig.node.wires[0].limit_tx(Some(0));
    rig.inject(&pkt(O::RC_SEND_ONLY, 0x100).a().len(8));
    for _ in 0..3 {
        rig.node.turn(0, rig.now);
    }
    assert_eq!(rig.done(), [], "the acknowledgement is not with the port");
    rig.node.wires[0].limit_tx(None);
    let said = rig.run();
    assert!(said.iter().any(|s| s.is_ack(0x100)), "{said:?}");
    assert_eq!(rig.done().len(), 1);
}
