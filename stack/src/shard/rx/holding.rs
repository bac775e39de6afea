//! Packets from behind a gap: they are held, and handled once the missing packet is here. The missing packet counts as lost once it
//! is unlikely that it was only reordered ([`Gap`]): then a NAK requests a missing request, and a retry a missing response.
//!
//! On the wire this is a standard end of a connection. A requester that was notified of the gap retransmits everything behind it, and
//! packets that were held and are accepted by then are acknowledged as duplicates.
//!
//! [`Gap`]: crate::proto::responder::Gap

use super::burst::Arrival;
use crate::config::HELD_PER_QP;
use crate::id::{Psn, Qpn};
use crate::port::Frame;
use crate::proto::fault::Fault;
use crate::proto::state::Gates;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::held::Held;
use crate::shard::qp::Qp;
use crate::shard::qps::Qps;
use crate::wire::{Discard, Ingress, Kind, Packet, locate};

impl Env {
    /// A packet was not handled. A packet of a reliable connection from behind a gap is held; any other is dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_or_drop(&mut self, qps: &mut Qps, arrival: Arrival<'_>, dqpn: Qpn, reason: Discard) {
        if reason == Discard::OutOfSequence
            && let Some(qp) = qps.find(dqpn).filter(|qp| !qp.is_unreliable())
            && let Ok(Ingress::Roce(layout)) = locate(arrival.frame().data())
        {
            let Packet { psn, row, .. } = layout.packet(arrival.frame().data());
            let held = match row.kind {
                _ if row.request => self.hold_request(qp, psn, arrival),
                kind => self.hold_response(qp, psn, kind, arrival),
            };
            if held {
                return;
            }
        }
        self.drop_packet(qps, dqpn, reason);
    }

    /// Handles a request packet from behind a gap. Returns whether it is held.
    fn hold_request(&mut self, qp: &mut Qp, psn: Psn, arrival: Arrival<'_>) -> bool {
        if qp.responder.has_sent_rnr_nak() {
            return false;
        }
        let expected = qp.responder.rq_psn();
        let mut held = qp.held_requests.take();
        let near = (1..=HELD_PER_QP as i32).contains(&psn.diff(expected));
        let keeps = self.hold(qp, &mut held, expected, psn, near.then_some(arrival));
        qp.held_requests = held;
        self.wake_for_gaps(qp);
        keeps
    }

    /// Handles a response from behind a gap. Returns whether it is held.
    fn hold_response(&mut self, qp: &mut Qp, psn: Psn, kind: Kind, arrival: Arrival<'_>) -> bool {
        let expected = qp.requester.oldest();
        let mut held = qp.held_responses.take();
        // An acknowledgement must not replace a held packet with the data of a READ.
        let needless = kind == Kind::Ack && held.as_ref().is_some_and(|held| held.has(psn));
        let keeps = self.hold(qp, &mut held, expected, psn, (!needless).then_some(arrival));
        qp.held_responses = held;
        self.count_early(qp);
        self.wake_for_gaps(qp);
        keeps
    }

    /// Notes a packet that came while `expected` is missing. Holds it, if it is to be held (`arrival`) and there is room.
    fn hold(
        &mut self,
        qp: &mut Qp,
        held: &mut Option<Box<Held>>,
        expected: Psn,
        psn: Psn,
        arrival: Option<Arrival<'_>>,
    ) -> bool {
        let now = self.now;
        let held = held.get_or_insert_with(|| Box::new(Held::new(now, expected)));
        (qp.has_held, qp.slow_path) = (true, true);
        held.follow(now, expected);
        held.note_packet(now);
        let has_room = held.has(psn) || held.has_room() && self.peers.hosts.may_hold(&qp.peer);
        let Some(arrival) = arrival.filter(|_| has_room) else { return false };
        if held.put(psn, arrival.take()).is_none() {
            self.peers.hosts.note_held(&qp.peer, 1);
            self.count_of(qp, Counter::PacketsHeld);
        } else {
            self.discard_of(qp, Discard::Duplicate);
        }
        true
    }

    /// Wakes the queue pair when the missing packet may count as lost.
    fn wake_for_gaps(&mut self, qp: &mut Qp) {
        let rtt = self.peers.hosts.rtt_to(&qp.peer);
        let requests = qp.held_requests.as_ref().map(|held| held.due(rtt, qp.responder.has_sent_gap_nak()));
        let responses = qp.held_responses.as_ref().map(|held| held.due(rtt, held.is_notified()));
        for due in [requests, responses].into_iter().flatten() {
            self.agenda.wake_at(qp, due);
        }
    }

    /// The timer of the queue pair fired: handles missing packets that now count as lost. Not earlier, because the missing packet may be in
    /// the burst that was just received.
    #[cold]
    pub(in crate::shard) fn watch_gaps(&mut self, qp: &mut Qp) {
        self.watch_requests(qp);
        self.watch_responses(qp);
        self.wake_for_gaps(qp);
    }

    /// When due, sends the NAK for the gap in the peer's requests, or drops the held packets.
    fn watch_requests(&mut self, qp: &mut Qp) {
        let notified = qp.responder.has_sent_gap_nak();
        let rtt = self.peers.hosts.rtt_to(&qp.peer);
        let Some(held) = qp.held_requests.as_mut().filter(|held| self.now >= held.due(rtt, notified)) else {
            return;
        };
        if notified {
            return self.drop_requests(qp);
        }
        held.notify();
        self.refuse(qp, qp.responder.rq_psn(), Fault::PsnGap);
        self.note_answer(qp);
    }

    /// When due, has the missing response requested again, or drops the held packets.
    fn watch_responses(&mut self, qp: &mut Qp) {
        let rtt = self.peers.hosts.rtt_to(&qp.peer);
        let Some(held) = qp.held_responses.as_mut() else { return };
        if self.now < held.due(rtt, held.is_notified()) {
            return;
        }
        if held.is_notified() {
            return self.drop_responses(qp);
        }
        held.notify();
        let response = qp.requester.lose_response(self.now);
        self.after_requester(qp, response);
    }

    /// The missing packet may be here: handles the held packets behind it, up to the next gap.
    #[cold]
    #[inline(never)]
    pub(super) fn release_held(&mut self, qp: &mut Qp) {
        self.release_requests(qp);
        self.release_responses(qp);
    }

    fn release_requests(&mut self, qp: &mut Qp) {
        if qp.responder.has_sent_rnr_nak() {
            return self.drop_requests(qp);
        }
        while qp.gates.has(Gates::RX_REQ) {
            let expected = qp.responder.rq_psn();
            let Some(held) = &mut qp.held_requests else { return };
            let (frame, dropped) = held.take(expected);
            self.note_dropped(qp, dropped); // a READ request takes up their sequence numbers
            let Some(frame) = frame else { break };
            self.peers.hosts.note_held(&qp.peer, -1);
            let Some(pkt) = packet_of(&frame) else { break };
            self.handle_request(qp, pkt);
            if qp.responder.rq_psn() == expected {
                return self.drop_requests(qp); // the packet was refused: the requester retransmits it and everything behind it
            }
            self.follow_identification(qp, &pkt);
        }
        let (now, expected) = (self.now, qp.responder.rq_psn());
        match &mut qp.held_requests {
            None => {}
            Some(held) if held.len() == 0 => self.drop_requests(qp),
            Some(held) => {
                held.follow(now, expected);
                self.wake_for_gaps(qp);
            }
        }
    }

    fn release_responses(&mut self, qp: &mut Qp) {
        while qp.gates.has(Gates::RX_RESP) {
            let Some(held) = &mut qp.held_responses else { return };
            let Some((psn, frame)) = held.pop() else { return self.drop_responses(qp) };
            let Some(pkt) = packet_of(&frame) else { break };
            match self.apply_response(qp, pkt) {
                Err(Discard::OutOfSequence) => {
                    let (now, expected) = (self.now, qp.requester.oldest());
                    let held = qp.held_responses.as_mut().expect("an early response ends no queue pair");
                    held.put(psn, frame);
                    held.follow(now, expected);
                    self.count_early(qp);
                    return self.wake_for_gaps(qp);
                }
                Err(reason) => self.discard_of(qp, reason),
                Ok(()) => self.follow_identification(qp, &pkt),
            }
            self.peers.hosts.note_held(&qp.peer, -1);
        }
    }

    /// Notes a held packet that is now handled: later packets are compared with its identification.
    fn follow_identification(&self, qp: &mut Qp, pkt: &Packet<'_>) {
        if let (Some(tracker), Some(identification)) = (&mut qp.ip_ids, pkt.identification()) {
            tracker.follow(self.now, identification);
        }
    }

    /// Drops all held packets of a queue pair.
    #[cold]
    pub(in crate::shard) fn drop_held(&mut self, qp: &mut Qp) {
        self.drop_requests(qp);
        self.drop_responses(qp);
    }

    fn drop_requests(&mut self, qp: &mut Qp) {
        let held = qp.held_requests.take();
        self.note_dropped(qp, held.map_or(0, |held| held.len()));
        qp.has_held = qp.held_responses.is_some();
    }

    fn drop_responses(&mut self, qp: &mut Qp) {
        let held = qp.held_responses.take();
        self.note_dropped(qp, held.map_or(0, |held| held.len()));
        qp.has_held = qp.held_requests.is_some();
        self.count_early(qp);
    }

    /// Counts held packets that are dropped.
    fn note_dropped(&mut self, qp: &Qp, packets: u32) {
        self.peers.hosts.note_held(&qp.peer, -(packets as i32));
        for _ in 0..packets {
            self.discard_of(qp, Discard::OutOfSequence);
        }
    }

    /// Passes the number of held responses to the requester.
    fn count_early(&self, qp: &mut Qp) {
        qp.requester.hold_early(qp.held_responses.as_ref().map_or(0, |held| held.len()));
    }
}

/// The packet in a kept frame, which has passed every check of its bytes.
pub(super) fn packet_of(frame: &Frame) -> Option<Packet<'_>> {
    match locate(frame.data()) {
        Ok(Ingress::Roce(layout)) => Some(layout.packet(frame.data())),
        _ => None,
    }
}
