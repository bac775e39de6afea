//! Work requests, checked and encoded in place in a ring slot.

use core::mem::offset_of;
use core::ops::Range;
use std::sync::Arc;

use stack::device::address::UD_EXT;
use stack::device::wqe::{Granule, RecvWqe, SendWqe, XRC_EXT, put_data, put_sges, put_srqn};
use stack::device::{Access, MwType, PdCore, QpCap, QpType, Qpn, SendFlags, Sge, WrOpcode};

use crate::ah::Ah;
use crate::error::{BindError, PostErrorKind, VerbsError};
use crate::flags::{FlushLevel, FlushPlacement, SendOpsFlags};
use crate::mr::Mr;
use crate::mw::{Mw, MwBindInfo, own_key};

/// Bytes of the longest message (IBA 9.7.7).
const MESSAGE_MAX: u64 = stack::device::limit::MESSAGE_MAX as u64;

/// A send work request (`struct ibv_send_wr`): an operation with its buffers and flags.
///
/// Created by a constructor for each operation and refined with builder calls:
/// `SendWr::send(7, &[mr.sge(0..64)?]).signaled()`. The lists are borrowed only until the post call returns; the memory they
/// name belongs to the device until the request has completed.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    wr_id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    sges: &'a [Sge],
    inline: &'a [u8],
    remote_addr: u64,
    rkey: u32,
    arg0: u64,
    arg1: u64,
    /// Destination of a datagram; its queue pair is in `arg1`, its Q_Key in `rkey`.
    ah: Option<&'a Ah>,
    /// The XRC shared receive queue at the peer.
    remote_srqn: Option<u32>,
}

impl<'a> SendWr<'a> {
    #[inline]
    const fn new(wr_id: u64, opcode: WrOpcode, sges: &'a [Sge]) -> Self {
        Self {
            wr_id,
            opcode,
            flags: SendFlags::empty(),
            sges,
            inline: &[],
            remote_addr: 0,
            rkey: 0,
            arg0: 0,
            arg1: 0,
            ah: None,
            remote_srqn: None,
        }
    }
    #[inline]
    const fn at(mut self, remote_addr: u64, rkey: u32) -> Self {
        self.remote_addr = remote_addr;
        self.rkey = rkey;
        self
    }
    #[inline]
    const fn imm(mut self, imm: u32) -> Self {
        self.arg0 = imm.to_be() as u64;
        self
    }

