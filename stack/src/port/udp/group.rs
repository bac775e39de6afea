//! The sockets of all processes of a host on one UDP port (4791 if it is available): one SO_REUSEPORT group. The kernel chooses a socket of
//! the group by the destination queue pair; for queue pair 1, which every process has, by the contents of the message.
//!
//! A BPF program that is attached to the group returns the index of a socket in it ([`steering`]). The memory that the processes share
//! ([`Registry`]) says which run of numbers has which socket, and which process listens for connections. A process that changes this
//! attaches a new program, for all. A datagram that arrives at the wrong process nevertheless is passed on ([`passing`](super::passing)).
//!
//! Nobody can compute an index: when a socket closes, the last one of the group takes its place. So each process finds its own index by
//! probes. A probe is a datagram to queue pair 0, which no queue pair has. It names an index, which the program returns, so the process
//! that receives the probe has the socket with this index. An index beyond the last socket leads to any socket. So the probes of a round
//! are sent in ascending order, and the lowest index that arrives counts. A socket that was bound during a round may have missed the lower
//! ones, so rounds that began before do not count.
//!
//! Probes are sent by a process that opens its sockets, by one that has closed them, and by one that received a datagram for another
//! process, as happens after a process was killed.
//!
//! If the processes have named their addresses, each address has a group of sockets, with a program and indices of its own.
//!
//! A guest, a process of another user, has no socket in the group: the kernel lets in those of one user alone. No program names its numbers, so
//! what is for it arrives at any process of the owner, and that passes it on by a link ([`ForGuests`]).

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::living::Living;
use super::messages::Processes;
use super::socket::Socket;
use super::sorting::Sorter;
use super::steering::{self, INDEX, SERVICES};
use super::sys;
use crate::port::for_guests::ForGuests;
use crate::registry::{Registry, RegistryError, RequestKey, Resident, Run};
use crate::sync::lock::lock;
use rustix::net::RecvFlags;

/// Bytes of a probe: the length of a BTH, then the birth number of the registry and the time at which the round began.
const PROBE: usize = 12 + 16 + 8;
/// Probes of a round beyond the last known index: more than the sockets that are opened at the same time.
const BEYOND: u32 = 64;
/// Most probes of a round.
const PROBES: u32 = 2048;
/// The most times that a program is attached in a row. Changes that other processes make during the last one are left for later.
const ATTACHES: usize = 4;
/// Least time between two rounds of a process, and between two programs that changes of listeners or of other processes ask for.
const PAUSE: Duration = Duration::from_millis(100);

/// What a queue knows of the index of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// When the newest round whose probe arrived began; before there was one, when the socket had been bound.
    round: u64,
    index: Option<u32>,
}

impl Place {
    /// The place of a socket that has been bound by this time.
    fn new(bound: u64) -> Self {
        Self { round: bound, index: None }
    }

    /// Takes note of a probe. Returns whether the index has changed.
    fn learn(&mut self, probe: Probe, now: u64) -> bool {
        let is_known = self.round == probe.round && self.index.is_some_and(|index| index <= probe.index);
        // No round begins in the future: a probe that says so would be believed for good.
        if is_known || !(self.round..=now).contains(&probe.round) {
            return false;
        }
        let before = core::mem::replace(self, Self { round: probe.round, index: Some(probe.index) });
        before.index != self.index
    }
}

/// The contents of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Probe {
    birth: u128,
    /// When its round began.
    round: u64,
    index: u32,
}

