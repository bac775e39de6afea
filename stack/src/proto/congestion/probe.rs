//! A controller for tests.

use super::{Event, Instant};

/// Records the events.
#[derive(Debug)]
pub(in crate::proto) struct Probe {
    /// Packets that may be in flight.
    pub window: u32,
    /// Nothing may be sent before this time.
    pub resumes_at: Instant,
    /// Every event, and when it happened.
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
