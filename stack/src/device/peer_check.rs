//! Checks whether the peer of a queue pair still has its own.

use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use crate::id::Qpn;
use crate::shard::{CheckOutcome, PeerState};

/// A check whether the peer of a queue pair still has its queue pair. This is a handle to read the outcome: the shard carries the check
/// out in its turns, also after the handle is gone.
#[derive(Clone, Debug)]
pub struct PeerCheck(Arc<CheckOutcome>);

impl PeerCheck {
    /// The outcome so far: [`PeerState`]. One load from memory, no call of the shard.
    pub fn state(&self) -> PeerState {
        self.0.state()
    }
}

impl Device {
    /// Checks the peer of the queue pair with this number. While a check of it is under way, the result is another handle of that check.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`], [`DeviceError::Forked`].
    pub fn check_peer(&self, qpn: Qpn) -> Result<PeerCheck, DeviceError> {
        let core = self.core();
        // No queue pair has a number that belongs to no shard: any shard answers so.
        let shard = core.shared.shard_of(qpn).min(self.shards() - 1);
        core.control(shard, |shard, now| shard.check_peer(now, qpn)).map(PeerCheck)
    }
}
