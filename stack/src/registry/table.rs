//! The memory that the processes of a host share: its layout, and what its words mean.
//!
//! Any of them may write any word at any moment, also nonsense. So nothing here decides who has a run: the kernel's names do. The
//! memory says which runs were never used, and since when the others rest. Whoever changes the mark of a run holds the run's name
//! meanwhile, and compares and exchanges the mark that it has seen.
//!
//! Words, in the order of the machine: a header of [`HEADER`] words (magic, version and bytes of it all, the two halves of the
//! birth's number, changes of what steers packets, keeper, UDP port, addresses), then [`RUN`] words for each run (mark, generation, process, beginning,
//! sockets, time of connection management); the bindings of ports (`bindings`); requests for connections (`requests`). All others are zero,
//! for what comes later.

use super::addresses::Addresses;
use super::layout::{BINDINGS, BYTES, HEADER, REQUESTS, RUN, WORDS_OF_BINDINGS, WORDS_OF_REQUESTS};
use super::run::Run;
use core::sync::atomic::{AtomicU64, Ordering};

/// Version of this layout. Another one is another registry: see `join`.
pub const VERSION: u32 = 3;
/// `ROCEHOST`, as it is read in a dump.
const MAGIC: u64 = u64::from_ne_bytes(*b"ROCEHOST");
/// The word that counts changes of what steers packets.
const CHANGES: usize = 4;
/// The word that names the keeper: its run, plus one.
const KEEPER: usize = 5;
/// The word that says on which UDP port the processes receive.
const UDP_PORT: usize = 6;
/// Where the words begin that say which addresses the processes have.
const ADDRESSES: usize = 7;
/// Bits of the index of a socket, plus one, in the word that has that of each address.
const SOCKET: u32 = u64::BITS / Addresses::MAX as u32;

/// In a mark: the run is held, since the time of the other bits. Without it: it rests since then.
const HELD: u64 = 1 << 63;

/// Shared memory, as words.
pub trait Words {
    /// A word, by its index below [`WORDS`](super::layout::WORDS).
    fn word(&self, index: usize) -> &AtomicU64;
}

/// What the memory says of a run. Times are nanoseconds since the start of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Nobody ever had it.
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

/// What the memory says of a run, to be read by people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunInfo {
    /// Whether it is held.
    pub mark: Mark,
    /// How often it was leased.
    pub generation: u64,
    /// The process that leased it last, as that process's own PID namespace calls it.
    pub pid: u64,
    /// When that was.
    pub began: u64,
}

