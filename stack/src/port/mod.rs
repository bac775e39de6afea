//! Turns memory into frames on a link and back: DPDK devices, and links without DPDK for tests.
//!
//! A port never looks into a frame beyond the Ethernet addresses, never blocks, and never keeps a frame
//! whose owner is gone. `device` opens ports; each shard owns one [`PortQueue`] and moves bursts through it.

use crate::config;
use crate::id::Mac;

pub mod frame;
mod spec;

pub use frame::{Frame, HeapPool};
pub use spec::{MemifRole, PortSpec};

/// Frames that a queue received in one burst.
pub type RxBurst = arrayvec::ArrayVec<Frame, { config::RX_BURST }>;
/// Frames that wait to be sent, oldest first.
pub type TxBurst = arrayvec::ArrayVec<Frame, { config::TX_BURST }>;

/// Bytes of an Ethernet header with one VLAN tag: what a frame has beside its L3 packet.
pub const L2_OVERHEAD: usize = 18;

/// One queue of a port: frames in, frames out, buffers. One shard owns it and calls it from one thread at a time.
pub trait PortQueue: Send {
    /// Appends received frames to `out` while it has room; returns how many.
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize;

    /// Takes frames off the front of `frames` as long as the link accepts them; returns how many.
    ///
    /// The rest stays in order, for the next turn. A frame that can never be sent (too long for the port) is
    /// taken as well and counted under [`PortStats::tx_dropped`].
    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize;

    /// An empty frame that holds at least the port's [`max_frame`](PortInfo::max_frame) bytes; `None` while
    /// all buffers are in use.
    fn alloc(&mut self) -> Option<Frame>;

    /// Gives frames back that are done with. Dropping them does the same; this is quicker for a whole burst.
    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear();
    }

    /// The calling thread takes over the queue.
    fn claimed(&mut self) {}

    /// The calling thread is about to leave the queue to another one.
    fn released(&mut self) {}
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The specification it was opened with, for messages.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest L3 packet, in bytes.
    pub mtu: usize,
    /// Number of queues.
    pub queues: usize,
}

impl PortInfo {
    /// Bytes of the longest frame: Ethernet header, VLAN tag and an L3 packet of [`mtu`](Self::mtu) bytes.
    pub fn max_frame(&self) -> usize {
        self.mtu + L2_OVERHEAD
    }
}

/// Counters of a port since it was opened, over all of its queues.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames lost on the way in: no buffer, no room in a queue, too long.
    pub rx_dropped: u64,
    /// Frames that could not be sent: too long for the port, or the peer's queue was full for good.
    pub tx_dropped: u64,
    /// Times the port was stopped and started again, after its peer went away.
    pub restarts: u64,
}

/// A link's end: a factory of queues, and what concerns all of them.
pub trait Port: Send + Sync {
    /// What the port is.
    fn info(&self) -> &PortInfo;

    /// The queue with this number, once; `None` when it is taken or does not exist.
    ///
    /// The queue keeps the port's device open.
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>>;

    /// Whether a frame that is sent now has a chance to arrive.
    fn link_up(&self) -> bool;

    /// Looks after the link: reconnects where a peer came back, flushes captures. Cheap; to be called about
    /// every 10 ms, from one thread or several.
    fn maintain(&self) {}

    /// The counters.
    fn stats(&self) -> PortStats;
}

/// How to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Number of queues, at least 1: one for each shard.
    pub queues: usize,
    /// Largest L3 packet in bytes. The default, 4200, carries the path MTU 4096.
    pub mtu: usize,
    /// The Ethernet address; a random, locally administered one (or the device's own) where absent.
    pub mac: Option<Mac>,
    /// Buffers for each queue beyond those that sit in the device's own rings.
    pub frames: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { queues: 1, mtu: 4200, mac: None, frames: 4096 }
    }
}

/// Why a port could not be opened: one sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The specification is not one of a port.
    #[error("port {spec:?}: {reason}")]
    Spec {
        /// The text.
        spec: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The options do not fit the port.
    #[error("port options: {0}")]
    Options(String),
    /// The port needs DPDK, and this build has none.
    #[error("port {0:?} needs DPDK, which this build leaves out: build with the feature \"dpdk\"")]
    NoDpdk(String),
    /// DPDK's environment could not be started.
    #[error("DPDK: {0}")]
    Eal(String),
    /// The device could not be opened.
    #[error("port {port:?}: {reason}")]
    Open {
        /// The port's specification.
        port: String,
        /// What failed, and what to do about it.
        reason: String,
    },
}
