//! The peer hosts of a shard's connections, and the state that the queue pairs connected with one host share: measurements of the path,
//! and limits per host.

use core::num::NonZeroU32;
use std::collections::HashMap;

use crate::config::{HELD_PER_SHARD, SOURCE_PORT_AGAIN};
use crate::id::Gid;
use crate::proto::rtt::Rtt;

/// A host that is the peer of at least one queue pair.
#[derive(Clone, Copy, Default, Debug)]
struct PeerHost {
    address: Gid,
    /// Number of queue pairs connected with it.
    queue_pairs: u32,
    /// Its round-trip time.
    rtt: Rtt,
    /// Number of held packets from it.
    held: u32,
    /// It answered packets that left from a source port other than 4791.
    answers_any_port: bool,
    /// It answered only packets that left from port 4791.
    wants_well_known_port: bool,
    /// Connections that used port 4791 for that reason, modulo [`SOURCE_PORT_AGAIN`].
    sent_to_it: u8,
}

/// The host that is the peer of a queue pair; `None` before the queue pair is connected.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Peer(Option<HostId>);

/// The number of a host, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HostId(NonZeroU32);

impl HostId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The hosts, by number and by address.
#[derive(Default, Debug)]
pub(super) struct PeerHosts {
    hosts: Vec<PeerHost>,
    free: Vec<HostId>,
    by_address: HashMap<Gid, HostId>,
    /// Number of held packets, over all hosts.
    held: u32,
}

impl PeerHosts {
    /// Sets the host at this address as the peer of a queue pair, instead of the one before.
    pub fn join(&mut self, peer: &mut Peer, address: Gid) {
        if self.of(peer).is_some_and(|host| host.address == address) {
            return;
        }
        self.leave(peer);
        let Self { hosts, free, by_address, .. } = self;
        let id = *by_address.entry(address).or_insert_with(|| {
            let id = free.pop().unwrap_or_else(|| {
                hosts.push(PeerHost::default());
                HostId(NonZeroU32::new(hosts.len() as u32).expect("there is one at least"))
            });
            hosts[id.index()].address = address;
            id
        });
        hosts[id.index()].queue_pairs += 1;
        peer.0 = Some(id);
    }

    /// Removes the peer of a queue pair, which holds no packets any more.
    pub fn leave(&mut self, peer: &mut Peer) {
        let Some(id) = peer.0.take() else { return };
        let host = &mut self.hosts[id.index()];
        host.queue_pairs -= 1;
        if host.queue_pairs == 0 {
            debug_assert!(host.held == 0, "who holds nothing leaves");
            self.by_address.remove(&host.address);
            *host = PeerHost::default();
            self.free.push(id);
        }
    }

    fn of(&self, peer: &Peer) -> Option<&PeerHost> {
        peer.0.map(|id| &self.hosts[id.index()])
    }

    fn of_mut(&mut self, peer: &Peer) -> Option<&mut PeerHost> {
        peer.0.map(|id| &mut self.hosts[id.index()])
    }

    /// The round-trip time to the peer of a queue pair, as far as it is known.
    pub fn rtt_to(&self, peer: &Peer) -> Rtt {
        self.of(peer).map_or(Rtt::default(), |host| host.rtt)
    }

    /// Adds a round-trip time in nanoseconds, measured to the peer of a queue pair.
    pub fn note_rtt(&mut self, peer: &Peer, nanos: u64) {
        if let Some(host) = self.of_mut(peer) {
            host.rtt.sample(nanos);
        }
    }

    /// Notes that the peer of a queue pair answered packets: those from a source port of their own (`own`), or only those from port 4791.
    /// Returns whether it is new that the peer answers no others.
    pub fn note_source_port(&mut self, peer: &Peer, own: bool) -> bool {
        let Some(host) = self.of_mut(peer) else { return false };
        host.answers_any_port |= own;
        let only = !host.answers_any_port;
        only && !core::mem::replace(&mut host.wants_well_known_port, only)
    }

    /// Whether packets to the peer of a queue pair should leave from port 4791, because it answered no others. One connection in
    /// [`SOURCE_PORT_AGAIN`] tries whether that is still so.
    pub fn wants_well_known_port(&mut self, peer: &Peer) -> bool {
        let Some(host) =
            self.of_mut(peer).filter(|host| host.wants_well_known_port && !host.answers_any_port)
        else {
            return false;
        };
        host.sent_to_it = (host.sent_to_it + 1) % SOURCE_PORT_AGAIN;
        host.sent_to_it != 0
    }

    /// Whether one more packet may be held for this queue pair: the queue pairs connected with its host may hold half of what the other
    /// hosts leave.
    pub fn may_hold(&self, peer: &Peer) -> bool {
        self.of(peer).is_some_and(|host| host.held < HELD_PER_SHARD.saturating_sub(self.held - host.held) / 2)
    }

    /// Number of held packets.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Adds to the number of held packets of a queue pair; a negative number subtracts.
    pub fn note_held(&mut self, peer: &Peer, packets: i32) {
        if let Some(host) = self.of_mut(peer) {
            host.held = host.held.wrapping_add_signed(packets);
            self.held = self.held.wrapping_add_signed(packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gid = Gid::v4([10, 0, 0, 1]);
    const B: Gid = Gid::v4([10, 0, 0, 2]);

    #[test]
    fn queue_pairs_with_one_host_share_what_is_known_of_it() {
        let (mut hosts, mut first, mut second) = (PeerHosts::default(), Peer::default(), Peer::default());
        hosts.join(&mut first, A);
        hosts.join(&mut second, A);
        hosts.note_rtt(&first, 1000);
        assert!(hosts.rtt_to(&second).smoothed().is_some());
        hosts.join(&mut second, B);
        assert!(hosts.rtt_to(&second).smoothed().is_none());
    }

    // A host that holds its full share leaves as much to the next one.
    #[test]
    fn what_is_held_has_a_share_for_each_host() {
        let (mut hosts, mut peers) = (PeerHosts::default(), [const { Peer(None) }; 3]);
        for (peer, address) in peers.iter_mut().zip([A, A, B]) {
            hosts.join(peer, address);
        }
        let held = peers.each_ref().map(|peer| {
            let mut held = 0;
            while hosts.may_hold(peer) {
                hosts.note_held(peer, 1);
                held += 1;
            }
            held
        });
        assert_eq!(held, [HELD_PER_SHARD / 2, 0, HELD_PER_SHARD / 4]);
        for (peer, held) in peers.iter_mut().zip(held) {
            hosts.note_held(peer, -(held as i32));
        }
        for peer in &mut peers {
            hosts.leave(peer);
        }
        assert_eq!((hosts.held, hosts.by_address.len()), (0, 0));
    }

    #[test]
    fn a_host_without_queue_pairs_is_forgotten() {
        let (mut hosts, mut peer) = (PeerHosts::default(), Peer::default());
        for address in [A, B, A, B] {
            hosts.join(&mut peer, address);
            assert!(hosts.rtt_to(&peer).smoothed().is_none());
            hosts.note_rtt(&peer, 1000);
        }
        hosts.leave(&mut peer);
        assert!(hosts.of(&peer).is_none() && hosts.by_address.is_empty() && hosts.hosts.len() == 1);
    }
}
