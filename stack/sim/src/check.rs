//! Invariants that must hold whatever the network does. A checker is fed with events, and returns an `Err` when its invariant is violated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::node::Node;
use super::rng::Rng;
use super::seen::Seen;
use stack::config::WINDOW_PACKETS;
use stack::id::{Psn, Qpn};
use stack::proto::status::WcStatus;
use stack::proto::tables::Syndrome;
use stack::proto::wqe::Cqe;
use stack::shard::counters::Counter;
use stack::wire::{Ingress, Kind, Transport, locate};

/// Every checker: its invariant, and the test that shows that it detects a planted fault.
pub const CHECKERS: &[(&str, &str)] = &[
    (
        "each request of a queue completes once, in order; after a failure all are flushed",
        "completions_once_and_in_order",
    ),
    ("remote memory is what WRITEs and READs of one flow make it", "memory_holds_what_was_written"),
    ("a word holds what the atomics of one flow make it", "atomics_count_once"),
    ("additions of many queue pairs count once each", "additions_of_many_count_once"),
    ("messages arrive once, in order, unmodified", "messages_arrive_once"),
    ("an XRC message arrives in the queue that it names", "messages_arrive_once"),
    ("nothing beside a message's buffers is written", "bytes_beside_a_message_are_noticed"),
    ("nothing beside a region is written", "a_spoilt_guard_is_seen"),
    ("a window is never exceeded, nor half of the circle", "windows_are_kept"),
    (
        "a packet goes to the Ethernet address of the node that has its destination",
        "a_packet_to_a_liar_is_noticed",
    ),
    ("frames and buffers balance, each frame is named by a counter", "frames_are_counted"),
    ("a node without queue pairs waits for nothing", "something_left_is_noticed"),
    (
        "unreliable messages are whole, and no more than the network brought",
        "unreliable_messages_are_never_too_many",
    ),
    ("unreliable WRITEs leave words of messages that were written there", "words_of_unreliable_writes"),
    (
        "a window's key is dead once it is invalidated, and the overflow of a queue is reported",
        "checkers_notice",
    ),
    ("in a whole run: each of the above, dead keys, and that everything ends", "checkers_notice"),
    ("a region is as it was when it was deregistered", "checkers_notice"),
    ("each fault of a link reaches the other side", "each_link_fault_reaches_the_other_side"),
    ("each fault of a port reaches the shard", "each_port_fault_reaches_the_shard"),
    ("each fault and each mark happens", "q60_seeds"),
    (
        "what the processes of a host get is theirs, once; each death is noticed, and no other connection ends",
        "checkers_of_hosts_notice",
    ),
];

/// The error describes the violation, for a report.
pub type Check = Result<(), String>;

/// Checks that each work request of a queue completes once, in order. An unsignalled request gets a completion only if it fails.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    outstanding: VecDeque<(u64, bool)>,
    failed: bool,
}

impl Completions {
    /// Notes that a request was posted.
    pub fn posted(&mut self, wr_id: u64, signaled: bool) {
        self.outstanding.push_back((wr_id, signaled));
    }

    /// Checks a completion that was polled. Returns the ids of the requests that it completes, in order.
    pub fn completed(&mut self, wr_id: u64, status: WcStatus) -> Result<Vec<u64>, String> {
        let mut done = Vec::new();
        if self.failed && status != WcStatus::WrFlushErr {
            return Err(format!("request {wr_id} completes with {status:?} after an earlier one failed"));
        }
        while let Some((id, signaled)) = self.outstanding.pop_front() {
            done.push(id);
            if id == wr_id {
                self.failed |= status != WcStatus::Success;
                return if signaled || status != WcStatus::Success {
                    Ok(done)
                } else {
                    Err(format!("unsignalled request {wr_id} completes"))
                };
            }
            if signaled || self.failed {
                return Err(format!("request {wr_id} completes before request {id}"));
            }
        }
        Err(format!("request {wr_id} completes, but is not outstanding"))
    }

    /// Number of requests that are not known to be complete.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether only unsignalled requests are outstanding, after the last completion.
    pub fn awaits_none(&self) -> bool {
        self.outstanding.iter().all(|(_, signaled)| !signaled)
    }

    /// Whether a request failed.
    pub fn failed(&self) -> bool {
        self.failed
    }
}

