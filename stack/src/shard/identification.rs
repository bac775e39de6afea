//! The identifications of the IPv4 packets of a connection's peer, over a port that does not deliver them.
//!
//! The ICRC covers the identification and the adjacent flags, which a UDP socket does not deliver. So the port computes, from the rest of
//! the packet, the values with which the ICRC is correct. If the packet has an error they come out at random, and for two packets in
//! 65 536 the flags are valid ones for an IPv4 header. Most hosts count their packets: from such a host, an identification far
//! from those of earlier packets indicates an error, too. A host that does not count, or that counts the packets of many connections
//! together, is recognised, and its packets are judged by the flags alone.
//!
//! Only packets that the queue pair accepted move the expected value. Anyone who knows the queue pair's number can send other packets, so
//! these change nothing here.

use crate::time::Instant;

/// Consecutive identifications differ by at most this much if a host counts for one connection, or for some that alternate: packets
/// overtake each other, and other packets are sent between two of the connection.
const NEAR: u16 = 64;
/// An identification that differs by more than this from the last one indicates an error, if all before were near.
const FAR: u16 = 512;
/// Growth of the counter per second, at most: a host has one counter for all packets to this host, of every connection.
const PER_SECOND: u64 = 1_000_000;
/// Most segments of a message. A sender that has its kernel segment messages, as this stack does, numbers the segments of each from 0.
const SEGMENTS: u16 = 64;
/// This many consecutive packets near each other show that the counter is this connection's. Fewer may be one burst of the connection,
/// among hundreds (Linux soft-RoCE: 128 packets).
const ESTABLISHED: u8 = 255;
/// This many packets far from the counter, without an accepted one in between, show that the host has restarted its counter.
const MISSES: u8 = 3;

/// The judgement of a packet, from its identification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judgement {
    /// It fits the peer's counter: the ICRC is correct.
    Good,
    /// No counter to compare it with, not yet or no longer: the packet is let in, and counted (`IcrcWeak`).
    Unverified,
    /// It is far from the peer's counter: the ICRC counts as wrong, and the packet is dropped (`BadIcrc`).
    Bad,
}

/// Whether the identification alone shows that a packet is correct, where no connection provides a value to compare it with.
pub(super) fn is_small(identification: u16) -> bool {
    identification < SEGMENTS
}

/// Tracks the counter from which a connection's peer takes its identifications.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpIdTracker {
    /// When the last accepted packet arrived.
    seen: Instant,
    /// The identification of that packet.
    last: u16,
    /// Number of consecutive packets near each other, up to [`ESTABLISHED`].
    near: u8,
    /// Number of packets far from an established counter, since the last accepted one, up to [`MISSES`].
    far: u8,
}

impl IpIdTracker {
    /// A tracker that has seen no packet.
    pub fn new(now: Instant) -> Self {
        Self { seen: now, last: 0, near: 0, far: 0 }
    }

    /// Whether an identification differs from the last one by `most` or less.
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

    /// Judges a packet. A packet far from the counter is dropped, but the third in a row is let in, as `Unverified`: the host may have
    /// restarted its counter, and if the queue pair accepts the packet, [`follow`](Self::follow) restarts as well.
    pub fn judge(&mut self, now: Instant, identification: u16) -> Judgement {
        if self.near < ESTABLISHED {
            return Judgement::Unverified;
        }
        if !self.is_far(now, identification) {
            return Judgement::Good;
        }
        self.far = (self.far + 1).min(MISSES);
        if self.far < MISSES { Judgement::Bad } else { Judgement::Unverified }
    }

    /// Notes a packet that the queue pair accepted.
    pub fn follow(&mut self, now: Instant, identification: u16) {
        let near = self.is_near(identification);
        self.far = 0;
        // A small number may belong to a message that the sender's kernel segmented, while it counts other packets.
        if self.near == ESTABLISHED && near && !self.is_within(NEAR.into(), identification) {
            return;
        }
        self.near = if near { self.near.saturating_add(1) } else { 0 };
        (self.last, self.seen) = (identification, now);
    }
}

const _: () = assert!(ESTABLISHED == u8::MAX, "it is where counting ends");

#[cfg(test)]
mod tests {
    use super::Judgement::{Bad, Good, Unverified};
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((10_000 + ms) * 1_000_000)
    }

    /// Judges a packet; the queue pair accepts it if it is let in.
    fn accept(tracker: &mut IpIdTracker, ms: u64, id: u16) -> Judgement {
        let verdict = tracker.judge(at(ms), id);
        if verdict != Bad {
            tracker.follow(at(ms), id);
        }
        verdict
    }

    /// A tracker of a host that counts for this connection alone; the counter is at 5000.
    fn established() -> IpIdTracker {
        let mut tracker = IpIdTracker::new(at(0));
        for n in 0..=u16::from(ESTABLISHED) {
            assert_eq!(accept(&mut tracker, 0, 4745 + n), Unverified, "{n}");
        }
        tracker
    }

    #[test]
    fn a_counter_is_followed_and_one_that_jumps_is_found_again() {
        let mut tracker = established();
        for (ms, id, verdict) in [
            (0, 5010, Good),
            (0, 5009, Good),
            (0, 30000, Bad),
            (0, 5011, Good),
            (0, 63, Good),
            (1, 5012, Good),
            (1, 40_000, Bad),
            (1, 40_001, Bad),
            (1, 40_002, Unverified),
            (1, 40_003, Unverified),
            (1, 5012, Unverified),
        ] {
            assert_eq!(accept(&mut tracker, ms, id), verdict, "{ms} {id}");
        }
        for (ms, id, verdict) in
            [(2, 5000 + 512 + 2000, Good), (2, 5000 + 513 + 2000, Bad), (40, 65_000, Good)]
        {
            assert_eq!(established().judge(at(ms), id), verdict, "{ms} {id}");
        }
    }

    // Goal: packets are judged correct however many connections the host serves in turn, and however many packets come at once.
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

    // Goal: whatever arrives that the queue pair does not accept, correct packets are judged correct.
    #[test]
    fn what_is_not_accepted_moves_nothing() {
        let mut tracker = established();
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
