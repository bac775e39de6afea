//! Queue pairs, and their lock-free posting handles.

use core::borrow::Borrow;
use core::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use stack::device::{
    AttrMask, CounterSnapshot, Gid, MwType, PdCore, Policies, Psn, QpAttr, QpCap, QpCore, QpInit, QpState,
    QpType, Qpn, RecvPoster, SendPoster, Unavailable, prefetch_line,
};

use crate::cq::Cq;
use crate::error::{BindError, PostError, PostErrorKind, VerbsError, unavailable};
use crate::flags::SendOpsFlags;
use crate::mw::{Mw, MwBind};
use crate::pd::Pd;
use crate::post::{refused, stopped};
use crate::srq::Srq;
use crate::wr::{RecvWr, SendLimits, SendWr};

/// Attributes of a queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr<'a> {
    /// Transport service type.
    pub qp_type: QpType,
    /// The completion queue of send requests.
    pub send_cq: &'a Cq,
    /// The completion queue of receive requests; may be the same one. Not used by an XRC initiator.
    pub recv_cq: &'a Cq,
    /// A shared receive queue to take receive requests from, instead of a receive queue of its own; for RC, UC and UD. The receive sizes of
    /// `cap` are then ignored, and 0 is granted.
    pub srq: Option<&'a Srq>,
    /// Sizes of the send and receive queues.
    pub cap: QpCap,
    /// Whether every send request generates a completion.
    pub sq_sig_all: bool,
    /// The shard that will own the queue pair. If `None`, it is the shard of the thread domain ([`Td`](crate::Td)), or else the least
    /// loaded shard.
    pub shard: Option<usize>,
    /// Whether to withhold from it the multicast datagrams that it sends itself, in groups that it is attached to.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub block_self_mcast_lb: bool,
    /// The only operations that [`Qp::wr_start`] may post. If `None`, all operations of the queue pair's type.
    pub send_ops_flags: Option<SendOpsFlags>,
}

impl<'a> QpInitAttr<'a> {
    /// Attributes of an RC queue pair with room for 128 requests in each direction, 4 scatter/gather elements each and 208 bytes of inline
    /// data.
    pub const fn rc(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self::new(QpType::Rc, send_cq, recv_cq)
    }
    /// Attributes of a UC queue pair of the same sizes.
    pub const fn uc(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self::new(QpType::Uc, send_cq, recv_cq)
    }
    /// Attributes of a UD queue pair of the same sizes.
    pub const fn ud(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self::new(QpType::Ud, send_cq, recv_cq)
    }
    /// Attributes of an XRC initiator of the same sizes. It only sends.
    pub const fn xrc_ini(send_cq: &'a Cq) -> Self {
        Self::new(QpType::XrcIni, send_cq, send_cq)
    }
    /// Attributes of a queue pair of any type, of the same sizes.
    pub const fn new(qp_type: QpType, send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 208,
        };
        Self {
            qp_type,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            sq_sig_all: false,
            shard: None,
            block_self_mcast_lb: false,
            send_ops_flags: None,
        }
    }
    /// Sets the sizes of the queues.
    #[must_use]
    pub const fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }
    /// Takes receive requests from this shared receive queue.
    #[must_use]
    pub const fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self
    }
    /// Requests a completion for every send request.
    #[must_use]
    pub const fn sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }
    /// Withholds the multicast datagrams that the queue pair sends itself, in groups that it is attached to.
    #[must_use]
    pub const fn block_self_mcast_lb(mut self) -> Self {
        self.block_self_mcast_lb = true;
        self
    }
    /// Limits [`Qp::wr_start`] to these operations.
    #[must_use]
    pub const fn send_ops_flags(mut self, flags: SendOpsFlags) -> Self {
        self.send_ops_flags = Some(flags);
        self
    }
    /// Chooses the shard that will own the queue pair.
    #[must_use]
    pub const fn on_shard(mut self, shard: usize) -> Self {
        self.shard = Some(shard);
        self
    }
}

/// A queue pair (`struct ibv_qp`).
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    core: Arc<QpCore>,
    send_cq: Cq,
    recv_cq: Cq,
    /// Boxed, because only queries read it.
    srq: Option<Box<Srq>>,
    /// Limits of its send queue.
    limits: SendLimits,
    /// Whether it was created with [`QpInitAttr::send_ops_flags`].
    extended: bool,
}

