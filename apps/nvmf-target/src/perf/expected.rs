//! Knows which data a read may return, and checks the reads of a run with `--verify`.
//!
//! Each command covers one unit, and each write makes a new generation of its unit. Usually, a unit that is not being written has one
//! generation, and a read must return exactly that. While a write is under way, a read may return the old data, the new data, or parts of
//! both. If two writes were under way at the same time, the unit may hold either of them or parts of both afterwards; the first read after
//! both decides, and later reads must return the same. A write that was sent after the response to another write replaces that other write
//! for good.
//!
//! Time is counted in calls of this type: the target executes a command at some moment between its sending and its response.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::Hasher;

use super::content::{Content, Found, Generation, SECTOR, Sector};

/// The number of a unit. A unit is the bytes that one command covers; unit `n` begins at `n` times the length of a unit.
pub type Unit = u64;
/// A moment of the run: the number of calls so far.
pub type Moment = u64;

/// A write whose data, or parts of them, a read may still return.
#[derive(Clone, Copy, Debug)]
struct Write {
    generation: Generation,
    began: Moment,
    ended: Option<Moment>,
    /// When it became certain that a later write has replaced it.
    replaced: Option<Moment>,
}

/// A unit with commands under way, or that may hold data of more than one write.
#[derive(Debug, Default)]
struct Open {
    writes: Vec<Write>,
    /// When the reads that are under way were sent.
    reads: Vec<Moment>,
    /// A hash of the bytes that a read returned while no write was under way.
    seen: Option<u64>,
}

/// A read that returned data that it may not return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The first byte of the unit that is wrong.
    pub at: usize,
    /// What was found in the sector of that byte.
    pub found: Found,
    /// The latest write whose data the unit may hold.
    pub wanted: Generation,
}

/// Makes the data of the writes of this run.
#[derive(Clone, Copy, Debug)]
struct Contents {
    /// A number that identifies the run.
    run: u64,
    /// Length of a unit in bytes.
    size: usize,
}

/// The data that reads may return, for all units.
#[derive(Debug)]
pub struct Expected {
    contents: Contents,
    moment: Moment,
    /// The number of writes so far.
    generations: Generation,
    /// The generation of each unit that is not in `open`.
    settled: Vec<Generation>,
    open: HashMap<Unit, Open>,
}

impl Expected {
    /// Makes `units` units of `size` bytes that have not been written. `run` identifies the run.
    ///
    /// # Errors
    /// If there is not enough memory for them: eight bytes each.
    pub fn new(run: u64, units: u64, size: usize) -> Result<Self, String> {
        let mut settled = Vec::new();
        let reserved = usize::try_from(units).ok().map(|units| settled.try_reserve_exact(units));
        let Some(Ok(())) = reserved else {
            return Err(format!(
                "there is no memory to remember {units} blocks of {size} bytes; take fewer by --span"
            ));
        };
        settled.resize(units as usize, 0);
        let contents = Contents { run, size };
        Ok(Self { contents, moment: 0, generations: 0, settled, open: HashMap::new() })
    }
    /// The data that the next write must have, if it is to this unit.
    pub fn next_content(&self, unit: Unit) -> Content {
        self.contents.of(unit, self.generations + 1)
    }
    fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }
    fn open(&mut self, unit: Unit) -> &mut Open {
        let generation = self.settled[unit as usize];
        self.open.entry(unit).or_insert_with(|| Open {
            writes: vec![Write { generation, began: 0, ended: Some(0), replaced: None }],
            ..Open::default()
        })
    }

    /// Notes that a write was sent, with the [next content](Self::next_content) of its unit. Returns its generation.
    pub fn write_begins(&mut self, unit: Unit) -> Generation {
        let began = self.tick();
        self.generations += 1;
        let generation = self.generations;
        let open = self.open(unit);
        open.writes.push(Write { generation, began, ended: None, replaced: None });
        open.seen = None;
        generation
    }
    /// Notes that a write was answered: the unit holds its data from now on.
    pub fn write_ends(&mut self, unit: Unit, generation: Generation) {
        let now = self.tick();
        let Some(open) = self.open.get_mut(&unit) else { return };
        let Some(write) = open.writes.iter_mut().find(|write| write.generation == generation) else { return };
        write.ended = Some(now);
        let began = write.began;
        for other in &mut open.writes {
            if other.replaced.is_none() && other.ended.is_some_and(|ended| ended < began) {
                other.replaced = Some(now);
            }
        }
        self.settle(unit);
    }
    /// Notes that a read was sent. Returns the moment.
    pub fn read_begins(&mut self, unit: Unit) -> Moment {
        let now = self.tick();
        self.open(unit).reads.push(now);
        now
    }
    /// Checks the bytes of a read that was answered. `began` is what [`read_begins`](Self::read_begins) returned.
    ///
    /// # Errors
    /// Which bytes are wrong, if the read may not return these.
    pub fn read_ends(&mut self, unit: Unit, began: Moment, bytes: &[u8]) -> Result<(), Wrong> {
        self.tick();
        let Some(open) = self.open.get_mut(&unit) else { return Ok(()) };
        let judged = open.judge(self.contents, unit, began, bytes);
        if let Some(at) = open.reads.iter().position(|read| *read == began) {
            open.reads.swap_remove(at);
        }
        self.settle(unit);
        judged
    }
    /// Forgets writes whose data no read can return any more.
    fn settle(&mut self, unit: Unit) {
        let Entry::Occupied(mut entry) = self.open.entry(unit) else { return };
        let open = entry.get_mut();
        let oldest = open.reads.iter().copied().min().unwrap_or(Moment::MAX);
        open.writes.retain(|write| write.replaced.is_none_or(|replaced| replaced > oldest));
        if open.reads.is_empty()
            && let [Write { generation, ended: Some(_), .. }] = open.writes[..]
        {
            self.settled[unit as usize] = generation;
            entry.remove();
        }
    }
}

