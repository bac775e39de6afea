//! The command lines of `roce-nvmf` and `roce-nvmf-perf`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use apps::cli::DeviceArgs;
use apps::cli::parse;
use clap::{Args, Parser, Subcommand};
use nvmf::Nqn;
use tracing::level_filters::LevelFilter;

use crate::config::{BLOCKS, PORT, no_block};
use crate::manage::{HostCommand, ListArgs, NamespaceCommand};

/// The NQN of the subsystem of a target without a configuration file.
pub const DEFAULT_SUBSYSTEM: &str = "nqn.2024-01.org.example:memory";

const TARGET_EXAMPLES: &str = "\
Examples:
  A gigabyte of memory, for a host on this machine (the second line in another terminal):
  roce-nvmf serve --memory 1g
  roce-nvmf-perf run

  What a file says:
  roce-nvmf check /etc/roce-nvmf.toml --port tap:roce0 --ip 192.168.9.1/24
  roce-nvmf serve /etc/roce-nvmf.toml --port tap:roce0 --ip 192.168.9.1/24

  While it runs:
  roce-nvmf list
  roce-nvmf namespace add --file /var/lib/disks/two --size 10g
  roce-nvmf host allow nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555

A file:
  [[port]]
  address = \"192.168.9.1:4420\"

  [[subsystem]]
  nqn = \"nqn.2024-01.org.example:disks\"
  hosts = [\"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555\"]   # without it: every host

  [[subsystem.namespace]]
  file = \"/var/lib/disks/one\"
  size = \"10g\"                # makes the file, or lets it grow; without it the file is there and as it is
  block = 4096

  [[subsystem.namespace]]
  memory = \"1g\"";

/// Serve namespaces to NVMe over Fabrics hosts, over RDMA
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-nvmf", version, after_help = TARGET_EXAMPLES, max_term_width = 100)]
pub struct TargetCli {
    /// What to do.
    #[command(subcommand)]
    pub command: TargetCommand,
}

/// What `roce-nvmf` does.
#[derive(Subcommand, Clone, Debug)]
pub enum TargetCommand {
    /// Serve until a signal comes
    Serve(Box<ServeArgs>),
    /// Check what serve would do with the same options: its file, storage, addresses and memory. Changes nothing
    Check(Box<ServeArgs>),
    /// Add, remove or resize a namespace of a target that runs
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Allow or deny a host a subsystem of a target that runs
    #[command(subcommand)]
    Host(HostCommand),
    /// Show what a target that runs has, and who is connected
    List(ListArgs),
}

/// Options of `roce-nvmf serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The configuration file: subsystems, namespaces and hosts
    #[arg(required_unless_present = "memory")]
    pub file: Option<PathBuf>,
    /// Instead of a file: one subsystem with a namespace of so much memory
    #[arg(long, value_name = "SIZE", value_parser = parse::memory_size, conflicts_with = "file")]
    pub memory: Option<u64>,
    /// Bytes of a block of --memory
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = block)]
    pub block: u32,
    /// Name of the subsystem of --memory
    #[arg(long, value_name = "NQN", default_value = DEFAULT_SUBSYSTEM)]
    pub nqn: Nqn,
    /// Memory of each core for data on their way
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = parse::memory_size)]
    pub buffers: u64,
    /// Receives of each core for commands
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=32768))]
    pub receives: u32,
    /// Connections of each core
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub connections: u32,
    /// Log what happens, on standard error: error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = level)]
    pub log: LevelFilter,
    /// Log an object of JSON a line
    #[arg(long)]
    pub log_json: bool,
    /// Take changes on this unix socket (roce-nvmf namespace, host and list) [default: one in your runtime directory]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

fn level(text: &str) -> Result<LevelFilter, String> {
    match text {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        _ => Err(format!("it is error, warn, info or debug, not {text:?}")),
    }
}

fn block(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|block| BLOCKS.contains(block)).ok_or_else(|| no_block(text))
}

