//! Signals: a program ends at the first one, whatever it does.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use verbs::stats::Snapshot;

use crate::common::{PATIENCE, Running, Scratch};

// Goal: a load that would go on for an hour ends at once, and says by its exit code why.
#[test]
fn a_load_ends_with_one_signal() {
    let scratch = Scratch::new("signal");
    let path = |name: &str| scratch.path().with_file_name(name).display().to_string();
    let (port, control, stats) = (format!("memif:{}", path("m")), path("control"), path("stats"));
    let start = |program: &str, words: &[&str]| {
        Running(Command::new(program).args(words).stdout(Stdio::null()).spawn().unwrap())
    };
    let since = Instant::now();
    let rest = || {
        assert!(since.elapsed() < PATIENCE, "no load, or no end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let serve = ["serve", "--memory", "1m", "--port", &port, "--control", &control];
    let _target = start(env!("CARGO_BIN_EXE_roce-nvmf"), &serve);
    let run = ["run", "--time", "3600s", "--port", &port, &format!("--stats={stats}")];
    let mut load = loop {
        // Where the target does not listen yet, the host ends, and is started again.
        let mut load = start(env!("CARGO_BIN_EXE_roce-nvmf-perf"), &run);
        let under_load = || {
            let shown = Snapshot::fetch(stats.as_ref());
            shown.is_ok_and(|shown| shown.qps.iter().any(|qp| qp.counters.get("send_messages") > Some(&1000)))
        };
        while load.0.try_wait().unwrap().is_none() && !under_load() {
            rest();
        }
        if load.0.try_wait().unwrap().is_none() {
            break load;
        }
    };
    kill_process(Pid::from_child(&load.0), Signal::TERM).unwrap();
    let end = loop {
        match load.0.try_wait().unwrap() {
            Some(end) => break end,
            None => rest(),
        }
    };
    assert_eq!(end.code(), Some(130));
}
