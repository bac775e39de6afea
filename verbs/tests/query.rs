//! Query QP: attributes and creation parameters, exactly as set, for every type in every state.

use crate::common::{self, embedded};
use verbs::{
    AhAttr, AttrMask, Context, GlobalRoute, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendWr,
};

/// Every attribute that a type may be given on its way to RTS, each with a distinct value.
fn steps(context: &Context, ty: QpType) -> [(QpAttr, AttrMask); 3] {
    use AttrMask as M;
    let grh = GlobalRoute {
        dgid: context.query_gid(1, 1).unwrap(),
        sgid_index: 1,
        hop_limit: 17,
        traffic_class: 0x68,
        flow_label: 0x12345,
    };
    let attr = QpAttr {
        port_num: 1,
        qkey: 0x1234,
        qp_access_flags: 0x0a,
        ah_attr: AhAttr { grh: Some(grh), port_num: 1, sl: 3, ..AhAttr::default() },
        path_mtu: 3,
        dest_qp_num: 0x777,
        rq_psn: 0x123,
        sq_psn: 0xabc,
        max_dest_rd_atomic: 5,
        max_rd_atomic: 6,
        min_rnr_timer: 7,
        timeout: 8,
        retry_cnt: 3,
        rnr_retry: 2,
        ..QpAttr::default()
    };
    let connected = matches!(ty, QpType::Rc | QpType::Uc);
    let reliable = ty == QpType::Rc;
    let init = match ty {
        QpType::Gsi => M::PKEY_INDEX | M::QKEY,
        QpType::Ud => M::PKEY_INDEX | M::PORT | M::QKEY,
        _ => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
    };
    let mut rtr = M::empty();
    let mut rts = M::SQ_PSN;
    if connected {
        rtr |= M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    }
    if reliable {
        rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        rts |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    }
    let to = |qp_state| QpAttr { qp_state, ..attr };
    [(to(QpState::Init), init), (to(QpState::Rtr), rtr), (to(QpState::Rts), rts)]
        .map(|(a, m)| (a, m | M::STATE))
}

#[test]
fn s33_every_attribute_in_every_state_of_every_type() {
    for ty in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        let context = embedded();
        let pd = context.alloc_pd().unwrap();
        let (send_cq, recv_cq) = (context.create_cq(3).unwrap(), context.create_cq(7).unwrap());
        let cap =
            QpCap { max_send_wr: 5, max_recv_wr: 9, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 77 };
        let init = QpInitAttr { qp_type: ty, ..QpInitAttr::new(ty, &send_cq, &recv_cq) }.cap(cap).sig_all();
        let qp = pd.create_qp(&init).unwrap();
        let mut want = QpAttr { cap: qp.cap(), port_num: 1, ..QpAttr::default() };
        assert!(want.cap.max_send_wr >= 5 && want.cap.max_recv_wr >= 9, "at least what was asked for");
        let check = |want: &QpAttr| {
            let (attr, init) = qp.query().unwrap();
            assert_eq!(attr, *want, "{ty:?}");
            assert_eq!((init.qp_type, init.sq_sig_all, init.cap), (ty, true, qp.cap()));
            assert_eq!((init.send_cq.cqe(), init.recv_cq.cqe()), (3, 7));
            assert_eq!(qp.state().unwrap(), want.qp_state);
        };
        check(&want);
        let steps = steps(&context, ty);
        let mut modify = |attr: &QpAttr, mask: AttrMask| {
            qp.modify(attr, mask).unwrap();
            want.take(attr, mask);
            (want.qp_state, want.cur_qp_state) = (attr.qp_state, attr.qp_state);
            if matches!(ty, QpType::Ud | QpType::Gsi) {
                // Not an attribute of datagram types: the port's MTU limits their messages.
                want.path_mtu = context.query_port(1).unwrap().active_mtu as u8;
            }
            check(&want);
        };
        for (attr, mask) in &steps {
            modify(attr, *mask);
        }
        let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        modify(&sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
        modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE);
        modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE);
        // RESET clears everything but the creation parameters.
        want = QpAttr { cap: qp.cap(), port_num: 1, ..QpAttr::default() };
        qp.modify(&want, AttrMask::STATE).unwrap();
        check(&want);
    }
}

// The sequence numbers advance with messages sent and received.
#[test]
fn s33_sequence_numbers_are_the_present_ones() {
    let p = common::Pair::new(embedded());
    let (before_a, before_b) = (p.a.query().unwrap().0, p.b.query().unwrap().0);
    p.b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    p.a.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
    p.done_a(1);
    let next = |psn: u32| (psn + 1) & 0xff_ffff;
    assert_eq!(p.a.query().unwrap().0.sq_psn, next(before_a.sq_psn));
    assert_eq!(p.b.query().unwrap().0.rq_psn, next(before_b.rq_psn));
}
