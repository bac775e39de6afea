//! Files of unix sockets: tells live ones from stale ones and removes stale ones, one process at a time. A file that is not a socket is
//! never removed, even if the program names it.

#[cfg(feature = "dpdk")]
use super::peers::Peers;
use crate::runtime::dir_of;
use crate::sync::process::Process;
use core::time::Duration;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Longest path of a unix socket (`sun_path` less its NUL, unix(7)).
pub(super) const PATH_MAX: usize = 107;
/// Time that another process may take to make its socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file of a socket of ours. Dropping this removes the file if it is still at the path and this process made it: a forked child has the
/// socket too, but the file belongs to the parent.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
    made_by: Process,
}

impl SocketFile {
    /// Records the file that a socket was just bound to.
    pub(crate) fn new(path: &Path) -> std::io::Result<Self> {
        Ok(Self { path: path.into(), file: identity(path)?, made_by: Process::this() })
    }

    /// Moves the file to another path.
    pub(crate) fn move_to(&mut self, path: &Path) -> std::io::Result<()> {
        std::fs::rename(&self.path, path)?;
        self.path = path.into();
        Ok(())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.made_by.is_this() && identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a listening socket that only this user may connect to; replaces one that a process left behind. No other user can ever connect to
/// it, and nobody can find it before it listens: it is made in a private directory and moved to its path once its mode is set.
///
/// # Errors
/// A sentence that says why: another process listens at the path, something else is there, or no socket can be made.
pub fn listen(path: &Path) -> Result<(UnixListener, SocketFile), String> {
    listen_by(path, |path| UnixListener::bind(path))
}

/// As [`listen`], with a socket that `bind` makes.
pub(crate) fn listen_by<S>(
    path: &Path,
    bind: impl FnOnce(&Path) -> std::io::Result<S>,
) -> Result<(S, SocketFile), String> {
    let failed = |error: std::io::Error| format!("it cannot be made ({error})");
    // Checked here: the file could be moved to a path that is too long to connect to.
    SocketAddr::from_pathname(path).map_err(failed)?;
    let dir = dir_of(path);
    if !dir.is_dir() {
        return Err(format!("there is no directory {}; make it, or name another path", dir.display()));
    }
    // Held until the socket is in its place.
    let _lock = lock_and_clear(path)?;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let private_dir = dir.join(format!(".roce{}-{n}", std::process::id()));
    let private_path = private_dir.join("s");
    std::fs::DirBuilder::new().mode(0o700).create(&private_dir).map_err(failed)?;
    let made = || -> std::io::Result<(S, SocketFile)> {
        let listener = bind(&private_path)?;
        let mut file = SocketFile::new(&private_path)?;
        std::fs::set_permissions(&private_path, std::fs::Permissions::from_mode(0o600))?;
        file.move_to(path)?;
        Ok((listener, file))
    };
    let made = made().map_err(failed);
    let _ = std::fs::remove_dir(&private_dir);
    made
}

/// Removes the socket at `path` if its process left it behind, and nothing else.
///
/// # Errors
/// A sentence that says why: the socket is in use, the file is not a socket, or it cannot be removed.
pub fn remove_stale(path: &Path) -> Result<(), String> {
    lock_and_clear(path).map(drop)
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Missing,
    /// A socket that a process has open.
    Alive,
    /// A socket file that its process left behind.
    Stale,
    /// A file that is no socket; also a symbolic link, wherever it leads.
    Other,
}

/// Finds out what is at `path` without disturbing the process that owns the socket.
///
/// It connects a datagram socket. Linux looks up the socket before it compares the types. The connection is refused if no process has the
/// socket open. It fails because of the wrong type if a process listens; that process does not notice. A connection to a datagram socket
/// sends nothing either.
pub(crate) fn probe(path: &Path) -> Result<Found, String> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(format!("{} cannot be looked at: {error}", path.display())),
    };
    if !metadata.file_type().is_socket() {
        return Ok(Found::Other);
    }
    let probe = UnixDatagram::unbound().map_err(|error| format!("no socket can be made: {error}"))?;
    match probe.connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Found::Stale),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            // A datagram socket that is connected to another peer refuses in the same way, and is in use.
            match File::options().write(true).open(path) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    Err(format!("{} may not be used: change its owner or mode", path.display()))
                }
                _ => Ok(Found::Alive),
            }
        }
        Ok(()) | Err(_) => Ok(Found::Alive),
    }
}

/// The lock of a directory, held until a socket of our own is bound there. Meanwhile no other process removes stale files there. Otherwise,
/// of two processes that find a stale file, the second could remove the socket that the first just made.
#[derive(Debug)]
#[must_use = "the socket is to be bound first"]
pub(crate) struct DirLock {
    /// A directory can be locked like a file, so no lock file is left behind.
    dir: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // To close the descriptor would not unlock while a forked child has it, too.
        let _ = self.dir.unlock();
    }
}

/// Locks the directory of `path` and removes a stale socket file there, so that a socket of our own can be bound.
///
/// # Errors
/// A sentence that says why: a process uses the path, the file is not a socket, or it cannot be removed.
pub(crate) fn lock_and_clear(path: &Path) -> Result<DirLock, String> {
    let lock = lock(dir_of(path))?;
    match probe(path)? {
        Found::Missing => Ok(lock),
        Found::Other => Err(format!("{} exists and is no socket: choose another path", path.display())),
        Found::Alive => Err(format!(
            "another process listens on {} already: end it, take another path, or take the other role",
            path.display()
        )),
        Found::Stale => match std::fs::remove_file(path) {
            Ok(()) => Ok(lock),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(lock),
            Err(error) => Err(format!("the stale socket {} cannot be removed: {error}", path.display())),
        },
    }
}

