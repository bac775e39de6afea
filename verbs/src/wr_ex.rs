//! The extended posting interface (`ibv_wr_post(3)`): work requests are built by method calls and posted together.

use core::ops::{Deref, DerefMut};
use std::io::IoSlice;

use stack::device::wqe::{Granule, SendWqe, put_pieces, put_sges, put_srqn};
use stack::device::{Batch, Exclusive, QpType, Qpn, SendFlags, SendPoster, Sge, Unavailable, WrOpcode};

use crate::ah::Ah;
use crate::error::{PostError, PostErrorKind, VerbsError};
use crate::flags::{FlushLevel, FlushPlacement, SendOpsFlags};
use crate::mw::{Mw, MwBindInfo};
use crate::qp::{Qp, SendQueue};
use crate::wr::{SendLimits, SendWr, check_length, has_opcode, takes_data};

/// Each flag and the operation that it permits.
const OPERATIONS: [(SendOpsFlags, WrOpcode); 12] = [
    (SendOpsFlags::RDMA_WRITE, WrOpcode::RdmaWrite),
    (SendOpsFlags::RDMA_WRITE_WITH_IMM, WrOpcode::RdmaWriteWithImm),
    (SendOpsFlags::SEND, WrOpcode::Send),
    (SendOpsFlags::SEND_WITH_IMM, WrOpcode::SendWithImm),
    (SendOpsFlags::RDMA_READ, WrOpcode::RdmaRead),
    (SendOpsFlags::ATOMIC_CMP_AND_SWP, WrOpcode::AtomicCmpAndSwp),
    (SendOpsFlags::ATOMIC_FETCH_AND_ADD, WrOpcode::AtomicFetchAndAdd),
    (SendOpsFlags::LOCAL_INV, WrOpcode::LocalInv),
    (SendOpsFlags::BIND_MW, WrOpcode::BindMw),
    (SendOpsFlags::SEND_WITH_INV, WrOpcode::SendWithInv),
    (SendOpsFlags::FLUSH, WrOpcode::Flush),
    (SendOpsFlags::ATOMIC_WRITE, WrOpcode::AtomicWrite),
];

impl SendOpsFlags {
    /// The operations that a queue pair of this type has.
    pub fn of(qp_type: QpType) -> Self {
        let has = OPERATIONS.into_iter().filter(|(_, opcode)| has_opcode(qp_type, *opcode));
        has.map(|(flag, _)| flag).collect()
    }

    /// Checks that a queue pair of this type has all of these operations.
    pub(crate) fn check(self, qp_type: QpType) -> Result<(), VerbsError> {
        let flags = self.difference(Self::of(qp_type));
        if flags.is_empty() { Ok(()) } else { Err(VerbsError::SendOps { flags, qp_type }) }
    }
}

/// Flags that a request of this interface can have. INLINE is not among them: the setter determines whether data is inline.
const FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

/// The posting end of a send queue, held by a list. Dropping it returns it.
#[derive(Debug)]
struct Held<'q> {
    /// Taken only by `drop`.
    poster: Option<SendPoster>,
    home: Home<'q>,
}

