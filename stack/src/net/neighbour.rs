//! The neighbour table: the Ethernet address of each address, which addresses are being resolved, and which do not answer.
//!
//! An entry is requested (up to [`NEIGHBOUR_TRIES`] times, [`NEIGHBOUR_RETRY`] apart), then used for [`NEIGHBOUR_LIFETIME`]. An old entry
//! stays in use while it is refreshed: first by unicast requests, then by broadcast ones (multicast for IPv6).
//!
//! # What may move a neighbour
//!
//! Any host on the link can claim an address. So an entry that is *in use* (a queue pair holds it, or this host resolved it within its
//! lifetime) does not follow a claim. Instead, its old Ethernet address is checked by unicast. Only if that does not answer
//! [`NEIGHBOUR_UNICAST_TRIES`] requests, a broadcast request follows, and the host that answers it gets the address. Claims cause such a
//! check at most once in [`NEIGHBOUR_CLAIM_GAP`]. An entry that is not in use follows a claim at once. The host that answers the very first
//! request gets the address: at that time a liar cannot be told from the neighbour. A configured entry, which never moves, protects against
//! that.
//!
//! # What may have an entry
//!
//! An entry that a queue pair holds is never removed, and is refreshed without further calls. Entries that were only resolved are evicted
//! by others of their kind, the longest unused first. Strangers, which this host did not resolve, share [`NEIGHBOUR_STRANGERS_MAX`]
//! entries, of which the oldest is evicted. Each eviction takes a bounded number of steps.

use std::collections::{HashMap, VecDeque};

use crate::config::{
    NEIGHBOUR_CLAIM_GAP, NEIGHBOUR_FAILED_HOLD, NEIGHBOUR_LIFETIME, NEIGHBOUR_MAX, NEIGHBOUR_RETRY,
    NEIGHBOUR_STRANGERS_MAX, NEIGHBOUR_TRIES, NEIGHBOUR_UNICAST_TRIES,
};
use crate::id::{Gid, Mac};
use crate::mark::step;
use crate::time::Instant;

/// The most changes that are remembered one by one. A caller that asks for older ones gets all held entries.
const CHANGES: usize = 256;

/// The answer to "where does a frame to this address go?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// At this Ethernet address.
    Known(Mac),
    /// Requested. Resolve again when the generation changes.
    Pending,
    /// There was no answer, or there is no route.
    Failed,
}

/// An entry of the neighbour table; valid while a queue pair holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct NeighbourId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The entry is free.
    Free,
    /// Requested: `sent` requests so far, the next step at `next`.
    Incomplete { sent: u8, next: Instant },
    /// Its Ethernet address is known, and is old from `until` on.
    Known { mac: Mac, until: Instant },
    /// Its Ethernet address is known, and is being checked.
    Probe { mac: Mac, sent: u8, next: Instant },
    /// It did not answer. It is not requested again before `until`.
    Failed { until: Instant },
}

/// Why the entry exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// Configured: never moves, and is never removed.
    Fixed,
    /// Resolved by this host, the last time at this instant.
    Used(Instant),
    /// A stranger: not resolved by this host.
    Stranger,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    gid: Gid,
    state: State,
    origin: Origin,
    /// Number of queue pairs that hold it.
    holders: u32,
    /// Whether a caller has its answer: the generation has to change when the answer does.
    given_out: bool,
    /// Whether it may have moved: its Ethernet address has to be checked, but not before `quiet_until`.
    recheck: bool,
    quiet_until: Instant,
}

