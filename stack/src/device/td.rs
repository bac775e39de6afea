//! Thread domains: group the objects that one thread of a program uses.

use std::sync::{Arc, OnceLock};

use super::error::DeviceError;
use super::handle::Device;

/// A thread domain. Parent domains hold references to it.
#[derive(Debug)]
pub struct TdCore {
    device: Arc<Device>,
    /// The shard of its queue pairs, set by the first one.
    shard: OnceLock<usize>,
}

impl Device {
    /// Allocates a thread domain.
    pub fn alloc_td(self: &Arc<Self>) -> Arc<TdCore> {
        Arc::new(TdCore { device: self.clone(), shard: OnceLock::new() })
    }
}

impl TdCore {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The shard of its queue pairs; `None` before the first one.
    pub fn shard(&self) -> Option<usize> {
        self.shard.get().copied()
    }
    /// Sets the shard of its queue pairs, unless it is set.
    pub(super) fn set_shard(&self, shard: usize) {
        self.shard.get_or_init(|| shard);
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while parent domains use it. The domain is returned with the error.
    pub fn dealloc(td: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        Arc::try_unwrap(td).map(drop).map_err(|td| {
            let users = Arc::strong_count(&td) - 1;
            (DeviceError::Busy { object: "thread domain", users }, td)
        })
    }
}
