//! News: a byte for each of many senders, so that a receiver of many queues need not look at each of them.
//!
//! A sender publishes its item, then sets its byte ([`Byte::set`]). The receiver clears a byte ([`Byte::take`]), and looks at its queue
//! *then*. So nothing is missed while a byte is clear: what is published after the look sets it again, and what was published before was
//! seen.
//!
//! The receiver looks at busy queues anyway. It marks them, and their senders do not set the byte. A sender publishes, then reads the mark.
//! A receiver that removes the mark passes a full fence ([`quiet`]), and looks at the queue once more. So one of the two sees what the
//! other did, if the sender has a full fence between its two steps as well. A sender without one may be missed: a receiver of such senders
//! looks at all queues from time to time. It does that also because others may clear a byte in memory that they share.

use super::primitive::{AtomicU8, Ordering, fence};

/// The byte of a sender.
pub trait Byte {
    /// Tells the receiver that there is something.
    fn set(&self);
    /// Clears the byte. Returns whether it was set. Look at the queue afterwards.
    fn take(&self) -> bool;
}

impl Byte for AtomicU8 {
    #[inline]
    fn set(&self) {
        // No plain store: the model checker does not know that nothing comes between the two halves of the other side's exchange.
        self.swap(1, Ordering::AcqRel);
    }

    #[inline]
    fn take(&self) -> bool {
        self.swap(0, Ordering::AcqRel) != 0
    }
}

/// Loom's atomics are not those of memory that processes share.
#[cfg(loom)]
impl Byte for core::sync::atomic::AtomicU8 {
    fn set(&self) {
        self.swap(1, core::sync::atomic::Ordering::AcqRel);
    }

    fn take(&self) -> bool {
        self.swap(0, core::sync::atomic::Ordering::AcqRel) != 0
    }
}

/// The fence between removing a mark and the last look.
#[inline]
pub fn quiet() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_taken_once() {
        let byte = AtomicU8::new(0);
        assert!(!byte.take());
        byte.set();
        byte.set();
        assert!(byte.take() && !byte.take());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::primitive::{Arc, AtomicU32};
    use loom::thread;

    /// A queue of one sender: how many items were published, whether it is marked as one that is looked at, and its byte.
    struct Queue {
        published: AtomicU32,
        is_marked: AtomicU32,
        byte: AtomicU8,
    }

    impl Queue {
        fn new(marked: u32) -> Arc<Self> {
            Arc::new(Self {
                published: AtomicU32::new(0),
                is_marked: AtomicU32::new(marked),
                byte: AtomicU8::new(0),
            })
        }

        fn send(&self, item: u32, has_fence: bool) {
            self.published.store(item, Ordering::Release);
            if has_fence {
                fence(Ordering::SeqCst);
            }
            if self.is_marked.load(Ordering::Relaxed) == 0 {
                self.byte.set();
            }
        }

        fn look(&self) -> u32 {
            self.published.load(Ordering::Acquire)
        }

        fn look_if_told(&self, seen: &mut u32) {
            if self.byte.take() {
                *seen = self.look();
            }
        }
    }

    /// What is published is seen, or its byte is set: however the receiver's looks fall between.
    #[test]
    fn a_byte_that_is_clear_hides_nothing() {
        loom::model(|| {
            let queue = Queue::new(0);
            let sender = {
                let queue = queue.clone();
                thread::spawn(move || (1..=2).for_each(|item| queue.send(item, false)))
            };
            let mut seen = 0;
            (0..2).for_each(|_| queue.look_if_told(&mut seen));
            sender.join().unwrap();
            queue.look_if_told(&mut seen);
            assert_eq!(seen, 2);
        });
    }

    /// A receiver stops to look at a queue while something is sent: it has seen that, or will be told.
    #[test]
    fn a_queue_that_is_looked_at_no_more_is_looked_at_once_more() {
        loom::model(|| {
            let queue = Queue::new(1);
            let sender = {
                let queue = queue.clone();
                thread::spawn(move || (1..=2).for_each(|item| queue.send(item, true)))
            };
            queue.is_marked.store(0, Ordering::Relaxed);
            quiet();
            let mut seen = queue.look();
            queue.look_if_told(&mut seen);
            sender.join().unwrap();
            queue.look_if_told(&mut seen);
            assert_eq!(seen, 2);
        });
    }
}
