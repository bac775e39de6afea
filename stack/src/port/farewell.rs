//! Packets to send when a signal ends the process, in a table that a signal handler can read.

use super::traits::Farewell;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// At most `MOST` packets to send at the end of the process. A signal handler may interrupt a thread that holds an entry's lock; it skips
/// that entry.
pub struct Farewells<const MOST: usize> {
    ready: [Mutex<Option<Kept>>; MOST],
    kept: AtomicUsize,
    next: AtomicUsize,
}

/// A farewell, and the id of the process that keeps it. A child of vfork(2) shares the table and runs no fork handler, so the id is
/// compared.
type Kept = (u32, Box<dyn Farewell>);

/// Keeps a farewell in the table; dropping this removes it.
#[derive(Debug)]
pub struct Ready<const MOST: usize> {
    of: &'static Farewells<MOST>,
    place: usize,
}

impl<const MOST: usize> Farewells<MOST> {
    /// An empty table.
    pub const fn none() -> Self {
        let ready = [const { Mutex::new(None) }; MOST];
        Self { ready, kept: AtomicUsize::new(0), next: AtomicUsize::new(0) }
    }

    /// Adds a farewell, which stays until the result is dropped. `None` if no entry is free.
    pub fn keep(&'static self, farewell: Box<dyn Farewell>) -> Option<Ready<MOST>> {
        if self.kept.load(Ordering::Relaxed) >= MOST {
            return None;
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for place in (0..MOST).map(|n| first.wrapping_add(n) % MOST) {
            if let Ok(mut ready) = self.ready[place].try_lock()
                && ready.is_none()
            {
                *ready = Some((std::process::id(), farewell));
                self.kept.fetch_add(1, Ordering::Relaxed);
                return Some(Ready { of: self, place });
            }
        }
        None
    }

    /// Sends all farewells that can be sent without waiting; in a forked child, none of the parent's. Safe in signal handlers
    /// (signal-safety(7)): it waits for no lock and allocates nothing.
    pub fn send(&self) {
        let this = std::process::id();
        for ready in &self.ready {
            if let Ok(ready) = ready.try_lock()
                && let Some((process, farewell)) = &*ready
                && *process == this
            {
                farewell.send();
            }
        }
    }
}

impl<const MOST: usize> core::fmt::Debug for Farewells<MOST> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Farewells").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl<const MOST: usize> Drop for Ready<MOST> {
    fn drop(&mut self) {
        // Do not wait: the lock may belong to a signal handler, or in a forked child to a thread that does not exist there.
        if let Ok(mut ready) = self.of.ready[self.place].try_lock() {
            let farewell = ready.take();
            self.of.kept.fetch_sub(1, Ordering::Relaxed);
            drop(ready);
            drop(farewell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const MOST: usize = 16;

    struct Counted(Arc<AtomicUsize>);

    impl Farewell for Counted {
        fn send(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_kept_is_sent_and_what_was_dropped_is_not() {
        static ALL: Farewells<MOST> = Farewells::none();
        let sent = Arc::new(AtomicUsize::new(0));
        let keep = || ALL.keep(Box::new(Counted(Arc::clone(&sent))));
        let (first, second) = (keep().unwrap(), keep());
        drop(first);
        ALL.send();
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        drop(second);
        ALL.send();
        assert_eq!((sent.load(Ordering::Relaxed), Arc::strong_count(&sent)), (1, 1));
        // A farewell of another process, as a forked child finds it in its copy of the table.
        let kept = keep().unwrap();
        ALL.ready[kept.place].lock().unwrap().as_mut().unwrap().0 ^= 1;
        ALL.send();
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        drop(kept);
        let all: Vec<_> = core::iter::from_fn(keep).collect();
        assert!(all.len() == MOST && keep().is_none());
        drop(all);
        assert!(keep().is_some());
    }
}
