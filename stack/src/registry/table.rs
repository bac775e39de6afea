//! The memory that the processes of a host share: its layout, and the meaning of its words.
//!
//! Any of them may write any value to any word at any moment. So nothing here decides which process holds a run: the kernel's names do. The
//! memory says which runs were never used, and since when the others rest. A process that changes the mark of a run holds the run's name
//! meanwhile, and changes the mark by a compare-exchange with the mark that it has seen.
//!
//! Words, in the byte order of the machine: a header of [`HEADER`] words (magic, version and size in bytes, the two halves of the birth's
//! number, change counter of packet steering, keeper, UDP port, addresses), then [`RUN`] words for each run (mark, generation, process,
//! beginning, sockets, heartbeat of connection management); the bindings of ports (`bindings`); connection requests (`requests`). All other
//! words are zero, reserved for later.

use super::addresses::Addresses;
use super::layout::{BINDINGS, BYTES, HEADER, REQUESTS, RUN, WORDS_OF_BINDINGS, WORDS_OF_REQUESTS};
use super::run::Run;
use core::sync::atomic::{AtomicU64, Ordering};

/// Version of this layout. Processes of different versions cannot share a registry: see `join`.
pub const VERSION: u32 = 3;
/// `ROCEHOST`, as a dump shows it.
const MAGIC: u64 = u64::from_ne_bytes(*b"ROCEHOST");
/// The word that counts changes of packet steering.
const CHANGES: usize = 4;
/// The word that names the keeper: its run plus one.
const KEEPER: usize = 5;
/// The word with the UDP port on which the processes receive.
const UDP_PORT: usize = 6;
/// The first of the words with the addresses that the processes use.
const ADDRESSES: usize = 7;
/// Bits of a socket index plus one, in the word that has one for each address.
const SOCKET: u32 = u64::BITS / Addresses::MAX as u32;

/// Flag of a mark: the run is held since the time in the other bits. Without the flag, the run rests since that time.
const HELD: u64 = 1 << 63;

/// Shared memory, as 64-bit words.
pub trait Words {
    /// A word, by its index below [`WORDS`](super::layout::WORDS).
    fn word(&self, index: usize) -> &AtomicU64;
}

/// The state of a run, as the memory says. Times are nanoseconds since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It was never leased.
    Never,
    /// Leased at that time; its holder may have ended since.
    Held(u64),
    /// Its holder had ended by that time.
    Ended(u64),
}

impl Mark {
    fn of(word: u64) -> Self {
        match word {
            0 => Self::Never,
            _ if word & HELD != 0 => Self::Held(word & !HELD),
            _ => Self::Ended(word),
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Held(at) => at | HELD,
            Self::Ended(at) => at.clamp(1, HELD - 1),
        }
    }
}

/// Information about a run, as the memory says, for humans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunInfo {
    /// Whether it is held.
    pub mark: Mark,
    /// How often it was leased.
    pub generation: u64,
    /// The PID of the process that leased it last, in that process's own PID namespace.
    pub pid: u64,
    /// When it was leased last.
    pub began: u64,
}

/// The mark of a run, in words that no other process shares.
pub fn mark_in(words: &[AtomicU64], run: Run) -> Mark {
    Mark::of(words[HEADER + RUN * run.index() + Field::Mark as usize].load(Ordering::Relaxed))
}

#[derive(Clone, Copy)]
enum Field {
    Mark,
    Generation,
    Pid,
    Began,
    Sockets,
    Cm,
}

/// The shared memory of a registry.
#[derive(Debug)]
pub struct Table<M>(M);

impl<M: Words> Table<M> {
    /// Initialises the memory of a new registry.
    pub fn born(memory: M, birth: u128) -> Self {
        for (index, value) in Self::header(birth).into_iter().enumerate() {
            memory.word(index).store(value, Ordering::Relaxed);
        }
        Self(memory)
    }

    /// The memory of an existing registry.
    pub fn of(memory: M) -> Self {
        Self(memory)
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.0
    }

