//! A port that limits what is in flight: queue pairs share its window, and READs are requested in parts.

use std::time::Duration;

use sim::node::{NodeConfig, SendWr, remote_rights};
use sim::peer::{Pkt, Rig, ack, ack_with, pkt, psns};
use sim::seen::Seen;
use sim::world::World;
use stack::config::GAP_LONGEST;
use stack::id::{Mtu, QpState};
use stack::proto::status::{WcStatus, WrOpcode};
use stack::wire::{Ext, Opcode};

use Opcode as O;
use WcStatus::{LocLenErr, RetryExcErr, Success};
use WrOpcode::{RdmaRead, RdmaWrite, Send};

/// Bytes for which a packet of path MTU 1024 counts.
const PACKET: usize = 1024 + 256;

/// A rig whose port allows this many packets in flight.
fn rig(packets: usize) -> Rig {
    let mut rig = Rig::with(|c| {
        c.receives = 0;
        c.qp.max_rd_atomic = 8;
        c.window = Some(packets * PACKET);
    });
    rig.unlimited();
    rig
}

/// Packets that count as in flight.
fn in_flight(rig: &Rig) -> usize {
    rig.node.shard(0, |shard| shard.bytes_in_flight()) as usize / PACKET
}

/// Sequence number, offset and length of each READ request.
fn asked(said: &[Seen]) -> Vec<(u32, u64, u32)> {
    let of = |seen: &Seen| match seen.ext {
        Ext::Reth(reth) if seen.opcode == O::RC_READ_REQUEST => {
            (seen.psn, reth.va - sim::peer::REMOTE_VA, reth.len)
        }
        _ => panic!("{seen:?}"),
    };
    said.iter().map(of).collect()
}

/// The responses to a READ request of `len` bytes, each full of its number, with credits without limit.
fn responses(psn: u32, len: usize, msn: u32) -> Vec<Pkt> {
    responses_with(psn, len, 0x1f, msn)
}

fn responses_with(psn: u32, len: usize, credits: u8, msn: u32) -> Vec<Pkt> {
    let n = len.div_ceil(1024);
    let response = |i: usize| {
        let data = vec![(psn as usize + i) as u8; (len - i * 1024).min(1024)];
        let opcode = match (i == 0, i + 1 == n) {
            (true, true) => O::RC_READ_RESPONSE_ONLY,
            (true, false) => O::RC_READ_RESPONSE_FIRST,
            (false, true) => O::RC_READ_RESPONSE_LAST,
            (false, false) => return pkt(O::RC_READ_RESPONSE_MIDDLE, psn + i as u32).data(&data),
        };
        pkt(opcode, psn + i as u32).data(&data).aeth(credits, msn)
    };
    (0..n).map(response).collect()
}

#[test]
fn a_read_of_much_of_the_window_is_asked_for_in_parts() {
    let mut rig = rig(32);
    let said = rig.post_all(&[rig.wr(1, RdmaRead, 36 * 1024 - 100), rig.wr(2, RdmaRead, 1024)]);
    let parts = [(0x100, 0, 8192), (0x108, 8192, 8192), (0x110, 16384, 8192), (0x118, 24576, 8192)];
    assert_eq!(asked(&said), parts, "the window is full");
    assert_eq!(in_flight(&rig), 32);
    // A part of four packets, and then the next READ, which waits for as much room.
    let first = responses(0x100, 8192, 1);
    assert!(rig.send_all(&first[..3]).is_empty());
    assert_eq!(in_flight(&rig), 29);
    assert_eq!(asked(&rig.send(&first[3])), [(0x120, 32768, 4 * 1024 - 100)]);
    assert_eq!(asked(&rig.send(&first[4])), [(0x124, 0, 1024)]);
    // READs of at most a quarter of the window are not split.
    let said = self::rig(32).post_all(&[rig.wr(1, RdmaRead, 8192), rig.wr(2, RdmaRead, 100)]);
    assert_eq!(asked(&said), [(0x100, 0, 8192), (0x108, 0, 100)]);
}

