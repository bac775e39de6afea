//! Protection domains.

use std::sync::Arc;

use super::Device;
use super::error::DeviceError;
use super::limits::Share;
use super::mr::MrCore;
use super::qp::{QpCore, QpInit};
use crate::config::MR_SIZE_MAX;
use crate::id::PdId;
use crate::mem::Access;

/// A protection domain. Its queue pairs and regions hold it.
#[derive(Debug)]
pub struct PdCore {
    device: Arc<Device>,
    id: PdId,
    _share: Share,
}

impl PdCore {
    pub(super) fn new(device: Arc<Device>, id: PdId, share: Share) -> Arc<Self> {
        Arc::new(Self { device, id, _share: share })
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
    /// [`DeviceError::Memory`], [`DeviceError::Range`] for more than
    /// [`DeviceAttr::max_mr_size`](super::DeviceAttr::max_mr_size) bytes, [`DeviceError::Random`].
    pub fn reg_mr(self: &Arc<Self>, addr: u64, len: u64, access: Access) -> Result<MrCore, DeviceError> {
        if len > MR_SIZE_MAX {
            return Err(DeviceError::Range {
                what: "length of the region",
                given: len,
                min: 0,
                max: MR_SIZE_MAX,
            });
        }
        MrCore::new(self.clone(), addr, len, access)
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
