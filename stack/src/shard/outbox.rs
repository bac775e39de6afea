//! What leaves: frames on their way to the port, answers before requests, and empty ones to build packets in.
//!
//! Owns the port's queue and never waits for it: what a port does not take stays for the next turn, and counts as lost on the
//! link when that was down for too long.

use std::collections::VecDeque;

use super::counters::{Counter, Counters};
use super::due::Due;
use super::qp::Qp;
use super::shared::Shared;
use super::tx::writer::{Built, InPlace, Source, write_frames};
use crate::config::{TX_BURST, TX_STALL};
use crate::port::{Frame, PortQueue, TxBurst};
use crate::time::Instant;
use crate::wire::Discard;

/// Frames of one kind on their way to the port, oldest first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub frames: TxBurst,
    /// Since when the port has refused every frame; `None` while it takes some.
    refused_since: Option<Instant>,
    /// Frames that went, ever: the port took them, or they were lost on a link that was down too long.
    gone: u64,
}

/// Unreliable work requests that are complete when frames of the request backlog have gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// The value of [`Backlog::gone`] once their last frame has gone.
    mark: u64,
    pub slot: u32,
    pub epoch: u32,
    /// Behind the last of them.
    pub seq: u32,
}

/// Kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Traffic {
    Answers,
    Requests,
}

/// Why [`Outbox::write`] wrote no more packets.
pub(super) enum Ended<E> {
    /// As many as it was asked for are written.
    Written,
    /// The source has no other, for this reason.
    Source(E),
    /// The port's memory has no room now.
    Full,
    /// There is no empty frame.
    NoBuffer,
}

pub(super) struct Outbox {
    /// The port's queue; frames are received from it, too.
    pub queue: Box<dyn PortQueue>,
    /// Acknowledgements and responses: completions wait for these.
    pub answers: Backlog,
    /// Requests, and what the IP host sends.
    pub requests: Backlog,
    /// IPv4 identification of the packet built last.
    pub ip_id: u16,
    /// An empty frame that was not needed.
    spare: Option<Frame>,
    /// Frames of this turn that left before its end: built in the port's own memory, or ahead of one that was.
    sent_early: usize,
    /// Unreliable work requests whose frames wait for the port, oldest first.
    leaving: VecDeque<Leaving>,
}

impl Outbox {
    pub fn new(queue: Box<dyn PortQueue>) -> Self {
        Self {
            queue,
            answers: Backlog::default(),
            requests: Backlog::default(),
            ip_id: 0,
            spare: None,
            sent_early: 0,
            leaving: VecDeque::new(),
        }
    }

