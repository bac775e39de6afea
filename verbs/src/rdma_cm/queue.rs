//! Queues of events: one for each channel, one for each synchronous identifier.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stack::device::EventFd;

use super::event::EventData;

/// An event that was not fetched yet.
#[derive(Debug)]
pub(super) struct Queued {
    /// The identifier whose unacknowledged events it will count among.
    pub id: u64,
    /// The new identifier of a request.
    pub new: Option<u64>,
    pub data: EventData,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Queued>,
    fd: Option<Arc<EventFd>>,
    /// The descriptor is readable.
    signalled: bool,
}

impl Queue {
    fn clear_if_empty(&mut self) {
        if self.signalled && self.events.is_empty() {
            self.signalled = false;
            if let Some(fd) = &self.fd {
                fd.clear();
            }
        }
    }
    fn signal(&mut self) {
        if let Some(fd) = &self.fd {
            fd.signal();
            self.signalled = true;
        }
    }
}

/// All queues, by number. Their size is bounded by the number of identifiers: a few events each, and requests up to a
/// listener's backlog.
#[derive(Debug, Default)]
pub(super) struct Queues(HashMap<u64, Queue>);

impl Queues {
    /// Opens a queue; its descriptor is readable while it holds an event.
    pub(super) fn open(&mut self, number: u64, fd: Option<Arc<EventFd>>) {
        self.0.insert(number, Queue { fd, ..Queue::default() });
    }

    /// Takes a queue out, with the events in it.
    pub(super) fn close(&mut self, number: u64) -> Vec<Queued> {
        let Some(mut queue) = self.0.remove(&number) else { return Vec::new() };
        let events = queue.events.drain(..).collect();
        queue.clear_if_empty();
        events
    }

    /// Whether the queue exists.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    /// Appends an event.
    pub(super) fn push(&mut self, number: u64, event: Queued) {
        if let Some(queue) = self.0.get_mut(&number) {
            queue.events.push_back(event);
            queue.signal();
        }
    }

    /// The oldest event of a queue.
    pub(super) fn pop(&mut self, number: u64) -> Option<Queued> {
        let queue = self.0.get_mut(&number)?;
        let event = queue.events.pop_front()?;
        queue.clear_if_empty();
        Some(event)
    }

    /// The oldest request of a queue.
    pub(super) fn pop_request(&mut self, number: u64) -> Option<Queued> {
        let queue = self.0.get_mut(&number)?;
        let at = queue.events.iter().position(|e| e.new.is_some())?;
        let request = queue.events.remove(at);
        queue.clear_if_empty();
        request
    }

    /// Whether a request waits to be fetched.
    pub(super) fn holds_request(&self, number: u64, request: u64) -> bool {
        self.0.get(&number).is_some_and(|queue| queue.events.iter().any(|e| e.new == Some(request)))
    }

    /// Takes the events of an identifier out of a queue.
    pub(super) fn take(&mut self, number: u64, id: u64) -> Vec<Queued> {
        let Some(queue) = self.0.get_mut(&number) else { return Vec::new() };
        let (taken, kept): (Vec<_>, Vec<_>) =
            queue.events.drain(..).partition(|e| e.id == id || e.new == Some(id));
        queue.events = kept.into();
        queue.clear_if_empty();
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
