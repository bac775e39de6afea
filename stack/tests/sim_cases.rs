//! Cases with two hosts: packets are lost, delayed or duplicated on the way.

use std::time::Duration;

use sim::link::{Conditions, Fate, Fault, Fired, SimLink};
use sim::node::{NodeConfig, QpConfig, SendWr, remote_rights};
use sim::peer::{Rig, pkt};
use sim::rng::Rng;
use sim::story::{A, B, Story, acks, any, nak, opcode, rnr_nak};
use sim::world::{Steering, World};
use stack::id::{QpState, QpType};
use stack::proto::attr::QpAttr;
use stack::proto::state::required;
use stack::proto::status::{AsyncEvent, WcOpcode, WcStatus, WrOpcode};
use stack::proto::tables::NakCode::{PsnSequenceError, RemoteAccessError};
use stack::shard::counters::Counter;
use stack::time::Instant;
use stack::wire::{Discard, Opcode as O};

use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Recv, Send};
use WcStatus::{RemAccessErr, RetryExcErr, RnrRetryExcErr, Success, WrFlushErr};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn middle_packet_lost() {
    let mut s = Story::new();
    s.put(A, 0, &[7; 3000]);
    s.receives(B, 1);
    s.drop_nth(A, any(), 2);
    s.post(A, WrOpcode::Send, 3000); // FIRST, MIDDLE, LAST
    s.wait(MS);
    s.expect(B, &[nak(PsnSequenceError), acks()]);
    s.expect(
        A,
        &[
            opcode(O::RC_SEND_FIRST),
            opcode(O::RC_SEND_LAST),
            opcode(O::RC_SEND_MIDDLE),
            opcode(O::RC_SEND_LAST),
        ],
    );
    s.expect_cqe(A, Send, Success);
    assert_eq!(s.expect_cqe(B, Recv, Success).byte_len, 3000);
    assert_eq!(s.get(B, 1 << 15, 3000), [7; 3000]);
}

#[test]
fn q12_acknowledgement_lost() {
    let mut s = Story::new();
    s.receives(B, 2);
    s.drop_nth(B, acks(), 1);
    s.post(A, WrOpcode::Send, 10);
    s.wait(SECOND);
    s.expect(A, &[opcode(O::RC_SEND_ONLY), opcode(O::RC_SEND_ONLY)]);
    s.expect(B, &[acks(), acks()]);
    s.expect_cqe(A, Send, Success);
    s.expect_cqe(B, Recv, Success);
    s.expect_no_cqe(A);
    s.expect_no_cqe(B);
}

#[test]
fn q44_atomics() {
    let mut s = Story::new();
    let word = |s: &Story| s.world.nodes[B].mr(s.mrs[B]).word(1 << 15);
    s.world.nodes[B].mr(s.mrs[B]).set_word(1 << 15, 10);
    for (opcode, operands, original, after) in [
        (WrOpcode::AtomicCmpAndSwp, (10, 20), 10, 20),
        (WrOpcode::AtomicCmpAndSwp, (10, 30), 20, 20),
        (WrOpcode::AtomicFetchAndAdd, (u64::MAX, 0), 20, 19),
        (WrOpcode::AtomicFetchAndAdd, (u64::MAX - 18, 0), 19, 0),
    ] {
        let wr = s.wr(A, opcode, 8).operands(operands.0, operands.1);
        s.post_wr(A, &wr);
        s.wait(MS);
        s.expect_cqe(A, opcode.wc_opcode().unwrap(), Success);
        assert_eq!(s.world.nodes[A].mr(s.mrs[A]).word(0), original);
        assert_eq!(word(&s), after);
    }
}

#[test]
fn q45_atomic_response_lost_and_executed_once() {
    let mut s = Story::new();
    s.drop_nth(B, opcode(O::RC_ATOMIC_ACKNOWLEDGE), 1);
    let wr = s.wr(A, WrOpcode::AtomicFetchAndAdd, 8).operands(5, 0);
    s.post_wr(A, &wr);
    s.wait(SECOND);
    s.expect(A, &[opcode(O::RC_FETCH_ADD), opcode(O::RC_FETCH_ADD)]);
    s.expect_cqe(A, FetchAdd, Success);
    assert_eq!(s.world.nodes[A].mr(s.mrs[A]).word(0), 0);
    assert_eq!(s.world.nodes[B].mr(s.mrs[B]).word(1 << 15), 5);
    let _ = CompSwap;
}