    /// The next IPv4 identification.
    #[inline]
    pub fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// Frames that wait for the port.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.answers.frames.len() + self.requests.frames.len()
    }

    /// Whether frames wait for the port.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.backlog() > 0
    }

    /// When they can go; without a link, when they are given up.
    pub fn due(&self, now: Instant, has_link: bool) -> Due {
        match (self.has_more(), has_link) {
            (false, _) => Due::Never,
            (true, true) => Due::Now,
            (true, false) => Due::At(now.after(TX_STALL)),
        }
    }

    /// An empty frame to build a packet in.
    #[inline]
    pub fn take_frame(&mut self) -> Option<Frame> {
        match self.spare.take() {
            Some(frame) => Some(frame),
            None => self.queue.alloc(),
        }
    }

    /// A frame that was not needed after all.
    #[inline]
    pub fn keep_frame(&mut self, frame: Frame) {
        self.spare = Some(frame); // an older one goes back to its pool
    }

    /// Takes an empty frame in advance, so that a message that comes alone need not wait for one.
    #[inline]
    pub fn prepare_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = self.queue.alloc();
        }
    }

    /// The backlog of a kind of frames.
    #[inline(always)]
    pub fn of(&mut self, traffic: Traffic) -> &mut Backlog {
        match traffic {
            Traffic::Answers => &mut self.answers,
            Traffic::Requests => &mut self.requests,
        }
    }

    /// Writes packets of a source: up to `in_place` in the port's own memory, if it has some and first takes all frames that
    /// wait; else up to `next` in frames, behind those that wait.
    #[inline(always)]
    pub fn write<S: Source>(
        &mut self,
        traffic: Traffic,
        in_place: Option<usize>,
        next: usize,
        source: &mut S,
        now: Instant,
        counters: &Counters,
    ) -> (Built, Ended<S::End>) {
        if let Some(most) = in_place
            && self.is_flushed(now, counters)
            && let Some(written) = self.write_in_place(most, source, counters)
        {
            return written;
        }
        self.write_to_frames(traffic, next, source)
    }

    /// Hands waiting frames to the port. Whether none waits any more.
    #[inline(always)]
    fn is_flushed(&mut self, now: Instant, counters: &Counters) -> bool {
        if self.backlog() > 0 {
            self.sent_early += self.flush(now, counters);
        }
        self.backlog() == 0
    }

    /// Writes packets in the port's own memory, each finished while it is in the nearest cache: they are on their way then.
    /// `None` where the port has no such memory.
    #[inline(never)]
    fn write_in_place<S: Source>(
        &mut self,
        most: usize,
        source: &mut S,
        counters: &Counters,
    ) -> Option<(Built, Ended<S::End>)> {
        let mut writer = InPlace::new(source, &mut self.ip_id);
        let sent = self.queue.build_burst(most, &mut writer)?;
        let InPlace { built, end, .. } = writer;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        counters.add(Counter::TxFrames, built.frames as u64);
        counters.add(Counter::TxBytes, built.bytes);
        self.sent_early += built.frames;
        let ended = match end {
            Some(end) => Ended::Source(end),
            None if built.frames < most => Ended::Full,
            None => Ended::Written,
        };
        Some((built, ended))
    }

    /// Writes packets to frames where they wait for the port.
    #[inline(always)]
    fn write_to_frames<S: Source>(
        &mut self,
        traffic: Traffic,
        n: usize,
        source: &mut S,
    ) -> (Built, Ended<S::End>) {
        let Self { queue, answers, requests, spare, ip_id, .. } = self;
        let frames = match traffic {
            Traffic::Answers => &mut answers.frames,
            Traffic::Requests => &mut requests.frames,
        };
        let base = frames.len();
        if let Some(frame) = spare.take() {
            frames.push(frame);
        }
        let missing = n - (frames.len() - base);
        if missing > 0 {
            queue.alloc_burst(frames, missing);
        }
        if frames.len() == base {
            return (Built::default(), Ended::NoBuffer);
        }
        let (built, end) = write_frames(source, ip_id, &mut frames[base..]);
        while frames.len() > base + built.frames
            && let Some(frame) = frames.pop()
        {
            *spare = Some(frame); // an older one goes back to its pool
        }
        (built, end.map_or(Ended::Written, Ended::Source))
    }

    /// Frames that left since the last call other than by [`flush`](Self::flush).
    #[inline]
    pub fn take_sent_early(&mut self) -> usize {
        core::mem::take(&mut self.sent_early)
    }

    /// Hands waiting frames to the port, answers first. Returns how many it took.
    #[inline]
    pub fn flush(&mut self, now: Instant, counters: &Counters) -> usize {
        let mut sent = 0;
        if !self.answers.frames.is_empty() {
            sent += self.answers.flush(&mut *self.queue, now, counters);
        }
        if self.answers.frames.is_empty() && !self.requests.frames.is_empty() {
            sent += self.requests.flush(&mut *self.queue, now, counters);
        }
        sent
    }

    /// Unreliable work requests before `seq` are complete when the frames that wait now have gone.
    #[inline]
    pub fn note_leaving(&mut self, qp: &Qp, seq: u32) {
        let mark = self.requests.gone + self.requests.frames.len() as u64;
        self.leaving.push_back(Leaving { mark, slot: qp.slot, epoch: qp.epoch, seq });
    }

    /// The `n` frames that were built last go to a shard of this device.
    #[cold]
    pub fn send_inside(
        &mut self,
        traffic: Traffic,
        n: usize,
        shard: usize,
        shared: &Shared,
        counters: &Counters,
    ) {
        let frames = &mut self.of(traffic).frames;
        for frame in frames.drain(frames.len() - n..) {
            counters.add(Counter::ToSelf, 1);
            shared.hand_over(shard, frame, counters);
        }
    }

    /// Whether unreliable work requests wait for their frames to leave.
    #[inline]
    pub fn any_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The oldest unreliable work requests whose frames have gone, once.
    pub fn next_gone(&mut self) -> Option<Leaving> {
        let gone = self.leaving.front().is_some_and(|leaving| leaving.mark <= self.requests.gone);
        if gone { self.leaving.pop_front() } else { None }
    }

    /// Room for what the IP host sends unasked: only while half of the requests' backlog is free.
    pub fn has_room_for_host(&self) -> bool {
        self.requests.frames.len() < TX_BURST / 2
    }
}

