//! What a shard that sleeps waits for: a byte on the socket of a link, by which the process at its other end wakes it, and the keeper.
//!
//! One epoll instance a shard has the sockets of all links, edge-triggered: a byte wakes each shard of the process that sleeps. It is the
//! receiver that sees to it that a sender finds room for the next byte ([`Wakeups`](crate::registry::Wakeups)): before each sleep, a shard
//! looks which links woke it since the one before, and takes their bytes but for one. What comes after that look ends the sleep.

use super::id::LINKS_MAX;
use super::queue::LinkQueue;
use super::talk;
use crate::ipc::renumbered;
use core::mem::MaybeUninit;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The number of the keeper, among those of links.
const KEEPER: u64 = u64::MAX;
/// Links that are asked for at a time.
const TOGETHER: usize = 16;

impl LinkQueue {
    /// What to wait for: it is readable when the keeper or a process at the other end of a link wakes this shard, from now on.
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

    /// Takes the wake-ups of the last sleep, and those that came since.
    fn take_wakeups(&self, epoll: &OwnedFd) {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Once for each link: others may wake it all the time.
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
