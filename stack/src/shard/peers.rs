//! The paths to the peers: next hops of connections and of datagrams, as the IP host resolves them.
//!
//! The IP host belongs to the device and is behind a lock. This part caches its results for the shard, until the host reports a change:
//! then datagrams look up their paths again, and connections to a neighbour that moved are visited, some in each turn.

use super::due::Due;
use super::hops::Hops;
use super::host::IpHost;
use super::paths::{Path, Paths};
use super::peer_hosts::PeerHosts;
use super::qp::{Hop, Qp};
use super::shared::Shared;
use super::unrouted::Unrouted;
use crate::id::{Gid, QpType, Qpn};
use crate::net::{Net, Resolution};
use crate::port::{Destination, NoRoute};
use crate::proto::address::Source;
use crate::proto::recovery::RetryCause;
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Paths to the peers of datagrams.
    paths: Paths,
    /// Neighbours that queue pairs send to, or whose address they wait for.
    pub hops: Hops,
    /// Queue pairs whose route the port is still setting up.
    pub unrouted: Unrouted,
    /// The hosts that queue pairs are connected with.
    pub hosts: PeerHosts,
    /// Generation of the neighbour table that this state reflects.
    seen: u64,
}

impl Peers {
    /// Whether this state reflects the IP host's current neighbour table.
    #[inline]
    pub fn are_current(&self, shared: &Shared) -> bool {
        shared.net_generation() == self.seen
    }

    /// Whether queue pairs are left to visit.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.hops.any_due()
    }

    /// When work is due here.
    pub fn due(&self, shared: &Shared) -> Due {
        Due::now_if(self.has_more() || !self.are_current(shared))
    }

    /// Takes over changes of neighbours and addresses from the IP host.
    #[inline]
    pub fn update(&mut self, shared: &Shared) {
        if !self.are_current(shared) {
            self.note_changes(shared);
        }
    }

    /// Neighbours or addresses changed: clears the cached paths, and schedules visits of the affected queue pairs.
    #[cold]
    fn note_changes(&mut self, shared: &Shared) {
        self.paths.clear();
        shared.with_net(|net| {
            net.changes(self.seen, |hop| self.hops.changed(hop));
            self.seen = net.generation();
        });
    }

    /// Releases the neighbour of the queue pair in this slot.
    pub fn release(&mut self, shared: &Shared, slot: u32) {
        if let Some(hop) = self.hops.of(slot) {
            self.hops.set(slot, None);
            shared.with_net(|net| net.release(hop));
        }
    }

    /// Checks whether the next hop still has its Ethernet address, because the queue pair's peer did not answer.
    #[cold]
    pub fn recheck(&self, shared: &Shared, now: Instant, slot: u32) {
        if let Some(hop) = self.hops.of(slot) {
            shared.with_net(|net| net.recheck(now, hop));
        }
    }
}

impl Peers {
    /// Looks up the queue pair's next hop, and resolves it if it is unknown. Returns why the peer cannot be reached, if so. A queue pair
    /// that has an Ethernet address keeps it until another one is found: an address that does not answer is not necessarily wrong.
    pub fn resolve(&mut self, host: &mut IpHost<'_>, qp: &mut Qp) -> Option<RetryCause> {
        if qp.hop.is_inside() {
            self.release(host.shared, qp.slot);
            return None;
        }
        let waits = !qp.is_reachable();
        let dst = qp.template.dst();
        match self.hold_next_hop(host, qp.slot, &dst) {
            Resolution::Known(mac) => {
                qp.template.set_dst_mac(mac);
                let remote = Qpn::new(qp.attr.dest_qp_num);
                match host.outbox.route_to(destination(host.shared, &dst, remote)) {
                    Ok(route) => {
                        qp.hop = Hop::Known(route);
                        choose_segment(host, qp);
                    }
                    Err(NoRoute::Pending) if waits => self.unrouted.add(qp.slot),
                    Err(NoRoute::Nobody) if waits => {
                        // Also where there was no link yet whose end would say so.
                        host.shared.ended_peers.add(qp.qpn);
                        return Some(RetryCause::PeerEnded);
                    }
                    Err(NoRoute::Pending | NoRoute::Nobody) => {}
                }
                None
            }
            Resolution::Pending => None,
            Resolution::Failed => waits.then_some(RetryCause::Unreachable),
        }
    }

