//! The command line of `roce-many`.

use apps::cli::device::DEFAULT_PORT;
use apps::cli::parse;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use verbs::port::PortSpec;

const EXAMPLES: &str = "\
Examples:
  roce-many latency                    a ping-pong, while 63 other processes send to one of its ends
  roce-many latency --memif            the same ping-pong over a private memif, to compare
  roce-many first --beside 2           the first message between two processes, beside two busy loops
  roce-many fair --duration 60s        16 processes, each connected with each other one: the full run
  roce-many killed --json rows.json    figures as rows, like those of roce-perf --json

The processes are copies of this program, and end with it. They share the addresses of this host, as all processes of a user
in a network namespace do (--port host of the other programs; ROCE_ADDRS names the addresses), and so they meet what else
runs there. For figures that nothing else disturbs give them a host of their own, as root:

  ip netns add own && ip -n own link set lo up && ip netns exec own roce-many latency";

/// Measures what many processes of a host cost each other
///
/// Starts processes that are joined by links of shared memory, two by two, has them exchange RDMA or nothing at all, and says how soon,
/// how evenly and at what expense. scripts/bench runs it for its table of marks.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-many", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct ManyCli {
    /// What to measure.
    #[command(subcommand)]
    pub command: ManyCommand,
    /// Write the figures as an array of rows
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
}

/// What to measure.
#[derive(Subcommand, Clone, Debug)]
pub enum ManyCommand {
    /// Latency of SEND between two processes, while others send to one of them now and then
    Latency(LatencyArgs),
    /// Instructions of a turn in which nothing happens, with many links against one; needs valgrind
    Turn(TurnArgs),
    /// Memory of the links of a process, idle and busy
    Memory(MemoryArgs),
    /// Time of the first message to a process that was never met, from the post to the completion
    First(FirstArgs),
    /// How evenly processes share what they get that write to each other, and how much it is beside one pair
    Fair(FairArgs),
    /// How soon an outstanding request fails when its peer's process is killed, or interrupted
    Killed(KilledArgs),
    /// CPU time of processes that are connected and have nothing to do
    Idle(IdleArgs),
    /// One of the processes, which this program starts itself
    #[command(hide = true)]
    Member(MemberArgs),
}

/// Options of `latency`.
#[derive(Args, Clone, Debug)]
pub struct LatencyArgs {
    /// Other processes that send to the one that measures
    #[arg(long, value_name = "N", default_value_t = 63, value_parser = clap::value_parser!(u16).range(0..=200))]
    pub others: u16,
    /// Time between two messages of each of them
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse::duration)]
    pub every: Duration,
    /// Join the two by a private memif instead; there are no others
    #[arg(long, conflicts_with_all = ["others", "every"])]
    pub memif: bool,
    /// Time of the measurement
    #[arg(short = 'D', long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub duration: Duration,
    /// Cores of the two ends
    #[arg(long, value_name = "A,B", default_values_t = [0, 1], value_delimiter = ',', num_args = 1..=2)]
    pub cores: Vec<usize>,
}

/// Options of `turn`.
#[derive(Args, Clone, Debug)]
pub struct TurnArgs {
    /// Links, all idle
    #[arg(long, value_name = "N", default_value_t = 63, value_parser = clap::value_parser!(u16).range(2..=200))]
    pub links: u16,
    /// Turns, of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 255, value_parser = clap::value_parser!(u32).range(1..=9999))]
    pub turns: u32,
}

/// Options of `memory`.
#[derive(Args, Clone, Debug)]
pub struct MemoryArgs {
    /// Links of the process
    #[arg(long, value_name = "N", default_value_t = 63, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub links: u16,
    /// Time for which they are busy, and before that idle
    #[arg(short = 'D', long, value_name = "TIME", default_value = "3s", value_parser = parse::duration)]
    pub duration: Duration,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value = "64k", value_parser = parse::size)]
    pub size: u64,
    /// Messages outstanding, each link and direction
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
}

/// Options of `first`.
#[derive(Args, Clone, Debug)]
pub struct FirstArgs {
    /// Processes, each of which meets each other one
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=200))]
    pub processes: u16,
    /// Busy loops beside them
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub beside: u16,
}

/// Options of `fair`.
#[derive(Args, Clone, Debug)]
pub struct FairArgs {
    /// Processes, each of which is connected with each other one
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=128))]
    pub processes: u16,
    /// Connections between two processes
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: u16,
    /// Time of the measurement
    #[arg(short = 'D', long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    pub duration: Duration,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = parse::size)]
    pub size: u64,
    /// Messages outstanding, each connection and direction
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
}

/// Options of `killed`.
#[derive(Args, Clone, Debug)]
pub struct KilledArgs {
    /// Processes that are killed, and as many that are interrupted
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..=999))]
    pub rounds: u16,
    /// Registered memory of each, all of it touched
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = parse::size)]
    pub memory: u64,
    /// Post one request right behind the signal, instead of some that are outstanding then
    #[arg(long)]
    pub late: bool,
    /// Time from the signal to that request, which counts from there
    #[arg(long, value_name = "TIME", requires = "late", value_parser = parse::duration)]
    pub pause: Option<Duration>,
}

/// Options of `idle`.
#[derive(Args, Clone, Debug)]
pub struct IdleArgs {
    /// Processes, each of which is connected with another one
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = even)]
    pub processes: u16,
    /// Time of the measurement
    #[arg(short = 'D', long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    pub duration: Duration,
}

fn even(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(n @ 2..=200) if n % 2 == 0 => Ok(n),
        _ => Err(format!("{text:?}: they are connected in pairs, so it is an even number from 2 to 200")),
    }
}

/// Options of `member`.
#[derive(Args, Clone, Debug)]
pub struct MemberArgs {
    /// Its port
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_PORT, value_parser = parse::port)]
    pub port: PortSpec,
    /// Its address, on a port that has none of its own
    #[arg(long, value_name = "ADDR/PREFIX", value_parser = parse::ip_prefix)]
    pub ip: Option<(IpAddr, u8)>,
    /// Who turns its device
    #[arg(long, value_enum, default_value_t = DriveArg::Caller)]
    pub drive: DriveArg,
    /// The core that it has to itself
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
}

/// Which thread turns the device of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DriveArg {
    /// Whoever polls a completion queue, and a thread of the device while nobody does
    Caller,
    /// The member's own loop
    Embedded,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent_and_its_help_teaches() {
        ManyCli::command().debug_assert();
        let help = ManyCli::command().render_long_help().to_string();
        for part in ["roce-many latency --memif", "ip netns add own", "killed"] {
            assert!(help.contains(part), "{part}: {help}");
        }
        assert!(!help.contains("  member"), "{help}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in
            ["idle --processes 3", "first --processes 1", "turn --links 1", "latency --memif --others 3"]
        {
            let words = ["roce-many"].into_iter().chain(line.split(' '));
            assert!(ManyCli::try_parse_from(words).is_err(), "{line}");
        }
    }
}