#[test]
fn rnr_limit_not_reached() {
    let mut s = Story::with(|c| (c.rnr_retry, c.min_rnr_timer) = (3, 12));
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS); // two RNR NAKs
    s.receives(B, 1);
    s.wait(10 * MS);
    s.expect(B, &[rnr_nak(), rnr_nak(), acks()]);
    s.expect_cqe(A, Send, Success);
}

#[test]
fn rnr_limit_reached() {
    let mut s = Story::with(|c| (c.rnr_retry, c.min_rnr_timer) = (2, 1));
    s.post(A, WrOpcode::Send, 10);
    s.post(A, WrOpcode::Send, 10);
    s.wait(10 * MS);
    s.expect(B, &[rnr_nak(), rnr_nak(), rnr_nak()]);
    s.expect_cqe(A, Send, RnrRetryExcErr);
    s.expect_cqe(A, Send, WrFlushErr);
    assert_eq!((s.state(A), s.state(B)), (QpState::Err, QpState::Rts));
}

#[test]
fn sequence_error_limit() {
    let mut s = Story::with(|c| (c.retry_cnt, c.timeout) = (2, 12));
    s.receives(B, 8);
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    s.drop_all(A, opcode(O::RC_SEND_FIRST));
    s.post(A, WrOpcode::Send, 2000);
    s.wait(SECOND);
    s.expect(B, &[nak(PsnSequenceError)]);
    s.expect_cqe(A, Send, Success);
    s.expect_cqe(A, Send, RetryExcErr);
}

#[test]
fn timeout_limit_and_a_partition() {
    let mut s = Story::with(|c| (c.retry_cnt, c.timeout) = (3, 10));
    s.receives(A, 1);
    s.world.link(B, A).conditions = Conditions::CLEAN.with(Fault::Partition, 1_000_000);
    s.post(A, WrOpcode::RdmaWrite, 10);
    s.wait(SECOND);
    assert_eq!(s.sent(A).len(), 4);
    s.expect_cqe(A, RdmaWrite, RetryExcErr);
    s.expect_cqe(A, Recv, WrFlushErr);
    assert!(s.sent(B).len() >= 4, "it was one-way: every copy was answered");
}

#[test]
fn partition_heals_in_time() {
    let mut s = Story::with(|c| c.timeout = 10);
    s.world.link(A, B).conditions = Conditions::CLEAN.with(Fault::Partition, 1_000_000);
    s.post(A, WrOpcode::RdmaWrite, 5000);
    s.wait(10 * MS);
    s.expect_no_cqe(A);
    s.heal();
    s.wait(100 * MS);
    s.expect_cqe(A, RdmaWrite, Success);
    assert!(s.world.nodes[A].count(Counter::RetriesTimeout) >= 2);
}

#[test]
fn ghost_acknowledgement() {
    let mut s = Story::new();
    s.receives(B, 4);
    s.fate(B, acks(), 1, Fate::Again(5 * MS));
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    s.post(A, WrOpcode::Send, 10);
    s.wait(20 * MS);
    s.expect_cqe(A, Send, Success);
    s.expect_cqe(A, Send, Success);
    assert_eq!(s.world.nodes[A].discarded(Discard::GhostAck), 1);
}

// Goal: the ACK of a SEND after a READ whose response is lost makes the requester send the READ again, without waiting for the timeout.
#[test]
fn implied_nak() {
    let mut s = Story::new();
    s.receives(B, 4);
    s.put(B, 1 << 15, b"from b");
    s.drop_nth(B, opcode(O::RC_READ_RESPONSE_ONLY), 1);
    s.post(A, WrOpcode::RdmaRead, 6);
    s.post(A, WrOpcode::RdmaWrite, 6);
    s.wait(MS);
    s.expect(A, &[opcode(O::RC_READ_REQUEST), opcode(O::RC_WRITE_ONLY), opcode(O::RC_READ_REQUEST)]);
    s.expect_cqe(A, RdmaRead, Success);
    s.expect_cqe(A, RdmaWrite, Success);
    assert_eq!(s.world.nodes[A].count(Counter::RetriesImplied), 1);
}

#[test]
fn partial_read_retry() {
    let mut s = Story::new();
    let bytes: Vec<u8> = (0..8192).map(|i| (i / 31) as u8).collect();
    s.put(B, 1 << 15, &bytes);
    s.drop_nth(B, opcode(O::RC_READ_RESPONSE_MIDDLE), 3);
    s.post(A, WrOpcode::RdmaRead, 8192);
    s.wait(MS);
    let requests: Vec<_> = s.sent(A).into_iter().map(|p| (p.psn, p.reth().len)).collect();
    assert_eq!(requests, [(0x100, 8192), (0x103, 5120)]);
    s.expect_cqe(A, RdmaRead, Success);
    assert_eq!(s.get(A, 0, 8192), bytes);
}