fn lock(dir: &Path) -> Result<DirLock, String> {
    let failed = |error| format!("the directory {} cannot be used: {error}", dir.display());
    let file = File::open(dir).map_err(failed)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(DirLock { dir: file }),
            // Anybody who may read the directory can keep it locked, so the wait is bounded.
            Err(TryLockError::WouldBlock) if since.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(format!(
                    "another process keeps the directory {} locked: end it, or take a path in another directory",
                    dir.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
}

/// The owners of what is at `path` (a socket, or a symbolic link to one) and of the socket.
///
/// # Errors
/// Those of stat(2).
pub(super) fn makers(path: &Path) -> std::io::Result<[u32; 2]> {
    Ok([std::fs::symlink_metadata(path)?.uid(), std::fs::metadata(path)?.uid()])
}

/// Fails if the socket at `path` was made by a user who is none of these peers. It is no error if there is no socket yet: DPDK waits for
/// it.
///
/// # Errors
/// A sentence that names the other user.
#[cfg(feature = "dpdk")]
pub(super) fn belongs_to(path: &Path, peers: &Peers) -> Result<(), String> {
    match makers(path).ok().and_then(|makers| makers.into_iter().find(|user| !peers.has(*user))) {
        Some(user) => {
            Err(format!("the socket {} was made by user {user}: see the option peer-uid", path.display()))
        }
        None => Ok(()),
    }
}

/// [`lock_and_clear`] for a socket that DPDK will make at `path`, whose own errors do not name the cause.
///
/// # Errors
/// As [`lock_and_clear`], and when the directory takes no new files.
pub(super) fn lock_and_clear_for_dpdk(path: &Path) -> Result<DirLock, String> {
    let lock = lock_and_clear(path)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    // The trial file is beside the path: a peer that connects to the path must not find it.
    let trial = dir.join(format!(".roce-{}-{:?}", std::process::id(), std::thread::current().id()));
    match File::create_new(&trial) {
        Ok(_) => {
            let _ = std::fs::remove_file(&trial);
            Ok(lock)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(lock),
        Err(error) => Err(format!(
            "the socket {} cannot be made ({error}): take a path in a directory that you may write to",
            path.display()
        )),
    }
}

/// Makes the path absolute. Checks that its directory exists, and that it suits a socket and the options of DPDK.
pub(super) fn absolute(path: &Path) -> Result<String, String> {
    let path = std::path::absolute(path).map_err(|error| format!("the path cannot be resolved: {error}"))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(format!("{} is no directory", dir.display())),
        Err(error) => {
            return Err(format!("the socket's directory {} cannot be used: {error}", dir.display()));
        }
    }
    let text = path.to_str().ok_or("the path is not UTF-8")?;
    if text.len() > PATH_MAX {
        return Err(format!("the path {text} is longer than the {} bytes that sockets may have", PATH_MAX));
    }
    if text.contains(',') {
        return Err(format!("the path {text} has a comma, which DPDK's options cannot have"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn alive_and_stale_are_told_apart() {
        let dir = std::env::temp_dir().join(format!("roce-look-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.sock");
        assert_eq!(probe(&path), Ok(Found::Missing));
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(probe(&path), Ok(Found::Alive));
        assert!(listener.accept().is_err(), "the listener notices nothing");
        assert!(lock_and_clear(&path).unwrap_err().contains("another process listens"));
        drop(listener);
        assert_eq!(probe(&path), Ok(Found::Stale));
        assert!(lock_and_clear(&path).is_ok());
        assert_eq!(probe(&path), Ok(Found::Missing));
        let datagrams = UnixDatagram::bind(&path).unwrap();
        assert_eq!(probe(&path), Ok(Found::Alive));
        drop(datagrams);
        assert_eq!(probe(&path), Ok(Found::Stale));
        let file = dir.join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(probe(&file), Ok(Found::Other));
        assert!(lock_and_clear(&file).unwrap_err().contains("is no socket"));
        std::fs::remove_file(&file).unwrap();
        assert!(lock_and_clear_for_dpdk(&path).is_ok());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "the trial leaves nothing behind");
        assert!(lock_and_clear_for_dpdk(Path::new("/proc/a.sock")).unwrap_err().contains("you may write to"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn of_those_who_start_at_one_stale_socket_one_serves_it() {
        // Goal: no process removes a socket that another one made just now, and each of the others is told why it has none.
        const STARTERS: usize = 4;
        let dir = std::env::temp_dir().join(format!("roce-stale-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.sock");
        let begin = std::sync::Barrier::new(STARTERS);
        let start = || {
            begin.wait();
            let lock = lock_and_clear(&path)?;
            let listener = UnixListener::bind(&path).map_err(|error| error.to_string());
            drop(lock);
            listener
        };
        for round in 0..2000 {
            drop(UnixListener::bind(&path).unwrap());
            let all: Vec<_> = std::thread::scope(|scope| {
                let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
                starters.into_iter().map(|starter| starter.join().unwrap()).collect()
            });
            let (serving, others): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
            assert_eq!(serving.len(), 1, "round {round}: {others:?}");
            assert!(
                others.iter().all(|other| other.as_ref().unwrap_err().contains("another process listens"))
            );
            assert_eq!(probe(&path), Ok(Found::Alive), "round {round}");
            drop(serving);
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
