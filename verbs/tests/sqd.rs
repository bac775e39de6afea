//! The SQD state: started requests are finished, no other request starts, and attributes can be changed.

use crate::common;
use std::time::Duration;

use crate::link::{End, Link};
use verbs::{
    Access, AsyncEvent, AttrMask, Counter, DeviceError, Discard, EventElement, ModifyError, Qp, QpAttr,
    QpInitAttr, QpState, QpType, RcOptions, RecvWr, SendWr, VerbsError, WcStatus, ah_attr_to, errno,
};

use WcStatus::{RemInvReqErr, RetryExcErr, RnrRetryExcErr, Success, WrFlushErr};

const MS: Duration = Duration::from_millis(1);

/// Posts READ number `n`: of the `n`-th 8 bytes of an end's memory.
fn read(from: &End, to: &End, n: usize) {
    let at = n * 8;
    let (remote, rkey) = (from.mr.addr() + at as u64, from.mr.rkey());
    let sge = to.mr.sge(at..at + 8).unwrap();
    to.qp.post_send(&[SendWr::read(n as u64, &[sge], remote, rkey).signaled()]).unwrap();
}

fn draining(result: Result<(), VerbsError>) {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
    assert!(matches!(error, VerbsError::Device(DeviceError::Modify(ModifyError::Draining))), "{error}");
}

fn change(qp: &Qp, attr: QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    qp.modify(&QpAttr { qp_state: QpState::Sqd, ..attr }, mask | AttrMask::STATE)
}

/// Changes to SQD, sets attributes, and returns to RTS, on an idle queue.
fn change_and_resume(link: &Link, end: &End, attr: QpAttr, mask: AttrMask) {
    end.to(QpState::Sqd);
    link.turns(4);
    change(&end.qp, attr, mask).unwrap();
    end.to(QpState::Rts);
}

#[test]
fn s26_an_idle_queue_is_drained_at_once_and_says_so_when_asked() {
    let link = Link::new();
    let a = &link.a;
    for _ in 0..2 {
        a.to_sqd();
        assert!(!a.is_draining());
        assert_eq!(a.drained_events(), 1, "once each time that SQD is entered");
        a.to(QpState::Sqd);
        link.turns(10);
        assert_eq!(a.drained_events(), 0);
        a.to(QpState::Rts);
    }
    // The event was requested for an earlier SQD, but not for this one; and then explicitly not requested.
    a.to(QpState::Sqd);
    a.to(QpState::Rts);
    let attr = QpAttr { qp_state: QpState::Sqd, ..QpAttr::default() };
    a.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    link.turns(10);
    assert_eq!(a.drained_events(), 0);
}

#[test]
fn s27_s28_s29_a_read_is_waited_for_and_the_rest_waits() {
    let link = Link::with(&RcOptions::default().max_rd_atomic(1), |init| init);
    let (a, b) = (&link.a, &link.b);
    b.mr.write(0, &[7; 24]).unwrap();
    link.valve.shut();
    (0..3).for_each(|n| read(b, a, n));
    link.turns(5);
    assert_eq!(a.count(Counter::RequestsSent), 1, "one READ at a time");
    a.to_sqd();
    link.turns(20);
    assert!(a.is_draining());
    assert_eq!((a.drained_events(), a.done()), (0, vec![]));
    draining(change(&a.qp, QpAttr::default(), AttrMask::empty()));
    draining(change(&a.qp, QpAttr { timeout: 3, ..QpAttr::default() }, AttrMask::TIMEOUT));
    draining(a.qp.modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE));
    let attr = a.qp.query().unwrap().0;
    assert_eq!((attr.timeout, attr.qp_state, attr.sq_draining), (14, QpState::Sqd, true), "nothing changed");

    link.valve.open();
    link.turns(20);
    assert!(!a.is_draining());
    assert_eq!((a.drained_events(), a.done()), (1, vec![(0, Success)]));
    assert_eq!(a.mr.to_vec(0..24).unwrap(), [[7; 8].as_slice(), &[0; 16]].concat());
    link.wait(200 * MS);
    assert_eq!((a.count(Counter::RequestsSent), a.done()), (1, vec![]), "the others do not start");

    a.to(QpState::Rts);
    link.turns(20);
    assert_eq!(a.done(), [(1, Success), (2, Success)], "in order");
    assert_eq!(a.mr.to_vec(0..24).unwrap(), [7; 24]);
    assert_eq!(a.drained_events(), 0);
}

