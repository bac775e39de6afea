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
    /// The destination is being looked for.
    ResolvingAddr,
    /// The destination's station is known.
    AddrResolved,
    /// The path is known: it can connect.
    RouteResolved,
    /// It takes requests.
    Listening,
    /// A request arrived, and wants to be accepted or rejected.
    Requested,
    /// It asked a peer, which has not answered.
    Connecting,
    /// The peer accepted; the queue pair, which is the program's, is to be brought up.
    Responded,
    /// It accepted a request, and the peer has not confirmed.
    Accepting,
    /// Connected.
    Connected,
    /// It asked the peer to disconnect.
    Disconnecting,
    /// Its connection ended, or never came about.
    Disconnected,
}

impl fmt::Display for IdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::ResolvingAddr => "resolving an address",
            Self::AddrResolved => "resolved as to its address",
            Self::RouteResolved => "resolved as to its route",
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
