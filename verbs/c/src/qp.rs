//! Queue pairs.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use verbs::{
    AttrMask, EventElement, Pd, Qp as Verbs, QpAttr, QpInitAttr, QpType, SendOpsFlags, VerbsError, XrcTarget,
};

use crate::abi::{
    self, QpEx, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
};
use crate::abi::{ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, rdma_cm_id};
use crate::attr::{self, attr_mask, put_sized};
use crate::context;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{number, pointer};
use crate::object::{Kind, Object};
use crate::{cm, cq, delivery, engine, pd, srq, wr, wr_ex, xrcd};

/// `struct ibv_qp`, with what `struct ibv_qp_ex` adds behind it.
pub(crate) struct Qp {
    pub handle: Handle,
    /// What the program made it with, for `ibv_query_qp`.
    sq_sig_all: bool,
    /// It was made for the calls of `struct ibv_qp_ex`.
    extended: bool,
    /// The identifier of connection management that has it, and a reference to it too.
    owner: AtomicPtr<rdma_cm_id>,
    /// The list that one thread builds between `wr_start` and `wr_complete`. It borrows from `handle`, which does not move, and is
    /// dropped before it.
    pub list: UnsafeCell<Option<wr_ex::Building>>,
}

/// What a queue pair of C stands for.
pub(crate) enum Handle {
    /// A queue pair; connection management may have it too.
    Qp(Arc<Verbs>),
    /// An XRC target, which has no queues.
    Target(XrcTarget),
}

impl Kind for Qp {
    type Public = QpEx;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"qp\0\0\0\0\0\0");
}

/// The queue pair that a program names; an XRC target is refused.
///
/// # Safety
/// As [`Object::of`].
#[inline]
pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a Arc<Verbs>> {
    // SAFETY: as the caller promises.
    match unsafe { &Object::<Qp>::of(qp.cast())?.private().handle } {
        Handle::Qp(qp) => Ok(qp),
        Handle::Target(_) => Err(EINVAL),
    }
}

/// What a structure of attributes asks for beyond the basic ones.
struct Wanted {
    xrcd: *mut abi::ibv_xrcd,
    block_self_mcast_lb: bool,
    send_ops: Option<SendOpsFlags>,
}

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
        // Programs call the functions without checking that they exist: operations without one are refused here.
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

/// Makes a queue pair for C: checks the attributes, has `make` make what it stands for, and returns the granted sizes in `attr`.
///
/// # Safety
/// As [`Object::of`], for each pointer; of `attr`, what the mask names.
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
            let target = xrcd::of(wanted.xrcd)?.create_qp(None)?;
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
            // It receives nothing: what it would receive by is not read.
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
    // SAFETY: numbers, pointers, functions that may be NULL, a mutex and a condition whose first state is all zeros.
    let mut public: QpEx = unsafe { abi::zeroed() };
    if wanted.send_ops.is_some() {
        wr_ex::put_calls(&mut public);
    }
    let base = &mut public.ex.qp_base;
    (base.pd, base.send_cq, base.recv_cq, base.srq) = (attr.pd, attr.send_cq, attr.recv_cq, attr.srq);
    (base.qp_context, base.qp_num, base.qp_type) = (attr.qp_context, qp.qp_num().get(), attr.qp_type);
    base.state = qp.state().map_or(abi::IBV_QPS_RESET, |state| state as u32);
    let (sq_sig_all, extended) = (attr.sq_sig_all != 0, wanted.send_ops.is_some());
    let state = Qp {
        handle: Handle::Qp(qp),
        sq_sig_all,
        extended,
        owner: AtomicPtr::default(),
        list: UnsafeCell::new(None),
    };
    Ok(give(context, public, state))
}

/// Gives C an XRC target.
pub(crate) fn create_target(
    context: *mut ibv_context,
    qp_context: *mut c_void,
    target: XrcTarget,
) -> *mut ibv_qp {
    // SAFETY: numbers, pointers, functions that may be NULL, a mutex and a condition whose first state is all zeros.
    let mut public: QpEx = unsafe { abi::zeroed() };
    let base = &mut public.ex.qp_base;
    (base.qp_context, base.qp_num, base.qp_type) = (qp_context, target.qp_num().get(), abi::IBV_QPT_XRC_RECV);
    base.state = target.state() as u32;
    let state = Qp {
        handle: Handle::Target(target),
        sq_sig_all: false,
        extended: false,
        owner: AtomicPtr::default(),
        list: UnsafeCell::new(None),
    };
    give(context, public, state)
}

fn give(context: *mut ibv_context, mut public: QpEx, state: Qp) -> *mut ibv_qp {
    public.ex.qp_base.context = context;
    public.ex.qp_base.handle = public.ex.qp_base.qp_num;
    let element = EventElement::Qp(verbs::Qpn::new(public.ex.qp_base.qp_num));
    let qp = Object::<Qp>::create(public, state).cast::<ibv_qp>();
    delivery::names().add(element, qp as usize);
    qp
}

