//! Shared receive queues: any number of queue pairs, on any shards, take requests from one.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::cq::CqCore;
use super::error::DeviceError;
use super::handle::Device;
use super::inside_turn::not_inside_turn;
use super::pd::PdCore;
use super::posting::Full;
use super::xrcd::XrcdCore;
use crate::config::{QUEUE_DEPTH_MAX, SGE_MAX};
use crate::proto::wqe::{Granule, recv_stride};
use crate::shard::{EventElement, SrqEnd, XrcSrq, srq_words};
use crate::sync::exclusive::{Exclusive, Locked};
use crate::sync::lock::lock;
use crate::sync::srq;

/// Attributes of a shared receive queue (`struct ibv_srq_attr`).
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqAttr {
    /// Number of requests that may wait in it.
    pub max_wr: u32,
    /// Scatter/gather elements of a request.
    pub max_sge: u32,
    /// The limit event is raised once, when a message leaves fewer requests than this; 0 disables it.
    pub srq_limit: u32,
}

bitflags::bitflags! {
    /// The attributes that [`SrqCore::modify`] changes (`enum ibv_srq_attr_mask`).
    #[doc(alias = "ibv_srq_attr_mask")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SrqAttrMask: u32 {
        /// `max_wr`: resize.
        const MAX_WR = 1;
        /// `srq_limit`: arm the limit event, or disarm it.
        const LIMIT = 1 << 1;
    }
}

/// The parameters of an XRC shared receive queue: senders name it by its number.
#[derive(Clone, Copy, Debug)]
pub struct XrcSrqInit<'a> {
    /// Its XRC domain.
    pub xrcd: &'a Arc<XrcdCore>,
    /// The completion queue of its receive requests.
    pub cq: &'a Arc<CqCore>,
    /// Its number, if processes share the domain and have agreed on the number; if absent, one that is free in the device.
    pub number: Option<u32>,
}

#[derive(Debug)]
struct Xrc {
    xrcd: Arc<XrcdCore>,
    cq: Arc<CqCore>,
}

/// The posting end of a shared receive queue.
pub struct SrqPoster {
    ring: srq::Poster,
    /// Buffer in which a request is encoded before its words are stored.
    entry: Box<[Granule]>,
}

impl SrqPoster {
    /// Begins a post.
    #[inline]
    pub fn begin(&mut self) -> SrqBatch<'_> {
        SrqBatch { poster: self, put: 0 }
    }
    /// Number of requests that may wait.
    pub fn depth(&self) -> u32 {
        self.ring.capacity()
    }
    /// Number of requests that wait.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting()
    }
}

impl fmt::Debug for SrqPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(f)
    }
}

/// Requests that are being posted to a shared receive queue, as in [`Batch`](super::Batch). They belong to no epoch and need no doorbell:
/// shards read the queue when a message arrives. If the batch is dropped, nothing is posted.
#[must_use = "nothing is posted without post()"]
#[derive(Debug)]
pub struct SrqBatch<'q> {
    poster: &'q mut SrqPoster,
    put: u32,
}

impl SrqBatch<'_> {
    /// Number of requests in the batch.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.put
    }
    /// Adds a request, which `write` encodes.
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub fn put(&mut self, write: impl FnOnce(&mut [Granule])) -> Result<(), Full> {
        let SrqPoster { ring, entry } = &mut *self.poster;
        write(entry);
        let words = <[u64]>::ref_from_bytes(entry.as_bytes()).expect("granules are whole words");
        if !ring.put(self.put, words) {
            return Err(Full { depth: ring.capacity() });
        }
        self.put += 1;
        Ok(())
    }
    /// Posts all requests of the batch at once.
    #[inline]
    pub fn post(self) {
        self.poster.ring.publish(self.put);
    }
}

/// A shared receive queue. Its queue pairs hold references to it.
pub struct SrqCore {
    pd: Arc<PdCore>,
    number: u32,
    max_sge: u32,
    poster: Exclusive<SrqPoster>,
    xrc: Option<Xrc>,
}

