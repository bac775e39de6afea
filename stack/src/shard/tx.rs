//! Sending: what a queue pair's machines want to say becomes frames.

use arrayvec::ArrayVec;

use super::Shard;
use super::copy::{self, LocalProtection, LongPacket, Memory};
use super::counters::Counter;
use super::env::Env;
use super::qp::{Qp, Route};
use super::run;
use crate::config::{LONG_PACKET, QP_TX_BUDGET, READY_BUDGET};
use crate::id::{PdId, Psn, QpType, Qpn};
use crate::mem::{Access, KeyFault, MrTable};
use crate::port::{Build, Frame, TxBurst};
use crate::proto::requester::{Idle, Segment};
use crate::proto::responder::Answered;
use crate::proto::status::WcStatus;
use crate::proto::tables::Syndrome;
use crate::proto::wqe;
use crate::time::Instant;
use crate::wire::{Aeth, Discard, Ext, Header, Opcode, Template};

/// Why a queue pair stopped sending for this turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// Nothing left to send until something happens.
    Done,
    /// Out of budget, frames or room: it goes on next turn.
    More,
}

impl Shard {
    /// Builds the answers that are due: each queue pair one acknowledgement, or a share of READ responses.
    pub(super) fn send_answers(&mut self) {
        for _ in 0..self.env.answering.len() {
            let waiting = self.env.answering.len();
            let room = self.env.answers.frames.remaining_capacity();
            if room == 0 {
                break;
            }
            let Some(slot) = self.env.answering.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_answers) else { continue };
            qp.in_answers = false;
            let budget = QP_TX_BUDGET.min(room.saturating_sub(waiting - 1).max(1));
            if self.env.answer(qp, budget) == Stop::More {
                self.env.mark_answering(qp);
            }
            if qp.held.is_some() {
                self.env.release_receives(qp);
            }
        }
    }

    /// Builds request packets of queue pairs that have some, in turn.
    pub(super) fn send_requests(&mut self) {
        if self.env.many {
            self.prefetch_first_ready();
        }
        for _ in 0..self.env.ready.len().min(READY_BUDGET) {
            if self.env.requests.frames.is_full() {
                break;
            }
            if self.env.many {
                self.prefetch_next_ready();
            }
            let Some(slot) = self.env.ready.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready) else { continue };
            qp.in_ready = false;
            if self.env.request(qp) == Stop::More {
                self.env.mark_ready(qp);
            }
            self.env.arm(qp);
        }
    }
}

impl Env {
    fn answer(&mut self, qp: &mut Qp, budget: usize) -> Stop {
        let mut stamped = self.answers.frames.len();
        let stop = self.build_answers(qp, budget, &mut stamped);
        stamp(&qp.template, &mut self.answers.frames[stamped..]);
        stop
    }

