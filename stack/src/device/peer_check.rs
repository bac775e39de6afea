//! Checks of the peers of queue pairs.

use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use crate::id::Qpn;
use crate::shard::{CheckOutcome, PeerState};

/// A check whether a queue pair's peer still has its own. It goes on while turns are made, whether or not this exists.
#[derive(Clone, Debug)]
pub struct PeerCheck(Arc<CheckOutcome>);

impl PeerCheck {
    /// What is known by now; see there. Reads memory alone.
    pub fn state(&self) -> PeerState {
        self.0.state()
    }
}

impl Device {
    /// Checks the peer of the queue pair with this number. Where one is checked already, this is the same check.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`], [`DeviceError::Forked`].
    pub fn check_peer(&self, qpn: Qpn) -> Result<PeerCheck, DeviceError> {
        let core = self.core();
        // A number of no shard is that of no queue pair: any shard says so.
        let shard = core.shared.shard_of(qpn).min(self.shards() - 1);
        core.control(shard, |shard, now| shard.check_peer(now, qpn)).map(PeerCheck)
    }
}