/// Remote memory that only one queue pair writes: the expected bytes, and which values a READ may return.
///
/// Writes take effect in the order of their work requests. A READ that is repeated may see later writes that started before it completed
/// (IBA 9.5, table 79), up to the next fence.
#[derive(Clone, Debug)]
pub struct FlatMemory {
    bytes: Vec<u8>,
    /// Writes that were posted and are not known to be complete: id, offset, data.
    pending: VecDeque<Pending>,
}

#[derive(Clone, Debug)]
struct Pending {
    wr_id: u64,
    offset: usize,
    data: Vec<u8>,
    fenced: bool,
}

impl FlatMemory {
    /// Memory that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, pending: VecDeque::new() }
    }

    /// Notes that a request was posted. `data` is empty if the request writes nothing.
    pub fn posted(&mut self, wr_id: u64, offset: usize, data: &[u8], fenced: bool) {
        self.pending.push_back(Pending { wr_id, offset, data: data.to_vec(), fenced });
    }

    /// Notes that the oldest request is complete: its bytes are in memory.
    pub fn completed(&mut self, wr_id: u64) {
        let write = self.pending.pop_front().expect("a request is posted before it completes");
        assert_eq!(write.wr_id, wr_id, "the caller goes in order");
        self.bytes[write.offset..write.offset + write.data.len()].copy_from_slice(&write.data);
    }

    /// Checks that the oldest request, a READ, may return `got`. The request is then complete.
    pub fn read(&mut self, wr_id: u64, offset: usize, got: &[u8]) -> Check {
        for (i, byte) in got.iter().enumerate() {
            let at = offset + i;
            let later = self.pending.iter().skip(1).take_while(|w| !w.fenced);
            let mut later = later.filter_map(|w| at.checked_sub(w.offset).and_then(|i| w.data.get(i)));
            if self.bytes[at] != *byte && !later.any(|b| b == byte) {
                return Err(format!(
                    "READ {wr_id} returned {byte:#04x} for byte {at}, which holds {:#04x}",
                    self.bytes[at]
                ));
            }
        }
        self.completed(wr_id);
        Ok(())
    }

    /// Compares the actual memory with the expected bytes. Bytes of writes that are not known to be complete may have either value.
    pub fn matches(&self, memory: &[u8]) -> Check {
        for (at, (got, expected)) in memory.iter().zip(&self.bytes).enumerate() {
            let mut pending =
                self.pending.iter().filter_map(|w| at.checked_sub(w.offset).and_then(|i| w.data.get(i)));
            if got != expected && !pending.any(|b| b == got) {
                return Err(format!("byte {at} of a target is {got:#04x}, should be {expected:#04x}"));
            }
        }
        Ok(())
    }
}

/// A word that only atomics of one queue pair change.
#[derive(Clone, Debug, Default)]
pub struct FlatWord {
    /// Its value after all operations that are known to be complete.
    pub value: u64,
    /// Operations that were posted and are not known to be complete: `Ok((compare, swap))` or `Err(add)`.
    pub pending: VecDeque<Result<(u64, u64), u64>>,
}

impl FlatWord {
    /// A word that holds `value`.
    pub fn new(value: u64) -> Self {
        Self { value, pending: VecDeque::new() }
    }

    /// Its value after all operations that were posted.
    pub fn expected(&self) -> u64 {
        self.pending.iter().fold(self.value, |value, op| Self::next(value, *op))
    }

    /// Draws an operation to post, a compare-and-swap (`swap`) or an addition, and returns its operands. Half of the swaps match.
    pub fn draw(&mut self, rng: &mut Rng, swap: bool) -> (u64, u64) {
        let (a, b) = (rng.next() >> rng.below(64), rng.next());
        let compare = if rng.one_in(2) { self.expected() } else { a };
        self.pending.push_back(if swap { Ok((compare, b)) } else { Err(a) });
        (if swap { compare } else { a }, b)
    }

    fn next(value: u64, op: Result<(u64, u64), u64>) -> u64 {
        match op {
            Ok((compare, swap)) if value == compare => swap,
            Ok(_) => value,
            Err(add) => value.wrapping_add(add),
        }
    }

    /// Checks that the oldest operation returned `original`, if known. The operation is then complete.
    pub fn completed(&mut self, original: Option<u64>) -> Check {
        let op = self.pending.pop_front().expect("an atomic is posted before it completes");
        let before = self.value;
        self.value = Self::next(before, op);
        match original {
            Some(original) if original != before => {
                Err(format!("an atomic returned {original:#x}, the word held {before:#x}"))
            }
            _ => Ok(()),
        }
    }

