//! What a requester remembers of the work requests that it started: which are complete, which one sends the next packet, and one word for
//! each. It is only one word because, with very many queue pairs, this memory is not in any cache.

use crate::id::Psn;
use crate::proto::in_flight::distance;

/// How a work request is answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RequestKind {
    /// By an acknowledgement: SEND and WRITE.
    #[default]
    Message,
    /// By READ response packets.
    Read,
    /// By an ATOMIC ACKNOWLEDGE packet.
    Atomic,
    /// By an empty READ response: ATOMIC WRITE and FLUSH (IBA A19).
    Placement,
    /// Not at all: it is a local operation, carried out when it started. Uses no PSN.
    Local,
    /// Not at all: it was posted under an earlier epoch. Uses no PSN, and completes without a completion.
    Stale,
}

impl RequestKind {
    const ALL: [Self; 6] =
        [Self::Message, Self::Read, Self::Atomic, Self::Placement, Self::Local, Self::Stale];
    /// By discriminant, filled up to a power of two.
    const BY_NUMBER: [Self; 8] = {
        let mut by_number = [Self::Message; 8];
        let mut n = 0;
        while n < Self::ALL.len() {
            by_number[Self::ALL[n] as usize] = Self::ALL[n];
            n += 1;
        }
        by_number
    };

    /// Whether it uses no PSN, and so is complete as soon as every earlier request is.
    #[inline]
    pub(in crate::proto) fn takes_no_psn(self) -> bool {
        matches!(self, Self::Local | Self::Stale)
    }
}

/// A started work request: its PSNs, and how it is answered. If it uses no PSN, `last` is before `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) struct Started {
    pub first: Psn,
    pub last: Psn,
    pub kind: RequestKind,
    /// For a READ: log2 of how many responses one request packet asks for; see [`Remembered::in_parts`].
    part: u8,
}

impl Started {
    /// The last PSN that is requested by the same packet as this one.
    #[inline(always)]
    pub fn part_end(&self, psn: Psn) -> Psn {
        let behind = ((distance(self.first, psn) >> self.part) + 1) << self.part;
        if behind > distance(self.first, self.last) { self.last } else { self.first.add(behind - 1) }
    }
}

/// What is remembered of a [`Started`]: its first PSN, and in the upper byte its kind and the size of its parts. Its last PSN follows from
/// the first PSN of the next request.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Remembered(u32);

impl Remembered {
    #[inline(always)]
    pub const fn new(first: Psn, kind: RequestKind) -> Self {
        Self(first.get() | WHOLE << PART | (kind as u32) << KIND)
    }
    /// A READ that is requested by several packets, each for 2^`part` responses.
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
    /// Same as [`RequestKind::takes_no_psn`], with a single comparison.
    #[inline(always)]
    pub const fn takes_no_psn(self) -> bool {
        self.0 >= (RequestKind::Local as u32) << KIND
    }
    /// The whole entry, if the first PSN of the next request is `behind`.
    #[inline(always)]
    pub const fn until(self, behind: Psn) -> Started {
        Started { first: self.first(), last: behind.sub(1), kind: self.kind(), part: self.part() }
    }
}

/// First bits of the part size and the kind in a [`Remembered`].
const PART: u32 = 24;
const KIND: u32 = 29;
/// Part size (log2) of a request that is not split: larger than any request, which uses at most 2^23 PSNs.
const WHOLE: u32 = (1 << (KIND - PART)) - 1;

/// The work requests of a send queue, by sequence number. Those from `head` to before `started` have started and are not complete. The
/// packet to send next belongs to `current`, or begins the request `started` if both are equal.
#[derive(Default, Debug)]
pub(in crate::proto) struct SendLog {
    /// One word for each slot of the queue.
    entries: Box<[Remembered]>,
    head: u32,
    current: u32,
    started: u32,
    /// First PSN of the next work request to start.
    assigned: Psn,
}

