//! Datagrams of multicast groups.
//!
//! The shard that receives a datagram from the link verifies it, serves its own queue pairs, and puts one copy into the inbox of each other
//! shard with members of the group. The shard that sends a datagram puts one copy into the inbox of each shard with members. All of this is
//! rare, and cold.

use super::{check_icrc, check_vlan_and_pkey};
use crate::id::Gid;
use crate::port::Frame;
use crate::proto::state::Gates;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::mcast::Member;
use crate::shard::qps::Qps;
use crate::wire::{Discard, Layout, Transport};

impl Env {
    /// Handles a packet for the queue pairs of a multicast group.
    #[cold]
    pub(super) fn receive_multicast(
        &mut self,
        qps: &mut Qps,
        frame: &mut Frame,
        layout: &Layout,
    ) -> Result<(), Discard> {
        let table = self.mcast.clone();
        let members = table.members(&layout.dst(frame.data()));
        if members.is_empty() {
            return Err(Discard::NotOurMulticast);
        }
        if layout.row.transport != Transport::Ud {
            return Err(Discard::WrongTransport);
        }
        check_icrc(frame, layout)?;
        let pkt = layout.packet(frame.data());
        check_vlan_and_pkey(layout, &pkt, self.shared.vlan)?;
        let sender = pkt.deth().src_qpn;
        let ours = self.shared.gids.is_source(&pkt.src()) && !self.shared.blocks.is_foreign(sender);
        if !self.from_inside {
            if ours {
                return Err(Discard::OwnMulticast);
            }
            self.copy_to_shards(frame, members, Some(self.id), Counter::HandedOver);
        }
        for member in members {
            let blocked = ours && member.block_self && member.qpn == sender;
            if blocked || self.shared.shard_of(member.qpn) != self.id {
                continue;
            }
            // Each member separately: a queue pair that drops its copy does not affect the others.
            let received = match qps.find(member.qpn) {
                Some(qp) if qp.gates.has(Gates::RX_REQ) => {
                    self.note_received(qp, &pkt, frame.len());
                    self.receive_datagram(qp, &pkt, layout.priority())
                }
                Some(_) => Err(Discard::BadState),
                None => Err(Discard::UnknownQpn),
            };
            if let Err(reason) = received {
                self.drop_packet(qps, member.qpn, reason);
            }
        }
        Ok(())
    }

    /// Delivers a datagram that is about to leave for a multicast group to the attached queue pairs of this device.
    #[cold]
    pub(in crate::shard) fn loop_back(&mut self, frame: &Frame, group: &Gid) {
        let table = self.mcast.clone();
        let members = table.members(group);
        self.copy_to_shards(frame, members, None, Counter::ToSelf);
    }

    /// Puts one copy into the inbox of each shard that has queue pairs among `members`, except for `except`.
    fn copy_to_shards(&mut self, frame: &Frame, members: &[Member], except: Option<usize>, counter: Counter) {
        let mut shards = members.iter().fold(0u32, |set, m| set | 1 << self.shared.shard_of(m.qpn));
        shards &= !except.map_or(0, |shard| 1 << shard);
        while shards != 0 {
            let shard = shards.trailing_zeros() as usize;
            shards &= shards - 1;
            let Some(mut copy) = self.outbox.take_frame() else {
                self.discard(Discard::NoBuffer);
                continue;
            };
            if copy.fill(frame.data()) {
                self.count(counter);
                self.hand_over(shard, copy);
            } else {
                self.outbox.keep_frame(copy); // a buffer of the port holds every frame that the port carries
                self.discard(Discard::NoBuffer);
            }
        }
    }
}
