//! Answers: acknowledgements, NAKs and responses, in the order in which they go out.

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
    /// ACKNOWLEDGE with this syndrome.
    Ack {
        /// Its PSN.
        psn: Psn,
        /// Syndrome and MSN.
        aeth: Aeth,
        /// The fault, if this is a NAK that ends the queue pair: enter ERR once the port has it.
        fatal: Option<Fault>,
    },
    /// A READ response; look the key up again before its data leaves.
    Read {
        /// Its PSN.
        psn: Psn,
        /// FIRST, MIDDLE, LAST or ONLY.
        opcode: Opcode,
        /// Syndrome and MSN (not sent in MIDDLE).
        aeth: Aeth,
        /// Key of the request.
        rkey: u32,
        /// Virtual address of the payload.
        va: u64,
        /// Bytes.
        len: u32,
        /// Protection domain that the request was checked in.
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
    /// Queues the answer to a fault of the packet with this number. Returns whether the fault ends the queue pair: then drop
    /// what arrives, and enter ERR when [`Responder::poll_transmit`] returns the NAK (or at once, where there is none).
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

    /// The next answer, in PSN order: READ and ATOMIC responses, then the one acknowledgement that is due.
    /// `credits`: receive requests available, `None` with a shared receive queue.
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

    /// Requests that wait for responses.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.pending.into()
    }

    /// Responses of `longest` bytes or less that are next, one for each of `places` at most: those that
    /// [`Responder::poll_transmit`] would return one by one. Ends where something else is next, and behind a response that
    /// `build` could not make. How many were made, and the PSN of that response: see [`Responder::refuse_read`].
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

    /// The slot of the request that is answered next, where one is.
    #[inline(always)]
    fn next_resource(&self) -> Option<usize> {
        if self.replaying {
            self.replay.oldest_pending()
        } else {
            Some(self.replay.first_of_newest(self.pending))
        }
    }

    /// First byte of a READ's next response.
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

    /// The READ response just handed out cannot be made: its key was revoked. Queues the NAK with its PSN and
    /// drops every other answer; the queue pair ends with it. `false`: it was a replay, which is dropped, as
    /// any duplicate with a fault is.
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