impl Pd {
    /// Creates a queue pair in RESET. The first one of a context starts the port. The granted sizes ([`Qp::cap`]) are at least those
    /// requested.
    ///
    /// An XRC target is created on its domain instead ([`Xrcd::create_qp`](crate::Xrcd::create_qp)).
    ///
    /// # Errors
    /// `EINVAL` for sizes above the device's limits ([`DeviceAttr`](crate::DeviceAttr)), a shard that does not exist or a completion queue
    /// of another context; `ENOMEM` if no queue pair number is left; `ENODEV` if the call starts the port
    /// ([`Context::start`](crate::Context::start)) and the port's device cannot be opened; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: &QpInitAttr<'_>) -> Result<Qp, VerbsError> {
        Qp::create(self.core(), init)
    }
}

impl Qp {
    fn create(pd: &Arc<PdCore>, init: &QpInitAttr<'_>) -> Result<Self, VerbsError> {
        if let Some(flags) = init.send_ops_flags {
            flags.check(init.qp_type)?;
        }
        let core = pd.create_qp(&QpInit {
            qp_type: init.qp_type,
            send_cq: Some(init.send_cq.core()),
            recv_cq: (init.qp_type != QpType::XrcIni).then(|| init.recv_cq.core()),
            srq: init.srq.map(Srq::core),
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            shard: init.shard,
            block_self_mcast_lb: init.block_self_mcast_lb,
            number: None,
            policies: Policies::default(),
        })?;
        let cq = |cq: &Cq| Cq::new(cq.core().clone());
        let srq = init.srq.map(|srq| Box::new(srq.again()));
        let limits = SendLimits::new(core.qp_type(), core.pd(), &core.cap(), init.send_ops_flags);
        let extended = init.send_ops_flags.is_some();
        Ok(Self { core, send_cq: cq(init.send_cq), recv_cq: cq(init.recv_cq), srq, limits, extended })
    }