    /// Builds answers. Those in the backlog are stamped up to `stamped`.
    #[inline]
    fn build_answers(&mut self, qp: &mut Qp, budget: usize, stamped: &mut usize) -> Stop {
        if !Self::reachable(qp) {
            self.resolve(qp);
            if !Self::reachable(qp) {
                return Stop::Done; // the peer will ask again; resolving wakes nobody for an answer
            }
        }
        let mut budget = budget - self.respond(qp, budget);
        while budget > 0 {
            if !qp.responder.has_answer() {
                return Stop::Done;
            }
            let Some(mut frame) = self.take_frame() else {
                self.discard_of(qp, Discard::NoBuffer);
                return Stop::More;
            };
            let mut answer = None;
            if qp.long_answers
                && qp.route == Route::Known
                && self.backlog() == 0
                && let Some((built, other)) = self.respond_in_place(qp, budget)
            {
                budget -= built;
                if other.is_none() {
                    self.keep_frame(frame);
                    return if qp.responder.has_answer() { Stop::More } else { Stop::Done };
                }
                answer = other;
            }
            let Some(answer) = answer.or_else(|| qp.responder.poll_transmit(qp.credits())) else {
                self.keep_frame(frame);
                return Stop::Done;
            };
            budget = budget.saturating_sub(1);
            match answer {
                Answered::Ack { psn, aeth, fatal } => {
                    match aeth.syndrome >> 5 {
                        0 => self.count(Counter::AcksSent),
                        _ => self.count_nak_sent(qp, aeth.syndrome),
                    }
                    self.build(qp, &mut frame, Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth));
                    self.dispatch(qp, frame, false, stamped);
                    if let Some(fault) = fatal {
                        self.end_by_fault(qp, fault);
                        return Stop::Done;
                    }
                }
                Answered::Atomic { psn, aeth, original } => {
                    self.count(Counter::ResponsesSent);
                    let ext = Ext::AtomicAck(aeth, original);
                    self.build(qp, &mut frame, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, ext);
                    self.dispatch(qp, frame, false, stamped);
                }
                Answered::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                    let Ok(addr) = readable(&self.shared.mrs, qp.qpn, pd, rkey, va, len) else {
                        self.keep_frame(frame);
                        if !qp.responder.refuse_read(psn) {
                            self.discard_of(qp, Discard::Duplicate);
                        }
                        continue;
                    };
                    self.count(Counter::ResponsesSent);
                    let ext = response_ext(opcode, aeth);
                    let header = answer_header(qp, opcode, psn, ext, len, self.next_ip_id());
                    let (len, finished) = fill_response(&qp.template, &header, addr, frame.buffer_mut());
                    frame.set_len(len);
                    qp.long_answers = len >= LONG_PACKET;
                    self.dispatch(qp, frame, finished, stamped);
                }
            }
        }
        if qp.responder.has_answer() { Stop::More } else { Stop::Done }
    }

    /// Builds up to `most` READ responses in the port's own memory, as many as there is room for. Returns how many, and the
    /// answer that came up and is none, or is one whose key is not good any more; `None` where the port has no such memory.
    #[inline(never)]
    fn respond_in_place(&mut self, qp: &mut Qp, most: usize) -> Option<(usize, Option<Answered>)> {
        let mut builder = Responses {
            mrs: &self.shared.mrs,
            ip_id: &mut self.ip_id,
            qp: &mut *qp,
            other: None,
            built: Built::default(),
            open: Open::default(),
        };
        let sent = self.queue.build_burst(most, &mut builder)?;
        let Responses { built, other, .. } = builder;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        if built.frames > 0 {
            qp.long_answers = built.long;
            qp.counters.sent(built.frames as u64, built.bytes);
            self.counters().add(Counter::ResponsesSent, built.frames as u64);
            self.count_in_place(&built);
        }
        Some((built.frames, other))
    }

    /// Counts frames that were built in the port's own memory, as those that a flush hands over.
    fn count_in_place(&mut self, built: &Built) {
        self.counters().add(Counter::TxFrames, built.frames as u64);
        self.counters().add(Counter::TxBytes, built.bytes);
        self.in_place += built.frames;
    }

    /// Builds request packets of a queue pair.
    fn request(&mut self, qp: &mut Qp) -> Stop {
        use crate::proto::state::Gates;
        if qp.gates.has(Gates::FLUSH_SQ) || qp.gates.has(Gates::FLUSH_RQ) {
            self.flush_queues(qp, super::qp::Cause::default());
            return Stop::Done;
        }
        if qp.is_unreliable() {
            return self.request_unreliable(qp);
        }
        // A packet is due: only then does the ACK timer run while there is no way to send it.
        let posted = qp.requester.head() != qp.sq.0.published();
        let may_go = qp.gates.has(if qp.requester.drained() { Gates::START_WQE } else { Gates::TX_RETRY });
        let due = posted && may_go;
        if !Self::reachable(qp) {
            if self.resolve(qp) && due {
                self.fail_send(qp, WcStatus::RetryExcErr);
                return Stop::Done;
            }
            if !Self::reachable(qp) {
                if due {
                    qp.requester.arm(self.now);
                }
                return Stop::Done; // woken when the neighbour table changes, or by the ACK timer
            }
        }
        let mut budget = QP_TX_BUDGET.min(self.requests.frames.remaining_capacity());
        while budget > 0 {
            if qp.long
                && qp.route == Route::Known
                && self.backlog() == 0
                && let Some((built, end)) = self.build_in_place(qp, budget)
            {
                let full = built.frames < budget && end.is_ok();
                budget -= built.frames;
                if let Some(stop) = self.end_of(qp, end, &mut budget) {
                    return stop;
                }
                if full {
                    return self.wait_to_send(qp, due);
                }
                continue;
            }
            // Packets are built where they wait for the port.
            let waiting = (qp.requester.waiting(&qp.sq) as usize).clamp(1, budget);
            let (base, got) = self.append_empty(waiting);
            if got == 0 {
                self.discard_of(qp, Discard::NoBuffer);
                return self.wait_to_send(qp, due);
            }
            let memory = Memory { keys: &self.shared.mrs, pd: qp.pd };
            let empty = &mut self.requests.frames[base..];
            let (built, end) = build_requests(qp, memory, self.now, &mut self.ip_id, empty);
            self.count_built(qp, &built);
            self.take_empty(base + built.frames);
            if qp.route == Route::Inside {
                self.send_inside(qp, base);
            }
            budget -= built.frames;
            if let Some(stop) = self.end_of(qp, end, &mut budget) {
                return stop;
            }
        }
        Stop::More
    }

    /// There is no memory to build a packet in. If one is due the ACK timer runs meanwhile.
    fn wait_to_send(&mut self, qp: &mut Qp, due: bool) -> Stop {
        if !due {
            return Stop::Done;
        }
        qp.requester.arm(self.now);
        Stop::More
    }

    /// What is to be done when no more request packets are built; `None`: going on.
    #[inline(always)]
    fn end_of(&mut self, qp: &mut Qp, end: Result<(), End>, budget: &mut usize) -> Option<Stop> {
        match end {
            Ok(()) if qp.requester.sent_all(&qp.sq) => {
                self.complete_sends(qp); // stale requests need no packet
                return Some(Stop::Done);
            }
            Ok(()) => {}
            Err(End::Idle(Idle::Local(seq))) => {
                self.carry_out(qp, seq);
                *budget -= 1;
            }
            Err(End::Idle(idle)) => {
                self.complete_sends(qp); // stale requests and local operations need no packet
                if idle == Idle::Failed
                    && let Some(status) = qp.requester.local_failure()
                {
                    self.fail_send(qp, status);
                }
                return Some(Stop::Done);
            }
            // The next poll says whether older requests have to complete first.
            Err(End::Protection(seq)) => {
                qp.requester.fail_local(seq, WcStatus::LocProtErr);
                *budget -= 1;
            }
        }
        None
    }

    /// Builds up to `most` request packets in the port's own memory, each finished while it is in the nearest cache: as many
    /// as there is room for. `None` where the port has no such memory.
    #[inline(never)]
    fn build_in_place(&mut self, qp: &mut Qp, most: usize) -> Option<(Built, Result<(), End>)> {
        let mut builder = Requests {
            memory: Memory { keys: &self.shared.mrs, pd: qp.pd },
            now: self.now,
            ip_id: &mut self.ip_id,
            qp: &mut *qp,
            built: Built::default(),
            end: Ok(()),
            open: Open::default(),
        };
        let sent = self.queue.build_burst(most, &mut builder)?;
        let Requests { built, end, .. } = builder;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        if built.frames > 0 {
            self.count_built(qp, &built);
            self.count_in_place(&built);
        }
        Some((built, end))
    }

    /// Puts up to `n` empty frames behind those that wait for the port: where they begin, and how many there are.
    #[inline]
    fn append_empty(&mut self, n: usize) -> (usize, usize) {
        let frames = &mut self.requests.frames;
        let base = frames.len();
        if let Some(spare) = self.spare.take() {
            frames.push(spare);
        }
        let missing = n - (frames.len() - base);
        if missing > 0 {
            self.queue.alloc_burst(frames, missing);
        }
        (base, frames.len() - base)
    }

    /// Takes the empty frames from `end` on away again.
    #[inline]
    fn take_empty(&mut self, end: usize) {
        while self.requests.frames.len() > end
            && let Some(frame) = self.requests.frames.pop()
        {
            self.keep_frame(frame);
        }
    }

    #[inline]
    fn count_built(&self, qp: &mut Qp, built: &Built) {
        qp.long = built.long;
        qp.counters.sent(built.frames as u64, built.bytes);
        self.counters().add(Counter::RequestsSent, built.frames as u64 - built.again);
        for _ in 0..built.again {
            self.count_of(qp, Counter::Retransmitted);
        }
    }

    /// The frames from `base` on go to a queue pair of this device.
    #[cold]
    fn send_inside(&mut self, qp: &Qp, base: usize) {
        let frames: TxBurst = self.requests.frames.drain(base..).collect();
        for frame in frames {
            self.send(qp.route, qp.peer_shard.into(), frame, false);
        }
    }

    #[cold]
    fn count_nak_sent(&self, qp: &Qp, syndrome: u8) {
        if let Syndrome::RnrNak { .. } = Syndrome::decode(syndrome) {
            return self.count_of(qp, Counter::RnrNaksSent);
        }
        self.count_of(qp, Counter::NaksSent);
        if let Syndrome::Nak(code) = Syndrome::decode(syndrome)
            && let Some(counter) = Counter::nak_sent(code)
        {
            self.count_of(qp, counter);
        }
    }

    /// Builds an answer without payload in `frame`.
    #[inline]
    fn build(&mut self, qp: &Qp, frame: &mut Frame, opcode: Opcode, psn: Psn, ext: Ext) {
        let header = answer_header(qp, opcode, psn, ext, 0, self.next_ip_id());
        let buffer = frame.buffer_mut();
        let at = qp.template.begin(buffer, &header);
        let len = qp.template.close(buffer, at, 0);
        frame.set_len(len);
    }

    /// Sends an answer on its way that was built, and is stamped if it is `finished`. In the backlog it is left to be stamped, unless
    /// it is long.
    #[inline]
    fn dispatch(&mut self, qp: &Qp, mut frame: Frame, finished: bool, stamped: &mut usize) {
        let len = frame.len();
        qp.counters.sent(1, len as u64);
        let now = finished || len >= LONG_PACKET || qp.route == Route::Inside;
        if now {
            stamp(&qp.template, &mut self.answers.frames[*stamped..]);
            if !finished {
                qp.template.stamp(frame.data_mut());
            }
        }
        self.send(qp.route, qp.peer_shard.into(), frame, true);
        if now {
            *stamped = self.answers.frames.len();
        }
    }
}

