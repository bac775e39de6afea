//! The inputs of a fuzz target that are kept, and small changes to them.

use std::fmt::Write as _;

use super::random::Random;

/// The kept inputs: a line of hexadecimal digits each.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../stack/fuzz/corpus/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
        digits.unwrap_or_else(|| panic!("{path}: {pair:?} is no byte"))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.trim().as_bytes().chunks(2).map(byte).collect()).collect()
}

/// Runs an input; a failure prints it, so that it can be kept.
fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        let hex = input.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        eprintln!("{name} fails; this input, as a line of stack/fuzz/corpus/{name}.hex:\n{hex}");
        std::panic::resume_unwind(panic);
    }
}

/// Runs every kept input, and `runs` changed ones, or as many as `FUZZ_RUNS` says.
pub fn replay(name: &str, target: fn(&[u8]), runs: u64) {
    let inputs = corpus(name);
    assert!(inputs.len() >= 20, "{} inputs of {name}", inputs.len());
    inputs.iter().for_each(|input| run(name, target, input));
    let runs = std::env::var("FUZZ_RUNS").map_or(runs, |n| n.parse().expect("FUZZ_RUNS is a number"));
    let mut random = Random::of_seed(runs);
    for _ in 0..runs {
        let mut input = random.pick(&inputs).clone();
        for _ in 0..=random.below(3) {
            let at = random.below(input.len() as u64 + 1) as usize;
            match random.below(4) {
                0 if at < input.len() => input[at] = random.next() as u8,
                1 => input.truncate(at),
                2 => {
                    let other = random.pick(&inputs);
                    input.extend_from_slice(&other[other.len().min(at)..]);
                }
                _ => {
                    let more: Vec<u8> = (0..random.below(16)).map(|_| random.next() as u8).collect();
                    drop(input.splice(at..at, more));
                }
            }
        }
        input.truncate(4096);
        run(name, target, &input);
    }
}
