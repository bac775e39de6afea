//! Protection domains.

use std::sync::Arc;

use stack::device::{Access, PdCore};

use crate::error::VerbsError;
use crate::mr::Mr;
use crate::qp::{Qp, QpInitAttr};

/// A protection domain (`struct ibv_pd`): queue pairs and memory regions work together only within one.
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
    /// `EINVAL` for rights that do not go together (remote write or atomic without local write, ibv_reg_mr(3)) or that
    /// this device does not have, `ENOMEM` without memory or keys.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        Mr::owned(&self.core, len, access)
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

    /// Makes a queue pair, in RESET; the first one starts the port. The sizes granted are at least those asked for ([`Qp::cap`]).
    ///
    /// RC, UC, UD and GSI carry data. XRC queue pairs can be made and modified through their whole state table; posting
    /// to them is refused with `EOPNOTSUPP`, because their data path does not exist yet.
    ///
    /// # Errors
    /// `EINVAL` for sizes above the device's limits ([`DeviceAttr`](crate::DeviceAttr)), a shard that does not exist
    /// or a completion queue of another context; `ENOMEM` without queue pair numbers; `ENODEV` where this starts the
    /// port ([`Context::start`](crate::Context::start)) and its device cannot be opened; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: &QpInitAttr<'_>) -> Result<Qp, VerbsError> {
        Qp::create(&self.core, init)
    }

    /// Frees the protection domain.
    ///
    /// # Errors
    /// `EBUSY` while it has queue pairs or memory regions; it comes back with the error.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(self) -> Result<(), (VerbsError, Self)> {
        PdCore::dealloc(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}