impl SendLog {
    /// For a send queue of `depth` slots (a power of two).
    pub fn new(depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "a send queue of {depth} requests");
        Self { entries: vec![Remembered::default(); depth as usize].into(), ..Self::default() }
    }

    /// Forgets everything. The next work request has sequence number `seq`.
    pub fn reset(&mut self, seq: u32) {
        self.drop_before(seq, Psn::new(0));
    }

    /// Sets the first PSN. Nothing must have started.
    pub fn assign_from(&mut self, psn: Psn) {
        self.assigned = psn;
    }

    /// Sequence number of the oldest work request that is not complete.
    #[inline(always)]
    pub const fn head(&self) -> u32 {
        self.head
    }

    /// Sequence number of the work request whose packet is next, `head ..= started`.
    #[inline(always)]
    pub const fn current(&self) -> u32 {
        self.current
    }

    /// Sequence number after that of the last started work request.
    #[inline(always)]
    pub const fn started(&self) -> u32 {
        self.started
    }

    /// First PSN of the next work request to start.
    #[inline(always)]
    pub const fn assigned(&self) -> Psn {
        self.assigned
    }

    /// Slots of the send queue.
    #[inline(always)]
    pub fn depth(&self) -> u32 {
        self.entries.len() as u32
    }

    /// How many requests have started and are not complete.
    #[inline(always)]
    pub const fn outstanding(&self) -> u32 {
        self.started.wrapping_sub(self.head)
    }

    /// Whether every started request is complete.
    #[inline(always)]
    pub const fn is_drained(&self) -> bool {
        self.head == self.started
    }

    /// Whether all packets of every started request were sent: the next packet begins a request.
    #[inline(always)]
    pub const fn all_sent(&self) -> bool {
        self.current == self.started
    }

    #[inline(always)]
    fn index(&self, seq: u32) -> usize {
        seq as usize & (self.entries.len() - 1)
    }

    #[inline(always)]
    fn remembered(&self, seq: u32) -> Remembered {
        self.entries[self.index(seq)]
    }

    /// A work request that has started and is not complete.
    #[inline(always)]
    pub fn get(&self, seq: u32) -> Started {
        let next = seq.wrapping_add(1);
        let behind = if next == self.started { self.assigned } else { self.remembered(next).first() };
        self.remembered(seq).until(behind)
    }

    /// The oldest work request that is not complete.
    #[inline(always)]
    pub fn oldest(&self) -> Started {
        self.get(self.head)
    }

    /// Address of the entry of a work request, for a prefetch.
    #[inline]
    pub fn address(&self, seq: u32) -> *const () {
        (&raw const self.entries[self.index(seq)]).cast()
    }

    /// Starts the next posted work request, which uses `packets` PSNs.
    #[inline(always)]
    pub(super) fn start(&mut self, remembered: Remembered, packets: u32) -> Started {
        let index = self.index(self.started);
        self.entries[index] = remembered;
        self.assigned = self.assigned.add(packets);
        self.started = self.started.wrapping_add(1);
        remembered.until(self.assigned)
    }

    /// Starts the next posted work request, which uses no PSN.
    pub fn start_without_psn(&mut self, kind: RequestKind) {
        debug_assert!(kind.takes_no_psn());
        self.start(Remembered::new(self.assigned, kind), 0);
        self.complete_without_psn();
    }

    /// How many of the next entries are contiguous in memory.
    #[inline(always)]
    pub fn contiguous(&self) -> u32 {
        (self.entries.len() - self.index(self.started)) as u32
    }

    /// The next entries, at most `most` and only contiguous ones. For requests that are about to start and whose packets are all sent at
    /// once: see [`start_all`](Self::start_all).
    #[inline(always)]
    pub(super) fn next_entries(&mut self, most: u32) -> &mut [Remembered] {
        let index = self.index(self.started);
        let end = self.entries.len().min(index + most as usize);
        &mut self.entries[index..end]
    }

    /// Counts requests whose entries were written as started, and all their packets as sent. `behind` is the PSN after their last one.
    #[inline(always)]
    pub fn start_all(&mut self, requests: u32, behind: Psn) {
        self.started = self.started.wrapping_add(requests);
        self.current = self.started;
        self.assigned = behind;
    }

    /// Makes the next request the current one: the last packet of the current one was handed out.
    #[inline(always)]
    pub fn leave_current(&mut self) {
        self.current = self.current.wrapping_add(1);
    }

    /// Makes this request the current one.
    pub fn go_back_to(&mut self, seq: u32) {
        self.current = seq;
    }

    /// Makes the request with this PSN the current one.
    pub fn seek(&mut self, psn: Psn) {
        let mut seq = self.head;
        while seq != self.started {
            let e = self.get(seq);
            if !e.kind.takes_no_psn() && e.last.diff(psn) >= 0 {
                break;
            }
            seq = seq.wrapping_add(1);
        }
        self.current = seq;
    }

    /// Completes the oldest request, and the following ones that use no PSN.
    #[inline]
    pub fn complete_head(&mut self) {
        self.pop();
        self.complete_without_psn();
    }

    /// Completes the oldest requests that use no PSN.
    pub fn complete_without_psn(&mut self) {
        while self.head != self.started && self.remembered(self.head).takes_no_psn() {
            self.pop();
        }
    }

    #[inline(always)]
    fn pop(&mut self) {
        if self.current == self.head {
            self.current = self.current.wrapping_add(1);
        }
        self.head = self.head.wrapping_add(1);
    }

    /// Handles an acknowledgement of every PSN up to `acked`; `una` is the oldest PSN that was not acknowledged so far. Completes SENDs and
    /// WRITEs, but not beyond a READ or ATOMIC whose response is missing.
    #[inline(always)]
    pub fn acknowledge(&mut self, mut una: Psn, acked: Psn) -> Acknowledged {
        let mut head = self.head;
        let mut passed_request = false;
        // One acknowledgement often completes many requests, so the state is written only once.
        while head != self.started {
            let e = self.get(head);
            if !e.kind.takes_no_psn() {
                if acked.diff(e.last) < 0 {
                    if e.kind == RequestKind::Message && acked.diff(una) >= 0 {
                        una = acked.add(1);
                    }
                    break;
                }
                if e.kind != RequestKind::Message {
                    passed_request = true;
                    break;
                }
                una = e.last.add(1);
            }
            head = head.wrapping_add(1);
        }
        self.head = head;
        if (self.current.wrapping_sub(head) as i32) < 0 {
            self.current = head;
        }
        Acknowledged { una, passed_request }
    }

    /// Completes every request before `seq`, whether or not the peer received it.
    #[inline]
    pub fn complete_before(&mut self, seq: u32) {
        if (seq.wrapping_sub(self.head) as i32) > 0 {
            self.head = seq;
        }
        self.complete_without_psn();
    }

    /// Forgets every request before `seq`. The next one begins with the PSN `assigned`.
    pub fn drop_before(&mut self, seq: u32, assigned: Psn) {
        (self.head, self.current, self.started) = (seq, seq, seq);
        self.assigned = assigned;
    }
}

