//! The command line of `roce-interop`.

use super::parse;
use clap::Parser;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use verbs::Mac;
use verbs::port::PortSpec;

/// Runs this stack against Linux soft-RoCE in a guest
///
/// `scripts/interop/run` builds and boots the guest, starts the program in it that answers here, and calls this
/// program once for each kind of network. Each line is one cell of the matrix: who asks, what, how long, at which
/// path MTU, how often. Every byte that arrives is compared on the side where it arrives.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-interop", version, max_term_width = 100)]
pub struct InteropCli {
    /// Port that leads to the guest
    #[arg(long, value_name = "SPEC", value_parser = parse::port)]
    pub port: PortSpec,
    /// Where the guest's program listens
    #[arg(long, value_name = "ADDR:PORT")]
    pub guest: SocketAddr,
    /// Our address
    #[arg(long, value_name = "ADDR/PREFIX", default_value = "10.99.0.10/24", value_parser = parse::ip_prefix)]
    pub ip: (IpAddr, u8),
    /// The guest's address on the same network
    #[arg(long, value_name = "ADDR", default_value = "10.99.0.2")]
    pub peer_ip: IpAddr,
    /// Our Ethernet address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:99:0a", value_parser = |s: &str| s.parse::<Mac>())]
    pub mac: Mac,
    /// VLAN to send in and receive from
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Largest IP packet of the port, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4200,
          value_parser = clap::value_parser!(u16).range(576..=9600))]
    pub link_mtu: u16,
    /// The whole product of operations, sizes and path MTUs, instead of a selection
    #[arg(long)]
    pub full: bool,
    /// Only the cells whose line has this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Frames to lose, in percent, each way
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// Frames to send twice, in percent, each way
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub duplicate: f64,
    /// Frames to delay behind later ones, in percent, each way
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub reorder: f64,
    /// Seed of the faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Capture everything that goes over the port into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

impl InteropCli {
    /// Whether frames are tampered with.
    pub fn lossy(&self) -> bool {
        self.loss + self.duplicate + self.reorder > 0.0
    }

    /// What a cell's line begins with: the network.
    pub fn label(&self) -> String {
        let family = if self.ip.0.is_ipv4() { "ipv4" } else { "ipv6" };
        let vlan = if self.vlan.is_some() { " vlan" } else { "" };
        let faults = if self.lossy() { " faults" } else { "" };
        format!("{family}{vlan}{faults} ")
    }
}
