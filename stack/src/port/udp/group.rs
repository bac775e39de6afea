//! The sockets on port 4791 of all processes of a host: one SO_REUSEPORT group, of which the kernel chooses a socket by the destination
//! queue pair.
//!
//! A program that is attached to the group returns the index of a socket in it. Which run of numbers has which socket stands in the
//! memory that the processes share ([`Registry`]); whoever changes that attaches the program anew, for all.
//!
//! Nobody can compute an index: when a socket closes, the last one of the group takes its place. So each process finds its own. A probe is
//! a datagram to queue pair 0, which no queue pair has; for it the program returns the index that the datagram names, and the process that
//! receives it knows that this is its own. An index behind the last one leads anywhere; so the lowest index of a round counts, and those of
//! a round are sent in ascending order.
//!
//! Probes are sent by a process that opens its sockets, by one that has closed them, and by one that received what is another process's:
//! where a process was killed.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::steering::{self, INDEX};
use super::sys;
use crate::id::Qpn;
use crate::registry::{Registry, RegistryError, Run};
use crate::sync::lock::lock;
use crate::wire::UDP_PORT;
use rustix::net::RecvFlags;

/// Bytes of a probe: in front as long as a BTH, then the number of the registry's birth and that of the round.
const PROBE: usize = 12 + 16 + 8;
/// Probes of a round beyond the last index that is known: more sockets than open at the same time.
const BEYOND: u32 = 64;
/// Most probes of a round.
const PROBES: u32 = 2048;
/// How often a program is attached at most before others' changes are left for later.
const ATTACHES: usize = 4;
/// Least time between two rounds of a process, and between two programs that others' changes ask for.
const PAUSE: Duration = Duration::from_millis(100);

/// What a queue knows of the index of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Place {
    round: u64,
    index: Option<u32>,
}

impl Place {
    /// Whether a probe says something new.
    fn learn(&mut self, probe: Probe) -> bool {
        if self.round == probe.round && self.index.is_some_and(|index| index <= probe.index) {
            return false;
        }
        let before = core::mem::replace(self, Self { round: probe.round, index: Some(probe.index) });
        before.index != self.index
    }
}

/// What a probe says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Probe {
    birth: u128,
    round: u64,
    index: u32,
}

impl Probe {
    fn write(self) -> [u8; PROBE] {
        let mut bytes = [0; PROBE];
        // An opcode that means nothing.
        bytes[0] = 0xff;
        bytes[INDEX..INDEX + 4].copy_from_slice(&self.index.to_be_bytes());
        bytes[12..28].copy_from_slice(&self.birth.to_be_bytes());
        bytes[28..].copy_from_slice(&self.round.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PROBE] = bytes.try_into().ok()?;
        let index = u32::from_be_bytes(*bytes[INDEX..].first_chunk()?);
        let birth = u128::from_be_bytes(*bytes[12..].first_chunk()?);
        let round = u64::from_be_bytes(*bytes[28..].first_chunk()?);
        (bytes[0] == 0xff && index < PROBES).then_some(Self { birth, round, index })
    }
}

/// The group, and this process's part of it.
#[derive(Debug)]
pub(super) struct Group {
    registry: Arc<Registry>,
    /// The runs that were leased, and the queue of each.
    leased: Mutex<Vec<(Run, usize)>>,
    /// A bit for each of them.
    own: [AtomicU64; Run::COUNT / 64],
    places: Vec<Mutex<Place>>,
    /// A run of which something arrived here, plus one; it is another process's.
    strayed: AtomicU64,
    /// Something was learned that the program does not know.
    is_stale: AtomicBool,
    /// Before this, no round, and no program but for a lease.
    next: Mutex<Instant>,
}

impl Group {
    /// The group of this host, for a port with so many queues.
    pub fn new(registry: Arc<Registry>, queues: usize) -> Self {
        Self {
            registry,
            leased: Mutex::default(),
            own: [const { AtomicU64::new(0) }; Run::COUNT / 64],
            places: (0..queues).map(|_| Mutex::default()).collect(),
            strayed: AtomicU64::new(0),
            is_stale: AtomicBool::new(false),
            next: Mutex::new(Instant::now()),
        }
    }

