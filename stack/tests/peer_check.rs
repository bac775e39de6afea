//! A peer check finds out whether the peer still has its queue pair, by a duplicate of the packet that the peer acknowledged last,
//! whatever that was. The answer is its only effect.

use std::time::Duration;

use sim::node::{NodeConfig, QpConfig};
use sim::peer::{Pkt, Rig, ack, ack_with, opcodes, pkt, psns};
use sim::seen::Seen;
use sim::story::{A, B, Story, acks, any};
use stack::device::{PeerCheck, PeerState};
use stack::id::{QpState, QpType};
use stack::mem::Access;
use stack::proto::status::{SendFlags, WcOpcode, WcStatus, WrOpcode};
use stack::shard::counters::Counter;
use stack::wire::{Discard, Ext, Opcode as O};

use PeerState::{Alive, Asked, NotConnected, Silent};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The packet sequence number before a queue pair's first packet.
const BEFORE: u32 = 0xff;
/// Number of packets with which a request is tried.
const TRIES: usize = 8;

fn check(s: &mut Story, node: usize) -> PeerCheck {
    let (now, qp) = (s.world.now, s.ends[node].qp);
    s.world.nodes[node].check_peer(now, qp)
}

/// Whether this is the packet of a check.
fn asks(packet: &Seen, psn: u32) -> bool {
    let empty = packet.payload.is_empty() && packet.ext == Ext::None;
    packet.opcode == O::RC_SEND_ONLY && packet.psn == psn && packet.ack_req && empty
}