    /// Compares the actual word with the expected value: a prefix of the pending operations may have been executed.
    pub fn matches(&self, word: u64) -> Check {
        let mut value = self.value;
        let mut reached = value == word;
        for op in &self.pending {
            value = Self::next(value, *op);
            reached |= value == word;
        }
        if reached { Ok(()) } else { Err(format!("a word is {word:#x}, should be {:#x}", self.value)) }
    }
}

/// Checks a word to which many queue pairs add one: each addition counts once, so no two see the same value.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of additions posted.
    pub posted: u64,
    seen: BTreeSet<u64>,
}

impl Tally {
    /// Checks an addition that is complete and found `original`.
    pub fn completed(&mut self, original: u64) -> Check {
        if original >= self.posted {
            return Err(format!("an addition found {original} after {} were posted", self.posted));
        }
        if !self.seen.insert(original) {
            return Err(format!("two additions found {original}"));
        }
        Ok(())
    }

    /// Compares the actual word: it includes all additions that completed, and at most those that were posted. `all`: no addition failed,
    /// so all must be included.
    pub fn matches(&self, word: u64, all: bool) -> Check {
        let done = self.seen.len() as u64;
        if word < done || word > self.posted || all && word != self.posted {
            return Err(format!(
                "{} additions were posted, {done} are complete, the sum is {word}",
                self.posted
            ));
        }
        Ok(())
    }
}

/// A message that must arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The data of a SEND; empty for a WRITE.
    pub data: Vec<u8>,
    /// Length of the message.
    pub len: usize,
    /// The immediate data, or the key that a SEND with invalidate names.
    pub tail: Option<[u8; 4]>,
    /// Whether `tail` is a key.
    pub inv: bool,
    /// Whether it is a WRITE with immediate.
    pub write: bool,
    /// Index of the shared receive queue that it names, on XRC.
    pub queue: usize,
}

/// Checks that messages of a queue pair arrive once, in order, unmodified.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    expected: VecDeque<Message>,
    /// Number of messages that arrived.
    pub arrived: u64,
}

impl Arrivals {
    /// Notes that a message was posted.
    pub fn posted(&mut self, message: Message) {
        self.expected.push_back(message);
    }

    /// Checks a message that arrived.
    pub fn arrived(&mut self, got: &Message) -> Check {
        self.arrived += 1;
        match self.expected.pop_front() {
            Some(expected) if expected == *got => Ok(()),
            Some(expected)
                if (expected.len, expected.tail, expected.inv, expected.write, expected.queue)
                    == (got.len, got.tail, got.inv, got.write, got.queue) =>
            {
                let at = expected.data.iter().zip(&got.data).position(|(a, b)| a != b);
                Err(format!("message {} of {} bytes differs at byte {at:?}", self.arrived, got.len))
            }
            Some(expected) => Err(format!(
                "message {} is {} bytes, tail {:?}, write {}, queue {}; should be {} bytes, tail {:?}, write {}, \
                 queue {}",
                self.arrived,
                got.len,
                got.tail,
                got.write,
                got.queue,
                expected.len,
                expected.tail,
                expected.write,
                expected.queue
            )),
            None => Err(format!("a message of {} bytes arrives that nobody sent", got.len)),
        }
    }

    /// Begins a new life of the queue pair: messages that have not arrived never will.
    pub fn forget(&mut self) {
        self.expected.clear();
    }

    /// Number of messages that have not arrived.
    pub fn missing(&self) -> usize {
        self.expected.len()
    }
}

#[derive(Debug, Default)]
struct Sender {
    /// PSNs of request packets that were sent and not acknowledged.
    flying: VecDeque<Psn>,
    high: Option<Psn>,
    una: Option<Psn>,
    /// The oldest unacknowledged PSN when the previous life ended: its last frames may still wait for the port.
    before: Option<Psn>,
}

/// Checks that no requester has more than its window in flight, nor passes half of the PSN space (IBA 9.7.1).
#[derive(Debug, Default)]
pub struct Window(BTreeMap<(usize, Qpn), Sender>);

impl Window {
    /// A connection begins: requests of a node to this queue pair start at `first`, far from the PSNs of the previous life.
    pub fn begin(&mut self, node: usize, peer: Qpn, first: Psn) {
        let before = self.0.get(&(node, peer)).and_then(|s| s.una);
        self.0.insert((node, peer), Sender { una: Some(first), before, ..Sender::default() });
    }

