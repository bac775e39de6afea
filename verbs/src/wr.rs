//! Work requests: built by the program, checked, and encoded in place into a slot of the ring.

use core::mem::offset_of;
use core::ops::Range;
use std::io::IoSlice;
use std::sync::Arc;

use stack::device::address::UD_ADDR_GRANULES;
use stack::device::wqe::{
    Granule, RecvWqe, SendWqe, XRC_ADDR_GRANULES, put_data, put_pieces, put_sges, put_srqn,
};
use stack::device::{Access, MwType, PdCore, QpCap, QpType, Qpn, SendFlags, Sge, WrOpcode};

use crate::ah::Ah;
use crate::error::{BindError, PostErrorKind, VerbsError};
use crate::flags::{FlushLevel, FlushPlacement, SendOpsFlags};
use crate::local_bytes::LocalBytes;
use crate::mr::Mr;
use crate::mw::{Mw, MwBindInfo, own_key};

/// Length in bytes of the longest message (IBA 9.7.7).
const MESSAGE_MAX: u64 = stack::device::limit::MESSAGE_MAX as u64;

/// A send work request (`struct ibv_send_wr`): an operation with its buffers and flags.
///
/// Each operation has a constructor, and other methods change the request: `SendWr::send(7, &[mr.sge(0..64)?]).signaled()`. The lists are
/// borrowed only until the post call returns. The memory that they name belongs to the device until the request has completed.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    wqe: SendWqe,
    data: Data<'a>,
    /// Destination of a datagram. `remote_qpn` and `remote_qkey` are the queue pair there and its Q_Key.
    ah: Option<&'a Ah>,
    remote_qpn: Qpn,
    remote_qkey: u32,
    /// The number of the XRC shared receive queue at the peer.
    remote_srqn: Option<u32>,
}

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// In registered memory, named by keys.
    List(&'a [Sge]),
    /// Copied when the request is posted.
    Inline(InlineData<'a>),
}

/// Inline data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InlineData<'a> {
    /// One slice.
    Whole(&'a [u8]),
    /// Several slices, concatenated.
    Pieces(&'a [IoSlice<'a>]),
    /// Copied from memory of the program, named by address.
    Local(LocalBytes<'a>),
}

impl InlineData<'_> {
    /// Length in bytes. Fails if it has more elements than the queue allows.
    #[inline]
    fn len(&self, limits: &SendLimits) -> Result<usize, PostErrorKind> {
        match self {
            Self::Whole(data) => Ok(data.len()),
            Self::Pieces(pieces) => Ok(pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add)),
            Self::Local(bytes) => limits.check_sges(bytes.elements()).map(|()| bytes.len()),
        }
    }

    /// Copies the data into the body of a slot. Not inlined, so that the hot path, a post with one scatter/gather element, keeps everything
    /// in registers.
    #[inline(never)]
    fn put(&self, body: &mut [u8]) {
        match self {
            Self::Whole(data) => put_data(body, data),
            Self::Pieces(pieces) => put_pieces(body, pieces.iter().map(|piece| &**piece)),
            Self::Local(bytes) => bytes.copy_to(body),
        }
    }
}

impl<'a> SendWr<'a> {
    #[inline]
    const fn new(wqe: SendWqe, sges: &'a [Sge]) -> Self {
        Self {
            wqe,
            data: Data::List(sges),
            ah: None,
            remote_qpn: Qpn::new(0),
            remote_qkey: 0,
            remote_srqn: None,
        }
    }