    /// SEND: the message goes into the peer's next receive request.
    #[inline]
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, WrOpcode::Send, sges)
    }
    /// SEND with 4 bytes of immediate data that the peer finds in its completion. `imm` is a number; it travels in
    /// network byte order.
    #[inline]
    pub const fn send_with_imm(wr_id: u64, sges: &'a [Sge], imm: u32) -> Self {
        Self::new(wr_id, WrOpcode::SendWithImm, sges).imm(imm)
    }
    /// SEND that invalidates one of the peer's keys.
    #[inline]
    pub const fn send_with_inv(wr_id: u64, sges: &'a [Sge], invalidate_rkey: u32) -> Self {
        let mut wr = Self::new(wr_id, WrOpcode::SendWithInv, sges);
        wr.arg0 = invalidate_rkey as u64;
        wr
    }
    /// RDMA WRITE into the peer's memory at `remote_addr`, under its key `rkey`.
    #[inline]
    pub const fn write(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(wr_id, WrOpcode::RdmaWrite, sges).at(remote_addr, rkey)
    }
    /// RDMA WRITE that also completes a receive request of the peer, with immediate data (see
    /// [`send_with_imm`](Self::send_with_imm)).
    #[inline]
    pub const fn write_with_imm(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, imm: u32) -> Self {
        Self::new(wr_id, WrOpcode::RdmaWriteWithImm, sges).at(remote_addr, rkey).imm(imm)
    }
    /// RDMA READ from the peer's memory at `remote_addr` into the local buffers.
    #[inline]
    pub const fn read(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(wr_id, WrOpcode::RdmaRead, sges).at(remote_addr, rkey)
    }
    /// COMPARE & SWAP of the 8 bytes at `remote_addr`, a multiple of 8: if they equal `compare`, they become `swap`. The
    /// previous 8 bytes are returned into the local buffers.
    #[inline]
    pub const fn cmp_and_swp(
        wr_id: u64,
        sges: &'a [Sge],
        remote_addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    ) -> Self {
        let mut wr = Self::new(wr_id, WrOpcode::AtomicCmpAndSwp, sges).at(remote_addr, rkey);
        wr.arg0 = compare;
        wr.arg1 = swap;
        wr
    }
    /// FETCH & ADD on the 8 bytes at `remote_addr`, a multiple of 8. The previous 8 bytes are returned into the local
    /// buffers.
    #[inline]
    pub const fn fetch_and_add(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, add: u64) -> Self {
        let mut wr = Self::new(wr_id, WrOpcode::AtomicFetchAndAdd, sges).at(remote_addr, rkey);
        wr.arg0 = add;
        wr
    }

    /// ATOMIC WRITE (IBA A19): writes 8 bytes atomically into the peer's memory at `remote_addr`, a multiple of 8, after
    /// everything that this queue pair wrote before. The data is a list of 8 bytes, or [`inline`](Self::inline), where 8
    /// bytes are allowed whatever the queue's `max_inline_data` is.
    #[inline]
    #[doc(alias = "ibv_wr_atomic_write")]
    pub const fn atomic_write(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(wr_id, WrOpcode::AtomicWrite, sges).at(remote_addr, rkey)
    }
    /// FLUSH (IBA A19): completes when what this queue pair wrote before, to the `len` bytes at `remote_addr` or to the whole
    /// region, has reached the level `placement`. The key must grant it ([`Access::FLUSH_GLOBAL`]).
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
        let mut wr = Self::new(wr_id, WrOpcode::Flush, &[]).at(remote_addr, rkey);
        wr.arg0 = (level as u64) << 8 | placement.bits() as u64;
        wr.arg1 = len as u64;
        wr
    }
    /// LOCAL_INV: invalidates a local key, of a window of type 2 or a region for fast registration, when everything before it
    /// on this queue pair has completed. After its successful completion no request uses the key any more; a key that cannot
    /// be invalidated ends the queue pair with `LOC_QP_OP_ERR`.
    #[inline]
    #[doc(alias = "ibv_wr_local_inv")]
    pub const fn local_inv(wr_id: u64, rkey: u32) -> Self {
        Self::new(wr_id, WrOpcode::LocalInv, &[]).at(0, rkey)
    }
    /// BIND_MW of a window of type 2: from its execution on, `rkey` grants part of a region to requests that arrive on this
    /// queue pair. `rkey` is a key of the window with other low 8 bits ([`inc_rkey`](crate::inc_rkey)), and the window must
    /// be unbound, or invalidated. A bind that is not possible ends the queue pair with `MW_BIND_ERR`.
    ///
    /// # Errors
    /// `EINVAL` for a window of type 1, a foreign `rkey`, or bytes without a region; `EPERM` for a region of another
    /// protection domain.
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_mw(wr_id: u64, mw: &Mw, rkey: u32, info: &MwBindInfo<'_>) -> Result<Self, VerbsError> {
        Ok(Self::bind_type_2(wr_id, mw, rkey, info)?)
    }
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
        let mut wr = Self::new(wr_id, WrOpcode::BindMw, &[]).at(addr, rkey);
        wr.arg0 = u64::from(access.bits()) << 32 | u64::from(region);
        wr.arg1 = length;
        Ok(wr)
    }
    /// REG_MR: from its execution on, the region for fast registration is this range of its buffer, with these rights, under
    /// its present key ([`Mr::update_fast_reg_key`]). Peers name bytes by address, or with [`Access::ZERO_BASED`] by their
    /// offset from the start of the range. The region must be unregistered, or invalidated; otherwise, and on a queue pair of
    /// another protection domain, the queue pair ends with `LOC_QP_OP_ERR`.
    ///
    /// # Errors
    /// `EINVAL` for an ordinary region, a range outside of the buffer, or an invalid combination of rights; `EOPNOTSUPP`
    /// for [`Access::UNSUPPORTED`].
    #[doc(alias = "IB_WR_REG_MR")]
    pub fn reg_mr(wr_id: u64, mr: &Mr, range: Range<usize>, access: Access) -> Result<Self, VerbsError> {
        mr.may_fast_register(&range, access)?;
        let mut wr = Self::new(wr_id, WrOpcode::RegMr, &[]).at(mr.addr() + range.start as u64, mr.rkey());
        wr.arg0 = u64::from(access.bits()) << 32;
        wr.arg1 = (range.end - range.start) as u64;
        Ok(wr)
    }

    /// Sets the destination of a datagram: the queue pair `remote_qpn` behind `ah`, with its Q_Key. With bit 31 of
    /// `remote_qkey` set, the sender's own Q_Key is sent instead (IBA 10.2.5). Every request on a UD queue pair needs it, and
    /// no other takes it.
    #[inline]
    #[must_use]
    pub const fn to(mut self, ah: &'a Ah, remote_qpn: Qpn, remote_qkey: u32) -> Self {
        self.ah = Some(ah);
        self.arg1 = remote_qpn.get() as u64;
        self.rkey = remote_qkey;
        self
    }
    /// Requests a completion on success. An error always generates one.
    #[inline]
    #[must_use]
    pub const fn signaled(self) -> Self {
        self.flag(SendFlags::SIGNALED)
    }
    /// Sets the solicited event bit of a SEND or a WRITE with immediate.
    #[inline]
    #[must_use]
    pub const fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED)
    }
    /// Starts only when every earlier READ and atomic of the queue pair has completed (IBA 10.8.3.3).
    #[inline]
    #[must_use]
    pub const fn fenced(self) -> Self {
        self.flag(SendFlags::FENCE)
    }
    /// Sends `data` instead of the scatter/gather list. It is copied when the request is posted, needs no key and
    /// may be reused at once. Sends and writes only, up to the queue's `max_inline_data`.
    #[inline]
    #[must_use]
    pub const fn inline(mut self, data: &'a [u8]) -> Self {
        self.sges = &[];
        self.inline = data;
        self.flag(SendFlags::INLINE)
    }
    /// Adds these flags to its own.
    #[inline]
    pub(crate) const fn with_flags(self, flags: SendFlags) -> Self {
        self.flag(flags)
    }
    /// Sets whether its data is inline, where another caller writes the data into the slot.
    #[inline]
    pub(crate) const fn with_inline(mut self, inline: bool) -> Self {
        self.flags = self.flags.difference(SendFlags::INLINE);
        if inline { self.flag(SendFlags::INLINE) } else { self }
    }
    #[inline]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }
    /// Whether the operation has data.
    #[inline]
    pub(crate) const fn takes_data(&self) -> bool {
        (LOCAL | bit(WrOpcode::Flush)) & bit(self.opcode) == 0
    }
    /// Adds the flags of an [`MwBind`](crate::MwBind) that a bind may have.
    pub(crate) const fn with(self, flags: SendFlags) -> Self {
        self.flag(flags.intersection(SendFlags::SIGNALED.union(SendFlags::FENCE)))
    }
    /// Names the XRC shared receive queue at the peer by its number ([`Srq::srq_num`](crate::Srq::srq_num)), 24 bits. Every
    /// request on an XRC initiator needs it, except for operations on local keys, and no request on another queue pair takes
    /// it. At the peer the request gets the protection domain and completion queue of that shared receive queue.
    #[inline]
    #[must_use]
    #[doc(alias = "qp_type.xrc.remote_srqn")]
    pub const fn remote_srqn(mut self, remote_srqn: u32) -> Self {
        self.remote_srqn = Some(remote_srqn);
        self
    }
    #[inline]
    const fn flag(mut self, flag: SendFlags) -> Self {
        self.flags = self.flags.union(flag);
        self
    }

    /// The caller's tag, which comes back in the completion.
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }
    /// The operation.
    #[inline]
    pub const fn opcode(&self) -> WrOpcode {
        self.opcode
    }
    /// The flags.
    #[inline]
    pub const fn flags(&self) -> SendFlags {
        self.flags
    }

    /// Every check that a post makes on the request itself; returns the message's length in bytes.
    #[inline]
    pub(crate) fn check(&self, limits: &SendLimits) -> Result<u32, PostErrorKind> {
        self.check_head(limits)?;
        if self.flags.contains(SendFlags::INLINE) {
            return self.check_inline(limits, self.inline.len());
        }
        limits.check_sges(self.sges.len())?;
        self.check_length(match self.sges {
            [sge] => sge.length.into(),
            sges => sges.iter().map(|s| u64::from(s.length)).sum(),
        })
    }

    /// Checks everything but the data: the operation, and that the request names its destination as the type requires.
    #[inline]
    pub(crate) fn check_head(&self, limits: &SendLimits) -> Result<(), PostErrorKind> {
        if limits.opcodes & bit(self.opcode) == 0 {
            return Err(limits.wrong_opcode(self.opcode));
        }
        if self.ah.is_some() | self.remote_srqn.is_some() | limits.addressed {
            limits.check_destination(self)?;
        }
        Ok(())
    }

    /// Checks inline data; returns its length.
    #[inline]
    pub(crate) fn check_inline(&self, limits: &SendLimits, given: usize) -> Result<u32, PostErrorKind> {
        if INLINE_OPCODES & bit(self.opcode) == 0 {
            return Err(PostErrorKind::InlineNotAllowed(self.opcode));
        }
        // Its 8 bytes fit in every slot.
        if self.opcode == WrOpcode::AtomicWrite {
            self.check_atomic(given as u64)?;
        } else if given > limits.max_inline as usize {
            return Err(PostErrorKind::InlineTooLong { given, max: limits.max_inline });
        }
        Ok(given as u32)
    }

    /// Checks the length of a list; returns it.
    #[inline]
    pub(crate) fn check_length(&self, length: u64) -> Result<u32, PostErrorKind> {
        if length > MESSAGE_MAX {
            return Err(PostErrorKind::TooLong(length));
        }
        if CHECKED_OPCODES & bit(self.opcode) != 0 {
            self.check_operands(length)?;
        }
        Ok(length as u32)
    }

    #[cold]
    fn check_operands(&self, length: u64) -> Result<(), PostErrorKind> {
        if self.opcode != WrOpcode::Flush {
            return self.check_atomic(length);
        }
        match self.arg1 {
            _ if self.arg0 as u8 == 0 => Err(PostErrorKind::NoPlacement),
            len if len > MESSAGE_MAX => Err(PostErrorKind::TooLong(len)),
            _ => Ok(()),
        }
    }

    fn check_atomic(&self, length: u64) -> Result<(), PostErrorKind> {
        if length != 8 {
            return Err(PostErrorKind::AtomicLength(length));
        }
        if self.remote_addr & 7 != 0 {
            return Err(PostErrorKind::AtomicAddress(self.remote_addr));
        }
        Ok(())
    }

    /// Writes the request into a slot.
    #[inline]
    pub(crate) fn encode(&self, slot: &mut [Granule], length: u32, epoch: u32, sig_all: bool) {
        let body = self.encode_head(slot, length, self.sges.len(), epoch, sig_all);
        if self.flags.contains(SendFlags::INLINE) {
            put_data(body, self.inline);
        } else {
            put_sges(body, self.sges);
        }
    }

    /// Writes everything but the data, which has `num_sge` elements, into a slot; returns where the data goes.
    #[inline]
    pub(crate) fn encode_head<'s>(
        &self,
        slot: &'s mut [Granule],
        length: u32,
        num_sge: usize,
        epoch: u32,
        sig_all: bool,
    ) -> &'s mut [u8] {
        let mut flags = self.flags;
        flags.set(SendFlags::SIGNALED, sig_all || flags.contains(SendFlags::SIGNALED));
        let mut wqe = SendWqe::new(self.wr_id, self.opcode, flags);
        wqe.remote_addr = self.remote_addr;
        wqe.rkey = self.rkey;
        wqe.length = length;
        wqe.epoch = epoch;
        wqe.num_sge = num_sge as u8;
        wqe.arg0 = self.arg0;
        wqe.arg1 = self.arg1;
        match (self.ah, self.remote_srqn) {
            (None, None) => wqe.put(slot),
            (Some(ah), _) => {
                wqe.ext = UD_EXT as u8;
                ah.core().address().to(Qpn::new(self.arg1 as u32), self.rkey).put(wqe.put(slot))
            }
            (None, Some(srqn)) => {
                wqe.ext = XRC_EXT as u8;
                put_srqn(wqe.put(slot), srqn)
            }
        }
    }
}