/// Where the list took the posting end from and will return it to.
#[derive(Debug)]
enum Home<'q> {
    /// A queue pair that other threads may post to; they wait while the list holds the posting end.
    Shared(&'q Exclusive<SendPoster>),
    /// A split handle.
    Split(&'q mut Option<SendPoster>),
}

impl Deref for Held<'_> {
    type Target = SendPoster;
    #[inline]
    fn deref(&self) -> &SendPoster {
        self.poster.as_ref().expect("only drop takes it")
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut SendPoster {
        self.poster.as_mut().expect("only drop takes it")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(poster) = self.poster.take() else { return };
        match &mut self.home {
            Home::Shared(queue) => queue.give_back(poster),
            Home::Split(handle) => **handle = Some(poster),
        }
    }
}

/// A list of send requests that is being built (`ibv_wr_start(3)`), from [`Qp::wr_start`] or [`SendQueue::wr_start`].
///
/// A method named after an operation begins a request with the present values of [`wr_id`](Self::wr_id) and [`wr_flags`](Self::wr_flags).
/// The setters called after it complete the request. One setter sets the data; if several do, the last one counts, and without one the
/// request has 0 bytes. Inline data is copied at once, so its buffer may be reused. A request on a UD queue pair needs
/// [`set_ud_addr`](Self::set_ud_addr). One on an XRC initiator needs [`set_xrc_srqn`](Self::set_xrc_srqn), except for local operations.
///
/// [`complete`](Self::complete) posts all requests together; if any of them has an error, it reports the first one and posts none.
/// [`abort`](Self::abort), or dropping the list, posts nothing. No method allocates memory.
///
/// The list holds the posting end of the send queue. Until it ends, posts of other threads wait, and posts of the thread that began it fail
/// with `EDEADLK`. Unlike a lock, it may be completed on another thread.
///
/// ```
/// # use verbs::{Access, Context, DeviceConfig, QpInitAttr, RcOptions, RecvWr, SendFlags, Wc};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = Context::open(DeviceConfig::loopback())?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let mr = pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// # let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
/// # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
/// # qp.post_recv(&[RecvWr::new(9, &[])])?;
/// mr.write(0, b"world")?;
/// let mut wr = qp.wr_start();
/// wr.wr_id = 1;
/// wr.rdma_write(mr.rkey(), mr.addr() + 100);
/// wr.set_inline_data(b"hello");
/// wr.wr_id = 2;
/// wr.wr_flags = SendFlags::SIGNALED;
/// wr.rdma_write_imm(mr.rkey(), mr.addr() + 105, 0x1234);
/// wr.set_sge(mr.lkey(), mr.addr(), 5);
/// wr.complete()?;
///
/// let mut done = [Wc::default(); 2];
/// let mut n = 0;
/// while n < 2 {
///     n += cq.poll(&mut done[n..])?;
/// }
/// assert_eq!(mr.to_vec(100..110)?, b"helloworld");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is posted without complete()"]
#[derive(Debug)]
#[doc(alias = "ibv_qp_ex")]
#[doc(alias = "ibv_qp_to_qp_ex")]
pub struct WrPost<'q> {
    /// The identifier of the requests that begin after it is set, which their completions contain. Initially 0.
    pub wr_id: u64,
    /// The flags of the requests that begin after it is set: [`SendFlags::SIGNALED`], [`SendFlags::SOLICITED`], [`SendFlags::FENCE`].
    /// Initially none.
    pub wr_flags: SendFlags,
    /// The finished requests. `None` only in a list that could not take the posting end.
    batch: Option<Batch<Held<'q>>>,
    limits: SendLimits,
    /// The request that is being built; its data and address are already in the batch's next slot.
    current: Option<Request>,
    failed: Option<PostError>,
}

/// A request that setters may still change.
#[derive(Debug)]
struct Request {
    wqe: SendWqe,
    num_sge: usize,
    length: u64,
    inline: bool,
    addressed: bool,
    remote_srqn: Option<u32>,
}

impl Qp {
    /// Begins a list of send requests that will be posted together: see [`WrPost`].
    #[doc(alias = "ibv_wr_start")]
    pub fn wr_start(&self) -> WrPost<'_> {
        let queue = self.core().sq();
        WrPost::new(queue.borrow(), Home::Shared(queue), self.send_limits())
    }
}

impl SendQueue {
    /// As [`Qp::wr_start`], without a lock.
    #[doc(alias = "ibv_wr_start")]
    pub fn wr_start(&mut self) -> WrPost<'_> {
        let (handle, limits) = self.parts();
        WrPost::new(handle.take().ok_or(Unavailable::Taken), Home::Split(handle), limits)
    }
}

impl<'q> WrPost<'q> {
    fn new(poster: Result<SendPoster, Unavailable>, home: Home<'q>, limits: SendLimits) -> Self {
        let failed = poster.as_ref().err().map(|why| PostError { bad_wr: 0, kind: (*why).into() });
        let batch = poster.ok().map(|poster| Batch::start(Held { poster: Some(poster), home }));
        Self { wr_id: 0, wr_flags: SendFlags::empty(), batch, limits, current: None, failed }
    }

