//! Turns two snapshots of a stack into rows: totals, rates, and the errors between the snapshots.

use super::find::Found;
use super::increments::{get, since};
use super::programs::{self, TableRates};
use crate::cli::stat::Order;
use serde::Serialize;
use std::collections::BTreeMap;
use verbs::Discard;
use verbs::stats::{Counts, PeerStats, Snapshot};

/// Which queue pairs to show, and in what order.
#[derive(Clone, Debug)]
pub struct Query {
    /// The order.
    pub order: Order,
    /// Reverse order.
    pub reverse: bool,
    /// Only queue pairs with this text in number, type, state or peer; case does not matter.
    pub filter: String,
}

/// Rates of an interval, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Frames received.
    pub rx_frames_per_s: f64,
    /// Gigabits received.
    pub rx_gbit_per_s: f64,
    /// Frames sent.
    pub tx_frames_per_s: f64,
    /// Gigabits sent.
    pub tx_gbit_per_s: f64,
    /// Send requests that succeeded.
    pub send_messages_per_s: f64,
    /// Receive requests that succeeded.
    pub recv_messages_per_s: f64,
}

/// Numbers of error events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// Retries, all causes.
    pub retries: u64,
    /// RNR NAKs, sent and received.
    pub rnr: u64,
    /// Other NAKs, sent and received.
    pub naks: u64,
    /// Packets dropped, all reasons.
    pub drops: u64,
}

/// A shard in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct ShardRow {
    /// Its number.
    pub id: usize,
    /// Its queue pairs.
    pub qps: usize,
    /// Whether it died of a panic: nothing drives it any more.
    pub dead: bool,
    /// Rates; absent without an earlier snapshot.
    pub rates: Option<Rates>,
    /// Errors in the interval.
    pub recent: Trouble,
    /// Errors since the start.
    pub total: Trouble,
    /// Counters since the start, by name; those that are 0 are left out.
    pub counters: Counts,
}

/// A queue pair in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct QpRow {
    /// Its number.
    pub qpn: u32,
    /// Service type.
    pub qp_type: String,
    /// State.
    pub state: String,
    /// Its shard.
    pub shard: usize,
    /// Its peer.
    pub peer: Option<PeerStats>,
    /// Rates; absent without an earlier snapshot.
    pub rates: Option<Rates>,
    /// Errors in the interval.
    pub recent: Trouble,
    /// Errors since the queue pair was created.
    pub total: Trouble,
    /// Counters since the queue pair was created, by name; those that are 0 are left out.
    pub counters: Counts,
}

/// A stack in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct StackRates {
    /// Process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Its port.
    pub port: String,
    /// The port's Ethernet address.
    pub mac: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// Its addresses, in the order of the GID table.
    pub gids: Vec<String>,
    /// Seconds between the snapshots; absent with only one.
    pub interval_s: Option<f64>,
    /// The port's counters.
    pub port_counters: Counts,
    /// Its shards.
    pub shards: Vec<ShardRow>,
    /// Packets dropped since the start, by reason, over all shards; reasons with 0 are left out.
    pub drops: BTreeMap<String, u64>,
    /// Packets dropped in the interval, by reason.
    pub recent_drops: BTreeMap<String, u64>,
    /// Queue pairs that exist.
    pub qps_total: usize,
    /// The queue pairs that match the query, in its order.
    pub qps: Vec<QpRow>,
    /// The program's own tables.
    pub tables: Vec<TableRates>,
}

impl Rates {
    /// Computes rates from two sets of counters that were read `seconds` apart.
    pub fn new(before: &Counts, now: &Counts, seconds: f64) -> Self {
        let rate = |name: &str| since(before, now, name) as f64 / seconds;
        Self {
            rx_frames_per_s: rate("rx_frames"),
            rx_gbit_per_s: rate("rx_bytes") * 8e-9,
            tx_frames_per_s: rate("tx_frames"),
            tx_gbit_per_s: rate("tx_bytes") * 8e-9,
            send_messages_per_s: rate("send_messages"),
            recv_messages_per_s: rate("recv_messages"),
        }
    }
    fn traffic(&self) -> f64 {
        self.rx_gbit_per_s + self.tx_gbit_per_s
    }
    fn messages(&self) -> f64 {
        self.send_messages_per_s + self.recv_messages_per_s
    }
}

impl Trouble {
    /// Sums up these counters.
    pub fn new(counters: &Counts) -> Self {
        let sum = |names: &[&str]| names.iter().map(|name| get(counters, name)).sum();
        Self {
            retries: sum(&["retries_timeout", "retries_sequence", "retries_implied", "retries_rnr"]),
            rnr: sum(&["rnr_naks_sent", "rnr_naks_received"]),
            naks: sum(&["naks_sent", "naks_received"]),
            drops: drops(counters).values().sum(),
        }
    }
}

/// Each running stack, with its activity since `before`.
pub fn compare(before: &Found, now: &Found, query: &Query) -> Vec<StackRates> {
    now.stacks
        .iter()
        .map(|(path, snapshot)| {
            let old = before.stacks.iter().find(|(p, s)| p == path && s.pid == snapshot.pid);
            StackRates::new(old.map(|(_, s)| s), snapshot, query)
        })
        .collect()
}

