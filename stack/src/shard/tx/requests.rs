//! Request packets of a queue pair: the next packets of its requester, as a source of the [`writer`](super::writer); and what happens when
//! no more can be built.

use super::Stop;
use super::writer::{Built, Draft, Payload, Source, WrittenSeries};
use crate::config::LONG_PACKET;
use crate::port::Frame;
use crate::proto::requester::{
    Idle, Segment, SendWindow, Series, SeriesKind, SeriesLimits, SeriesOutcome, SeriesRequest, Unbuilt,
    Unsent,
};
use crate::proto::state::Gates;
use crate::proto::status::WcStatus;
use crate::proto::wqe::{self, SendWqe};
use crate::shard::copy::{Gather, LocalProtection, Memory};
use crate::shard::counters::{Counter, Counters};
use crate::shard::env::Env;
use crate::shard::outbox::{Ended, Traffic};
use crate::shard::qp::{Cause, Hop, Qp, SourcePort};
use crate::wire::{Discard, Header, Reth, Stencil, Template, Transport};

/// The request packets of a requester.
struct Requests<'a> {
    qp: &'a mut Qp,
    memory: Memory<'a>,
    window: SendWindow,
    /// Number of retransmitted packets.
    retransmitted: u64,
}

/// Why no further request packet can be built.
enum End {
    /// The requester has no packet to send.
    Idle(Idle),
    /// A local key of this packet's work request is invalid.
    Protection(Unsent),
}

impl Source for Requests<'_> {
    type End = End;

    #[inline(always)]
    fn next<R>(
        &mut self,
        ip_id: &mut u16,
        write: impl FnOnce(&Template, &Draft<'_>) -> Result<R, LocalProtection>,
    ) -> Result<R, End> {
        let qp = &mut *self.qp;
        let segment =
            qp.requester.poll_transmit(&self.window, qp.gates, qp.epoch, &qp.sq).map_err(End::Idle)?;
        *ip_id = ip_id.wrapping_add(1);
        let draft = draft(qp.class, &segment, self.memory, *ip_id);
        let written = write(&qp.template, &draft).map_err(|_| End::Protection(segment.unsent()))?;
        self.retransmitted += u64::from(segment.again);
        Ok(written)
    }

    #[inline(always)]
    fn write_series(&mut self, ip_id: &mut u16, frames: &mut [Frame]) -> Option<WrittenSeries<End>> {
        let qp = &mut *self.qp;
        if frames.len() < 2 || qp.class != Transport::Rc || !qp.template.is_plain() {
            return None;
        }
        write_series(qp, self.memory, &self.window, ip_id, frames)
    }

    #[inline(always)]
    fn template(&self) -> &Template {
        &self.qp.template
    }
}

/// The packet of a segment, for a queue pair whose packets are of this class.
#[inline(always)]
pub(super) fn draft<'a>(
    class: Transport,
    segment: &Segment<'a>,
    memory: Memory<'a>,
    ip_id: u16,
) -> Draft<'a> {
    let header = Header {
        opcode: segment.opcode.in_class(class),
        psn: segment.psn,
        ack_req: segment.ack_req,
        solicited: segment.solicited,
        ip_id,
        srqn: if class == Transport::Xrc { wqe::srqn(segment.slot) } else { 0 },
        ext: segment.ext,
        payload_len: segment.len,
    };
    let (slot, offset) = (segment.slot, segment.offset as usize);
    Draft { header, payload: Payload::Message { memory, slot, offset } }
}

