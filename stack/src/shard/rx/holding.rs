//! Request packets from behind a gap: they are held, and handled when what is missing is there. A NAK tells of the gap once it is
//! likely that the packet is lost, and did not only take another way ([`Gap`]).
//!
//! On the wire this is a standard responder. A requester that was told of the gap sends everything again, and what was held and is
//! accepted by then is acknowledged as a duplicate.
//!
//! [`Gap`]: crate::proto::responder::Gap

use super::burst::Arrival;
use crate::id::{Psn, Qpn};
use crate::proto::fault::Fault;
use crate::proto::state::Gates;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::held::Held;
use crate::shard::qp::Qp;
use crate::shard::qps::Qps;
use crate::wire::{Discard, Ingress, locate};

impl Env {
    /// A packet was not handled. A request packet of a connection that came from behind a gap is held; any other is dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_or_drop(&mut self, qps: &mut Qps, arrival: Arrival<'_>, dqpn: Qpn, reason: Discard) {
        if reason == Discard::OutOfSequence
            && let Some(qp) = qps.find(dqpn).filter(|qp| !qp.is_unreliable())
            && let Ok(Ingress::Roce(layout)) = locate(arrival.frame().data())
        {
            let psn = layout.packet(arrival.frame().data()).psn;
            if self.hold(qp, psn, arrival) {
                return;
            }
        }
        self.drop_packet(qps, dqpn, reason);
    }

    /// A request packet came from behind a gap. Whether it is held.
    fn hold(&mut self, qp: &mut Qp, psn: Psn, arrival: Arrival<'_>) -> bool {
        if qp.responder.told_of_no_receive() {
            return false;
        }
        let (now, expected) = (self.now, qp.responder.rq_psn());
        let may_hold = self.peers.hosts.may_hold(&qp.peer);
        let held = qp.held.get_or_insert_with(|| Box::new(Held::new(now, expected)));
        qp.holds = true;
        held.follow(now, expected);
        held.pass(now);
        let keeps = may_hold && held.has_place(psn);
        if keeps {
            if held.put(psn, arrival.take()).is_none() {
                self.peers.hosts.note_held(&qp.peer, 1);
                self.count_of(qp, Counter::PacketsHeld);
            } else {
                self.discard_of(qp, Discard::Duplicate);
            }
        }
        self.watch_gap(qp);
        keeps
    }

    /// The queue pair was woken, or another packet came from behind its gap: tells the peer of the gap, or drops what is held, if it is
    /// time.
    #[cold]
    pub(in crate::shard) fn watch_gap(&mut self, qp: &mut Qp) {
        let rtt = self.peers.hosts.rtt_to(&qp.peer);
        let Some(held) = &qp.held else { return };
        if self.now >= held.due(rtt, qp.responder.told_of_gap()) {
            if qp.responder.told_of_gap() {
                return self.drop_held(qp);
            }
            self.refuse(qp, qp.responder.rq_psn(), Fault::PsnGap);
            self.note_answer(qp);
            qp.held.iter_mut().for_each(|held| held.tell());
        }
        if let Some(held) = &qp.held {
            let due = held.due(rtt, qp.responder.told_of_gap());
            self.agenda.wake_at(qp, due);
        }
    }

    /// The packet that was missing may be there: handles those behind it, up to the next gap.
    #[cold]
    #[inline(never)]
    pub(super) fn release_held(&mut self, qp: &mut Qp) {
        if qp.responder.told_of_no_receive() {
            return self.drop_held(qp);
        }
        while qp.gates.has(Gates::RX_REQ) {
            let expected = qp.responder.rq_psn();
            let Some(held) = &mut qp.held else { return };
            let (frame, dropped) = held.take(expected);
            self.note_dropped(qp, dropped); // a READ has their numbers
            let Some(frame) = frame else { break };
            self.peers.hosts.note_held(&qp.peer, -1);
            let Ok(Ingress::Roce(layout)) = locate(frame.data()) else { break };
            let pkt = layout.packet(frame.data());
            self.handle_request(qp, pkt);
            if qp.responder.rq_psn() == expected {
                return self.drop_held(qp); // it was refused: the requester sends everything from it on again
            }
            if let (Some(tracker), Some(identification)) = (&mut qp.ip_ids, pkt.identification()) {
                tracker.follow(self.now, identification);
            }
        }
        let (now, expected) = (self.now, qp.responder.rq_psn());
        match &mut qp.held {
            None => {}
            Some(held) if held.len() == 0 => self.forget_held(qp),
            Some(held) => {
                held.follow(now, expected);
                self.watch_gap(qp);
            }
        }
    }

    /// Drops what a queue pair holds.
    #[cold]
    pub(in crate::shard) fn drop_held(&mut self, qp: &mut Qp) {
        let packets = qp.held.as_ref().map_or(0, |held| held.len());
        self.note_dropped(qp, packets);
        self.forget_held(qp);
    }

    /// So many packets that were held are dropped.
    fn note_dropped(&mut self, qp: &Qp, packets: u32) {
        self.peers.hosts.note_held(&qp.peer, -(packets as i32));
        for _ in 0..packets {
            self.discard_of(qp, Discard::OutOfSequence);
        }
    }

    fn forget_held(&mut self, qp: &mut Qp) {
        (qp.held, qp.holds) = (None, false);
    }
}