    /// SEND: the message is stored in the peer's next receive request.
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
    /// qp.post_recv(&[RecvWr::new(1, &[mr.sge(1024..2048)?])])?;
    /// qp.post_send(&[SendWr::send(2, &[mr.sge(0..5)?])])?;
    /// let received = next()?;
    /// assert_eq!((received.wr_id, received.byte_len), (1, 5));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(SendWqe::send(wr_id), sges)
    }
    /// SEND with 4 bytes of immediate data, which the peer finds in its completion. `imm` is in host byte order; it is transmitted in
    /// network byte order.
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
    /// qp.post_recv(&[RecvWr::new(1, &[])])?;
    /// qp.post_send(&[SendWr::send_with_imm(2, &[], 0xcafe)])?;
    /// assert_eq!(next()?.imm_data(), Some(0xcafe));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn send_with_imm(wr_id: u64, sges: &'a [Sge], imm: u32) -> Self {
        Self::new(SendWqe::send_with_imm(wr_id, imm), sges)
    }
    /// SEND that invalidates one of the peer's keys.
    #[inline]
    pub const fn send_with_inv(wr_id: u64, sges: &'a [Sge], invalidate_rkey: u32) -> Self {
        Self::new(SendWqe::send_with_inv(wr_id, invalidate_rkey), sges)
    }
    /// RDMA WRITE to the peer's memory at `remote_addr`, with its key `rkey`.
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
    /// mr.write(0, b"hello")?;
    /// qp.post_send(&[SendWr::write(1, &[mr.sge(0..5)?], mr.addr() + 1024, mr.rkey()).signaled()])?;
    /// next()?;
    /// assert_eq!(mr.to_vec(1024..1029)?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn write(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(SendWqe::write(wr_id, remote_addr, rkey), sges)
    }
    /// RDMA WRITE that also completes a receive request of the peer, with immediate data (see
    /// [`send_with_imm`](Self::send_with_imm)).
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
    /// // The peer learns that the bytes are there.
    /// qp.post_recv(&[RecvWr::new(1, &[])])?;
    /// qp.post_send(&[SendWr::write_with_imm(2, &[mr.sge(0..8)?], mr.addr() + 1024, mr.rkey(), 7)])?;
    /// let told = next()?;
    /// assert_eq!((told.byte_len, told.imm_data()), (8, Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn write_with_imm(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, imm: u32) -> Self {
        Self::new(SendWqe::write_with_imm(wr_id, remote_addr, rkey, imm), sges)
    }
    /// RDMA READ from the peer's memory at `remote_addr` into the local buffers.
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
    /// mr.write(1024, b"there")?;
    /// qp.post_send(&[SendWr::read(1, &[mr.sge(0..5)?], mr.addr() + 1024, mr.rkey()).signaled()])?;
    /// next()?;
    /// assert_eq!(mr.to_vec(0..5)?, b"there");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn read(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(SendWqe::read(wr_id, remote_addr, rkey), sges)
    }
    /// COMPARE & SWAP on the 8 bytes at `remote_addr`, a multiple of 8: if they equal `compare`, they are set to `swap`. The previous 8
    /// bytes are stored in the local buffers.
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
    /// mr.write_u64(1024, 5)?;
    /// let previous = [mr.sge(0..8)?];
    /// qp.post_send(&[SendWr::cmp_and_swp(1, &previous, mr.addr() + 1024, mr.rkey(), 5, 9).signaled()])?;
    /// next()?;
    /// assert_eq!((mr.read_u64(0)?, mr.read_u64(1024)?), (5, 9));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn cmp_and_swp(
        wr_id: u64,
        sges: &'a [Sge],
        remote_addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(SendWqe::cmp_and_swp(wr_id, remote_addr, rkey, compare, swap), sges)
    }
    /// FETCH & ADD on the 8 bytes at `remote_addr`, a multiple of 8. The previous 8 bytes are stored in the local buffers.
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
    /// mr.write_u64(1024, 5)?;
    /// let previous = [mr.sge(0..8)?];
    /// qp.post_send(&[SendWr::fetch_and_add(1, &previous, mr.addr() + 1024, mr.rkey(), 3).signaled()])?;
    /// next()?;
    /// assert_eq!((mr.read_u64(0)?, mr.read_u64(1024)?), (5, 8));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn fetch_and_add(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, add: u64) -> Self {
        Self::new(SendWqe::fetch_and_add(wr_id, remote_addr, rkey, add), sges)
    }

    /// ATOMIC WRITE (IBA A19): writes 8 bytes atomically to the peer's memory at `remote_addr`, a multiple of 8, after everything that this
    /// queue pair has written before. The data is a list of 8 bytes, or [`inline`](Self::inline). 8 bytes of inline data are always allowed
    /// here, even beyond the queue's `max_inline_data`.
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
    /// let eight = 7u64.to_le_bytes();
    /// qp.post_send(&[SendWr::atomic_write(1, &[], mr.addr() + 1024, mr.rkey()).inline(&eight).signaled()])?;
    /// next()?;
    /// assert_eq!(mr.to_vec(1024..1032)?, eight);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[doc(alias = "ibv_wr_atomic_write")]
    pub const fn atomic_write(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(SendWqe::atomic_write(wr_id, remote_addr, rkey), sges)
    }
    /// FLUSH (IBA A19): completes when everything that this queue pair has written before, to the `len` bytes at `remote_addr` or to the
    /// whole region, has reached the level `placement`. The key must grant that ([`Access::FLUSH_GLOBAL`]).
    #[inline]
    #[doc(alias = "ibv_wr_flush")]
    pub const fn flush(
        wr_id: u64,
        remote_addr: u64,
        len: u32,
        rkey: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Self {
        let (level, placement) = (level as u8, placement.bits());
        Self::new(SendWqe::flush_of(wr_id, remote_addr, len, rkey, level, placement), &[])
    }
    /// LOCAL_INV: invalidates a local key, that of a window of type 2 or of a region for fast registration, when all earlier requests of
    /// this queue pair have completed. After its successful completion no request uses the key any more. If the key cannot be invalidated,
    /// the queue pair enters ERR with `LOC_QP_OP_ERR`.
    #[inline]
    #[doc(alias = "ibv_wr_local_inv")]
    pub const fn local_inv(wr_id: u64, rkey: u32) -> Self {
        Self::new(SendWqe::local_inv(wr_id, rkey), &[])
    }
    /// BIND_MW of a window of type 2. Once it has executed, `rkey` grants part of a region to requests that arrive on this queue pair.
    /// `rkey` is a key of the window that differs from the present one in its low 8 bits ([`inc_rkey`](crate::inc_rkey)). The window must
    /// be unbound or invalidated. If the bind is not possible, the queue pair enters ERR with `MW_BIND_ERR`.
    ///
    /// # Errors
    /// `EINVAL` for a window of type 1, an `rkey` that is not the window's, or a length without a region; `EPERM` for a region of another
    /// protection domain.
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_mw(wr_id: u64, mw: &Mw, rkey: u32, info: &MwBindInfo<'_>) -> Result<Self, VerbsError> {
        Ok(Self::bind_type_2(wr_id, mw, rkey, info)?)
    }
    /// A BIND_MW request, for a window of type 2 only.
    pub(crate) fn bind_type_2(
        wr_id: u64,
        mw: &Mw,
        rkey: u32,
        info: &MwBindInfo<'_>,
    ) -> Result<Self, BindError> {
        if mw.mw_type() != MwType::Two {
            return Err(BindError::WindowType { call: "a BIND_MW request", wanted: 2 });
        }
        own_key(rkey, mw.rkey())?;
        Self::bind(wr_id, mw, rkey, info)
    }
    /// A request that binds a window of either type.
    pub(crate) fn bind(wr_id: u64, mw: &Mw, rkey: u32, info: &MwBindInfo<'_>) -> Result<Self, BindError> {
        let MwBindInfo { mr, addr, length, access } = *info;
        let region = match mr {
            Some(mr) if !mr.pd_core().is_same(mw.pd_core()) => {
                return Err(BindError::OtherPd { what: "memory region" });
            }
            Some(mr) => mr.rkey(),
            None if (addr, length) != (0, 0) => return Err(BindError::NoRegion { addr, length }),
            None => 0,
        };
        Ok(Self::new(SendWqe::bind_mw(wr_id, rkey, region, addr, length, access), &[]))
    }
    /// REG_MR. Once it has executed, the region for fast registration consists of `range` of its buffer, with the rights `access`, under
    /// its current key ([`Mr::update_fast_reg_key`]). Peers name bytes by address, or with [`Access::ZERO_BASED`] by their offset from the
    /// start of the range. The region must be unregistered or invalidated, and of the queue pair's protection domain; otherwise the queue
    /// pair enters ERR with `LOC_QP_OP_ERR`.
    ///
    /// # Errors
    /// `EINVAL` for an ordinary region, a range outside of the buffer, or an invalid combination of rights; `EOPNOTSUPP`
    /// for [`Access::UNSUPPORTED`].
    #[doc(alias = "IB_WR_REG_MR")]
    pub fn reg_mr(wr_id: u64, mr: &Mr, range: Range<usize>, access: Access) -> Result<Self, VerbsError> {
        mr.may_fast_register(&range, access)?;
        let (addr, length) = (mr.addr() + range.start as u64, (range.end - range.start) as u64);
        Ok(Self::new(SendWqe::reg_mr(wr_id, mr.rkey(), addr, length, access), &[]))
    }

    /// Sets the destination of a datagram: the peer's address handle, its queue pair `remote_qpn` and that queue pair's Q_Key. If bit 31 of
    /// `remote_qkey` is set, the sender's own Q_Key is sent instead (IBA 10.2.5). Required for every request on a UD queue pair, and
    /// refused on any other.
    #[inline]
    pub const fn to(mut self, ah: &'a Ah, remote_qpn: Qpn, remote_qkey: u32) -> Self {
        self.ah = Some(ah);
        self.remote_qpn = remote_qpn;
        self.remote_qkey = remote_qkey;
        self
    }
    /// Requests a completion on success. A failed request always generates one.
    #[inline]
    pub const fn signaled(self) -> Self {
        self.flag(SendFlags::SIGNALED)
    }
    /// Sets the solicited event bit of a SEND or a WRITE with immediate.
    #[inline]
    pub const fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED)
    }
    /// Delays the request until every earlier READ and atomic of the queue pair has completed (IBA 10.8.3.3).
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
    /// // The second request sends what the first one fetches.
    /// qp.post_recv(&[RecvWr::new(1, &[mr.sge(2048..2056)?])])?;
    /// let fetched = [mr.sge(0..8)?];
    /// mr.write(1024, b"fetched!")?;
    /// qp.post_send(&[
    ///     SendWr::read(2, &fetched, mr.addr() + 1024, mr.rkey()),
    ///     SendWr::send(3, &fetched).fenced(),
    /// ])?;
    /// next()?;
    /// assert_eq!(mr.to_vec(2048..2056)?, b"fetched!");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn fenced(self) -> Self {
        self.flag(SendFlags::FENCE)
    }
    /// Sends `data` instead of the scatter/gather list. The data is copied when the request is posted, so it needs no key and may be reused
    /// at once. For SENDs and WRITEs only, up to the queue's `max_inline_data`.
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
    /// // No region, and the bytes may be used again at once.
    /// let answer = String::from("hello");
    /// qp.post_recv(&[RecvWr::new(1, &[mr.sge(0..64)?])])?;
    /// qp.post_send(&[SendWr::send(2, &[]).inline(answer.as_bytes())])?;
    /// drop(answer);
    /// next()?;
    /// assert_eq!(mr.to_vec(0..5)?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub const fn inline(self, data: &'a [u8]) -> Self {
        self.with_inline(InlineData::Whole(data))
    }
    /// As [`inline`](Self::inline), with the concatenation of several slices.
    #[inline]
    pub const fn inline_list(self, pieces: &'a [IoSlice<'a>]) -> Self {
        self.with_inline(InlineData::Pieces(pieces))
    }
    /// As [`inline`](Self::inline), with data copied from memory of the program that is named by address, in up to `max_send_sge` elements.
    #[inline]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub const fn inline_local(self, bytes: LocalBytes<'a>) -> Self {
        self.with_inline(InlineData::Local(bytes))
    }
    #[inline]
    const fn with_inline(mut self, data: InlineData<'a>) -> Self {
        self.data = Data::Inline(data);
        self.flag(SendFlags::INLINE)
    }
    /// Adds those flags of an [`MwBind`](crate::MwBind) that a bind can have.
    pub(crate) const fn with(self, flags: SendFlags) -> Self {
        self.flag(flags.intersection(SendFlags::SIGNALED.union(SendFlags::FENCE)))
    }
    /// Names the peer's XRC shared receive queue by its number ([`Srq::srq_num`](crate::Srq::srq_num)), 24 bits. Required for every request
    /// on an XRC initiator, except for operations on local keys, and refused on any other queue pair. At the peer, the request uses the
    /// protection domain and completion queue of that shared receive queue.
    #[inline]
    #[doc(alias = "qp_type.xrc.remote_srqn")]
    pub const fn remote_srqn(mut self, remote_srqn: u32) -> Self {
        self.remote_srqn = Some(remote_srqn);
        self
    }
    #[inline]
    const fn flag(mut self, flag: SendFlags) -> Self {
        self.wqe = self.wqe.with_flags(flag);
        self
    }

    /// The program's identifier of the request, which its completion contains.
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        self.wqe.wr_id
    }
    /// The operation code.
    #[inline]
    pub fn opcode(&self) -> WrOpcode {
        self.wqe.opcode()
    }
    /// The flags.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        self.wqe.flags()
    }
    /// The request without its data and destination.
    #[inline]
    pub(crate) const fn wqe(&self) -> SendWqe {
        self.wqe
    }

    /// Checks everything about the request that can be checked when it is posted. Returns the message's length in bytes.
    #[inline]
    pub(crate) fn check(&self, limits: &SendLimits) -> Result<u32, PostErrorKind> {
        limits.check_opcode(&self.wqe)?;
        if self.ah.is_some() | self.remote_srqn.is_some() | limits.addressed {
            limits.check_destination(self)?;
        }
        let sges = match &self.data {
            Data::List(sges) => sges,
            Data::Inline(data) => return limits.check_inline(&self.wqe, data.len(limits)?),
        };
        limits.check_sges(sges.len())?;
        let length = match sges {
            [sge] => sge.length.into(),
            sges => sges.iter().map(|s| u64::from(s.length)).sum(),
        };
        check_length(&self.wqe, length)
    }

    /// Encodes the request into a slot.
    #[inline]
    pub(crate) fn encode(&self, slot: &mut [Granule], length: u32, epoch: u32, sig_all: bool) {
        let num_sge = if let Data::List(sges) = self.data { sges.len() } else { 0 };
        let addr_granules = match (self.ah, self.remote_srqn) {
            (None, None) => 0,
            (Some(_), _) => UD_ADDR_GRANULES,
            (None, Some(_)) => XRC_ADDR_GRANULES,
        };
        let flags = if sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let body = self.wqe.with_flags(flags).posted(length, num_sge, addr_granules, epoch).put(slot);
        let body = match (self.ah, self.remote_srqn) {
            (None, None) => body,
            (Some(ah), _) => ah.core().address().to(self.remote_qpn, self.remote_qkey).put(body),
            (None, Some(srqn)) => put_srqn(body, srqn),
        };
        match self.data {
            Data::List(sges) => put_sges(body, sges),
            Data::Inline(data) => data.put(body),
        }
    }
}

