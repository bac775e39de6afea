//! Errors of communication identifiers.

use std::net::{IpAddr, SocketAddr};

use stack::device::QpType;

use super::param::PortSpace;
use super::refusal::Refusal;
use super::state::IdState;

/// What the program can do if there is no route to an address.
fn way_to(addr: IpAddr) -> &'static str {
    match addr {
        IpAddr::V6(addr) if addr.is_unicast_link_local() => {
            "it is link-local: say by which interface (the scope of its address, as in fe80::1%eth0), one that has a link-local \
             address that no other one has"
        }
        _ => {
            "add an address on its subnet, or a gateway, to the device, or to the host where the device has its addresses"
        }
    }
}

/// Why a call of [`rdma_cm`](crate::rdma_cm) failed. A failed call has changed nothing, except a synchronous call whose peer refused or did
/// not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The call requires another state of the identifier.
    #[error("{call}: the identifier is {found}; {wanted}")]
    State {
        /// The call.
        call: &'static str,
        /// The present state.
        found: IdState,
        /// What the call requires.
        wanted: &'static str,
    },
    /// A number or a length is out of its range.
    #[error("{what} is {given}; allowed are {min} to {max}")]
    Range {
        /// The argument.
        what: &'static str,
        /// The given value.
        given: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// The call does not apply to this kind of identifier.
    #[error("{call}: {why}")]
    Unsuitable {
        /// The call.
        call: &'static str,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// The port space has no queue pairs of this type.
    #[error(
        "identifiers of port space {space:?} have no {given:?} queue pairs; RC is Tcp or Ib, UC is Ib, UD is Udp or Ib"
    )]
    QpType {
        /// The port space.
        space: PortSpace,
        /// The given type.
        given: QpType,
    },
    /// The port space of IP over InfiniBand was requested on Ethernet.
    #[error(
        "IpoIb takes its Q_Key from the broadcast group of an IPoIB interface, and RoCE has none; use Udp"
    )]
    NoIpoIb,
    /// Another identifier is bound to the port.
    #[error("port {port} is in use in this port space; choose another one, or 0 for any")]
    AddrInUse {
        /// The port.
        port: u16,
    },
    /// The address is not a local address.
    #[error("{addr} is none of this device's addresses; gid_table() has them")]
    AddrNotAvail {
        /// The address.
        addr: IpAddr,
    },
    /// The identifier has not joined this multicast group.
    #[error("leave_multicast: the identifier has not joined {group}; join_multicast does")]
    NotJoined {
        /// The group.
        group: IpAddr,
    },
    /// The addresses are of different IP versions.
    #[error("{src} and {dst} are of different IP versions; use two of the same")]
    Family {
        /// The local address.
        src: IpAddr,
        /// The other address.
        dst: IpAddr,
    },
    /// No route leads to the destination.
    #[error("no route leads to {dst}; {}", way_to(dst.ip()))]
    NoRoute {
        /// The destination.
        dst: SocketAddr,
    },
    /// The peer did not answer, or no host on the link has its address.
    #[error("{call}: nobody answered at {peer} within the time")]
    TimedOut {
        /// The call.
        call: &'static str,
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer refused the connection. [`CmId::event`](super::CmId::event) has its private data.
    #[error("{peer} refused the connection: {refusal}")]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// The reason, and what to do.
        refusal: Refusal,
    },
    /// The identifier has no connection.
    #[error("{call}: the identifier is not connected")]
    NotConnected {
        /// The call.
        call: &'static str,
    },
    /// The object is still in use.
    #[error("the {object} is still in use: {why}")]
    Busy {
        /// The object.
        object: &'static str,
        /// The user, and what to do.
        why: &'static str,
    },
    /// No port of the ephemeral range is free. Contains the number of ports in the range.
    #[error("all {0} ports that are given out are in use; close identifiers, or bind to a port of your own")]
    NoPort(usize),
    /// The queue pair could not enter the state that the connection needs.
    #[error("{call}: the queue pair refused the transition (errno {errno})")]
    Qp {
        /// The call.
        call: &'static str,
        /// The error number of the failed transition.
        errno: i32,
    },
    /// The connection manager refused the call.
    #[error(transparent)]
    Machine(#[from] stack::device::cm::Error),
    /// The option cannot be set in the identifier's state.
    #[error("set_option: {0}")]
    Option(&'static str),
}
