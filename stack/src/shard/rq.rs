//! The source of a queue pair's receive requests: its own ring, or a shared receive queue.

use core::ops::Range;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::cq::LaneId;
use super::events::EventElement;
use super::shared::Shared;
use crate::config::SGE_MAX;
use crate::id::{PdId, Qpn};
use crate::mem::sge;
use crate::proto::responder::ReceiveSource;
use crate::proto::status::AsyncEvent;
use crate::proto::wqe::{GRANULE, Granule, RecvWqe, recv_stride};
use crate::sync::spsc::Consumer;
use crate::sync::srq::Taker;

/// The source of a queue pair's receive requests.
#[derive(Debug)]
pub enum RecvSource {
    /// Its own ring.
    Own(Consumer<Granule>),
    /// A shared receive queue.
    Shared(SrqEnd),
    /// For an XRC target: the XRC shared receive queue of this domain that each message names.
    Named {
        /// The XRC domain.
        xrcd: u32,
        /// The queue pair belongs to the domain, and no user has a handle of it: its events go to the log.
        ownerless: bool,
        /// The queue pair is the shadow of this target in another process: its completions name that target.
        shadows: Option<Qpn>,
    },
    /// None: an XRC initiator receives no messages.
    Nowhere,
}

impl RecvSource {
    /// The address range of its own ring, if it has one.
    pub(super) fn memory(&self) -> Option<Range<usize>> {
        if let Self::Own(ring) = self { Some(ring.memory()) } else { None }
    }
}

impl From<Consumer<Granule>> for RecvSource {
    fn from(ring: Consumer<Granule>) -> Self {
        Self::Own(ring)
    }
}

/// The consumer end of a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqEnd {
    /// Its number in the device.
    pub number: u32,
    /// The protection domain of its buffers.
    pub pd: PdId,
    /// The consumer of its entries; each entry is a [`RecvWqe`] and a scatter/gather list.
    pub taker: Taker,
}

/// An XRC shared receive queue, as a shard sees it.
#[derive(Debug)]
pub struct XrcSrq {
    /// Its XRC domain.
    pub xrcd: u32,
    /// Its consumer end, with its number.
    pub end: SrqEnd,
    /// The shard's lane to its completion queue.
    pub lane: LaneId,
}

/// The receive queue of a queue pair: requests are taken in order, one at a time.
#[derive(Debug)]
pub(super) enum Rq {
    Own(OwnRq),
    Shared(Box<SharedRq>),
}

#[derive(Debug)]
pub(super) struct OwnRq {
    ring: Consumer<Granule>,
    /// Sequence number behind the last request taken.
    taken: u32,
    epoch: u32,
}

#[derive(Debug)]
pub(super) struct SharedRq {
    /// `None` for an XRC target until a message has named a queue.
    end: Option<SrqEnd>,
    /// A copy of the last entry taken; its slot has been free since.
    current: [Granule; CURRENT],
    shared: Arc<Shared>,
    /// The XRC domain, for an XRC target.
    xrcd: Option<u32>,
    /// The target that this queue pair is the shadow of.
    shadows: Option<Qpn>,
}

const CURRENT: usize = recv_stride(SGE_MAX);
/// Number of 64-bit words in an entry of a shared receive queue with `max_sge` scatter/gather elements.
pub const fn srq_words(max_sge: usize) -> usize {
    recv_stride(max_sge) * GRANULE / size_of::<u64>()
}

impl Rq {
    pub fn new(source: RecvSource, epoch: u32, shared: &Arc<Shared>) -> Self {
        let (end, xrcd, shadows) = match source {
            RecvSource::Own(ring) => return Self::Own(OwnRq { taken: ring.released(), ring, epoch }),
            RecvSource::Shared(end) => (Some(end), None, None),
            RecvSource::Named { xrcd, shadows, .. } => (None, Some(xrcd), shadows),
            RecvSource::Nowhere => (None, None, None),
        };
        let current = [Granule::default(); CURRENT];
        Self::Shared(Box::new(SharedRq { end, current, shared: shared.clone(), xrcd, shadows }))
    }