/// Checks the total length of a scatter/gather list and returns it.
#[inline]
pub(crate) fn check_length(wqe: &SendWqe, length: u64) -> Result<u32, PostErrorKind> {
    if length > MESSAGE_MAX {
        return Err(PostErrorKind::TooLong(length));
    }
    if is_in(CHECKED_OPCODES, wqe) {
        check_operands(wqe, length)?;
    }
    Ok(length as u32)
}

/// Checks the operands of the operations in [`CHECKED_OPCODES`].
#[cold]
fn check_operands(wqe: &SendWqe, length: u64) -> Result<(), PostErrorKind> {
    if wqe.opcode() != WrOpcode::Flush {
        return check_atomic(wqe, length);
    }
    match wqe.flush() {
        (feth, _) if feth.placement == 0 => Err(PostErrorKind::NoPlacement),
        (_, len) if u64::from(len) > MESSAGE_MAX => Err(PostErrorKind::TooLong(len.into())),
        _ => Ok(()),
    }
}

/// Checks length and alignment of an atomic.
fn check_atomic(wqe: &SendWqe, length: u64) -> Result<(), PostErrorKind> {
    if length != 8 {
        return Err(PostErrorKind::AtomicLength(length));
    }
    if wqe.remote_addr & 7 != 0 {
        return Err(PostErrorKind::AtomicAddress(wqe.remote_addr));
    }
    Ok(())
}

