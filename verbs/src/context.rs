//! The device context: the root of every object.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use stack::device::{
    CounterSnapshot, CqInit, DEFAULT_PKEY, Device, DeviceAttr, DeviceConfig, Gid, GidEntry, PortAttr, Turn,
    port, stats,
};

use crate::async_event::AsyncEventGuard;
use crate::comp_channel::CompChannel;
use crate::cq::Cq;
use crate::cq_ex::{CqInitAttr, CqWcFlags};
use crate::device_info::DeviceInfo;
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::rdma_cm::Service;
use crate::xrcd::{Xrcd, XrcdInitAttr};

/// An open device (`struct ibv_context`).
///
/// Its objects keep the device alive. When the last of them and the context are gone, the device's threads end and what is
/// left to send is sent, for at most 100 ms. If the port panics, the turn that used it panics, on whichever thread; if that
/// thread was the device's own, [`DeviceFatal`](crate::AsyncEvent::DeviceFatal) is raised. The device is closed all the same.
#[derive(Debug)]
#[doc(alias = "ibv_context")]
pub struct Context {
    device: Arc<Device>,
    /// Connection management, while something uses it.
    cm: Mutex<Weak<Service>>,
}

impl Context {
    /// Opens a device: its port, its shards and, as [`Drive`](crate::Drive) says, its threads.
    ///
    /// Where the stack chooses the Ethernet address (memif, tap, vhost), opening and querying a device opens no port: the
    /// port starts with the first queue pair or by [`start`](Self::start), and its link is down until then. See
    /// [`PortSpec::open_lazy`](port::PortSpec::open_lazy).
    ///
    /// # Errors
    /// [`VerbsError::Open`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(config: DeviceConfig) -> Result<Self, VerbsError> {
        Ok(Self { device: Device::open(config)?, cm: Mutex::default() })
    }

    /// Starts the port unless it has started: for programs that want to know at once whether its device can be used, or that
    /// must be reachable before their first queue pair.
    ///
    /// # Errors
    /// `ENODEV` with one sentence that says what to do; the call can then be repeated. `EDEADLK` from inside a turn.
    pub fn start(&self) -> Result<(), VerbsError> {
        Ok(self.device.start()?)
    }

    /// What the device can do.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device(&self) -> DeviceAttr {
        self.device.attr()
    }

    /// State and limits of port 1, the only one.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`] for another port.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        only_port(port_num)?;
        Ok(self.device.port_attr())
    }

    /// An address of port 1: index 0 is the link-local one, then the configured ones in order, then those added since.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port_num: u8, index: usize) -> Result<Gid, VerbsError> {
        only_port(port_num)?;
        gid(&self.device, index)
    }

    /// An address of port 1 with its index, type and network interface.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid_ex(&self, port_num: u8, index: usize) -> Result<GidEntry<'_>, VerbsError> {
        self.query_gid(port_num, index)?;
        let count = self.device.gids().len();
        let gone = VerbsError::NoSuchIndex { what: "GID index", index, first: 0, count };
        self.device.gid_entry(index).ok_or(gone)
    }

    /// All addresses of all ports, each with its index, type and network interface.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> Vec<GidEntry<'_>> {
        (0..).map_while(|index| self.device.gid_entry(index)).filter(|e| !e.gid.is_zero()).collect()
    }

    /// A partition key of port 1: index 0 is the default key with full membership, the only one.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, index: usize) -> Result<u16, VerbsError> {
        only_port(port_num)?;
        let count = usize::from(self.device.port_attr().pkey_tbl_len);
        if index < count {
            return Ok(DEFAULT_PKEY);
        }
        Err(VerbsError::NoSuchIndex { what: "P_Key index", index, first: 0, count })
    }

    /// Where a partition key stands in the table of port 1.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`] for another port, [`VerbsError::NoSuchPkey`] for a key that is not in it.
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn get_pkey_index(&self, port_num: u8, pkey: u16) -> Result<usize, VerbsError> {
        only_port(port_num)?;
        let count = usize::from(self.device.port_attr().pkey_tbl_len);
        (0..count)
            .find(|index| self.query_pkey(port_num, *index).is_ok_and(|other| other == pkey))
            .ok_or(VerbsError::NoSuchPkey { pkey })
    }

    /// The device's name: `roce` followed by the number of devices that this process opened before.
    #[doc(alias = "ibv_get_device_name")]
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// The device's GUID: the EUI-64 of its port's Ethernet address, in network byte order.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn device_guid(&self) -> [u8; 8] {
        self.device.attr().node_guid
    }

    /// All attributes of device and port, as text: its `Display` is what `ibv_devinfo -v` would print.
    #[doc(alias = "ibv_devinfo")]
    pub fn device_info(&self) -> DeviceInfo<'_> {
        DeviceInfo {
            name: self.device_name(),
            device: self.query_device(),
            port: self.device.port_attr(),
            gids: self.query_gid_table(),
        }
    }

    /// All addresses of port 1, by index: the link-local one, the configured ones in order, those added since. Zero where
    /// one was removed.
    pub fn gid_table(&self) -> Vec<Gid> {
        self.device.gids()
    }

    /// Adds an address with the length of its prefix to the port, and returns its index in the GID table. It is announced on
    /// the link (gratuitous ARP, unsolicited neighbour advertisement), and [`GidChange`](crate::AsyncEvent::GidChange) is
    /// raised. An IPv4-mapped IPv6 address is its IPv4 address, as in
    /// [`DeviceConfig::addrs`](crate::DeviceConfig::addrs).
    ///
    /// # Errors
    /// `EINVAL` for an address that no host can have (such as a network's own or its broadcast address) or that the port has
    /// already; `ENOMEM` when the table is full; `EDEADLK` from inside a turn.
    pub fn add_address(&self, addr: impl Into<IpAddr>, prefix: u8) -> Result<usize, VerbsError> {
        Ok(self.device.add_address(addr.into(), prefix)?)
    }

    /// Removes an address from the port; [`GidChange`](crate::AsyncEvent::GidChange) is raised. The port no longer answers
    /// for it. Connected queue pairs and address handles that send from it keep working, and its index is not used again
    /// until the last of them is gone, reset or has another address. A datagram that still waits when the last one goes is
    /// dropped ([`Discard::NoSource`](crate::Discard::NoSource)), and so is a message of `rdma_cm` from that address.
    ///
    /// # Errors
    /// `EINVAL` for an address that the port does not have, and for the link-local one that belongs to its Ethernet
    /// address; `EDEADLK` from inside a turn.
    pub fn remove_address(&self, addr: impl Into<IpAddr>) -> Result<(), VerbsError> {
        Ok(self.device.remove_address(addr.into())?)
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// `ENOMEM` with [`DeviceAttr::max_pd`] of them.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        Ok(Pd::new(self.device.alloc_pd()?))
    }

    /// Creates a completion queue of at least `cqe` entries.
    ///
    /// It must hold every completion that can wait at once; one that overruns loses completions and moves its queue pairs to
    /// ERR (ibv_create_cq(3)). [`CqErr`](crate::AsyncEvent::CqErr) is raised when the loss happens, so it may be fetched
    /// before the completions that precede the loss: these wait in the queue, and are polled first.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`], `ENOMEM` with [`DeviceAttr::max_cq`] queues.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, VerbsError> {
        self.create_cq_ex(&CqInitAttr::new(cqe))
    }

    /// Creates a completion queue, with events if [`CqInitAttr::channel`] is set.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`], for a channel or parent domain of another device, for a
    /// protection domain that is no parent domain, for a `comp_vector` that does not exist; `EOPNOTSUPP` for fields that
    /// completions of RoCE do not have.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_ex(&self, init: &CqInitAttr<'_>) -> Result<Cq, VerbsError> {
        let count = self.num_comp_vectors();
        if init.comp_vector >= count {
            let (index, count) = (init.comp_vector as usize, count as usize);
            return Err(VerbsError::NoSuchIndex { what: "completion vector", index, first: 0, count });
        }
        let missing = init.wc_flags.difference(CqWcFlags::SUPPORTED);
        if !missing.is_empty() {
            return Err(VerbsError::NoSuchField(missing));
        }
        let channel = init.channel.map(CompChannel::core);
        let parent = init.parent_domain.map(Pd::core);
        let init = CqInit { cqe: init.cqe, channel, context: init.cq_context, parent };
        Ok(Cq::new(self.device.create_cq(&init)?))
    }

    /// Creates a completion channel, on which completion queues report completions, with a descriptor for epoll(7).
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        Ok(CompChannel::new(self.device.create_channel()?))
    }

    /// The number of completion vectors to choose from in [`CqInitAttr::comp_vector`]: 1.
    pub fn num_comp_vectors(&self) -> u32 {
        1
    }

    /// Opens an XRC domain. See [`Xrcd`].
    ///
    /// # Errors
    /// `ENOENT` where no domain of that name exists and `create` is not set (nor without a name), `EEXIST` where one exists
    /// and `exclusive` is set.
    #[doc(alias = "ibv_open_xrcd")]
    #[doc(alias = "ibv_open_xrc_domain")]
    pub fn open_xrcd(&self, init: &XrcdInitAttr<'_>) -> Result<Xrcd, VerbsError> {
        Ok(Xrcd::new(self.device.open_xrcd(init)?))
    }

    /// The counters of all shards, added up.
    pub fn counters(&self) -> CounterSnapshot {
        self.device.counters()
    }
    /// The counters of one shard.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn shard_counters(&self, shard: usize) -> Result<CounterSnapshot, VerbsError> {
        self.shard(shard)?;
        Ok(self.device.shard_counters(shard))
    }
    /// Counters, by name, of the frames that are no RoCE packets (ARP, neighbour discovery, ICMP, others).
    pub fn net_counters(&self) -> Vec<(&'static str, u64)> {
        self.device.net_counters()
    }
    /// The device, its shards and its queue pairs with all their counters, as `roce-stat` shows them. Stops no shard.
    pub fn stats(&self) -> stats::Snapshot {
        self.device.stats()
    }
    /// The socket on which other processes get [`stats`](Self::stats), where
    /// [`DeviceConfig::stats`](crate::DeviceConfig::stats) asked for one.
    pub fn stats_path(&self) -> Option<&std::path::Path> {
        self.device.stats_path()
    }
    /// The port's own counters.
    pub fn port_stats(&self) -> port::PortStats {
        self.device.port_stats()
    }
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.device.shards()
    }
    /// Nanoseconds of the device's clock, that of [`Wc::timestamp`](crate::Wc::timestamp).
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> u64 {
        self.device.now().as_nanos()
    }

    /// The oldest asynchronous event that was not fetched yet, or `None`: never waits. Dropping it acknowledges it.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_get_async_event(&self) -> Option<AsyncEventGuard> {
        self.device.try_event().map(|event| AsyncEventGuard::new(event, &self.device))
    }

    /// Waits for an asynchronous event, `None` after `timeout`. While it waits, the caller drives shards that no other thread
    /// drives, so it returns in every [`Drive`](crate::Drive). Dropping the event acknowledges it.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_async_event(&self, timeout: Duration) -> Result<Option<AsyncEventGuard>, VerbsError> {
        let event = self.device.wait_event(timeout)?;
        Ok(event.map(|event| AsyncEventGuard::new(event, &self.device)))
    }

    /// A descriptor for epoll(7), readable while an asynchronous event waits (`async_fd` of `struct ibv_context`). The
    /// program must not read from it. The first call creates it.
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left.
    pub fn async_fd(&self) -> Result<BorrowedFd<'_>, VerbsError> {
        Ok(self.device.event_fd()?)
    }

    /// Asynchronous events that were lost because earlier ones were not fetched: 4096 are kept, and those that report an
    /// unusable object replace others.
    pub fn async_events_lost(&self) -> u64 {
        self.device.events_lost()
    }

    /// The handle with which a program polls a shard in its own loop: meant for [`Drive::Embedded`](crate::Drive::Embedded),
    /// allowed in every drive.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn reactor(&self, shard: usize) -> Result<Reactor, VerbsError> {
        self.shard(shard)?;
        Ok(Reactor { device: self.device.clone(), shard })
    }

    /// Closes the device.
    ///
    /// # Errors
    /// `EBUSY` while any object of it or a [`Reactor`] exists; the context comes back with the error.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Result<(), (VerbsError, Self)> {
        Device::close(self.device).map_err(|(e, device)| (e.into(), Self { device, cm: self.cm }))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Connection management of the device, started if need be.
    pub(crate) fn cm(&self) -> Result<Arc<Service>, VerbsError> {
        let mut place = self.cm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = place.upgrade() {
            return Ok(service);
        }
        let service = Arc::new(Service::start(self.device.clone())?);
        *place = Arc::downgrade(&service);
        Ok(service)
    }

    fn shard(&self, shard: usize) -> Result<(), VerbsError> {
        let count = self.device.shards();
        if shard < count {
            return Ok(());
        }
        Err(VerbsError::NoSuchIndex { what: "shard", index: shard, first: 0, count })
    }
}

