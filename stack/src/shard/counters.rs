//! Counters of a shard and of each of its queue pairs: every packet in either direction, and every drop by its name.
//!
//! The shard alone writes them, with plain loads and stores; any thread reads them at any time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use crate::id::{Gid, Qpn};
use crate::proto::tables::NakCode;

use crate::wire::Discard;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// The counters of a shard, besides those of the [`Discard`] reasons.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
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
    // Counters that every packet changes come first: in a queue pair's block they are one cache line.
    /// Frames taken from the port; of a queue pair, those that passed the checks of state, addresses and keys.
    RxFrames "rx_frames",
    /// Bytes of received frames, Ethernet header to ICRC.
    RxBytes "rx_bytes",
    /// Frames the port took; of a queue pair, those that it sent, answers and retransmissions included.
    TxFrames "tx_frames",
    /// Bytes of sent frames, Ethernet header to ICRC.
    TxBytes "tx_bytes",
    /// Send requests that succeeded, unsignalled requests included.
    SendMessages "send_messages",
    /// Bytes of the messages of those requests: sent, or for READ and ATOMIC fetched.
    SendBytes "send_bytes",
    /// Receive requests that succeeded.
    RecvMessages "recv_messages",
    /// Bytes of the messages of those requests.
    RecvBytes "recv_bytes",

    // Further counters of a queue pair, which change rarely.
    /// Duplicate request packets that were answered again.
    DuplicatesAnswered "duplicates_answered",
    /// Request packets refused: a NAK was due, and was sent, or the missing packet arrived before the NAK left.
    RequestsRefused "requests_refused",
    /// Packets that arrived before a missing one, and were held until it arrived.
    PacketsHeld "packets_held",
    /// Connections that fell back to source port 4791, because nothing came back or because their peer fell back.
    SourcePortsLeft "source_ports_left",
    /// Packets retransmitted.
    Retransmitted "retransmitted",
    /// Retries after the local ACK timeout.
    RetriesTimeout "retries_timeout",
    /// Retries after a NAK for a sequence error.
    RetriesSequence "retries_sequence",
    /// Retries of a READ or ATOMIC because a later response arrived before its own.
    RetriesImplied "retries_implied",
    /// Retries after an RNR NAK.
    RetriesRnr "retries_rnr",
    /// Packets retransmitted only to request the acknowledgement of unsignalled requests that no request followed.
    AckProbes "ack_probes",
    /// Packets sent to check whether the peer's queue pair still exists.
    PeerChecks "peer_checks",
    /// Local ACK timeouts: those that led to a retry, and the last one, after which no retry was left.
    Timeouts "timeouts",
    /// Times that a local ACK timeout was postponed, because frames wait in the link and the peer, which is alive, takes none of them.
    PeerStalls "peer_stalls",
    /// Send requests that failed because the address of the next hop was not resolved: no packet was sent.
    Unreachable "next_hop_unreachable",
    /// Times that requests of a queue pair failed because no process of this host has the number of its peer: requests outstanding when
    /// that process ended, and requests posted later.
    PeersEnded "peers_ended",
    /// NAKs sent, without RNR NAKs; each also counts under its code.
    NaksSent "naks_sent",
    /// NAKs sent for a missing packet (code 0).
    NaksSentSequence "naks_sent_sequence",
    /// NAKs sent for an invalid request (code 1).
    NaksSentInvalid "naks_sent_invalid",
    /// NAKs sent for a remote access error (code 2).
    NaksSentAccess "naks_sent_access",
    /// NAKs sent for a remote operational error (code 3).
    NaksSentOperational "naks_sent_operational",
    /// RNR NAKs sent.
    RnrNaksSent "rnr_naks_sent",
    /// NAKs received, without RNR NAKs, including those with reserved codes; each known one also counts under its code.
    NaksReceived "naks_received",
    /// NAKs received for a missing packet (code 0).
    NaksReceivedSequence "naks_received_sequence",
    /// NAKs received for an invalid request (code 1).
    NaksReceivedInvalid "naks_received_invalid",
    /// NAKs received for a remote access error (code 2).
    NaksReceivedAccess "naks_received_access",
    /// NAKs received for a remote operational error (code 3).
    NaksReceivedOperational "naks_received_operational",
    /// RNR NAKs received.
    RnrNaksReceived "rnr_naks_received",
    /// Packets received with the congestion mark of a switch (ECN "congestion experienced").
    MarksReceived "marks_received",
    /// Congestion notification packets received: the peer received marked packets from this side.
    NotificationsReceived "notifications_received",
    /// Completions lost to a full completion queue.
    CqOverflows "cq_overflows",
    /// Times that queue pairs entered ERR or SQE because of an error.
    QpErrors "qp_errors",

    // Counters of a shard only.
    /// Packets whose ICRC could be checked only in part, because the port does not deliver all bytes that it covers and no earlier packet
    /// told their value (UDP over IPv4).
    IcrcWeak "icrc_weak",
    /// Frames that belong to the IP host: ARP, neighbour discovery, ICMP.
    NetFrames "net_frames",
    /// Frames handed to another shard.
    HandedOver "handed_over",
    /// Frames to one of this device's own addresses, looped back inside the device.
    ToSelf "to_self",
    /// Request packets sent.
    RequestsSent "requests_sent",
    /// Request packets accepted.
    RequestsReceived "requests_received",
    /// Acknowledgements sent.
    AcksSent "acks_sent",
    /// Acknowledgements received.
    AcksReceived "acks_received",
    /// READ and ATOMIC responses sent.
    ResponsesSent "responses_sent",
    /// READ and ATOMIC responses received.
    ResponsesReceived "responses_received",
    /// Completions made.
    Completions "completions",
}