impl Entry {
    fn mac(&self) -> Option<Mac> {
        match self.state {
            State::Known { mac, .. } | State::Probe { mac, .. } => Some(mac),
            State::Free | State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }
    fn answer(&self) -> Resolution {
        match (self.mac(), self.state) {
            (Some(mac), _) => Resolution::Known(mac),
            (None, State::Failed { .. }) => Resolution::Failed,
            (None, _) => Resolution::Pending,
        }
    }
    fn deadline(&self) -> Instant {
        match self.state {
            State::Incomplete { next, .. } | State::Probe { next, .. } => next,
            State::Known { .. } if self.origin == Origin::Fixed => Instant::FAR,
            State::Known { until, .. } => {
                let old = if self.holders > 0 || self.given_out { until } else { Instant::FAR };
                if self.recheck { old.min(self.quiet_until) } else { old }
            }
            // Its holder resolves it again when it has something to send.
            State::Failed { until } if self.holders == 0 => until,
            State::Failed { .. } | State::Free => Instant::FAR,
        }
    }
    fn in_use(&self, now: Instant) -> bool {
        let recent = |used| now < Instant::after(used, NEIGHBOUR_LIFETIME);
        self.holders > 0 || matches!(self.origin, Origin::Used(used) if recent(used))
    }
    /// Since when it is unused. `None` if it may not be evicted.
    fn unused_since(&self) -> Option<Instant> {
        match (self.state, self.origin) {
            (State::Free, _) => None,
            (_, Origin::Used(used)) if self.holders == 0 => Some(used),
            _ => None,
        }
    }
}

/// A request that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// The address to resolve.
    pub(super) target: Gid,
    /// The Ethernet address to send to; `None`: broadcast.
    pub(super) mac: Option<Mac>,
}

/// What is due for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// A request is to be sent.
    Send(Request),
    /// A neighbour did not answer.
    Unreachable,
}

/// Who caused a resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Initiator {
    /// The program.
    Program,
    /// A stranger, whose message is answered.
    Stranger,
}

/// The kind of packet that claimed an Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Via {
    /// An answer to us.
    Answer,
    /// A request to us, whose sender is remembered.
    Question,
    /// A broadcast, or a packet to another host.
    Other,
}

/// What a claim did to the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Learned {
    /// The address was learned.
    Yes,
    /// The address was learned, and another entry was evicted.
    Evicted,
    /// The neighbour is unknown, and was not added.
    Unknown,
    /// The claim was rejected: as far as we know, another host has the address.
    Disputed,
}

#[derive(Debug)]
pub(super) struct Neighbours {
    entries: Vec<Entry>,
    by_gid: HashMap<Gid, u32>,
    /// Free places.
    free: Vec<u32>,
    /// Entries of strangers, oldest first.
    strangers: VecDeque<u32>,
    /// Entries that are held or configured: they do not count for [`NEIGHBOUR_MAX`].
    kept: usize,
    /// No deadline of an entry is earlier.
    deadline: Instant,
    /// The next entry of the present pass over the deadlines, and the earliest deadline that this pass found in the future.
    looked: usize,
    ahead: Instant,
    generation: u64,
    /// Held entries that changed, each with the generation of the change; and the last generation before the oldest of them.
    changes: VecDeque<(u64, u32)>,
    changes_from: u64,
}

impl Neighbours {
    /// Makes a table with configured entries. Allocates room for all entries that strangers and resolving can add.
    pub(super) fn new(fixed: &[(Gid, Mac)]) -> Self {
        let room = NEIGHBOUR_MAX + fixed.len();
        let mut table = Self {
            entries: Vec::with_capacity(room),
            by_gid: HashMap::with_capacity(2 * room),
            free: Vec::with_capacity(room),
            strangers: VecDeque::with_capacity(NEIGHBOUR_STRANGERS_MAX),
            kept: 0,
            deadline: Instant::FAR,
            looked: 0,
            ahead: Instant::FAR,
            generation: 1,
            changes: VecDeque::with_capacity(CHANGES),
            changes_from: 0,
        };
        for &(gid, mac) in fixed {
            let state = State::Known { mac, until: Instant::FAR };
            match table.find(&gid) {
                Some(id) => table.entries[id as usize].state = state,
                None => {
                    table.insert(gid, state, Origin::Fixed);
                    table.kept += 1;
                }
            }
        }
        table
    }

