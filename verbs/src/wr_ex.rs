//! The extended posting interface (`ibv_wr_post(3)`): work requests built by calls and posted together.

use std::sync::MutexGuard;

use stack::device::wqe::{SendWqe, put_sges};
use stack::device::{Poster, QpType, Qpn, RingTap, SendFlags, Sge, WrOpcode};

use crate::ah::Ah;
use crate::error::{PostError, PostErrorKind, VerbsError};
use crate::flags::{FlushLevel, FlushPlacement, SendOpsFlags};
use crate::mw::{Mw, MwBindInfo};
use crate::qp::{Qp, SendQueue};
use crate::wr::{SendLimits, SendWr, has_opcode};

/// Each flag and its operation.
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
    /// The operations that a type of queue pair has.
    pub fn of(qp_type: QpType) -> Self {
        let has = OPERATIONS.into_iter().filter(|(_, opcode)| has_opcode(qp_type, *opcode));
        has.map(|(flag, _)| flag).collect()
    }

    /// Checks that a queue pair of this type can be created for these operations.
    pub(crate) fn check(self, qp_type: QpType) -> Result<(), VerbsError> {
        let flags = self.difference(Self::of(qp_type));
        if flags.is_empty() { Ok(()) } else { Err(VerbsError::SendOps { flags, qp_type }) }
    }
}

/// Flags that a request of this interface can have. Not INLINE: the setter decides whether data is inline.
const FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

/// The posting end of a send queue, while a list is built; `None` inside: it is split off.
#[derive(Debug)]
pub(crate) enum Ring<'q> {
    /// Of a queue pair that other threads may post to, which block.
    Locked(MutexGuard<'q, Option<RingTap>>),
    /// Of a split handle.
    Own(Option<&'q mut RingTap>),
}

impl Ring<'_> {
    #[inline]
    fn tap(&mut self) -> Result<&mut RingTap, PostErrorKind> {
        let tap = match self {
            Self::Locked(guard) => guard.as_mut(),
            Self::Own(tap) => tap.as_deref_mut(),
        };
        tap.ok_or(PostErrorKind::Split)
    }
}

/// A list of send requests that is being built (`ibv_wr_start(3)`), from [`Qp::wr_start`] or [`SendQueue::wr_start`].
///
/// A call named after an operation begins a request, with the [`wr_id`](Self::wr_id) and the
/// [`wr_flags`](Self::wr_flags) as they are then; the setters that follow complete it. Data is set by one setter (the last
/// one counts; none means 0 bytes) and inline data is copied at once, so its buffer may be used again. A request on a UD
/// queue pair needs [`set_ud_addr`](Self::set_ud_addr), one on an XRC initiator
/// [`set_xrc_srqn`](Self::set_xrc_srqn), local operations aside.
///
/// [`complete`](Self::complete) posts all of them together, or reports the first error in any of them: then none is posted.
/// [`abort`](Self::abort), or dropping the list, posts nothing. No call allocates.
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
    /// The tag of the requests that begin from now on, which comes back in their completions; 0 at first.
    pub wr_id: u64,
    /// The flags of the requests that begin from now on: [`SendFlags::SIGNALED`], [`SendFlags::SOLICITED`],
    /// [`SendFlags::FENCE`]; none at first.
    pub wr_flags: SendFlags,
    poster: &'q Poster,
    ring: Ring<'q>,
    limits: SendLimits,
    /// The epoch of the requests.
    epoch: u32,
    /// Number of finished requests, in their slots.
    ready: u32,
    /// The request after those, whose data is already in its slot.
    current: Option<Request<'q>>,
    failed: Option<PostError>,
}

/// A request that setters still change.
#[derive(Debug)]
struct Request<'q> {
    wr: SendWr<'q>,
    num_sge: usize,
    length: u64,
}

impl Qp {
    /// Begins a list of send requests that are posted together: see [`WrPost`]. While the guard exists, other posts to the
    /// send queue block, so the thread that holds it must not post by other calls.
    #[doc(alias = "ibv_wr_start")]
    pub fn wr_start(&self) -> WrPost<'_> {
        WrPost::new(self.core().poster(), Ring::Locked(self.core().sq()), self.send_limits())
    }
}

