//! The thread that distributes the device's events if several contexts wait for them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};

use verbs::Context;

use crate::errno::Result;
use crate::fd::{event_fd, signal};
use crate::signals::without_signals;

/// Dropping it ends the thread.
pub(crate) struct EventThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl EventThread {
    /// Starts the thread. Whenever the device has events, it calls `hand_out` until that finds none.
    pub(crate) fn start(device: &Arc<Context>, hand_out: fn(&Context) -> bool) -> Result<Self> {
        let stop = event_fd()?;
        let fds = [device.async_fd()?.as_raw_fd(), stop.as_raw_fd()];
        let device = device.clone();
        // As with every thread of the device: when this returns, the C library has finished its work at the start of the thread.
        let (beginning, over) = channel::<()>();
        let body = move || {
            drop(beginning);
            let mut wanted = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            while wanted[1].revents == 0 {
                while hand_out(&device) {}
                // SAFETY: structures of ours; the descriptors are closed after this thread has ended.
                unsafe { libc::poll(wanted.as_mut_ptr(), 2, -1) };
            }
        };
        let named = Builder::new().name("roce-events".into());
        let thread = Some(without_signals(|| named.spawn(body))?);
        let _ = over.recv(); // waits until the channel closes: nothing is ever sent
        Ok(Self { stop, thread })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        signal(self.stop.as_raw_fd());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
