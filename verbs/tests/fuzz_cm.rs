//! Replays the saved inputs of the fuzz target `cm_service`, and small mutations of them, as `stack/tests/fuzz_replay.rs`
//! does for the other targets.

use sim::fuzz::replay;
use std::collections::BTreeSet;

use crate::cm_service::cm_service;

#[test]
fn fuzz_corpus_cm_service() {
    replay::replay("cm_service", |data| drop(cm_service(data)), 60);
}

// Goal: the saved inputs reach every outcome of a connection, so that mutations start close to each.
#[test]
fn the_inputs_reach_every_end_of_a_connection() {
    let reached: BTreeSet<_> = replay::corpus("cm_service").iter().flat_map(|i| cm_service(i)).collect();
    for name in [
        "RDMA_CM_EVENT_CONNECT_REQUEST",
        "RDMA_CM_EVENT_ESTABLISHED",
        "RDMA_CM_EVENT_REJECTED",
        "RDMA_CM_EVENT_UNREACHABLE",
        "RDMA_CM_EVENT_DISCONNECTED",
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        "reject_backlog_full",
        "reject_stale",
        "duplicate_req",
        "duplicate_rep",
        "duplicate_rtu",
        "duplicate_dreq",
        "duplicate_sidr",
        "mad_retransmitted",
    ] {
        assert!(reached.contains(name), "{name} is not among {reached:?}");
    }
}
