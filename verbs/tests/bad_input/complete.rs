//! Completeness: compares the calls and errors in the sources with the tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::bench::Case;

fn cases() -> impl Iterator<Item = &'static Case> {
    use super::{device, inside, memory, post, qp, queues, xrc};
    let tables =
        [device::CASES, inside::CASES, memory::CASES, post::CASES, qp::CASES, queues::CASES, xrc::CASES];
    tables.into_iter().flatten()
}

/// Each error type, and the file that has it.
const ERRORS: &[(&str, &str)] = &[
    ("VerbsError", "verbs/src/error.rs"),
    ("BindError", "verbs/src/error.rs"),
    ("PostErrorKind", "verbs/src/error.rs"),
    ("OpenError", "stack/src/device/error.rs"),
    ("DeviceError", "stack/src/device/error.rs"),
    ("ModifyError", "stack/src/proto/state.rs"),
    ("AvError", "stack/src/proto/address.rs"),
    ("MemError", "stack/src/mem/table.rs"),
    ("NetConfigError", "stack/src/net/config.rs"),
    ("PortError", "stack/src/port/error.rs"),
];

/// Variants that hold an error of another type, whose variants are in the tables.
const WRAPPERS: &[&str] = &[
    "VerbsError::Open",
    "VerbsError::Device",
    "VerbsError::Post",
    "VerbsError::Bind",
    "VerbsError::Cm",
    "PostErrorKind::Bind",
    "OpenError::Port",
    "OpenError::Net",
    "DeviceError::Address",
    "DeviceError::Port",
    "DeviceError::Modify",
    "DeviceError::Ah",
    "ModifyError::Av",
    "DeviceError::Memory",
];

/// Calls and errors that are in no table, each with its test: a file, and a function in it.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    // Raw memory, where tests may be unsafe.
    ("VerbsError::BadAddress", "verbs/src/mr.rs", "raw_memory_must_exist_with_its_rights"),
    ("VerbsError::ReadOnly", "verbs/src/mr.rs", "raw_memory_must_exist_with_its_rights"),
    ("Pd::reg_mr_raw", "verbs/src/mr.rs", "raw_memory_must_exist_with_its_rights"),
    ("Mr::rereg_raw", "verbs/src/mr.rs", "raw_memory_is_registered_again"),
    ("Mr::rereg_in_place_raw", "verbs/src/mr.rs", "raw_memory_is_registered_again"),
    ("Pd::reg_mr_iova_raw", "verbs/src/mr.rs", "raw_memory_is_checked_and_used"),
    // A child process.
    ("DeviceError::Forked", "verbs/tests/fork.rs", "calls_in_a_fork_fail_with_an_error"),
    // Limits of a process: a separate process.
    ("DeviceError::Descriptor", "verbs/tests/exhaustion.rs", "no_file_descriptor"),
    ("Context::create_comp_channel", "verbs/tests/exhaustion.rs", "no_file_descriptor"),
    ("Context::async_fd", "verbs/tests/exhaustion.rs", "no_file_descriptor"),
    ("XrcdOwner::new", "verbs/tests/exhaustion.rs", "no_file_descriptor"),
    ("OpenError::Thread", "verbs/tests/exhaustion.rs", "no_thread"),
    // Below verbs, whose calls cannot return it.
    ("NetConfigError::Mac", "verbs/tests/bad_input/device.rs", "ports"),
    ("MemError::UnknownKey", "stack/src/mem/table.rs", "revoked_once_reclaimed_once"),
    ("MemError::Bound", "stack/src/mem/variable.rs", "a_region_stays_as_long_as_its_windows"),
    ("PortError::Spec", "verbs/tests/bad_input/device.rs", "ports"),
    ("PortError::NoDpdk", "verbs/tests/bad_input/device.rs", "ports"),
    // Only in builds with DPDK.
    ("PortError::Eal", "verbs/tests/lazy.rs", "the_first_queue_pair_starts_the_port"),
    // Full tables of keys: tested through the device API, in the table of that module.
    ("Pd::alloc_mw", "verbs/tests/bad_input/memory.rs", "calls_of_memory"),
    ("Pd::alloc_null_mr", "verbs/tests/bad_input/memory.rs", "calls_of_memory"),
    // An error that is no refusal.
    ("AtomicWord::compare_exchange", "verbs/tests/lifecycle.rs", "copies_in_and_out_of_a_region"),
    // Errors after a panic.
    ("DeviceError::ShardDied", "verbs/tests/sound.rs", "a_panic_anywhere_in_a_turn_is_the_end_of_the_shard"),
    (
        "PostErrorKind::ShardDied",
        "verbs/tests/sound.rs",
        "a_panic_anywhere_in_a_turn_is_the_end_of_the_shard",
    ),
    ("Qp::state", "verbs/tests/sound.rs", "a_panic_anywhere_in_a_turn_is_the_end_of_the_shard"),
    (
        "DeviceError::ServiceDied",
        "verbs/src/rdma_cm/service.rs",
        "a_panic_in_connection_management_is_reported",
    ),
    // The same errors as those of the calls that begin a drain.
    ("Drain::try_finish", "verbs/tests/errno.rs", "control_calls_from_inside_a_turn"),
];

