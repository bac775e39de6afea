//! The identifications of the IPv4 packets of a connection's peer, over a port that does not see them.
//!
//! The ICRC covers the identification and the flags beside it, which a UDP socket does not show. So that port computes, from the rest
//! of the packet, those with which the ICRC is right. If the packet has an error they come out at random, and for two packets in
//! 65 536 the flags are such as an IPv4 header may have. Most hosts count their packets: there an identification that is not near those
//! of the packets before tells of an error, too. A host that does not count, or that counts the packets of many connections
//! together, is recognised, and judged by the flags alone.
//!
//! What is near is known from packets that the queue pair accepted: those moved it on. Others may come from anybody who knows its
//! number, and move nothing here.

use crate::time::Instant;

/// Identifications of packets in a row are this near each other where a host counts for one connection, or for some that take turns:
/// packets overtake each other, and others are sent between two of ours.
const NEAR: u16 = 64;
/// One that is further than this from the last tells of an error, if all before it were near.
const FAR: u16 = 512;
/// A host has one counter for all that it sends to us, to whichever connection: it may have moved by so many in a second.
const PER_SECOND: u64 = 1_000_000;
/// A sender that has the kernel take its messages apart (this stack, too) numbers the parts of each from 0.
const SEGMENTS: u16 = 64;
/// So many packets in a row near each other show that the counter is this connection's. Less may be what it sends in its turn, among
/// hundreds (Linux soft-RoCE: 128 packets).
const SURE: u8 = 255;
/// So many packets far from the counter, and none that is accepted between them, show that the host counts anew.
const MISSES: u8 = 3;

/// What a packet is taken for, by its identification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judgement {
    /// It fits the peer's counter: the ICRC is right.
    Good,
    /// There is no counter to compare it with, not yet or not any more: the packet is let in, and counted (`IcrcWeak`).
    Weak,
    /// It is far from the peer's counter: the ICRC is taken for wrong, and the packet dropped (`BadIcrc`).
    Bad,
}

/// Whether the identification of a packet of no connection, with nothing to compare it with, tells that it is right.
pub(super) fn is_small(identification: u16) -> bool {
    identification < SEGMENTS
}

/// Follows the counter from which a connection's peer takes its identifications.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpIdTracker {
    /// When the last packet came that was accepted.
    seen: Instant,
    /// Its identification.
    last: u16,
    /// Packets in a row near each other, up to [`SURE`].
    near: u8,
    /// Packets far from a counter that is sure, since one was accepted, up to [`MISSES`].
    far: u8,
}

impl IpIdTracker {
    /// Nothing yet.
    pub fn new(now: Instant) -> Self {
        Self { seen: now, last: 0, near: 0, far: 0 }
    }

    /// Whether an identification is `most` from the last one, or less.
    fn is_within(&self, most: u64, identification: u16) -> bool {
        let ahead = identification.wrapping_sub(self.last);
        u64::from(ahead.min(ahead.wrapping_neg())) <= most
    }

    fn is_near(&self, identification: u16) -> bool {
        is_small(identification) || self.is_within(NEAR.into(), identification)
    }

    fn is_far(&self, now: Instant, identification: u16) -> bool {
        let grown = now.nanos_since(self.seen) / (1_000_000_000 / PER_SECOND);
        !is_small(identification) && !self.is_within(u64::from(FAR) + grown, identification)
    }

    /// Judges a packet. A packet that is far from the counter is dropped, but the third in a row is let in, as `Weak`: the host may have
    /// begun to count anew, and if the queue pair accepts the packet, [`follow`](Self::follow) begins anew, too.
    pub fn judge(&mut self, now: Instant, identification: u16) -> Judgement {
        if self.near < SURE {
            return Judgement::Weak;
        }
        if !self.is_far(now, identification) {
            return Judgement::Good;
        }
        self.far = (self.far + 1).min(MISSES);
        if self.far < MISSES { Judgement::Bad } else { Judgement::Weak }
    }

