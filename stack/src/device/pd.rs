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
use super::td::TdCore;
use crate::config::MR_SIZE_MAX;
use crate::id::PdId;
use crate::mem::{Access, MwType, UserMemory};
use crate::proto::attr::AhAttr;

/// A protection domain, or a parent domain: one with a thread domain beside it. Objects that are made in it hold it.
#[derive(Debug)]
pub struct PdCore {
    device: Arc<Device>,
    id: PdId,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Domain { _share: Share },
    Parent { of: Arc<PdCore>, td: Option<Arc<TdCore>> },
}

impl PdCore {
    pub(super) fn new(device: Arc<Device>, id: PdId, share: Share) -> Arc<Self> {
        Arc::new(Self { device, id, kind: Kind::Domain { _share: share } })
    }

    /// Makes a parent domain of a thread domain and a protection domain: `self`, or that of `self` if it is a parent domain itself.
    /// The keys of the protection domain are valid in it.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`].
    pub fn parent(self: &Arc<Self>, td: Option<&Arc<TdCore>>) -> Result<Arc<Self>, DeviceError> {
        if td.is_some_and(|td| !Arc::ptr_eq(td.device(), &self.device)) {
            return Err(DeviceError::Foreign { what: "thread domain" });
        }
        let of = self.domain().clone();
        Ok(Arc::new(Self {
            device: self.device.clone(),
            id: self.id,
            kind: Kind::Parent { of, td: td.cloned() },
        }))
    }

    /// Its number; a parent domain has that of its protection domain.
    pub fn id(&self) -> PdId {
        self.id
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The protection domain that a parent domain was made of; `self` if it is no parent domain.
    pub fn domain(self: &Arc<Self>) -> &Arc<Self> {
        match &self.kind {
            Kind::Domain { .. } => self,
            Kind::Parent { of, .. } => of,
        }
    }
    /// Whether objects of the two may be used together.
    #[inline]
    pub fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || Arc::ptr_eq(self.domain(), other.domain())
    }
    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }
    /// The thread domain of a parent domain.
    pub fn td(&self) -> Option<&Arc<TdCore>> {
        match &self.kind {
            Kind::Domain { .. } => None,
            Kind::Parent { td, .. } => td.as_ref(),
        }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Range`] for more than
    /// [`DeviceAttr::max_mr_size`](super::DeviceAttr::max_mr_size) bytes, [`DeviceError::Random`].
    pub fn reg_mr(self: &Arc<Self>, memory: UserMemory, access: Access) -> Result<MrCore, DeviceError> {
        let len = memory.len();
        if len > MR_SIZE_MAX {
            return Err(DeviceError::Range {
                what: "length of the region",
                given: len,
                min: 0,
                max: MR_SIZE_MAX,
            });
        }
        MrCore::new(self.clone(), memory, access)
    }

    /// Allocates a null region: for local access it covers every address, and has no memory. It must not be re-registered.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<MrCore, DeviceError> {
        MrCore::null(self.clone())
    }

    /// Makes an address handle.
    ///
    /// # Errors
    /// [`DeviceError::Ah`].
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

    /// Allocates a region for fast registration of this memory; nothing of it is registered yet.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_mr(self: &Arc<Self>, memory: UserMemory) -> Result<MrCore, DeviceError> {
        MrCore::alloc(self.clone(), memory)
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
            let object = if pd.is_parent() { "parent domain" } else { "protection domain" };
            (DeviceError::Busy { object, users }, pd)
        })
    }
}
