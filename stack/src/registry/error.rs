//! Why a process has no place in its host's registry.

use super::table::VERSION;
use std::io;

/// Why a process could not join, or has no run: one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A system call failed.
    #[error("{what} failed: {error}{}", hint(error))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// The processes that run have another layout.
    #[error(
        "process {pid} of this user runs a release whose registry has version {theirs}, and this one has version {}: end the \
         programs of the other release, or use one release for all",
        VERSION
    )]
    Unlike {
        /// Their version.
        theirs: u32,
        /// A process that has it.
        pid: u32,
    },
    /// Processes have runs, and none of them lets this one join.
    #[error(
        "no process of this user that uses RDMA lets another one join ({}): continue those that are stopped, or end them",
        processes(pids)
    )]
    NoAnswer {
        /// Those that were asked; empty: they accept no connection.
        pids: Vec<u32>,
    },
    /// This process is a guest, and no process is there that could let it join.
    #[error(
        "no process of user {owner} has the port host open in this network namespace, and this process is to be part of that user's host \
         (ROCE_HOST_USER): have that user start a program first"
    )]
    Absent {
        /// The owner of the host.
        owner: u32,
    },
    /// This process is a guest, and is not let in.
    #[error(
        "the processes of user {owner} do not admit this user ({}): that user has to name it in ROCE_ADMIT, for all of them",
        processes(pids)
    )]
    NotAdmitted {
        /// The owner of the host.
        owner: u32,
        /// Those that were asked.
        pids: Vec<u32>,
    },
    /// A process that makes the registry does not get on with it.
    #[error(
        "{} began to make the registry of this user, and does not get on: continue it if it is stopped, or end it (ss -xlp shows it)",
        process(*pid)
    )]
    Unfinished {
        /// The process; 0: it is not visible from here.
        pid: u32,
    },
    /// The processes that run have other addresses than this one is to have.
    #[error(
        "the processes of this user have {theirs} for RDMA, and this one is to have {asked}: all of a user's processes have the same; name \
         those, or none, or end the others first"
    )]
    Addresses {
        /// What was asked for.
        asked: String,
        /// What the others have.
        theirs: String,
    },
    /// Other processes come and go all the time.
    #[error("other processes of this user start and end so quickly that this one could not join: try again")]
    Unsettled,
    /// Nothing is left because of another user.
    #[error(
        "user {uid} holds {foreign} names that belong to this user's registry, processes of this user {own}, and none is left: \
         have that user's processes end (ss -xlp shows them)"
    )]
    Squatted {
        /// One who holds some.
        uid: u32,
        /// How many are held by others.
        foreign: usize,
        /// How many are held by this user's processes.
        own: usize,
    },
    /// Every run is held.
    #[error("processes of this user hold all {own} runs of queue pair numbers: end some of them")]
    Exhausted {
        /// How many.
        own: usize,
    },
    /// The process has as many runs as it may have.
    #[error(
        "this process has {0} runs of queue pair numbers, the most that one may have: spread the work over more processes"
    )]
    TooMany(usize),
    /// A user cannot be told from others.
    #[error(
        "user {0} also stands for users that this user namespace does not know: run as another user, and admit (ROCE_ADMIT) or \
         visit (ROCE_HOST_USER) others"
    )]
    Unnamed(u32),
    /// The process is a fork of the one that joined.
    #[error("this process is a fork of the one that joined the registry: join again")]
    Forked,
    /// The system has no randomness.
    #[error("the operating system gives no random numbers")]
    Random,
}

impl RegistryError {
    /// For [`Result::map_err`].
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what, error: error.into() }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit of this process (ulimit -n)",
        Some(libc::ENFILE) => "; the system has no descriptor left (fs.file-max)",
        _ => "",
    }
}

fn process(pid: u32) -> String {
    if pid == 0 { "a process that is not visible from here".into() } else { format!("process {pid}") }
}

fn processes(pids: &[u32]) -> String {
    match pids {
        [] => "they take no connection".into(),
        _ => format!("asked: {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let system = RegistryError::system("socket(2)")(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(system.to_string().contains("ulimit -n"), "{system}");
        let unlike = RegistryError::Unlike { theirs: 9, pid: 77 }.to_string();
        let ours = format!("version {}", super::super::table::VERSION);
        assert!(["process 77", "version 9", &ours, "one release"].iter().all(|part| unlike.contains(part)));
        let silent = RegistryError::NoAnswer { pids: vec![4, 5] }.to_string();
        assert!(silent.contains("asked: 4, 5") && silent.contains("continue"));
        let absent = RegistryError::Absent { owner: 7 }.to_string();
        assert!(absent.contains("user 7") && absent.contains("start a program first"), "{absent}");
        let refused = RegistryError::NotAdmitted { owner: 7, pids: vec![4] }.to_string();
        assert!(refused.contains("asked: 4") && refused.contains("ROCE_ADMIT"), "{refused}");
        let squatted = RegistryError::Squatted { uid: 1234, foreign: 500, own: 12 }.to_string();
        assert!(squatted.contains("user 1234 holds 500"));
    }
}
