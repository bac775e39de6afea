//! Detects address translation on the path. It changes addresses, which the ICRC covers, so that every packet of the peer has a wrong ICRC.

use core::net::IpAddr;
use std::hash::{BuildHasher, RandomState};

use crate::id::Gid;

/// Addresses remembered; a power of two. Two that share a slot evict each other.
const SLOTS: usize = 4096;
/// If this many first packets of an address are wrong, something on the path changes them: damage is rare, and seldom passes the checksums
/// of link and UDP. A request for a connection and its repetition are enough, or the first packet of a test and its retry.
const ALL_WRONG: u8 = 2;
/// Counting ends here: a packet was right, or the address was reported long ago.
const DONE: u8 = u8::MAX;

#[derive(Clone, Copy, Default)]
struct Sender {
    /// Hash of the address that has the slot; 0 if it is free.
    key: u64,
    /// Number of wrong packets, as long as all were wrong.
    wrong: u8,
}

/// Remembers which addresses sent right packets, and which only wrong ones.
pub(super) struct Senders {
    slots: Box<[Sender]>,
    hasher: RandomState,
}

impl Default for Senders {
    fn default() -> Self {
        Self { slots: vec![Sender::default(); SLOTS].into(), hasher: RandomState::new() }
    }
}

impl Senders {
    /// Takes note of a packet whose ICRC may be right, or is wrong. Returns true once for an address whose packets are all wrong: the
    /// caller reports it.
    pub fn note(&mut self, from: IpAddr, may_be_right: bool) -> bool {
        let key = self.hasher.hash_one(Gid::from_ip(from).0) | 1;
        let sender = &mut self.slots[key as usize >> 1 & (SLOTS - 1)];
        if sender.key != key {
            *sender = Sender { key, wrong: 0 };
        }
        sender.wrong = if may_be_right { DONE } else { sender.wrong.saturating_add(1) };
        sender.wrong == ALL_WRONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn an_address_of_which_all_is_wrong_is_named_once_and_soon() {
        let mut senders = Senders::default();
        let named: Vec<_> = (0..100).map(|_| senders.note(addr(1), false)).collect();
        assert_eq!(named.iter().position(|named| *named), Some(usize::from(ALL_WRONG) - 1));
        assert_eq!(named.iter().filter(|named| **named).count(), 1);
        assert!(!senders.note(addr(1), true));
    }

    #[test]
    fn an_address_that_sent_a_right_packet_is_not_named() {
        let mut senders = Senders::default();
        for (before, n) in (0..ALL_WRONG - 1).zip(2..) {
            assert!((0..before).all(|_| !senders.note(addr(n), false)));
            assert!(!senders.note(addr(n), true));
            assert!((0..100).all(|_| !senders.note(addr(n), false)));
        }
        assert!(!senders.note(addr(200), true) && (0..100).all(|_| !senders.note(addr(200), false)));
    }
}
