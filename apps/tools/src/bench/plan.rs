//! The parts of a run, each one call of `roce-perf` (`client`, `raw client`), `roce-nvmf-perf` (`run`, `overhead`) or `roce-many`.

use super::hosts::Cable;
use std::time::Duration;

/// The connection between the two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// This stack's own memif port.
    #[default]
    Memif,
    /// DPDK's memif driver, through ethdev.
    Ethdev,
    /// Memif, with `roce-nvmf` and a namespace in memory at the other end.
    Nvme,
    /// UDP sockets on the loopback interface.
    Udp,
    /// The link of two processes of a host.
    Host,
    /// UDP sockets between two hosts.
    Hosts(Cable),
    /// None: one process is both ends.
    Inside,
    /// Links between processes of a host that `roce-many` starts.
    Members,
}

impl Link {
    /// Whether one program has all ends, so that no server is needed.
    pub const fn has_all_ends(self) -> bool {
        matches!(self, Self::Inside | Self::Members)
    }
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the part in rows (`part`).
    pub name: &'static str,
    /// Title in progress messages.
    pub title: String,
    /// Options of `roce-perf client` or of `roce-perf raw client`; or subcommand and options of `roce-nvmf-perf` or `roce-many`.
    pub args: Vec<String>,
    /// Whether the part measures bare frames.
    pub raw: bool,
    /// The connection that the part is measured over.
    pub link: Link,
    /// Whether the part takes so long that it is measured only on request.
    pub is_long: bool,
}

impl Part {
    /// A part that is quick and measures no bare frames.
    fn new(name: &'static str, title: String, args: Vec<String>, link: Link) -> Self {
        Self { name, title, args, raw: false, link, is_long: false }
    }

    /// Whether the part needs two hosts.
    pub fn is_between_hosts(&self) -> bool {
        matches!(self.link, Link::Hosts(_))
    }
}

/// READs and atomics outstanding, per queue pair, in rate measurements: with so many, one queue pair is as fast as sixteen, and more
/// do not help.
pub const READS: u8 = 32;
/// Parts that are compared by their ratio take this many times as long: a core's speed changes within a tenth of a second, and affects
/// each of the two parts differently.
const RATIO_TIMES: u32 = 3;
/// Names of the parts that are curves: bandwidth by message size, rate of bare frames by their length.
pub const SIZES: &str = "sizes";
/// The second of these names: see [`SIZES`].
pub const RAW_SIZES: &str = "raw-sizes";
/// Name of the part that measures the machine's state.
pub const STATE: &str = "state";

/// A part with options of `roce-perf client`.
pub(super) fn part(name: &'static str, title: &str, line: &str, time: Duration) -> Part {
    let mut args: Vec<String> = line.split_ascii_whitespace().map(String::from).collect();
    args.extend(["--duration".into(), ms(time)]);
    Part::new(name, title.into(), args, Link::Memif)
}

fn limited(mut part: Part, time: Duration) -> Part {
    part.args.extend(["--limit".into(), "--limit-duration".into(), ms(time / 2)]);
    part
}

fn raw(name: &'static str, title: &str, line: &str, time: Duration) -> Part {
    Part { raw: true, ..part(name, title, line, time) }
}

fn ms(time: Duration) -> String {
    format!("{}ms", time.as_millis().max(1))
}

/// Measures the machine's state: the time of a bare frame of 128 bytes. Short, because the state changes within seconds.
pub fn probe(time: Duration) -> Part {
    raw(STATE, "the bare port", "--mode lat --size 128", (time / 7).max(Duration::from_millis(50)))
}

/// Parts with NVMe over Fabrics.
fn nvme(time: Duration) -> Vec<Vec<Part>> {
    let part = |name, title: &str, line: &str| {
        let mut args: Vec<String> = line.split_ascii_whitespace().map(String::from).collect();
        args.insert(0, "run".into());
        args.extend(["--time".into(), ms(time)]);
        let title = format!("NVMe over Fabrics, {title}");
        Part::new(name, title, args, Link::Nvme)
    };
    vec![
        vec![
            part("nvme4k", "4 KiB random read", "--queues 4 --depth 32 --size 4k --read 100"),
            part("nvme4k", "4 KiB random write", "--queues 4 --depth 32 --size 4k --read 0"),
        ],
        vec![part("nvme128k", "128 KiB random read", "--queues 4 --depth 8 --size 128k --read 100")],
        vec![part("nvme1", "4 KiB random read, alone", "--queues 1 --depth 1 --size 4k --read 100")],
        vec![Part::new(
            "nvme-overhead",
            "what NVMe over Fabrics adds to RDMA".into(),
            vec!["overhead".into()],
            Link::Inside,
        )],
    ]
}