/// Result of [`SendLog::acknowledge`].
#[derive(Clone, Copy, Debug)]
pub(in crate::proto) struct Acknowledged {
    /// The oldest PSN that is not acknowledged now.
    pub una: Psn,
    /// Whether `acked` is at or after a READ or ATOMIC whose response is missing.
    pub passed_request: bool,
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
    fn entries_go_round() {
        let mut log = SendLog::new(4);
        log.drop_before(u32::MAX - 1, Psn::new(0xff_fffe));
        for packets in [1, 3] {
            log.start(Remembered::new(log.assigned(), RequestKind::Message), packets);
        }
        let spans = [u32::MAX - 1, u32::MAX].map(|seq| (log.get(seq).first, log.get(seq).last));
        let number = Psn::new;
        assert_eq!(spans, [(number(0xff_fffe), number(0xff_fffe)), (number(0xff_ffff), number(1))]);
        assert_eq!(log.address(u32::MAX), log.address(3));
        assert_eq!((log.outstanding(), log.contiguous()), (2, 4));
        assert_eq!([9, 2].map(|most| log.next_entries(most).len()), [4, 2]);
        log.start(Remembered::new(log.assigned(), RequestKind::Message), 1);
        assert_eq!((log.contiguous(), log.next_entries(9).len()), (3, 3));
    }

    #[test]
    fn an_acknowledgement_stops_at_a_request_without_its_response() {
        let mut log = SendLog::new(8);
        for (kind, packets) in [
            (RequestKind::Message, 2),
            (RequestKind::Read, 3),
            (RequestKind::Local, 0),
            (RequestKind::Message, 1),
        ] {
            log.start(Remembered::new(log.assigned(), kind), packets);
        }
        let said = log.acknowledge(Psn::new(0), Psn::new(0));
        assert_eq!((said.una, said.passed_request, log.head()), (Psn::new(1), false, 0), "half of a message");
        let said = log.acknowledge(said.una, Psn::new(5));
        assert_eq!((said.una, said.passed_request), (Psn::new(2), true));
        assert_eq!((log.head(), log.current()), (1, 1), "what is complete has been sent");
        log.complete_head();
        assert_eq!(log.head(), 3, "the local operation is complete with the READ before it");
        log.seek(Psn::new(5));
        assert_eq!((log.current(), log.all_sent(), log.is_drained()), (3, false, false));
    }
}
