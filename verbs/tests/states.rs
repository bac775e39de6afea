//! Queue pair states through the public API.

use crate::common::{self, Pair, all_rights, assert_no_completion, device, embedded, enter, options, pump};
use verbs::{
    Access, AsyncEvent, AttrMask, EventElement, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    SendWr, WcOpcode, WcStatus, attr_init, attr_init_ud, attr_rtr, attr_rts, attr_rts_ud, attr_to, errno,
};

#[test]
fn s10_new_access_flags_in_init_are_in_force() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let (attr, mask) = attr_init(Access::REMOTE_READ);
    qp.modify(&attr, mask).unwrap();
    assert_eq!(qp.query().unwrap().0.qp_access_flags, Access::REMOTE_READ.bits());
    let attr = QpAttr { qp_access_flags: Access::REMOTE_WRITE.bits(), ..QpAttr::default() };
    qp.modify(&attr, AttrMask::ACCESS_FLAGS).unwrap();
    let (now, _) = qp.query().unwrap();
    assert_eq!((now.qp_state, now.qp_access_flags), (QpState::Init, Access::REMOTE_WRITE.bits()));
}

#[test]
fn s18_no_sends_below_rts() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let refused = |state: QpState| {
        assert_eq!(qp.state().unwrap(), state);
        let e = qp.post_send(&[SendWr::send(1, &[]), SendWr::send(2, &[])]).unwrap_err();
        assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 0), "{state:?}");
        assert!(qp.post_send(std::iter::empty::<SendWr<'_>>()).is_ok(), "an empty list asks for nothing");
    };
    refused(QpState::Reset);
    qp.init_rc(&options()).unwrap();
    refused(QpState::Init);
    let peer = qp.endpoint(1).unwrap();
    let (attr, mask) = attr_rtr(peer.gid, 1, peer.qpn, peer.psn, verbs::Mtu::Mtu1024);
    qp.modify(&attr, mask).unwrap();
    refused(QpState::Rtr);
    let (attr, mask) = attr_rts(peer.psn);
    qp.modify(&attr, mask).unwrap();
    qp.post_send(&[SendWr::send(1, &[])]).unwrap();
}

#[test]
fn s19_receives_from_init_on() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let e = qp.post_recv(&[RecvWr::new(1, &[])]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 0));
    qp.init_rc(&options()).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
}

#[test]
fn s20_posts_in_err_are_flushed_after_older_ones() {
    let p = Pair::new(embedded());
    for id in 0..3 {
        p.a.post_send(&[SendWr::send(id, &[])]).unwrap();
        p.a.post_recv(&[RecvWr::new(100 + id, &[])]).unwrap();
    }
    enter(&p.a, QpState::Err);
    p.a.post_send(&[SendWr::send(3, &[])]).unwrap();
    p.a.post_recv(&[RecvWr::new(103, &[])]).unwrap();
    let done = p.done_a(8);
    assert!(done.iter().all(|wc| wc.status == WcStatus::WrFlushErr), "{done:?}");
    let ids = |recv: bool| -> Vec<u64> {
        done.iter().map(|wc| wc.wr_id).filter(|id| (*id >= 100) == recv).collect()
    };
    assert_eq!(ids(false), [0, 1, 2, 3]);
    assert_eq!(ids(true), [100, 101, 102, 103]);
    assert_no_completion(&p.context, &p.cq_a);
}

// A receive posted in ERR long after the flush: no frame arrives that would make the shard check the queue.
#[test]
fn s20_a_late_receive_in_err_is_flushed() {
    let p = Pair::new(device());
    enter(&p.a, QpState::Err);
    assert_no_completion(&p.context, &p.cq_a);
    p.a.post_recv(&[RecvWr::new(7, &[])]).unwrap();
    let done = p.done_a(1);
    assert_eq!((done[0].wr_id, done[0].status), (7, WcStatus::WrFlushErr));
}

#[test]
fn s22_reset_forgets_everything() {
    let p = Pair::new(embedded());
    p.a.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    p.a.post_recv(&[RecvWr::new(2, &[])]).unwrap();
    // RESET discards completions that are already in the queue, too.
    enter(&p.a, QpState::Err);
    pump(&p.context);
    enter(&p.a, QpState::Reset);
    enter(&p.b, QpState::Reset);
    assert_no_completion(&p.context, &p.cq_a);
    p.a.connect_rc(&p.b.endpoint(1).unwrap(), &options()).unwrap();
    p.b.connect_rc(&p.a.endpoint(1).unwrap(), &options()).unwrap();
    p.b.post_recv(&[RecvWr::new(3, &[])]).unwrap();
    p.a.post_send(&[SendWr::send_with_imm(4, &[], 0x0102_0304).signaled()]).unwrap();
    assert_eq!(p.done_a(1)[0].wr_id, 4);
    let wc = p.done_b(1)[0];
    assert_eq!((wc.wr_id, wc.opcode, wc.imm_data()), (3, WcOpcode::Recv, Some(0x0102_0304)));
}

