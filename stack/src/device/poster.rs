//! The posting side of a queue pair: what a program's thread uses without its shard.

use core::fmt;
use std::sync::Arc;

use super::handle::Device;
use crate::config::SHARDS_MAX;
use crate::id::QpState;
use crate::proto::state::Gates;
use crate::proto::wqe::Granule;
use crate::sync::asymmetric;
use crate::sync::doorbell::Doorbells;
use crate::sync::spsc::Producer;
use crate::sync::words::Word;

/// The posting end of a queue: its holder may post.
pub struct RingTap(pub(super) Producer<Granule>);

impl RingTap {
    /// The slot for the `ahead`-th request that is not published yet; `None` when the queue is full.
    #[inline]
    pub fn slot(&mut self, ahead: u32) -> Option<&mut [Granule]> {
        self.0.slot(ahead)
    }
    /// Makes the next `n` requests visible to the shard.
    #[inline]
    pub fn publish(&mut self, n: u32) {
        self.0.publish(n);
    }
    /// Prefetches what posting the next `n` requests touches.
    #[inline]
    pub fn prefetch(&self, n: u32) {
        self.0.prefetch(n);
    }
    /// Requests that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.0.free()
    }
    /// Requests that are posted and not released by the shard.
    pub fn in_use(&self) -> u32 {
        self.0.in_use()
    }
    /// Requests that the queue holds.
    pub fn depth(&self) -> u32 {
        self.0.slots()
    }
}

impl fmt::Debug for RingTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingTap").field("depth", &self.depth()).finish()
    }
}

/// Why nothing can be posted to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateClosed {
    /// It is in this state.
    State(QpState),
    /// Its shard, with this number, died of a panic.
    ShardDied(usize),
}

/// What posting needs of a queue pair beside the ring. It is small, so that it shares a cache line with the handle that has it.
#[derive(Clone)]
pub struct Poster {
    device: Arc<Device>,
    /// Index in the device's table of words.
    index: u32,
    shard: u8,
    sq_sig_all: bool,
}

const _: () = assert!(size_of::<Poster>() == 16 && SHARDS_MAX <= u8::MAX as usize + 1);

impl Poster {
    pub(super) fn new(device: Arc<Device>, shard: usize, slot: u32, sq_sig_all: bool) -> Self {
        let index = shard as u32 * device.core().shared.qps_per_shard as u32 + slot;
        Self { device, index, shard: shard as u8, sq_sig_all }
    }
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Index in the device's table of words.
    pub(super) fn index(&self) -> u32 {
        self.index
    }
    pub(super) fn shard(&self) -> usize {
        self.shard.into()
    }
    #[inline]
    pub(super) fn word(&self) -> Word {
        self.device.words().load(self.index)
    }
    /// Its index in its shard.
    #[inline]
    pub(super) fn slot(&self) -> u32 {
        self.index - u32::from(self.shard) * self.device.core().shared.qps_per_shard as u32
    }
    #[inline]
    fn gate(&self, gate: Gates) -> Result<u32, GateClosed> {
        let word = self.word();
        if Gates::from_bits(word.gates()).has(gate) { Ok(word.epoch()) } else { Err(self.closed(word)) }
    }
    #[cold]
    fn closed(&self, word: Word) -> GateClosed {
        if word.is_dead() {
            GateClosed::ShardDied(self.shard.into())
        } else {
            GateClosed::State(state_of(word))
        }
    }
    /// Prefetches what a poster checks before it posts, and the doorbell.
    #[inline]
    pub fn prefetch(&self) {
        self.device.words().prefetch(self.index);
        self.doorbells().prefetch(self.slot());
    }
    /// Whether every send request makes a completion.
    #[inline]
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }
    /// The epoch under which a send request may be posted, or why none may be.
    ///
    /// # Errors
    /// [`GateClosed`].
    #[inline]
    pub fn may_post_send(&self) -> Result<u32, GateClosed> {
        self.gate(Gates::POST_SEND)
    }
    /// The epoch under which a receive request may be posted, or why none may be.
    ///
    /// # Errors
    /// [`GateClosed`].
    #[inline]
    pub fn may_post_recv(&self) -> Result<u32, GateClosed> {
        self.gate(Gates::POST_RECV)
    }
    /// Notifies the shard of send requests that were published.
    #[inline]
    pub fn send_posted(&self) {
        // Here: publish, fence, read the flag. In the shard: clear the flag, heavy fence, read the ring. One of the two sees the
        // other.
        asymmetric::light();
        if !self.word().is_watched() {
            self.ring();
        }
    }
    /// Notifies the shard of receive requests that were published, where needed: the shard finds them when a message arrives, but
    /// requests that are posted in ERR have to be flushed.
    #[inline]
    pub fn recv_posted(&self) {
        // Here: publish, fence, read the state. In the shard: publish the state, heavy fence, read the ring. One of the two sees
        // the other.
        asymmetric::light();
        if Gates::from_bits(self.word().gates()).has(Gates::FLUSH_RQ) {
            self.ring();
        }
    }
    /// Rings the queue pair's doorbell.
    #[inline]
    fn ring(&self) {
        self.doorbells().ring(self.slot());
        self.device.core().shared.sleeper.wake_for(1 << self.shard);
    }
    #[inline]
    fn doorbells(&self) -> &Doorbells {
        self.device.doorbells(self.shard.into())
    }
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("index", &self.index).finish_non_exhaustive()
    }
}

/// The state that a word says.
pub(super) fn state_of(word: Word) -> QpState {
    QpState::from_enum(word.state()).unwrap_or(QpState::Reset)
}
