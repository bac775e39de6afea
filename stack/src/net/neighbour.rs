//! The neighbour table: which station has which address, who is being asked for, who does not answer.
//!
//! A bounded sorted array, so that a lookup is a binary search and nothing is allocated after start. An entry is
//! asked for ([`NEIGHBOUR_TRIES`] times, [`NEIGHBOUR_RETRY`] apart), then used for [`NEIGHBOUR_LIFETIME`]. When
//! that is over, the generation moves; whoever still needs the neighbour resolves it again, which gives the old
//! station and starts asking anew. So only neighbours in use are refreshed, and none is without an answer while it
//! is.

use crate::config::{
    NEIGHBOUR_FAILED_HOLD, NEIGHBOUR_LIFETIME, NEIGHBOUR_MAX, NEIGHBOUR_RETRY, NEIGHBOUR_TRIES,
};
use crate::id::{Gid, Mac};
use crate::time::Instant;

/// Requests of a refresh that go to the known station alone; the rest go to everybody.
const UNICAST_TRIES: u8 = 2;
const _: () =
    assert!(UNICAST_TRIES < NEIGHBOUR_TRIES, "a station that moved must be asked for by group address");

/// The answer to "where does a frame to this address go?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// To this station.
    Known(Mac),
    /// Being asked for; ask again when the generation moves.
    Pending,
    /// Nobody answered, or there is no route.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Asked for: `sent` requests so far, the next step at `next`.
    Incomplete { sent: u8, next: Instant },
    /// In use until `until`.
    Reachable { mac: Mac, until: Instant },
    /// In use, but nobody has needed it since it grew old.
    Stale { mac: Mac },
    /// In use and being asked for again.
    Refresh { mac: Mac, sent: u8, next: Instant },
    /// Unreachable, forgotten at `until`.
    Failed { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    gid: Gid,
    state: State,
    /// When it was last resolved; `None`: only learned from the neighbour's own frames.
    used: Option<Instant>,
}

impl Entry {
    fn mac(&self) -> Option<Mac> {
        match self.state {
            State::Reachable { mac, .. } | State::Stale { mac } | State::Refresh { mac, .. } => Some(mac),
            State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }
    fn deadline(&self) -> Instant {
        match self.state {
            State::Incomplete { next, .. } | State::Refresh { next, .. } => next,
            State::Reachable { until, .. } | State::Failed { until } => until,
            State::Stale { .. } => Instant::FAR,
        }
    }
    /// The smaller, the sooner it gives way: failed ones, then those nobody resolved, then the longest unused; those
    /// being asked for last.
    fn worth(&self) -> (u8, Instant) {
        match (self.state, self.used) {
            (State::Failed { until }, _) => (0, until),
            (_, None) => (1, self.deadline()),
            (State::Reachable { .. } | State::Stale { .. }, Some(used)) => (2, used),
            (State::Incomplete { .. } | State::Refresh { .. }, Some(used)) => (3, used),
        }
    }
}

/// A request that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Whom to ask for.
    pub(super) target: Gid,
    /// The station to ask; `None`: everybody.
    pub(super) station: Option<Mac>,
}

/// What happens when an entry's deadline has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// A request is to be sent.
    Send(Request),
    /// A neighbour did not answer.
    Unreachable,
}

/// What a frame about a neighbour did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Learned {
    /// Taken over.
    Yes,
    /// Taken over, and another entry gave way.
    Evicted,
    /// Not known, and not to be added.
    Unknown,
    /// No room: every entry is in use.
    Full,
}

#[derive(Debug)]
pub(super) struct Neighbours {
    entries: Vec<Entry>, // sorted by gid, capacity NEIGHBOUR_MAX
    /// No deadline of an entry is earlier.
    deadline: Instant,
    generation: u64,
}

impl Neighbours {
    pub(super) fn new() -> Self {
        Self { entries: Vec::with_capacity(NEIGHBOUR_MAX), deadline: Instant::FAR, generation: 1 }
    }

    /// Moves when an answer may have changed; never 0.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Routes changed, and answers with them.
    pub(super) fn routes_changed(&mut self) {
        self.generation += 1;
    }

