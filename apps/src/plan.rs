//! The measurements: complete specifications, which the client makes of its command line ([`specs`](crate::cli::specs)) and sends to the
//! server, and which both ends check.

use crate::cli::parse::SIZE_MAX;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use verbs::Mtu;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// SEND into a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH & ADD of 8 bytes.
    FetchAdd,
    /// COMPARE & SWAP of 8 bytes.
    CmpSwap,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Send, Self::Write, Self::Read, Self::FetchAdd, Self::CmpSwap];

    /// The operation's name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::FetchAdd => "fetch_add",
            Self::CmpSwap => "cmp_swap",
        }
    }
    /// Whether the operation is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
    /// Whether the requester gets data back; its latency is then a whole round trip.
    pub const fn answers(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }
}

/// How it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Bandwidth of many outstanding messages
    Bw,
    /// Latency of one message at a time
    Lat,
    /// Rate of many small messages
    Rate,
}

impl Mode {
    /// The mode's name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Lat => "lat",
            Self::Rate => "rate",
        }
    }
}

/// Which queue pair gets the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every one: each send queue is kept full
    All,
    /// One drawn at random: a few messages, and none until they have completed. Before, each once, which does not count
    Random,
}

impl Pattern {
    /// The pattern's name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Random => "random",
        }
    }
}

/// Most messages of a visit.
pub const VISIT_MAX: u32 = 64;
/// Most queue pairs of a measurement with [`Pattern::All`].
const QPS_ALL_MAX: u32 = 1024;
/// Most queue pairs of a measurement.
pub const QPS_MAX: u32 = verbs::limits::QPS_PER_SHARD_MAX as u32;

/// Most memory for the buffers of one measurement at one end.
const BUFFER_BUDGET: u64 = 64 << 20;
/// Most queue entries of one measurement at one end.
const ENTRY_BUDGET: u64 = 1 << 19;
/// Most queue entries, where queue pairs are visited at random.
const ENTRY_BUDGET_RANDOM: u64 = 1 << 24;
/// Alignment of a message buffer.
const SLOT_ALIGN: u64 = 64;
/// Bytes of a queue entry or of the record of a READ or atomic for duplicates; and bytes of a queue pair without those.
const ENTRY_BYTES: u64 = 64;
const QP_BYTES: u64 = 2048;

/// A server's limits on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time, from the greeting to the end.
    pub time: Duration,
    /// Bytes of memory that one measurement may take at this end.
    pub memory: u64,
}

impl Limits {
    /// Refuses a session that is known to take longer.
    ///
    /// # Errors
    /// A sentence with both times.
    pub fn check_time(&self, wanted: Duration) -> std::result::Result<(), String> {
        if wanted <= self.time {
            return Ok(());
        }
        let (wanted, given) = (wanted.as_secs_f64(), self.time.as_secs_f64());
        Err(format!(
            "the measurements take {wanted:.0} s, and this server gives a session {given:.0} s (--max-session)"
        ))
    }
    /// Refuses a measurement that takes more memory.
    ///
    /// # Errors
    /// A sentence with both sizes.
    pub fn check_memory(&self, spec: &Spec) -> std::result::Result<(), String> {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        if spec.memory() <= self.memory {
            return Ok(());
        }
        Err(format!(
            "the measurement {} takes {} MiB of memory at each end, and this server gives it {} MiB (--max-memory)",
            spec.title(),
            mib(spec.memory()),
            mib(self.memory)
        ))
    }
}

/// One RDMA measurement, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Operation.
    pub op: Op,
    /// Mode.
    pub mode: Mode,
    /// Bytes of a message.
    pub size: u64,
    /// Messages a queue pair; `None`: until `duration_ms` is over.
    pub iters: Option<u64>,
    /// Time of the measurement where `iters` is absent.
    pub duration_ms: u64,
    /// Send requests outstanding a queue pair; a multiple of `cq_mod`.
    pub tx_depth: u32,
    /// Receive requests posted a queue pair.
    pub rx_depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Path MTU in bytes; `None`: the largest that both ports carry.
    pub mtu: Option<u32>,
    /// Whether messages travel inline.
    pub inline: bool,
    /// Requests posted in one call.
    pub post_list: u32,
    /// Every how many requests one is signalled.
    pub cq_mod: u32,
    /// READs and atomics outstanding.
    pub outs: u8,
    /// Both ends send requests.
    pub bidirectional: bool,
    /// Traffic class.
    pub tclass: u8,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries.
    pub retry: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Check the data.
    pub verify: bool,
    /// Which queue pair gets the next messages.
    pub pattern: Pattern,
    /// Messages of a visit ([`Pattern::Random`]; otherwise 1).
    pub visit: u32,
    /// Visits outstanding, of all queue pairs ([`Pattern::Random`]; otherwise 1).
    pub in_flight: u32,
    /// Receive requests are posted to one queue that all queue pairs share.
    pub srq: bool,
}

