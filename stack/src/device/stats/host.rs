//! The processes of a host that share its addresses: the counters of each, and what the registry records about them.
//!
//! Who looks is none of them, needs no path, and stops nobody; one that does not answer is shown all the same. Processes of the host are
//! asked, and never believed: who is there is the kernel's word; the texts of those who answer are short and have no control characters
//! when they are given on.

use std::net::IpAddr;
use std::time::Duration;

use super::data::{Snapshot, StatsError};
use crate::cm::PortSpace;
use crate::port::PortSpec;
use crate::registry::{Admitted, Binding, Reader, RegistryConfig, Said, Seen};

/// Time for the answers of processes that were not queried before.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most characters of a text.
const TEXT_MAX: usize = 200;

/// Looks at the processes of a host: those that use the port `host` in this network namespace, of this user and of those it admits.
#[derive(Debug)]
pub struct HostReader(Reader);

/// The result of one observation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HostSnapshot {
    /// The processes, by number; a process with several devices appears once for each.
    pub processes: Vec<Process>,
    /// Whether the registry's memory could be read, which names the listeners and the keeper: true while one of the processes answers.
    pub has_registry: bool,
    /// Names of queue pair numbers that a user has who is not known to be admitted.
    pub foreign: usize,
}

/// A process with a device on the port `host`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Process {
    /// Its process id, from the kernel; 0 if the process is not visible from here.
    pub pid: u32,
    /// Its user, as the kernel says; `None`: it accepts no connection.
    pub uid: Option<u32>,
    /// The runs of queue pair numbers that it has, by number: 32768 numbers each. One at least.
    pub runs: Vec<usize>,
    /// How long it has had its first run.
    pub age: Option<Duration>,
    /// The ports at which it listens for connections.
    pub listens: Vec<Listener>,
    /// Whether it is the keeper: it gets the messages of queue pair 1 that are for no particular process.
    pub is_keeper: bool,
    /// Its answer to the request for a snapshot.
    pub reply: Reply,
}

/// The answer of a process to a request for a snapshot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// A snapshot, without queue pairs and without the program's own counters.
    Snapshot(Box<Snapshot>),
    /// No answer: it is stopped, or very busy.
    Nothing,
    /// No answer, because it accepts no more connections.
    Full,
    /// It serves no snapshots: it has no device open at the moment, or is of another release.
    NoStats,
    /// It is of another release.
    OtherRelease,
    /// Not a snapshot.
    Nonsense,
}

/// A port of `rdma_cm` at which a process listens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listener {
    /// The port.
    pub port: u16,
    /// The port space: `tcp`, `udp`, `ib` or `ipoib`; `?` for another number.
    pub space: &'static str,
    /// The address that it is limited to, if any.
    pub addr: Option<IpAddr>,
}

impl HostReader {
    /// For the host that a port of this specification would be part of, in the network namespace of this process: `host` is that of this
    /// user.
    ///
    /// # Errors
    /// [`StatsError::Host`].
    pub fn new(port: &PortSpec) -> Result<Self, StatsError> {
        let RegistryConfig { space, runs, .. } = RegistryConfig::default();
        let admitted = Admitted::new(port.owner(), &port.admits());
        let admitted = admitted.map_err(|error| StatsError::Host { reason: error.to_string() })?;
        Ok(Self(Reader::new(&space, runs, admitted)))
    }

    /// Observes the processes. Takes at most a second, and that only if processes do not answer that were not queried before.
    ///
    /// # Errors
    /// [`StatsError::Host`]: this process has no file descriptor left.
    pub fn look(&mut self) -> Result<HostSnapshot, StatsError> {
        let look = self.0.look(PATIENCE).map_err(|error| StatsError::Host { reason: error.to_string() })?;
        let processes = look.seen.into_iter().map(Process::of).collect();
        Ok(HostSnapshot { processes, has_registry: look.has_memory, foreign: look.foreign })
    }
}

impl Process {
    /// A process with these runs and this answer, for tests of programs that show processes.
    ///
    /// # Panics
    /// If `runs` is empty.
    pub fn new(pid: u32, runs: Vec<usize>, reply: Reply) -> Self {
        assert!(!runs.is_empty(), "a process has a run");
        Self { pid, uid: None, runs, age: None, listens: Vec::new(), is_keeper: false, reply }
    }

    fn of(seen: Seen) -> Self {
        let Seen { pid, uid, runs, said, age, listens, is_keeper } = seen;
        let mut listens: Vec<Listener> = listens.iter().map(Listener::of).collect();
        listens.sort();
        let runs = runs.iter().map(|run| run.index()).collect();
        Self { pid, uid, runs, age, listens, is_keeper, reply: Reply::of(said) }
    }
}

