//! The device context: the root of every object.

use std::sync::Arc;
use std::time::Duration;

use stack::device::{
    CounterSnapshot, DEFAULT_PKEY, Device, DeviceAttr, DeviceConfig, Event, Gid, GidEntry, PortAttr, Turn,
    port, stats,
};

use crate::cq::Cq;
use crate::device_info::DeviceInfo;
use crate::error::VerbsError;
use crate::pd::Pd;

/// An open device (`struct ibv_context`).
///
/// Its objects keep the device alive; when the last of them and the context are gone, the device's threads end and
/// what is left to send is sent, for at most 100 ms.
#[derive(Debug)]
#[doc(alias = "ibv_context")]
pub struct Context {
    device: Arc<Device>,
}

impl Context {
    /// Opens a device: its port, its shards and, as [`Drive`](crate::Drive) says, its threads.
    ///
    /// Opening and querying a device whose address is ours to choose (memif, tap, vhost) needs no DPDK: such a port
    /// starts with the first queue pair or by [`start`](Self::start), and its link is down until then. See
    /// [`PortSpec::open_lazy`](port::PortSpec::open_lazy).
    ///
    /// # Errors
    /// [`VerbsError::Open`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(config: DeviceConfig) -> Result<Self, VerbsError> {
        Ok(Self { device: Device::open(config)? })
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

    /// An address of port 1: index 0 is the link-local one, then the configured ones in order.
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
        (0..).map_while(|index| self.device.gid_entry(index)).collect()
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

    /// All addresses of port 1: the link-local one, then the configured ones in order.
    pub fn gid_table(&self) -> &[Gid] {
        self.device.gids()
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
    /// pairs to ERR (ibv_create_cq(3)).
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`], `ENOMEM` with [`DeviceAttr::max_cq`] queues.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, VerbsError> {
        Ok(Cq::new(self.device.create_cq(cqe)?))
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
    pub fn now(&self) -> u64 {
        self.device.now().as_nanos()
    }

    /// The oldest asynchronous event that nobody took, or `None`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_get_async_event(&self) -> Option<Event> {
        self.device.try_event()
    }

    /// Waits for an asynchronous event, `None` after `timeout`. While it waits the caller turns shards that nobody
    /// else turns, so it returns in every [`Drive`](crate::Drive).
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_async_event(&self, timeout: Duration) -> Result<Option<Event>, VerbsError> {
        Ok(self.device.wait_event(timeout)?)
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
        Device::close(self.device).map_err(|(e, device)| (e.into(), Self { device }))
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
    gids.get(index).copied().ok_or(VerbsError::NoSuchIndex {
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
    /// waits. `None` when somebody else turns the shard at this moment, or waits to make a control call.
    #[inline]
    pub fn poll_once(&mut self) -> Option<Turn> {
        self.device.turn(self.shard)
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
