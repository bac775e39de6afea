//! The device context: the root of every object.

use std::any::Any;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use stack::device::{
    CounterSnapshot, DEFAULT_PKEY, Device, DeviceAttr, DeviceConfig, Gid, GidEntry, PortAttr, lock, port,
    stats,
};

use stack::xrc::SharedDomains;

use crate::error::VerbsError;

/// State of a higher layer (connection management) that lives as long as the context is open.
type Attached = Option<Arc<dyn Any + Send + Sync>>;

/// An open device (`struct ibv_context`).
///
/// Its objects keep the device alive. When the context and the last object are dropped, the device's threads end; what is left to send is
/// sent before that, for at most 100 ms. If the port panics, the turn that called it panics, on the thread that made the turn. If that was
/// one of the device's own threads, [`DeviceFatal`](crate::AsyncEvent::DeviceFatal) is raised. The device is closed nevertheless.
#[derive(Debug)]
#[doc(alias = "ibv_context")]
pub struct Context {
    device: Arc<Device>,
    /// The state of connection management.
    cm: Mutex<Attached>,
    /// The addresses of this process and of the other one: see [`Context::meet`].
    address_pair: OnceLock<Box<AddressPair>>,
    /// XRC domains that the context shares with other processes.
    shared_xrcds: Box<SharedDomains>,
}

/// The addresses of two processes connected by one link: ours, then that of the other process.
pub(crate) type AddressPair = (IpAddr, IpAddr);

