//! Replays the saved inputs of the fuzz targets for the session of `roce-perf`, and mutations of them, on stable Rust.
//!
//! `stack/fuzz/corpus/TARGET.hex` has one input per line; `FUZZ_RUNS` sets how many mutated inputs follow.

use apps::fuzz::TARGETS;
use std::fmt::Write;

/// Bytes of memory that an input may use at a time: a few of the longest lines, whatever its messages.
const MEMORY_MAX: u64 = 64 << 20;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../stack/fuzz/corpus/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
        digits.unwrap_or_else(|| panic!("{path}: {pair:?} is no byte"))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.trim().as_bytes().chunks(2).map(byte).collect()).collect()
}

fn hex(input: &[u8]) -> String {
    input.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A fixed sequence of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    let mut result = Ok(());
    let used = allocation_counter::measure(|| result = std::panic::catch_unwind(|| target(input)));
    if result.is_err() || used.bytes_max > MEMORY_MAX {
        panic!(
            "{name} fails ({} bytes at a time); this input, as a line of {name}.hex:\n{}",
            used.bytes_max,
            hex(input)
        );
    }
}

fn replay(name: &str) {
    let (_, target) = TARGETS.iter().find(|(n, _)| *n == name).expect("a target of that name");
    let inputs = corpus(name);
    assert!(inputs.len() >= 20, "{} inputs of {name}", inputs.len());
    inputs.iter().for_each(|input| run(name, *target, input));
    let runs: usize = std::env::var("FUZZ_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..runs {
        let mut input = inputs[numbers.below(inputs.len())].clone();
        let other = &inputs[numbers.below(inputs.len())];
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(input.len());
            match numbers.below(4) {
                0 if !input.is_empty() => input[at] = numbers.below(256) as u8,
                1 => input.truncate(at),
                2 => input.extend_from_slice(&other[other.len().min(at)..]),
                _ => {
                    let more: Vec<u8> = (0..numbers.below(16)).map(|_| numbers.below(256) as u8).collect();
                    drop(input.splice(at..at, more));
                }
            }
        }
        input.truncate(4096);
        run(name, *target, &input);
    }
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
