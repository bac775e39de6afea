//! Events: fetching the next event of a channel and acknowledging it. The object consists of the structure that C gets and of the event of
//! [`verbs`], which owns the private data.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use verbs::rdma_cm::{CmEvent, CmEventType};

use super::id::{self, Id};
use super::{channel, qp};
use crate::abi::{
    self, RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};
use crate::attr::ah_attr_to;
use crate::errno::{EINVAL, Result};
use crate::guard::returning_zero;
use crate::object::{Kind, Object};
use crate::wait::{Found, until};

/// Our part of a `struct rdma_cm_event`. Dropping it acknowledges the event.
pub(super) struct Event(#[expect(dead_code, reason = "it owns the private data")] CmEvent);

impl Kind for Event {
    type Public = rdma_cm_event;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cmevent\0");
}

// Older headers do not have these.
const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
const RDMA_CM_EVENT_USER: rdma_cm_event_type = 18;

/// Each type with its number and its name in C.
#[rustfmt::skip]
const TYPES: [(CmEventType, rdma_cm_event_type, &CStr); 19] = [
    (CmEventType::AddrResolved,    RDMA_CM_EVENT_ADDR_RESOLVED,    c"RDMA_CM_EVENT_ADDR_RESOLVED"),
    (CmEventType::AddrError,       RDMA_CM_EVENT_ADDR_ERROR,       c"RDMA_CM_EVENT_ADDR_ERROR"),
    (CmEventType::RouteResolved,   RDMA_CM_EVENT_ROUTE_RESOLVED,   c"RDMA_CM_EVENT_ROUTE_RESOLVED"),
    (CmEventType::RouteError,      RDMA_CM_EVENT_ROUTE_ERROR,      c"RDMA_CM_EVENT_ROUTE_ERROR"),
    (CmEventType::ConnectRequest,  RDMA_CM_EVENT_CONNECT_REQUEST,  c"RDMA_CM_EVENT_CONNECT_REQUEST"),
    (CmEventType::ConnectResponse, RDMA_CM_EVENT_CONNECT_RESPONSE, c"RDMA_CM_EVENT_CONNECT_RESPONSE"),
    (CmEventType::ConnectError,    RDMA_CM_EVENT_CONNECT_ERROR,    c"RDMA_CM_EVENT_CONNECT_ERROR"),
    (CmEventType::Unreachable,     RDMA_CM_EVENT_UNREACHABLE,      c"RDMA_CM_EVENT_UNREACHABLE"),
    (CmEventType::Rejected,        RDMA_CM_EVENT_REJECTED,         c"RDMA_CM_EVENT_REJECTED"),
    (CmEventType::Established,     RDMA_CM_EVENT_ESTABLISHED,      c"RDMA_CM_EVENT_ESTABLISHED"),
    (CmEventType::Disconnected,    RDMA_CM_EVENT_DISCONNECTED,     c"RDMA_CM_EVENT_DISCONNECTED"),
    (CmEventType::DeviceRemoval,   RDMA_CM_EVENT_DEVICE_REMOVAL,   c"RDMA_CM_EVENT_DEVICE_REMOVAL"),
    (CmEventType::MulticastJoin,   RDMA_CM_EVENT_MULTICAST_JOIN,   c"RDMA_CM_EVENT_MULTICAST_JOIN"),
    (CmEventType::MulticastError,  RDMA_CM_EVENT_MULTICAST_ERROR,  c"RDMA_CM_EVENT_MULTICAST_ERROR"),
    (CmEventType::AddrChange,      RDMA_CM_EVENT_ADDR_CHANGE,      c"RDMA_CM_EVENT_ADDR_CHANGE"),
    (CmEventType::TimewaitExit,    RDMA_CM_EVENT_TIMEWAIT_EXIT,    c"RDMA_CM_EVENT_TIMEWAIT_EXIT"),
    (CmEventType::AddrinfoResolved, RDMA_CM_EVENT_ADDRINFO_RESOLVED, c"RDMA_CM_EVENT_ADDRINFO_RESOLVED"),
    (CmEventType::AddrinfoError,   RDMA_CM_EVENT_ADDRINFO_ERROR,   c"RDMA_CM_EVENT_ADDRINFO_ERROR"),
    (CmEventType::User,            RDMA_CM_EVENT_USER,             c"RDMA_CM_EVENT_USER"),
];

/// The number of a type in C. `None` if C has none; such an event cannot be reported.
fn number(of: CmEventType) -> Option<rdma_cm_event_type> {
    TYPES.iter().find(|(known, ..)| *known == of).map(|(_, number, _)| *number)
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let known = TYPES.iter().find(|(_, number, _)| *number == event);
    known.map_or(c"UNKNOWN EVENT", |(.., name)| name).as_ptr()
}

/// Creates the event for C and updates the identifier's public fields. `None` if the identifier is just being created or destroyed.
///
/// # Errors
/// If the new identifier of a request cannot be created. The request is then refused.
///
/// # Safety
/// The context of each identifier of this channel is its address.
unsafe fn make(channel: *mut rdma_event_channel, mut from: CmEvent) -> Result<Option<*mut rdma_cm_event>> {
    let number = number(from.event());
    let named: *mut rdma_cm_id = ptr::with_exposed_provenance_mut(from.context() as usize);
    // SAFETY: as the caller promises.
    let (Some(number), Ok(object)) = (number, unsafe { Object::<Id>::of(named) }) else { return Ok(None) };
    // An identifier that C has not received yet still has its listener's context. Its event is dropped, and its next call reports what
    // happened.
    if !from.is_of(&object.private().cm) {
        return Ok(None);
    }
    // SAFETY: it consists of numbers, and pointers that may be NULL.
    let mut event: rdma_cm_event = unsafe { abi::zeroed() };
    event.id = named;
    event.event = number;
    event.status = from.status();
    let mut context = ptr::null_mut();
    if let Some(cm) = from.take_id() {
        // SAFETY: the listener is alive.
        event.id = unsafe { id::incoming(channel, cm, named) }?;
        event.listen_id = named;
    } else {
        refresh(object, from.event());
        context = from.ud().map_or(context, |ud| object.private().joined(ud));
    }
    let data = from.private_data();
    let (private_data, private_data_len) = if data.is_empty() {
        (ptr::null(), 0)
    } else {
        // No message has room for more than 255 bytes.
        (data.as_ptr().cast(), data.len().min(255) as u8)
    };
    if number == RDMA_CM_EVENT_USER {
        // SAFETY: the union is larger than a number and sufficiently aligned; newer headers have the number there as `arg`.
        unsafe { (&raw mut event.param).cast::<u64>().write(from.arg()) };
    } else if let Some(ud) = from.ud() {
        let joined = number == RDMA_CM_EVENT_MULTICAST_JOIN;
        event.param.ud = rdma_ud_param {
            private_data: if joined { context } else { private_data },
            private_data_len,
            ah_attr: ah_attr_to(&ud.ah_attr),
            qp_num: ud.qp_num,
            qkey: ud.qkey,
        };
    } else {
        let peer = from.peer().copied().unwrap_or_default();
        // Both kinds of parameters begin with the private data.
        event.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: peer.responder_resources,
            initiator_depth: peer.initiator_depth,
            flow_control: peer.flow_control.into(),
            retry_count: peer.retry_count,
            rnr_retry_count: peer.rnr_retry_count,
            srq: peer.srq.into(),
            qp_num: peer.qp_num,
        };
    }
    Ok(Some(Object::<Event>::create(event, Event(from))))
}

