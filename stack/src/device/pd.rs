//! Protection domains.

use std::sync::Arc;

use super::Device;
use super::ah::AhCore;
use super::error::DeviceError;
use super::mr::MrCore;
use super::qp::{QpCore, QpInit};
use crate::id::PdId;
use crate::mem::Access;
use crate::proto::attr::AhAttr;

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

    /// Makes an address handle.
    ///
    /// # Errors
    /// [`DeviceError::NoGrh`], [`DeviceError::Range`], [`DeviceError::Dgid`].
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<AhCore, DeviceError> {
        AhCore::new(self.clone(), attr)
    }

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn create_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Arc<QpCore>, DeviceError> {
        QpCore::new(self.clone(), init)
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
