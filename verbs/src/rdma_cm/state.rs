//! States of an identifier.

use std::fmt;

/// The state of an identifier, from [`CmId::state`](super::CmId::state).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum IdState {
    /// New.
    Idle,
    /// Bound to an address and a port.
    Bound,
    /// The destination is being resolved.
    ResolvingAddr,
    /// The destination's Ethernet address is known.
    AddrResolved,
    /// The path is known, so the identifier can connect.
    RouteResolved,
    /// It listens for requests.
    Listening,
    /// A received request that has not been accepted or rejected.
    Requested,
    /// It has sent a request, and the peer has not answered.
    Connecting,
    /// The peer accepted; the program has to move its own queue pair to RTS.
    Responded,
    /// It has accepted a request, and the peer has not confirmed.
    Accepting,
    /// Connected.
    Connected,
    /// It has sent a DREQ to the peer.
    Disconnecting,
    /// Its connection has ended, or could not be made.
    Disconnected,
}

impl fmt::Display for IdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::ResolvingAddr => "resolving an address",
            Self::AddrResolved => "with its address resolved",
            Self::RouteResolved => "with its route resolved",
            Self::Listening => "listening",
            Self::Requested => "a request to be answered",
            Self::Connecting => "connecting",
            Self::Responded => "accepted by the peer and not established",
            Self::Accepting => "accepted and not confirmed by the peer",
            Self::Connected => "connected",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
        })
    }
}