/// Parts with many processes of a host.
fn members(time: Duration) -> Vec<Vec<Part>> {
    let part = |name, title: &str, line: &str| {
        let args = line.split_ascii_whitespace().map(String::from).collect();
        let title = format!("processes of a host, {title}");
        Part { is_long: true, ..Part::new(name, title, args, Link::Members) }
    };
    let latency = |name, title: &str, line: &str| {
        let line = format!("latency {line} --duration {}", ms(time * RATIO_TIMES));
        Part { is_long: false, ..part(name, title, &line) }
    };
    vec![
        vec![
            latency("links63-memif", "SEND 64 B over a private memif, to compare", "--memif"),
            latency("links63-lat", "SEND 64 B, latency while 63 others send", ""),
        ],
        vec![part("links63-turn", "instructions of a turn with 63 idle links", "turn")],
        vec![part("links63-memory", "memory of 63 links", "memory")],
        vec![part("first", "the first message to a process", "first")],
        vec![part("first-busy", "the same beside two busy loops", "first --beside 2")],
        vec![part("fair", "16 that all write to each other", "fair")],
        vec![part("killed", "the end of a peer", "killed")],
        vec![part("idle", "ten that do nothing", "idle")],
    ]
}

/// The parts of a run, in groups that are measured between two checks of the machine's state: as short as ratios and curves allow.
/// `time` is the time of one measurement; a point of a curve takes a third of it.
pub fn run(time: Duration, scale: bool) -> Vec<Vec<Part>> {
    let small = ["send", "write", "read", "fetch_add"].as_slice();
    let long = ["write", "read", "send"].as_slice();
    let rate = format!("--mode rate --size 64 --outs {READS}");
    let rate16 = format!("{rate} --qps 16");
    let each = [
        ("many", "message rate, 16 queue pairs", small, rate16.as_str()),
        ("one", "message rate, one queue pair", small, &rate),
        ("mtu4096", "bandwidth, MTU 4096", long, "--mode bw --size 65536 --mtu 4096"),
        ("mtu1024", "bandwidth, MTU 1024", long, "--mode bw --size 65536 --mtu 1024"),
        ("lat", "latency", small, "--mode lat --size 64"),
    ];
    let mut groups = Vec::new();
    for (name, title, ops, line) in each {
        groups.extend(ops.iter().map(|op| {
            let title = format!("{title}, {}", op.to_uppercase());
            vec![limited(part(name, &title, &format!("--op {op} {line}"), time), time)]
        }));
    }
    for (op, line) in [("send", rate16.as_str()), ("write", "--mode bw --size 65536 --mtu 4096")] {
        let title = format!("through ethdev, {}", op.to_uppercase());
        let part = limited(part("ethdev", &title, &format!("--op {op} {line}"), time), time);
        groups.push(vec![Part { link: Link::Ethdev, ..part }]);
    }
    groups.extend(nvme(time));
    if scale {
        let visits = [
            [("qps100", "100 queue pairs"), ("qps100k", "100 000 queue pairs")],
            [
                ("qps100x16", "100 queue pairs, 16 messages a visit"),
                ("qps100kx16", "100 000 queue pairs, 16 messages a visit"),
            ],
            [
                ("qps100x16srq", "the same 100, a shared receive queue"),
                ("qps100kx16srq", "the same 100 000, a shared receive queue"),
            ],
        ];
        let kinds = ["--visit 1", "--visit 16", "--visit 16 --srq"];
        groups.extend(visits.into_iter().zip(kinds).map(|(pair, kind)| {
            let counts = ["--qps 100", "--qps 100000"];
            let line = |qps| format!("--op send --mode rate --size 64 --pattern random {qps} {kind}");
            let parts = pair.into_iter().zip(counts);
            parts.map(|((name, title), qps)| part(name, title, &line(qps), time * RATIO_TIMES)).collect()
        }));
    }
    // Packets that queue up in the network take a while to arrive.
    let flows = |name, title: &str, qps: u32| {
        let line = format!("--op write --mode bw --size 65536 --qps {qps}");
        Part { link: Link::Hosts(Cable::Capped), ..part(name, title, &line, time * RATIO_TIMES) }
    };
    groups.push(vec![
        flows("flows1", "a network that caps each flow, one queue pair", 1),
        flows("flows16", "a network that caps each flow, 16 queue pairs", 16),
    ]);
    let links = [
        (["memif-lat", "link-lat"], "SEND 64 B, latency", "--op send --mode lat --size 64"),
        (["memif-rate", "link-rate"], "SEND 64 B, message rate", "--op send --mode rate --size 64"),
        (["memif-bw", "link-bw"], "WRITE 64 KiB, bandwidth", "--op write --mode bw --size 65536"),
    ];
    for ([memif, link], title, line) in links {
        let part = |name, over| part(name, &format!("{title}, over {over}"), line, time * RATIO_TIMES);
        groups.push(vec![
            part(memif, "a memif"),
            Part { link: Link::Host, ..part(link, "a link of the port host") },
        ]);
    }
    groups.extend(members(time));
    let time = (time / 3).max(Duration::from_millis(30));
    let lengths = "--mode rate --size 64,128,256,512,1024,2048,4154";
    groups.push(vec![raw(RAW_SIZES, "bare frames by length", lengths, time)]);
    groups.extend(long.iter().map(|op| {
        let title = format!("bandwidth by size, {}", op.to_uppercase());
        let line = format!("--op {op} --mode bw --size 64,256,1k,4k,16k,64k,256k,1m");
        vec![part(SIZES, &title, &line, time)]
    }));
    groups
}

