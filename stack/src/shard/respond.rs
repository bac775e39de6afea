//! Short responses to READs and atomics, one after the other. Whatever else is to be answered goes by way of
//! [`tx`](super::tx).

use super::copy;
use super::counters::Counter;
use super::env::Env;
use super::qp::{Qp, Route};
use crate::config::LONG_PACKET;
use crate::mem::{Access, KnownKey};
use crate::proto::responder::Answered;
use crate::wire::{Aeth, Discard, Opcode, Stencil};

/// Bytes of extension headers of a READ response that is not a middle one, and of an ATOMIC acknowledgement.
const RESPONSE: usize = Aeth::LEN;
const ATOMIC: usize = Aeth::LEN + 8;

impl Env {
    /// Builds up to `most` of the responses that are next, where they are two or more, and short; how many. They wait for
    /// the port, to be stamped.
    #[inline]
    pub(super) fn respond(&mut self, qp: &mut Qp, most: usize) -> usize {
        let n = most.min(qp.responder.waiting());
        if n < 2 || qp.route != Route::Known || !qp.template.is_plain() {
            return 0;
        }
        self.respond_many(qp, n)
    }

    #[inline(never)]
    fn respond_many(&mut self, qp: &mut Qp, n: usize) -> usize {
        let Some(stencil) = qp.template.stencil(Opcode::RC_READ_RESPONSE_ONLY, false) else { return 0 };
        let (credits, class, qpn) = (qp.credits(), qp.class, qp.qpn);
        let frames = &mut self.outbox.answers.frames;
        let base = frames.len();
        self.outbox.queue.alloc_burst(frames, n);
        let (keys, mut ip_id) = (&self.shared.mrs, self.outbox.ip_id);
        let (mut bytes, mut known) = (0, KnownKey::new(Access::REMOTE_READ));
        let (made, refused) =
            qp.responder.respond(credits, LONG_PACKET as u32, &mut frames[base..], |answer, frame| {
                ip_id = ip_id.wrapping_add(1);
                let total = match answer {
                    Answered::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                        let total = Stencil::frame_len::<RESPONSE>(len as usize);
                        frame.set_len(total);
                        let laid = stencil.lay(frame.data_mut(), ip_id, psn, false, len as usize);
                        *laid.opcode = opcode.in_class(class).0;
                        aeth.write(laid.ext);
                        if len > 0 {
                            let place = known.check(keys, rkey, pd, Some(qpn), va, len.into());
                            let Ok(place) = place else { return false };
                            copy::read_short(place, laid.payload);
                        }
                        total
                    }
                    Answered::Atomic { psn, aeth, original } => {
                        let total = Stencil::frame_len::<ATOMIC>(0);
                        frame.set_len(total);
                        let laid = stencil.lay::<ATOMIC>(frame.data_mut(), ip_id, psn, false, 0);
                        *laid.opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE.in_class(class).0;
                        let (head, value) = laid.ext.split_first_chunk_mut().expect("it is longer");
                        aeth.write(head);
                        value.copy_from_slice(&original.to_be_bytes());
                        total
                    }
                    Answered::Ack { .. } => return false, // no response
                };
                bytes += total as u64;
                true
            });
        self.outbox.ip_id = ip_id;
        while self.outbox.answers.frames.len() > base + made
            && let Some(frame) = self.outbox.answers.frames.pop()
        {
            self.outbox.keep_frame(frame);
        }
        qp.counters.sent(made as u64, bytes);
        self.counters.add(Counter::ResponsesSent, made as u64);
        if let Some(psn) = refused
            && !qp.responder.refuse_read(psn)
        {
            self.discard_of(qp, Discard::Duplicate);
        }
        made
    }
}
