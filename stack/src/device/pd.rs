//! Protection domains.

use std::sync::Arc;

use super::Device;
use super::error::DeviceError;
use super::mr::MrCore;
use super::qp::{QpCore, QpInit};
use super::srq::{SrqAttr, SrqCore, XrcSrqInit};
use crate::id::PdId;
use crate::mem::Access;

/// A protection domain. Its queue pairs and regions hold it.
#[derive(Debug)]
pub struct PdCore {
    device: Arc<Device>,
    id: PdId,
}

impl PdCore {
    pub(super) fn new(device: Arc<Device>, id: PdId) -> Arc<Self> {
        Arc::new(Self { device, id })
    }
    /// Its number.
    pub fn id(&self) -> PdId {
        self.id
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Registers `len` bytes at `addr`.
    ///
    /// The memory must stay valid until the region is deregistered; whoever calls this sees to it.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn reg_mr(self: &Arc<Self>, addr: u64, len: u64, access: Access) -> Result<MrCore, DeviceError> {
        MrCore::new(self.clone(), addr, len, access)
    }

    /// Makes a shared receive queue of exactly `max_wr` requests.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Exhausted`]; for one of XRC also [`DeviceError::Foreign`] and
    /// [`DeviceError::InsideTurn`].
    pub fn create_srq(
        self: &Arc<Self>,
        attr: &SrqAttr,
        xrc: Option<XrcSrqInit<'_>>,
    ) -> Result<Arc<SrqCore>, DeviceError> {
        SrqCore::new(self.clone(), attr, xrc)
    }

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn create_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Arc<QpCore>, DeviceError> {
        QpCore::new(self.device.clone(), Some(self.clone()), init, None)
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// [`DeviceError::Busy`]; it comes back with the error.
    pub fn dealloc(pd: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        Arc::try_unwrap(pd).map(drop).map_err(|pd| {
            let users = Arc::strong_count(&pd) - 1;
            (DeviceError::Busy { object: "protection domain", users }, pd)
        })
    }
}