impl Counter {
    /// Whether queue pairs have this counter too.
    pub const fn per_qp(self) -> bool {
        (self as usize) < QP_COUNTERS
    }

    /// The counter of NAKs sent with this code; `None` for the code of a service that this stack does not implement.
    pub(super) const fn nak_sent(code: NakCode) -> Option<Self> {
        match code {
            NakCode::PsnSequenceError => Some(Self::NaksSentSequence),
            NakCode::InvalidRequest => Some(Self::NaksSentInvalid),
            NakCode::RemoteAccessError => Some(Self::NaksSentAccess),
            NakCode::RemoteOperationalError => Some(Self::NaksSentOperational),
            NakCode::InvalidRdRequest => None,
        }
    }

    /// As [`nak_sent`](Self::nak_sent), for NAKs received.
    pub(super) const fn nak_received(code: NakCode) -> Option<Self> {
        match code {
            NakCode::PsnSequenceError => Some(Self::NaksReceivedSequence),
            NakCode::InvalidRequest => Some(Self::NaksReceivedInvalid),
            NakCode::RemoteAccessError => Some(Self::NaksReceivedAccess),
            NakCode::RemoteOperationalError => Some(Self::NaksReceivedOperational),
            NakCode::InvalidRdRequest => None,
        }
    }
}

const N: usize = Counter::ALL.len() + Discard::COUNT;
/// Number of counters that queue pairs have: all before [`Counter::IcrcWeak`].
const QP_COUNTERS: usize = Counter::IcrcWeak as usize;
/// Number of counters that change with every packet.
const HOT: usize = Counter::DuplicatesAnswered as usize;
const COLD: usize = QP_COUNTERS - HOT + Discard::COUNT;

const _: () = assert!(HOT * size_of::<u64>() == 64, "what every packet moves is one cache line");
const _: () = assert!(Counter::RxFrames as usize == 0 && Counter::RecvBytes as usize == HOT - 1);

/// The counters of one shard.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters([AtomicU64; N]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}

