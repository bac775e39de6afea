//! `roce-many`: each measurement works, on a host of its own (a network namespace with only lo, which needs root), and leaves nothing
//! behind. The figures mean nothing here: there are too few processes, for too short a time.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MANY: &str = env!("CARGO_BIN_EXE_roce-many");
/// Longest time of a wait for something that must happen.
const LIMIT: Duration = Duration::from_secs(120);

/// A host; removed when the test ends.
struct Host {
    name: String,
    json: PathBuf,
}

impl Host {
    /// Creates the host; `None`, with a printed reason, if that fails.
    fn new(tag: char) -> Option<Self> {
        let name = format!("rom{tag}{}", std::process::id());
        let ip = |args: &[&str]| Command::new("ip").args(args).output().is_ok_and(|out| out.status.success());
        if ip(&["netns", "add", &name]) && ip(&["-n", &name, "link", "set", "lo", "up"]) {
            let json = std::env::temp_dir().join(format!("{name}.json"));
            return Some(Self { name, json });
        }
        let _ =
            writeln!(std::io::stderr(), "SKIPPED apps/tools/tests/many.rs: it needs root and the ip tool");
        None
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, MANY]).args(line.split(' '));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).arg("--json").arg(&self.json).output().unwrap()
    }

    /// Runs a measurement; returns its rows, which must have these operations.
    #[track_caller]
    fn rows(&self, line: &str, ops: &[&str]) -> Vec<Value> {
        let said = self.run(line);
        assert!(said.status.success(), "{line}: {said:?}");
        let text = std::fs::read_to_string(&self.json).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(
            rows.iter().map(|row| row["op"].as_str().unwrap()).collect::<Vec<_>>(),
            ops,
            "{line}: {text}"
        );
        assert_eq!(String::from_utf8_lossy(&said.stdout).lines().count(), rows.len(), "{said:?}");
        rows
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.json);
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

#[track_caller]
fn is_more_than_none(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[key].as_f64().is_some_and(|n| n > 0.0), "{key}: {row}");
    }
}

#[test]
fn each_measurement_has_its_rows() {
    let Some(host) = Host::new('m') else { return };
    for line in ["latency --others 2 --duration 50ms", "latency --memif --duration 50ms"] {
        is_more_than_none(&host.rows(line, &["send"])[0], &["p50_ns", "p999_ns", "messages"]);
    }
    let memory = host.rows("memory --links 2 --duration 200ms", &["idle_links", "busy_process"]);
    memory.iter().for_each(|row| is_more_than_none(row, &["pss_bytes"]));
    let first = host.rows("first --processes 3 --beside 1", &["send"]);
    is_more_than_none(&first[0], &["p50_ns", "p99_ns"]);
    assert_eq!(first[0]["messages"], 3, "each pair once");
    let fair = host.rows("fair --processes 3 --connections 2 --duration 200ms", &["write"]);
    is_more_than_none(&fair[0], &["jain", "msgs_per_s", "limit", "ratio"]);
    assert_eq!(fair[0]["qps"], 12);
    for row in host.rows("killed --rounds 1 --memory 1m", &["sigkill", "sigint"]) {
        is_more_than_none(&row, &["p50_ns", "messages"]);
    }
    // A request that is posted after the link has ended, to a process that no longer exists.
    for row in host.rows("killed --rounds 1 --memory 1m --late --pause 500ms", &["sigkill", "sigint"]) {
        let ns = row["p50_ns"].as_u64().unwrap();
        assert!(ns < 2_000_000_000, "that is the time of retries: {row}");
    }
    is_more_than_none(&host.rows("idle --processes 2 --duration 100ms", &["idle"])[0], &["processes"]);
}

#[test]
fn instructions_of_a_turn_are_counted() {
    let Some(host) = Host::new('t') else { return };
    if Command::new("valgrind").arg("--version").output().is_err() {
        let skipped = "SKIPPED instructions_of_a_turn_are_counted: valgrind is not installed";
        return writeln!(std::io::stderr(), "{skipped}").unwrap();
    }
    let row = &host.rows("turn --links 6 --turns 5", &["turn"])[0];
    is_more_than_none(row, &["instructions", "limit"]);
}

#[test]
fn a_failure_of_a_process_is_that_of_all() {
    let Some(host) = Host::new('f') else { return };
    let said = host.run("latency --others 1 --cores 0,4095");
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && error.contains("member 1: core 4095 is not one"), "{said:?}");
}

/// The running child processes of a process.
fn children(of: &Child) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", of.id())).unwrap_or_default();
    list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// Goal: however the parent ends, all of its processes end.
#[test]
fn processes_end_with_the_one_that_started_them() {
    let Some(host) = Host::new('e') else { return };
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let mut command = host.command("fair --processes 3 --connections 1 --duration 300s");
        let mut parent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The pair that is measured first.
        until("it starts them", || children(&parent).len() == 2);
        let started = children(&parent);
        kill_process(Pid::from_raw(parent.id() as i32).unwrap(), signal).unwrap();
        assert!(!parent.wait().unwrap().success());
        // The process is gone, or is a zombie.
        let runs = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains("(roce-many)") && !stat.contains(") Z ")
        };
        until("they end", || !started.iter().any(runs));
    }
}
