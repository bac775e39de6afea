//! Connection management over whole stacks: MADs through queue pair 1, then data through the resulting connection.

use core::time::Duration;

use sim::forger::Forger;
use sim::link::{Conditions, Fault};
use sim::manager::{Manager, connect, init, run};
use sim::node::{CqId, MrId, NodeConfig, QpConfig, QpId, SendWr, remote_rights};
use sim::rng::Rng;
use sim::world::World;
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Disconnect, Event, IpHeader, Listen, PortSpace, ServiceId,
    Timing,
};
use stack::id::{QpState, Qpn};
use stack::mem::Access;
use stack::proto::status::{WcOpcode, WcStatus, WrOpcode};

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7);
const SIZE: usize = 3000;
const SLOT: usize = 4096;
const MESSAGES: u64 = 12;
/// Time limit for one connection: more than all repetitions of a request take.
const LIMIT: Duration = Duration::from_secs(100);

/// One end of a connection: its queue pair, buffers and progress.
struct End {
    qp: QpId,
    cq: CqId,
    mr: MrId,
    id: Option<ConnId>,
    up: bool,
    over: bool,
    sent: u64,
    received: u64,
    read: bool,
}

fn end(w: &mut World, node: usize) -> End {
    let n = &mut w.nodes[node];
    let cq = n.create_cq(256);
    let config = QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::default() };
    let qp = n.create_qp(0, config, cq, cq);
    let mr = n.register(2 * MESSAGES as usize * SLOT, remote_rights());
    init(w, node, qp);
    for i in 0..MESSAGES {
        let n = &mut w.nodes[node];
        let sge = n.mr(mr).sge(i as usize * SLOT, SLOT);
        n.post_recv(qp, i, &[sge]).unwrap();
    }
    End { qp, cq, mr, id: None, up: false, over: false, sent: 0, received: 0, read: false }
}

/// The bytes of a message.
fn message(from: usize, number: u64) -> Vec<u8> {
    Rng::new(number << 1 | from as u64).bytes(SIZE)
}

fn post(w: &mut World, node: usize, end: &mut End) {
    let n = &mut w.nodes[node];
    while end.sent < MESSAGES {
        let at = (MESSAGES + end.sent) as usize * SLOT;
        n.mr(end.mr).write(at, &message(node, end.sent));
        let wr = SendWr::new(100 + end.sent, WrOpcode::Send).sges(&[n.mr(end.mr).sge(at, SIZE)]);
        n.post_send(end.qp, &wr).unwrap();
        end.sent += 1;
    }
}

/// Counts the completions of a queue pair.
fn poll(w: &mut World, node: usize, end: &mut End) {
    for cqe in w.nodes[node].poll_cq(end.cq, 64) {
        let status = cqe.status;
        if end.over {
            continue; // flushed
        }
        assert_eq!(status, WcStatus::Success, "node {node}, request {}", cqe.wr_id);
        if cqe.opcode == WcOpcode::Recv {
            let got = w.nodes[node].mr(end.mr).read(cqe.wr_id as usize * SLOT, cqe.byte_len as usize);
            assert_eq!(got, message(1 - node, end.received), "message {}", end.received);
            end.received += 1;
        } else if cqe.wr_id == 99 {
            end.read = true;
        }
    }
}

#[derive(Default, Debug)]
struct Outcome {
    whole: u32,
    failed: u32,
    early: u32,
    unmasked: u64,
}

