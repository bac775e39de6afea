//! The packet writer: takes packets one by one from a source, the requester or the responder of a queue pair, and writes each to a frame,
//! or into the port's own memory.
//!
//! Long packets are written in one pass that copies the payload and computes the ICRC. Others are written step by step, and get their
//! ICRC a little later, when their bytes have left the store buffer. A series of short packets of one kind is written by the source
//! itself: [`Source::write_series`].

use arrayvec::ArrayVec;

use crate::config::{LONG_PACKET, QP_TX_BUDGET};
use crate::mem::GrantedRange;
use crate::port::{Build, Frame};
use crate::proto::wqe::Granule;
use crate::shard::copy::{self, LocalProtection, LongPacket, Memory};
use crate::wire::icrc::OnePass;
use crate::wire::{Header, Template};

/// A source of packets.
pub(in crate::shard) trait Source {
    /// Why no further packet can be built.
    type End;

    /// Passes the next packet to `write`, with the template of its headers.
    fn next<R>(
        &mut self,
        ip_id: &mut u16,
        write: impl FnOnce(&Template, &Draft<'_>) -> Result<R, LocalProtection>,
    ) -> Result<R, Self::End>;

    /// Writes a series of short packets of one kind to frames, if the next packets form one; the caller stamps them with their ICRC.
    fn write_series(&mut self, ip_id: &mut u16, frames: &mut [Frame]) -> Option<WrittenSeries<Self::End>>;

    /// The template of the packets' headers.
    fn template(&self) -> &Template;
}

/// The result of writing a series of short packets of one kind.
pub(in crate::shard) struct WrittenSeries<E> {
    pub frames: usize,
    pub bytes: u64,
    pub end: Option<E>,
}

/// A packet to be written.
pub(in crate::shard) struct Draft<'a> {
    pub header: Header,
    pub payload: Payload<'a>,
}

/// The place of a packet's payload.
pub(in crate::shard) enum Payload<'a> {
    /// In a memory range that was looked up in this turn.
    At(GrantedRange),
    /// In the message of the send request in this slot, from byte `offset` on.
    Message { memory: Memory<'a>, slot: &'a [Granule], offset: usize },
}

impl Draft<'_> {
    /// The one-pass writer of the packet and the range of its payload, if the packet is long and its payload contiguous.
    #[inline(always)]
    fn one_pass(&self, template: &Template) -> Result<Option<(OnePass, GrantedRange)>, LocalProtection> {
        let Some(pass) = LongPacket::pass(template, self.header.payload_len) else { return Ok(None) };
        let place = match self.payload {
            Payload::At(place) => Some(place),
            Payload::Message { memory, slot, offset } => {
                memory.locate(slot, offset, self.header.payload_len as usize)?
            }
        };
        Ok(place.filter(|place| place.is_direct()).map(|place| (pass, place)))
    }

    /// Writes the packet step by step; [`Template::stamp`] adds the ICRC. Returns its length in bytes.
    #[inline(always)]
    fn write_in_steps(&self, template: &Template, buffer: &mut [u8]) -> Result<usize, LocalProtection> {
        let len = self.header.payload_len as usize;
        let at = template.begin(buffer, &self.header);
        if len > 0 {
            let to = &mut buffer[at..at + len];
            match self.payload {
                Payload::At(place) => copy::read(place, to)?,
                Payload::Message { memory, slot, offset } => memory.fill(slot, offset, to)?,
            }
        }
        Ok(template.close(buffer, at, len))
    }

    /// Writes the packet. Returns its length in bytes, and whether it is finished; otherwise [`Template::stamp`] adds the ICRC.
    #[inline(always)]
    fn write(&self, template: &Template, buffer: &mut [u8]) -> Result<(usize, bool), LocalProtection> {
        if let Some((pass, place)) = self.one_pass(template)? {
            let mut long = LongPacket::default();
            let len = long.lay_out(pass, template, &self.header, place);
            long.complete_head();
            long.write(template, buffer, core::ptr::null());
            return Ok((len, true));
        }
        Ok((self.write_in_steps(template, buffer)?, false))
    }

    /// Writes the packet to a frame, with its ICRC.
    #[inline(always)]
    pub fn write_frame(&self, template: &Template, frame: &mut Frame) -> Result<(), LocalProtection> {
        let (len, finished) = self.write(template, frame.buffer_mut())?;
        frame.set_len(len);
        if !finished {
            template.stamp(frame.data_mut());
        }
        Ok(())
    }
}

