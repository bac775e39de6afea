//! The pace of a core: counts its turns, and decides when it does its housekeeping, yields the CPU or sleeps.

use std::time::Duration;

use nvmf::Instant;

/// The number of turns from one housekeeping to the next.
const HOUSEKEEPING: u64 = 32;
/// After this many turns without work the thread yields the CPU.
const IDLE_TURNS: u64 = 256;
/// A core sleeps when it has found no work for this long. A wake-up takes longer than a host needs from one command to the next.
const AWAKE: Duration = Duration::from_micros(50);
/// After this many turns without completions, hosts are assumed to have no commands other than zeroing.
const QUIET: u64 = 1024;

/// What a core does after turns without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// It polls on.
    Look,
    /// It yields the CPU.
    Yield,
    /// It sleeps.
    Sleep,
}

/// The turns of a core.
#[derive(Debug, Default)]
pub struct Pace {
    turns: u64,
    /// The number of turns since the last one with work.
    idle: u64,
    /// When the first [`HOUSEKEEPING`] of these were over.
    idle_since: Instant,
    /// Number of the last turn that polled completions.
    completed: u64,
    /// Number of the last turn that left the completion queue empty.
    emptied: u64,
}

impl Pace {
    /// Counts a turn, which begins.
    #[inline]
    pub fn begin(&mut self) {
        self.turns += 1;
    }
    /// Notes that the turn polled `n` completions, of at most `most`.
    #[inline]
    pub fn took(&mut self, n: usize, most: usize) {
        if n < most {
            self.emptied = self.turns;
        }
        if n > 0 {
            self.completed = self.turns;
        }
    }
    /// Notes the end of the turn, and whether it had work. Returns whether housekeeping is due.
    #[inline]
    pub fn end(&mut self, worked: bool) -> bool {
        self.idle = if worked { 0 } else { self.idle + 1 };
        self.turns.is_multiple_of(HOUSEKEEPING)
    }
    /// Notes that housekeeping found work.
    pub fn worked(&mut self) {
        self.idle = 0;
    }
    /// The number of turns so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }
    /// Whether all completions that were queued by the end of `turn` have been polled.
    pub fn emptied_since(&self, turn: u64) -> bool {
        self.emptied > turn
    }
    /// Whether a recent turn had completions.
    pub fn is_busy(&self) -> bool {
        self.turns - self.completed < QUIET
    }
    /// Whether the last turn had nothing to do.
    pub fn is_idle(&self) -> bool {
        self.idle > 0
    }
    /// Whether to call [`rest`](Self::rest) after this turn.
    pub fn may_rest(&self) -> bool {
        self.idle > IDLE_TURNS || self.idle > 0 && self.idle.is_multiple_of(HOUSEKEEPING)
    }
    /// What to do after turns without work. It depends on the time, too, because with some ports each turn is a system call.
    pub fn rest(&mut self, now: Instant) -> Rest {
        if self.idle == HOUSEKEEPING {
            self.idle_since = now;
        }
        if now >= self.idle_since.after(AWAKE) {
            Rest::Sleep
        } else if self.idle > IDLE_TURNS {
            Rest::Yield
        } else {
            Rest::Look
        }
    }
    /// Notes that the core sleeps. If it finds no work afterwards, it sleeps again at once.
    pub fn sleeps(&mut self) {
        self.idle = IDLE_TURNS;
    }
}
