//! Checks how many cores a program of this user gets, and which processes use them now.

use super::finding::{Finding, Verdict, read};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the processor time of processes is measured.
const WATCHED: Duration = Duration::from_millis(500);
/// Least share of a core for a process to be named.
const BUSY: f64 = 0.2;
/// Most processes that are named.
const NAMED: usize = 3;

pub(super) fn check(root: &Path) -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (before, began) = (processes(root), Instant::now());
    std::thread::sleep(WATCHED);
    let busy = busiest(&before, &processes(root), began.elapsed());
    let pressure = read(root, "proc/pressure/cpu");
    finding(cores, &busy, &pressure)
}

/// Processor time that each process has used so far, in ticks, with its name; by process number.
fn processes(root: &Path) -> HashMap<u32, (String, u64)> {
    let entries = std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = read(root, &format!("proc/{pid}/stat"));
        // The name is in parentheses, and may contain parentheses.
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<_> = tail.split_whitespace().collect();
        let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
        Some((pid, (name, ticks(11)? + ticks(12)?)))
    };
    entries.filter_map(of).collect()
}

/// Processes that ran between the two samples, each with the number of cores that it used; busiest first.
fn busiest(
    before: &HashMap<u32, (String, u64)>,
    after: &HashMap<u32, (String, u64)>,
    time: Duration,
) -> Vec<(String, f64)> {
    let ticks = rustix::param::clock_ticks_per_second() as f64 * time.as_secs_f64();
    let share = |(pid, (name, now)): (&u32, &(String, u64))| {
        let was = before.get(pid).map_or(*now, |(_, was)| *was);
        (name.clone(), now.saturating_sub(was) as f64 / ticks)
    };
    let mut all: Vec<_> = after.iter().map(share).filter(|(_, share)| *share >= BUSY).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn finding(cores: usize, busy: &[(String, f64)], pressure: &str) -> Finding {
    const TOPIC: &str = "cores";
    let used: f64 = busy.iter().map(|(_, share)| share).sum();
    let names: Vec<_> =
        busy.iter().take(NAMED).map(|(name, share)| format!("{name} {:.0} %", 100.0 * share)).collect();
    let mut what = format!("{cores} for this program");
    if names.is_empty() {
        what.push_str(", nothing else runs on them");
    } else {
        what.push_str(&format!(", {used:.1} in use: {}", names.join(", ")));
    }
    // some avg10=1.23 avg60=...: the share of time in which at least one task waited for a core.
    let waits = pressure.split_whitespace().find_map(|word| word.strip_prefix("avg10=")?.parse::<f64>().ok());
    if let Some(waits) = waits.filter(|waits| *waits >= 1.0) {
        what.push_str(&format!("; in the last 10 s programs waited for a core {waits:.0} % of the time"));
    }
    if cores as f64 - used >= 1.5 {
        return Finding::ok(TOPIC, what);
    }
    Finding::new(TOPIC, Verdict::Note, what)
        .advice("two ends that poll want a core each: give the others fewer cores (taskset, CPUQuota=), or use another machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_told_from_what_ran_once() {
        let at = |of: &[(u32, &str, u64)]| {
            of.iter().map(|(pid, name, ticks)| (*pid, ((*name).to_owned(), *ticks))).collect()
        };
        let before = at(&[(1, "init", 900), (2, "spin", 100)]);
        let second = rustix::param::clock_ticks_per_second();
        let after = at(&[(1, "init", 900), (2, "spin", 100 + second), (3, "new", 5000)]);
        let busy = busiest(&before, &after, Duration::from_secs(1));
        assert_eq!(busy, [("spin".to_owned(), 1.0)]);
        let one = finding(2, &busy, "some avg10=12.00 avg60=1.00 avg300=0.50 total=1\n");
        assert_eq!(one.verdict, Verdict::Note);
        assert_eq!(
            one.what,
            "2 for this program, 1.0 in use: spin 100 %; in the last 10 s programs waited for a core 12 % of the time"
        );
        assert_eq!(finding(2, &[], "").verdict, Verdict::Ok);
    }

    #[test]
    fn a_name_with_parentheses_is_read() {
        let root = std::env::temp_dir().join(format!("roce-cores-{}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/9")).unwrap();
        std::fs::write(
            root.join("proc/9/stat"),
            "9 (a (b) c) R 1 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 5 0\n",
        )
        .unwrap();
        let all = processes(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(all[&9], ("a (b) c".to_owned(), 42));
    }
}
