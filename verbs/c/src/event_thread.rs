//! The thread that hands out the device's events, where several contexts wait for them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};

use verbs::Context;

use crate::errno::Result;
use crate::fd::{event_fd, signal};
use crate::signals::without_signals;

/// Dropped, it ends.
pub(crate) struct EventThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl EventThread {
    /// Starts the thread: it calls `hand_out` for each event that the device has, until that finds none.
    pub(crate) fn start(device: &Arc<Context>, hand_out: fn(&Context) -> bool) -> Result<Self> {
        let stop = event_fd()?;
        let fds = [device.async_fd()?.as_raw_fd(), stop.as_raw_fd()];
        let device = device.clone();
        // As with every thread of the device, what the C library does at the beginning is over when this returns.
        let (beginning, over) = channel::<()>();
        let body = move || {
            drop(beginning);
            let mut wanted = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            while wanted[1].revents == 0 {
                while hand_out(&device) {}
                // SAFETY: structures of ours; the descriptors are closed after this thread.
                unsafe { libc::poll(wanted.as_mut_ptr(), 2, -1) };
            }
        };
        let named = Builder::new().name("roce-events".into());
        let thread = Some(without_signals(|| named.spawn(body))?);
        let _ = over.recv(); // its end: nothing is sent
        Ok(Self { stop, thread })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        signal(self.stop.as_raw_fd());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
