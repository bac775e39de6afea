//! The command line of `roce-perf`.

use super::DeviceArgs;
use super::parse::{self, Host};
use crate::plan::{Mode, Op, Pattern, QPS_MAX, VISIT_MAX};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use verbs::Mtu;

/// TCP port of the out-of-band exchange, unless --oob-port says otherwise.
pub const OOB_PORT: u16 = 18515;

const EXAMPLES: &str = "\
Examples (two terminals, of one machine or of two; nothing to set up):
  roce-perf server
  roce-perf client HOST

  All operations, latency and bandwidth, at two sizes:
  roce-perf client --op send,write,read --mode lat,bw --size 64,4096 localhost
  The same over a private link of shared memory, with the link's own limit beside each figure:
  roce-perf server --port memif
  roce-perf client --port memif --op send,write,read --mode lat,bw --size 64,4096 --limit localhost

  Bandwidth of RDMA WRITE for every size from 2 B to 8 MiB, into a file for a script:
  roce-perf client --op write --mode bw --all --json write.json localhost

  100 000 connected queue pairs, one drawn at random for each message, one message outstanding each:
  roce-perf client --mode rate --qps 100000 --pattern random localhost
  The same with 16 messages a visit, and both against 100 queue pairs:
  roce-perf client --mode rate --qps 100000 --pattern random --visit 16 localhost
  roce-perf client --mode rate --qps 100 --pattern random localhost
  With one receive queue for all of them, as a server of so many has it:
  roce-perf client --mode rate --qps 100000 --pattern random --visit 16 --srq localhost

  Between two Linux interfaces (root or CAP_NET_ADMIN):
  roce-perf server --port tap:roce0 --ip 192.168.9.1/24
  roce-perf client --port tap:roce1 --ip 192.168.9.2/24 localhost

  Clients on other machines: over a port with addresses of its own a server listens on 127.0.0.1 unless --bind says otherwise:
  roce-perf server --bind 0.0.0.0 --port tap:roce0
  roce-perf client --port tap:roce0 server.example

  Connected by rdma_cm instead of TCP; the client names the server's RDMA address:
  roce-perf server -R
  roce-perf client -R 192.168.9.1

  Without DPDK, over datagrams:
  roce-perf server --port unix:/tmp/a,peer=/tmp/b
  roce-perf client --port unix:/tmp/b,peer=/tmp/a localhost";

/// Measures RDMA over the userspace RoCEv2 stack
///
/// A server waits; a client connects to it over TCP (with -R by rdma_cm), sends it the list of measurements, and both measure
/// over their ports. Only the client has options for the measurements.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "roce-perf",
    version,
    after_help = EXAMPLES,
    max_term_width = 100,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
pub struct PerfCli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<PerfCommand>,

    /// Look at this host, and at the way to each HOST that is named: what keeps RoCE over UDP from working or makes it slow,
    /// and what to do
    #[arg(long, value_name = "HOST", num_args = 0..)]
    pub check: Option<Vec<String>>,

    /// With --check: print an array of JSON objects
    #[arg(long, requires = "check")]
    pub json: bool,
}

/// Subcommands of `roce-perf`.
#[derive(Subcommand, Clone, Debug)]
pub enum PerfCommand {
    /// Wait for clients and measure with them, one after the other
    #[command(after_help = EXAMPLES)]
    Server(Box<ServerArgs>),
    /// Measure with a server
    #[command(after_help = EXAMPLES)]
    Client(Box<ClientArgs>),
    /// The same port without RDMA: frames only, the limit of every figure
    Raw {
        /// Which end.
        #[command(subcommand)]
        command: RawCommand,
    },
}

/// Subcommands of `roce-perf raw`.
#[derive(Subcommand, Clone, Debug)]
pub enum RawCommand {
    /// Wait for raw clients (any server does)
    Server(Box<ServerArgs>),
    /// Measure frames with a server
    Client(Box<RawClientArgs>),
}

/// Options of a server.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Device options.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Port to listen on (TCP, or with -R of rdma_cm)
    #[arg(long, value_name = "PORT", default_value_t = OOB_PORT)]
    pub oob_port: u16,
    /// Address to listen on: one of this machine's, or 0.0.0.0 or :: for all of them
    ///
    /// [default: all of them over host and udp; over other ports 127.0.0.1, where this machine's programs are]
    #[arg(long, visible_alias = "host", value_name = "ADDR[:PORT]", value_parser = parse::host)]
    pub bind: Option<Host>,
    /// Listen and connect by rdma_cm instead of TCP; clients need it, too
    ///
    /// The port is then one of rdma_cm's, and raw measurements are refused: the device stays open.
    #[arg(short = 'R', long, conflicts_with = "bind")]
    pub rdma_cm: bool,
    /// End after one session, with its result as the exit code
    #[arg(long)]
    pub once: bool,
    /// Longest session: a client that asks for more is refused, one that takes longer is sent away
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = parse::duration)]
    pub max_session: Duration,
    /// Most memory that a measurement may take here, for buffers and queues (suffixes k, m, g)
    #[arg(long, value_name = "BYTES", default_value = "4g", value_parser = parse::memory_size)]
    pub max_memory: u64,
}

/// Options to reach a server.
#[derive(Args, Clone, Debug)]
pub struct ReachArgs {
    /// The server's host name or address, for the TCP connection; with -R its RDMA address. A port behind it counts
    /// instead of --oob-port: localhost:18600, 192.168.9.1:18600, [fd00::1]:18600
    #[allow(rustdoc::broken_intra_doc_links, reason = "an address in brackets")]
    #[arg(value_name = "HOST[:PORT]", value_parser = parse::host)]
    pub host: Host,
    /// Port of the server (TCP, or with -R of rdma_cm)
    #[arg(long, value_name = "PORT", default_value_t = OOB_PORT)]
    pub oob_port: u16,
    /// How long to try to reach the server, which may start later
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    pub wait: Duration,
}