fn difference(before: &Counts, now: &Counts) -> Counts {
    let moved = now.keys().map(|name| (name.clone(), since(before, now, name)));
    moved.filter(|(_, value)| *value > 0).collect()
}

fn drops(counters: &Counts) -> BTreeMap<String, u64> {
    let known =
        Discard::ALL.into_iter().map(|reason| (reason.name().to_owned(), get(counters, reason.name())));
    known.filter(|(_, value)| *value > 0).collect()
}

/// The sums of several sets of counters.
pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
    let mut sum = Counts::new();
    for (name, value) in all.flatten() {
        let sum = sum.entry(name.clone()).or_insert(0);
        // The values come from another process, which may send any.
        *sum = sum.saturating_add(*value);
    }
    sum
}

impl StackRates {
    /// A stack now, with its activity since `before`, if there is an earlier snapshot of it.
    pub fn new(before: Option<&Snapshot>, now: &Snapshot, query: &Query) -> Self {
        let seconds = before.map(|b| now.at_ns.saturating_sub(b.at_ns) as f64 * 1e-9).filter(|s| *s > 0.0);
        let before = before.filter(|_| seconds.is_some());
        let rates = |old: Option<&Counts>, new: &Counts| Some(Rates::new(old?, new, seconds?));
        let recent = |old: Option<&Counts>, new: &Counts| {
            old.map_or(Trouble::default(), |old| Trouble::new(&difference(old, new)))
        };
        let shards: Vec<_> = now
            .shards
            .iter()
            .map(|shard| {
                let old =
                    before.and_then(|b| b.shards.iter().find(|s| s.id == shard.id)).map(|s| &s.counters);
                ShardRow {
                    id: shard.id,
                    qps: shard.qps,
                    dead: shard.dead,
                    rates: rates(old, &shard.counters),
                    recent: recent(old, &shard.counters),
                    total: Trouble::new(&shard.counters),
                    counters: shard.counters.clone(),
                }
            })
            .collect();
        let old_qps: BTreeMap<u32, &Counts> =
            before.into_iter().flat_map(|b| &b.qps).map(|qp| (qp.qpn, &qp.counters)).collect();
        let mut qps: Vec<_> = now
            .qps
            .iter()
            .map(|qp| {
                let old = old_qps.get(&qp.qpn).copied();
                QpRow {
                    qpn: qp.qpn,
                    qp_type: qp.qp_type.clone(),
                    state: qp.state.clone(),
                    shard: qp.shard,
                    peer: qp.peer.clone(),
                    rates: rates(old, &qp.counters),
                    recent: recent(old, &qp.counters),
                    total: Trouble::new(&qp.counters),
                    counters: qp.counters.clone(),
                }
            })
            .filter(|qp| qp.matches(&query.filter))
            .collect();
        query.sort(&mut qps);
        let sums = [
            before.map(|b| sum(b.shards.iter().map(|s| &s.counters))),
            Some(sum(now.shards.iter().map(|s| &s.counters))),
        ];
        let [old, new] = sums.map(Option::unwrap_or_default);
        Self {
            pid: now.pid,
            program: now.program.clone(),
            port: now.port.clone(),
            mac: now.mac.clone(),
            link_up: now.link_up,
            gids: now.gids.clone(),
            interval_s: seconds,
            port_counters: now.port_counters.clone(),
            shards,
            drops: drops(&new),
            recent_drops: if before.is_some() { drops(&difference(&old, &new)) } else { BTreeMap::new() },
            qps_total: now.qps_total,
            qps,
            tables: programs::tables(before.map(|b| &b.tables[..]), &now.tables, seconds),
        }
    }

    /// A line that identifies the stack.
    pub fn title(&self) -> String {
        let link = if self.link_up { "up" } else { "down" };
        format!("{} (pid {}) on {}, {}, link {link}", self.program, self.pid, self.port, self.mac)
    }
}

impl QpRow {
    /// The peer as text; `-` if there is none.
    pub fn peer_text(&self) -> String {
        self.peer.as_ref().map_or("-".into(), |peer| format!("{} {:#08x}", peer.gid, peer.qpn))
    }
    /// The number as text.
    pub fn qpn_text(&self) -> String {
        format!("{:#08x}", self.qpn)
    }
    fn matches(&self, filter: &str) -> bool {
        let text =
            format!("{} {} {} {} {}", self.qpn_text(), self.qpn, self.qp_type, self.state, self.peer_text());
        text.to_lowercase().contains(&filter.to_lowercase())
    }
}

