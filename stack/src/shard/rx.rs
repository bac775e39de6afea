//! Receiving: parses a frame into a packet, finds the packet's queue pair, has its responder or requester check the packet, and places
//! its bytes.
//!
//! A packet is verified (lengths, state, ICRC, addresses, VLAN and P_Key, sequence, key, bounds) before a byte of it is placed.
//! Every dropped packet is counted under the reason's name.
//!
//! The path of every packet is inlined into one function, in which the compiler keeps [`Layout`] and [`Packet`] in registers. Functions
//! on this path that are not inlined take them by value: a reference would make the compiler store them for every packet.

mod burst;
mod holding;
mod multicast;
mod relay;
mod requests;
mod responses;
mod unreliable;

use super::counters::Counter;
use super::env::Env;
use super::identification::{IpIdTracker, Judgement};
use super::qp::Qp;
use super::qps::Qps;
use crate::config::{LONG_PACKET, PLACE_AHEAD};
use crate::id::{QpType, Qpn};
use crate::port::Frame;
use crate::proto::state::Gates;
use crate::sync::prefetch;
use crate::wire::{
    Discard, Ingress, Layout, Opcode, Packet, Row, Transport, UDP_PORT, icrc, locate, locate_plain,
};
use burst::Arrival;

/// Refuses a packet whose ICRC is wrong.
#[inline(always)]
pub(super) fn check_icrc(frame: &mut Frame, layout: &Layout) -> Result<(), Discard> {
    let sum = frame.sum();
    if icrc::check(frame.data_mut(), layout, sum) { Ok(()) } else { Err(Discard::BadIcrc) }
}

/// Refuses a packet of another VLAN or partition.
#[inline(always)]
pub(super) fn check_vlan_and_pkey(
    layout: &Layout,
    pkt: &Packet<'_>,
    vlan: Option<u16>,
) -> Result<(), Discard> {
    if layout.vid() != vlan {
        return Err(Discard::UnknownVlan);
    }
    // This device is a full member of one partition, the default one: packets of limited members are accepted.
    if pkt.pkey() & 0x7fff != 0x7fff {
        return Err(Discard::BadPkey);
    }
    Ok(())
}

impl Env {
    /// Handles a received frame.
    #[inline]
    fn receive(&mut self, qps: &mut Qps, arrival: Arrival<'_>) {
        match locate_plain(arrival.frame().data()) {
            Some(layout) => self.receive_plain(qps, arrival, layout),
            None => self.receive_any(qps, arrival),
        }
    }

    /// Handles a frame of any form.
    #[inline(never)]
    fn receive_any(&mut self, qps: &mut Qps, arrival: Arrival<'_>) {
        match locate(arrival.frame().data()) {
            Ok(Ingress::Roce(layout)) => self.receive_located(qps, arrival, layout),
            Ok(Ingress::Other) => self.host().receive(arrival.frame()),
            Err(reason) => self.discard(reason),
        }
    }

    /// Handles a packet of any kind, for any queue pair: a packet for another shard is handed over.
    #[inline(never)]
    fn receive_located(&mut self, qps: &mut Qps, mut arrival: Arrival<'_>, layout: Layout) {
        let shard = self.shared.shard_of(layout.dqpn);
        if shard != self.id && shard < self.shared.inboxes.len() {
            self.count(Counter::HandedOver);
            return self.hand_over(shard, arrival.take());
        }
        if !self.relays.is_empty() && qps.find(layout.dqpn).is_some_and(|qp| self.relays.has(qp.slot)) {
            return self.relay(qps, arrival, layout);
        }
        if let Err(reason) = self.receive_packet(qps, arrival.frame_mut(), layout) {
            self.hold_or_drop(qps, arrival, layout.dqpn, reason);
        }
    }

    /// Handles a packet whose layout consists of compile-time constants. Frequent operations, to queue pairs of the most common type, have
    /// a specialised function each.
    #[inline(always)]
    fn receive_plain(&mut self, qps: &mut Qps, mut arrival: Arrival<'_>, layout: Layout) {
        let dqpn = layout.dqpn;
        // The table of a shard holds only numbers of its own queue pairs.
        let Some(qp) = qps.find(dqpn).filter(|qp| qp.ty == QpType::Rc) else {
            return self.receive_located(qps, arrival, layout);
        };
        let frame = arrival.frame_mut();
        macro_rules! one_of {
            ($($name:ident)+) => {
                match layout.row.opcode {
                    $(Opcode::$name => self.receive_one::<{ Opcode::$name.0 }>(qp, frame, layout.udp_words()),)+
                    _ => self.receive_at(qp, frame, layout),
                }
            };
        }
        let received = one_of! {
            RC_SEND_ONLY RC_SEND_MIDDLE RC_WRITE_ONLY RC_WRITE_MIDDLE RC_READ_REQUEST RC_FETCH_ADD
            RC_ACKNOWLEDGE RC_READ_RESPONSE_ONLY RC_READ_RESPONSE_MIDDLE RC_ATOMIC_ACKNOWLEDGE
        };
        if let Err(reason) = received {
            self.hold_or_drop(qps, arrival, dqpn, reason);
        }
    }

    /// Handles a packet of this RC opcode. The opcode's table row and the offsets of the headers are constants here, so checks that do not
    /// concern it are compiled away, and the others are compares.
    #[inline(never)]
    fn receive_one<const CODE: u8>(
        &mut self,
        qp: &mut Qp,
        frame: &mut Frame,
        udp_words: u32,
    ) -> Result<(), Discard> {
        let row = Opcode(CODE).row().ok_or(Discard::UnknownOpcode)?;
        self.receive_rc(qp, frame, Layout::plain(row, qp.qpn, udp_words))
    }

