//! Two devices on an in-process cable, used through the public verbs as a fast program uses them: split handles, lists of
//! requests of which the last one is signalled, a clock that the caller advances. Some scenarios are as programs for libibverbs
//! are: they call the queue pair and the completion queue, which any thread may.
//!
//! Each step of each end is a separate function that is never inlined, so that an instruction counter can be limited to it.
//! Nothing here depends on the machine's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "dpdk")]
use verbs::port::PortOptions;
use verbs::port::{Port, pair};
use verbs::{
    Access, Clock, Context, Cq, CqPoller, DeviceConfig, Drive, Mr, Mtu, Pd, Qp, QpCap, QpInitAttr, RcOptions,
    Reactor, RecvQueue, RecvWr, SendQueue, SendWr, Sge, VerbsError, Wc,
};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND into a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH & ADD of 8 bytes.
    FetchAdd,
}

/// A counted scenario: an operation, the bytes of its message, and how many are posted in one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name in tables and files.
    pub name: &'static str,
    /// Operation.
    pub op: Op,
    /// Bytes of a message, at most the path MTU of 4096: a message is a packet.
    pub len: u32,
    /// Messages of a list.
    pub batch: usize,
    /// Shards of each device, each with its own queue of the port; only the last one has traffic.
    pub shards: usize,
    /// The link between the devices.
    pub link: Link,
    /// What the program calls.
    pub calls: Calls,
}

/// What a program posts to and polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The handles that one thread has for itself.
    Handles,
    /// The queue pair and the completion queue themselves.
    Objects,
}

/// The link between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The in-process port.
    Pair,
    /// Rings of DPDK's, through ethdev (`net_ring`).
    Ethdev,
}

/// Every scenario, in the order of the tables.
#[rustfmt::skip]
pub const SCENARIOS: [Scenario; 14] = [
    Scenario { name: "send_64",           op: Op::Send,     len: 64,   batch: 32, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "write_64",          op: Op::Write,    len: 64,   batch: 32, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "read_64",           op: Op::Read,     len: 64,   batch: 16, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "fetch_add_8",       op: Op::FetchAdd, len: 8,    batch: 16, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "send_4096",         op: Op::Send,     len: 4096, batch: 32, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "write_4096",        op: Op::Write,    len: 4096, batch: 32, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "read_4096",         op: Op::Read,     len: 4096, batch: 16, shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "send_64_alone",     op: Op::Send,     len: 64,   batch: 1,  shards: 1, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "send_64_qp",        op: Op::Send,     len: 64,   batch: 32, shards: 1, link: Link::Pair, calls: Calls::Objects },
    Scenario { name: "send_64_alone_qp",  op: Op::Send,     len: 64,   batch: 1,  shards: 1, link: Link::Pair, calls: Calls::Objects },
    Scenario { name: OF_TWO,              op: Op::Send,     len: 64,   batch: 32, shards: 2, link: Link::Pair, calls: Calls::Handles },
    Scenario { name: "send_64_ethdev",    op: Op::Send,     len: 64,   batch: 32, shards: 1, link: Link::Ethdev, calls: Calls::Handles },
    Scenario { name: "send_4096_ethdev",  op: Op::Send,     len: 4096, batch: 32, shards: 1, link: Link::Ethdev, calls: Calls::Handles },
    Scenario { name: "write_4096_ethdev", op: Op::Write,    len: 4096, batch: 32, shards: 1, link: Link::Ethdev, calls: Calls::Handles },
];
/// The first scenario on one of two shards: its cost must be the same as with a single shard.
pub const OF_TWO: &str = "send_64_of_two";

/// The scenario of this name.
pub fn scenario(name: &str) -> Option<Scenario> {
    SCENARIOS.into_iter().find(|s| s.name == name)
}

/// Lists to post before an object's lock is biased to the one thread that uses it.
const TO_BIAS: usize = 2 * stack::sync::claim::BIAS_AFTER as usize;
/// Turns of one list after which the link counts as stuck.
const TURNS_MAX: u32 = 1000;
const MEMORY: usize = 256 << 10;
const DEPTH: u32 = 128;