#[test]
fn partial_write_retry() {
    let mut s = Story::new();
    let bytes: Vec<u8> = (0..8192).map(|i| (i / 31) as u8).collect();
    s.put(A, 0, &bytes);
    s.drop_nth(A, opcode(O::RC_WRITE_MIDDLE), 3);
    s.post(A, WrOpcode::RdmaWrite, 8192);
    s.wait(MS);
    s.expect(B, &[nak(PsnSequenceError), acks()]);
    let again: Vec<u32> = s.sent(A).iter().skip(8).map(|p| p.psn).collect();
    assert_eq!(again, [0x103, 0x104, 0x105, 0x106, 0x107]);
    s.expect_cqe(A, RdmaWrite, Success);
    assert_eq!(s.get(B, 1 << 15, 8192), bytes);
}

#[test]
fn rkey_violation() {
    let mut s = Story::new();
    let mut wr = s.wr(A, WrOpcode::RdmaWrite, 10);
    wr.rkey ^= 1;
    s.post_wr(A, &wr);
    s.post(A, WrOpcode::RdmaWrite, 10);
    s.wait(MS);
    s.expect(B, &[nak(RemoteAccessError)]);
    s.expect_cqe(A, RdmaWrite, RemAccessErr);
    s.expect_cqe(A, RdmaWrite, WrFlushErr);
    assert_eq!((s.state(A), s.state(B)), (QpState::Err, QpState::Err));
    assert_eq!(s.world.nodes[B].events()[0].0, AsyncEvent::QpAccessErr);
}

#[test]
fn duplicates_of_everything() {
    let mut s = Story::new();
    s.receives(B, 8);
    for (from, to) in [(A, B), (B, A)] {
        s.world.link(from, to).conditions = Conditions::CLEAN.with(Fault::Duplicate, 1_000_000);
    }
    s.post(A, WrOpcode::Send, 3000);
    let wr = s
        .wr(A, WrOpcode::AtomicFetchAndAdd, 8)
        .operands(1, 0)
        .remote(s.sge(B, 0, 8).addr, s.sge(B, 0, 8).lkey);
    s.post_wr(A, &wr);
    s.post(A, WrOpcode::RdmaRead, 3000);
    s.wait(SECOND);
    s.expect_cqe(A, Send, Success);
    s.expect_cqe(A, FetchAdd, Success);
    s.expect_cqe(A, RdmaRead, Success);
    assert_eq!(s.world.nodes[B].mr(s.mrs[B]).word(0), 1, "executed once");
    s.expect_cqe(B, Recv, Success);
    s.expect_no_cqe(B);
}

// Goal: a late copy of a WRITE does not undo a newer one.
#[test]
fn duplicate_older_than_the_window() {
    let mut s = Story::new();
    s.put(A, 0, b"old");
    s.fate(A, any(), 1, Fate::Again(20 * MS));
    s.post(A, WrOpcode::RdmaWrite, 3);
    s.wait(MS);
    for _ in 0..300 {
        s.put(A, 0, b"new");
        s.post(A, WrOpcode::RdmaWrite, 3);
        s.wait(MS / 100);
    }
    s.wait(50 * MS);
    assert_eq!(s.get(B, 1 << 15, 3), b"new");
    assert!(s.world.nodes[B].count(Counter::DuplicatesAnswered) >= 1);
}