impl SendQueue {
    /// As [`Qp::wr_start`], without a lock.
    #[doc(alias = "ibv_wr_start")]
    pub fn wr_start(&mut self) -> WrPost<'_> {
        let (poster, ring, limits) = self.parts();
        WrPost::new(poster, Ring::Own(ring), limits)
    }
}

impl<'q> WrPost<'q> {
    pub(crate) fn new(poster: &'q Poster, ring: Ring<'q>, limits: SendLimits) -> Self {
        Self {
            wr_id: 0,
            wr_flags: SendFlags::empty(),
            poster,
            ring,
            limits,
            epoch: poster.may_post_send().unwrap_or_default(),
            ready: 0,
            current: None,
            failed: None,
        }
    }

    /// SEND: the message goes into the peer's next receive request.
    #[inline]
    #[doc(alias = "ibv_wr_send")]
    pub fn send(&mut self) {
        self.begin(SendOpsFlags::SEND, SendWr::send(self.wr_id, &[]));
    }
    /// SEND with 4 bytes of immediate data, a number that travels in network byte order.
    #[inline]
    #[doc(alias = "ibv_wr_send_imm")]
    pub fn send_imm(&mut self, imm_data: u32) {
        self.begin(SendOpsFlags::SEND_WITH_IMM, SendWr::send_with_imm(self.wr_id, &[], imm_data));
    }
    /// SEND that invalidates one of the peer's keys.
    #[inline]
    #[doc(alias = "ibv_wr_send_inv")]
    pub fn send_inv(&mut self, invalidate_rkey: u32) {
        self.begin(SendOpsFlags::SEND_WITH_INV, SendWr::send_with_inv(self.wr_id, &[], invalidate_rkey));
    }
    /// RDMA WRITE into the peer's memory.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_write")]
    pub fn rdma_write(&mut self, rkey: u32, remote_addr: u64) {
        self.begin(SendOpsFlags::RDMA_WRITE, SendWr::write(self.wr_id, &[], remote_addr, rkey));
    }
    /// RDMA WRITE that also completes a receive request of the peer, with immediate data.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    pub fn rdma_write_imm(&mut self, rkey: u32, remote_addr: u64, imm_data: u32) {
        let wr = SendWr::write_with_imm(self.wr_id, &[], remote_addr, rkey, imm_data);
        self.begin(SendOpsFlags::RDMA_WRITE_WITH_IMM, wr);
    }
    /// RDMA READ from the peer's memory.
    #[inline]
    #[doc(alias = "ibv_wr_rdma_read")]
    pub fn rdma_read(&mut self, rkey: u32, remote_addr: u64) {
        self.begin(SendOpsFlags::RDMA_READ, SendWr::read(self.wr_id, &[], remote_addr, rkey));
    }
    /// COMPARE & SWAP: see [`SendWr::cmp_and_swp`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    pub fn atomic_cmp_swp(&mut self, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        let wr = SendWr::cmp_and_swp(self.wr_id, &[], remote_addr, rkey, compare, swap);
        self.begin(SendOpsFlags::ATOMIC_CMP_AND_SWP, wr);
    }
    /// FETCH & ADD: see [`SendWr::fetch_and_add`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    pub fn atomic_fetch_add(&mut self, rkey: u32, remote_addr: u64, add: u64) {
        let wr = SendWr::fetch_and_add(self.wr_id, &[], remote_addr, rkey, add);
        self.begin(SendOpsFlags::ATOMIC_FETCH_AND_ADD, wr);
    }
    /// ATOMIC WRITE of these 8 bytes, copied now: see [`SendWr::atomic_write`].
    #[inline]
    #[doc(alias = "ibv_wr_atomic_write")]
    pub fn atomic_write(&mut self, rkey: u32, remote_addr: u64, atomic_wr: &[u8; 8]) {
        self.begin(SendOpsFlags::ATOMIC_WRITE, SendWr::atomic_write(self.wr_id, &[], remote_addr, rkey));
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
        let wr = SendWr::flush(self.wr_id, remote_addr, len, rkey, placement, level);
        self.begin(SendOpsFlags::FLUSH, wr);
    }
    /// BIND_MW of a window of type 2: see [`SendWr::bind_mw`]. Takes no data.
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_mw(&mut self, mw: &Mw, rkey: u32, bind_info: &MwBindInfo<'_>) {
        let bound = SendWr::bind_type_2(self.wr_id, mw, rkey, bind_info);
        // A failed bind takes its place in the list, so that the error gets its position.
        self.begin(SendOpsFlags::BIND_MW, bound.unwrap_or(SendWr::local_inv(self.wr_id, rkey)));
        if let Err(e) = bound {
            self.fail(PostErrorKind::Bind(e));
        }
    }
    /// LOCAL_INV: see [`SendWr::local_inv`]. Takes no data.
    #[inline]
    #[doc(alias = "ibv_wr_local_inv")]
    pub fn local_inv(&mut self, invalidate_rkey: u32) {
        self.begin(SendOpsFlags::LOCAL_INV, SendWr::local_inv(self.wr_id, invalidate_rkey));
    }

    /// One buffer for the last request.
    #[inline]
    #[doc(alias = "ibv_wr_set_sge")]
    pub fn set_sge(&mut self, lkey: u32, addr: u64, length: u32) {
        self.set_sge_list(&[Sge { addr, length, lkey }]);
    }
    /// Buffers for the last request, one behind the other.
    #[inline]
    #[doc(alias = "ibv_wr_set_sge_list")]
    pub fn set_sge_list(&mut self, sg_list: &[Sge]) {
        self.set("set_sge_list", |request, limits, body| {
            limits.check_sges(sg_list.len())?;
            put_sges(body, sg_list);
            request.wr = request.wr.with_inline(false);
            request.num_sge = sg_list.len();
            request.length = sg_list.iter().map(|sge| u64::from(sge.length)).sum();
            Ok(())
        });
    }
    /// Inline data for the last request, copied now.
    #[inline]
    #[doc(alias = "ibv_wr_set_inline_data")]
    pub fn set_inline_data(&mut self, data: &[u8]) {
        self.set_inline_data_list(&[data]);
    }
    /// Inline data for the last request, one piece behind the other, copied now.
    #[inline]
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[doc(alias = "ibv_data_buf")]
    pub fn set_inline_data_list(&mut self, pieces: &[&[u8]]) {
        self.set("set_inline_data_list", |request, limits, body| {
            let given = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
            request.length = request.wr.check_inline(limits, given)?.into();
            let mut body = body;
            for piece in pieces {
                let (here, rest) = body.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                body = rest;
            }
            request.wr = request.wr.with_inline(true);
            request.num_sge = 0;
            Ok(())
        });
    }
    /// Sets the destination of the last request: the queue pair `remote_qpn` behind `ah`, with its Q_Key; see [`SendWr::to`].
    #[inline]
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn set_ud_addr(&mut self, ah: &'q Ah, remote_qpn: Qpn, remote_qkey: u32) {
        self.change("set_ud_addr", |wr| wr.to(ah, remote_qpn, remote_qkey));
    }
    /// Sets the peer's shared receive queue for the last request; see [`SendWr::remote_srqn`].
    #[inline]
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn set_xrc_srqn(&mut self, remote_srqn: u32) {
        self.change("set_xrc_srqn", |wr| wr.remote_srqn(remote_srqn));
    }

    /// Posts the requests, in order. They are visible to the device together, when the call returns.
    ///
    /// # Errors
    /// [`PostError`] with the position of the first request that has an error; none was posted. As
    /// [`Qp::post_send`](crate::Qp::post_send), and `EINVAL` for data on an operation that takes none, a setter before any
    /// request, flags that do not exist, an operation that [`QpInitAttr::send_ops_flags`](crate::QpInitAttr::send_ops_flags)
    /// left out; for a bind `EINVAL` and `EPERM` as [`SendWr::bind_mw`].
    #[inline]
    #[doc(alias = "ibv_wr_complete")]
    pub fn complete(mut self) -> Result<(), PostError> {
        self.finish();
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.ready == 0 {
            return Ok(());
        }
        let refused = |kind| PostError { bad_wr: 0, kind };
        let epoch = self.poster.may_post_send().map_err(|closed| refused(closed.into()))?;
        let ring = self.ring.tap().map_err(refused)?;
        if epoch != self.epoch {
            restamp(ring, self.ready, epoch);
        }
        ring.publish(self.ready);
        self.poster.send_posted();
        Ok(())
    }

    /// Posts nothing, like dropping it.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {}

    #[inline]
    fn begin(&mut self, op: SendOpsFlags, wr: SendWr<'q>) {
        self.finish();
        if self.failed.is_some() {
            return;
        }
        if !self.limits.has_op(op) {
            return self.fail(PostErrorKind::NotAskedFor(wr.opcode()));
        }
        if !FLAGS.contains(self.wr_flags) {
            return self.fail(PostErrorKind::Flags(self.wr_flags));
        }
        self.current = Some(Request { wr: wr.with_flags(self.wr_flags), num_sge: 0, length: 0 });
    }

    /// Finishes the request that is being built: checks it, and writes its head into its slot.
    #[inline]
    fn finish(&mut self) {
        let Some(Request { wr, num_sge, length }) = self.current.take() else { return };
        let mut place = || {
            wr.check_head(&self.limits)?;
            let length = match wr.is_inline() {
                true => wr.check_inline(&self.limits, length as usize)?,
                false => wr.check_length(length)?,
            };
            let slot = slot(&mut self.ring, self.ready)?;
            wr.encode_head(slot, length, num_sge, self.epoch, self.poster.sq_sig_all());
            Ok(())
        };
        match place() {
            Ok(()) => self.ready += 1,
            Err(kind) => self.fail(kind),
        }
    }

    /// Gives the last request its data: `put` checks it and writes it to its place in the slot.
    #[inline]
    fn set(
        &mut self,
        setter: &'static str,
        put: impl FnOnce(&mut Request<'q>, &SendLimits, &mut [u8]) -> Result<(), PostErrorKind>,
    ) {
        // After a failure the remaining calls are ignored.
        let Some(request) = &mut self.current else { return self.no_request(setter) };
        let placed = || {
            if !request.wr.takes_data() {
                return Err(PostErrorKind::NoData(request.wr.opcode()));
            }
            let slot = slot(&mut self.ring, self.ready)?;
            put(request, &self.limits, SendWqe::body(slot, self.limits.ext()))
        };
        if let Err(kind) = placed() {
            self.fail(kind);
        }
    }

    #[inline]
    fn change(&mut self, setter: &'static str, change: impl FnOnce(SendWr<'q>) -> SendWr<'q>) {
        match &mut self.current {
            Some(request) => request.wr = change(request.wr),
            None => self.no_request(setter),
        }
    }

    /// The current request cannot be posted, and so none can; the calls that follow are ignored.
    #[cold]
    fn fail(&mut self, kind: PostErrorKind) {
        self.current = None;
        self.failed.get_or_insert(PostError { bad_wr: self.ready as usize, kind });
    }

    #[cold]
    fn no_request(&mut self, setter: &'static str) {
        self.fail(PostErrorKind::NoRequest(setter));
    }
}

#[inline]
fn slot<'r>(
    ring: &'r mut Ring<'_>,
    ahead: u32,
) -> Result<&'r mut [stack::device::wqe::Granule], PostErrorKind> {
    let ring = ring.tap()?;
    let full = PostErrorKind::Full { depth: ring.depth() };
    ring.slot(ahead).ok_or(full)
}

/// RESET has raised the queue pair's epoch while the list was built: it is posted in the new one.
#[cold]
fn restamp(ring: &mut RingTap, requests: u32, epoch: u32) {
    for ahead in 0..requests {
        if let Some(slot) = ring.slot(ahead) {
            SendWqe::restamp(slot, epoch);
        }
    }
}