impl Open {
    /// Checks the bytes of a read that was sent at `began`.
    fn judge(&mut self, contents: Contents, unit: Unit, began: Moment, bytes: &[u8]) -> Result<(), Wrong> {
        let may = |write: &&Write| write.replaced.is_none_or(|replaced| replaced > began);
        let legal: Vec<Write> = self.writes.iter().filter(may).copied().collect();
        // Whether no write was under way during the read. Then the next such read must return the same.
        let quiet = legal.iter().all(|write| write.ended.is_some_and(|ended| ended < began));
        let at = match contents.written_by(unit, &legal, bytes) {
            Err(at) => at,
            Ok(whole) if quiet => {
                let seen = hash(bytes);
                if let Some(generation) = whole.filter(|_| self.seen.is_none()) {
                    // This read decides: the unit holds all data of that write.
                    self.writes.retain(|write| write.generation == generation || write.replaced.is_some());
                    return Ok(());
                }
                if *self.seen.get_or_insert(seen) == seen {
                    return Ok(());
                }
                0
            }
            Ok(_) => return Ok(()),
        };
        let wanted = legal.iter().map(|write| write.generation).max().unwrap_or(0);
        let sector = at / SECTOR;
        let first = contents.of(unit, wanted).first;
        let found =
            Found::of(&bytes[sector * SECTOR..][..SECTOR], Sector { at: first.at + sector as u64, ..first });
        Err(Wrong { at, found, wanted })
    }
}

