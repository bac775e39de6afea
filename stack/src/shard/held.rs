//! Packets that came before one that is missing: a queue pair holds them until that is there. Requests and responses have an order each.

use std::collections::VecDeque;

use crate::config::{HELD_FOR, HELD_PER_QP};
use crate::id::Psn;
use crate::port::Frame;
use crate::proto::responder::Gap;
use crate::proto::rtt::Rtt;
use crate::time::Instant;

/// What a queue pair holds of its requests, or of its responses. The frames passed every check that needs no order: ICRC, addresses, VLAN, P_Key.
#[derive(Debug)]
pub(super) struct Held {
    /// Ascending, all behind the gap.
    frames: VecDeque<(Psn, Frame)>,
    gap: Gap,
    /// What is missing.
    expected: Psn,
    /// The peer was told, so that what is behind the next gap too is on its way.
    told: bool,
    /// When the last packet came.
    latest: Instant,
}

impl Held {
    /// A gap is seen now: this packet is missing.
    pub fn new(now: Instant, expected: Psn) -> Self {
        Self { frames: VecDeque::new(), gap: Gap::new(now), expected, told: false, latest: now }
    }

    /// Packets that are held.
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// A packet came from behind the gap, whether it is held or not.
    pub fn pass(&mut self, now: Instant) {
        self.gap.pass(now);
        self.latest = now;
    }

    /// This packet is missing now: if it is another one than before, so is the gap. A peer that was told of the last one sends
    /// everything behind that again, so packets that are here already say nothing of this one.
    pub fn follow(&mut self, now: Instant, expected: Psn) {
        if expected != self.expected {
            let behind = if self.told { 0 } else { self.len() };
            (self.gap, self.expected, self.told) = (self.gap.next(now, behind), expected, false);
        }
    }

    /// The peer is told of the gap.
    pub fn tell(&mut self) {
        self.told = true;
    }

    /// Whether it was told.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Whether one more packet can be held.
    pub fn has_place(&self) -> bool {
        self.len() < HELD_PER_QP
    }

    /// Whether a packet with this number is held.
    pub fn has(&self, psn: Psn) -> bool {
        self.frames.iter().any(|(other, _)| *other == psn)
    }

    /// Holds a packet. One with the same number is dropped and returned: the requester may have sent it again because it wants
    /// something else to be acknowledged.
    pub fn put(&mut self, psn: Psn, frame: Frame) -> Option<Frame> {
        let at = self.frames.partition_point(|(other, _)| other.diff(psn) < 0);
        match self.frames.get_mut(at) {
            Some((other, before)) if *other == psn => Some(core::mem::replace(before, frame)),
            _ => {
                self.frames.insert(at, (psn, frame));
                None
            }
        }
    }

    /// The packet with this number, if it is held, and how many before it were dropped.
    pub fn take(&mut self, psn: Psn) -> (Option<Frame>, u32) {
        let before = self.frames.partition_point(|(other, _)| other.diff(psn) < 0);
        self.frames.drain(..before);
        let is_next = self.frames.front().is_some_and(|(other, _)| *other == psn);
        let found = if is_next { self.frames.pop_front() } else { None };
        (found.map(|(_, frame)| frame), before as u32)
    }

    /// The packet behind the gap that comes first.
    pub fn pop(&mut self) -> Option<(Psn, Frame)> {
        self.frames.pop_front()
    }

    /// When the peer is to be told of the gap; if it was (`told`), when what is held is dropped, unless another packet comes.
    pub fn due(&self, rtt: Rtt, told: bool) -> Instant {
        if told { self.latest.after(HELD_FOR) } else { self.gap.due(rtt) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn frame(byte: u8) -> Frame {
        Frame::from_vec(vec![byte])
    }

    #[test]
    fn what_is_held_comes_in_order() {
        let first = Psn::new(0xff_fffe);
        let mut held = Held::new(Instant::ZERO, first);
        for n in [3, 1, 4] {
            assert!(held.put(first.add(n), frame(n as u8)).is_none());
        }
        assert_eq!(
            held.put(first.add(4), frame(5)).map(|frame| frame.data()[0]),
            Some(4),
            "the newer one counts"
        );
        assert_eq!(held.len(), 3);
        let mut take = |n| {
            let (frame, dropped) = held.take(first.add(n));
            (frame.map(|frame| frame.data()[0]), dropped)
        };
        assert_eq!([take(0), take(1), take(2)], [(None, 0), (Some(1), 0), (None, 0)]);
        assert_eq!(take(4), (Some(5), 1), "the one before it is dropped");
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn there_is_an_end_to_what_is_held() {
        let expected = Psn::new(0xff_fff0);
        let mut held = Held::new(Instant::ZERO, expected);
        for n in 1..=HELD_PER_QP {
            assert!(held.has_place());
            held.put(expected.add(n), frame(0));
        }
        assert!(!held.has_place() && held.has(expected.add(HELD_PER_QP)) && !held.has(expected));
    }
}
