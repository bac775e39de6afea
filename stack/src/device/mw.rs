//! Memory windows: keys that temporarily grant access to part of a region.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::error::DeviceError;
use super::inside_turn::not_inside_turn;
use super::pd::PdCore;
use crate::mem::{MwType, inc_rkey};
use crate::sync::lock::lock;

/// A memory window. Dropping it deallocates it.
#[derive(Debug)]
pub struct MwCore {
    pd: Arc<PdCore>,
    mw_type: MwType,
    /// The key as allocated.
    key: u32,
    /// For type 1 the key of the last posted bind; for type 2 as `key`.
    current: Mutex<u32>,
    live: AtomicBool,
}

impl PdCore {
    /// Allocates a memory window.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Random`].
    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<MwCore, DeviceError> {
        MwCore::new(self.clone(), mw_type)
    }
}

impl MwCore {
    fn new(pd: Arc<PdCore>, mw_type: MwType) -> Result<Self, DeviceError> {
        let device = pd.device();
        let key = device.core().shared.mrs.alloc_window(pd.id(), mw_type, device.random.wide()?)?;
        Ok(Self { pd, mw_type, key, current: Mutex::new(key), live: AtomicBool::new(true) })
    }

    /// The type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// The key: for type 1 that of the last bind, for type 2 the one from which to derive keys.
    pub fn rkey(&self) -> u32 {
        *lock(&self.current)
    }

    /// Posts a bind under the next key and returns that key. Only one thread binds at a time.
    ///
    /// # Errors
    /// The errors of `post`; the key then stays.
    pub fn bind_next<E>(&self, post: impl FnOnce(u32) -> Result<(), E>) -> Result<u32, E> {
        let mut current = lock(&self.current);
        let next = inc_rkey(*current);
        post(next)?;
        *current = next;
        Ok(next)
    }

    /// Deallocates the window, bound or not. On return no shard uses it: its key is revoked, and each shard has passed the end of a turn
    /// since. A second call does nothing.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::Forked`]: the window is then unchanged.
    pub fn dealloc(&self) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.pd.device().core().not_forked()?;
        if !self.live.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let core = self.pd.device().core();
        core.shared.mrs.revoke(self.key)?;
        let passed = core.pass_turn_boundaries()?;
        core.shared.mrs.reclaim(self.key, passed);
        Ok(())
    }
}

impl Drop for MwCore {
    fn drop(&mut self) {
        // Refused inside a turn, where no user's handle is dropped, and in a forked child; the key then stays.
        let _ = self.dealloc();
    }
}