fn within(what: &'static str, given: u32, min: u32, max: u32) -> Result<(), DeviceError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(DeviceError::Range { what, given: given.into(), min: min.into(), max: max.into() })
}

impl PdCore {
    /// Creates a shared receive queue of exactly `max_wr` requests.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`]; for an XRC queue also [`DeviceError::Foreign`], and
    /// [`DeviceError::Busy`] for a number in use.
    pub fn create_srq(
        self: &Arc<Self>,
        attr: &SrqAttr,
        xrc: Option<XrcSrqInit<'_>>,
    ) -> Result<Arc<SrqCore>, DeviceError> {
        SrqCore::new(self.clone(), attr, xrc)
    }
}

impl SrqCore {
    pub(super) fn new(
        pd: Arc<PdCore>,
        attr: &SrqAttr,
        xrc: Option<XrcSrqInit<'_>>,
    ) -> Result<Arc<Self>, DeviceError> {
        not_inside_turn()?;
        let device = pd.device();
        if let Some(xrc) = &xrc {
            if !Arc::ptr_eq(xrc.xrcd.device(), device) {
                return Err(DeviceError::Foreign { what: "XRC domain" });
            }
            if !Arc::ptr_eq(xrc.cq.device(), device) {
                return Err(DeviceError::Foreign { what: "completion queue" });
            }
        }
        within("max_wr", attr.max_wr, 1, QUEUE_DEPTH_MAX)?;
        within("max_sge", attr.max_sge, 0, SGE_MAX as u32)?;
        within("srq_limit", attr.srq_limit, 0, attr.max_wr)?;
        let max_sge = attr.max_sge.max(1);
        let (mut ring, _) = srq::queue(attr.max_wr, srq_words(max_sge as usize));
        ring.arm(attr.srq_limit);
        let entry = vec![Granule::default(); recv_stride(max_sge as usize)].into_boxed_slice();
        let number = {
            let mut numbers = lock(&device.srqs);
            match xrc.and_then(|xrc| xrc.number) {
                Some(number) => numbers.take_this(number)?,
                None => numbers.take()?,
            }
        };
        let xrc = xrc.map(|xrc| Xrc { xrcd: xrc.xrcd.clone(), cq: xrc.cq.clone() });
        let srq = Arc::new(Self {
            pd,
            number,
            max_sge,
            poster: Exclusive::new(Some(SrqPoster { ring, entry })),
            xrc,
        });
        srq.attach()?;
        Ok(srq)
    }

    /// Attaches an XRC queue to every shard: a target may be on any of them.
    fn attach(&self) -> Result<(), DeviceError> {
        let Some(xrc) = &self.xrc else { return Ok(()) };
        for shard in 0..self.device().shards() {
            let lane = match xrc.cq.lane(shard) {
                Err(DeviceError::ShardDied { .. }) => continue,
                lane => lane?,
            };
            let srq = XrcSrq { xrcd: xrc.xrcd.id(), end: self.end()?, lane };
            self.device().core().control_living(shard, |s, _| s.attach_srq(srq))?;
        }
        Ok(())
    }

