//! Identifiers: creating, binding, resolving, listening, options; their public fields; synchronous ones.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard};

use verbs::rdma_cm::{CmEventType, CmId, CmOption, IdState, PortSpace, UdParam};
use verbs::{Gid, QpType};

use super::endpoint::Wanted;
use super::info::Lookup;
use super::zero;
use super::{addr, channel, device, event, qp};
use crate::abi::{
    self, RDMA_CM_EVENT_REJECTED, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP,
    ibv_sa_path_rec, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_port_space, sockaddr,
};
use crate::attr;
use crate::errno::{self, EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{lock, settled};
use crate::object::{Kind, Object};

/// The default partition, in network byte order.
const PKEY: u16 = 0xffff;
/// The selector of path records for an exact value.
const EXACTLY: u8 = 2;

/// `struct rdma_cm_id`.
pub(super) struct Id {
    pub cm: CmId,
    /// Where its events go.
    channel: AtomicPtr<rdma_event_channel>,
    /// The channel is its own: its calls wait.
    synchronous: AtomicBool,
    /// What `id->route.path_rec` names, once the route is resolved.
    path: UnsafeCell<ibv_sa_path_rec>,
    /// The groups that it joined, each with the pointer that the program wants back.
    groups: Mutex<Vec<(IpAddr, usize)>>,
    /// The queue pairs that a listening endpoint makes for its requests.
    wanted: Mutex<Option<Wanted>>,
    /// What was looked up for it, until the program takes it.
    found: Mutex<Lookup>,
}

impl Kind for Id {
    type Public = rdma_cm_id;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cm id\0\0\0");
}

impl Id {
    /// Whether its calls wait.
    pub(super) fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Relaxed)
    }
    /// Where its events go.
    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        self.channel.load(Ordering::Relaxed)
    }
    /// Remembers what the program wants back with the event of a group.
    pub(super) fn join(&self, group: IpAddr, context: *mut c_void) {
        let mut groups = lock(&self.groups);
        groups.retain(|(known, _)| *known != group);
        groups.push((group, context.expose_provenance()));
    }
    pub(super) fn leave(&self, group: IpAddr) {
        lock(&self.groups).retain(|(known, _)| *known != group);
    }
    /// What the program wants back with the event of a group.
    pub(super) fn joined(&self, ud: &UdParam) -> *mut c_void {
        let group = ud.ah_attr.grh.map(|grh| grh.dgid.to_ip());
        let groups = lock(&self.groups);
        let found = groups.iter().find(|(known, _)| Some(*known) == group);
        found.map_or(null_mut(), |(_, context)| core::ptr::with_exposed_provenance_mut(*context))
    }
    pub(super) fn found(&self) -> MutexGuard<'_, Lookup> {
        lock(&self.found)
    }
    pub(super) fn wanted(&self) -> MutexGuard<'_, Option<Wanted>> {
        lock(&self.wanted)
    }
}

/// The identifier that C names.
///
/// # Errors
/// As [`Object::of`].
///
/// # Safety
/// As [`Object::of`].
pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Object<Id>> {
    // SAFETY: as the caller promises.
    unsafe { Object::<Id>::of(id) }
}

fn port_space(number: rdma_port_space) -> Result<PortSpace> {
    match number {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        RDMA_PS_IPOIB => Ok(PortSpace::IpoIb),
        _ => Err(EINVAL),
    }
}

/// Makes an identifier; without a channel it gets its own, and its calls wait.
///
/// # Errors
/// `EINVAL` for a port space or a type that there is not; those of opening the device and its port.
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
    // SAFETY: a channel that was made here, or one that C promises.
    let made = unsafe { channel::of(events) }
        .and_then(|events| Ok(device.create_id_of_type(Some(events), port_space, qp_type)?));
    match made {
        Ok(cm) => Ok(object(cm, events, own, context)),
        Err(error) => {
            discard(own, events);
            Err(error)
        }
    }
}