/// Where the bytes of a READ response are: the key may have gone since the request was checked.
#[inline(always)]
fn readable(keys: &MrTable, qpn: Qpn, pd: PdId, rkey: u32, va: u64, len: u32) -> Result<u64, KeyFault> {
    match len {
        0 => Ok(0),
        _ => keys.check_remote(rkey, pd, qpn, Access::REMOTE_READ, va, u64::from(len)),
    }
}

#[inline(always)]
fn response_ext(opcode: Opcode, aeth: Aeth) -> Ext {
    if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) }
}

#[inline(always)]
fn answer_header(qp: &Qp, opcode: Opcode, psn: Psn, ext: Ext, len: u32, ip_id: u16) -> Header {
    Header {
        opcode: opcode.in_class(qp.class),
        psn,
        ack_req: false,
        solicited: false,
        ip_id,
        srqn: 0,
        ext,
        payload_len: len,
    }
}

/// Packets that were built in one go.
#[derive(Clone, Copy, Default)]
struct Built {
    frames: usize,
    bytes: u64,
    /// Those that had gone out before.
    again: u64,
    /// The last one was long.
    long: bool,
}

impl Built {
    #[inline(always)]
    fn add(&mut self, len: usize, again: bool) {
        self.frames += 1;
        self.bytes += len as u64;
        self.again += u64::from(again);
        self.long = len >= LONG_PACKET;
    }
}