/// Totals of packets that were written together.
#[derive(Clone, Copy, Default)]
pub(in crate::shard) struct Built {
    pub frames: usize,
    pub bytes: u64,
    /// The last packet was long.
    pub long: bool,
    /// One of the packets was long.
    pub any_long: bool,
}

impl Built {
    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
        self.long = len >= LONG_PACKET;
        self.any_long |= self.long;
    }
}

/// Writes packets to frames until all frames are used or the source ends. A separate function, so that its loop has all registers.
#[inline(never)]
pub(in crate::shard) fn write_frames<S: Source>(
    source: &mut S,
    ip_id: &mut u16,
    frames: &mut [Frame],
) -> (Built, Option<S::End>) {
    let (mut built, mut stamped, mut end) = (Built::default(), 0, None);
    while built.frames < frames.len() {
        // A long packet is usually followed by another one.
        if !built.long
            && let Some(series) = source.write_series(ip_id, &mut frames[built.frames..])
        {
            built.frames += series.frames;
            built.bytes += series.bytes;
            if series.end.is_some() {
                end = series.end;
                break;
            }
            continue;
        }
        let frame = &mut frames[built.frames];
        let (len, finished) =
            match source.next(ip_id, |template, draft| draft.write(template, frame.buffer_mut())) {
                Ok(written) => written,
                Err(why) => {
                    end = Some(why);
                    break;
                }
            };
        frame.set_len(len);
        built.add(len);
        if built.long || finished {
            stamp(source.template(), &mut frames[stamped..built.frames - usize::from(finished)]);
            stamped = built.frames;
        }
    }
    stamp(source.template(), &mut frames[stamped..built.frames]);
    (built, end)
}

/// Adds the ICRC to packets of one queue pair.
#[inline]
fn stamp(template: &Template, frames: &mut [Frame]) {
    for frame in frames {
        template.stamp(frame.data_mut());
    }
}

/// Writes packets into the port's own memory. Long packets are laid out in [`build`](Build::build), and written in
/// [`finish`](Build::finish). The others get their ICRC at once, while they are in the nearest cache.
pub(in crate::shard) struct InPlace<'a, S: Source> {
    source: &'a mut S,
    ip_id: &'a mut u16,
    pub built: Built,
    pub end: Option<S::End>,
    long: ArrayVec<LongPacket, QP_TX_BUDGET>,
    /// Number of long packets whose heads are complete.
    complete: usize,
}

impl<'a, S: Source> InPlace<'a, S> {
    pub fn new(source: &'a mut S, ip_id: &'a mut u16) -> Self {
        Self { source, ip_id, built: Built::default(), end: None, long: ArrayVec::new(), complete: 0 }
    }
}

impl<S: Source> Build for InPlace<'_, S> {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.long.try_push(LongPacket::default()).ok()?;
        let long = self.long.last_mut()?;
        let written = self.source.next(self.ip_id, |template, draft| {
            Ok(match draft.one_pass(template)? {
                Some((pass, place)) => long.lay_out(pass, template, &draft.header, place),
                None => {
                    let len = draft.write_in_steps(template, buffer)?;
                    template.stamp(&mut buffer[..len]);
                    len
                }
            })
        });
        match written {
            Ok(len) => {
                self.built.add(len);
                Some(len)
            }
            Err(why) => {
                self.end = Some(why);
                None
            }
        }
    }

    fn finish(&mut self, i: usize, buffer: &mut [u8]) {
        // The heads of all packets are completed before the first one is written.
        for long in &mut self.long[self.complete..] {
            long.complete_head();
        }
        self.complete = self.long.len();
        let Some((long, behind)) = self.long.get(i..).and_then(<[_]>::split_first) else { return };
        // The payload of the next packet is fetched from memory while this one is copied.
        let ahead = behind.iter().find_map(|next| next.payload()).unwrap_or(core::ptr::null());
        long.write(self.source.template(), buffer, ahead);
    }
}

