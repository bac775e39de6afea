//! Counters of commands, bytes, failures and latencies, by namespace and host.
//!
//! They are counted only if [`Config::meters`](super::Config::meters) is set. Each core has its own counters, and a reader adds them up.
//! Hosts choose their names, so the number of pairs of namespace and host with counters of their own is limited; all further hosts of a
//! namespace are counted together.

use std::sync::{Arc, Mutex};

use nvmf::sync::lock;
use nvmf::{Nqn, Op, Request, Ticket};
use verbs::stats::{Latency, Row, Table};

use super::counters::Counter;

/// The most pairs of namespace and host with counters of their own.
const NAMED_MAX: usize = 1024;
/// The label for all other hosts.
const OTHERS: &str = "(others)";

/// The kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Any other command of a namespace.
    #[default]
    Other,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Read, "read"), (Self::Write, "write"), (Self::Other, "other")];

    fn of(op: &Op<'_>) -> (Self, u64) {
        match op {
            Op::Read { to, .. } => (Self::Read, to.len.into()),
            Op::Write { from, .. } => (Self::Write, from.len().into()),
            _ => (Self::Other, 0),
        }
    }
}

/// A histogram of latencies in nanoseconds, with four buckets for each power of two.
#[derive(Debug)]
struct Histogram {
    buckets: [Counter; Self::BUCKETS],
    sum_ns: Counter,
}

impl Histogram {
    /// The number of buckets. The last one begins at about half an hour.
    const BUCKETS: usize = 160;

    fn new() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_ns: Counter::default() }
    }
    #[inline]
    fn add(&self, ns: u64) {
        self.buckets[Self::bucket(ns)].add(1);
        self.sum_ns.add(ns);
    }
    #[inline]
    fn bucket(ns: u64) -> usize {
        match ns {
            0..4 => ns as usize,
            _ => {
                let power = ns.ilog2() as usize;
                let quarter = (ns >> (power - 2)) as usize & 3;
                ((power - 1) * 4 + quarter).min(Self::BUCKETS - 1)
            }
        }
    }
    /// The longest latency of a bucket, in nanoseconds. The last bucket also counts all longer ones.
    fn upper(bucket: usize) -> u64 {
        match bucket {
            0..4 => bucket as u64,
            _ => ((5 + bucket as u64 % 4) << (bucket / 4 - 1)) - 1,
        }
    }
    fn add_to(&self, latency: &mut Latency) {
        for (bucket, counter) in self.buckets.iter().enumerate() {
            let count = counter.get();
            if count > 0 {
                *latency.buckets.entry(Self::upper(bucket)).or_default() += count;
                latency.count += count;
            }
        }
        latency.sum_ns += self.sum_ns.get();
    }
}

/// The counters of one core for one namespace and host.
#[derive(Debug)]
pub struct Meter {
    bytes: [Counter; 3],
    latencies: [Histogram; 3],
    failed: Counter,
}

impl Meter {
    fn new() -> Self {
        Self {
            bytes: Default::default(),
            latencies: std::array::from_fn(|_| Histogram::new()),
            failed: Counter::default(),
        }
    }
    #[inline]
    fn done(&self, begun: &Begun, now: u64, ok: bool) {
        let kind = begun.kind as usize;
        self.latencies[kind].add(now.saturating_sub(begun.at));
        if ok {
            self.bytes[kind].add(begun.len);
        } else {
            self.failed.add(1);
        }
    }
    fn add_to(&self, row: &mut Row) {
        for (kind, name) in Kind::ALL {
            let latency = row.latencies.entry(name.into()).or_default();
            self.latencies[kind as usize].add_to(latency);
            let mut count = |name: String, n: u64| *row.counters.entry(name).or_default() += n;
            if kind != Kind::Other {
                count(format!("{name}_bytes"), self.bytes[kind as usize].get());
            }
        }
        *row.counters.entry("failed".into()).or_default() += self.failed.get();
    }
}

/// The namespace and host of counters.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Who {
    subsystem: String,
    namespace: u32,
    host: String,
}

/// The counters of each core, with the core's number.
type OfCores = Vec<(usize, Arc<Meter>)>;

/// The counters of all cores.
#[derive(Debug, Default)]
pub struct Meters(Mutex<Vec<(Who, OfCores)>>);