/// The packets of a burst: long ones are laid out when it is built, and written when it is finished. The others are stamped at
/// once, while they are in the nearest cache.
#[derive(Default)]
struct Open(ArrayVec<LongPacket, QP_TX_BUDGET>);

impl Open {
    /// The next packet of the burst; `None` if it is full.
    #[inline(always)]
    fn next(&mut self) -> Option<&mut LongPacket> {
        self.0.try_push(LongPacket::default()).ok()?;
        self.0.last_mut()
    }

    #[inline(always)]
    fn write(&self, template: &Template, i: usize, buffer: &mut [u8]) {
        if let Some(long) = self.0.get(i) {
            long.write(template, buffer);
        }
    }
}

/// Builds request packets in a port's memory.
struct Requests<'a> {
    memory: Memory<'a>,
    now: Instant,
    ip_id: &'a mut u16,
    qp: &'a mut Qp,
    built: Built,
    end: Result<(), End>,
    open: Open,
}

impl Build for Requests<'_> {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let long = self.open.next()?;
        let qp = &mut *self.qp;
        let segment = match qp.requester.poll_transmit(self.now, qp.gates, qp.epoch, &qp.sq) {
            Ok(segment) => segment,
            Err(idle) => {
                self.end = Err(End::Idle(idle));
                return None;
            }
        };
        *self.ip_id = self.ip_id.wrapping_add(1);
        let header = request_header(*self.ip_id, qp, &segment);
        let laid_out = lay_out(self.memory, qp, &segment, &header, long);
        let Ok(len) = laid_out.and_then(|len| match len {
            Some(len) => Ok(len),
            None => build_in_steps(self.memory, qp, &segment, &header, buffer)
                .inspect(|len| qp.template.stamp(&mut buffer[..*len])),
        }) else {
            self.end = Err(End::Protection(segment.seq));
            return None;
        };
        self.built.add(len, segment.again);
        Some(len)
    }

    fn finish(&mut self, i: usize, buffer: &mut [u8]) {
        self.open.write(&self.qp.template, i, buffer);
    }
}

