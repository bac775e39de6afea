//! Checks whether the peer of a connection is still there: sends packets that the peer must answer, until it does or time runs out.
//!
//! A queue pair has at most one check at a time; a second caller shares the check in progress. The check uses the queue pair's timer.
//! Received packets pay nothing for it, except responses that answer nothing in flight: during a check these are the answer.

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

/// The opcode of the packet of a check.
const PACKET: Opcode = Opcode::rc(Kind::Send, Position::Only, Tail::None);

impl Qp {
    /// Ends the check of the peer, if one is in progress.
    #[cold]
    pub fn end_check(&mut self, state: PeerState) {
        self.checks_peer = false;
        if let Some(check) = self.check.take() {
            check.end(state);
        }
    }
}

impl Shard {
    /// Begins to check whether the peer of a queue pair still has its own queue pair. The next turn sends the packet.
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
    /// Advances the check of a queue pair whose timer fired.
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

    /// Sends the packet of a check. A packet that cannot leave counts as lost on the way.
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
            return self.outbox.keep_frame(frame); // cannot happen: the packet has no payload
        }
        self.count_of(qp, Counter::PeerChecks);
        qp.counters.sent(1, frame.len() as u64);
        self.outbox.push(Traffic::Requests, qp.hop.route(), frame);
        self.outbox.send_inside(Traffic::Requests, qp.hop, 1, &self.shared, &self.counters);
    }
}
