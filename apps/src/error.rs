//! Why a program ends: one sentence for the user, and an exit code for scripts.

use std::io::ErrorKind;
use std::time::Duration;

/// The result of everything in this crate that can end a program.
pub type Result<T> = std::result::Result<T, AppError>;

/// Why a program ends early. `Display` is one clear sentence without the program's name.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The command line requests something impossible.
    #[error("{0}")]
    Usage(String),
    /// The port, the device or a file cannot be used.
    #[error("{0}")]
    Setup(String),
    /// The TCP connection to the other end failed.
    #[error(transparent)]
    Oob(OobError),
    /// The other end sent a message that is out of order, or impossible.
    #[error("the other end does not keep to the protocol: {0}")]
    ProtocolViolation(String),
    /// The other end refused, or reported a failure.
    #[error("the other end gave up: {0}")]
    Peer(String),
    /// A work request completed in error.
    #[error("{0}")]
    Completion(String),
    /// The data that arrived are not the data that were sent.
    #[error("the data are wrong: {0}")]
    Verify(String),
    /// A limit in time passed.
    #[error("{0}")]
    Timeout(String),
    /// The result cannot be written to standard output.
    #[error("the output cannot be written ({0})")]
    Output(std::io::Error),
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl From<OobError> for AppError {
    fn from(e: OobError) -> Self {
        match e {
            OobError::Interrupted => Self::Interrupted,
            e => Self::Oob(e),
        }
    }
}

impl AppError {
    /// A message of `is` bytes arrived where `want` were sent.
    pub fn wrong_length(is: u32, want: u64) -> Self {
        Self::Verify(format!("a message of {is} bytes arrived instead of {want}"))
    }
    /// The exit code: 2 for a wrong command line, 130 after a signal, 1 otherwise.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Why the out-of-band channel ([`oob`](crate::oob)) cannot be used, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum OobError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} ({error}); {}", listen_remedy(error))]
    Listen {
        /// The address.
        addr: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// No answer.
    #[error("no server answers at {addr} ({error}); start the server first, or check host and port")]
    Connect {
        /// The address.
        addr: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The host has no address.
    #[error("the host {host:?} cannot be found ({error})")]
    Resolve {
        /// The host's name.
        host: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The other end closed the connection.
    #[error("the other end closed the connection before the session was over")]
    Closed,
    /// The connection broke.
    #[error("the connection to the other end broke: {0}")]
    Io(std::io::Error),
    /// A line is longer than a message may be at this point.
    #[error("the other end sent a line of more than {0} bytes; is it roce-perf?")]
    TooLong(usize),
    /// Another program is at the other end.
    #[error("the other end sent {0}; this end speaks with roce-perf alone")]
    OtherProgram(String),
    /// A line is not a message.
    #[error("the other end sent a line that is not a message of this program: {0}")]
    Malformed(String),
    /// No message within the time limit.
    #[error("the other end said nothing for {0:?} while {1} was expected")]
    Silent(Duration, &'static str),
    /// The session exceeds its time limit.
    #[error(
        "the session has lasted for the {0:?} that this end gives one; ask for less, or let the server give more (--max-session)"
    )]
    Overtime(Duration),
    /// SIGINT, SIGTERM or SIGHUP came while the other end did not read.
    #[error("interrupted")]
    Interrupted,
}

/// What to do when a TCP port cannot be listened on.
pub fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "choose a TCP port from 1024 on, or run as root",
        ErrorKind::AddrNotAvailable => "the address to listen on must be one of this machine's",
        _ => "choose another TCP port, or end the program that uses it",
    }
}
