//! Completion queues.

use std::sync::Arc;
use std::time::Duration;

use stack::device::wqe::Cqe;
use stack::device::{CqCore, CqTap};

use crate::error::{VerbsError, unavailable};
use crate::wc::Wc;

/// A completion queue (`struct ibv_cq`).
///
/// With [`Drive::Caller`](crate::Drive::Caller), a poll that finds nothing drives the shards that feed the queue and polls again, so a
/// program that polls needs no other thread.
#[derive(Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    core: Arc<CqCore>,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>) -> Self {
        Self { core }
    }
    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// How many completions the queue can hold.
    pub fn cqe(&self) -> u32 {
        self.core.cqe()
    }

    /// The queue's number in the device. [`EventElement::Cq`](crate::EventElement::Cq) and [`CqEvent`](crate::CqEvent) contain it.
    pub fn number(&self) -> u32 {
        self.core.state().number()
    }
    /// The queue's [`CqInitAttr::cq_context`](crate::CqInitAttr::cq_context).
    pub fn cq_context(&self) -> u64 {
        self.core.state().context()
    }

    /// Takes up to `wc.len()` completions and returns how many; 0 if there are none. Skips completions of queue pairs that have since been
    /// reset or destroyed.
    ///
    /// # Errors
    /// [`VerbsError::Split`] while a [`CqPoller`] exists; `EDEADLK` on a thread that is reading completions one by one
    /// ([`start_poll`](Self::start_poll)) and has not ended that; [`DeviceError::CqOverrun`](stack::device::DeviceError::CqOverrun) (`EIO`)
    /// if the queue overran and all completions in it have been polled.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, wc: &mut [Wc]) -> Result<usize, VerbsError> {
        let n = {
            let mut tap = self.core.tap().lock().map_err(|why| unavailable("completion queue", why))?;
            poll(&self.core, &mut tap, wc)?
        };
        Ok(found(&self.core, n))
    }

    /// As [`poll`](Self::poll), but passes up to `max` completions to `each`.
    ///
    /// If `each` panics, the panic propagates. The next poll may then repeat up to 16 completions that `each` has already received.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig, QpInitAttr, RcOptions, RecvWr, SendWr, Wc};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
    /// # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
    /// # let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    /// # let mr = pd.reg_mr(4096, access)?;
    /// # let next = || -> Result<Wc, verbs::VerbsError> {
    /// #     let mut wc = [Wc::default()];
    /// #     while cq.poll(&mut wc)? == 0 {}
    /// #     assert!(wc[0].is_ok(), "{}", wc[0].status);
    /// #     Ok(wc[0])
    /// # };
    /// # qp.post_send(&[SendWr::send(7, &[]).inline(b"to nobody yet").signaled()])?;
    /// # qp.post_recv(&[RecvWr::new(8, &[mr.sge(0..64)?])])?;
    /// let mut bytes = 0;
    /// while bytes == 0 {
    ///     cq.poll_with(16, |wc| bytes += wc.byte_len)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Self::poll); `EDEADLK` if `each` polls this queue.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_with(&self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, VerbsError> {
        let n = {
            let mut tap = self.core.tap().lock().map_err(|why| unavailable("completion queue", why))?;
            fill(&self.core, &mut tap, max, |cqe| each(Wc::from_cqe(cqe)))?
        };
        Ok(found(&self.core, n))
    }

    /// Requests one event on the queue's channel: for the next completion, or with `solicited_only` for the next completion that is an
    /// error or is of a message sent with [`SendFlags::SOLICITED`](crate::SendFlags::SOLICITED). If both kinds were requested, any
    /// completion raises the event.
    ///
    /// Completions that are already in the queue raise no event: poll after this call, then wait. If that poll took the completion that
    /// raised the event, the event finds the queue empty.
    ///
    /// # Errors
    /// `EINVAL` for a queue without a channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        Ok(self.core.arm(solicited_only)?)
    }

    /// Acknowledges `n` events that [`CompChannel::get_cq_event`](crate::CompChannel::get_cq_event) returned for this queue. The queue
    /// cannot be destroyed before all its events are acknowledged.
    ///
    /// # Errors
    /// `EINVAL` for more events than were fetched.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_events(&self, n: u32) -> Result<(), VerbsError> {
        Ok(self.core.ack_events(n)?)
    }

    /// Resizes the queue to at least `cqe` entries. The queue may be in use. Waiting completions stay, in order, and do not count against
    /// the new size.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries, for fewer than the completions that wait now (including those that another thread's turn is about to
    /// publish), and for more than [`DeviceAttr::max_cqe`](crate::DeviceAttr::max_cqe); `EIO` if the queue overran; `EBUSY` while a
    /// [`CqPoller`] exists (use [`CqPoller::resize`]); `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        let mut tap = self.core.tap().lock().map_err(|why| unavailable("completion queue", why))?;
        Ok(self.core.resize(&mut tap, cqe)?)
    }

    /// Splits off the lock-free handle. Dropping it gives the queue back to [`poll`](Self::poll).
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig, Wc};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// let cq = context.create_cq(16)?;
    /// // For one thread, without a lock; `cq` itself cannot be polled meanwhile.
    /// let mut poller = cq.poller()?;
    /// let mut wc = [Wc::default(); 16];
    /// assert_eq!(poller.poll(&mut wc)?, 0);
    /// assert!(cq.poll(&mut wc).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`VerbsError::Split`] while another one exists.
    pub fn poller(&self) -> Result<CqPoller, VerbsError> {
        let tap = self.core.tap().take().map_err(|why| unavailable("completion queue", why))?;
        Ok(CqPoller { tap: Some(tap), core: self.core.clone() })
    }

    /// Destroys the completion queue. Its events that were not fetched are dropped. Never waits.
    ///
    /// # Errors
    /// `EBUSY` while queue pairs or a [`CqPoller`] use it, or a completion or asynchronous event of it was fetched and not acknowledged.
    /// The queue is returned with the error.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        CqCore::destroy(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }

    /// As [`destroy`](Self::destroy), but waits up to `timeout` for other threads to acknowledge all events, as ibv_destroy_cq(3) does.
    ///
    /// # Errors
    /// As `destroy`; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy_wait(self, timeout: Duration) -> Result<(), (VerbsError, Self)> {
        CqCore::destroy_wait(self.core, timeout).map_err(|(e, core)| (e.into(), Self { core }))
    }
}

