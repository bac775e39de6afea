//! Conversion of attributes of queue pairs and paths between C and `verbs`. Handles structures whose size differs between releases of the
//! headers.

use core::ffi::c_int;

use verbs::{
    Access, AhAttr, AttrMask, Gid, GlobalRoute, PathMigState, QpAttr, QpCap, QpState, QpType, SendFlags,
};

use crate::abi::{self, ibv_ah_attr, ibv_qp_attr, ibv_qp_cap};
use crate::errno::{EINVAL, EOPNOTSUPP, Result};

/// Writes a result into a structure of the program that may be older or newer than ours: as much of it as fits, then zeros.
///
/// # Safety
/// `to` has room for `size` bytes.
pub(crate) unsafe fn put_sized<T>(from: &T, to: *mut T, size: usize) {
    let len = size.min(size_of::<T>());
    // SAFETY: `from` and `to` have at least `len` bytes, and `to` has `size`.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        (from as *const T).cast::<u8>().copy_to_nonoverlapping(to.cast(), len);
    }
}

/// Converts access rights. Optional rights (bits 20 to 29) that the device does not know are ignored.
pub(crate) fn access(bits: u32) -> Access {
    const OPTIONAL: u32 = 0x3ff0_0000;
    Access::from_bits_retain(bits & !(OPTIONAL & !Access::all().bits()))
}

/// Converts flags of a send request. As with other devices, unknown flags and those for raw packets are ignored.
#[inline]
pub(crate) fn send_flags(bits: u32) -> SendFlags {
    SendFlags::from_bits_truncate(bits).difference(SendFlags::IP_CSUM)
}

/// Converts a queue pair type. `EINVAL` for an unknown number.
pub(crate) fn qp_type(from: u32) -> Result<QpType> {
    match from {
        abi::IBV_QPT_RC => Ok(QpType::Rc),
        abi::IBV_QPT_UC => Ok(QpType::Uc),
        abi::IBV_QPT_UD => Ok(QpType::Ud),
        abi::IBV_QPT_XRC_SEND => Ok(QpType::XrcIni),
        abi::IBV_QPT_XRC_RECV => Ok(QpType::XrcTgt),
        abi::IBV_QPT_RAW_PACKET | abi::IBV_QPT_DRIVER => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

/// Converts a queue pair type to C.
pub(crate) fn qp_type_to(from: QpType) -> u32 {
    match from {
        QpType::Rc => abi::IBV_QPT_RC,
        QpType::Uc => abi::IBV_QPT_UC,
        QpType::XrcIni => abi::IBV_QPT_XRC_SEND,
        QpType::XrcTgt => abi::IBV_QPT_XRC_RECV,
        // C has no type for queue pair 1, which sends datagrams too.
        QpType::Ud | QpType::Gsi => abi::IBV_QPT_UD,
    }
}

/// Converts queue sizes.
pub(crate) fn cap(from: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    }
}

/// Converts queue sizes to C.
pub(crate) fn cap_to(from: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    }
}

/// Converts a path. Like the kernel and NICs, takes only as many bits of a number as the header field has (UCX sets all bits of a flow
/// label), and ignores the LID and the path bits, which RoCE does not use.
pub(crate) fn ah_attr(from: &ibv_ah_attr) -> AhAttr {
    let route = || GlobalRoute {
        // SAFETY: every view of a GID is 16 bytes.
        dgid: Gid(unsafe { from.grh.dgid.raw }),
        flow_label: from.grh.flow_label & 0xf_ffff,
        sgid_index: from.grh.sgid_index,
        hop_limit: from.grh.hop_limit,
        traffic_class: from.grh.traffic_class,
    };
    AhAttr {
        grh: (from.is_global != 0).then(route),
        dlid: from.dlid,
        sl: from.sl & 7,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        port_num: from.port_num,
    }
}