/// Says whose a queue pair is from now on. Returns the identifier whose it was; NULL for none.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn own(qp: *mut ibv_qp, owner: *mut rdma_cm_id) -> *mut rdma_cm_id {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Qp>::of(qp.cast()) };
    object.map_or(null_mut(), |object| object.private().owner.swap(owner, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: as C promises.
        unsafe {
            pd::of(pd)?;
            let init = init.as_mut().ok_or(EINVAL)?;
            let mut attr: ibv_qp_init_attr_ex = abi::zeroed();
            attr.qp_context = init.qp_context;
            (attr.send_cq, attr.recv_cq, attr.srq) = (init.send_cq, init.recv_cq, init.srq);
            (attr.cap, attr.qp_type, attr.sq_sig_all) = (init.cap, init.qp_type, init.sq_sig_all);
            (attr.comp_mask, attr.pd) = (abi::IBV_QP_INIT_ATTR_PD, pd);
            if init.qp_type == abi::IBV_QPT_XRC_RECV {
                return Err(EINVAL);
            }
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
    pointer(|| {
        // SAFETY: as C promises.
        unsafe {
            let attr = attr.as_mut().ok_or(EINVAL)?;
            create_with(context, attr, |pd, init| pd.create_qp(init).map(Arc::new))
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        // SAFETY: as C promises.
        let extended = unsafe { Object::<Qp>::of(qp.cast()) }?.private().extended;
        if extended { Ok(qp.cast()) } else { Err(EOPNOTSUPP) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(|| {
        // SAFETY: as C promises.
        let element = unsafe {
            let object = Object::<Qp>::of(qp.cast())?;
            // The identifier's reference would keep it alive.
            cm::forget_qp(object.private().owner.load(Ordering::Relaxed), qp);
            EventElement::Qp(verbs::Qpn::new((*qp).qp_num))
        };
        let mut names = delivery::names();
        #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
        let end = move |mut state: Qp| {
            *state.list.get_mut() = None;
            let Qp { handle, sq_sig_all, extended, owner, list } = state;
            let ended = match handle {
                Handle::Qp(qp) => match Arc::try_unwrap(qp) {
                    Ok(qp) => qp.destroy().map_err(|(error, qp)| (error, Handle::Qp(Arc::new(qp)))),
                    // Connection management still has a reference, with which it ends.
                    Err(_) => Ok(()),
                },
                Handle::Target(target) => {
                    target.destroy().map_err(|(error, target)| (error, Handle::Target(target)))
                }
            };
            ended.map(|()| names.remove(element, qp as usize)).map_err(|(error, handle)| {
                (Errno::from(error), Qp { handle, sq_sig_all, extended, owner, list })
            })
        };
        // SAFETY: as C promises.
        unsafe { Object::<Qp>::destroy(qp.cast(), end) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, from: *mut ibv_qp_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: as C promises.
        let (object, from) = unsafe { (Object::<Qp>::of(qp.cast())?, from.as_ref().ok_or(EINVAL)?) };
        // SAFETY: the structure of a living object.
        let mask = attr_mask(mask, unsafe { (*object.public()).ex.qp_base.qp_type });
        let attr = attr::qp_attr(from, mask)?;
        match &object.private().handle {
            Handle::Qp(qp) => qp.modify(&attr, mask)?,
            Handle::Target(target) => target.modify(&attr, mask)?,
        }
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the structure of a living object; programs only read the state.
            unsafe { (*object.public()).ex.qp_base.state = from.qp_state };
        }
        Ok(())
    })
}

/// Bytes of `struct ibv_qp_attr` as programs know it that were built before it had a rate limit.
const OLD_QP_ATTR: usize = offset_of!(ibv_qp_attr, rate_limit);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    to: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: as C promises.
        let object = unsafe { Object::<Qp>::of(qp.cast()) }?;
        if to.is_null() {
            return Err(EINVAL);
        }
        let state = object.private();
        let attr: QpAttr = match &state.handle {
            Handle::Qp(qp) => qp.query()?.0,
            Handle::Target(target) => target.query()?,
        };
        let attr = attr::qp_attr_to(&attr);
        // Every attribute is returned, whatever the mask says, except the rate limit, for which older programs have no room.
        let asked = AttrMask::from_bits_retain(mask as u32);
        let size = if asked.contains(AttrMask::RATE_LIMIT) { size_of_val(&attr) } else { OLD_QP_ATTR };
        // SAFETY: C promises room for what it asks for.
        unsafe { put_sized(&attr, to, size) };
        // SAFETY: the structure of a living object; programs only read the state.
        let base = unsafe {
            (*object.public()).ex.qp_base.state = attr.qp_state;
            &(*object.public()).ex.qp_base
        };
        // SAFETY: as C promises.
        if let Some(init) = unsafe { init.as_mut() } {
            init.qp_context = base.qp_context;
            (init.send_cq, init.recv_cq, init.srq) = (base.send_cq, base.recv_cq, base.srq);
            (init.cap, init.qp_type) = (attr.cap, base.qp_type);
            init.sq_sig_all = state.sq_sig_all.into();
        }
        Ok(())
    })
}

/// Bytes of a message are stored in order, but for what a lost packet delays: no promise is made.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: u32, _: u32) -> c_int {
    0
}

/// There are no enhancements of connections to agree on.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_: *mut ibv_qp, _: *mut ibv_ece) -> c_int {
    number(|| Err(EOPNOTSUPP))
}

/// See `ibv_query_ece`.
#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_: *mut ibv_qp, _: *mut ibv_ece) -> c_int {
    number(|| Err(EOPNOTSUPP))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as C promises.
    unsafe { wr::post_send(list, bad, || of(qp)) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as C promises.
    unsafe { wr::post_recv(list, bad, || of(qp)) }
}
