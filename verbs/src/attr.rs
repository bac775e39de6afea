//! Ready-made sets of attributes for the transitions that bring up a queue pair, for [`Qp::modify`](crate::Qp::modify).

use stack::device::{
    Access, AhAttr, AttrMask, Gid, GlobalRoute, Mtu, Psn, QpAttr, QpState, QpType, Qpn, required,
};

/// A state and no other attribute: for [`QpState::Reset`] and [`QpState::Err`], and for RTS to SQD and back.
pub fn attr_to(state: QpState) -> (QpAttr, AttrMask) {
    (QpAttr { qp_state: state, ..QpAttr::default() }, AttrMask::STATE)
}

/// RESET to INIT of a connected queue pair: the access rights of the peer, port 1, and the default partition key.
pub fn attr_init(access: Access) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        pkey_index: 0,
        qp_access_flags: access.bits(),
        ..QpAttr::default()
    };
    (attr, required(QpState::Reset, QpState::Init, QpType::Rc))
}

/// INIT to RTR of an RC queue pair: the path to the peer, its queue pair number and first PSN. READ and atomic depth (16) and RNR timer
/// (12: 0.64 ms) have the usual values; change them in the result if you need others.
pub fn attr_rtr(dgid: Gid, sgid_index: u8, dest: Qpn, rq_psn: Psn, path_mtu: Mtu) -> (QpAttr, AttrMask) {
    let grh = GlobalRoute { dgid, sgid_index, hop_limit: 64, ..GlobalRoute::default() };
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr: AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() },
        path_mtu: path_mtu as u8,
        dest_qp_num: dest.get(),
        rq_psn: rq_psn.get(),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ..QpAttr::default()
    };
    (attr, required(QpState::Init, QpState::Rtr, QpType::Rc))
}

/// RTR to RTS of an RC queue pair: its first PSN. Timeout (14: 67 ms), retries (7), RNR retries (7: unlimited) and READ and atomic depth
/// (16) have the usual values; change them in the result if you need others.
pub fn attr_rts(sq_psn: Psn) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: sq_psn.get(),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    (attr, required(QpState::Rtr, QpState::Rts, QpType::Rc))
}

/// INIT to RTR of a UC queue pair: the path to the peer, its queue pair number and first PSN.
pub fn attr_rtr_uc(dgid: Gid, sgid_index: u8, dest: Qpn, rq_psn: Psn, path_mtu: Mtu) -> (QpAttr, AttrMask) {
    let (attr, _) = attr_rtr(dgid, sgid_index, dest, rq_psn, path_mtu);
    (attr, required(QpState::Init, QpState::Rtr, QpType::Uc))
}

/// RTR to RTS of a UC queue pair: its first PSN.
pub fn attr_rts_uc(sq_psn: Psn) -> (QpAttr, AttrMask) {
    let attr = QpAttr { qp_state: QpState::Rts, sq_psn: sq_psn.get(), ..QpAttr::default() };
    (attr, required(QpState::Rtr, QpState::Rts, QpType::Uc))
}

/// RESET to INIT of a UD queue pair: its Q_Key, port 1, and the default partition key. Use [`attr_to`] for INIT to RTR, and [`attr_rts_ud`]
/// for RTR to RTS.
pub fn attr_init_ud(qkey: u32) -> (QpAttr, AttrMask) {
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, pkey_index: 0, qkey, ..QpAttr::default() };
    (attr, required(QpState::Reset, QpState::Init, QpType::Ud))
}

/// RTR to RTS of a UD queue pair: its first PSN, which no receiver checks.
pub fn attr_rts_ud(sq_psn: Psn) -> (QpAttr, AttrMask) {
    attr_rts_uc(sq_psn)
}
