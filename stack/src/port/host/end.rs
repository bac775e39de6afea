//! One shard's end of a link: the ring on which it sends, and the rings from which it receives.

use super::budget::{Budget, FIRST, Grant, Unused};
use super::shared::Link;
use super::terms::{LOG2, rings_to};
use crate::config::TX_BURST;
use crate::crc::copy_function;
use crate::port::frame::{Frame, RxBurst};
use crate::port::memif::queue_end::TxEnd;
use crate::port::memif::ring::Attention;
use crate::port::memif::rx::{Received, Rx};
use crate::port::memif::slots::Impossible;
use crate::port::memif::tx::{Burst, Tx};
use crate::port::stall::Stall;
use crate::port::stock::Stock;
use crate::port::traits::Build;
use crate::sync::eventfd::EventFd;
use arrayvec::ArrayVec;
use core::time::Duration;
use std::sync::{Arc, Weak};

/// A shard's end of a link.
pub(super) struct End {
    /// The link.
    pub link: Arc<Link>,
    /// The rings from which this shard receives.
    pub rx: Vec<Rx>,
    /// The ring on which it sends.
    pub tx: TxEnd,
    /// The ring's share of the memory budget; and memory of the ring that waits for the keeper to return it to the system.
    grant: Grant,
    given_up: Weak<Unused>,
    /// The ring's next slot at the last check for idle links.
    sent_before: u16,
    /// Detects that the peer consumes no frames.
    pub stall: Stall,
    /// Whether the rings are polled in each burst, and how many polls in a row found nothing.
    pub is_near: bool,
    pub idle: u32,
    /// Whether the shard's epoll instance has the link's socket.
    pub is_watched: bool,
}

impl End {
    /// The end of shard `shard`, of `shards` in this process.
    ///
    /// # Errors
    /// The rings are outside the link's memory.
    pub fn new(
        link: Arc<Link>,
        shard: usize,
        shards: usize,
        stall: Duration,
        budget: &Arc<Budget>,
    ) -> Result<Self, String> {
        let (connection, max_frame) = (&link.connection, link.max_frame);
        let ring = |number| {
            let (ring, buffers) = connection.receiving(number)?;
            let mut rx = Rx::new(ring, buffers, copy_function(), max_frame);
            rx.look_when(Attention::News);
            Ok(rx)
        };
        let rx = rings_to(shard, shards, link.their_queues).map(ring).collect::<Result<_, String>>()?;
        let (ring, buffers) = connection.sending(shard)?;
        let tx = TxEnd::new(Tx::growing(ring, buffers, max_frame, FIRST));
        Ok(Self {
            link,
            rx,
            tx,
            grant: Grant::new(budget),
            given_up: Weak::new(),
            sent_before: 0,
            stall: Stall::new(stall),
            is_near: false,
            idle: 0,
            is_watched: false,
        })
    }

    /// Sends frames until the ring is full; uses more buffers if the budget allows.
    ///
    /// # Errors
    /// The peer set an index to an impossible value.
    #[inline]
    pub fn send(&mut self, frames: &[Frame], keeper: &EventFd) -> Result<Burst, Impossible> {
        let mut done = self.tx.burst(frames)?;
        while self.tx.wants_more() && done.taken < frames.len() && self.use_more(keeper) {
            let more = self.tx.burst(&frames[done.taken..])?;
            done.taken += more.taken;
            done.dropped += more.dropped;
            done.bytes += more.bytes;
        }
        Ok(done)
    }

    /// Has `builder` build frames in the ring: see [`Tx::build`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn build(
        &mut self,
        most: usize,
        builder: &mut dyn Build,
        keeper: &EventFd,
    ) -> Result<Option<ArrayVec<u32, TX_BURST>>, Impossible> {
        let lens = self.tx.build(most, builder)?;
        if self.tx.wants_more() && self.use_more(keeper) {
            // All buffers were in flight, so the first call built nothing.
            return self.tx.build(most, builder);
        }
        Ok(lens)
    }

    /// Uses more buffers, as all are in flight, if the budget allows. Returns whether it does. Also wakes the keeper, which then wakes
    /// sleeping shards periodically, so that they return buffers that are idle.
    #[cold]
    fn use_more(&mut self, keeper: &EventFd) -> bool {
        let more = self.tx.bytes_of(0..self.tx.count());
        let has_more = self.given_up.strong_count() == 0 && self.grant.take(more.len());
        if has_more {
            self.tx.grow();
            keeper.signal();
        }
        has_more
    }

    /// Goes back to few buffers, if nothing was sent since the last call. Returns the memory of the others.
    pub fn use_few_when_idle(&mut self, budget: &Arc<Budget>) -> Option<Arc<Unused>> {
        let next = self.tx.next();
        let is_idle = core::mem::replace(&mut self.sent_before, next) == next;
        if !is_idle || self.tx.count() <= FIRST || !self.tx.shrink_to(FIRST) {
            return None;
        }
        let grant = core::mem::replace(&mut self.grant, Grant::new(budget));
        let unused =
            Arc::new(Unused::new(&self.link.connection.region, self.tx.bytes_of(FIRST..1 << LOG2), grant));
        self.given_up = Arc::downgrade(&unused);
        Some(unused)
    }

    /// Receives up to `most` frames from each ring.
    ///
    /// # Errors
    /// The peer set an index to an impossible value.
    pub fn receive(
        &mut self,
        most: usize,
        out: &mut RxBurst,
        stock: &mut Stock,
    ) -> Result<Received, Impossible> {
        let mut all = Received::default();
        for rx in &mut self.rx {
            let got = rx.burst_of(most, out, stock)?;
            all.frames += got.frames;
            all.bytes += got.bytes;
            all.dropped += got.dropped;
        }
        Ok(all)
    }

    /// Publishes when this shard polls the rings: in each burst, or after a notification.
    pub fn look_when(&mut self, attention: Attention) {
        (self.is_near, self.idle) = (attention == Attention::Polled, 0);
        self.rx.iter_mut().for_each(|rx| rx.look_when(attention));
    }

    /// Whether a ring holds frames that were not received.
    pub fn has_more(&self) -> bool {
        self.rx.iter().any(|rx| rx.unread() > 0)
    }

    /// Returns the slots of received frames to the peer.
    pub fn give_back(&mut self) {
        self.rx.iter_mut().for_each(Rx::give_back);
    }
}
