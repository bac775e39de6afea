//! An established connection, as queues use it: its memory, its rings, and the eventfds that wake a receiver. The setup of a connection and
//! the detection of its end are elsewhere; a memif uses its control socket for both.

use super::region::Layout;
use super::ring::{self, Lent, Ring};
use super::shm::Region;
use super::slots::Buffers;
use crate::sync::lock::lock;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// A connection, as queues use it.
pub struct Connection {
    /// Its shared memory.
    pub region: Arc<Region>,
    /// Rings on which this end receives.
    pub rx: Vec<RingLocation>,
    /// Rings on which this end sends.
    pub tx: Vec<RingLocation>,
    /// The parts of memory in which the send rings lend buffers, each until its ring is taken.
    pub lent: Vec<Mutex<Option<Lent>>>,
    /// The eventfds that wake receivers: of the rings on which this end sends, and of the rings on which it receives.
    pub events: Events,
    /// This connection's number, once it is in use.
    pub number: u64,
}

/// For each ring of both directions, the eventfd that wakes its receiver. Empty if the two ends wake each other by other means.
pub type Events = [Vec<Arc<OwnedFd>>; 2];

/// The location of a ring and its buffers.
pub struct RingLocation {
    /// Its offset in the memory.
    pub offset: u32,
    /// Base-2 logarithm of its slots.
    pub log2: u8,
    /// Its buffers.
    pub buffers: Buffers,
}

/// A ring and its buffers.
pub type RingEnd = (Ring, Buffers);

/// The rings of one direction.
fn rings(layout: &Layout, to_server: bool, buffers: impl Fn(usize) -> Buffers) -> Vec<RingLocation> {
    let location = |index| RingLocation {
        offset: layout.ring(to_server, index),
        log2: layout.log2,
        buffers: buffers(index),
    };
    (0..layout.queues).map(location).collect()
}

impl Connection {
    /// The connection of a memif client, which has laid out the memory.
    pub fn of_client(layout: Layout, region: Arc<Region>, events: Events) -> Self {
        let tx = rings(&layout, true, |index| layout.buffers(true, index));
        let rx = rings(&layout, false, |index| layout.buffers(false, index));
        Self { events, ..Self::new(&layout, true, region, rx, tx) }
    }

    /// The connection of an end of which each has laid out the buffers of the rings on which it sends. It has no eventfds.
    pub fn of_equal(layout: Layout, region: Arc<Region>, is_client: bool) -> Self {
        let tx = rings(&layout, is_client, |index| layout.buffers(is_client, index));
        let rx = rings(&layout, !is_client, |_| Buffers::Theirs);
        Self::new(&layout, is_client, region, rx, tx)
    }

    /// The connection of an end that has laid out the buffers of the rings on which it sends.
    fn new(
        layout: &Layout,
        is_client: bool,
        region: Arc<Region>,
        rx: Vec<RingLocation>,
        tx: Vec<RingLocation>,
    ) -> Self {
        let wanted: Vec<_> = (0..tx.len()).map(|index| layout.room(is_client, index)).collect();
        let lent = lent(&region, &wanted);
        Self { region, rx, tx, lent, events: Events::default(), number: 0 }
    }

    /// The connection of a memif server, to which the client sent the locations of the rings.
    ///
    /// # Errors
    /// No ring is at one of these locations.
    pub fn of_server(
        region: Arc<Region>,
        rx: Vec<RingLocation>,
        tx: Vec<RingLocation>,
        events: Events,
    ) -> Result<Self, String> {
        for RingLocation { offset, log2, .. } in rx.iter().chain(&tx) {
            if !Ring::new(&region, *offset, *log2)?.is_marked() {
                return Err(format!("there is no ring at {offset}: its cookie is another one"));
            }
        }
        // Frames are built in place only in buffers at the locations that the descriptors name now; other buffers are copied to.
        let described = |at: &RingLocation| Ring::new(&region, at.offset, at.log2).ok()?.described();
        let wanted: Vec<_> = tx.iter().map(|at| described(at).unwrap_or((0, 0))).collect();
        let lent = lent(&region, &wanted);
        Ok(Self { region, rx, tx, lent, events, number: 0 })
    }

    /// The receive ring with this number.
    ///
    /// # Errors
    /// The ring is not in the region.
    pub fn receiving(&self, index: usize) -> Result<RingEnd, String> {
        self.end(&self.rx[index])
    }

    /// The send ring with this number. Only the first caller can build frames in the ring's buffers.
    ///
    /// # Errors
    /// The ring is not in the region.
    pub fn sending(&self, index: usize) -> Result<RingEnd, String> {
        let (mut ring, buffers) = self.end(&self.tx[index])?;
        if let Some(lent) = lock(&self.lent[index]).take() {
            ring.lend(lent);
        }
        Ok((ring, buffers))
    }

    fn end(&self, at: &RingLocation) -> Result<RingEnd, String> {
        Ok((Ring::new(&self.region, at.offset, at.log2)?, at.buffers))
    }
}

fn lent(region: &Arc<Region>, wanted: &[(u32, u32)]) -> Vec<Mutex<Option<Lent>>> {
    ring::divide(region, wanted).into_iter().map(|lent| Mutex::new(Some(lent))).collect()
}
