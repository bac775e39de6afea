//! Shared receive queues.

use core::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use stack::device::{SrqAttr, SrqAttrMask, SrqCore};
use stack::xrc::SrqNumber;

use crate::error::{PostError, PostErrorKind, VerbsError};
use crate::pd::Pd;
use crate::post::stopped;
use crate::wr::RecvWr;

/// Attributes of a shared receive queue (`struct ibv_srq_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqInitAttr {
    /// The sizes, and the limit to arm at creation (0: none).
    pub attr: SrqAttr,
}

impl SrqInitAttr {
    /// Room for `max_wr` requests of up to `max_sge` elements, no limit armed.
    pub const fn new(max_wr: u32, max_sge: u32) -> Self {
        Self { attr: SrqAttr { max_wr, max_sge, srq_limit: 0 } }
    }
}

/// A shared receive queue (`struct ibv_srq`): receive requests for all queue pairs that were made with it
/// ([`QpInitAttr::srq`](crate::QpInitAttr::srq)), on whichever shards they are.
///
/// A message takes the oldest request, whichever queue pair it is for; the completion goes to that queue pair's receive
/// completion queue. The buffers are of the queue's protection domain. When the queue is empty, reliable senders get an RNR
/// NAK and unreliable messages are dropped.
///
/// A request leaves the queue when a message takes it. When a queue pair enters ERR, the request that it holds completes in
/// error, those in the queue stay, and `QP_LAST_WQE_REACHED` reports that it takes no more of them. RESET and destruction of
/// a queue pair end the request that it holds without a completion.
#[derive(Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    core: Arc<SrqCore>,
    /// What keeps its number from others in an XRC domain that processes share. Dropped after the queue.
    number: Option<Arc<SrqNumber>>,
}

impl Pd {
    /// Creates a shared receive queue. Its `max_wr` is exactly the one requested.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig, QpInitAttr, RcOptions, RecvWr, SendWr, SrqInitAttr, Wc};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
    /// // Receives for any number of queue pairs.
    /// let srq = pd.create_srq(&SrqInitAttr::new(64, 1))?;
    /// let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).srq(&srq))?;
    /// # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
    /// srq.post_recv(&[RecvWr::new(1, &[mr.sge(0..64)?])])?;
    /// qp.post_send(&[SendWr::send(2, &[]).inline(b"hello")])?;
    /// let mut wc = [Wc::default()];
    /// while cq.poll(&mut wc)? == 0 {}
    /// assert_eq!((wc[0].wr_id, wc[0].qp_num), (1, qp.qp_num()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for sizes of 0 or above the device's limits ([`DeviceAttr`](crate::DeviceAttr)) and for a limit above
    /// the size; `ENOMEM` when the device has no more queues.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: &SrqInitAttr) -> Result<Srq, VerbsError> {
        Ok(Srq::new(self.core().create_srq(&init.attr, None)?))
    }
}

impl Srq {
    pub(crate) fn new(core: Arc<SrqCore>) -> Self {
        Self { core, number: None }
    }
    pub(crate) fn of_shared_domain(core: Arc<SrqCore>, number: SrqNumber) -> Self {
        Self { core, number: Some(Arc::new(number)) }
    }
    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.core
    }
    pub(crate) fn again(&self) -> Self {
        Self { core: self.core.clone(), number: self.number.clone() }
    }

    /// Its number in the device, as in [`EventElement::Srq`](crate::EventElement::Srq). XRC senders name the queue by it
    /// ([`SendWr::remote_srqn`](crate::SendWr::remote_srqn)).
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_num(&self) -> u32 {
        self.core.number()
    }

    /// Posts a list of receive requests, in order: a slice, or what any iterator yields, as
    /// [`Qp::post_send`](crate::Qp::post_send). They are visible to the shards together, when the call returns.
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that was not posted; those before it were. `EINVAL` for lists
    /// beyond the limit, `ENOMEM` when the queue is full, `EDEADLK` from an iterator that posts to this queue itself.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item: Borrow<RecvWr<'w>>>) -> Result<(), PostError> {
        let Ok(mut poster) = self.core.poster() else {
            return Err(PostError { bad_wr: 0, kind: PostErrorKind::InsideCall });
        };
        let mut batch = poster.begin();
        let result = wrs.into_iter().try_for_each(|wr| {
            let wr = wr.borrow();
            wr.check(self.core.max_sge())?;
            Ok(batch.put(|slot| wr.encode(slot, 0))?)
        });
        let result = result.map_err(|kind| stopped(batch.requests(), kind));
        batch.post();
        result
    }

    /// Changes the attributes that the mask names, all of them or none: arms the limit (0: disarms it), resizes the queue.
    /// Requests that wait in it stay, in order.
    ///
    /// If fewer requests than the limit wait when the limit is armed, the event comes with the next message, not at once.
    ///
    /// # Errors
    /// `EINVAL` for a limit above the size, for a size of 0, above the device's
    /// ([`DeviceAttr::max_srq_wr`](crate::DeviceAttr::max_srq_wr)), below the armed limit or below the number of waiting
    /// requests, for unknown mask bits; `EDEADLK` from inside a turn, and from an iterator of a list that is being posted to
    /// the queue.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), VerbsError> {
        Ok(self.core.modify(attr, mask)?)
    }

    /// The sizes, and the limit that is armed: 0 after its event.
    ///
    /// # Errors
    /// `EDEADLK` from an iterator of a list that is being posted to the queue.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr, VerbsError> {
        Ok(self.core.query()?)
    }

    /// Requests that wait in the queue at this moment.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn waiting(&self) -> Result<u32, VerbsError> {
        Ok(self.core.poster()?.waiting())
    }

    /// Destroys the queue. Requests that wait in it end without completions. An XRC queue can always be destroyed: requests
    /// that name it later are refused.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses it or an asynchronous event of it was fetched and not acknowledged, `EDEADLK` from
    /// inside a turn; the queue comes back with the error.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let Self { core, number } = self;
        SrqCore::destroy(core).map_err(|(e, core)| (e.into(), Self { core, number }))
    }

    /// As [`destroy`](Self::destroy), but waits until other threads have acknowledged all events, as ibv_destroy_srq(3) does,
    /// for at most `timeout`.
    ///
    /// # Errors
    /// As `destroy`.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy_wait(self, timeout: Duration) -> Result<(), (VerbsError, Self)> {
        let Self { core, number } = self;
        SrqCore::destroy_wait(core, timeout).map_err(|(e, core)| (e.into(), Self { core, number }))
    }
}