/// One end.
pub struct End {
    /// The split handles; `None` where the scenario calls the objects.
    handles: Option<Handles>,
    reactor: Reactor,
    sges: Vec<Sge>,
    remote: (u64, u32),
    wcs: [Wc; 64],
    // Dropped after the handles, which belong to it.
    mr: Mr,
    qp: Qp,
    cq: Cq,
    _pd: Pd,
    context: Context,
}

struct Handles {
    sq: SendQueue,
    rq: RecvQueue,
    cq: CqPoller,
}

/// Posts one list of requests, the last one signalled.
#[inline(never)]
pub fn requester_post(sq: &mut SendQueue, wrs: &[SendWr<'_>]) {
    sq.post_send(wrs).expect("the queue has room");
}
/// The same, to the queue pair.
#[inline(never)]
pub fn requester_post_to_qp(qp: &Qp, wrs: &[SendWr<'_>]) {
    qp.post_send(wrs).expect("the queue has room");
}
/// One turn of the requester's shard.
#[inline(never)]
pub fn requester_turn(end: &mut End) {
    end.reactor.poll_once().expect("nobody else turns it");
}
/// Polls the requester's completion queue; returns the number of completions.
#[inline(never)]
pub fn requester_poll(cq: &mut CqPoller, wcs: &mut [Wc; 64]) -> usize {
    all_ok("the requester", cq.poll(wcs), wcs)
}
/// The same, from the queue itself.
#[inline(never)]
pub fn requester_poll_cq(cq: &Cq, wcs: &mut [Wc; 64]) -> usize {
    all_ok("the requester", cq.poll(wcs), wcs)
}
/// Posts one list of receives.
#[inline(never)]
pub fn responder_post(rq: &mut RecvQueue, wrs: &[RecvWr<'_>]) {
    rq.post_recv(wrs).expect("the queue has room");
}
/// The same, to the queue pair.
#[inline(never)]
pub fn responder_post_to_qp(qp: &Qp, wrs: &[RecvWr<'_>]) {
    qp.post_recv(wrs).expect("the queue has room");
}
/// One turn of the responder's shard.
#[inline(never)]
pub fn responder_turn(end: &mut End) {
    end.reactor.poll_once().expect("nobody else turns it");
}
/// Polls the responder's completion queue; returns the number of completions.
#[inline(never)]
pub fn responder_poll(cq: &mut CqPoller, wcs: &mut [Wc; 64]) -> usize {
    all_ok("the responder", cq.poll(wcs), wcs)
}
/// The same, from the queue itself.
#[inline(never)]
pub fn responder_poll_cq(cq: &Cq, wcs: &mut [Wc; 64]) -> usize {
    all_ok("the responder", cq.poll(wcs), wcs)
}

/// `who` also keeps functions with equal code apart, which the linker would merge and count as one.
#[inline(always)]
fn all_ok(who: &'static str, polled: Result<usize, VerbsError>, wcs: &[Wc; 64]) -> usize {
    let n = polled.unwrap_or_else(|e| panic!("{who}: {e}"));
    assert!(wcs[..n].iter().all(Wc::is_ok), "{who}: a completion failed: {:?}", &wcs[..n]);
    n
}

impl End {
    fn post_send(&mut self, wrs: &[SendWr<'_>], counted: bool) {
        match (&mut self.handles, counted) {
            (Some(handles), true) => requester_post(&mut handles.sq, wrs),
            (Some(handles), false) => handles.sq.post_send(wrs).expect("the queue has room"),
            (None, true) => requester_post_to_qp(&self.qp, wrs),
            (None, false) => self.qp.post_send(wrs).expect("the queue has room"),
        }
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>], counted: bool) {
        match (&mut self.handles, counted) {
            (Some(handles), true) => responder_post(&mut handles.rq, wrs),
            (Some(handles), false) => handles.rq.post_recv(wrs).expect("the queue has room"),
            (None, true) => responder_post_to_qp(&self.qp, wrs),
            (None, false) => self.qp.post_recv(wrs).expect("the queue has room"),
        }
    }
    fn poll(&mut self, side: Side, counted: bool) -> usize {
        match (&mut self.handles, side, counted) {
            (Some(handles), Side::Requester, true) => requester_poll(&mut handles.cq, &mut self.wcs),
            (Some(handles), Side::Responder, true) => responder_poll(&mut handles.cq, &mut self.wcs),
            (Some(handles), _, false) => all_ok("an end", handles.cq.poll(&mut self.wcs), &self.wcs),
            (None, Side::Requester, true) => requester_poll_cq(&self.cq, &mut self.wcs),
            (None, Side::Responder, true) => responder_poll_cq(&self.cq, &mut self.wcs),
            (None, _, false) => all_ok("an end", self.cq.poll(&mut self.wcs), &self.wcs),
        }
    }
    /// The counters of its device, for failure messages.
    fn counters(&self) -> String {
        let counted = self.context.counters();
        let all: Vec<_> = counted.iter().filter(|(_, n)| *n > 0).map(|(k, n)| format!("{k} {n}")).collect();
        all.join(", ")
    }
}

#[derive(Clone, Copy)]
enum Side {
    Requester,
    Responder,
}

/// The two ends.
pub struct Path {
    /// Sends requests.
    pub requester: End,
    /// Serves them.
    pub responder: End,
    clock: Arc<AtomicU64>,
    /// Receives that wait at the responder between two rounds.
    receives: usize,
}

impl Path {
    /// Two devices on ports that are joined as a scenario wants, a connected queue pair each, on their last shards, neighbours
    /// resolved.
    ///
    /// # Panics
    /// Where DPDK is needed and does not start, or is not part of this build.
    pub fn new(scenario: &Scenario) -> Self {
        let (a, b) = match scenario.link {
            Link::Pair => pair(scenario.shards),
            #[cfg(feature = "dpdk")]
            Link::Ethdev => {
                let options = PortOptions { queues: scenario.shards, ..PortOptions::default() };
                let [a, b] = stack::port::dpdk::ring_pair(&options).unwrap_or_else(|e| panic!("{e}"));
                (a, b)
            }
            #[cfg(not(feature = "dpdk"))]
            Link::Ethdev => panic!("this build has no DPDK: build with the feature \"dpdk\""),
        };
        Self::over(a, b, scenario.shards, scenario.calls)
    }

    /// Two devices with this many shards on two ports that the caller joined.
    pub fn over(a: Box<dyn Port>, b: Box<dyn Port>, shards: usize, calls: Calls) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let open = |port: Box<dyn Port>, last: u8| {
            let mut config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).drive(Drive::Embedded);
            (config.clock, config.seed) = (Clock::Manual(clock.clone()), Some(last.into()));
            (config.qps_per_shard, config.shards) = (64, shards);
            let context = Context::open(config).expect("the port opens");
            context.start().expect("the port starts");
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
            let cap = QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap).on_shard(shards - 1)).unwrap();
            let rights =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let mr = pd.reg_mr(MEMORY, rights).unwrap();
            (context, pd, cq, qp, mr)
        };
        let (a, b) = (open(a, 1), open(b, 2));
        // The default timeout, 67 ms: it never expires, as a turn takes a microsecond. Without a timeout every request would
        // ask for an acknowledgement.
        let options = RcOptions::default()
            .sgid_index(1)
            .path_mtu(Mtu::Mtu4096)
            .timeout(14)
            .access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        for (from, to) in [(&a.3, &b.3), (&b.3, &a.3)] {
            from.connect_rc(&to.endpoint(1).unwrap(), &options).unwrap();
        }
        let (at_a, at_b) = ((a.4.addr(), a.4.rkey()), (b.4.addr(), b.4.rkey()));
        let end = |(context, pd, cq, qp, mr): (Context, Pd, Cq, Qp, Mr), remote| {
            let handles = (calls == Calls::Handles).then(|| {
                let (sq, rq) = qp.split().unwrap();
                Handles { sq, rq, cq: cq.poller().unwrap() }
            });
            End {
                handles,
                reactor: context.reactor(shards - 1).unwrap(),
                sges: Vec::new(),
                remote,
                wcs: [Wc::default(); 64],
                mr,
                qp,
                cq,
                _pd: pd,
                context,
            }
        };
        Self { requester: end(a, at_b), responder: end(b, at_a), clock, receives: 0 }
    }

    /// Lets a microsecond pass.
    fn tick(&self) {
        self.clock.fetch_add(1000, Ordering::AcqRel);
    }

    /// Both ends' counters, for failure messages.
    pub fn counters(&self) -> String {
        format!("requester: {}\nresponder: {}", self.requester.counters(), self.responder.counters())
    }

    /// Runs `rounds` lists of `scenario` outside of the counted functions, then as many inside.
    ///
    /// # Panics
    /// When no progress is made, or a completion is not one of success.
    pub fn run(&mut self, scenario: &Scenario, rounds: usize) {
        self.rounds(scenario, rounds + if scenario.calls == Calls::Objects { TO_BIAS } else { 0 }, false);
        self.rounds(scenario, rounds, true);
    }

    /// Runs `rounds` lists of `scenario`; with `counted` through the functions at the top of this module.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn rounds(&mut self, scenario: &Scenario, rounds: usize, counted: bool) {
        let (op, len) = (scenario.op, scenario.len as usize);
        for end in [&mut self.requester, &mut self.responder] {
            end.sges.clear();
            // A page for each message.
            for n in 0..scenario.batch {
                let at = n * 4096 % MEMORY;
                end.sges.push(end.mr.sge(at..at + len).expect("inside the region"));
            }
        }
        let sends = self.requester.sges.clone();
        let receives = self.responder.sges.clone();
        let (remote, rkey) = self.requester.remote;
        let wrs: Vec<SendWr<'_>> = (0..scenario.batch)
            .map(|n| {
                let (sge, at) = (std::slice::from_ref(&sends[n]), remote + (n * 4096 % MEMORY) as u64);
                let wr = match op {
                    Op::Send => SendWr::send(n as u64, sge),
                    Op::Write => SendWr::write(n as u64, sge, at, rkey),
                    Op::Read => SendWr::read(n as u64, sge, at, rkey),
                    Op::FetchAdd => SendWr::fetch_and_add(n as u64, sge, at, rkey, 1),
                };
                if n + 1 == scenario.batch { wr.signaled() } else { wr }
            })
            .collect();
        let recvs: Vec<RecvWr<'_>> =
            receives.iter().map(|sge| RecvWr::new(0, std::slice::from_ref(sge))).collect();
        // Enough receives that no list waits for credits: the receives posted in each round keep the queue full.
        let missing = DEPTH as usize - self.receives;
        for _ in 0..(missing / recvs.len()).saturating_sub(1) {
            if op == Op::Send {
                self.responder.post_recv(&recvs, false);
                self.receives += recvs.len();
            }
        }
        for _ in 0..rounds {
            self.round(op, &wrs, &recvs, counted);
        }
    }

    fn round(&mut self, op: Op, wrs: &[SendWr<'_>], recvs: &[RecvWr<'_>], counted: bool) {
        let (a, b) = (&mut self.requester, &mut self.responder);
        if op == Op::Send {
            b.post_recv(recvs, counted);
        }
        a.post_send(wrs, counted);
        let (mut sent, mut received) = (0, if op == Op::Send { 0 } else { recvs.len() });
        for _ in 0..TURNS_MAX {
            self.tick();
            let (a, b) = (&mut self.requester, &mut self.responder);
            if counted {
                requester_turn(a);
                responder_turn(b);
            } else {
                a.reactor.poll_once();
                b.reactor.poll_once();
            }
            received += if op == Op::Send { b.poll(Side::Responder, counted) } else { 0 };
            sent += a.poll(Side::Requester, counted);
            if sent == 1 && received == recvs.len() {
                return;
            }
        }
        panic!("no progress: {sent} sent, {received} received\n{}", self.counters());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_completes_without_a_retry() {
        for scenario in &SCENARIOS {
            if scenario.link == Link::Ethdev && !cfg!(feature = "dpdk") {
                continue;
            }
            let mut path = Path::new(scenario);
            path.run(scenario, 3);
            let counters = path.counters();
            assert!(!counters.contains("retr"), "{}: {counters}", scenario.name);
        }
    }

    #[test]
    fn the_same_work_takes_the_same_turns() {
        let turns = || {
            let mut path = Path::new(&SCENARIOS[0]);
            path.run(&SCENARIOS[0], 5);
            path.clock.load(Ordering::Acquire)
        };
        assert_eq!(turns(), turns());
    }
}
