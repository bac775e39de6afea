//! What can go wrong at a host.

use std::net::SocketAddr;

use verbs::{PostError, VerbsError, WcStatus};

/// Why a host gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The device or the connection.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The target refused the connection, with a status of the RDMA transport.
    #[error("the target refused the connection: status {0} of the RDMA transport")]
    Refused(u16),
    /// There is no connection.
    #[error("{to}: {why}")]
    Unconnected {
        /// The target.
        to: SocketAddr,
        /// Why, and what to do.
        why: String,
    },
    /// A request could not be posted.
    #[error("a request could not be posted: {0}")]
    Post(#[from] PostError),
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Connection(WcStatus),
    /// A command failed.
    #[error("the command failed with status {:#05x}", status & 0x7FF)]
    Status {
        /// The status field, without the phase bit.
        status: u16,
        /// The result.
        result: u64,
    },
    /// No response came in time.
    #[error("the target did not answer in time")]
    NoResponse,
    /// SIGINT, SIGTERM or SIGHUP.
    #[error("interrupted")]
    Interrupted,
    /// More commands than the queue has entries.
    #[error("the queue is full")]
    QueueFull,
    /// The target says something that cannot be.
    #[error("the target does not fit: {0}")]
    Misfit(&'static str),
}

impl HostError {
    /// The status code, type above it, where a command failed.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status & 0x7FF),
            _ => None,
        }
    }
}
