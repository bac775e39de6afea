#![no_main]

#[path = "../../../verbs/tests/cm/mod.rs"]
mod cm;
#[path = "../../../verbs/tests/cm_service/mod.rs"]
mod cm_service;
#[path = "../../../verbs/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(cm_service::cm_service(data)));
