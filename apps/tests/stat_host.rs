//! `roce-stat --host`: all processes of a host, which were started without any option for it. Needs root, for network namespaces.

use crate::common::{Bench, Finished, Link, PATIENCE, Running, run, signal, until};
use crate::host::Host;
use crate::terminal::{Terminal, interrupted};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

const STAT: &str = env!("CARGO_BIN_EXE_roce-stat");
const LIAR: &str = "ROCE_STAT_TEST_LIAR";

fn stat(host: &Host, args: &[&str]) -> Finished {
    run("ip", &host.exec(&[&[STAT, "--host", "--interval", "100ms"][..], args].concat()))
}

/// The processes, by their numbers.
fn processes(host: &Host) -> Vec<(u32, Value)> {
    let out = stat(host, &["--once", "--json"]);
    if out.code != Some(0) {
        assert!(out.stderr.contains("no process found that has the addresses of this host"), "{}", out.all());
        return Vec::new();
    }
    let line: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.all()));
    assert_eq!(line["version"], 1);
    let all = line["processes"].as_array().unwrap().iter();
    all.map(|process| (process["pid"].as_u64().unwrap() as u32, process.clone())).collect()
}

/// The process with this number, once it is as wanted.
fn wait_for(host: &Host, pid: u32, is: impl Fn(&Value) -> bool) -> Value {
    until(|| {
        processes(host)
            .into_iter()
            .find(|(of, process)| *of == pid && is(process))
            .map(|(_, process)| process)
    })
}

// Goal: whoever has the addresses of the host is seen, with what it does, and nobody else; who looks is not among them.
#[test]
fn the_processes_of_a_host_are_seen_whatever_state_they_are_in() {
    let _bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('q') else { return };
    let nobody = stat(&host, &["--once"]).bad("no process found that has the addresses of this host");
    assert_eq!((nobody.code, nobody.stderr.lines().count()), (Some(1), 1), "{}", nobody.all());
    let mut listening = host.start(&["server", "-R", "--port", "host", "--oob-port", "7000"]);
    let mut server = host.server("7100", &[]);
    let long = ["--op", "send", "--mode", "rate", "--duration", "300s", "--qps", "3"];
    let mut client = host.client("7100", &[&PATIENCE[..], &long].concat());
    let pids = [&mut listening, &mut server, &mut client].map(Running::id);

    let one = wait_for(&host, pids[0], |one| one["listeners"] != Value::Array(Vec::new()));
    assert_eq!(one["listeners"][0], serde_json::json!({"port": 7000, "space": "tcp", "addr": null}));
    let works = |one: &Value| one["rates"]["send_messages_per_s"].as_f64() > Some(0.0);
    let one = wait_for(&host, pids[2], works);
    assert_eq!(
        (&one["answers"], &one["answer"], &one["program"]),
        (&true.into(), &"yes".into(), &"roce-perf".into())
    );
    assert_eq!((&one["qps"], &one["links"], &one["passed_on"]), (&3.into(), &1.into(), &0.into()));
    assert!(one["rates"]["tx_gbit_per_s"].as_f64() > Some(0.0) && one["resends"].is_u64(), "{one}");
    let all = processes(&host);
    assert!(all.len() == 3 && pids.iter().all(|pid| all.iter().any(|(of, _)| of == pid)), "{all:?}");
    let keepers: Vec<u32> =
        all.iter().filter(|(_, one)| one["keeper"] == true).map(|(pid, _)| *pid).collect();
    assert_eq!(keepers, [pids[0]], "the one with a queue pair 1");

    // One is stopped: it is there with what the others know, and nobody waits for it again.
    signal(Signal::STOP, pids[0]);
    let one = wait_for(&host, pids[0], |one| one["answers"] == false);
    assert_eq!(
        (&one["answer"], &one["program"]),
        (&"does not answer: it is stopped".into(), &"roce-perf".into())
    );
    assert_eq!(
        (&one["listeners"][0]["port"], &one["qps"], &one["rates"]),
        (&7000.into(), &Value::Null, &Value::Null)
    );
    assert!(one["age_s"].as_f64() > Some(0.0) && one["runs"].as_array().unwrap().len() == 1, "{one}");
    let table = stat(&host, &["--once"]).good().stdout;
    let line = |pid: u32| {
        table.lines().find(|line| line.starts_with(&format!(" {pid} "))).unwrap_or_else(|| panic!("{table}"))
    };
    assert!(line(pids[0]).contains("does not answer") && line(pids[0]).contains(" 7000 "), "{table}");
    assert!(line(pids[2]).contains(" yes "), "{table}");
    let lines = stat(&host, &["--json", "--count", "3"]).good().stdout;
    let counts = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["processes"].as_array().unwrap().len());
    assert_eq!(counts.collect::<Vec<_>>(), [3; 3]);
    stat(&host, &[]).bad("needs a terminal");
    let terminal = Terminal::open();
    let mut live = terminal.start(true, "ip", &host.exec(&[STAT, "--host", "--interval", "100ms"]));
    terminal.shows("processes");
    terminal.shows("stopped");
    signal(Signal::TERM, live.id());
    interrupted(&live.finish());
    signal(Signal::CONT, pids[0]);
    wait_for(&host, pids[0], |one| one["answers"] == true);

    // And those that end are not there any more.
    for gone in [&mut listening, &mut server, &mut client] {
        gone.kill();
    }
    until(|| processes(&host).is_empty().then_some(()));
}

