//! A thread that an object owns, and that ends with the object. A forked child has a copy of the object, but no such thread.

use super::apart;
use super::process::Process;
use std::io;
use std::thread::JoinHandle;

/// The thread. The object calls [`end`](Self::end) when it is dropped.
#[derive(Debug)]
pub struct Worker {
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
    made_by: Process,
}

impl Worker {
    /// Starts the thread, with all signals blocked.
    ///
    /// # Errors
    /// Those of pthread_create(3).
    pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Ok(Self { thread: Some(apart::spawn(name, body)?), made_by: Process::this() })
    }

    /// Whether the calling process has the thread, and is not a fork of the one that does.
    pub fn is_here(&self) -> bool {
        self.made_by.is_this()
    }

    /// Has `tell` tell the thread to end, and waits until it has. In a fork, nothing is told and nothing waited for.
    pub fn end(&mut self, tell: impl FnOnce()) {
        let thread = self.thread.take();
        if !self.is_here() {
            core::mem::forget(thread);
            return;
        }
        tell();
        let _ = thread.map(JoinHandle::join);
    }
}
