//! Connection management of many connections at once: nothing is retransmitted where nothing is lost, no queue pair 1 is sent more MADs
//! than it has receives, and a process that ends notifies the peer of each connection.

use core::time::Duration;
use std::collections::BTreeMap;

use sim::mads::{MadFaults, MadWorld, Receives};
use stack::cm::{
    Accept, Config, ConnId, Connect, Counter, Disconnect, Event, IpHeader, Listen, PortSpace, ServiceId,
};
use stack::id::Qpn;
use stack::port::fault::{Fault, Plan};
use stack::time::Instant;

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 4420);
/// Receives of queue pair 1 for each client: half as many as Linux has for all of its peers together.
const RECEIVES: usize = 256;
const MS: Duration = Duration::from_millis(1);

/// Several clients, and a server as the last node. The server's program takes a while to decide on a request.
struct Burst {
    w: MadWorld,
    decides_after: Duration,
    /// Requests that wait for the server's program.
    undecided: BTreeMap<(Instant, ConnId), ()>,
    up: Vec<Vec<ConnId>>,
    over: Vec<Vec<ConnId>>,
    ended_badly: u32,
    unreachable: u32,
    next_qpn: u32,
}

impl Burst {
    fn new(clients: usize, decides_after: Duration) -> Self {
        let config = |node| Config { ca_guid: node as u64 + 1, seed: node as u64, ..Config::default() };
        let mut w = MadWorld::new(1, clients + 1, MadFaults::NONE, config);
        w.log = None;
        w.receives = Some(Receives { depth: clients * RECEIVES, each: Duration::from_micros(2) });
        w.nodes[clients].listen(&Listen { service_id: SERVICE, address: None, backlog: 10_000 }).unwrap();
        Self {
            w,
            decides_after,
            undecided: BTreeMap::new(),
            up: vec![Vec::new(); clients + 1],
            over: vec![Vec::new(); clients + 1],
            ended_badly: 0,
            unreachable: 0,
            next_qpn: 2,
        }
    }

