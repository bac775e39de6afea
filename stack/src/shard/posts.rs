//! Which queue pairs have new requests: their doorbells were rung, or their send queues are watched.
//!
//! Ringing costs the poster writes to cache lines that the shard reads. So the doorbell of a queue pair with frequent posts is
//! suppressed, as a virtio device suppresses notifications of new buffers (virtio 1.2, 2.7.10): the shard *watches* its send queue, which
//! means polling it each turn, and sets a flag in the published word; posters that see the flag do not ring. Watching ends when nothing
//! was posted for a while ([`WATCH_IDLE`]), and before the shard's thread sleeps.

use arrayvec::ArrayVec;

use super::agenda::Agenda;
use super::qp::Qp;
use super::qps::Qps;
use super::state::Shard;
use crate::config::{READY_BUDGET, WATCH_AFTER, WATCH_GAP, WATCH_IDLE};
use crate::proto::requester::SendRing;
use crate::sync::asymmetric::heavy;
use crate::sync::words::Words;

/// Queue pairs whose doorbells were rung.
pub(super) type Posted = ArrayVec<u32, READY_BUDGET>;

impl Shard {
    /// Marks the queue pairs whose doorbells were rung as ready to send.
    #[inline]
    pub(super) fn run_doorbells(&mut self) {
        if self.env.shared.doorbells[self.env.id].any() {
            self.run_rung();
        }
    }

    #[inline(never)]
    fn run_rung(&mut self) {
        let mut posted = Posted::new();
        self.take_doorbells(&mut posted);
        self.mark_posted(&posted);
    }

    /// Takes doorbells that were rung, and prefetches what sending needs of their queue pairs. [`Self::mark_posted`] follows.
    #[inline(always)]
    pub(super) fn prefetch_posted(&mut self) -> Posted {
        let mut posted = Posted::new();
        if self.env.shared.doorbells[self.env.id].any() {
            self.take_doorbells(&mut posted);
            self.qps.prefetch_senders(&posted, &self.env.agenda.wheel);
        }
        posted
    }

    /// Takes the doorbells that were rung.
    #[inline(always)]
    fn take_doorbells(&self, posted: &mut Posted) {
        self.env.shared.doorbells[self.env.id].drain(READY_BUDGET as u32, |slot| posted.push(slot));
    }

    /// Marks queue pairs whose doorbells were rung as ready to send, and starts to watch those with frequent posts.
    #[inline(always)]
    pub(super) fn mark_posted(&mut self, posted: &[u32]) {
        for &slot in posted {
            let Some(qp) = self.qps.get(slot) else { continue };
            self.env.agenda.mark_ready(qp);
            let soon = self.env.now.nanos_since(qp.posted_at) <= WATCH_GAP.as_nanos() as u64;
            qp.posted_at = self.env.now;
            qp.rings = if soon { qp.rings.saturating_add(1) } else { 0 };
            if qp.rings >= WATCH_AFTER && !qp.watched && !self.env.agenda.watched.is_full() {
                qp.watched = true;
                qp.sq_seen = qp.sq.published();
                self.env.agenda.watched.push(slot);
                qp.publish_word(&self.env.shared.words);
            }
        }
    }

    /// Polls the send queues of watched queue pairs.
    #[inline]
    pub(super) fn run_watched(&mut self) {
        let mut i = 0;
        while let Some(&slot) = self.env.agenda.watched.get(i) {
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.watched) else {
                self.env.agenda.watched.swap_remove(i);
                continue;
            };
            let published = qp.sq.published();
            if published != qp.sq_seen {
                qp.sq_seen = published;
                qp.posted_at = self.env.now;
                self.env.agenda.mark_ready(qp);
            } else if self.env.now.nanos_since(qp.posted_at) > WATCH_IDLE.as_nanos() as u64 {
                self.env.agenda.unwatch(qp, &self.env.shared.words);
                continue; // the next iteration takes it off the list
            }
            i += 1;
        }
    }

    /// Stops watching all queue pairs: from here on posters ring.
    pub(super) fn unwatch_all(&mut self) {
        while let Some(slot) = self.env.agenda.watched.pop() {
            if let Some(qp) = self.qps.get(slot).filter(|qp| qp.watched) {
                self.env.agenda.unwatch(qp, &self.env.shared.words);
            }
        }
    }
}

impl Agenda {
    /// Whether something was posted to a watched queue pair since its send queue was last polled.
    pub fn watched_posts(&self, qps: &Qps) -> bool {
        let posted = |slot: &u32| qps.peek(*slot).is_some_and(|qp| qp.sq.0.published() != qp.sq_seen);
        self.watched.iter().any(posted)
    }

    /// Stops watching: clears the flag in the published word, so that posters ring again. A request that was posted without a ring, because
    /// the poster still saw the flag, is found by the read behind the fence.
    #[cold]
    fn unwatch(&mut self, qp: &mut Qp, words: &Words) {
        qp.watched = false;
        qp.rings = 0;
        qp.publish_word(words);
        heavy();
        if qp.sq.published() != qp.sq_seen {
            self.mark_ready(qp);
        }
    }
}