    /// SEND: the message is stored in the peer's next receive request.
    #[inline]
    #[doc(alias = "ibv_wr_send")]
    pub fn send(&mut self) {
        self.begin(SendOpsFlags::SEND, SendWqe::send(self.wr_id));
    }
    /// SEND with 4 bytes of immediate data, given in host byte order and transmitted in network byte order.
    #[inline]
    #[doc(alias = "ibv_wr_send_imm")]
    pub fn send_imm(&mut self, imm_data: u32) {
        self.begin(SendOpsFlags::SEND_WITH_IMM, SendWqe::send_with_imm(self.wr_id, imm_data));
    }
    /// SEND that invalidates one of the peer's keys.
    #[inline]
    #[doc(alias = "ibv_wr_send_inv")]
    pub fn send_inv(&mut self, invalidate_rkey: u32) {
        self.begin(SendOpsFlags::SEND_WITH_INV, SendWqe::send_with_inv(self.wr_id, invalidate_rkey));
    }
    /// RDMA WRITE into the peer's memory.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_write")]
    pub fn rdma_write(&mut self, rkey: u32, remote_addr: u64) {
        self.begin(SendOpsFlags::RDMA_WRITE, SendWqe::write(self.wr_id, remote_addr, rkey));
    }
    /// RDMA WRITE that also completes a receive request of the peer, with immediate data.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    pub fn rdma_write_imm(&mut self, rkey: u32, remote_addr: u64, imm_data: u32) {
        let wr = SendWqe::write_with_imm(self.wr_id, remote_addr, rkey, imm_data);
        self.begin(SendOpsFlags::RDMA_WRITE_WITH_IMM, wr);
    }
    /// RDMA READ from the peer's memory.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_read")]
    pub fn rdma_read(&mut self, rkey: u32, remote_addr: u64) {
        self.begin(SendOpsFlags::RDMA_READ, SendWqe::read(self.wr_id, remote_addr, rkey));
    }
    /// COMPARE & SWAP: see [`SendWr::cmp_and_swp`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    pub fn atomic_cmp_swp(&mut self, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        let wr = SendWqe::cmp_and_swp(self.wr_id, remote_addr, rkey, compare, swap);
        self.begin(SendOpsFlags::ATOMIC_CMP_AND_SWP, wr);
    }
    /// FETCH & ADD: see [`SendWr::fetch_and_add`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    pub fn atomic_fetch_add(&mut self, rkey: u32, remote_addr: u64, add: u64) {
        let wr = SendWqe::fetch_and_add(self.wr_id, remote_addr, rkey, add);
        self.begin(SendOpsFlags::ATOMIC_FETCH_AND_ADD, wr);
    }
    /// ATOMIC WRITE of these 8 bytes, which are copied now: see [`SendWr::atomic_write`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_write")]
    pub fn atomic_write(&mut self, rkey: u32, remote_addr: u64, atomic_wr: &[u8; 8]) {
        self.begin(SendOpsFlags::ATOMIC_WRITE, SendWqe::atomic_write(self.wr_id, remote_addr, rkey));
        if self.current.is_some() {
            self.set_inline_data(atomic_wr);
        }
    }
    /// FLUSH: see [`SendWr::flush`]. Takes no data.
    #[inline]
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush(
        &mut self,
        rkey: u32,
        remote_addr: u64,
        len: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    ) {
        let wr = SendWqe::flush_of(self.wr_id, remote_addr, len, rkey, level as u8, placement.bits());
        self.begin(SendOpsFlags::FLUSH, wr);
    }
    /// BIND_MW of a window of type 2: see [`SendWr::bind_mw`]. Takes no data.
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_mw(&mut self, mw: &Mw, rkey: u32, bind_info: &MwBindInfo<'_>) {
        let bound = SendWr::bind_type_2(self.wr_id, mw, rkey, bind_info);
        // A failed bind occupies a place in the list, so that the error reports its position.
        let unbound = SendWqe::local_inv(self.wr_id, rkey);
        self.begin(SendOpsFlags::BIND_MW, bound.map_or(unbound, |wr| wr.wqe()));
        if let Err(e) = bound {
            self.fail(PostErrorKind::Bind(e));
        }
    }
    /// LOCAL_INV: see [`SendWr::local_inv`]. Takes no data.
    #[inline]
    #[doc(alias = "ibv_wr_local_inv")]
    pub fn local_inv(&mut self, invalidate_rkey: u32) {
        self.begin(SendOpsFlags::LOCAL_INV, SendWqe::local_inv(self.wr_id, invalidate_rkey));
    }

    /// Sets one buffer as the data of the last request.
    #[inline]
    #[doc(alias = "ibv_wr_set_sge")]
    pub fn set_sge(&mut self, lkey: u32, addr: u64, length: u32) {
        self.set_sge_list(&[Sge { addr, length, lkey }]);
    }
    /// Sets several buffers, concatenated, as the data of the last request.
    #[inline]
    #[doc(alias = "ibv_wr_set_sge_list")]
    pub fn set_sge_list(&mut self, sg_list: &[Sge]) {
        self.set_data("set_sge_list", |request, limits, body| {
            limits.check_sges(sg_list.len())?;
            put_sges(body, sg_list);
            (request.inline, request.num_sge) = (false, sg_list.len());
            request.length = sg_list.iter().map(|sge| u64::from(sge.length)).sum();
            Ok(())
        });
    }
    /// Sets inline data of the last request, which is copied now.
    #[inline]
    #[doc(alias = "ibv_wr_set_inline_data")]
    pub fn set_inline_data(&mut self, data: &[u8]) {
        self.set_inline_data_list(&[IoSlice::new(data)]);
    }
    /// Sets inline data of the last request, the concatenation of several slices, which is copied now.
    #[inline]
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[doc(alias = "ibv_data_buf")]
    pub fn set_inline_data_list(&mut self, pieces: &[IoSlice<'_>]) {
        self.set_data("set_inline_data_list", |request, limits, body| {
            let given = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
            request.length = limits.check_inline(&request.wqe, given)?.into();
            put_pieces(body, pieces.iter().map(|piece| &**piece));
            (request.inline, request.num_sge) = (true, 0);
            Ok(())
        });
    }
    /// Sets the destination of the last request: the peer's address handle, its queue pair `remote_qpn` and that queue pair's Q_Key; see
    /// [`SendWr::to`].
    #[inline]
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn set_ud_addr(&mut self, ah: &Ah, remote_qpn: Qpn, remote_qkey: u32) {
        self.set("set_ud_addr", |request, limits, slot| {
            limits.check_address(Some(ah))?;
            ah.core().address().to(remote_qpn, remote_qkey).put(SendWqe::body(slot, 0));
            request.addressed = true;
            Ok(())
        });
    }
    /// Sets the peer's shared receive queue for the last request; see [`SendWr::remote_srqn`].
    #[inline]
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn set_xrc_srqn(&mut self, remote_srqn: u32) {
        self.set("set_xrc_srqn", |request, limits, slot| {
            request.remote_srqn = Some(remote_srqn);
            limits.check_srqn(&request.wqe, request.remote_srqn)?;
            put_srqn(SendWqe::body(slot, 0), remote_srqn);
            Ok(())
        });
    }

    /// Posts the requests, in order. All become visible to the device together, when the call returns.
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that has an error; none was posted. The errors are those of
    /// [`Qp::post_send`](crate::Qp::post_send); `EINVAL` for data on an operation that takes none, a setter before any request, flags that
    /// do not exist, and an operation that [`QpInitAttr::send_ops_flags`](crate::QpInitAttr::send_ops_flags) does not include; for a bind,
    /// `EINVAL` and `EPERM` as in [`SendWr::bind_mw`].
    #[inline]
    #[doc(alias = "ibv_wr_complete")]
    pub fn complete(mut self) -> Result<(), PostError> {
        self.finish();
        match (self.failed, self.batch) {
            (Some(error), _) => Err(error),
            (None, Some(batch)) => {
                batch.complete().map_err(|closed| PostError { bad_wr: 0, kind: closed.into() })
            }
            (None, None) => Ok(()),
        }
    }

    /// Posts nothing; the same as dropping.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {}

    /// Finishes the previous request and begins a new one.
    #[inline]
    fn begin(&mut self, op: SendOpsFlags, wqe: SendWqe) {
        self.finish();
        if self.failed.is_some() {
            return;
        }
        if !self.limits.has_op(op) {
            return self.fail(PostErrorKind::NotAskedFor(wqe.opcode()));
        }
        if !FLAGS.contains(self.wr_flags) {
            return self.fail(PostErrorKind::Flags(self.wr_flags));
        }
        if let Err(kind) = self.limits.check_opcode(&wqe) {
            return self.fail(kind);
        }
        self.current = Some(Request {
            wqe: wqe.with_flags(self.wr_flags),
            num_sge: 0,
            length: 0,
            inline: false,
            addressed: false,
            remote_srqn: None,
        });
    }

    /// Finishes the request that is being built: checks it and writes its header into its slot.
    #[inline]
    fn finish(&mut self) {
        let Some(request) = self.current.take() else { return };
        if let Err(kind) = self.put(&request) {
            self.fail(kind);
        }
    }

    /// Checks a complete request, and writes its header into its slot.
    #[inline]
    fn put(&mut self, request: &Request) -> Result<(), PostErrorKind> {
        let Request { wqe, num_sge, length, inline, addressed, remote_srqn } = *request;
        if self.limits.is_datagram() && !addressed {
            self.limits.check_address(None)?;
        }
        self.limits.check_srqn(&wqe, remote_srqn)?;
        let length = if inline { length as u32 } else { check_length(&wqe, length)? };
        let named = addressed || remote_srqn.is_some();
        let addr_granules = if named { self.limits.addr_granules() } else { 0 };
        let batch = self.batch.as_mut().ok_or(PostErrorKind::Split)?;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::INLINE, inline);
        flags.set(SendFlags::SIGNALED, batch.sq_sig_all());
        batch.put(|slot, epoch| {
            wqe.with_flags(flags).posted(length, num_sge, addr_granules, epoch).put(slot);
        })?;
        Ok(())
    }

    /// Changes the last request. `put` checks its argument and writes it to its place in the slot.
    #[inline]
    fn set(
        &mut self,
        setter: &'static str,
        put: impl FnOnce(&mut Request, &SendLimits, &mut [Granule]) -> Result<(), PostErrorKind>,
    ) {
        // After a failure the remaining method calls are ignored.
        let Some(request) = &mut self.current else { return self.no_request(setter) };
        let slot = self.batch.as_mut().ok_or(PostErrorKind::Split).and_then(|batch| Ok(batch.slot()?));
        if let Err(kind) = slot.and_then(|slot| put(request, &self.limits, slot)) {
            self.fail(kind);
        }
    }

    /// Sets the data of the last request.
    #[inline]
    fn set_data(
        &mut self,
        setter: &'static str,
        put: impl FnOnce(&mut Request, &SendLimits, &mut [u8]) -> Result<(), PostErrorKind>,
    ) {
        self.set(setter, |request, limits, slot| {
            if !takes_data(&request.wqe) {
                return Err(PostErrorKind::NoData(request.wqe.opcode()));
            }
            put(request, limits, SendWqe::body(slot, limits.addr_granules()))
        });
    }

    /// Records that the current request cannot be posted. No request of the list is posted then, and later method calls are ignored.
    #[cold]
    fn fail(&mut self, kind: PostErrorKind) {
        self.current = None;
        let bad_wr = self.batch.as_ref().map_or(0, |batch| batch.requests() as usize);
        self.failed.get_or_insert(PostError { bad_wr, kind });
    }

    #[cold]
    fn no_request(&mut self, setter: &'static str) {
        self.fail(PostErrorKind::NoRequest(setter));
    }
}