impl Contents {
    fn of(self, unit: Unit, generation: Generation) -> Content {
        let at = unit * (self.size / SECTOR) as u64;
        Content { first: Sector { run: self.run, at, generation } }
    }
    /// Which of the `legal` writes wrote all the bytes. `None`: several of them did, or the unit may be unwritten, so that the bytes may be
    /// anything. The error is the index of the first byte that no legal write has written.
    fn written_by(self, unit: Unit, legal: &[Write], bytes: &[u8]) -> Result<Option<Generation>, usize> {
        let mut first = 0;
        for write in legal.iter().rev() {
            match self.of(unit, write.generation).first_wrong(bytes) {
                None if write.generation > 0 => return Ok(Some(write.generation)),
                // The unit may be unwritten: it may hold anything.
                _ if write.generation == 0 => return Ok(None),
                at => first = first.max(at.unwrap_or(0)),
            }
        }
        if legal.len() < 2 {
            return Err(first);
        }
        let mut parts = vec![vec![0; bytes.len()]; legal.len()];
        for (part, write) in parts.iter_mut().zip(legal) {
            self.of(unit, write.generation).fill(part);
        }
        let of_one = |at: usize| parts.iter().any(|part| part[at] == bytes[at]);
        (0..bytes.len()).find(|&at| !of_one(at)).map_or(Ok(None), Err)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4 * SECTOR;

    /// The expected data, and the bytes of each write of one unit.
    struct Case {
        expected: Expected,
        contents: Vec<Vec<u8>>,
    }

    impl Case {
        fn new() -> Self {
            Self { expected: Expected::new(9, 8, SIZE).unwrap(), contents: vec![vec![0; SIZE]] }
        }
        fn begin(&mut self) -> Generation {
            let mut bytes = vec![0; SIZE];
            self.expected.next_content(3).fill(&mut bytes);
            self.contents.push(bytes);
            self.expected.write_begins(3)
        }
        fn end(&mut self, generation: Generation) {
            self.expected.write_ends(3, generation);
        }
        fn write(&mut self) -> Generation {
            let generation = self.begin();
            self.end(generation);
            generation
        }
        fn read(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
            let began = self.expected.read_begins(3);
            self.expected.read_ends(3, began, bytes)
        }
        fn gives(&mut self, generation: Generation) -> Result<(), Wrong> {
            self.read(&self.of(generation))
        }
        fn of(&self, generation: Generation) -> Vec<u8> {
            self.contents[generation as usize].clone()
        }
        /// The first bytes of one buffer, followed by the rest of another.
        fn mix(&self, one: Generation, bytes: usize, other: Generation) -> Vec<u8> {
            [&self.of(one)[..bytes], &self.of(other)[bytes..]].concat()
        }
    }

    #[test]
    fn a_unit_that_nobody_writes_holds_exactly_the_last_write() {
        let mut case = Case::new();
        let (one, two) = (case.write(), case.write());
        assert_eq!(case.gives(two), Ok(()));
        let stale = Wrong { at: 16, found: Found::Write(one), wanted: two };
        assert_eq!(case.gives(one), Err(stale), "a lost or a stale write");
        let torn = case.mix(two, SECTOR + 100, one);
        let wrong = Wrong { at: SECTOR + 100, found: Found::Torn(two, 100), wanted: two };
        assert_eq!(case.read(&torn), Err(wrong), "a part of a block");
        let torn = case.mix(two, 2 * SECTOR, one);
        let wrong = Wrong { at: 2 * SECTOR + 16, found: Found::Write(one), wanted: two };
        assert_eq!(case.read(&torn), Err(wrong), "a part of a command");
        assert!(case.read(&[0; SIZE]).is_err());
        assert!(case.expected.open.is_empty(), "nothing is kept");
    }

    #[test]
    fn a_read_beside_a_write_gives_the_old_or_the_new() {
        let mut case = Case::new();
        let (stale, old) = (case.write(), case.write());
        let new = case.begin();
        for bytes in [case.of(old), case.of(new), case.mix(new, 700, old), case.mix(old, 700, new)] {
            assert_eq!(case.read(&bytes), Ok(()));
        }
        assert!(case.gives(stale).is_err());
        assert!(case.read(&case.mix(new, 700, stale)).is_err());
        // A read that was sent before the write was answered.
        let began = case.expected.read_begins(3);
        case.end(new);
        let later = case.write();
        for bytes in [case.of(old), case.of(new), case.of(later)] {
            let mut expected = Expected { open: HashMap::new(), ..copy(&case.expected) };
            expected.open.extend(case.expected.open.iter().map(|(unit, open)| (*unit, copy_of(open))));
            assert_eq!(expected.read_ends(3, began, &bytes), Ok(()));
            assert!(expected.open.is_empty());
        }
        assert!(case.gives(new).is_err(), "one that began after it");
        assert_eq!(case.gives(later), Ok(()));
    }
    fn copy(from: &Expected) -> Expected {
        Expected { settled: from.settled.clone(), open: HashMap::new(), ..*from }
    }
    fn copy_of(open: &Open) -> Open {
        Open { writes: open.writes.clone(), reads: open.reads.clone(), seen: open.seen }
    }

    #[test]
    fn of_two_writes_together_either_may_be_the_last_and_a_read_decides() {
        for (first, mixed) in [(false, false), (true, false), (false, true)] {
            let mut case = Case::new();
            let old = case.write();
            let (one, two) = (case.begin(), case.begin());
            case.end(two);
            assert_eq!((case.gives(one), case.gives(two)), (Ok(()), Ok(())), "the first one is under way");
            assert!(case.gives(old).is_err(), "the second one is answered");
            case.end(one);
            let is = match (first, mixed) {
                (_, true) => case.mix(one, 1000, two),
                (true, _) => case.of(one),
                (false, _) => case.of(two),
            };
            assert_eq!(case.read(&is), Ok(()));
            assert_eq!(case.read(&is), Ok(()), "and again");
            let not = if first { two } else { one };
            assert!(case.gives(not).is_err(), "it was decided: {first} {mixed}");
            assert!(case.gives(old).is_err());
            let last = case.write();
            assert_eq!(case.gives(last), Ok(()));
            assert!(case.read(&is).is_err());
            assert!(case.expected.open.is_empty());
        }
    }

    #[test]
    fn a_write_replaces_those_that_were_answered_before_it_was_sent() {
        let mut case = Case::new();
        let (one, two) = (case.begin(), case.begin());
        case.end(one);
        let three = case.begin();
        case.end(three);
        assert!(case.gives(one).is_err(), "three was sent when one was answered");
        assert_eq!(case.gives(three), Ok(()));
        case.end(two);
        assert_eq!(case.gives(two), Ok(()), "two was under way all the time");
        assert!(case.gives(three).is_err());
    }
}
