//! Queue pairs and shared receive queues of rdma_cm identifiers, and the completion queues that librdmacm creates for programs that give
//! none.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use super::id::{self, Id};
use crate::abi::{
    self, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_sge, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cq::ibv_destroy_cq;
use crate::create_cq::ibv_create_cq;
use crate::create_qp::{create_with, extended};
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::{returning_zero, uncancelled};
use crate::object::Object;
use crate::pd;
use crate::qp::{self, Owner, ibv_destroy_qp};
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

/// The most bytes of inline data that a queue pair gets without having requested them.
const INLINE_FREE: u32 = 64;

/// The error of the C function that has just failed.
fn last_error() -> Errno {
    std::io::Error::last_os_error().into()
}

/// The protection domain that the program gives, or else the identifier's.
///
/// # Safety
/// The identifier lives.
unsafe fn domain(id: *mut rdma_cm_id, given: *mut ibv_pd) -> Result<*mut ibv_pd> {
    // SAFETY: as the caller promises.
    let pd = if given.is_null() { unsafe { (*id).pd } } else { given };
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { pd::of(pd) }?;
    Ok(pd)
}

/// Creates a completion queue for an identifier, with a completion channel of its own.
///
/// # Safety
/// The context lives.
unsafe fn make_cq(
    id: *mut rdma_cm_id,
    context: *mut ibv_context,
    size: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    // SAFETY: as the caller promises; the channel was created here.
    unsafe {
        let channel = ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(last_error());
        }
        let size = size.clamp(1, i32::MAX as u32) as c_int;
        let cq = ibv_create_cq(context, size, id.cast::<c_void>(), channel, 0);
        if cq.is_null() {
            let error = last_error();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((channel, cq))
    }
}

/// Creates the queue pair of an identifier, and the completion queues that the program did not give.
///
/// # Errors
/// `EINVAL` if the identifier has a queue pair already; those of `ibv_create_qp`.
///
/// # Safety
/// The caller keeps the contract of the C function.
pub(super) unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: as the caller promises; the identifier is live.
    unsafe {
        let object = follow(id)?;
        if !(*id).qp.is_null() {
            return Err(EINVAL);
        }
        let given = if attr.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 { null_mut() } else { attr.pd };
        attr.pd = domain(id, given)?;
        attr.comp_mask |= abi::IBV_QP_INIT_ATTR_PD;
        let context = (*attr.pd).context;
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        // Other devices store inline data in the space of the scatter/gather list, so they always accept that much; some programs
        // (rdma_xclient) rely on it.
        let sge_bytes = attr.cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
        attr.cap.max_inline_data = attr.cap.max_inline_data.max(sge_bytes.min(INLINE_FREE));
        let made = make_missing_cqs(id, context, attr)
            .and_then(|()| create_with(context, attr, |pd, init| object.private().cm.create_qp(pd, init)));
        match made {
            Ok(qp) => {
                qp::own(qp, owner(id));
                (*id).qp = qp;
                (*id).pd = attr.pd;
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

/// Creates the completion queues that `attr` does not name, unless the identifier has them already, and puts them into `attr`.
///
/// # Safety
/// As [`create`].
unsafe fn make_missing_cqs(
    id: *mut rdma_cm_id,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if attr.send_cq.is_null() {
            if (*id).send_cq.is_null() {
                ((*id).send_cq_channel, (*id).send_cq) = make_cq(id, context, attr.cap.max_send_wr)?;
            }
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            if (*id).recv_cq.is_null() {
                ((*id).recv_cq_channel, (*id).recv_cq) = make_cq(id, context, attr.cap.max_recv_wr)?;
            }
            attr.recv_cq = (*id).recv_cq;
        }
    }
    Ok(())
}

/// Destroys the completion queues that were created for an identifier, except those that are still in use.
///
/// # Safety
/// The identifier lives.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises; each field is NULL or names an object that was created here.
    unsafe {
        let pairs = [
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ];
        for (cq, channel) in pairs {
            // A completion queue that another object still uses cannot be destroyed, and stays.
            if !(*cq).is_null() && ibv_destroy_cq(*cq) == 0 {
                *cq = null_mut();
                if !(*channel).is_null() && ibv_destroy_comp_channel(*channel) == 0 {
                    *channel = null_mut();
                }
            }
        }
    }
}

/// Destroys an identifier's queue pair, in any state of the connection.
///
/// # Errors
/// `EINVAL` if the identifier has none; those of `ibv_destroy_qp`.
///
/// # Safety
/// The caller keeps the contract of the C function.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        id::of(id)?;
        if (*id).qp.is_null() {
            return Err(EINVAL);
        }
        if ibv_destroy_qp((*id).qp) != 0 {
            return Err(last_error());
        }
        destroy_cqs(id);
    }
    Ok(())
}