/// A set of one opcode.
const fn bit(opcode: WrOpcode) -> u32 {
    1 << opcode as u8
}

/// Whether a set of opcodes contains the operation of a request.
#[inline]
fn is_in(opcodes: u32, wqe: &SendWqe) -> bool {
    opcodes >> (wqe.opcode_number() & 31) & 1 != 0
}

const SENDS: u32 = bit(WrOpcode::Send) | bit(WrOpcode::SendWithImm);
const WRITES: u32 = bit(WrOpcode::RdmaWrite) | bit(WrOpcode::RdmaWriteWithImm);
const ATOMIC_OPCODES: u32 = bit(WrOpcode::AtomicCmpAndSwp) | bit(WrOpcode::AtomicFetchAndAdd);
/// Operations of the memory placement extensions (IBA A19).
const PLACEMENT: u32 = bit(WrOpcode::AtomicWrite) | bit(WrOpcode::Flush);
/// Operations on local keys.
const LOCAL: u32 = bit(WrOpcode::LocalInv) | bit(WrOpcode::BindMw) | bit(WrOpcode::RegMr);
const INLINE_OPCODES: u32 = SENDS | WRITES | bit(WrOpcode::SendWithInv) | bit(WrOpcode::AtomicWrite);
/// Operations that need checks beyond those of their scatter/gather lists.
const CHECKED_OPCODES: u32 = ATOMIC_OPCODES | PLACEMENT;

