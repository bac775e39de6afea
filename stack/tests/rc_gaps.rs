//! Packets that arrive before a missing one: they are held for a while, and the missing packet is requested again if it does not arrive.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use sim::link::Fate;
use sim::peer::{Pkt, Rig, RigConfig, ack, pkt, psns};
use sim::rng::Rng;
use sim::seen::Seen;
use sim::story::{A, B, Story};
use stack::config::{GAP_LONGEST, GAP_SHORTEST, HELD_FOR, HELD_PER_QP};
use stack::id::QpState;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::proto::tables::NakCode::PsnSequenceError;
use stack::proto::tables::ack_timeout;
use stack::shard::counters::Counter;
use stack::time::Instant;
use stack::wire::{Discard, Opcode as O};

/// The number expected first.
const E: u32 = 0x1000;

fn rig() -> Rig {
    Rig::with(|c: &mut RigConfig| c.qp.rq_psn = E)
}

/// A time after which the peer has been sent a NAK for a gap: a timer fires up to a tick late.
const TOLD: Duration = GAP_LONGEST.saturating_add(Duration::from_micros(5));

/// A SEND of one packet that requests no acknowledgement.
fn send(psn: u32) -> Pkt {
    pkt(O::RC_SEND_ONLY, psn).len(4)
}

fn held(rig: &Rig) -> u64 {
    rig.node.counters().get(Counter::PacketsHeld)
}

#[track_caller]
fn is_one_nak(said: &[Seen], psn: u32) {
    assert!(said.len() == 1 && said[0].is_nak(psn, PsnSequenceError), "{said:?}");
}

#[test]
fn a_packet_that_is_late_costs_nothing() {
    let mut rig = rig();
    assert!(rig.send_all(&[send(E + 2), send(E + 1).a()]).is_empty());
    assert!(rig.wait(GAP_LONGEST / 2).is_empty());
    let said = rig.send(&send(E));
    assert!(said.len() == 1 && said[0].is_ack(E + 1), "{said:?}");
    assert_eq!(rig.done().len(), 3);
    assert!(rig.wait(2 * HELD_FOR).is_empty());
    assert_eq!(
        (held(&rig), rig.node.counters().get(Counter::NaksSent), rig.node.counters().drops()),
        (2, 0, 0)
    );
}

// A READ takes several sequence numbers, and an atomic must not be executed twice: both are held like any request.
#[test]
fn requests_of_every_kind_are_held_and_answered_in_order() {
    let mut rig = rig();
    let (va, rkey) = (rig.va(0), rig.rkey());
    let requests = [
        send(E),
        pkt(O::RC_READ_REQUEST, E + 1).a().reth(va, rkey, 3000),
        pkt(O::RC_FETCH_ADD, E + 4).a().atomic(va, rkey, 1, 0),
        pkt(O::RC_WRITE_FIRST, E + 5).reth(va + 8, rkey, 2000).len(1024),
        pkt(O::RC_WRITE_LAST, E + 6).a().len(976),
    ];
    for at in [3, 1, 4, 2] {
        assert!(rig.send(&requests[at]).is_empty(), "{at}");
    }
    let said = rig.send(&requests[0]);
    assert_eq!(psns(&said), [E + 1, E + 2, E + 3, E + 4, E + 6]);
    assert_eq!(said[3].opcode, O::RC_ATOMIC_ACKNOWLEDGE);
    assert!(said[4].is_ack(E + 6));
}

// Goal: after three packets behind the gap the missing one is awaited for the time in which sixteen arrive. Here three arrive at once.
#[test]
fn the_peer_is_told_sooner_the_more_packets_come() {
    let mut rig = rig();
    rig.send_all(&[send(E + 1), send(E + 2)]);
    assert!(rig.wait(GAP_LONGEST / 2).is_empty());
    is_one_nak(&rig.send(&send(E + 3)).into_iter().chain(rig.wait(TOLD)).collect::<Vec<_>>(), E);
    let mut rig = self::rig();
    rig.send_all(&[send(E + 1), send(E + 2), send(E + 3)]);
    // The wheel rounds up to its tick.
    is_one_nak(&rig.wait(2 * GAP_SHORTEST), E);
}

