//! The replay store: READs, atomics, ATOMIC WRITEs and FLUSHes that may have to be answered again (responder resources, IBA 9.7.5.1.2). A
//! new one replaces the oldest.

use crate::id::{Mtu, PdId, Psn};
use crate::proto::in_flight::{NUMBERS_MAX, distance};
use crate::wire::{Kind, Packet};

/// A request that may have to be answered again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub kind: Kind,
    /// Whether it waits for responses.
    pub pending: bool,
    /// Whether it was answered in full before. The requester may have that answer already and have completed the request.
    pub replay: bool,
    pub first: Psn,
    pub last: Psn,
    /// First PSN of the answer that is being sent. The response with this PSN is a FIRST or ONLY.
    pub start: Psn,
    /// PSN of the next response packet.
    pub next: Psn,
    pub rkey: u32,
    /// Protection domain. The requests of an XRC target may belong to several.
    pub pd: PdId,
    pub len: u32,
    pub va: u64,
    /// Operands of an atomic, to compare with those of a duplicate.
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

    /// Whether it uses this PSN.
    pub fn covers(&self, psn: Psn) -> bool {
        psn.diff(self.first) >= 0 && psn.diff(self.last) <= 0
    }

    /// Whether this packet, which has one of its PSNs, is the same request.
    pub fn asks_for(&self, pkt: &Packet<'_>, mtu: Mtu) -> bool {
        if matches!(self.kind, Kind::CmpSwap | Kind::FetchAdd) {
            let eth = pkt.atomic();
            return (eth.rkey, eth.va, [eth.swap_add, eth.compare]) == (self.rkey, self.va, self.operands);
        }
        // Of the other requests only a READ can be repeated from a later PSN on.
        let (reth, skipped) = (pkt.reth(), (pkt.psn.diff(self.first) as u32) << mtu.log2());
        let rest = (self.rkey, self.va.wrapping_add(u64::from(skipped)), self.len - skipped.min(self.len));
        (reth.rkey, reth.va, reth.len) == rest
    }

    /// Whether its requester may still lack the answer, when `epsn` is expected next. The PSNs of a request that is not recent may belong
    /// to newer requests.
    pub fn is_recent(&self, epsn: Psn) -> bool {
        self.last.diff(epsn) < 0
    }
}

/// The requests of a queue pair that may have to be answered again, at most `max_dest_rd_atomic`. The responder counts those that are being
/// answered, so that SENDs and WRITEs access nothing here.
#[derive(Debug)]
pub(super) struct Replay {
    pub slots: Box<[Resource]>,
    /// Protection domain of the READ that is being accepted.
    pub pd: PdId,
    /// Index of the slot that the next request takes.
    oldest: u8,
}

impl Default for Replay {
    fn default() -> Self {
        Self { slots: Box::default(), pd: PdId(0), oldest: 0 }
    }
}

impl Replay {
    /// Changes the number of slots. The newest requests and their answers are kept, as many as fit. Returns how many of them are being
    /// answered.
    pub fn resize(&mut self, slots: u8) -> u8 {
        let (had, count) = (self.slots.len(), usize::from(slots));
        if had != count {
            let mut slots = vec![Resource::FREE; count].into_boxed_slice();
            // Filled from the newest backwards, so that slot 0 is the oldest.
            for back in 0..had.min(count) {
                slots[count - 1 - back] = self.slots[(usize::from(self.oldest) + had - 1 - back) % had];
            }
            self.slots = slots;
            self.oldest = 0;
        }
        self.iter().filter(|r| r.pending).count() as u8
    }

    /// Whether the oldest may be replaced: it was answered, or it is being answered again. In that case its requester has the answer,
    /// because it has sent a new request since.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.slots.get(usize::from(self.oldest)).is_some_and(|r| !r.pending || r.replay)
    }

    /// Replaces the oldest request. Returns whether that one was being answered.
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

    /// Index of the oldest request that is being answered, if the `pending` requests that are being answered are the newest.
    #[inline]
    pub fn first_of_newest(&self, pending: u8) -> usize {
        let (oldest, pending) = (usize::from(self.oldest), usize::from(pending));
        if oldest >= pending { oldest - pending } else { oldest + self.slots.len() - pending }
    }

    /// Index of the oldest request that is being answered, for any such requests. Searches all slots.
    #[cold]
    pub fn oldest_pending(&self) -> Option<usize> {
        let slots = self.slots.len();
        (0..slots).map(|i| (usize::from(self.oldest) + i) % slots).find(|&i| self.slots[i].pending)
    }

    /// The request of this kind that uses this PSN, among those before `epsn`.
    pub fn find(&mut self, kind: Kind, psn: Psn, epsn: Psn) -> Option<&mut Resource> {
        self.slots.iter_mut().find(|r| r.kind == kind && r.covers(psn) && r.is_recent(epsn))
    }

    /// Forgets requests that will no longer be recent once `epsn` has advanced by `packets`. Called once for each quarter of the PSN space,
    /// so that no request gets so old that its PSNs seem new.
    #[cold]
    pub fn forget_behind(&mut self, epsn: Psn, packets: u32) {
        let is_old = |r: &Resource| distance(r.last, epsn) + packets > NUMBERS_MAX;
        // A request that was just added is pending, so it is not forgotten.
        for r in self.slots.iter_mut().filter(|r| !r.pending && is_old(r)) {
            r.kind = Kind::Ack;
        }
    }
}
