//! Identifiers: our part of `struct rdma_cm_id`, and its public fields.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard};

use verbs::Gid;
use verbs::rdma_cm::{CmId, UdParam};

use super::info::Lookup;
use super::{addr, device};
use crate::abi::{self, ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel};
use crate::attr;
use crate::errno::Result;
use crate::guard::lock;
use crate::object::{Kind, Object};

/// The default partition key, in network byte order.
const PKEY: u16 = 0xffff;
/// The selector in path records that stands for an exact value.
const EXACTLY: u8 = 2;

/// Our part of a `struct rdma_cm_id`.
pub(super) struct Id {
    pub cm: CmId,
    /// The channel of its events.
    channel: AtomicPtr<rdma_event_channel>,
    /// Whether the channel is its own, so that its calls wait.
    synchronous: AtomicBool,
    /// The path record to which `id->route.path_rec` points once the route is resolved.
    path: UnsafeCell<ibv_sa_path_rec>,
    /// The groups that it joined, each with the context pointer that the program passed.
    groups: Mutex<Vec<(IpAddr, usize)>>,
    /// What a listening endpoint needs to create queue pairs for its requests.
    wanted: Mutex<Option<Wanted>>,
    /// The result of a lookup, until the program takes it.
    found: Mutex<Lookup>,
}

/// What a listening endpoint needs to create queue pairs for its requests.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub pd: *mut ibv_pd,
    pub attr: ibv_qp_init_attr,
}

impl Kind for Id {
    type Public = rdma_cm_id;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cm id\0\0\0");
}

impl Id {
    /// Whether it is synchronous, so that its calls wait.
    pub(super) fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Relaxed)
    }
    /// The channel of its events.
    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        self.channel.load(Ordering::Relaxed)
    }
    /// Changes the channel of its events. Returns the previous channel, and whether it was its own.
    pub(super) fn move_to(
        &self,
        channel: *mut rdma_event_channel,
        own: bool,
    ) -> (bool, *mut rdma_event_channel) {
        let before = self.channel.swap(channel, Ordering::Relaxed);
        (self.synchronous.swap(own, Ordering::Relaxed), before)
    }
    /// Stores the context pointer that the program passed with a group.
    pub(super) fn join(&self, group: IpAddr, context: *mut c_void) {
        let mut groups = lock(&self.groups);
        groups.retain(|(known, _)| *known != group);
        groups.push((group, context.expose_provenance()));
    }
    /// Forgets the context pointer of a group.
    pub(super) fn leave(&self, group: IpAddr) {
        lock(&self.groups).retain(|(known, _)| *known != group);
    }
    /// The context pointer that the program passed with the group of an event.
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

/// The identifier behind a program's pointer.
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

/// Creates the C object of an identifier. The channel may be its own.
pub(super) fn make(
    cm: CmId,
    channel: *mut rdma_event_channel,
    own: bool,
    context: *mut c_void,
) -> *mut rdma_cm_id {
    // SAFETY: they consist of numbers, and pointers that may be NULL.
    let (mut public, path): (rdma_cm_id, ibv_sa_path_rec) = unsafe { (abi::zeroed(), abi::zeroed()) };
    public.channel = channel;
    public.context = context;
    public.ps = cm.port_space().number().into();
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
    // SAFETY: it was just created.
    if let Ok(object) = unsafe { of(id) } {
        // Events find the identifier by this context.
        object.private().cm.set_context(id.expose_provenance() as u64);
        refresh_addresses(object);
    }
    id
}

/// Creates the identifier of a request. It inherits the program's context from its listener.
///
/// # Errors
/// Those of opening the device for `id->verbs`.
///
/// # Safety
/// The listener is alive, and the channel is the listener's.
pub(super) unsafe fn incoming(
    channel: *mut rdma_event_channel,
    cm: CmId,
    listener: *mut rdma_cm_id,
) -> Result<*mut rdma_cm_id> {
    // SAFETY: as the caller promises.
    let context = unsafe { (*listener).context };
    let id = make(cm, channel, false, context);
    // SAFETY: it was just created.
    let made = unsafe { of(id) }?;
    refresh_addresses(made);
    refresh_route(made);
    Ok(id)
}

/// Updates the addresses in the public structure, and once there is a local one, `verbs` and `pd`.
pub(super) fn refresh_addresses(id: &Object<Id>) {
    let (cm, public) = (&id.private().cm, id.public());
    let (local, peer) = (cm.local_addr(), cm.peer_addr());
    // SAFETY: fields of a live object, with room for every address. The program only reads them.
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

/// The GID of an IP address.
fn gid(addr: SocketAddr) -> [u8; 16] {
    Gid::from_ip(addr.ip().to_canonical()).0
}

/// Updates the path in the public structure.
pub(super) fn refresh_route(id: &Object<Id>) {
    let (cm, public) = (&id.private().cm, id.public());
    let (Some(local), Some(peer)) = (cm.local_addr(), cm.peer_addr()) else { return };
    // SAFETY: it consists of numbers.
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