impl Context {
    /// Opens a device: its port, its shards and the threads that [`Drive`](crate::Drive) asks for.
    ///
    /// If the stack chooses the Ethernet address (memif, tap, vhost), opening and querying the device does not open the port. The port
    /// starts with the first queue pair or with [`start`](Self::start), and its link is down until then. See
    /// [`PortSpec::open_lazy`](port::PortSpec::open_lazy).
    ///
    /// ```
    /// use verbs::{Context, DeviceConfig, Drive};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Threads that poll a completion queue drive the device: programs in the style of libibverbs.
    /// let device = Context::open(DeviceConfig::loopback().drive(Drive::Caller))?;
    /// // A thread of its own that never sleeps, not pinned here.
    /// let device = Context::open(DeviceConfig::loopback().drive(Drive::Dedicated { cores: vec![] }))?;
    /// // The program's own loop.
    /// let device = Context::open(DeviceConfig::loopback().drive(Drive::Embedded))?;
    /// let mut reactor = device.reactor(0)?;
    /// reactor.poll_once();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`VerbsError::Open`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(config: DeviceConfig) -> Result<Self, VerbsError> {
        let (device, cm, address_pair) = (Device::open(config)?, Mutex::default(), OnceLock::new());
        Ok(Self { device, cm, address_pair, shared_xrcds: Box::default() })
    }

    /// Starts the port unless it has started already. For programs that want to know at once whether its device can be used, or that must
    /// be reachable before they create a queue pair.
    ///
    /// # Errors
    /// `ENODEV`, with a text that says what to do; the call can then be repeated. `EDEADLK` from inside a turn.
    pub fn start(&self) -> Result<(), VerbsError> {
        Ok(self.device.start()?)
    }

    /// The device's attributes and limits.
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

    /// The address of port 1 at an index. Index 0 is the link-local address; the configured ones follow in order, then those added later.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port_num: u8, index: usize) -> Result<Gid, VerbsError> {
        only_port(port_num)?;
        gid(&self.device, index)
    }

    /// The address of port 1 at an index, with its type and network interface.
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

    /// All addresses of all ports, with index, type and network interface.
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// for entry in context.query_gid_table() {
    ///     println!("{}: {}", entry.gid_index, entry.gid);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> Vec<GidEntry<'_>> {
        (0..).map_while(|index| self.device.gid_entry(index)).filter(|e| !e.gid.is_zero()).collect()
    }

    /// The partition key of port 1 at an index. Index 0, the only one, is the default key with full membership.
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

    /// The index of a partition key in the table of port 1.
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

    /// All addresses of port 1, by index: the link-local one, the configured ones in order, then those added later. A removed address is
    /// zero.
    pub fn gid_table(&self) -> Vec<Gid> {
        self.device.gids()
    }

    /// Adds an address with a prefix of `prefix` bits to the port and returns its index in the GID table. Announces it on the link
    /// (gratuitous ARP, unsolicited neighbour advertisement) and raises [`GidChange`](crate::AsyncEvent::GidChange). An IPv4-mapped IPv6
    /// address is treated as its IPv4 address, as in [`DeviceConfig::addrs`](crate::DeviceConfig::addrs).
    ///
    /// # Errors
    /// `EINVAL` for an address that no host can have (such as a network's own or its broadcast address) or that the port already has;
    /// `ENOMEM` if the table is full; `EDEADLK` from inside a turn.
    pub fn add_address(&self, addr: impl Into<IpAddr>, prefix: u8) -> Result<usize, VerbsError> {
        Ok(self.device.add_address(addr.into(), prefix)?)
    }

    /// Removes an address from the port and raises [`GidChange`](crate::AsyncEvent::GidChange). The port no longer answers for the address.
    /// Connected queue pairs and address handles that send from it keep working. Its index is not reused before the last of them is
    /// destroyed, reset or has another address. Datagrams that still wait at that time are dropped
    /// ([`Discard::NoSource`](crate::Discard::NoSource)), and so are messages of `rdma_cm` from that address.
    ///
    /// # Errors
    /// `EINVAL` for an address that the port does not have, and for the link-local one derived from its Ethernet address; `EDEADLK` from
    /// inside a turn.
    pub fn remove_address(&self, addr: impl Into<IpAddr>) -> Result<(), VerbsError> {
        Ok(self.device.remove_address(addr.into())?)
    }

    /// The sum of the counters of all shards.
    pub fn counters(&self) -> CounterSnapshot {
        self.device.counters()
    }
    /// The counters of one shard.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn shard_counters(&self, shard: usize) -> Result<CounterSnapshot, VerbsError> {
        self.check_shard(shard)?;
        Ok(self.device.shard_counters(shard))
    }
    /// Counters, by name, of the frames that are not RoCE packets (ARP, neighbour discovery, ICMP, others).
    pub fn net_counters(&self) -> Vec<(&'static str, u64)> {
        self.device.net_counters()
    }
    /// A snapshot of the device, its shards and its queue pairs with all their counters, as `roce-stat` shows them. Stops no shard.
    pub fn stats(&self) -> stats::Snapshot {
        self.device.stats()
    }
    /// A handle that takes [`stats`](Self::stats) on any thread, while the device exists.
    pub fn stats_reader(&self) -> stats::Reader {
        self.device.stats_reader()
    }
    /// Adds the program's own counters to [`stats`](Self::stats), and so to `roce-stat`: `source` is called for each snapshot,
    /// on the thread that takes it.
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig, stats::{Row, Table}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = Context::open(DeviceConfig::loopback())?;
    /// context.add_stats(|| Table {
    ///     name: "disks".into(),
    ///     rows: vec![Row { counters: [("reads".to_string(), 3)].into(), ..Row::default() }],
    /// });
    /// assert_eq!(context.stats().tables[0].rows[0].counters["reads"], 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_stats(&self, source: impl Fn() -> stats::Table + Send + Sync + 'static) {
        self.device.add_stats(source);
    }
    /// The path of the socket that serves [`stats`](Self::stats) to other processes. `None` unless
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
    /// The time on the device's clock in nanoseconds, the same clock as in [`Wc::timestamp`](crate::Wc::timestamp).
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> u64 {
        self.device.now().as_nanos()
    }

    /// Closes the device.
    ///
    /// # Errors
    /// `EBUSY` while one of its objects, a [`Reactor`](crate::Reactor) or an event channel that was used with it exists. The context is
    /// returned with the error.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Result<(), (VerbsError, Self)> {
        let Self { device, cm, address_pair, shared_xrcds } = self;
        // Ends connection management first, if nothing uses it.
        let used = |attached: &Arc<_>| Arc::strong_count(attached) > 1;
        let attached = cm.into_inner().unwrap_or_else(PoisonError::into_inner).filter(used);
        Device::close(device).map_err(|(e, device)| {
            (e.into(), Self { device, cm: Mutex::new(attached), address_pair, shared_xrcds })
        })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn shared_xrcds(&self) -> &SharedDomains {
        &self.shared_xrcds
    }

    /// As [`cm`](Self::cm), but returns `None` if another thread holds the lock.
    pub(crate) fn try_cm(&self) -> Option<MutexGuard<'_, Attached>> {
        match self.cm.try_lock() {
            Ok(attached) => Some(attached),
            Err(TryLockError::Poisoned(attached)) => Some(attached.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Tells connection management the addresses of two processes that are connected by one link and did not choose their addresses. Which
    /// process got which address is arbitrary, and a program that connects to either of them means the process that listens. Therefore, if
    /// an identifier of this process resolves `own`, and no identifier of this process listens there, it resolves `other` instead; and an
    /// identifier that is bound to `other` is bound to `own` instead. Only the first call has an effect, and only before connection
    /// management starts.
    pub fn meet(&self, own: IpAddr, other: IpAddr) {
        let _ = self.address_pair.set(Box::new((own, other)));
    }

    pub(crate) fn address_pair(&self) -> Option<AddressPair> {
        self.address_pair.get().map(|address_pair| **address_pair)
    }

    /// Locks the state of connection management.
    pub(crate) fn cm(&self) -> MutexGuard<'_, Attached> {
        lock(&self.cm)
    }

    /// Checks that a shard exists.
    pub(crate) fn check_shard(&self, shard: usize) -> Result<(), VerbsError> {
        let count = self.device.shards();
        if shard < count {
            return Ok(());
        }
        Err(VerbsError::NoSuchIndex { what: "shard", index: shard, first: 0, count })
    }
}

/// The address at an index of the GID table.
pub(crate) fn gid(device: &Device, index: usize) -> Result<Gid, VerbsError> {
    let gids = device.gids();
    gids.get(index).copied().filter(|gid| !gid.is_zero()).ok_or(VerbsError::NoSuchIndex {
        what: "GID index",
        index,
        first: 0,
        count: gids.len(),
    })
}

/// Fails for any port number other than 1.
fn only_port(port_num: u8) -> Result<(), VerbsError> {
    if port_num == 1 {
        return Ok(());
    }
    Err(VerbsError::NoSuchIndex { what: "port", index: port_num.into(), first: 1, count: 1 })
}