    fn server(&self) -> usize {
        self.w.nodes.len() - 1
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    fn connect(&mut self, client: usize, connections: usize) {
        let server = self.server();
        let ip = |node| MadWorld::gid(node).to_ip();
        for _ in 0..connections {
            let connect = Connect {
                ip: Some(IpHeader { src_port: 1, src: ip(client), dst: ip(server) }),
                ..Connect::new(SERVICE, MadWorld::path(client, server), self.qpn())
            };
            let now = self.w.now;
            self.w.nodes[client].connect(now, &connect).unwrap();
        }
    }

    /// Runs the world for `time`, programs included.
    fn run(&mut self, time: Duration) {
        let end = self.w.now.after(time);
        while self.w.now < end {
            self.w.pump();
            let next = self.w.next().unwrap_or(end).max(self.w.now);
            let next = self.undecided.keys().next().map_or(next, |(due, _)| next.min(*due)).min(end);
            self.w.run(Duration::from_nanos(next.nanos_since(self.w.now)));
            for node in 0..self.w.nodes.len() {
                while let Some(event) = self.w.event(node) {
                    self.event(node, event);
                }
            }
            while let Some(entry) = self.undecided.first_entry().filter(|e| e.key().0 <= self.w.now) {
                let ((_, id), ()) = entry.remove_entry();
                let (now, server, accept) = (self.w.now, self.server(), Accept::new(self.qpn()));
                self.w.nodes[server].accept(now, id, &accept).unwrap();
            }
        }
    }

    fn event(&mut self, node: usize, event: Event) {
        let now = self.w.now;
        match event {
            Event::ConnectRequest { id, .. } => {
                self.undecided.insert((now.after(self.decides_after), id), ());
            }
            Event::ConnectResponse { id, .. } => {
                self.w.nodes[node].confirm(now, id, b"").unwrap();
                self.up[node].push(id);
            }
            Event::Established { id, .. } => self.up[node].push(id),
            Event::Disconnected { id, how, .. } => {
                self.over[node].push(id);
                self.ended_badly += u32::from(how == Disconnect::TimedOut);
            }
            Event::Unreachable { .. } => self.unreachable += 1,
            Event::TimeWaitExit { .. } => {}
            other => panic!("node {node}: {other:?}"),
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.w.nodes.iter().map(|node| node.counters().get(counter)).sum()
    }

    fn check_nothing_was_lost(&self) {
        assert_eq!((self.w.no_receive, self.count(Counter::Retransmitted)), (0, 0));
        assert_eq!(self.count(Counter::SendQueueFull), 0);
    }
}

// Goal: connections by the thousand that begin, and end, at the same moment, from one client or several: each message is sent once.
#[test]
fn thousands_of_connections_at_once_come_and_go_without_a_repeat() {
    for (clients, each) in [(1, 3000), (4, 750)] {
        let mut burst = Burst::new(clients, Duration::ZERO);
        (0..clients).for_each(|client| burst.connect(client, each));
        burst.run(MS * 200);
        assert_eq!(burst.up[clients].len(), clients * each);
        burst.check_nothing_was_lost();
        let (now, server) = (burst.w.now, burst.server());
        for id in burst.up[server].clone() {
            burst.w.nodes[server].disconnect(now, id, b"").unwrap();
        }
        burst.run(MS * 200);
        for (up, over) in burst.up.iter().zip(&burst.over) {
            assert_eq!(up.len(), over.len());
        }
        burst.check_nothing_was_lost();
    }
}

// Goal: the same if the server's program takes two seconds for each decision.
#[test]
fn a_program_that_takes_its_time_makes_nothing_be_repeated() {
    let mut burst = Burst::new(1, Duration::from_secs(2));
    burst.connect(0, 3000);
    burst.run(Duration::from_secs(20));
    assert_eq!(burst.up[1].len(), 3000);
    burst.check_nothing_was_lost();
}

// Goal: without limits on outstanding requests the same burst loses messages, so the test above would notice their absence.
#[test]
fn a_burst_that_nothing_paces_loses_messages() {
    let mut burst = Burst::new(1, Duration::ZERO);
    let mut config = Config { ca_guid: 1, ..Config::default() };
    config.limits.under_way = usize::MAX;
    burst.w.restart(0, config);
    burst.connect(0, 3000);
    burst.run(MS * 200);
    assert!(burst.w.no_receive > 1000, "{}", burst.w.no_receive);
}

// Goal: hosts that do not answer delay only messages to themselves. Requests to them fail within their programs' time, after more than one
// attempt.
#[test]
fn a_silent_host_holds_up_no_other_one() {
    let mut burst = Burst::new(2, Duration::ZERO);
    burst.w.dead[1] = true;
    let path = MadWorld::path(0, 1);
    for _ in 0..1000 {
        let (now, qpn) = (burst.w.now, burst.qpn());
        burst.w.nodes[0].connect(now, &Connect::new(ServiceId(7), path, qpn)).unwrap();
    }
    burst.connect(0, 100);
    burst.run(MS * 10);
    assert_eq!(burst.up[2].len(), 100);
    let sent = burst.w.nodes[0].counters().get(Counter::Sent);
    burst.run(Duration::from_secs(74));
    assert_eq!(burst.unreachable, 1000);
    let sent = burst.w.nodes[0].counters().get(Counter::Sent) - sent;
    assert!(sent > 10_000, "{sent} MADs");
}

// Goal: a process that ends notifies each peer, over a link that loses a fifth of all messages; and a silent peer delays its end for a
// bounded time only.
#[test]
fn the_peer_of_each_connection_learns_that_the_process_ends() {
    let mut burst = Burst::new(2, Duration::ZERO);
    burst.connect(0, 700);
    burst.connect(1, 300);
    burst.run(MS * 200);
    assert_eq!(burst.up[2].len(), 1000);
    burst.w.faults.path = Plan { delay: Duration::from_micros(10), ..Plan::CLEAN.with(Fault::Loss, 200_000) };
    let begun = burst.w.now;
    let server = burst.server();
    burst.w.nodes[server].leave(begun);
    assert_eq!(burst.w.nodes[server].dreqs(), 1000);
    while burst.w.nodes[server].dreqs() > 0 {
        burst.run(MS * 10);
    }
    assert!(burst.w.now.nanos_since(begun) < 12_000_000_000, "{:?}", burst.w.now);
    let told: Vec<usize> = burst.over.iter().map(Vec::len).collect();
    assert_eq!((told, burst.ended_badly), (vec![700, 300, 1000], 0));

    let mut burst = Burst::new(2, Duration::ZERO);
    burst.connect(0, 1500);
    burst.connect(1, 300);
    burst.run(MS * 200);
    burst.w.dead[0] = true;
    let begun = burst.w.now;
    let server = burst.server();
    burst.w.nodes[server].leave(begun);
    burst.run(MS * 100);
    assert_eq!((burst.over[1].len(), burst.w.nodes[server].dreqs()), (300, 1500));
    while burst.w.nodes[server].dreqs() > 0 {
        burst.run(MS * 100);
    }
    assert!(burst.w.now.nanos_since(begun) < 12_000_000_000, "{:?}", burst.w.now);
    assert_eq!((burst.over[server].len(), burst.ended_badly), (1800, 1500));
}

// Goal: a connection that the peer may know to be established, while its RTU is on the way or lost, is ended as well.
#[test]
fn a_connection_whose_last_message_was_lost_ends_with_the_process() {
    let mut burst = Burst::new(1, Duration::ZERO);
    burst.w.lose.push(stack::cm::message::Rtu::ATTRIBUTE);
    burst.connect(0, 1);
    burst.run(MS * 10);
    assert_eq!((burst.up[0].len(), burst.up[1].len()), (1, 0));
    burst.w.lose.push(stack::cm::message::Dreq::ATTRIBUTE);
    let now = burst.w.now;
    burst.w.nodes[1].leave(now);
    burst.run(MS * 100);
    assert_eq!((burst.over[0].len(), burst.w.nodes[1].dreqs()), (1, 0));
}
