//! When a program may see completions: a receive completion appears only after the acknowledgement that the sender waits for has been
//! passed to the port. The set-up is that of `rc_responder.rs`; a READ of 20 packets takes more than one turn to answer.

use std::time::Duration;

use sim::node::{CqId, QpId};
use sim::peer::{PEER_QPN, Pkt, Rig, frame, opcodes, pkt, psns};
use stack::id::{QpState, QpType};
use stack::proto::status::{WcStatus, WrOpcode};
use stack::wire::{Flow, Opcode as O};

const E: u32 = 0x100;
/// Packets of a READ response that takes more than one turn.
const LONG: u32 = 20;

fn read(rig: &Rig, psn: u32, packets: u32) -> Pkt {
    pkt(O::RC_READ_REQUEST, psn).a().reth(rig.va(0), rig.rkey(), packets * 1024)
}

fn send(psn: u32) -> Pkt {
    pkt(O::RC_SEND_ONLY, psn).a().len(4)
}

/// Another connected queue pair of the node, with `receives` receive requests; also returns its flow.
fn another(rig: &mut Rig, cq: CqId, receives: u64) -> (QpId, Flow) {
    let qp = rig.node.create_qp(0, Default::default(), cq, cq);
    rig.node.to_init(rig.now, qp);
    for wr_id in 0..receives {
        let sge = rig.node.mr(rig.recv).sge(0, 64);
        rig.node.post_recv(qp, 100 + wr_id, &[sge]).expect("an empty queue");
    }
    let peer = rig.peer_gid();
    rig.node.to_rtr(rig.now, qp, peer, PEER_QPN);
    let flow = Flow { dqpn: rig.node.qp(qp).qpn, ..rig.flow };
    assert!(rig.run().is_empty());
    (qp, flow)
}

#[test]
fn a_receive_completes_after_its_acknowledgement() {
    let mut rig = Rig::new();
    [read(&rig, E, LONG), send(E + LONG)].iter().for_each(|p| rig.inject(p));
    let said = rig.turn();
    assert!(!said.is_empty() && said.len() < LONG as usize, "part of the READ");
    assert!(rig.done().is_empty(), "its acknowledgement is not sent");
    assert_eq!(rig.node.receives_in_use(rig.qp), 16, "the program does not have the slot back");
    let said = rig.turn();
    assert!(said.last().expect("the rest").is_ack(E + LONG), "{said:?}");
    assert_eq!(rig.done(), [(0, WcStatus::Success)]);
    assert_eq!(rig.node.receives_in_use(rig.qp), 15);
}

#[test]
fn receives_that_wait_keep_their_order() {
    let mut rig = Rig::new();
    [read(&rig, E, 2 * LONG), send(E + 2 * LONG)].iter().for_each(|p| rig.inject(p));
    rig.turn();
    // No acknowledgement of this message is requested, but its completion must follow a completion that waits.
    rig.inject(&pkt(O::RC_SEND_ONLY, E + 2 * LONG + 1).len(4));
    rig.turn();
    assert!(rig.done().is_empty());
    rig.inject(&send(E + 2 * LONG + 2));
    let said = rig.turn();
    assert!(said.last().expect("the rest").is_ack(E + 2 * LONG + 2), "{said:?}");
    assert_eq!(rig.done(), [0, 1, 2].map(|n| (n, WcStatus::Success)));
}

// Goal: two receives wait, and only the first is acknowledged. Until the port takes that acknowledgement, neither completes.
#[test]
fn receives_that_wait_keep_their_order_while_the_port_is_full() {
    let mut rig = Rig::new();
    let second = E + LONG + 1;
    [read(&rig, E, LONG), send(E + LONG), read(&rig, second, 2 * LONG)].iter().for_each(|p| rig.inject(p));
    rig.turn();
    rig.node.wires[0].limit_tx(Some(0));
    // The answers of this turn acknowledge the first message, but not this one.
    rig.inject(&send(second + 2 * LONG));
    for _ in 0..4 {
        assert!(rig.turn().is_empty());
        assert!(rig.done().is_empty(), "its acknowledgement is not with the port");
    }
    rig.node.wires[0].limit_tx(None);
    let mut done = Vec::new();
    for _ in 0..8 {
        rig.turn();
        done.extend(rig.done());
    }
    assert_eq!(done, [0, 1].map(|n| (n, WcStatus::Success)));
}

