//! XRC across processes: the owner of a target relays its requests to the members of its domain. The processes are four simulated hosts:
//! A is the initiator, O owns the target, and the members P and Q have a shared receive queue each.

use std::time::Duration;

use sim::link::{Conditions, Fault};
use sim::node::{CqId, MrId, NodeConfig, QpConfig, QpId, SendWr, SrqId, remote_rights};
use sim::rng::Rng;
use sim::world::World;
use stack::device::RelayedTarget;
use stack::id::{Psn, QpState, QpType, Qpn};
use stack::proto::status::{AsyncEvent, WcOpcode, WcStatus, WrOpcode};
use stack::shard::counters::Counter;
use stack::wire::{Flow, Header, Kind, Opcode, Template, Transport};

const SECOND: Duration = Duration::from_secs(1);
const A: usize = 0;
const O: usize = 1;
const MEMBERS: [usize; 2] = [2, 3];

/// Bytes of the longest message, and of the memory for WRITEs, READs and atomics.
const LONGEST: usize = 6000;
const MEMORY: usize = 64 << 10;
/// Receive requests of a member, each as long as the longest message.
const RECEIVES: usize = 64;

struct Member {
    node: usize,
    cq: CqId,
    srq: SrqId,
    srqn: u32,
    /// The memory that WRITEs and READs address; a counter for atomics comes first.
    memory: MrId,
    receives: MrId,
    /// Lengths of the SENDs that the member should receive, in order.
    expected: Vec<u32>,
    got: Vec<u32>,
    posted: u64,
    added: u64,
}

struct Lab {
    relayed: RelayedTarget,
    world: World,
    ini: QpId,
    target: QpId,
    cq: CqId,
    source: MrId,
    sink: MrId,
    members: Vec<Member>,
    posted: u64,
    done: u64,
    /// Length of each READ, by its tag.
    reads: Vec<(u64, usize)>,
}

impl Lab {
    fn new(seed: u64) -> Self {
        Self::with_reads(seed, 4)
    }

    /// A lab with at most this many READs and atomics outstanding.
    fn with_reads(seed: u64, reads: u8) -> Self {
        let configs = (0..4).map(|index| NodeConfig { index, ..NodeConfig::default() }).collect();
        let mut world = World::new(seed, configs);
        let config = |ty| QpConfig {
            ty,
            sq_sig_all: true,
            max_rd_atomic: reads,
            max_dest_rd_atomic: reads,
            ..QpConfig::default()
        };
        let cq = world.nodes[A].create_cq(4096);
        let ini = world.nodes[A].create_qp(0, config(QpType::XrcIni), cq, cq);
        let of_owner = world.nodes[O].create_cq(16);
        let (target, relayed) = world.nodes[O].create_relayed(config(QpType::XrcTgt), of_owner);
        world.connect((A, ini), (O, target));
        let source = world.nodes[A].register(MEMORY, remote_rights());
        let sink = world.nodes[A].register(MEMORY, remote_rights());
        let bytes: Vec<u8> = (0..MEMORY).map(|i| (i % 251) as u8).collect();
        world.nodes[A].mr(source).write(0, &bytes);
        let mut lab = Self {
            relayed,
            world,
            ini,
            target,
            cq,
            source,
            sink,
            members: Vec::new(),
            posted: 0,
            done: 0,
            reads: Vec::new(),
        };
        for node in MEMBERS {
            lab.join(node);
        }
        lab
    }

    fn target(&self) -> Qpn {
        self.world.nodes[O].qp(self.target).qpn
    }

    /// Adds a member, with a shared receive queue and a shadow of the target.
    fn join(&mut self, node: usize) {
        let (id, srqn) = (node as u32, 0x80_0000 + node as u32);
        let cq = self.world.nodes[node].create_cq(4096);
        self.make_leg(node, cq);
        let nodes = &mut self.world.nodes;
        let srq = nodes[node].create_srq_as(Some(srqn), RECEIVES as u32, cq);
        let memory = nodes[node].register(MEMORY, remote_rights());
        let receives = nodes[node].register(RECEIVES * LONGEST, remote_rights());
        nodes[O].set_srq_member(srqn, Some(id));
        let (expected, got) = (Vec::new(), Vec::new());
        let member = Member { node, cq, srq, srqn, memory, receives, expected, got, posted: 0, added: 0 };
        self.members.push(member);
    }

    /// Connects a leg to a member, and creates a shadow of the target there.
    fn make_leg(&mut self, node: usize, cq: CqId) {
        let target = self.target();
        let World { nodes, now, .. } = &mut self.world;
        let attr = self.relayed.add_leg(node as u32, nodes[node].gid).expect("the target is connected");
        let config = QpConfig { ty: QpType::XrcTgt, ..QpConfig::default() };
        let shadow = nodes[node].create_shadow(*now, config, cq, target, &attr);
        let number = nodes[node].qp(shadow).qpn;
        self.relayed.connect_leg(node as u32, number).expect("the leg is there");
        let leg = Qpn::new(attr.dest_qp_num);
        self.world.note_connection((O, leg), (node, number), Psn::new(attr.rq_psn));
    }

