//! Random runs, one seed each. `SIM_SEED=<n>` runs a single seed, `SIM_SEEDS=<n>` runs n seeds, from `SIM_FIRST` on, on
//! `SIM_THREADS` threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sim::link::Fault;
use sim::swarm::Swarm;
use sim::workload::{self, Plant, Report};
use stack::id::QpType;
use stack::mark::Mark;
use stack::proto::status::WrOpcode;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Number of seeds from which on a zero in the report is a failure.
const ENOUGH: u64 = 300;
/// Marks that few seeds reach: a zero fails from [`ENOUGH_FOR_RARE`] seeds on. Tests that reach them on purpose:
/// `r52_key_invalidated_while_a_read_is_answered`, `a_replayed_read_does_not_take_the_slot_of_a_new_one` and
/// `a_nak_is_withdrawn_when_the_packet_comes`.
const RARE: [Mark; 3] = [Mark::ReadRevoked, Mark::ReplayCutOff, Mark::NakWithdrawn];
/// Number of seeds from which on a zero of a rare mark is a failure, too.
const ENOUGH_FOR_RARE: u64 = 10_000;

/// Operations that must have succeeded in a run of many seeds.
const WORK: [(QpType, WrOpcode); 28] = {
    use WrOpcode::{
        AtomicCmpAndSwp, AtomicFetchAndAdd, AtomicWrite, BindMw, Flush, LocalInv, RdmaRead, RdmaWrite,
        RdmaWriteWithImm, Send, SendWithImm, SendWithInv,
    };
    [
        (QpType::Rc, Send),
        (QpType::Rc, SendWithImm),
        (QpType::Rc, SendWithInv),
        (QpType::Rc, RdmaWrite),
        (QpType::Rc, RdmaWriteWithImm),
        (QpType::Rc, RdmaRead),
        (QpType::Rc, AtomicCmpAndSwp),
        (QpType::Rc, AtomicFetchAndAdd),
        (QpType::Rc, AtomicWrite),
        (QpType::Rc, Flush),
        (QpType::Rc, BindMw),
        (QpType::Rc, LocalInv),
        (QpType::XrcIni, Send),
        (QpType::XrcIni, SendWithImm),
        (QpType::XrcIni, SendWithInv),
        (QpType::XrcIni, RdmaWrite),
        (QpType::XrcIni, RdmaWriteWithImm),
        (QpType::XrcIni, RdmaRead),
        (QpType::XrcIni, AtomicCmpAndSwp),
        (QpType::XrcIni, AtomicFetchAndAdd),
        (QpType::XrcIni, AtomicWrite),
        (QpType::XrcIni, Flush),
        (QpType::Uc, Send),
        (QpType::Uc, SendWithImm),
        (QpType::Uc, RdmaWrite),
        (QpType::Uc, RdmaWriteWithImm),
        (QpType::Ud, Send),
        (QpType::Ud, SendWithImm),
    ]
};