pub(crate) fn gid(device: &Device, index: usize) -> Result<Gid, VerbsError> {
    let gids = device.gids();
    gids.get(index).copied().filter(|gid| !gid.is_zero()).ok_or(VerbsError::NoSuchIndex {
        what: "GID index",
        index,
        first: 0,
        count: gids.len(),
    })
}

fn only_port(port_num: u8) -> Result<(), VerbsError> {
    if port_num == 1 {
        return Ok(());
    }
    Err(VerbsError::NoSuchIndex { what: "port", index: port_num.into(), first: 1, count: 1 })
}

/// Polls one shard of a device in the program's own loop.
#[derive(Debug)]
pub struct Reactor {
    device: Arc<Device>,
    shard: usize,
}

impl Reactor {
    /// One turn: receives frames, works on queue pairs whose doorbells rang or timers expired, sends frames. Never waits.
    /// `None` when another thread drives the shard at this moment or waits to make a control call; and where no turn can be
    /// made here, which [`try_poll_once`](Self::try_poll_once) distinguishes.
    ///
    /// # Panics
    /// If the port or a `tracing` subscriber does: the panic passes through and ends the shard. Its queue pairs do nothing
    /// any more, and calls that need it fail with `EIO`.
    #[inline]
    pub fn poll_once(&mut self) -> Option<Turn> {
        self.device.turn(self.shard)
    }
    /// As [`poll_once`](Self::poll_once), with an error where no turn can be made.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn, in which a port or a `tracing` subscriber is called; `EIO` where the shard died of a
    /// panic.
    ///
    /// # Panics
    /// As `poll_once`.
    #[inline]
    pub fn try_poll_once(&mut self) -> Result<Option<Turn>, VerbsError> {
        match self.device.turn(self.shard) {
            Some(turn) => Ok(Some(turn)),
            None => Ok(self.device.may_turn(self.shard).map(|()| None)?),
        }
    }
    /// Time until the shard has something to do even if no frame or request arrives; `None`: nothing is due, or another
    /// thread is driving the shard.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.device.next_deadline(self.shard)
    }
    /// The shard that it polls.
    pub fn shard(&self) -> usize {
        self.shard
    }
}
