//! Sleep until there may be work: a frame on a port that signals, a posted request, a call by another thread.
//!
//! One thread at a time sleeps here for a device. It sets a flag, then looks for work ([`Sleeper::begin`]); a thread that gives
//! it work stores the work, then reads the flag ([`Sleeper::wake`]). A fence between the two steps on both sides makes sure that
//! one thread sees the other's store ([`asymmetric`]).

use super::asymmetric;
use super::eventfd::{EventFd, wait_readable};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use crossbeam_utils::CachePadded;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

/// Where a thread sleeps. Its descriptors are made when it is first used.
#[derive(Debug, Default)]
pub struct Sleeper {
    asleep: CachePadded<AtomicBool>,
    /// Wakes the sleeping thread.
    event: OnceLock<EventFd>,
    watched: Mutex<Watched>,
}

/// The descriptors that wake the sleeping thread, beside `event`.
#[derive(Debug, Default)]
struct Watched {
    epoll: Option<OwnedFd>,
    /// By number, as in [`Sleep::watch`].
    fds: Vec<Option<Arc<OwnedFd>>>,
}

impl Sleeper {
    /// Wakes the sleeping thread, if there is one. It sees what the caller stored before.
    #[inline]
    pub fn wake(&self) {
        asymmetric::light();
        if self.asleep.load(Ordering::Relaxed) {
            self.signal();
        }
    }

    #[cold]
    fn signal(&self) {
        if let Some(event) = self.event.get() {
            event.signal();
        }
    }

    /// Begins a sleep, which any [`wake`](Self::wake) from here on ends. The caller then looks for work once more: that finds all
    /// work that was given without a wake-up. `None` while another thread sleeps, or where the process has no descriptor left.
    pub fn begin(&self) -> Option<Sleep<'_>> {
        let mut watched = match self.watched.try_lock() {
            Ok(watched) => watched,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if watched.epoll.is_none() {
            let epoll = epoll::create(CreateFlags::CLOEXEC).ok()?;
            let event = EventFd::new().ok()?;
            let _ = self.event.set(event);
            watched.epoll = Some(epoll);
        }
        let event = self.event.get()?;
        self.asleep.store(true, Ordering::Relaxed);
        asymmetric::heavy();
        Some(Sleep { sleeper: self, event, watched })
    }
}

/// A sleep that has begun; it ends when this is dropped.
#[derive(Debug)]
pub struct Sleep<'a> {
    sleeper: &'a Sleeper,
    event: &'a EventFd,
    watched: MutexGuard<'a, Watched>,
}

impl Sleep<'_> {
    /// Sets the descriptor with this number, or removes it. It wakes the sleeper when it becomes readable, and again each time that
    /// more arrives. It stays for later sleeps.
    ///
    /// # Errors
    /// Those of epoll_ctl(2): the descriptor is one that cannot be waited for.
    pub fn watch(&mut self, number: usize, fd: Option<Arc<OwnedFd>>) -> io::Result<()> {
        let Watched { epoll: Some(epoll), fds } = &mut *self.watched else { return Ok(()) };
        if fds.len() <= number {
            fds.resize(number + 1, None);
        }
        let same = match (&fds[number], &fd) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Ok(());
        }
        if let Some(old) = fds[number].take() {
            // Fails only if it is gone already.
            let _ = epoll::delete(&*epoll, &*old);
        }
        if let Some(new) = fd {
            epoll::add(&*epoll, &*new, EventData::new_u64(number as u64), EventFlags::IN | EventFlags::ET)?;
            fds[number] = Some(new);
        }
        Ok(())
    }

    /// Sleeps until a descriptor or `other` becomes readable, another thread wakes us, a signal handler ran, or `at_most` is
    /// over.
    pub fn wait(self, other: Option<&EventFd>, at_most: Duration) {
        let Some(epoll) = &self.watched.epoll else { return };
        let (event, epoll) = (self.event.as_fd(), epoll.as_fd());
        let other = other.map_or(event, AsFd::as_fd);
        let mut fds = [event, epoll, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if wait_readable(&mut fds, at_most) && !fds[1].revents().is_empty() {
            // Consumes the edges, so that they do not wake the next sleeper again.
            let mut events = [const { core::mem::MaybeUninit::uninit() }; 16];
            let _ = epoll::wait(epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.sleeper.asleep.store(false, Ordering::Relaxed);
        // Also where no signal was seen: a waker may have read the flag just before.
        self.event.clear();
    }
}

// Miri has no ppoll.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    #[test]
    fn no_wake_up_is_lost() {
        // Goal: no wake-up is lost: the sleeper has no time limit, and each item is given once it has taken the one before.
        let (sleeper, given, taken) = (Sleeper::default(), AtomicU32::new(0), AtomicU32::new(0));
        const ITEMS: u32 = 10_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while taken.load(Ordering::Acquire) < ITEMS {
                    let sleep = sleeper.begin().unwrap();
                    let given = given.load(Ordering::Acquire);
                    if given == taken.load(Ordering::Relaxed) {
                        sleep.wait(None, Duration::MAX);
                    } else {
                        taken.store(given, Ordering::Release);
                    }
                }
            });
            for item in 1..=ITEMS {
                given.store(item, Ordering::Release);
                sleeper.wake();
                while taken.load(Ordering::Acquire) < item {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn each_descriptor_wakes_each_time_that_more_comes() {
        let sleeper = Sleeper::default();
        let [a, b] = [(); 2].map(|()| EventFd::new().unwrap());
        let b: Arc<OwnedFd> = Arc::new(b.into());
        let mut sleep = sleeper.begin().unwrap();
        assert!(sleeper.begin().is_none(), "one at a time");
        sleep.watch(1, Some(Arc::clone(&b))).unwrap();
        drop(sleep);
        // The test never reads it, and yet it wakes again and again, once for each write.
        for _ in 0..3 {
            rustix::io::write(&*b, &1u64.to_ne_bytes()).unwrap();
            sleeper.begin().unwrap().wait(None, Duration::MAX);
            let mut none = 0;
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                sleeper.begin().unwrap().wait(None, Duration::from_millis(2));
                none += 1;
            }
            assert_eq!(none, 1, "it woke without anything new");
        }
        let mut sleep = sleeper.begin().unwrap();
        sleep.watch(1, None).unwrap();
        a.signal();
        sleep.wait(Some(&a), Duration::MAX);
        let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap().into());
        assert!(sleeper.begin().unwrap().watch(0, Some(file)).is_err(), "nobody can wait for a file");
    }
}
