//! What a run measures: its parts, each one call of `roce-perf client`.

use std::time::Duration;

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in rows (`part`).
    pub name: &'static str,
    /// What is said while it runs.
    pub title: &'static str,
    /// Options of `roce-perf client`, or of `roce-perf raw client`.
    pub args: Vec<String>,
    /// Whether it is of bare frames.
    pub raw: bool,
}

/// READs and atomics outstanding, a queue pair, where their rate is measured: one queue pair is then as fast as sixteen,
/// and more bring nothing.
pub const READS: u8 = 32;
/// How often parts whose ratio counts are measured in a run, in turn: the machine changes from one second to the next.
const IN_TURN: usize = 3;
/// Name of the parts that tell the kind of a run.
pub const MOOD: &str = "mood";

fn part(name: &'static str, title: &'static str, line: &str, time: Duration) -> Part {
    let mut args: Vec<String> = line.split_ascii_whitespace().map(String::from).collect();
    args.extend(["--duration".into(), ms(time)]);
    Part { name, title, args, raw: false }
}

fn limited(mut part: Part, time: Duration) -> Part {
    part.args.extend(["--limit".into(), "--limit-duration".into(), ms(time / 2)]);
    part
}

fn raw(name: &'static str, title: &'static str, line: &str, time: Duration) -> Part {
    Part { raw: true, ..part(name, title, line, time) }
}

fn ms(time: Duration) -> String {
    format!("{}ms", time.as_millis().max(1))
}

/// The parts of a run; `time` is that of one measurement.
pub fn run(time: Duration, scale: bool) -> Vec<Part> {
    let mood =
        || raw(MOOD, "the bare port", "--mode lat --size 128", (time / 3).max(Duration::from_millis(50)));
    let full = |name, title, line| limited(part(name, title, line, time), time);
    let ops = "--op send,write,read,fetch_add";
    let rate = format!("--mode rate --size 64 --outs {READS}");
    let mut parts = vec![
        mood(),
        full("many", "message rate, 16 queue pairs", &format!("{ops} {rate} --qps 16")),
        full("one", "message rate, one queue pair", &format!("{ops} {rate}")),
        mood(),
        full("mtu4096", "bandwidth, MTU 4096", "--op write,read,send --mode bw --size 65536 --mtu 4096"),
        full("mtu1024", "bandwidth, MTU 1024", "--op write,read,send --mode bw --size 65536 --mtu 1024"),
        mood(),
        full("lat", "latency", &format!("{ops} --mode lat --size 64")),
    ];
    if scale {
        let visits = [
            ("qps100", "100 queue pairs", "--qps 100 --visit 1"),
            ("qps100k", "100 000 queue pairs", "--qps 100000 --visit 1"),
            ("qps100x16", "100 queue pairs, 16 messages a visit", "--qps 100 --visit 16"),
            ("qps100kx16", "100 000 queue pairs, 16 messages a visit", "--qps 100000 --visit 16"),
            ("qps100x16srq", "the same 100, a shared receive queue", "--qps 100 --visit 16 --srq"),
            ("qps100kx16srq", "the same 100 000, a shared receive queue", "--qps 100000 --visit 16 --srq"),
        ];
        for (name, title, line) in visits.into_iter().cycle().take(visits.len() * IN_TURN) {
            let line = format!("--op send --mode rate --size 64 --pattern random {line}");
            parts.push(part(name, title, &line, time));
        }
    }
    parts.push(mood());
    parts
}

/// What is measured once, after the runs: curves over the size of a message.
pub fn curves(time: Duration) -> Vec<Part> {
    let time = (time / 3).max(Duration::from_millis(30));
    let sizes = "64,256,1k,4k,16k,64k,256k,1m";
    vec![
        raw(MOOD, "the bare port", "--mode lat --size 128", time),
        raw("raw-sizes", "bare frames by length", "--mode rate --size 64,128,256,512,1024,2048,4154", time),
        part("sizes", "bandwidth by size", &format!("--op send,write,read --mode bw --size {sizes}"), time),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::perf::PerfCli;
    use clap::Parser;

    #[test]
    fn roce_perf_takes_every_part_but_those_of_scale() {
        let time = Duration::from_millis(700);
        for part in run(time, false).into_iter().chain(curves(time)) {
            let mut line = vec!["roce-perf".to_string()];
            line.extend(part.raw.then(|| "raw".into()));
            line.extend(["client".into(), "localhost".into()]);
            line.extend(part.args.clone());
            PerfCli::try_parse_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        }
    }

    #[test]
    fn a_run_looks_at_the_bare_port_from_start_to_end() {
        let parts = run(Duration::from_millis(700), true);
        assert!(parts.first().unwrap().name == MOOD && parts.last().unwrap().name == MOOD);
        assert!(parts.iter().filter(|p| p.name == MOOD).count() >= 3);
        assert!(parts.windows(2).all(|w| w[0] != w[1]));
    }
}