const fn bit(opcode: WrOpcode) -> u32 {
    1 << opcode as u8
}

const SENDS: u32 = bit(WrOpcode::Send) | bit(WrOpcode::SendWithImm);
const WRITES: u32 = bit(WrOpcode::RdmaWrite) | bit(WrOpcode::RdmaWriteWithImm);
const ATOMIC_OPCODES: u32 = bit(WrOpcode::AtomicCmpAndSwp) | bit(WrOpcode::AtomicFetchAndAdd);
/// Memory placement (IBA A19).
const PLACEMENT: u32 = bit(WrOpcode::AtomicWrite) | bit(WrOpcode::Flush);
/// Operations on local keys.
const LOCAL: u32 = bit(WrOpcode::LocalInv) | bit(WrOpcode::BindMw) | bit(WrOpcode::RegMr);
const INLINE_OPCODES: u32 = SENDS | WRITES | bit(WrOpcode::SendWithInv) | bit(WrOpcode::AtomicWrite);
/// Those with more to check than their lists.
const CHECKED_OPCODES: u32 = ATOMIC_OPCODES | PLACEMENT;

/// Operations that exist on a type of queue pair (ibv_post_send(3)), of those that have a constructor.
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

/// Whether a type of queue pair has an operation.
pub(crate) const fn has_opcode(qp_type: QpType, opcode: WrOpcode) -> bool {
    opcodes_of(qp_type) & bit(opcode) != 0
}

