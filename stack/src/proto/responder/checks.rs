//! The checks of a request packet, in the order of the specification (IBA 9.7.4.1). Each returns the fault of the packet. A packet that
//! passes all of them may be carried out.

use super::{Effect, InProgress, ReceiveSource, Responder};
use crate::config::MESSAGE_MAX;
use crate::id::PdId;
use crate::mem::{Access, GrantedRange, KeyFault, MrTable};
use crate::proto::fault::Fault;
use crate::wire::{Feth, Kind, Packet};

impl Responder {
    /// IBA 9.7.4.1.2: inside a message only a MIDDLE or LAST of the same kind may follow; otherwise a packet must start a message.
    #[inline(always)]
    pub(super) fn check_sequence(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let starts = pkt.row.position.starts();
        let good = match self.in_progress {
            InProgress::None => starts,
            InProgress::Send => !starts && pkt.row.kind == Kind::Send,
            InProgress::Write => !starts && pkt.row.kind == Kind::Write,
        };
        if good { Ok(()) } else { Err(Fault::BadSequence) }
    }

    #[inline(always)]
    pub(super) fn check_enabled(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let need = match pkt.row.kind {
            Kind::Send => return Ok(()),
            Kind::Write | Kind::AtomicWrite => Access::REMOTE_WRITE,
            Kind::ReadRequest => Access::REMOTE_READ,
            Kind::CmpSwap | Kind::FetchAdd => Access::REMOTE_ATOMIC,
            Kind::Flush => flush_right(pkt.feth()).ok_or(Fault::BadOpcode)?,
            _ => return Err(Fault::BadOpcode),
        };
        if self.access.contains(need) { Ok(()) } else { Err(Fault::NotEnabled) }
    }

    #[inline(always)]
    pub(super) fn take_resource(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut impl ReceiveSource,
    ) -> Result<(), Fault> {
        match pkt.row.kind {
            Kind::Send | Kind::Write => {
                if pkt.row.takes_recv && !self.holds_receive {
                    self.capacity = rq.take().ok_or(Fault::NoReceive)?;
                    self.holds_receive = true;
                }
                Ok(())
            }
            _ if self.replay.has_room() => Ok(()),
            _ => Err(Fault::TooManyRdAtomic),
        }
    }

    /// IBA 9.7.4.1.6 (C9-92 and following), by the row of the opcode. The padding need not be checked: UDP length and headers are multiples
    /// of four bytes, so the 0 to 3 bytes of padding always complete a word.
    #[inline(always)]
    pub(super) fn check_packet_length(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let len = pkt.payload.len();
        debug_assert!((len + usize::from(pkt.pad())).is_multiple_of(4), "locate has seen to that");
        if pkt.row.payload.allows(len, self.mtu) { Ok(()) } else { Err(Fault::BadLength) }
    }

    #[inline(always)]
    pub(super) fn check_send(&self, pkt: &Packet<'_>) -> Result<Effect, Fault> {
        let offset = if pkt.row.position.starts() { 0 } else { self.received };
        let end = offset + pkt.payload.len() as u64;
        if end > self.capacity || end > u64::from(MESSAGE_MAX) {
            return Err(Fault::SendTooLong);
        }
        Ok(if pkt.payload.is_empty() { Effect::Nothing } else { Effect::Receive { offset } })
    }

    #[inline(always)]
    pub(super) fn check_write(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        keys: &MrTable,
    ) -> Result<Effect, Fault> {
        let len = pkt.payload.len() as u32;
        let last = pkt.row.position.ends();
        let (va, rkey, left) = if pkt.row.position.starts() {
            let reth = pkt.reth();
            if reth.len > MESSAGE_MAX {
                return Err(Fault::BadLength);
            }
            (reth.va, reth.rkey, reth.len)
        } else {
            (self.write_va, self.write_rkey, self.write_left)
        };
        if if last { len != left } else { len >= left } {
            return Err(Fault::BadLength);
        }
        if left == 0 {
            // C9-88: the key of an empty message is not checked.
            return Ok(Effect::Nothing);
        }
        // Checks the rest of the range again with every packet, because the key may be revoked during the message.
        let place = keys
            .check_remote(rkey, pd, pkt.dqpn(), Access::REMOTE_WRITE, va, u64::from(left))
            .map_err(|_| Fault::RemoteAccess)?;
        Ok(Effect::Write { place, last })
    }

