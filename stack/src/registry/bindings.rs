//! The ports to which identifiers of a host's processes are bound: a hash table in the memory that the processes share.
//!
//! It has no lock, as a process that holds a lock may be stopped. A process takes a free entry, writes what it claims, publishes the claim,
//! and then reads all other entries of the bucket. Of two processes with conflicting claims, each publishes before it reads, so at least
//! one sees the other ([`claim`](Bindings::claim)). A process that sees a conflicting claim withdraws its own, and tries again a little
//! later.
//!
//! Entries of processes that have ended are free. The kernel says which have ended; the caller asks it. Any process may write anything
//! here: it can keep a port from others, or let two processes have the same port, and nothing more.
//!
//! An entry is four words: state, service, and the two halves of the address. The state includes the lease under which the entry was taken:
//! the run, and how often the run was leased. So an entry of a dead process is never taken for one of a later holder of the run.

use core::net::IpAddr;
use core::sync::atomic::{Ordering, fence};

use super::binding::{Binding, PACKED};
use super::draw::mix;
use super::layout::{BINDING, BUCKET, BUCKETS, LISTENED};
use super::run::Run;
use super::table::{Mark, Table, Words};

/// A lease of a run: the owner of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    run: Run,
    generation: u32,
}

/// An entry that a process owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    entry: usize,
    word: u64,
}

/// Why a process cannot have a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clash {
    /// Another process has it.
    Taken,
    /// Another process claims it at this moment.
    Busy,
    /// The bucket of the service is full.
    Full,
}

/// What must be free for a binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// No other process may have a binding that clashes.
    Clashing,
    /// No other process may have the port at all.
    Nobody,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Taken: its other words are being written.
    Taken,
    /// Claimed: its owner checks whether it can be bound.
    Claimed,
    Bound,
    /// Bound: its owner checks whether it can listen.
    Asking,
    Listening,
}

impl State {
    const ALL: [Self; 6] =
        [Self::Free, Self::Taken, Self::Claimed, Self::Bound, Self::Asking, Self::Listening];
}

const STATE: u32 = 3;
const RUN: u32 = 9;
const GENERATION: u32 = 24;
const _: () = assert!(Run::COUNT == 1 << RUN);
/// The remaining bits: a nonce that makes the word of each entry unique.
const NONCE: u32 = 64 - STATE - RUN - GENERATION - PACKED;

/// The first word of an entry, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    state: State,
    owner: Owner,
    packed: u64,
    nonce: u64,
}

impl Entry {
    fn word(self) -> u64 {
        let Owner { run, generation } = self.owner;
        let mut word = self.nonce & ((1 << NONCE) - 1);
        word = word << PACKED | self.packed;
        word = word << GENERATION | u64::from(generation) & ((1 << GENERATION) - 1);
        word = word << RUN | run.index() as u64;
        word << STATE | self.state as u64
    }

    /// Decodes a word; `None` if the entry is free or the word is invalid.
    fn of(word: u64) -> Option<Self> {
        let state = *State::ALL.get((word & ((1 << STATE) - 1)) as usize)?;
        if state == State::Free {
            return None;
        }
        let word = word >> STATE;
        let run = Run::at((word & ((1 << RUN) - 1)) as usize)?;
        let word = word >> RUN;
        let generation = (word & ((1 << GENERATION) - 1)) as u32;
        let word = word >> GENERATION;
        let (packed, nonce) = (word & ((1 << PACKED) - 1), word >> PACKED);
        Some(Self { state, owner: Owner { run, generation }, packed, nonce })
    }

    fn with(self, state: State) -> Self {
        Self { state, ..self }
    }
}

/// The binding table in a registry's memory.
#[derive(Debug)]
pub struct Bindings<'a, M>(pub(super) &'a Table<M>);