    /// Whether the header is still that of this birth. If not, a process has overwritten it.
    pub fn is_sound(&self, birth: u128) -> bool {
        let is = |(index, value)| self.0.word(index).load(Ordering::Relaxed) == value;
        Self::header(birth).into_iter().enumerate().all(is)
    }

    fn header(birth: u128) -> [u64; 4] {
        [MAGIC, u64::from(VERSION) << 32 | BYTES as u64, (birth >> 64) as u64, birth as u64]
    }

    fn field(&self, run: Run, field: Field) -> &AtomicU64 {
        self.0.word(HEADER + RUN * run.index() + field as usize)
    }

    /// The mark of a run.
    pub fn mark(&self, run: Run) -> Mark {
        Mark::of(self.field(run, Field::Mark).load(Ordering::Acquire))
    }

    /// All information about a run.
    pub fn info(&self, run: Run) -> RunInfo {
        let get = |field| self.field(run, field).load(Ordering::Relaxed);
        RunInfo {
            mark: self.mark(run),
            generation: get(Field::Generation),
            pid: get(Field::Pid),
            began: get(Field::Began),
        }
    }

    /// Notes that a run with this mark is free. The caller holds its name, or is its holder and ends its lease.
    pub fn end(&self, run: Run, before: Mark, now: u64) {
        // Fails if a process that breaks the rules has changed the mark.
        let _ = self.change(run, before, Mark::Ended(now));
    }

    /// Notes that the caller, which holds the name, leases a run with this mark. Returns the new mark.
    pub fn lease(&self, run: Run, before: Mark, now: u64, pid: u32) -> Mark {
        let ended = if let Mark::Ended(at) = before { at } else { 0 };
        // Later than the previous mark, so that no two leases have the same mark.
        let began = if ended < now { now } else { ended.saturating_add(1) } & !HELD;
        let mark = Mark::Held(began);
        self.field(run, Field::Pid).store(pid.into(), Ordering::Relaxed);
        self.field(run, Field::Began).store(began, Ordering::Relaxed);
        self.field(run, Field::Sockets).store(0, Ordering::Relaxed);
        self.field(run, Field::Cm).store(0, Ordering::Relaxed);
        self.field(run, Field::Generation).fetch_add(1, Ordering::Relaxed);
        if !self.change(run, before, mark) {
            // A process without the name has changed the mark: the caller has more right to it.
            self.field(run, Field::Mark).store(mark.word(), Ordering::Release);
        }
        mark
    }

    /// Notes the socket that receives packets for a run on the `of`th address: its index in the reuseport group.
    pub fn set_socket(&self, run: Run, of: usize, index: u16) {
        let (shift, mask) = (SOCKET * of as u32, (1 << SOCKET) - 1);
        let socket = u64::from(index.saturating_add(1)) << shift;
        let with = |sockets: u64| Some(sockets & !(mask << shift) | socket);
        let _ = self.field(run, Field::Sockets).fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        self.note_change();
    }

    /// The index of a run's socket on the `of`th address, if known and the memory says that the run is held.
    pub fn socket(&self, run: Run, of: usize) -> Option<u16> {
        let sockets = self.field(run, Field::Sockets).load(Ordering::Relaxed);
        let is_held = matches!(self.mark(run), Mark::Held(_));
        ((sockets >> (SOCKET * of as u32)) as u16).checked_sub(1).filter(|_| is_held)
    }

    /// Notes which addresses the processes use, once: at the birth.
    pub fn set_addresses(&self, addresses: &Addresses) {
        for (at, word) in addresses.words().into_iter().enumerate() {
            self.0.word(ADDRESSES + at).store(word, Ordering::Relaxed);
        }
    }

    /// Which addresses the processes use.
    pub fn addresses(&self) -> Addresses {
        Addresses::of_words(core::array::from_fn(|at| self.0.word(ADDRESSES + at).load(Ordering::Relaxed)))
    }

    /// The UDP port on which the processes receive, once a process has chosen it.
    pub fn udp_port(&self) -> Option<u16> {
        u16::try_from(self.0.word(UDP_PORT).load(Ordering::Acquire)).ok().filter(|port| *port > 0)
    }

