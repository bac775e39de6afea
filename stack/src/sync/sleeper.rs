//! Sleep until there may be work: a frame on a port that signals, a posted request, a call by another thread.
//!
//! One thread at a time sleeps here for a shard. It sets the shard's flag, then looks for work ([`Sleeper::begin_for`]). A thread that
//! gives it work stores the work, then reads the flag ([`Sleeper::wake_for`]). A fence between the two steps on both sides makes sure that
//! one thread sees the other's store ([`asymmetric`]). Threads that sleep for different shards have a `Waiter` each, so that work for one
//! does not wake the others.

use super::asymmetric;
use super::eventfd::{EventFd, to_wait_for, wait_readable};
use super::lock::lock;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;
use crossbeam_utils::CachePadded;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

/// Most descriptors of the caller that a sleep can wait for.
pub const OTHERS: usize = 3;

/// Where threads sleep.
#[derive(Debug)]
pub struct Sleeper {
    /// A bit for each shard that a thread sleeps for.
    asleep: CachePadded<AtomicU32>,
    /// Held while `asleep` changes.
    changing: Mutex<()>,
    waiters: Box<[Waiter]>,
}

/// What wakes one sleeping thread. Its descriptors are made when it is first used.
#[derive(Debug, Default)]
struct Waiter {
    /// A bit for each shard that a thread sleeps for here.
    shards: AtomicU32,
    /// Wakes the sleeping thread.
    event: OnceLock<EventFd>,
    watched: Mutex<Watched>,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new(1)
    }
}

/// The descriptors that wake the sleeping thread, besides `event`.
#[derive(Debug, Default)]
struct Watched {
    epoll: Option<OwnedFd>,
    /// By number, as in [`Sleep::watch`].
    fds: Vec<Option<Arc<OwnedFd>>>,
}

impl Sleeper {
    /// Makes room for this many sleeping threads. The first waiter is for a thread that sleeps for all shards.
    pub fn new(waiters: usize) -> Self {
        Self {
            asleep: CachePadded::default(),
            changing: Mutex::default(),
            waiters: (0..waiters).map(|_| Waiter::default()).collect(),
        }
    }

    /// Wakes every sleeping thread. They see what the caller stored before.
    #[inline]
    pub fn wake(&self) {
        self.wake_for(u32::MAX);
    }
    /// Wakes the threads that sleep for these shards, as bits. They see what the caller stored before.
    #[inline]
    pub fn wake_for(&self, shards: u32) {
        asymmetric::light();
        if self.asleep.load(Ordering::Relaxed) & shards != 0 {
            self.signal(shards);
        }
    }

    #[cold]
    fn signal(&self, shards: u32) {
        // A thread that sets a bit has set the shards of its waiter before.
        fence(Ordering::Acquire);
        for waiter in &self.waiters {
            if waiter.shards.load(Ordering::Relaxed) & shards != 0
                && let Some(event) = waiter.event.get()
            {
                event.signal();
            }
        }
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// Begins a sleep for all shards, at the first waiter. See [`begin_for`](Self::begin_for).
    pub fn begin(&self) -> Option<Sleep<'_>> {
        self.begin_for(0, u32::MAX)
    }
    /// Begins a sleep for these shards, a bit for each, at the waiter of this number. From here on any [`wake_for`](Self::wake_for) one of
    /// them ends the sleep. The caller then looks for work once more: that finds all work that was given without a wake-up. `None` while
    /// another thread sleeps for one of the shards, or if the process has no descriptor left.
    ///
    /// # Panics
    /// If there is no such waiter.
    pub fn begin_for(&self, waiter: usize, shards: u32) -> Option<Sleep<'_>> {
        let sleep = self.begin_pause(waiter, shards)?;
        asymmetric::heavy();
        Some(sleep)
    }
    /// Same as [`begin_for`](Self::begin_for), for a short sleep that need not end when work is given just as it begins: a wake-up at that
    /// moment may be lost. It interrupts no other core.
    ///
    /// # Panics
    /// If there is no such waiter.
    pub fn begin_pause(&self, waiter: usize, shards: u32) -> Option<Sleep<'_>> {
        let here = &self.waiters[waiter];
        let mut watched = match here.watched.try_lock() {
            Ok(watched) => watched,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if watched.epoll.is_none() {
            let epoll = epoll::create(CreateFlags::CLOEXEC).ok()?;
            let event = EventFd::new().ok()?;
            let _ = here.event.set(event);
            watched.epoll = Some(epoll);
        }
        let event = here.event.get()?;
        let changing = self.change();
        let asleep = self.asleep.load(Ordering::Relaxed);
        if asleep & shards != 0 {
            return None;
        }
        here.shards.store(shards, Ordering::Relaxed);
        self.asleep.store(asleep | shards, Ordering::Release);
        drop(changing);
        Some(Sleep { sleeper: self, waiter: here, shards, event, watched })
    }
}