// Goal: packets of an earlier life of a queue pair, sent before its RESET, do not reach its next life if the sequence numbers
// differ.
#[test]
fn packets_of_an_earlier_life() {
    let mut s = Story::new();
    s.receives(B, 2);
    s.fate(A, any(), 1, Fate::Late(20 * MS));
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    for node in [A, B] {
        let now = s.world.now;
        s.world.nodes[node].modify_state(now, s.ends[node].qp, QpState::Reset).unwrap();
    }
    s.world.forget_windows();
    let ends = s.ends;
    // The same queue pair numbers, but other first sequence numbers.
    for (node, other) in [(A, B), (B, A)] {
        let (gid, qpn) = (s.world.nodes[other].gid, s.world.nodes[other].qp(ends[other].qp).qpn);
        let now = s.world.now;
        let n = &mut s.world.nodes[node];
        n.to_init(now, ends[node].qp);
        let attr = QpAttr { qp_state: QpState::Rtr, rq_psn: 0x8_0000, ..n.attr_to(ends[node].qp, gid, qpn) };
        let mask = required(QpState::Init, QpState::Rtr, QpType::Rc);
        n.modify(now, ends[node].qp, &attr, mask).unwrap();
        let attr = QpAttr { qp_state: QpState::Rts, sq_psn: 0x8_0000, ..attr };
        let mask = required(QpState::Rtr, QpState::Rts, QpType::Rc);
        n.modify(now, ends[node].qp, &attr, mask).unwrap();
    }
    s.receives(B, 2);
    s.wait(50 * MS);
    s.expect_no_cqe(B);
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    s.expect_cqe(A, Send, Success);
    s.expect_cqe(B, Recv, Success);
}

#[test]
fn queue_pair_destroyed_inside_a_message() {
    let mut s = Story::with(|c| c.timeout = 10);
    s.receives(B, 2);
    s.post(A, WrOpcode::Send, 4000);
    s.world.step().unwrap();
    s.world.nodes[B].destroy(s.ends[B].qp);
    s.wait(SECOND);
    s.expect_cqe(A, Send, RetryExcErr);
    s.expect_no_cqe(B);
    assert!(s.world.nodes[B].discarded(Discard::UnknownQpn) > 0);
    s.wait(MS); // the last frame confirmed B's Ethernet address; its buffer is returned in the next turn
    s.world.check(true).unwrap();
}

// Goal: a panic of a port in the middle of a message, in any call, ends its shard. From then on nothing is placed, not even in memory
// whose region is deregistered later; its queue pairs take no requests; and the peer's requests fail as if this host were gone.
#[test]
fn port_that_panics_inside_a_message() {
    let mut in_the_middle = 0;
    for asked in 0..8 {
        let mut s = Story::with(|c| c.timeout = 10);
        s.world.link(A, B).conditions.path.delay = Duration::from_micros(5);
        s.put(A, 0, &[9; 32768]);
        s.post(A, WrOpcode::RdmaWrite, 32768);
        s.world.nodes[B].wires[0].panic_after(asked);
        assert!(s.world.run_until(SECOND, |w| w.nodes[B].is_dead(0)), "asked {asked} times");
        s.world.nodes[B].deregister(s.mrs[B]);
        let before = s.get(B, 1 << 15, 32768);
        s.wait(SECOND);
        assert_eq!(s.get(B, 1 << 15, 32768), before, "nothing is written after that");
        // If the whole message was placed, the acknowledgement may have left.
        if before.iter().any(|byte| *byte != 9) {
            s.expect_cqe(A, RdmaWrite, RetryExcErr);
            in_the_middle += 1;
        }
        let word = s.world.nodes[B].shared.words.load(0);
        assert!(word.is_dead() && word.gates() == 0);
        assert!(!s.world.nodes[A].is_dead(0));
    }
    assert!(in_the_middle > 1, "{in_the_middle}");
}

#[test]
fn region_deregistered_inside_a_message() {
    let mut s = Story::new();
    s.world.link(A, B).conditions.path.delay = Duration::from_micros(5);
    s.put(A, 0, &[9; 32768]);
    s.post(A, WrOpcode::RdmaWrite, 32768);
    // Two bursts of the message have reached B when its region is deregistered.
    s.world.run_until(MS, |w| w.nodes[B].count(Counter::RequestsReceived) > 0);
    s.world.nodes[B].deregister(s.mrs[B]);
    let before = s.get(B, 1 << 15, 32768);
    s.wait(MS);
    s.expect(B, &[nak(RemoteAccessError)]);
    s.expect_cqe(A, RdmaWrite, RemAccessErr);
    assert_eq!(s.get(B, 1 << 15, 32768), before, "nothing is written after that");
}

// Goal: frames that arrive on the wrong queue reach their shard, whatever the steering.
#[test]
fn frames_on_the_wrong_queue() {
    for steering in [Steering::Hash, Steering::Random] {
        let mut s = Story::of(4, |_| ());
        s.world.steering = steering;
        s.receives(B, 32);
        for _ in 0..32 {
            s.post(A, WrOpcode::Send, 3000);
        }
        s.wait(SECOND);
        for _ in 0..32 {
            s.expect_cqe(A, Send, Success);
            assert_eq!(s.expect_cqe(B, Recv, Success).byte_len, 3000);
        }
        if steering == Steering::Random {
            assert!(s.world.nodes[B].count(Counter::HandedOver) > 0);
        }
    }
}

