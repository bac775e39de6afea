//! The configuration of a device.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use super::clock::Clock;
use super::error::OpenError;
use crate::config::{QPS_PER_SHARD_MAX, SHARDS_MAX};
use crate::id::Mac;
use crate::net::{NetConfig, canonical};
use crate::port::{Port, PortOptions, PortSpec, capture};

/// Which threads drive the shards.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drive {
    /// A poll-mode thread for each shard that never sleeps, pinned to a core.
    Dedicated {
        /// A core for each shard, by the system's number. If empty, threads are not pinned.
        cores: Vec<usize>,
    },
    /// The program's own loop, with a reactor for each shard. The shards make progress only when the program turns them, or waits in a
    /// blocking call.
    Embedded,
    /// Threads that poll a completion queue. While none does, a background thread takes over, and sleeps when no work is due (if the port
    /// cannot signal, at most 1 ms while a queue pair is connected).
    Caller,
}

/// The port: by name, or already open.
#[non_exhaustive]
pub enum PortSource {
    /// Opened by name. The underlying device is opened only at the first use of the wire, where that is possible ([`PortSpec::open_lazy`]).
    Spec(PortSpec),
    /// Already open. None of its queues may have been taken.
    Opened(Box<dyn Port>),
}

impl From<PortSpec> for PortSource {
    fn from(spec: PortSpec) -> Self {
        Self::Spec(spec)
    }
}
impl From<Box<dyn Port>> for PortSource {
    fn from(port: Box<dyn Port>) -> Self {
        Self::Opened(port)
    }
}
impl fmt::Debug for PortSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(spec) => write!(f, "{spec}"),
            Self::Opened(port) => write!(f, "{} (open)", port.info().name),
        }
    }
}

/// The parameters for opening a device: start with [`DeviceConfig::new`], and set each field that should differ from the
/// [default](DeviceConfig::default) with its method.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// The port.
    pub port: PortSource,
    /// The device's addresses with their prefix lengths. They become GIDs 1, 2, ... (0 is the link-local one). An IPv4-mapped IPv6 address
    /// counts as its IPv4 address; its prefix may or may not include the first 96 bits.
    pub addrs: Vec<(IpAddr, u8)>,
    /// The gateway for IPv4 destinations outside the prefixes of `addrs`.
    pub gateway: Option<Ipv4Addr>,
    /// The gateway for IPv6 destinations outside the prefixes of `addrs`.
    pub gateway6: Option<Ipv6Addr>,
    /// VLAN to send on and to accept, `1 ..= 4094`.
    pub vlan: Option<u16>,
    /// Neighbours with fixed Ethernet addresses: these are not resolved, and no packet on the link changes them. This protects against
    /// hosts on the link that claim the addresses of others.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// The device's Ethernet address; if absent, the port's own, or a random one. Only for a port opened by name.
    pub mac: Option<Mac>,
    /// Largest L3 packet in bytes. Only for a port opened by name.
    pub mtu: usize,
    /// Number of shards, `1 ..= 16`: the number of threads that can work at once.
    pub shards: usize,
    /// Which threads drive the shards.
    pub drive: Drive,
    /// If set, keys, queue pair numbers and first PSNs are drawn from this seed instead of the system's random numbers: for runs that must
    /// be repeatable, never where a peer is not trusted.
    pub seed: Option<u64>,
    /// The clock.
    pub clock: Clock,
    /// Reports the port as active even while its link is down, and reports no change of the link: for programs that query the port before
    /// the process at the other end of the link has started.
    pub assume_link: bool,
    /// Number of queue pairs that a shard can hold, `1 ..= 131072`.
    pub qps_per_shard: usize,
    /// If set, every frame in both directions is written to this pcap file.
    pub pcap: Option<PathBuf>,
    /// If set, the counters are served on this unix socket, to which only the same user may connect. If the path is a directory, on a
    /// socket in it named after the process ([`stats`](super::stats)).
    pub stats: Option<PathBuf>,
}

impl Default for DeviceConfig {
    /// One shard on a loopback port with only the link-local address, driven by the threads that poll.
    fn default() -> Self {
        Self {
            port: PortSource::Spec(PortSpec::Loopback),
            addrs: Vec::new(),
            gateway: None,
            gateway6: None,
            vlan: None,
            neighbours: Vec::new(),
            mac: None,
            mtu: PortOptions::default().mtu,
            shards: 1,
            drive: Drive::Caller,
            seed: None,
            clock: Clock::Monotonic,
            assume_link: false,
            qps_per_shard: 4096,
            pcap: None,
            stats: None,
        }
    }
}

