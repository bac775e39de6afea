//! What a requester remembers of the work requests that it started. With very many queue pairs this memory is cold: it is a
//! word a request.

use crate::id::Psn;

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
    /// By number; the rest of a power of two of them is not used.
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

/// A started work request: its sequence numbers, and how it is answered. One that takes none has its last before its first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) struct Started {
    pub first: Psn,
    pub last: Psn,
    pub kind: RequestKind,
}

/// What is remembered of a [`Started`]: its first sequence number, and its kind in the upper byte. The last one follows from
/// the request behind it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Remembered(u32);

impl Remembered {
    #[inline(always)]
    pub const fn new(first: Psn, kind: RequestKind) -> Self {
        Self(first.get() | (kind as u32) << 24)
    }
    #[inline(always)]
    pub const fn first(self) -> Psn {
        Psn::new(self.0)
    }
    #[inline(always)]
    pub const fn kind(self) -> RequestKind {
        RequestKind::BY_NUMBER[(self.0 >> 24) as usize % RequestKind::BY_NUMBER.len()]
    }
    /// [`RequestKind::takes_no_psn`], without a look at which of them.
    #[inline(always)]
    pub const fn takes_no_psn(self) -> bool {
        self.0 >= (RequestKind::Local as u32) << 24
    }
    /// All of it: the next request begins `behind` it.
    #[inline(always)]
    pub const fn until(self, behind: Psn) -> Started {
        Started { first: self.first(), last: behind.sub(1), kind: self.kind() }
    }
}

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
    /// Those from `seq` on that lie behind each other, `most` of them at most.
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
                assert_eq!(started, Started { first, last: first.add(2), kind });
                assert_eq!(Remembered::new(first, kind).takes_no_psn(), kind.takes_no_psn());
                assert_eq!(Remembered::new(first, kind).until(first).last, first.sub(1), "takes none");
            }
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