/// A packet source for tests.
#[cfg(test)]
pub(in crate::shard) mod source {
    use super::*;
    use crate::wire::{Aeth, Ext, Flow, Kind, Opcode, Position, Tail};

    /// A source of READ responses with payloads of these lengths.
    pub(in crate::shard) struct Responses<'a> {
        template: Template,
        memory: &'a [u8],
        lens: &'a [usize],
    }

    impl<'a> Responses<'a> {
        pub fn new(memory: &'a [u8], lens: &'a [usize]) -> Self {
            Self { template: Template::new(&Flow::default()), memory, lens }
        }
    }

    impl Source for Responses<'_> {
        type End = ();
        fn next<R>(
            &mut self,
            ip_id: &mut u16,
            write: impl FnOnce(&Template, &Draft<'_>) -> Result<R, LocalProtection>,
        ) -> Result<R, ()> {
            let (len, rest) = self.lens.split_first().ok_or(())?;
            self.lens = rest;
            *ip_id += 1;
            let header = Header {
                opcode: Opcode::rc(Kind::ReadResponse, Position::Only, Tail::None),
                ext: Ext::Aeth(Aeth::default()),
                payload_len: *len as u32,
                ip_id: *ip_id,
                ..Header::default()
            };
            let payload = Payload::At(GrantedRange::found(self.memory.as_ptr() as u64, *len as u64));
            write(&self.template, &Draft { header, payload }).map_err(|_| ())
        }
        fn write_series(&mut self, _: &mut u16, _: &mut [Frame]) -> Option<WrittenSeries<()>> {
            None
        }
        fn template(&self) -> &Template {
            &self.template
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::source::Responses;
    use super::*;
    use crate::port::HeapPool;

    // A packet is the same in a frame and in a port's memory, whatever its length and that of its neighbours.
    #[test]
    fn both_ways_to_write_write_the_same() {
        let memory: Vec<u8> = (0..4096u32).map(|n| (n * 7) as u8).collect();
        let lens = [0, 5, 64, 4096, 1024, 3, 1021, 2048, 960];
        let source = || Responses::new(&memory, &lens);
        let pool = HeapPool::new(16, 5000);
        let mut frames: Vec<Frame> = core::iter::from_fn(|| pool.alloc()).collect();
        let (built, end) = write_frames(&mut source(), &mut 0, &mut frames);
        assert_eq!((built.frames, end), (lens.len(), Some(())));
        assert_eq!(built.bytes, frames[..lens.len()].iter().map(|frame| frame.len() as u64).sum::<u64>());

        let (mut from, mut ip_id) = (source(), 0);
        let mut writer = InPlace::new(&mut from, &mut ip_id);
        let mut slots: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut buffer = vec![0xaa; 5000];
        while let Some(len) = writer.build(&mut buffer) {
            slots.push((core::mem::replace(&mut buffer, vec![0xaa; 5000]), len));
        }
        slots.iter_mut().enumerate().for_each(|(i, (buffer, _))| writer.finish(i, buffer));
        assert_eq!((writer.built.bytes, writer.end, slots.len()), (built.bytes, Some(()), lens.len()));
        for (frame, (buffer, len)) in frames.iter().zip(&slots) {
            assert!(frame.data() == &buffer[..*len], "{len} bytes");
        }
    }
}
