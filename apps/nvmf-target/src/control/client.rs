//! The client: finds the control socket of a running target, and sends a request.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use verbs::port::socket_file;

use super::message::{Answer, Request};

/// How long the target may take: the removal of a namespace waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer, at most.
const ANSWER_MAX: u64 = 64 << 20;
/// File name extension of control sockets.
const SUFFIX: &str = "control";
/// Where the socket of the system's service is.
pub const SERVICE: &str = "/run/roce-nvmf/control";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No target runs.
    #[error("no target runs with a control socket in {}; start one by roce-nvmf serve", .0.display())]
    None(PathBuf),
    /// Several targets run, and the user named none.
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
    /// What came back is no answer of a target.
    #[error("{}: this is no control socket of a target ({reason})", path.display())]
    Format {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The name of this process's socket in the directory of its user.
pub fn socket_name() -> String {
    format!("nvmf-{}.{SUFFIX}", std::process::id())
}

/// The socket of the only target that runs: of this user's, in `dir`, or of the system's service.
///
/// # Errors
/// If there is none, or several.
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

/// Whether a process listens there. A socket whose process has ended is removed.
fn is_listening(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            // Fails if it is no socket, or if a target has just begun to listen: then it stays.
            let _ = socket_file::remove_stale(path);
            false
        }
        // Another user's socket counts as running: `ask` reports that it may not be used.
        Err(e) => e.kind() == ErrorKind::PermissionDenied,
    }
}

/// Asks the target at `path`.
///
/// # Errors
/// If it does not answer.
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
