//! Completion queues: a lane from each shard, one reader.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Device;
use super::claim::lock;
use super::error::DeviceError;
use super::limits::Share;
use crate::config::CQE_MAX;
use crate::proto::wqe::Cqe;
use crate::shard::LaneId;
use crate::sync::lanes::{self, CqLane, CqReader};

/// The reading end of a completion queue: whoever has it may poll.
pub struct CqTap(CqReader<Cqe>);

impl fmt::Debug for CqTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqTap").field("len", &self.0.len()).finish()
    }
}

enum Lane {
    /// No queue pair of the shard uses the queue yet.
    Spare(CqLane<Cqe>),
    /// The shard has the lane.
    Attached(LaneId),
    /// For a moment, while it changes hands.
    Moving,
}

/// A completion queue. Its queue pairs and pollers hold it.
pub struct CqCore {
    device: Arc<Device>,
    cqe: u32,
    tap: Mutex<Option<CqTap>>,
    lanes: Mutex<Vec<Lane>>,
    /// Shards that have a lane, as bits.
    feeders: AtomicU32,
    _share: Share,
}

impl CqCore {
    pub(super) fn new(device: Arc<Device>, cqe: u32) -> Result<Arc<Self>, DeviceError> {
        if !(1..=CQE_MAX).contains(&cqe) {
            let (given, max) = (cqe.into(), CQE_MAX.into());
            return Err(DeviceError::Range { what: "cqe", given, min: 1, max });
        }
        let share = device.cqs.take()?;
        let (reader, lanes) = lanes::cq(cqe, device.shards());
        Ok(Arc::new(Self {
            device,
            cqe,
            tap: Mutex::new(Some(CqTap(reader))),
            lanes: Mutex::new(lanes.into_iter().map(Lane::Spare).collect()),
            feeders: AtomicU32::new(0),
            _share: share,
        }))
    }

    /// Entries that fit.
    pub fn cqe(&self) -> u32 {
        self.cqe
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The reading end, `None` while it is split off.
    #[inline]
    pub fn tap(&self) -> MutexGuard<'_, Option<CqTap>> {
        lock(&self.tap)
    }

    /// Hands up to `max` completions to `each`, skipping those of queue pairs that were reset or destroyed since.
    #[inline]
    pub fn poll_with(&self, tap: &mut CqTap, max: usize, mut each: impl FnMut(&Cqe)) {
        let words = self.device.words();
        let mut room = max;
        while room > 0 {
            let mut given = 0;
            let taken = tap.0.poll_with(room, |cqe| {
                if words.load(cqe.qp_index).epoch() == cqe.epoch {
                    each(cqe);
                    given += 1;
                }
            });
            room -= given;
            // Only what was skipped is made up for.
            if taken == given {
                return;
            }
        }
    }

    /// Where callers turn the crank: one turn of each shard that feeds this queue and that nobody else turns. Whether
    /// it is worth looking again.
    #[inline]
    pub fn turn_feeders(&self) -> bool {
        let core = self.device.core();
        if !core.callers_turn {
            return false;
        }
        let mut feeders = self.feeders.load(Ordering::Relaxed);
        while feeders != 0 {
            core.turn(feeders.trailing_zeros() as usize);
            feeders &= feeders - 1;
        }
        true
    }

    /// The lane from a shard, made on first use.
    pub(super) fn lane(&self, shard: usize) -> Result<LaneId, DeviceError> {
        let mut lanes = lock(&self.lanes);
        match core::mem::replace(&mut lanes[shard], Lane::Moving) {
            Lane::Spare(lane) => {
                let mut lane = Some(lane);
                let attached =
                    self.device.core().control(shard, |s, _| lane.take().map(|l| s.attach_lane(l)));
                match attached {
                    Ok(Some(id)) => {
                        lanes[shard] = Lane::Attached(id);
                        self.feeders.fetch_or(1 << shard, Ordering::Relaxed);
                        Ok(id)
                    }
                    Ok(None) => unreachable!("the lane was there"),
                    Err(e) => {
                        lanes[shard] = lane.map_or(Lane::Moving, Lane::Spare);
                        Err(e)
                    }
                }
            }
            Lane::Attached(id) => {
                lanes[shard] = Lane::Attached(id);
                Ok(id)
            }
            Lane::Moving => unreachable!("a lane moves under its lock only"),
        }
    }

    /// Frees the queue.
    ///
    /// # Errors
    /// [`DeviceError::Busy`]; it comes back with the error.
    pub fn destroy(cq: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        Arc::try_unwrap(cq).map(drop).map_err(|cq| {
            let users = Arc::strong_count(&cq) - 1;
            (DeviceError::Busy { object: "completion queue", users }, cq)
        })
    }
}

impl Drop for CqCore {
    fn drop(&mut self) {
        for (shard, lane) in lock(&self.lanes).drain(..).enumerate() {
            if let Lane::Attached(id) = lane {
                // Refused only inside a turn, where no handle of a user is dropped; the lane then stays, unused.
                let _ = self.device.core().control(shard, |s, _| s.detach_lane(id));
            }
        }
    }
}

impl fmt::Debug for CqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqCore").field("cqe", &self.cqe).finish_non_exhaustive()
    }
}
