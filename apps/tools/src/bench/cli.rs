//! The command line of `roce-bench`.

use apps::cli::parse;
use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  roce-bench                                       the table, four to ten minutes
  roce-bench --quick                               one short run: does everything work here?
  roce-bench --json all.json --html all.html       everything measured, and a page to look at
  roce-bench --markdown > speed.md                 the table as Markdown

How to read it: a figure of this stack says little without the figure of the bare port in the same second. A virtual
machine's cores may be neighbours at one moment and far apart at the next, so the time of a bare 128-byte frame is taken
before and after every measurement. Is it at most 200 ns both times, the measurement is quick, and the absolute marks
count; is it more both times, it is slow, and marks relative to the bare port count; otherwise it is of no kind. The
table is gone through again and again until five measurements of each line are of one kind, and shows their medians; a
ratio is the median of the measurements' ratios, for two figures of one moment.

Nor need a virtual machine's core be a whole one: others may use its other half. So each look at the machine also takes
the time of a fixed piece of work on both cores. The column \"whole cores\" has the medians of those measurements of
the same kind for which the cores gave at least 90 % of the most they gave in all runs, and how many there were; no mark
asks for it.";

/// Measures the whole stack against its marks, beside what else moves messages on this machine
///
/// Starts `roce-perf` as two processes, one core each, over shared memory (memif), and repeats the table of marks until each
/// line has five measurements in the same state of the machine (quick or slow). In each run it measures TCP over loopback
/// (iperf3, ucx_perftest) and UCX over shared memory as well, where they are installed.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-bench", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct BenchCli {
    /// Write every row of every run, the medians, and the rows of the alternatives (`"op":"peer"`), as one array
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a self-contained page: tables, latency distributions, bandwidth by size
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the table as Markdown instead of for a terminal
    #[arg(long)]
    pub markdown: bool,
    /// One short run, whatever the state of the machine
    #[arg(long)]
    pub quick: bool,
    /// Measurements in the same state that each median needs, at least [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Runs through the table after which it shows the results so far [default: 16, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub max_runs: Option<u32>,
    /// Time of one measurement; three times as long where two queue pair counts are compared [default: 200ms, with --quick 60ms]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse::duration)]
    pub duration: Option<Duration>,
    /// Measure these parts alone, named as in the rows (`"part"`): udp-bw,udp-rate
    #[arg(long, value_name = "PART,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measure what takes long as well: beside busy loops, CPU time, many processes of a host; four minutes more a run
    #[arg(long)]
    pub busy: bool,
    /// Leave the alternatives out
    #[arg(long)]
    pub no_peers: bool,
    /// Leave the 100 000 queue pairs out, which take some gigabytes of memory
    #[arg(long)]
    pub no_scale: bool,
    /// The program that measures [default: roce-perf beside this program]
    #[arg(long, value_name = "PATH")]
    pub perf: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent_and_its_help_teaches() {
        BenchCli::command().debug_assert();
        let help = BenchCli::command().render_long_help().to_string();
        for part in ["How to read it", "roce-bench --quick", "200 ns"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in ["--runs 0", "--max-runs 100", "--duration never"] {
            assert!(
                BenchCli::try_parse_from(["roce-bench"].into_iter().chain(line.split(' '))).is_err(),
                "{line}"
            );
        }
    }
}
