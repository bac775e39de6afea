//! Duplicates: request packets that were accepted before. They are answered again but not carried out again.

use super::{Pending, Responder, Unexpected};
use crate::id::Psn;
use crate::mark::{Mark, hit};
use crate::wire::{Discard, Kind, Packet};

impl Responder {
    /// IBA 9.7.5.1.4 (C9-105): answers a duplicate again; drops it if it has a fault.
    #[cold]
    pub(super) fn handle_duplicate(&mut self, pkt: Packet<'_>) -> Unexpected {
        if matches!(pkt.row.kind, Kind::Send | Kind::Write) {
            self.acknowledge_again(pkt.psn);
            return Unexpected::Duplicate;
        }
        if self.respond_again(&pkt) { Unexpected::Duplicate } else { Unexpected::Drop(Discard::Duplicate) }
    }

    /// Queues the acknowledgement of a duplicate SEND or WRITE, which may acknowledge newer ones as well.
    fn acknowledge_again(&mut self, psn: Psn) {
        hit(Mark::DuplicateMessage);
        let psn = self.acknowledgeable(psn);
        if psn != self.epsn.sub(1) {
            hit(Mark::DuplicateHeldBack);
        }
        match self.ack {
            Some((_, Pending::Nak(_))) => {}
            Some((waiting, Pending::Ack)) if waiting.diff(psn) > 0 => {}
            _ => self.ack = Some((psn, Pending::Ack)),
        }
    }

    /// Queues the responses to a duplicate request. `false`: it is not one of those that are kept, or it does not match.
    fn respond_again(&mut self, pkt: &Packet<'_>) -> bool {
        let kind = pkt.row.kind;
        let Some(r) = self.replay.find(kind, pkt.psn, self.epsn) else {
            hit(Mark::DuplicateForgotten);
            return false;
        };
        if !r.asks_for(pkt, self.mtu) || !pkt.row.payload.allows(pkt.payload.len(), self.mtu) {
            return false;
        }
        hit(if kind == Kind::ReadRequest { Mark::DuplicateRead } else { Mark::DuplicateAtomic });
        (r.start, r.next) = (pkt.psn, pkt.psn);
        if !r.pending {
            (r.pending, r.replay) = (true, true);
            self.replaying = true;
            self.pending += 1;
        }
        true
    }

    /// The highest PSN that may be acknowledged after a duplicate of `psn`, without including a READ or ATOMIC whose response the requester
    /// may still be waiting for.
    fn acknowledgeable(&self, psn: Psn) -> Psn {
        self.replay
            .iter()
            .filter(|r| r.kind != Kind::Ack && r.is_recent(self.epsn))
            .filter(|r| r.first.diff(psn) > 0 && r.first.diff(self.epsn) < 0)
            .map(|r| r.first.sub(1))
            .min_by_key(|p| p.diff(psn))
            .unwrap_or(self.epsn.sub(1))
    }
}
