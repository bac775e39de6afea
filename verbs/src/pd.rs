//! Protection domains.

use std::sync::Arc;

use stack::device::PdCore;

use crate::context::Context;
use crate::error::VerbsError;

/// A protection domain (`struct ibv_pd`). Queue pairs can use only memory regions of their own domain. It may be a parent domain
/// ([`Context::alloc_parent_domain`](crate::Context::alloc_parent_domain)).
#[derive(Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd {
    core: Arc<PdCore>,
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// `ENOMEM` if [`DeviceAttr::max_pd`](crate::DeviceAttr::max_pd) domains exist.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        Ok(Pd::new(self.device().alloc_pd()?))
    }
}

impl Pd {
    pub(crate) fn core(&self) -> &Arc<PdCore> {
        &self.core
    }
    pub(crate) fn new(core: Arc<PdCore>) -> Self {
        Self { core }
    }

    /// Frees the protection domain.
    ///
    /// # Errors
    /// `EBUSY` while it has queue pairs, shared receive queues, memory regions or windows, address handles or parent domains; for a parent
    /// domain, also while it has completion queues. The domain is returned with the error.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(self) -> Result<(), (VerbsError, Self)> {
        PdCore::dealloc(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}
