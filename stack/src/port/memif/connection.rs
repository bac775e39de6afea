//! An established connection of a memif, as queues use it: its memory, its rings, and the events that wake who receives.

use super::region::Layout;
use super::ring::{Lent, Ring};
use super::shm::Region;
use super::slots::Buffers;
use crate::sync::lock::lock;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// A connection, as queues use it.
pub struct Connection {
    /// Its memory.
    pub region: Arc<Region>,
    /// A client's layout; `None` for a server, which reads it from the descriptors.
    pub layout: Option<Layout>,
    /// Rings on which this end receives.
    pub rx: Vec<RingLocation>,
    /// Rings on which it sends.
    pub tx: Vec<RingLocation>,
    /// Where these lend buffers: each until its ring is taken.
    pub lent: Vec<Mutex<Option<Lent>>>,
    /// This connection's number, once it is in use.
    pub number: u64,
}

/// Where a ring is, and the event that wakes its receiver.
pub struct RingLocation {
    /// Where it begins.
    pub offset: u32,
    /// Base-2 logarithm of its slots.
    pub log2: u8,
    /// Wakes the receiver.
    pub event: Arc<OwnedFd>,
}

/// What a queue needs of a connection.
pub struct Rings {
    /// Ring and buffers to receive from.
    pub rx: (Ring, Buffers),
    /// Ring and buffers to send to.
    pub tx: (Ring, Buffers),
    /// Wakes the peer, which receives on `tx`.
    pub event: Arc<OwnedFd>,
    /// The peer wakes us with this.
    pub our_event: Arc<OwnedFd>,
}

impl Connection {
    /// The rings of a queue.
    pub fn rings(&self, queue: usize) -> Result<Rings, String> {
        let ring = |at: &RingLocation| Ring::new(&self.region, at.offset, at.log2);
        let buffers = |to_server| match &self.layout {
            Some(layout) => Buffers::Ours { first: layout.buffers(to_server, queue), size: layout.buffer },
            None => Buffers::Theirs,
        };
        let (rx, tx) = (&self.rx[queue], &self.tx[queue]);
        let mut to_peer = ring(tx)?;
        if let Some(lent) = lock(&self.lent[queue]).take() {
            to_peer.lend(lent);
        }
        Ok(Rings {
            rx: (ring(rx)?, buffers(false)),
            tx: (to_peer, buffers(true)),
            event: Arc::clone(&tx.event),
            our_event: Arc::clone(&rx.event),
        })
    }
}