// Goal: whatever the network, the ports and the programs do, the stack is safe; and once all faults end, everything completes. Each fault
// and each branch of a retry must have occurred.
#[test]
fn q60_seeds() {
    let (first, n) = match number("SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(ENOUGH)),
    };
    let threads = number("SIM_THREADS").unwrap_or(2).min(n);
    let began = Instant::now();
    let (next, sum) = (AtomicU64::new(first), Mutex::new(Report::default()));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < first + n
                {
                    match workload::run(seed) {
                        Ok(report) => sum.lock().unwrap_or_else(PoisonError::into_inner).add(&report),
                        Err(e) => {
                            next.store(first + n, Ordering::Relaxed);
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                        }
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        panic!("{failure}");
    }
    let report = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    let rate = n as f64 / began.elapsed().as_secs_f64();
    println!(
        "{n} seeds, {rate:.0}/s: {} requests, {} connections failed as allowed",
        report.completed, report.failed
    );
    let marks = Mark::ALL.iter().map(|m| (m.name(), report.marks[*m as usize]));
    let happened: Vec<_> = report.fired.iter().chain(marks).collect();
    for (name, count) in &happened {
        println!("{name:>20} {count}");
    }
    if n >= ENOUGH {
        let rare = |name: &str| n < ENOUGH_FOR_RARE && RARE.iter().any(|m| m.name() == name);
        let never: Vec<_> = happened.iter().filter(|(name, count)| *count == 0 && !rare(name)).collect();
        assert!(never.is_empty(), "in {n} seeds these never happened: {never:?}");
        assert!(report.completed > 10 * report.failed, "most requests must succeed");
        let nobody: Vec<_> = WORK.into_iter().filter(|(ty, opcode)| report.done(*ty, *opcode) == 0).collect();
        assert!(nobody.is_empty(), "in {n} seeds none of these succeeded: {nobody:?}");
    }
}

// Goal: with 1 % loss, reordering and duplication both ways, every request of a long mixed run succeeds, in order and with its data.
// `SIM_OPS` sets the number of requests; a million take a while.
#[test]
fn q60_a_long_run() {
    let ops = number("SIM_OPS").unwrap_or(20_000);
    let faults = [Fault::Loss, Fault::Reorder, Fault::Duplicate].map(|fault| (fault, 10_000));
    match workload::run_swarm(1, &Swarm::plain(ops / 2, &faults), Plant::None) {
        Ok(report) => {
            println!("{} requests, {:?} of virtual time", report.completed, report.time);
            assert_eq!((report.completed, report.failed), (ops / 2 * 2, 0));
            assert!(faults.iter().all(|(fault, _)| report.fired.get(*fault) > ops / 200));
        }
        Err(failure) => panic!("{failure}"),
    }
}

// Goal: fault names are unique.
#[test]
fn faults_are_named_once() {
    let mut names: Vec<_> = Fault::ALL.iter().map(|f| f.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Fault::ALL.len());
}

// Goal: a seed determines a run. The same seed gives the same trace, to the last line.
#[test]
fn a_seed_decides_everything() {
    for seed in 1..8 {
        let (one, two) = (workload::trace(seed), workload::trace(seed));
        assert!(one.len() > 100, "seed {seed} does something");
        assert_eq!(one.len(), two.len());
        let differs = one.iter().zip(&two).find(|(a, b)| strip(a) != strip(b));
        assert_eq!(differs, None);
    }
}

/// A line of a trace without the addresses, which differ between runs.
fn strip(line: &str) -> String {
    match line.split_once(" va: ") {
        Some((head, tail)) => format!("{head}{}", tail.split_once(',').map_or("", |t| t.1)),
        None => line.into(),
    }
}

// Goal: each checker fires on its fault, in the middle of a run. (The seeds show that each checker accepts correct runs.)
#[test]
fn checkers_notice() {
    for (plant, complaint) in [
        (Plant::TargetByte, "of a target is"),
        (Plant::Word, "a word is"),
        (Plant::Tally, "the sum is"),
        (Plant::Guard, "bytes around region"),
        (Plant::Received, "differs at byte"),
        (Plant::DoubleCompletion, "complete"),
        (Plant::LostCompletion, "complete"),
        (Plant::Leak, "did not come back"),
        (Plant::Uncounted, "by name"),
        (Plant::DeadRegion, "after it was deregistered"),
        (Plant::Unreliable, "message"),
        (Plant::UnreliableWord, "which no message wrote there"),
        (Plant::OtherQueue, "queue"),
        (Plant::Window, "lives after a LOCAL_INV"),
        (Plant::EventsIgnored, "did not flush"),
        (Plant::NoReceives, "never complete"),
    ] {
        let noticed = (1..=60).filter_map(|seed| workload::run_planted(seed, plant).err());
        let messages: Vec<String> = noticed.map(|f| f.message.clone()).take(5).collect();
        assert!(messages.len() >= 3, "{plant:?} was noticed {} times in 60 seeds", messages.len());
        assert!(messages.iter().any(|m| m.contains(complaint)), "{plant:?}: {messages:?}");
    }
}