#[test]
fn the_parts_of_a_read_are_answered_one_after_the_other() {
    let mut rig = rig(32);
    let len = 20 * 1024 - 100;
    rig.post(&rig.wr(1, RdmaRead, len));
    rig.send_all(&responses(0x100, 8192, 1));
    assert!(rig.done().is_empty());
    rig.send_all(&responses(0x108, 8192, 2));
    assert!(rig.done().is_empty());
    rig.send_all(&responses(0x110, 4 * 1024 - 100, 3));
    assert_eq!((rig.done(), in_flight(&rig)), (vec![(1, Success)], 0));
    let want: Vec<u8> = (0..len).map(|at| (at / 1024) as u8).collect();
    assert_eq!(rig.node.mr(rig.buf).read(0, len), want);
    assert_eq!(psns(&rig.post(&rig.wr(2, RdmaWrite, 10))), [0x114]);
}

#[test]
fn a_part_counts_as_a_request() {
    // Goal: the READ limit and the credits of the peer apply. The peer sees one request for each part.
    let mut rig = Rig::with(|c| {
        c.receives = 0;
        c.window = Some(32 * PACKET);
        c.qp.max_rd_atomic = 1;
    });
    let said = rig.post(&rig.wr(1, RdmaRead, 10 * 1024));
    assert_eq!(asked(&said), [(0x100, 0, 8192)], "one is outstanding");
    let said = rig.send_all(&responses_with(0x100, 8192, 0, 1));
    assert_eq!(asked(&said), [(0x108, 8192, 2048)]);
    rig.send_all(&responses_with(0x108, 2048, 0, 2));
    assert_eq!(rig.done(), [(1, Success)]);
    let sends: Vec<SendWr> = (2..5).map(|id| rig.wr(id, Send, 8)).collect();
    assert_eq!(rig.post_all(&sends).len(), 1, "one goes beyond the credits");
}

#[test]
fn what_is_lost_of_a_part_is_asked_for_to_its_end() {
    let mut rig = rig(32);
    rig.post(&rig.wr(1, RdmaRead, 16 * 1024));
    let first = responses(0x100, 8192, 1);
    rig.send_all(&first[..3]);
    rig.inject(&first[4]);
    let said = rig.wait(2 * GAP_LONGEST);
    assert_eq!(asked(&said), [(0x103, 3 * 1024, 5 * 1024), (0x108, 8192, 8192)]);
    rig.send_all(&responses(0x103, 5 * 1024, 1));
    rig.send_all(&responses(0x108, 8192, 2));
    assert_eq!(rig.done(), [(1, Success)]);
}

#[test]
fn a_part_must_end_where_it_ends() {
    let wrong = [
        (7, pkt(O::RC_READ_RESPONSE_MIDDLE, 0x107).len(1024)),
        (7, pkt(O::RC_READ_RESPONSE_FIRST, 0x107).len(1024).aeth(0x1f, 1)),
        (3, pkt(O::RC_READ_RESPONSE_LAST, 0x103).len(1024).aeth(0x1f, 1)),
    ];
    for (before, wrong) in wrong {
        let mut rig = rig(32);
        rig.post(&rig.wr(1, RdmaRead, 16 * 1024));
        rig.send_all(&responses(0x100, 8192, 1)[..before]);
        assert!(rig.done().is_empty());
        rig.send(&wrong);
        assert_eq!((rig.done(), in_flight(&rig)), (vec![(1, LocLenErr)], 0));
    }
}

#[test]
fn what_is_in_flight_is_given_back_however_it_ends() {
    let write = |rig: &mut Rig| {
        let said = rig.post(&rig.wr(1, RdmaWrite, 12 * 1024));
        assert_eq!((said.len(), in_flight(rig)), (12, 12));
    };
    // Acknowledged partly, and then completely.
    let mut rig1 = rig(32);
    write(&mut rig1);
    rig1.send(&ack(0x104, 0));
    assert_eq!(in_flight(&rig1), 7);
    rig1.send(&ack(0x10b, 1));
    assert_eq!(in_flight(&rig1), 0);
    // RNR NAK: the sent packets no longer count as in flight, and are sent again.
    let mut rig2 = rig(32);
    write(&mut rig2);
    assert!(rig2.send(&ack_with(0x100, 0x20 | 12, 0)).is_empty());
    assert_eq!(in_flight(&rig2), 0);
    rig2.wait(Duration::from_millis(2));
    assert_eq!(in_flight(&rig2), 12);
    // Never answered: retransmitted until the retries are used up; then the queue pair is flushed.
    rig2.wait(Duration::from_secs(5));
    assert_eq!(rig2.done(), [(1, RetryExcErr)]);
    assert_eq!((rig2.state(), in_flight(&rig2)), (QpState::Err, 0));
    // The queue pair ends.
    for to in [QpState::Err, QpState::Reset] {
        let mut rig = rig(32);
        write(&mut rig);
        rig.node.modify_state(rig.now, rig.qp, to).unwrap();
        assert_eq!(in_flight(&rig), 0);
    }
    let mut rig3 = rig(32);
    write(&mut rig3);
    rig3.node.destroy(rig3.qp);
    assert_eq!(in_flight(&rig3), 0);
}