#[cfg(test)]
mod tests {
    use super::super::marks;
    use super::*;
    use crate::many::cli::ManyCli;
    use apps::cli::perf::PerfCli;
    use clap::Parser;

    #[test]
    fn roce_perf_takes_every_part_but_those_of_scale() {
        let time = Duration::from_millis(700);
        let ours = |part: &Part| !part.link.has_all_ends() && part.link != Link::Nvme;
        for part in run(time, false).into_iter().flatten().filter(ours).chain([probe(time)]) {
            let mut line = vec!["roce-perf".to_string()];
            line.extend(part.raw.then(|| "raw".into()));
            line.extend(["client".into(), "localhost".into()]);
            line.extend(part.args.clone());
            PerfCli::try_parse_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        }
    }

    #[test]
    fn roce_many_takes_every_part_of_its_processes_and_each_has_a_line() {
        let parts = members(Duration::from_millis(700));
        assert_eq!(parts.iter().flatten().filter(|part| !part.is_long).count(), 2);
        for part in parts.into_iter().flatten() {
            let line = ["roce-many".to_string()].into_iter().chain(part.args.clone());
            ManyCli::try_parse_from(line).unwrap_or_else(|e| panic!("{:?}: {e}", part.args));
            assert!(
                part.name == "links63-memif" || marks::parts().any(|of| of == part.name),
                "{}",
                part.name
            );
        }
    }

    #[test]
    fn parts_whose_ratio_counts_are_measured_between_the_same_two_looks() {
        let groups = run(Duration::from_millis(700), true);
        for (few, many) in
            [("qps100", "qps100k"), ("qps100x16", "qps100kx16"), ("qps100x16srq", "qps100kx16srq")]
        {
            let names = groups.iter().map(|g| g.iter().map(|p| p.name).collect::<Vec<_>>());
            assert_eq!(names.filter(|n| *n == [few, many]).count(), 1, "{few}");
        }
        let longer = groups.iter().flatten().filter(|p| p.args.contains(&"2100ms".into()));
        assert_eq!(longer.filter(|p| p.name.starts_with("qps100")).count(), 6, "three times 700 ms");
        let alone = groups.iter().filter(|g| g.len() == 1 && g[0].args.contains(&"--limit".into()));
        assert_eq!(alone.count(), 20, "all else has the bare port's limit from the same call");
    }

    // Goal: curves are part of every run. When they were measured once, at the end, one disturbed second spoiled a whole curve.
    #[test]
    fn curves_are_measured_in_every_run() {
        let groups = run(Duration::from_millis(700), false);
        let of = |name| groups.iter().filter(|g| g.len() == 1 && g[0].name == name).count();
        assert_eq!((of(SIZES), of(RAW_SIZES)), (3, 1));
    }
}