// The flags and the elements fit their fields.
const _: () = assert!(
    SendOpsFlags::all().bits() <= u16::MAX as u64 && stack::device::limit::SGE_MAX <= u16::MAX as usize
);

/// What a send queue accepts, computed once. The fields that requests on connected queue pairs are compared with come first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SendLimits {
    /// Bit set of the opcodes that can be posted.
    opcodes: u32,
    max_inline: u32,
    max_sge: u16,
    /// The operations that the extended interface may post.
    send_ops: u16,
    qp_type: QpType,
    /// Every request names a destination, of one kind or the other.
    addressed: bool,
    /// Every request names its destination.
    datagram: bool,
    /// Every request names a shared receive queue.
    xrc: bool,
    /// The queue pair's protection domain, by its address: the queue pair keeps it alive.
    pd: usize,
}

impl SendLimits {
    /// Offset of the fields that only datagrams need.
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

    /// Checks that a request names the destination that the type requires, and no other.
    #[inline(never)]
    fn check_destination(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if wr.ah.is_some() || self.datagram {
            self.check_address(wr.ah)?;
        }
        if wr.remote_srqn.is_some() || (self.xrc && LOCAL & bit(wr.opcode) == 0) {
            self.check_srqn(wr.remote_srqn)?;
        }
        Ok(())
    }

