//! Which links a shard polls: the few busy ones in each burst, and those with a notification. And what it signals to peers: notifications
//! and wake-ups.

use super::id::{LinkId, Links};
use super::news::TOGETHER;
use super::queue::{ALL_EVERY, LinkQueue, NEAR, TURN};
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::LOOK_AGAIN;
use crate::port::memif::ring::Attention;
use crate::sync::news;
use std::time::Instant;

/// Bursts without a frame after which a link is no longer polled in each burst, if more links exist than [`NEAR`].
const NEAR_FOR: u32 = 4096;

impl LinkQueue {
    /// Whether any link has a notification.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.shared.news.has_any(self.index, self.pieces())
    }

    /// The links with a notification.
    #[inline]
    pub(super) fn told(&self) -> Links {
        let mut links = Links::default();
        for at in 0..self.pieces() {
            links.add_of(at, self.shared.news.told(self.index, at));
        }
        links
    }

    /// How many groups of sixteen bytes of the notification page are in use.
    #[inline]
    fn pieces(&self) -> usize {
        self.order.last().map_or(0, |last| usize::from(*last) / TOGETHER + 1)
    }

    /// Receives up to [`TURN`] frames from a link, and returns how many.
    #[inline]
    pub(super) fn look_at(&mut self, link: u8, is_told: bool, out: &mut RxBurst) -> usize {
        if is_told {
            // Cleared before the ring is read: frames that arrive from now on set it again.
            self.shared.news.take(self.index, LinkId(link));
        }
        let got = self.receive_from(link, TURN, out);
        let Some(end) = &mut self.ends[usize::from(link)] else { return got };
        let is_near = end.is_near;
        end.idle = if got > 0 { 0 } else { end.idle.saturating_add(1) };
        if is_near && end.idle >= NEAR_FOR && self.order.len() > NEAR {
            self.look_away(link);
        } else if !is_near && is_told && end.has_more() {
            self.shared.news.tell(self.index, LinkId(link));
        }
        if got > 0 && !is_near && self.near.len() < NEAR {
            self.look_often(link);
        }
        got
    }

    /// Has a link polled in each burst from now on.
    #[cold]
    fn look_often(&mut self, link: u8) {
        if let Some(end) = &mut self.ends[usize::from(link)]
            && self.near.try_push(link).is_ok()
        {
            end.look_when(Attention::Polled);
        }
    }

    /// Has a link polled only after a notification.
    #[cold]
    fn look_away(&mut self, link: u8) {
        self.near.retain(|near| *near != link);
        if let Some(end) = &mut self.ends[usize::from(link)] {
            end.look_when(Attention::News);
            news::quiet();
            // Has the next burst poll the link once more.
            self.shared.news.tell(self.index, LinkId(link));
        }
    }

    /// Sets a notification for each link, so that the next bursts poll all of them, if the interval is over.
    #[cold]
    pub(super) fn tell_of_all(&mut self) {
        let now = Instant::now();
        if now < self.all_at {
            return;
        }
        self.all_at = now + ALL_EVERY;
        self.use_few_when_idle(now);
        for link in &self.order {
            self.shared.news.tell(self.index, LinkId(*link));
        }
    }

    /// Frames were sent on a link. `sleeps`: the receiver does not poll it in each burst.
    #[inline]
    pub(super) fn has_sent(&mut self, link: u8, sleeps: bool) {
        if sleeps {
            self.tell(link);
        }
        if !self.sent.contains(&link) {
            let _ = self.sent.try_push(link);
            if self.look_in == 0 {
                self.look_in = LOOK_AGAIN;
            }
        }
    }

    /// Checks again for sleeping receivers, among the links on which frames were sent before the last check.
    #[cold]
    pub(super) fn look_again(&mut self) {
        for link in core::mem::take(&mut self.owed) {
            let end = self.ends[usize::from(link)].as_ref();
            if end.is_some_and(|end| !end.tx.is_polled()) {
                self.tell(link);
            }
        }
        self.owed = core::mem::take(&mut self.sent);
        if !self.owed.is_empty() {
            self.look_in = LOOK_AGAIN;
        }
    }

    /// Sets the notification of the peer, and wakes the peer if it sleeps.
    #[cold]
    pub(super) fn tell(&self, link: u8) {
        let Some(end) = &self.ends[usize::from(link)] else { return };
        end.link.tell(self.index);
        if !end.tx.is_awake() {
            end.link.wake();
        }
    }
}
