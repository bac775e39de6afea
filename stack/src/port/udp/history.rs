//! The identifications of IPv4 packets that peers sent, to judge an identification that was computed from an ICRC.
//!
//! The ICRC covers the identification, and a socket does not show it. So the word of the header that holds the identification and
//! the flags is computed from the rest of the packet. If the packet has an error, the word is random, and two in 65 536 have flags
//! that are allowed. A host counts its packets, so an identification that is not near the last one shows an error as well; a host
//! that does not count is recognised, and judged by the packet alone.

use core::net::IpAddr;
use core::time::Duration;

use super::packet::DF;
use crate::id::{Gid, Qpn};
use std::hash::{BuildHasher, RandomState};

/// Conversations remembered; a power of two. Two that share a slot evict each other, and are then judged by the packet alone.
const SLOTS: usize = 4096;
/// An identification may be this far from the last one: packets overtake each other, and others are sent between two of ours.
const NEAR: u16 = 64;
/// A kernel's counter also moves by itself, by up to so many in a second.
const PER_SECOND: u64 = 1000;
/// A sender that has the kernel take its messages apart (this stack, too) numbers the parts of each from 0.
const SEGMENTS: u16 = 64;
/// So many packets in a row near each other show that a host counts; so many far from its counter show that it does not any more.
const SURE: u8 = 3;
/// If the first so many packets of a peer are all wrong, something on the path changes them.
const ALL_WRONG: u32 = 64;

/// What a packet is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Right.
    Good,
    /// Right as far as the packet alone says.
    Weak,
    /// Its ICRC is wrong.
    Bad,
    /// Its ICRC is wrong, and so was that of every packet of this peer; returned once.
    AllBad,
}

#[derive(Clone, Copy, Default)]
struct Trace {
    /// Whose it is; 0 for nobody's.
    key: u64,
    /// When the last packet came, in milliseconds.
    seen_ms: u64,
    /// Its identification.
    last: u16,
    /// Packets in a row near each other, up to [`SURE`].
    near: u8,
    /// Packets in a row that were far from a counter that was sure.
    far: u8,
    /// Wrong packets, while all were wrong; `u32::MAX` once one was right.
    wrong: u32,
}

/// What peers sent.
pub(super) struct History {
    traces: Box<[Trace]>,
    hasher: RandomState,
}

impl Default for History {
    fn default() -> Self {
        Self { traces: vec![Trace::default(); SLOTS].into(), hasher: RandomState::new() }
    }
}

impl History {
    /// Judges a packet whose ICRC is right with this identification and these flags, `now` by any clock.
    pub fn judge(&mut self, now: Duration, from: IpAddr, to: Qpn, word: [u8; 4]) -> Verdict {
        // Counters of hosts are shared by their conversations or not.
        let key = self.hasher.hash_one((Gid::from_ip(from).0, to.get())) | 1;
        let now_ms = now.as_millis() as u64;
        let trace = &mut self.traces[key as usize >> 1 & (SLOTS - 1)];
        if trace.key != key {
            *trace = Trace { key, seen_ms: now_ms, ..Trace::default() };
        }
        let [high, low, flags @ ..] = word;
        if flags != DF && flags != [0, 0] {
            if trace.wrong == u32::MAX {
                return Verdict::Bad;
            }
            trace.wrong += 1;
            return if trace.wrong == ALL_WRONG { Verdict::AllBad } else { Verdict::Bad };
        }
        trace.wrong = u32::MAX;
        trace.judge(now_ms, u16::from_be_bytes([high, low]))
    }
}

impl Trace {
    fn judge(&mut self, now_ms: u64, identification: u16) -> Verdict {
        let grown = (now_ms.saturating_sub(self.seen_ms) * PER_SECOND / 1000).min(u16::MAX.into()) as u16;
        let ahead = identification.wrapping_sub(self.last).wrapping_add(NEAR);
        let near = ahead <= (2 * NEAR).saturating_add(grown);
        if self.near >= SURE && !near {
            // A small number may be of a message that the sender's kernel took apart, while it counts other packets.
            if identification < SEGMENTS {
                return Verdict::Good;
            }
            self.far += 1;
            if self.far < SURE {
                return Verdict::Bad;
            }
            self.near = 0;
        }
        self.far = 0;
        (self.last, self.seen_ms) = (identification, now_ms);
        self.near = if near || identification < SEGMENTS { (self.near + 1).min(SURE) } else { 0 };
        if self.near == SURE { Verdict::Good } else { Verdict::Weak }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn judge(history: &mut History, ms: u64, id: u16) -> Verdict {
        let [high, low] = id.to_be_bytes();
        history.judge(Duration::from_millis(ms), PEER, Qpn::new(5), [high, low, DF[0], DF[1]])
    }

    #[test]
    fn a_counter_is_followed_and_one_that_jumps_is_found_again() {
        use Verdict::{Bad, Good, Weak};
        let mut history = History::default();
        for (ms, id, verdict) in [
            (0, 5000, Weak),
            (0, 5001, Weak),
            (0, 5010, Weak),
            (0, 5009, Good),
            (0, 30000, Bad),
            (0, 5011, Good),
            (0, 63, Good),
            (1, 5012, Good),
            (1, 40_000, Bad),
            (1, 40_001, Bad),
            (1, 40_002, Weak),
            (1, 40_003, Weak),
            (1, 40_004, Weak),
            (1, 40_005, Good),
            (1001, 41_000, Good),
            (1001, 65000, Bad),
            (70_000, 65000, Good),
            (70_001, 2, Good),
        ] {
            assert_eq!(judge(&mut history, ms, id), verdict, "{ms} {id}");
        }
    }

    #[test]
    fn a_peer_that_counts_from_zero_for_each_message_is_right() {
        let mut history = History::default();
        for _ in 0..50 {
            for id in 0..SEGMENTS {
                assert_ne!(judge(&mut history, 0, id), Verdict::Bad);
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_count_is_judged_by_the_packet() {
        let (mut history, mut id) = (History::default(), 1u16);
        let mut bad = 0;
        for _ in 0..10_000 {
            id = id.wrapping_mul(28_629).wrapping_add(15_731);
            bad += u32::from(judge(&mut history, 0, id) == Verdict::Bad);
        }
        assert!(bad < 10, "{bad} of 10000");
    }

    #[test]
    fn a_peer_of_whom_all_is_wrong_is_named_once() {
        let mut history = History::default();
        let mut wrong = |word| history.judge(Duration::ZERO, PEER, Qpn::new(5), word);
        let verdicts: Vec<_> = (0..ALL_WRONG + 9).map(|_| wrong([1, 2, 3, 4])).collect();
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::AllBad).count(), 1);
        assert_eq!(wrong([0, 9, 0, 0]), Verdict::Weak, "without the flag");
        assert!((0..ALL_WRONG + 9).all(|_| wrong([1, 2, 0x20, 0]) == Verdict::Bad));
    }
}