/// The channel, or a new one for a synchronous identifier; and whether it is new.
fn own_or(channel: *mut rdma_event_channel) -> Result<(bool, *mut rdma_event_channel)> {
    if channel.is_null() { Ok((true, channel::create()?)) } else { Ok((false, channel)) }
}

/// Ends a channel that is an identifier's own.
fn discard(own: bool, channel: *mut rdma_event_channel) {
    if own {
        // SAFETY: a channel of ours, which nobody else names.
        let _ = unsafe { channel::destroy(channel) };
    }
}

fn space_number(space: PortSpace) -> rdma_port_space {
    space.number().into()
}

fn object(cm: CmId, channel: *mut rdma_event_channel, own: bool, context: *mut c_void) -> *mut rdma_cm_id {
    // SAFETY: numbers, and pointers that may be NULL.
    let (mut public, path): (rdma_cm_id, ibv_sa_path_rec) = unsafe { (abi::zeroed(), abi::zeroed()) };
    public.channel = channel;
    public.context = context;
    public.ps = space_number(cm.port_space());
    public.qp_type = attr::qp_type_to(cm.qp_type());
    let id = Object::<Id>::create(
        public,
        Id {
            cm,
            channel: AtomicPtr::new(channel),
            synchronous: AtomicBool::new(own),
            path: UnsafeCell::new(path),
            groups: Mutex::default(),
            wanted: Mutex::default(),
            found: Mutex::default(),
        },
    );
    // SAFETY: it was just made.
    if let Ok(object) = unsafe { of(id) } {
        // By this context its events find it.
        object.private().cm.set_context(id.expose_provenance() as u64);
        refresh_addresses(object);
    }
    id
}

/// Makes the identifier of a request, with the program's context of its listener.
///
/// # Errors
/// Those of the device that `id->verbs` shows.
///
/// # Safety
/// The listener lives, and the channel is the listener's.
pub(super) unsafe fn incoming(
    channel: *mut rdma_event_channel,
    cm: CmId,
    listener: *mut rdma_cm_id,
) -> Result<*mut rdma_cm_id> {
    // SAFETY: as the caller promises.
    let context = unsafe { (*listener).context };
    let id = object(cm, channel, false, context);
    // SAFETY: it was just made.
    let made = unsafe { of(id) }?;
    refresh_addresses(made);
    refresh_route(made);
    Ok(id)
}

/// Brings the public fields up to date before the program sees an event.
pub(super) fn refresh(id: &Object<Id>, event: CmEventType) {
    match event {
        CmEventType::AddrResolved => refresh_addresses(id),
        CmEventType::RouteResolved => refresh_route(id),
        _ => qp::refresh(id),
    }
}

/// The addresses, and once there is a local one, the device.
pub(super) fn refresh_addresses(id: &Object<Id>) {
    let (cm, public) = (&id.private().cm, id.public());
    let (local, peer) = (cm.local_addr(), cm.peer_addr());
    // SAFETY: fields of an object that lives, with room for every address; the program reads them, and leaves writing to us.
    unsafe {
        let route = &raw mut (*public).route.addr;
        if let Some(local) = local {
            addr::write(local, (&raw mut (*route).__bindgen_anon_1).cast());
        }
        if let Some(peer) = peer {
            addr::write(peer, (&raw mut (*route).__bindgen_anon_2).cast());
        }
    }
    let Some(local) = local.filter(|local| !local.ip().is_unspecified()) else { return };
    let Ok((context, pd)) = device::shown() else { return };
    // SAFETY: as above.
    unsafe {
        (*public).verbs = context;
        if (*public).pd.is_null() {
            (*public).pd = pd;
        }
        (*public).port_num = 1;
        let ib = &raw mut (*public).route.addr.addr.ibaddr;
        (*ib).sgid.raw = gid(local);
        (*ib).dgid.raw = peer.map_or([0; 16], gid);
        (*ib).pkey = PKEY;
    }
}