    /// The queue pair's number.
    #[inline]
    pub fn qp_num(&self) -> Qpn {
        self.core.qpn()
    }
    /// The transport service type.
    pub fn qp_type(&self) -> QpType {
        self.core.qp_type()
    }
    /// The granted sizes.
    pub fn cap(&self) -> QpCap {
        self.core.cap()
    }
    /// The shard that owns the queue pair.
    pub fn shard(&self) -> usize {
        self.core.shard()
    }
    /// The first PSN that [`connect_rc`](Self::connect_rc) will send. It is random.
    pub fn first_psn(&self) -> Psn {
        self.core.first_psn()
    }
    pub(crate) fn core(&self) -> &QpCore {
        &self.core
    }
    /// Counters since the queue pair was created: frames, messages, retries by cause, NAKs by code, drops by reason. Counters that are kept
    /// only per shard ([`Counter::per_qp`](crate::Counter::per_qp)) are 0. The call only reads memory and stops no shard.
    pub fn counters(&self) -> CounterSnapshot {
        self.core.counters()
    }
    /// The current state. Does not make a control call.
    ///
    /// # Errors
    /// `EIO` if the queue pair's shard died of a panic.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.core.living_state()?)
    }
    pub(crate) fn gid(&self, index: u8) -> Result<Gid, VerbsError> {
        crate::context::gid(self.core.device(), usize::from(index))
    }

    /// Changes attributes, and the state if [`AttrMask::STATE`] is set (ibv_modify_qp(3)). Each transition of each type has a set of
    /// required and a set of optional attributes. If a required one is missing or another one is given, the error names it and nothing
    /// changes.
    ///
    /// Entering RESET discards all requests and completions of the queue pair; entering ERR flushes them.
    ///
    /// ```
    /// # use verbs::{Access, AttrMask, Context, DeviceConfig, QpAttr, QpInitAttr, QpState};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
    /// let attr = QpAttr {
    ///     qp_state: QpState::Init,
    ///     port_num: 1,
    ///     qp_access_flags: Access::REMOTE_WRITE.bits(),
    ///     ..QpAttr::default()
    /// };
    /// qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)?;
    /// assert_eq!(qp.state()?, QpState::Init);
    /// // An attribute that a transition needs and the mask lacks is an error, and nothing changes.
    /// let rtr = QpAttr { qp_state: QpState::Rtr, ..QpAttr::default() };
    /// assert!(qp.modify(&rtr, AttrMask::STATE).is_err());
    /// assert_eq!(qp.state()?, QpState::Init);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Modify`](crate::DeviceError::Modify): `EINVAL`; `EPERM` for a privileged Q_Key (bit 31 set); `EOPNOTSUPP` for mask
    /// bits that name no attribute. `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        Ok(self.core.modify(attr, mask)?)
    }

    /// The current value of every attribute, and the attributes of creation with the granted sizes in `cap`.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<(QpAttr, QpInitAttr<'_>), VerbsError> {
        let init = QpInitAttr {
            qp_type: self.qp_type(),
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            srq: self.srq.as_deref(),
            cap: self.cap(),
            sq_sig_all: self.core.sq_sig_all(),
            shard: Some(self.shard()),
            block_self_mcast_lb: self.core.block_self_mcast_lb(),
            send_ops_flags: self.extended.then(|| self.limits.send_ops()),
        };
        Ok((self.core.query()?, init))
    }

    /// Posts a list of send requests, in order. The list is a slice or any iterator; after a refused request the iterator is not advanced
    /// any more. All requests of the list become visible to the device together, when the call returns.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig, QpInitAttr, RcOptions, SendWr};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let mr = pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// # let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
    /// # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
    /// let to = |i: u64| SendWr::write(i, &[], mr.addr() + 8 * i, mr.rkey()).inline(b"a record");
    /// qp.post_send([to(0), to(1)])?;
    /// if let Err(e) = qp.post_send((2..1000).map(to)) {
    ///     println!("posted {}; then {}", e.bad_wr, e.kind); // posted 126; then the queue is full ...
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that was not posted; those before it were. `EINVAL` in a state before RTS, for
    /// an operation that the type does not have, and for lists and lengths beyond the limits; `ENOMEM` if the queue is full; `EBUSY` while
    /// a [`SendQueue`] exists; `EDEADLK` from an iterator that posts to this queue itself, and on a thread that has begun a list
    /// ([`wr_start`](Self::wr_start)) and not completed it.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'w>(&self, wrs: impl IntoIterator<Item: Borrow<SendWr<'w>>>) -> Result<(), PostError> {
        match self.core.sq().lock() {
            Ok(mut poster) => post_send(&mut poster, &self.limits, wrs),
            Err(why) => Err(PostError { bad_wr: 0, kind: why.into() }),
        }
    }

    /// Posts a list of receive requests, in order. The list is a slice or any iterator, as in [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that was not posted; those before it were. `EINVAL` in RESET, for lists beyond
    /// the limit, and for a queue pair that uses a shared receive queue; `ENOMEM` if the queue is full; `EBUSY` while a [`RecvQueue`]
    /// exists; `EDEADLK` from an iterator that posts to this queue itself.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item: Borrow<RecvWr<'w>>>) -> Result<(), PostError> {
        match self.core.rq().lock() {
            Ok(mut poster) => post_recv(&mut poster, self.core.cap().max_recv_sge, wrs),
            Err(Unavailable::Taken) => no_queue(&self.core),
            Err(why) => Err(PostError { bad_wr: 0, kind: why.into() }),
        }
    }

    /// Binds a memory window of type 1. Posts a request to the send queue which makes the window grant part of a memory region under a new
    /// key, and revokes the old key. Returns the new key; [`Mw`] reports it from now on. A bind that is not possible when it executes moves
    /// the queue pair to ERR with `MW_BIND_ERR`.
    ///
    /// # Errors
    /// `EINVAL` for a window of type 2, or for a length without a region; `EPERM` for a window or region of another protection domain;
    /// those of [`post_send`](Self::post_send).
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&self, mw: &Mw, bind: &MwBind<'_>) -> Result<u32, VerbsError> {
        if mw.mw_type() != MwType::One {
            return Err(BindError::WindowType { call: "bind_mw", wanted: 1 }.into());
        }
        if !self.core.pd().is_some_and(|pd| pd.is_same(mw.pd_core())) {
            return Err(BindError::OtherPd { what: "memory window" }.into());
        }
        mw.core().bind_next(|rkey| {
            let wr = SendWr::bind(bind.wr_id, mw, rkey, &bind.bind_info)?.with(bind.send_flags);
            Ok(self.post_send(&[wr])?)
        })
    }

    pub(crate) fn send_limits(&self) -> SendLimits {
        self.limits
    }

    /// Splits off the lock-free handles of both queues. Dropping a handle returns its queue to the methods of [`Qp`].
    ///
    /// # Errors
    /// [`VerbsError::Split`] while one of the handles exists; `EDEADLK` from an iterator of a list that is being posted, and on a thread
    /// that has begun a list and not completed it.
    pub fn split(&self) -> Result<(SendQueue, RecvQueue), VerbsError> {
        let core = &self.core;
        let poster = core.sq().take().map_err(|why| unavailable("queue pair", why))?;
        // If the receive queue cannot be taken, dropping this returns the send queue.
        let send = SendQueue { poster: Some(poster), limits: self.send_limits(), core: core.clone() };
        let has_rq = self.srq.is_none() && self.qp_type() != QpType::XrcIni;
        let poster =
            has_rq.then(|| core.rq().take().map_err(|why| unavailable("queue pair", why))).transpose()?;
        let max_sge = core.cap().max_recv_sge;
        Ok((send, RecvQueue { poster, max_sge, core: core.clone() }))
    }

    /// Destroys the queue pair. Its requests end without completions. Requests that need no answer and no address resolution are sent
    /// first, unless the program polls the shards itself ([`Drive::Embedded`](crate::Drive::Embedded)). Asynchronous events of the queue
    /// pair that were not fetched are dropped. Never waits.
    ///
    /// # Errors
    /// `EBUSY` while a [`SendQueue`] or [`RecvQueue`] exists, the queue pair is attached to a multicast group, or one of its asynchronous
    /// events was fetched and not acknowledged; `EDEADLK` from inside a turn. The queue pair is returned with the error.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let Self { core, send_cq, recv_cq, srq, limits, extended } = self;
        QpCore::destroy(core)
            .map_err(|(e, core)| (e.into(), Self { core, send_cq, recv_cq, srq, limits, extended }))
    }

    /// As [`destroy`](Self::destroy), but waits up to `timeout` for other threads to acknowledge all events, as ibv_destroy_qp(3) does.
    ///
    /// # Errors
    /// As `destroy`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy_wait(self, timeout: Duration) -> Result<(), (VerbsError, Self)> {
        let Self { core, send_cq, recv_cq, srq, limits, extended } = self;
        QpCore::destroy_wait(core, timeout)
            .map_err(|(e, core)| (e.into(), Self { core, send_cq, recv_cq, srq, limits, extended }))
    }
}