    /// Chooses the UDP port on which the processes receive, if `before` is still the current choice. Returns the current choice.
    pub fn choose_udp_port(&self, before: Option<u16>, port: u16) -> Option<u16> {
        let word = |port: Option<u16>| u64::from(port.unwrap_or_default());
        let (before, port) = (word(before), word(Some(port)));
        let _ = self.0.word(UDP_PORT).compare_exchange(before, port, Ordering::AcqRel, Ordering::Acquire);
        self.udp_port()
    }

    /// The change counter of packet steering. A process that sees a change also sees what was noted before it.
    pub fn changes(&self) -> u64 {
        self.0.word(CHANGES).load(Ordering::Acquire)
    }

    /// Counts a change of packet steering.
    pub fn note_change(&self) {
        self.0.word(CHANGES).fetch_add(1, Ordering::AcqRel);
    }

    /// Renews the heartbeat of a run's holder, which serves connection management, at this time; `None` if it no longer serves.
    pub fn set_cm(&self, run: Run, at: Option<u64>) {
        self.field(run, Field::Cm).store(at.map_or(0, |at| at.max(1)), Ordering::Relaxed);
    }

    /// The last heartbeat of a run's holder, if it serves connection management and the memory says that the run is held.
    pub fn cm(&self, run: Run) -> Option<u64> {
        let at = self.field(run, Field::Cm).load(Ordering::Relaxed);
        (at != 0 && matches!(self.mark(run), Mark::Held(_))).then_some(at)
    }

    /// The run of the keeper, if one was ever chosen.
    pub fn keeper(&self) -> Option<Run> {
        Run::at((self.0.word(KEEPER).load(Ordering::Acquire) as usize).checked_sub(1)?)
    }

    /// Makes the holder of a run the keeper in place of `before`. Returns whether no other process was faster.
    pub fn set_keeper(&self, before: Option<Run>, run: Run) -> bool {
        let [before, run] = [before, Some(run)].map(|run| run.map_or(0, |run| run.index() as u64 + 1));
        let word = self.0.word(KEEPER);
        let now = word.load(Ordering::Relaxed);
        // An invalid word names no keeper.
        let is_before = now == before || before == 0 && self.keeper().is_none();
        is_before && word.compare_exchange(now, run, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn word_of_bindings(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < WORDS_OF_BINDINGS);
        self.0.word(BINDINGS + index)
    }

    pub(super) fn word_of_requests(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < WORDS_OF_REQUESTS);
        self.0.word(REQUESTS + index)
    }

    fn change(&self, run: Run, before: Mark, after: Mark) -> bool {
        let (mark, [before, after]) = (self.field(run, Field::Mark), [before, after].map(Mark::word));
        mark.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::layout::WORDS;
    use super::*;

    /// Memory of one process, for tests.
    #[derive(Clone, Debug)]
    pub struct Plain(std::sync::Arc<[AtomicU64]>);

    impl Default for Plain {
        fn default() -> Self {
            Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
        }
    }

    impl Words for Plain {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }
    }

    fn run(index: usize) -> Run {
        Run::all().nth(index).unwrap()
    }

    // Goal: processes that start at the same time agree on a port, and a port that cannot be used any more is replaced once.
    #[test]
    fn the_first_choice_of_a_port_counts() {
        let table = Table::born(Plain::default(), 7);
        assert_eq!(table.udp_port(), None);
        assert_eq!(table.choose_udp_port(None, 4791), Some(4791));
        assert_eq!(table.choose_udp_port(None, 65_504), Some(4791));
        assert_eq!(table.choose_udp_port(Some(4791), 65_504), Some(65_504));
        assert_eq!(table.choose_udp_port(Some(4791), 65_505), Some(65_504));
        assert!(table.is_sound(7));
        // An invalid word is not a port, and stays.
        table.memory().word(UDP_PORT).store(u64::MAX, Ordering::Relaxed);
        assert_eq!((table.udp_port(), table.choose_udp_port(None, 4791)), (None, None));
    }

