//! Answers: acknowledgements, NAKs and responses, in the order in which they are sent.

use super::replay::Resource;
use super::{NakOut, Pending, Responder};
use crate::id::{PdId, Psn, QpType};
use crate::mark::{Mark, hit};
use crate::proto::fault::{Fault, Reply};
use crate::proto::tables::{CREDIT_UNLIMITED, NakCode, Syndrome, credit_code};
use crate::wire::{Aeth, Kind, Opcode, Position, Tail};

/// An answer to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An ACKNOWLEDGE packet.
    Ack {
        /// Its PSN.
        psn: Psn,
        /// Syndrome and MSN.
        aeth: Aeth,
        /// The fault, if this is a NAK that ends the queue pair: enter ERR once the port has the packet.
        fatal: Option<Fault>,
    },
    /// A READ response. Check the key again before its data is sent.
    Read {
        /// Its PSN.
        psn: Psn,
        /// FIRST, MIDDLE, LAST or ONLY.
        opcode: Opcode,
        /// Syndrome and MSN (a MIDDLE packet does not carry them).
        aeth: Aeth,
        /// Key of the request.
        rkey: u32,
        /// Virtual address of the payload.
        va: u64,
        /// Bytes of payload.
        len: u32,
        /// Protection domain with which the request was checked.
        pd: PdId,
    },
    /// An ATOMIC ACKNOWLEDGE.
    Atomic {
        /// Its PSN.
        psn: Psn,
        /// Syndrome and MSN.
        aeth: Aeth,
        /// The value before the operation.
        original: u64,
    },
}

impl Responder {
    /// Queues the answer to a fault of the packet with this PSN. Returns whether the fault ends the queue pair. If it does, drop further
    /// packets, and enter ERR when [`Responder::poll_transmit`] returns the NAK, or at once if there is none.
    pub fn refuse(&mut self, psn: Psn, fault: Fault, ty: QpType) -> bool {
        let outcome = fault.outcome(ty);
        match outcome.reply {
            Reply::None => {}
            Reply::Rnr => {
                hit(Mark::NotReady);
                let syndrome = Syndrome::RnrNak { timer: self.min_rnr_timer };
                self.nak(psn, syndrome);
            }
            Reply::Nak(code) => {
                let psn = if fault == Fault::PsnGap { self.epsn } else { psn };
                self.nak(psn, Syndrome::Nak(code));
            }
        }
        if outcome.fatal {
            self.fatal = Some(fault);
        }
        outcome.fatal
    }

