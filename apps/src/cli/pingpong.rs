//! The command line of `roce-pingpong`: the short options are those of `ibv_rc_pingpong`.

use super::{DeviceArgs, parse};
use clap::Parser;
use std::path::PathBuf;
use verbs::Mtu;

const EXAMPLES: &str = "\
Examples (two terminals on one machine):
  roce-pingpong
  roce-pingpong localhost

  With the stock tool of a Linux host (soft-RoCE or a NIC) as the peer, over a tap interface:
  roce-pingpong --port tap:roce0 --ip 192.168.9.1/24 192.168.9.7
  ibv_rc_pingpong -d rxe0 -g 1

  Without DPDK, over datagrams:
  roce-pingpong --port unix:/tmp/a,peer=/tmp/b
  roce-pingpong --port unix:/tmp/b,peer=/tmp/a localhost";

/// Bounces a message to and fro over one RC queue pair
///
/// Without HOST it waits for a client, with HOST it connects to a server there. Queue pair numbers and
/// addresses are exchanged over TCP as ibv_rc_pingpong does it, so either end may be that tool.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-pingpong", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct PingpongCli {
    /// Host of the server; without it, be the server
    #[arg(value_name = "HOST")]
    pub host: Option<String>,
    /// TCP port of the exchange
    #[arg(
        short = 'p',
        long = "tcp-port",
        visible_alias = "oob-port",
        value_name = "PORT",
        default_value_t = 18515
    )]
    pub tcp_port: u16,
    /// Address that the server listens on
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0")]
    pub bind: String,
    /// Message size in bytes
    #[arg(short, long, value_name = "BYTES", default_value = "4096", value_parser = parse::size)]
    pub size: u64,
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
    /// Accepted for the stock tool's sake: completions are polled, never waited for
    #[arg(short, long)]
    pub events: bool,
    /// Our GID, by its index
    #[arg(short, long, value_name = "INDEX", default_value_t = 1)]
    pub gid_idx: u8,
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