impl Probe {
    fn write(self) -> [u8; PROBE] {
        let mut bytes = [0; PROBE];
        // An opcode that no packet has.
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

/// The socket groups of a port, and this process's part in them.
#[derive(Debug)]
pub(super) struct Group {
    registry: Arc<Registry>,
    /// The UDP port that all processes share.
    port: u16,
    /// Whether this process is a guest, and has no socket there.
    is_guest: bool,
    /// What arrives here for guests.
    pub guests: Arc<ForGuests>,
    /// The leased runs, and the queue of each. The first run came with the membership and belongs to queue 0.
    leased: Mutex<Vec<(Run, usize)>>,
    /// Whether the device has been given the first run.
    is_first_given: AtomicBool,
    /// One bit for each run, set if this process has leased it.
    own: [AtomicU64; Run::COUNT / 64],
    living: Living,
    /// The address at which each group receives what is sent on this host; the loopback address if the sockets are bound to all addresses.
    reached_at: Vec<IpAddr>,
    /// What is known of each socket, by queue and then by address.
    places: Vec<Vec<Mutex<Place>>>,
    /// A run of another process for which something arrived here, plus one; 0 if there is none.
    strayed: AtomicU64,
    /// Whether something was learned that the attached program does not know.
    is_stale: AtomicBool,
    /// Until then this process sends no round, and attaches no program except for a lease.
    next: Mutex<Instant>,
}

impl Group {
    /// The groups on these addresses of the host, or on all, and this UDP port. The port has this many queues, whose sockets are bound.
    pub fn new(
        registry: Arc<Registry>,
        addrs: &[IpAddr],
        port: u16,
        queues: usize,
        guests: Arc<ForGuests>,
    ) -> Self {
        let first: Vec<(Run, usize)> = registry.runs().first().map(|run| (*run, 0)).into_iter().collect();
        let (own, bound) = ([const { AtomicU64::new(0) }; Run::COUNT / 64], registry.now());
        let reached_at = if addrs.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { addrs.to_vec() };
        let places = || reached_at.iter().map(|_| Mutex::new(Place::new(bound))).collect();
        for (run, _) in &first {
            own[run.index() / 64].fetch_or(1 << (run.index() % 64), Ordering::Relaxed);
        }
        Self {
            is_guest: registry.is_guest(),
            registry,
            port,
            guests,
            leased: Mutex::new(first),
            is_first_given: AtomicBool::new(false),
            own,
            living: Living::new(Instant::now()),
            places: (0..queues).map(|_| places()).collect(),
            reached_at,
            strayed: AtomicU64::new(0),
            is_stale: AtomicBool::new(false),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Finds the indices of the sockets, which have all been bound.
    pub fn enter(&self, sockets: &[Vec<Socket>]) {
        if self.is_guest {
            return;
        }
        let Some(any) = sockets.first() else { return };
        self.attach(any);
        self.probe();
        // The kernel delivers on the loopback interface while it sends.
        for (queue, sockets) in sockets.iter().enumerate() {
            for (of, socket) in sockets.iter().enumerate() {
                self.take_probes(queue, of, socket.fd());
            }
        }
        if self.is_stale.swap(false, Ordering::Relaxed) {
            self.attach(any);
        }
    }

    fn take_probes(&self, queue: usize, of: usize, socket: BorrowedFd<'_>) {
        let mut bytes = [0; PROBE + 1];
        while let Ok((_, len, from)) = rustix::net::recvfrom(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            if let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) {
                self.note(queue, of, from.ip(), &bytes[..len.min(bytes.len())]);
            }
        }
    }

    /// Attaches programs that are made of what the registry says now, through the sockets of a queue.
    fn attach(&self, sockets: &[Socket]) {
        for _ in 0..ATTACHES {
            let keeper = self.registry.keeper(); // first: this may be a change
            let changes = self.registry.changes();
            let services = self.registry.listeners(SERVICES);
            let mut steered = sockets.iter().enumerate();
            if let Err(error) = steered.try_for_each(|(of, socket)| {
                sys::steer(socket.fd(), &mut self.program(of, &services, keeper))
            }) {
                tracing::warn!(
                    "packets may arrive at the wrong process: the system does not steer them ({error})"
                );
                return;
            }
            // Otherwise another process changed something meanwhile, and may have attached its program before this one.
            if self.registry.changes() == changes {
                return;
            }
        }
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Makes the program for the group of an address.
    fn program(&self, of: usize, services: &[(u32, Run)], keeper: Option<Run>) -> Vec<libc::sock_filter> {
        let sockets = self.registry.sockets(of);
        let socket_of =
            |of: Run| sockets.iter().find(|(run, _)| *run == of).map(|(_, index)| (*index).into());
        let services: Vec<_> =
            services.iter().filter_map(|(service, run)| Some((*service, socket_of(*run)?))).collect();
        let numbers: Vec<_> = sockets.iter().map(|(run, index)| (run.numbers(), (*index).into())).collect();
        steering::program_of_group(&numbers, &services, keeper.and_then(socket_of).unwrap_or(0))
    }

    /// Sends a round of probes. A probe that cannot be sent finds nothing; one of a later round may.
    fn probe(&self) {
        let (birth, round) = (self.registry.birth(), self.registry.now());
        for (of, addr) in self.reached_at.iter().enumerate() {
            let Ok(socket) = UdpSocket::bind((*addr, 0)) else { continue };
            for index in 0..probes(self.registry.sockets(of).into_iter().map(|(_, index)| index.into())) {
                let _ = socket.send_to(&Probe { birth, round, index }.write(), (*addr, self.port));
            }
        }
    }

    /// Handles a datagram to queue pair 0 that arrived on a queue, at the socket of an address: takes note of it if it is a probe.
    #[cold]
    pub fn note(&self, queue: usize, of: usize, from: IpAddr, datagram: &[u8]) {
        let Some(probe) = Probe::read(datagram) else { return };
        // Other hosts and other users do not know the birth number.
        if !self.is_here(from) || probe.birth != self.registry.birth() {
            return;
        }
        let Some(place) = self.places.get(queue).and_then(|places| places.get(of)) else { return };
        if lock(place).learn(probe, self.registry.now()) {
            let leased = lock(&self.leased);
            for (run, _) in leased.iter().filter(|(_, leased)| *leased == queue) {
                self.registry.set_socket(*run, of, probe.index as u16);
                self.is_stale.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether this process has leased a run.
    #[inline]
    fn has(&self, run: Run) -> bool {
        self.own[run.index() / 64].load(Ordering::Relaxed) >> (run.index() % 64) & 1 != 0
    }

    /// Repairs the steering if something arrived at the wrong process, or if indices, listeners or the keeper have changed.
    pub fn maintain(&self, sockets: &[Socket]) {
        if self.registry.still_serves() {
            self.is_stale.store(true, Ordering::Relaxed);
        }
        if self.is_guest {
            return;
        }
        if self.strayed.load(Ordering::Relaxed) == 0 && !self.is_stale.load(Ordering::Relaxed) {
            return;
        }
        if !self.may_act() {
            return;
        }
        if let Some(run) = self.strayed.swap(0, Ordering::Relaxed).checked_sub(1)
            && Run::at(run as usize).is_some_and(|run| self.lives(run))
        {
            self.probe();
        }
        if self.is_stale.swap(false, Ordering::Relaxed) {
            self.attach(sockets);
        }
    }

    /// Attaches programs with the new entries that this process has in the registry, now or in [`maintain`](Self::maintain).
    pub fn announce(&self, sockets: &[Socket]) {
        if self.is_guest {
            return;
        }
        if self.may_act() {
            self.attach(sockets);
        } else {
            self.is_stale.store(true, Ordering::Relaxed);
        }
    }

    /// Whether [`PAUSE`] has passed since this last returned true.
    fn may_act(&self) -> bool {
        let (mut next, now) = (lock(&self.next), Instant::now());
        let may = now >= *next;
        if may {
            *next = now + PAUSE;
        }
        may
    }

    /// The registry of the host.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Leases a run for a queue, and attaches programs with it through the queue's sockets.
    pub fn lease(&self, queue: usize, sockets: &[Socket]) -> Result<Run, RegistryError> {
        let mut leased = lock(&self.leased);
        if let Some((first, 0)) = leased.first().filter(|_| queue == 0)
            && !self.is_first_given.swap(true, Ordering::Relaxed)
        {
            return Ok(*first);
        }
        let run = self.registry.lease_run()?;
        leased.push((run, queue));
        self.own[run.index() / 64].fetch_or(1 << (run.index() % 64), Ordering::Relaxed);
        let mut is_known = false;
        for (of, place) in self.places.get(queue).into_iter().flatten().enumerate() {
            if let Some(index) = lock(place).index {
                self.registry.set_socket(run, of, index as u16);
                is_known = true;
            }
        }
        if is_known {
            self.attach(sockets);
        }
        Ok(run)
    }
}

impl Sorter for Group {
    fn birth(&self) -> u128 {
        self.registry.birth()
    }

    fn is_here(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        from.is_loopback() || self.reached_at.contains(&from)
    }

    fn note_stray(&self, run: Run) {
        self.strayed.store(run.index() as u64 + 1, Ordering::Relaxed);
    }
}

impl Processes for Group {
    #[inline]
    fn is_ours(&self, run: Run) -> bool {
        self.has(run)
    }

    fn resident(&self, run: Run) -> Resident {
        let may_be_held = self.registry.may_be_held(run);
        self.living.has(run, Instant::now(), may_be_held, || self.registry.resident(run))
    }

    fn serves(&self) -> bool {
        self.registry.serves()
    }

    fn keeper(&self) -> Option<Run> {
        self.registry.keeper()
    }

    fn listener(&self, service: u32, dst: IpAddr) -> Option<Run> {
        self.registry.listener(service, dst, &|run| self.lives(run))
    }

    fn request(&self, key: RequestKey) -> Option<Run> {
        self.registry.request(key)
    }

    fn note_request(&self, key: RequestKey, run: Run) {
        self.registry.note_request(key, run);
    }
}

/// Number of probes in a round if these indices are known. Any process of the host may have written a wrong index.
fn probes(known: impl Iterator<Item = u32>) -> u32 {
    known.max().map_or(0, |last| last.saturating_add(1)).saturating_add(BEYOND).min(PROBES)
}

impl Drop for Group {
    /// Sends probes: the sockets have left the group, and others have taken their indices.
    fn drop(&mut self) {
        // A forked child has no runs, and a guest no sockets there.
        if !self.is_guest && !self.registry.runs().is_empty() {
            self.probe();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::steering::PROBED;
    use super::*;
    use crate::id::Qpn;

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

    // Goal: a probe to an index beyond the last socket that came here does not count, whenever it comes: neither among those of a later
    // round, nor if the lower ones went elsewhere because this socket was not there yet.
    #[test]
    fn the_lowest_index_of_the_newest_round_counts() {
        let mut place = Place::new(10);
        let mut learn = |round, index| (place.learn(Probe { birth: 0, round, index }, 20), place.index);
        assert_eq!(learn(9, 7), (false, None), "it began before this socket was there");
        assert_eq!(learn(11, 4), (true, Some(4)));
        assert_eq!(learn(11, 70), (false, Some(4)));
        assert_eq!(learn(9, 8), (false, Some(4)));
        assert_eq!(learn(12, 4), (false, Some(4)));
        assert_eq!(learn(13, 3), (true, Some(3)));
        assert_eq!(learn(13, 0), (true, Some(0)));
        assert_eq!(learn(12, 5), (false, Some(0)), "an older round that goes on");
        assert_eq!(learn(21, 5), (false, Some(0)), "none begins later than now");
    }
}