/// Converts a path to C.
pub(crate) fn ah_attr_to(from: &AhAttr) -> ibv_ah_attr {
    // SAFETY: the structure consists of numbers.
    let mut to: ibv_ah_attr = unsafe { abi::zeroed() };
    if let Some(route) = from.grh {
        to.is_global = 1;
        to.grh.dgid.raw = route.dgid.0;
        to.grh.flow_label = route.flow_label;
        to.grh.sgid_index = route.sgid_index;
        to.grh.hop_limit = route.hop_limit;
        to.grh.traffic_class = route.traffic_class;
    }
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.port_num = from.port_num;
    to
}

/// The number of a queue pair: the low 24 bits, which is what fits into a header; the kernel does the same.
pub(crate) fn qp_num(from: u32) -> u32 {
    from & 0xff_ffff
}

/// Converts a queue pair state. `EINVAL` for an unknown number.
pub(crate) fn state(from: u32) -> Result<QpState> {
    u8::try_from(from).ok().and_then(QpState::from_enum).ok_or(EINVAL)
}

/// Converts the attributes that the mask names.
///
/// # Errors
/// `EINVAL` for numbers that are not a state of a queue pair or of path migration.
pub(crate) fn qp_attr(from: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr> {
    let mut to = QpAttr::default();
    if mask.contains(AttrMask::STATE) {
        to.qp_state = state(from.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        to.cur_qp_state = state(from.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        to.path_mtu = u8::try_from(from.path_mtu).map_err(|_| EINVAL)?;
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) {
        to.path_mig_state = match from.path_mig_state {
            abi::IBV_MIG_MIGRATED => PathMigState::Migrated,
            abi::IBV_MIG_REARM => PathMigState::Rearm,
            abi::IBV_MIG_ARMED => PathMigState::Armed,
            _ => return Err(EINVAL),
        };
    }
    if mask.contains(AttrMask::AV) {
        to.ah_attr = ah_attr(&from.ah_attr);
    }
    if mask.contains(AttrMask::ALT_PATH) {
        to.alt_ah_attr = ah_attr(&from.alt_ah_attr);
    }
    // The remaining numbers are checked by the stack if the mask names them.
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = qp_num(from.dest_qp_num);
    to.qp_access_flags = access(from.qp_access_flags).bits();
    to.cap = cap(&from.cap);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify != 0;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
    // This field is beyond the end of the structures of older programs, so it is read only if the mask names it.
    if mask.contains(AttrMask::RATE_LIMIT) {
        to.rate_limit = from.rate_limit;
    }
    Ok(to)
}

/// Converts all attributes to C.
pub(crate) fn qp_attr_to(from: &QpAttr) -> ibv_qp_attr {
    // SAFETY: the structure consists of numbers.
    let mut to: ibv_qp_attr = unsafe { abi::zeroed() };
    to.qp_state = from.qp_state as u32;
    to.cur_qp_state = from.cur_qp_state as u32;
    to.path_mtu = from.path_mtu.into();
    to.path_mig_state = from.path_mig_state as u32;
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = from.dest_qp_num;
    to.qp_access_flags = from.qp_access_flags;
    to.cap = cap_to(&from.cap);
    to.ah_attr = ah_attr_to(&from.ah_attr);
    to.alt_ah_attr = ah_attr_to(&from.alt_ah_attr);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify.into();
    to.sq_draining = from.sq_draining.into();
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
    to.rate_limit = from.rate_limit;
    to
}

/// Converts a mask of attributes. Bits that name no attribute are kept, and the stack refuses them. For an XRC queue pair, attributes of
/// the side that it does not have are removed: programs set those of RC on both ends, and Linux ignores them.
pub(crate) fn attr_mask(from: c_int, qp_type: u32) -> AttrMask {
    let ignored = match qp_type {
        abi::IBV_QPT_XRC_SEND => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        abi::IBV_QPT_XRC_RECV => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        _ => AttrMask::empty(),
    };
    AttrMask::from_bits_retain(from as u32).difference(ignored)
}
