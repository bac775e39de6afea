//! The options that open a device; the same in every program.

use super::parse::{self, Host};
use crate::{metrics, oob};
use clap::{Args, ValueEnum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use verbs::Mac;
use verbs::port::PortSpec;

/// The port when none is named.
pub const DEFAULT_PORT: &str = "host";

/// Which threads drive the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DriveArg {
    /// The measuring thread itself, between two polls: lowest latency
    Embedded,
    /// One pinned thread a shard, started by the device
    Dedicated,
    /// The threads that poll completion queues, with a helper thread while none does
    Caller,
}

/// Options of the device.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// Port to send and receive frames on
    ///
    /// host (the addresses and the network of this host, shared by all processes of this user, which reach each other over
    /// shared memory; host:ADDR,... or the variable ROCE_ADDRS: with these addresses alone), udp or udp:ADDR (UDP sockets of
    /// this host for this process alone), memif or memif:PATH (a private link of shared memory with one process of this machine; without a path, one of the same user), tap:IFACE, af_packet:IFACE,
    /// vhost:PATH, dpdk:DEVARGS (any DPDK device, by name with arguments or by PCI address), unix:LOCAL,peer=REMOTE (datagrams),
    /// loopback. host, udp, memif, unix and loopback need no DPDK.
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_PORT, value_parser = parse::port)]
    pub port: PortSpec,

    /// Local address, with its prefix length; may be given several times
    ///
    /// [default: 10.77.0.1/24 for a server, 10.77.0.2/24 for a client; host and udp have the addresses of this host alone]
    #[arg(long, value_name = "ADDR/PREFIX", value_parser = parse::ip_prefix)]
    pub ip: Vec<(IpAddr, u8)>,

    /// IPv4 router for addresses that are not on our link
    #[arg(long, value_name = "ADDR", value_parser = parse::ipv4)]
    pub gateway: Option<Ipv4Addr>,

    /// IPv6 router for addresses that are not on our link
    #[arg(long, value_name = "ADDR", value_parser = parse::ipv6)]
    pub gateway6: Option<Ipv6Addr>,

    /// Ethernet address of a neighbour, which is then not resolved and never changes; may be given several times
    ///
    /// For a link on which other hosts answer for addresses that they do not have.
    #[arg(long, value_name = "IP=MAC", value_parser = parse::neighbour)]
    pub neighbour: Vec<(IpAddr, Mac)>,

    /// The peer's RDMA address, instead of the one it sends over TCP
    #[arg(long, value_name = "ADDR", value_parser = parse::ip)]
    pub peer_ip: Option<IpAddr>,

    /// Ethernet address of the port [default: the device's own, or a random one]
    #[arg(long, value_name = "MAC", value_parser = |s: &str| s.parse::<Mac>())]
    pub mac: Option<Mac>,

    /// VLAN to send in and receive from
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,

    /// Largest IP packet of the port, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4200,
          value_parser = clap::value_parser!(u16).range(576..=9600))]
    pub link_mtu: u16,

    /// Which threads drive the shards
    #[arg(long, value_enum, default_value_t = DriveArg::Embedded)]
    pub drive: DriveArg,

    /// Shards: poll-mode workers with a port queue each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub shards: u8,

    /// Cores to pin to: first the measuring thread's, then (dedicated) one a shard
    ///
    /// [default: 0 for a server, 1 for a client, where the machine has it]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,

    /// Capture everything that goes over the port into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Show counters to roce-stat on this unix socket
    ///
    /// In a directory the socket is named after the process; without a path it is where roce-stat looks by default.
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub stats: Option<Option<PathBuf>>,

    /// Show counters to collectors of OpenMetrics at http://ADDR:PORT/metrics [address: 127.0.0.1]
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = metrics::address)]
    pub metrics: Option<SocketAddr>,
}

impl DeviceArgs {
    /// Whether the port uses the addresses and the network of this host.
    pub fn is_of_host(&self) -> bool {
        matches!(self.port, PortSpec::Host { .. } | PortSpec::Udp { .. })
    }

    /// The address on which a server listens for TCP: `given`, or a default that its port's peers reach. Over ports that use the host's
    /// addresses the default is every address; over others only programs of this machine are peers, and it is 127.0.0.1.
    pub fn bind(&self, given: Option<&Host>) -> Host {
        let usual = if self.is_of_host() { oob::EVERYWHERE } else { "127.0.0.1" };
        given.cloned().unwrap_or_else(|| Host { name: usual.into(), port: None })
    }
}
