//! A controller for tests.

use super::{Event, Instant};

/// Writes down what it is told.
#[derive(Debug)]
pub(in crate::proto) struct Probe {
    /// Packets that may be in flight.
    pub window: u32,
    /// Nothing leaves before.
    pub resumes_at: Instant,
    /// Everything that happened, and when.
    pub events: Vec<(Instant, Event)>,
}

impl Probe {
    pub fn new(window: u32) -> Self {
        Self { window, resumes_at: Instant::FAR, events: Vec::new() }
    }

    pub(super) fn allowance(&self, now: Instant, in_flight: u32) -> u32 {
        let paused = self.resumes_at != Instant::FAR && now < self.resumes_at;
        if paused { 0 } else { self.window.saturating_sub(in_flight) }
    }

    pub(super) fn handle(&mut self, now: Instant, event: Event) {
        if event == Event::Resumed {
            self.resumes_at = Instant::FAR;
        }
        self.events.push((now, event));
    }
}