/// Posts a WRITE of 100 packets of 1024 bytes, and enters SQD when some of them are sent.
fn long_write(link: &Link, signaled: bool) {
    let (a, b) = (&link.a, &link.b);
    let data: Vec<u8> = (0..100 * 1024).map(|i: usize| (i / 7) as u8).collect();
    a.mr.write(0, &data).unwrap();
    let list = [a.mr.sge(0..data.len()).unwrap()];
    let write = SendWr::write(1, &list, b.mr.addr(), b.mr.rkey());
    b.qp.post_recv(&[RecvWr::new(9, &[])]).unwrap();
    a.qp.post_send(&[if signaled { write.signaled() } else { write }, SendWr::send(2, &[]).signaled()])
        .unwrap();
    link.turn();
    let out = a.count(Counter::RequestsSent);
    assert!((1..100).contains(&out), "{out} packets");
    a.to_sqd();
    assert!(a.is_draining());
    draining(change(&a.qp, QpAttr::default(), AttrMask::empty()));
    link.turns(30);
    assert!(!a.is_draining());
    assert_eq!(a.drained_events(), 1);
    assert_eq!(a.done(), if signaled { vec![(1, Success)] } else { vec![] });
    assert!(b.mr.to_vec(0..data.len()).unwrap() == data);
    assert_eq!(a.count(Counter::RequestsSent), 100, "the SEND has not started");
    assert_eq!(b.done(), []);
    assert_eq!(
        (a.count(Counter::Retransmitted), a.count(Counter::AckProbes)),
        (0, 0),
        "nobody waited for a timer"
    );
    a.to(QpState::Rts);
    link.turns(20);
    assert_eq!((a.done(), b.done()), (vec![(2, Success)], vec![(9, Success)]));
}

#[test]
fn s27_s28_sqd_in_the_middle_of_a_hundred_packet_write() {
    long_write(&Link::new(), true);
}

#[test]
fn s27_s28_sqd_in_the_middle_of_an_unsignalled_write() {
    long_write(&Link::new(), false);
}

// Lost packets are retransmitted in SQD, too, until the message is acknowledged.
#[test]
fn s27_retries_go_on_while_draining() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    b.qp.post_recv(&[RecvWr::new(9, &[])]).unwrap();
    link.valve.shut();
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(5);
    a.to_sqd();
    link.wait(70 * MS);
    assert_eq!(a.count(Counter::RetriesTimeout), 1);
    assert!(a.is_draining());
    link.valve.open();
    link.turns(10);
    assert_eq!((a.done(), b.done()), (vec![(1, Success)], vec![(9, Success)]));
    assert_eq!((a.is_draining(), a.drained_events()), (false, 1));
}

/// A link with one SEND outstanding to a peer that does not answer, one queued after it that cannot start, and SQD.
fn stuck() -> Link {
    let link = Link::with(&RcOptions::default().timeout(8).retry_cnt(2), |init| init);
    link.valve.shut();
    link.a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(5);
    link.a.to_sqd();
    link.a.qp.post_send(&[SendWr::send(2, &[])]).unwrap();
    link.a.qp.post_recv(&[RecvWr::new(3, &[])]).unwrap();
    assert!(link.a.is_draining());
    link
}