/// Builds READ responses in a port's memory.
struct Responses<'a> {
    mrs: &'a MrTable,
    ip_id: &'a mut u16,
    qp: &'a mut Qp,
    /// What came up and is no response, or one whose key is not good any more.
    other: Option<Answered>,
    built: Built,
    open: Open,
}

impl Build for Responses<'_> {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let long = self.open.next()?;
        let qp = &mut *self.qp;
        let answer = qp.responder.poll_transmit(qp.credits())?;
        let Answered::Read { psn, opcode, aeth, rkey, va, len, pd } = answer else {
            self.other = Some(answer);
            return None;
        };
        let Ok(addr) = readable(self.mrs, qp.qpn, pd, rkey, va, len) else {
            self.other = Some(answer);
            return None;
        };
        *self.ip_id = self.ip_id.wrapping_add(1);
        let header = answer_header(qp, opcode, psn, response_ext(opcode, aeth), len, *self.ip_id);
        let len = match LongPacket::pass(&qp.template, header.payload_len) {
            Some(pass) => long.lay_out(pass, &qp.template, &header, addr),
            None => {
                let len = respond_in_steps(&qp.template, &header, addr, buffer);
                qp.template.stamp(&mut buffer[..len]);
                len
            }
        };
        self.built.add(len, false);
        Some(len)
    }

    fn finish(&mut self, i: usize, buffer: &mut [u8]) {
        self.open.write(&self.qp.template, i, buffer);
    }
}

/// Why no more were built.
enum End {
    /// The requester has none.
    Idle(Idle),
    /// A key of the work request with this sequence number is not good.
    Protection(u32),
}

/// Builds request packets in empty frames, one after the other. A function of its own: its loop has the registers for
/// itself.
#[inline(never)]
fn build_requests(
    qp: &mut Qp,
    memory: Memory<'_>,
    now: Instant,
    ip_id: &mut u16,
    empty: &mut [Frame],
) -> (Built, Result<(), End>) {
    let mut built = Built::default();
    let mut stamped = 0;
    let mut end = Ok(());
    while built.frames < empty.len() {
        // What follows a long packet mostly is one.
        if !built.long
            && let Some(run) = run::build(qp, memory, now, ip_id, &mut empty[built.frames..])
        {
            built.frames += run.frames;
            built.bytes += run.bytes;
            match run.bad {
                None => continue,
                Some(seq) => {
                    end = Err(End::Protection(seq));
                    break;
                }
            }
        }
        let frame = &mut empty[built.frames];
        let segment = match qp.requester.poll_transmit(now, qp.gates, qp.epoch, &qp.sq) {
            Ok(segment) => segment,
            Err(idle) => {
                end = Err(End::Idle(idle));
                break;
            }
        };
        *ip_id = ip_id.wrapping_add(1);
        let Ok((len, finished)) = fill(memory, *ip_id, qp, &segment, frame.buffer_mut()) else {
            end = Err(End::Protection(segment.seq));
            break;
        };
        frame.set_len(len);
        built.add(len, segment.again);
        if built.long || finished {
            stamp(&qp.template, &mut empty[stamped..built.frames - usize::from(finished)]);
            stamped = built.frames;
        }
    }
    stamp(&qp.template, &mut empty[stamped..built.frames]);
    (built, end)
}