/// Another process of the user, which answers what it likes at the name of a run.
#[test]
fn liar() {
    let Some(document) = std::env::var_os(LIAR) else { return };
    let document = document.into_string().unwrap();
    let name = format!("roce/{}/run/17", rustix::process::geteuid().as_raw());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    for client in listener.incoming() {
        let (mut client, mut request) = (client.unwrap(), [0; 16]);
        let asked = client.read_exact(&mut request).is_ok() && request[8] == 3;
        if !asked {
            continue;
        }
        // With the version of whoever asks, and that run.
        let head =
            [&request[..8], &4u32.to_ne_bytes(), &request[12..], &17u16.to_ne_bytes(), &[0xff; 14]].concat();
        let _ = client.write_all(&[&head, document.as_bytes()].concat());
    }
}

// Goal: what a process says does not move the cursor or fill the screen, and keeps nobody else from being shown.
#[test]
fn a_process_that_says_anything_spoils_its_own_line_alone() {
    let _bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('y') else { return };
    let mut honest = host.start(&["server", "-R", "--port", "host", "--oob-port", "7000"]);
    let pid = honest.id();
    // It joins before there is one that lets nobody join.
    wait_for(&host, pid, |one| one["answers"] == true);
    let long = "x".repeat(100_000);
    let counters = format!("{{\"tx_bytes\":{0},\"retransmitted\":{0}}}", u64::MAX);
    let shards = format!("[{{\"id\":0,\"counters\":{counters}}},{{\"id\":1,\"counters\":{counters}}}]");
    let evil = format!(
        "{{\"version\":1,\"pid\":1,\"program\":\"\\u001b[2J\\u009bmad\\n\",\"port\":\"{long}\",\"at_ns\":{},\"shards\":{shards},\
         \"qps_total\":18446744073709551615,\"qps\":[],\"links\":7}}",
        u64::MAX
    );
    for (document, answer) in
        [(&evil[..], "yes"), ("{\"version\":1}", "answers nonsense"), ("", "does not answer")]
    {
        let this = std::env::current_exe().unwrap();
        let words = [this.to_str().unwrap(), "stat_host::liar", "--exact", "--nocapture"];
        let mut command = std::process::Command::new("ip");
        let mut liar = Running::spawn(command.args(host.exec(&words)).env(LIAR, document));
        let one = wait_for(&host, liar.id(), |one| one["answer"] == answer);
        assert_eq!(one["runs"], serde_json::json!([17]));
        let shown = [&["--once"][..], &["--once", "--json"]].map(|args| stat(&host, args).good().stdout);
        for text in &shown {
            let bad = text.chars().find(|c| c.is_control() && *c != '\n');
            assert!(bad.is_none() && text.len() < 10_000, "{bad:?} in {text:?}");
            assert!(text.contains(&pid.to_string()), "{text}");
        }
        if answer == "yes" {
            assert!(shown[0].contains("?[2J?mad?") && one["resends"] == u64::MAX, "{shown:?}");
        }
        wait_for(&host, pid, |one| one["answers"] == true);
        liar.kill();
    }
}