/// The lock-free handle of a send queue, from [`Qp::split`].
#[derive(Debug)]
#[repr(C, align(64))] // posting touches only the first cache line
pub struct SendQueue {
    /// Taken only by `drop`.
    poster: Option<SendPoster>,
    limits: SendLimits,
    core: Arc<QpCore>,
}

impl SendQueue {
    /// As [`Qp::post_send`], without a lock.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    #[inline]
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'w>(
        &mut self,
        wrs: impl IntoIterator<Item: Borrow<SendWr<'w>>>,
    ) -> Result<(), PostError> {
        match &mut self.poster {
            Some(poster) => post_send(poster, &self.limits, wrs),
            None => Err(PostError { bad_wr: 0, kind: PostErrorKind::Split }),
        }
    }
    /// The poster and the limits, for a [`WrPost`](crate::WrPost).
    pub(crate) fn parts(&mut self) -> (&mut Option<SendPoster>, SendLimits) {
        (&mut self.poster, self.limits)
    }
    /// Prefetches the memory that [`post_send`](Self::post_send) of `n` requests will access, without waiting for it. For programs that
    /// post to very many queue pairs in turn and know in advance which come next: [`prefetch`](crate::prefetch) the handle first, call this
    /// when the handle is in the cache, and do each for a few queues at a time so that the cache misses overlap.
    #[inline]
    pub fn prefetch(&self, n: u32) {
        if let Some(poster) = &self.poster {
            poster.prefetch(n);
        }
    }
    /// Prefetches both the handles and the memory behind them, for `n` requests to each of the queues at the indices `at` of `queues`. All
    /// cache misses overlap. Works best for 16 to 64 queues at a time.
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn prefetch_each(queues: &[Self], at: impl Iterator<Item = usize> + Clone, n: u32) {
        prefetch_each(at.map(|q| &queues[q]), |queue| queue.prefetch(n));
    }
    /// At least how many requests can be posted now. While that is not 0, slots that were freed just now may not be counted yet.
    pub fn free(&mut self) -> usize {
        self.poster.as_mut().map_or(0, |poster| poster.free() as usize)
    }
    /// How many posted requests are not complete yet. Counts unsignaled requests too, so the program learns from it which of those the peer
    /// has received.
    pub fn in_use(&self) -> usize {
        self.poster.as_ref().map_or(0, |poster| poster.in_use() as usize)
    }
    /// The queue pair's number.
    pub fn qp_num(&self) -> Qpn {
        self.core.qpn()
    }
}

