//! Answers of a queue pair: the acknowledgements and responses of its responder, as a source of the [`writer`](super::writer); and what
//! happens when no more can be built.

use super::Stop;
use super::writer::{Built, Draft, Payload, Source, WrittenSeries};
use crate::config::LONG_PACKET;
use crate::id::{PdId, Psn, Qpn};
use crate::mem::{Access, CachedKey, GrantedRange, KeyFault, MrTable};
use crate::port::Frame;
use crate::proto::fault::Fault;
use crate::proto::recovery::RetryCause;
use crate::proto::responder::Answer;
use crate::proto::tables::Syndrome;
use crate::shard::copy::{self, LocalProtection};
use crate::shard::counters::{Counter, Counters};
use crate::shard::env::Env;
use crate::shard::outbox::{Ended, Traffic};
use crate::shard::qp::{Hop, Qp};
use crate::wire::{Aeth, Discard, Ext, ExtHeader, Header, Kind, Opcode, Position, Stencil, Tail, Template};

const ACKNOWLEDGE: Opcode = Opcode::rc(Kind::Ack, Position::Only, Tail::None);
const ATOMIC_ACKNOWLEDGE: Opcode = Opcode::rc(Kind::AtomicAck, Position::Only, Tail::None);
const READ_RESPONSE: Opcode = Opcode::rc(Kind::ReadResponse, Position::Only, Tail::None);

/// Bytes of the extension headers of a one-packet READ response, and of an ATOMIC acknowledgement.
const RESPONSE: usize = Aeth::LEN;
const ATOMIC: usize = Aeth::LEN + 8;

/// The answers of a responder.
struct Answers<'a> {
    qp: &'a mut Qp,
    keys: &'a MrTable,
    /// The acknowledgement among the answers that were built: one at most.
    ack: Option<Aeth>,
    /// The fault, if that acknowledgement is a NAK that ends the queue pair.
    fatal: Option<Fault>,
}

/// Why no further answer can be built.
enum End {
    /// The responder has no more answers.
    Idle,
    /// The key of the READ response with this sequence number is no longer valid.
    Refused(Psn),
}

impl Source for Answers<'_> {
    type End = End;

    #[inline(always)]
    fn next<R>(
        &mut self,
        ip_id: &mut u16,
        write: impl FnOnce(&Template, &Draft<'_>) -> Result<R, LocalProtection>,
    ) -> Result<R, End> {
        let qp = &mut *self.qp;
        let answer = qp.responder.poll_transmit(qp.credits()).ok_or(End::Idle)?;
        let (psn, opcode, ext, place) = match answer {
            Answer::Ack { psn, aeth, fatal } => {
                (self.ack, self.fatal) = (Some(aeth), fatal);
                (psn, ACKNOWLEDGE, Ext::Aeth(aeth), GrantedRange::EMPTY)
            }
            Answer::Atomic { psn, aeth, original } => {
                (psn, ATOMIC_ACKNOWLEDGE, Ext::AtomicAck(aeth, original), GrantedRange::EMPTY)
            }
            Answer::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                let place = readable(self.keys, qp.qpn, pd, rkey, va, len).map_err(|_| End::Refused(psn))?;
                qp.long_answers = place.len() > LONG_PACKET as u64;
                let has_aeth = opcode.row().is_some_and(|row| row.has(ExtHeader::Aeth));
                (psn, opcode, if has_aeth { Ext::Aeth(aeth) } else { Ext::None }, place)
            }
        };
        *ip_id = ip_id.wrapping_add(1);
        let header = Header {
            opcode: opcode.in_class(qp.class),
            psn,
            ack_req: false,
            solicited: false,
            ip_id: *ip_id,
            srqn: 0,
            ext,
            payload_len: place.len() as u32,
        };
        write(&qp.template, &Draft { header, payload: Payload::At(place) }).map_err(|_| End::Refused(psn))
    }

    #[inline(always)]
    fn write_series(&mut self, ip_id: &mut u16, frames: &mut [Frame]) -> Option<WrittenSeries<End>> {
        if frames.len() < 2 || !self.qp.template.is_plain() {
            return None;
        }
        write_series(self.qp, self.keys, ip_id, frames)
    }

    #[inline(always)]
    fn template(&self) -> &Template {
        &self.qp.template
    }
}

/// The memory range of a READ response: the key may have been revoked since the request was checked.
#[inline(always)]
fn readable(
    keys: &MrTable,
    qpn: Qpn,
    pd: PdId,
    rkey: u32,
    va: u64,
    len: u32,
) -> Result<GrantedRange, KeyFault> {
    match len {
        0 => Ok(GrantedRange::EMPTY),
        _ => keys.check_remote(rkey, pd, qpn, Access::REMOTE_READ, va, u64::from(len)),
    }
}

