//! Messages that are ready to leave when the process is ended by a signal: that its connections end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use stack::port::Farewell;

/// Connections of a process that are told of its end by a signal.
const MOST: usize = 4096;

/// What is ready. A handler of a signal may have interrupted whoever holds a lock, and does without that message.
static READY: [Mutex<Option<Box<dyn Farewell>>>; MOST] = [const { Mutex::new(None) }; MOST];
/// How many are.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A message that is ready while this lives.
#[derive(Debug)]
pub(super) struct Ready(usize);

impl Ready {
    /// Keeps a message. `None`: there are [`MOST`].
    pub(super) fn keep(message: Box<dyn Farewell>) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        if KEPT.load(Ordering::Relaxed) >= MOST {
            return None;
        }
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        for place in (0..MOST).map(|n| first.wrapping_add(n) % MOST) {
            if let Ok(mut ready) = READY[place].try_lock()
                && ready.is_none()
            {
                *ready = Some(message);
                KEPT.fetch_add(1, Ordering::Relaxed);
                return Some(Self(place));
            }
        }
        None
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // Only a handler of a signal holds it otherwise, or in a fork a thread that is not there: nobody may wait for either.
        if let Ok(mut ready) = READY[self.0].try_lock() {
            let message = ready.take();
            KEPT.fetch_sub(1, Ordering::Relaxed);
            drop(ready);
            drop(message);
        }
    }
}

/// Tells the peers of all connections of this process that they end (DREQ), as far as that can be done at once: for a handler of a signal
/// that ends the process, which calls nothing else of this crate. It takes no lock, allocates nothing and waits for nothing
/// (signal-safety(7)). Peers behind ports that are not the host's own, and those of more than 4096 connections, are not told; nor does a
/// forked child tell its parent's.
pub fn send_farewells() {
    for ready in &READY {
        if let Ok(ready) = ready.try_lock()
            && let Some(message) = &*ready
        {
            message.send();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Counted(Arc<AtomicUsize>);

    impl Farewell for Counted {
        fn send(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_kept_is_sent_and_what_was_dropped_is_not() {
        let sent = Arc::new(AtomicUsize::new(0));
        let keep = || Ready::keep(Box::new(Counted(Arc::clone(&sent))));
        let (first, second) = (keep().unwrap(), keep());
        drop(first);
        send_farewells();
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        drop(second);
        send_farewells();
        assert_eq!((sent.load(Ordering::Relaxed), Arc::strong_count(&sent)), (1, 1));
        let all: Vec<_> = core::iter::from_fn(keep).collect();
        assert!(all.len() <= MOST && keep().is_none());
        drop(all);
        assert!(keep().is_some());
    }
}
