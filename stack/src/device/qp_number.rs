//! The slot and the number of a queue pair, during its creation and after its destruction.

use core::mem;
use core::time::Duration;
use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use super::numbers::Supply;
use super::qp_init::QpInit;
use super::td::TdCore;
use crate::id::{QpType, Qpn};
use crate::proto::attr::QpAttr;
use crate::proto::tables::ack_timeout;
use crate::registry::Run;
use crate::shard::blocks::Blocks;

/// The shortest quarantine of a queue pair's number, for peers with longer timeouts than this side.
const QUARANTINE_MIN: Duration = Duration::from_secs(1);
/// The longest quarantine: a peer's REQ chooses timeout and retries, and so the quarantine. CM waits for a peer no longer than this either.
const QUARANTINE_MAX: Duration = Duration::from_secs(70);

/// Number of draws for a queue pair number before creation fails. A drawn number may still belong to a connection in TIMEWAIT; the
/// probability is the share of such numbers in the block, at most one half.
const NUMBER_TRIES: usize = 64;

/// A slot of a shard and a number, for a queue pair that is being created. They are returned unless they are kept.
pub(super) struct QpNumber<'a> {
    device: &'a Device,
    pub shard: usize,
    pub slot: u32,
    pub qpn: Qpn,
}

impl<'a> QpNumber<'a> {
    pub(super) fn take(
        device: &'a Device,
        td: Option<&Arc<TdCore>>,
        init: &QpInit<'_>,
    ) -> Result<Self, DeviceError> {
        let (shard, (slot, qpn)) = match init.qp_type {
            QpType::Gsi => (0, device.numbers().take_gsi()?),
            _ => draw(device, td, init.shard, init.number)?,
        };
        device.note_number(qpn, true);
        Ok(Self { device, shard, slot, qpn })
    }

    /// Keeps slot and number: the queue pair exists.
    pub(super) fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for QpNumber<'_> {
    fn drop(&mut self) {
        self.device.note_number(self.qpn, false);
        self.device.numbers().put_back(self.shard, self.slot, self.qpn, self.device.now());
    }
}

/// The supply of a device's numbers.
struct OfDevice<'a>(&'a Device);

impl Supply for OfDevice<'_> {
    fn blocks(&self) -> &Blocks {
        &self.0.core().shared.blocks
    }

    fn random(&self) -> Result<u32, DeviceError> {
        self.0.random.next()
    }

    fn lease(&self, shard: usize) -> Result<Option<Run>, DeviceError> {
        let leased = self.0.port().numbers().map(|numbers| numbers.lease(shard));
        leased.transpose().map_err(|error| DeviceError::Port(Box::new(error)))
    }
}

/// Takes a slot and a number that no connection holds: a connection in TIMEWAIT may last longer than the quarantine of its queue pair's
/// number, and peers would refuse a new connection with the same number (IBA 12.9.8).
fn draw(
    device: &Device,
    td: Option<&Arc<TdCore>>,
    shard: Option<usize>,
    mut wish: Option<Qpn>,
) -> Result<(usize, (u32, Qpn)), DeviceError> {
    for _ in 0..NUMBER_TRIES {
        let (shard, (slot, qpn)) = {
            let mut numbers = device.numbers();
            let at = shard.or(td.and_then(|td| td.shard()));
            let at = at.unwrap_or_else(|| numbers.least_loaded(|shard| device.core().cells[shard].is_dead()));
            let leases = numbers.leases();
            let taken = numbers.take(device.now(), at, wish.take(), &OfDevice(device))?;
            if numbers.leases() != leases {
                device.port().steer(&numbers.ranges());
            }
            // Under the lock, so that two threads that create its first queue pair choose the same shard.
            if let (Some(td), None) = (td, shard) {
                td.set_shard(at);
            }
            (at, taken)
        };
        if !device.core().service.holds(qpn) {
            return Ok((shard, (slot, qpn)));
        }
        device.numbers().put_back(shard, slot, qpn, device.now().after(QUARANTINE_MIN));
    }
    let what = "queue pair number of those drawn";
    Err(DeviceError::Exhausted { what, limit: NUMBER_TRIES })
}

/// The quarantine of the number of a queue pair with these attributes. Packets of its connection may arrive as long as the peer retries:
/// each retry comes after up to four times the timeout (IBA 9.7.6.1.3).
pub(super) fn quarantine(attr: &QpAttr) -> Duration {
    let retries =
        ack_timeout(attr.timeout).map_or(Duration::ZERO, |t| t * 4 * (u32::from(attr.retry_cnt) + 1));
    retries.clamp(QUARANTINE_MIN, QUARANTINE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_for_every_retry_and_no_longer_than_a_minute_or_so() {
        let quarantine = |timeout, retry_cnt| quarantine(&QpAttr { timeout, retry_cnt, ..QpAttr::default() });
        assert_eq!(quarantine(0, 7), QUARANTINE_MIN);
        assert_eq!(quarantine(14, 7), Duration::from_nanos(4096 << 14) * 32);
        assert_eq!(quarantine(31, 7), QUARANTINE_MAX);
    }
}
