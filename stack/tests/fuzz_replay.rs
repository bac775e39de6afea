//! Replays the inputs that fuzzing kept, and variations of them, on stable Rust.
//!
//! `stack/fuzz/corpus/TARGET.hex` has one input a line; `scripts/fuzz` finds new ones. `FUZZ_RUNS` sets the number of varied
//! inputs.

use sim::fuzz::{TARGETS, replay};

fn replay(name: &str) {
    let (_, target) = TARGETS.iter().find(|(n, _)| *n == name).expect("a target of that name");
    replay::replay(name, *target, 300);
}

#[test]
fn fuzz_corpus_wire_parse() {
    replay("wire_parse");
}

#[test]
fn fuzz_corpus_responder_bytes() {
    replay("responder_bytes");
}

#[test]
fn fuzz_corpus_completer_bytes() {
    replay("completer_bytes");
}

#[test]
fn fuzz_corpus_qp_ops() {
    replay("qp_ops");
}

#[test]
fn fuzz_corpus_modify_masks() {
    replay("modify_masks");
}

#[test]
fn fuzz_corpus_cm_bytes() {
    replay("cm_bytes");
}

#[test]
fn fuzz_corpus_net_frames() {
    replay("net_frames");
}

#[test]
fn fuzz_corpus_read_rings() {
    replay("read_rings");
}

#[test]
fn fuzz_corpus_port_names() {
    replay("port_names");
}

#[test]
fn fuzz_corpus_memif_peer() {
    replay("memif_peer");
}

#[test]
fn fuzz_corpus_host_links() {
    replay("host_links");
}

// Goal: a new target is replayed, too.
#[test]
fn every_target_is_replayed() {
    let me = include_str!("fuzz_replay.rs");
    for (name, _) in TARGETS {
        assert!(me.contains(&format!("replay(\"{name}\")")), "{name} is not replayed");
    }
}
