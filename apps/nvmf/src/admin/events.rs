//! Asynchronous events of a controller: the pending ones, the masked ones, and the host's requests that wait for them.
//!
//! An event that was sent is masked: it is not sent again until the host has read its log page.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::limits;
use crate::live::{Live, Snapshot, Table};
use crate::status::Status;
use crate::target::Target;
use crate::wire::log::lid;

use super::features::{EVENT_DISCOVERY, EVENT_NAMESPACES, EVENT_RELIABILITY};

/// The supported events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Namespaces,
    Discovery,
    /// A namespace has lost data.
    Reliability,
}

impl Event {
    const ALL: [Self; 3] = [Self::Namespaces, Self::Discovery, Self::Reliability];

    /// Its bit in the Asynchronous Event Configuration feature.
    const fn wanted(self) -> u32 {
        match self {
            Self::Namespaces => EVENT_NAMESPACES,
            Self::Discovery => EVENT_DISCOVERY,
            Self::Reliability => EVENT_RELIABILITY,
        }
    }
    /// The result of the request: event type (1 SMART, 2 notice), event information, log page identifier.
    const fn result(self) -> u64 {
        let (kind, about, page) = match self {
            Self::Namespaces => (2, 0x00, lid::CHANGED_NAMESPACES),
            Self::Discovery => (2, 0xF0, lid::DISCOVERY),
            Self::Reliability => (1, 0x00, lid::SMART),
        };
        kind | about << 8 | (page as u64) << 16
    }
    /// The event whose log page this is, or `None`.
    pub const fn of_page(page: u8) -> Option<Self> {
        match page {
            lid::CHANGED_NAMESPACES => Some(Self::Namespaces),
            lid::DISCOVERY => Some(Self::Discovery),
            lid::SMART => Some(Self::Reliability),
            _ => None,
        }
    }
}

/// The state of one event.
#[derive(Clone, Copy, Default, Debug)]
struct State {
    pending: bool,
    /// The event was sent, and its log page has not been read since.
    masked: bool,
}

/// The events of one controller.
#[derive(Debug)]
pub(crate) struct Events {
    /// Slots of the event requests that wait for an event.
    waiting: ArrayVec<u16, { limits::EVENT_REQUESTS }>,
    /// Slots of the aborted event requests that are not answered yet.
    aborted: ArrayVec<u16, { limits::EVENT_REQUESTS }>,
    states: [State; 3],
    /// The last state that was looked at. Changes are found by comparison with it.
    seen: Seen,
    /// Identifiers of the namespaces that changed since their log page was read, in ascending order.
    changed: Vec<u32>,
}

#[derive(Debug)]
enum Seen {
    /// The namespaces, and the count of [`Live::failures`].
    Namespaces(Arc<Live>, Snapshot, u64),
    Discovery(u64),
}

impl Events {
    pub fn new(target: &Target, live: Option<&Arc<Live>>) -> Self {
        let seen = match live {
            Some(live) => Seen::Namespaces(Arc::clone(live), live.snapshot(), live.failures()),
            None => Seen::Discovery(target.generation()),
        };
        // Capacity for every possible namespace, so that noting a change does not allocate.
        let changed = Vec::with_capacity(if live.is_some() { limits::CHANGED_NAMESPACES } else { 0 });
        let mut events = Self {
            waiting: ArrayVec::new(),
            aborted: ArrayVec::new(),
            states: Default::default(),
            seen,
            changed,
        };
        events.forget();
        events
    }

    /// Adds the slot of an event request. Fails if the limit of outstanding requests is reached.
    pub fn add(&mut self, slot: u16) -> Result<(), Status> {
        if self.waiting.len() + self.aborted.len() == limits::EVENT_REQUESTS {
            return Err(Status::EventLimitExceeded);
        }
        self.waiting.push(slot);
        Ok(())
    }
    /// Aborts the event request of a slot. Returns whether it was waiting.
    pub fn abort(&mut self, slot: u16) -> bool {
        let found = self.waiting.iter().position(|&w| w == slot);
        if let Some(at) = found {
            self.aborted.push(self.waiting.remove(at));
        }
        found.is_some()
    }
    /// Aborts all event requests, and clears all events and masks.
    pub fn reset(&mut self) {
        self.aborted.extend(self.waiting.drain(..));
        self.forget();
    }
    /// Clears all events and masks. If namespaces have lost data before, that event is pending, because the host has not been told.
    fn forget(&mut self) {
        self.states = Default::default();
        if let Seen::Namespaces(live, ..) = &self.seen {
            self.states[Event::Reliability as usize].pending = live.has_failed();
        }
    }

    /// The slot of an event request to answer now, with its status and result; `None` if there is none. `wanted` is the Asynchronous Event
    /// Configuration.
    #[inline]
    pub fn poll(&mut self, target: &Target, wanted: u32) -> Option<(u16, Status, u64)> {
        if let Some(slot) = self.aborted.pop() {
            return Some((slot, Status::AbortRequested, 0));
        }
        self.look(target);
        if self.waiting.is_empty() {
            return None;
        }
        for event in Event::ALL {
            let state = &mut self.states[event as usize];
            if state.pending && !state.masked {
                state.pending = false;
                if wanted & event.wanted() != 0 {
                    state.masked = true;
                    return Some((self.waiting.remove(0), Status::Success, event.result()));
                }
            }
        }
        None
    }
    /// Notes that the host reads the log page of `event`. Clears the event and its mask, unless the host set RAE (`retain`).
    pub fn read(&mut self, event: Event, retain: bool) {
        if !retain {
            self.states[event as usize] = State::default();
            if event == Event::Namespaces {
                self.changed.clear();
            }
        }
    }
    /// Identifiers of the namespaces that changed since their log page was read, in ascending order.
    pub fn changed(&mut self, target: &Target) -> &[u32] {
        self.look(target);
        &self.changed
    }

    /// Compares the current state with the one last seen, and sets the events of the changes as pending.
    #[inline]
    fn look(&mut self, target: &Target) {
        match &mut self.seen {
            Seen::Namespaces(live, snapshot, failures) => {
                let now = live.failures();
                if now != *failures {
                    *failures = now;
                    self.states[Event::Reliability as usize].pending = true;
                }
                if let Some(newer) = snapshot.newer(live) {
                    self.states[Event::Namespaces as usize].pending |=
                        note(&mut self.changed, &snapshot.table, &newer.table);
                    *snapshot = newer;
                }
            }
            Seen::Discovery(seen) => {
                let generation = target.generation();
                if generation != *seen {
                    *seen = generation;
                    self.states[Event::Discovery as usize].pending = true;
                }
            }
        }
    }
}

/// Adds the namespaces that differ to `changed`. Returns whether any differs.
#[cold]
fn note(changed: &mut Vec<u32>, old: &Table, new: &Table) -> bool {
    let mut any = false;
    for nsid in old.differences(new) {
        any = true;
        if let Err(at) = changed.binary_search(&nsid) {
            changed.insert(at, nsid);
        }
    }
    any
}