impl Spec {
    /// Distance between two message buffers.
    pub fn stride(&self) -> u64 {
        self.size.max(8).next_multiple_of(SLOT_ALIGN)
    }
    /// Message buffers of a queue pair for sending: one for each request where each must keep its contents, fewer where that would take
    /// too much memory.
    pub fn tx_slots(&self) -> u64 {
        self.slots(self.tx_depth)
    }
    /// Message buffers on the receiving side: per queue pair, or in all with a shared receive queue. With random visits the
    /// latter is four times the messages that may be outstanding, if memory allows.
    pub fn rx_slots(&self) -> u64 {
        let all = match (self.srq, self.pattern) {
            (false, _) => return self.slots(self.rx_depth),
            (true, Pattern::All) => u64::from(self.rx_depth) * u64::from(self.qps),
            (true, Pattern::Random) => 4 * u64::from(self.visit) * u64::from(self.in_flight),
        };
        (BUFFER_BUDGET / self.stride()).min(verbs::limits::QUEUE_DEPTH_MAX.into()).clamp(1, all)
    }
    fn slots(&self, depth: u32) -> u64 {
        (BUFFER_BUDGET / u64::from(self.qps) / self.stride()).clamp(1, u64::from(depth))
    }
    /// Most memory that an end needs for the measurement: buffers to send from and to receive into, queues.
    pub fn memory(&self) -> u64 {
        let (qps, stride) = (u64::from(self.qps), self.stride());
        let sending = qps.saturating_mul(self.tx_slots()).saturating_mul(stride);
        let receiving = match self.op {
            Op::Send => {
                (if self.srq { 1 } else { qps }).saturating_mul(self.rx_slots()).saturating_mul(stride)
            }
            _ => sending,
        };
        let entries = u64::from(self.tx_depth) + u64::from(self.rx_depth) + u64::from(self.outs);
        let queues = qps.saturating_mul(entries.saturating_mul(ENTRY_BYTES) + QP_BYTES);
        sending.saturating_add(receiving).saturating_add(queues)
    }
    /// Messages before the timed ones. A queue pair's first message waits alone for the peer's credits (IBA 9.7.7.2) and looks its path
    /// up; later messages do neither. With very many queue pairs, each is therefore visited once before the timed part.
    pub fn before(&self) -> u64 {
        match self.pattern {
            Pattern::All => 0,
            Pattern::Random => u64::from(self.qps) * u64::from(self.visit),
        }
    }
    /// Time that the measurement takes, as far as it is known beforehand.
    pub fn expected(&self) -> Option<Duration> {
        self.iters.is_none().then(|| Duration::from_millis(self.duration_ms))
    }
    /// How long an end waits for the other's last message of the measurement, if the duration is known. Includes the time to connect, to
    /// fail, and to visit every queue pair before the timed part.
    pub fn patience(&self) -> Option<Duration> {
        let before = Duration::from_micros(self.before().saturating_mul(100));
        Some(self.expected()? + before + self.retry_span() + Duration::from_secs(30))
    }
    /// Title in progress messages.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.op.name(), self.mode.name(), crate::report::bytes(self.size))
    }
    /// How long an end may wait for the other's completion error: all retries of one request.
    pub fn retry_span(&self) -> Duration {
        let one = Duration::from_nanos(4096u64 << self.timeout.min(31));
        let all = one * 4 * (u32::from(self.retry) + 1) + Duration::from_secs(1);
        if self.timeout == 0 { Duration::from_secs(10) } else { all.min(Duration::from_secs(600)) }
    }

    /// Adjusts the values that depend on others.
    pub(crate) fn adjusted(mut self) -> Self {
        if self.op.is_atomic() {
            self.size = 8;
        }
        if self.pattern == Pattern::Random {
            // A visit is one list with its last request signalled. Receives are posted for whole visits, with a spare visit: its messages
            // may arrive before the reposting.
            (self.tx_depth, self.post_list, self.cq_mod) = (self.visit, self.visit, self.visit);
            self.rx_depth = self.rx_depth.max(2 * self.visit).next_multiple_of(self.visit);
            self.in_flight = self.in_flight.min(self.qps);
            return self;
        }
        if self.mode == Mode::Lat {
            (self.qps, self.bidirectional, self.post_list) = (1, false, 1);
        }
        if self.verify || self.op.answers() {
            // Every outstanding request needs a separate buffer: its contents matter.
            let slots = BUFFER_BUDGET / u64::from(self.qps) / self.stride();
            let fit = |depth: u32| u64::from(depth).min(slots.max(1)) as u32;
            (self.tx_depth, self.rx_depth) = (fit(self.tx_depth), fit(self.rx_depth));
        }
        self.cq_mod = self.cq_mod.min(self.tx_depth.div_ceil(2)).max(1);
        self.tx_depth -= self.tx_depth % self.cq_mod;
        // A list is posted as a whole, so the queue must have room for it beside the unsignalled requests.
        self.post_list = self.post_list.min(self.tx_depth - self.cq_mod + 1);
        self
    }

    /// Refuses what this program cannot do, whichever end requests it.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> std::result::Result<(), String> {
        let fail = |what: &str| Err(format!("the measurement {}: {what}", self.title()));
        let random = self.pattern == Pattern::Random;
        if self.size > SIZE_MAX {
            return fail("the message is too long");
        }
        if self.mode == Mode::Lat && self.op != Op::Send && self.size == 0 {
            return fail("a message of 0 bytes cannot be seen in memory; measure at least 1 byte");
        }
        if self.op.is_atomic() && self.size != 8 {
            return fail("an atomic has 8 bytes");
        }
        let depths = [self.tx_depth, self.rx_depth, self.post_list, self.cq_mod];
        if depths.iter().any(|d| !(1..=verbs::limits::QUEUE_DEPTH_MAX).contains(d)) {
            return fail("a queue depth is out of range");
        }
        if !self.tx_depth.is_multiple_of(self.cq_mod) {
            return fail("the send depth is not a multiple of the signalling distance");
        }
        if !random && self.post_list > self.tx_depth - self.cq_mod + 1 {
            return fail("the post list is longer than the room that unsignalled requests leave");
        }
        if !(1..=QPS_MAX).contains(&self.qps) || self.mode == Mode::Lat && self.qps != 1 {
            return fail("the number of queue pairs is out of range");
        }
        if !random && self.qps > QPS_ALL_MAX {
            return fail("more than 1024 queue pairs are not kept full at once; use --pattern random");
        }
        let budget = if random { ENTRY_BUDGET_RANDOM } else { ENTRY_BUDGET };
        if u64::from(self.qps) * u64::from(self.tx_depth.max(self.rx_depth)) > budget {
            return Err(format!(
                "the measurement {}: queue pairs times queue depth exceed {budget}; use fewer or shorter queues",
                self.title()
            ));
        }
        if !(1..=VISIT_MAX).contains(&self.visit) || self.in_flight == 0 || self.in_flight > self.qps.max(1) {
            return fail("the messages of a visit, or the visits outstanding, are out of range");
        }
        if random && [self.tx_depth, self.post_list, self.cq_mod] != [self.visit; 3] {
            return fail("a visit is one list, its last request signalled");
        }
        if random && !self.rx_depth.is_multiple_of(self.visit) {
            return fail("the receive depth is not a multiple of a visit");
        }
        if random && (self.mode == Mode::Lat || self.verify || self.rx_depth < 2 * self.visit) {
            return fail(
                "queue pairs are visited at random in the modes bw and rate, without checks of the data",
            );
        }
        if self.stride() * u64::from(self.qps) > 4 << 30 {
            return fail("queue pairs times message size exceed 4 GiB; use fewer or shorter messages");
        }
        if self.srq && (self.op != Op::Send || self.mode == Mode::Lat || self.verify) {
            return fail(
                "a shared receive queue is for SEND, in the modes bw and rate, without checks of the data",
            );
        }
        let needed = self.verify || self.op.answers() && !random;
        if needed
            && (self.tx_slots() < u64::from(self.tx_depth) || self.rx_slots() < u64::from(self.rx_depth))
        {
            return fail("not every outstanding message has a buffer of its own; use shorter queues");
        }
        if self.mtu.is_some_and(|m| Mtu::from_bytes(m as usize).is_none()) {
            return fail("there is no such path MTU");
        }
        let ranges = self.timeout <= 31 && self.retry <= 7 && self.rnr_retry <= 7;
        if !ranges || !(1..=verbs::limits::RD_ATOMIC_MAX).contains(&self.outs) {
            return fail("an attribute of the connection is out of range");
        }
        match self.iters {
            Some(0) => fail("no messages"),
            None if !(1..=3_600_000).contains(&self.duration_ms) => fail("the duration is out of range"),
            _ => Ok(()),
        }
    }
}

