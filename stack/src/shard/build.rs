//! Building: a segment of a request, or an answer, becomes a packet in a buffer. Short ones that are alike go by way of
//! [`run`](super::run) and [`respond`](super::respond).

use arrayvec::ArrayVec;

use super::copy::{self, LocalProtection, LongPacket, Memory};
use super::qp::Qp;
use super::run;
use crate::config::{LONG_PACKET, QP_TX_BUDGET};
use crate::id::{PdId, Psn, QpType, Qpn};
use crate::mem::{Access, KeyFault, MrTable, Place};
use crate::port::{Build, Frame};
use crate::proto::requester::{Idle, Segment};
use crate::proto::responder::Answered;
use crate::proto::wqe;
use crate::time::Instant;
use crate::wire::icrc::OnePass;
use crate::wire::{Aeth, Ext, Header, Opcode, Template};

/// Where the bytes of a READ response are: the key may have gone since the request was checked.
#[inline(always)]
pub(super) fn readable(
    keys: &MrTable,
    qpn: Qpn,
    pd: PdId,
    rkey: u32,
    va: u64,
    len: u32,
) -> Result<Place, KeyFault> {
    match len {
        0 => Ok(Place::EMPTY),
        _ => keys.check_remote(rkey, pd, qpn, Access::REMOTE_READ, va, u64::from(len)),
    }
}

#[inline(always)]
pub(super) fn response_ext(opcode: Opcode, aeth: Aeth) -> Ext {
    if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) }
}

#[inline(always)]
pub(super) fn answer_header(qp: &Qp, opcode: Opcode, psn: Psn, ext: Ext, len: u32, ip_id: u16) -> Header {
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
pub(super) struct Built {
    pub frames: usize,
    pub bytes: u64,
    /// Those that had gone out before.
    pub again: u64,
    /// The last one was long.
    pub long: bool,
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
pub(super) struct Requests<'a> {
    memory: Memory<'a>,
    now: Instant,
    ip_id: &'a mut u16,
    qp: &'a mut Qp,
    pub built: Built,
    pub end: Result<(), End>,
    open: Open,
}

impl<'a> Requests<'a> {
    pub fn new(memory: Memory<'a>, now: Instant, ip_id: &'a mut u16, qp: &'a mut Qp) -> Self {
        Self { memory, now, ip_id, qp, built: Built::default(), end: Ok(()), open: Open::default() }
    }
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
        let Ok(len) = locate(self.memory, qp, &segment).and_then(|found| match found {
            Some((pass, addr)) => Ok(long.lay_out(pass, &qp.template, &header, addr)),
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
pub(super) struct Responses<'a> {
    mrs: &'a MrTable,
    ip_id: &'a mut u16,
    qp: &'a mut Qp,
    /// What came up and is no response, or one whose key is not good any more.
    pub other: Option<Answered>,
    pub built: Built,
    open: Open,
}

impl<'a> Responses<'a> {
    pub fn new(mrs: &'a MrTable, ip_id: &'a mut u16, qp: &'a mut Qp) -> Self {
        Self { mrs, ip_id, qp, other: None, built: Built::default(), open: Open::default() }
    }
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
pub(super) enum End {
    /// The requester has none.
    Idle(Idle),
    /// A key of the work request with this sequence number is not good.
    Protection(u32),
}

/// Builds request packets in empty frames, one after the other. A function of its own: its loop has the registers for
/// itself.
#[inline(never)]
pub(super) fn build_requests(
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
pub(super) fn stamp(template: &Template, frames: &mut [Frame]) {
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
    if let Some((pass, place)) = locate(memory, qp, segment)? {
        return Ok((write_at_once(pass, &qp.template, &header, place, buffer), true));
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

/// Where the payload of a segment is, and what writes its packet, if that is a [`LongPacket`].
#[inline(always)]
fn locate(
    memory: Memory<'_>,
    qp: &Qp,
    segment: &Segment<'_>,
) -> Result<Option<(OnePass, Place)>, LocalProtection> {
    let Some(pass) = LongPacket::pass(&qp.template, segment.len) else { return Ok(None) };
    let place = memory.locate(segment.slot, segment.offset as usize, segment.len as usize)?;
    Ok(place.map(|place| (pass, place)))
}

/// Writes a [`LongPacket`] to a buffer that no others are built beside. Returns its length.
#[inline(always)]
fn write_at_once(
    pass: OnePass,
    template: &Template,
    header: &Header,
    place: Place,
    buffer: &mut [u8],
) -> usize {
    let mut long = LongPacket::default();
    let len = long.lay_out(pass, template, header, place);
    long.write(template, buffer);
    len
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

/// Builds a READ response whose bytes are at a place in a buffer. Returns its length, and whether it is finished, as [`fill`].
pub(super) fn fill_response(
    template: &Template,
    header: &Header,
    place: Place,
    buffer: &mut [u8],
) -> (usize, bool) {
    match LongPacket::pass(template, header.payload_len) {
        Some(pass) => (write_at_once(pass, template, header, place, buffer), true),
        None => (respond_in_steps(template, header, place, buffer), false),
    }
}

/// Builds a READ response whose bytes are at a place in a buffer; [`Template::stamp`] finishes it. Returns its length.
fn respond_in_steps(template: &Template, header: &Header, place: Place, buffer: &mut [u8]) -> usize {
    let (at, len) = (template.begin(buffer, header), header.payload_len as usize);
    copy::read(place, &mut buffer[at..at + len]);
    template.close(buffer, at, len)
}
