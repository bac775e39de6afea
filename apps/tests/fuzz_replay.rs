//! Replays the saved inputs of the fuzz targets for the session of `roce-perf`, and mutations of them, on stable Rust.
//!
//! `stack/fuzz/corpus/TARGET.hex` has one input per line; `FUZZ_RUNS` sets how many mutated inputs follow.

use apps::fuzz::TARGETS;

/// Bytes of memory that an input may use at a time: a few of the longest lines, whatever its messages.
const MEMORY_MAX: u64 = 64 << 20;

fn replay(name: &str) {
    let (_, target) = TARGETS.iter().find(|(n, _)| *n == name).expect("a target of that name");
    let frugal = |input: &[u8]| {
        let used = allocation_counter::measure(|| target(input)).bytes_max;
        assert!(used <= MEMORY_MAX, "{used} bytes at a time");
    };
    sim::fuzz::replay::replay(name, frugal, 300);
}

#[test]
fn fuzz_corpus_session_bytes() {
    replay("session_bytes");
}

// Goal: a new target is replayed too.
#[test]
fn every_target_is_replayed() {
    let me = include_str!("fuzz_replay.rs");
    for (name, _) in TARGETS {
        assert!(me.contains(&format!("replay(\"{name}\")")), "{name} is not replayed");
    }
}
