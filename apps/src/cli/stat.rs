//! The command line of `roce-stat`.

use super::parse;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  roce-pingpong --stats               (one terminal: a program that serves its counters)
  roce-stat                           (another one: watch it)
  roce-stat --once --sort drops       one table of the last second
  roce-stat --json --interval 5s      one JSON object every 5 seconds
  roce-stat --once --json | jq '.stacks[].qps[].qpn'
  roce-stat /run/my/storage.sock      a stack with its own path
  roce-stat --host                    all processes on the port host, however they were started
  roce-stat --host --once --json | jq '.processes[] | select(.answers | not) | .pid'
  roce-stat --report                  text for a bug report, also if nothing runs

A program serves its counters when its device has DeviceConfig::stats, or it is started with --stats. Without a path
the socket is in $XDG_RUNTIME_DIR/roce, or in /tmp/roce-UID where that is not set, and found there. With --host it needs
neither: it shows the processes of this user in this network namespace that have the addresses of the host.

Keys of the live view:
  q quit   Tab next stack   up, down, PgUp, PgDn move   s next order   r reverse   / filter   Esc no filter
  t since the start or in the interval   space hold";

/// Watch running RoCE stacks: shards, queue pairs, rates, retries and drops
///
/// Attaches by a unix socket that running programs serve. Watching is read only and never stops a stack: it reads
/// counters in memory, and costs a stack nothing while it is not watched.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-stat", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct StatCli {
    /// Statistics sockets, or directories with some [default: where programs put theirs]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Show the processes of the host: all of this user in this network namespace that use the port host
    ///
    /// One line a process: queue pairs, links to other processes of the host, rates, packets sent again, packets passed on to
    /// other processes, who answers for queue pair 1, and the ports of rdma_cm at which it listens. They need no option for it.
    /// One that does not answer within a second, as it is stopped, is there with what the others know.
    #[arg(long, conflicts_with_all = ["paths", "report", "sort", "reverse", "filter"])]
    pub host: bool,
    /// Print one table of one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Print a JSON object for each interval, one a line; with --once one object
    #[arg(long)]
    pub json: bool,
    /// Print what a bug report needs: the machine, its settings and network, and what runs, as --once and --json say it
    ///
    /// Look it through before you publish it: it has the addresses of queue pairs and their peers, and variables ROCE_*.
    #[arg(long, conflicts_with_all = ["once", "json"])]
    pub report: bool,
    /// Time that rates are measured over
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// End after so many intervals (with --json)
    #[arg(long, value_name = "N", requires = "json", conflicts_with = "once",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// What to order queue pairs by
    #[arg(short, long, value_enum, default_value_t = Order::Rate)]
    pub sort: Order,
    /// The reverse order
    #[arg(short, long)]
    pub reverse: bool,
    /// Show only queue pairs with this text in number, type, state or peer
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub filter: String,
}

/// What queue pairs can be ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Order {
    /// Bytes a second, both ways, most first
    Rate,
    /// Messages a second, both ways, most first
    Messages,
    /// Retries, most first
    Retries,
    /// Dropped packets, most first
    Drops,
    /// Queue pair number
    Qpn,
    /// Shard
    Shard,
    /// State, alphabetically
    State,
}

impl Order {
    /// The next one, cyclically.
    #[must_use]
    pub fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|o| *o == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned())
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse::duration(text) {
        Ok(time) if time >= Duration::from_millis(10) => Ok(time),
        Ok(_) => Err("an interval lasts between 10ms and 3600s".into()),
        Err(error) if error.starts_with("a run") => Err("an interval lasts between 10ms and 3600s".into()),
        Err(error) => Err(error),
    }
}
