//! The turns of a core: how many, which of them had something to do, and when it lets others run.

use std::time::Duration;

use nvmf::Instant;

/// Turns between two looks at the clock and at connection management.
const HOUSEKEEPING: u64 = 32;
/// Turns without work after which the thread lets others run.
const IDLE_TURNS: u64 = 256;
/// How long it finds no work before it sleeps. A wake-up costs more than a host needs from one command to the next.
const AWAKE: Duration = Duration::from_micros(50);
/// Turns without completions after which hosts have no other commands.
const QUIET: u64 = 1024;

/// What a core does that has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// It looks on.
    Look,
    /// It lets others run.
    Yield,
    /// It sleeps.
    Sleep,
}

/// The turns.
#[derive(Debug, Default)]
pub struct Pace {
    turns: u64,
    /// Turns without work since the last one with work.
    idle: u64,
    /// When the first of these were over.
    idle_since: Instant,
    /// The last turn with completions.
    completed: u64,
    /// The last turn that left no completion.
    emptied: u64,
}

impl Pace {
    /// A turn begins.
    #[inline]
    pub fn begin(&mut self) {
        self.turns += 1;
    }
    /// It took `n` completions of at most `most`.
    #[inline]
    pub fn took(&mut self, n: usize, most: usize) {
        if n < most {
            self.emptied = self.turns;
        }
        if n > 0 {
            self.completed = self.turns;
        }
    }
    /// It ends. Returns whether it is time for what is not part of a command.
    #[inline]
    pub fn end(&mut self, worked: bool) -> bool {
        self.idle = if worked { 0 } else { self.idle + 1 };
        self.turns.is_multiple_of(HOUSEKEEPING)
    }
    /// Something was to be done besides.
    pub fn worked(&mut self) {
        self.idle = 0;
    }
    /// Turns so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }
    /// Whether all completions were handled that had come by the end of a turn.
    pub fn emptied_since(&self, turn: u64) -> bool {
        self.emptied > turn
    }
    /// Whether hosts have had commands lately.
    pub fn is_busy(&self) -> bool {
        self.turns - self.completed < QUIET
    }
    /// Whether the last turn had nothing to do.
    pub fn is_idle(&self) -> bool {
        self.idle > 0
    }
    /// Whether it may be time to rest. By turns and time: a turn of some ports is a system call.
    pub fn may_rest(&self) -> bool {
        self.idle > IDLE_TURNS || self.idle > 0 && self.idle.is_multiple_of(HOUSEKEEPING)
    }
    /// How it rests.
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
    /// A sleep begins: where nothing comes it sleeps again at once.
    pub fn sleeps(&mut self) {
        self.idle = IDLE_TURNS;
    }
}
