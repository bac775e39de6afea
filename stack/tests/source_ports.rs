//! The source ports of connections, and firewalls that take packets of a connection for a new flow.

use std::time::Duration;

use sim::link::Fate;
use sim::node::{NodeConfig, QpConfig};
use sim::story::{A, B, Story};
use stack::config::SOURCE_PORT_AGAIN;
use stack::proto::status::{WcOpcode, WcStatus, WrOpcode};
use stack::shard::counters::Counter;
use stack::wire::UDP_PORT;

/// Two hosts whose connections have source ports of their own.
fn story(change: impl FnOnce(&mut QpConfig)) -> Story {
    Story::on(NodeConfig { own_source_ports: true, qps_per_shard: 64, ..NodeConfig::default() }, change)
}

/// From node `from` to node `to`, only packets with source port 4791 pass.
fn firewall(story: &mut Story, from: usize, to: usize) {
    let rule = |seen: &sim::seen::Seen| if seen.src_port == UDP_PORT { Fate::Pass } else { Fate::Drop };
    story.world.link(from, to).rule = Some(Box::new(rule));
}

fn left(story: &Story) -> [u64; 2] {
    [A, B].map(|node| story.world.nodes[node].count(Counter::SourcePortsLeft))
}

fn timeouts(story: &Story) -> [u64; 2] {
    [A, B].map(|node| story.world.nodes[node].count(Counter::Timeouts))
}

/// Exchanges a message in each direction.
#[track_caller]
fn both_ways(story: &mut Story) {
    for node in [A, B] {
        story.receives(1 - node, 1);
        story.post(node, WrOpcode::Send, 8);
        story.wait(Duration::from_secs(2));
        story.expect_cqe(node, WcOpcode::Send, WcStatus::Success);
        story.expect_cqe(1 - node, WcOpcode::Recv, WcStatus::Success);
    }
}

#[test]
fn without_a_firewall_the_port_stays() {
    let mut story = story(|c| c.timeout = 8);
    both_ways(&mut story);
    let ports: Vec<u16> =
        [A, B].iter().flat_map(|node| story.sent(*node)).map(|seen| seen.src_port).collect();
    assert!(ports.iter().all(|port| *port >= 61_000), "{ports:?}");
    assert_eq!((left(&story), timeouts(&story)), ([0, 0], [0, 0]));
}

// A single loss does not change the port.
#[test]
fn a_loss_is_no_firewall() {
    let mut story = story(|c| c.timeout = 8);
    story.drop_nth(A, sim::story::any(), 0);
    both_ways(&mut story);
    assert_eq!(left(&story), [0, 0]);
}

// A firewall in front of either end, or of both: packets change to source port 4791, and the peer answers from that port, whatever the
// connection's own retries are.
#[test]
fn what_a_firewall_takes_for_new_leaves_from_4791() {
    for walls in [&[(B, A)][..], &[(A, B)], &[(A, B), (B, A)]] {
        for (timeout, retry_cnt) in [(8, 7), (14, 0), (14, 1), (14, 2), (20, 7), (0, 0)] {
            let mut story = story(|c| (c.timeout, c.retry_cnt) = (timeout, retry_cnt));
            walls.iter().for_each(|(from, to)| firewall(&mut story, *from, *to));
            both_ways(&mut story);
            assert_eq!(left(&story), [1, 1], "{walls:?} {timeout} {retry_cnt}");
        }
    }
}

// What is known of a host applies to its next connections; at intervals one of them checks whether it still holds.
#[test]
fn what_is_known_of_a_host_is_known_to_its_next_connections() {
    let config = || QpConfig { timeout: 14, ..Default::default() };
    let mut story = story(|c| *c = config());
    firewall(&mut story, B, A);
    both_ways(&mut story);
    let before = timeouts(&story);
    for _ in 1..SOURCE_PORT_AGAIN {
        story.ends = story.world.connected(config());
        both_ways(&mut story);
    }
    assert_eq!((left(&story)[A], timeouts(&story)), (1, before));
    story.world.link(B, A).rule = None;
    for _ in 0..2 {
        story.ends = story.world.connected(config());
        both_ways(&mut story);
    }
    assert_eq!(left(&story)[A], 1);
    let last = story.sent(A).last().map(|seen| seen.src_port);
    assert!(last.is_some_and(|port| port != UDP_PORT), "{last:?}");
}

// Packets of the peer do not prove that this end's packets arrive.
#[test]
fn a_request_of_the_peer_is_no_answer() {
    let mut story = story(|c| c.timeout = 14);
    firewall(&mut story, A, B);
    story.receives(A, 1);
    story.post(B, WrOpcode::Send, 8);
    story.receives(B, 1);
    story.post(A, WrOpcode::Send, 8);
    story.wait(Duration::from_secs(2));
    for (node, opcode) in [(A, WcOpcode::Recv), (A, WcOpcode::Send), (B, WcOpcode::Recv), (B, WcOpcode::Send)]
    {
        story.expect_cqe(node, opcode, WcStatus::Success);
    }
    assert_eq!(left(&story)[A], 1);
}

// A host that answered other source ports before is not behind such a firewall: its next queue pairs have ports of their own.
#[test]
fn a_host_that_answered_other_ports_is_not_suspected() {
    let mut story = story(|c| c.timeout = 8);
    both_ways(&mut story);
    firewall(&mut story, A, B);
    story.ends = story.world.connected(QpConfig { timeout: 8, ..Default::default() });
    both_ways(&mut story);
    assert_eq!(left(&story), [1, 1]);
    story.heal();
    story.world.link(A, B).rule = None;
    story.ends = story.world.connected(QpConfig { timeout: 8, ..Default::default() });
    both_ways(&mut story);
    assert_eq!(left(&story), [1, 1]);
    let last = story.sent(A).last().map(|seen| seen.src_port);
    assert!(last.is_some_and(|port| port != UDP_PORT), "{last:?}");
}