    /// Number of requests that can be taken. `None` for a queue shared with other queue pairs: the peer is given no limit (IBA 9.7.7.2: a
    /// queue pair on a shared receive queue grants no credits).
    #[inline]
    pub fn credits(&self) -> Option<u32> {
        match self {
            Self::Own(own) => Some(own.ring.published().wrapping_sub(own.taken)),
            Self::Shared(_) => None,
        }
    }
    /// Its own ring, and the sequence number of the next request to take.
    #[inline]
    pub fn own(&self) -> Option<(&Consumer<Granule>, u32)> {
        match self {
            Self::Own(own) => Some((&own.ring, own.taken)),
            Self::Shared(_) => None,
        }
    }
    /// The last request taken.
    #[inline(always)]
    pub fn current(&self) -> &[Granule] {
        match self {
            Self::Own(own) => own.ring.slot(own.taken.wrapping_sub(1)),
            Self::Shared(shared) => &shared.current,
        }
    }
    /// Whether it has no ring of its own: it takes requests from a shared receive queue, or from none.
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// For a queue pair in ERR: takes the next request of its own ring. Entries of a shared receive queue stay.
    pub fn take_to_flush(&mut self) -> Option<RecvWqe> {
        let Self::Own(own) = self else { return None };
        while own.taken != own.ring.published() {
            let wqe = *RecvWqe::of(own.ring.slot(own.taken));
            own.taken = own.taken.wrapping_add(1);
            if wqe.epoch == own.epoch {
                return Some(wqe);
            }
        }
        None
    }

    /// RESET: discards the requests of its own ring, and a request that was taken from a shared receive queue.
    pub fn reset(&mut self, epoch: u32) {
        match self {
            Self::Own(own) => {
                own.taken = own.ring.published();
                own.epoch = epoch;
                own.ring.release_to(own.taken);
            }
            Self::Shared(shared) => {
                if shared.xrcd.is_some() {
                    shared.end = None;
                }
            }
        }
    }

    /// Sequence number behind the last request posted to its own ring; 0 without one.
    pub fn published(&self) -> u32 {
        if let Self::Own(own) = self { own.ring.published() } else { 0 }
    }
    /// Sequence number of the oldest slot of its own ring that was not released to the poster; 0 without a ring.
    pub fn released(&self) -> u32 {
        if let Self::Own(own) = self { own.ring.released() } else { 0 }
    }

    /// Releases the slots of completed requests to the poster. The last `kept` requests taken keep their slots: their completions are not
    /// visible yet.
    #[inline]
    pub fn release(&mut self, kept: u32) {
        if let Self::Own(own) = self {
            own.ring.release_to(own.taken.wrapping_sub(kept));
        }
    }

    /// The XRC domain of an XRC target.
    pub fn xrcd(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.xrcd,
        }
    }
    /// The target that this XRC target is a shadow of.
    pub fn shadows(&self) -> Option<Qpn> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.shadows,
        }
    }
    /// The number of the shared receive queue that requests are taken from.
    pub fn srq_number(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.end.as_ref().map(|end| end.number),
        }
    }
    /// Sets the shared receive queue that an XRC target takes requests from; `None` for none.
    pub fn attach(&mut self, end: Option<SrqEnd>) {
        if let Self::Shared(shared) = self {
            shared.end = end;
        }
    }
    /// Follows a resize of a shared receive queue.
    pub fn refresh(&mut self) {
        if let Self::Shared(shared) = self
            && let Some(end) = &mut shared.end
        {
            end.taker.refresh();
        }
    }
}

impl ReceiveSource for Rq {
    #[inline(always)]
    fn take(&mut self) -> Option<u64> {
        match self {
            Self::Own(own) => own.take(),
            Self::Shared(shared) => shared.take(),
        }
    }
}

impl OwnRq {
    #[inline(always)]
    fn take(&mut self) -> Option<u64> {
        while let Some(slot) = self.ring.get(self.taken) {
            let at = self.taken;
            self.taken = at.wrapping_add(1);
            if RecvWqe::of(slot).epoch == self.epoch {
                return Some(match RecvWqe::sges(slot) {
                    [sge] => u64::from(sge.length),
                    sges => sge::total(sges),
                });
            }
            self.skip(at);
        }
        None
    }

    /// Skips a request that was posted under an earlier epoch, in a race with a RESET. No completion will free its slot: the slot is freed
    /// here if it is the oldest in use, otherwise together with the slots before it.
    #[cold]
    fn skip(&mut self, at: u32) {
        if self.ring.released() == at {
            self.ring.release_to(at.wrapping_add(1));
        }
    }
}