impl Reply {
    fn of(said: Said) -> Self {
        match said {
            Said::Text(text) => match Snapshot::parse(&text) {
                Ok(snapshot) => Self::Snapshot(Box::new(checked(snapshot))),
                Err(Ok(_)) => Self::OtherRelease,
                Err(Err(_)) => Self::Nonsense,
            },
            Said::Nothing => Self::Nothing,
            Said::Full => Self::Full,
            Said::Unknown => Self::NoStats,
            Said::Unlike(_) => Self::OtherRelease,
            Said::Nonsense => Self::Nonsense,
        }
    }
}

impl Listener {
    fn of(binding: &Binding) -> Self {
        let [space, port] = [binding.service >> 16, binding.service & 0xffff].map(|half| half as u16);
        let space = match PortSpace::from_enum(space) {
            Some(PortSpace::Tcp) => "tcp",
            Some(PortSpace::Udp) => "udp",
            Some(PortSpace::Ib) => "ib",
            Some(PortSpace::IpoIb) => "ipoib",
            None => "?",
        };
        Self { port, space, addr: binding.addr }
    }
}

/// A snapshot from a process that may misbehave, made safe to show.
fn checked(said: Snapshot) -> Snapshot {
    let [program, port, mac] = [said.program, said.port, said.mac].map(|text| printable(&text));
    let gids = said.gids.iter().filter(|gid| gid.parse::<IpAddr>().is_ok()).cloned().collect();
    Snapshot { program, port, mac, gids, qps: Vec::new(), tables: Vec::new(), ..said }
}

/// A text without characters that control a terminal, cut to fit a line.
fn printable(text: &str) -> String {
    // The characters of the second group change the direction of text.
    let obeyed = |c: &char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().take(TEXT_MAX).map(|c| if obeyed(&c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::data::{QpStats, Table, VERSION};
    use super::*;
    use crate::registry::{Family, Run};

    fn said(said: Said) -> Process {
        let binding = |service, addr| Binding { service, addr, family: Family::V4, reuse: false };
        let here = Some(IpAddr::from([10, 0, 0, 1]));
        let listens =
            vec![binding(0x0106_1d2f, None), binding(0x0111_0007, here), binding(0xffff_0001, None)];
        let runs = vec![Run::at(3).unwrap(), Run::at(9).unwrap()];
        Process::of(Seen { pid: 7, uid: Some(1000), runs, said, age: None, listens, is_keeper: true })
    }

    fn text(snapshot: &Snapshot) -> Process {
        said(Said::Text(snapshot.to_json()))
    }

    #[test]
    fn a_process_is_shown_with_what_it_says_and_where_it_listens() {
        let sent = Snapshot {
            version: VERSION,
            pid: 8,
            program: "ib_write_bw".into(),
            links: Some(3),
            ..Snapshot::default()
        };
        let process = text(&sent);
        let Reply::Snapshot(snapshot) = process.reply else { panic!("{:?}", process.reply) };
        assert_eq!(*snapshot, sent);
        assert_eq!((process.pid, process.runs), (7, vec![3, 9]), "the kernel's word");
        let of = |port, space, addr| Listener { port, space, addr };
        assert_eq!(
            process.listens,
            [of(1, "?", None), of(7, "udp", Some(IpAddr::from([10, 0, 0, 1]))), of(7471, "tcp", None)]
        );
    }

    // Goal: no text from a process moves the cursor, fills the screen, or imitates another process's number.
    #[test]
    fn what_a_process_says_has_no_control_characters_and_an_end() {
        let evil = "a\u{1b}[2J\r\n\u{7f}\u{9b}31m\u{202e}\u{0}é";
        let sent = Snapshot {
            version: VERSION,
            program: evil.into(),
            port: "p".repeat(1 << 16),
            mac: evil.into(),
            gids: vec![evil.into(), "::1".into()],
            qps: vec![QpStats { state: evil.into(), ..QpStats::default() }],
            tables: vec![Table { name: evil.into(), ..Table::default() }],
            ..Snapshot::default()
        };
        let Reply::Snapshot(snapshot) = text(&sent).reply else { panic!() };
        assert_eq!((&*snapshot.program, &*snapshot.mac), ("a?[2J????31m??é", "a?[2J????31m??é"));
        assert_eq!((snapshot.port.len(), &snapshot.gids[..]), (TEXT_MAX, &["::1".to_owned()][..]));
        assert!(snapshot.qps.is_empty() && snapshot.tables.is_empty());
    }

    #[test]
    fn what_is_no_snapshot_has_a_name() {
        let nested = [b"[".repeat(1 << 19), b"]".repeat(1 << 19)].concat();
        for wrong in [&b""[..], b"{", b"\xff\xfe", b"{\"version\":1}", &nested] {
            let process = said(Said::Text(wrong.into()));
            assert!(matches!(process.reply, Reply::Nonsense), "{:?}", process.reply);
        }
        let later = said(Said::Text(b"{\"version\":2}".into()));
        assert!(matches!(later.reply, Reply::OtherRelease));
        assert!(matches!(said(Said::Unlike(9)).reply, Reply::OtherRelease));
        assert!(matches!(said(Said::Nothing).reply, Reply::Nothing));
    }
}