impl Backlog {
    /// Hands frames to the port. Returns how many it took.
    #[inline]
    fn flush(&mut self, queue: &mut dyn PortQueue, now: Instant, counters: &Counters) -> usize {
        let bytes: usize = self.frames.iter().map(Frame::len).sum();
        let sent = queue.tx_burst(&mut self.frames);
        let left: usize = self.frames.iter().map(Frame::len).sum();
        self.gone += sent as u64;
        if sent > 0 {
            counters.add(Counter::TxFrames, sent as u64);
            counters.add(Counter::TxBytes, (bytes - left) as u64);
            self.refused_since = None;
        } else {
            // A link that is down keeps its frames for a moment; then they count as lost on it.
            let since = *self.refused_since.get_or_insert(now);
            if now.nanos_since(since) >= TX_STALL.as_nanos() as u64 {
                counters.discard(Discard::TxStalled, self.frames.len() as u64);
                self.gone += self.frames.len() as u64;
                self.frames.clear();
                self.refused_since = None;
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::limited::Limited;
    use crate::shard::tx::writer::source::Responses;

    fn outbox(takes: usize) -> Outbox {
        let mut outbox = Outbox::new(Box::new(Limited { takes, buffers: usize::MAX }));
        for _ in 0..2 {
            let (answer, request) = (outbox.take_frame(), outbox.take_frame());
            outbox.answers.frames.extend(answer);
            outbox.requests.frames.extend(request);
        }
        outbox
    }

    #[test]
    fn requests_leave_when_all_answers_have() {
        let (mut out, counters) = (outbox(1), Counters::default());
        assert_eq!(out.flush(Instant::ZERO, &counters), 1);
        assert_eq!((out.answers.frames.len(), out.requests.frames.len(), out.backlog()), (1, 2, 3));
        let mut out = outbox(3);
        assert_eq!(out.flush(Instant::ZERO, &counters), 3);
        assert_eq!((out.answers.frames.len(), out.requests.frames.len()), (0, 1));
    }

    // A link that is down keeps its frames until they are late, and then they are lost on it, and counted.
    #[test]
    fn frames_that_no_port_takes_are_dropped_by_name() {
        let (mut out, counters) = (outbox(0), Counters::default());
        let after = |nanos| Instant::from_nanos(nanos);
        let stall = TX_STALL.as_nanos() as u64;
        for now in [5, 5 + stall - 1] {
            assert_eq!((out.flush(after(now), &counters), out.backlog()), (0, 4));
        }
        assert_eq!((out.flush(after(5 + stall), &counters), out.answers.frames.len()), (0, 0));
        assert_eq!(counters.snapshot().discarded(Discard::TxStalled), 2);
        assert_eq!(out.requests.frames.len(), 2, "their time begins when it is their turn");
    }

    // Packets are written behind the frames that wait; an empty frame that was not needed is used next.
    #[test]
    fn packets_are_written_where_they_wait() {
        let mut out = outbox(0);
        let (built, ended) = out.write(
            Traffic::Answers,
            Some(4),
            3,
            &mut Responses::new(&[], &[0, 0]),
            Instant::ZERO,
            &Counters::default(),
        );
        assert_eq!(built.frames, 2);
        assert!(matches!(ended, Ended::Source(())));
        assert_eq!((out.answers.frames.len(), out.requests.frames.len(), out.ip_id), (4, 2, 2));
        assert!(out.spare.is_some());
        let (built, ended) = out.write(
            Traffic::Requests,
            None,
            1,
            &mut Responses::new(&[], &[0, 0]),
            Instant::ZERO,
            &Counters::default(),
        );
        assert_eq!(built.frames, 1);
        assert!(matches!(ended, Ended::Written) && out.spare.is_none());
        assert_eq!(out.requests.frames[2].len() as u64, built.bytes);
    }
}