    /// Posts a receive request at a member.
    fn receive(&mut self, member: usize) {
        let m = &mut self.members[member];
        let at = m.posted as usize % RECEIVES * LONGEST;
        let node = &mut self.world.nodes[m.node];
        let sge = node.mr(m.receives).sge(at, LONGEST);
        node.post_srq_recv(m.srq, m.posted, &[sge]).expect("there is room");
        m.posted += 1;
    }

    /// Posts a request of `len` bytes for a member. Returns whether the queue had room.
    fn post(&mut self, member: usize, opcode: WrOpcode, len: usize) -> bool {
        let m = &mut self.members[member];
        let to = self.world.nodes[m.node].mr(m.memory);
        let (key, counter) = (to.key, to.va(0));
        let to = to.va(64 + 8 * (self.posted as usize % 100));
        let node = &mut self.world.nodes[A];
        let (source, sink) = (node.mr(self.source), node.mr(self.sink));
        let mut wr = SendWr::new(self.posted, opcode);
        wr.srqn = m.srqn;
        let wr = match opcode {
            WrOpcode::Send => wr.sges(&[source.sge(0, len)]),
            WrOpcode::AtomicFetchAndAdd => wr.sges(&[sink.sge(0, 8)]).remote(counter, key).operands(1, 0),
            WrOpcode::RdmaRead => wr.sges(&[sink.sge(64, len)]).remote(to, key),
            _ => wr.sges(&[source.sge(0, len)]).remote(to, key),
        };
        if node.post_send(self.ini, &wr).is_err() {
            return false;
        }
        match opcode {
            WrOpcode::Send => m.expected.push(len as u32),
            WrOpcode::AtomicFetchAndAdd => m.added += 1,
            WrOpcode::RdmaRead => self.reads.push((self.posted, len)),
            _ => {}
        }
        self.posted += 1;
        true
    }

    /// Polls completions: all of A's must have succeeded, in order, and those of members must belong to the target.
    fn poll(&mut self) {
        for cqe in self.world.nodes[A].poll_cq(self.cq, 64) {
            assert_eq!((cqe.wr_id, cqe.status), (self.done, WcStatus::Success));
            self.done += 1;
        }
        let target = self.target();
        for m in &mut self.members {
            for cqe in self.world.nodes[m.node].poll_cq(m.cq, 64) {
                assert_eq!((cqe.wr_id, cqe.status), (m.got.len() as u64, WcStatus::Success));
                assert_eq!((cqe.opcode, cqe.qpn, cqe.srqn), (WcOpcode::Recv, target, m.srqn));
                m.got.push(cqe.byte_len);
                let at = cqe.wr_id as usize % RECEIVES * LONGEST;
                let bytes = self.world.nodes[m.node].mr(m.receives).read(at, cqe.byte_len as usize);
                assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
            }
        }
    }

    /// Runs until everything posted has completed, at both ends.
    fn finish(&mut self) {
        let end = self.world.now.after(20 * SECOND);
        while self.done < self.posted {
            self.world.step().expect("no checker complains");
            self.poll();
            assert!(self.world.now < end, "{} of {} are done", self.done, self.posted);
        }
        self.world.run_for(Duration::from_millis(1));
        self.poll();
        for m in &self.members {
            assert_eq!(m.got, m.expected, "SENDs arrive once, in order");
            let counted = self.world.nodes[m.node].mr(m.memory).word(0);
            assert_eq!(counted, m.added, "atomics happen once");
        }
    }

    /// Checks that a request fails with this status, and the target with it.
    fn expect_failure(&mut self, status: WcStatus) {
        let cqes = |lab: &mut World, cq| lab.nodes[A].poll_cq(cq, 64);
        let mut taken = Vec::new();
        let cq = self.cq;
        let done = self.world.run_until(20 * SECOND, |world| {
            taken.extend(cqes(world, cq));
            taken.iter().any(|cqe| cqe.status != WcStatus::Success)
        });
        assert!(done, "it fails");
        assert_eq!(taken.iter().map(|cqe| cqe.status).find(|s| *s != WcStatus::Success), Some(status));
    }
}

const KINDS: [WrOpcode; 4] =
    [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd];