/// One measurement of bare frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawSpec {
    /// Latency (one frame back and forth) or rate (as many as possible; bw is the same).
    pub mode: Mode,
    /// Bytes of a frame, without FCS.
    pub frame: u32,
    /// Time of the measurement.
    pub duration_ms: u64,
}

/// Shortest Ethernet frame, without FCS.
pub const FRAME_MIN: u64 = 60;

impl RawSpec {
    /// Refuses what cannot be done on a port of `link_mtu` bytes.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self, link_mtu: usize) -> std::result::Result<(), String> {
        let max = link_mtu as u64 + 14;
        if !(FRAME_MIN..=max).contains(&u64::from(self.frame)) {
            return Err(format!(
                "a frame has {FRAME_MIN} to {max} bytes on this port, not {}; see --link-mtu",
                self.frame
            ));
        }
        if !(1..=3_600_000).contains(&self.duration_ms) {
            return Err("the duration of a raw measurement is out of range".into());
        }
        Ok(())
    }
    /// Whether `self` and `other` give the same figures.
    pub fn same_as(&self, other: &Self) -> bool {
        self.frame == other.frame && (self.mode == Mode::Lat) == (other.mode == Mode::Lat)
    }
    /// Title in progress messages.
    pub fn title(&self) -> String {
        format!("raw {} {} B", self.mode.name(), self.frame)
    }
}