// A requester that goes back sends everything again, and gets an acknowledgement for each request.
#[test]
fn what_was_held_is_a_duplicate_when_it_comes_again() {
    let mut rig = rig();
    let all: Vec<Pkt> = (0..8).map(|n| send(E + n).a()).collect();
    assert!(rig.send_all(&all[1..]).is_empty());
    is_one_nak(&rig.wait(TOLD), E);
    let said = rig.send(&all[0]);
    assert!(said.len() == 1 && said[0].is_ack(E + 7), "{said:?}");
    for again in &all[1..] {
        assert!(rig.send(again)[0].is_ack(E + 7));
    }
    assert_eq!(rig.done().len(), 8, "each once");
}

// A packet that is sent again while it is held replaces the first copy: it may request an acknowledgement that the first did not.
#[test]
fn a_held_packet_that_comes_again_takes_its_place() {
    let mut rig = rig();
    rig.send_all(&[send(E + 1), send(E + 1).a()]);
    let said = rig.send(&send(E));
    assert!(said.len() == 1 && said[0].is_ack(E + 1), "{said:?}");
    assert_eq!((rig.done().len(), rig.node.discarded(Discard::Duplicate)), (2, 1));
}

#[test]
fn after_the_missing_packet_there_may_be_another_gap() {
    let mut rig = rig();
    rig.send_all(&[send(E + 1), send(E + 4)]);
    assert!(rig.send(&send(E)).is_empty());
    assert_eq!(rig.done().len(), 2);
    is_one_nak(&rig.wait(TOLD), E + 2);
    rig.send_all(&[send(E + 2), send(E + 3)]);
    assert_eq!(rig.done().len(), 3);
}

// A peer that got a NAK for one gap also resends what is missing in the next one. It gets a NAK for that gap only if it does not resend.
#[test]
fn of_two_losses_in_a_window_one_is_told() {
    let mut rig = rig();
    rig.send_all(&[1, 2, 3, 4, 6, 7, 8].map(|n| send(E + n)));
    is_one_nak(&rig.wait(TOLD), E);
    rig.send(&send(E));
    assert_eq!(rig.done().len(), 5);
    assert!(rig.wait(GAP_LONGEST / 2).is_empty());
    for n in 1..5 {
        rig.send(&send(E + n));
    }
    let said = rig.send(&send(E + 5).a());
    assert!(said.iter().all(|s| s.is_ack(E + 5)) && !said.is_empty(), "{said:?}");
    assert_eq!((rig.done().len(), rig.node.counters().get(Counter::NaksSent)), (4, 1));
}

// A packet with a sequence number inside a READ's range can only be forged.
#[test]
fn what_a_read_has_stepped_over_is_dropped_by_name() {
    let mut rig = rig();
    let (va, rkey) = (rig.va(0), rig.rkey());
    rig.send_all(&[send(E + 2), send(E + 3).a()]);
    let said = rig.send(&pkt(O::RC_READ_REQUEST, E).a().reth(va, rkey, 3000));
    assert_eq!(psns(&said), [E, E + 1, E + 2, E + 3]);
    assert_eq!((rig.done().len(), rig.node.discarded(Discard::OutOfSequence)), (1, 1));
}

#[test]
fn what_is_held_ends() {
    let mut rig = rig();
    let far: Vec<Pkt> = (1..=HELD_PER_QP + 3).map(|n| send(E + n)).collect();
    rig.send_all(&far);
    assert_eq!((held(&rig), rig.node.discarded(Discard::OutOfSequence)), (u64::from(HELD_PER_QP), 3));
    is_one_nak(&rig.wait(HELD_FOR + Duration::from_millis(1)), E);
    assert_eq!(rig.node.discarded(Discard::OutOfSequence), u64::from(HELD_PER_QP) + 3);
    assert!(rig.send(&send(E).a())[0].is_ack(E), "and what comes next is as ever");

    // Also when the queue pair ends.
    let mut rig = self::rig();
    rig.send_all(&[send(E + 1), send(E + 2)]);
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).unwrap();
    assert_eq!(rig.node.shard(0, |shard| shard.packets_held()), 0);
    assert!(rig.wait(2 * HELD_FOR).is_empty());
}

// The requester waits, and sends all of the packets again: held packets would be refused as well.
#[test]
fn nothing_is_held_behind_a_receive_that_is_missing() {
    let mut rig = Rig::with(|c: &mut RigConfig| {
        c.qp.rq_psn = E;
        c.receives = 0;
    });
    rig.send(&send(E + 1));
    assert!(rig.send(&send(E))[0].is_rnr(E, 12));
    assert!(rig.send(&send(E + 2)).is_empty());
    assert_eq!(
        (rig.node.shard(0, |shard| shard.packets_held()), rig.node.discarded(Discard::OutOfSequence)),
        (0, 2)
    );
    rig.post_recv_of(5, &[rig.sge(0, 8)]);
    assert!(rig.send(&send(E).a())[0].is_ack(E));
    assert_eq!(rig.done(), [(5, WcStatus::Success)]);
}

