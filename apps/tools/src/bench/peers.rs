//! Alternatives on the same machine: TCP over loopback, and UCX over TCP and shared memory; and stock programs on this stack.

use super::child::{self, Guard, patiently};
use super::hosts::{self, Cable};
use super::ping_pong;
use super::row::Row;
use super::stock::{Paths, Stock};
use apps::error::{AppError, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds of a measurement that counts CPU time, or is taken beside busy loops.
const LONG_SECONDS: f64 = 20.0;
/// Rounds of a ping-pong.
const PING_PONGS: f64 = 100_000.0;

/// One measurement of an alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the alternative in tables.
    pub name: &'static str,
    how: How,
    mode: &'static str,
    size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// `iperf3` between two hosts, or over loopback.
    Iperf(Option<Cable>),
    /// UCX with these transports, this test, and this many messages.
    Ucx(&'static str, &'static str, u64),
    /// UCX on this stack, by the drop-in library: this test, and this many messages.
    Here(&'static str, u64),
    /// A program of perftest on this stack.
    Stock(Stock),
    /// A ping-pong over TCP, with system calls that block.
    PingPong,
}

/// TCP over loopback, a single stream.
pub const IPERF: Peer =
    Peer { name: "TCP loopback (iperf3)", how: How::Iperf(None), mode: "bw", size: 131_072 };

/// The CPU time of [`IPERF`].
pub const IPERF_CPU: Peer = Peer { mode: "cpu", ..IPERF };

/// [`IPERF`] for a longer time, because other programs compete for the cores.
pub const IPERF_BUSY: Peer = Peer { mode: "busy", ..IPERF };

/// A ping-pong over TCP whose ends sleep in the kernel while they wait.
pub const PING_PONG: Peer =
    Peer { name: "TCP ping-pong that blocks", how: How::PingPong, mode: "mean", size: 64 };

/// A program of perftest on this stack.
pub const fn stock(stock: Stock, mode: &'static str) -> Peer {
    Peer { name: stock.name(), how: How::Stock(stock), mode, size: stock.size() }
}

/// TCP between two hosts, a single stream.
pub const fn iperf_between_hosts(cable: Cable) -> Peer {
    Peer { name: "TCP between hosts (iperf3)", how: How::Iperf(Some(cable)), mode: "bw", size: 131_072 }
}

/// UCX's name of the test for a mode, and its number of messages over TCP.
const fn test(mode: &'static str, size: u64) -> (&'static str, u64) {
    match mode.as_bytes() {
        b"lat" => ("tag_lat", 60_000),
        b"rate" => ("tag_bw", 200_000),
        _ => ("tag_bw", if size > 4096 { 20_000 } else { 200_000 }),
    }
}

/// UCX over TCP.
pub const fn ucx_over_tcp(mode: &'static str, size: u64) -> Peer {
    let (test, messages) = test(mode, size);
    Peer { name: "UCX over TCP", how: How::Ucx("tcp,self", test, messages), mode, size }
}

/// UCX on this stack, over shared memory.
pub const fn ucx_over_us(mode: &'static str, size: u64) -> Peer {
    let (test, messages) = test(mode, size);
    Peer { name: "UCX on this stack", how: How::Here(test, messages * 5), mode, size }
}

/// Every measurement of an alternative.
pub const PEERS: [Peer; 7] = [
    IPERF,
    ucx_over_tcp("lat", 64),
    ucx_over_tcp("rate", 64),
    ucx_over_tcp("bw", 65536),
    Peer {
        name: "UCX shared memory",
        how: How::Ucx("posix,sysv,self", "tag_lat", 1_000_000),
        mode: "lat",
        size: 64,
    },
    Peer {
        name: "UCX shared memory",
        how: How::Ucx("posix,sysv,self", "tag_bw", 3_000_000),
        mode: "rate",
        size: 64,
    },
    Peer {
        name: "UCX shared memory",
        how: How::Ucx("posix,sysv,self", "tag_bw", 100_000),
        mode: "bw",
        size: 65536,
    },
];

/// A prerequisite of alternatives that is not installed or set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// `iperf3`.
    Iperf,
    /// `ucx_perftest`.
    Ucx,
    /// `roce-run` with its library.
    DropIn,
    /// `ib_write_bw` and the like.
    Perftest,
    /// Two hosts.
    Hosts,
}

