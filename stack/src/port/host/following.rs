//! How a shard tracks the links of its process: it takes its ends of new links, and releases its ends of links that have ended.

use super::end::End;
use super::ended::Ending;
use super::id::LINKS_MAX;
use super::queue::LinkQueue;
use super::shared::Shared;
use crate::port::frame::RxBurst;
use std::sync::Arc;

impl LinkQueue {
    #[cold]
    pub(super) fn change(&mut self) {
        self.seen = self.shared.changes();
        for link in self.shared.links().into_iter().flatten() {
            let at = usize::from(link.id.0);
            if link.take(self.index) {
                let Shared { queues, stall, budget, .. } = &*self.shared;
                let end = End::new(Arc::clone(&link), self.index, *queues, *stall, budget);
                // `End::new` fails only if the rings are outside the link's memory, which was checked when the link was made.
                self.ends[at] = end.ok().map(Box::new);
                // The peer may have sent on the link already.
                self.shared.news.tell(self.index, link.id);
            }
            if link.is_over()
                && let Some(end) = self.ends[at].take()
            {
                self.ending.push(Ending::new(end.link, end.rx));
            }
        }
        self.settle();
    }

    /// Queues the end of each link from which everything was received, and rebuilds the list of links.
    pub(super) fn settle(&mut self) {
        for ending in core::mem::take(&mut self.ending) {
            match ending.end() {
                Ok(ended) => self.ended.push_back(ended),
                Err(ending) => self.ending.push(ending),
            }
        }
        let there = |number: &usize| self.ends[*number].is_some();
        self.order = (0..LINKS_MAX).filter(there).map(|number| number as u8).collect();
        self.near.retain(|link| self.ends[usize::from(*link)].is_some());
    }

    #[cold]
    pub(super) fn receive_what_is_left(&mut self, out: &mut RxBurst) {
        for ending in &mut self.ending {
            let got = ending.receive(out, &mut self.stock);
            let counters = &self.shared.counters[self.index];
            counters.rx(got.frames, got.bytes);
            counters.rx_dropped.add(got.dropped as u64);
        }
    }

    /// The peer writes impossible values: the shard reads nothing of the link any more, and reports its end at the next
    /// [`settle`](Self::settle).
    #[cold]
    pub(super) fn give_up(&mut self, link: u8) {
        if let Some(end) = self.ends[usize::from(link)].take() {
            self.shared.is_broken(&end.link);
            self.ending.push(Ending::new(end.link, []));
        }
    }
}
