//! Bugs that were once in the protocol machines and the shard, each with a test that fails if the bug returns.

use std::time::Duration;

use sim::node::SendWr;
use sim::peer::{PEER_QPN, Rig, ack, ack_with, frame, pkt};
use stack::id::QpState;
use stack::mem::Access;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::shard::counters::Counter;
use stack::wire::{Discard, Opcode};

const MS: Duration = Duration::from_millis(1);

fn send(rig: &Rig, id: u64, len: usize) -> SendWr {
    SendWr::new(id, WrOpcode::Send).sges(&[rig.node.mr(rig.buf).sge(0, len)])
}

fn read(rig: &Rig, id: u64, len: usize) -> SendWr {
    SendWr::new(id, WrOpcode::RdmaRead).sges(&[rig.node.mr(rig.buf).sge(0, len)]).remote(0x1000, 7)
}

// Goal: credits in a READ response count. SEND and READ leave together, the READ response acknowledges both, and no ACKNOWLEDGE ever
// comes: the next SEND must not wait for one.
#[test]
fn read_responses_carry_credits() {
    let mut rig = Rig::new();
    rig.node.post_send(rig.qp, &send(&rig, 1, 8)).unwrap();
    assert_eq!(rig.post(&read(&rig, 2, 8)).len(), 2);
    let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 0x101).aeth(0x0a, 2).len(8);
    assert!(rig.send(&answer).is_empty());
    assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(rig.post(&send(&rig, 3, 8)).len(), 1, "the READ response granted credits");
}

// The same for the response of an atomic.
#[test]
fn atomic_acknowledgements_carry_credits() {
    let mut rig = Rig::new();
    rig.node.post_send(rig.qp, &send(&rig, 1, 8)).unwrap();
    let add = SendWr::new(2, WrOpcode::AtomicFetchAndAdd).sges(&[rig.node.mr(rig.buf).sge(0, 8)]);
    assert_eq!(rig.post(&add.remote(0x1000, 7)).len(), 2);
    rig.send(&pkt(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0x101).atomic_ack(2, 5));
    assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(rig.post(&send(&rig, 3, 8)).len(), 1);
    assert_eq!(rig.post(&send(&rig, 4, 8)).len(), 1, "the syndrome says: no limit");
}

// Goal: a request is acknowledged while its RNR wait runs, because the network duplicated it and the duplicate found a receive. The idle
// queue pair then stays idle: no timer runs, nothing fails.
#[test]
fn no_timer_runs_after_an_acknowledgement_during_an_rnr_wait() {
    let mut rig = Rig::with(|c| c.qp.timeout = 8);
    rig.post(&send(&rig, 1, 8));
    rig.send(&ack_with(0x100, 0x20 | 20, 0));
    rig.send(&ack(0x100, 1));
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    assert!(rig.wait(200 * MS).is_empty());
    assert_eq!(rig.state(), QpState::Rts);
    assert!(rig.done().is_empty());
}

// Goal: lack of buffers in a port starts no timer of a queue pair that has nothing to send.
#[test]
fn no_timer_runs_without_buffers_and_without_work() {
    let mut rig = Rig::with(|c| c.qp.timeout = 8);
    rig.post(&send(&rig, 1, 8));
    rig.node.wires[0].starve(true);
    rig.inject(&pkt(Opcode::RC_SEND_ONLY, 0x100).a().len(4)); // its answer takes the last buffer
    rig.inject(&ack(0x100, 1));
    for _ in 0..10 {
        rig.node.turn(0, rig.now);
    }
    rig.node.wires[0].starve(false);
    assert_eq!(rig.run().len(), 1);
    assert_eq!(rig.done().len(), 2);
    assert!(rig.wait(200 * MS).is_empty());
    assert_eq!(rig.state(), QpState::Rts, "an idle queue pair cannot run out of retries");
}

// Goal: a READ that the network duplicated, and whose response is replayed, does not count as outstanding: the requester got its
// response long ago and may send the next READ.
#[test]
fn a_replayed_read_does_not_take_the_slot_of_a_new_one() {
    let mut rig = Rig::with(|c| c.qp.max_dest_rd_atomic = 1);
    let read = |rig: &Rig, psn| pkt(Opcode::RC_READ_REQUEST, psn).a().reth(rig.va(0), rig.rkey(), 8);
    let first = read(&rig, 0x100);
    assert_eq!(rig.send(&first).len(), 1);
    // In one burst: the late duplicate, then the next READ.
    let second = read(&rig, 0x101);
    let said = rig.send_all(&[first, second]);
    assert_eq!(rig.state(), QpState::Rts, "{said:?}");
    assert_eq!(said.last().unwrap().psn, 0x101);
    assert!(said.iter().all(|s| s.opcode == Opcode::RC_READ_RESPONSE_ONLY), "{said:?}");
}