/// The raw measurement that gives the limit of `spec`, with path MTU `mtu`. `None` for the latency of a message of several packets,
/// which no single frame limits.
pub fn limit_of(spec: &Spec, mtu: Mtu, ipv6: bool, duration: Duration) -> Option<RawSpec> {
    if spec.mode == Mode::Lat && spec.size > mtu.bytes() as u64 {
        return None;
    }
    let frame = frame_len(spec.op, spec.size, mtu, ipv6).max(FRAME_MIN);
    Some(RawSpec { mode: spec.mode, frame: frame as u32, duration_ms: duration.as_millis() as u64 })
}

/// Bytes of the longest frame that carries data of a message, without FCS: Ethernet, IP, UDP and BTH, the
/// extended headers, the data padded to four, the ICRC.
pub fn frame_len(op: Op, size: u64, mtu: Mtu, ipv6: bool) -> u64 {
    let base = 14 + if ipv6 { 40 } else { 20 } + 8 + 12 + 4;
    let mtu = mtu.bytes() as u64;
    let data = size.min(mtu).next_multiple_of(4);
    // Most of a long message is in Middle packets, which have no extended header.
    let ext = match op {
        _ if size > 2 * mtu => 0,
        Op::Send => 0,
        Op::Write => 16,
        Op::Read => 4,
        Op::FetchAdd | Op::CmpSwap => return base + 28,
    };
    base + ext + data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_long_as_the_packets_on_the_wire() {
        // SEND ONLY of 64 bytes: 14 + 20 + 8 + 12 + 64 + 4.
        assert_eq!(frame_len(Op::Send, 64, Mtu::Mtu4096, false), 122);
        assert_eq!(frame_len(Op::Write, 64, Mtu::Mtu4096, false), 138);
        assert_eq!(frame_len(Op::Read, 64, Mtu::Mtu4096, true), 146);
        assert_eq!(frame_len(Op::Write, 65536, Mtu::Mtu4096, false), 58 + 4096);
        assert_eq!(frame_len(Op::FetchAdd, 8, Mtu::Mtu1024, false), 86);
        assert_eq!(frame_len(Op::Send, 3, Mtu::Mtu1024, false), 62);
    }
}
