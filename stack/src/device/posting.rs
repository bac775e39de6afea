//! Posting: how requests get from a program's thread into a ring of a queue pair, without its shard.
//!
//! A [`Poster`] is the producer end of a queue. One post is a [`Batch`]. It begins if the state of the queue pair permits posting; its
//! end publishes all requests at once, and rings the doorbell if needed. A batch that is dropped, as when an iterator of the program
//! panics, posts nothing.

use core::fmt;
use core::marker::PhantomData;
use core::ops::DerefMut;
use std::sync::Arc;

use crate::config::SHARDS_MAX;
use crate::id::{QpState, QpType};
use crate::proto::state::Gates;
use crate::proto::wqe::{Granule, SendWqe};
use crate::shard::Shared;
use crate::sync::asymmetric;
use crate::sync::spsc::Producer;
use crate::sync::words::Word;

/// Why a queue pair accepts no posts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateClosed {
    /// The queue pair is in this state.
    State(QpState),
    /// Its shard, with this number, died of a panic.
    ShardDied(usize),
}

/// A queue has no room for another request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// Number of requests that the queue holds.
    pub depth: u32,
}

/// The differences between the two queues of a queue pair.
pub trait Side: 'static {
    /// The gate that must be open for posting.
    const GATE: Gates;
    /// Whether its requests are send requests.
    const SENDS: bool;
    /// Whether new requests need a doorbell, given the last published word.
    fn rings(word: Word) -> bool;
}

/// Send queues.
#[derive(Debug)]
pub struct SendSide;

impl Side for SendSide {
    const GATE: Gates = Gates::POST_SEND;
    const SENDS: bool = true;
    #[inline]
    fn rings(word: Word) -> bool {
        !word.is_watched()
    }
}

/// Receive queues.
#[derive(Debug)]
pub struct RecvSide;

impl Side for RecvSide {
    const GATE: Gates = Gates::POST_RECV;
    const SENDS: bool = false;
    /// The shard finds receive requests when a message arrives; only requests posted in ERR need a doorbell, so that they are flushed.
    #[inline]
    fn rings(word: Word) -> bool {
        Gates::from_bits(word.gates()).has(Gates::FLUSH_RQ)
    }
}

/// The signals between the posters of a queue pair and its shard, besides the rings: its published word, and its doorbell.
#[derive(Clone, Debug)]
pub(super) struct QpSignals {
    pub shared: Arc<Shared>,
    /// Index in the device's table of words.
    pub index: u32,
    pub shard: u8,
    /// Whether every send request generates a completion.
    pub sq_sig_all: bool,
    /// Whether its requests are datagrams.
    pub is_datagram: bool,
}

const _: () = assert!(SHARDS_MAX <= u8::MAX as usize + 1);

impl QpSignals {
    pub(super) fn new(shared: Arc<Shared>, shard: usize, slot: u32, ty: QpType, sq_sig_all: bool) -> Self {
        let index = shard as u32 * shared.qps_per_shard as u32 + slot;
        let is_datagram = matches!(ty, QpType::Ud | QpType::Gsi);
        Self { shared, index, shard: shard as u8, sq_sig_all, is_datagram }
    }
    #[inline]
    pub(super) fn word(&self) -> Word {
        self.shared.words.load(self.index)
    }
    /// Slot of the queue pair in its shard.
    #[inline]
    pub(super) fn slot(&self) -> u32 {
        self.index - u32::from(self.shard) * self.shared.qps_per_shard as u32
    }
    /// The epoch, if this gate is open.
    #[inline]
    fn pass(&self, gate: Gates) -> Result<u32, GateClosed> {
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
    #[inline]
    fn ring_doorbell(&self) {
        self.shared.doorbells[usize::from(self.shard)].ring(self.slot());
        self.shared.sleeper.wake_for(1 << self.shard);
    }
    #[inline]
    fn prefetch(&self) {
        self.shared.words.prefetch(self.index);
        self.shared.doorbells[usize::from(self.shard)].prefetch(self.slot());
    }
}

/// The state in a published word.
pub(super) fn state_of(word: Word) -> QpState {
    QpState::from_enum(word.state()).unwrap_or(QpState::Reset)
}

/// The posting end of a queue: its owner may post. It is small, so that it shares a cache line with the handle that owns it.
pub struct Poster<Q> {
    ring: Producer<Granule>,
    signals: QpSignals,
    side: PhantomData<Q>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Option<Poster<SendSide>>>() == 48);

/// The posting end of a send queue.
pub type SendPoster = Poster<SendSide>;
/// The posting end of a receive queue.
pub type RecvPoster = Poster<RecvSide>;

impl<Q: Side> Poster<Q> {
    pub(super) fn new(ring: Producer<Granule>, signals: QpSignals) -> Self {
        Self { ring, signals, side: PhantomData }
    }
    /// Begins a post.
    ///
    /// # Errors
    /// [`GateClosed`].
    #[inline]
    pub fn begin(&mut self) -> Result<Batch<&mut Self>, GateClosed> {
        Ok(Batch { epoch: self.signals.pass(Q::GATE)?, put: 0, poster: self })
    }
    /// Makes the next `n` requests visible to the shard.
    #[inline]
    fn publish(&mut self, n: u32) {
        self.ring.publish(n);
        // Here: publish, fence, read the word. In the shard: publish the word (the send queue is no longer watched; or the state is ERR),
        // heavy fence, read the ring. So either the poster sees the word, or the shard sees the request.
        asymmetric::light();
        if Q::rings(self.signals.word()) {
            self.signals.ring_doorbell();
        }
        if Q::SENDS && self.signals.is_datagram {
            self.signals.shared.unsent.add(self.signals.shard);
        }
    }
    /// Prefetches what posting `n` requests touches.
    #[inline]
    pub fn prefetch(&self, n: u32) {
        self.ring.prefetch(n);
        self.signals.prefetch();
    }
    /// Number of requests that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.ring.free()
    }
    /// Number of requests that are posted and not yet released by the shard.
    pub fn in_use(&self) -> u32 {
        self.ring.in_use()
    }
}