// Goal: a duplicate of a completely answered READ does no harm after its key was invalidated: it is dropped.
#[test]
fn a_duplicate_read_after_its_key_is_gone_is_dropped() {
    let mut rig = Rig::new();
    let mr = rig.node.register(64, Access::REMOTE_READ);
    let (va, key) = (rig.node.mr(mr).va(0), rig.node.mr(mr).key);
    let read = pkt(Opcode::RC_READ_REQUEST, 0x100).a().reth(va, key, 8);
    assert_eq!(rig.send(&read).len(), 1);
    rig.node.deregister(mr);
    assert!(rig.send(&read).is_empty());
    assert_eq!(rig.state(), QpState::Rts);
}

// Goal: an implied NAK during an RNR wait does not cut the wait short.
#[test]
fn an_implied_nak_does_not_end_an_rnr_wait() {
    let mut rig = Rig::with(|c| c.qp.timeout = 1);
    rig.send(&ack(0x0ff, 0)); // credits without limit, from an acknowledgement of nothing
    rig.node.post_send(rig.qp, &send(&rig, 1, 8)).unwrap();
    rig.node.post_send(rig.qp, &read(&rig, 2, 8)).unwrap();
    assert_eq!(rig.post(&send(&rig, 3, 8)).len(), 3);
    // An RNR NAK for the first request. Then a duplicate of it was accepted, and everything after it; the response to the READ is lost,
    // as the acknowledgement of the last request implies.
    rig.send(&ack_with(0x100, 0x20 | 20, 0)); // 10.24 ms
    rig.send(&ack(0x102, 3));
    assert!(rig.wait(10 * MS).is_empty(), "nothing before the delay is over");
    let said = rig.wait(MS);
    assert_eq!(said[0].opcode, Opcode::RC_READ_REQUEST, "{said:?}");
    assert_eq!(said[0].psn, 0x101);
}

// Goal: a late acknowledgement of a duplicate does not replace a newer one that waits to be sent.
#[test]
fn the_answer_to_a_duplicate_does_not_replace_a_newer_acknowledgement() {
    let mut rig = Rig::new();
    let one = pkt(Opcode::RC_SEND_ONLY, 0x100).a().len(4);
    let read = pkt(Opcode::RC_READ_REQUEST, 0x101).a().reth(rig.va(0), rig.rkey(), 8);
    rig.send_all(&[one.clone(), read]);
    let two = pkt(Opcode::RC_SEND_ONLY, 0x102).a().len(4);
    let said = rig.send_all(&[two, one]);
    assert!(said.iter().any(|s| s.is_ack(0x102)), "{said:?}");
}

// Goal: a port that takes nothing while the peer's process waits for its time slice loses nothing: the request leaves once, when there is
// room. A port that stays blocked drops the backlog and counts that.
#[test]
fn a_peer_that_is_not_scheduled_for_a_while_costs_no_frame() {
    let mut rig = Rig::with(|c| c.qp.timeout = 18); // 1.07 s: no timeout sends it again
    let stalled = |rig: &Rig| rig.node.counters().discarded(Discard::TxStalled);
    for (pause, sent, lost) in [(15 * MS, 1, 0), (30 * MS, 0, 1)] {
        rig.node.wires[0].limit_tx(Some(0));
        rig.node.post_send(rig.qp, &send(&rig, 1, 8)).unwrap();
        rig.node.turn(0, rig.now);
        rig.now = rig.now.after(pause);
        rig.node.turn(0, rig.now);
        rig.node.wires[0].limit_tx(None);
        assert_eq!((rig.run().len(), stalled(&rig)), (sent, lost), "after {pause:?}");
        rig.send(&ack(0x100, 1));
    }
}

