//! Memory regions: keys that come and go.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::claim::not_inside_turn;
use super::error::DeviceError;
use super::pd::PdCore;
use crate::mem::Access;

/// A registered region. Dropping it deregisters it.
#[derive(Debug)]
pub struct MrCore {
    pd: Arc<PdCore>,
    key: u32,
    access: Access,
    live: AtomicBool,
}

impl MrCore {
    pub(super) fn new(pd: Arc<PdCore>, addr: u64, len: u64, access: Access) -> Result<Self, DeviceError> {
        // Pages are neither moved nor paged on behalf of the device, and nothing flushes: rights that only a device
        // with such a feature grants are refused rather than ignored.
        let unsupported =
            Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT | Access::MW_BIND | Access::ON_DEMAND;
        let refused = access & unsupported;
        if !refused.is_empty() {
            let names: Vec<_> = refused.iter_names().map(|(name, _)| name).collect();
            return Err(DeviceError::Access { what: names.join(" | ") });
        }
        let device = pd.device();
        let key = device.core().shared.mrs.register(pd.id(), addr, len, access, device.random.next()?)?;
        Ok(Self { pd, key, access, live: AtomicBool::new(true) })
    }

    /// The key, local and remote.
    #[inline]
    pub fn key(&self) -> u32 {
        self.key
    }
    /// The rights it was registered with.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }

    /// Deregisters the region. On return no shard refers to the memory: the key is revoked, and each shard has passed
    /// the end of a turn since. A second call does nothing.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`]: the region is as it was.
    pub fn dereg(&self) -> Result<(), DeviceError> {
        not_inside_turn()?;
        if !self.live.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let core = self.pd.device().core();
        // The key may be gone already where the peer invalidated it.
        let _ = core.shared.mrs.revoke(self.key);
        core.pass_turn_boundaries()?;
        core.shared.mrs.reclaim(self.key);
        Ok(())
    }
}

impl Drop for MrCore {
    fn drop(&mut self) {
        // Refused only inside a turn, where no handle of a user is dropped; the key then stays.
        let _ = self.dereg();
    }
}
