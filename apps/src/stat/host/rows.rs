//! Turns two snapshots of the processes of a host into rows: totals, and the rates between the snapshots.

use super::find::Found;
use crate::stat::increments::get;
use crate::stat::rates::{Rates, sum};
use serde::Serialize;
use verbs::stats::{Counts, Listener, Process, Reply, Snapshot};

/// Most listeners of a process that are shown.
const LISTENERS_MAX: usize = 256;

/// A process in an interval. Values from its own snapshot are absent if it does not answer.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    /// Process number; 0 if it is not visible from here.
    pub pid: u32,
    /// User of the process if it is not the user of this program: a guest, or the owner of the host.
    pub user: Option<u32>,
    /// Name of the program.
    pub program: String,
    /// Whether the process answers.
    pub answers: bool,
    /// Why the process does not answer; `yes` if it does.
    pub answer: String,
    /// The process's runs of queue pair numbers.
    pub runs: Vec<usize>,
    /// Seconds since the process has leased its first run.
    pub age_s: Option<f64>,
    /// Whether it gets the messages of queue pair 1 that are for no process in particular.
    pub keeper: bool,
    /// The first 256 ports at which the process listens for connections of `rdma_cm`.
    pub listeners: Vec<ListenerRow>,
    /// Queue pairs that exist.
    pub qps: Option<usize>,
    /// Links to other processes of the host.
    pub links: Option<u64>,
    /// Seconds between the process's two snapshots.
    pub interval_s: Option<f64>,
    /// Rates; absent without an earlier snapshot.
    pub rates: Option<Rates>,
    /// Packets sent again since the start.
    pub resends: Option<u64>,
    /// Packets sent again in the interval.
    pub recent_resends: Option<u64>,
    /// Packets for other processes that arrived here and were passed on to them, since the start.
    pub passed_on: Option<u64>,
    /// Packets passed on in the interval.
    pub recent_passed_on: Option<u64>,
}

/// A port at which a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListenerRow {
    /// The port.
    pub port: u16,
    /// The port space of `rdma_cm`: `tcp`, `udp`, `ib` or `ipoib`.
    pub space: &'static str,
    /// The only address at which the process listens; absent for all addresses.
    pub addr: Option<String>,
}

/// Each process, with its activity since `before`.
pub fn compare(before: &Found, now: &Found) -> Vec<ProcessRow> {
    let row = |process: &Process| {
        let same = |old: &&Process| old.pid == process.pid && old.runs.first() == process.runs.first();
        ProcessRow::new(before.processes.iter().find(same), process, now)
    };
    now.processes.iter().map(row).collect()
}

/// The snapshot of a process that answered, and the summed counters of its shards.
fn answer(process: &Process) -> Option<(&Snapshot, Counts)> {
    let Reply::Snapshot(snapshot) = &process.reply else { return None };
    Some((snapshot, sum(snapshot.shards.iter().map(|shard| &shard.counters))))
}

/// Why a process has not answered.
fn excuse(reply: &Reply, is_stopped: bool) -> &'static str {
    match reply {
        Reply::Snapshot(_) => "yes",
        Reply::Nothing if is_stopped => "does not answer: it is stopped",
        Reply::Nothing => "does not answer",
        Reply::Full => "accepts no connection",
        Reply::NoStats => "has no open device",
        Reply::OtherRelease => "is of another release",
        _ => "answers nonsense",
    }
}

impl ProcessRow {
    fn new(before: Option<&Process>, now: &Process, found: &Found) -> Self {
        let silent = found.silent.get(&now.pid).cloned().unwrap_or_default();
        let mut row = Self {
            pid: now.pid,
            user: now.uid.filter(|uid| *uid != rustix::process::geteuid().as_raw()),
            program: silent.program,
            answers: false,
            answer: excuse(&now.reply, silent.is_stopped).into(),
            runs: now.runs.clone(),
            age_s: now.age.map(|age| age.as_secs_f64()),
            keeper: now.is_keeper,
            listeners: now.listens.iter().take(LISTENERS_MAX).map(ListenerRow::new).collect(),
            qps: None,
            links: None,
            interval_s: None,
            rates: None,
            resends: None,
            recent_resends: None,
            passed_on: None,
            recent_passed_on: None,
        };
        if let Some((snapshot, counters)) = answer(now) {
            row.take(before.and_then(answer), snapshot, &counters);
        }
        row
    }

    /// Adds the values of the process's snapshot.
    fn take(&mut self, before: Option<(&Snapshot, Counts)>, now: &Snapshot, counters: &Counts) {
        let (resends, passed_on) = (get(counters, "retransmitted"), get(&now.port_counters, "passed_on"));
        self.answers = true;
        self.program.clone_from(&now.program);
        (self.qps, self.links) = (Some(now.qps_total), now.links);
        (self.resends, self.passed_on) = (Some(resends), Some(passed_on));
        let Some((old, before)) = before else { return };
        let seconds = now.at_ns.saturating_sub(old.at_ns) as f64 * 1e-9;
        if seconds <= 0.0 {
            return;
        }
        self.interval_s = Some(seconds);
        self.rates = Some(Rates::new(&before, counters, seconds));
        self.recent_resends = Some(resends.saturating_sub(get(&before, "retransmitted")));
        self.recent_passed_on = Some(passed_on.saturating_sub(get(&old.port_counters, "passed_on")));
    }
}

