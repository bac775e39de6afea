//! The socket that takes requests: one thread, asleep until a client connects.
//!
//! One client is served at a time, for some seconds at most; a client that hangs keeps others waiting for that long, and no
//! host. Only processes of the same user, and root's, are heard.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::{Answer, Control};

/// Bytes of a request, at most.
const REQUEST_MAX: u64 = 64 << 10;
/// How long a client may take to send its request, and to take each part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at what removed namespaces had, while there is some.
const TIDY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another target has it.
    #[error("{} is the control socket of another target; name another path", .0.display())]
    InUse(PathBuf),
    /// The system refuses it.
    #[error("{}: {error}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// The socket and its thread, until dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The listening socket once more, to wake the thread by shutting it down.
    waker: UnixStream,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path`.
    ///
    /// # Errors
    /// If the path cannot be used.
    pub fn open(path: &Path, control: Control) -> Result<Self, SocketError> {
        let failed = |error| SocketError::Io { path: path.into(), error };
        let listener = match UnixListener::bind(path) {
            Ok(listener) => listener,
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
                match UnixStream::connect(path) {
                    Ok(_) => return Err(SocketError::InUse(path.into())),
                    // Its process ended without removing it.
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path).map_err(failed)?;
                    }
                    Err(e) => return Err(failed(e)),
                }
                UnixListener::bind(path).map_err(failed)?
            }
            Err(e) => return Err(failed(e)),
        };
        // Who connects before this is asked who he is all the same.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let waker = UnixStream::from(OwnedFd::from(listener.try_clone().map_err(failed)?));
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let body = move || serve(&listener, control, &its_stop);
        let thread = std::thread::Builder::new().name("nvmf-control".into()).spawn(body).map_err(failed)?;
        Ok(Self { path: path.into(), waker, stop, thread: Some(thread) })
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It fails only for a socket that is shut down already.
        let _ = self.waker.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
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
                if let Err(e) = hear(&client, &mut control) {
                    tracing::debug!(error = %e, "a client of the control socket went away");
                }
                lingering = control.tidy();
            }
            Ok(_) => {}
            // No descriptor is free, or the client is gone again.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn hear(client: &UnixStream, control: &mut Control) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let peer = socket_peercred(client)?.uid;
    let answer = if peer == geteuid() || peer.is_root() {
        let mut line = Vec::new();
        BufReader::new(client.take(REQUEST_MAX)).read_until(b'\n', &mut line)?;
        match serde_json::from_slice(&line) {
            Ok(request) => control.handle(request),
            Err(e) => Answer::Refused(format!("this is no request: {e}")),
        }
    } else {
        Answer::Refused(format!("user {} may not change this target", peer.as_raw()))
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    (&mut &*client).write_all(&text)
}
