#![no_main]

#[path = "../../../apps/nvmf/tests/capsules/mod.rs"]
mod capsules;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../../apps/nvmf/tests/common/mod.rs"]
mod common;

use common::random::Random;

libfuzzer_sys::fuzz_target!(|data: &[u8]| capsules::run(&mut Random::of_bytes(data), &mut capsules::Found::default()));
