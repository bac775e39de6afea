//! Statuses that need a peer whose behaviour this stack never shows.

use crate::wire::{PEER_PSN, Wire, mtu256};
use sim::peer::{Pkt, pkt};
use stack::wire::Opcode as O;
use verbs::{Qp, QpInitAttr, QpState, RcOptions, SendWr, WcStatus};

/// An RC queue pair that is connected to the scripted peer, with path MTU 256.
fn rc(wire: &mut Wire, options: &RcOptions) -> Qp {
    let qp = wire.pd.create_qp(&QpInitAttr::rc(&wire.cq, &wire.cq)).unwrap();
    qp.connect_rc(&wire.endpoint(), options).unwrap();
    wire.run();
    qp
}

/// The status of a request that the peer answers with this packet.
fn answered(wr: impl Fn(&Wire) -> SendWr<'static>, answer: impl Fn(u32) -> Pkt) -> WcStatus {
    let mut w = Wire::new(false);
    let qp = rc(&mut w, &mtu256());
    qp.post_send(&[wr(&w)]).unwrap();
    assert_eq!(w.run().len(), 1);
    w.send(&qp, &[answer(qp.first_psn().get())]);
    let done = w.done();
    assert_eq!((done.len(), done[0].wr_id, qp.state().unwrap()), (1, 1, QpState::Err));
    assert_ne!(done[0].vendor_err, 0);
    done[0].status
}

#[test]
fn c02_answers_that_answer_something_else() {
    let response = |psn| pkt(O::RC_READ_RESPONSE_ONLY, psn).aeth(0x1f, 1);
    assert_eq!(answered(|_| SendWr::send(1, &[]), response), WcStatus::BadRespErr);
    let long = |psn| pkt(O::RC_READ_RESPONSE_ONLY, psn).len(8).aeth(0x1f, 1);
    assert_eq!(answered(|w| SendWr::read(1, &[], w.mr.addr(), 7), long), WcStatus::LocLenErr);
}

/// The status of the posted receive request after these packets.
fn received(pkts: impl Fn(&Wire) -> Vec<Pkt>) -> WcStatus {
    let mut w = Wire::new(false);
    let qp = rc(&mut w, &mtu256());
    w.post_recvs(&qp, 0..1, 1024);
    let pkts = pkts(&w);
    w.send(&qp, &pkts);
    let done = w.done();
    assert_eq!((done.len(), done[0].wr_id, qp.state().unwrap()), (1, 0, QpState::Err));
    assert_ne!(done[0].vendor_err, 0);
    done[0].status
}

#[test]
fn c02_requests_that_end_a_receive() {
    let out_of_order =
        |_: &Wire| vec![pkt(O::RC_SEND_FIRST, PEER_PSN).len(256), pkt(O::RC_WRITE_LAST, PEER_PSN + 1).len(4)];
    assert_eq!(received(out_of_order), WcStatus::RemInvReqErr);
    let bad_key = |w: &Wire| {
        let write = pkt(O::RC_WRITE_ONLY_IMM, PEER_PSN);
        vec![write.reth(w.mr.addr(), w.mr.rkey() ^ 1, 4).imm([0, 0, 0, 1]).len(4)]
    };
    assert_eq!(received(bad_key), WcStatus::LocAccessErr);
}

#[test]
fn c02_operations_that_the_queue_pair_cannot_do() {
    let mut w = Wire::new(false);
    let qp = rc(&mut w, &mtu256().max_rd_atomic(0));
    qp.post_send(&[SendWr::read(1, &[], w.mr.addr(), 7), SendWr::send(2, &[])]).unwrap();
    assert!(w.run().is_empty());
    let done: Vec<_> = w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::LocQpOpErr), (2, WcStatus::WrFlushErr)]);
}