    /// Checks a packet that a node sent to a peer's queue pair.
    pub fn sent(&mut self, node: usize, seen: &Seen) -> Check {
        if !seen.is_request() || !matches!(seen.transport(), Transport::Rc | Transport::Xrc) {
            return Ok(());
        }
        let sender = self.0.entry((node, seen.dqpn)).or_default();
        let psn = Psn::new(seen.psn);
        if sender.before.is_some_and(|before| psn.diff(before).abs() < 1 << 16) {
            return Ok(()); // of the previous life
        }
        let una = *sender.una.get_or_insert(psn);
        if sender.high.is_none_or(|high| psn.diff(high) > 0) {
            sender.high = Some(psn);
            // A READ that resumes in its middle, after the link delivered a later response, is behind.
            if psn.diff(una) >= 0 {
                sender.flying.push_back(psn);
            }
        }
        if sender.flying.len() > WINDOW_PACKETS as usize {
            return Err(format!("{} request packets in flight to {:?}", sender.flying.len(), seen.dqpn));
        }
        // PSNs wrap, so far behind is far ahead. A repeated READ may be a little behind what the link delivered.
        if psn.diff(una) < -(1 << 22) {
            return Err(format!("PSN {psn:?} is more than half a circle beyond {una:?}"));
        }
        Ok(())
    }

    /// Notes a packet that is delivered to a node. `peer` is the queue pair number to which the node's requests go.
    pub fn delivered(&mut self, node: usize, peer: Qpn, seen: &Seen) {
        if seen.is_request() {
            return;
        }
        let Some(sender) = self.0.get_mut(&(node, peer)) else { return };
        let psn = Psn::new(seen.psn);
        let acked = match (seen.kind(), seen.ext) {
            (Kind::Ack, _) => match Syndrome::decode(seen.aeth().syndrome) {
                Syndrome::Ack { .. } => psn.add(1),
                _ => psn,
            },
            _ => psn.add(1),
        };
        if sender.una.is_some_and(|una| (1..1 << 22).contains(&acked.diff(una))) {
            sender.una = Some(acked);
            while sender.flying.front().is_some_and(|p| p.diff(acked) < 0) {
                sender.flying.pop_front();
            }
        }
    }
}

/// Checks that a packet to a node's IP address goes to that node's Ethernet address, even if a spoofing host claims the IP address.
pub fn dst_mac(nodes: &[Node], frame: &[u8]) -> Check {
    let Ok(Ingress::Roce(layout)) = locate(frame) else { return Ok(()) };
    let dst = layout.dst(frame);
    match nodes.iter().find(|node| node.gid == dst && !frame.starts_with(&node.mac.0)) {
        Some(node) => Err(format!("a packet for {} at {} goes to {:02x?}", node.gid, node.mac, &frame[..6])),
        None => Ok(()),
    }
}

/// Checks that nothing was written outside of registered memory.
pub fn guards(node: &Node) -> Check {
    match node.regions().iter().position(|r| !r.guards_intact()) {
        Some(i) => Err(format!("node {}: bytes around region {i} were written", node.config.index)),
        None => Ok(()),
    }
}

/// Checks that a node without queue pairs waits for nothing but the clock of its IP host.
pub fn nothing_left(node: &Node) -> Check {
    let net = node.shared.net_deadline();
    let left = node.shards(|s| (s.qps() > 0 || s.connected_qps() > 0 || !s.quiet(), s.next_deadline()));
    for (i, (something, deadline)) in left.enumerate() {
        if something {
            return Err(format!("node {}: something is left on shard {i}", node.config.index));
        }
        if let Some(at) = deadline.filter(|at| *at != net) {
            return Err(format!("node {}: shard {i} still waits, until {at:?}", node.config.index));
        }
    }
    Ok(())
}

/// Checks that no buffer is leaked: at rest, all but one spare frame per shard are in the pools of a node.
pub fn no_leak(node: &Node) -> Check {
    for (shard, wire) in node.wires.iter().enumerate() {
        if wire.buffers_out() > 1 {
            return Err(format!(
                "node {}: {} buffers of shard {shard} did not come back",
                node.config.index,
                wire.buffers_out()
            ));
        }
    }
    Ok(())
}

