//! Random runs, one a seed. `SIM_SEED=<n>` runs one seed alone, `SIM_SEEDS=<n>` so many of them, from
//! `SIM_FIRST` on.

use stack::sim::link::{Fault, Fired};
use stack::sim::workload::{self, Plant};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

// Goal: whatever the network does, the stack is safe; and once it is healed, everything ends.
#[test]
fn q60_seeds() {
    let (first, n) = match number("SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(300)),
    };
    let (mut fired, mut completed, mut failed) = (Fired::default(), 0, 0);
    for seed in first..first + n {
        match workload::run(seed) {
            Ok(report) => {
                fired.add(&report.fired);
                completed += report.completed;
                failed += report.failed;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{n} seeds: {completed} requests, {failed} queue pairs failed as allowed");
    for (name, count) in fired.iter() {
        println!("{name:>16} {count}");
    }
    if n >= 100 {
        for fault in Fault::ALL {
            assert!(fired.get(*fault) > 0, "{} never happened in {n} seeds", fault.name());
        }
        assert!(completed > 10 * failed, "most requests must succeed");
    }
}

// Goal: a seed is a run. The same seed gives the same trace, to the last line.
#[test]
fn a_seed_decides_everything() {
    for seed in [1, 2, 3] {
        let (one, two) = (workload::trace(seed), workload::trace(seed));
        assert!(one.len() > 100, "seed {seed} does something");
        assert_eq!(one.len(), two.len());
        let differs = one.iter().zip(&two).find(|(a, b)| strip(a) != strip(b));
        assert_eq!(differs, None);
    }
}

/// A line of a trace without the addresses that the machine chose.
fn strip(line: &str) -> String {
    match line.split_once(" va: ") {
        Some((head, tail)) => format!("{head}{}", tail.split_once(',').map_or("", |t| t.1)),
        None => line.into(),
    }
}

// Goal: each checker fires on what it is there for.
#[test]
fn checkers_notice() {
    for (plant, complaint) in [
        (Plant::TargetByte, "of a target is"),
        (Plant::Guard, "bytes around region"),
        (Plant::Received, "differs at byte"),
        (Plant::DoubleCompletion, "complete"),
        (Plant::LostCompletion, "complete"),
        (Plant::Leak, "did not come back"),
    ] {
        let noticed = (0..20).filter_map(|seed| workload::run_planted(seed, plant).err());
        let messages: Vec<String> = noticed.map(|f| f.message.clone()).collect();
        assert!(messages.len() >= 5, "{plant:?} was noticed {} times in 20 seeds", messages.len());
        assert!(messages.iter().any(|m| m.contains(complaint)), "{plant:?}: {messages:?}");
    }
}
