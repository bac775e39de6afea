//! The ways to the peers: next hops of connections and of datagrams, as the IP host knows them.
//!
//! The IP host is the device's and behind a lock. Here is what a shard remembers of it, until the host says that something
//! changed: then datagrams look their ways up again, and connections to a neighbour that moved are visited, some a turn.

use super::env::Env;
use super::hops::Hops;
use super::paths::{Path, Paths};
use super::qp::{Qp, Route};
use super::{Shard, Shared};
use crate::config::NEIGHBOUR_VISITS;
use crate::id::Gid;
use crate::net::{Net, Resolution};
use crate::proto::address::Source;
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Ways to the peers of datagrams.
    paths: Paths,
    /// Neighbours that queue pairs send to, or wait for.
    pub hops: Hops,
    /// Generation of the neighbour table that all of this is from.
    seen: u64,
}

impl Peers {
    /// Whether all of this is as the IP host knows it.
    #[inline]
    pub fn are_current(&self, shared: &Shared) -> bool {
        shared.net_generation() == self.seen
    }

    /// Neighbours or addresses changed: ways are looked up again, and the queue pairs that it concerns are to be visited.
    #[cold]
    fn note_changes(&mut self, shared: &Shared) {
        self.paths.clear();
        shared.with_net(|net| {
            net.changes(self.seen, |hop| self.hops.changed(hop));
            self.seen = net.generation();
        });
    }
}

impl Shard {
    /// Follows the IP host: neighbours and addresses as they are now.
    #[inline]
    pub(super) fn update_peers(&mut self) {
        let env = &mut self.env;
        if !env.peers.are_current(&env.shared) {
            env.peers.note_changes(&env.shared);
        }
    }

    /// Queue pairs whose neighbour was found, moved, or is not there: as many as a turn may take.
    #[cold]
    pub(super) fn visit_moved(&mut self) {
        for _ in 0..NEIGHBOUR_VISITS {
            let Some(slot) = self.env.peers.hops.next_due() else { break };
            let Some(qp) = self.qps.get(slot) else { continue };
            let env = &mut self.env;
            if qp.is_datagram() {
                env.release_next_hop(slot);
                env.agenda.mark_ready(qp);
                continue;
            }
            let waited = !qp.is_reachable();
            env.resolve(qp);
            if waited {
                env.agenda.mark_ready(qp);
                if qp.responder.has_answer() {
                    env.agenda.mark_answering(qp);
                }
            }
        }
    }
}

impl Env {
    /// Looks the queue pair's next hop up, and asks for it if nobody knows it. `true`: it cannot be reached. A queue pair
    /// that has an address keeps it until there is another one: that nobody answers for it does not make it wrong.
    pub fn resolve(&mut self, qp: &mut Qp) -> bool {
        if qp.route == Route::Inside {
            self.release_next_hop(qp.slot);
            return false;
        }
        match self.hold_next_hop(qp.slot, &qp.template.dst()) {
            Resolution::Known(mac) => {
                qp.template.set_dst_mac(mac);
                qp.route = Route::Known;
                false
            }
            Resolution::Pending => false,
            Resolution::Failed => qp.route == Route::Pending,
        }
    }

    /// Looks up where frames to an address go. The queue pair in this slot holds that neighbour from now on, and is
    /// visited when it changes.
    pub fn hold_next_hop(&mut self, slot: u32, dst: &Gid) -> Resolution {
        let before = self.peers.hops.of(slot);
        let (hop, found) = self.ask_host(|net, now| net.hold(now, dst, before));
        self.peers.hops.set(slot, hop);
        found
    }

    /// The queue pair in this slot sends to no neighbour any more.
    pub fn release_next_hop(&mut self, slot: u32) {
        if let Some(hop) = self.peers.hops.of(slot) {
            self.peers.hops.set(slot, None);
            self.shared.with_net(|net| net.release(hop));
        }
    }

    /// The queue pair's peer did not answer: perhaps the next hop is at another station now.
    #[cold]
    pub fn doubt_next_hop(&mut self, slot: u32) {
        if let Some(hop) = self.peers.hops.of(slot) {
            self.shared.with_net(|net| net.doubt(self.now, hop));
        }
    }

    /// The way from an address of ours to another; asks the link for it if need be.
    #[inline]
    pub fn path_to(&mut self, source: Source, gid: &Gid) -> Path {
        match self.peers.paths.get(source, gid) {
            Some(path) => path,
            None => self.find_path(source, gid),
        }
    }

    #[cold]
    fn find_path(&mut self, source: Source, gid: &Gid) -> Path {
        let path = self.look_up(source, gid, |net, now| net.resolve(now, gid));
        if matches!(path, Path::Known(_) | Path::Inside) {
            self.peers.paths.set(source, gid, path);
        }
        path
    }

    /// The way of an answer from an address of ours to another, which may be a stranger's: that is not remembered among those in use.
    #[cold]
    pub fn path_of_answer(&mut self, source: Source, gid: &Gid) -> Path {
        self.look_up(source, gid, |net, now| net.resolve_answer(now, gid))
    }

    fn look_up(
        &mut self,
        source: Source,
        gid: &Gid,
        resolve: impl FnOnce(&mut Net, Instant) -> Resolution,
    ) -> Path {
        if self.shared.gids.of(source).is_none() {
            return Path::NoSource;
        }
        if self.shared.gids.contains(gid) {
            return Path::Inside;
        }
        match self.ask_host(resolve) {
            Resolution::Known(mac) => Path::Known(mac),
            Resolution::Pending => Path::Pending,
            Resolution::Failed => Path::Failed,
        }
    }
}