/// The operations of a type of queue pair (ibv_post_send(3)), as far as [`SendWr`] has a constructor for them.
const fn opcodes_of(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::Rc | QpType::XrcIni => {
            let reads = ATOMIC_OPCODES | bit(WrOpcode::RdmaRead);
            SENDS | WRITES | reads | PLACEMENT | LOCAL | bit(WrOpcode::SendWithInv)
        }
        // The manual lists SEND with invalidate for UC too, but no UC packet can carry it.
        QpType::Uc => SENDS | WRITES | LOCAL,
        QpType::Ud | QpType::Gsi => SENDS,
        QpType::XrcTgt => 0,
    }
}

/// Whether the operation of a request takes data.
#[inline]
pub(crate) fn takes_data(wqe: &SendWqe) -> bool {
    !is_in(LOCAL | bit(WrOpcode::Flush), wqe)
}

/// Whether a type of queue pair has an operation.
pub(crate) const fn has_opcode(qp_type: QpType, opcode: WrOpcode) -> bool {
    opcodes_of(qp_type) & bit(opcode) != 0
}

// The values fit the fields of `SendLimits`.
const _: () = assert!(
    SendOpsFlags::all().bits() <= u16::MAX as u64 && stack::device::limit::SGE_MAX <= u16::MAX as usize
);