    /// Counts a dropped packet, and for its queue pair too, if it has one.
    #[cold]
    pub(super) fn drop_packet(&self, qps: &mut Qps, dqpn: Qpn, reason: Discard) {
        self.discard(reason);
        if let Some(qp) = qps.find(dqpn) {
            qp.counters.discard(reason);
        }
    }

    fn receive_packet(&mut self, qps: &mut Qps, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        let Some(qp) = qps.find(layout.dqpn) else {
            return self.receive_unaddressed(qps, frame, layout);
        };
        self.receive_at(qp, frame, layout)
    }

    /// Handles a packet of any kind, for a queue pair of any type.
    #[inline(never)]
    fn receive_at(&mut self, qp: &mut Qp, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        if (qp.ty != QpType::Rc || layout.row.transport != Transport::Rc) && !admits_xrc(qp.ty, layout.row) {
            return self.receive_unreliable(qp, frame, &layout);
        }
        self.receive_rc(qp, frame, layout)
    }

    /// Handles a packet of a reliable connection, for requester or responder.
    #[inline(always)]
    fn receive_rc(&mut self, qp: &mut Qp, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        if !qp.gates.has(if layout.row.request { Gates::RX_REQ } else { Gates::RX_RESP }) {
            return Err(Discard::BadState);
        }
        if frame.len() >= LONG_PACKET {
            // The ICRC computation gives enough time to prefetch the memory where the next packets are likely to go.
            prefetch::bytes(self.keys.placed_to.wrapping_add(PLACE_AHEAD) as *const u8, frame.len());
        }
        check_icrc(frame, &layout)?;
        let pkt = layout.packet(frame.data());
        qp.check_addresses(&pkt)?;
        check_vlan_and_pkey(&layout, &pkt, self.shared.vlan)?;
        self.note_received(qp, &pkt, frame.len());
        if qp.slow_path {
            return self.receive_carefully(qp, pkt, frame.data());
        }
        self.handle_packet(qp, pkt)
    }

    /// Handles a packet that has passed the checks of its connection.
    #[inline(always)]
    fn handle_packet(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        if !pkt.row.request {
            return self.handle_response(qp, pkt);
        }
        if !qp.responder.expects(pkt.psn) {
            return self.handle_unexpected(qp, &{ pkt });
        }
        self.handle_request(qp, pkt);
        Ok(())
    }

    /// Handles a packet with the checks that few packets need: the first packet of a connection; a packet behind which others may be held;
    /// or, over a port that computes identifications, any IPv4 packet.
    #[cold]
    #[inline(never)]
    fn receive_carefully(&mut self, qp: &mut Qp, pkt: Packet<'_>, frame: &[u8]) -> Result<(), Discard> {
        let first = !qp.comm_est;
        if first {
            qp.establish(&self.shared.events);
            self.adopt_segment(qp, frame);
        }
        let identification = self.computed_identification(frame, &pkt);
        match identification {
            Some(identification) => self.handle_judged(qp, pkt, identification)?,
            None => self.handle_packet(qp, pkt)?,
        }
        if first && pkt.src_port() == UDP_PORT {
            self.leave_source_port(qp);
        }
        if qp.has_held {
            self.release_held(qp);
        }
        qp.slow_path = identification.is_some() || qp.has_held;
        Ok(())
    }

    /// The identification of a packet, if the port has computed it.
    #[cold]
    fn computed_identification(&self, frame: &[u8], pkt: &Packet<'_>) -> Option<u16> {
        let station = self.shared.computes_ids?;
        pkt.identification().filter(|_| frame.get(6..12) == Some(&station.0))
    }

    /// Handles a packet whose identification the port computed. It is judged by the identifications of earlier accepted packets, and counts
    /// as accepted itself if it advances the queue pair.
    fn handle_judged(&mut self, qp: &mut Qp, pkt: Packet<'_>, identification: u16) -> Result<(), Discard> {
        let tracker = qp.ip_ids.get_or_insert_with(|| Box::new(IpIdTracker::new(self.now)));
        match tracker.judge(self.now, identification) {
            Judgement::Good => {}
            Judgement::Unverified => self.count(Counter::IcrcWeak),
            Judgement::Bad => return Err(Discard::BadIcrc),
        }
        let at = |qp: &Qp| (qp.responder.rq_psn(), qp.requester.oldest());
        let before = at(qp);
        let handled = self.handle_packet(qp, pkt);
        if at(qp) != before
            && let Some(tracker) = &mut qp.ip_ids
        {
            tracker.follow(self.now, identification);
        }
        handled
    }

    /// Counts a packet that has passed the checks of its queue pair's state, addresses and keys.
    #[inline(always)]
    pub(super) fn note_received(&mut self, qp: &mut Qp, pkt: &Packet<'_>, frame_len: usize) {
        qp.counters.received(frame_len);
        if pkt.is_marked() {
            qp.note_mark(self.now, &self.counters);
        }
    }

    /// Handles a packet for a number that no queue pair of this shard has: that of multicast, or an unknown one.
    #[cold]
    fn receive_unaddressed(
        &mut self,
        qps: &mut Qps,
        frame: &mut Frame,
        layout: Layout,
    ) -> Result<(), Discard> {
        if layout.dqpn == Qpn::MULTICAST {
            return self.receive_multicast(qps, frame, &layout);
        }
        Err(Discard::UnknownQpn)
    }
}

/// Whether an XRC packet is for this end of a connection: a request for a target, a response for an initiator.
#[cold]
fn admits_xrc(ty: QpType, row: &Row) -> bool {
    match ty {
        QpType::XrcTgt => row.transport == Transport::Xrc && row.request,
        QpType::XrcIni => row.transport == Transport::Xrc && !row.request,
        _ => false,
    }
}