    /// The sockets have joined: finds their indices. Those of one queue each.
    pub fn enter<'a>(&self, sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone) {
        let Some(any) = sockets.clone().next() else { return };
        self.attach(any);
        self.probe();
        // The kernel delivers on the loopback interface while it sends.
        for (queue, socket) in sockets.enumerate() {
            let mut bytes = [0; PROBE + 1];
            while let Ok((_, len, from)) = rustix::net::recvfrom(socket, &mut bytes[..], RecvFlags::DONTWAIT)
            {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                if let Some(from) = from {
                    self.note(queue, from.ip(), &bytes[..len.min(bytes.len())]);
                }
            }
        }
    }

    /// Attaches the program that knows what the memory says now.
    fn attach(&self, socket: BorrowedFd<'_>) {
        for _ in 0..ATTACHES {
            let changes = self.registry.socket_changes();
            let numbers = self.registry.sockets().into_iter().map(|(run, index)| (run.numbers(), index));
            let mut program = steering::program_of_group(&numbers.collect::<Vec<_>>());
            if let Err(error) = sys::steer(socket, &mut program) {
                tracing::warn!(
                    "packets may arrive at the wrong process: the system does not steer them ({error})"
                );
                return;
            }
            // Else another process changed something meanwhile, and may have attached its program before this one.
            if self.registry.socket_changes() == changes {
                return;
            }
        }
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Sends a round of probes. What cannot be sent is not found; later rounds may.
    fn probe(&self) {
        let most = probes(self.registry.sockets().into_iter().map(|(_, index)| index));
        let (birth, round) = (self.registry.birth(), getrandom::u64().unwrap_or_default());
        let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) else { return };
        for index in 0..most {
            let _ = socket.send_to(&Probe { birth, round, index }.write(), (Ipv4Addr::LOCALHOST, UDP_PORT));
        }
    }

    /// Takes a datagram to queue pair 0 that arrived on a queue.
    #[cold]
    pub fn note(&self, queue: usize, from: IpAddr, datagram: &[u8]) {
        let Some(probe) = Probe::read(datagram) else { return };
        // Whoever is not of this host, or not of this user, does not know the number.
        if !from.to_canonical().is_loopback() || probe.birth != self.registry.birth() {
            return;
        }
        let Some(place) = self.places.get(queue) else { return };
        if lock(place).learn(probe) {
            let leased = lock(&self.leased);
            for (run, _) in leased.iter().filter(|(_, of)| *of == queue) {
                self.registry.set_socket(*run, probe.index);
                self.is_stale.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether a number may be of a queue pair of this process; if not, it is noted that something for it arrived here.
    #[inline]
    pub fn is_ours(&self, qpn: Qpn) -> bool {
        if qpn.block().is_reserved() {
            return true;
        }
        let run = Run::of(qpn.block()).index();
        let is_ours = self.own[run / 64].load(Ordering::Relaxed) >> (run % 64) & 1 != 0;
        if !is_ours {
            self.strayed.store(run as u64 + 1, Ordering::Relaxed);
        }
        is_ours
    }

    /// Repairs the steering if something arrived at the wrong process, or if indices have changed.
    pub fn maintain(&self, socket: BorrowedFd<'_>) {
        if self.strayed.load(Ordering::Relaxed) == 0 && !self.is_stale.load(Ordering::Relaxed) {
            return;
        }
        {
            let mut next = lock(&self.next);
            let now = Instant::now();
            if now < *next {
                return;
            }
            *next = now + PAUSE;
        }
        if let Some(run) = self.strayed.swap(0, Ordering::Relaxed).checked_sub(1)
            && self.is_held(run as usize)
        {
            self.probe();
        }
        if self.is_stale.swap(false, Ordering::Relaxed) {
            self.attach(socket);
        }
    }

    /// Whether a living process has a run: else nobody is there to whom its packets could be steered.
    fn is_held(&self, run: usize) -> bool {
        use crate::registry::Holder::{Dead, Foreign, Nobody};
        let holder = Run::at(run).map(|run| self.registry.holder_of(run));
        !matches!(holder, None | Some(Err(_) | Ok(Nobody | Dead | Foreign(_))))
    }

    /// Leases a run for a queue; attaches the program by this socket.
    pub fn lease(&self, queue: usize, socket: BorrowedFd<'_>) -> Result<Run, RegistryError> {
        let mut leased = lock(&self.leased);
        // The first one came with the membership.
        let run = match self.registry.runs().first() {
            Some(first) if leased.is_empty() => *first,
            _ => self.registry.lease_run()?,
        };
        leased.push((run, queue));
        self.own[run.index() / 64].fetch_or(1 << (run.index() % 64), Ordering::Relaxed);
        let index = self.places.get(queue).and_then(|place| lock(place).index);
        if let Some(index) = index {
            self.registry.set_socket(run, index);
            self.attach(socket);
        }
        Ok(run)
    }
}

/// How many probes a round has, where these indices are known. Any process of the host may write nonsense there.
fn probes(known: impl Iterator<Item = u32>) -> u32 {
    known.max().map_or(0, |last| last.saturating_add(1)).saturating_add(BEYOND).min(PROBES)
}

impl Drop for Group {
    /// The sockets have left the group: others have taken their places.
    fn drop(&mut self) {
        // A fork has nothing of it.
        if !self.registry.runs().is_empty() {
            self.probe();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::steering::PROBED;
    use super::*;

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        let probe = Probe { birth: 0x0102 << 100 | 7, round: 9, index: 513 };
        let bytes = probe.write();
        assert_eq!(Probe::read(&bytes), Some(probe));
        assert_eq!(PROBED, Qpn::new(u32::from_be_bytes(bytes[4..8].try_into().unwrap())));
        for len in [0, 11, 12, PROBE - 1] {
            assert_eq!(Probe::read(&bytes[..len]), None);
        }
        assert_eq!(Probe::read(&Probe { index: PROBES, ..probe }.write()), None);
    }

    #[test]
    fn a_round_goes_beyond_what_is_known_and_has_an_end() {
        assert_eq!(probes([].into_iter()), BEYOND);
        assert_eq!(probes([3, 9, 0].into_iter()), 10 + BEYOND);
        for nonsense in [PROBES, u32::MAX - 1, u32::MAX] {
            assert_eq!(probes([nonsense].into_iter()), PROBES);
        }
    }

    // Goal: a probe that was to go behind the last socket and came here does not count, whenever it came.
    #[test]
    fn the_lowest_index_of_a_round_counts() {
        let mut place = Place::default();
        let mut learn = |round, index| (place.learn(Probe { birth: 0, round, index }), place.index);
        assert_eq!(learn(1, 4), (true, Some(4)));
        assert_eq!(learn(1, 70), (false, Some(4)));
        assert_eq!(learn(2, 4), (false, Some(4)));
        assert_eq!(learn(3, 3), (true, Some(3)));
        assert_eq!(learn(3, 0), (true, Some(0)));
    }
}
