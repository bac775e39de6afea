#![no_main]

#[path = "../../../verbs/tests/cm_service/mod.rs"]
mod cm_service;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(cm_service::cm_service(data)));
