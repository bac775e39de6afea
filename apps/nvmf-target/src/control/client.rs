//! The client of the control socket: finds the socket of a running target, and sends a request.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use verbs::port::socket_file;

use super::message::{Answer, Request};

/// How long the target may take to answer: the removal of a namespace waits for commands that are under way.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum length of an answer, in bytes.
const ANSWER_MAX: u64 = 64 << 20;
/// File name extension of control sockets.
const SUFFIX: &str = "control";
/// The path of the socket of the system service.
pub const SERVICE: &str = "/run/roce-nvmf/control";

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No running target was found in this directory.
    #[error("no target runs with a control socket in {}; start one by roce-nvmf serve", .0.display())]
    None(PathBuf),
    /// Several targets are running, and the user chose none.
    #[error("several targets run; choose one by --control: {}", list(.0))]
    Several(Vec<PathBuf>),
    /// The socket cannot be used.
    #[error("{}: {error}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The answer is not that of a target.
    #[error("{}: this is no control socket of a target ({reason})", path.display())]
    Format {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The file name of the control socket of this process.
pub fn socket_name() -> String {
    format!("nvmf-{}.{SUFFIX}", std::process::id())
}

/// Finds the socket of the only running target: of this user's targets, whose sockets are in `dir`, and the system service.
///
/// # Errors
/// If no target is running, or several are.
pub fn find(dir: &Path) -> Result<PathBuf, AskError> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = entries.filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
    let mut running: Vec<PathBuf> =
        ours.chain([PathBuf::from(SERVICE)]).filter(|path| is_listening(path)).collect();
    running.sort();
    match running.len() {
        0 => Err(AskError::None(dir.into())),
        1 => Ok(running.remove(0)),
        _ => Err(AskError::Several(running)),
    }
}

/// Whether a process listens on a socket. Removes the socket if its process has ended.
fn is_listening(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            // Fails, and keeps the file, if it is not a socket, or if a target has just begun to listen.
            let _ = socket_file::remove_stale(path);
            false
        }
        // A socket of another user counts as running; `ask` will report that access is denied.
        Err(e) => e.kind() == ErrorKind::PermissionDenied,
    }
}

/// Sends a request to the target whose socket is at `path`, and returns its answer.
///
/// # Errors
/// If the target does not answer, or not as a target does.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    let failed = |error| AskError::Io { path: path.into(), error };
    let none = |reason: serde_json::Error| AskError::Format { path: path.into(), reason: reason.to_string() };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut line = serde_json::to_vec(request).map_err(none)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut text = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(none)
}
