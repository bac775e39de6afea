//! A disk that is slow, fails and loses what was not flushed, as a seed says. A disk that lies shows that the model notices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use nvmf::BackendError;
use nvmf_target::store::{BlockingStorage, Health, Job, MrSlice, Work, Workers};
use verbs::port::fault::rng::Rng;

use crate::common::BLOCK;

/// How it misbehaves.
#[derive(Clone, Copy, Debug)]
pub struct Moods {
    /// Of a million commands, so many fail.
    pub fails_ppm: u32,
    /// What it does that no disk may do.
    pub lie: Option<Lie>,
    /// Of so many times one.
    pub lies_one_in: u64,
    /// So often at most.
    pub lies_most: u32,
    /// So many commands are done right before.
    pub honest: u64,
}

impl Moods {
    /// It does what it is told.
    pub const GOOD: Self = Self { fails_ppm: 0, lie: None, lies_one_in: 8, lies_most: u32::MAX, honest: 0 };
}

/// What no disk may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A Write that succeeds is not there.
    LosesWrites,
    /// A Write is in the place of the block behind.
    MisplacesWrites,
    /// A Write comes once more, after others.
    RepeatsWrites,
    /// Of a Write some blocks are there, the first ones.
    CutsWrites,
    /// Of a Write a part of one block is not there.
    TearsBlocks,
    /// A Read gives what a block was before it was written.
    ServesOldBlocks,
    /// A bit of a Read is another.
    FlipsBits,
    /// What was flushed is not stable.
    ForgetsFlushes,
    /// What was written with FUA is not stable.
    ForgetsFua,
    /// Compare finds no difference.
    AlwaysEqual,
    /// A range that was deallocated is as it was.
    KeepsRanges,
}

impl Lie {
    pub const ALL: [Self; 11] = [
        Self::LosesWrites,
        Self::MisplacesWrites,
        Self::RepeatsWrites,
        Self::CutsWrites,
        Self::TearsBlocks,
        Self::ServesOldBlocks,
        Self::FlipsBits,
        Self::ForgetsFlushes,
        Self::ForgetsFua,
        Self::AlwaysEqual,
        Self::KeepsRanges,
    ];
}

/// What the disk was given, until its time has come.
pub struct Line {
    workers: Arc<Workers>,
    waiting: Vec<(u64, Job)>,
    /// The longest that a command takes, in nanoseconds.
    slow_ns: u64,
    rng: Rng,
}

impl Line {
    pub fn new(slow_ns: u64, rng: Rng) -> Self {
        Self { workers: Arc::new(Workers::by_hand()), waiting: Vec::new(), slow_ns, rng }
    }
    pub fn workers(&self) -> Arc<Workers> {
        Arc::clone(&self.workers)
    }
    /// Does what is due; the order of what is under way is open, as on a real disk.
    pub fn turn(&mut self, now: u64) {
        while let Some(job) = self.workers.take() {
            let due = now + self.rng.below(self.slow_ns + 1);
            self.waiting.push((due, job));
        }
        while let Some(at) = self.waiting.iter().position(|(due, _)| *due <= now) {
            self.waiting.swap_remove(at).1.run();
        }
    }
    /// From now on nothing takes time.
    pub fn heal(&mut self) {
        self.slow_ns = 0;
    }
    /// Nothing of what is under way is done.
    pub fn lose(&mut self) {
        while self.workers.take().is_some() {}
        self.waiting.clear();
    }
}

/// The disk, with its volatile cache.
#[derive(Debug)]
pub struct Disk(Mutex<State>, Health);

#[derive(Debug)]
struct State {
    /// What a loss of power leaves, for sure.
    stable: Vec<u8>,
    /// Blocks written since: all their contents, oldest first.
    cached: BTreeMap<usize, Vec<Vec<u8>>>,
    /// A Write that will come once more.
    again: Option<(u64, Vec<u8>)>,
    moods: Moods,
    /// Commands so far.
    commands: u64,
    rng: Rng,
    counts: BTreeMap<&'static str, u64>,
}

impl Disk {
    /// Zeros.
    pub fn new(bytes: usize, moods: Moods, rng: Rng) -> Self {
        let (cached, again, counts) = Default::default();
        Self(
            Mutex::new(State { stable: vec![0; bytes], cached, again, moods, commands: 0, rng, counts }),
            Health::default(),
        )
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no command of the disk panics")
    }
    /// From now on it does what it is told.
    pub fn heal(&self) {
        self.lock().moods.fails_ppm = 0;
    }
    /// Power is lost: of each block that was written since a flush some content stays.
    pub fn lose_power(&self) {
        let state = &mut *self.lock();
        state.note("power loss");
        for (block, contents) in std::mem::take(&mut state.cached) {
            let kept = state.rng.below(contents.len() as u64 + 1) as usize;
            if let Some(content) = contents.get(kept) {
                state.stable[block * BLOCK..][..BLOCK].copy_from_slice(content);
            }
        }
    }
    /// What it did, and how often.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }
}

impl BlockingStorage for Disk {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.lock().stable.len() as u64)
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        self.lock().run(work)
    }
    fn health(&self) -> &Health {
        &self.1
    }
}

