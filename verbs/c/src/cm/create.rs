//! Creating and destroying identifiers, and moving them from one event channel to another.

use core::ffi::{c_int, c_void};
use core::time::Duration;

use verbs::QpType;
use verbs::rdma_cm::{CmOption, PortSpace};

use super::id::{self, Id};
use super::sync::forget_event;
use super::{channel, device, qp};
use crate::abi::{
    RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel, rdma_port_space,
};
use crate::config;
use crate::errno::{EINVAL, Result};
use crate::guard::returning_zero;
use crate::object::Object;

/// Creates an identifier. Without a channel it gets its own, and its calls wait.
///
/// # Errors
/// `EINVAL` for an unknown port space or type; those of opening the device and its port.
///
/// # Safety
/// As [`Object::of`], for the channel.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: Option<QpType>,
) -> Result<*mut rdma_cm_id> {
    let port_space = port_space(space)?;
    let qp_type = qp_type.unwrap_or(port_space.qp_type());
    let device = device::wire()?;
    let (own, events) = own_or(channel)?;
    // SAFETY: a channel that was created here, or one for which the caller keeps the contract.
    let made = unsafe { channel::of(events) }
        .and_then(|events| Ok(device.create_id_of_type(Some(events), port_space, qp_type)?))
        .and_then(|cm| {
            config::keep_alive().map_or(Ok(()), |time| cm.set_option(CmOption::KeepAlive(time)))?;
            Ok(cm)
        });
    match made {
        Ok(cm) => Ok(id::make(cm, events, own, context)),
        Err(error) => {
            discard(own, events);
            Err(error)
        }
    }
}

/// Destroys an identifier with its connection. Waits until all its events are acknowledged.
///
/// # Errors
/// As [`Object::of`].
///
/// # Safety
/// As [`Object::of`].
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<()> {
    #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
    let end = |mut private: Id| {
        let (own, channel) = (private.is_synchronous(), private.channel());
        match private.cm.destroy_wait(Duration::MAX) {
            Ok(()) => {
                discard(own, channel);
                Ok(())
            }
            Err((error, cm)) => {
                private.cm = cm;
                Err((error.into(), private))
            }
        }
    };
    // SAFETY: as the caller promises.
    unsafe {
        // A queue pair that the program moved to another identifier is not destroyed.
        qp::follow(id)?;
        forget_event(id);
        Object::<Id>::destroy(id, end)
    }
}

/// Moves the events of an identifier to a channel, or with NULL makes it synchronous.
///
/// # Safety
/// As [`Object::of`], for both.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let private = id::of(id)?.private();
        if to.is_null() && private.is_synchronous() {
            return Ok(());
        }
        let (own, events) = own_or(to)?;
        if private.is_synchronous() {
            forget_event(id);
        }
        let moved = channel::of(events).and_then(|events| Ok(private.cm.migrate_id(Some(events))?));
        if let Err(error) = moved {
            discard(own, events);
            return Err(error);
        }
        let (was_own, before) = private.move_to(events, own);
        discard(was_own, before);
        (*id).channel = events;
        Ok(())
    }
}

/// Returns the channel, or a new one for a synchronous identifier if it is NULL; and whether it is new.
fn own_or(channel: *mut rdma_event_channel) -> Result<(bool, *mut rdma_event_channel)> {
    if channel.is_null() { Ok((true, channel::create()?)) } else { Ok((false, channel)) }
}

/// Destroys a channel if it is an identifier's own.
fn discard(own: bool, channel: *mut rdma_event_channel) {
    if own {
        // SAFETY: a channel of ours, to which no other pointer exists.
        let _ = unsafe { channel::destroy(channel) };
    }
}

/// Converts the number of a port space. `EINVAL` for an unknown number.
fn port_space(number: rdma_port_space) -> Result<PortSpace> {
    match number {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        RDMA_PS_IPOIB => Ok(PortSpace::IpoIb),
        _ => Err(EINVAL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let to = to.as_mut().ok_or(EINVAL)?;
            *to = create(channel, context, ps, None)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_zero(|| unsafe { destroy(id) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_zero(|| unsafe { migrate(id, channel) })
}