// Goal: two queue pairs of one node reach each other inside the device.
#[test]
fn frames_to_oneself() {
    for shards in [1, 2] {
        let mut world = World::new(3, vec![NodeConfig { shards, ..NodeConfig::default() }]);
        let cq = world.nodes[0].create_cq(64);
        let one = world.nodes[0].create_qp(0, QpConfig::default(), cq, cq);
        let two = world.nodes[0].create_qp(shards - 1, QpConfig::default(), cq, cq);
        world.connect((0, one), (0, two));
        let mr = world.nodes[0].register(1 << 16, remote_rights());
        let region = world.nodes[0].mr(mr);
        region.write(0, &[5; 9000]);
        let wr = SendWr::new(1, WrOpcode::RdmaWrite).sges(&[region.sge(0, 9000)]);
        let wr = wr.remote(region.va(20_000), region.key);
        world.nodes[0].post_send(one, &wr).unwrap();
        world.run_for(MS);
        assert_eq!(world.nodes[0].poll_cq(cq, 10).len(), 1);
        assert_eq!(world.nodes[0].mr(mr).read(20_000, 9000), [5; 9000]);
        assert_eq!(world.taken[0], 0, "nothing left the device");
    }
}

// Goal: every addition counts once, from two queue pairs on two nodes, over links that lose and duplicate packets.
#[test]
fn r54_atomics_of_two_queue_pairs() {
    let n: u64 = std::env::var("SIM_ATOMICS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let mut world =
        World::new(5, (0..3).map(|index| NodeConfig { index, ..NodeConfig::default() }).collect());
    let cqs = [0, 1, 2].map(|i| world.nodes[i].create_cq(4096));
    let mr = world.nodes[2].register(8, remote_rights());
    let (va, key) = (world.nodes[2].mr(mr).va(0), world.nodes[2].mr(mr).key);
    let mut ends = Vec::new();
    for node in [0, 1] {
        let config = QpConfig { timeout: 8, ..QpConfig::default() };
        let qp = world.nodes[node].create_qp(0, config, cqs[node], cqs[node]);
        let peer = world.nodes[2].create_qp(0, config, cqs[2], cqs[2]);
        world.connect((node, qp), (2, peer));
        let sink = world.nodes[node].register(8, remote_rights());
        ends.push((node, qp, sink));
    }
    for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        world.link(from, to).conditions =
            Conditions::CLEAN.with(Fault::Loss, 10_000).with(Fault::Duplicate, 20_000);
    }
    let mut left = [n, n];
    let mut done = [0, 0];
    while done != [n, n] {
        for (i, (node, qp, sink)) in ends.iter().enumerate() {
            while left[i] > 0 && world.nodes[*node].sends_in_use(*qp) < 32 {
                let sge = world.nodes[*node].mr(*sink).sge(0, 8);
                let wr = SendWr::new(left[i], WrOpcode::AtomicFetchAndAdd).sges(&[sge]).remote(va, key);
                world.nodes[*node].post_send(*qp, &wr.operands(i as u64 + 1, 0)).unwrap();
                left[i] -= 1;
            }
            for cqe in world.nodes[*node].poll_cq(cqs[*node], 64) {
                assert_eq!(cqe.status, WcStatus::Success);
                done[i] += 1;
            }
        }
        world.step().unwrap().expect("there is more to come");
    }
    assert_eq!(world.nodes[2].mr(mr).word(0), n + 2 * n);
}

#[test]
fn c03_completion_queue_overflow() {
    let mut rig = Rig::with(|c| c.cqe = 4);
    for i in 0..8 {
        rig.send(&pkt(O::RC_SEND_ONLY, 0x100 + i).a().len(4));
    }
    assert_eq!(rig.state(), QpState::Err);
    assert!(rig.cqes().len() >= 4);
    let events = rig.events();
    assert!(events.contains(&AsyncEvent::CqErr) && events.contains(&AsyncEvent::QpFatal), "{events:?}");
}

