//! Running a scenario under valgrind.

use std::path::PathBuf;
use std::process::Command;

use super::profile::Profile;
use super::stages;
use crate::path::{Op, Scenario};

/// The six steps, by the names of their functions in [`path`](crate::path).
pub const STEPS: [&str; 6] = [
    "requester_post",
    "requester_turn",
    "requester_poll",
    "responder_post",
    "responder_turn",
    "responder_poll",
];

/// Number of counted lists, of 32 messages or fewer.
pub const ROUNDS: usize = 32;

/// The version of valgrind, if it can be run here.
///
/// # Errors
/// A sentence that says how to install it.
pub fn version() -> Result<String, String> {
    let out = Command::new("valgrind").arg("--version").output();
    match out {
        Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).trim().into()),
        _ => Err("valgrind is not installed: apt-get install valgrind".into()),
    }
}

/// Counts `steps` of `scenario`. `work` is the program that runs a scenario, as `work ARGS SCENARIO ROUNDS`.
///
/// # Errors
/// A sentence, with the error of valgrind or the program.
pub fn count(work: &[String], scenario: &Scenario, steps: &[&str]) -> Result<Profile, String> {
    let out = scratch(scenario.name, steps);
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", "--compress-pos=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.args(steps.iter().map(|step| format!("--toggle-collect=benches::path::{step}*")));
    command.args(work).arg(scenario.name).arg(ROUNDS.to_string());
    let ran = command.output().map_err(|e| format!("valgrind does not start: {e}"))?;
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("{} failed under valgrind ({}):\n{said}", scenario.name, ran.status));
    }
    let text = text.map_err(|e| format!("valgrind left no profile at {}: {e}", out.display()))?;
    let profile = Profile::parse(&text, stages::known)?;
    let expected =
        |step: &str| scenario.op == Op::Send || !matches!(step, "responder_post" | "responder_poll");
    match steps.iter().find(|step| expected(step) && profile.of(&path_of(step)) == 0) {
        Some(step) => Err(format!(
            "{}: nothing was counted in {step}; was it inlined, or merged with its like?",
            scenario.name
        )),
        None => Ok(profile),
    }
}

/// Instructions per message of one step, including its callees.
pub fn per_message(profile: &Profile, scenario: &Scenario, step: &str) -> f64 {
    profile.of(&path_of(step)) as f64 / messages(scenario)
}

/// Number of counted messages.
pub fn messages(scenario: &Scenario) -> f64 {
    (ROUNDS * scenario.batch) as f64
}

fn path_of(step: &str) -> String {
    format!("benches::path::{step}")
}

fn scratch(name: &str, steps: &[&str]) -> PathBuf {
    let steps = if steps.len() == 1 { steps[0] } else { "all" };
    std::env::temp_dir().join(format!("roce-icount-{}-{name}-{steps}.out", std::process::id()))
}