    /// The queue pair accepted a packet.
    pub fn follow(&mut self, now: Instant, identification: u16) {
        let near = self.is_near(identification);
        self.far = 0;
        // A small number may be of a message that the sender's kernel took apart, while it counts other packets.
        if self.near == SURE && near && !self.is_within(NEAR.into(), identification) {
            return;
        }
        self.near = if near { self.near.saturating_add(1) } else { 0 };
        (self.last, self.seen) = (identification, now);
    }
}

const _: () = assert!(SURE == u8::MAX, "it is where counting ends");

#[cfg(test)]
mod tests {
    use super::Judgement::{Bad, Good, Weak};
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((10_000 + ms) * 1_000_000)
    }

    /// Judges a packet that will be accepted if it is let in.
    fn accept(tracker: &mut IpIdTracker, ms: u64, id: u16) -> Judgement {
        let verdict = tracker.judge(at(ms), id);
        if verdict != Bad {
            tracker.follow(at(ms), id);
        }
        verdict
    }

    /// A tracker of a host that counts for this connection alone: it is at 5000.
    fn sure() -> IpIdTracker {
        let mut tracker = IpIdTracker::new(at(0));
        for n in 0..=u16::from(SURE) {
            assert_eq!(accept(&mut tracker, 0, 4745 + n), Weak, "{n}");
        }
        tracker
    }

    #[test]
    fn a_counter_is_followed_and_one_that_jumps_is_found_again() {
        let mut tracker = sure();
        for (ms, id, verdict) in [
            (0, 5010, Good),
            (0, 5009, Good),
            (0, 30000, Bad),
            (0, 5011, Good),
            (0, 63, Good),
            (1, 5012, Good),
            (1, 40_000, Bad),
            (1, 40_001, Bad),
            (1, 40_002, Weak),
            (1, 40_003, Weak),
            (1, 5012, Weak),
        ] {
            assert_eq!(accept(&mut tracker, ms, id), verdict, "{ms} {id}");
        }
        for (ms, id, verdict) in
            [(2, 5000 + 512 + 2000, Good), (2, 5000 + 513 + 2000, Bad), (40, 65_000, Good)]
        {
            assert_eq!(sure().judge(at(ms), id), verdict, "{ms} {id}");
        }
    }

    // Goal: packets are right however many connections the host sends on by turns, and however many of them come at once.
    #[test]
    fn connections_that_share_a_counter_do_not_harm_each_other() {
        for connections in [1, 2, 4, 16, 64, 256, 1000] {
            for turn in [1, 2, 16, 64, 128] {
                let mut tracker = IpIdTracker::new(at(0));
                let mut id = 100u16;
                for _ in 0..2000 / turn + 10 {
                    for _ in 0..turn {
                        id = id.wrapping_add(1);
                        assert_ne!(
                            accept(&mut tracker, 0, id),
                            Bad,
                            "{connections} connections, {turn} in a row"
                        );
                    }
                    id = id.wrapping_add((turn * (connections - 1)) as u16);
                }
            }
        }
    }

    // Goal: whatever comes that the queue pair does not accept, right packets are taken for right.
    #[test]
    fn what_is_not_accepted_moves_nothing() {
        let mut tracker = sure();
        for id in 5001..6000 {
            for forged in (0..50).map(|i| 30_000 + i).chain([id + 40, id + 64, 3]) {
                tracker.judge(at(1), forged);
            }
            assert_eq!(accept(&mut tracker, 1, id), Good);
        }
    }

    #[test]
    fn a_peer_that_counts_from_zero_for_each_message_is_right() {
        let mut tracker = IpIdTracker::new(at(0));
        for _ in 0..50 {
            for id in 0..SEGMENTS {
                assert_ne!(accept(&mut tracker, 0, id), Bad);
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_count_is_judged_by_the_packet() {
        let (mut tracker, mut id) = (IpIdTracker::new(at(0)), 1u16);
        let mut bad = 0;
        for _ in 0..10_000 {
            id = id.wrapping_mul(28_629).wrapping_add(15_731);
            bad += u32::from(accept(&mut tracker, 0, id) == Bad);
        }
        assert!(bad < 10, "{bad} of 10000");
    }
}
