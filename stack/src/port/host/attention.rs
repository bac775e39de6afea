//! Which links a shard looks at: the few that bring something, in each burst, and those of which there are news. And what it tells
//! others: that there is something, and to wake up.

use super::id::{LinkId, Links};
use super::news::TOGETHER;
use super::queue::{ALL_EVERY, LinkQueue, NEAR, TURN};
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::LOOK_AGAIN;
use crate::port::memif::ring::Attention;
use crate::sync::news;
use std::time::Instant;

/// Bursts without a frame from such a link until it is looked at no more, where there are others.
const NEAR_FOR: u32 = 4096;

impl LinkQueue {
    /// Whether there are news of any link.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.shared.news.has_any(self.index, self.pieces())
    }

    /// The links of which there are news.
    #[inline]
    pub(super) fn told(&self) -> Links {
        let mut links = Links::default();
        for at in 0..self.pieces() {
            links.add_of(at, self.shared.news.told(self.index, at));
        }
        links
    }

    /// How many pieces of the page of news are in use.
    #[inline]
    fn pieces(&self) -> usize {
        self.order.last().map_or(0, |last| usize::from(*last) / TOGETHER + 1)
    }

    /// Receives a turn's frames from a link; returns how many.
    #[inline]
    pub(super) fn look_at(&mut self, link: u8, is_told: bool, out: &mut RxBurst) -> usize {
        if is_told {
            // First: what is sent from now on is told again.
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

    /// Looks at a link in each burst from now on.
    #[cold]
    fn look_often(&mut self, link: u8) {
        if let Some(end) = &mut self.ends[usize::from(link)]
            && self.near.try_push(link).is_ok()
        {
            end.look_when(Attention::Polled);
        }
    }

    /// Looks at a link only when there are news of it.
    #[cold]
    fn look_away(&mut self, link: u8) {
        self.near.retain(|near| *near != link);
        if let Some(end) = &mut self.ends[usize::from(link)] {
            end.look_when(Attention::News);
            news::quiet();
            // The next burst looks once more.
            self.shared.news.tell(self.index, LinkId(link));
        }
    }

    /// Has the next bursts look at all links, each once, if it is time for that.
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

    /// Something was sent on a link. `sleeps`: its receiver does not look at it all the time.
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

    /// Looks again whether those are awake to whom something was sent before it was looked last.
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

    /// Tells the process at the other end that there is something, and wakes it if it sleeps.
    #[cold]
    pub(super) fn tell(&self, link: u8) {
        let Some(end) = &self.ends[usize::from(link)] else { return };
        end.link.tell(self.index);
        if !end.tx.is_awake() {
            end.link.wake();
        }
    }
}
