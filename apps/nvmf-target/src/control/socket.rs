//! The control socket of a target, with one thread, which sleeps until a client connects.
//!
//! One client is served at a time. It has [`PATIENCE`] to send its request, and again to receive the answer. So a client that hangs or
//! sends byte by byte delays other clients, for no longer than that, but delays neither hosts nor the end of the target. Only requests of
//! the target's user and root are accepted.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use verbs::port::socket_file::{self, SocketFile};

use super::change::Control;
use super::message::Answer;

/// The maximum length of a request, in bytes.
const REQUEST_MAX: usize = 64 << 10;
/// How long a client may take to send its request, and how long to receive the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// While a client is served: the time between two checks whether the target ends.
const LOOK: Duration = Duration::from_millis(100);
/// While there is storage of removed namespaces: the time between two checks whether it can be dropped.
const TIDY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct SocketError {
    /// The path of the socket.
    pub path: PathBuf,
    /// What is wrong, and what to do about it.
    pub reason: String,
}

/// The control socket and its thread. Dropping it closes the socket and ends the thread.
#[derive(Debug)]
pub struct ControlSocket {
    file: SocketFile,
    /// A duplicate of the listening socket. Shutting it down wakes the thread.
    waker: UnixStream,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path`, and executes requests by `control` on a thread of its own.
    ///
    /// # Errors
    /// If the path cannot be used, or the thread cannot be started.
    pub fn open(path: &Path, control: Control) -> Result<Self, SocketError> {
        let refused = |reason| SocketError { path: path.into(), reason };
        let failed = |error: io::Error| refused(error.to_string());
        let (listener, file) = socket_file::listen(path).map_err(refused)?;
        let waker = UnixStream::from(OwnedFd::from(listener.try_clone().map_err(failed)?));
        let stop = control.stop();
        let its_stop = Arc::clone(&stop);
        let body = move || serve(&listener, control, &its_stop);
        let thread = std::thread::Builder::new().name("nvmf-control".into()).spawn(body).map_err(failed)?;
        Ok(Self { file, waker, stop, thread: Some(thread) })
    }
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Fails only if the socket is shut down already.
        let _ = self.waker.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, mut control: Control, stop: &AtomicBool) {
    let mut lingering = false;
    while !stop.load(Ordering::Acquire) {
        let timeout = lingering.then_some(&TIDY);
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if let Ok(0) = poll(&mut fds, timeout) {
            lingering = control.tidy();
            continue;
        }
        match listener.accept() {
            Ok((client, _)) if !stop.load(Ordering::Acquire) => {
                if let Err(e) = serve_client(&client, &mut control, stop) {
                    tracing::debug!(error = %e, "a client of the control socket went away");
                }
                lingering = control.tidy();
            }
            Ok(_) => {}
            // No file descriptor is free, or the client is gone already.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn serve_client(client: &UnixStream, control: &mut Control, stop: &AtomicBool) -> io::Result<()> {
    client.set_read_timeout(Some(LOOK))?;
    client.set_write_timeout(Some(LOOK))?;
    let peer = socket_peercred(client)?.uid;
    let answer = if peer == geteuid() || peer.is_root() {
        match serde_json::from_slice(&request(client, stop)?) {
            Ok(request) => control.handle(request),
            Err(e) => Answer::Refused(format!("this is no request: {e}")),
        }
    } else {
        Answer::Refused(format!("user {} may not change this target", peer.as_raw()))
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    let (mut left, since) = (&text[..], Instant::now());
    while !left.is_empty() {
        let written = (&mut &*client).write(left);
        left = &left[moved_now(written, since, stop)?.unwrap_or(0)..];
    }
    Ok(())
}

/// Reads the client's line, without its end. Of a longer line it reads [`REQUEST_MAX`] bytes and a few more.
fn request(mut client: &UnixStream, stop: &AtomicBool) -> io::Result<Vec<u8>> {
    let (mut line, mut part, since) = (Vec::new(), [0; 4096], Instant::now());
    while line.len() < REQUEST_MAX {
        match moved_now(client.read(&mut part), since, stop)? {
            Some(0) => break,
            Some(n) => line.extend_from_slice(&part[..n]),
            None => {}
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            break;
        }
    }
    Ok(line)
}

/// How many bytes a read or write moved; `None` if it has to be repeated.
///
/// # Errors
/// If the client is gone or takes too long, or if the target ends.
fn moved_now(moved: io::Result<usize>, since: Instant, stop: &AtomicBool) -> io::Result<Option<usize>> {
    if stop.load(Ordering::Acquire) || since.elapsed() > PATIENCE {
        return Err(ErrorKind::TimedOut.into());
    }
    match moved {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        moved => moved.map(Some),
    }
}
