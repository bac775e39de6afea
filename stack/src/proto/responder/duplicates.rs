//! Duplicates: requests that were accepted before. They are answered again and never carried out again.

use super::{Pending, Responder, Verdict};
use crate::id::Psn;
use crate::mark::{Mark, hit};
use crate::wire::{Discard, Kind, Packet};

impl Responder {
    /// IBA 9.7.5.1.4 (C9-105): a duplicate is answered again and never executed again; one with a fault is dropped.
    #[cold]
    pub(super) fn handle_duplicate(&mut self, pkt: Packet<'_>) -> Result<Verdict, Discard> {
        let psn = pkt.psn;
        match pkt.row.kind {
            Kind::Send | Kind::Write => {
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
            kind => {
                let log2 = self.mtu.log2();
                let Some(r) = self.replay.find(kind, psn, self.epsn) else {
                    hit(Mark::DuplicateForgotten);
                    return Err(Discard::Duplicate);
                };
                let same = match kind {
                    Kind::CmpSwap | Kind::FetchAdd => {
                        let eth = pkt.atomic();
                        (eth.rkey, eth.va, [eth.swap_add, eth.compare]) == (r.rkey, r.va, r.operands)
                    }
                    // Of the others only a READ can start behind its first number.
                    _ => {
                        let (reth, skipped) = (pkt.reth(), (psn.diff(r.first) as u32) << log2);
                        (reth.rkey, reth.va, reth.len)
                            == (r.rkey, r.va.wrapping_add(u64::from(skipped)), r.len - skipped.min(r.len))
                    }
                };
                if !same || !pkt.row.payload.allows(pkt.payload.len(), self.mtu) {
                    return Err(Discard::Duplicate);
                }
                hit(if kind == Kind::ReadRequest { Mark::DuplicateRead } else { Mark::DuplicateAtomic });
                r.start = psn;
                r.next = psn;
                r.replay |= !r.pending;
                self.replaying |= !r.pending;
                self.pending += u8::from(!r.pending);
                r.pending = true;
            }
        }
        Ok(Verdict::Duplicate)
    }

    /// The highest PSN that may be acknowledged after a duplicate of `psn` without passing a READ or ATOMIC
    /// that its requester may still be waiting for.
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
