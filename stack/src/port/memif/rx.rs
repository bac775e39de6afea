//! The receiving end of a ring.

use super::ring::{Attention, NEXT, Ring};
use super::shm::BLOCK;
use super::slots::{Buffers, Impossible, SHORT_AHEAD};
use crate::config::RX_BURST_BYTES;
use crate::crc::{CopyFn, Sum};
use crate::port::frame::{Frame, RxBurst};
use crate::port::stock::Stock;

use crate::sync::{asymmetric, prefetch};
use core::ptr;

/// Frames up to this length are copied without computing their CRC: checking their ICRC afterwards is faster.
const SUM_ABOVE: u32 = 256;

/// The receiving end of a ring.
pub struct Rx {
    ring: Ring,
    buffers: Buffers,
    /// Copies long frames and computes their CRC on the way.
    copy: Option<CopyFn>,
    /// Bytes of the longest frame.
    max_frame: u32,
    /// The next slot to receive.
    next: u16,
    /// The first slot that was not returned to the sender yet.
    given: u16,
    /// Offset of the next slot's buffer, set when the ring was found empty, for a prefetch.
    ahead: Option<u32>,
    /// The attention that is published to the sender now, and the one to publish while this end is awake.
    attention: Attention,
    awake: Attention,
}

/// The result of a burst.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Received {
    /// Frames received.
    pub frames: usize,
    /// Bytes in these frames.
    pub bytes: usize,
    /// Frames dropped because they were too long, outside of the region, or incomplete.
    pub dropped: usize,
}

impl Rx {
    /// The receiving end of an unused ring.
    pub fn new(ring: Ring, buffers: Buffers, copy: Option<CopyFn>, max_frame: usize) -> Self {
        let awake = Attention::Polled;
        ring.set_attention(awake);
        // A client has empty slots to pass to the server; a server has none.
        let given = if buffers.are_ours() { 0u16.wrapping_sub(ring.slots()) } else { 0 };
        let max_frame = max_frame as u32;
        Self { ring, buffers, copy, max_frame, next: 0, given, ahead: None, attention: awake, awake }
    }

    /// Returns the slots of received frames to the sender. Not called right after a burst: later stores would wait for the cache line from
    /// the sender's core, and answers may have to be sent first.
    #[inline]
    pub fn give_back(&mut self) {
        if self.given == self.next {
            return;
        }
        if let Buffers::Ours { size, .. } = self.buffers {
            // The client passes empty buffers to the server.
            while self.given != self.next {
                self.ring.describe(self.given, self.ring.slot(self.given), size, 0);
                self.given = self.given.wrapping_add(1);
            }
            self.ring.set_head(self.next.wrapping_add(self.ring.slots()));
        } else {
            self.given = self.next;
            self.ring.set_tail(self.next);
        }
    }

    /// Receives frames into buffers of `stock`. A burst ends after [`RX_BURST_BYTES`].
    ///
    /// # Errors
    /// The sender set its index to an impossible value: more slots than the ring has.
    #[inline]
    pub fn burst(&mut self, out: &mut RxBurst, stock: &mut Stock) -> Result<Received, Impossible> {
        self.burst_of(usize::MAX, out, stock)
    }

    /// As [`burst`](Self::burst), of at most `most` frames.
    ///
    /// # Errors
    /// As [`burst`](Self::burst).
    #[inline(always)]
    pub fn burst_of(
        &mut self,
        most: usize,
        out: &mut RxBurst,
        stock: &mut Stock,
    ) -> Result<Received, Impossible> {
        self.give_back();
        if let Some(ahead) = self.ahead {
            // A single frame occupies three or four cache lines of the sender's core, each of which leads to the next. The prefetches fetch
            // them in parallel. While nothing is sent the lines stay in this core's cache, and the prefetches cost nothing.
            let ahead = self.ring.address(ahead);
            self.ring.prefetch_slot(self.next);
            prefetch::near(ahead);
            prefetch::near(ahead.wrapping_add(prefetch::LINE));
        }
        let slots = self.published();
        if slots == 0 {
            if self.ahead.is_none() {
                self.ahead = Some(self.buffers.offset(&self.ring, self.next));
            }
            return Ok(Received::default());
        }
        if slots > self.ring.slots() {
            return Err(Impossible);
        }
        self.ahead = None;
        if self.attention != self.awake {
            self.disarm();
        }
        Ok(self.receive(slots, most, out, stock))
    }

    /// Slots that the sender has filled.
    #[inline(always)]
    fn published(&self) -> u16 {
        let published = if self.buffers.are_ours() { self.ring.tail() } else { self.ring.head() };
        published.wrapping_sub(self.next)
    }

    /// Filled slots that were not received yet; 0 if the sender's index is impossible.
    pub fn unread(&self) -> u16 {
        let slots = self.published();
        if slots > self.ring.slots() { 0 } else { slots }
    }

    /// Requests an event from the sender for the next frame. Returns `false` if the sender has sent already.
    pub fn arm(&mut self) -> bool {
        self.ask_for_event();
        asymmetric::heavy_between_processes();
        self.waits()
    }

