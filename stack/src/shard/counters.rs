//! Counters of a shard: every packet that went one way or another, every drop by its name.
//!
//! Written by the shard alone, with plain loads and stores; read by anybody at any time.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Discard;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// What a shard counts, beside the [`Discard`]s.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Counter {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Counter {
            /// Every counter, in index order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// The counter's name, in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

counters! {
    /// Frames taken from the port.
    RxFrames "rx_frames",
    /// Their bytes.
    RxBytes "rx_bytes",
    /// Frames the port took.
    TxFrames "tx_frames",
    /// Their bytes.
    TxBytes "tx_bytes",
    /// Frames that belong to the IP host: ARP, neighbour discovery, ICMP.
    NetFrames "net_frames",
    /// Frames handed to another shard.
    HandedOver "handed_over",
    /// Frames to one of our own addresses, turned round inside.
    ToSelf "to_self",
    /// Request packets sent.
    RequestsSent "requests_sent",
    /// Request packets accepted.
    RequestsReceived "requests_received",
    /// Request packets refused: a NAK was due, sent or overtaken by the packet that it asked for.
    RequestsRefused "requests_refused",
    /// Acknowledgements sent.
    AcksSent "acks_sent",
    /// Acknowledgements received.
    AcksReceived "acks_received",
    /// NAKs sent, RNR NAKs aside.
    NaksSent "naks_sent",
    /// NAKs received, RNR NAKs aside.
    NaksReceived "naks_received",
    /// RNR NAKs sent.
    RnrNaksSent "rnr_naks_sent",
    /// RNR NAKs received.
    RnrNaksReceived "rnr_naks_received",
    /// READ and ATOMIC responses sent.
    ResponsesSent "responses_sent",
    /// READ and ATOMIC responses received.
    ResponsesReceived "responses_received",
    /// Duplicate requests answered again.
    DuplicatesAnswered "duplicates_answered",
    /// Packets sent again.
    Retransmitted "retransmitted",
    /// Retries after the local ACK timeout.
    RetriesTimeout "retries_timeout",
    /// Retries after a NAK for a sequence error.
    RetriesSequence "retries_sequence",
    /// Retries of a READ or ATOMIC whose response was passed by a later one.
    RetriesImplied "retries_implied",
    /// Retries after an RNR NAK.
    RetriesRnr "retries_rnr",
    /// Packets sent again only to ask for the acknowledgement of unsignalled requests that nothing followed.
    AckProbes "ack_probes",
    /// Completions made.
    Completions "completions",
    /// Completions lost to a full completion queue.
    CqOverflows "cq_overflows",
    /// Queue pairs that went to ERR by themselves.
    QpErrors "qp_errors",
}

const N: usize = Counter::ALL.len() + Discard::COUNT;

/// The counters of one shard.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters([AtomicU64; N]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}

impl Counters {
    /// Adds to a counter. Only the shard that owns them may.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        Self::bump(&self.0[counter as usize], n);
    }

    /// Counts a dropped packet. Only the shard that owns them may.
    #[inline]
    pub fn discard(&self, reason: Discard, n: u64) {
        Self::bump(&self.0[Counter::ALL.len() + reason as usize], n);
    }

    #[inline]
    fn bump(cell: &AtomicU64, n: u64) {
        cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// The values now; those of a running shard are not of one instant.
    pub fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot(core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// Values of a shard's counters, or the sum over several shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterSnapshot([u64; N]);

impl Default for CounterSnapshot {
    fn default() -> Self {
        Self([0; N])
    }
}

impl CounterSnapshot {
    /// The value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
    /// How many packets were dropped for this reason.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.0[Counter::ALL.len() + reason as usize]
    }
    /// Every counter and drop reason by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let names = Counter::ALL.iter().map(|c| c.name()).chain(Discard::ALL.iter().map(|d| d.name()));
        names.zip(self.0)
    }
    /// Packets dropped, all reasons together.
    pub fn drops(&self) -> u64 {
        self.0[Counter::ALL.len()..].iter().sum()
    }
    /// Retries, all causes together.
    pub fn retries(&self) -> u64 {
        [Counter::RetriesTimeout, Counter::RetriesSequence, Counter::RetriesImplied, Counter::RetriesRnr]
            .into_iter()
            .map(|c| self.get(c))
            .sum()
    }
    /// NAKs sent and received, RNR NAKs among them.
    pub fn naks(&self) -> u64 {
        [Counter::NaksSent, Counter::NaksReceived, Counter::RnrNaksSent, Counter::RnrNaksReceived]
            .into_iter()
            .map(|c| self.get(c))
            .sum()
    }
}

impl core::ops::AddAssign for CounterSnapshot {
    fn add_assign(&mut self, other: Self) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a += b;
        }
    }
}

impl core::ops::Sub for CounterSnapshot {
    type Output = Self;
    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i].wrapping_sub(earlier.0[i])))
    }
}
