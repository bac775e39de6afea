//! The inputs that fuzzing found worth keeping, and small changes to them.

use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use crate::rng::Rng;

/// The kept inputs of a target.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fuzz/corpus/{name}.hex"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
        digits.unwrap_or_else(|| panic!("{}: {pair:?} is no byte", path.display()))
    };
    lines.map(|l| l.trim().as_bytes().chunks(2).map(byte).collect()).collect()
}

fn hex(input: &[u8]) -> String {
    input.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// Runs an input; a failure prints it, so that it can be kept.
fn run(name: &str, target: &impl Fn(&[u8]), input: &[u8]) {
    // What a target leaves behind when it panics is not looked at again.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        eprintln!("{name} fails; this input, as a line of stack/fuzz/corpus/{name}.hex:\n{}", hex(input));
        resume_unwind(panic);
    }
}

/// A small change, as fuzzers make them.
fn change(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    let at = rng.below(input.len() as u64 + 1) as usize;
    match rng.below(5) {
        0 if at < input.len() => input[at] = rng.next() as u8,
        1 if at < input.len() => input[at] ^= 1 << rng.below(8),
        2 => input.truncate(at),
        3 => input.extend_from_slice(&other[other.len().min(at)..]),
        _ => {
            let more = rng.below(16) as usize;
            input.splice(at..at, rng.bytes(more));
        }
    }
    input.truncate(4096);
}

/// Runs every kept input, and `runs` changed ones, or as many as `FUZZ_RUNS` sets.
pub fn replay(name: &str, target: impl Fn(&[u8]), runs: u64) {
    let inputs = corpus(name);
    assert!(inputs.len() >= 20, "{} inputs of {name}", inputs.len());
    for input in &inputs {
        run(name, &target, input);
    }
    let runs: u64 = std::env::var("FUZZ_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(runs);
    let mut rng = Rng::new(runs);
    for _ in 0..runs {
        let mut pick = || &inputs[rng.below(inputs.len() as u64) as usize];
        let (mut input, other) = (pick().clone(), pick());
        for _ in 0..rng.range(1, 4) {
            change(&mut rng, &mut input, other);
        }
        run(name, &target, &input);
    }
}