/// Builds short responses to READs and atomics, one after the other.
#[inline(never)]
fn write_series(
    qp: &mut Qp,
    keys: &MrTable,
    ip_id: &mut u16,
    frames: &mut [Frame],
) -> Option<WrittenSeries<End>> {
    let stencil = qp.template.stencil(READ_RESPONSE, false)?;
    qp.long_answers = false;
    let (credits, class, qpn) = (qp.credits(), qp.class, qp.qpn);
    let (mut id, mut bytes, mut known) = (*ip_id, 0, CachedKey::new(Access::REMOTE_READ));
    let (made, refused) = qp.responder.respond(credits, LONG_PACKET as u32, frames, |answer, frame| {
        id = id.wrapping_add(1);
        let total = match answer {
            Answer::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                let total = Stencil::frame_len::<RESPONSE>(len as usize);
                frame.set_len(total);
                let laid = stencil.lay(frame.data_mut(), id, psn, false, len as usize);
                *laid.opcode = opcode.in_class(class).0;
                aeth.write(laid.ext);
                if len > 0 {
                    let place = known.check(keys, rkey, pd, Some(qpn), va, len.into());
                    let Ok(place) = place else { return false };
                    if copy::read_short(place, laid.payload).is_err() {
                        return false;
                    }
                }
                total
            }
            Answer::Atomic { psn, aeth, original } => {
                let total = Stencil::frame_len::<ATOMIC>(0);
                frame.set_len(total);
                let laid = stencil.lay::<ATOMIC>(frame.data_mut(), id, psn, false, 0);
                *laid.opcode = ATOMIC_ACKNOWLEDGE.in_class(class).0;
                let (head, value) = laid.ext.split_first_chunk_mut().expect("it is longer");
                aeth.write(head);
                value.copy_from_slice(&original.to_be_bytes());
                total
            }
            Answer::Ack { .. } => return false, // not a response
        };
        bytes += total as u64;
        true
    });
    *ip_id = id;
    let end = refused.map(End::Refused);
    (made > 0 || end.is_some()).then_some(WrittenSeries { frames: made, bytes, end })
}

impl Env {
    /// Builds answers of a queue pair. `waiting` queue pairs have answers: room for one frame is left for each of the others.
    pub(super) fn answer(&mut self, qp: &mut Qp, waiting: usize) -> Stop {
        if !qp.is_reachable() {
            // If the peer's process has ended, an answer is built all the same: the message that it acknowledges has arrived, and the
            // completion of that message waits for it.
            let is_for_nobody = self.resolve(qp) == Some(RetryCause::PeerEnded);
            if !is_for_nobody && !qp.is_reachable() {
                self.completions.defer(qp);
                return Stop::Done; // woken when the neighbour answers, or is found unreachable
            }
        }
        // Here the route is known.
        let route = qp.hop.route();
        let room = self.outbox.room(Traffic::Answers, route);
        if room == 0 {
            return Stop::Full(route);
        }
        if let Hop::Inside(shard) = qp.hop
            && !self.shared.takes_answers(shard.into())
        {
            return Stop::More;
        }
        let mut budget = self.outbox.budget(route, room.saturating_sub(waiting - 1).max(1));
        while !budget.is_spent() && qp.responder.has_answer() {
            let hop = qp.hop;
            let in_place = budget.next_in_place().filter(|_| qp.long_answers && hop.is_outside());
            let waiting = qp.responder.waiting().clamp(1, budget.next());
            let mut source = Answers { qp: &mut *qp, keys: &self.shared.mrs, ack: None, fatal: None };
            let (built, ended) = self.outbox.write(
                Traffic::Answers,
                hop.route(),
                in_place,
                waiting,
                &mut source,
                self.now,
                &self.counters,
            );
            let (ack, fatal) = (source.ack, source.fatal);
            count_answers(&self.counters, qp, &built, ack);
            self.outbox.send_inside(Traffic::Answers, hop, built.frames, &self.shared, &self.counters);
            budget.spend(&built);
            if let Some(fault) = fatal {
                self.end_by_fault(qp, fault);
                return Stop::Done;
            }
            match ended {
                Ended::Written => {}
                Ended::Source(End::Idle) => return Stop::Done,
                Ended::Source(End::Refused(psn)) => {
                    budget.spend_one();
                    if !qp.responder.refuse_read(psn) {
                        self.discard_of(qp, Discard::Duplicate);
                    }
                }
                Ended::Full => break,
                Ended::NoBuffer => {
                    self.discard_of(qp, Discard::NoBuffer);
                    break;
                }
            }
        }
        if qp.responder.has_answer() { Stop::More } else { Stop::Done }
    }
}

#[inline]
fn count_answers(counters: &Counters, qp: &mut Qp, built: &Built, ack: Option<Aeth>) {
    if built.frames == 0 {
        return;
    }
    qp.counters.sent(built.frames as u64, built.bytes);
    counters.add(Counter::ResponsesSent, built.frames as u64 - u64::from(ack.is_some()));
    match ack {
        None => {}
        Some(aeth) if Syndrome::is_ack(aeth.syndrome) => counters.add(Counter::AcksSent, 1),
        Some(aeth) => count_nak_sent(counters, qp, aeth.syndrome),
    }
}

#[cold]
fn count_nak_sent(counters: &Counters, qp: &Qp, syndrome: u8) {
    if let Syndrome::RnrNak { .. } = Syndrome::decode(syndrome) {
        return counters.add_of(&qp.counters, Counter::RnrNaksSent);
    }
    counters.add_of(&qp.counters, Counter::NaksSent);
    if let Syndrome::Nak(code) = Syndrome::decode(syndrome)
        && let Some(counter) = Counter::nak_sent(code)
    {
        counters.add_of(&qp.counters, counter);
    }
}