/// What a send queue accepts, computed once. The fields that every post on a connected queue pair compares come first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SendLimits {
    /// Set of the opcodes that can be posted, one bit each.
    opcodes: u32,
    max_inline: u32,
    max_sge: u16,
    /// The operations that the extended interface may post.
    send_ops: u16,
    qp_type: QpType,
    /// `datagram` or `xrc`.
    addressed: bool,
    /// Whether every request must name a destination.
    datagram: bool,
    /// Whether every request must name a shared receive queue.
    xrc: bool,
    /// The address of the queue pair's protection domain, for comparison. The queue pair keeps the domain alive.
    pd: usize,
}

impl SendLimits {
    /// Offset of the fields that only datagrams use.
    pub(crate) const PD: usize = offset_of!(Self, pd);

    pub(crate) fn new(
        qp_type: QpType,
        pd: Option<&Arc<PdCore>>,
        cap: &QpCap,
        send_ops: Option<SendOpsFlags>,
    ) -> Self {
        Self {
            opcodes: opcodes_of(qp_type),
            max_inline: cap.max_inline_data,
            max_sge: cap.max_send_sge as u16,
            send_ops: send_ops.unwrap_or(SendOpsFlags::all()).bits() as u16,
            qp_type,
            addressed: matches!(qp_type, QpType::Ud | QpType::Gsi | QpType::XrcIni),
            datagram: matches!(qp_type, QpType::Ud | QpType::Gsi),
            xrc: qp_type == QpType::XrcIni,
            pd: pd.map_or(0, |pd| Arc::as_ptr(pd.domain()).addr()),
        }
    }

    /// Checks that the queue pair's type has the operation.
    #[inline]
    pub(crate) fn check_opcode(&self, wqe: &SendWqe) -> Result<(), PostErrorKind> {
        if is_in(self.opcodes, wqe) { Ok(()) } else { Err(self.wrong_opcode(wqe.opcode())) }
    }

    /// Checks that a request names a destination if and only if the type requires one.
    #[inline(never)]
    fn check_destination(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if wr.ah.is_some() || self.datagram {
            self.check_address(wr.ah)?;
        }
        self.check_srqn(&wr.wqe, wr.remote_srqn)
    }