/// Finishes packets of one queue pair.
#[inline]
fn stamp(template: &Template, frames: &mut [Frame]) {
    for frame in frames {
        template.stamp(frame.data_mut());
    }
}

/// Builds the request packet of a segment in a buffer. Returns its length, and whether it is finished, which is left to
/// [`Template::stamp`] otherwise.
#[inline(always)]
pub(super) fn fill(
    memory: Memory<'_>,
    ip_id: u16,
    qp: &Qp,
    segment: &Segment<'_>,
    buffer: &mut [u8],
) -> Result<(usize, bool), LocalProtection> {
    let header = request_header(ip_id, qp, segment);
    if LongPacket::pass(&qp.template, segment.len).is_some() {
        let mut long = LongPacket::default();
        if let Some(len) = lay_out(memory, qp, segment, &header, &mut long)? {
            return Ok((len, long.write(&qp.template, buffer)));
        }
    }
    Ok((build_in_steps(memory, qp, segment, &header, buffer)?, false))
}

#[inline(always)]
fn request_header(ip_id: u16, qp: &Qp, segment: &Segment<'_>) -> Header {
    Header {
        opcode: segment.opcode.in_class(qp.class),
        psn: segment.psn,
        ack_req: segment.ack_req,
        solicited: segment.solicited,
        ip_id,
        srqn: if qp.ty == QpType::XrcIni { wqe::srqn(segment.slot) } else { 0 },
        ext: segment.ext,
        payload_len: segment.len,
    }
}

/// Lays out the request packet of a segment, if it is a [`LongPacket`]. Returns its length.
#[inline(always)]
fn lay_out(
    memory: Memory<'_>,
    qp: &Qp,
    segment: &Segment<'_>,
    header: &Header,
    long: &mut LongPacket,
) -> Result<Option<usize>, LocalProtection> {
    let Some(pass) = LongPacket::pass(&qp.template, segment.len) else { return Ok(None) };
    let addr = memory.locate(segment.slot, segment.offset as usize, segment.len as usize)?;
    Ok(addr.map(|addr| long.lay_out(pass, &qp.template, header, addr)))
}

/// Builds the request packet of a segment in a buffer; [`Template::stamp`] finishes it. Returns its length.
#[inline(always)]
fn build_in_steps(
    memory: Memory<'_>,
    qp: &Qp,
    segment: &Segment<'_>,
    header: &Header,
    buffer: &mut [u8],
) -> Result<usize, LocalProtection> {
    let (len, offset) = (segment.len as usize, segment.offset as usize);
    let at = qp.template.begin(buffer, header);
    if len > 0 {
        memory.fill(segment.slot, offset, &mut buffer[at..at + len])?;
    }
    Ok(qp.template.close(buffer, at, len))
}

/// Builds a READ response whose bytes are at `addr` in a buffer. Returns its length, and whether it is finished, as [`fill`].
fn fill_response(template: &Template, header: &Header, addr: u64, buffer: &mut [u8]) -> (usize, bool) {
    let Some(pass) = LongPacket::pass(template, header.payload_len) else {
        return (respond_in_steps(template, header, addr, buffer), false);
    };
    let mut long = LongPacket::default();
    let len = long.lay_out(pass, template, header, addr);
    (len, long.write(template, buffer))
}

/// Builds a READ response whose bytes are at `addr` in a buffer; [`Template::stamp`] finishes it. Returns its length.
fn respond_in_steps(template: &Template, header: &Header, addr: u64, buffer: &mut [u8]) -> usize {
    let (at, len) = (template.begin(buffer, header), header.payload_len as usize);
    copy::read(addr, &mut buffer[at..at + len]);
    template.close(buffer, at, len)
}