impl ReachArgs {
    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.host.port_or(self.oob_port)
    }
}

/// What is measured, for `--op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// SEND into a posted receive
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// Both atomics
    Atomic,
    /// FETCH & ADD of 8 bytes
    #[value(name = "fetch_add", alias = "fetch-add")]
    FetchAdd,
    /// COMPARE & SWAP of 8 bytes
    #[value(name = "cmp_swap", alias = "cmp-swap")]
    CmpSwap,
}

impl OpArg {
    /// The operations that it selects.
    pub fn ops(self) -> &'static [Op] {
        match self {
            Self::Send => &[Op::Send],
            Self::Write => &[Op::Write],
            Self::Read => &[Op::Read],
            Self::Atomic => &[Op::FetchAdd, Op::CmpSwap],
            Self::FetchAdd => &[Op::FetchAdd],
            Self::CmpSwap => &[Op::CmpSwap],
        }
    }
}

/// Options of a client.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// How to reach the server.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Connect by rdma_cm instead of TCP: the exchange and every queue pair; the server needs it, too
    #[arg(short = 'R', long, conflicts_with_all = ["limit", "peer_ip"])]
    pub rdma_cm: bool,
    /// What to measure.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Device options.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct MeasureArgs {
    /// Operations
    #[arg(long, value_enum, value_delimiter = ',', default_value = "send")]
    pub op: Vec<OpArg>,
    /// Modes: bw (bandwidth of many messages), lat (one message at a time), rate (as many small messages
    /// as possible)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lat")]
    pub mode: Vec<Mode>,
    /// Message sizes in bytes (suffixes k, m, g) [default: bw 65536, lat and rate 64; atomics always 8]
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = parse::size)]
    pub size: Vec<u64>,
    /// All sizes from 2 B to 8 MiB, powers of two
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Messages of a measurement (a queue pair) [default: as many as --duration allows]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iters: Option<u64>,
    /// Time of a measurement
    #[arg(short = 'D', long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub duration: Duration,
    /// Send requests outstanding (a queue pair) [default: bw 512 KiB of messages, 4 to 128 of
    /// them; rate 1024 of all queue pairs, 64 to 512 each; lat 64]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub tx_depth: Option<u32>,
    /// Receive requests posted (a queue pair); with --pattern random for whole visits, two at
    /// least [default: twice --tx-depth, at most 512; with --pattern random four visits]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub rx_depth: Option<u32>,
    /// Queue pairs (bw and rate); more than 1024 with --pattern random
    #[arg(short, long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(QPS_MAX)))]
    pub qps: u32,
    /// Which queue pair gets the next message (bw and rate)
    #[arg(long, value_enum, default_value = "all")]
    pub pattern: Pattern,
    /// Messages of a visit to a queue pair, posted in one call [default: 1] (--pattern random)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(VISIT_MAX)))]
    pub visit: Option<u32>,
    /// Visits outstanding, of all queue pairs together [default: 64] (--pattern random)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: Option<u32>,
    /// All queue pairs take receive requests from one shared queue (send; bw and rate)
    #[arg(long)]
    pub srq: bool,
    /// Path MTU: 256, 512, 1024, 2048, 4096 [default: the largest that both ports carry]
    #[arg(short, long, value_name = "BYTES", value_parser = parse::mtu)]
    pub mtu: Option<Mtu>,
    /// Send messages up to this size inline [default: lat 64, otherwise 0]
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=512))]
    pub inline: Option<u32>,
    /// Requests posted in one call [default: rate 32, otherwise 1]
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub post_list: Option<u32>,
    /// Every how many requests one is signalled [default: rate 64, bw 16]
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub cq_mod: Option<u32>,
    /// READs and atomics outstanding (a queue pair), of both ends
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=i64::from(verbs::limits::RD_ATOMIC_MAX)))]
    pub outs: u8,
    /// Both ends send requests at once (bw and rate)
    #[arg(short, long)]
    pub bidirectional: bool,
    /// Traffic class of the packets
    #[arg(long, value_name = "0..255", default_value_t = 0)]
    pub tclass: u8,
    /// Local GID, by its index [default: that of the first address]
    #[arg(long, value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Local ACK timeout: 4.096 us times 2 to this power
    #[arg(long, value_name = "0..31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub timeout: u8,
    /// Retries after a timeout or a sequence error
    #[arg(long, value_name = "0..7", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub retry: u8,
    /// Retries while the receiver is not ready; 7 means for ever
    #[arg(long, value_name = "0..7", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rnr_retry: u8,
    /// Check the data (slower: the figures are then of messages written and checked)
    #[arg(long)]
    pub verify: bool,
    /// Measure the port without RDMA as well, with frames of equal length, and show the ratio
    #[arg(long)]
    pub limit: bool,
    /// Time of each of these raw measurements
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse::duration)]
    pub limit_duration: Duration,
    /// Write the results as an array of rows
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of a raw client.
#[derive(Args, Clone, Debug)]
pub struct RawClientArgs {
    /// How to reach the server.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Modes
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["lat", "rate"])]
    pub mode: Vec<Mode>,
    /// Frame lengths in bytes, without FCS
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = parse::size,
          default_values = ["128", "4154"])]
    pub size: Vec<u64>,
    /// Time of a measurement
    #[arg(short = 'D', long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub duration: Duration,
    /// Write the results as an array of rows
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device options.
    #[command(flatten)]
    pub device: DeviceArgs,
}
