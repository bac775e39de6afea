//! No panic and no unwinding crosses the border: every function that C calls runs its work in a guard.
//!
//! Looks at the sources, because a panic is a bug that no test can ask for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What a function does its work in (`guard`, `wait`), or another function of C that does so.
const GUARDS: &[&str] = &[
    "returning_errno(",
    "returning_minus_one(",
    "returning_pointer(",
    "uncancelled(",
    "guarded(",
    "returning_zero(",
    "until(",
    "complete(",
    "create(",
    "next(",
    "posted(",
    "post_send(",
    "post_recv(",
    "post_srq_recv(",
    "query_port(",
    "no_completion(",
    "build(",
    "port_of(",
];
/// Functions without a guard: they return a constant, look a number up in a table, or are a call of libc (`poll` of `wait.rs`).
const CANNOT_PANIC: &[&str] = &[
    "poll",
    "ibv_wc_status_str",
    "ibv_event_type_str",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_wr_opcode_str",
    "ibv_rate_to_mult",
    "mult_to_ibv_rate",
    "ibv_rate_to_mbps",
    "mbps_to_ibv_rate",
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    "ibv_dontfork_range",
    "ibv_dofork_range",
    "ibv_get_sysfs_path",
    "ibv_query_qp_data_in_order",
    "rdma_event_str",
    "rpoll",
    "repoll_create",
    "repoll_ctl",
    "repoll_wait",
    "$name",
    // Free what a call has made.
    "ibv_free_device_list",
    "rdma_freeaddrinfo",
    // Runs in a forked child, before anything else: it adds to a number.
    "forked",
    // Looks whether the library was used; the rest of it is guarded.
    "at_the_end",
];

fn sources(dir: &Path, to: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, to),
            false if path.extension().is_some_and(|ext| ext == "rs") => to.push(path),
            false => {}
        }
    }
}

/// Functions of C in a source text: each name, and its body.
fn functions(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("extern \"C") {
        let rest = &text[at..];
        let Some((_, after)) = rest.split_once("\" ") else { continue };
        let Some(after) = after.strip_prefix("fn ") else { continue };
        let name = after.split(['(', '<']).next().unwrap_or_default();
        let Some(open) = after.find('{') else { continue };
        // A prototype of a function of libc ends before any body.
        if after.find(';').is_some_and(|end| end < open) {
            continue;
        }
        let mut depth = 0;
        let body = after[open..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        found.push((name, &after[open..open + body.expect("braces match")]));
    }
    found
}

#[test]
fn every_function_that_c_calls_is_guarded() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let (mut guarded, mut plain) = (0, BTreeSet::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (name, body) in functions(&text) {
            if GUARDS.iter().any(|guard| body.contains(guard)) {
                guarded += 1;
            } else {
                plain.insert(name.to_string());
            }
        }
    }
    let unexpected: Vec<_> = plain.iter().filter(|name| !CANNOT_PANIC.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "no guard in {unexpected:?}");
    assert!(guarded > 100, "only {guarded} functions were found");
}

#[test]
fn a_function_without_a_guard_is_found() {
    let text = "unsafe extern \"C\" { fn poll(fds: i32) -> i32; }\nextern \"C\" fn ibv_x(a: u32) -> i32 {\n    if a > 1 { 1 } else { 2 }\n}\nextern \"C-unwind\" fn y() { until() }";
    let found = functions(text);
    assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["ibv_x", "y"]);
    assert!(!GUARDS.iter().any(|guard| found[0].1.contains(guard)));
    assert!(found[1].1.contains("until("));
}