/// Makes connections one after the other: connected over queue pair 1, used in both directions, disconnected. A third host sends
/// `lies` forged messages for each MAD.
fn story(
    seed: u64,
    ipv6: bool,
    vlan: Option<u16>,
    conditions: Conditions,
    connections: u32,
    lies: u32,
) -> Outcome {
    let config = |index| NodeConfig { index, ipv6, vlan, qps_per_shard: 64, ..NodeConfig::default() };
    let mut w = World::new(seed, vec![config(0), config(1)]);
    let mut outcome = Outcome::default();
    let mut managers: Vec<Manager> = (0..2)
        .map(|node| {
            let config = Config { ca_guid: 10 + node as u64, seed: seed + node as u64, ..Config::default() };
            Manager::new(&mut w, node, config)
        })
        .collect();
    managers[1].machine.listen(&Listen { service_id: SERVICE, address: None, backlog: 4 }).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        w.link(from, to).conditions = conditions;
    }
    let mut forger = Forger::new(seed);
    forger.join(&mut w);
    for number in 0..connections {
        let mut ends = [end(&mut w, 0), end(&mut w, 1)];
        let qpns: Vec<Qpn> = [0, 1].map(|i: usize| w.nodes[i].qp(ends[i].qp).qpn).to_vec();
        let path = managers[0].path(&w, 1);
        let request = Connect {
            ip: Some(IpHeader { src_port: 5, src: path.sgid.to_ip(), dst: path.dgid.to_ip() }),
            // All repetitions together take two seconds, because an address may have to be resolved twice in that time.
            timing: Timing {
                packet_lifetime: 8,
                remote_response: 15,
                local_response: 15,
                ..Timing::default()
            },
            ..Connect::new(SERVICE, path, qpns[0])
        };
        let now = w.now;
        ends[0].id = Some(managers[0].machine.connect(now, &request).unwrap());
        let (mut failed, mut ending) = (false, false);
        let mut resting = 2;
        let done = run(&mut w, &mut managers, LIMIT, |w, managers| {
            forger.forge(w, lies);
            for node in 0..2 {
                poll(w, node, &mut ends[node]);
                let now = w.now;
                while let Some(event) = managers[node].machine.poll_event() {
                    match event {
                        Event::ConnectRequest { id, request, .. }
                            if ends[node].id.is_some()
                                || number % 5 == 4
                                || request.path.dgid != path.sgid =>
                        {
                            // From a late REQ, from a refused one, or from the third host. The peer may have withdrawn the request
                            // already.
                            let _ = managers[node].machine.destroy(now, id);
                        }
                        Event::ConnectRequest { id, .. } => {
                            let accept = Accept::new(qpns[node]);
                            let params = managers[node].machine.plan_accept(id, &accept).unwrap();
                            connect(w, node, ends[node].qp, &params);
                            managers[node].machine.accept(now, id, &accept).unwrap();
                            ends[node].id = Some(id);
                        }
                        Event::ConnectResponse { id, response } => {
                            connect(w, node, ends[node].qp, &response.params);
                            managers[node].machine.confirm(now, id, b"").unwrap();
                            ends[node].up = true;
                            post(w, node, &mut ends[node]);
                        }
                        Event::Established { id, private_data } => {
                            assert_eq!(Some(id), ends[node].id);
                            outcome.early += u32::from(private_data.is_empty());
                            ends[node].up = true;
                            post(w, node, &mut ends[node]);
                        }
                        Event::Rejected { id, .. } | Event::Unreachable { id, .. } => {
                            assert!(Some(id) != ends[node].id || !ends[node].up);
                            failed |= Some(id) == ends[node].id;
                        }
                        Event::Disconnected { id, how, .. } => {
                            assert_eq!(Some(id), ends[node].id);
                            assert_ne!(how, Disconnect::TimedOut, "node {node}");
                            assert!(ending, "node {node}: neither program asked for that");
                            ends[node].over = true;
                            w.nodes[node].modify_state(now, ends[node].qp, QpState::Err).unwrap();
                        }
                        Event::TimeWaitExit { id, qpn } => {
                            assert_eq!((Some(id), qpn), (ends[node].id, qpns[node]));
                            resting -= 1;
                        }
                        other => panic!("node {node}: {other:?}"),
                    }
                }
                // Data came before the RTU, and establishes the connection as well.
                if !ends[node].up && ends[node].received > 0 {
                    let id = ends[node].id.unwrap();
                    managers[node].machine.established(now, id).unwrap();
                }
            }
            // The target reads from the host, as in storage: the host granted it that right.
            if ends[1].up && ends[1].received == MESSAGES && ends[1].sent == MESSAGES {
                ends[1].sent += 1;
                let remote = w.nodes[0].mr(ends[0].mr);
                let (va, rkey) = (remote.va(MESSAGES as usize * SLOT), remote.key);
                let sge = w.nodes[1].mr(ends[1].mr).sge(0, SIZE);
                let wr = SendWr::new(99, WrOpcode::RdmaRead).sges(&[sge]).remote(va, rkey);
                w.nodes[1].post_send(ends[1].qp, &wr).unwrap();
            }
            if ends[1].read && ends[0].received == MESSAGES && !ends[1].over {
                ends[1].read = false;
                assert_eq!(w.nodes[1].mr(ends[1].mr).read(0, SIZE), message(0, 0));
                let id = ends[1].id.unwrap();
                let now = w.now;
                managers[1].machine.disconnect(now, id, b"").unwrap();
                ending = true;
            }
            let left: usize = managers.iter().map(|m| m.machine.connections()).sum();
            (failed || resting == 0) && left == 0
        });
        assert!(
            done,
            "seed {seed}, connection {number}: {} and {} connections left, up {} {}, received {} {}",
            managers[0].machine.connections(),
            managers[1].machine.connections(),
            ends[0].up,
            ends[1].up,
            ends[0].received,
            ends[1].received
        );
        if failed {
            outcome.failed += 1;
        } else {
            outcome.whole += 1;
        }
        for (node, end) in ends.iter().enumerate() {
            w.nodes[node].destroy(end.qp);
            w.nodes[node].deregister(end.mr);
        }
    }
    let unmasked = |m: &Manager| m.machine.counters().get(Counter::NotThePeer);
    outcome.unmasked = managers.iter().map(unmasked).sum();
    w.check(false).unwrap();
    assert_eq!(remote_rights() & Access::REMOTE_READ, Access::REMOTE_READ);
    outcome
}