/// Name of what a connection does before it is idle, how many sequence numbers that takes, and the function that does it.
type Past = (&'static str, u32, fn(&mut Story));

const PASTS: &[Past] = &[
    ("nothing", 0, |_| ()),
    ("a SEND", 1, |s| _ = s.post(A, WrOpcode::Send, 10)),
    ("a SEND of three packets", 3, |s| _ = s.post(A, WrOpcode::Send, 3000)),
    ("a WRITE", 2, |s| _ = s.post(A, WrOpcode::RdmaWrite, 2000)),
    ("a READ of three responses", 3, |s| _ = s.post(A, WrOpcode::RdmaRead, 3000)),
    ("an atomic", 1, |s| {
        let wr = s.wr(A, WrOpcode::AtomicFetchAndAdd, 8).operands(5, 0);
        s.post_wr(A, &wr);
    }),
    ("a WRITE and a READ", 2, |s| {
        s.post(A, WrOpcode::RdmaWrite, 8);
        s.post(A, WrOpcode::RdmaRead, 8);
    }),
    ("an unsignalled SEND", 1, |s| {
        let wr = s.wr(A, WrOpcode::Send, 10).unsignaled();
        s.post_wr(A, &wr);
    }),
];

#[test]
fn the_peer_answers_whatever_it_acknowledged_last() {
    for (what, numbers, past) in PASTS {
        let mut s = Story::new();
        s.receives(B, 4);
        s.world.nodes[B].mr(s.mrs[B]).set_word(1 << 15, 1);
        past(&mut s);
        s.wait(SECOND);
        let word = s.world.nodes[B].mr(s.mrs[B]).word(1 << 15);
        s.sent(A);
        s.sent(B);
        let receives = s.world.nodes[B].receives_in_use(s.ends[B].qp);
        let done = [Counter::Completions, Counter::RequestsReceived].map(|c| s.world.nodes[B].count(c));
        let sent = s.world.nodes[A].sends_in_use(s.ends[A].qp);

        let asked = check(&mut s, A);
        assert_eq!(asked.state(), Asked, "after {what}");
        s.wait(MS);
        assert_eq!(asked.state(), Alive, "after {what}");
        let (ours, theirs) = (s.sent(A), s.sent(B));
        assert!(ours.len() == 1 && asks(&ours[0], BEFORE + numbers), "after {what}: {ours:?}");
        assert!(theirs.len() == 1 && acks()(&theirs[0]), "after {what}: {theirs:?}");
        // The check is no request: the peer executes nothing, consumes no receive, completes nothing.
        assert_eq!(s.world.nodes[B].receives_in_use(s.ends[B].qp), receives, "after {what}");
        let now = [Counter::Completions, Counter::RequestsReceived].map(|c| s.world.nodes[B].count(c));
        assert_eq!((now, s.world.nodes[A].sends_in_use(s.ends[A].qp)), (done, sent), "after {what}");
        assert_eq!(s.world.nodes[B].mr(s.mrs[B]).word(1 << 15), word, "after {what}");
        assert_eq!(s.world.nodes[A].discarded(Discard::GhostAck), 0, "the answer was expected");
        assert_eq!(s.world.nodes[A].count(Counter::PeerChecks), 1);

        // The connection continues with the next sequence number.
        s.post(A, WrOpcode::Send, 10);
        s.wait(MS);
        assert_eq!(psns(&s.sent(A)), [BEFORE + numbers + 1], "after {what}");
        assert_eq!([s.state(A), s.state(B)], [QpState::Rts; 2]);
    }
}

#[test]
fn a_check_needs_no_right_no_receive_and_no_place_in_the_queue() {
    let mut s = Story::with(|c| {
        (c.access, c.max_dest_rd_atomic, c.send_depth) = (Access::LOCAL_WRITE, 0, 1);
    });
    for _ in 0..3 {
        let asked = check(&mut s, A);
        s.wait(MS);
        assert_eq!((asked.state(), s.state(B)), (Alive, QpState::Rts));
    }
    // Both sides may check, even at the same time.
    let both = [A, B].map(|node| check(&mut s, node));
    s.wait(MS);
    assert_eq!(both.map(|asked| asked.state()), [Alive; 2]);
}

#[test]
fn a_loss_does_not_make_a_peer_silent() {
    for node in [A, B] {
        for lost in 1..TRIES {
            let mut s = Story::new();
            let mut seen = 0;
            s.world.link(node, 1 - node).rule = Some(Box::new(move |_| {
                seen += 1;
                if seen <= lost { sim::link::Fate::Drop } else { sim::link::Fate::Pass }
            }));
            let asked = check(&mut s, A);
            s.wait(3 * SECOND);
            assert_eq!(asked.state(), Alive, "{lost} lost of {node}");
            assert_eq!(s.world.nodes[A].count(Counter::PeerChecks), lost as u64 + 1);
        }
    }
}

#[test]
fn a_peer_is_silent_when_a_request_would_have_failed() {
    for (timeout, retry_cnt) in [(14, 7), (14, 0), (10, 3)] {
        let mut s = Story::with(|c| (c.timeout, c.retry_cnt) = (timeout, retry_cnt));
        s.drop_all(B, any());
        let begun = s.world.now;
        let asked = check(&mut s, A);
        while asked.state() == Asked {
            s.wait(MS);
        }
        let took = s.world.now.nanos_since(begun);
        assert_eq!((asked.state(), s.state(A)), (Silent, QpState::Rts), "it changes nothing");
        let ours = s.sent(A);
        assert_eq!(ours.len(), usize::from(retry_cnt) + 1);
        assert!(ours.iter().all(|packet| asks(packet, BEFORE)));
        // A request fails after the same time, to the tick.
        let begun = s.world.now;
        s.post(A, WrOpcode::Send, 0);
        while s.state(A) == QpState::Rts {
            s.wait(MS);
        }
        let request = s.world.now.nanos_since(begun);
        assert!(took.abs_diff(request) <= 2_000_000, "{took} and {request} ns");
    }
}

#[test]
fn a_silent_peer_may_come_back() {
    let mut s = Story::new();
    s.receives(B, 1);
    s.drop_all(A, any());
    let asked = check(&mut s, A);
    s.wait(5 * SECOND);
    assert_eq!(asked.state(), Silent);
    s.heal();
    let again = check(&mut s, A);
    s.post(A, WrOpcode::Send, 10);
    s.wait(SECOND);
    assert_eq!((asked.state(), again.state()), (Silent, Alive), "what was found out stays");
    s.expect_cqe(A, WcOpcode::Send, WcStatus::Success);
    s.expect_cqe(B, WcOpcode::Recv, WcStatus::Success);
}

#[test]
fn what_is_in_flight_asks_already() {
    let mut s = Story::new();
    s.receives(B, 1);
    s.drop_nth(A, any(), 1);
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    let asked = check(&mut s, A);
    s.wait(MS);
    assert_eq!(asked.state(), Asked);
    s.wait(SECOND);
    assert_eq!(asked.state(), Alive);
    assert_eq!((s.world.nodes[A].count(Counter::PeerChecks), psns(&s.sent(A))), (0, vec![0x100, 0x100]));

    // A peer that is gone fails the request, and the queue pair with it.
    s.drop_all(A, any());
    s.post(A, WrOpcode::Send, 10);
    let asked = check(&mut s, A);
    s.wait(5 * SECOND);
    assert_eq!((asked.state(), s.state(A)), (NotConnected, QpState::Err));
    assert_eq!(s.world.nodes[A].count(Counter::PeerChecks), 0);
}

// Requests without a completion have not requested an acknowledgement yet, and the timer that would may be long.
#[test]
fn what_is_in_flight_and_has_not_asked_does() {
    let mut s = Story::with(|c| c.timeout = 22);
    let wr = s.wr(A, WrOpcode::RdmaWrite, 10).unsignaled();
    s.post_wr(A, &wr);
    s.wait(MS);
    assert_eq!(s.sent(B).len(), 0);
    let asked = check(&mut s, A);
    s.wait(MS);
    let ours = s.sent(A);
    assert_eq!(
        ours.iter().map(|packet| (packet.psn, packet.ack_req)).collect::<Vec<_>>(),
        [(0x100, false), (0x100, true)]
    );
    assert_eq!((s.sent(B).len(), s.world.nodes[A].sends_in_use(s.ends[A].qp)), (1, 0));
    s.wait(20 * SECOND);
    assert_eq!((asked.state(), s.world.nodes[A].count(Counter::PeerChecks)), (Alive, 0));
}

#[test]
fn a_peer_without_receives_is_alive() {
    let mut s = Story::new();
    s.post(A, WrOpcode::Send, 10);
    let asked = check(&mut s, A);
    s.wait(SECOND);
    assert_eq!((asked.state(), s.state(A)), (Alive, QpState::Rts), "its RNR NAK is an answer");
}

#[test]
fn a_connection_without_a_timeout_is_checked_within_seconds() {
    let mut s = Story::with(|c| c.timeout = 0);
    let asked = check(&mut s, A);
    s.wait(MS);
    assert_eq!(asked.state(), Alive);
    s.drop_all(A, any());
    // A request in flight that is never retried does not prevent a check.
    s.post(A, WrOpcode::Send, 10);
    s.wait(MS);
    let asked = check(&mut s, A);
    s.wait(10 * SECOND);
    assert_eq!((asked.state(), s.state(A)), (Silent, QpState::Rts));
}

#[test]
fn a_queue_pair_has_one_check_at_a_time() {
    let mut s = Story::new();
    let asked: Vec<_> = (0..100).map(|_| check(&mut s, A)).collect();
    s.wait(MS);
    assert!(asked.iter().all(|asked| asked.state() == Alive));
    assert_eq!((s.world.nodes[A].count(Counter::PeerChecks), s.sent(A).len()), (1, 1));
}

#[test]
fn who_is_not_connected_asks_nobody() {
    let mut s = Story::new();
    s.drop_all(A, any());
    let (now, qp) = (s.world.now, s.ends[A].qp);
    for to in [QpState::Err, QpState::Reset] {
        let asked = check(&mut s, A);
        s.wait(MS);
        s.world.nodes[A].modify_state(now, qp, to).unwrap();
        assert_eq!((asked.state(), check(&mut s, A).state()), (NotConnected, NotConnected));
    }
    let mut s = Story::new();
    s.drop_all(A, any());
    let asked = check(&mut s, A);
    s.world.nodes[A].destroy(s.ends[A].qp);
    assert_eq!(asked.state(), NotConnected, "its queue pair is gone");

    for (ty, state) in [(QpType::Uc, QpState::Rts), (QpType::Ud, QpState::Rts), (QpType::Rc, QpState::Rtr)] {
        let mut rig = Rig::with(|c| (c.qp.ty, c.state) = (ty, state));
        let asked = rig.node.check_peer(rig.now, rig.qp);
        assert_eq!((asked.state(), rig.run().len()), (NotConnected, 0), "{ty:?} in {state:?}");
    }
}

// Soft-RoCE acknowledges the newest message that it executed, which may be before READs, or none yet: then the number is 0xffffff.
#[test]
fn any_response_is_an_answer() {
    let responses: [(&str, Pkt); 6] = [
        ("the acknowledgement of the duplicate", ack(0x101, 2)),
        ("that of what was before a READ", ack(0x100, 1)),
        ("that of nothing", ack(0xff_ffff, 0)),
        ("that of what was never sent", ack(0x140, 9)),
        ("a sequence NAK", ack_with(0x102, 0x60, 2)),
        ("the response to a READ again", pkt(O::RC_READ_RESPONSE_ONLY, 0x101).aeth(0x1f, 2).data(&[1; 8])),
    ];
    for (what, response) in responses {
        let mut rig = Rig::new();
        rig.unlimited();
        rig.post(&rig.wr(1, WrOpcode::Send, 10));
        rig.send(&ack(0x100, 1));
        rig.post(&rig.wr(2, WrOpcode::RdmaRead, 8));
        rig.send(&pkt(O::RC_READ_RESPONSE_ONLY, 0x101).aeth(0x1f, 2).data(&[0; 8]));
        assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        let asked = rig.node.check_peer(rig.now, rig.qp);
        let sent = rig.wait(MS);
        assert_eq!((opcodes(&sent), psns(&sent)), (vec![O::RC_SEND_ONLY], vec![0x101]));
        assert!(rig.send(&response).is_empty());
        assert_eq!(asked.state(), Alive, "{what}");
        assert_eq!(rig.node.mr(rig.buf).read(0, 8), [0; 8], "{what} writes nothing");
        // The next request is unaffected by the check.
        let sent = rig.post(&rig.wr(3, WrOpcode::Send, 10));
        assert_eq!(psns(&sent), [0x102], "{what}");
        rig.send(&ack(0x102, 3));
        assert_eq!(rig.done(), [(3, WcStatus::Success)]);
    }
}

// Among very many queue pairs an unneeded timer is cancelled; the timer of a check is needed.
#[test]
fn a_check_among_many_queue_pairs_is_repeated() {
    let node = NodeConfig { qps_per_shard: 1024, ..NodeConfig::default() };
    let mut s = Story::on(node, |_| ());
    let cq = s.ends[A].cq;
    for _ in 0..600 {
        s.world.nodes[A].create_qp(0, QpConfig::default(), cq, cq);
    }
    s.receives(B, 8);
    s.drop_nth(A, any(), 1);
    let asked = check(&mut s, A);
    s.wait(MS);
    // A request completes while the check waits; its acknowledgement is lost, so the check learns nothing from it at first.
    let wr = s.wr(A, WrOpcode::Send, 10).with(SendFlags::SIGNALED);
    s.post_wr(A, &wr);
    s.wait(SECOND);
    assert_eq!(asked.state(), Alive);
    s.drop_all(B, any());
    let asked = check(&mut s, A);
    s.wait(5 * SECOND);
    assert_eq!(asked.state(), Silent);
}
