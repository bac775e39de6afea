//! Counters of a device during a measurement, sorted into the kinds that the report sums up.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counters by name; those that are zero are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts(pub BTreeMap<String, u64>);

impl Counts {
    /// From names and values, as a device or port gives them.
    pub fn new<N: Into<String>>(pairs: impl IntoIterator<Item = (N, u64)>) -> Self {
        let mut counts = BTreeMap::new();
        for (name, value) in pairs {
            if value > 0 {
                *counts.entry(name.into()).or_insert(0) += value;
            }
        }
        Self(counts)
    }

    /// The increments since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let old = |name: &str| earlier.0.get(name).copied().unwrap_or(0);
        Self::new(self.0.iter().map(|(name, value)| (name.clone(), value.saturating_sub(old(name)))))
    }

    /// The sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).map(|(name, value)| (name.clone(), *value)))
    }

    /// The sums by kind.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (name, value) in &self.0 {
            match Kind::of(name) {
                Kind::Retry => totals.retries += value,
                Kind::Rnr => totals.rnr += value,
                Kind::Nak => totals.naks += value,
                Kind::Drop => totals.drops += value,
                Kind::Detail | Kind::Traffic => {}
            }
        }
        totals
    }

    /// The names and values that are not plain traffic, as `name 3, other 1`; empty when there are none.
    pub fn notable(&self) -> String {
        let notable = self.0.iter().filter(|(name, _)| Kind::of(name) != Kind::Traffic);
        notable.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }
}

/// Sums of the counters of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Retries of requests, whatever the cause.
    pub retries: u64,
    /// NAKs sent, without RNR NAKs.
    pub naks: u64,
    /// RNR NAKs sent.
    pub rnr: u64,
    /// Frames that were discarded, for any reason.
    pub drops: u64,
}

/// The kind of event that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing wrong: frames, bytes, ACKs.
    Traffic,
    /// A request was retried.
    Retry,
    /// The receiver was not ready, and sent an RNR NAK.
    Rnr,
    /// A request was refused.
    Nak,
    /// A frame was discarded.
    Drop,
    /// Either a detail of an event that another counter counts, so that its sum would count twice; or informative, though nothing is
    /// wrong.
    Detail,
}

/// Counters of normal traffic.
const TRAFFIC: [&str; 17] = [
    "rx_frames",
    "rx_bytes",
    "tx_frames",
    "tx_bytes",
    "net_frames",
    "to_self",
    "send_messages",
    "send_bytes",
    "recv_messages",
    "recv_bytes",
    "requests_sent",
    "requests_received",
    "responses_sent",
    "responses_received",
    "acks_sent",
    "acks_received",
    "completions",
];

/// Counters with details of events that are counted elsewhere, or that are informative though nothing is wrong.
const DETAILS: [&str; 31] = [
    "ack_probes",
    "peer_checks",
    "peer_stalls",
    "peers_ended",
    "requests_refused",
    "handed_over",
    "packets_held",
    "source_ports_left",
    "naks_received",
    "rnr_naks_received",
    "duplicates_answered",
    "retransmitted",
    "marks_received",
    "notifications_received",
    "cq_overflows",
    "qp_errors",
    "port_rx_strayed",
    "port_passed_on",
    "port_restarts",
    "port_refused",
    "icrc_weak",
    "timeouts",
    "next_hop_unreachable",
    "naks_sent_sequence",
    "naks_sent_invalid",
    "naks_sent_access",
    "naks_sent_operational",
    "naks_received_sequence",
    "naks_received_invalid",
    "naks_received_access",
    "naks_received_operational",
];

impl Kind {
    /// The kind of the counter called `name`. Each drop reason has its own name, so a name that is not listed is a drop.
    pub fn of(name: &str) -> Self {
        match name {
            "naks_sent" => Self::Nak,
            "rnr_naks_sent" => Self::Rnr,
            name if name.starts_with("retries") => Self::Retry,
            name if DETAILS.contains(&name) => Self::Detail,
            name if TRAFFIC.contains(&name) => Self::Traffic,
            _ => Self::Drop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Counter, Discard};

    #[test]
    fn kinds_by_name() {
        let counts = Counts::new([
            ("rx_frames", 100),
            ("retries_timeout", 3),
            ("retries_rnr", 1),
            ("retransmitted", 40),
            ("rnr_naks_sent", 2),
            ("naks_sent", 4),
            ("naks_received", 4),
            ("bad_icrc", 5),
            ("rx_dropped", 6),
            ("too_short", 0),
        ]);
        assert_eq!(counts.totals(), Totals { retries: 4, naks: 4, rnr: 2, drops: 11 });
        let text = counts.notable();
        assert!(text.contains("bad_icrc 5") && !text.contains("rx_frames") && !text.contains("too_short"));
    }

    #[test]
    fn differences() {
        let before = Counts::new([("a", 3), ("b", 1)]);
        let after = Counts::new([("a", 5), ("b", 1), ("c", 2)]);
        assert_eq!(after.since(&before), Counts::new([("a", 2), ("c", 2)]));
        assert_eq!(before.plus(&after), Counts::new([("a", 8), ("b", 2), ("c", 2)]));
    }

    // A new counter of the stack that this list lacks would be shown as a drop.
    #[test]
    fn drops_are_the_reasons_of_the_stack() {
        for counter in Counter::ALL {
            assert_ne!(Kind::of(counter.name()), Kind::Drop, "{}", counter.name());
        }
        for reason in Discard::ALL {
            assert_eq!(Kind::of(reason.name()), Kind::Drop, "{}", reason.name());
        }
    }
}
