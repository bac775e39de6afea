//! Creation of queue pairs, and opening of XRC targets.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::Arc;

use verbs::{EventElement, Pd, Qp as Verbs, QpInitAttr, QpType, Qpn, SendOpsFlags, VerbsError, XrcTarget};

use crate::abi::{
    self, QpEx, ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
};
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::guard::returning_pointer;
use crate::object::Object;
use crate::qp::{Handle, Qp};
use crate::{attr, context, cq, delivery, engine, pd, srq, wr_ex, xrcd};

/// The attributes beyond the basic ones.
struct Wanted {
    xrcd: *mut abi::ibv_xrcd,
    block_self_mcast_lb: bool,
    send_ops: Option<SendOpsFlags>,
}

/// Reads and checks the attributes beyond the basic ones.
fn wanted(attr: &ibv_qp_init_attr_ex) -> Result<Wanted> {
    let has = |mask| attr.comp_mask & mask != 0;
    let known = abi::IBV_QP_INIT_ATTR_PD
        | abi::IBV_QP_INIT_ATTR_XRCD
        | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let other = abi::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | abi::IBV_QP_INIT_ATTR_IND_TABLE
        | abi::IBV_QP_INIT_ATTR_RX_HASH;
    if has(!(known | other)) {
        return Err(EINVAL);
    }
    let flags = if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if has(other) || flags & !abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return Err(EOPNOTSUPP);
    }
    let send_ops = if has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        // Operations without a function are refused here, because programs call the functions without checking for NULL.
        let flags = SendOpsFlags::from_bits(attr.send_ops_flags).ok_or(EOPNOTSUPP)?;
        if !wr_ex::CALLS.contains(flags) {
            return Err(EOPNOTSUPP);
        }
        Some(flags)
    } else {
        None
    };
    Ok(Wanted {
        xrcd: if has(abi::IBV_QP_INIT_ATTR_XRCD) { attr.xrcd } else { null_mut() },
        block_self_mcast_lb: flags & abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
        send_ops,
    })
}

