//! Fetches snapshots of the processes of the host, and what the system knows of processes that do not answer.

use crate::cli::device::DEFAULT_PORT;
use crate::cli::parse;
use crate::error::{AppError, Result};
use crate::out::note;
use crate::stat::search::Search;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use verbs::stats::{HostReader, Process, Reply};

/// Most characters of a program's name that are taken from the system.
const NAME_MAX: usize = 64;

/// Fetches the snapshots repeatedly.
#[derive(Clone, Debug)]
pub struct Finder(Arc<Mutex<HostReader>>);

/// The processes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The processes.
    pub processes: Vec<Process>,
    /// What the system knows of the processes that do not answer, by process number.
    pub silent: BTreeMap<u32, Silent>,
    /// Messages for the user beside the processes.
    pub notes: Vec<String>,
}

/// What the system knows of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// Name of the program.
    pub program: String,
    /// Whether it is stopped, by a signal or a debugger.
    pub is_stopped: bool,
}

impl Finder {
    /// For the host that a program with the same variables would be part of.
    ///
    /// # Errors
    /// When there is no such user, or a user cannot be told from others.
    pub fn new() -> Result<Self> {
        let port = parse::port(DEFAULT_PORT).map_err(AppError::Setup)?;
        let reader = HostReader::new(&port).map_err(|error| AppError::Setup(error.to_string()))?;
        Ok(Self(Arc::new(Mutex::new(reader))))
    }

    /// Fetches the snapshots on a separate thread. The result is an error if no process was found.
    pub fn look(&self) -> Search<Found> {
        let reader = Arc::clone(&self.0);
        Search::start(move || {
            let look = reader.lock().unwrap_or_else(PoisonError::into_inner).look();
            let look = look.map_err(|error| AppError::Setup(error.to_string()))?;
            let mut found = Found { processes: look.processes, ..Found::default() };
            if look.foreign > 0 {
                let (count, names) = (look.foreign, if look.foreign == 1 { "name" } else { "names" });
                let held = format!(
                    "another user holds {count} {names} of this user's processes (ss -xlp shows them), and is not named in ROCE_ADMIT"
                );
                found.notes.push(held);
            }
            if found.processes.is_empty() {
                let notes = found.notes.iter().map(|note| format!("; {note}")).collect::<String>();
                return Err(AppError::Setup(format!(
                    "no process found that has the addresses of this host{notes}; start one on the port host \
                     (roce-pingpong), and look as its user in its network namespace"
                )));
            }
            if !look.has_registry {
                found
                    .notes
                    .push("no process answers, so it is not known who listens and who is keeper".into());
            }
            let silent =
                found.processes.iter().filter(|process| !matches!(process.reply, Reply::Snapshot(_)));
            found.silent =
                silent.map(|process| (process.pid, Silent::of(Path::new("/proc"), process.pid))).collect();
            Ok(found)
        })
    }
}

impl Found {
    /// Prints the notes.
    pub fn print_notes(&self) {
        self.notes.iter().for_each(|note| note!("roce-stat: {note}"));
    }
}

impl Silent {
    /// Reads the files of process `pid` below `proc`.
    pub fn of(proc: &Path, pid: u32) -> Self {
        let stat = std::fs::read(proc.join(format!("{pid}/stat"))).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        // The name is in parentheses, and may contain parentheses.
        let parts = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
        let Some((name, rest)) = parts else { return Self::default() };
        let program = name.chars().take(NAME_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
        Self { program, is_stopped: rest.trim_start().starts_with(['T', 't']) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read_whatever_the_name() {
        let dir = std::env::temp_dir().join(format!("roce-stat-proc-{}", std::process::id()));
        let of = |stat: &str| {
            std::fs::create_dir_all(dir.join("7")).unwrap();
            std::fs::write(dir.join("7/stat"), stat).unwrap();
            Silent::of(&dir, 7)
        };
        let silent = |program: &str, is_stopped| Silent { program: program.into(), is_stopped };
        assert_eq!(of("7 (ib_write_bw) T 1 7"), silent("ib_write_bw", true));
        assert_eq!(of("7 (a) R) S 1 7"), silent("a) R", false));
        assert_eq!(of("7 (a\u{1b}[2J\n) t 1 7"), silent("a?[2J?", true));
        assert_eq!(of("nothing"), Silent::default());
        assert_eq!(Silent::of(&dir, 8), Silent::default());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