#[test]
fn an_unasked_receive_waits_for_nothing() {
    let mut rig = Rig::new();
    let quiet = pkt(O::RC_SEND_ONLY, E + LONG).len(4);
    [read(&rig, E, LONG), quiet].iter().for_each(|p| rig.inject(p));
    assert!(rig.turn().len() < LONG as usize);
    assert_eq!(rig.done(), [(0, WcStatus::Success)]);
}

// Goal: a READ response also acknowledges the packets before its request; and an endless series of READs delays nothing for ever.
#[test]
fn a_read_response_releases_what_it_acknowledges() {
    let mut rig = Rig::new();
    let story = [read(&rig, E, LONG), send(E + LONG), read(&rig, E + LONG + 1, LONG)];
    story.iter().for_each(|p| rig.inject(p));
    rig.turn();
    assert!(rig.done().is_empty());
    rig.inject(&read(&rig, E + 2 * LONG + 1, LONG));
    let said = rig.turn();
    assert!(psns(&said).contains(&(E + LONG + 1)), "{said:?}");
    assert_eq!(rig.done(), [(0, WcStatus::Success)], "the second READ's response acknowledges it");
    assert!(!rig.node.shard(0, |shard| shard.quiet()), "READ responses are left");
    assert!(!opcodes(&rig.run()).contains(&O::RC_ACKNOWLEDGE));
}

// Goal: a steady load of READs and SENDs, in which some message always waits, does not fill the receive queue.
#[test]
fn what_was_seen_has_its_slot_back_while_a_later_receive_waits() {
    let mut rig = Rig::new();
    let before = rig.node.receives_in_use(rig.qp);
    let mut psn = E;
    [read(&rig, psn, LONG), send(psn + LONG)].iter().for_each(|p| rig.inject(p));
    rig.turn();
    for seen in 1..=8 {
        psn += LONG + 1;
        // The responses to this READ acknowledge the SEND before it; the SEND after it waits.
        [read(&rig, psn, LONG), send(psn + LONG)].iter().for_each(|p| rig.inject(p));
        while rig.done().is_empty() {
            assert!(!rig.turn().is_empty(), "READ responses are left");
        }
        assert!(!rig.node.shard(0, |shard| shard.quiet()), "the last SEND waits");
        assert_eq!(rig.node.receives_in_use(rig.qp), before - seen);
    }
}

#[test]
fn other_queue_pairs_are_not_held_up() {
    let mut rig = Rig::new();
    let cq = rig.cq;
    let (_, flow) = another(&mut rig, cq, 1);
    [read(&rig, E, LONG), send(E + LONG)].iter().for_each(|p| rig.inject(p));
    rig.inject_frame(&frame(&flow, &send(E)));
    rig.turn();
    assert_eq!(rig.done(), [(100, WcStatus::Success)], "the same completion queue, another queue pair");
    rig.turn();
    assert_eq!(rig.done(), [(0, WcStatus::Success)]);
}

// Goal: when the queue pair ends, waiting completions come first, and the flushed ones after them.
#[test]
fn receives_that_wait_come_before_what_is_flushed() {
    let mut rig = Rig::with(|c| c.receives = 3);
    [read(&rig, E, LONG), send(E + LONG)].iter().for_each(|p| rig.inject(p));
    rig.turn();
    assert!(rig.done().is_empty());
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).expect("any state");
    rig.turn();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(rig.done(), [(0, WcStatus::Success), (1, flushed), (2, flushed)]);
    assert_eq!(rig.node.receives_in_use(rig.qp), 0);
}

#[test]
fn receives_that_wait_end_with_the_life_of_the_queue_pair() {
    for destroy in [false, true] {
        let mut rig = Rig::new();
        [read(&rig, E, LONG), send(E + LONG)].iter().for_each(|p| rig.inject(p));
        rig.turn();
        if destroy {
            rig.node.destroy(rig.qp);
        } else {
            rig.node.modify_state(rig.now, rig.qp, QpState::Reset).expect("any state");
        }
        rig.run();
        assert!(rig.done().is_empty());
    }
}

#[test]
fn a_receive_waits_for_a_buffer_for_its_acknowledgement() {
    let mut rig = Rig::new();
    rig.node.wires[0].starve(true);
    // The shard may have a spare frame.
    let unanswered = (E..E + 16).find(|psn| {
        rig.inject(&send(*psn));
        let said = rig.turn();
        assert_eq!(rig.done().len(), said.len());
        said.is_empty()
    });
    assert!(unanswered.is_some());
    rig.node.wires[0].starve(false);
    assert_eq!(opcodes(&rig.turn()), [O::RC_ACKNOWLEDGE]);
    assert_eq!(rig.done().len(), 1);
}

