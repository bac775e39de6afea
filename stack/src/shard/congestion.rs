//! Congestion signals of the network: ECN marks on received packets, and congestion notifications from the peer. Both are counted, and
//! passed to the congestion controller of the queue pair.

use super::counters::{Counter, Counters};
use super::qp::Qp;
use super::rx::{check_icrc, check_vlan_and_pkey};
use super::shared::Shared;
use crate::id::Mtu;
use crate::port::Frame;
use crate::proto::state::Gates;
use crate::time::Instant;
use crate::wire::{Discard, Layout};

impl Qp {
    /// A switch has marked a packet that the queue pair accepts (ECN).
    #[cold]
    pub fn note_mark(&mut self, now: Instant, counters: &Counters) {
        counters.add_of(&self.counters, Counter::MarksReceived);
        self.requester.handle_mark(now);
    }

    /// A congestion notification packet (IBA A17.9.3). It must come from the peer of a connection, and affects only the congestion
    /// controller.
    #[cold]
    pub fn receive_notification(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        layout: &Layout,
        shared: &Shared,
        counters: &Counters,
    ) -> Result<(), Discard> {
        if !self.gates.has(Gates::RX_REQ) && !self.gates.has(Gates::RX_RESP) {
            return Err(Discard::BadState);
        }
        check_icrc(frame, layout)?;
        let pkt = layout.packet(frame.data());
        if self.is_datagram() {
            if !shared.gids.contains(&pkt.dst()) {
                return Err(Discard::NotOurAddress);
            }
        } else {
            self.check_addresses(&pkt)?;
        }
        check_vlan_and_pkey(layout, &pkt, shared.vlan)?;
        if !layout.row.payload.allows(pkt.payload.len(), Mtu::Mtu256) {
            return Err(Discard::BadRequest);
        }
        self.counters.received(frame.len());
        counters.add_of(&self.counters, Counter::NotificationsReceived);
        self.requester.handle_notification(now);
        Ok(())
    }
}
