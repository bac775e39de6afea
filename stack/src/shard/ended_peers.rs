//! Queue pairs whose peer's process has ended: connection management tells their programs.

use std::sync::{Arc, Mutex};

use crate::id::Qpn;
use crate::sync::alarm::Alarm;
use crate::sync::lock::lock;

/// The queue pairs, until the service of the device takes them.
#[derive(Debug)]
pub struct EndedPeers {
    qpns: Mutex<Vec<Qpn>>,
    /// How many there may be: as many as the device has queue pairs.
    most: usize,
    /// That of the service.
    alarm: Arc<Alarm>,
}

impl EndedPeers {
    /// None yet, and as many as this at most.
    pub fn new(most: usize) -> Self {
        Self { qpns: Mutex::default(), most, alarm: Arc::default() }
    }

    /// Has the service look at a queue pair.
    pub fn add(&self, qpn: Qpn) {
        let mut qpns = lock(&self.qpns);
        if qpns.len() >= self.most {
            qpns.clear(); // there is no service that takes them
        }
        qpns.push(qpn);
        drop(qpns);
        self.alarm.ring();
    }

    /// Takes them.
    pub fn take(&self) -> Vec<Qpn> {
        core::mem::take(&mut *lock(&self.qpns))
    }

    /// The alarm that rings for each.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}
