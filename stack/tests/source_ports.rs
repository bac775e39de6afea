//! The source ports of connections, and firewalls that take them for something new.

use std::time::Duration;

use sim::link::Fate;
use sim::story::{A, B, Story};
use stack::proto::status::{WcOpcode, WcStatus, WrOpcode};
use stack::shard::counters::Counter;
use stack::wire::UDP_PORT;

/// From here to there only packets from port 4791 pass.
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

/// A message each way.
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
    let mut story = Story::with(|c| c.timeout = 8);
    both_ways(&mut story);
    let ports: Vec<u16> =
        [A, B].iter().flat_map(|node| story.sent(*node)).map(|seen| seen.src_port).collect();
    assert!(ports.iter().all(|port| *port >= 0xc000), "{ports:?}");
    assert_eq!((left(&story), timeouts(&story)), ([0, 0], [0, 0]));
}

// One loss says nothing of the port.
#[test]
fn a_loss_is_no_firewall() {
    let mut story = Story::with(|c| c.timeout = 8);
    story.drop_nth(A, sim::story::any(), 0);
    both_ways(&mut story);
    assert_eq!(left(&story), [0, 0]);
}

// Before either end, and before both: what leaves goes on from 4791, and the peer answers from there.
#[test]
fn what_a_firewall_takes_for_new_leaves_from_4791() {
    for walls in [&[(B, A)][..], &[(A, B)], &[(A, B), (B, A)]] {
        let mut story = Story::with(|c| c.timeout = 8);
        walls.iter().for_each(|(from, to)| firewall(&mut story, *from, *to));
        both_ways(&mut story);
        assert_eq!(left(&story), [1, 1], "{walls:?}");
        // What is known of a host is known to its next queue pair.
        let before = timeouts(&story);
        story.ends = story.world.connected(sim::node::QpConfig { timeout: 8, ..Default::default() });
        both_ways(&mut story);
        assert_eq!((left(&story)[A], timeouts(&story)), (1, before), "{walls:?}");
    }
}

// A host that answered other ports before has no such firewall: its next queue pairs have ports of their own.
#[test]
fn a_host_that_answered_other_ports_is_not_suspected() {
    let mut story = Story::with(|c| c.timeout = 8);
    both_ways(&mut story);
    firewall(&mut story, A, B);
    story.ends = story.world.connected(sim::node::QpConfig { timeout: 8, ..Default::default() });
    both_ways(&mut story);
    assert_eq!(left(&story), [1, 1]);
    story.heal();
    story.world.link(A, B).rule = None;
    story.ends = story.world.connected(sim::node::QpConfig { timeout: 8, ..Default::default() });
    both_ways(&mut story);
    assert_eq!(left(&story), [1, 1]);
    let last = story.sent(A).last().map(|seen| seen.src_port);
    assert!(last.is_some_and(|port| port != UDP_PORT), "{last:?}");
}