    /// When [`Neighbours::poll`] is to be called next, at the earliest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.deadline != Instant::FAR).then_some(self.deadline)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn find(&self, gid: &Gid) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.gid.cmp(gid))
    }

    /// The station known for an address.
    pub(super) fn station(&self, gid: &Gid) -> Option<Mac> {
        self.find(gid).ok().and_then(|i| self.entries[i].mac())
    }

    /// Resolves a neighbour for somebody who needs it. The flag says whether another entry gave way.
    pub(super) fn resolve(&mut self, now: Instant, gid: &Gid) -> (Resolution, bool) {
        match self.find(gid) {
            Ok(i) => {
                let entry = &mut self.entries[i];
                entry.used = Some(now);
                match entry.state {
                    State::Stale { mac } => entry.state = State::Refresh { mac, sent: 0, next: now },
                    State::Reachable { mac, until } if until <= now => {
                        entry.state = State::Refresh { mac, sent: 0, next: now };
                    }
                    State::Failed { until } if until <= now => {
                        entry.state = State::Incomplete { sent: 0, next: now };
                    }
                    _ => {}
                }
                let answer = match (entry.mac(), entry.state) {
                    (Some(mac), _) => Resolution::Known(mac),
                    (None, State::Failed { .. }) => Resolution::Failed,
                    (None, _) => Resolution::Pending,
                };
                self.deadline = self.deadline.min(self.entries[i].deadline());
                (answer, false)
            }
            Err(_) => {
                let state = State::Incomplete { sent: 0, next: now };
                let evicted = self.entries.len() == NEIGHBOUR_MAX;
                if evicted {
                    self.evict(u8::MAX);
                }
                self.insert(Entry { gid: *gid, state, used: Some(now) });
                (Resolution::Pending, evicted)
            }
        }
    }

    /// A neighbour showed its station. Unknown neighbours are added if `create`, and never at the expense of one that
    /// somebody resolved.
    pub(super) fn learn(&mut self, now: Instant, gid: &Gid, mac: Mac, create: bool) -> Learned {
        let state = State::Reachable { mac, until: now.after(NEIGHBOUR_LIFETIME) };
        match self.find(gid) {
            Ok(i) => {
                let entry = &mut self.entries[i];
                if entry.mac() != Some(mac) {
                    self.generation += 1;
                }
                entry.state = state;
                self.deadline = self.deadline.min(entry.deadline());
                Learned::Yes
            }
            Err(_) if !create => Learned::Unknown,
            Err(_) => {
                let full = self.entries.len() == NEIGHBOUR_MAX;
                if full && !self.evict(1) {
                    return Learned::Full;
                }
                self.insert(Entry { gid: *gid, state, used: None });
                if full { Learned::Evicted } else { Learned::Yes }
            }
        }
    }

    fn insert(&mut self, entry: Entry) {
        debug_assert!(self.entries.len() < NEIGHBOUR_MAX);
        if let Err(i) = self.find(&entry.gid) {
            self.entries.insert(i, entry);
            self.deadline = self.deadline.min(entry.deadline());
        }
    }

    /// Removes the entry of least worth, if its class is at most `class`. Costs one pass over the table.
    fn evict(&mut self, class: u8) -> bool {
        let victim = (0..self.entries.len()).min_by_key(|i| self.entries[*i].worth());
        match victim {
            Some(i) if self.entries[i].worth().0 <= class => {
                if self.entries[i].used.is_some() {
                    self.generation += 1;
                }
                self.entries.remove(i);
                true
            }
            _ => false,
        }
    }

    /// The next thing that is due; call until `None`. Nothing is due before [`Neighbours::deadline`].
    pub(super) fn poll(&mut self, now: Instant) -> Option<Due> {
        if now < self.deadline {
            return None;
        }
        let mut earliest = Instant::FAR;
        let mut i = 0;
        while i < self.entries.len() {
            let entry = &mut self.entries[i];
            if entry.deadline() > now {
                earliest = earliest.min(entry.deadline());
                i += 1;
                continue;
            }
            let (sent, known) = match entry.state {
                State::Reachable { mac, .. } => {
                    entry.state = State::Stale { mac };
                    self.generation += u64::from(entry.used.is_some());
                    i += 1;
                    continue;
                }
                State::Failed { .. } => {
                    self.entries.remove(i);
                    self.generation += 1;
                    continue;
                }
                State::Stale { .. } => {
                    i += 1;
                    continue;
                }
                State::Incomplete { sent, .. } => (sent, None),
                State::Refresh { mac, sent, .. } => (sent, Some(mac)),
            };
            if sent == NEIGHBOUR_TRIES {
                entry.state = State::Failed { until: now.after(NEIGHBOUR_FAILED_HOLD) };
                self.generation += 1;
                return Some(Due::Unreachable);
            }
            let (sent, next) = (sent + 1, now.after(NEIGHBOUR_RETRY));
            entry.state = match known {
                Some(mac) => State::Refresh { mac, sent, next },
                None => State::Incomplete { sent, next },
            };
            let station = known.filter(|_| sent <= UNICAST_TRIES);
            return Some(Due::Send(Request { target: entry.gid, station }));
        }
        self.deadline = earliest;
        None
    }
}