    /// Whether it is an XRC shared receive queue.
    pub fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }
    /// The protection domain of its buffers.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// Its number in the device, 24 bits and not 0.
    pub fn number(&self) -> u32 {
        self.number
    }
    /// Scatter/gather elements of a request, as granted.
    #[inline]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// The posting end.
    ///
    /// # Errors
    /// [`DeviceError::InsideCall`].
    #[inline]
    pub fn poster(&self) -> Result<Locked<'_, SrqPoster>, DeviceError> {
        // The poster is never taken for good, so a refusal means that this thread already has it.
        self.poster.lock().map_err(|_| DeviceError::InsideCall { object: "shared receive queue" })
    }
    /// The consumer end, for a shard.
    pub(super) fn end(&self) -> Result<SrqEnd, DeviceError> {
        Ok(SrqEnd { number: self.number, pd: self.pd.id(), taker: self.poster()?.ring.taker() })
    }

    /// The current attributes: a limit that was reached is 0.
    ///
    /// # Errors
    /// [`DeviceError::InsideCall`].
    pub fn query(&self) -> Result<SrqAttr, DeviceError> {
        let poster = self.poster()?;
        Ok(SrqAttr { max_wr: poster.depth(), max_sge: self.max_sge, srq_limit: poster.ring.limit() })
    }

    /// Changes the attributes that the mask names: all of them, or none.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for a size of 0, above the device's limit, below the number of waiting requests or below the armed limit, for
    /// a limit above the size, and for mask bits that name no attribute; [`DeviceError::InsideTurn`], [`DeviceError::InsideCall`].
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), DeviceError> {
        not_inside_turn()?;
        let unknown = mask.bits() & !SrqAttrMask::all().bits();
        if unknown != 0 {
            let (given, max) = (mask.bits().into(), SrqAttrMask::all().bits().into());
            return Err(DeviceError::Range { what: "srq_attr_mask", given, min: 0, max });
        }
        {
            let mut poster = self.poster()?;
            let resize = mask.contains(SrqAttrMask::MAX_WR);
            let size = if resize { attr.max_wr } else { poster.depth() };
            let limit = if mask.contains(SrqAttrMask::LIMIT) { attr.srq_limit } else { poster.ring.limit() };
            if resize {
                within("max_wr", size, limit.max(1), QUEUE_DEPTH_MAX)?;
            }
            within("srq_limit", limit, 0, size)?;
            if resize && size != poster.depth() {
                poster.ring.resize(size).map_err(|waiting| DeviceError::Range {
                    what: "max_wr, with the requests that wait,",
                    given: size.into(),
                    min: waiting.into(),
                    max: QUEUE_DEPTH_MAX.into(),
                })?;
            }
            if mask.contains(SrqAttrMask::LIMIT) {
                poster.ring.arm(limit);
            }
        }
        if mask.contains(SrqAttrMask::MAX_WR) {
            // Consumers switch to the new ring by themselves; this frees the old one.
            for shard in 0..self.device().shards() {
                self.device().core().control_living(shard, |s, _| s.refresh_srqs())?;
            }
        }
        Ok(())
    }

    /// Frees the queue. Requests that wait in it end without completions.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while queue pairs use it (an XRC queue is only named by its senders, which is no use in this sense),
    /// [`DeviceError::Unacked`], [`DeviceError::InsideTurn`], [`DeviceError::Forked`]. The queue is returned with the error.
    pub fn destroy(srq: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = not_inside_turn().and_then(|()| srq.device().core().not_forked()) {
            return Err((e, srq));
        }
        let srq = Arc::try_unwrap(srq).map_err(|srq| {
            let users = Arc::strong_count(&srq) - 1;
            (DeviceError::Busy { object: "shared receive queue", users }, srq)
        })?;
        match srq.device().core().shared.events.retire(srq.element()) {
            Ok(()) => {
                drop(srq);
                Ok(())
            }
            Err(events) => {
                Err((DeviceError::Unacked { object: "shared receive queue", events }, Arc::new(srq)))
            }
        }
    }

    /// As [`destroy`](Self::destroy), but waits until its events are acknowledged, for at most `timeout`.
    ///
    /// # Errors
    /// As `destroy`.
    pub fn destroy_wait(srq: Arc<Self>, timeout: Duration) -> Result<(), (DeviceError, Arc<Self>)> {
        let (device, element) = (srq.device().clone(), srq.element());
        device.destroy_wait(timeout, srq, Self::destroy, || device.core().shared.events.unacked(element))
    }

    fn element(&self) -> EventElement {
        EventElement::Srq(self.number)
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        if self.device().is_forked() {
            return;
        }
        if self.xrc.is_some() {
            for shard in 0..self.device().shards() {
                // Refused only inside a turn, where no user's handle is dropped.
                let _ = self.device().core().control(shard, |s, _| s.detach_srq(self.number));
            }
        }
        let events = &self.device().core().shared.events;
        events.purge(self.element());
        events.forget(self.element());
        lock(&self.device().srqs).put_back(self.number);
    }
}

impl fmt::Debug for SrqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqCore").field("number", &self.number).finish_non_exhaustive()
    }
}