#[test]
fn a_window_smaller_than_a_packet_lets_one_go() {
    let mut rig = Rig::with(|c| {
        c.receives = 0;
        c.window = Some(1);
    });
    rig.unlimited();
    let said = rig.post(&rig.wr(1, RdmaWrite, 3 * 1024));
    assert!(psns(&said) == [0x100] && said[0].ack_req, "{said:?}");
    assert_eq!(psns(&rig.send(&ack(0x100, 0))), [0x101]);
    assert_eq!(psns(&rig.send(&ack(0x101, 0))), [0x102]);
    rig.send(&ack(0x102, 1));
    let said = rig.post(&rig.wr(2, RdmaRead, 2048));
    assert_eq!(asked(&said), [(0x103, 0, 1024)]);
    let said = rig.send_all(&responses(0x103, 1024, 2));
    assert_eq!(asked(&said), [(0x104, 1024, 1024)]);
    rig.send_all(&responses(0x104, 1024, 3));
    assert_eq!(rig.done(), [(1, Success), (2, Success)]);
}

/// Queue pairs of two nodes, whose ports allow this many packets in flight, all write and read. Returns the most that was in flight at
/// one node.
fn crowd(queue_pairs: usize, packets: usize) -> usize {
    const LEN: usize = 64 * 1024;
    let node = |index| NodeConfig {
        index,
        buffers: 4096,
        qps_per_shard: 64,
        window: Some(packets * PACKET),
        ..NodeConfig::default()
    };
    let mut world = World::new(1, vec![node(0), node(1)]);
    let ends: Vec<_> = (0..queue_pairs)
        .map(|_| world.connected(sim::node::QpConfig { mtu: Mtu::Mtu1024, ..Default::default() }))
        .collect();
    let regions = [0, 1].map(|node| world.nodes[node].register(LEN, remote_rights()));
    for (n, both) in ends.iter().enumerate() {
        for (node, end) in both.iter().enumerate() {
            let [own, other] = [node, 1 - node].map(|node| world.nodes[node].mr(regions[node]));
            let (sge, va, key) = (own.sge(0, LEN), other.va(0), other.key);
            for opcode in [RdmaWrite, RdmaRead] {
                let wr = SendWr::new(n as u64, opcode).sges(&[sge]).remote(va, key);
                assert_eq!(world.nodes[node].post_send(end.qp, &wr), Ok(()));
            }
        }
    }
    let (mut most, mut left) = (0, 4 * queue_pairs);
    let over = world.run_until(Duration::from_secs(2), |world| {
        for (node, end) in ends.iter().flat_map(|both| both.iter().enumerate()) {
            most = most.max(world.nodes[node].shard(0, |shard| shard.bytes_in_flight()) as usize / PACKET);
            for cqe in world.nodes[node].poll_cq(end.cq, 16) {
                assert_eq!(cqe.status, Success);
                left -= 1;
            }
        }
        left == 0
    });
    assert!(over, "{left} requests of {queue_pairs} queue pairs never end");
    for node in &world.nodes {
        assert_eq!(node.shard(0, |shard| shard.bytes_in_flight()), 0);
    }
    most
}

#[test]
fn many_share_a_window_and_all_come_through() {
    for (queue_pairs, packets) in [(1, 24), (2, 24), (8, 24), (8, 60)] {
        let most = crowd(queue_pairs, packets);
        assert!(most > packets / 2, "it is used: {most} of {packets} by {queue_pairs}");
        assert!(most <= packets + queue_pairs, "{most} of {packets} by {queue_pairs}");
    }
    let most = crowd(12, 4);
    assert!((5..=24).contains(&most), "each has a packet in flight, or a part of a READ: {most}");
}
