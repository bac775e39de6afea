//! Mistakes of a caller.

use crate::id::{Mtu, Qpn};

use super::event::{ConnId, ListenId, SidrId};
use super::service::ServiceId;

/// Why an operation was refused. It changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The connection is not there, or came to its end.
    #[error("{0:?} is no connection (any more)")]
    NoConnection(ConnId),
    /// The listener is not there (any more).
    #[error("{0:?} is no listener (any more)")]
    NoListener(ListenId),
    /// The SIDR exchange is not there, or came to its end.
    #[error("{0:?} is no SIDR exchange (any more)")]
    NoSidr(SidrId),
    /// The operation does not fit the connection's state.
    #[error("{operation} is not possible in state {state}")]
    State {
        /// What was called.
        operation: &'static str,
        /// The state's name.
        state: &'static str,
    },
    /// There is a listener already.
    #[error("service id {0:?} has a listener on this address already")]
    InUse(ServiceId),
    /// The queue pair is in another connection.
    #[error("queue pair {0:?} is in another connection, or rests in TIMEWAIT: use another one")]
    QpBusy(Qpn),
    /// No queue pair has this number.
    #[error("{0:?} is not the number of a queue pair that can be connected: 2 to 0xfffffe")]
    Qpn(Qpn),
    /// More private data than fits.
    #[error("{given} bytes of private data, up to {max} fit here")]
    PrivateData {
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// More additional information than fits.
    #[error("{0} bytes of additional information, up to 72 fit")]
    Info(usize),
    /// A value out of its range.
    #[error("{name} {given}, allowed are 0 to {max}")]
    Range {
        /// The value's name.
        name: &'static str,
        /// What was given.
        given: u32,
        /// The largest allowed.
        max: u32,
    },
    /// A larger path MTU than the port's.
    #[error("path MTU {} is larger than the port's {}", .given.bytes(), .port.bytes())]
    Mtu {
        /// What was given.
        given: Mtu,
        /// What the port has.
        port: Mtu,
    },
    /// An address of the path is zero or a group address.
    #[error("the path needs the address of a host at both ends")]
    Address,
    /// The service id is one of `rdma_cm` and there is no header for it, or there is one for another service id.
    #[error("service id {0:?}: those of rdma_cm, and no others, have an IP header")]
    IpHeader(ServiceId),
    /// A limit of the machine ([`Limits`](super::Limits)) is reached.
    #[error("{0} are all in use")]
    Limit(&'static str),
}