const _: () = assert!(offset_of!(SendQueue, limits) + SendLimits::PD == 64 && size_of::<RecvQueue>() == 64);

impl Drop for SendQueue {
    fn drop(&mut self) {
        if let Some(poster) = self.poster.take() {
            self.core.sq().give_back(poster);
        }
    }
}

/// The lock-free handle of a receive queue, from [`Qp::split`].
#[derive(Debug)]
#[repr(C, align(64))] // one cache line
pub struct RecvQueue {
    /// Taken only by `drop`.
    poster: Option<RecvPoster>,
    max_sge: u32,
    core: Arc<QpCore>,
}

impl RecvQueue {
    /// As [`Qp::post_recv`], without a lock.
    ///
    /// # Errors
    /// As [`Qp::post_recv`].
    #[inline]
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<'w>(
        &mut self,
        wrs: impl IntoIterator<Item: Borrow<RecvWr<'w>>>,
    ) -> Result<(), PostError> {
        match &mut self.poster {
            Some(poster) => post_recv(poster, self.max_sge, wrs),
            None => no_queue(&self.core),
        }
    }
    /// As [`SendQueue::prefetch`], for [`post_recv`](Self::post_recv).
    #[inline]
    pub fn prefetch(&self, n: u32) {
        if let Some(poster) = &self.poster {
            poster.prefetch(n);
        }
    }
    /// As [`SendQueue::prefetch_each`].
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn prefetch_each(queues: &[Self], at: impl Iterator<Item = usize> + Clone, n: u32) {
        prefetch_each(at.map(|q| &queues[q]), |queue| queue.prefetch(n));
    }
    /// How many requests can be posted now.
    pub fn free(&mut self) -> usize {
        self.poster.as_mut().map_or(0, |poster| poster.free() as usize)
    }
    /// The queue pair's number.
    pub fn qp_num(&self) -> Qpn {
        self.core.qpn()
    }
}

impl Drop for RecvQueue {
    fn drop(&mut self) {
        if let Some(poster) = self.poster.take() {
            self.core.rq().give_back(poster);
        }
    }
}

/// Prefetches the memory that posting to each of these queues accesses: the handles, then what they point to.
#[inline]
fn prefetch_each<'q, Q: 'q>(queues: impl Iterator<Item = &'q Q> + Clone, behind: impl Fn(&'q Q)) {
    queues.clone().for_each(|queue| prefetch_line(queue));
    queues.for_each(behind);
}

#[inline]
fn post_send<'w>(
    poster: &mut SendPoster,
    limits: &SendLimits,
    wrs: impl IntoIterator<Item: Borrow<SendWr<'w>>>,
) -> Result<(), PostError> {
    let mut batch = match poster.begin() {
        Ok(batch) => batch,
        Err(closed) => return refused(wrs, closed),
    };
    let sig_all = batch.sq_sig_all();
    let result = wrs.into_iter().try_for_each(|wr| {
        let wr = wr.borrow();
        let length = wr.check(limits)?;
        Ok(batch.put(|slot, epoch| wr.encode(slot, length, epoch, sig_all))?)
    });
    let result = result.map_err(|kind| stopped(batch.requests(), kind));
    batch.post();
    result
}

#[inline]
fn post_recv<'w>(
    poster: &mut RecvPoster,
    max_sge: u32,
    wrs: impl IntoIterator<Item: Borrow<RecvWr<'w>>>,
) -> Result<(), PostError> {
    let mut batch = match poster.begin() {
        Ok(batch) => batch,
        Err(closed) => return refused(wrs, closed),
    };
    let result = wrs.into_iter().try_for_each(|wr| {
        let wr = wr.borrow();
        wr.check(max_sge)?;
        Ok(batch.put(|slot, epoch| wr.encode(slot, epoch))?)
    });
    let result = result.map_err(|kind| stopped(batch.requests(), kind));
    batch.post();
    result
}

/// The error of a post if there is no queue to post to: it is split off, or the queue pair has none.
fn no_queue(core: &QpCore) -> Result<(), PostError> {
    let kind = match core.srq() {
        Some(srq) => PostErrorKind::SharedReceiveQueue { number: srq.number() },
        None if matches!(core.qp_type(), QpType::XrcIni | QpType::XrcTgt) => {
            PostErrorKind::NoReceiveQueue { qp_type: core.qp_type() }
        }
        None => PostErrorKind::Split,
    };
    Err(PostError { bad_wr: 0, kind })
}