    /// Checks that a request names a shared receive queue if the type requires one, and none otherwise.
    fn check_srqn(&self, srqn: Option<u32>) -> Result<(), PostErrorKind> {
        match srqn {
            None => Err(PostErrorKind::NoSrqn),
            Some(srqn) if !self.xrc || srqn > 0xff_ffff => Err(PostErrorKind::BadSrqn(srqn)),
            Some(_) => Ok(()),
        }
    }

    /// Checks that a request has an address if the type requires one, and none otherwise.
    fn check_address(&self, ah: Option<&Ah>) -> Result<(), PostErrorKind> {
        match ah {
            Some(_) if !self.datagram => Err(PostErrorKind::UnexpectedAddress { qp_type: self.qp_type }),
            Some(ah) if self.is_ours(ah.core().pd()) => Ok(()),
            Some(_) => Err(PostErrorKind::ForeignAh),
            None => Err(PostErrorKind::NoAddress { qp_type: self.qp_type }),
        }
    }

    /// Whether the extended interface may post an operation.
    #[inline]
    pub(crate) fn has_op(&self, op: SendOpsFlags) -> bool {
        self.send_ops & op.bits() as u16 != 0
    }

    /// Checks the number of elements of a list.
    #[inline]
    pub(crate) fn check_sges(&self, given: usize) -> Result<(), PostErrorKind> {
        if given > usize::from(self.max_sge) {
            return Err(PostErrorKind::TooManySge { given, max: self.max_sge.into() });
        }
        Ok(())
    }

    /// Granules of the address block in a request that has data.
    #[inline]
    pub(crate) fn ext(&self) -> usize {
        match (self.datagram, self.xrc) {
            (true, _) => UD_EXT,
            (_, true) => XRC_EXT,
            _ => 0,
        }
    }

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
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    wr_id: u64,
    sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Buffers for one message. The list is borrowed only until the post call returns; the memory it names belongs
    /// to the device until the request has completed. An empty list takes a message of 0 bytes.
    #[inline]
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
    /// The caller's tag, which comes back in the completion.
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }
    /// Every check that a post makes on the request itself.
    #[inline]
    pub(crate) fn check(&self, max_sge: u32) -> Result<(), PostErrorKind> {
        if self.sges.len() > max_sge as usize {
            return Err(PostErrorKind::TooManySge { given: self.sges.len(), max: max_sge });
        }
        Ok(())
    }
    /// Writes the request into a slot.
    #[inline]
    pub(crate) fn encode(&self, slot: &mut [Granule], epoch: u32) {
        let wqe = RecvWqe { wr_id: self.wr_id, epoch, num_sge: self.sges.len() as u32 };
        put_sges(wqe.put(slot), self.sges);
    }
}