    #[test]
    fn a_run_is_never_used_then_held_then_rests() {
        let table = Table::born(Plain::default(), 7);
        assert!(table.is_sound(7) && !table.is_sound(8));
        for run in [run(0), run(Run::COUNT - 1)] {
            assert_eq!(table.mark(run), Mark::Never);
            let held = table.lease(run, Mark::Never, 10, 77);
            assert_eq!((held, table.mark(run)), (Mark::Held(10), Mark::Held(10)));
            table.end(run, held, 20);
            assert_eq!(table.info(run), RunInfo { mark: Mark::Ended(20), generation: 1, pid: 77, began: 10 });
        }
        assert!(table.is_sound(7), "no run's words are the header's");
        assert!(Run::all().skip(1).take(Run::COUNT - 2).all(|run| table.mark(run) == Mark::Never));
    }

    #[test]
    fn a_socket_is_known_until_the_run_is_free() {
        let table = Table::born(Plain::default(), 7);
        let held = table.lease(run(3), Mark::Never, 10, 1);
        let socket = |of| table.socket(run(3), of);
        assert_eq!((socket(0), table.changes()), (None, 0));
        table.set_socket(run(3), 0, 0);
        table.set_socket(run(3), 3, 7);
        assert_eq!(([0, 1, 2, 3].map(socket), table.changes()), ([Some(0), None, None, Some(7)], 2));
        table.set_socket(run(3), 3, 6);
        assert_eq!([0, 3].map(socket), [Some(0), Some(6)]);
        table.end(run(3), held, 20);
        assert_eq!([0, 3].map(socket), [None; 2]);
        table.lease(run(3), Mark::Ended(20), 30, 1);
        assert_eq!([0, 3].map(socket), [None; 2]);
        assert!(table.is_sound(7));
    }

    #[test]
    fn who_is_keeper_is_said_once() {
        let table = Table::born(Plain::default(), 7);
        table.lease(run(3), Mark::Never, 10, 1);
        assert_eq!((table.keeper(), table.cm(run(3))), (None, None));
        table.set_cm(run(3), Some(0));
        assert_eq!(table.cm(run(3)), Some(1));
        table.end(run(3), Mark::Held(10), 20);
        assert_eq!(table.cm(run(3)), None);
        assert!(table.set_keeper(None, run(3)) && !table.set_keeper(None, run(4)));
        assert!(table.set_keeper(Some(run(3)), run(0)));
        assert_eq!(table.keeper(), Some(run(0)));
        table.memory().word(KEEPER).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(table.keeper(), None);
        assert!(table.set_keeper(None, run(5)));
        assert_eq!(table.keeper(), Some(run(5)));
        assert!(table.is_sound(7));
    }

    // Goal: a process that read a run's mark before another one leased the run cannot end that lease.
    #[test]
    fn the_end_of_an_earlier_lease_is_not_noted_for_a_later_one() {
        let table = Table::of(Plain::default());
        let first = table.lease(run(3), Mark::Never, 10, 1);
        table.end(run(3), first, 20);
        // At the same time on the clock.
        let second = table.lease(run(3), Mark::Ended(20), 20, 2);
        assert_ne!(first, second);
        table.end(run(3), first, 30);
        assert_eq!(table.mark(run(3)), second);
    }

    #[test]
    fn any_words_are_marks() {
        for word in [0, 1, HELD, HELD - 1, u64::MAX, 0xdead_beef] {
            let plain = Plain::default();
            (0..WORDS).for_each(|index| plain.word(index).store(word, Ordering::Relaxed));
            let table = Table::of(plain);
            let mark = table.mark(run(5));
            for now in [0, 1, HELD - 1, HELD, u64::MAX] {
                let held = table.lease(run(5), mark, now, 1);
                assert!(matches!(held, Mark::Held(_)) && table.mark(run(5)) == held);
                table.end(run(5), held, now);
                assert!(matches!(table.mark(run(5)), Mark::Ended(_)), "{word:x} {now:x}");
            }
        }
    }
}
