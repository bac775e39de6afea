//! Packets that arrived before a missing one: a queue pair holds them until it arrives. Requests and responses have separate sequences.

use std::collections::VecDeque;

use crate::config::{HELD_FOR, HELD_PER_QP};
use crate::id::Psn;
use crate::port::Frame;
use crate::proto::responder::Gap;
use crate::proto::rtt::Rtt;
use crate::time::Instant;

/// Held request packets or held response packets of a queue pair. The frames passed every check that does not depend on the order: ICRC,
/// addresses, VLAN, P_Key.
#[derive(Debug)]
pub(super) struct Held {
    /// In ascending order, all behind the gap.
    frames: VecDeque<(Psn, Frame)>,
    gap: Gap,
    /// Sequence number of the missing packet.
    expected: Psn,
    /// The peer was notified of the gap (NAK or retry), so it also retransmits what a later gap lacks.
    notified: bool,
    /// When the last packet from behind the gap arrived.
    latest: Instant,
}

impl Held {
    /// Starts with a gap that is seen now: packet `expected` is missing.
    pub fn new(now: Instant, expected: Psn) -> Self {
        Self { frames: VecDeque::new(), gap: Gap::new(now), expected, notified: false, latest: now }
    }

    /// Number of held packets.
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Notes a packet from behind the gap, whether it is held or not.
    pub fn note_packet(&mut self, now: Instant) {
        self.gap.note_packet(now);
        self.latest = now;
    }

    /// Packet `expected` is missing now. If another one was missing before, this is a new gap. A peer that was notified of the old gap
    /// retransmits everything behind it, so packets that are already here are no evidence of the new gap.
    pub fn follow(&mut self, now: Instant, expected: Psn) {
        if expected != self.expected {
            let behind = if self.notified { 0 } else { self.len() };
            (self.gap, self.expected, self.notified) = (self.gap.next(now, behind), expected, false);
        }
    }

    /// Records that the peer is notified of the gap.
    pub fn notify(&mut self) {
        self.notified = true;
    }

    /// Whether the peer was notified of the gap.
    pub fn is_notified(&self) -> bool {
        self.notified
    }

    /// Whether another packet can be held.
    pub fn has_room(&self) -> bool {
        self.len() < HELD_PER_QP
    }

    /// Whether the packet with this sequence number is held.
    pub fn has(&self, psn: Psn) -> bool {
        self.frames.iter().any(|(other, _)| *other == psn)
    }

    /// Holds a packet. Replaces a packet with the same number and returns the old one: a retransmitted packet may request an
    /// acknowledgement where the first did not.
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

    /// Takes the packet with this sequence number, if it is held. Drops packets before it, and returns their number.
    pub fn take(&mut self, psn: Psn) -> (Option<Frame>, u32) {
        let before = self.frames.partition_point(|(other, _)| other.diff(psn) < 0);
        self.frames.drain(..before);
        let is_next = self.frames.front().is_some_and(|(other, _)| *other == psn);
        let found = if is_next { self.frames.pop_front() } else { None };
        (found.map(|(_, frame)| frame), before as u32)
    }

    /// Takes the packet that comes first behind the gap.
    pub fn pop(&mut self) -> Option<(Psn, Frame)> {
        self.frames.pop_front()
    }

    /// When the peer is to be notified of the gap. With `notified` set, when the held packets are dropped, unless another packet arrives.
    pub fn due(&self, rtt: Rtt, notified: bool) -> Instant {
        if notified { self.latest.after(HELD_FOR) } else { self.gap.due(rtt) }
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
            assert!(held.has_room());
            held.put(expected.add(n), frame(0));
        }
        assert!(!held.has_room() && held.has(expected.add(HELD_PER_QP)) && !held.has(expected));
    }
}
