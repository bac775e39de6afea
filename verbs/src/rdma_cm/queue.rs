//! Queues of events: one for each channel and one for each synchronous identifier.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stack::device::{EventFd, lock};

use super::event::EventData;

/// A new number for an identifier or a channel, unique in the process. Both have event queues, and the events of a channel refer by number
/// to identifiers of several devices.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An event that was not fetched yet.
#[derive(Debug)]
pub(super) struct Queued {
    /// The identifier that will count the event as unacknowledged.
    pub id: u64,
    /// For a request, the new identifier.
    pub new: Option<u64>,
    pub data: EventData,
}

/// The file descriptor of a channel, which is readable while an event waits in one of the channel's queues. The channel has one queue for
/// each device.
#[derive(Debug)]
pub(super) struct Signal {
    fd: EventFd,
    /// Number of waiting events.
    waiting: Mutex<usize>,
}

impl Signal {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { fd: EventFd::new()?, waiting: Mutex::new(0) })
    }
    pub(super) fn fd(&self) -> &EventFd {
        &self.fd
    }
    /// Counts a new event.
    fn add(&self) {
        *lock(&self.waiting) += 1;
        self.fd.signal();
    }
    /// Counts removed events.
    fn remove(&self, events: usize) {
        let mut waiting = lock(&self.waiting);
        *waiting -= events;
        if events > 0 && *waiting == 0 {
            self.fd.clear();
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Queued>,
    signal: Option<Arc<Signal>>,
}

impl Queue {
    fn push(&mut self, event: Queued) {
        self.events.push_back(event);
        if let Some(signal) = &self.signal {
            signal.add();
        }
    }
    fn removed(&self, events: usize) {
        if let Some(signal) = &self.signal {
            signal.remove(events);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.removed(self.events.len());
    }
}

/// All queues, by number. Their size is bounded: each identifier has a few events, and each listener has requests up to its backlog. Events
/// of the program itself are not bounded.
#[derive(Debug, Default)]
pub(super) struct Queues(HashMap<u64, Queue>);

impl Queues {
    /// Creates a queue unless it exists. The descriptor of its channel is readable while it holds an event.
    pub(super) fn open(&mut self, number: u64, signal: Option<Arc<Signal>>) {
        self.0.entry(number).or_insert_with(|| Queue { events: VecDeque::new(), signal });
    }

    /// Removes a queue and returns the events in it.
    pub(super) fn close(&mut self, number: u64) -> Vec<Queued> {
        let Some(mut queue) = self.0.remove(&number) else { return Vec::new() };
        let events: Vec<_> = queue.events.drain(..).collect();
        queue.removed(events.len());
        events
    }

    /// Whether the queue exists.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    /// Appends an event.
    pub(super) fn push(&mut self, number: u64, event: Queued) {
        if let Some(queue) = self.0.get_mut(&number) {
            queue.push(event);
        }
    }

    /// Takes the oldest event of a queue.
    pub(super) fn pop(&mut self, number: u64) -> Option<Queued> {
        let queue = self.0.get_mut(&number)?;
        let event = queue.events.pop_front()?;
        queue.removed(1);
        Some(event)
    }

    /// Takes the oldest request of a queue.
    pub(super) fn pop_request(&mut self, number: u64) -> Option<Queued> {
        let queue = self.0.get_mut(&number)?;
        let at = queue.events.iter().position(|e| e.new.is_some())?;
        let request = queue.events.remove(at);
        queue.removed(1);
        request
    }

    /// Whether a request still waits in a queue to be fetched.
    pub(super) fn holds_request(&self, number: u64, request: u64) -> bool {
        self.0.get(&number).is_some_and(|queue| queue.events.iter().any(|e| e.new == Some(request)))
    }

    /// Takes all events of an identifier out of a queue.
    pub(super) fn take(&mut self, number: u64, id: u64) -> Vec<Queued> {
        let Some(queue) = self.0.get_mut(&number) else { return Vec::new() };
        let mut taken = Vec::new();
        let mut at = 0;
        // Most queues hold few events of the identifier, and mostly the oldest ones are wanted, so the other events are left in place.
        while let Some(event) = queue.events.get(at) {
            if event.id == id || event.new == Some(id) {
                taken.extend(queue.events.remove(at));
            } else {
                at += 1;
            }
        }
        queue.removed(taken.len());
        taken
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::CmEventType;
    use super::*;

    fn event(id: u64, new: Option<u64>) -> Queued {
        Queued { id, new, data: EventData::new(CmEventType::Established) }
    }

    #[test]
    fn a_descriptor_is_readable_while_one_of_its_queues_holds_an_event() {
        let signal = Arc::new(Signal::new().unwrap());
        let (mut one, mut two) = (Queues::default(), Queues::default());
        for queues in [&mut one, &mut two] {
            queues.open(9, Some(signal.clone()));
            queues.push(9, event(1, None));
        }
        let waiting = || *signal.waiting.lock().unwrap();
        assert_eq!(waiting(), 2);
        assert!(one.pop(9).is_some() && one.pop(9).is_none());
        assert_eq!(waiting(), 1);
        one.push(9, event(2, Some(3)));
        one.push(9, event(2, None));
        assert_eq!((one.take(9, 3).len(), waiting()), (1, 2));
        drop(one);
        assert_eq!(waiting(), 1);
        assert_eq!((two.close(9).len(), waiting()), (1, 0));
    }

    #[test]
    fn events_go_with_their_identifier() {
        let mut queues = Queues::default();
        queues.open(1, None);
        for (id, new) in [(5, None), (6, None), (6, Some(7)), (5, None)] {
            queues.push(1, event(id, new));
        }
        assert_eq!(queues.take(1, 7).len(), 1);
        assert_eq!(queues.take(1, 5).len(), 2);
        assert_eq!(queues.pop(1).map(|e| e.id), Some(6));
        assert!(queues.pop(1).is_none());
        queues.push(1, event(6, None));
        assert_eq!(queues.close(1).len(), 1);
        queues.push(1, event(6, None));
        assert_eq!((queues.pop(1).is_none(), queues.len()), (true, 0));
    }
}
