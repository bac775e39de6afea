//! States of an identifier.

use std::fmt;

/// The state of an identifier ([`CmId::state`](super::CmId::state)).
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
    /// The path is known: it can connect.
    RouteResolved,
    /// It accepts requests.
    Listening,
    /// A request that arrived, to be accepted or rejected.
    Requested,
    /// It sent a request to a peer, which has not answered.
    Connecting,
    /// The peer accepted; the program has to bring up its own queue pair.
    Responded,
    /// It accepted a request, which the peer has not confirmed.
    Accepting,
    /// Connected.
    Connected,
    /// It sent the peer a DREQ.
    Disconnecting,
    /// Its connection ended, or could not be made.
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
