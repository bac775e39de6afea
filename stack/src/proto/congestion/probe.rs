//! A controller for tests.

use super::{Event, Instant};

/// Writes down what it is told.
#[derive(Debug)]
pub(in crate::proto) struct Probe {
    /// Packets that may be in flight.
    pub window: u32,
    /// Everything that happened, and when.
    pub events: Vec<(Instant, Event)>,
}

impl Probe {
    pub fn new(window: u32) -> Self {
        Self { window, events: Vec::new() }
    }

    pub(super) fn handle(&mut self, now: Instant, event: Event) {
        self.events.push((now, event));
    }
}