impl DeviceConfig {
    /// The default configuration with this port.
    pub fn new(port: impl Into<PortSource>) -> Self {
        Self { port: port.into(), ..Self::default() }
    }
    /// A device that talks to itself: a loopback port with the address 192.0.2.1/24 at GID index 1.
    pub fn loopback() -> Self {
        Self { addrs: vec![(IpAddr::from([192, 0, 2, 1]), 24)], ..Self::default() }
    }
    /// Sets the port.
    #[must_use]
    pub fn port(mut self, port: impl Into<PortSource>) -> Self {
        self.port = port.into();
        self
    }
    /// Sets the addresses.
    #[must_use]
    pub fn addrs(mut self, addrs: Vec<(IpAddr, u8)>) -> Self {
        self.addrs = addrs;
        self
    }
    /// Adds an address.
    #[must_use]
    pub fn addr(mut self, addr: impl Into<IpAddr>, prefix: u8) -> Self {
        self.addrs.push((addr.into(), prefix));
        self
    }
    /// Sets the IPv4 gateway.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<Option<Ipv4Addr>>) -> Self {
        self.gateway = gateway.into();
        self
    }
    /// Sets the IPv6 gateway.
    #[must_use]
    pub fn gateway6(mut self, gateway: impl Into<Option<Ipv6Addr>>) -> Self {
        self.gateway6 = gateway.into();
        self
    }
    /// Sets the VLAN.
    #[must_use]
    pub fn vlan(mut self, vlan: impl Into<Option<u16>>) -> Self {
        self.vlan = vlan.into();
        self
    }
    /// Sets the fixed neighbours.
    #[must_use]
    pub fn neighbours(mut self, neighbours: Vec<(IpAddr, Mac)>) -> Self {
        self.neighbours = neighbours;
        self
    }
    /// Adds a fixed neighbour with its Ethernet address.
    #[must_use]
    pub fn neighbour(mut self, addr: impl Into<IpAddr>, mac: Mac) -> Self {
        self.neighbours.push((addr.into(), mac));
        self
    }
    /// Sets the Ethernet address.
    #[must_use]
    pub fn mac(mut self, mac: impl Into<Option<Mac>>) -> Self {
        self.mac = mac.into();
        self
    }
    /// Sets the largest L3 packet in bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: usize) -> Self {
        self.mtu = mtu;
        self
    }
    /// Sets which threads drive the shards.
    #[must_use]
    pub fn drive(mut self, drive: Drive) -> Self {
        self.drive = drive;
        self
    }
    /// Sets the number of shards.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }
    /// Draws keys and numbers from this seed.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> Self {
        self.seed = seed.into();
        self
    }
    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
    /// Sets whether the port is reported as active even while its link is down.
    #[must_use]
    pub fn assume_link(mut self, assume_link: bool) -> Self {
        self.assume_link = assume_link;
        self
    }
    /// Sets the number of queue pairs that a shard can hold.
    #[must_use]
    pub fn qps_per_shard(mut self, qps_per_shard: usize) -> Self {
        self.qps_per_shard = qps_per_shard;
        self
    }
    /// Writes every frame in both directions to this pcap file.
    #[must_use]
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.pcap = Some(path.into());
        self
    }
    /// Serves the counters on this unix socket, or on one in this directory. By default `roce-stat` searches
    /// [`stats::runtime_dir`](super::stats::runtime_dir).
    #[must_use]
    pub fn stats(mut self, path: impl Into<PathBuf>) -> Self {
        self.stats = Some(path.into());
        self
    }

    /// Checks everything that can be checked without the port.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let range = |what, given, min, max| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(OpenError::Range { what, given, min, max })
            }
        };
        range("shards", self.shards, 1, SHARDS_MAX)?;
        range("qps_per_shard", self.qps_per_shard, 1, QPS_PER_SHARD_MAX)?;
        if let Drive::Dedicated { cores } = &self.drive
            && !cores.is_empty()
            && cores.len() < self.shards
        {
            return Err(OpenError::Cores { shards: self.shards, cores: cores.len() });
        }
        Ok(())
    }

    /// The configuration of the IP host: from this configuration, with the Ethernet address of the opened port; or with the kernel's
    /// addresses, if the kernel below the port is the IP host.
    pub(super) fn net(&self, port: &dyn Port) -> Result<NetConfig, OpenError> {
        let mac = port.info().mac;
        if let Some(host) = port.host() {
            let ours = [
                ("addresses", !self.addrs.is_empty()),
                ("a gateway", self.gateway.is_some() || self.gateway6.is_some()),
                ("a VLAN", self.vlan.is_some()),
                ("neighbours", !self.neighbours.is_empty()),
            ];
            if let Some((what, _)) = ours.into_iter().find(|(_, given)| *given) {
                return Err(OpenError::Host { port: port.info().name.clone(), what });
            }
            let addrs = host.addresses().into_iter().map(|addr| (addr, 0)).collect();
            return Ok(NetConfig { addrs, next_hop: Some(mac.beside()), ..NetConfig::new(mac) });
        }
        let net = NetConfig {
            mac,
            next_hop: None,
            addrs: self.addrs.iter().map(|(addr, prefix)| canonical(*addr, *prefix)).collect(),
            gateway: self.gateway,
            gateway6: self.gateway6,
            vlan: self.vlan,
            neighbours: self.neighbours.clone(),
        };
        net.check()?;
        Ok(net)
    }

    /// Opens the port, or takes the open one, and wraps it in a capture if the configuration names a file.
    pub(super) fn open_port(&mut self) -> Result<Box<dyn Port>, OpenError> {
        let options =
            PortOptions { queues: self.shards, mtu: self.mtu, mac: self.mac, ..PortOptions::default() };
        let source = core::mem::replace(&mut self.port, PortSource::Spec(PortSpec::Loopback));
        let port = match source {
            PortSource::Spec(spec) => spec.open_lazy(&options)?,
            PortSource::Opened(port) => port,
        };
        match &self.pcap {
            Some(path) => Ok(capture(port, path)?),
            None => Ok(port),
        }
    }
}