/// Updates the public fields of an identifier before the program sees an event.
fn refresh(object: &Object<Id>, event: CmEventType) {
    match event {
        CmEventType::AddrResolved => id::refresh_addresses(object),
        CmEventType::RouteResolved => id::refresh_route(object),
        _ => qp::refresh(object),
    }
}

/// Acknowledges and frees an event.
///
/// # Errors
/// `EINVAL` for NULL, and for an event that was acknowledged before.
///
/// # Safety
/// As [`Object::of`].
pub(super) unsafe fn ack(event: *mut rdma_cm_event) -> Result<()> {
    #[allow(clippy::result_large_err, reason = "the object would come back with the error")]
    let end = |event: Event| {
        drop(event);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { Object::<Event>::destroy(event, end) }
}

/// Fetches an event if there is one.
///
/// # Errors
/// As [`channel::of`].
///
/// # Safety
/// As [`channel::of`].
pub(super) unsafe fn try_next(channel: *mut rdma_event_channel) -> Result<Option<*mut rdma_cm_event>> {
    // SAFETY: as the caller promises.
    let events = unsafe { channel::of(channel) }?;
    while let Some(found) = events.try_get_event() {
        // SAFETY: the identifiers in events were created here.
        if let Some(event) = unsafe { make(channel, found) }? {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// A channel, and the place for its next event.
type NextEvent = (*mut rdma_event_channel, *mut *mut rdma_cm_event);

/// Takes the next event of a channel, if there is one.
fn take_next((channel, to): NextEvent) -> Result<Found> {
    if to.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller of `next` promises; the channel has been checked, as far as that is possible.
    unsafe {
        Ok(match try_next(channel)? {
            Some(event) => {
                *to = event;
                Found::Done
            }
            None => Found::Nothing((*channel).fd),
        })
    }
}

/// Waits for the next event. Returns 0, or -1 with `errno`. Nothing in the caller may need to be dropped during the wait. The channel may
/// be destroyed meanwhile.
///
/// # Safety
/// As [`channel::of`], and `to` has room for the event.
#[inline(always)]
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(super) unsafe extern "C-unwind" fn next(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    until(take_next, (channel, to))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { next(channel, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_zero(|| unsafe { ack(event) })
}

/// Queues an event of the program itself for the thread that reads the identifier's channel.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    returning_zero(|| {
        if event != RDMA_CM_EVENT_USER {
            return Err(EINVAL);
        }
        // SAFETY: the caller keeps the contract of the C function.
        let id = unsafe { id::of(id) }?;
        Ok(id.private().cm.write_event(CmEventType::User, status, arg)?)
    })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use verbs::rdma_cm::{CmId, ConnParam, EventChannel, PortSpace};
    use verbs::{Context, DeviceConfig, Drive, QpInitAttr};

    use super::super::create;
    use super::*;

    #[test]
    fn the_names_of_c_are_those_of_the_types() {
        for (n, (of, number, name)) in TYPES.iter().enumerate() {
            assert_eq!((n as u32, of.name()), (*number, name.to_str().unwrap()));
        }
        // SAFETY: a NUL-terminated string.
        assert_eq!(unsafe { CStr::from_ptr(rdma_event_str(99)) }, c"UNKNOWN EVENT");
    }

    // Goal: an event of a new identifier that C has not received yet is dropped. It is not reported for its listener, whose context it
    // still has.
    #[test]
    fn an_event_of_an_identifier_that_c_does_not_have_names_no_other() {
        const SOON: Duration = Duration::from_secs(30);
        let device = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let [events, of_client] = [(); 2].map(|()| EventChannel::new().unwrap());
        let next = |channel: &EventChannel, what| {
            let event = channel.get_event(SOON).unwrap().expect("an event in time");
            assert_eq!(event.event(), what);
            event
        };
        let cm = device.create_id(Some(&events), PortSpace::Tcp).unwrap();
        cm.listen(1).unwrap();
        let port = cm.src_port();
        let listener = id::make(cm, ptr::null_mut(), false, ptr::null_mut());
        let client = device.create_id(Some(&of_client), PortSpace::Tcp).unwrap();
        client.resolve_addr(None, ([192, 0, 2, 1], port), SOON).unwrap();
        next(&of_client, CmEventType::AddrResolved).ack();
        client.resolve_route(SOON).unwrap();
        next(&of_client, CmEventType::RouteResolved).ack();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        client.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
        client.connect(&ConnParam::default()).unwrap();
        let mut request = next(&events, CmEventType::ConnectRequest);
        let new = request.take_id();
        client.destroy().map_err(|(e, _)| e).unwrap();
        let gone = next(&events, CmEventType::Rejected);
        assert_eq!(new.as_ref().map(CmId::number), Some(gone.id()));
        // SAFETY: the context of the listener is its address.
        assert!(unsafe { make(ptr::null_mut(), gone) }.unwrap().is_none());
        drop((request, new));
        // SAFETY: it was created here.
        unsafe { create::destroy(listener) }.unwrap();
    }
}
