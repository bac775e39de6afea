//! Access to the internal state of a device between turns, for the simulator. Not part of the API.

use std::sync::Arc;

use super::handle::Device;
use crate::shard::{Shard, Shared};

#[doc(hidden)]
impl Device {
    /// The state that its shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.core().shared
    }
    /// Calls `work` on a shard between two turns; `None` if the shard has died.
    pub fn with_shard<R>(&self, shard: usize, work: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.core().control(shard, |shard, _| work(shard)).ok()
    }
}
