//! The sockets of all processes of a host on one UDP port, 4791 if it can be had: one SO_REUSEPORT group, of which the kernel chooses a
//! socket by the destination queue pair, and for queue pair 1, which all have, by what is in its message.
//!
//! A program that is attached to the group returns the index of a socket in it ([`steering`]). Which run of numbers has which socket, and
//! who listens for connections, stands in the memory that the processes share ([`Registry`]); whoever changes that attaches the program
//! anew, for all. What arrives at the wrong process all the same is passed on ([`passing`](super::passing)).
//!
//! Nobody can compute an index: when a socket closes, the last one of the group takes its place. So each process finds its own. A probe is
//! a datagram to queue pair 0, which no queue pair has; for it the program returns the index that the datagram names, and the process that
//! receives it knows that this is its own. An index behind the last one leads anywhere; so the lowest index of a round counts, and those of
//! a round are sent in ascending order. A socket that was bound while a round was under way has missed the lower ones: rounds are known by
//! the time at which they began, and those from before do not count.
//!
//! Probes are sent by a process that opens its sockets, by one that has closed them, and by one that received what is another process's:
//! where a process was killed.
//!
//! Where the processes have named addresses alone, each address has a group of sockets, with a program and indices of its own.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::living::Living;
use super::messages::{self, Addressee, Processes, Whose};
use super::packet::IpFields;
use super::passing::Passed;
use super::socket::Socket;
use super::steering::{self, INDEX, SERVICES};
use super::sys;
use crate::id::Qpn;
use crate::registry::{Registry, RegistryError, RequestKey, Run};
use crate::sync::lock::lock;
use rustix::net::RecvFlags;

/// Bytes of a probe: in front as long as a BTH, then the number of the registry's birth and that of the round.
const PROBE: usize = 12 + 16 + 8;
/// Probes of a round beyond the last index that is known: more sockets than open at the same time.
const BEYOND: u32 = 64;
/// Most probes of a round.
const PROBES: u32 = 2048;
/// How often a program is attached at most before others' changes are left for later.
const ATTACHES: usize = 4;
/// Least time between two rounds of a process, and between two programs that listeners and others' changes ask for.
const PAUSE: Duration = Duration::from_millis(100);

/// What a queue knows of the index of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// When the newest round began that reached it; before there was one, when its socket had been bound.
    round: u64,
    index: Option<u32>,
}

impl Place {
    /// That of a socket which has been bound by this time.
    fn new(bound: u64) -> Self {
        Self { round: bound, index: None }
    }

