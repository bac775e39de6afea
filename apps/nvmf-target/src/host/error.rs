//! Errors of a host.

use std::net::SocketAddr;

use nvmf::status::Status;
use nvmf::wire::cm::RejectData;
use nvmf::wire::fabrics::ConnectField;
use verbs::rdma_cm::{CmEvent, CmEventType, Refusal};
use verbs::{PostError, VerbsError, WcStatus};
use zerocopy::FromBytes;

/// The reject reason "consumer reject": the peer's program rejected the request, not its connection management (IBA 12.6.7.2).
const BY_PROGRAM: u16 = 28;

/// Why an operation of a host failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The device or a verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The target rejected the connection, with this status of the RDMA transport.
    #[error("the target refused the connection: status {0} of the RDMA transport")]
    Refused(u16),
    /// The connection could not be established.
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
    /// The connection failed: a work request completed with this status.
    #[error("the connection ended: {0}")]
    Connection(WcStatus),
    /// A command failed.
    #[error("the command failed: {}{}", in_words(status & 0x7FF), hint(status & 0x7FF, *result))]
    Status {
        /// The status field, without the phase bit.
        status: u16,
        /// The result.
        result: u64,
    },
    /// No response came in time.
    #[error("the target did not answer in time")]
    NoResponse,
    /// A signal asked the process to end: SIGINT, SIGTERM or SIGHUP.
    #[error("interrupted")]
    Interrupted,
    /// The queue had no free entry for the command.
    #[error("the queue is full")]
    QueueFull,
    /// The target violated the specification; the text says how.
    #[error("the target does not keep to the protocol: {0}")]
    ProtocolViolation(&'static str),
}

/// A status as text: its number, and its name if this project's target sends it.
pub(crate) fn in_words(code: u16) -> String {
    Status::of_code(code).map_or_else(|| format!("status {code:#05x}"), |status| status.to_string())
}

/// A hint on the status of a refused Connect, to be appended to its name; empty for any other status.
fn hint(code: u16, result: u64) -> &'static str {
    if code == Status::InvalidHost.code() {
        return ": the subsystem does not allow this host";
    }
    if code != Status::ConnectInvalid.code() {
        return "";
    }
    let is = |field: ConnectField| result == field as u64;
    if is(ConnectField::Subsystem) {
        ": the target has no subsystem of this name at this address; discover lists those it has"
    } else if is(ConnectField::ControllerId) {
        ": the controller has ended"
    } else if is(ConnectField::QueueSize) {
        ": the target's queues are not that long"
    } else {
        ": the target does not take a parameter of Connect"
    }
}

impl HostError {
    /// The error for an event that ended an attempt to connect to `to`.
    pub(super) fn of(event: &CmEvent, to: SocketAddr) -> Self {
        let why = match event.event() {
            CmEventType::Rejected => {
                match (event.refusal(), RejectData::ref_from_prefix(event.private_data())) {
                    (Some(Refusal { reason: BY_PROGRAM, .. }), Ok((data, _))) => {
                        return Self::Refused(data.status.get());
                    }
                    (refusal, _) => refusal.map_or_else(|| "refused".into(), |refusal| refusal.to_string()),
                }
            }
            CmEventType::AddrError => "no host has this address; check it, and that the link is up".into(),
            CmEventType::Unreachable => "the target does not answer".into(),
            other => format!("connecting ended in {other} ({})", event.status()),
        };
        Self::Unconnected { to, why }
    }
    /// The status of a failed command: SCT in bits 10:8 and SC in bits 7:0; `None` for other errors.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status & 0x7FF),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the error says when the name of the subsystem is wrong, which is the most common mistake.
    #[test]
    fn a_refused_connect_is_explained() {
        let of =
            |status: Status, result| HostError::Status { status: status.field() >> 1, result }.to_string();
        let named = of(Status::ConnectInvalid, ConnectField::Subsystem as u64);
        assert!(named.contains("0x182") && named.contains("no subsystem of this name"), "{named}");
        assert!(of(Status::ConnectInvalid, ConnectField::Host as u64).contains("a parameter of Connect"));
        assert!(of(Status::ControllerUnknown, ConnectField::ControllerId as u64).contains("has ended"));
        assert!(of(Status::InvalidHost, 0).contains("does not allow this host"));
        assert_eq!(of(Status::WriteFault, 0), "the command failed: WriteFault (0x280)");
    }
}