#[test]
fn m26_connections_over_queue_pair_1() {
    for (ipv6, vlan) in [(false, None), (true, None), (false, Some(100)), (true, Some(100))] {
        let outcome = story(1, ipv6, vlan, Conditions::CLEAN, 5, 0);
        assert_eq!((outcome.whole, outcome.failed), (4, 1), "every fifth is refused: {outcome:?}");
    }
}

#[test]
fn m12_m14_m18_connections_over_a_bad_link() {
    let conditions = Conditions::CLEAN
        .with(Fault::Loss, 80_000)
        .with(Fault::Duplicate, 80_000)
        .with(Fault::LateDuplicate, 20_000)
        .with(Fault::Reorder, 80_000)
        .with(Fault::Corrupt, 20_000);
    let (mut whole, mut early) = (0, 0);
    for seed in 0..12 {
        let outcome = story(seed, false, None, conditions, 8, 0);
        (whole, early) = (whole + outcome.whole, early + outcome.early);
    }
    assert!(whole >= 70, "{whole} of 96 (every fifth is refused) worked");
    assert!(early > 0, "data before the RTU never came");
}

// Goal: a third host answers each MAD that it sees, from an address of its own, to real shards. It makes, changes and ends no connection,
// and meanwhile the two ends exchange all of their messages.
#[test]
fn a_third_host_ends_no_connection_of_whole_stacks() {
    let mut unmasked = 0;
    for (seed, ipv6, vlan) in [(1, false, None), (2, true, None), (3, false, Some(100)), (4, true, Some(100))]
    {
        let outcome = story(seed, ipv6, vlan, Conditions::CLEAN, 10, 3);
        assert_eq!((outcome.whole, outcome.failed), (8, 2), "every fifth is refused: {outcome:?}");
        unmasked += outcome.unmasked;
    }
    let conditions = Conditions::CLEAN
        .with(Fault::Loss, 80_000)
        .with(Fault::Duplicate, 80_000)
        .with(Fault::Reorder, 80_000);
    let mut whole = 0;
    for seed in 0..8 {
        let outcome = story(seed, seed % 2 == 1, None, conditions, 8, 3);
        (whole, unmasked) = (whole + outcome.whole, unmasked + outcome.unmasked);
    }
    assert!(whole >= 46, "{whole} of 64 (every fifth is refused) worked");
    assert!(unmasked > 100, "only {unmasked} lies were about a connection");
}