    fn nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.nak_out = if matches!(syndrome, Syndrome::RnrNak { .. }) { NakOut::Rnr } else { NakOut::Gap };
        self.ack = Some((psn, Pending::Nak(syndrome.encode())));
    }

    /// Takes the next answer, in PSN order: READ and ATOMIC responses, then the acknowledgement, if one is due. `credits` is how many
    /// receive requests are available; `None` with a shared receive queue.
    #[inline]
    pub fn poll_transmit(&mut self, credits: Option<u32>) -> Option<Answer> {
        if self.pending > 0
            && let Some(answer) = self.poll_resource(credits)
        {
            return Some(answer);
        }
        let (psn, pending) = self.ack.take()?;
        Some(match pending {
            Pending::Ack => {
                self.answered = psn;
                Answer::Ack { psn, aeth: self.aeth(credits), fatal: None }
            }
            Pending::Nak(syndrome) => {
                self.answered = psn.sub(1);
                let aeth = Aeth { syndrome, msn: self.msn.get() };
                Answer::Ack { psn, aeth, fatal: self.fatal }
            }
        })
    }

    fn aeth(&self, credits: Option<u32>) -> Aeth {
        let syndrome = credits.map_or(CREDIT_UNLIMITED, credit_code);
        Aeth { syndrome, msn: self.msn.get() }
    }

    fn poll_resource(&mut self, credits: Option<u32>) -> Option<Answer> {
        let aeth = self.aeth(credits);
        let index = self.next_resource()?;
        Some(self.respond_with(index, aeth))
    }

    /// How many requests wait for their responses.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.pending.into()
    }

    /// Builds the next responses of at most `longest` bytes, at most one for each of `places`: the same that [`Responder::poll_transmit`]
    /// would return. Ends before any other answer, and after a response that `build` could not make. Returns how many were built, and the
    /// PSN of the response that was not: pass that to [`Responder::refuse_read`].
    #[inline(always)]
    pub fn respond<P>(
        &mut self,
        credits: Option<u32>,
        longest: u32,
        places: &mut [P],
        mut build: impl FnMut(Answer, &mut P) -> bool,
    ) -> (usize, Option<Psn>) {
        let aeth = self.aeth(credits);
        let mut made = 0;
        for place in places {
            if self.pending == 0 {
                break;
            }
            let Some(index) = self.next_resource() else { break };
            let Some(r) = self.replay.slots.get(index) else { break };
            let (psn, is_read) = (r.next, r.kind == Kind::ReadRequest);
            if is_read && (psn != r.last || r.len - self.offset_of(r) > longest) {
                break;
            }
            let answer = self.respond_with(index, aeth);
            if !build(answer, place) {
                return (made, Some(psn));
            }
            made += 1;
        }
        (made, None)
    }

    /// Index of the slot of the request to answer next, if there is one.
    #[inline(always)]
    fn next_resource(&self) -> Option<usize> {
        if self.replaying {
            self.replay.oldest_pending()
        } else {
            Some(self.replay.first_of_newest(self.pending))
        }
    }

    /// Offset in bytes of the next response of a READ.
    #[inline(always)]
    fn offset_of(&self, r: &Resource) -> u32 {
        (r.next.diff(r.first) as u32 & 0x00ff_ffff) << self.mtu.log2()
    }

    /// The next response to the request in this slot.
    #[inline(always)]
    fn respond_with(&mut self, index: usize, aeth: Aeth) -> Answer {
        let offset = self.offset_of(&self.replay.slots[index]);
        let r = &mut self.replay.slots[index];
        let psn = r.next;
        let answer = if r.kind == Kind::ReadRequest {
            let position = match (psn == r.start, psn == r.last) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, false) => Position::Middle,
                (false, true) => Position::Last,
            };
            let len = if psn == r.last { r.len - offset } else { self.mtu.bytes() as u32 };
            Answer::Read {
                psn,
                opcode: Opcode::rc(Kind::ReadResponse, position, Tail::None),
                aeth,
                rkey: r.rkey,
                va: r.va.wrapping_add(u64::from(offset)),
                len,
                pd: r.pd,
            }
        } else if matches!(r.kind, Kind::AtomicWrite | Kind::Flush) {
            Answer::Read {
                psn,
                opcode: Opcode::RC_READ_RESPONSE_ONLY,
                aeth,
                rkey: 0,
                va: 0,
                len: 0,
                pd: r.pd,
            }
        } else {
            Answer::Atomic { psn, aeth, original: r.original }
        };
        r.next = psn.add(1);
        if psn == r.last {
            r.pending = false;
            self.pending -= 1;
            self.replaying &= self.pending > 0;
        }
        self.answered = psn;
        answer
    }

    /// Handles a READ response that was handed out but cannot be built, because its key was revoked. Queues a NAK with its PSN and drops
    /// every other answer; the queue pair ends. Returns `false` if the response was a replay: then it is only dropped, like any duplicate
    /// with a fault.
    pub fn refuse_read(&mut self, psn: Psn) -> bool {
        let read = self.replay.find(Kind::ReadRequest, psn, self.epsn);
        if let Some(r) = read.filter(|r| r.replay) {
            self.pending -= u8::from(r.pending);
            r.pending = false;
            return false;
        }
        for r in &mut self.replay.slots {
            r.pending = false;
        }
        self.pending = 0;
        hit(Mark::ReadRevoked);
        self.fatal = Some(Fault::RemoteAccess);
        self.nak(psn, Syndrome::Nak(NakCode::RemoteAccessError));
        true
    }
}