#[test]
fn requests_reach_the_member_that_they_name() {
    let mut lab = Lab::new(1);
    lab.world.tap = Some(Vec::new());
    for i in 0..64 {
        let (member, kind) = (i % 3 % 2, KINDS[i % 4]);
        lab.receive(member);
        assert!(lab.post(member, kind, [0, 100, 1024, LONGEST][i / 4 % 4]));
    }
    lab.finish();
    assert_eq!(lab.world.nodes[A].count(Counter::Retransmitted), 0);
    assert!(lab.members.iter().all(|m| m.got.len() > 4 && m.added > 4));
    // The initiator sees a single responder.
    let sent = lab.world.tap.take().expect("it was set");
    let numbers: Vec<u32> = sent
        .iter()
        .filter_map(|(node, seen)| (*node == O).then_some(seen))
        .filter(|seen| !seen.is_request() && seen.kind() != Kind::ReadResponse)
        .map(|seen| seen.aeth().msn)
        .collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&64), "{numbers:?}");
    for m in &lab.members {
        let written = lab.world.nodes[m.node].mr(m.memory).read(64 + 8 * 100, 100);
        assert!(written.iter().any(|byte| *byte != 0));
    }
}

// Goal: the next message goes to another member, although the initiator has requested no acknowledgement of the message before.
#[test]
fn each_message_is_acknowledged_to_the_owner() {
    let mut lab = Lab::new(2);
    let flow = Flow {
        src_mac: lab.world.nodes[A].mac,
        dst_mac: lab.world.nodes[O].mac,
        src: lab.world.nodes[A].gid,
        dst: lab.world.nodes[O].gid,
        dqpn: lab.target(),
        ..Flow::default()
    };
    for (i, member) in [0, 1, 0].into_iter().enumerate() {
        lab.receive(member);
        let m = &mut lab.members[member];
        m.expected.push(0);
        let header = Header {
            opcode: Opcode::RC_SEND_ONLY.in_class(Transport::Xrc),
            psn: Psn::new(0x100 + i as u32),
            srqn: m.srqn,
            ..Header::default()
        };
        let (template, mut frame) = (Template::new(&flow), vec![0; 128]);
        let at = template.begin(&mut frame, &header);
        let len = template.seal(&mut frame, at, 0);
        frame.truncate(len);
        lab.world.inject(O, frame);
    }
    lab.finish();
}

// Goal: each member gets its requests once and in order, whatever the network and the legs lose, duplicate and reorder.
#[test]
#[cfg_attr(miri, ignore = "too long for the interpreter")]
fn every_request_is_carried_out_once_whatever_is_lost() {
    let (mut posted, mut again) = (0, 0);
    for seed in 0..60 {
        let (mut lab, mut rng) = (Lab::with_reads(seed, 4 << (seed % 3)), Rng::new(seed ^ 0x5eed));
        let bad = Conditions::CLEAN
            .with(Fault::Loss, 20_000)
            .with(Fault::Duplicate, 10_000)
            .with(Fault::Reorder, 10_000)
            .with(Fault::LateDuplicate, 2_000);
        let pairs = [(A, O), (O, A), (O, 2), (2, O), (O, 3), (3, O)];
        for (i, (from, to)) in pairs.into_iter().enumerate() {
            // With some seeds the network is bad, with some the legs are, with some both.
            if seed % 3 == 2 || (i < 2) == (seed % 3 == 0) {
                lab.world.link(from, to).conditions = bad;
            }
        }
        for _ in 0..300 {
            let member = rng.below(2) as usize;
            // Sometimes fewer receive requests than messages are posted: the initiator gets RNR NAKs.
            let m = &lab.members[member];
            if m.posted < m.got.len() as u64 + RECEIVES as u64 && rng.below(8) > 0 {
                lab.receive(member);
            }
            lab.post(member, KINDS[rng.below(4) as usize], rng.below(LONGEST as u64) as usize);
            for _ in 0..rng.below(4) {
                lab.world.step().expect("no checker complains");
                lab.poll();
            }
        }
        for member in 0..2 {
            while lab.members[member].posted < lab.members[member].expected.len() as u64 {
                if lab.members[member].posted == lab.members[member].got.len() as u64 + RECEIVES as u64 {
                    lab.world.step().expect("no checker complains");
                    lab.poll();
                } else {
                    lab.receive(member);
                }
            }
        }
        lab.finish();
        posted += lab.posted;
        again += lab.world.nodes[A].count(Counter::Retransmitted);
    }
    assert!(posted > 60 * 100 && again > 60 * 10, "{posted} requests, {again} packets again");
}

#[test]
fn a_queue_that_nobody_has_ends_the_connection() {
    let mut lab = Lab::new(3);
    lab.receive(0);
    assert!(lab.post(0, WrOpcode::Send, 10));
    lab.members[1].srqn = 77;
    assert!(lab.post(1, WrOpcode::Send, 10));
    lab.expect_failure(WcStatus::RemInvReqErr);
    lab.world.run_for(Duration::from_millis(1));
    assert_eq!(lab.world.nodes[O].state(lab.target), QpState::Err);
    let events = lab.world.nodes[O].events();
    assert!(events.iter().any(|(event, _)| *event == AsyncEvent::QpAccessErr), "{events:?}");
    let m = &lab.members[0];
    assert_eq!(lab.world.nodes[m.node].poll_cq(m.cq, 4).len(), 1, "what came before has arrived");
}

