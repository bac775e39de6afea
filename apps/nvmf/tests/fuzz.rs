//! Any bytes, at any time: see `capsules`. Seeds, and the saved inputs of the fuzz target `nvmf_capsules` with small
//! mutations of them.

use std::collections::BTreeSet;

use crate::capsules::{Found, run};
use crate::common::random::Random;
use sim::fuzz::replay::{corpus, replay};

#[test]
fn any_capsules_in_any_order_get_a_response_or_end_the_queue() {
    // More, when time is there: FUZZ_SEEDS=100000.
    let seeds = std::env::var("FUZZ_SEEDS").map_or(400, |n| n.parse().expect("FUZZ_SEEDS is a number"));
    let mut found = Found::default();
    for seed in 0..seeds {
        let run = std::panic::AssertUnwindSafe(|| run(&mut Random::of_seed(seed), &mut found));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed} failed");
            std::panic::resume_unwind(panic);
        }
    }
    if std::env::var_os("FUZZ_SEEDS").is_some() {
        eprintln!("{:#?}", found.counts);
    }
    let never: Vec<&str> =
        EXPECTED.iter().copied().filter(|&what| !found.counts.contains_key(what)).collect();
    assert!(never.is_empty(), "never seen: {never:?}; seen: {:#?}", found.counts);
}

#[test]
fn fuzz_corpus_nvmf_capsules() {
    replay("nvmf_capsules", |data| run(&mut Random::of_bytes(data), &mut Found::default()), 300);
}

// Goal: the saved inputs reach every status and every end, so that mutations start near each.
#[test]
fn the_inputs_reach_every_status() {
    let mut found = Found::default();
    for input in corpus("nvmf_capsules") {
        run(&mut Random::of_bytes(&input), &mut found);
    }
    let reached: BTreeSet<&str> = found.counts.keys().map(String::as_str).collect();
    let never: Vec<_> = EXPECTED.iter().filter(|&&what| !reached.contains(what)).collect();
    assert!(never.is_empty(), "never reached: {never:?}");
}

/// What a run must have met, or it shows little. Hosts are allowed and controllers are free here, and serial numbers
/// and the like do not depend on capsules.
#[rustfmt::skip]
const EXPECTED: &[&str] = &[
    "wait", "fetch", "give",
    "op read", "op write", "op write in capsule", "op compare", "op verify", "op write zeroes", "op deallocate", "op flush",
    "Success", "InvalidOpcode", "InvalidField", "InternalError", "AbortRequested", "InvalidNamespace",
    "CommandSequenceError", "SglLengthInvalid", "SglTypeInvalid", "SglOffsetInvalid", "WriteProtected", "LbaOutOfRange",
    "CapacityExceeded", "NamespaceNotReady", "EventLimitExceeded", "InvalidLogPage", "FeatureNotSaveable",
    "FeatureNotChangeable", "ConnectFormat", "ConnectInvalid", "ControllerUnknown", "WriteFault", "UnrecoveredReadError",
    "CompareFailure",
    "end the host sent a capsule", "end the host sent more commands", "end the host's keep alive timeout",
    "end the host did not send", "end the controller was reset, shut",
];
