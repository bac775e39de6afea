//! The socket that serves a device's counters: one thread, asleep until a client connects.
//!
//! The thread reads counters and published words, never takes a shard's claim, and never reads data from a client. It serves one client
//! at a time, for at most [`CLIENT_PATIENCE`]; a hanging client delays other clients by that much and affects nothing else.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::data::Snapshot;
use crate::device::claim::Core;
use crate::device::error::OpenError;
use crate::port::socket_file::{self, SocketFile};
use crate::sync::process::Process;
use crate::sync::unforked::Unforked;

/// How long a client may take to read its snapshot.
const CLIENT_PATIENCE: Duration = Duration::from_millis(250);
/// Shortest pause after each client. The pause is nine times as long as serving the client took, so that a client that reconnects
/// constantly costs at most a tenth of a core.
const REST: Duration = Duration::from_millis(5);
/// Bytes written between two checks of the time limit.
const PIECE: usize = 32 << 10;

/// The socket and its thread, until dropped.
#[derive(Debug)]
pub(in crate::device) struct StatsSocket {
    file: SocketFile,
    /// Must be dropped before the descriptor that it tracks.
    _unforked: Unforked,
    /// A duplicate of the listening socket: shutting it down wakes the thread.
    waker: UnixStream,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    made_by: Process,
}

impl StatsSocket {
    /// Listens at `path`; if `path` is a directory, on a socket in it under a name unique to this process and device.
    pub(in crate::device) fn open(path: &Path, core: &Arc<Core>) -> Result<Self, OpenError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = if path.is_dir() {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            path.join(format!("{}-{n}.sock", std::process::id()))
        } else {
            path.to_owned()
        };
        let ((listener, its_unforked), file) =
            socket_file::listen_by(&path, |path| Unforked::make(|| UnixListener::bind(path)))
                .map_err(|reason| OpenError::Stats { path: path.clone(), reason })?;
        let system =
            |error: std::io::Error| OpenError::Stats { path: path.clone(), reason: error.to_string() };
        // Shutting down a listening socket ends its `accept`; only the stream type has a method for that.
        let again = || Ok(UnixStream::from(OwnedFd::from(listener.try_clone()?)));
        let (waker, unforked) = Unforked::make(again).map_err(system)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (core, stop) = (core.clone(), stop.clone());
            let body = move || {
                serve(&listener, &core, &stop);
                drop(its_unforked);
            };
            let name = String::from("roce-stats");
            thread::Builder::new()
                .name(name.clone())
                .spawn(body)
                .map_err(|source| OpenError::Thread { name, source })?
        };
        Ok(Self { file, _unforked: unforked, waker, stop, thread: Some(thread), made_by: Process::this() })
    }

    pub(in crate::device) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        if !self.made_by.is_this() {
            // A forked child has no such thread.
            core::mem::forget(self.thread.take());
            return;
        }
        self.stop.store(true, Ordering::Release);
        // Fails only if the socket is already shut down.
        let _ = self.waker.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Except on that thread itself: a table may drop the last handle of the device. The thread then ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn serve(listener: &UnixListener, core: &Core, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((client, _)) if !stop.load(Ordering::Acquire) => {
                let start = Instant::now();
                // The port and the tables are the program's: if they panic, this client gets nothing, and later clients are served.
                let snapshot = catch_unwind(AssertUnwindSafe(|| Snapshot::of(core).to_json()));
                // A client that disconnected, or was too slow, has to connect again.
                let _ = snapshot.is_ok_and(|text| show(client, &text, stop).is_ok());
                thread::park_timeout(REST.max(start.elapsed() * 9));
            }
            Ok(_) => {}
            // No descriptor is free, or the client has disconnected.
            Err(_) => thread::park_timeout(REST),
        }
    }
}

fn show(mut client: UnixStream, mut text: &[u8], stop: &AtomicBool) -> std::io::Result<()> {
    let start = Instant::now();
    while !text.is_empty() && !stop.load(Ordering::Acquire) {
        let left = CLIENT_PATIENCE.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        client.set_write_timeout(Some(left))?;
        let n = client.write(&text[..text.len().min(PIECE)])?;
        if n == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        text = &text[n..];
    }
    Ok(())
}