    /// Whether a probe says something new.
    fn learn(&mut self, probe: Probe, now: u64) -> bool {
        let is_known = self.round == probe.round && self.index.is_some_and(|index| index <= probe.index);
        // Later than now begins none: who says so would be believed for good.
        if is_known || !(self.round..=now).contains(&probe.round) {
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
    /// When its round began.
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
    /// The UDP port of all.
    port: u16,
    /// The runs that were leased, and the queue of each. The first one, which came with the membership, is queue 0's.
    leased: Mutex<Vec<(Run, usize)>>,
    /// Whether the device has the first one.
    is_first_given: AtomicBool,
    /// A bit for each of them.
    own: [AtomicU64; Run::COUNT / 64],
    living: Living,
    /// Where a group receives what is sent on this host, one for each address; of sockets of all addresses it is the loopback one.
    reached_at: Vec<IpAddr>,
    /// Of each queue, by address.
    places: Vec<Vec<Mutex<Place>>>,
    /// A run of which something arrived here, plus one; it is another process's.
    strayed: AtomicU64,
    /// Something was learned that the program does not know.
    is_stale: AtomicBool,
    /// Before this, no round, and no program but for a lease.
    next: Mutex<Instant>,
}

impl Group {
    /// The groups of this host on these addresses, or on all, and a UDP port, for a port with so many queues, whose sockets are bound.
    pub fn new(registry: Arc<Registry>, addrs: &[IpAddr], port: u16, queues: usize) -> Self {
        let first: Vec<(Run, usize)> = registry.runs().first().map(|run| (*run, 0)).into_iter().collect();
        let (own, bound) = ([const { AtomicU64::new(0) }; Run::COUNT / 64], registry.now());
        let reached_at = if addrs.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { addrs.to_vec() };
        let places = || reached_at.iter().map(|_| Mutex::new(Place::new(bound))).collect();
        for (run, _) in &first {
            own[run.index() / 64].fetch_or(1 << (run.index() % 64), Ordering::Relaxed);
        }
        Self {
            registry,
            port,
            leased: Mutex::new(first),
            is_first_given: AtomicBool::new(false),
            own,
            living: Living::new(),
            places: (0..queues).map(|_| places()).collect(),
            reached_at,
            strayed: AtomicU64::new(0),
            is_stale: AtomicBool::new(false),
            next: Mutex::new(Instant::now()),
        }
    }

    /// The sockets of each queue have joined: finds their indices.
    pub fn enter(&self, sockets: &[Vec<Socket>]) {
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

    /// Attaches the programs that know what the memory says now, by the sockets of a queue.
    fn attach(&self, sockets: &[Socket]) {
        for _ in 0..ATTACHES {
            let keeper = self.registry.keeper(); // first: it may be a change
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
            // Else another process changed something meanwhile, and may have attached its program before this one.
            if self.registry.changes() == changes {
                return;
            }
        }
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// The program of the group of an address.
    fn program(&self, of: usize, services: &[(u32, Run)], keeper: Option<Run>) -> Vec<libc::sock_filter> {
        let sockets = self.registry.sockets(of);
        let socket_of =
            |of: Run| sockets.iter().find(|(run, _)| *run == of).map(|(_, index)| (*index).into());
        let services: Vec<_> =
            services.iter().filter_map(|(service, run)| Some((*service, socket_of(*run)?))).collect();
        let numbers: Vec<_> = sockets.iter().map(|(run, index)| (run.numbers(), (*index).into())).collect();
        steering::program_of_group(&numbers, &services, keeper.and_then(socket_of).unwrap_or(0))
    }

    /// Sends a round of probes. What cannot be sent is not found; later rounds may.
    fn probe(&self) {
        let (birth, round) = (self.registry.birth(), self.registry.now());
        for (of, addr) in self.reached_at.iter().enumerate() {
            let Ok(socket) = UdpSocket::bind((*addr, 0)) else { continue };
            for index in 0..probes(self.registry.sockets(of).into_iter().map(|(_, index)| index.into())) {
                let _ = socket.send_to(&Probe { birth, round, index }.write(), (*addr, self.port));
            }
        }
    }

    /// Takes a datagram to queue pair 0 that arrived at the socket of an address, on a queue.
    #[cold]
    pub fn note(&self, queue: usize, of: usize, from: IpAddr, datagram: &[u8]) {
        let Some(probe) = Probe::read(datagram) else { return };
        // Whoever is not of this host, or not of this user, does not know the number.
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

    /// Whether an address is that of a process of this host, where it comes from by UDP.
    fn is_here(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        from.is_loopback() || self.reached_at.contains(&from)
    }

    /// Whose a datagram for a queue pair number is that arrived here.
    #[inline]
    pub fn whose(&self, qpn: Qpn, ip: &IpFields, datagram: &[u8]) -> Whose {
        if qpn == Qpn::GSI {
            return self.whose_message(ip, datagram);
        }
        if qpn.block().is_reserved() || self.has(Run::of(qpn.block())) {
            return Whose::Ours;
        }
        self.whose_stray(Run::of(qpn.block()))
    }

    #[cold]
    fn whose_message(&self, ip: &IpFields, datagram: &[u8]) -> Whose {
        let addressee = messages::addressee(self.registry.birth(), ip, datagram);
        let whose = messages::whose(addressee, self);
        // The kernel would have chosen its process.
        if let (Addressee::Process(run), Whose::Other(to)) = (addressee, whose)
            && run == to
        {
            self.note_stray(run);
        }
        whose
    }

    #[cold]
    fn whose_stray(&self, run: Run) -> Whose {
        self.note_stray(run);
        if self.lives(run) { Whose::Other(run) } else { Whose::Nobody }
    }

    fn note_stray(&self, run: Run) {
        self.strayed.store(run.index() as u64 + 1, Ordering::Relaxed);
    }

    /// Whether a run is this process's.
    #[inline]
    fn has(&self, run: Run) -> bool {
        self.own[run.index() / 64].load(Ordering::Relaxed) >> (run.index() % 64) & 1 != 0
    }

    /// Whether a datagram that says so was passed on by a process of this host: nobody else can send from there, and knows the number.
    pub fn has_passed(&self, from: IpAddr, passed: &Passed) -> bool {
        let is_true = self.is_here(from) && passed.birth == self.registry.birth();
        let to = Run::of(passed.to.block());
        if is_true && !self.has(to) {
            // The kernel does not know where that process is.
            self.note_stray(to);
        }
        is_true
    }

    /// What is in front of a datagram that goes on to the process that has a run.
    pub fn passed(&self, run: Run, hops: u8, ip: IpFields, port: u16) -> Passed {
        Passed { birth: self.registry.birth(), to: *run.numbers().start(), hops, ip, port }
    }

    /// Repairs the steering if something arrived at the wrong process, or if indices, listeners or the keeper have changed.
    pub fn maintain(&self, sockets: &[Socket]) {
        if self.registry.still_serves() {
            self.is_stale.store(true, Ordering::Relaxed);
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

    /// The memory says something new of this process.
    pub fn announce(&self, sockets: &[Socket]) {
        if self.may_act() {
            self.attach(sockets);
        } else {
            self.is_stale.store(true, Ordering::Relaxed);
        }
    }

    /// Whether some time has passed since it said so last.
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

    /// Leases a run for a queue; attaches the programs by its sockets.
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

impl Processes for Group {
    fn is_ours(&self, run: Run) -> bool {
        self.has(run)
    }

    fn lives(&self, run: Run) -> bool {
        self.living.has(run, Instant::now(), self.registry.may_be_held(run), || self.registry.lives(run))
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

    // Goal: a probe that was to go behind the last socket and came here does not count, whenever it came: not among those of a later round,
    // and not where the lower ones went elsewhere, before this socket was there.
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
