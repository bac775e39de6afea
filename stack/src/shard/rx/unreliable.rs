//! UC and UD: receiving without acknowledgements.

use super::{check_icrc, check_vlan_and_pkey};
use crate::id::QpType;
use crate::port::Frame;
use crate::proto::fault::Fault;
use crate::proto::responder::{Effect, GRH_LEN};
use crate::proto::state::Gates;
use crate::proto::wqe::RecvWqe;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::identification::is_small;
use crate::shard::qp::Qp;
use crate::wire::{Discard, Layout, Packet, Transport};

impl Env {
    /// Handles a packet for a UC, UD or GSI queue pair, a congestion notification for any, or a packet of the wrong class.
    #[inline(never)]
    pub(super) fn receive_unreliable(
        &mut self,
        qp: &mut Qp,
        frame: &mut Frame,
        layout: &Layout,
    ) -> Result<(), Discard> {
        match (qp.ty, layout.row.transport) {
            (_, Transport::Cnp) => {
                return qp.receive_notification(self.now, frame, layout, &self.shared, &self.counters);
            }
            (QpType::Uc, Transport::Uc) | (QpType::Ud | QpType::Gsi, Transport::Ud) => {}
            _ => return Err(Discard::WrongTransport),
        }
        if !qp.gates.has(Gates::RX_REQ) {
            return Err(Discard::BadState);
        }
        check_icrc(frame, layout)?;
        let pkt = layout.packet(frame.data());
        if qp.is_datagram() {
            // A valid packet to a group address carries the multicast queue pair number, and does not come here.
            if !self.shared.gids.contains(&pkt.dst()) {
                let group = pkt.dst().is_multicast();
                return Err(if group { Discard::NotOurMulticast } else { Discard::NotOurAddress });
            }
        } else {
            qp.check_addresses(&pkt)?;
        }
        check_vlan_and_pkey(layout, &pkt, self.shared.vlan)?;
        self.note_received(qp, &pkt, frame.len());
        self.note_weak(frame.data(), &pkt);
        if !qp.is_datagram() {
            return self.receive_message(qp, &pkt);
        }
        if qp.ty == QpType::Gsi {
            self.host().note_reply_mac(frame.data(), &pkt.src());
        }
        self.receive_datagram(qp, &pkt, layout.priority())
    }

    /// Counts a packet of no connection whose ICRC could be checked only in part: no earlier packet provides an identification to compare.
    #[inline]
    fn note_weak(&self, frame: &[u8], pkt: &Packet<'_>) {
        if self.shared.computes_ids.is_some()
            && self.computed_identification(frame, pkt).is_some_and(|id| !is_small(id))
        {
            self.count(Counter::IcrcWeak);
        }
    }

    fn receive_message(&mut self, qp: &mut Qp, pkt: &Packet<'_>) -> Result<(), Discard> {
        if !qp.comm_est {
            qp.establish(&self.shared.events);
        }
        // UC has no acknowledgements, whatever the packet requests.
        let pkt = &Packet { ack_req: false, ..*pkt };
        if qp.responder.cuts_off(pkt) {
            self.discard_of(qp, Discard::OutOfSequence);
            self.give_up_receive(qp);
        }
        let effect = match qp.responder.handle_message(pkt, qp.pd, &mut qp.rq, &self.shared.mrs) {
            Ok(effect) => effect,
            Err(reason) => {
                self.give_up_receive(qp);
                return Err(reason);
            }
        };
        if let Err(fault) = self.place(qp, pkt, effect) {
            self.end_receiving(qp, pkt, fault);
        }
        Ok(())
    }

    /// Places a verified datagram that is addressed to this queue pair into its next receive request. `sl` is the priority that it arrived
    /// with.
    pub(in crate::shard) fn receive_datagram(
        &mut self,
        qp: &mut Qp,
        pkt: &Packet<'_>,
        sl: u8,
    ) -> Result<(), Discard> {
        let qkey = qp.qkey();
        let Effect::Receive { offset } = qp.responder.handle_datagram(pkt, qkey, &mut qp.rq)? else {
            return Ok(());
        };
        // An IPv4 header occupies the end of the area, behind zeros.
        let mut network = [0; GRH_LEN];
        let at = network.len() - pkt.ip_header().len();
        network[at..].copy_from_slice(pkt.ip_header());
        let (pd, sges) = (qp.recv_pd, RecvWqe::sges(qp.rq.current()));
        let placed = self
            .scatter(pd, sges, 0, &network, false)
            .and_then(|_| self.scatter(pd, sges, offset, pkt.payload, true));
        if placed.is_err() {
            self.end_receiving(qp, pkt, Fault::ReceiveProtection);
            return Ok(());
        }
        self.count(Counter::RequestsReceived);
        let done = qp.responder.accept_datagram(pkt);
        self.complete_datagram(qp, &done, pkt.deth().src_qpn, sl);
        Ok(())
    }

    /// The local receive request is invalid: it completes with the fault's status, and the queue pair enters ERR.
    #[cold]
    fn end_receiving(&mut self, qp: &mut Qp, pkt: &Packet<'_>, fault: Fault) {
        qp.responder.refuse(pkt.psn, fault, qp.ty);
        self.end_by_fault(qp, fault);
    }
}