/// Builds the packets of the next [`Series`], if the next requests form one.
#[inline(never)]
fn write_series(
    qp: &mut Qp,
    memory: Memory<'_>,
    window: &SendWindow,
    ip_id: &mut u16,
    frames: &mut [Frame],
) -> Option<WrittenSeries<End>> {
    let limits = SeriesLimits { packets: frames.len() as u32, bytes: LONG_PACKET as u32 };
    let series = qp.requester.begin_series(window, qp.gates, qp.epoch, &qp.sq, limits)?;
    let stencil = qp.template.stencil(series.opcode(), series.solicited())?;
    let mut out = Out { stencil: &stencil, memory, ip_id: *ip_id, bytes: 0 };
    let (outcome, result) = match series.kind() {
        SeriesKind::Send => out.messages::<0>(series, frames, |_, _| ()),
        SeriesKind::SendImm => out.messages(series, frames, |wqe, ext| *ext = wqe.imm()),
        SeriesKind::SendInv => {
            out.messages(series, frames, |wqe, ext| *ext = wqe.rkey_to_invalidate().to_be_bytes())
        }
        SeriesKind::Write => out.messages(series, frames, |wqe, ext| wqe.reth().write(ext)),
        SeriesKind::WriteImm => out.messages(series, frames, |wqe, ext: &mut [u8; Reth::LEN + 4]| {
            let (head, imm) = ext.split_first_chunk_mut().expect("it is longer");
            wqe.reth().write(head);
            imm.copy_from_slice(&wqe.imm());
        }),
        SeriesKind::Read => (
            series.reads(frames, |next, frame| out.request(next, frame, |wqe, ext| wqe.reth().write(ext))),
            Ok(()),
        ),
        SeriesKind::Atomic => (
            series.atomics(frames, |next, frame| out.request(next, frame, |w, ext| w.atomic().write(ext))),
            Ok(()),
        ),
    };
    let bytes = out.bytes;
    let started = outcome.started();
    qp.requester.end_series(outcome);
    *ip_id = ip_id.wrapping_add(started as u16);
    Some(match result {
        Ok(()) => WrittenSeries { frames: started as usize, bytes, end: None },
        Err(unsent) => {
            WrittenSeries { frames: started as usize - 1, bytes, end: Some(End::Protection(unsent)) }
        }
    })
}

/// The inputs and the totals for building the packets of a series.
struct Out<'a> {
    stencil: &'a Stencil,
    memory: Memory<'a>,
    /// IPv4 identification of the packet before the first.
    ip_id: u16,
    /// Bytes built.
    bytes: u64,
}

impl Out<'_> {
    /// Builds SENDs or WRITEs. A separate function, so that its loop has all registers.
    #[inline(never)]
    fn messages<const EXT: usize>(
        &mut self,
        series: Series<'_>,
        frames: &mut [Frame],
        put: impl Fn(&SendWqe, &mut [u8; EXT]),
    ) -> (SeriesOutcome, Result<(), Unsent>) {
        let (sole, mut bytes) = (series.sole(), 0);
        let mut gather = Gather::new(self.memory);
        let result = series.messages(frames, |SeriesRequest { index, slot, psn, ack_req }, frame| {
            let wqe = SendWqe::of(slot);
            let len = wqe.length as usize;
            let total = Stencil::frame_len::<EXT>(len);
            frame.set_len(total);
            let id = self.ip_id.wrapping_add(index as u16 + 1);
            let laid = self.stencil.lay(frame.data_mut(), id, psn, ack_req, len);
            put(wqe, laid.ext);
            if len > 0 {
                match SendWqe::first_sge(slot) {
                    Some(sge) if sole => gather.sole(sge, laid.payload),
                    _ => self.memory.fill(slot, 0, laid.payload),
                }
                .map_err(|_| Unbuilt)?;
            }
            bytes += total as u64;
            Ok(())
        });
        self.bytes = bytes;
        result
    }

    /// Builds a READ or an atomic, which carries no payload.
    #[inline(always)]
    fn request<const EXT: usize>(
        &mut self,
        SeriesRequest { index, slot, psn, ack_req }: SeriesRequest<'_>,
        frame: &mut Frame,
        put: impl Fn(&SendWqe, &mut [u8; EXT]),
    ) {
        let total = Stencil::frame_len::<EXT>(0);
        frame.set_len(total);
        let id = self.ip_id.wrapping_add(index as u16 + 1);
        let laid = self.stencil.lay(frame.data_mut(), id, psn, ack_req, 0);
        put(SendWqe::of(slot), laid.ext);
        self.bytes += total as u64;
    }
}