#[test]
fn a_member_that_refuses_ends_the_connection() {
    let mut lab = Lab::new(4);
    lab.post(0, WrOpcode::RdmaWrite, 10);
    lab.post(1, WrOpcode::RdmaWrite, 10);
    // Beyond the end of the member's memory.
    let m = &lab.members[0];
    let (va, key) = {
        let node = &lab.world.nodes[m.node];
        (node.mr(m.memory).va(0) + MEMORY as u64, node.mr(m.memory).key)
    };
    let node = &mut lab.world.nodes[A];
    let mut wr = SendWr::new(9, WrOpcode::RdmaWrite).sges(&[node.mr(lab.source).sge(0, 10)]).remote(va, key);
    wr.srqn = m.srqn;
    node.post_send(lab.ini, &wr).expect("there is room");
    lab.expect_failure(WcStatus::RemAccessErr);
    lab.world.run_for(Duration::from_millis(1));
    assert_eq!(lab.world.nodes[O].state(lab.target), QpState::Err);
}

// Goal: what the owner has no room to send it sends later, requests and responses alike: no end retransmits anything.
#[test]
fn packets_wait_while_the_owner_has_no_room() {
    let mut lab = Lab::with_reads(8, 16);
    for i in 0..60 {
        // READs of one member together have more responses than fit.
        lab.receive(i / 16 % 2);
        lab.post(i / 16 % 2, if i % 8 == 0 { WrOpcode::Send } else { WrOpcode::RdmaRead }, LONGEST);
    }
    let end = lab.world.now.after(Duration::from_millis(20));
    for n in 0.. {
        if lab.world.now >= end || lab.done == lab.posted {
            break;
        }
        lab.world.nodes[O].wires[0].limit_tx(if n % 20 < 19 { Some(0) } else { Some(8) });
        lab.world.step_within(Duration::from_micros(5)).expect("no checker complains");
        lab.poll();
    }
    assert!(lab.done > 0, "some are done");
    lab.world.heal();
    lab.finish();
    assert_eq!(lab.world.nodes[A].count(Counter::Retransmitted), 0);
}

// Goal: when a member's process ends, its shared receive queues are gone, but the connection continues.
#[test]
fn a_member_that_is_gone_leaves_the_others_theirs() {
    let mut lab = Lab::new(5);
    for round in 0..10 {
        lab.receive(round % 2);
        lab.post(round % 2, WrOpcode::Send, 2000);
    }
    lab.finish();
    lab.relayed.remove_leg(2);
    lab.world.nodes[O].set_srq_member(lab.members[0].srqn, None);
    for _ in 0..10 {
        lab.receive(1);
        lab.post(1, WrOpcode::Send, 2000);
    }
    lab.finish();
    assert_eq!(lab.world.nodes[A].count(Counter::Retransmitted), 0);
    lab.receive(0);
    lab.post(0, WrOpcode::Send, 10);
    lab.expect_failure(WcStatus::RemInvReqErr);
}

// Goal: a stopped member delays its own messages, and those after them, until the initiator's retries are used up; and the memory for
// these messages is bounded.
#[test]
fn a_member_that_is_stopped_holds_up_what_is_behind_its_messages() {
    let mut lab = Lab::new(6);
    lab.world.stopped = Some(MEMBERS[0]);
    lab.receive(0);
    lab.receive(1);
    lab.post(0, WrOpcode::Send, 100);
    lab.post(1, WrOpcode::Send, 100);
    lab.world.run_for(Duration::from_millis(50));
    lab.poll();
    assert_eq!((lab.done, lab.members[1].got.len()), (0, 0));
    lab.world.stopped = None;
    lab.finish();
}

#[test]
fn a_target_begins_anew_after_reset() {
    let mut lab = Lab::new(7);
    for life in 0..3 {
        for i in 0..8 {
            lab.receive(i % 2);
            lab.post(i % 2, WrOpcode::Send, 3000);
        }
        lab.finish();
        if life == 2 {
            break;
        }
        let now = lab.world.now;
        for (node, qp) in [(A, lab.ini), (O, lab.target)] {
            lab.world.nodes[node].modify_state(now, qp, QpState::Reset).expect("it is always possible");
        }
        for node in MEMBERS {
            lab.relayed.remove_leg(node as u32);
        }
        lab.world.connect((A, lab.ini), (O, lab.target));
        for i in 0..2 {
            let (node, cq) = (lab.members[i].node, lab.members[i].cq);
            lab.make_leg(node, cq);
        }
    }
}
