//! What a requester remembers of the work requests that it started. With very many queue pairs this memory is in no cache, so it
//! is one word a request.

use crate::id::Psn;
use crate::proto::in_flight::distance;

/// How a work request is answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RequestKind {
    /// By an acknowledgement: SEND and WRITE.
    #[default]
    Message,
    /// By READ responses.
    Read,
    /// By an ATOMIC acknowledgement.
    Atomic,
    /// By an empty READ response: ATOMIC WRITE and FLUSH (IBA A19).
    Placement,
    /// By nobody: a local operation, carried out when it started. Takes no sequence number.
    Local,
    /// Accepted under an earlier epoch: takes no sequence number, completes silently.
    Stale,
}

impl RequestKind {
    const ALL: [Self; 6] =
        [Self::Message, Self::Read, Self::Atomic, Self::Placement, Self::Local, Self::Stale];
    /// By number, filled up to a power of two.
    const BY_NUMBER: [Self; 8] = {
        let mut by_number = [Self::Message; 8];
        let mut n = 0;
        while n < Self::ALL.len() {
            by_number[Self::ALL[n] as usize] = Self::ALL[n];
            n += 1;
        }
        by_number
    };

    /// Whether it takes no sequence number and is complete as soon as everything before it is.
    #[inline]
    pub(in crate::proto) fn takes_no_psn(self) -> bool {
        matches!(self, Self::Local | Self::Stale)
    }
}

/// A started work request: its sequence numbers, and how it is answered. One that takes no number has `last` before `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) struct Started {
    pub first: Psn,
    pub last: Psn,
    pub kind: RequestKind,
    /// For a READ: log2 of the responses that one packet requests; see [`Remembered::in_parts`].
    part: u8,
}

impl Started {
    /// The last number that is requested by the same packet as this one.
    #[inline(always)]
    pub fn part_end(&self, psn: Psn) -> Psn {
        let behind = ((distance(self.first, psn) >> self.part) + 1) << self.part;
        if behind > distance(self.first, self.last) { self.last } else { self.first.add(behind - 1) }
    }
}

/// What is remembered of a [`Started`]: its first sequence number, and in the upper byte its kind and the size of its parts. The
/// last number follows from the request behind it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Remembered(u32);

impl Remembered {
    #[inline(always)]
    pub const fn new(first: Psn, kind: RequestKind) -> Self {
        Self(first.get() | WHOLE << PART | (kind as u32) << KIND)
    }
    /// A READ that is requested by several packets, each for 2 to the power of `part` responses.
    pub const fn in_parts(first: Psn, part: u32) -> Self {
        debug_assert!(part <= WHOLE, "it has few bits");
        Self(first.get() | part << PART | (RequestKind::Read as u32) << KIND)
    }
    #[inline(always)]
    pub const fn first(self) -> Psn {
        Psn::new(self.0)
    }
    #[inline(always)]
    pub const fn kind(self) -> RequestKind {
        RequestKind::BY_NUMBER[(self.0 >> KIND) as usize % RequestKind::BY_NUMBER.len()]
    }
    #[inline(always)]
    const fn part(self) -> u8 {
        (self.0 >> PART & WHOLE) as u8
    }
    /// [`RequestKind::takes_no_psn`], by one comparison.
    #[inline(always)]
    pub const fn takes_no_psn(self) -> bool {
        self.0 >= (RequestKind::Local as u32) << KIND
    }
    /// The whole entry, if the next request begins at `behind`.
    #[inline(always)]
    pub const fn until(self, behind: Psn) -> Started {
        Started { first: self.first(), last: behind.sub(1), kind: self.kind(), part: self.part() }
    }
}

/// Where in a [`Remembered`] the size of the parts and the kind begin.
const PART: u32 = 24;
const KIND: u32 = 29;
/// The size of a part that holds any request: half of the circle is 2 to the power of 23 numbers.
const WHOLE: u32 = (1 << (KIND - PART)) - 1;

/// A word for each request of a send queue, by its sequence number.
#[derive(Default, Debug)]
pub(super) struct Log(Box<[Remembered]>);

impl Log {
    /// For a send queue of `depth` requests (a power of two).
    pub fn new(depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "a send queue of {depth} requests");
        Self(vec![Remembered::default(); depth as usize].into())
    }
    #[inline(always)]
    pub fn depth(&self) -> u32 {
        self.0.len() as u32
    }
    #[inline(always)]
    fn at(&self, seq: u32) -> usize {
        seq as usize & (self.0.len() - 1)
    }
    #[inline(always)]
    pub fn get(&self, seq: u32) -> Remembered {
        self.0[self.at(seq)]
    }
    #[inline(always)]
    pub fn set(&mut self, seq: u32, remembered: Remembered) {
        let at = self.at(seq);
        self.0[at] = remembered;
    }
    /// Where a request is, for a prefetch.
    #[inline]
    pub fn place(&self, seq: u32) -> *const () {
        (&raw const self.0[self.at(seq)]).cast()
    }
    /// The entries from that of `seq` on that are contiguous in memory, `most` at most.
    #[inline(always)]
    pub fn contiguous(&mut self, seq: u32, most: u32) -> &mut [Remembered] {
        let at = self.at(seq);
        let end = self.0.len().min(at + most as usize);
        &mut self.0[at..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_every_kind_and_number() {
        for kind in RequestKind::ALL {
            for first in [0, 1, 0x7f_ffff, 0xff_ffff].map(Psn::new) {
                let started = Remembered::new(first, kind).until(first.add(3));
                assert_eq!((started.first, started.last, started.kind), (first, first.add(2), kind));
                assert_eq!(started.part_end(first.add(1)), first.add(2), "whole");
                assert_eq!(Remembered::new(first, kind).takes_no_psn(), kind.takes_no_psn());
                assert_eq!(Remembered::new(first, kind).until(first).last, first.sub(1), "takes none");
            }
        }
    }

    #[test]
    fn a_read_is_asked_for_in_parts() {
        for first in [0, 1, 0x7f_ffff, 0xff_fffe].map(Psn::new) {
            for part in [0, 1, 3, 23] {
                let remembered = Remembered::in_parts(first, part);
                let started = remembered.until(first.add(21));
                assert_eq!((started.first, started.last), (first, first.add(20)));
                assert_eq!((started.kind, remembered.takes_no_psn()), (RequestKind::Read, false));
                for index in 0..21 {
                    let end = (index | ((1 << part) - 1)).min(20);
                    assert_eq!(started.part_end(first.add(index)), first.add(end), "{index} of {part}");
                }
            }
            let longest = Remembered::new(first, RequestKind::Read).until(first.add(1 << 23));
            assert_eq!(longest.part_end(first.add(5)), longest.last);
        }
    }

    #[test]
    fn places_go_round() {
        let mut log = Log::new(4);
        for seq in u32::MAX - 1..=u32::MAX {
            log.set(seq, Remembered::new(Psn::new(seq), RequestKind::Read));
        }
        assert_eq!(log.get(u32::MAX).until(Psn::new(0)).first, Psn::new(0xff_ffff));
        assert_eq!(log.place(u32::MAX), log.place(3));
        assert_eq!([(0, 9), (0, 2), (3, 4)].map(|(seq, most)| log.contiguous(seq, most).len()), [4, 2, 1]);
    }
}