impl Env {
    /// Builds request packets of a queue pair.
    pub(super) fn request(&mut self, qp: &mut Qp) -> Stop {
        if qp.gates.has(Gates::FLUSH_SQ) || qp.gates.has(Gates::FLUSH_RQ) {
            self.flush_queues(qp, Cause::default());
            return Stop::Done;
        }
        if qp.is_unreliable() {
            return self.request_unreliable(qp);
        }
        // A packet is due: only then does the ACK timer run while the port takes none.
        let posted = qp.requester.head() != qp.sq.0.published();
        let may_go = qp.gates.has(if qp.requester.drained() { Gates::START_WQE } else { Gates::TX_RETRY });
        let due = posted && may_go;
        if !qp.is_reachable() {
            let unreachable = self.resolve(qp);
            if let Some(cause) = unreachable.filter(|_| due) {
                self.fail_unreachable(qp, cause);
                return Stop::Done;
            }
            if !qp.is_reachable() {
                // Nothing can leave, so no ACK timer runs. Woken when the neighbour answers, or is found unreachable.
                qp.requester.rest();
                return Stop::Done;
            }
        }
        if qp.source_port == SourcePort::Taken && due {
            self.try_source_port(qp);
        }
        let window = qp.requester.send_window(self.now, self.in_flight.share(qp));
        let hop = qp.hop;
        let mut budget = self.outbox.budget(hop.route(), self.outbox.room(Traffic::Requests, hop.route()));
        if budget.is_spent() {
            return Stop::Full(hop.route());
        }
        if let Hop::Inside(shard) = hop
            && !self.shared.takes_requests(shard.into())
        {
            return self.wait_to_send(qp, due);
        }
        while !budget.is_spent() {
            let in_place = budget.next_in_place().filter(|_| qp.last_burst_long && hop.is_outside());
            let waiting = (qp.requester.waiting(&window, &qp.sq) as usize).clamp(1, budget.next());
            let memory = Memory { keys: &self.shared.mrs, pd: qp.pd };
            let mut source = Requests { qp: &mut *qp, memory, window, retransmitted: 0 };
            let (built, ended) = self.outbox.write(
                Traffic::Requests,
                hop.route(),
                in_place,
                waiting,
                &mut source,
                self.now,
                &self.counters,
            );
            let retransmitted = source.retransmitted;
            count_requests(&self.counters, qp, &built, retransmitted);
            if self.rtt_probe.is_free(self.now) && built.frames > 0 && retransmitted == 0 {
                self.time_packet(qp);
            }
            self.outbox.send_inside(Traffic::Requests, hop, built.frames, &self.shared, &self.counters);
            budget.spend(&built);
            let end = match ended {
                Ended::Source(End::Idle(Idle::Local(seq))) => {
                    self.keys.execute_local(&self.shared.mrs, qp, seq);
                    budget.spend_one();
                    continue;
                }
                // The next poll decides whether older requests have to complete first.
                Ended::Source(End::Protection(unsent)) => {
                    qp.requester.take_back(unsent, WcStatus::LocProtErr);
                    budget.spend_one();
                    continue;
                }
                Ended::Source(End::Idle(idle)) => Some(idle),
                Ended::NoBuffer => {
                    self.discard_of(qp, Discard::NoBuffer);
                    return self.wait_to_send(qp, due);
                }
                _ if qp.requester.sent_all(&qp.sq) => None,
                Ended::Full => return self.wait_to_send(qp, due),
                Ended::Written => continue,
            };
            self.complete_sends(qp); // stale requests and local operations need no packet
            if end == Some(Idle::Failed)
                && let Some(status) = qp.requester.local_failure()
            {
                self.fail_send(qp, status);
            }
            return Stop::Done;
        }
        Stop::More
    }

    /// There is no buffer to build a packet in, or no room for it within the device. If a packet is due, the ACK timer runs meanwhile.
    fn wait_to_send(&mut self, qp: &mut Qp, due: bool) -> Stop {
        if !due {
            return Stop::Done;
        }
        qp.requester.arm(self.now);
        Stop::More
    }
}

#[inline]
fn count_requests(counters: &Counters, qp: &mut Qp, built: &Built, retransmitted: u64) {
    if built.frames == 0 {
        return;
    }
    qp.last_burst_long = built.any_long;
    qp.counters.sent(built.frames as u64, built.bytes);
    counters.add(Counter::RequestsSent, built.frames as u64 - retransmitted);
    for _ in 0..retransmitted {
        counters.add_of(&qp.counters, Counter::Retransmitted);
    }
}