    /// Looks up the next hop for an address. The queue pair in this slot holds that neighbour from now on, and is visited when the
    /// neighbour changes.
    pub fn hold_next_hop(&mut self, host: &mut IpHost<'_>, slot: u32, dst: &Gid) -> Resolution {
        let before = self.hops.of(slot);
        let (hop, found) = host.ask(|net, now| net.hold(now, dst, before));
        self.hops.set(slot, hop);
        found
    }

    /// The path from a local address to a queue pair at another address; resolves it on the link if it is unknown.
    #[inline]
    pub fn path_to(&mut self, host: &mut IpHost<'_>, source: Source, gid: &Gid, remote: Qpn) -> Path {
        let path = match self.paths.get(source, gid) {
            Some(path) => path,
            None => self.find_path(host, source, gid),
        };
        to_queue_pair(host, path, remote)
    }

    #[cold]
    fn find_path(&mut self, host: &mut IpHost<'_>, source: Source, gid: &Gid) -> Path {
        let path = look_up(host, source, gid, |net, now| net.resolve(now, gid));
        if matches!(path, Path::Known(..) | Path::Inside) {
            self.paths.set(source, gid, path);
        }
        path
    }
}

/// Chooses the payload size of the queue pair's packets, unless it is chosen already, and marks its packets with it. Called when the
/// route is known.
fn choose_segment(host: &mut IpHost<'_>, qp: &mut Qp) {
    let carried = host.outbox.segment_on(qp.hop.route());
    if !qp.segments.is_chosen() && qp.ty == QpType::Rc {
        qp.segments.choose(carried, qp.path_mtu());
        qp.requester.configure(&qp.requester_config());
    }
    if carried.is_some() && qp.segments.limit(carried) {
        qp.responder.configure(&qp.responder_config());
    }
    if let Some(marker) = qp.segments.marker_mac() {
        qp.template.set_dst_mac(marker);
    }
}

/// The destination of a queue pair outside this process.
fn destination(shared: &Shared, gid: &Gid, remote: Qpn) -> Destination {
    if shared.gids.contains(gid) { Destination::Process(remote) } else { Destination::Host(gid.to_ip()) }
}

/// Turns the path to an address into the path to a queue pair there: some queue pairs at the local addresses are in other processes.
#[inline]
fn to_queue_pair(host: &mut IpHost<'_>, path: Path, remote: Qpn) -> Path {
    match path {
        Path::Inside if host.shared.blocks.is_foreign(remote) => Path::Known(
            host.shared.mac,
            host.outbox.route_to(Destination::Process(remote)).unwrap_or_default(),
        ),
        path => path,
    }
}

/// The path of an answer from a local address to another, possibly a stranger's, which does not become a neighbour in use.
#[cold]
pub(super) fn path_of_answer(host: &mut IpHost<'_>, source: Source, gid: &Gid, remote: Qpn) -> Path {
    let path = look_up(host, source, gid, |net, now| net.resolve_answer(now, gid));
    to_queue_pair(host, path, remote)
}

