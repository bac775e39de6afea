//! Queue pairs whose peer's process has ended, on their way to connection management, which notifies their programs.

use std::sync::{Arc, Mutex};

use crate::id::Qpn;
use crate::sync::alarm::Alarm;
use crate::sync::lock::lock;

/// The queue pairs, until the device's service takes them.
#[derive(Debug)]
pub struct EndedPeers {
    qpns: Mutex<Vec<Qpn>>,
    /// Capacity: the number of queue pairs of the device.
    most: usize,
    /// The alarm of the service.
    alarm: Arc<Alarm>,
}

impl EndedPeers {
    /// An empty list with a capacity of `most`.
    pub fn new(most: usize) -> Self {
        Self { qpns: Mutex::default(), most, alarm: Arc::default() }
    }

    /// Adds a queue pair for the service to handle.
    pub fn add(&self, qpn: Qpn) {
        let mut qpns = lock(&self.qpns);
        if qpns.len() >= self.most {
            qpns.clear(); // no service takes them
        }
        qpns.push(qpn);
        drop(qpns);
        self.alarm.ring();
    }

    /// Takes all queue pairs.
    pub fn take(&self) -> Vec<Qpn> {
        core::mem::take(&mut *lock(&self.qpns))
    }

    /// The alarm that rings for each added queue pair.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}
