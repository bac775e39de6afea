//! Turns the parameters that connection management negotiated into attributes of a queue pair.

use crate::cm::{QpParams, Transport};
use crate::id::{QpState, QpType};
use crate::mem::Access;
use crate::proto::attr::{AhAttr, AttrMask, GlobalRoute, QpAttr};
use crate::proto::state::required;

/// Attributes that bring a queue pair of a connection from RESET to INIT. [`cm_rtr`] adds the peer's access rights, when the depths are
/// known.
pub fn cm_init() -> (QpAttr, AttrMask) {
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, ..QpAttr::default() };
    (attr, required(QpState::Reset, QpState::Init, QpType::Rc))
}

/// Attributes that bring a queue pair from INIT to RTR. `sgid_index` is that of `params.path.sgid`.
///
/// The peer may WRITE; it may READ and use atomics if [`QpParams::remote_read`]. On an unreliable connection it may
/// only WRITE.
pub fn cm_rtr(params: &QpParams, sgid_index: u8) -> (QpAttr, AttrMask) {
    let path = &params.path;
    let grh = GlobalRoute {
        dgid: path.dgid,
        flow_label: path.flow_label,
        sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
    };
    let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    access.set(
        Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        qp_type(params) == QpType::Rc && params.remote_read(),
    );
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        qp_access_flags: access.bits(),
        ah_attr: AhAttr { grh: Some(grh), sl: path.sl, port_num: 1, ..AhAttr::default() },
        path_mtu: params.path_mtu as u8,
        dest_qp_num: params.dest_qpn.get(),
        rq_psn: params.rq_psn.get(),
        max_dest_rd_atomic: params.max_dest_rd_atomic,
        min_rnr_timer: params.min_rnr_timer,
        ..QpAttr::default()
    };
    (attr, required(QpState::Init, QpState::Rtr, qp_type(params)) | AttrMask::ACCESS_FLAGS)
}

/// Attributes that bring a queue pair from RTR to RTS.
pub fn cm_rts(params: &QpParams) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: params.sq_psn.get(),
        timeout: params.timeout,
        retry_cnt: params.retry_cnt,
        rnr_retry: params.rnr_retry,
        max_rd_atomic: params.max_rd_atomic,
        ..QpAttr::default()
    };
    (attr, required(QpState::Rtr, QpState::Rts, qp_type(params)))
}

fn qp_type(params: &QpParams) -> QpType {
    if params.transport == Transport::Rc { QpType::Rc } else { QpType::Uc }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::Path;
    use crate::id::{Mtu, Psn, Qpn};
    use crate::proto::state::check_modify;

    // Modify accepts each mask; access rights follow from the negotiated depths.
    #[test]
    fn attributes_of_a_connection_are_legal() {
        for (transport, ty) in [(Transport::Rc, QpType::Rc), (Transport::Uc, QpType::Uc)] {
            for depth in [0, 4] {
                let params = QpParams {
                    transport,
                    qpn: Qpn::new(0x11),
                    dest_qpn: Qpn::new(0x1234),
                    rq_psn: Psn::new(1),
                    sq_psn: Psn::new(2),
                    path_mtu: Mtu::Mtu1024,
                    max_rd_atomic: 3,
                    max_dest_rd_atomic: depth,
                    timeout: 17,
                    retry_cnt: 7,
                    rnr_retry: 6,
                    min_rnr_timer: 5,
                    path: Path { hop_limit: 9, traffic_class: 8, flow_label: 7, sl: 6, ..Path::default() },
                };
                let (_, init) = cm_init();
                let (rtr, rtr_mask) = cm_rtr(&params, 3);
                let (rts, rts_mask) = cm_rts(&params);
                for (from, to, mask) in [
                    (QpState::Reset, QpState::Init, init),
                    (QpState::Init, QpState::Rtr, rtr_mask),
                    (QpState::Rtr, QpState::Rts, rts_mask),
                ] {
                    assert_eq!(check_modify(from, to, ty, mask), Ok(()), "{from:?} to {to:?}");
                }
                let access = Access::from_bits_retain(rtr.qp_access_flags);
                assert!(access.contains(Access::REMOTE_WRITE));
                assert_eq!(access.contains(Access::REMOTE_READ), transport == Transport::Rc && depth != 0);
                assert_eq!(rtr.ah_attr.grh.unwrap().sgid_index, 3);
                assert_eq!((rtr.dest_qp_num, rtr.rq_psn, rtr.max_dest_rd_atomic), (0x1234, 1, depth));
                assert_eq!((rts.sq_psn, rts.timeout, rts.max_rd_atomic, rts.rnr_retry), (2, 17, 3, 6));
            }
        }
    }
}
