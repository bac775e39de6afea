//! `roce-icount`: counts the instructions of the hot paths under valgrind. `scripts/icount` and
//! `scripts/bench --budget` call it.

use std::process::ExitCode;

use benches::icount::valgrind::{STEPS, count, per_message, version};
use benches::icount::{budget, gate};
use benches::path::{OF_TWO, Path, SCENARIOS, scenario};

const USAGE: &str = "\
Usage: roce-icount gate FILE     compare with the counts in FILE; exit code 1 where a path grew
       roce-icount renew FILE    write what is counted now into FILE
       roce-icount differences WAS NOW    the path that grew most between two such files, and the mean of all, for a table
       roce-icount budget FILE   write the budget a packet, by stage, into FILE
       roce-icount work SCENARIO ROUNDS    what runs under valgrind";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["work", name, rounds] => work(name, rounds),
        ["gate", file] => check(file),
        ["renew", file] => renew(file),
        ["differences", was, now] => differences(was, now),
        ["budget", file] => write_budget(file),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Result<T> = std::result::Result<T, String>;

fn work(name: &str, rounds: &str) -> Result<()> {
    let scenario = scenario(name).ok_or_else(|| {
        let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
        format!("there is no scenario {name}; there are {}", names.join(", "))
    })?;
    let rounds = rounds.parse().map_err(|_| format!("{rounds:?} is no number of lists"))?;
    Path::new(&scenario).run(&scenario, rounds);
    Ok(())
}

/// The command line of this program for valgrind.
fn worker() -> Result<Vec<String>> {
    let this = std::env::current_exe().map_err(|e| format!("this program's path is unknown: {e}"))?;
    Ok(vec![this.display().to_string(), "work".into()])
}

/// The versions that the counts depend on.
fn made_with() -> Result<String> {
    let rustc = std::process::Command::new("rustc").arg("--version").output();
    let rustc = rustc.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string()).unwrap_or_default();
    Ok(format!("{}, {rustc}", version()?))
}

fn counted() -> Result<gate::Counts> {
    let work = worker()?;
    let mut counts = gate::Counts::new();
    for scenario in &SCENARIOS {
        eprintln!("counting {}", scenario.name);
        let profile = count(&work, scenario, &STEPS)?;
        for step in STEPS {
            let n = per_message(&profile, scenario, step);
            if n > 0.0 {
                counts.insert(format!("{} {step}", scenario.name), n);
            }
        }
    }
    Ok(counts)
}

/// The text of a file of counts, and the counts.
fn read(file: &str) -> Result<(String, gate::Counts)> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let counts = gate::parse(&text).map_err(|e| format!("{file}: {e}"))?;
    Ok((text, counts))
}

fn differences(was: &str, now: &str) -> Result<()> {
    let (_, was) = read(was)?;
    let (_, now) = read(now)?;
    let (path, most, mean) = gate::most(&was, &now).ok_or("the files have no path in common")?;
    println!("{path} | {most:+.1} % | {mean:+.2} %");
    Ok(())
}

fn check(file: &str) -> Result<()> {
    let made_with = made_with()?;
    let (text, expected) = read(file)?;
    let counted = counted()?;
    let mut verdict = gate::compare(&expected, &counted);
    verdict.worse.extend(gate::dearer(&counted, OF_TWO, SCENARIOS[0].name));
    for line in &verdict.better {
        println!("cheaper: {line}");
    }
    if !verdict.better.is_empty() {
        println!("Keep the gain: scripts/icount --renew, and commit {file}.");
    }
    if verdict.worse.is_empty() {
        println!("{} paths cost what they did, or less", expected.len());
        return Ok(());
    }
    let mut lines: Vec<_> = verdict.worse.iter().map(|line| format!("DEARER: {line}")).collect();
    lines.push(format!(
        "The hot paths above cost more than {file} says (tolerance {:.0} %). Find out why: `scripts/bench --budget` \
         and `git diff benches/BUDGET.md` show the stage. If the cost is worth it: `scripts/icount --renew`, and \
         commit the file with the reason.",
        100.0 * gate::TOLERANCE
    ));
    if !text.contains(&made_with) {
        lines.push(format!("The file was made with another toolchain; this one is {made_with}."));
    }
    Err(lines.join("\n"))
}

fn renew(file: &str) -> Result<()> {
    let text = gate::render(&counted()?, &made_with()?);
    std::fs::write(file, text).map_err(|e| format!("{file}: {e}"))
}

fn write_budget(file: &str) -> Result<()> {
    let (work, made_with) = (worker()?, made_with()?);
    let mut rows = Vec::new();
    for scenario in SCENARIOS.into_iter().filter(|s| s.shards == 1) {
        for side in ["requester", "responder"] {
            eprintln!("counting {} {side}", scenario.name);
            rows.push((scenario, side, budget::side(&work, &scenario, side)?));
        }
    }
    let page = budget::render(
        &rows,
        &made_with,
        "the in-process port, and through DPDK's ethdev (net_ring) where it says so",
    );
    std::fs::write(file, page).map_err(|e| format!("{file}: {e}"))
}