/// A single thread writes, so no read-modify-write is needed.
#[inline]
fn bump(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Counters {
    /// Adds to a counter. Only the shard that owns the counters may call it.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        bump(&self.0[counter as usize], n);
    }

    /// Adds 1 to a counter of the shard, and to the same counter of a queue pair.
    pub fn add_of(&self, qp: &QpCounters, counter: Counter) {
        self.add(counter, 1);
        qp.count(counter);
    }

    /// Counts dropped packets. Only the shard that owns the counters may call it.
    #[inline]
    pub fn discard(&self, reason: Discard, n: u64) {
        bump(&self.0[Counter::ALL.len() + reason as usize], n);
    }

    /// The current values; those of a running shard are not of one instant.
    pub fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot(core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// The peer of a queue pair: address and number.
pub type Peer = (Gid, Qpn);

/// Counters of a queue pair, and its peer, readable by other threads while its shard works.
///
/// A packet touches one cache line, the first. All other counters change rarely, and are allocated when the first such event
/// happens. Only the shard of the queue pair writes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct QpCounters {
    hot: [AtomicU64; HOT],
    cold: OnceLock<Box<[AtomicU64; COLD]>>,
    /// The version of a seqlock: odd while the peer is being changed.
    peer_version: AtomicU32,
    peer_qpn: AtomicU32,
    peer_gid: [AtomicU64; 2],
}

impl Default for QpCounters {
    fn default() -> Self {
        Self {
            hot: [const { AtomicU64::new(0) }; HOT],
            cold: OnceLock::new(),
            peer_version: AtomicU32::new(0),
            peer_qpn: AtomicU32::new(0),
            peer_gid: [const { AtomicU64::new(0) }; 2],
        }
    }
}

impl QpCounters {
    /// Attempts to read a peer that is being changed.
    const PEER_TRIES: usize = 64;

    /// Counts a received frame of `bytes` bytes.
    #[inline]
    pub fn received(&self, bytes: usize) {
        bump(&self.hot[Counter::RxFrames as usize], 1);
        bump(&self.hot[Counter::RxBytes as usize], bytes as u64);
    }
    /// Counts sent frames and their bytes.
    #[inline]
    pub fn sent(&self, frames: u64, bytes: u64) {
        bump(&self.hot[Counter::TxFrames as usize], frames);
        bump(&self.hot[Counter::TxBytes as usize], bytes);
    }
    /// Counts send requests that succeeded, and their bytes.
    #[inline]
    pub fn send_done(&self, messages: u64, bytes: u64) {
        bump(&self.hot[Counter::SendMessages as usize], messages);
        bump(&self.hot[Counter::SendBytes as usize], bytes);
    }
    /// Counts a receive request that succeeded, with its bytes.
    #[inline]
    pub fn recv_done(&self, bytes: u64) {
        bump(&self.hot[Counter::RecvMessages as usize], 1);
        bump(&self.hot[Counter::RecvBytes as usize], bytes);
    }
    /// Adds 1 to a counter that queue pairs have; ignores other counters.
    pub fn count(&self, counter: Counter) {
        let at = counter as usize;
        match at.checked_sub(HOT) {
            None => bump(&self.hot[at], 1),
            Some(_) if !counter.per_qp() => {}
            Some(at) => bump(&self.cold()[at], 1),
        }
    }
    /// Counts a dropped packet of this queue pair.
    pub fn discard(&self, reason: Discard) {
        bump(&self.cold()[QP_COUNTERS - HOT + reason as usize], 1);
    }
    /// The rarely used counters, allocated on first use.
    #[cold]
    fn cold(&self) -> &[AtomicU64; COLD] {
        self.cold.get_or_init(|| Box::new([const { AtomicU64::new(0) }; COLD]))
    }

    /// Sets the peer of the queue pair; `None` if it has none.
    #[cold]
    pub fn set_peer(&self, peer: Option<Peer>) {
        let (gid, qpn) = peer.unwrap_or((Gid::default(), Qpn::new(0)));
        let (high, low) = gid.0.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, b| word << 8 | u64::from(*b));
        // Sequentially consistent: a reader that reads the same even version before and after has read one consistent peer.
        let version = self.peer_version.load(Ordering::Relaxed);
        self.peer_version.store(version.wrapping_add(1), Ordering::SeqCst);
        self.peer_gid[0].store(word(high), Ordering::SeqCst);
        self.peer_gid[1].store(word(low), Ordering::SeqCst);
        self.peer_qpn.store(qpn.get(), Ordering::SeqCst);
        self.peer_version.store(version.wrapping_add(2), Ordering::SeqCst);
    }

    /// The peer of the queue pair; `None` if none is set, or while the peer keeps changing.
    pub fn peer(&self) -> Option<Peer> {
        for _ in 0..Self::PEER_TRIES {
            let before = self.peer_version.load(Ordering::SeqCst);
            let gid = [0, 1].map(|i| self.peer_gid[i].load(Ordering::SeqCst));
            let qpn = self.peer_qpn.load(Ordering::SeqCst);
            if before & 1 == 0 && self.peer_version.load(Ordering::SeqCst) == before {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&gid[0].to_be_bytes());
                bytes[8..].copy_from_slice(&gid[1].to_be_bytes());
                return (gid != [0; 2]).then(|| (Gid(bytes), Qpn::new(qpn)));
            }
        }
        None
    }

    /// The current values, with shard-only counters as 0; those of a running queue pair are not of one instant.
    pub fn snapshot(&self) -> CounterSnapshot {
        let mut values = [0; N];
        for (value, cell) in values.iter_mut().zip(&self.hot) {
            *value = cell.load(Ordering::Relaxed);
        }
        let Some(cold) = self.cold.get() else { return CounterSnapshot(values) };
        let (cold, discards) = cold.split_at(QP_COUNTERS - HOT);
        for (value, cell) in values[HOT..].iter_mut().zip(cold) {
            *value = cell.load(Ordering::Relaxed);
        }
        for (value, cell) in values[Counter::ALL.len()..].iter_mut().zip(discards) {
            *value = cell.load(Ordering::Relaxed);
        }
        CounterSnapshot(values)
    }
}

/// Values of the counters of a shard or a queue pair, or the sum over several.
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
    /// Number of packets dropped for this reason.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.0[Counter::ALL.len() + reason as usize]
    }
    /// Every counter and drop reason by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let names = Counter::ALL.iter().map(|c| c.name()).chain(Discard::ALL.iter().map(|d| d.name()));
        names.zip(self.0)
    }
    /// Packets dropped, over all reasons.
    pub fn drops(&self) -> u64 {
        self.0[Counter::ALL.len()..].iter().sum()
    }
    /// Retries, over all causes.
    pub fn retries(&self) -> u64 {
        [Counter::RetriesTimeout, Counter::RetriesSequence, Counter::RetriesImplied, Counter::RetriesRnr]
            .into_iter()
            .map(|c| self.get(c))
            .sum()
    }
    /// NAKs sent and received, RNR NAKs included.
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
    /// The counts since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i].wrapping_sub(earlier.0[i])))
    }
}

#[cfg(test)]
mod tests;
