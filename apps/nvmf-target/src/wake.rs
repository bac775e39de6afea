//! Waking a core that sleeps: it says so, then looks for what was sent; who sends something looks whether it sleeps. A fence between
//! the two steps on both sides makes sure that one of them sees the other's store, so no message waits for the end of a sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a core.
#[derive(Debug)]
pub struct Waker {
    asleep: AtomicBool,
    event: OwnedFd,
}

impl Waker {
    /// Of a core that does not sleep.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { asleep: AtomicBool::new(false), event }))
    }
    /// Wakes it, if it sleeps. It sees what the caller stored before.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only where nobody has read the descriptor for ages: it is readable then.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
    /// A sleep begins: [`wake`](Self::wake) makes the descriptor readable from here on. The core then looks once more for what was sent
    /// before.
    pub fn begin(self: &Arc<Self>) -> Sleep {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Sleep(Arc::clone(self))
    }
}

/// A sleep that has begun; it ends when this is dropped.
#[derive(Debug)]
pub struct Sleep(Arc<Waker>);

impl AsFd for Sleep {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.0.asleep.store(false, Ordering::Relaxed);
        // Fails where nobody has woken us.
        let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
    }
}

/// Sends to a core, and wakes it.
#[derive(Debug)]
pub struct Sender<T> {
    to: mpsc::Sender<T>,
    waker: Arc<Waker>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), waker: Arc::clone(&self.waker) }
    }
}

impl<T> Sender<T> {
    /// Sends something; it is dropped where the core has ended.
    pub fn send(&self, what: T) {
        if self.to.send(what).is_ok() {
            self.waker.wake();
        }
    }
}

/// A channel to the core of a waker.
pub fn channel<T>(waker: &Arc<Waker>) -> (Sender<T>, mpsc::Receiver<T>) {
    let (to, from) = mpsc::channel();
    (Sender { to, waker: Arc::clone(waker) }, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    // Goal: no wake-up is lost: the sleeper has no time limit, and each item is sent when it has taken the one before.
    #[test]
    fn what_is_sent_wakes_who_sleeps() {
        const ITEMS: u32 = 20_000;
        let waker = Waker::new().unwrap();
        let (to, from) = channel(&waker);
        let (taken, next) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for item in 0..ITEMS {
                    to.send(item);
                    assert_eq!(next.recv(), Ok(item));
                }
            });
            let mut expected = 0;
            while expected < ITEMS {
                let sleep = waker.begin();
                match from.try_recv() {
                    Ok(item) => {
                        assert_eq!(item, expected);
                        expected += 1;
                        taken.send(item).unwrap();
                    }
                    Err(_) => {
                        let mut fds = [PollFd::new(&sleep, PollFlags::IN)];
                        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
                    }
                }
            }
        });
    }
}
