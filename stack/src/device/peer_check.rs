//! Checks whether the peer of a queue pair still has its own queue pair.

use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use crate::id::Qpn;
use crate::shard::{CheckOutcome, PeerState};

/// A check whether the peer of a queue pair still has its own. This is a handle for reading the outcome: the shard performs the check in
/// its turns, even after the handle is dropped.
#[derive(Clone, Debug)]
pub struct PeerCheck(Arc<CheckOutcome>);

impl PeerCheck {
    /// The outcome so far: [`PeerState`]. One load from memory, no call of the shard.
    pub fn state(&self) -> PeerState {
        self.0.state()
    }
}

impl Device {
    /// Checks the peer of the queue pair with this number. While such a check is in progress, the result is another handle of that check.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`], [`DeviceError::Forked`].
    pub fn check_peer(&self, qpn: Qpn) -> Result<PeerCheck, DeviceError> {
        let core = self.core();
        // A number outside all shards belongs to no queue pair: any shard gives that answer.
        let shard = core.shared.shard_of(qpn).min(self.shards() - 1);
        core.control(shard, |shard, now| shard.check_peer(now, qpn)).map(PeerCheck)
    }
}
