//! Memory regions: keys that are registered and revoked.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use super::error::DeviceError;
use super::inside_turn::not_inside_turn;
use super::pd::PdCore;
use crate::config::MR_SIZE_MAX;
use crate::mem::{Access, MemError, UserMemory};
use crate::racy::kernel;

/// Refuses rights that this device cannot grant, rather than ignoring them.
///
/// # Errors
/// [`DeviceError::Access`], with their names.
fn supported(access: Access) -> Result<(), DeviceError> {
    let unsupported =
        if kernel::works() { Access::UNSUPPORTED } else { Access::UNSUPPORTED | Access::ON_DEMAND };
    let refused = access & unsupported;
    if refused.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = refused.iter_names().map(|(name, _)| name).collect();
    Err(DeviceError::Access { what: names.join(" | ") })
}

/// A region, registered or for fast registration. Dropping it deregisters it.
#[derive(Debug)]
pub struct MrCore {
    pd: Arc<PdCore>,
    /// The key as allocated.
    key: u32,
    /// The current key: for a fast-registration region, with the low byte that the user chose.
    current: AtomicU32,
    access: Access,
    fast: bool,
    live: AtomicBool,
}

impl PdCore {
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

    /// Allocates a region for fast registration of this memory; nothing of it is registered yet.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_mr(self: &Arc<Self>, memory: UserMemory) -> Result<MrCore, DeviceError> {
        MrCore::alloc(self.clone(), memory)
    }
}

impl MrCore {
    fn new(pd: Arc<PdCore>, memory: UserMemory, access: Access) -> Result<Self, DeviceError> {
        supported(access)?;
        let device = pd.device();
        let key = device.core().shared.mrs.register(pd.id(), memory, access, device.random.wide()?)?;
        Ok(Self::of(pd, key, access, false))
    }

    fn alloc(pd: Arc<PdCore>, memory: UserMemory) -> Result<Self, DeviceError> {
        let device = pd.device();
        let key = device.core().shared.mrs.alloc_fast(pd.id(), memory, device.random.wide()?)?;
        Ok(Self::of(pd, key, Access::empty(), true))
    }

    fn null(pd: Arc<PdCore>) -> Result<Self, DeviceError> {
        let device = pd.device();
        let key = device.core().shared.mrs.register_null(pd.id(), device.random.wide()?)?;
        Ok(Self::of(pd, key, Access::LOCAL_WRITE, false))
    }

    fn of(pd: Arc<PdCore>, key: u32, access: Access, fast: bool) -> Self {
        Self { pd, key, current: key.into(), access, fast, live: true.into() }
    }

    /// The key, local and remote.
    #[inline]
    pub fn key(&self) -> u32 {
        self.current.load(Ordering::Relaxed)
    }
    /// The access rights it was registered with; none for fast registration, whose requests carry the rights.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// Whether it is for fast registration.
    pub fn is_fast(&self) -> bool {
        self.fast
    }

    /// Chooses the low 8 bits of the key for the next fast registration; returns the key.
    ///
    /// # Errors
    /// [`DeviceError::WrongKind`] for an ordinary region.
    pub fn update_key(&self, variant: u8) -> Result<u32, DeviceError> {
        if !self.fast {
            return Err(DeviceError::WrongKind {
                call: "choosing a key",
                wanted: "region for fast registration",
            });
        }
        let key = self.key & !0xff | u32::from(variant);
        self.current.store(key, Ordering::Relaxed);
        Ok(key)
    }

    /// Changes the protection domain and the access rights, if given, and the memory, which may be the same. The key stays. Until the call
    /// returns the key grants nothing; on return no shard refers to the region's earlier memory.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`], [`DeviceError::Access`], [`DeviceError::Memory`]; [`DeviceError::Busy`] while windows are bound to it;
    /// [`DeviceError::WrongKind`] for a region for fast registration; [`DeviceError::InsideTurn`]. The region is then unchanged.
    pub fn rereg(
        &mut self,
        pd: Option<&Arc<PdCore>>,
        memory: UserMemory,
        access: Option<Access>,
    ) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.pd.device().core().not_forked()?;
        if self.fast {
            return Err(DeviceError::WrongKind { call: "rereg_mr", wanted: "ordinary memory region" });
        }
        let pd = pd.unwrap_or(&self.pd).clone();
        if !Arc::ptr_eq(pd.device(), self.pd.device()) {
            return Err(DeviceError::Foreign { what: "protection domain" });
        }
        let access = access.unwrap_or(self.access);
        supported(access)?;
        if !access.is_valid() {
            return Err(MemError::InvalidAccess.into());
        }
        memory.addr().checked_add(memory.len()).ok_or(MemError::InvalidRange)?;
        let core = pd.device().core();
        core.shared.mrs.revoke(self.key).map_err(busy)?;
        let passed = core.pass_turn_boundaries()?;
        core.shared.mrs.restore(self.key, pd.id(), memory, access, passed)?;
        (self.pd, self.access) = (pd, access);
        Ok(())
    }

    /// Deregisters the region. On return no shard refers to the memory: the key is revoked, and each shard has passed the end of a turn
    /// since. A second call does nothing.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`]; [`DeviceError::Busy`] while memory windows are bound to it. The region is then unchanged.
    pub fn dereg(&self) -> Result<(), DeviceError> {
        self.end(false)
    }

    /// As [`MrCore::dereg`], but unbinds windows that are bound to the region.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`]: the region is then unchanged.
    pub fn dereg_with_windows(&self) -> Result<(), DeviceError> {
        self.end(true)
    }

    fn end(&self, windows: bool) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.pd.device().core().not_forked()?;
        if !self.live.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let core = self.pd.device().core();
        let mrs = &core.shared.mrs;
        let revoked = if windows { mrs.revoke_with_windows(self.key) } else { mrs.revoke(self.key) };
        if let Err(error @ MemError::Bound(_)) = revoked {
            self.live.store(true, Ordering::Release);
            return Err(busy(error));
        }
        let passed = core.pass_turn_boundaries()?;
        mrs.reclaim(self.key, passed);
        Ok(())
    }
}

/// The device error for a memory error: a region with bound windows is busy.
fn busy(error: MemError) -> DeviceError {
    match error {
        MemError::Bound(windows) => DeviceError::Busy { object: "memory region", users: windows as usize },
        other => DeviceError::Memory(other),
    }
}

impl Drop for MrCore {
    fn drop(&mut self) {
        // Refused only inside a turn, where no user's handle is dropped; the key then stays.
        let _ = self.dereg_with_windows();
    }
}
