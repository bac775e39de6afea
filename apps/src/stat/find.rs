//! Finds the running stacks: fetches snapshots from the named sockets, or from all sockets of a directory.

use super::search::Search;
use crate::error::{AppError, Result};
use crate::out::note;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use verbs::port::socket_file;
use verbs::stats::{self, Snapshot, StatsError};

/// The stacks that answered.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Path and snapshot of each stack, sorted by path.
    pub stacks: Vec<(PathBuf, Snapshot)>,
    /// Errors of sockets without a snapshot.
    pub notes: Vec<String>,
}

impl Found {
    /// Prints the notes.
    pub fn print_notes(&self) {
        self.notes.iter().for_each(|note| note!("roce-stat: {note}"));
    }
}

/// Fetches a snapshot of each stack at these paths; without paths, of those in the default directory.
///
/// A socket in a directory is removed if no process listens on it and its name is one that a device chose: then its process has
/// ended without removing it.
///
/// # Errors
/// When no stack answers.
pub fn find(paths: &[PathBuf]) -> Result<Found> {
    let default;
    let paths = match paths {
        [] => {
            default = [stats::runtime_dir().map_err(|e| AppError::Setup(e.to_string()))?];
            &default
        }
        paths => paths,
    };
    let mut found = Found::default();
    for path in paths {
        if path.is_dir() { in_dir(path, &mut found)? } else { one(path, &mut found, false) }
    }
    if found.stacks.is_empty() {
        let places: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
        let notes = found.notes.iter().map(|note| format!("; {note}")).collect::<String>();
        return Err(AppError::Setup(format!(
            "no running stack found in {}{notes}; start one with --stats (roce-pingpong --stats), or with \
             DeviceConfig::stats in your program; roce-stat --host shows those on the port host without",
            places.join(", ")
        )));
    }
    Ok(found)
}

/// Runs [`find`] on a separate thread, because connecting to a stopped process, which accepts nothing, blocks.
pub fn search(paths: &[PathBuf]) -> Search<Found> {
    let paths = paths.to_vec();
    Search::start(move || find(&paths))
}

/// Runs [`find`]; a signal interrupts it.
///
/// # Errors
/// When no stack answers; [`AppError::Interrupted`].
pub fn look(paths: &[PathBuf]) -> Result<Found> {
    search(paths).wait()
}

fn in_dir(dir: &Path, found: &mut Found) -> Result<()> {
    let fail = |e: std::io::Error| AppError::Setup(format!("{} cannot be read ({e})", dir.display()));
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|e| e == "sock") {
            sockets.push(path);
        }
    }
    sockets.sort();
    sockets.iter().for_each(|path| one(path, found, true));
    Ok(())
}

/// Whether a device chose this name for its socket, such as `12-0.sock`. This program removes no other sockets.
fn is_of_a_device(path: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".sock"));
    name.and_then(|name| name.split_once('-')).is_some_and(|(pid, n)| is_number(pid) && is_number(n))
}

fn one(path: &Path, found: &mut Found, tidy: bool) {
    match Snapshot::fetch(path) {
        Ok(snapshot) => found.stacks.push((path.into(), snapshot)),
        Err(StatsError::Stale { .. }) if tidy && is_of_a_device(path) => {
            found.notes.push(match socket_file::remove_stale(path) {
                Ok(()) => format!("removed {}: its process ended without doing so", path.display()),
                Err(reason) => reason,
            });
        }
        // The process ended between the reading of the directory and the connection.
        Err(StatsError::Io { source, .. }) if tidy && source.kind() == std::io::ErrorKind::NotFound => {}
        // The socket of a memif link: of another type, in the same directory.
        Err(StatsError::Io { source, .. })
            if tidy && Errno::from_io_error(&source) == Some(Errno::PROTOTYPE) => {}
        Err(error) => found.notes.push(error.to_string()),
    }
}
