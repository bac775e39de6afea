//! Protection domains.

use std::sync::Arc;

use super::Device;
use super::ah::AhCore;
use super::error::DeviceError;
use super::limits::Share;
use super::mr::MrCore;
use super::mw::MwCore;
use super::qp::{QpCore, QpInit};
use super::srq::{SrqAttr, SrqCore, XrcSrqInit};
use crate::config::MR_SIZE_MAX;
use crate::id::PdId;
use crate::mem::{Access, MwType};
use crate::proto::attr::AhAttr;

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

    /// Makes an address handle.
    ///
    /// # Errors
    /// [`DeviceError::NoGrh`], [`DeviceError::Range`], [`DeviceError::Dgid`].
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<AhCore, DeviceError> {
        AhCore::new(self.clone(), attr)
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

    /// Allocates a region for fast registration, of `len` bytes at `addr`; nothing is registered yet. The memory must
    /// stay valid as for [`PdCore::reg_mr`].
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_mr(self: &Arc<Self>, addr: u64, len: u64) -> Result<MrCore, DeviceError> {
        MrCore::alloc(self.clone(), addr, len)
    }

    /// Allocates a memory window.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<MwCore, DeviceError> {
        MwCore::new(self.clone(), mw_type)
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
