//! Any attribute masks and values to `modify_qp`.

use super::Input;
use crate::node::{Node, NodeConfig, QpConfig};
use crate::rng::Rng;
use stack::config::RD_ATOMIC_MAX;
use stack::id::{Gid, QpState, QpType, Qpn};
use stack::proto::attr::{AhAttr, AttrMask, GlobalRoute, PathMigState, QpAttr};
use stack::proto::state::{QKEY_PRIVILEGED, QP_ACCESS_FLAGS, rule};
use stack::time::Instant;

/// Calls of one input.
const CALLS: usize = 24;

/// Calls `modify_qp` with masks and values of the input's choice on a queue pair of any type.
///
/// # Panics
/// If a call that is refused changes anything, a call that is taken changes anything but its attributes, or the call disagrees
/// with the table and the values' ranges.
pub fn modify_masks(data: &[u8]) {
    let mut input = Input(data);
    let ty = input.pick(&QpType::ALL);
    let now = Instant::from_nanos(1_000_000);
    let config = NodeConfig { buffers: 64, ..NodeConfig::default() };
    let mut node = Node::new(config, now, Rng::new(7));
    let cq = node.create_cq(16);
    let qp = node.create_qp(0, QpConfig { ty, ..QpConfig::default() }, cq, cq);
    let peer = Gid::v4([10, 0, 0, 2]);
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let from = node.state(qp);
        let to = QpState::ALL[input.below(7)];
        let mut attr = QpAttr {
            qp_state: to,
            cur_qp_state: from,
            qkey: 0x1234,
            ..node.attr_to(qp, peer, Qpn::new(0xab_cdef))
        };
        let mask = mask(&mut input, from, to, ty);
        for _ in 0..input.u8() % 4 {
            perturb(&mut input, &mut attr);
        }
        let before = node.query(qp);
        let result = node.modify(now, qp, &attr, mask);
        let after = node.query(qp);
        match result {
            Err(error) => {
                assert_eq!(after, before, "refused with \"{error}\", and yet something has changed");
                assert_eq!(node.state(qp), from);
                assert!(!acceptable(&node, &attr, mask, from, ty), "{ty:?} {mask} {attr:?}: {error}");
                assert!(!error.to_string().is_empty());
            }
            Ok(()) => {
                assert!(acceptable(&node, &attr, mask, from, ty), "{ty:?} {from:?} takes {mask} {attr:?}");
                let target = if mask.contains(AttrMask::STATE) { to } else { from };
                assert_eq!((node.state(qp), after.qp_state, after.cur_qp_state), (target, target, target));
                // RESET clears attributes, and an idle queue pair is drained at once.
                if target != QpState::Reset {
                    let mut expected = before;
                    expected.take(&attr, mask);
                    (expected.qp_state, expected.cur_qp_state) = (target, target);
                    expected.sq_draining = after.sq_draining;
                    if matches!(ty, QpType::Ud | QpType::Gsi) {
                        expected.path_mtu = after.path_mtu; // the port's, no attribute of theirs
                    }
                    if from == QpState::Rts
                        && target == QpState::Sqd
                        && !mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY)
                    {
                        expected.en_sqd_async_notify = false;
                    }
                    assert_eq!(after, expected, "{from:?} -> {target:?} with {mask}");
                }
            }
        }
        node.turn(0, now);
        while node.wires[0].take().is_some() {}
    }
}

/// A mask: the required attributes of the transition, a little more or less, or anything.
fn mask(input: &mut Input<'_>, from: QpState, to: QpState, ty: QpType) -> AttrMask {
    let wanted = rule(from, to, ty).map_or(AttrMask::empty(), |r| r.required) | AttrMask::STATE;
    match input.u8() % 4 {
        0 => AttrMask::from_bits_retain(input.u32()),
        1 => wanted,
        2 => wanted ^ AttrMask::from_bits_retain(1 << (input.u8() & 31)),
        _ => {
            let some = AttrMask::from_bits_retain(input.u32());
            wanted | rule(from, to, ty).map_or(AttrMask::empty(), |r| r.optional & some)
        }
    }
}

