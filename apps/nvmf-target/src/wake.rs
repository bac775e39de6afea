//! Waking a sleeping core. The core first sets a flag that it sleeps, and then looks for messages once more. A sender first sends its
//! message, and then looks at the flag. A fence between the two steps on both sides makes sure that at least one side sees the store of the
//! other. So no message waits until a sleep times out.

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
    /// Makes a waker for a core that does not sleep.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { asleep: AtomicBool::new(false), event }))
    }
    /// Wakes the core if it sleeps. The core then sees everything that the caller stored before.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only if the counter of the descriptor is at its maximum: then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
    /// Begins a sleep: from now on [`wake`](Self::wake) makes the descriptor of the result readable. The core must then look for messages
    /// once more before it waits.
    pub fn begin(self: &Arc<Self>) -> Sleep {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Sleep(Arc::clone(self))
    }
}

/// A sleep of a core. Dropping it ends the sleep.
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
        // Fails if nobody has woken the core.
        let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
    }
}

/// The sending end of a channel to a core, which wakes the core.
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
    /// Sends a message, and wakes the core. The message is dropped if the core has ended.
    pub fn send(&self, what: T) {
        if self.to.send(what).is_ok() {
            self.waker.wake();
        }
    }
}

/// Makes a channel to the core of a waker.
pub fn channel<T>(waker: &Arc<Waker>) -> (Sender<T>, mpsc::Receiver<T>) {
    let (to, from) = mpsc::channel();
    (Sender { to, waker: Arc::clone(waker) }, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    // Goal: no wake-up is lost: the sleeper sleeps without a timeout, and each item is sent after it has taken the one before.
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