#[test]
fn s24_s26_events_of_a_queue_pair() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let a = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let b = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    b.init_rc(&options()).unwrap();
    b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    let from = a.endpoint(1).unwrap();
    let (attr, mask) = attr_rtr(from.gid, 1, from.qpn, from.psn, verbs::Mtu::Mtu4096);
    b.modify(&attr, mask).unwrap();
    a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
    assert_eq!(context.try_get_async_event(), None);
    a.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
    assert_eq!(common::take(&context, &cq, 2).len(), 2);
    let event = context.try_get_async_event().unwrap();
    assert_eq!((event.event, event.element), (AsyncEvent::CommEst, EventElement::Qp(b.qp_num())));

    let (mut attr, mask) = attr_to(QpState::Sqd);
    attr.en_sqd_async_notify = true;
    a.modify(&attr, mask | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    let event = context.get_async_event(common::PATIENCE).unwrap().unwrap();
    assert_eq!((event.event, event.element), (AsyncEvent::SqDrained, EventElement::Qp(a.qp_num())));
    assert!(!a.query().unwrap().0.sq_draining);
    assert_eq!(context.get_async_event(std::time::Duration::from_millis(2)).unwrap(), None);
}

#[test]
fn s33_query_in_each_state() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let cap = QpCap { max_send_wr: 5, max_recv_wr: 9, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 77 };
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap).sig_all()).unwrap();
    let is = |state: QpState| {
        let (attr, init) = qp.query().unwrap();
        assert_eq!((attr.qp_state, attr.cur_qp_state, qp.state().unwrap()), (state, state, state));
        assert_eq!((attr.cap, init.cap), (qp.cap(), qp.cap()), "{state:?}");
        assert_eq!((init.qp_type, init.sq_sig_all, init.shard), (QpType::Rc, true, Some(0)));
        assert_eq!(init.send_cq.cqe(), 1);
    };
    let granted = qp.cap();
    assert!(granted.max_send_wr >= 5 && granted.max_recv_wr >= 9, "{granted:?}");
    assert_eq!((granted.max_send_sge, granted.max_recv_sge, granted.max_inline_data), (3, 2, 77));
    is(QpState::Reset);
    qp.init_rc(&options()).unwrap();
    is(QpState::Init);
    let peer = qp.endpoint(1).unwrap();
    let (attr, mask) = attr_rtr(peer.gid, 1, peer.qpn, peer.psn, verbs::Mtu::Mtu1024);
    qp.modify(&attr, mask).unwrap();
    is(QpState::Rtr);
    let (attr, mask) = attr_rts(peer.psn);
    qp.modify(&attr, mask).unwrap();
    is(QpState::Rts);
    let (now, _) = qp.query().unwrap();
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry, now.max_rd_atomic), (14, 7, 7, 16));
    assert_eq!((now.dest_qp_num, now.path_mtu, now.sq_psn), (peer.qpn.get(), 3, peer.psn.get()));
    for state in [QpState::Sqd, QpState::Err, QpState::Reset] {
        enter(&qp, state);
        is(state);
    }
}

#[test]
fn s34_what_is_in_use_is_busy() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let mr = pd.reg_mr(8, all_rights()).unwrap();
    let (e, cq) = cq.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let (e, pd) = pd.dealloc().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let (e, context) = context.close().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    let (e, pd) = pd.dealloc().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "the region still is there: {e}");
    mr.dereg().unwrap();
    pd.dealloc().unwrap();
    context.close().unwrap();
}

// Datagram types pass through their whole state table.
#[test]
fn datagram_types_have_their_states() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let ud = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    let (attr, mask) = attr_init_ud(0x1234);
    ud.modify(&attr, mask).unwrap();
    ud.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    enter(&ud, QpState::Rtr);
    let (attr, mask) = attr_rts_ud(Psn::new(5));
    ud.modify(&attr, mask).unwrap();
    let (now, _) = ud.query().unwrap();
    assert_eq!((now.sq_psn, now.qkey), (5, 0x1234));
    for state in [QpState::Sqd, QpState::Rts, QpState::Err, QpState::Reset] {
        enter(&ud, state);
    }
    let gsi = pd.create_qp(&QpInitAttr::new(QpType::Gsi, &cq, &cq)).unwrap();
    assert_eq!((gsi.qp_num().get(), gsi.shard()), (1, 0));
    let e = pd.create_qp(&QpInitAttr::new(QpType::Gsi, &cq, &cq)).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
}