impl Query {
    fn sort(&self, qps: &mut [QpRow]) {
        let most = |key: fn(&Rates) -> f64| {
            move |a: &QpRow, b: &QpRow| {
                let value = |qp: &QpRow| qp.rates.as_ref().map_or(0.0, key);
                value(b).total_cmp(&value(a))
            }
        };
        match self.order {
            Order::Rate => qps.sort_by(most(Rates::traffic)),
            Order::Messages => qps.sort_by(most(Rates::messages)),
            Order::Retries => qps.sort_by_key(|qp| std::cmp::Reverse((qp.recent.retries, qp.total.retries))),
            Order::Drops => qps.sort_by_key(|qp| std::cmp::Reverse((qp.recent.drops, qp.total.drops))),
            // They are sorted by number already, and sorting is stable.
            Order::Qpn => {}
            Order::Shard => qps.sort_by_key(|qp| qp.shard),
            Order::State => qps.sort_by(|a, b| a.state.cmp(&b.state)),
        }
        if self.reverse {
            qps.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Counter;
    use verbs::stats::{QpStats, ShardStats};

    fn counts(pairs: &[(&str, u64)]) -> Counts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn snapshot(at_s: u64, factor: u64) -> Snapshot {
        let qp = |qpn, state: &str, bytes, drops| QpStats {
            qpn,
            qp_type: "RC".into(),
            state: state.into(),
            counters: counts(&[
                ("tx_bytes", bytes * factor),
                ("tx_frames", factor),
                ("bad_pkey", drops * factor),
                ("retries_rnr", 2 * factor),
            ]),
            ..QpStats::default()
        };
        Snapshot {
            pid: 1,
            at_ns: at_s * 1_000_000_000,
            shards: vec![ShardStats {
                id: 0,
                qps: 2,
                counters: counts(&[("bad_pkey", 5 * factor), ("bad_icrc", 1)]),
                ..ShardStats::default()
            }],
            qps_total: 2,
            qps: vec![qp(0x11, "RTS", 125_000_000, 5), qp(0x22, "ERR", 250_000_000, 0)],
            ..Snapshot::default()
        }
    }

    fn query(order: Order, filter: &str) -> Query {
        Query { order, reverse: false, filter: filter.into() }
    }

    #[test]
    fn rates_are_differences_by_the_second() {
        let (a, b) = (snapshot(10, 1), snapshot(12, 5));
        let stack = StackRates::new(Some(&a), &b, &query(Order::Qpn, ""));
        assert_eq!(stack.interval_s, Some(2.0));
        let qp = &stack.qps[0];
        let rates = qp.rates.unwrap();
        assert!((rates.tx_gbit_per_s - 2.0).abs() < 1e-9 && (rates.tx_frames_per_s - 2.0).abs() < 1e-9);
        assert_eq!((qp.recent.drops, qp.total.drops), (20, 25));
        assert_eq!((qp.recent.retries, qp.total.retries), (8, 10));
        assert_eq!(stack.drops, counts(&[("bad_pkey", 25), ("bad_icrc", 1)]));
        assert_eq!(stack.recent_drops, counts(&[("bad_pkey", 20)]));
        let first = StackRates::new(None, &b, &query(Order::Qpn, ""));
        assert!(first.qps[0].rates.is_none() && first.recent_drops.is_empty() && first.interval_s.is_none());
    }

    #[test]
    fn order_and_filter() {
        let (a, b) = (snapshot(10, 1), snapshot(12, 5));
        let shown = |order, reverse, filter: &str| -> Vec<u32> {
            let query = Query { order, reverse, filter: filter.into() };
            StackRates::new(Some(&a), &b, &query).qps.iter().map(|qp| qp.qpn).collect()
        };
        assert_eq!(shown(Order::Rate, false, ""), [0x22, 0x11]);
        assert_eq!(shown(Order::Rate, true, ""), [0x11, 0x22]);
        assert_eq!(shown(Order::Drops, false, ""), [0x11, 0x22]);
        assert_eq!(shown(Order::State, false, ""), [0x22, 0x11]);
        assert_eq!(shown(Order::Qpn, false, "rts"), [0x11]);
        assert_eq!(shown(Order::Qpn, false, "0x000022"), [0x22]);
        assert!(shown(Order::Qpn, false, "nothing").is_empty());
    }

    // A queue pair that reuses a number starts from 0: no rate may be negative or absurd.
    #[test]
    fn counters_that_went_back_are_no_rate() {
        let (a, b) = (snapshot(10, 5), snapshot(12, 1));
        let stack = StackRates::new(Some(&a), &b, &query(Order::Qpn, ""));
        assert_eq!(stack.qps[0].rates, Some(Rates::default()));
        assert_eq!(stack.qps[0].recent, Trouble::default());
    }

    // The summed names exist in the stack, and all causes of retries are among them.
    #[test]
    fn names_are_those_of_the_stack() {
        let all: Counts = Counter::ALL.iter().map(|c| (c.name().to_owned(), 1)).collect();
        let retries = Counter::ALL.iter().filter(|c| c.name().starts_with("retries_")).count() as u64;
        assert_eq!(Trouble::new(&all), Trouble { retries, rnr: 2, naks: 2, drops: 0 });
        assert_ne!(Rates::new(&Counts::new(), &all, 1.0).recv_messages_per_s, 0.0);
        let rates = Rates::new(&Counts::new(), &all, 1.0);
        for rate in [rates.rx_frames_per_s, rates.rx_gbit_per_s, rates.tx_frames_per_s, rates.tx_gbit_per_s] {
            assert!(rate > 0.0);
        }
    }
}