impl<M: Words> Bindings<'_, M> {
    /// The current lease of a run, as the memory says.
    pub fn owner(&self, run: Run) -> Owner {
        let generation = self.0.info(run).generation as u32 & ((1 << GENERATION) - 1);
        Owner { run, generation }
    }

    /// Tries once to claim a binding. `nonce`: a different number for each call. `lives` returns whether a living process holds a run.
    ///
    /// # Errors
    /// [`Clash`].
    pub fn claim(
        &self,
        owner: Owner,
        binding: &Binding,
        beside: Beside,
        nonce: u64,
        lives: &dyn Fn(Run) -> bool,
    ) -> Result<Claim, Clash> {
        let (packed, addr) = binding.pack();
        let taken = Entry { state: State::Taken, owner, packed, nonce };
        let entry = self.take(binding.service, taken.word(), lives).ok_or(Clash::Full)?;
        // A process that reads the words below as they are written here also sees that the entry is taken.
        fence(Ordering::Release);
        let words = [u64::from(binding.service), (addr >> 64) as u64, addr as u64];
        for (word, value) in words.into_iter().enumerate() {
            self.0.word_of_bindings(at(entry) + 1 + word).store(value, Ordering::Relaxed);
        }
        let claim = Claim { entry, word: taken.word() };
        let claim = self.step(claim, State::Claimed).ok_or(Clash::Busy)?;
        // Pairs with the same fence of another claimer: one of the two sees the claim of the other.
        fence(Ordering::SeqCst);
        let clashes = |other: &Binding| match beside {
            Beside::Clashing => binding.clashes(other),
            Beside::Nobody => binding.service == other.service,
        };
        match self.look(claim, owner, binding.service, lives, clashes) {
            Ok(()) => self.step(claim, State::Bound).ok_or(Clash::Busy),
            Err(clash) => {
                self.release(claim);
                Err(clash)
            }
        }
    }

    /// Makes a binding listen, unless another process has a binding to the same port and address, even with `reuse`.
    ///
    /// # Errors
    /// [`Clash`]; the claim stays bound.
    pub fn listen(&self, claim: Claim, lives: &dyn Fn(Run) -> bool) -> Result<Claim, Clash> {
        let (mine, binding) = self.read(claim.entry).ok_or(Clash::Taken)?;
        let alone = Binding { reuse: false, ..binding };
        let claim = self.step(claim, State::Asking).ok_or(Clash::Taken)?;
        fence(Ordering::SeqCst); // as in `claim`
        match self.look(claim, mine.owner, binding.service, lives, |other| alone.clashes(other)) {
            Ok(()) => {
                let bucket = bucket_of(binding.service);
                let listened = self.0.word_of_bindings(bucket / 64);
                listened.fetch_or(1 << (bucket % 64), Ordering::Relaxed);
                self.step(claim, State::Listening).ok_or(Clash::Taken)
            }
            Err(clash) => {
                self.step(claim, State::Bound);
                Err(clash)
            }
        }
    }

    /// Releases a binding. Does nothing if the entry is no longer the caller's, because another process broke the rules.
    pub fn release(&self, claim: Claim) {
        self.free(claim.entry, claim.word);
    }

    /// The run of the process that listens for a service at an address. The most specific binding counts.
    pub fn listener(&self, service: u32, dst: IpAddr, lives: &dyn Fn(Run) -> bool) -> Option<Run> {
        let (mut best, mut found) = (0, None);
        for (entry, binding) in self.bucket(bucket_of(service)) {
            let serves = binding.serves(dst);
            let listens = entry.state == State::Listening && binding.service == service;
            if listens && serves > best && self.is_of_the_living(entry.owner, lives) {
                (best, found) = (serves, Some(entry.owner.run));
            }
        }
        found
    }

    /// The services for which processes listen, as the memory says, at most `most`, each with the run of one of these processes.
    pub fn listeners(&self, most: usize) -> Vec<(u32, Run)> {
        let mut found: Vec<(u32, Run)> = Vec::new();
        for bucket in (0..BUCKETS).filter(|bucket| self.has_listened(*bucket)) {
            for (entry, binding) in self.bucket(bucket) {
                let is_known = found.iter().any(|(service, _)| *service == binding.service);
                if entry.state == State::Listening && !is_known && self.is_current(entry.owner) {
                    if found.len() == most {
                        return found;
                    }
                    found.push((binding.service, entry.owner.run));
                }
            }
        }
        found
    }

    /// The bindings that listen, as the memory says, at most `most`, each with the run of its process.
    pub fn listening(&self, most: usize) -> Vec<(Binding, Run)> {
        let buckets = (0..BUCKETS).filter(|bucket| self.has_listened(*bucket));
        let listen = buckets
            .flat_map(|bucket| self.bucket(bucket))
            .filter(|(entry, _)| entry.state == State::Listening && self.is_current(entry.owner));
        listen.map(|(entry, binding)| (binding, entry.owner.run)).take(most).collect()
    }

    fn has_listened(&self, bucket: usize) -> bool {
        self.0.word_of_bindings(bucket / 64).load(Ordering::Relaxed) >> (bucket % 64) & 1 != 0
    }

    /// Takes an entry of a service's bucket that is free or belongs to a dead process.
    fn take(&self, service: u32, word: u64, lives: &dyn Fn(Run) -> bool) -> Option<usize> {
        let bucket = bucket_of(service);
        let entries = (0..BUCKET).map(|place| bucket * BUCKET + place);
        let swap = |entry: usize, before| {
            let at = self.0.word_of_bindings(at(entry));
            at.compare_exchange(before, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let load = |entry: usize| self.0.word_of_bindings(at(entry)).load(Ordering::Acquire);
        if let Some(entry) = entries.clone().find(|entry| load(*entry) == 0 && swap(*entry, 0)) {
            return Some(entry);
        }
        entries.into_iter().find(|entry| {
            let before = load(*entry);
            let is_left = Entry::of(before).is_none_or(|entry| !self.is_of_the_living(entry.owner, lives));
            is_left && swap(*entry, before)
        })
    }

    /// Checks that no other process has or claims a binding that clashes. Frees entries of dead processes.
    fn look(
        &self,
        mine: Claim,
        owner: Owner,
        service: u32,
        lives: &dyn Fn(Run) -> bool,
        clashes: impl Fn(&Binding) -> bool,
    ) -> Result<(), Clash> {
        let mut result = Ok(());
        for place in 0..BUCKET {
            let number = bucket_of(service) * BUCKET + place;
            if number == mine.entry {
                continue;
            }
            let word = self.0.word_of_bindings(at(number)).load(Ordering::Acquire);
            // The owner of an entry that is being written reads this claim later.
            let said = |entry: &Entry| entry.state != State::Taken && entry.owner != owner;
            let Some(entry) = Entry::of(word).filter(said) else { continue };
            let binding = self.read(number).filter(|(now, _)| now.word() == word).map(|(_, binding)| binding);
            let Some(binding) = binding else {
                // The entry changes at this moment.
                result = Err(Clash::Busy);
                continue;
            };
            if !clashes(&binding) {
                continue;
            }
            if !self.is_of_the_living(entry.owner, lives) {
                self.free(number, word);
                continue;
            }
            match entry.state {
                State::Claimed => result = Err(Clash::Busy),
                // Two processes that want to listen on the same port may both have to give way; one can have it later.
                State::Asking if self.is_asking(mine) => result = Err(Clash::Busy),
                _ => return Err(Clash::Taken),
            }
        }
        result
    }

    fn is_asking(&self, claim: Claim) -> bool {
        Entry::of(claim.word).is_some_and(|entry| entry.state == State::Asking)
    }

    /// The entries of a bucket.
    fn bucket(&self, bucket: usize) -> impl Iterator<Item = (Entry, Binding)> {
        (0..BUCKET).filter_map(move |place| self.read(bucket * BUCKET + place))
    }

    /// Reads a consistent snapshot of an entry, as a seqlock does; `None` if it is free or changes.
    fn read(&self, entry: usize) -> Option<(Entry, Binding)> {
        let word = |index| self.0.word_of_bindings(at(entry) + index);
        let before = word(0).load(Ordering::Acquire);
        let [service, high, low] = [1, 2, 3].map(|index| word(index).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if word(0).load(Ordering::Relaxed) != before {
            return None;
        }
        let of = Entry::of(before)?;
        let addr = u128::from(high) << 64 | u128::from(low);
        Some((of, Binding::unpack(service as u32, of.packed, addr)))
    }

    /// Whether the lease of an entry is the latest lease of its run, and still held, as the memory says.
    fn is_current(&self, owner: Owner) -> bool {
        self.owner(owner.run) == owner && matches!(self.0.mark(owner.run), Mark::Held(_))
    }

    fn is_of_the_living(&self, owner: Owner, lives: &dyn Fn(Run) -> bool) -> bool {
        self.is_current(owner) && lives(owner.run)
    }

    /// Changes the state of an entry of the caller; `None` if the entry is not the caller's any more.
    fn step(&self, claim: Claim, state: State) -> Option<Claim> {
        let word = Entry::of(claim.word)?.with(state).word();
        let at = self.0.word_of_bindings(at(claim.entry));
        let moved = at.compare_exchange(claim.word, word, Ordering::AcqRel, Ordering::Relaxed);
        moved.ok().map(|_| Claim { word, ..claim })
    }

    fn free(&self, entry: usize, word: u64) {
        let at = self.0.word_of_bindings(at(entry));
        // Fails if another process was faster.
        let _ = at.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Index of the first word of an entry.
fn at(entry: usize) -> usize {
    LISTENED + BINDING * entry
}

/// The bucket of a service. Consecutive ports of a port space are in consecutive buckets.
fn bucket_of(service: u32) -> usize {
    (service as usize & 0xffff).wrapping_add(mix(u64::from(service >> 16)) as usize) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::super::layout::WORDS_OF_BINDINGS;
    use super::super::table::tests::Plain;
    use super::*;
    use std::sync::atomic::AtomicU64;

    const PORT: u32 = 0x0106_1b58;

    fn run(index: usize) -> Run {
        Run::at(index).unwrap()
    }

    fn v4(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn binding(addr: Option<IpAddr>, reuse: bool) -> Binding {
        Binding { service: PORT, addr, family: super::super::binding::Family::V4, reuse }
    }

    /// Memory in which these processes have joined, each with the run of its number.
    fn joined(processes: &[usize]) -> Table<Plain> {
        let table = Table::born(Plain::default(), 7);
        for process in processes {
            table.lease(run(*process), table.mark(run(*process)), 10, 1);
        }
        table
    }

    fn claim(table: &Table<Plain>, process: usize, binding: &Binding) -> Result<Claim, Clash> {
        static NONCE: AtomicU64 = AtomicU64::new(1);
        let bindings = Bindings(table);
        let owner = bindings.owner(run(process));
        let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
        bindings.claim(owner, binding, Beside::Clashing, nonce, &|_| true)
    }

    #[test]
    fn words_of_entries_are_read_as_they_were_written() {
        for state in State::ALL {
            let owner = Owner { run: run(0x1a5), generation: 0xbc_def0 };
            let entry = Entry { state, owner, packed: 0xd, nonce: 0x12_3456 };
            assert_eq!(Entry::of(entry.word()), (state != State::Free).then_some(entry));
        }
        for word in [0, 6, 7, u64::MAX] {
            assert_eq!(Entry::of(word), None, "{word:x}");
        }
    }

    // Goal: the rules for sharing a port between processes are those between the identifiers of one process.
    #[test]
    fn a_port_has_one_process_for_each_address() {
        let table = joined(&[1, 2, 3]);
        let (first, any) = (binding(v4(1), false), binding(None, false));
        let held = claim(&table, 1, &first).unwrap();
        for clashing in [first, any, binding(v4(1), true)] {
            assert_eq!(claim(&table, 2, &clashing), Err(Clash::Taken));
        }
        let other = claim(&table, 2, &binding(v4(2), false)).unwrap();
        claim(&table, 2, &Binding { service: PORT + 1, ..any }).unwrap();
        Bindings(&table).release(held);
        assert_eq!(claim(&table, 3, &any), Err(Clash::Taken), "the other address");
        Bindings(&table).release(other);
        let held = claim(&table, 3, &any).unwrap();
        assert_eq!(claim(&table, 1, &first), Err(Clash::Taken));
        Bindings(&table).release(held);
        Bindings(&table).release(held);
        assert!(table.is_sound(7));
    }

    #[test]
    fn several_may_bind_and_one_alone_may_listen() {
        let table = joined(&[1, 2]);
        let bindings = Bindings(&table);
        let shared = binding(None, true);
        let one = claim(&table, 1, &shared).unwrap();
        let two = claim(&table, 2, &shared).unwrap();
        assert_eq!(bindings.listen(one, &|_| true), Err(Clash::Taken));
        assert_eq!(bindings.listener(PORT, v4(1).unwrap(), &|_| true), None);
        bindings.release(two);
        let one = bindings.listen(one, &|_| true).unwrap();
        assert_eq!(bindings.listener(PORT, v4(1).unwrap(), &|_| true), Some(run(1)));
        assert_eq!(bindings.listeners(9), [(PORT, run(1))]);
        bindings.release(one);
        assert_eq!(bindings.listener(PORT, v4(1).unwrap(), &|_| true), None);
        assert_eq!(bindings.listeners(9), []);
    }

    #[test]
    fn the_listener_at_the_address_comes_before_that_at_all() {
        let table = joined(&[1, 2]);
        let bindings = Bindings(&table);
        for (process, addr) in [(1, v4(1)), (2, v4(2))] {
            let claim = claim(&table, process, &binding(addr, false)).unwrap();
            bindings.listen(claim, &|_| true).unwrap();
        }
        let found = |last, lives: &dyn Fn(Run) -> bool| bindings.listener(PORT, v4(last).unwrap(), lives);
        assert_eq!([1, 2, 3].map(|last| found(last, &|_| true)), [Some(run(1)), Some(run(2)), None]);
        assert_eq!(found(1, &|of| of != run(1)), None, "the kernel says that it has ended");
        assert_eq!(bindings.listeners(9).len(), 1, "one of them");
        assert_eq!(bindings.listeners(0), []);
        let all = bindings.listening(9);
        assert_eq!(all, [(binding(v4(1), false), run(1)), (binding(v4(2), false), run(2))], "both");
        assert_eq!(bindings.listening(1), all[..1]);
    }

    #[test]
    fn what_the_dead_had_is_free() {
        let table = joined(&[1, 2]);
        let mark = table.mark(run(1));
        let first = claim(&table, 1, &binding(None, false)).unwrap();
        let bindings = Bindings(&table);
        bindings.listen(first, &|_| true).unwrap();
        // The kernel says that it has ended before that is noted in memory.
        let owner = bindings.owner(run(2));
        let held = bindings.claim(owner, &binding(None, false), Beside::Nobody, 77, &|of| of != run(1));
        bindings.release(held.unwrap());
        // The end is noted; then another process gets the run.
        claim(&table, 1, &binding(None, false)).unwrap();
        table.end(run(1), mark, 20);
        bindings.release(claim(&table, 2, &binding(None, false)).unwrap());
        table.lease(run(1), table.mark(run(1)), 30, 1);
        claim(&table, 2, &binding(None, false)).unwrap();
        assert_eq!(claim(&table, 1, &binding(None, false)), Err(Clash::Taken));
    }

    #[test]
    fn a_full_bucket_has_room_where_one_has_died() {
        let table = joined(&[1, 2]);
        // Ports of one port space in the same bucket.
        let same = |n: u32| Binding { service: PORT + n * BUCKETS as u32, ..binding(None, false) };
        for n in 0..BUCKET as u32 {
            claim(&table, 1 + n as usize % 2, &same(n)).unwrap();
        }
        assert_eq!(claim(&table, 1, &same(20)), Err(Clash::Full));
        table.end(run(2), table.mark(run(2)), 20);
        for n in 0..BUCKET as u32 / 2 {
            claim(&table, 1, &same(17 + n)).unwrap();
        }
        assert_eq!(claim(&table, 1, &same(26)), Err(Clash::Full));
    }

    // Goal: no contents of the memory make a call loop forever or panic.
    #[test]
    fn any_words_are_entries() {
        for word in [1, 2, 3, 4, 5, 6, 7, u64::MAX, 0xdead_beef] {
            let table = joined(&[1]);
            (0..WORDS_OF_BINDINGS).for_each(|n| table.word_of_bindings(n).store(word, Ordering::Relaxed));
            let bindings = Bindings(&table);
            let made = claim(&table, 1, &binding(None, false));
            if let Ok(made) = made {
                let _ = bindings.listen(made, &|_| true);
                bindings.release(made);
            }
            bindings.listener(PORT, v4(1).unwrap(), &|_| true);
            bindings.listeners(9);
            assert!(bindings.listening(9).len() <= 9);
        }
    }

    // Goal: a process that checks during another process's check sees that process's claim, and gives way.
    #[test]
    fn a_claim_is_seen_before_it_is_granted() {
        let table = joined(&[1, 2, 3]);
        claim(&table, 3, &binding(None, false)).unwrap();
        let bindings = Bindings(&table);
        let meanwhile = std::cell::Cell::new(None);
        // Called in the middle of the first process's check: the holder is dead.
        let lives = |of: Run| {
            meanwhile.set(Some(bindings.claim(
                bindings.owner(run(2)),
                &binding(None, false),
                Beside::Clashing,
                7,
                &|of| of != run(3),
            )));
            of != run(3)
        };
        let first =
            bindings.claim(bindings.owner(run(1)), &binding(None, false), Beside::Clashing, 6, &lives);
        assert_eq!(meanwhile.get(), Some(Err(Clash::Busy)));
        assert!(first.is_ok());
    }

    // Goal: of threads that claim one port at the same time, no two ever have it together, and each gets it in the end.
    #[test]
    fn those_who_claim_at_once_never_both_have_it() {
        let rounds = if cfg!(miri) { 20 } else { 3000 };
        let table = joined(&[1, 2, 3]);
        let (inside, gone) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for process in 1..=3 {
                let (table, inside, gone) = (&table, &inside, &gone);
                scope.spawn(move || {
                    let mut had = 0;
                    while had < rounds {
                        let Ok(claim) = claim(table, process, &binding(None, false)) else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                        had += 1;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Bindings(table).release(claim);
                    }
                    gone.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(gone.into_inner(), 3);
    }
}
