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
    /// Attributes of a queue with room for `max_wr` requests of up to `max_sge` elements, and no limit armed.
    pub const fn new(max_wr: u32, max_sge: u32) -> Self {
        Self { attr: SrqAttr { max_wr, max_sge, srq_limit: 0 } }
    }
}

/// A shared receive queue (`struct ibv_srq`): receive requests for all queue pairs that were created with it
/// ([`QpInitAttr::srq`](crate::QpInitAttr::srq)), on any shard.
///
/// A message takes the oldest request, no matter which of the queue pairs receives it. The completion goes to the receive completion queue
/// of that queue pair. The buffers belong to the protection domain of the shared receive queue. If the queue is empty, reliable senders get
/// an RNR NAK and unreliable messages are dropped.
///
/// A request leaves the queue when a message takes it. When a queue pair enters ERR, the request that it holds completes in error, and
/// `QP_LAST_WQE_REACHED` reports that it takes no more requests; those in the queue stay. If a queue pair is reset or destroyed, the
/// request that it holds ends without a completion.
#[derive(Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    core: Arc<SrqCore>,
    /// Reserves its number among the processes that share its XRC domain. Dropped after the queue.
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
    /// `EINVAL` for sizes of 0 or above the device's limits ([`DeviceAttr`](crate::DeviceAttr)), and for a limit above the size; `ENOMEM`
    /// if the device has no more queues.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: &SrqInitAttr) -> Result<Srq, VerbsError> {
        Ok(Srq::new(self.core().create_srq(&init.attr, None)?))
    }
}

impl Srq {
    pub(crate) fn new(core: Arc<SrqCore>) -> Self {
        Self { core, number: None }
    }
    /// A queue of a shared XRC domain, with its reserved number.
    pub(crate) fn of_shared_domain(core: Arc<SrqCore>, number: SrqNumber) -> Self {
        Self { core, number: Some(Arc::new(number)) }
    }
    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.core
    }
    /// Another handle of the same queue.
    pub(crate) fn again(&self) -> Self {
        Self { core: self.core.clone(), number: self.number.clone() }
    }

    /// The queue's number in the device, as in [`EventElement::Srq`](crate::EventElement::Srq). XRC senders name the queue by this number
    /// ([`SendWr::remote_srqn`](crate::SendWr::remote_srqn)).
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_num(&self) -> u32 {
        self.core.number()
    }

    /// Posts a list of receive requests, in order. The list is a slice or any iterator, as in [`Qp::post_send`](crate::Qp::post_send). All
    /// requests of the list become visible to the shards together, when the call returns.
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that was not posted; those before it were. `EINVAL` for lists beyond the limit;
    /// `ENOMEM` if the queue is full; `EDEADLK` from an iterator that posts to this queue itself.
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

    /// Changes all attributes that the mask names, or none of them: arms the limit (0 disarms it), resizes the queue. Waiting requests
    /// stay, in order.
    ///
    /// If fewer requests than the limit are in the queue when the limit is armed, the event is raised at the next message, not at once.
    ///
    /// # Errors
    /// `EINVAL` for a limit above the size; for a size of 0, above [`DeviceAttr::max_srq_wr`](crate::DeviceAttr::max_srq_wr), below the
    /// armed limit or below the number of waiting requests; and for unknown mask bits. `EDEADLK` from inside a turn, and from an iterator
    /// of a list that is being posted to the queue.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), VerbsError> {
        Ok(self.core.modify(attr, mask)?)
    }

    /// The sizes and the armed limit. The limit is 0 if none is armed, and after its event.
    ///
    /// # Errors
    /// `EDEADLK` from an iterator of a list that is being posted to the queue.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr, VerbsError> {
        Ok(self.core.query()?)
    }

    /// How many requests are in the queue now.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn waiting(&self) -> Result<u32, VerbsError> {
        Ok(self.core.poster()?.waiting())
    }

    /// Destroys the queue. Requests in it end without completions. The queue of an XRC domain can be destroyed at any time: requests that
    /// name it later are refused.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses it, or an asynchronous event of it was fetched and not acknowledged; `EDEADLK` from inside a turn.
    /// The queue is returned with the error.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let Self { core, number } = self;
        SrqCore::destroy(core).map_err(|(e, core)| (e.into(), Self { core, number }))
    }

    /// As [`destroy`](Self::destroy), but waits up to `timeout` for other threads to acknowledge all events, as ibv_destroy_srq(3) does.
    ///
    /// # Errors
    /// As `destroy`.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy_wait(self, timeout: Duration) -> Result<(), (VerbsError, Self)> {
        let Self { core, number } = self;
        SrqCore::destroy_wait(core, timeout).map_err(|(e, core)| (e.into(), Self { core, number }))
    }
}
