//! The replay store: READs, atomics, ATOMIC WRITEs and FLUSHes that may have to be answered again (IBA 9.7.5.1.2: responder
//! resources). A new one takes the place of the oldest.

use crate::id::{Mtu, PdId, Psn};
use crate::proto::in_flight::{NUMBERS_MAX, distance};
use crate::wire::{Kind, Packet};

/// A request that may have to be answered again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub kind: Kind,
    /// An answer is due.
    pub pending: bool,
    /// It was answered in full before: the requester may have that answer and be done with it.
    pub replay: bool,
    pub first: Psn,
    pub last: Psn,
    /// First PSN of the answer being sent: it goes out as FIRST or ONLY.
    pub start: Psn,
    /// PSN of the next response packet.
    pub next: Psn,
    pub rkey: u32,
    /// An XRC target's requests may be of several domains.
    pub pd: PdId,
    pub len: u32,
    pub va: u64,
    /// Operands of an atomic, compared with a duplicate's.
    pub operands: [u64; 2],
    pub original: u64,
}

impl Resource {
    /// A free slot.
    pub const FREE: Self = Self {
        kind: Kind::Ack,
        pending: false,
        replay: false,
        first: Psn::new(0),
        last: Psn::new(0),
        start: Psn::new(0),
        next: Psn::new(0),
        rkey: 0,
        pd: PdId(0),
        len: 0,
        va: 0,
        operands: [0; 2],
        original: 0,
    };

    /// Whether this is one of its sequence numbers.
    pub fn covers(&self, psn: Psn) -> bool {
        psn.diff(self.first) >= 0 && psn.diff(self.last) <= 0
    }

    /// Whether this packet, which has one of its sequence numbers, asks for the same.
    pub fn asks_for(&self, pkt: &Packet<'_>, mtu: Mtu) -> bool {
        if matches!(self.kind, Kind::CmpSwap | Kind::FetchAdd) {
            let eth = pkt.atomic();
            return (eth.rkey, eth.va, [eth.swap_add, eth.compare]) == (self.rkey, self.va, self.operands);
        }
        // Of the others only a READ can start behind its first number.
        let (reth, skipped) = (pkt.reth(), (pkt.psn.diff(self.first) as u32) << mtu.log2());
        let rest = (self.rkey, self.va.wrapping_add(u64::from(skipped)), self.len - skipped.min(self.len));
        (reth.rkey, reth.va, reth.len) == rest
    }

    /// Whether its requester may still lack the answer, with `epsn` expected next. Newer requests may have the numbers of one
    /// that is not recent.
    pub fn is_recent(&self, epsn: Psn) -> bool {
        self.last.diff(epsn) < 0
    }
}

/// The requests of a queue pair that may have to be answered again, `max_dest_rd_atomic` at most. The responder counts those
/// that are being answered, so that messages touch nothing here.
#[derive(Debug)]
pub(super) struct Replay {
    pub slots: Box<[Resource]>,
    /// Protection domain of the READ that is being accepted.
    pub pd: PdId,
    /// The slot that the next request takes.
    oldest: u8,
}

impl Default for Replay {
    fn default() -> Self {
        Self { slots: Box::default(), pd: PdId(0), oldest: 0 }
    }
}

impl Replay {
    /// Another number of slots. The newest requests are kept, with their answers, as far as there is room. Returns how many
    /// of them are being answered.
    pub fn resize(&mut self, slots: u8) -> u8 {
        let (had, count) = (self.slots.len(), usize::from(slots));
        if had != count {
            let mut slots = vec![Resource::FREE; count].into_boxed_slice();
            // From the newest backwards, so that slot 0 is the oldest.
            for back in 0..had.min(count) {
                slots[count - 1 - back] = self.slots[(usize::from(self.oldest) + had - 1 - back) % had];
            }
            self.slots = slots;
            self.oldest = 0;
        }
        self.iter().filter(|r| r.pending).count() as u8
    }

    /// Whether the oldest may be replaced: it is answered, or it is being answered again, and its requester, which has sent a new
    /// request since, has the answer.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.slots.get(usize::from(self.oldest)).is_some_and(|r| !r.pending || r.replay)
    }

    /// Puts a request into the place of the oldest. Returns whether that was being answered.
    #[inline(always)]
    pub fn put(&mut self, r: Resource) -> bool {
        let oldest = usize::from(self.oldest);
        let was_pending = self.slots[oldest].pending;
        self.slots[oldest] = r;
        self.oldest = if oldest + 1 == self.slots.len() { 0 } else { self.oldest + 1 };
        was_pending
    }

    /// Every slot, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Resource> {
        let (newer, older) = self.slots.split_at(self.oldest.into());
        older.iter().chain(newer)
    }

    /// The slot of the oldest request that is being answered, if the `pending` requests being answered are the newest.
    #[inline]
    pub fn first_of_newest(&self, pending: u8) -> usize {
        let (oldest, pending) = (usize::from(self.oldest), usize::from(pending));
        if oldest >= pending { oldest - pending } else { oldest + self.slots.len() - pending }
    }

    /// The slot of the oldest request that is being answered, whichever these are: a search.
    #[cold]
    pub fn oldest_pending(&self) -> Option<usize> {
        let slots = self.slots.len();
        (0..slots).map(|i| (usize::from(self.oldest) + i) % slots).find(|&i| self.slots[i].pending)
    }

    /// The request of this kind that has this number, one of those behind `epsn`.
    pub fn find(&mut self, kind: Kind, psn: Psn, epsn: Psn) -> Option<&mut Resource> {
        self.slots.iter_mut().find(|r| r.kind == kind && r.covers(psn) && r.is_recent(epsn))
    }

    /// Forgets requests that are not recent any more when `epsn` has moved on by `packets`. Called for every quarter of the
    /// circle, so that no request falls a whole circle behind.
    #[cold]
    pub fn forget_behind(&mut self, epsn: Psn, packets: u32) {
        let is_old = |r: &Resource| distance(r.last, epsn) + packets > NUMBERS_MAX;
        // One that was put just now is being answered.
        for r in self.slots.iter_mut().filter(|r| !r.pending && is_old(r)) {
            r.kind = Kind::Ack;
        }
    }
}