/// Creates a queue pair for C. Checks the attributes, calls `make` for the queue pair of `verbs`, and returns the granted sizes in `attr`.
///
/// # Safety
/// As [`Object::of`], for each pointer; in `attr`, for those that the mask names.
pub(crate) unsafe fn create_with(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    make: impl FnOnce(&Pd, &QpInitAttr<'_>) -> core::result::Result<Arc<Verbs>, VerbsError>,
) -> Result<*mut ibv_qp> {
    // SAFETY: as the caller promises.
    unsafe { context::of(context) }?;
    let wanted = wanted(attr)?;
    let qp_type = attr::qp_type(attr.qp_type)?;
    engine::wire()?;
    if qp_type == QpType::XrcTgt {
        if wanted.send_ops.is_some() || wanted.block_self_mcast_lb {
            return Err(EINVAL);
        }
        // SAFETY: as the caller promises.
        return unsafe {
            let target = xrcd::of(wanted.xrcd)?.create_qp(None).map_err(xrcd::explained)?;
            Ok(create_target(context, attr.qp_context, target))
        };
    }
    if attr.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    let (domain, send_cq, recv_cq, srq) = unsafe {
        let send_cq = cq::of(attr.send_cq)?;
        let (recv_cq, srq) = match qp_type {
            // It receives nothing, so its receive queue attributes are not read.
            QpType::XrcIni => (send_cq, None),
            _ if attr.srq.is_null() => (cq::of(attr.recv_cq)?, None),
            _ => (cq::of(attr.recv_cq)?, Some(srq::of(attr.srq)?)),
        };
        (pd::of(attr.pd)?, send_cq, recv_cq, srq)
    };
    let init = QpInitAttr {
        srq,
        cap: attr::cap(&attr.cap),
        sq_sig_all: attr.sq_sig_all != 0,
        block_self_mcast_lb: wanted.block_self_mcast_lb,
        send_ops_flags: wanted.send_ops,
        ..QpInitAttr::new(qp_type, send_cq, recv_cq)
    };
    let qp = make(domain, &init)?;
    attr.cap = attr::cap_to(&qp.cap());
    // SAFETY: it consists of numbers, pointers, functions that may be NULL, and a mutex and a condition whose initial state is all zeros.
    let mut public: QpEx = unsafe { abi::zeroed() };
    if wanted.send_ops.is_some() {
        wr_ex::put_calls(&mut public);
    }
    let base = &mut public.ex.qp_base;
    (base.pd, base.send_cq, base.recv_cq, base.srq) = (attr.pd, attr.send_cq, attr.recv_cq, attr.srq);
    (base.qp_context, base.qp_num, base.qp_type) = (attr.qp_context, qp.qp_num().get(), attr.qp_type);
    base.state = qp.state().map_or(abi::IBV_QPS_RESET, |state| state as u32);
    let state = Qp::new(Handle::Qp(qp), attr.sq_sig_all != 0, wanted.send_ops.is_some());
    Ok(give(context, public, state))
}

/// Creates the C object of an XRC target.
fn create_target(context: *mut ibv_context, qp_context: *mut c_void, target: XrcTarget) -> *mut ibv_qp {
    // SAFETY: it consists of numbers, pointers, functions that may be NULL, and a mutex and a condition whose initial state is all zeros.
    let mut public: QpEx = unsafe { abi::zeroed() };
    let base = &mut public.ex.qp_base;
    (base.qp_context, base.qp_num, base.qp_type) = (qp_context, target.qp_num().get(), abi::IBV_QPT_XRC_RECV);
    base.state = target.state() as u32;
    give(context, public, Qp::new(Handle::Target(target), false, false))
}

/// Creates the C object of a queue pair, and registers it for its asynchronous events.
fn give(context: *mut ibv_context, mut public: QpEx, state: Qp) -> *mut ibv_qp {
    public.ex.qp_base.context = context;
    public.ex.qp_base.handle = public.ex.qp_base.qp_num;
    let element = EventElement::Qp(Qpn::new(public.ex.qp_base.qp_num));
    let qp = Object::<Qp>::create(public, state).cast::<ibv_qp>();
    delivery::names().add(element, qp as usize);
    qp
}

/// Converts the attributes of `ibv_create_qp` to those of `ibv_create_qp_ex`.
pub(crate) fn extended(from: &ibv_qp_init_attr, pd: *mut ibv_pd) -> ibv_qp_init_attr_ex {
    // SAFETY: it consists of numbers, and pointers that may be NULL.
    let mut to: ibv_qp_init_attr_ex = unsafe { abi::zeroed() };
    to.qp_context = from.qp_context;
    (to.send_cq, to.recv_cq, to.srq) = (from.send_cq, from.recv_cq, from.srq);
    (to.cap, to.qp_type, to.sq_sig_all) = (from.cap, from.qp_type, from.sq_sig_all);
    (to.comp_mask, to.pd) = (abi::IBV_QP_INIT_ATTR_PD, pd);
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            pd::of(pd)?;
            let init = init.as_mut().ok_or(EINVAL)?;
            if init.qp_type == abi::IBV_QPT_XRC_RECV {
                return Err(EINVAL);
            }
            let mut attr = extended(init, pd);
            let qp = create_with((*pd).context, &mut attr, |pd, init| pd.create_qp(init).map(Arc::new))?;
            init.cap = attr.cap;
            Ok(qp)
        }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let attr = attr.as_mut().ok_or(EINVAL)?;
            create_with(context, attr, |pd, init| pd.create_qp(init).map(Arc::new))
        }
    })
}

pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let attr = unsafe {
            context::of(context)?;
            attr.as_ref().ok_or(EINVAL)?
        };
        let has = |mask| attr.comp_mask & mask == mask;
        let needed = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
        if !has(needed)
            || attr.comp_mask & !(needed | abi::IBV_QP_OPEN_ATTR_CONTEXT) != 0
            || attr.qp_type != abi::IBV_QPT_XRC_RECV
        {
            return Err(EINVAL);
        }
        let qp_context = if has(abi::IBV_QP_OPEN_ATTR_CONTEXT) { attr.qp_context } else { null_mut() };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let target = xrcd::of(attr.xrcd)?.open_qp(Qpn::new(attr.qp_num)).map_err(xrcd::explained)?;
            Ok(create_target(context, qp_context, target))
        }
    })
}
