//! Alternatives on the same machine: TCP over loopback, and UCX over TCP and shared memory.

use super::child::{self, Guard};
use super::row::Row;
use crate::error::{AppError, Result};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// A server needs a moment to listen.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// An alternative, one measurement of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in tables.
    pub name: &'static str,
    how: How,
    mode: &'static str,
    size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Iperf,
    /// UCX with these transports, this test, and this many messages.
    Ucx(&'static str, &'static str, u64),
}

/// Every measurement of an alternative.
pub const PEERS: [Peer; 7] = [
    Peer { name: "TCP loopback (iperf3)", how: How::Iperf, mode: "bw", size: 131_072 },
    Peer { name: "UCX over TCP", how: How::Ucx("tcp,self", "tag_lat", 60_000), mode: "lat", size: 64 },
    Peer { name: "UCX over TCP", how: How::Ucx("tcp,self", "tag_bw", 200_000), mode: "rate", size: 64 },
    Peer { name: "UCX over TCP", how: How::Ucx("tcp,self", "tag_bw", 20_000), mode: "bw", size: 65536 },
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

/// The programs that are missing here, each with how to get it.
pub fn missing() -> Vec<&'static str> {
    let there = |program: &str, arg: &str| Command::new(program).arg(arg).output().is_ok();
    let mut out = Vec::new();
    if !there("iperf3", "--version") {
        out.push("iperf3 is not installed (apt-get install iperf3): TCP over loopback is left out");
    }
    if !there("ucx_perftest", "-h") {
        out.push("ucx_perftest is not installed (apt-get install ucx-utils): UCX is left out");
    }
    out
}

impl Peer {
    /// Whether its program is among the missing ones.
    pub fn is_missing(&self, missing: &[&str]) -> bool {
        let program = if self.how == How::Iperf { "iperf3" } else { "ucx_perftest" };
        missing.iter().any(|m| m.starts_with(program))
    }

    /// Its title in progress messages.
    pub fn title(&self) -> String {
        format!("{}, {} {}", self.name, self.mode, crate::report::bytes(self.size))
    }

    /// Measures it, with `share` of the usual number of messages or seconds.
    ///
    /// # Errors
    /// The program's error.
    pub fn measure(&self, share: f64) -> Result<Row> {
        let port = child::free_port()?.to_string();
        let row = Row::peer(self.name, self.mode, self.size);
        match self.how {
            How::Iperf => {
                let mut server = Command::new("iperf3");
                let _server = Guard::quiet(server.args(["-s", "-1", "-A", "0", "-p", &port]))?;
                let seconds = (2.0 * share).ceil().to_string();
                let client = || {
                    let mut client = Command::new("iperf3");
                    client.args(["-c", "127.0.0.1", "-A", "1", "-J", "-p", &port, "-t", &seconds]);
                    client
                };
                let bits = patiently(client, iperf)?;
                Ok(row.with("gbit_per_s", bits / 1e9))
            }
            How::Ucx(transports, test, messages) => {
                let count = ((messages as f64 * share) as u64).max(1000).to_string();
                let ucx = || {
                    let mut command = Command::new("ucx_perftest");
                    command.env("UCX_TLS", transports).args(["-p", &port]);
                    if transports.starts_with("tcp") {
                        command.env("UCX_NET_DEVICES", "lo");
                    }
                    command
                };
                let _server = Guard::quiet(ucx().args(["-c", "0"]))?;
                let client = || {
                    let mut client = ucx();
                    client.args(["127.0.0.1", "-c", "1", "-t", test, "-s", &self.size.to_string()]);
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
    }
}

/// Repeats a client until its server listens: some report a failure by their exit code, some by missing figures.
fn patiently<T>(client: impl Fn() -> Command, figures: impl Fn(&str) -> Option<T>) -> Result<T> {
    let mut last = None;
    for _ in 0..TRIES {
        let command = client();
        match child::output(&command, PATIENCE) {
            Err(e @ (AppError::Interrupted | AppError::Timeout(_))) => return Err(e),
            Err(e) => last = Some(e),
            Ok(said) => match figures(&said) {
                Some(figures) => return Ok(figures),
                None => last = Some(unreadable(&command, &said)),
            },
        }
        std::thread::sleep(PAUSE);
    }
    Err(last.unwrap_or(AppError::Interrupted))
}

fn unreadable(command: &Command, said: &str) -> AppError {
    let program = command.get_program().display();
    let end: String = said.trim().lines().rev().take(3).collect::<Vec<_>>().join(" ");
    AppError::Setup(format!("{program} printed no figures: {end:?}"))
}

/// Bits a second that arrived, from iperf3's JSON.
fn iperf(json: &str) -> Option<f64> {
    let all: serde_json::Value = serde_json::from_str(json).ok()?;
    all.get("end")?.get("sum_received")?.get("bits_per_second")?.as_f64()
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
        let json = r#"{"end":{"sum_sent":{"bits_per_second":2.0},"sum_received":{"bits_per_second":9.5e9}}}"#;
        assert_eq!(iperf(json), Some(9.5e9));
        assert_eq!(iperf("{}"), None);
    }

    #[test]
    fn a_missing_program_leaves_its_measurements_out() {
        let missing = ["ucx_perftest is not installed"];
        let left: Vec<_> = PEERS.iter().filter(|p| !p.is_missing(&missing)).map(|p| p.name).collect();
        assert_eq!(left, ["TCP loopback (iperf3)"]);
    }
}