/// Checks that the counters account for every frame: those that the port delivered and took, and the outcome of each packet received.
pub fn counters(node: &Node, delivered: u64, taken: u64) -> Check {
    let c = node.counters();
    let (rx, tx) = (c.get(Counter::RxFrames), c.get(Counter::TxFrames));
    if (rx, tx) != (delivered, taken) {
        return Err(format!(
            "node {}: {delivered} frames were delivered and {taken} taken, it counted {rx} and {tx}",
            node.config.index
        ));
    }
    // A packet is accepted, answered as a duplicate, refused, a response, for the IP host, or dropped by name. A dropped response counts
    // twice.
    let named: u64 = [
        Counter::RequestsReceived,
        Counter::DuplicatesAnswered,
        Counter::RequestsRefused,
        Counter::AcksReceived,
        Counter::NaksReceived,
        Counter::RnrNaksReceived,
        Counter::ResponsesReceived,
        Counter::NetFrames,
    ]
    .into_iter()
    .map(|counter| c.get(counter))
    .sum();
    let dropped = c.drops();
    let held: u64 = node.shards(|shard| u64::from(shard.packets_held())).sum();
    if rx > named + dropped + held {
        return Err(format!(
            "node {}: of {rx} frames received only {named} were used, {dropped} dropped by name and {held} held",
            node.config.index
        ));
    }
    Ok(())
}

/// The status of a completion.
pub fn status(cqe: &Cqe) -> WcStatus {
    cqe.status
}

#[cfg(test)]
mod tests {
    use super::super::node::NodeConfig;
    use super::super::peer::{frame, pkt};
    use super::super::rng::Rng;
    use super::*;
    use stack::time::Instant;
    use stack::wire::{Flow, Opcode};

    // Goal of each test here: the checker accepts correct histories and rejects wrong ones.

    #[test]
    fn completions_once_and_in_order() {
        let queue = || {
            let mut c = Completions::default();
            [(1, true), (2, false), (3, true), (4, true)].into_iter().for_each(|(id, s)| c.posted(id, s));
            c
        };
        let mut c = queue();
        assert_eq!(c.completed(1, WcStatus::Success), Ok(vec![1]));
        assert_eq!(c.completed(3, WcStatus::Success), Ok(vec![2, 3]));
        assert!(c.completed(3, WcStatus::Success).is_err(), "twice");
        assert!(queue().completed(3, WcStatus::Success).is_err(), "out of order");
        assert!(queue().completed(9, WcStatus::Success).is_err(), "never posted");
        let mut c = queue();
        c.completed(1, WcStatus::Success).unwrap();
        assert!(c.completed(2, WcStatus::Success).is_err(), "unsignalled");
        let mut c = queue();
        c.completed(1, WcStatus::RetryExcErr).unwrap();
        assert!(c.clone().completed(3, WcStatus::WrFlushErr).is_err(), "unsignalled ones are flushed too");
        assert!(c.completed(2, WcStatus::Success).is_err(), "nothing succeeds behind a failure");
    }

    #[test]
    fn memory_holds_what_was_written() {
        let mut m = FlatMemory::new(vec![0; 8]);
        m.posted(1, 2, &[1, 1], false);
        m.posted(2, 0, &[], false);
        m.posted(3, 2, &[2, 2], false);
        m.posted(4, 4, &[3], true);
        assert!(m.matches(&[0, 0, 1, 2, 0, 0, 0, 0]).is_ok(), "pending bytes may be either");
        assert!(m.matches(&[0, 1, 0, 0, 0, 0, 0, 0]).is_err());
        m.completed(1);
        assert!(m.clone().read(2, 2, &[1, 1]).is_ok());
        assert!(m.clone().read(2, 2, &[2, 1]).is_ok(), "a later WRITE may be seen");
        assert!(m.clone().read(2, 2, &[0, 1]).is_err(), "an earlier one must be");
        assert!(m.clone().read(2, 4, &[3]).is_err(), "a fenced one may not");
        m.read(2, 2, &[1, 1]).unwrap();
        (3..=4).for_each(|id| m.completed(id));
        assert!(m.matches(&[0, 0, 2, 2, 3, 0, 0, 0]).is_ok());
        assert!(m.matches(&[0, 0, 2, 1, 3, 0, 0, 0]).is_err(), "a WRITE that was lost");
    }

    #[test]
    fn atomics_count_once() {
        let mut w = FlatWord { value: 5, pending: [Err(1), Ok((6, 9))].into() };
        assert!([5, 6, 9].into_iter().all(|v| w.matches(v).is_ok()) && w.matches(7).is_err());
        assert!(w.clone().completed(Some(6)).is_err(), "executed twice");
        w.completed(Some(5)).unwrap();
        w.completed(Some(6)).unwrap();
        assert!(w.matches(9).is_ok() && w.matches(6).is_err());
    }

