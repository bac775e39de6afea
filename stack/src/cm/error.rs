//! Errors of the machine's calls.

use crate::id::{Mtu, Qpn};

use super::event::{ConnId, ListenId, SidrId};
use super::service::ServiceId;

/// Why a call was refused. A refused call changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// There is no such connection, or it has ended.
    #[error("{0:?} is no connection (any more)")]
    NoConnection(ConnId),
    /// There is no such listener, or it is closed.
    #[error("{0:?} is no listener (any more)")]
    NoListener(ListenId),
    /// There is no such SIDR exchange, or it has ended.
    #[error("{0:?} is no SIDR exchange (any more)")]
    NoSidr(SidrId),
    /// The call is not possible in the state of the connection.
    #[error("{operation} is not possible in state {state}")]
    State {
        /// Name of the call.
        operation: &'static str,
        /// Name of the state.
        state: &'static str,
    },
    /// There is already a listener for this service ID and address.
    #[error("service id {0:?} has a listener on this address already")]
    InUse(ServiceId),
    /// The queue pair belongs to another connection, which may be in TIMEWAIT.
    #[error("queue pair {0:?} is in another connection, or rests in TIMEWAIT: use another one")]
    QpBusy(Qpn),
    /// A queue pair with this number cannot be connected.
    #[error("{0:?} is not the number of a queue pair that can be connected: 2 to 0xfffffe")]
    Qpn(Qpn),
    /// Too much private data.
    #[error("{given} bytes of private data, up to {max} fit here")]
    PrivateData {
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// More than 72 bytes of additional information.
    #[error("{0} bytes of additional information, up to 72 fit")]
    Info(usize),
    /// A value is out of range.
    #[error("{name} {given}, allowed are 0 to {max}")]
    Range {
        /// Name of the value.
        name: &'static str,
        /// The value given.
        given: u32,
        /// Largest allowed value.
        max: u32,
    },
    /// The path MTU is larger than that of the port.
    #[error("path MTU {} is larger than the port's {}", .given.bytes(), .port.bytes())]
    Mtu {
        /// The value given.
        given: Mtu,
        /// Path MTU of the port.
        port: Mtu,
    },
    /// An address of the path is zero or a multicast address.
    #[error("the path needs the address of a host at both ends")]
    Address,
    /// The service ID is one of `rdma_cm` and the IP header is missing, or it is not and there is one.
    #[error("service id {0:?}: those of rdma_cm, and no others, have an IP header")]
    IpHeader(ServiceId),
    /// A limit of the machine ([`Limits`](super::Limits)) is reached.
    #[error("{0} are all in use")]
    Limit(&'static str),
}
