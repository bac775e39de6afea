//! Hosts of several processes, one seed a run: processes connect, talk, are killed, stopped and started. `SIM_SEED=<n>` runs one seed
//! alone, `SIM_SEEDS=<n>` so many of them, from `SIM_FIRST` on, on `SIM_THREADS` threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sim::hosts::host::Plant;
use sim::hosts::program::{self, Choices, Report};
use sim::rng::Rng;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Seeds from which on a zero in the report is a failure.
const ENOUGH: u64 = 100;

/// What has to happen in many seeds.
const HAPPENS: [&str; 22] = [
    "connected",
    "datagrams received",
    "deaths noticed",
    "disconnected",
    "disconnects",
    "ends of links",
    "established",
    "exits",
    "frames by links",
    "full rings",
    "kills",
    "links",
    "listeners closed",
    "passed on",
    "peers ended",
    "rejected",
    "requests",
    "requests repeated after their listener closed",
    "stops",
    "strayed",
    "unreachable",
    "vacant runs",
];

// Goal: whatever ends, stops or begins, each process gets what is for it, once, and whoever loses a peer learns of it.
#[test]
fn processes_of_hosts_meet_talk_and_end() {
    let (first, seeds) = match number("SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(ENOUGH)),
    };
    let threads = number("SIM_THREADS").unwrap_or(2).min(seeds);
    let (next, all, failure) = (AtomicU64::new(first), Mutex::new(Report::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < first + seeds
                {
                    match program::run(seed) {
                        Ok(report) => all.lock().unwrap_or_else(PoisonError::into_inner).merge(&report),
                        Err(why) => {
                            next.store(first + seeds, Ordering::Relaxed);
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((seed, why));
                        }
                    }
                }
            });
        }
    });
    if let Some((seed, why)) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        panic!("{why}\nSIM_SEED={seed} repeats it");
    }
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (what, n) in &all.happened {
        println!("{n:>9} {what}");
    }
    if seeds >= ENOUGH {
        let never: Vec<_> = HAPPENS.into_iter().filter(|what| all.get(what) == 0).collect();
        assert!(never.is_empty(), "in {seeds} seeds these never happened: {never:?}");
    }
}

// Goal: a seed determines a run, to the last line of its trace.
#[test]
fn a_seed_decides_everything_of_hosts() {
    for seed in 0..6 {
        let choices = Choices::draw(&mut Rng::new(seed));
        let traces = [0, 1].map(|_| program::trace(seed, &choices));
        assert!(traces[0].len() > 20, "seed {seed} does something");
        assert_eq!(traces[0], traces[1]);
    }
}

// Goal: each checker fires on its fault. (The seeds show that each accepts correct runs.)
#[test]
fn checkers_of_hosts_notice() {
    for (plant, complaint) in [
        (Plant::StaysAtTheWrongProcess, "arrives at process"),
        (Plant::PassedOnTwice, "delivered twice"),
        (Plant::EndsEarly, "frames that had arrived"),
        (Plant::EndsUntold, "has not noticed"),
        (Plant::EndsOthers, "and it has not"),
        (Plant::LeasedTwice, "is leased"),
        (Plant::RequestsAreForgotten, "when it was repeated"),
    ] {
        let noticed: Vec<String> =
            (0..100).filter_map(|seed| program::run_planted(seed, plant).err()).take(3).collect();
        assert!(noticed.len() >= 3, "{plant:?} was noticed {} times in 100 seeds", noticed.len());
        assert!(noticed.iter().any(|why| why.contains(complaint)), "{plant:?}: {noticed:?}");
    }
}

/// Two hosts whose processes come to have links late, and are killed before.
fn with_late_links() -> Choices {
    let mut choices = Choices::draw(&mut Rng::new(1));
    choices.weather.meeting = Duration::from_millis(400);
    (choices.processes, choices.kills, choices.stops, choices.starts) = (vec![4, 4], 2_000, 0, 20_000);
    choices
}

fn run_with_late_links() -> Vec<Report> {
    (0..10)
        .map(|seed| program::run_with(seed, &with_late_links()).unwrap_or_else(|why| panic!("{why}")))
        .collect()
}

// Connection management was told of a peer's end by the end of its link alone: not of that of one that ended before there was one.
#[test]
fn a_peer_that_ends_before_there_is_a_link_is_missed() {
    let reports = run_with_late_links();
    let sum = |what| reports.iter().map(|report| report.get(what)).sum::<u64>();
    let (ended, links) = (sum("peers ended"), sum("ends of links"));
    assert!(ended > 2 && ended > links, "{ended} peers have ended, and {links} links");
}

// A connection that waited for its link was looked at in each turn, and each turn left something to do: nobody slept meanwhile.
#[test]
fn nobody_is_kept_awake_while_a_link_is_made() {
    for report in run_with_late_links() {
        assert!(report.get("steps") < 10_000, "{report:?}");
    }
}