    /// A number that changes when an answer that was given out may have changed; never 0.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Invalidates all answers, because routes changed.
    pub(super) fn routes_changed(&mut self) {
        self.generation += 1;
        self.changes.clear();
        self.changes_from = self.generation;
    }

    /// Calls `each` for held entries whose answer changed after generation `since`; for all of them if that is not known any more.
    pub(super) fn changes(&self, since: u64, mut each: impl FnMut(NeighbourId)) {
        if since < self.changes_from {
            let held = self.entries.iter().enumerate().filter(|(_, e)| e.holders > 0);
            return held.for_each(|(id, _)| each(NeighbourId(id as u32)));
        }
        let new = self.changes.iter().rev().take_while(|(generation, _)| *generation > since);
        new.for_each(|(_, id)| each(NeighbourId(*id)));
    }

    /// [`Neighbours::poll`] returns nothing before this time. `None`: not until another call changes that.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.deadline != Instant::FAR).then_some(self.deadline)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_gid.len()
    }

    fn find(&self, gid: &Gid) -> Option<u32> {
        step();
        self.by_gid.get(gid).copied()
    }

    fn entry(&mut self, id: u32) -> &mut Entry {
        step();
        &mut self.entries[id as usize]
    }

    /// The Ethernet address of an address, if it is known.
    pub(super) fn mac(&self, gid: &Gid) -> Option<Mac> {
        self.find(gid).and_then(|id| self.entries[id as usize].mac())
    }

    /// Whether there is an entry for an address.
    pub(super) fn contains(&self, gid: &Gid) -> bool {
        self.find(gid).is_some()
    }

    /// Takes account of the deadline of an entry that changed.
    fn note(&mut self, id: u32) {
        let at = self.entry(id).deadline();
        self.deadline = self.deadline.min(at);
        self.ahead = self.ahead.min(at);
    }

    /// Takes account of a change of an entry's answer, if anyone has the answer.
    fn changed(&mut self, id: u32) {
        let entry = self.entry(id);
        let (held, given_out) = (entry.holders > 0, core::mem::take(&mut entry.given_out));
        if !held && !given_out {
            return;
        }
        self.generation += 1;
        if held {
            if self.changes.len() == CHANGES
                && let Some((generation, _)) = self.changes.pop_front()
            {
                self.changes_from = generation;
            }
            self.changes.push_back((self.generation, id));
        }
    }

    /// Resolves a neighbour. Returns the answer, and whether another entry was evicted.
    pub(super) fn resolve(&mut self, now: Instant, gid: &Gid, initiator: Initiator) -> (Resolution, bool) {
        let (id, evicted) = self.want(now, gid, initiator);
        let entry = self.entry(id);
        let answer = entry.answer();
        entry.given_out |= initiator == Initiator::Program;
        self.note(id);
        (answer, evicted)
    }

    /// Resolves a neighbour, which is held from now on in place of `before`. Returns its entry, the answer, and whether another entry was
    /// evicted.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        gid: &Gid,
        before: Option<NeighbourId>,
    ) -> (NeighbourId, Resolution, bool) {
        let (id, evicted) = self.want(now, gid, Initiator::Program);
        if before != Some(NeighbourId(id)) {
            let entry = self.entry(id);
            entry.holders += 1;
            if entry.holders == 1 && entry.origin != Origin::Fixed {
                self.kept += 1;
            }
            if let Some(before) = before {
                self.release(before);
            }
        }
        self.note(id);
        (NeighbourId(id), self.entry(id).answer(), evicted)
    }

    /// Ends one [`Neighbours::hold`].
    pub(super) fn release(&mut self, id: NeighbourId) {
        let entry = self.entry(id.0);
        debug_assert!(entry.holders > 0, "held");
        entry.holders -= 1;
        if entry.holders == 0 && entry.origin != Origin::Fixed {
            self.kept -= 1;
            // There may be no room for it among the entries without a holder.
            if self.merely_used() > NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX {
                self.evict_used();
            } else {
                self.note(id.0);
            }
        }
    }

    /// Has the Ethernet address of a held neighbour checked. It may have moved, as its holder got no answer from it.
    pub(super) fn recheck(&mut self, now: Instant, id: NeighbourId) {
        let entry = self.entry(id.0);
        match entry.state {
            State::Known { .. } if entry.origin != Origin::Fixed => entry.recheck = true,
            State::Failed { until } if until <= now => {
                entry.state = State::Incomplete { sent: 0, next: now };
            }
            _ => return,
        }
        self.note(id.0);
    }

    /// Finds or makes the entry of a neighbour. Returns it, and whether another one was evicted for it.
    fn want(&mut self, now: Instant, gid: &Gid, initiator: Initiator) -> (u32, bool) {
        let Some(id) = self.find(gid) else {
            let state = State::Incomplete { sent: 0, next: now };
            let (origin, evicted) = match initiator {
                Initiator::Program => (Origin::Used(now), self.room_for_used()),
                Initiator::Stranger => (Origin::Stranger, self.room_for_stranger()),
            };
            return (self.insert(*gid, state, origin), evicted);
        };
        // A stranger that this host now resolves itself takes a place among the resolved entries.
        let joins = initiator == Initiator::Program && self.entry(id).origin == Origin::Stranger;
        let evicted = joins && self.room_for_used();
        let entry = self.entry(id);
        match entry.state {
            State::Known { mac, until } if until <= now => {
                entry.state = State::Probe { mac, sent: 0, next: now }
            }
            State::Failed { until } if until <= now => entry.state = State::Incomplete { sent: 0, next: now },
            _ => {}
        }
        if initiator == Initiator::Program {
            match entry.origin {
                Origin::Used(_) => entry.origin = Origin::Used(now),
                Origin::Stranger => {
                    entry.origin = Origin::Used(now);
                    self.strangers.retain(|stranger| *stranger != id);
                }
                Origin::Fixed => {}
            }
        }
        (id, evicted)
    }

    /// Handles a claim of an Ethernet address. An unknown neighbour is added if it sent us a request and is `near` (on the link).
    pub(super) fn learn(&mut self, now: Instant, gid: &Gid, mac: Mac, via: Via, near: bool) -> Learned {
        let known = State::Known { mac, until: now.after(NEIGHBOUR_LIFETIME) };
        let Some(id) = self.find(gid) else {
            if via != Via::Question || !near {
                return Learned::Unknown;
            }
            let evicted = self.room_for_stranger();
            self.insert(*gid, known, Origin::Stranger);
            return if evicted { Learned::Evicted } else { Learned::Yes };
        };
        let entry = self.entry(id);
        if entry.origin == Origin::Fixed {
            return if entry.mac() == Some(mac) { Learned::Yes } else { Learned::Disputed };
        }
        match entry.state {
            State::Known { mac: before, .. } if before != mac && entry.in_use(now) => {
                entry.recheck = true;
                self.note(id);
                return Learned::Disputed;
            }
            // Only the Ethernet address that is being checked may answer the check.
            State::Probe { mac: before, sent, .. } if sent <= NEIGHBOUR_UNICAST_TRIES => {
                if before != mac {
                    return Learned::Disputed;
                }
                if via != Via::Answer {
                    return Learned::Yes;
                }
            }
            _ => {}
        }
        let (same, asked) = (entry.mac() == Some(mac), !matches!(entry.state, State::Known { .. }));
        entry.state = known;
        if asked {
            entry.recheck = false;
            entry.quiet_until = now.after(NEIGHBOUR_CLAIM_GAP);
        }
        if !same {
            self.changed(id);
        }
        self.note(id);
        Learned::Yes
    }

    fn insert(&mut self, gid: Gid, state: State, origin: Origin) -> u32 {
        let entry = Entry {
            gid,
            state,
            origin,
            holders: 0,
            given_out: false,
            recheck: false,
            quiet_until: Instant::ZERO,
        };
        let id = match self.free.pop() {
            Some(id) => {
                *self.entry(id) = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.by_gid.insert(gid, id);
        if origin == Origin::Stranger {
            self.strangers.push_back(id);
        }
        self.note(id);
        id
    }

    /// Removes an entry without a holder.
    fn remove(&mut self, id: u32) {
        self.changed(id); // makes callers that have its answer resolve again
        let entry = self.entry(id);
        let (gid, origin) = (entry.gid, entry.origin);
        entry.state = State::Free;
        if origin == Origin::Stranger {
            self.strangers.retain(|stranger| *stranger != id);
        }
        self.by_gid.remove(&gid);
        self.free.push(id);
    }

    /// Number of entries that were resolved and have no holder.
    fn merely_used(&self) -> usize {
        self.by_gid.len() - self.kept - self.strangers.len()
    }

    /// Makes room for a stranger. Returns whether an entry was evicted.
    fn room_for_stranger(&mut self) -> bool {
        let oldest = self.strangers.front().copied();
        let full = self.strangers.len() >= NEIGHBOUR_STRANGERS_MAX;
        if let Some(id) = oldest.filter(|_| full) {
            self.remove(id);
        }
        full
    }

    /// Makes room for a neighbour that this host resolves. Returns whether an entry was evicted.
    fn room_for_used(&mut self) -> bool {
        let full = self.merely_used() >= NEIGHBOUR_MAX - NEIGHBOUR_STRANGERS_MAX;
        if full {
            self.evict_used();
        }
        full
    }

    /// Evicts the entry that was resolved least recently. It takes one pass over the table; only callers that resolve very many neighbours
    /// pay for that.
    fn evict_used(&mut self) {
        let unused = |id: usize| Some((self.entries[id].unused_since()?, id));
        if let Some((_, id)) = (0..self.entries.len()).filter_map(unused).min() {
            self.remove(id as u32);
        }
    }

    /// Returns the next thing that is due. Call it until it returns `None`. Nothing is due before [`Neighbours::deadline`]. All calls until
    /// `None` make one pass over the table, and another one if something became due at entries that the pass had left.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Due> {
        while self.deadline <= now {
            if self.looked == 0 {
                self.ahead = Instant::FAR;
            }
            while self.looked < self.entries.len() {
                let id = self.looked as u32;
                if self.entry(id).deadline() > now {
                    self.note(id);
                    self.looked += 1;
                } else if let Some(due) = self.run(now, id) {
                    return Some(due); // it has another deadline, and is checked again
                }
            }
            self.looked = 0;
            self.deadline = self.ahead;
        }
        None
    }

    /// Does the work that is due for an entry. Returns what the caller has to do.
    fn run(&mut self, now: Instant, id: u32) -> Option<Due> {
        let entry = self.entry(id);
        let asked = match entry.state {
            State::Known { mac, .. } => {
                if entry.recheck || entry.holders > 0 {
                    entry.recheck = false;
                    entry.state = State::Probe { mac, sent: 0, next: now };
                } else {
                    self.changed(id); // it is old: callers that still need it resolve again
                }
                return None;
            }
            State::Failed { .. } => {
                self.remove(id);
                return None;
            }
            State::Free => return None,
            State::Incomplete { sent, .. } => (sent, None),
            State::Probe { mac, sent, .. } => (sent, Some(mac)),
        };
        let (sent, known) = asked;
        if sent == NEIGHBOUR_TRIES {
            entry.state = State::Failed { until: now.after(NEIGHBOUR_FAILED_HOLD) };
            self.changed(id);
            return Some(Due::Unreachable);
        }
        let (sent, next) = (sent + 1, now.after(NEIGHBOUR_RETRY));
        let target = entry.gid;
        entry.state = match known {
            Some(mac) => State::Probe { mac, sent, next },
            None => State::Incomplete { sent, next },
        };
        Some(Due::Send(Request { target, mac: known.filter(|_| sent <= NEIGHBOUR_UNICAST_TRIES) }))
    }
}
