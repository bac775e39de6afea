//! What a target counts by namespace and host, and who is shown it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nvmf::wire::Sgl;
use nvmf_target::host::{Controller, Data, Io, Options};
use nvmf_target::target::Meters;
use verbs::Access;
use verbs::stats::{Row, Snapshot};

use crate::common::{BLOCK, Running, SUBSYSTEM, Scratch, Setup, host_name, nqn, with_target};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

// Goal: every command of a namespace is counted once, for its host, whichever core served it; the log page of the controller
// says the same.
#[test]
fn commands_are_counted_by_namespace_and_host() {
    let meters = Arc::<Meters>::default();
    let file = Scratch::new("meters");
    for (n, file) in (1u64..).zip([None, Some(file.path())]) {
        let mut setup = Setup { cores: 2, file, ..Setup::default() };
        setup.config.meters = Some(meters.clone());
        with_target(&setup, |view| {
            for host in [1, 2] {
                let mut host = view.host(host);
                let options = Options { queues: 3, ..Options::default() };
                let mut controller =
                    Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
                let mut queues: Vec<_> =
                    (1..=3).map(|qid| controller.io_queue(&mut host, qid, 16).unwrap()).collect();
                let mr = host.pd().reg_mr(16 * BLOCK, RIGHTS).unwrap();
                let sgl = |blocks: usize| Sgl::keyed(mr.iova(), (blocks * BLOCK) as u32, mr.rkey(), false);
                for queue in &mut queues {
                    let mut call = |sqe| host.call(queue, &sqe, Data::Elsewhere).is_ok();
                    assert!(call(Io::new(1, 0, 16).write(sgl(16))));
                    assert!(call(Io::new(1, 0, 2).read(sgl(2))) && call(Io::new(1, 4, 2).read(sgl(2))));
                    assert!(call(Io::new(1, 0, 1).flush()));
                    mr.fill(0..BLOCK, 9).unwrap();
                    assert!(call(Io::new(1, 0, 1).write(sgl(1))));
                    mr.fill(0..BLOCK, 8).unwrap();
                    assert!(!call(Io::new(1, 0, 1).compare(sgl(1))), "the storage says that they differ");
                }
            }
            let table = meters.table();
            assert_eq!((&table.name[..], table.rows.len()), ("nvmf", 2));
            for (row, host) in table.rows.iter().zip([1, 2]) {
                let label = |name: &str| row.labels[name].clone();
                assert_eq!([label("subsystem"), label("namespace")], [SUBSYSTEM, "1"]);
                assert_eq!(label("host"), host_name(host).to_string());
                let bytes = |blocks: u64| n * 3 * blocks * BLOCK as u64;
                let counters = [("read_bytes", bytes(4)), ("write_bytes", bytes(17)), ("failed", n * 3)];
                let counters: BTreeMap<_, _> = counters.map(|(name, n)| (name.to_string(), n)).into();
                assert_eq!(row.counters, counters);
                for (name, each) in [("read", 2), ("write", 2), ("other", 2)] {
                    let latency = &row.latencies[name];
                    assert_eq!(latency.count, n * 3 * each, "{name}");
                    assert_eq!(latency.buckets.values().sum::<u64>(), latency.count);
                }
            }
            let totals = view.target.totals(&nqn(SUBSYSTEM)).unwrap();
            assert_eq!((totals.reads, totals.writes, totals.media_errors), (12, 12, 0));
            assert_eq!(totals.bytes_written, 2 * 3 * 17 * BLOCK as u64);
        });
    }
}

// Goal: a target that was started as documented shows them to roce-stat and to collectors.
#[test]
fn a_program_shows_what_it_counts() {
    let scratch = Scratch::new("shown");
    let [stats, control] = ["stats", "control"].map(|name| scratch.path().with_file_name(name));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_roce-nvmf"));
    serve.args(["serve", "--memory", "1m", "--port", "loopback", "--metrics", "0"]);
    serve.arg(format!("--stats={}", stats.display())).arg("--control").arg(&control);
    let mut target = Running(serve.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(target.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let at = lines.find_map(|line| Some(line.strip_prefix("metrics at http://")?.to_string()));
    let at = at.expect("it says where").replace("/metrics", "");
    // Where this machine is too busy for an answer in time, a collector asks again.
    let text = loop {
        let mut stream = TcpStream::connect(&at).unwrap();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        if text.ends_with("# EOF\n") {
            break text;
        }
    };
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("roce_device_info{program=\"roce-nvmf\",port="), "{text}");
    assert!(text.contains("roce_queue_pairs{shard=\"0\"} "), "{text}");
    let snapshot = Snapshot::fetch(&stats).unwrap();
    assert_eq!(snapshot.program, "roce-nvmf");
    assert_eq!(snapshot.tables.len(), 1);
    assert_eq!(snapshot.tables[0].rows, Vec::<Row>::new(), "no host has come");
}