    #[inline(always)]
    pub(super) fn check_read(&mut self, pkt: &Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Effect, Fault> {
        let reth = pkt.reth();
        if reth.len > MESSAGE_MAX {
            return Err(Fault::BadLength);
        }
        if reth.len > 0 {
            keys.check_remote(reth.rkey, pd, pkt.dqpn(), Access::REMOTE_READ, reth.va, u64::from(reth.len))
                .map_err(|_| Fault::RemoteAccess)?;
        }
        self.replay.pd = pd;
        Ok(Effect::Nothing)
    }

    #[inline(always)]
    pub(super) fn check_atomic(&self, pkt: &Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Effect, Fault> {
        // The closure does not capture the packet: a reference to it would force all of it into memory.
        let (eth, dqpn) = (pkt.atomic(), pkt.dqpn());
        let place =
            aligned_word(eth.va, |va| keys.check_remote(eth.rkey, pd, dqpn, Access::REMOTE_ATOMIC, va, 8))?;
        Ok(Effect::Atomic { place, swap: pkt.row.kind == Kind::CmpSwap })
    }

    /// IBA A19.4: one aligned 64-bit word, written in one step.
    #[cold]
    pub(super) fn check_atomic_write(
        &self,
        pkt: Packet<'_>,
        pd: PdId,
        keys: &MrTable,
    ) -> Result<Effect, Fault> {
        let reth = pkt.reth();
        if reth.len != 8 {
            return Err(Fault::BadLength);
        }
        let place = aligned_word(reth.va, |va| {
            keys.check_remote(reth.rkey, pd, pkt.dqpn(), Access::REMOTE_WRITE, va, 8)
        })?;
        Ok(Effect::Store { place })
    }

    /// IBA A19.3: the range must be inside the region, unless the whole region is flushed.
    #[cold]
    pub(super) fn check_flush(&self, pkt: Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Effect, Fault> {
        let (feth, reth) = (pkt.feth(), pkt.reth());
        let need = flush_right(feth).ok_or(Fault::BadOpcode)?;
        let granted = match feth.selectivity {
            FLUSH_RANGE => {
                keys.check_remote(reth.rkey, pd, pkt.dqpn(), need, reth.va, u64::from(reth.len)).map(|_| ())
            }
            _ => keys.check_whole(reth.rkey, pd, pkt.dqpn(), need),
        };
        granted.map_err(|_| Fault::RemoteAccess)?;
        Ok(Effect::Flush)
    }
}

/// Selectivity of a FLUSH: the range that the request names (IBA A19.2).
const FLUSH_RANGE: u8 = 0;
/// Selectivity of a FLUSH: the whole region.
const FLUSH_REGION: u8 = 1;

/// The access rights that a FLUSH needs; `None` if selectivity or placement is reserved, or no placement is requested.
fn flush_right(feth: Feth) -> Option<Access> {
    if !matches!(feth.selectivity, FLUSH_RANGE | FLUSH_REGION) {
        return None;
    }
    match feth.placement {
        1 => Some(Access::FLUSH_GLOBAL),
        2 => Some(Access::FLUSH_PERSISTENT),
        3 => Some(Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT)),
        _ => None,
    }
}

/// The place of the 8-byte word at `va`. `key` looks it up.
#[inline(always)]
fn aligned_word(
    va: u64,
    key: impl FnOnce(u64) -> Result<GrantedRange, KeyFault>,
) -> Result<GrantedRange, Fault> {
    if !va.is_multiple_of(8) {
        return Err(Fault::Misaligned);
    }
    let place = key(va).map_err(|_| Fault::RemoteAccess)?;
    if place.addr() % 8 != 0 {
        return Err(Fault::Misaligned); // a zero-based region that does not start on a word
    }
    Ok(place)
}