impl ListenerRow {
    fn new(listener: &Listener) -> Self {
        let Listener { port, space, addr } = *listener;
        Self { port, space, addr: addr.map(|addr| addr.to_string()) }
    }

    /// The listener as text.
    pub fn text(&self) -> String {
        let space = if self.space == "tcp" { String::new() } else { format!("{} ", self.space) };
        match &self.addr {
            Some(addr) if addr.contains(':') => format!("{space}[{addr}]:{}", self.port),
            Some(addr) => format!("{space}{addr}:{}", self.port),
            None => format!("{space}{}", self.port),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::find::Silent;
    use super::*;
    use verbs::stats::ShardStats;

    /// A process that answers and a process that is stopped, at a given second; counters are multiples of `factor`.
    pub fn found(at_s: u64, factor: u64) -> Found {
        let counts = |pairs: &[(&str, u64)]| -> Counts {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value * factor)).collect()
        };
        let shard = |id| ShardStats {
            id,
            counters: counts(&[("send_messages", 500), ("tx_bytes", 62_500_000), ("retransmitted", 2)]),
            ..ShardStats::default()
        };
        let snapshot = Snapshot {
            program: "ib_write_bw".into(),
            at_ns: at_s * 1_000_000_000,
            port_counters: counts(&[("passed_on", 3)]),
            links: Some(2),
            shards: vec![shard(0), shard(1)],
            qps_total: 4,
            ..Snapshot::default()
        };
        let listener = |port, space, addr: Option<&str>| Listener {
            port,
            space,
            addr: addr.map(|addr| addr.parse().unwrap()),
        };
        let listens = vec![listener(7471, "tcp", None), listener(9, "udp", Some("::1"))];
        let mut working = Process::new(7, vec![1, 4], Reply::Snapshot(Box::new(snapshot)));
        (working.is_keeper, working.listens, working.uid) = (true, listens, Some(u32::MAX - 1));
        let stopped = Process::new(8, vec![2], Reply::Nothing);
        let silent = [(8, Silent { program: "rping".into(), is_stopped: true })].into();
        Found { processes: vec![working, stopped], silent, notes: Vec::new() }
    }

    #[test]
    fn rates_are_those_of_all_shards_and_who_says_nothing_has_none() {
        let rows = compare(&found(10, 1), &found(12, 5));
        let rates = rows[0].rates.unwrap();
        assert!(
            (rates.send_messages_per_s - 2000.0).abs() < 1e-9 && (rates.tx_gbit_per_s - 2.0).abs() < 1e-9
        );
        assert_eq!((rows[0].resends, rows[0].recent_resends), (Some(20), Some(16)));
        assert_eq!((rows[0].passed_on, rows[0].recent_passed_on), (Some(15), Some(12)));
        assert_eq!((rows[0].qps, rows[0].links, rows[0].keeper), (Some(4), Some(2), true));
        assert_eq!((&*rows[1].program, &*rows[1].answer), ("rping", "does not answer: it is stopped"));
        assert_eq!([rows[0].user, rows[1].user], [Some(u32::MAX - 1), None], "only where it is another one");
        assert!(!rows[1].answers && rows[1].qps.is_none() && rows[1].rates.is_none());
        let first = compare(&Found::default(), &found(12, 5));
        assert!(first[0].rates.is_none() && first[0].resends == Some(20));
    }

    // Goal: any numbers make rows, and no panic.
    #[test]
    fn any_numbers_are_counters() {
        let rows = compare(&found(1, 1 << 60 >> 26), &found(u64::MAX / 1_000_000_000, 1 << 34));
        assert!(rows[0].rates.is_some_and(|rates| rates.tx_gbit_per_s.is_finite()));
        let back = compare(&found(12, 5), &found(10, 1));
        assert!(back[0].rates.is_none());
        let mut mad = found(12, 1);
        let Reply::Snapshot(snapshot) = &mut mad.processes[0].reply else { panic!() };
        snapshot.shards.iter_mut().for_each(|shard| shard.counters.values_mut().for_each(|n| *n = u64::MAX));
        assert_eq!(compare(&found(10, 1), &mad)[0].resends, Some(u64::MAX));
    }

    #[test]
    fn listeners_are_written_as_people_do() {
        let rows = compare(&Found::default(), &found(1, 1));
        let texts: Vec<_> = rows[0].listeners.iter().map(ListenerRow::text).collect();
        assert_eq!(texts, ["7471", "udp [::1]:9"]);
    }
}
