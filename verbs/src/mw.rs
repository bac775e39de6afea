//! Memory windows.

use core::ops::Range;
use std::sync::Arc;

use stack::device::{Access, MwCore, MwType, PdCore, SendFlags};

use crate::error::{BindError, VerbsError};
use crate::mr::Mr;
use crate::pd::Pd;

/// A memory window (`struct ibv_mw`): a key that temporarily grants part of a memory region, and is bound and invalidated without a control
/// call. Dropping it deallocates it.
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
pub struct Mw {
    core: MwCore,
}

/// What to bind a window to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct MwBindInfo<'a> {
    /// The region: of the window's protection domain, registered with [`Access::MW_BIND`] and not zero-based. `None` unbinds a window of
    /// type 1.
    pub mr: Option<&'a Mr>,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// The rights of the peer: remote rights, and for a window of type 2 also [`Access::ZERO_BASED`]. Writes and atomics need a region with
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
}

impl<'a> MwBindInfo<'a> {
    /// Describes a range of a region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`].
    pub fn new(mr: &'a Mr, range: Range<usize>, access: Access) -> Result<Self, VerbsError> {
        mr.contains(&range)?;
        let (addr, length) = (mr.iova() + range.start as u64, (range.end - range.start) as u64);
        Ok(Self { mr: Some(mr), addr, length, access })
    }
    /// Describes nothing: a bind with it unbinds a window of type 1.
    pub const fn unbind() -> Self {
        Self { mr: None, addr: 0, length: 0, access: Access::empty() }
    }
}

/// A request to bind a window of type 1 (`struct ibv_mw_bind`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_mw_bind")]
pub struct MwBind<'a> {
    /// The program's identifier of the request, which its completion contains.
    pub wr_id: u64,
    /// May contain `SIGNALED` and `FENCE`.
    pub send_flags: SendFlags,
    /// The range to bind the window to.
    pub bind_info: MwBindInfo<'a>,
}

impl Pd {
    /// Allocates a memory window. It grants nothing until it is bound: type 1 by [`Qp::bind_mw`](crate::Qp::bind_mw), type 2 by a
    /// [`SendWr::bind_mw`](crate::SendWr::bind_mw) request.
    ///
    /// ```
    /// # use verbs::{Access, Context, MwBindInfo, MwType, DeviceConfig, QpInitAttr, RcOptions, RecvWr, SendWr, Wc};
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
    /// // A key for the peer that grants 64 bytes, and can be taken away without deregistering.
    /// # let bound = pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = pd.alloc_mw(MwType::Two)?;
    /// let rkey = verbs::inc_rkey(mw.rkey());
    /// let info = MwBindInfo::new(&bound, 0..64, Access::REMOTE_WRITE)?;
    /// qp.post_send(&[SendWr::bind_mw(1, &mw, rkey, &info)?.signaled()])?;
    /// next()?;
    /// qp.post_send(&[SendWr::write(2, &[mr.sge(0..8)?], bound.addr(), rkey).signaled()])?;
    /// next()?;
    /// qp.post_send(&[SendWr::local_inv(3, rkey).signaled()])?;
    /// next()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ENOMEM` if no key is left.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw, VerbsError> {
        Ok(Mw { core: self.core().alloc_mw(mw_type)? })
    }
}

impl Mw {
    pub(crate) fn core(&self) -> &MwCore {
        &self.core
    }
    pub(crate) fn pd_core(&self) -> &Arc<PdCore> {
        self.core.pd()
    }
    /// The type.
    pub fn mw_type(&self) -> MwType {
        self.core.mw_type()
    }
    /// The key. For type 1, that of the last bind; for type 2, the one from which [`inc_rkey`](crate::inc_rkey) derives the key of a bind.
    pub fn rkey(&self) -> u32 {
        self.core.rkey()
    }
    /// Deallocates the window, bound or not. When the call returns, the window grants nothing any more.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn. The window is returned with the error.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> Result<(), (VerbsError, Self)> {
        match self.core.dealloc() {
            Ok(()) => Ok(()),
            Err(e) => Err((e.into(), self)),
        }
    }
}

/// Checks that two keys differ at most in their low 8 bits.
pub(crate) fn own_key(given: u32, own: u32) -> Result<(), BindError> {
    if given >> 8 == own >> 8 { Ok(()) } else { Err(BindError::ForeignKey { given, own }) }
}