impl<Q> fmt::Debug for Poster<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("index", &self.signals.index).finish_non_exhaustive()
    }
}

/// Requests that are being posted to a queue. If the batch is dropped, nothing is posted.
#[must_use = "nothing is posted without post()"]
pub struct Batch<P> {
    poster: P,
    /// The epoch of the queue pair that the requests are for.
    epoch: u32,
    /// Number of requests written to slots.
    put: u32,
}

impl<Q: Side, P: DerefMut<Target = Poster<Q>>> Batch<P> {
    /// Number of requests in the batch.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.put
    }
    /// Whether every send request generates a completion.
    #[inline]
    pub fn sq_sig_all(&self) -> bool {
        self.poster.signals.sq_sig_all
    }
    /// The slot of the next request: the same one until it is [`put`](Self::put).
    ///
    /// # Errors
    /// [`Full`].
    #[inline(always)]
    pub fn slot(&mut self) -> Result<&mut [Granule], Full> {
        let full = Full { depth: self.poster.ring.slots() };
        self.poster.ring.slot(self.put).ok_or(full)
    }
    /// Adds a request, which `write` encodes into a slot for an epoch.
    ///
    /// # Errors
    /// [`Full`].
    #[inline(always)]
    pub fn put(&mut self, write: impl FnOnce(&mut [Granule], u32)) -> Result<(), Full> {
        let Some(slot) = self.poster.ring.slot(self.put) else {
            return Err(Full { depth: self.poster.ring.slots() });
        };
        write(slot, self.epoch);
        self.put += 1;
        Ok(())
    }
    /// Posts all requests of the batch at once.
    #[inline]
    pub fn post(mut self) {
        if self.put > 0 {
            self.poster.publish(self.put);
        }
    }
}

impl<P: DerefMut<Target = SendPoster>> Batch<P> {
    /// Begins a list that the program builds with several calls, in any state of the queue pair: [`complete`](Self::complete) checks
    /// whether it may be posted.
    #[inline]
    pub fn start(poster: P) -> Self {
        Self { epoch: poster.signals.word().epoch(), put: 0, poster }
    }
    /// Posts all requests of the batch, if the state permits it now.
    ///
    /// # Errors
    /// [`GateClosed`]; nothing is posted then.
    #[inline]
    pub fn complete(mut self) -> Result<(), GateClosed> {
        if self.put == 0 {
            return Ok(());
        }
        let epoch = self.poster.signals.pass(SendSide::GATE)?;
        if epoch != self.epoch {
            self.restamp(epoch);
        }
        self.post();
        Ok(())
    }
    /// A RESET raised the epoch while the list was built: moves its requests to the new epoch.
    #[cold]
    fn restamp(&mut self, epoch: u32) {
        for ahead in 0..self.put {
            if let Some(slot) = self.poster.ring.slot(ahead) {
                SendWqe::restamp(slot, epoch);
            }
        }
    }
}

impl<P: fmt::Debug> fmt::Debug for Batch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("poster", &self.poster).field("put", &self.put).finish_non_exhaustive()
    }
}
