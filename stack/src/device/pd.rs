//! Protection domains.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use super::quota::Share;
use super::td::TdCore;
use crate::id::PdId;

/// A protection domain, or a parent domain, which adds a thread domain to one. Objects created in it hold a reference to it.
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

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<PdCore>, DeviceError> {
        let share = self.pds.take()?;
        // Numbers do not wrap: a number that came again would open the memory of one domain to the queue pairs of another.
        let next = |n: u32| n.checked_add(1);
        let number = self.next_pd.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let exhausted =
            |_| DeviceError::Exhausted { what: "protection domain number", limit: u32::MAX as usize };
        let id = PdId(number.map_err(exhausted)?);
        Ok(Arc::new(PdCore { device: self.clone(), id, kind: Kind::Domain { _share: share } }))
    }
}

impl PdCore {
    /// Creates a parent domain from a thread domain and a protection domain: `self`, or that of `self` if it is a parent domain itself.
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
    /// The protection domain of a parent domain; `self` if it is no parent domain.
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

    /// Frees the domain.
    ///
    /// # Errors
    /// [`DeviceError::Busy`]. The domain is returned with the error.
    pub fn dealloc(pd: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        Arc::try_unwrap(pd).map(drop).map_err(|pd| {
            let users = Arc::strong_count(&pd) - 1;
            let object = if pd.is_parent() { "parent domain" } else { "protection domain" };
            (DeviceError::Busy { object, users }, pd)
        })
    }
}
