//! Checks whether the peer of a connection is still there: sends packets that it must answer, until it does or has had its time.
//!
//! A queue pair has one check at a time; who asks meanwhile gets the same one. Its timer is that of the queue pair. Received packets
//! pay nothing for it, but for responses that answer nothing in flight: during a check these are the answer.

pub(super) mod check;

use std::sync::Arc;

use super::counters::Counter;
use super::env::Env;
use super::outbox::Traffic;
use super::qp::Qp;
use super::state::Shard;
use super::tx::writer::{Draft, Payload};
use crate::id::{Psn, QpType, Qpn};
use crate::mem::GrantedRange;
use crate::proto::requester::CheckStep;
use crate::proto::state::Gates;
use crate::time::Instant;
use crate::wire::{Discard, Header, Kind, Opcode, Position, Tail};
use check::{Check, CheckOutcome, PeerState};

/// The packet of a check.
const PACKET: Opcode = Opcode::rc(Kind::Send, Position::Only, Tail::None);

impl Qp {
    /// The check of the peer, if there is one, ends.
    #[cold]
    pub fn end_check(&mut self, state: PeerState) {
        self.checks_peer = false;
        if let Some(check) = self.check.take() {
            check.end(state);
        }
    }
}

impl Shard {
    /// Begins to check whether the peer of a queue pair still has its own. The next turn asks.
    pub fn check_peer(&mut self, now: Instant, qpn: Qpn) -> Arc<CheckOutcome> {
        let connected = Gates::TX_RETRY.union(Gates::RX_RESP);
        let found = self.qps.find(qpn).filter(|qp| qp.ty == QpType::Rc && qp.gates.has(connected));
        let Some(qp) = found else { return CheckOutcome::new(PeerState::NotConnected) };
        let check = qp.check.get_or_insert_with(|| Box::new(Check::new(qp.requester.begin_check(now))));
        let (outcome, due) = (check.outcome(), check.check.due());
        qp.checks_peer = true;
        self.env.agenda.wake_at(qp, due);
        outcome
    }
}

impl Env {
    /// A queue pair with a check was woken.
    #[cold]
    pub(super) fn go_on_checking(&mut self, qp: &mut Qp) {
        let Some(check) = &mut qp.check else { return };
        match qp.requester.poll_check(self.now, &mut check.check) {
            CheckStep::Answered => return qp.end_check(PeerState::Alive),
            CheckStep::Silent => {
                self.peers.recheck(&self.shared, self.now, qp.slot);
                return qp.end_check(PeerState::Silent);
            }
            CheckStep::Wait => {}
            CheckStep::Resend => self.agenda.mark_ready(qp),
            CheckStep::Send(psn) => self.ask_peer(qp, psn),
        }
        let Some(check) = &qp.check else { return };
        let due = check.check.due();
        self.agenda.wake_at(qp, due);
    }

    /// Sends the packet of a check. One that cannot leave is lost, as on the way.
    fn ask_peer(&mut self, qp: &mut Qp, psn: Psn) {
        if !qp.is_reachable() {
            self.resolve(qp);
        }
        if !qp.is_reachable() || self.outbox.room(Traffic::Requests, qp.hop.route()) == 0 {
            return;
        }
        let Some(mut frame) = self.outbox.take_frame() else { return self.discard_of(qp, Discard::NoBuffer) };
        let header = Header {
            opcode: PACKET,
            psn,
            ack_req: true,
            ip_id: self.outbox.next_ip_id(),
            ..Header::default()
        };
        let packet = Draft { header, payload: Payload::At(GrantedRange::EMPTY) };
        if packet.write_frame(&qp.template, &mut frame).is_err() {
            return self.outbox.keep_frame(frame); // it has no payload that could be missing
        }
        self.count_of(qp, Counter::PeerChecks);
        qp.counters.sent(1, frame.len() as u64);
        self.outbox.push(Traffic::Requests, qp.hop.route(), frame);
        self.outbox.send_inside(Traffic::Requests, qp.hop, 1, &self.shared, &self.counters);
    }
}
