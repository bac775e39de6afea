//! Why a program ends: one sentence for a person, and an exit code for a script.

use crate::out::note;
use std::process::ExitCode;

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
    Oob(crate::oob::OobError),
    /// The other end sent a message that is out of order, or impossible.
    #[error("the other end does not keep to the protocol: {0}")]
    Misfit(String),
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

impl From<crate::oob::OobError> for AppError {
    fn from(e: crate::oob::OobError) -> Self {
        match e {
            crate::oob::OobError::Interrupted => Self::Interrupted,
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

/// Ends a program: prints the error, if any, in one line and returns the exit code.
pub fn finish(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the pipe has closed it: no error.
        Err(AppError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            note!("{program}: {error}");
            ExitCode::from(error.code())
        }
    }
}
