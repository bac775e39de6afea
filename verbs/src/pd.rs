//! Protection domains.

use std::sync::Arc;

use stack::device::{Access, MwType, PdCore};

use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::qp::{Qp, QpInitAttr};
use crate::srq::{Srq, SrqInitAttr};
use crate::xrcd::Xrcd;

/// A protection domain (`struct ibv_pd`): queue pairs and memory regions work together only within one. It may be a
/// parent domain ([`Context::alloc_parent_domain`](crate::Context::alloc_parent_domain)).
#[derive(Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd {
    core: Arc<PdCore>,
}

impl Pd {
    pub(crate) fn core(&self) -> &Arc<PdCore> {
        &self.core
    }
    pub(crate) fn new(core: Arc<PdCore>) -> Self {
        Self { core }
    }

    /// Registers a new, zeroed buffer of `len` bytes, which the region owns. It starts on a page (from 2 MiB on, on a
    /// huge page).
    ///
    /// # Errors
    /// `EINVAL` for rights that do not go together (remote write or atomic without local write, ibv_reg_mr(3)),
    /// `EOPNOTSUPP` for those that this device does not have ([`Access::UNSUPPORTED`]), `ENOMEM` without memory or keys.
    /// [`Access::RELAXED_ORDERING`] and [`Access::HUGETLB`] are hints, which change nothing here.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        Mr::owned(&self.core, len, access)
    }

    /// Allocates a region for fast registration over a new, zeroed buffer of `len` bytes, which it owns. Its key grants
    /// nothing until a [`SendWr::reg_mr`](crate::SendWr::reg_mr) request registers all or part of the buffer.
    ///
    /// # Errors
    /// `ENOMEM` without memory or keys.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_mr(&self, len: usize) -> Result<Mr, VerbsError> {
        Mr::fast(&self.core, len)
    }

    /// Allocates a memory window, which grants nothing until it is bound: one of type 1 by
    /// [`Qp::bind_mw`], one of type 2 by a [`SendWr::bind_mw`](crate::SendWr::bind_mw) request.
    ///
    /// # Errors
    /// `ENOMEM` when no key is left.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw, VerbsError> {
        Mw::alloc(&self.core, mw_type)
    }

    /// Registers a buffer with the bytes of `data`.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    pub fn reg_mr_from(&self, data: &[u8], access: Access) -> Result<Mr, VerbsError> {
        let mr = self.reg_mr(data.len(), access)?;
        mr.write(0, data)?;
        Ok(mr)
    }

    /// Creates a queue pair, in RESET; the first one starts the port. The sizes granted are at least those requested
    /// ([`Qp::cap`]).
    ///
    /// An XRC target is created on its domain ([`Xrcd::create_qp`]).
    ///
    /// # Errors
    /// `EINVAL` for sizes above the device's limits ([`DeviceAttr`](crate::DeviceAttr)), a shard that does not exist
    /// or a completion queue of another context; `ENOMEM` without queue pair numbers; `ENODEV` where this starts the
    /// port ([`Context::start`](crate::Context::start)) and its device cannot be opened; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: &QpInitAttr<'_>) -> Result<Qp, VerbsError> {
        Qp::create(&self.core, init)
    }

    /// Creates a shared receive queue. Its `max_wr` is exactly the one requested.
    ///
    /// # Errors
    /// `EINVAL` for sizes of 0 or above the device's limits ([`DeviceAttr`](crate::DeviceAttr)) and for a limit above
    /// the size; `ENOMEM` when the device has no more queues.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: &SrqInitAttr) -> Result<Srq, VerbsError> {
        Srq::create(&self.core, init)
    }

    /// Creates a shared receive queue of an XRC domain: XRC initiators name it by its number ([`Srq::srq_num`]), and its
    /// requests complete in `cq`, whichever target of the domain received the message.
    ///
    /// The protection domain is that of its buffers, and of the keys in the messages that name the queue.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); `EINVAL` also for a domain or completion queue of another context; `EDEADLK`
    /// from inside a turn.
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "ibv_create_xrc_srq")]
    pub fn create_xrc_srq(&self, init: &SrqInitAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq, VerbsError> {
        Srq::create_xrc(&self.core, init, xrcd, cq)
    }

    /// Frees the protection domain.
    ///
    /// # Errors
    /// `EBUSY` while it has queue pairs, shared receive queues, memory regions or windows, address handles or parent domains,
    /// a parent domain also while it has completion queues; the domain comes back with the error.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(self) -> Result<(), (VerbsError, Self)> {
        PdCore::dealloc(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}
