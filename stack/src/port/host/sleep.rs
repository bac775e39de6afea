//! What ends the sleep of a shard: a byte on the socket of a link, by which the peer wakes it, or a wake-up by the keeper.
//!
//! Each shard has an epoll instance with the sockets of all links, edge-triggered: one byte wakes each shard of the process that sleeps.
//! The receiver ensures that a sender finds room for the next byte ([`Wakeups`](crate::registry::Wakeups)): before each sleep, a shard
//! reads which links have woken it since the previous sleep, and consumes their bytes but for one. A byte that arrives after that ends the
//! sleep.

use super::id::LINKS_MAX;
use super::queue::LinkQueue;
use super::talk;
use crate::ipc::renumbered;
use core::mem::MaybeUninit;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Event data of the keeper's descriptor; those of links are their numbers.
const KEEPER: u64 = u64::MAX;
/// Events that one epoll_wait(2) returns.
const TOGETHER: usize = 16;

impl LinkQueue {
    /// The descriptor to wait for: readable when the keeper or a peer wakes this shard from now on.
    ///
    /// # Errors
    /// Those of epoll_create(2) and epoll_ctl(2).
    pub(super) fn prepare_sleep(&mut self) -> rustix::io::Result<Arc<OwnedFd>> {
        let epoll = match self.sleep.take() {
            Some(epoll) => {
                self.take_wakeups(&epoll);
                epoll
            }
            None => {
                let epoll = renumbered(epoll::create(CreateFlags::CLOEXEC)?, talk::LEAST);
                let data = EventData::new_u64(KEEPER);
                epoll::add(&epoll, &self.shared.event, data, EventFlags::IN | EventFlags::ET)?;
                Arc::new(epoll)
            }
        };
        let epoll = self.sleep.insert(epoll);
        for link in &self.order {
            if let Some(end) = &mut self.ends[usize::from(*link)]
                && !end.is_watched
            {
                end.link.watch(epoll)?;
                end.is_watched = true;
            }
        }
        Ok(Arc::clone(epoll))
    }

    /// Consumes the wake-ups of the last sleep and those since.
    fn take_wakeups(&self, epoll: &OwnedFd) {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Bounded by the number of links: peers may send wake-ups all the time.
        for _ in 0..=LINKS_MAX / TOGETHER {
            let mut events = [const { MaybeUninit::<Event>::uninit() }; TOGETHER];
            let Ok((woke, _)) = epoll::wait(epoll, &mut events, Some(&NOW)) else { return };
            for event in &*woke {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                if let Some(Some(end)) = self.ends.get(number)
                    && end.link.take_wakeups().is_err()
                {
                    self.shared.is_broken(&end.link);
                }
            }
            if woke.len() < TOGETHER {
                return;
            }
        }
    }
}
