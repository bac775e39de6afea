//! Queue pairs.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;
use std::sync::{Arc, Mutex};

use verbs::{AttrMask, EventElement, Gid, MwBind, Qp as Verbs, QpAttr, Qpn, WrPost, XrcTarget};

use crate::abi::{
    QpEx, ibv_ece, ibv_gid, ibv_mw, ibv_mw_bind, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr, rdma_cm_id,
};
use crate::attr::{self, attr_mask, put_sized, send_flags};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{lock, returning_errno, returning_pointer};
use crate::object::{Kind, Object};
use crate::{delivery, mw, wr, xrcd};

/// Our part of a `struct ibv_qp` or `struct ibv_qp_ex`.
pub(crate) struct Qp {
    pub handle: Handle,
    /// The value at creation, for `ibv_query_qp`.
    sq_sig_all: bool,
    /// Whether it was created for the functions of `struct ibv_qp_ex`.
    extended: bool,
    owner: Mutex<Option<Owner>>,
    /// The list that a thread builds between `wr_start` and `wr_complete`. It borrows from `handle`, which does not move, and is dropped
    /// before `handle`.
    pub list: UnsafeCell<Option<Building>>,
}

/// A list of requests that is being built.
pub(crate) struct Building {
    pub list: WrPost<'static>,
    /// The error of a call that failed before it reached `verbs`.
    pub fault: Option<Errno>,
}

/// The owner of a queue pair, which holds a reference to it too.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    /// The identifier of connection management that owns it.
    pub id: *mut rdma_cm_id,
    /// Called before the queue pair is destroyed. Makes the identifier drop its reference, which would keep the queue pair alive.
    pub give_up: unsafe fn(*mut rdma_cm_id, *mut ibv_qp),
}

impl Qp {
    pub(crate) fn new(handle: Handle, sq_sig_all: bool, extended: bool) -> Self {
        Self { handle, sq_sig_all, extended, owner: Mutex::default(), list: UnsafeCell::new(None) }
    }
}

/// The object of `verbs`.
pub(crate) enum Handle {
    /// A queue pair. Connection management may hold a reference too.
    Qp(Arc<Verbs>),
    /// An XRC target, which has no work queues.
    Target(XrcTarget),
}

impl Kind for Qp {
    type Public = QpEx;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"qp\0\0\0\0\0\0");
}

/// The queue pair behind a program's pointer; an XRC target is refused.
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

/// Sets the owner of a queue pair. Returns the identifier that owned it before; NULL if there was none.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn own(qp: *mut ibv_qp, owner: Owner) -> *mut rdma_cm_id {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Qp>::of(qp.cast()) };
    let before = object.ok().and_then(|object| lock(&object.private().owner).replace(owner));
    before.map_or(null_mut(), |owner| owner.id)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let extended = unsafe { Object::<Qp>::of(qp.cast()) }?.private().extended;
        if extended { Ok(qp.cast()) } else { Err(EOPNOTSUPP) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let element = unsafe {
            let owner = *lock(&Object::<Qp>::of(qp.cast())?.private().owner);
            if let Some(owner) = owner {
                (owner.give_up)(owner.id, qp);
            }
            EventElement::Qp(Qpn::new((*qp).qp_num))
        };
        let mut names = delivery::names();
        #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
        let end = move |mut state: Qp| {
            *state.list.get_mut() = None;
            let Qp { handle, sq_sig_all, extended, owner, list } = state;
            let ended = match handle {
                Handle::Qp(qp) => match Arc::try_unwrap(qp) {
                    Ok(qp) => qp.destroy().map_err(|(error, qp)| (error, Handle::Qp(Arc::new(qp)))),
                    // Connection management still holds a reference, and destroys it with that.
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
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Qp>::destroy(qp.cast(), end) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, from: *mut ibv_qp_attr, mask: c_int) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (object, from) = unsafe { (Object::<Qp>::of(qp.cast())?, from.as_ref().ok_or(EINVAL)?) };
        // SAFETY: the structure belongs to a live object.
        let mask = attr_mask(mask, unsafe { (*object.public()).ex.qp_base.qp_type });
        let attr = attr::qp_attr(from, mask)?;
        match &object.private().handle {
            Handle::Qp(qp) => qp.modify(&attr, mask)?,
            Handle::Target(target) => target.modify(&attr, mask).map_err(xrcd::explained)?,
        }
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the structure belongs to a live object; programs only read the state.
            unsafe { (*object.public()).ex.qp_base.state = from.qp_state };
        }
        Ok(())
    })
}

/// Size in bytes of `struct ibv_qp_attr` in programs that were built before it had a rate limit.
const OLD_QP_ATTR: usize = offset_of!(ibv_qp_attr, rate_limit);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    to: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let object = unsafe { Object::<Qp>::of(qp.cast()) }?;
        if to.is_null() {
            return Err(EINVAL);
        }
        let state = object.private();
        let attr: QpAttr = match &state.handle {
            Handle::Qp(qp) => qp.query()?.0,
            Handle::Target(target) => target.query().map_err(xrcd::explained)?,
        };
        let attr = attr::qp_attr_to(&attr);
        // Every attribute is returned, whatever the mask says, except the rate limit, because the structures of older programs have no room
        // for it.
        let asked = AttrMask::from_bits_retain(mask as u32);
        let size = if asked.contains(AttrMask::RATE_LIMIT) { size_of_val(&attr) } else { OLD_QP_ATTR };
        // SAFETY: the caller must provide a structure with room for the attributes that the mask names.
        unsafe { put_sized(&attr, to, size) };
        // SAFETY: the structure belongs to a live object; programs only read the state.
        let base = unsafe {
            (*object.public()).ex.qp_base.state = attr.qp_state;
            &(*object.public()).ex.qp_base
        };
        // SAFETY: the caller keeps the contract of the C function.
        if let Some(init) = unsafe { init.as_mut() } {
            init.qp_context = base.qp_context;
            (init.send_cq, init.recv_cq, init.srq) = (base.send_cq, base.recv_cq, base.srq);
            (init.cap, init.qp_type) = (attr.cap, base.qp_type);
            init.sq_sig_all = state.sq_sig_all.into();
        }
        Ok(())
    })
}

/// Returns 0: the order in which the bytes of a message are stored is not guaranteed.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: u32, _: u32) -> c_int {
    0
}

/// Fails: enhanced connection establishment is not supported.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_: *mut ibv_qp, _: *mut ibv_ece) -> c_int {
    returning_errno(|| Err(EOPNOTSUPP))
}

/// Fails, as `ibv_query_ece`.
#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_: *mut ibv_qp, _: *mut ibv_ece) -> c_int {
    returning_errno(|| Err(EOPNOTSUPP))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { wr::post_send(list, bad, || of(qp)) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { wr::post_recv(list, bad, || of(qp)) }
}

pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let (qp, window, bind) = (of(qp)?, mw::of(mw)?, bind.as_ref().ok_or(EINVAL)?);
            let send_flags = send_flags(bind.send_flags);
            let bound = mw::with_bind(&bind.bind_info, |info| {
                qp.bind_mw(window, &MwBind { wr_id: bind.wr_id, send_flags, bind_info: *info })
            });
            (*mw).rkey = bound??;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function; every view of a GID is 16 bytes.
        unsafe { of(qp)?.attach_mcast(Gid(gid.as_ref().ok_or(EINVAL)?.raw), lid) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function; every view of a GID is 16 bytes.
        unsafe { of(qp)?.detach_mcast(Gid(gid.as_ref().ok_or(EINVAL)?.raw), lid) }?;
        Ok(())
    })
}
