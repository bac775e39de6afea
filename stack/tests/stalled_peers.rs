//! A peer whose process is stopped is not dead: over a link that reports this, nothing fails, and nothing is retransmitted.

use core::time::Duration;

use sim::node::{NodeConfig, QpConfig};
use sim::story::{A, B, Story, any};
use stack::proto::status::{WcOpcode, WcStatus, WrOpcode};
use stack::shard::counters::Counter;

const SECOND: Duration = Duration::from_secs(1);
/// 4.096 us * 2^12 = 16.8 ms.
const TIMEOUT: u8 = 12;

fn story(shows: bool, retry_cnt: u8) -> Story {
    let node = NodeConfig { sees_stalls: shows, ..NodeConfig::default() };
    let mut s = Story::on(node, |qp: &mut QpConfig| (qp.timeout, qp.retry_cnt) = (TIMEOUT, retry_cnt));
    s.receives(B, 8);
    s.put(A, 0, &[7; 4096]);
    s
}

const REQUESTS: [(WrOpcode, WcOpcode); 3] = [
    (WrOpcode::Send, WcOpcode::Send),
    (WrOpcode::RdmaWrite, WcOpcode::RdmaWrite),
    (WrOpcode::RdmaRead, WcOpcode::RdmaRead),
];

// Goal: whatever the retry limit, requests outlast a stopped peer, and are sent once.
#[test]
fn requests_wait_for_a_stopped_peer() {
    for retry_cnt in [0, 1, 7] {
        for (opcode, done) in REQUESTS {
            let mut s = story(true, retry_cnt);
            s.world.stopped = Some(B);
            for _ in 0..3 {
                s.post(A, opcode, 2000);
            }
            s.wait(30 * SECOND);
            s.expect_no_cqe(A);
            s.world.stopped = None;
            s.wait(SECOND);
            (0..3).for_each(|_| _ = s.expect_cqe(A, done, WcStatus::Success));
            let node = &s.world.nodes[A];
            assert_eq!([Counter::Timeouts, Counter::Retransmitted].map(|c| node.count(c)), [0; 2]);
            assert!(node.count(Counter::PeerStalls) > 100);
        }
    }
}

// Goal: a peer that takes every frame and does not answer counts as silent, and so does a stopped peer behind a port that cannot report it.
#[test]
fn a_silent_peer_still_uses_up_the_retries() {
    for shows in [true, false] {
        let mut s = story(shows, 2);
        match shows {
            true => s.drop_all(B, any()),
            false => s.world.stopped = Some(B),
        }
        s.post(A, WrOpcode::Send, 10);
        s.wait(SECOND);
        s.expect_cqe(A, WcOpcode::Send, WcStatus::RetryExcErr);
        let node = &s.world.nodes[A];
        assert_eq!((node.count(Counter::Timeouts), node.count(Counter::PeerStalls)), (3, 0));
    }
}
