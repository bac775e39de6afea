//! The command line of `roce-interop`.

use super::cell::Network;
use super::results::Row;
use apps::cli::parse;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use verbs::Mac;
use verbs::port::PortSpec;
use verbs::rdma_cm::PortSpace;

/// Runs this stack against Linux soft-RoCE in a guest
///
/// `scripts/interop/run` builds and boots the guest, starts the program in it that answers here, and calls this program once
/// for each kind of network. Each line is one cell of the matrix: requester, operation, size, path MTU, number of messages.
/// Every byte that arrives is compared at its receiver.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-interop", version, max_term_width = 100)]
pub struct InteropCli {
    /// What to do
    #[command(subcommand)]
    pub command: InteropCommand,
}

/// What `roce-interop` can do.
#[derive(Subcommand, Clone, Debug)]
pub enum InteropCommand {
    /// The cells of one network
    Run(RunArgs),
    /// This stack's side of a program of librdmacm, for a stock one as the peer
    Cm(CmArgs),
    /// Checks every frame of a capture: lengths, checksums, the ICRC of each packet both ways, and this stack's source ports
    Check(CheckArgs),
    /// Adds a result of another program
    Note(NoteArgs),
    /// Puts the results into a page
    Report(ReportArgs),
}

/// The port that leads to the guest.
#[derive(Args, Clone, Debug)]
pub struct LinkArgs {
    /// Port that leads to the guest
    #[arg(long, value_name = "SPEC", value_parser = parse::port)]
    pub port: PortSpec,
    /// Addresses, VLAN and faults between the two
    #[arg(long, value_name = "NAME", default_value = "ipv4")]
    pub net: Network,
    /// This side's Ethernet address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:99:0a", value_parser = |s: &str| s.parse::<Mac>())]
    pub mac: Mac,
    /// Largest IP packet of the port, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4200,
          value_parser = clap::value_parser!(u16).range(576..=9600))]
    pub link_mtu: u16,
    /// Capture everything that goes over the port into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The port to the guest
    #[command(flatten)]
    pub link: LinkArgs,
    /// Where the guest's program listens
    #[arg(long, value_name = "ADDR:PORT")]
    pub guest: SocketAddr,
    /// The whole product of operations, sizes, path MTUs and networks, instead of a selection
    #[arg(long)]
    pub full: bool,
    /// Only the cells whose line has this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Leave out the cells that the file of results has already, but for those that failed
    #[arg(long, requires = "results")]
    pub resume: bool,
    /// Start no cell after so many seconds; a run with --resume continues from there
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Frames to lose (of the network with faults), in percent, each way
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub loss: f64,
    /// Frames to send twice, likewise
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub duplicate: f64,
    /// Frames to delay behind later ones, likewise
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub reorder: f64,
    /// Seed of the faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Add the results to this file
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// A program of librdmacm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CmTool {
    /// READ and WRITE of a text that comes back, one connection at a time.
    Rping,
    /// Messages both ways over many connections at once.
    Ucmatose,
    /// Datagrams both ways.
    Udaddy,
}

/// The side that this stack takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CmRole {
    /// Connects.
    Client,
    /// Listens.
    Server,
}

/// Options of `cm`.
#[derive(Args, Clone, Debug)]
pub struct CmArgs {
    /// Program
    pub tool: CmTool,
    /// This stack's side
    pub role: CmRole,
    /// The port to the guest
    #[command(flatten)]
    pub link: LinkArgs,
    /// Pings, or messages each way, of a connection
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// Bytes of each
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub size: u32,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// How often all of it, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// The port space of InfiniBand (`RDMA_PS_IB`) instead of TCP's; of ucmatose alone
    #[arg(long)]
    pub ib: bool,
    /// Transport retries of the connections that this side requests
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub retries: u8,
    /// Kill this process (SIGKILL) in the middle of this ping, from 0; of rping alone
    #[arg(long, value_name = "N")]
    pub die_at: Option<u32>,
    /// At the end, wait until the peer has ended the connection of a process that was killed here
    #[arg(long)]
    pub successor: bool,
    /// Draw the numbers of queue pairs and connections from this seed: a second process has those of the first
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl CmArgs {
    /// The port space of the connections.
    pub const fn space(&self) -> PortSpace {
        if self.ib { PortSpace::Ib } else { PortSpace::Tcp }
    }
    /// The total number of connections.
    pub const fn total(&self) -> u32 {
        self.connections * self.rounds
    }
}

/// Options of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The capture
    pub pcap: PathBuf,
    /// Ethernet address that distinguishes this stack's packets from others'
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:99:0a", value_parser = |s: &str| s.parse::<Mac>())]
    pub mac: Mac,
    /// The network of the capture
    #[arg(long, value_name = "NAME", default_value = "")]
    pub net: String,
    /// Add the results to this file
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// Options of `note`.
#[derive(Args, Clone, Debug)]
pub struct NoteArgs {
    /// The file of results
    pub results: PathBuf,
    /// The result
    #[command(flatten)]
    pub row: Row,
}

/// Options of `report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The file of results
    pub results: PathBuf,
    /// Page whose tables are replaced; without it they are printed
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Whose tables of the page they are: those behind "results of NAME"
    #[arg(long, value_name = "NAME", default_value = "")]
    pub section: String,
}