/// Errors that cannot be caused, or that do not occur, and why.
const NEVER: &[(&str, &str)] = &[
    ("OpenError::Random", "the operating system gives random numbers"),
    ("DeviceError::Random", "the operating system gives random numbers"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// A source file without its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.split("#[cfg(test)]").next().unwrap_or_default().to_string()
}

fn name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The variants of an enum.
fn variants(error: &str, file: &str) -> Vec<String> {
    let text = code(&root().join(file));
    let (_, body) = text
        .split_once(&format!("pub enum {error} {{\n"))
        .unwrap_or_else(|| panic!("{file} has no enum {error}"));
    let (body, _) = body.split_once("\n}").expect("it ends");
    // Variants are indented by one level.
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .filter(|line| line.starts_with(char::is_uppercase))
        .map(|l| format!("{error}::{}", name(l)))
        .collect()
}

/// Public methods in a directory that return a `Result`.
fn calls(dir: &str) -> Vec<String> {
    let mut calls = Vec::new();
    for entry in fs::read_dir(root().join(dir)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let text = code(&path);
        let (mut of, mut rest) = ("", text.as_str());
        while let Some(line) = rest.lines().next() {
            if let Some(head) = line.strip_prefix("impl") {
                let head = head.split_once("> ").filter(|_| head.starts_with('<')).map_or(head, |(_, h)| h);
                of = name(head.trim_start());
            }
            let function = line.trim_start().strip_prefix("pub ").and_then(|l| {
                let l = l.trim_start_matches("const ").trim_start_matches("unsafe ");
                l.strip_prefix("fn ")
            });
            if let Some(function) = function {
                let signature = rest.split('{').next().unwrap_or_default();
                if signature.contains("-> Result<") {
                    calls.push(format!("{of}::{}", name(function)));
                }
            }
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
    }
    calls
}

/// All names that have a test, or a reason for having none.
fn known(of: impl Fn(&'static Case) -> &'static str) -> BTreeSet<&'static str> {
    let elsewhere = ELSEWHERE.iter().map(|(what, ..)| *what);
    cases().map(of).chain(elsewhere).chain(NEVER.iter().map(|(what, _)| *what)).collect()
}

#[test]
fn every_error_has_its_case() {
    let known = known(|case| case.variant);
    let mut all = BTreeSet::new();
    for (error, file) in ERRORS {
        let variants = variants(error, file);
        assert!(variants.len() > 3, "{error}: {variants:?}");
        all.extend(variants.into_iter().filter(|v| !WRAPPERS.contains(&v.as_str())));
    }
    let missing: Vec<_> = all.iter().filter(|v| !known.contains(v.as_str())).collect();
    assert!(missing.is_empty(), "variants without a case: {missing:#?}");
    let gone: Vec<_> = cases().map(|c| c.variant).filter(|v| !all.contains(*v)).collect();
    assert!(gone.is_empty(), "cases of variants that do not exist: {gone:?}");
}

#[test]
fn every_call_has_its_case() {
    let (known, calls) = (known(|case| case.call), calls("verbs/src"));
    assert!(calls.len() > 100, "{}", calls.len());
    let missing: Vec<_> = calls.iter().filter(|c| !known.contains(c.as_str())).collect();
    assert!(missing.is_empty(), "calls without a case: {missing:#?}");
    let gone: Vec<_> = cases().map(|c| c.call).filter(|c| !calls.iter().any(|call| call == c)).collect();
    assert!(gone.is_empty(), "cases of calls that do not exist: {gone:?}");
}

// Calls of connection management are tested in `rdma_cm_input.rs`. A refusal of a newer call may be in another file of `rdma_cm*.rs` or,
// for a missing descriptor, in `exhaustion.rs`.
#[test]
fn every_call_of_connection_management_has_its_case() {
    let tests = fs::read_dir(root().join("verbs/tests")).unwrap().map(|entry| entry.unwrap().path());
    let of_cm = |path: &PathBuf| {
        path.file_name().is_some_and(|n| {
            let n = n.to_string_lossy();
            n.starts_with("rdma_cm") || n == "exhaustion.rs"
        })
    };
    let read = |path: PathBuf| (path.ends_with("rdma_cm_input.rs"), fs::read_to_string(path).unwrap());
    let tests: Vec<_> = tests.filter(of_cm).map(read).collect();
    let calls = calls("verbs/src/rdma_cm");
    assert!(calls.len() > 20, "{}", calls.len());
    let missing: Vec<_> = calls
        .iter()
        .filter(|call| {
            let function = format!("{call}(");
            let method = format!(".{}(", call.split_once("::").expect("a method").1);
            let called = |text: &str| text.contains(&method) || text.contains(&function);
            let refused =
                |line: &str| called(line) && (line.contains("refused(") || line.contains("no_descriptor("));
            !tests.iter().any(|(input, text)| *input && called(text) || text.lines().any(refused))
        })
        .collect();
    assert!(missing.is_empty(), "calls without a case: {missing:#?}");
}

// The same for errors of connection management: tests name the expected variant. Errors of the machine below verbs are tested there.
#[test]
fn every_error_of_connection_management_has_its_case() {
    let tests = |dir: &str, prefix: &str| {
        let files = fs::read_dir(root().join(dir)).unwrap().map(|entry| entry.unwrap().path());
        let ours = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix));
        ours.map(|path| fs::read_to_string(path).unwrap()).collect::<String>()
    };
    let (calls, machine) = (tests("verbs/tests", "rdma_cm"), tests("stack/tests", "cm_"));
    let ports = fs::read_to_string(root().join("verbs/src/rdma_cm/ports.rs")).unwrap();
    let unit = ports.split_once("#[cfg(test)]").expect("it has tests").1;
    let mut missing = Vec::new();
    for variant in variants("CmError", "verbs/src/rdma_cm/error.rs") {
        let quoted = format!("\"{}\"", variant.split_once("::").expect("a variant").1);
        // The machine's errors are checked below.
        if !calls.contains(&quoted) && !unit.contains(&variant) && variant != "CmError::Machine" {
            missing.push(variant);
        }
    }
    let expected = |variant: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
        machine.split(variant).skip(1).any(ends)
    };
    missing.extend(variants("Error", "stack/src/cm/error.rs").into_iter().filter(|v| !expected(v)));
    assert!(missing.is_empty(), "variants without a case: {missing:#?}");
}

#[test]
fn what_is_tested_elsewhere_is() {
    for (what, file, test) in ELSEWHERE {
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text.contains(&format!("fn {test}()")), "{what}: there is no test {test} in {file}");
    }
    // An entry in NEVER must not have a case.
    for case in cases() {
        let excused = NEVER.iter().find(|(what, _)| *what == case.variant || *what == case.call);
        assert!(excused.is_none(), "{excused:?} has a case");
    }
}