/// Names an identifier as the owner of a queue pair.
fn owner(id: *mut rdma_cm_id) -> Owner {
    Owner { id, give_up: release }
}

/// Makes an identifier drop its reference to a queue pair that the program is about to destroy, in any state of the connection.
///
/// # Safety
/// As [`Object::of`], for the identifier.
unsafe fn release(id: *mut rdma_cm_id, qp: *mut ibv_qp) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Ok(object) = id::of(id)
            && (*id).qp == qp
        {
            (*id).qp = null_mut();
            // Fails if the identifier has no queue pair any more.
            let _ = object.private().cm.release_qp();
        }
    }
}

/// Makes connection management use the queue pair that `id->qp` names. In librdmacm programs may move a queue pair to another identifier
/// by writing `qp` of both, so every call that needs the queue pair begins with this one.
///
/// # Errors
/// As [`Object::of`]; `EINVAL` for a queue pair of another type or device.
///
/// # Safety
/// As [`Object::of`], for the identifier and its queue pair.
pub(super) unsafe fn follow<'a>(id: *mut rdma_cm_id) -> Result<&'a Object<Id>> {
    // SAFETY: as the caller promises.
    unsafe {
        let object = id::of(id)?;
        let (cm, shown) = (&object.private().cm, (*id).qp);
        if shown.is_null() {
            cm.set_qp(None)?;
        } else if let Ok(qp) = qp::of(shown) {
            cm.set_qp(Some(qp.clone()))?;
            let before = qp::own(shown, owner(id));
            // The previous owner may be destroyed, or its `qp` may name the same queue pair.
            if before != id
                && let Ok(before) = id::of(before)
                && (*before.public()).qp != shown
            {
                let _ = before.private().cm.set_qp(None);
            }
        }
        Ok(object)
    }
}

/// Updates `id->qp->state` to the state into which connection management has brought the queue pair.
pub(super) fn refresh(object: &Object<Id>) {
    // Takes no reference, which would keep a queue pair alive that another thread destroys.
    let Some(state) = object.private().cm.qp_state() else { return };
    // SAFETY: reads and writes fields of live objects; `id->qp` is one of our queue pairs or NULL.
    unsafe {
        let shown = (*object.public()).qp;
        if qp::of(shown).is_ok() {
            (*shown).state = state as u32;
        }
    }
}

/// Destroys an identifier's shared receive queue.
///
/// # Errors
/// `EINVAL` if the identifier has none; those of `ibv_destroy_srq`.
///
/// # Safety
/// The caller keeps the contract of the C function.
pub(super) unsafe fn destroy_srq(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        id::of(id)?;
        if (*id).srq.is_null() {
            return Err(EINVAL);
        }
        if ibv_destroy_srq((*id).srq) != 0 {
            return Err(last_error());
        }
        (*id).srq = null_mut();
        if (*id).qp.is_null() {
            destroy_cqs(id);
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let init = init.as_mut().ok_or(EINVAL)?;
            let mut attr = extended(init, pd);
            create(id, &mut attr)?;
            (init.cap, init.send_cq, init.recv_cq, init.srq) =
                (attr.cap, attr.send_cq, attr.recv_cq, attr.srq);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_zero(|| unsafe { create(id, attr.as_mut().ok_or(EINVAL)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller keeps the contract of the C function.
    let _ = uncancelled(|| unsafe { destroy(id) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            id::of(id)?;
            if !(*id).srq.is_null() {
                return Err(EINVAL);
            }
            let pd = domain(id, pd)?;
            let srq = ibv_create_srq(pd, init);
            if srq.is_null() {
                return Err(last_error());
            }
            ((*id).srq, (*id).pd) = (srq, pd);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            id::of(id)?;
            let init = init.as_mut().ok_or(EINVAL)?;
            if !(*id).srq.is_null() {
                return Err(EINVAL);
            }
            let given = if init.comp_mask & abi::IBV_SRQ_INIT_ATTR_PD == 0 { null_mut() } else { init.pd };
            init.pd = domain(id, given)?;
            init.comp_mask |= abi::IBV_SRQ_INIT_ATTR_PD;
            let srq = create_srq_ex((*init.pd).context, init);
            if srq.is_null() {
                return Err(last_error());
            }
            ((*id).srq, (*id).pd) = (srq, init.pd);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller keeps the contract of the C function.
    let _ = uncancelled(|| unsafe { destroy_srq(id) });
}