fn look_up(
    host: &mut IpHost<'_>,
    source: Source,
    gid: &Gid,
    resolve: impl FnOnce(&mut Net, Instant) -> Resolution,
) -> Path {
    if host.shared.gids.of(source).is_none() {
        return Path::NoSource;
    }
    if host.shared.gids.contains(gid) {
        return Path::Inside;
    }
    match host.ask(resolve) {
        Resolution::Known(mac) => {
            Path::Known(mac, host.outbox.route_to(Destination::Host(gid.to_ip())).unwrap_or_default())
        }
        Resolution::Pending => Path::Pending,
        Resolution::Failed => Path::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mac;
    use crate::port::{Frame, Route, pair};
    use crate::shard::env::Env;
    use crate::shard::scale::shared;

    const OURS: [u8; 4] = [10, 0, 0, 1];
    const PEER: [u8; 4] = [10, 0, 0, 2];
    const OTHER: [u8; 4] = [10, 0, 0, 3];

    fn env() -> Env {
        let (port, _) = pair(1);
        let queue = port.take_queue(0).expect("a new port has its queue");
        let mut env = Env::new(0, shared(1, 4), queue, Instant::from_nanos(1_000_000_000));
        env.peers.hops.reserve(4);
        env
    }

    /// The peer announces this Ethernet address by ARP.
    fn hear_from(env: &mut Env, ip: [u8; 4], station: Mac) {
        let us = env.shared.mac;
        let mut reply = Vec::new();
        reply.extend([us.0, station.0].concat());
        reply.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]);
        reply.extend([&station.0[..], &ip, &us.0, &OURS].concat());
        env.host().receive(&Frame::from_vec(reply));
    }

    fn path_to(env: &mut Env, source: Source, gid: &Gid) -> Path {
        let (peers, mut host) = env.peers_and_host();
        peers.path_to(&mut host, source, gid, Qpn::new(9))
    }

    fn hold_next_hop(env: &mut Env, slot: u32, dst: &Gid) -> Resolution {
        let (peers, mut host) = env.peers_and_host();
        peers.hold_next_hop(&mut host, slot, dst)
    }

    fn source(env: &Env) -> Source {
        let index = (0..env.shared.gids.len()).find(|i| env.shared.gids.get(*i) == Some(Gid::v4(OURS)));
        index.and_then(|i| env.shared.gids.source(i)).expect("it is our address")
    }

    /// The path to an Ethernet address over a port with one route.
    fn known(mac: Mac) -> Path {
        Path::Known(mac, Route::default())
    }

    const FIRST: Mac = Mac([2, 0, 0, 0, 0, 0x21]);
    const SECOND: Mac = Mac([2, 0, 0, 0, 0, 0x22]);

    // A known path needs no call of the IP host, until the host reports a change.
    #[test]
    fn a_way_is_remembered_until_something_changes() {
        let mut env = env();
        let (from, to) = (source(&env), Gid::v4(PEER));
        assert_eq!(path_to(&mut env, from, &to), Path::Pending);
        assert_eq!(env.peers.paths.get(from, &to), None, "what is not known is asked again");
        hear_from(&mut env, PEER, FIRST);
        assert_eq!(path_to(&mut env, from, &to), known(FIRST));
        env.peers.note_changes(&env.shared);
        assert!(env.peers.are_current(&env.shared));
        assert_eq!(path_to(&mut env, from, &to), known(FIRST));
        assert_eq!(env.peers.paths.get(from, &to), Some(known(FIRST)));

        path_to(&mut env, from, &Gid::v4(OTHER));
        hear_from(&mut env, OTHER, SECOND);
        assert!(!env.peers.are_current(&env.shared));
        assert!(env.peers.paths.get(from, &to).is_some(), "not before the turn that takes note");
        env.peers.note_changes(&env.shared);
        assert_eq!(env.peers.paths.get(from, &to), None);
        assert_eq!(path_to(&mut env, from, &to), known(FIRST));
        assert_eq!(path_to(&mut env, from, &Gid::v4(OTHER)), known(SECOND));

        assert_eq!(path_to(&mut env, from, &Gid::v4(OURS)), Path::Inside);
        env.shared.gids.remove(&Gid::v4(OURS));
        env.peers.note_changes(&env.shared);
        assert_eq!(path_to(&mut env, from, &to), Path::NoSource);
    }

    // Queue pairs that send to a neighbour are visited when it is resolved; no others are.
    #[test]
    fn who_sends_to_a_neighbour_that_changed_is_visited() {
        let mut env = env();
        for (slot, to) in [(0, PEER), (1, OTHER), (2, PEER), (3, PEER)] {
            assert_eq!(hold_next_hop(&mut env, slot, &Gid::v4(to)), Resolution::Pending);
        }
        env.peers.release(&env.shared, 3);
        assert_eq!(env.peers.hops.of(3), None);
        let visited = |env: &mut Env| {
            env.peers.note_changes(&env.shared);
            let mut slots: Vec<u32> = core::iter::from_fn(|| env.peers.hops.next_due()).collect();
            slots.sort_unstable();
            slots
        };
        hear_from(&mut env, PEER, FIRST);
        assert_eq!(visited(&mut env), [0, 2]);
        assert_eq!(visited(&mut env), [0; 0], "once is enough");
        assert_eq!(hold_next_hop(&mut env, 2, &Gid::v4(PEER)), Resolution::Known(FIRST));
        // A queue pair with another peer has another neighbour.
        assert_eq!(hold_next_hop(&mut env, 2, &Gid::v4(OTHER)), Resolution::Pending);
        hear_from(&mut env, OTHER, SECOND);
        assert_eq!(visited(&mut env), [1, 2]);
    }
}
