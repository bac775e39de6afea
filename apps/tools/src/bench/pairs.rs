//! Pairs of measurements: this stack, and right after it another way to move the same bytes. The ratio of two figures from the same
//! moment says more than either figure.

use super::hosts::Cable;
use super::peers::{self, Peer};
use super::plan::{Link, Part, part};
use super::row::Row;
use super::stock::{Over, Program, Stock};
use std::time::Duration;

/// A measurement of this stack and the measurement that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Name of the pair in rows (`part`).
    pub name: &'static str,
    ours: OurSide,
    /// The measurement to compare with.
    pub theirs: Peer,
    /// Busy loops that run beside both measurements.
    pub loops: usize,
    /// Whether the pair takes so long that it is measured only on request.
    pub is_long: bool,
}

/// A pair without busy loops.
const fn pair(name: &'static str, ours: OurSide, theirs: Peer) -> Pair {
    Pair { name, ours, theirs, loops: 0, is_long: false }
}

/// A program of perftest beside busy loops, compared with TCP beside as many.
const fn busy(name: &'static str, loops: usize, program: Program, over: Over) -> Pair {
    let stock = Stock::new(program, over);
    let (mode, theirs) = match program {
        Program::Latency => ("mean", peers::PING_PONG),
        _ => ("busy", peers::IPERF_BUSY),
    };
    Pair { name, ours: OurSide::Program(peers::stock(stock, mode)), theirs, loops, is_long: true }
}

/// The CPU time of a program of perftest over UDP sockets, compared with that of TCP.
const fn cpu(name: &'static str, program: Program) -> Pair {
    let ours = OurSide::Program(peers::stock(Stock::new(program, Over::Udp), "cpu"));
    Pair { name, ours, theirs: peers::IPERF_CPU, loops: 0, is_long: true }
}

/// How this stack is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OurSide {
    /// `roce-perf` over UDP sockets, between two hosts or over loopback, with these options.
    Udp(Option<Cable>, &'static str),
    /// By a stock program on this stack.
    Program(Peer),
}

/// The program that measures this stack.
#[derive(Clone, Debug)]
pub enum MeasuredBy {
    /// `roce-perf`.
    Perf(Part),
    /// Another program.
    Peer(Peer),
}

/// Every pair.
pub const PAIRS: [Pair; 19] = [
    pair("udp-bw", OurSide::Udp(None, "--op write --mode bw --size 65536 --mtu 4096"), peers::IPERF),
    pair(
        "hosts1500",
        OurSide::Udp(Some(Cable::Mtu1500), "--op write --mode bw --size 65536"),
        peers::iperf_between_hosts(Cable::Mtu1500),
    ),
    pair(
        "hosts9000",
        OurSide::Udp(Some(Cable::Mtu9000), "--op write --mode bw --size 65536"),
        peers::iperf_between_hosts(Cable::Mtu9000),
    ),
    pair(
        "udp-rate",
        OurSide::Udp(None, "--op send --mode rate --size 64 --post-list 32"),
        peers::ucx_over_tcp("rate", 64),
    ),
    pair("udp-lat", OurSide::Udp(None, "--op send --mode lat --size 64"), peers::ucx_over_tcp("lat", 64)),
    pair("ucx-bw", OurSide::Program(peers::ucx_over_us("bw", 65536)), peers::ucx_over_tcp("bw", 65536)),
    pair("ucx-lat", OurSide::Program(peers::ucx_over_us("lat", 8)), peers::ucx_over_tcp("lat", 8)),
    cpu("cpu-udp-write", Program::LongWrite),
    cpu("cpu-udp-read", Program::Read),
    busy("busy2-memif-write", 2, Program::Write, Over::Memif),
    busy("busy2-memif-read", 2, Program::Read, Over::Memif),
    busy("busy2-udp-write", 2, Program::Write, Over::Udp),
    busy("busy2-udp-read", 2, Program::Read, Over::Udp),
    busy("busy2-lat", 2, Program::Latency, Over::Memif),
    busy("busy8-memif-write", 8, Program::Write, Over::Memif),
    busy("busy8-memif-read", 8, Program::Read, Over::Memif),
    busy("busy8-udp-write", 8, Program::Write, Over::Udp),
    busy("busy8-udp-read", 8, Program::Read, Over::Udp),
    busy("busy8-lat", 8, Program::Latency, Over::Memif),
];