const PERF_EXAMPLES: &str = "\
Examples:
  roce-nvmf serve --memory 1g         (one terminal)
  roce-nvmf-perf discover             (another one)
  roce-nvmf-perf identify
  roce-nvmf-perf run
  roce-nvmf-perf run --queues 1 --depth 1
  roce-nvmf-perf run --size 128k --read 70 --verify
  roce-nvmf-perf overhead
  roce-nvmf-perf run --port tap:roce1 --ip 192.168.9.2/24 --nqn nqn.2024-01.org.example:disks 192.168.9.1";

/// An NVMe over Fabrics host that measures a target
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-nvmf-perf", version, after_help = PERF_EXAMPLES, max_term_width = 100)]
pub struct PerfCli {
    /// What to do.
    #[command(subcommand)]
    pub command: PerfCommand,
}

/// What `roce-nvmf-perf` does.
#[derive(Subcommand, Clone, Debug)]
pub enum PerfCommand {
    /// Show what a target offers
    Discover(ReachArgs),
    /// Show a controller and its namespaces
    Identify(ReachArgs),
    /// Put a load on a namespace
    Run(RunArgs),
    /// Measure what NVMe adds to RDMA, in this process alone
    Overhead(OverheadArgs),
}

/// Which target.
#[derive(Args, Clone, Debug)]
pub struct ReachArgs {
    /// Address of the target [default: this host; over ports with addresses of their own 10.77.0.1]
    #[arg(value_name = "ADDR[:PORT]", value_parser = target)]
    pub target: Option<SocketAddr>,
    /// The subsystem
    #[arg(long, value_name = "NQN", default_value = DEFAULT_SUBSYSTEM)]
    pub nqn: Nqn,
    /// Name of this host
    #[arg(
        long,
        value_name = "NQN",
        default_value = "nqn.2014-08.org.nvmexpress:uuid:726f6365-6e76-4d66-8000-706572660001"
    )]
    pub host_nqn: Nqn,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Options of `roce-nvmf-perf run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Which target.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The namespace [default: the first]
    #[arg(long, value_name = "ID")]
    pub namespace: Option<u32>,
    /// I/O queues
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub queues: u16,
    /// Commands under way on each queue
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub depth: u16,
    /// Bytes of a command
    #[arg(short, long, value_name = "BYTES", default_value = "4k", value_parser = parse::size)]
    pub size: u64,
    /// Percent of commands that read; the others write
    #[arg(short, long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read: u8,
    /// One block after the other instead of random ones
    #[arg(long)]
    pub sequential: bool,
    /// For how long
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = parse::duration)]
    pub time: Duration,
    /// Use so much of the namespace, from its start [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse::memory_size)]
    pub span: Option<u64>,
    /// Write everything first, check every byte that is read, and read everything once more at the end
    #[arg(long)]
    pub verify: bool,
    /// Let the target fetch the data of every write, short ones too
    #[arg(long)]
    pub no_in_capsule: bool,
    /// Write the figures to a file, as `roce-perf --json` does
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `roce-nvmf-perf overhead`.
#[derive(Args, Clone, Debug)]
pub struct OverheadArgs {
    /// Rounds with NVMe and as many without, in turn; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub rounds: u32,
    /// Commands of a round
    #[arg(long, value_name = "N", default_value_t = 20000, value_parser = clap::value_parser!(u64).range(1..))]
    pub commands: u64,
    /// Write the figures to a file, as `roce-perf --json` does
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn target(text: &str) -> Result<SocketAddr, String> {
    let host = parse::host(text)?;
    let addr: IpAddr = parse::ip(&host.name)?;
    Ok(SocketAddr::new(addr, host.port_or(PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_lines_are_consistent() {
        TargetCli::command().debug_assert();
        PerfCli::command().debug_assert();
    }

    #[test]
    fn targets_are_addresses() {
        assert_eq!(target("10.0.0.1"), Ok("10.0.0.1:4420".parse().unwrap()));
        assert_eq!(target("[fd00::1]:8009"), Ok("[fd00::1]:8009".parse().unwrap()));
        assert!(target("somewhere").unwrap_err().contains("not an address"));
    }
}