fn gid(addr: SocketAddr) -> [u8; 16] {
    Gid::from_ip(addr.ip().to_canonical()).0
}

/// The path.
fn refresh_route(id: &Object<Id>) {
    let (cm, public) = (&id.private().cm, id.public());
    let (Some(local), Some(peer)) = (cm.local_addr(), cm.peer_addr()) else { return };
    // SAFETY: numbers.
    let mut path: ibv_sa_path_rec = unsafe { abi::zeroed() };
    path.sgid.raw = gid(local);
    path.dgid.raw = gid(peer);
    path.pkey = PKEY;
    path.hop_limit = 64;
    path.traffic_class = cm.options().tos;
    path.reversible = 1;
    path.numb_path = 1;
    (path.mtu_selector, path.rate_selector, path.packet_life_time_selector) = (EXACTLY, EXACTLY, EXACTLY);
    path.mtu = cm.path_mtu() as u8;
    path.rate = abi::IBV_RATE_100_GBPS as u8;
    path.packet_life_time = 16;
    // SAFETY: as in `refresh_addresses`; the record lives as long as the object.
    unsafe {
        let to = id.private().path.get();
        to.write(path);
        (*public).route.path_rec = to;
        (*public).route.num_paths = 1;
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
    let end = |mut private: Id| match private.cm.destroy_wait(Duration::MAX) {
        Ok(()) => {
            discard(*private.synchronous.get_mut(), *private.channel.get_mut());
            Ok(())
        }
        Err((error, cm)) => {
            private.cm = cm;
            Err((error.into(), private))
        }
    };
    // SAFETY: as the caller promises.
    unsafe {
        // One that the program moved away stays as it is.
        qp::follow(id)?;
        forget_event(id);
        Object::<Id>::destroy(id, end)
    }
}

/// Acknowledges the event that the last call of a synchronous identifier left.
///
/// # Safety
/// The identifier lives.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises; the event is one of ours, or NULL, or one that the program acknowledged itself.
    unsafe {
        let last = core::mem::replace(&mut (*id).event, null_mut());
        if !last.is_null() {
            let _ = event::ack(last);
        }
    }
}

/// Ends a call: one of a synchronous identifier waits for its event, and leaves it in `id->event`. Nothing in the caller needs to
/// be dropped while it waits.
///
/// # Safety
/// As [`Object::of`].
#[inline(always)]
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(super) unsafe extern "C-unwind" fn complete(id: *mut rdma_cm_id, call: Result<()>) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let mut event = null_mut();
        let channel = match settled(|| call.and_then(|()| before_event(id, &mut event))) {
            Ok(channel) => channel,
            Err(error) => return fail(error),
        };
        // A null channel: there is nothing to wait for, but there may be an event.
        if !channel.is_null() && channel::next(channel, &raw mut event) != 0 {
            return -1;
        }
        if event.is_null() {
            return 0;
        }
        (*id).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => 0,
            (RDMA_CM_EVENT_REJECTED, _) | (_, 1..) => fail(Errno(libc::ECONNREFUSED)),
            (_, negative) => fail(Errno(-negative)),
        }
    }
}

/// The channel on which a call's event will come; null for an identifier that is not synchronous, and where the connection has ended
/// already: its event is there, or was fetched before.
///
/// # Safety
/// As [`Object::of`].
unsafe fn before_event(
    id: *mut rdma_cm_id,
    event: &mut *mut rdma_cm_event,
) -> Result<*mut rdma_event_channel> {
    // SAFETY: as the caller promises.
    unsafe {
        let private = of(id)?.private();
        if !private.is_synchronous() {
            return Ok(null_mut());
        }
        forget_event(id);
        if private.cm.state() == IdState::Disconnected {
            *event = channel::try_next(private.channel())?.unwrap_or(null_mut());
            return Ok(null_mut());
        }
        Ok(private.channel())
    }
}

#[cold]
fn fail(error: Errno) -> c_int {
    errno::set(error);
    -1
}

