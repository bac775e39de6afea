//! Asynchronous events: what happens to an object and belongs to no work request (IBA 11.6.3).

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::id::Qpn;
use crate::proto::status::AsyncEvent;

/// What an asynchronous event happened to (`struct ibv_async_event`, its union).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum EventElement {
    /// The device as a whole.
    Device,
    /// Its port.
    Port,
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue, by its number in the device.
    Cq(u32),
    /// A shared receive queue, by its number in the device.
    Srq(u32),
}

/// An asynchronous event (`struct ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Event {
    /// What happened.
    pub event: AsyncEvent,
    /// What it happened to.
    pub element: EventElement,
}

/// Asynchronous events, bounded.
#[derive(Debug, Default)]
pub struct EventQueue {
    queue: Mutex<VecDeque<Event>>,
    lost: AtomicU64,
    raised: std::sync::Condvar,
}

impl EventQueue {
    /// Events kept at most; older ones win.
    pub const CAPACITY: usize = 4096;

    /// Appends an event about an object of the device.
    pub fn raise(&self, event: AsyncEvent, element: EventElement) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() < Self::CAPACITY {
            queue.push_back(Event { event, element });
            self.raised.notify_one();
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The oldest event, if there is one.
    pub fn try_get(&self) -> Option<Event> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The oldest event; waits for one at most this long.
    pub fn get_timeout(&self, timeout: core::time::Duration) -> Option<Event> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut queue, _) = self
            .raised
            .wait_timeout_while(queue, timeout, |q| q.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    }

    /// Events that found the queue full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
