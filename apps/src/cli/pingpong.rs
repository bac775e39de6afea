//! The command line of `roce-pingpong`: the short options are those of `ibv_rc_pingpong` and its kin.

use super::DeviceArgs;
use super::parse::{self, Host};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use verbs::Mtu;

const EXAMPLES: &str = "\
Examples (two terminals, of one machine or of two):
  roce-pingpong
  roce-pingpong HOST

  With the stock tool of a Linux host (soft-RoCE or a NIC) as the peer, whichever is the server:
  roce-pingpong HOST
  ibv_rc_pingpong -d rxe0 -g 1

  The same over a tap interface, with an address of its own:
  roce-pingpong --port tap:roce0 --ip 192.168.9.1/24 192.168.9.7
  ibv_rc_pingpong -d rxe0 -g 1

  The same with the stock tool as the client, which comes from another machine:
  roce-pingpong --port tap:roce0 --ip 192.168.9.1/24 --bind 0.0.0.0
  ibv_rc_pingpong -d rxe0 -g 1 192.168.9.8

  Unreliable, with ibv_uc_pingpong or ibv_ud_pingpong as the peer:
  roce-pingpong --transport uc localhost
  roce-pingpong --transport ud -s 1000 localhost

  Without DPDK, over datagrams:
  roce-pingpong --port unix:/tmp/a,peer=/tmp/b
  roce-pingpong --port unix:/tmp/b,peer=/tmp/a localhost";

/// The service type of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: a lost packet ends the run.
    Uc,
    /// Unreliable datagrams: the message fits into one packet.
    Ud,
}

impl Service {
    /// Name of the service type for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// Bounces a message to and fro over one queue pair
///
/// Without HOST it waits for a client, with HOST it connects to a server there. Queue pair numbers and
/// addresses are exchanged over TCP as ibv_rc_pingpong does it, so either end may be that tool (ibv_uc_pingpong,
/// ibv_ud_pingpong for the other service types).
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-pingpong", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct PingpongCli {
    /// Host of the server; without it, be the server. A port behind it counts instead of --tcp-port: localhost:18600,
    /// [fd00::1]:18600
    #[allow(rustdoc::broken_intra_doc_links, reason = "an address in brackets")]
    #[arg(value_name = "HOST[:PORT]", value_parser = parse::host)]
    pub host: Option<Host>,
    /// Service type; over the unreliable ones a lost message ends the run
    #[arg(short = 'T', long, value_enum, default_value_t = Service::Rc)]
    pub transport: Service,
    /// TCP port of the exchange
    #[arg(
        short = 'p',
        long = "tcp-port",
        visible_alias = "oob-port",
        value_name = "PORT",
        default_value_t = 18515
    )]
    pub tcp_port: u16,
    /// Address that the server listens on: one of this machine's, or 0.0.0.0 or :: for all of them
    ///
    /// [default: all of them over host and udp; over other ports 127.0.0.1, where this machine's programs are]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse::host)]
    pub bind: Option<Host>,
    /// Message size in bytes; 4096, of datagrams 1024 unless given
    #[arg(short, long, value_name = "BYTES", value_parser = parse::size)]
    pub size: Option<u64>,
    /// Path MTU
    #[arg(short, long, value_name = "BYTES", default_value = "1024", value_parser = parse::mtu)]
    pub mtu: Mtu,
    /// Receives posted at a time
    #[arg(short, long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub rx_depth: u32,
    /// Messages each way
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iters: u64,
    /// Service level; becomes the upper bits of the traffic class
    #[arg(short = 'l', long, value_name = "0..7", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub sl: u8,
    /// Accepted for compatibility with the stock tool: completions are polled, never waited for
    #[arg(short, long)]
    pub events: bool,
    /// Local GID, by its index [default: that of the first address]
    #[arg(short, long, value_name = "INDEX")]
    pub gid_idx: Option<u8>,
    /// Local ACK timeout of a reliable connection: 4.096 us times 2 to this power
    #[arg(long, value_name = "0..31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub timeout: u8,
    /// Check the contents of every message (both ends must ask for it)
    #[arg(short = 'c', long = "chk")]
    pub check: bool,
    /// How long a client tries to reach its server
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    pub wait: std::time::Duration,
    /// Write the result as an array with one row
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device options.
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl PingpongCli {
    /// Bytes of the message: what was given, or the stock tools' defaults.
    pub fn message_size(&self) -> u64 {
        self.size.unwrap_or(if self.transport == Service::Ud { 1024 } else { 4096 })
    }
}