impl SharedRq {
    #[inline(never)]
    fn take(&mut self) -> Option<u64> {
        let end = self.end.as_mut()?;
        let words = <[u64]>::mut_from_bytes(self.current.as_mut_bytes()).expect("granules are whole words");
        if end.taker.take(words)?.limit_reached {
            self.shared.events.raise(AsyncEvent::SrqLimitReached, EventElement::Srq(end.number));
        }
        Some(sge::total(RecvWqe::sges(&self.current)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::sequences::sequences;
    use crate::sync::spsc::{Producer, ring, ring_at};
    use std::collections::VecDeque;

    fn post(posts: &mut Producer<Granule>, epoch: u32) -> bool {
        let Some(slot) = posts.slot(0) else { return false };
        RecvWqe { wr_id: 0, epoch, num_sge: 0 }.put(slot);
        posts.publish(1);
        true
    }

    // A ring of one slot: a request that raced with a RESET leaves its slot to the next one.
    #[test]
    fn a_request_of_an_earlier_epoch_does_not_keep_its_slot() {
        let (mut posts, taken) = ring(1, recv_stride(1));
        let mut rq = OwnRq { taken: 0, ring: taken, epoch: 1 };
        assert!(post(&mut posts, 0));
        assert_eq!(rq.take(), None);
        assert!(posts.free() == 1 && post(&mut posts, 1), "there is room");
        assert_eq!(rq.take(), Some(0));
        assert!(!post(&mut posts, 1), "one is taken and not complete");
    }

    /// A model of a receive queue: requests that are posted and not released, some of them taken.
    #[derive(Default)]
    struct Model {
        /// Numbers and epochs of the requests.
        ring: VecDeque<(u64, u32)>,
        taken: usize,
    }

    impl Model {
        /// Takes the next request of this epoch; slots of earlier epochs are free as soon as no older slot is in use.
        fn take(&mut self, epoch: u32, free_skipped: bool) -> Option<u64> {
            while let Some(&(id, posted)) = self.ring.get(self.taken) {
                self.taken += 1;
                if posted == epoch {
                    return Some(id);
                }
                if free_skipped && self.taken == 1 {
                    self.release(0);
                }
            }
            None
        }
        /// Completes all taken requests except the last `keep`.
        fn release(&mut self, keep: usize) {
            self.ring.drain(..self.taken - keep);
            self.taken = keep;
        }
    }

    // Every short sequence of operations of a poster and a shard on a queue, across the wrap of the sequence numbers.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for the interpreter")]
    fn every_short_history_matches_a_list() {
        for (slots, start) in
            [1, 2, 4].into_iter().flat_map(|slots| [0, u32::MAX, u32::MAX - 2].map(|s| (slots, s)))
        {
            sequences(7, 7).for_each(|history| replay(slots, start, history));
        }
    }

    fn replay(slots: u32, start: u32, history: impl Iterator<Item = usize> + Clone) {
        let (mut posts, ring) = ring_at(slots, recv_stride(1), start);
        let mut epoch = u32::MAX;
        let mut rq = Rq::Own(OwnRq { taken: ring.released(), ring, epoch });
        let (mut model, mut id) = (Model::default(), 0);
        let told = || format!("{:?} in {slots} slots from {start:#x}", history.clone().collect::<Vec<_>>());
        for op in history.clone() {
            match op {
                // Posts a request of the current epoch, or of an earlier one.
                0 | 1 => {
                    let epoch = epoch.wrapping_sub(op as u32);
                    let room = model.ring.len() < slots as usize;
                    assert_eq!(posts.slot(0).is_some(), room, "{}", told());
                    if let Some(slot) = posts.slot(0) {
                        RecvWqe { wr_id: id, epoch, num_sge: 0 }.put(slot);
                        posts.publish(1);
                        model.ring.push_back((id, epoch));
                        id += 1;
                    }
                }
                2 => {
                    let expected = model.take(epoch, true);
                    assert_eq!(rq.take().is_some(), expected.is_some(), "{}", told());
                    if let Some(expected) = expected {
                        assert_eq!(RecvWqe::of(rq.current()).wr_id, expected, "{}", told());
                    }
                }
                3 | 4 => {
                    let holds = op == 4 && model.taken > 0;
                    rq.release(u32::from(holds));
                    model.release(usize::from(holds));
                }
                5 => {
                    let expected = model.take(epoch, false);
                    assert_eq!(rq.take_to_flush().map(|wqe| wqe.wr_id), expected, "{}", told());
                }
                _ => {
                    epoch = epoch.wrapping_add(1);
                    rq.reset(epoch);
                    model = Model::default();
                }
            }
        }
        let waiting = model.ring.len() - model.taken;
        assert_eq!(rq.credits(), Some(waiting as u32), "{}", told());
        assert_eq!(rq.published().wrapping_sub(rq.released()) as usize, model.ring.len(), "{}", told());
        assert_eq!(posts.in_use() as usize, model.ring.len(), "{}", told());
    }

    // The slot of a skipped request waits for the one before it, which is not complete.
    #[test]
    fn a_request_of_an_earlier_epoch_passes_nobody() {
        let (mut posts, taken) = ring(2, recv_stride(1));
        let mut rq = OwnRq { taken: 0, ring: taken, epoch: 1 };
        assert!(post(&mut posts, 1) && post(&mut posts, 0));
        assert_eq!((rq.take(), rq.take()), (Some(0), None));
        assert_eq!(posts.free(), 0);
    }
}