/// The mark of a run in words that nobody else has a part in.
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
    /// That of a registry which is born.
    pub fn born(memory: M, birth: u128) -> Self {
        for (index, value) in Self::header(birth).into_iter().enumerate() {
            memory.word(index).store(value, Ordering::Relaxed);
        }
        Self(memory)
    }

    /// One that is there already.
    pub fn of(memory: M) -> Self {
        Self(memory)
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.0
    }

    /// Whether it still begins as that of this birth. If not, some process writes where it should not.
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

    /// What is known of a run.
    pub fn mark(&self, run: Run) -> Mark {
        Mark::of(self.field(run, Field::Mark).load(Ordering::Acquire))
    }

    /// All that is known of a run.
    pub fn info(&self, run: Run) -> RunInfo {
        let get = |field| self.field(run, field).load(Ordering::Relaxed);
        RunInfo {
            mark: self.mark(run),
            generation: get(Field::Generation),
            pid: get(Field::Pid),
            began: get(Field::Began),
        }
    }

    /// Notes that a run with this mark is free. The caller holds its name, or is its holder and ends.
    pub fn end(&self, run: Run, before: Mark, now: u64) {
        // Fails where a process that does not keep to the rules has written to it.
        let _ = self.change(run, before, Mark::Ended(now));
    }

    /// Notes that the caller leases a run with this mark, whose name it holds. Returns the new mark.
    pub fn lease(&self, run: Run, before: Mark, now: u64, pid: u32) -> Mark {
        let ended = if let Mark::Ended(at) = before { at } else { 0 };
        // Later than all marks before it, so that no two leases have the same.
        let began = if ended < now { now } else { ended.saturating_add(1) } & !HELD;
        let mark = Mark::Held(began);
        self.field(run, Field::Pid).store(pid.into(), Ordering::Relaxed);
        self.field(run, Field::Began).store(began, Ordering::Relaxed);
        self.field(run, Field::Sockets).store(0, Ordering::Relaxed);
        self.field(run, Field::Cm).store(0, Ordering::Relaxed);
        self.field(run, Field::Generation).fetch_add(1, Ordering::Relaxed);
        if !self.change(run, before, mark) {
            // Somebody wrote to it who does not hold the name: nobody has more right to it than the caller.
            self.field(run, Field::Mark).store(mark.word(), Ordering::Release);
        }
        mark
    }

    /// Notes at which socket packets to a run on the `of`th address arrive: its index in the group.
    pub fn set_socket(&self, run: Run, of: usize, index: u16) {
        let (shift, mask) = (SOCKET * of as u32, (1 << SOCKET) - 1);
        let socket = u64::from(index.saturating_add(1)) << shift;
        let with = |sockets: u64| Some(sockets & !(mask << shift) | socket);
        let _ = self.field(run, Field::Sockets).fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        self.note_change();
    }

    /// The index of the socket of a run that is said to be held, if one is known.
    pub fn socket(&self, run: Run, of: usize) -> Option<u16> {
        let sockets = self.field(run, Field::Sockets).load(Ordering::Relaxed);
        let is_held = matches!(self.mark(run), Mark::Held(_));
        ((sockets >> (SOCKET * of as u32)) as u16).checked_sub(1).filter(|_| is_held)
    }

    /// Notes which addresses the processes have, once: at the birth.
    pub fn set_addresses(&self, addresses: &Addresses) {
        for (at, word) in addresses.words().into_iter().enumerate() {
            self.0.word(ADDRESSES + at).store(word, Ordering::Relaxed);
        }
    }

    /// Which addresses the processes have.
    pub fn addresses(&self) -> Addresses {
        Addresses::of_words(core::array::from_fn(|at| self.0.word(ADDRESSES + at).load(Ordering::Relaxed)))
    }

    /// The UDP port on which the processes receive, once one of them has chosen it.
    pub fn udp_port(&self) -> Option<u16> {
        u16::try_from(self.0.word(UDP_PORT).load(Ordering::Acquire)).ok().filter(|port| *port > 0)
    }

    /// Chooses the UDP port on which the processes receive, where `before` was chosen; returns the one that is chosen now.
    pub fn choose_udp_port(&self, before: Option<u16>, port: u16) -> Option<u16> {
        let word = |port: Option<u16>| u64::from(port.unwrap_or_default());
        let (before, port) = (word(before), word(Some(port)));
        let _ = self.0.word(UDP_PORT).compare_exchange(before, port, Ordering::AcqRel, Ordering::Acquire);
        self.udp_port()
    }

    /// Changes with every change of what steers packets. What was noted before a change is seen by whoever sees the change.
    pub fn changes(&self) -> u64 {
        self.0.word(CHANGES).load(Ordering::Acquire)
    }

    /// Notes that something has changed that steers packets.
    pub fn note_change(&self) {
        self.0.word(CHANGES).fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the holder of a run serves connection management at this time; `None`: it does not.
    pub fn set_cm(&self, run: Run, at: Option<u64>) {
        self.field(run, Field::Cm).store(at.map_or(0, |at| at.max(1)), Ordering::Relaxed);
    }

    /// When the holder of a run, if it is said to be held, last said that it serves connection management.
    pub fn cm(&self, run: Run) -> Option<u64> {
        let at = self.field(run, Field::Cm).load(Ordering::Relaxed);
        (at != 0 && matches!(self.mark(run), Mark::Held(_))).then_some(at)
    }

    /// The run of the keeper, if there ever was one.
    pub fn keeper(&self) -> Option<Run> {
        Run::at((self.0.word(KEEPER).load(Ordering::Acquire) as usize).checked_sub(1)?)
    }

    /// Makes the holder of a run the keeper in place of another one. Returns whether nobody else was quicker.
    pub fn set_keeper(&self, before: Option<Run>, run: Run) -> bool {
        let [before, run] = [before, Some(run)].map(|run| run.map_or(0, |run| run.index() as u64 + 1));
        let word = self.0.word(KEEPER);
        let now = word.load(Ordering::Relaxed);
        // Nonsense is nobody.
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

    /// Memory of one process.
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

    // Goal: processes that begin at the same time agree on a port, and one that is not there any more is chosen anew, once.
    #[test]
    fn the_first_choice_of_a_port_counts() {
        let table = Table::born(Plain::default(), 7);
        assert_eq!(table.udp_port(), None);
        assert_eq!(table.choose_udp_port(None, 4791), Some(4791));
        assert_eq!(table.choose_udp_port(None, 65_504), Some(4791));
        assert_eq!(table.choose_udp_port(Some(4791), 65_504), Some(65_504));
        assert_eq!(table.choose_udp_port(Some(4791), 65_505), Some(65_504));
        assert!(table.is_sound(7));
        // Nonsense is no port, and stays.
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

    // Goal: who looked at a run before another one leased it does not end that lease.
    #[test]
    fn the_end_of_an_earlier_lease_is_not_noted_for_a_later_one() {
        let table = Table::of(Plain::default());
        let first = table.lease(run(3), Mark::Never, 10, 1);
        table.end(run(3), first, 20);
        // The clock has not moved.
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