/// The first sequence number that the rig sends.
const Q: u32 = 0x100;

/// Response `n` to the READ of four packets that the rig posted first; its data bytes are its number.
fn response(n: u32) -> Pkt {
    let of = |opcode| pkt(opcode, Q + n).data(&[n as u8; 1024]);
    match n {
        0 => of(O::RC_READ_RESPONSE_FIRST).aeth(0x1f, 1),
        3 => of(O::RC_READ_RESPONSE_LAST).aeth(0x1f, 1),
        _ => of(O::RC_READ_RESPONSE_MIDDLE),
    }
}

/// A rig that has requested a READ of four packets and sent a message after it.
fn reading() -> Rig {
    let mut rig = Rig::new();
    rig.unlimited();
    rig.post_all(&[rig.wr(1, WrOpcode::RdmaRead, 4096), rig.wr(2, WrOpcode::Send, 8)]);
    rig
}

#[test]
fn a_response_that_is_late_costs_nothing() {
    let mut rig = reading();
    let late = [ack(Q + 4, 2), response(2), response(0), response(3), response(1)];
    for early in &late[..4] {
        assert!(rig.send(early).is_empty());
        assert!(rig.done().is_empty());
    }
    assert!(rig.wait(GAP_SHORTEST).is_empty());
    assert!(rig.send(&late[4]).is_empty());
    assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let data = rig.node.mr(rig.buf).read(0, 4096);
    assert!(data.chunks(1024).enumerate().all(|(n, part)| part.iter().all(|byte| *byte == n as u8)));
    assert!(rig.wait(2 * HELD_FOR).is_empty());
    let counters = rig.node.counters();
    let dropped = rig.node.discarded(Discard::OutOfSequence);
    assert_eq!((held(&rig), counters.get(Counter::RetriesImplied), dropped), (3, 0, 0));
}

// Two gaps, one after the other; the second is a loss.
#[test]
fn a_response_that_does_not_come_is_requested_again() {
    let mut rig = reading();
    rig.send_all(&[response(1), response(3), response(0)]);
    assert!(rig.wait(GAP_LONGEST / 2).is_empty());
    let said = rig.wait(TOLD);
    assert_eq!(psns(&said), [Q + 2, Q + 4], "the READ from there on, and the message behind it");
    // A packet that is held by then waits for the repetition, too, but no longer than held requests wait.
    rig.send_all(&[response(2), ack(Q + 4, 2)]);
    assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let mut rig = reading();
    rig.send(&response(3));
    assert_eq!(rig.wait(HELD_FOR + Duration::from_millis(1)).len(), 2, "once");
    assert_eq!(rig.node.shard(0, |shard| shard.packets_held()), 0);
}

// A timeout requests everything again, so the existing gap counts for no further retry.
#[test]
fn a_gap_and_a_timeout_are_one_retry() {
    let mut rig = Rig::with(|c: &mut RigConfig| (c.qp.timeout, c.qp.retry_cnt) = (1, 1));
    rig.unlimited();
    rig.post(&rig.wr(1, WrOpcode::RdmaRead, 4096));
    let timeout = ack_timeout(1).unwrap();
    let mut said = rig.wait(timeout - Duration::from_nanos(100));
    said.extend(rig.send(&response(2)));
    while said.is_empty() {
        said.extend(rig.wait(timeout / 8));
    }
    assert_eq!(psns(&said), [Q]);
    assert!(rig.wait(TOLD.min(timeout)).is_empty(), "one retry, and the next one is for a silent peer");
    assert_eq!(rig.state(), QpState::Rts);
    rig.send_all(&[response(0), response(1), response(3)]);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
}

// The missing packet may be the next one of a burst that was received late.
#[test]
fn a_gap_is_judged_behind_the_burst() {
    let mut rig = reading();
    rig.send(&response(1));
    rig.now = rig.now.after(GAP_LONGEST * 2);
    assert!(rig.send_all(&[response(2), response(0), response(3), ack(Q + 4, 2)]).is_empty());
    assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let mut rig = self::rig();
    rig.send(&send(E + 1));
    rig.now = rig.now.after(GAP_LONGEST * 2);
    let said = rig.send_all(&[send(E + 2).a(), send(E)]);
    assert!(said.len() == 1 && said[0].is_ack(E + 2), "{said:?}");
}