/// Makes an identifier synchronous, or moves its events to a channel.
///
/// # Safety
/// As [`Object::of`], for both.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let private = of(id)?.private();
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
        let before = private.channel.swap(events, Ordering::Relaxed);
        discard(private.synchronous.swap(own, Ordering::Relaxed), before);
        (*id).channel = events;
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    zero(|| {
        // SAFETY: as C promises.
        unsafe {
            let to = to.as_mut().ok_or(EINVAL)?;
            *to = create(channel, context, ps, None)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as C promises.
    zero(|| unsafe { destroy(id) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    zero(|| {
        // SAFETY: as C promises.
        let (id, addr) = unsafe { (of(id)?, addr::read(addr)?) };
        id.private().cm.bind_addr(addr)?;
        refresh_addresses(id);
        Ok(())
    })
}

/// A timeout in milliseconds; 0 for a negative one.
fn timeout(ms: c_int) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let call = settled(|| {
        // SAFETY: as C promises.
        let (id, src, dst) = unsafe { (of(id)?, addr::read_optional(src)?, addr::read(dst)?) };
        id.private().cm.resolve_addr(src, dst, timeout(timeout_ms))?;
        refresh_addresses(id);
        Ok(())
    });
    // SAFETY: as C promises.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    let call = settled(|| {
        // SAFETY: as C promises.
        Ok(unsafe { of(id) }?.private().cm.resolve_route(timeout(timeout_ms))?)
    });
    // SAFETY: as C promises.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    zero(|| {
        // SAFETY: as C promises.
        let id = unsafe { of(id) }?;
        id.private().cm.listen(backlog.try_into().unwrap_or(0))?;
        refresh_addresses(id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: as C promises.
    zero(|| unsafe { migrate(id, channel) })
}

/// A port of an address, in network byte order.
unsafe fn port_of(id: *mut rdma_cm_id, port: impl FnOnce(&CmId) -> u16) -> u16 {
    let port = settled(|| {
        // SAFETY: as C promises.
        Ok(port(&unsafe { of(id) }?.private().cm))
    });
    port.unwrap_or(0).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as C promises.
    unsafe { port_of(id, CmId::src_port) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as C promises.
    unsafe { port_of(id, CmId::dst_port) }
}

/// An option's value, of exactly this size.
///
/// # Safety
/// NULL, or a value of that many bytes.
unsafe fn value<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    zero(|| {
        // SAFETY: as C promises.
        let cm = &unsafe { of(id) }?.private().cm;
        let (Ok(level), Ok(name)) = (u32::try_from(level), u32::try_from(name)) else { return Err(EINVAL) };
        // SAFETY: as C promises.
        let option = unsafe {
            match (level, name) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => CmOption::Tos(value(optval, optlen)?),
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    CmOption::ReuseAddr(value::<c_int>(optval, optlen)? != 0)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    CmOption::AfOnly(value::<c_int>(optval, optlen)? != 0)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => CmOption::AckTimeout(value(optval, optlen)?),
                // Paths follow from the addresses.
                (abi::RDMA_OPTION_IB, abi::RDMA_OPTION_IB_PATH) => return Err(EOPNOTSUPP),
                _ => return Err(Errno(libc::ENOSYS)),
            }
        };
        Ok(cm.set_option(option)?)
    })
}

#[cfg(test)]
mod tests {
    use verbs::rdma_cm::{ConnParam, EventChannel};
    use verbs::{Context, DeviceConfig, Drive, QpInitAttr};

    use super::*;

    // Goal: an event of a new identifier that C does not have yet is dropped, and not reported for its listener, whose context it
    // still carries.
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
        let listener = object(cm, null_mut(), false, null_mut());
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
        assert!(unsafe { event::make(null_mut(), gone) }.unwrap().is_none());
        drop((request, new));
        // SAFETY: it was made here.
        unsafe { destroy(listener) }.unwrap();
    }
}