impl Missing {
    /// How to install or set up the prerequisite.
    pub fn package(self) -> &'static str {
        match self {
            Self::Iperf => "iperf3",
            Self::Ucx => "ucx-utils",
            Self::DropIn => "roce-run (scripts/dropin --build)",
            Self::Perftest => "perftest",
            Self::Hosts => "network namespaces (root, iproute2, ethtool)",
        }
    }
    /// A sentence for a report.
    pub fn note(self) -> &'static str {
        match self {
            Self::Iperf => "iperf3 is not installed (apt-get install iperf3): TCP over loopback is left out",
            Self::Ucx => "ucx_perftest is not installed (apt-get install ucx-utils): UCX is left out",
            Self::DropIn => {
                "roce-run has no library (scripts/dropin --build): programs of others on this stack are left out"
            }
            Self::Perftest => {
                "perftest is not installed (apt-get install perftest): its programs are left out"
            }
            Self::Hosts => {
                "no network namespaces (they need root, iproute2 and ethtool): UDP between hosts is left out"
            }
        }
    }
}

/// The prerequisites that are missing on this machine.
pub fn missing(run: &Path) -> Vec<Missing> {
    let there = |program: &str, arg: &str| Command::new(program).arg(arg).output().is_ok();
    // `roce-run` starts no program without the library.
    let works = |run: &Path| {
        let mut trial = Command::new(run);
        trial.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    };
    let mut out = Vec::new();
    if !there("iperf3", "--version") {
        out.push(Missing::Iperf);
    }
    if !there("ucx_perftest", "-h") {
        out.push(Missing::Ucx);
    }
    if !works(run) {
        out.push(Missing::DropIn);
    }
    if !there("ib_write_bw", "--version") {
        out.push(Missing::Perftest);
    }
    out
}

impl Peer {
    /// The package of a missing prerequisite of this measurement, if any.
    pub fn lacks(&self, missing: &[Missing]) -> Option<&'static str> {
        let needs: &[Missing] = match self.how {
            How::Iperf(None) => &[Missing::Iperf],
            How::Iperf(Some(_)) => &[Missing::Iperf, Missing::Hosts],
            How::Ucx(..) => &[Missing::Ucx],
            How::Here(..) => &[Missing::Ucx, Missing::DropIn],
            How::Stock(_) => &[Missing::Perftest, Missing::DropIn],
            How::PingPong => &[],
        };
        needs.iter().find(|needed| missing.contains(needed)).map(|needed| needed.package())
    }

    /// Title in progress messages.
    pub fn title(&self) -> String {
        format!("{}, {} {}", self.name, self.mode, apps::report::bytes(self.size))
    }

    /// Runs the measurement, with `share` of the usual number of messages or seconds.
    ///
    /// # Errors
    /// The program's error.
    pub fn measure(&self, share: f64, paths: &Paths) -> Result<Row> {
        let before = child::cpu_time();
        let row = self.run(share, paths)?;
        let Some(bytes) = row.num("bytes").filter(|_| self.mode == "cpu") else { return Ok(row) };
        let used = child::cpu_time().saturating_sub(before);
        Ok(row.with("cpu_s_per_gib", used.as_secs_f64() / (bytes / f64::from(1 << 30))))
    }

    fn run(&self, share: f64, paths: &Paths) -> Result<Row> {
        let number = child::free_port()?;
        let port = number.to_string();
        let row = Row::peer(self.name, self.mode, self.size);
        match self.how {
            How::Iperf(cable) => {
                let seconds = if self.is_long() { LONG_SECONDS } else { 2.0 } * share;
                let Received { bytes, bits_per_second } = iperf(cable, &port, seconds)?;
                Ok(row.with("gbit_per_s", bits_per_second / 1e9).with("bytes", bytes))
            }
            How::Stock(stock) => stock.measure(row, number, LONG_SECONDS * share, paths),
            How::PingPong => {
                let rounds = (PING_PONGS * share) as u32;
                let mean_ns = ping_pong::mean_ns(self.size as usize, rounds.max(1000));
                Ok(row.with("mean_ns", mean_ns.map_err(|e| AppError::Setup(format!("TCP ping-pong: {e}")))?))
            }
            How::Ucx(transports, test, messages) => {
                let ucx = || {
                    let mut command = Command::new("ucx_perftest");
                    command.env("UCX_TLS", transports);
                    if transports.starts_with("tcp") {
                        command.env("UCX_NET_DEVICES", "lo");
                    }
                    command
                };
                self.ucx(row, ucx, (test, messages), share, &port)
            }
            How::Here(test, messages) => {
                let link = format!("memif:{}", paths.dir.join("ucx").display());
                let ucx = || {
                    let mut command = Command::new(&paths.run);
                    command.args(["--port", &link, "ucx_perftest"]);
                    // ud_verbs connects.
                    command.env("UCX_TLS", "rc_verbs,ud_verbs,self").env("UCX_NET_DEVICES", "roce0:1");
                    command
                };
                self.ucx(row, ucx, (test, messages), share, &port)
            }
        }
    }

    /// Whether the measurement takes seconds, to even out how the scheduler assigns the cores.
    const fn is_long(&self) -> bool {
        matches!(self.mode.as_bytes(), b"cpu" | b"busy")
    }

    /// Measures with `ucx_perftest`, which `ucx` starts.
    fn ucx(
        &self,
        row: Row,
        ucx: impl Fn() -> Command,
        (test, messages): (&str, u64),
        share: f64,
        port: &str,
    ) -> Result<Row> {
        let count = ((messages as f64 * share) as u64).max(1000).to_string();
        let _server = Guard::quiet(ucx().args(["-p", port, "-c", "0"]))?;
        let client = || {
            let mut client = ucx();
            client.args(["127.0.0.1", "-p", port, "-c", "1", "-t", test, "-s", &self.size.to_string()]);
            client.args(["-n", &count, "-w", "500", "-f", "-v"]);
            client
        };
        let Ucx { p50_ns, gbit_per_s, msgs_per_s } = patiently(client, ucx_figures)?;
        Ok(match self.mode {
            "lat" => row.with("p50_ns", p50_ns.round() as u64).with("latency", "one_way"),
            _ => row.with("gbit_per_s", gbit_per_s).with("msgs_per_s", msgs_per_s),
        })
    }
}

