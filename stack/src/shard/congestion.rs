//! What the network says about congestion: marks on received packets, and notifications of the peer. Both are counted, and
//! handed to the congestion controller of the queue pair.

use super::counters::Counter;
use super::env::Env;
use super::qp::Qp;
use super::rx::check_icrc;
use crate::port::Frame;
use crate::proto::state::Gates;
use crate::wire::{Discard, Layout};

impl Env {
    /// A packet that this queue pair takes was marked by a switch.
    #[cold]
    pub(super) fn note_mark(&mut self, qp: &mut Qp) {
        self.count_of(qp, Counter::MarksReceived);
        qp.requester.handle_mark(self.now);
    }

    /// A congestion notification packet (IBA A17.9.3). It must come from the peer of a connection, and changes nothing but
    /// what the congestion controller makes of it.
    #[cold]
    pub(super) fn receive_notification(
        &mut self,
        qp: &mut Qp,
        frame: &mut Frame,
        layout: &Layout,
    ) -> Result<(), Discard> {
        if !qp.gates.has(Gates::RX_REQ) && !qp.gates.has(Gates::RX_RESP) {
            return Err(Discard::BadState);
        }
        check_icrc(frame, layout)?;
        let pkt = layout.packet(frame.data());
        if qp.is_datagram() {
            if !self.shared.gids.contains(&pkt.dst()) {
                return Err(Discard::NotOurAddress);
            }
        } else {
            qp.check_addresses(&pkt)?;
        }
        self.check_vlan_and_pkey(layout, &pkt)?;
        if !layout.row.payload.allows(pkt.payload.len(), crate::id::Mtu::Mtu256) {
            return Err(Discard::BadRequest);
        }
        qp.counters.received(frame.len());
        self.count_of(qp, Counter::NotificationsReceived);
        qp.requester.handle_notification(self.now);
        Ok(())
    }
}