// Goal: the fault injector works: each kind of link fault, at a rate of one, changes what arrives.
#[test]
fn each_link_fault_reaches_the_other_side() {
    let frame = Rig::new().frame(&pkt(O::RC_SEND_ONLY, 1).len(200));
    for fault in Fault::ALL {
        let mut link = SimLink::new(Conditions::CLEAN.with(*fault, 1_000_000), Rng::new(1));
        let (mut fired, mut out) = (Fired::default(), Vec::new());
        for i in 0..20 {
            link.carry(Instant::from_nanos(i * 1000), &frame, &mut fired, &mut out);
        }
        let whole = out.iter().filter(|f| f.bytes == frame).count();
        let in_order = out.windows(2).all(|w| w[0].at < w[1].at);
        match fault {
            Fault::Loss | Fault::Blackhole | Fault::Partition | Fault::Narrow => {
                assert!(out.is_empty(), "{fault:?}")
            }
            Fault::Duplicate | Fault::LateDuplicate => assert_eq!(whole, 40, "{fault:?}"),
            Fault::Reorder => assert!(whole == 20 && !in_order),
            Fault::Corrupt | Fault::Truncate | Fault::Mark => {
                assert!(out.len() == 20 && whole == 0, "{fault:?}")
            }
            _ => {
                assert!(fault.on_link().is_none() && whole == 20 && in_order, "{fault:?} is not the link's")
            }
        }
        assert_eq!(fired.get(*fault) > 0, fault.on_link().is_some(), "{fault:?}");
    }
}

// Goal: every corrupted bit is noticed by the ICRC or a length check.
#[test]
fn corrupted_frames_are_dropped() {
    let mut s = Story::new();
    s.world.link(A, B).conditions = Conditions::CLEAN.with(Fault::Corrupt, 1_000_000);
    s.put(A, 0, &[1; 4096]);
    let before = s.world.nodes[B].counters();
    for _ in 0..50 {
        s.post(A, WrOpcode::RdmaWrite, 100);
    }
    s.wait(10 * MS);
    let after = s.world.nodes[B].counters() - before;
    assert_eq!(after.get(Counter::RequestsReceived), 0);
    assert!(after.drops() + after.get(Counter::NetFrames) >= 50);
    assert!(after.discarded(Discard::BadIcrc) > 25);
}

// Goal: a packet that a switch marked (ECN) is a packet like any other: it is not dropped, and nothing is sent again.
#[test]
fn r61_marks_of_congestion() {
    for ipv6 in [false, true] {
        let mut s = Story::on(NodeConfig { ipv6, ..NodeConfig::default() }, |_| ());
        for (from, to) in [(A, B), (B, A)] {
            s.world.link(from, to).conditions = Conditions::CLEAN.with(Fault::Mark, 1_000_000);
        }
        s.receives(B, 2);
        s.put(A, 0, &[7; 3000]);
        s.post(A, WrOpcode::Send, 3000);
        s.post(A, WrOpcode::RdmaWrite, 3000);
        s.post(A, WrOpcode::RdmaRead, 3000);
        s.wait(MS);
        for opcode in [Send, RdmaWrite, RdmaRead] {
            s.expect_cqe(A, opcode, Success);
        }
        s.expect_cqe(B, Recv, Success);
        assert_eq!(s.get(B, 1 << 15, 3000), [7; 3000]);
        assert!(s.world.fired.get(Fault::Mark) >= 10);
        for node in [A, B] {
            let counters = s.world.nodes[node].counters();
            assert_eq!((counters.drops(), counters.get(Counter::Retransmitted)), (0, 0));
            // ARP and neighbour discovery are marked, too, but no counter counts that.
            let marks = counters.get(Counter::MarksReceived);
            assert_eq!(marks, counters.get(Counter::RxFrames) - counters.get(Counter::NetFrames));
        }
    }
}

// Goal: the simulated faults of a port reach the shard.
#[test]
fn each_port_fault_reaches_the_shard() {
    for fault in [Fault::TxFull, Fault::NoBuffer] {
        let mut s = Story::with(|c| c.timeout = 12);
        s.receives(B, 20);
        for (from, to) in [(A, B), (B, A)] {
            s.world.link(from, to).conditions =
                Conditions { stall: Duration::from_micros(20), ..Conditions::CLEAN.with(fault, 300_000) };
        }
        for _ in 0..20 {
            s.post(A, WrOpcode::Send, 3000);
        }
        s.wait(SECOND / 10);
        let wires = || s.world.nodes.iter().flat_map(|n| &n.wires);
        let felt: u64 = match fault {
            Fault::TxFull => wires().map(|w| w.refused()).sum(),
            _ => wires().map(|w| w.denied()).sum(),
        };
        assert!(felt > 0, "{fault:?}");
        s.heal();
        s.wait(SECOND);
        for _ in 0..20 {
            s.expect_cqe(A, Send, Success);
        }
    }
}
