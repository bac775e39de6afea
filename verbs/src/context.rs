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
/// Its objects keep the device alive; when the last of them and the context are gone, the device's threads end and
/// what is left to send is sent, for at most 100 ms. A port that panics makes the turn panic that used it, on whichever
/// thread, and [`DeviceFatal`](crate::AsyncEvent::DeviceFatal) is raised where that thread was the device's; the end of the
/// device goes on all the same.
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
    /// Opening and querying a device whose address is ours to choose (memif, tap, vhost) opens no port: it
    /// starts with the first queue pair or by [`start`](Self::start), and its link is down until then. See
    /// [`PortSpec::open_lazy`](port::PortSpec::open_lazy).
    ///
    /// # Errors
    /// [`VerbsError::Open`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(config: DeviceConfig) -> Result<Self, VerbsError> {
        Ok(Self { device: Device::open(config)?, cm: Mutex::default() })
    }

    /// Starts the port if it is not: for programs that want to know at once whether its device can be used, or
    /// whose peer is to find them before their first queue pair.
    ///
    /// # Errors
    /// `ENODEV` with one sentence that says what to do, after which it may be tried again; `EDEADLK` from inside a
    /// turn.
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

    /// An address of port 1 with what is known of it.
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

    /// All addresses of all ports, each with what is known of it.
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

    /// The device's name: `roce` and how many devices this process opened before.
    #[doc(alias = "ibv_get_device_name")]
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// The device's GUID: the EUI-64 of its port's Ethernet address, in the order of the wire.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn device_guid(&self) -> [u8; 8] {
        self.device.attr().node_guid
    }

    /// Everything about device and port, for a person: its `Display` is what `ibv_devinfo -v` would print.
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

    /// Gives the port one more address with the length of its prefix, and returns its index in the GID table. The link is
    /// told (gratuitous ARP, unsolicited neighbour advertisement), and
    /// [`GidChange`](crate::AsyncEvent::GidChange) is raised. An IPv4-mapped IPv6 address is its IPv4 address, as in
    /// [`DeviceConfig::addrs`](crate::DeviceConfig::addrs).
    ///
    /// # Errors
    /// `EINVAL` for what no host can have (as a network's address, or its broadcast address), or the port has; `ENOMEM` when
    /// the table is full; `EDEADLK` from inside a turn.
    pub fn add_address(&self, addr: impl Into<IpAddr>, prefix: u8) -> Result<usize, VerbsError> {
        Ok(self.device.add_address(addr.into(), prefix)?)
    }

    /// Takes an address from the port; [`GidChange`](crate::AsyncEvent::GidChange) is raised. Nobody is answered for it any
    /// more. Connected queue pairs and address handles that send from it go on, and its index is not used again until the
    /// last of them is gone, reset or has another one. A datagram that still waits when the last one goes is dropped
    /// ([`Discard::NoSource`](crate::Discard::NoSource)), and so is a message of `rdma_cm` from it.
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

    /// Makes a completion queue of at least `cqe` entries.
    ///
    /// It must hold every completion that can wait at once; one that overruns loses completions and takes its queue
    /// pairs to ERR (ibv_create_cq(3)). [`CqErr`](crate::AsyncEvent::CqErr) tells of the loss as it happens, so it may be
    /// fetched before the completions that came before the loss: these wait in the queue, and are polled first.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`], `ENOMEM` with [`DeviceAttr::max_cq`] queues.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, VerbsError> {
        self.create_cq_ex(&CqInitAttr::new(cqe))
    }

    /// Makes a completion queue, with events where [`CqInitAttr::channel`] says so.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`], for a channel or parent domain of another device, for a
    /// protection domain that is no parent domain, for a `comp_vector` that does not exist; `EOPNOTSUPP` for fields that completions of RoCE do not have.
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

    /// Makes a completion channel: where completion queues tell of completions, with a descriptor for epoll(7).
    ///
    /// # Errors
    /// `EMFILE` without a file descriptor.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        Ok(CompChannel::new(self.device.create_channel()?))
    }

    /// Event sources to choose from in [`CqInitAttr::comp_vector`]: 1.
    pub fn num_comp_vectors(&self) -> u32 {
        1
    }

    /// Opens an XRC domain. See [`Xrcd`].
    ///
    /// # Errors
    /// `ENOENT` where there is none of that name and it is not to be made (nor without a name), `EEXIST` where there is
    /// one and `exclusive` is set.
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
    /// What became of the frames that are no RoCE packets (ARP, neighbour discovery, ICMP, others), by name.
    pub fn net_counters(&self) -> Vec<(&'static str, u64)> {
        self.device.net_counters()
    }
    /// The device, its shards and its queue pairs with all that they counted, as `roce-stat` shows it. Stops nothing.
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

    /// The oldest asynchronous event that nobody fetched, or `None`: never waits. Dropping it acknowledges it.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_get_async_event(&self) -> Option<AsyncEventGuard> {
        self.device.try_event().map(|event| AsyncEventGuard::new(event, &self.device))
    }

    /// Waits for an asynchronous event, `None` after `timeout`. While it waits the caller turns shards that nobody
    /// else turns, so it returns in every [`Drive`](crate::Drive). Dropping the event acknowledges it.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_async_event(&self, timeout: Duration) -> Result<Option<AsyncEventGuard>, VerbsError> {
        let event = self.device.wait_event(timeout)?;
        Ok(event.map(|event| AsyncEventGuard::new(event, &self.device)))
    }

    /// A descriptor for epoll(7), readable while an asynchronous event waits (`async_fd` of `struct ibv_context`). It
    /// must not be read. The first call makes it.
    ///
    /// # Errors
    /// `EMFILE` without a file descriptor.
    pub fn async_fd(&self) -> Result<BorrowedFd<'_>, VerbsError> {
        Ok(self.device.event_fd()?)
    }

    /// Asynchronous events that were lost because nobody fetched those before them: 4096 are kept, and those that tell
    /// of an unusable object take the place of others.
    pub fn async_events_lost(&self) -> u64 {
        self.device.events_lost()
    }

    /// The handle by which a program turns a shard in its own loop: for [`Drive::Embedded`](crate::Drive::Embedded),
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
    /// `EBUSY` while any object of it or a [`Reactor`] exists; it comes back with the error.
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

/// Turns one shard of a device in the embedder's own loop.
#[derive(Debug)]
pub struct Reactor {
    device: Arc<Device>,
    shard: usize,
}

impl Reactor {
    /// One turn: takes frames in, works on queue pairs whose doorbells rang or timers expired, sends frames. Never
    /// waits. `None` when somebody else turns the shard at this moment, or waits to make a control call; and where no turn
    /// can be made here, which [`try_poll_once`](Self::try_poll_once) tells apart.
    ///
    /// # Panics
    /// If the port or a `tracing` subscriber does: the panic passes through, and is the end of the shard. Its queue pairs
    /// do nothing any more, and calls that need it fail with `EIO`.
    #[inline]
    pub fn poll_once(&mut self) -> Option<Turn> {
        self.device.turn(self.shard)
    }
    /// As [`poll_once`](Self::poll_once), and says why there will be no turn.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn, which a port or a `tracing` subscriber is called from; `EIO` where the shard died of
    /// a panic.
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
    /// Until when the shard has nothing to do unless frames or requests arrive; `None`: for ever, or the shard is being
    /// turned by somebody else.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.device.next_deadline(self.shard)
    }
    /// The shard that it turns.
    pub fn shard(&self) -> usize {
        self.shard
    }
}