    /// Checks that a request names a shared receive queue if and only if the type requires one.
    pub(crate) fn check_srqn(&self, wqe: &SendWqe, srqn: Option<u32>) -> Result<(), PostErrorKind> {
        match srqn {
            None if self.xrc && !is_in(LOCAL, wqe) => Err(PostErrorKind::NoSrqn),
            Some(srqn) if !self.xrc || srqn > 0xff_ffff => Err(PostErrorKind::BadSrqn(srqn)),
            _ => Ok(()),
        }
    }

    /// Checks that a request has an address handle if and only if the type requires one.
    pub(crate) fn check_address(&self, ah: Option<&Ah>) -> Result<(), PostErrorKind> {
        match ah {
            Some(_) if !self.datagram => Err(PostErrorKind::UnexpectedAddress { qp_type: self.qp_type }),
            Some(ah) if self.is_ours(ah.core().pd()) => Ok(()),
            Some(_) => Err(PostErrorKind::ForeignAh),
            None => Err(PostErrorKind::NoAddress { qp_type: self.qp_type }),
        }
    }

    /// The operations that the extended interface may post.
    pub(crate) fn send_ops(&self) -> SendOpsFlags {
        SendOpsFlags::from_bits_truncate(self.send_ops.into())
    }

    /// Whether the extended interface may post an operation.
    #[inline]
    pub(crate) fn has_op(&self, op: SendOpsFlags) -> bool {
        self.send_ops & op.bits() as u16 != 0
    }

    /// Whether every request must name an address handle.
    #[inline]
    pub(crate) fn is_datagram(&self) -> bool {
        self.datagram
    }

    /// Checks inline data and returns its length.
    #[inline]
    pub(crate) fn check_inline(&self, wqe: &SendWqe, given: usize) -> Result<u32, PostErrorKind> {
        if !is_in(INLINE_OPCODES, wqe) {
            return Err(PostErrorKind::InlineNotAllowed(wqe.opcode()));
        }
        // The 8 bytes of an ATOMIC WRITE fit in every slot.
        if wqe.opcode() == WrOpcode::AtomicWrite {
            check_atomic(wqe, given as u64)?;
        } else if given > self.max_inline as usize {
            return Err(PostErrorKind::InlineTooLong { given, max: self.max_inline });
        }
        Ok(given as u32)
    }

    /// Checks the number of elements of a list.
    #[inline]
    pub(crate) fn check_sges(&self, given: usize) -> Result<(), PostErrorKind> {
        if given > usize::from(self.max_sge) {
            return Err(PostErrorKind::TooManySge { given, max: self.max_sge.into() });
        }
        Ok(())
    }

    /// How many granules (16 bytes each) the address block takes in a request that has data.
    #[inline]
    pub(crate) fn addr_granules(&self) -> usize {
        match (self.datagram, self.xrc) {
            (true, _) => UD_ADDR_GRANULES,
            (_, true) => XRC_ADDR_GRANULES,
            _ => 0,
        }
    }

    /// Whether `pd` is the queue pair's protection domain.
    #[inline]
    fn is_ours(&self, pd: &Arc<PdCore>) -> bool {
        Arc::as_ptr(pd).addr() == self.pd || Arc::as_ptr(pd.domain()).addr() == self.pd
    }

    #[cold]
    fn wrong_opcode(&self, opcode: WrOpcode) -> PostErrorKind {
        PostErrorKind::Opcode { opcode, qp_type: self.qp_type }
    }
}

/// A receive work request (`struct ibv_recv_wr`): buffers for one message, filled in list order.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    wr_id: u64,
    sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Buffers for one message. The list is borrowed only until the post call returns. The memory that it names belongs to the device until
    /// the request has completed. An empty list receives a message of 0 bytes.
    #[inline]
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
    /// The program's identifier of the request, which its completion contains.
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }
    /// Checks everything about the request that can be checked when it is posted.
    #[inline]
    pub(crate) fn check(&self, max_sge: u32) -> Result<(), PostErrorKind> {
        if self.sges.len() > max_sge as usize {
            return Err(PostErrorKind::TooManySge { given: self.sges.len(), max: max_sge });
        }
        Ok(())
    }
    /// Encodes the request into a slot.
    #[inline]
    pub(crate) fn encode(&self, slot: &mut [Granule], epoch: u32) {
        let wqe = RecvWqe { wr_id: self.wr_id, epoch, num_sge: self.sges.len() as u32 };
        put_sges(wqe.put(slot), self.sges);
    }
}