// An acknowledgement with a sequence number of the READ is no data.
#[test]
fn an_acknowledgement_puts_no_data_out() {
    let mut rig = reading();
    rig.send_all(&[response(2), ack(Q + 2, 1), ack(Q, 1), response(0), response(1), response(3)]);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    assert_eq!(rig.node.counters().get(Counter::RetriesImplied), 0);
}

// Responses that arrive twice, because they were requested again or duplicated, are placed once.
#[test]
fn a_held_response_that_comes_again_counts_once() {
    let mut rig = reading();
    let ghosts = rig.node.discarded(Discard::GhostAck);
    rig.send_all(&[response(1), response(1), response(0), response(1), response(2), response(3)]);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    let dropped = [Discard::Duplicate, Discard::GhostAck].map(|reason| rig.node.discarded(reason));
    assert_eq!(dropped, [1, ghosts + 1]);
}

#[test]
fn held_responses_end_with_the_queue_pair() {
    let mut rig = reading();
    rig.send_all(&[response(2), response(3)]);
    assert_eq!(rig.node.shard(0, |shard| shard.packets_held()), 2);
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).unwrap();
    assert_eq!(rig.node.shard(0, |shard| shard.packets_held()), 0);
    assert!(rig.wait(2 * HELD_FOR).is_empty());
}

// A held response may be wrong and end the queue pair; the responses held after it are dropped then.
#[test]
fn a_held_response_may_be_wrong() {
    let mut rig = reading();
    rig.send_all(&[response(2), pkt(O::RC_READ_RESPONSE_MIDDLE, Q + 1).len(8), response(3), response(0)]);
    assert_eq!(rig.done()[..2], [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(rig.node.shard(0, |shard| shard.packets_held()), 0);
}

/// Simulates the sender of the data of WRITEs or READs, which goes back at each loss that the other end reports, while `late_permille`
/// packets of a thousand are late by up to eight others. Returns the fraction of the sent data that is new, and how often the other end
/// reported a loss.
fn goodput(opcode: WrOpcode, late_permille: u64, messages: u32) -> (f64, u64) {
    /// Bytes of a message; its packets are 1024 bytes long.
    const LEN: usize = 16 << 10;
    /// Packets leave one after the other.
    const SPACING: u64 = 500;
    let mut story = Story::with(|_| ());
    let mut rng = Rng::new(46);
    let (mut line, mut sent) = (Instant::ZERO, 0u64);
    let counted = Rc::new(Cell::new(0));
    let packets = counted.clone();
    let (from, to) = if opcode == WrOpcode::RdmaRead { (B, A) } else { (A, B) };
    story.world.link(from, to).rule = Some(Box::new(move |packet| {
        sent += 1;
        packets.set(sent);
        line = line.after_nanos(SPACING).max(packet.at);
        let queued = line.nanos_since(packet.at);
        let late =
            if rng.below(1000) < late_permille { SPACING * (1 + rng.below(8)) + SPACING / 2 } else { 0 };
        Fate::Late(Duration::from_nanos(queued + late))
    }));
    let mut done = 0;
    for n in 0..messages {
        story.post(A, opcode, LEN);
        if n % 8 == 7 {
            let arrived = story.world.run_until(Duration::from_secs(1), |world| {
                done += world.nodes[A]
                    .poll_cq(story.ends[A].cq, 64)
                    .iter()
                    .filter(|c| c.status == WcStatus::Success)
                    .count();
                done as u32 == n + 1
            });
            assert!(arrived, "{done} of {}", n + 1);
        }
    }
    let needed = u64::from(messages) * (LEN as u64 / 1024);
    let told = [(A, Counter::RetriesImplied), (B, Counter::NaksSent)];
    let told = told.map(|(end, counter)| story.world.nodes[end].count(counter)).iter().sum();
    (needed as f64 / counted.get() as f64, told)
}

// Goal: a NAK for each late packet would make the sender resend everything after it; late packets cause few resends.
#[test]
fn a_requester_that_goes_back_sends_little_again_where_packets_are_late() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        assert_eq!(goodput(opcode, 0, 64), (1.0, 0));
        let (new, told) = goodput(opcode, 50, 512);
        let new = 100.0 * new;
        println!(
            "{opcode:?}, 5 % of the packets late by up to 8: {new:.1} % of what was sent is new, {told} times back"
        );
        assert!(new >= 90.0, "{opcode:?}: {new} %");
    }
}