impl Pair {
    /// Title in progress messages.
    pub fn title(&self) -> String {
        match self.ours {
            OurSide::Udp(cable, line) => {
                let between = cable.map_or_else(String::new, |cable| format!(" between hosts, {cable:?}"));
                format!("over UDP sockets{between}, {line}, beside {}", self.theirs.title())
            }
            OurSide::Program(ours) if self.loops > 0 => {
                format!("{} busy loops: {}, beside {}", self.loops, ours.title(), self.theirs.title())
            }
            OurSide::Program(ours) => format!("{}, beside {}", ours.title(), self.theirs.title()),
        }
    }

    /// The measurement of this stack, for `time` if `roce-perf` measures it.
    pub fn ours(&self, time: Duration) -> MeasuredBy {
        match self.ours {
            OurSide::Udp(cable, line) => {
                let link = cable.map_or(Link::Udp, Link::Hosts);
                MeasuredBy::Perf(Part { link, ..part(self.name, &self.title(), line, time) })
            }
            OurSide::Program(peer) => MeasuredBy::Peer(peer),
        }
    }

    /// The missing package without which the pair cannot be measured, if any.
    pub fn lacks(&self, missing: &[peers::Missing]) -> Option<&'static str> {
        let ours = if let OurSide::Program(peer) = self.ours { peer.lacks(missing) } else { None };
        ours.or_else(|| self.theirs.lacks(missing))
    }

    /// The rows of both, with the figure of `theirs` as the limit of `ours`.
    pub fn compare(&self, ours: Row, theirs: Row) -> [Row; 2] {
        let key = match ours.text("mode") {
            "lat" => "p50_ns",
            "rate" => "msgs_per_s",
            "mean" => "mean_ns",
            "cpu" => "cpu_s_per_gib",
            _ => "gbit_per_s",
        };
        let both = ours.num(key).zip(theirs.num(key)).filter(|(_, theirs)| *theirs > 0.0);
        let ours = match both {
            Some((own, other)) => ours.with("limit", other).with("ratio", own / other),
            None => ours,
        };
        // In a row of `roce-perf`, `op` is the operation.
        let ours = if ours.text("op") == "peer" { ours.with("op", "program") } else { ours };
        [ours, theirs].map(|row| row.with("part", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks;
    use super::*;
    use apps::cli::perf::PerfCli;
    use clap::Parser;

    #[test]
    fn roce_perf_takes_its_options_and_each_pair_has_a_line() {
        for pair in PAIRS {
            let time = Duration::from_millis(700);
            if let MeasuredBy::Perf(part) = pair.ours(time) {
                let line =
                    ["roce-perf", "client", "127.0.0.1"].map(String::from).into_iter().chain(part.args);
                PerfCli::try_parse_from(line).unwrap();
            }
            let row = Row::peer("x", "lat", 8).with("p50_ns", 500);
            let [ours, theirs] = pair.compare(row.clone(), row.with("p50_ns", 1000));
            assert_eq!((ours.num("limit"), ours.num("ratio")), (Some(1000.0), Some(0.5)));
            assert_eq!((theirs.text("op"), theirs.num("ratio")), ("peer", None));
            assert!(marks::parts().any(|part| part == pair.name), "{}", pair.name);
        }
    }

    #[test]
    fn what_is_missing_leaves_pairs_out() {
        let lacks = |missing: &[peers::Missing]| {
            let short = PAIRS.iter().filter(|pair| !pair.is_long);
            short.map(|pair| pair.lacks(missing).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(lacks(&[]), [false; 7]);
        assert_eq!(lacks(&[peers::Missing::Iperf]), [true, true, true, false, false, false, false]);
        assert_eq!(lacks(&[peers::Missing::Ucx]), [false, false, false, true, true, true, true]);
        assert_eq!(lacks(&[peers::Missing::DropIn]), [false, false, false, false, false, true, true]);
        assert_eq!(lacks(&[peers::Missing::Hosts]), [false, true, true, false, false, false, false]);
        assert_eq!(PAIRS[0].lacks(&[peers::Missing::Iperf]), Some("iperf3"));
        let long = PAIRS.iter().filter(|pair| pair.is_long);
        assert!(long.into_iter().all(|pair| pair.lacks(&[peers::Missing::Perftest]) == Some("perftest")));
    }
}
