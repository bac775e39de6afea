#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::fuzz::qp_ops(data));
