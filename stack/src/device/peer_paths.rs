//! Ways to peers, for connection management.

use super::handle::Device;
use crate::id::{Gid, Mtu};
use crate::net::{Net, Resolution};
use crate::time::Instant;

/// The path to a peer, for a connection to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerPath {
    /// Its Ethernet address is known, or it is one of our own addresses.
    Known,
    /// It is being resolved.
    Pending,
    /// There is no answer.
    Unreachable,
}

impl Device {
    /// Whether a peer can be reached. If its Ethernet address is not known, sends requests on the link; call again for the answer.
    pub fn path_to(&self, peer: &Gid) -> PeerPath {
        if self.core().shared.gids.contains(peer) {
            return PeerPath::Known;
        }
        self.path_by(|net, now| net.resolve(now, peer))
    }

    /// Whether an answer can go to a peer, which may be a stranger. A stranger evicts no neighbour that the program resolved: if
    /// the table does not have the stranger, the answer goes to the Ethernet address from which its message came.
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

    /// Our address from which a peer is reached: that address itself where it is ours, else one on its subnet, else
    /// any of its family; or the one that the host below the port chooses. `None`: there is no route to it. `scope` is the number
    /// of the host's interface behind which a link-local peer is, or 0.
    pub fn source_to(&self, peer: &Gid, scope: u32) -> Option<Gid> {
        if self.core().shared.gids.contains(peer) {
            return Some(*peer);
        }
        if let Some(host) = self.port().host() {
            return host.source_to(peer.to_ip(), scope).map(Gid::from_ip);
        }
        self.core().shared.with_net(|net| net.source_to(peer))
    }

    /// Largest path MTU to a peer: the active one, or less where the host below the port knows of a smaller MTU on the path.
    pub fn path_mtu_to(&self, peer: &Gid) -> Mtu {
        let active = self.core().shared.mtu();
        let known = self.port().host().and_then(|host| host.mtu_to(peer.to_ip()));
        // Where the path carries less than the smallest path MTU, that is used all the same: its packets may pass in fragments.
        known.map_or(active, |mtu| Mtu::of_link(mtu).unwrap_or(Mtu::Mtu256).min(active))
    }
}