#[test]
fn s27_an_error_while_draining_ends_in_err_without_the_event() {
    let link = stuck();
    link.wait(30 * MS);
    assert_eq!(link.a.qp.state().unwrap(), QpState::Err);
    assert_eq!(link.a.done(), [(1, RetryExcErr), (2, WrFlushErr), (3, WrFlushErr)]);
    assert_eq!(link.a.count(Counter::RetriesTimeout), 2, "entering SQD gives no new retries");
    assert_eq!((link.a.drained_events(), link.a.is_draining()), (0, false));
}

#[test]
fn s27_err_and_reset_while_draining() {
    let link = stuck();
    link.a.to(QpState::Err);
    link.valve.open();
    link.turns(10);
    assert_eq!(link.a.done(), [(1, WrFlushErr), (2, WrFlushErr), (3, WrFlushErr)]);
    assert_eq!((link.a.drained_events(), link.a.is_draining()), (0, false));

    let link = stuck();
    link.a.to(QpState::Reset);
    link.valve.open();
    link.wait(30 * MS);
    assert_eq!((link.a.done(), link.a.drained_events(), link.a.is_draining()), (vec![], 0, false));
    assert!(!link.a.qp.query().unwrap().0.en_sqd_async_notify, "RESET forgets it");
}

#[test]
fn s30_posting_and_receiving_in_sqd() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    a.to_sqd();
    a.qp.post_recv(&[RecvWr::new(1, &[a.mr.sge(0..8).unwrap()])]).unwrap();
    a.mr.write(64, b"from a..").unwrap();
    a.qp.post_send(&[SendWr::send(2, &[a.mr.sge(64..72).unwrap()]).signaled()]).unwrap();
    b.mr.write(0, b"incoming").unwrap();
    b.qp.post_recv(&[RecvWr::new(3, &[b.mr.sge(64..72).unwrap()])]).unwrap();
    let sge = [b.mr.sge(0..8).unwrap()];
    b.qp.post_send(&[
        SendWr::send(4, &sge).signaled(),
        SendWr::read(5, &[b.mr.sge(8..16).unwrap()], a.mr.addr(), a.mr.rkey()).signaled(),
    ])
    .unwrap();
    link.turns(20);
    assert_eq!(b.done(), [(4, Success), (5, Success)], "received, acknowledged and answered");
    assert_eq!(a.done(), [(1, Success)]);
    assert_eq!(
        (a.mr.to_vec(0..8).unwrap(), b.mr.to_vec(8..16).unwrap()),
        (b"incoming".to_vec(), b"incoming".to_vec())
    );
    assert_eq!(a.count(Counter::RequestsSent), 0);
    a.to(QpState::Rts);
    link.turns(20);
    assert_eq!((a.done(), b.done()), (vec![(2, Success)], vec![(3, Success)]));
}

#[test]
fn s31_timeout_and_retry_count() {
    let link = Link::new();
    let a = &link.a;
    let attr = QpAttr { timeout: 8, retry_cnt: 1, ..QpAttr::default() };
    change_and_resume(&link, a, attr, AttrMask::TIMEOUT | AttrMask::RETRY_CNT);
    link.valve.shut();
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    // 4.096 us * 2^8 = 1.05 ms, twice; before it was 67 ms, eight times.
    link.wait(20 * MS);
    assert_eq!((a.done(), a.count(Counter::RetriesTimeout)), (vec![(1, RetryExcErr)], 1));
}

#[test]
fn s31_rnr_retry() {
    let link = Link::new();
    let a = &link.a;
    change_and_resume(&link, a, QpAttr { rnr_retry: 0, ..QpAttr::default() }, AttrMask::RNR_RETRY);
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(10);
    assert_eq!(a.done(), [(1, RnrRetryExcErr)], "the first refusal, where it was for ever");
}