/// One stream of `iperf3`, between two hosts or over loopback.
fn iperf(cable: Option<Cable>, port: &str, seconds: f64) -> Result<Received> {
    let on = |side| match cable {
        Some(cable) => hosts::command(cable, side, "iperf3"),
        None => Command::new("iperf3"),
    };
    let addr = if cable.is_some() { hosts::ADDRS[0] } else { "127.0.0.1" };
    let _server = Guard::quiet(on(0).args(["-s", "-1", "-A", "0", "-p", port]))?;
    let seconds = seconds.ceil().to_string();
    let client = || {
        let mut client = on(1);
        client.args(["-c", addr, "-A", "1", "-J", "-p", port, "-t", &seconds]);
        client
    };
    patiently(client, received)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Received {
    bytes: u64,
    bits_per_second: f64,
}

/// The received data, from iperf3's JSON.
fn received(json: &str) -> Option<Received> {
    let all: serde_json::Value = serde_json::from_str(json).ok()?;
    let sum = all.get("end")?.get("sum_received")?;
    let of = |name| sum.get(name);
    Some(Received { bytes: of("bytes")?.as_u64()?, bits_per_second: of("bits_per_second")?.as_f64()? })
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Ucx {
    p50_ns: f64,
    gbit_per_s: f64,
    msgs_per_s: f64,
}

/// The figures of `ucx_perftest -f -v`: a line of names, a line of numbers; microseconds and MiB/s.
fn ucx_figures(text: &str) -> Option<Ucx> {
    let mut lines = text.lines().skip_while(|l| !l.starts_with("iterations,"));
    let names: Vec<_> = lines.next()?.split(',').collect();
    let numbers: Vec<f64> = lines.next()?.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    let of = |name: &str| numbers.get(names.iter().position(|n| n.ends_with(name))?).copied();
    Some(Ucx {
        p50_ns: of("percentile_lat")? * 1e3,
        gbit_per_s: of("overall_bw")? * f64::from(1 << 20) * 8.0 / 1e9,
        msgs_per_s: of("overall_mr")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_prints_microseconds_and_mebibytes() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    20000,4.263,55.384,63.859,1.10,1000.00,18056,15659\n";
        let ucx = ucx_figures(text).unwrap();
        assert_eq!((ucx.p50_ns, ucx.msgs_per_s), (4263.0, 15659.0));
        assert!((ucx.gbit_per_s - 8.388608).abs() < 1e-9);
        assert_eq!(ucx_figures("Waiting for connection...\n"), None);
    }

    #[test]
    fn iperf_prints_bits_a_second() {
        let json = r#"{"end":{"sum_sent":{"bits_per_second":2.0,"bytes":1},
                       "sum_received":{"bits_per_second":9.5e9,"bytes":7}}}"#;
        assert_eq!(received(json), Some(Received { bytes: 7, bits_per_second: 9.5e9 }));
        assert_eq!(received("{}"), None);
    }

    #[test]
    fn a_missing_program_leaves_its_measurements_out() {
        let left = |missing: &[Missing]| PEERS.iter().filter(|p| p.lacks(missing).is_none()).count();
        assert_eq!([left(&[]), left(&[Missing::Iperf]), left(&[Missing::Ucx])], [7, 6, 1]);
        assert_eq!(left(&[Missing::DropIn]), 7);
    }
}