impl Meters {
    /// The counters of a core for a namespace and host; made if they do not exist.
    fn of(&self, core: usize, subsystem: &Nqn, namespace: u32, host: &Nqn) -> Arc<Meter> {
        let mut all = lock(&self.0);
        let mut who = Who { subsystem: subsystem.to_string(), namespace, host: host.to_string() };
        if all.len() >= NAMED_MAX && all.iter().all(|(known, _)| *known != who) {
            who.host = OTHERS.into();
        }
        let at = all.iter().position(|(known, _)| *known == who).unwrap_or_else(|| {
            all.push((who, Vec::new()));
            all.len() - 1
        });
        let (_, meters) = &mut all[at];
        if let Some((_, meter)) = meters.iter().find(|(of, _)| *of == core) {
            return Arc::clone(meter);
        }
        let meter = Arc::new(Meter::new());
        meters.push((core, Arc::clone(&meter)));
        meter
    }
    /// The counters as a table with a row for each namespace and host.
    pub fn table(&self) -> Table {
        let all = lock(&self.0);
        let row = |(who, meters): &(Who, OfCores)| {
            let label = |name: &str, value: String| (name.to_string(), value);
            let labels = [
                label("subsystem", who.subsystem.clone()),
                label("namespace", who.namespace.to_string()),
                label("host", who.host.clone()),
            ];
            let mut row = Row { labels: labels.into(), ..Row::default() };
            meters.iter().for_each(|(_, meter)| meter.add_to(&mut row));
            row
        };
        Table { name: "nvmf".into(), rows: all.iter().map(row).collect() }
    }
}

/// A command that was started: when, in nanoseconds, its length in bytes, its kind, and the index of its counters in `lanes`.
#[derive(Clone, Copy, Default, Debug)]
struct Begun {
    at: u64,
    len: u64,
    kind: Kind,
    lane: u16,
}

/// Meters the commands of a connection.
#[derive(Debug)]
pub struct Gauge {
    meters: Arc<Meters>,
    core: usize,
    /// The namespaces that the connection used, with their counters.
    lanes: Vec<(u32, Arc<Meter>)>,
    /// The commands, by [`Ticket::place`].
    begun: Vec<Begun>,
}

impl Gauge {
    /// Makes a gauge for a queue of `entries` commands on core number `core`.
    pub fn new(meters: &Arc<Meters>, core: usize, entries: u16) -> Self {
        let begun = vec![Begun::default(); entries as usize];
        Self { meters: Arc::clone(meters), core, lanes: Vec::new(), begun }
    }
    /// Starts to meter a command at `now`, in nanoseconds. `who` returns its host and subsystem.
    pub fn begin(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        now: u64,
        who: impl FnOnce() -> Option<(Nqn, Nqn)>,
    ) {
        let lane = match self.lanes.iter().position(|(nsid, _)| *nsid == request.nsid) {
            Some(lane) => lane,
            None => {
                let Some((host, subsystem)) = who() else { return };
                let meter = self.meters.of(self.core, &subsystem, request.nsid, &host);
                self.lanes.push((request.nsid, meter));
                self.lanes.len() - 1
            }
        };
        let (kind, len) = Kind::of(&request.op);
        if let Some(begun) = self.begun.get_mut(ticket.place()) {
            *begun = Begun { at: now, len, kind, lane: lane as u16 };
        }
    }
    /// Counts a command that ends at `now`, in nanoseconds. `ok`: it succeeded.
    #[inline]
    pub fn end(&mut self, ticket: Ticket, now: u64, ok: bool) {
        let Some(begun) = self.begun.get(ticket.place()) else { return };
        if let Some((_, meter)) = self.lanes.get(begun.lane as usize) {
            meter.done(begun, now, ok);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: each latency is counted in the bucket whose bounds contain it, and buckets are narrow.
    #[test]
    fn latencies_are_in_their_buckets() {
        let edges = (0..63).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + 1]);
        for ns in edges.chain(0..5000) {
            let bucket = Histogram::bucket(ns);
            let below = if bucket == 0 { None } else { Some(Histogram::upper(bucket - 1)) };
            assert!(below.is_none_or(|below| below < ns), "{ns} {bucket}");
            if bucket < Histogram::BUCKETS - 1 {
                let upper = Histogram::upper(bucket);
                assert!(ns <= upper && (upper - ns) * 4 <= ns.max(3), "{ns} {bucket} {upper}");
            }
        }
    }

    #[test]
    fn strangers_who_name_themselves_do_not_fill_the_memory() {
        let meters = Meters::default();
        let subsystem: Nqn = "nqn.2024-01.test:disks".parse().unwrap();
        for n in 0..3 * NAMED_MAX {
            let host: Nqn = format!("nqn.2024-01.test:host{n}").parse().unwrap();
            let begun = Begun { at: 0, len: 512, kind: Kind::Read, lane: 0 };
            meters.of(n % 2, &subsystem, 1, &host).done(&begun, 1000, true);
        }
        let table = meters.table();
        assert_eq!(table.rows.len(), NAMED_MAX + 1);
        let reads: u64 = table.rows.iter().map(|row| row.latencies["read"].count).sum();
        assert_eq!(reads, 3 * NAMED_MAX as u64, "each is counted");
        let others = table.rows.iter().find(|row| row.labels["host"] == OTHERS).unwrap();
        assert_eq!(others.counters["read_bytes"], 512 * (2 * NAMED_MAX) as u64);
    }
}