#[test]
fn s31_min_rnr_timer() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    // Code 20 is 10.24 ms; before it was 0.64 ms.
    change_and_resume(&link, b, QpAttr { min_rnr_timer: 20, ..QpAttr::default() }, AttrMask::MIN_RNR_TIMER);
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(10);
    assert_eq!(b.count(Counter::RnrNaksSent), 1);
    b.qp.post_recv(&[RecvWr::new(2, &[])]).unwrap();
    link.wait(9 * MS);
    assert_eq!(a.done(), []);
    link.wait(3 * MS);
    assert_eq!((a.done(), b.count(Counter::RnrNaksSent)), (vec![(1, Success)], 1));
}

#[test]
fn s31_reads_outstanding_as_requester() {
    let link = Link::with(&RcOptions::default().max_rd_atomic(1), |init| init);
    let (a, b) = (&link.a, &link.b);
    let outstanding = |depth: u8| {
        change_and_resume(
            &link,
            a,
            QpAttr { max_rd_atomic: depth, ..QpAttr::default() },
            AttrMask::MAX_QP_RD_ATOMIC,
        );
        let before = a.count(Counter::RequestsSent);
        link.valve.shut();
        (0..6).for_each(|n| read(b, a, n));
        link.turns(5);
        let out = a.count(Counter::RequestsSent) - before;
        link.valve.open();
        link.turns(40);
        assert_eq!(a.done(), (0..6).map(|id| (id, Success)).collect::<Vec<_>>());
        out
    };
    assert_eq!([4, 1, 2].map(outstanding), [4, 1, 2]);
}

#[test]
fn s31_reads_outstanding_as_responder() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    let depth = |n| {
        change_and_resume(
            &link,
            b,
            QpAttr { max_dest_rd_atomic: n, ..QpAttr::default() },
            AttrMask::MAX_DEST_RD_ATOMIC,
        );
        assert_eq!(b.qp.query().unwrap().0.max_dest_rd_atomic, n);
        read(b, a, 1);
        read(b, a, 2);
        link.turns(20);
        a.done()
    };
    assert_eq!(depth(2), [(1, Success), (2, Success)]);
    assert_eq!(depth(0), [(1, RemInvReqErr), (2, WrFlushErr)], "no resources, no READ");
}

#[test]
fn s31_access_flags() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    let write = |id| {
        let list = [a.mr.sge(0..8).unwrap()];
        a.qp.post_send(&[SendWr::write(id, &list, b.mr.addr(), b.mr.rkey()).signaled()]).unwrap();
        link.turns(20);
        a.done()
    };
    assert_eq!(write(1), [(1, Success)]);
    let attr = QpAttr { qp_access_flags: Access::REMOTE_READ.bits(), ..QpAttr::default() };
    change_and_resume(&link, b, attr, AttrMask::ACCESS_FLAGS);
    assert_eq!(write(2), [(2, RemInvReqErr)], "an operation that is not enabled");
}

// Both ends move to their second addresses. Until the second end has moved, packets are dropped.
#[test]
fn s31_new_path() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    let to = |from: &End, peer: &End| {
        let mut attr = from.qp.query().unwrap().0;
        let grh = attr.ah_attr.grh.as_mut().unwrap();
        (grh.dgid, grh.sgid_index) = (peer.context.query_gid(1, 2).unwrap(), 2);
        change_and_resume(&link, from, attr, AttrMask::AV);
        assert_eq!(from.qp.query().unwrap().0.ah_attr, attr.ah_attr);
    };
    b.qp.post_recv(&[RecvWr::new(2, &[])]).unwrap();
    to(a, b);
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(20);
    assert_eq!(b.context.counters().discarded(Discard::NotOurAddress), 1);
    assert_eq!(b.done(), []);
    to(b, a);
    link.wait(70 * MS);
    assert_eq!((a.done(), b.done()), (vec![(1, Success)], vec![(2, Success)]));
}

