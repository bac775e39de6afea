//! Errors of calls on a domain that processes share.

use core::time::Duration;
use std::io;
use std::path::PathBuf;

use super::refusal::Refusal;
use crate::device::DeviceError;

/// Why a call on a domain that processes share failed. The message says in one sentence what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XrcError {
    /// The device of this process refused the call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The owner of the domain refused the call.
    #[error("{0}")]
    Refused(Refusal),
    /// Only the port `host` connects processes.
    #[error(
        "port {port} does not join the processes of this host, so that they could share an XRC domain: open the device on the \
         port host, or open a domain by name, which this process alone has"
    )]
    Port {
        /// The port.
        port: String,
    },
    /// The program that owns the domain was not found.
    #[error(
        "an XRC domain that processes share needs the program roce-xrcd, which is not in {}: install it there, or name it in \
         ROCE_XRCD_PROGRAM",
        shown(places)
    )]
    NoProgram {
        /// Where it was searched.
        places: Vec<PathBuf>,
    },
    /// The program that owns the domain could not be started.
    #[error("{} cannot be started: {error}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The owner of the domain did not start up in time.
    #[error(
        "the owner of the XRC domain does not answer after {after:?}; to see why, run it in a terminal: {command}"
    )]
    NotUp {
        /// How long the call waited for it.
        after: Duration,
        /// The command that starts it.
        command: String,
    },
    /// The owner of the domain has ended.
    #[error(
        "the process roce-xrcd that owned the targets of the XRC domain has ended, or dropped this one, and with it they are gone: \
         close the domain, and open it again"
    )]
    Ended,
    /// The owner of the domain does not answer.
    #[error(
        "the process roce-xrcd that owns the XRC domain does not answer for {after:?}, and is given up: close the domain, and open it \
         again"
    )]
    Silent {
        /// How long the call waited for it.
        after: Duration,
    },
    /// The owner of the domain has another protocol version.
    #[error(
        "the owner of the XRC domain speaks version {theirs}, and this process {ours}: run programs of one release, or wait until \
         those of the other one have ended"
    )]
    VersionMismatch {
        /// This process's version.
        ours: u32,
        /// The owner's version.
        theirs: u32,
    },
    /// Another user has taken the name of the owner's socket.
    #[error(
        "user {uid} has taken the name by which the owner of the XRC domain is found: ask that user to end the process"
    )]
    Foreign {
        /// The user.
        uid: u32,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl XrcError {
    /// The error of a failed system call.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}

fn shown(places: &[PathBuf]) -> String {
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    places.join(" or ")
}