impl State {
    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
    /// Whether it does so now.
    fn lies(&mut self, lie: Lie) -> bool {
        let moods = &mut self.moods;
        let may = moods.lie == Some(lie) && moods.lies_most > 0 && self.commands > moods.honest;
        let lies = may && self.rng.one_in(moods.lies_one_in);
        moods.lies_most -= u32::from(lies);
        lies
    }
    /// A command; where it fails, a part of it may be done.
    fn run(&mut self, work: &Work) -> Result<(), BackendError> {
        self.commands += 1;
        let fails = self.rng.ppm(self.moods.fails_ppm).then(|| {
            let errors = [
                (BackendError::Io, "EIO"),
                (BackendError::NoSpace, "ENOSPC"),
                (BackendError::NotReady, "ENXIO"),
                (BackendError::Internal, "another error"),
            ];
            let (error, name) = self.rng.pick(&errors);
            self.note(name);
            error
        });
        let whole = fails.is_none();
        match work {
            Work::Read { offset, to, .. } => {
                let mut bytes = self.range(*offset, to.len);
                if self.lies(Lie::ServesOldBlocks) {
                    self.make_older(*offset, &mut bytes);
                }
                if self.lies(Lie::FlipsBits) {
                    let at = self.rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1;
                }
                let len = if whole { bytes.len() } else { self.part(bytes.len()) };
                to.mr.write(to.at, &bytes[..len]).expect("a buffer of the pool");
            }
            Work::Write { offset, from, fua } => {
                let mut bytes = of(from);
                if self.lies(Lie::TearsBlocks) {
                    let at = self.rng.below(bytes.len() as u64 / 8) as usize * 8;
                    let end = (at + 1).next_multiple_of(BLOCK);
                    bytes[at..end].copy_from_slice(&self.range(*offset, from.len)[at..end]);
                }
                let len = if whole { bytes.len() } else { self.part(bytes.len()) };
                if let Some((offset, bytes)) = self.again.take_if(|_| self.rng.one_in(8)) {
                    self.write(offset, &bytes, false);
                }
                if self.lies(Lie::RepeatsWrites) {
                    self.again = Some((*offset, bytes[..len].to_vec()));
                }
                if self.lies(Lie::LosesWrites) {
                    return Ok(());
                }
                let len = if self.lies(Lie::CutsWrites) { len - len.min(BLOCK) } else { len };
                let mut offset = *offset;
                if self.lies(Lie::MisplacesWrites) && offset as usize + len < self.stable.len() {
                    offset += BLOCK as u64;
                }
                let stable = *fua && whole && !self.lies(Lie::ForgetsFua);
                self.write(offset, &bytes[..len], stable);
            }
            Work::Compare { offset, with, .. } => {
                if whole && self.range(*offset, with.len) != of(with) && !self.lies(Lie::AlwaysEqual) {
                    return Err(BackendError::Mismatch);
                }
            }
            Work::Zero { offset, len, fua, .. } => {
                let len = if whole { *len as usize } else { self.part(*len as usize) };
                self.write(*offset, &vec![0; len], *fua && whole);
            }
            Work::Deallocate(ranges) => {
                let ranges =
                    if whole { &ranges[..] } else { &ranges[..self.rng.below(ranges.len() as u64) as usize] };
                for &(offset, len) in ranges {
                    if self.lies(Lie::KeepsRanges) {
                        continue;
                    }
                    self.write(offset, &vec![0; len as usize], false);
                }
            }
            Work::Flush => {
                if whole && !self.lies(Lie::ForgetsFlushes) {
                    for (block, contents) in std::mem::take(&mut self.cached) {
                        let last = contents.last().expect("a block was written");
                        self.stable[block * BLOCK..][..BLOCK].copy_from_slice(last);
                    }
                }
            }
            Work::Verify { .. } => {}
        }
        fails.map_or(Ok(()), Err)
    }
    /// Some whole blocks of so many bytes.
    fn part(&mut self, len: usize) -> usize {
        self.rng.below((len / BLOCK) as u64 + 1) as usize * BLOCK
    }
    fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) {
        for (block, content) in (offset as usize / BLOCK..).zip(bytes.chunks_exact(BLOCK)) {
            if fua {
                self.cached.remove(&block);
                self.stable[block * BLOCK..][..BLOCK].copy_from_slice(content);
            } else {
                self.cached.entry(block).or_default().push(content.to_vec());
            }
        }
    }
    /// Makes those of these blocks that were written since the last flush what they were before.
    fn make_older(&self, offset: u64, bytes: &mut [u8]) {
        for (block, content) in (offset as usize / BLOCK..).zip(bytes.chunks_exact_mut(BLOCK)) {
            match self.cached.get(&block).map(Vec::as_slice) {
                Some([.., before, _]) => content.copy_from_slice(before),
                Some([_]) => content.copy_from_slice(&self.stable[block * BLOCK..][..BLOCK]),
                _ => {}
            }
        }
    }
    fn range(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = self.stable[offset as usize..][..len].to_vec();
        let first = offset as usize / BLOCK;
        for (&block, contents) in self.cached.range(first..first + len / BLOCK) {
            let last = contents.last().expect("a block was written");
            bytes[(block - first) * BLOCK..][..BLOCK].copy_from_slice(last);
        }
        bytes
    }
}

fn of(place: &MrSlice) -> Vec<u8> {
    place.mr.to_vec(place.at..place.at + place.len).expect("a buffer of the target")
}