// Goal: more queue pairs than a turn can answer: the receive of the last one completes with its acknowledgement, not earlier.
#[test]
fn a_receive_waits_for_room_for_its_acknowledgement() {
    let mut rig = Rig::new();
    let cq = rig.cq;
    let ends: Vec<_> = (0..70).map(|_| another(&mut rig, cq, 1).1).collect();
    let long = read(&rig, E, LONG);
    for (n, flow) in ends.iter().enumerate() {
        rig.inject_frame(&frame(flow, &long));
        if n % 30 == 29 {
            rig.turn();
        }
    }
    rig.turn();
    rig.inject(&send(E));
    let mut seen = false;
    for _ in 0..1000 {
        let acked = rig.turn().iter().any(|s| s.is_ack(E));
        assert_eq!(!rig.done().is_empty(), acked, "together, or neither");
        seen |= acked;
        if rig.node.shard(0, |shard| shard.quiet()) {
            break;
        }
    }
    assert!(seen);
}

#[test]
fn solicited_receives_that_wait_are_solicited_when_they_come() {
    let mut rig = Rig::new();
    assert_eq!(rig.node.qp(rig.qp).config.ty, QpType::Rc);
    [read(&rig, E, LONG), send(E + LONG).se()].iter().for_each(|p| rig.inject(p));
    rig.turn();
    rig.turn();
    let cqes = rig.cqes();
    assert!(cqes.len() == 1 && cqes[0].solicited, "{cqes:?}");
}

/// A queue pair in RTR whose next hop is not resolved; a SEND of the peer has arrived.
fn with_a_pending_next_hop() -> Rig {
    let mut rig = Rig::with(|c| (c.state, c.receives) = (QpState::Init, 3));
    let peer = rig.peer_gid();
    rig.node.to_rtr(rig.now, rig.qp, peer, PEER_QPN);
    rig.turn(); // requests the next hop, and the request is lost
    rig.inject(&send(E));
    assert!(rig.turn().is_empty() && rig.done().is_empty(), "no acknowledgement can leave");
    rig
}

#[test]
fn receives_wait_for_the_next_hop_of_their_acknowledgement() {
    let mut rig = with_a_pending_next_hop();
    // The peer sends the message again, and another one.
    [send(E), send(E + 1)].iter().for_each(|p| rig.inject(p));
    assert!(rig.turn().is_empty() && rig.done().is_empty());
    assert_eq!(rig.node.receives_in_use(rig.qp), 3, "the program has no slot back");
    let said = rig.wait(Duration::from_secs(2)); // requests the next hop again, and gets an answer
    assert!(said.last().expect("an answer").is_ack(E + 1), "{said:?}");
    assert_eq!(rig.done(), [0, 1].map(|n| (n, WcStatus::Success)));
    assert_eq!(rig.node.receives_in_use(rig.qp), 1);
}

// Goal: if the peer's Ethernet address is never resolved, received messages complete when the queue pair ends.
#[test]
fn receives_whose_next_hop_is_not_found_come_with_the_end() {
    let mut rig = with_a_pending_next_hop();
    for _ in 0..100 {
        rig.now = rig.now.after(Duration::from_millis(100));
        assert!(rig.turn().is_empty() && rig.done().is_empty());
    }
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).expect("any state");
    rig.turn();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(rig.done(), [(0, WcStatus::Success), (1, flushed), (2, flushed)]);
}

// Goal: an answer that waits for its next hop leaves as soon as that is resolved, even if a request of the queue pair notices it first.
#[test]
fn a_request_that_finds_the_next_hop_leaves_no_answer_behind() {
    let mut rig = Rig::with(|c| c.state = QpState::Init);
    rig.node.shard(0, |shard| shard.prefetch_from(0)); // such a shard receives first, then builds requests
    let peer = rig.peer_gid();
    rig.node.to_rtr(rig.now, rig.qp, peer, PEER_QPN);
    rig.node.to_rts(rig.now, rig.qp);
    rig.inject(&send(E));
    assert!(rig.turn().is_empty() && rig.done().is_empty());
    rig.move_peer(rig.peer_mac(), true);
    rig.node.post_send(rig.qp, &rig.wr(1, WrOpcode::RdmaWrite, 8)).expect("an empty queue");
    let said = rig.turn();
    assert!(said.iter().any(|s| s.is_ack(E)), "{said:?}");
    assert_eq!(rig.done(), [(0, WcStatus::Success)]);
}