    #[test]
    fn additions_of_many_count_once() {
        let mut t = Tally { posted: 3, ..Tally::default() };
        t.completed(1).unwrap();
        assert!(t.clone().completed(1).is_err(), "two saw the same");
        assert!(t.clone().completed(3).is_err(), "more than were posted");
        t.completed(0).unwrap();
        assert!(t.matches(2, false).is_ok() && t.matches(3, true).is_ok());
        assert!(t.matches(1, false).is_err() && t.matches(4, false).is_err(), "lost, or executed twice");
        assert!(t.matches(2, true).is_err(), "nothing failed, so all count");
    }

    #[test]
    fn something_left_is_noticed() {
        let mut node = Node::new(NodeConfig::default(), Instant::ZERO, Rng::new(1));
        assert_eq!(nothing_left(&node), Ok(()));
        let cq = node.create_cq(4);
        node.create_qp(0, Default::default(), cq, cq);
        assert!(nothing_left(&node).is_err());
    }

    // Goal: the list of checkers is correct: each test that it names exists.
    #[test]
    fn every_checker_has_its_test() {
        let sources = [
            include_str!("check.rs"),
            include_str!("layout.rs"),
            include_str!("lossy.rs"),
            include_str!("memory.rs"),
            include_str!("../../tests/sim_cases.rs"),
            include_str!("../../tests/sim_hosts.rs"),
            include_str!("../../tests/sim_neighbours.rs"),
            include_str!("../../tests/sim_seeds.rs"),
        ];
        for (what, test) in CHECKERS {
            let name = format!("fn {test}()");
            assert!(sources.iter().any(|s| s.contains(&name)), "{what}: there is no {name}");
        }
    }

    #[test]
    fn messages_arrive_once() {
        let message = |data: &[u8]| Message {
            data: data.to_vec(),
            len: data.len(),
            tail: None,
            inv: false,
            write: false,
            queue: 0,
        };
        let mut a = Arrivals::default();
        a.posted(message(b"one"));
        a.posted(message(b"two"));
        assert!(a.clone().arrived(&message(b"two")).is_err(), "in order");
        assert!(a.clone().arrived(&Message { tail: Some([0; 4]), ..message(b"one") }).is_err());
        assert!(a.clone().arrived(&Message { queue: 1, ..message(b"one") }).is_err(), "where it was sent");
        a.arrived(&message(b"one")).unwrap();
        assert!(a.clone().arrived(&message(b"twp")).unwrap_err().contains("Some(2)"), "unmodified");
        a.arrived(&message(b"two")).unwrap();
        assert!(a.arrived(&message(b"two")).is_err(), "once");
    }

    #[test]
    fn windows_are_kept() {
        let seen = |opcode, psn| {
            let p = pkt(opcode, psn);
            let p = if opcode == Opcode::RC_ACKNOWLEDGE { p.aeth(0x1f, 0) } else { p };
            Seen::decode(Instant::ZERO, &frame(&Flow::default(), &p)).expect("a sound packet")
        };
        let send = |psn| seen(Opcode::RC_SEND_ONLY, psn);
        let mut w = Window::default();
        for i in 0..WINDOW_PACKETS {
            w.sent(0, &send(0xff_ffff + i)).unwrap();
        }
        w.sent(0, &send(5)).unwrap(); // again
        assert!(w.sent(0, &send(0xff_ffff + WINDOW_PACKETS)).is_err(), "one too many");
        let mut w = Window::default();
        for i in 0..3 * WINDOW_PACKETS {
            w.sent(0, &send(i)).unwrap();
            w.delivered(0, Flow::default().dqpn, &seen(Opcode::RC_ACKNOWLEDGE, i));
        }
        assert!(w.sent(0, &send(1 << 23 | 0x1000)).is_err(), "more than half of the circle");
    }

    #[test]
    fn frames_are_counted() {
        let node = Node::new(NodeConfig::default(), Instant::ZERO, Rng::new(1));
        assert!(counters(&node, 0, 0).is_ok());
        assert!(counters(&node, 1, 0).is_err() && counters(&node, 0, 1).is_err());
        node.shared.counters[0].add(Counter::RxFrames, 1);
        assert!(counters(&node, 1, 0).unwrap_err().contains("by name"), "a frame that nobody explains");
        assert!(guards(&node).is_ok() && no_leak(&node).is_ok());
        node.wires[0].lose_a_buffer();
        node.wires[0].lose_a_buffer();
        assert!(no_leak(&node).is_err());
    }
}