/// Any value for one attribute.
fn perturb(input: &mut Input<'_>, attr: &mut QpAttr) {
    let byte = input.u8();
    match input.u8() % 20 {
        0 => attr.path_mtu = byte,
        1 => attr.qkey = input.u32(),
        2 => attr.rq_psn = input.u32(),
        3 => attr.sq_psn = input.u32(),
        4 => attr.dest_qp_num = input.u32(),
        5 => attr.qp_access_flags = input.u32(),
        6 => attr.pkey_index = u16::from(byte),
        7 => attr.max_rd_atomic = byte,
        8 => attr.max_dest_rd_atomic = byte,
        9 => attr.min_rnr_timer = byte,
        10 => attr.port_num = byte,
        11 => attr.timeout = byte,
        12 => attr.retry_cnt = byte,
        13 => attr.rnr_retry = byte,
        14 => attr.cur_qp_state = QpState::ALL[usize::from(byte) % 7],
        15 => attr.path_mig_state = input.pick(&[PathMigState::Rearm, PathMigState::Armed]),
        16 => attr.ah_attr.grh = None,
        17 => attr.en_sqd_async_notify = byte & 1 != 0,
        18 => attr.ah_attr = AhAttr { sl: byte, port_num: input.u8(), ..attr.ah_attr },
        _ => {
            let mut dgid = Gid::default();
            dgid.0.copy_from_slice(&[input.u64().to_be_bytes(), input.u64().to_be_bytes()].concat());
            attr.ah_attr.grh = Some(GlobalRoute {
                dgid,
                sgid_index: byte,
                flow_label: input.u32(),
                hop_limit: input.u8(),
                traffic_class: input.u8(),
            });
        }
    }
}

/// The table and the ranges a second time: whether a call is to be taken.
fn acceptable(node: &Node, attr: &QpAttr, mask: AttrMask, from: QpState, ty: QpType) -> bool {
    let has = |bit| mask.contains(bit);
    let to = if has(AttrMask::STATE) { attr.qp_state } else { from };
    let Some(rule) = rule(from, to, ty) else { return false };
    let allowed = rule.required | rule.optional | AttrMask::STATE;
    let grh_is_good = attr.ah_attr.grh.is_some_and(|grh| {
        node.shared.gids.get(grh.sgid_index.into()).is_some_and(|ours| ours.same_family(&grh.dgid))
            && grh.flow_label < 1 << 20
            && !grh.dgid.is_zero()
            && !grh.dgid.is_multicast()
    });
    let bad = [
        (AttrMask::CUR_STATE, attr.cur_qp_state != from),
        (AttrMask::ALT_PATH, true),
        (AttrMask::CAP, true),
        (AttrMask::PORT, attr.port_num != 1),
        (AttrMask::PKEY_INDEX, attr.pkey_index != 0),
        (AttrMask::TIMEOUT, attr.timeout > 31),
        (AttrMask::RETRY_CNT, attr.retry_cnt > 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry > 7),
        (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer > 31),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > RD_ATOMIC_MAX),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > RD_ATOMIC_MAX),
        (AttrMask::DEST_QPN, attr.dest_qp_num > 0xff_ffff),
        (AttrMask::PATH_MTU, !(1..=5).contains(&attr.path_mtu)),
        (AttrMask::AV, !grh_is_good || attr.ah_attr.port_num != 1 || attr.ah_attr.sl > 7),
        (AttrMask::ACCESS_FLAGS, attr.qp_access_flags & !QP_ACCESS_FLAGS != 0),
        // The owner of queue pair 1 has the privilege.
        (AttrMask::QKEY, ty != QpType::Gsi && attr.qkey & QKEY_PRIVILEGED != 0),
        (AttrMask::PATH_MIG_STATE, attr.path_mig_state != PathMigState::Migrated),
    ];
    mask.contains(rule.required)
        && allowed.contains(mask)
        && !bad.into_iter().any(|(bit, bad)| has(bit) && bad)
}