/// The lock-free handle of a completion queue, from [`Cq::poller`].
#[derive(Debug)]
pub struct CqPoller {
    /// Taken only by `drop`.
    tap: Option<CqTap>,
    core: Arc<CqCore>,
}

impl CqPoller {
    /// As [`Cq::poll`], without a lock.
    ///
    /// # Errors
    /// [`DeviceError::CqOverrun`](stack::device::DeviceError::CqOverrun), as [`Cq::poll`].
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self, wc: &mut [Wc]) -> Result<usize, VerbsError> {
        match &mut self.tap {
            Some(tap) => Ok(found(&self.core, poll(&self.core, tap, wc)?)),
            None => Ok(0),
        }
    }

    /// As [`Cq::poll_with`], without a lock.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_with(&mut self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, VerbsError> {
        match &mut self.tap {
            Some(tap) => {
                let n = fill(&self.core, tap, max, |cqe| each(Wc::from_cqe(cqe)))?;
                Ok(found(&self.core, n))
            }
            None => Ok(0),
        }
    }

    /// As [`Cq::req_notify`].
    ///
    /// # Errors
    /// As [`Cq::req_notify`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<(), VerbsError> {
        Ok(self.core.arm(solicited_only)?)
    }

    /// As [`Cq::resize`].
    ///
    /// # Errors
    /// As [`Cq::resize`].
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, cqe: u32) -> Result<(), VerbsError> {
        match &mut self.tap {
            Some(tap) => Ok(self.core.resize(tap, cqe)?),
            None => Err(VerbsError::Split { what: "completion queue" }),
        }
    }
}

impl Drop for CqPoller {
    fn drop(&mut self) {
        if let Some(tap) = self.tap.take() {
            self.core.tap().give_back(tap);
        }
    }
}

/// Ends a poll that found `n` completions and holds no lock any more. If `n` is 0, the thread may sleep. Otherwise datagrams that were
/// posted before are copied out of the program's memory, because the program may conclude from a completion that this has happened.
#[inline]
fn found(core: &CqCore, n: usize) -> usize {
    if n == 0 {
        core.rest();
    } else {
        core.send_unsent();
    }
    n
}

#[inline]
fn poll(core: &CqCore, tap: &mut CqTap, wc: &mut [Wc]) -> Result<usize, VerbsError> {
    let max = wc.len();
    let mut entries = wc.iter_mut();
    fill(core, tap, max, |cqe| {
        if let Some(entry) = entries.next() {
            *entry = Wc::from_cqe(cqe);
        }
    })
}

/// Passes up to `max` completions to `each`. If there are none, drives the shards that feed the queue and polls again.
#[inline]
pub(crate) fn fill(
    core: &CqCore,
    tap: &mut CqTap,
    max: usize,
    mut each: impl FnMut(&Cqe),
) -> Result<usize, VerbsError> {
    // The poll is in a loop so that its code exists once and is inlined.
    let mut next = Next::Turn;
    loop {
        let n = core.poll_with(tap, max, &mut each);
        if n > 0 || max == 0 {
            return Ok(n);
        }
        match next {
            Next::Turn if core.turn_feeders()? => next = Next::Loss,
            // Completions from before the loss may have been published since the last poll.
            Next::Turn | Next::Loss if core.broken() => next = Next::Fail,
            Next::Fail => return Err(core.failure().into()),
            _ => return Ok(0),
        }
    }
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy)]
enum Next {
    /// Drive the shards that feed the queue: they may have completions.
    Turn,
    /// Check whether the queue overran, or whether a shard that feeds it died.
    Loss,
    /// The queue overran or a shard died, and no completion is left.
    Fail,
}