/// A sleep that has begun. Dropping this ends it.
#[derive(Debug)]
pub struct Sleep<'a> {
    sleeper: &'a Sleeper,
    waiter: &'a Waiter,
    shards: u32,
    event: &'a EventFd,
    watched: MutexGuard<'a, Watched>,
}

impl Sleep<'_> {
    /// Sets the descriptor with this number, or removes it. The descriptor wakes the sleeper when it becomes readable, and again each time
    /// that more arrives. It stays for later sleeps.
    ///
    /// # Errors
    /// Those of epoll_ctl(2), for example if one cannot wait for the descriptor.
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

    /// Sleeps until a descriptor or one of `others` (at most [`OTHERS`]) becomes readable, another thread wakes this one, a signal handler
    /// ran, or `at_most` is over.
    pub fn wait(self, others: &[BorrowedFd<'_>], at_most: Duration) {
        let Some(epoll) = &self.watched.epoll else { return };
        let ours = [self.event.as_fd(), epoll.as_fd()];
        let mut fds = to_wait_for::<{ 2 + OTHERS }>(ours.into_iter().chain(others.iter().copied()));
        if wait_readable(&mut fds, at_most) && !fds[1].revents().is_empty() {
            // Consumes the edges, so that they do not wake the next sleeper again.
            let mut events = [const { core::mem::MaybeUninit::uninit() }; 16];
            let _ = epoll::wait(epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        let changing = self.sleeper.change();
        self.waiter.shards.store(0, Ordering::Relaxed);
        // The bits of others stay, so none of them misses a wake-up meanwhile.
        let others = self.sleeper.asleep.load(Ordering::Relaxed) & !self.shards;
        self.sleeper.asleep.store(others, Ordering::Release);
        drop(changing);
        // Also if no signal was seen: a waker may have read the flag just before.
        self.event.clear();
    }
}

// Miri has no ppoll.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    /// Takes `items` items. Sleeps without a time limit if none is given.
    fn take<'s>(given: &AtomicU32, taken: &AtomicU32, items: u32, begin: impl Fn() -> Sleep<'s>) {
        while taken.load(Ordering::Acquire) < items {
            let sleep = begin();
            let given = given.load(Ordering::Acquire);
            if given == taken.load(Ordering::Relaxed) {
                sleep.wait(&[], Duration::MAX);
            } else {
                taken.store(given, Ordering::Release);
            }
        }
    }

    #[test]
    fn no_wake_up_is_lost() {
        // Goal: no wake-up is lost: the sleeper has no time limit, and each item is given once it has taken the one before.
        let (sleeper, given, taken) = (Sleeper::default(), AtomicU32::new(0), AtomicU32::new(0));
        const ITEMS: u32 = 10_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                take(&given, &taken, ITEMS, || sleeper.begin().unwrap());
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

    // Goal: work for one shard wakes the thread that sleeps for it, and no other; one that sleeps for all is woken by any. And no
    // wake-up is lost where several sleep: they have no time limit.
    #[test]
    fn work_for_a_shard_wakes_who_sleeps_for_it_alone() {
        const SHARDS: usize = 3;
        const ITEMS: u32 = 2000;
        let sleeper = Sleeper::new(1 + SHARDS);
        let all = sleeper.begin_for(0, u32::MAX).unwrap();
        assert!(sleeper.begin_for(1, 1).is_none(), "somebody sleeps for it already");
        drop(all);
        let sleep = sleeper.begin_for(1, 1).unwrap();
        let other = sleeper.begin_for(2, 2).unwrap();
        assert!(sleeper.begin().is_none());
        sleeper.wake_for(2);
        other.wait(&[], Duration::MAX);
        let start = std::time::Instant::now();
        sleep.wait(&[], Duration::from_millis(2));
        assert!(start.elapsed() >= Duration::from_millis(2), "it was not for this one");

        let given: [AtomicU32; SHARDS] = Default::default();
        let taken: [AtomicU32; SHARDS] = Default::default();
        std::thread::scope(|scope| {
            for shard in 0..SHARDS {
                let (sleeper, given, taken) = (&sleeper, &given[shard], &taken[shard]);
                scope.spawn(move || {
                    take(given, taken, ITEMS, || sleeper.begin_for(1 + shard, 1 << shard).unwrap());
                });
            }
            for item in 1..=ITEMS {
                for (shard, given) in given.iter().enumerate() {
                    given.store(item, Ordering::Release);
                    sleeper.wake_for(1 << shard);
                }
                while taken.iter().any(|taken| taken.load(Ordering::Acquire) < item) {
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
            sleeper.begin().unwrap().wait(&[], Duration::MAX);
            let mut none = 0;
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                sleeper.begin().unwrap().wait(&[], Duration::from_millis(2));
                none += 1;
            }
            assert_eq!(none, 1, "it woke without anything new");
        }
        let mut sleep = sleeper.begin().unwrap();
        sleep.watch(1, None).unwrap();
        a.signal();
        sleep.wait(&[a.as_fd()], Duration::MAX);
        let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap().into());
        assert!(sleeper.begin().unwrap().watch(0, Some(file)).is_err(), "nobody can wait for a file");
    }
}