    /// The first half of [`arm`](Self::arm). A sender stores its index, then loads the flag. The caller issues a fence between this and
    /// [`waits`](Self::waits), one for all rings.
    pub fn ask_for_event(&mut self) {
        self.give_back();
        self.pay(Attention::Asleep);
    }

    /// The second half: whether the ring is still empty. If not, withdraws the request.
    pub fn waits(&mut self) -> bool {
        let empty = self.published() == 0;
        if !empty {
            self.disarm();
        }
        empty
    }

    #[cold]
    fn disarm(&mut self) {
        self.pay(self.awake);
    }

    /// Sets and publishes when this end reads the ring while it is awake.
    pub fn look_when(&mut self, attention: Attention) {
        self.awake = attention;
        self.pay(attention);
    }

    fn pay(&mut self, attention: Attention) {
        if self.attention != attention {
            self.ring.set_attention(attention);
            self.attention = attention;
        }
    }

    fn receive(&mut self, mut slots: u16, most: usize, out: &mut RxBurst, stock: &mut Stock) -> Received {
        let mut got = Received::default();
        let mut n = usize::from(slots).min(out.remaining_capacity()).min(most);
        // Frames of a burst mostly have one length.
        let first = self.ring.slot(self.next).length;
        if n > 1 {
            n = n.min(RX_BURST_BYTES as usize / first.max(1) as usize + 1);
        }
        let brief = first <= SUM_ABOVE;
        if brief {
            for i in 0..(n as u16).min(SHORT_AHEAD) {
                self.prefetch_short(self.next.wrapping_add(i));
            }
        }
        // Dropped frames count, too: a flood of invalid frames must not keep the caller here.
        while got.frames + got.dropped < n && slots > 0 {
            let Some(mut frame) = stock.take() else { break };
            if brief && slots > SHORT_AHEAD {
                self.prefetch_short(self.next.wrapping_add(SHORT_AHEAD));
            }
            let whole = match brief.then(|| self.copy_short(&mut frame)).flatten() {
                Some(len) => {
                    self.next = self.next.wrapping_add(1);
                    slots -= 1;
                    frame.set_len(len);
                    true
                }
                None => self.copy_frame(&mut slots, &mut frame),
            };
            if whole {
                got.bytes += frame.len();
                got.frames += 1;
                out.push(frame);
            } else {
                got.dropped += 1;
                stock.put(frame);
            }
        }
        got
    }

    /// Prefetches a frame, if it is short.
    #[inline(always)]
    fn prefetch_short(&self, slot: u16) {
        let len = self.ring.slot(slot).length;
        if len <= SUM_ABOVE
            && let Some(part) = self.ring.part(self.buffers.offset(&self.ring, slot), len)
        {
            part.prefetch();
        }
    }

    /// Copies the frame in the next slot, if it is short and in one slot, and returns its length. Copies whole blocks, so also some bytes
    /// after the frame.
    #[inline(always)]
    fn copy_short(&self, frame: &mut Frame) -> Option<usize> {
        let slot = self.ring.slot(self.next);
        if slot.length.wrapping_sub(1) >= SUM_ABOVE.min(self.max_frame) || slot.flags & NEXT != 0 {
            return None;
        }
        let whole = slot.length.next_multiple_of(BLOCK as u32);
        let part = self.buffers.part(&self.ring, self.next, slot, whole)?;
        part.read_blocks(frame.buffer_mut().get_mut(..whole as usize)?);
        Some(slot.length as usize)
    }

    /// Copies the frame that begins in the next slot and may continue in the following ones. `slots`: filled slots. Returns `false` if the
    /// frame is too long, outside of the region, empty, or incomplete.
    fn copy_frame(&mut self, slots: &mut u16, frame: &mut Frame) -> bool {
        let (mut fits, mut len, mut sum): (bool, u32, Option<Sum>) = (true, 0, None);
        loop {
            let slot = self.ring.slot(self.next);
            let part = self.buffers.part(&self.ring, self.next, slot, slot.length);
            let more = slot.flags & NEXT != 0;
            let after = self.next.wrapping_add(1);
            let part = part.filter(|_| fits && slot.length <= self.max_frame - len);
            match part {
                Some(part) => {
                    let ahead = match *slots {
                        ..2 => ptr::null(),
                        _ => self.ring.address(self.buffers.offset(&self.ring, after)),
                    };
                    let copy = self.copy.filter(|_| slot.length > SUM_ABOVE);
                    let to = &mut frame.buffer_mut()[len as usize..];
                    // The CRC of a frame in several pieces is not computed.
                    let copied = part.read(copy, to, ahead);
                    sum = if len == 0 && !more { copied } else { None };
                    len += slot.length;
                }
                None => fits = false,
            }
            self.next = after;
            *slots -= 1;
            if !more {
                break;
            }
            if *slots == 0 {
                fits = false;
                break;
            }
        }
        frame.set_len(len as usize);
        frame.set_sum(sum);
        fits && len > 0
    }
}