// Goal: the counter of RNR retries counts a retry once: neither both the NAK and the end of its delay, nor a delay that ends after
// everything was acknowledged.
#[test]
fn an_rnr_nak_counts_as_one_retry() {
    let mut rig = Rig::with(|c| c.qp.timeout = 18);
    let retries = |rig: &Rig| rig.node.counters().get(Counter::RetriesRnr);
    rig.post(&send(&rig, 1, 8));
    rig.send(&ack_with(0x100, 0x20 | 20, 0)); // 10.24 ms
    assert_eq!(retries(&rig), 0, "not sent again yet");
    assert_eq!((rig.wait(11 * MS).len(), retries(&rig)), (1, 1));
    rig.send(&ack_with(0x100, 0x20 | 20, 0));
    rig.send(&ack(0x100, 1));
    assert_eq!((rig.wait(11 * MS).len(), retries(&rig)), (0, 1));
}

// Goal: a READ behind a full window waits. The sequence numbers of its responses, which are no packets in flight, count only once it has
// left. (It used to leave as packet 257.)
#[test]
fn a_read_behind_a_full_window_waits() {
    use stack::config::WINDOW_PACKETS;
    let mut rig = Rig::with(|c| c.qp.mtu = stack::id::Mtu::Mtu256);
    rig.unlimited();
    let write = SendWr::new(1, WrOpcode::RdmaWrite).sges(&[rig.sge(0, 256 * WINDOW_PACKETS as usize)]);
    let long_read = read(&rig, 2, 256 * 20);
    let said = rig.post_all(&[write.remote(0x1000, 7), long_read]);
    assert_eq!(said.len(), WINDOW_PACKETS as usize);
    assert!(said.iter().all(|s| s.opcode != Opcode::RC_READ_REQUEST));
    let said = rig.send(&ack(0x100 + 9, 0));
    assert_eq!(said.len(), 1, "one READ, and nothing behind it");
    assert_eq!((said[0].opcode, said[0].psn), (Opcode::RC_READ_REQUEST, 0x100 + WINDOW_PACKETS));
}

// Goal: a packet for a destroyed queue pair reaches no other queue pair that reuses its slot, not even right after a packet that still
// reached the destroyed one.
#[test]
fn a_number_that_is_gone_does_not_find_who_has_its_slot() {
    let mut rig = Rig::new();
    let (old, peer) = (rig.qp, rig.peer_gid());
    assert_eq!(rig.send(&pkt(Opcode::RC_SEND_ONLY, 0x100).len(8).a()).len(), 1);
    assert_eq!(rig.done(), [(0, WcStatus::Success)]);
    let late = rig.frame(&pkt(Opcode::RC_SEND_ONLY, 0x101).len(8).a());
    let (slot, config) = (rig.node.qp(old).slot(), rig.node.qp(old).config);
    rig.node.destroy(old);
    // Slots that no queue pair has used yet are taken first.
    rig.qp = loop {
        let qp = rig.node.create_qp(0, config, rig.cq, rig.cq);
        if rig.node.qp(qp).slot() == slot {
            break qp;
        }
    };
    rig.node.to_init(rig.now, rig.qp);
    rig.post_recv();
    rig.node.to_rtr(rig.now, rig.qp, peer, PEER_QPN);
    assert!(rig.send_frame(&frame(&rig.flow, &pkt(Opcode::RC_SEND_ONLY, 0x100).len(8).a())).is_empty());
    assert!(rig.send_frame(&late).is_empty());
    assert_eq!(rig.node.discarded(Discard::UnknownQpn), 2);
    assert!(rig.done().is_empty(), "it was not for the new one");
}

// Goal: a queue pair that is destroyed while the port takes nothing costs a few turns. (It used to be 2048, under the claim.)
#[test]
fn what_a_full_port_does_not_take_is_not_tried_again_and_again() {
    use stack::config::TX_BURST;
    let mut rig = Rig::with(|c| c.qp.mtu = stack::id::Mtu::Mtu256);
    rig.unlimited();
    rig.node.wires[0].limit_tx(Some(0));
    let write = SendWr::new(1, WrOpcode::RdmaWrite).sges(&[rig.sge(0, 256 * 200)]).remote(0x1000, 7);
    rig.node.post_send(rig.qp, &write).unwrap();
    let slot = rig.node.qp(rig.qp).slot();
    rig.node.shard(0, |shard| shard.send_posted(rig.now, slot));
    assert_eq!(rig.node.shard(0, |shard| shard.tx_backlog()), TX_BURST, "what there is room for is built");
    // A turn offers its frames twice.
    let turns = rig.node.wires[0].refused() / (2 * TX_BURST as u64);
    assert!(turns < 10, "{turns} turns");
}
