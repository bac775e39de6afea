//! Paths to peers, for connection management.

use super::handle::Device;
use crate::id::{Gid, Mtu};
use crate::net::{Net, Resolution};
use crate::time::Instant;

/// The path to a peer, for a connection to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerPath {
    /// Its Ethernet address is known, or it is one of the device's own addresses.
    Known,
    /// It is being resolved.
    Pending,
    /// Its address could not be resolved.
    Unreachable,
}

impl Device {
    /// Whether a peer can be reached. If its Ethernet address is unknown, starts to resolve it; call again for the result.
    pub fn path_to(&self, peer: &Gid) -> PeerPath {
        if self.core().shared.gids.contains(peer) {
            return PeerPath::Known;
        }
        self.path_by(|net, now| net.resolve(now, peer))
    }

    /// Whether an answer can be sent to a peer, possibly a stranger. A stranger evicts no neighbour that the program resolved: if the
    /// neighbour table lacks the stranger, the answer goes to the Ethernet address from which its message came.
    pub fn path_of_answer(&self, peer: &Gid) -> PeerPath {
        if self.core().shared.gids.contains(peer) {
            return PeerPath::Known;
        }
        self.path_by(|net, now| net.resolve_answer(now, peer))
    }

    fn path_by(&self, resolve: impl FnOnce(&mut Net, Instant) -> Resolution) -> PeerPath {
        let now = self.now();
        match self.core().shared.with_net(|net| resolve(net, now)) {
            Resolution::Known(_) => PeerPath::Known,
            Resolution::Pending => {
                self.wake();
                PeerPath::Pending
            }
            Resolution::Failed => PeerPath::Unreachable,
        }
    }

    /// The local address for reaching a peer: the peer's address itself if it is local, otherwise one on its subnet, otherwise any of its
    /// family; or the one that the host below the port chooses. `None` without a route. `scope` is the index of the host's interface behind
    /// which a link-local peer is, or 0.
    pub fn source_to(&self, peer: &Gid, scope: u32) -> Option<Gid> {
        if self.core().shared.gids.contains(peer) {
            return Some(*peer);
        }
        if let Some(host) = self.port().host() {
            return host.source_to(peer.to_ip(), scope).map(Gid::from_ip);
        }
        self.core().shared.with_net(|net| net.source_to(peer))
    }

    /// Largest path MTU to a peer: the active one, or less if the host below the port knows of a smaller MTU on the path.
    pub fn path_mtu_to(&self, peer: &Gid) -> Mtu {
        let active = self.core().shared.mtu();
        let known = self.port().host().and_then(|host| host.mtu_to(peer.to_ip()));
        // If the path carries less than the smallest path MTU, that MTU is used all the same: its packets may pass in fragments.
        known.map_or(active, |mtu| Mtu::of_link(mtu).unwrap_or(Mtu::Mtu256).min(active))
    }
}