// UC has no acknowledgements: a started request completes when it has left.
#[test]
fn s27_s28_uc_in_the_middle_of_a_hundred_packet_write() {
    let link = Link::with(&RcOptions::default(), |mut init| {
        init.qp_type = QpType::Uc;
        init
    });
    let (a, b) = (&link.a, &link.b);
    let data: Vec<u8> = (0..100 * 1024).map(|i: usize| (i / 5) as u8).collect();
    a.mr.write(0, &data).unwrap();
    let list = [a.mr.sge(0..data.len()).unwrap()];
    let write = SendWr::write(1, &list, b.mr.addr(), b.mr.rkey()).signaled();
    b.qp.post_recv(&[RecvWr::new(9, &[])]).unwrap();
    a.qp.post_send(&[write, SendWr::send(2, &[]).signaled()]).unwrap();
    link.turn();
    let out = a.count(Counter::RequestsSent);
    assert!((1..100).contains(&out), "{out} packets");
    a.to_sqd();
    assert!(a.is_draining());
    draining(change(&a.qp, QpAttr::default(), AttrMask::empty()));
    link.turns(30);
    assert_eq!((a.is_draining(), a.drained_events(), a.done()), (false, 1, vec![(1, Success)]));
    assert!(b.mr.to_vec(0..data.len()).unwrap() == data);
    assert_eq!((a.count(Counter::RequestsSent), b.done()), (100, vec![]));
    a.to(QpState::Rts);
    link.turns(10);
    assert_eq!((a.done(), b.done()), (vec![(2, Success)], vec![(9, Success)]));
}

// The message that SQD waits for fails: the send queue is not reported as drained, neither then nor later in RTS.
#[test]
fn s27_an_error_of_uc_while_draining_ends_in_sqe_without_the_event() {
    let link = Link::with(&RcOptions::default(), |mut init| {
        init.qp_type = QpType::Uc;
        init
    });
    let (a, b) = (&link.a, &link.b);
    let torn = [a.mr.sge(0..100 << 10).unwrap(), verbs::Sge { lkey: 0x55, ..a.mr.sge(0..8).unwrap() }];
    a.qp.post_send(&[SendWr::write(1, &torn, b.mr.addr(), b.mr.rkey())]).unwrap();
    link.turn();
    a.to_sqd();
    assert!(a.is_draining());
    link.turns(30);
    assert_eq!((a.done(), a.qp.state().unwrap()), (vec![(1, WcStatus::LocProtErr)], QpState::Sqe));
    assert!(!a.is_draining());
    a.to(QpState::Rts);
    a.qp.post_send(&[SendWr::write(2, &[], 0, 0).signaled()]).unwrap();
    link.turns(10);
    assert_eq!((a.done(), a.drained_events()), (vec![(2, Success)], 0));
}

#[test]
fn s26_s28_s30_ud() {
    let context = common::embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let mr = pd.reg_mr(64, common::all_rights()).unwrap();
    let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    qp.activate_ud(0x11).unwrap();
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    let post = |id| qp.post_send(&[SendWr::send(id, &[]).signaled().to(&ah, qp.qp_num(), 0x11)]).unwrap();
    post(1);
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    // No request had started.
    assert!(!qp.query().unwrap().0.sq_draining);
    let event = context.try_get_async_event().unwrap();
    assert_eq!((event.event, event.element), (AsyncEvent::SqDrained, EventElement::Qp(qp.qp_num())));
    post(2);
    qp.post_recv(&[RecvWr::new(3, &[mr.sge(0..64).unwrap()])]).unwrap();
    common::assert_no_completion(&context, &cq);
    change(&qp, QpAttr { qkey: 0x22, ..QpAttr::default() }, AttrMask::QKEY).unwrap();
    change(&qp, QpAttr { qkey: 0x11, ..QpAttr::default() }, AttrMask::QKEY).unwrap();
    qp.modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    let done = common::take(&context, &cq, 3);
    let sends: Vec<u64> = done.iter().map(|wc| wc.wr_id).filter(|id| *id < 3).collect();
    assert_eq!(sends, [1, 2], "in order");
    assert!(done.iter().all(|wc| wc.status == Success), "{done:?}");
    assert!(context.try_get_async_event().is_none());
    qp.drain_qp(common::PATIENCE).unwrap();
}
