//! MADs that queue pair 1 has received and that connection management has not handled yet.
//!
//! A datagram that finds no receive is lost, and its sender loses the whole interval of a timer. Therefore each thread that has made a turn
//! of a shard empties the receive queue, even while another thread is busy with connection management or was preempted in it. A burst takes
//! memory here, up to a limit that the hosts share.

use std::sync::{Arc, Mutex, MutexGuard};

use stack::cm::{Fair, MAD_LEN, Path};
use stack::device::{AhAttr, Device, Gid, lock};

use super::gsi::{BATCH, Gsi, RECEIVES, STRIDE, look};
use crate::ah::{GRH_LEN, attr_from_wc};
use crate::wc::Wc;

/// How many MADs of all hosts may wait. If there are more, the host with the most of them loses one.
const WAITING_MAX: usize = 16384;

/// A MAD, and the path to its sender.
#[derive(Debug)]
pub(super) struct Arrived {
    pub path: Path,
    pub mad: [u8; MAD_LEN],
    pub len: usize,
}

/// The waiting MADs. Any thread may move those of queue pair 1 into it. Its lock is held only for that.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    gsi: Option<Arc<Gsi>>,
    mads: Fair<Arrived>,
    /// Counts MADs whose network header contains no local address.
    not_ours: u64,
    /// Counts MADs that were lost because too many waited.
    full: u64,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Begins to take MADs from this queue pair.
    pub(super) fn open(&self, gsi: Arc<Gsi>) {
        self.lock().gsi = Some(gsi);
    }

    /// Ends taking MADs.
    pub(super) fn close(&self) {
        let gone = core::mem::take(&mut *self.lock());
        drop(gone); // outside the lock
    }

    /// Counters of lost MADs, by name.
    pub(super) fn lost(&self) -> [(&'static str, u64); 2] {
        let waiting = self.lock();
        [("ignored_not_ours", waiting.not_ours), ("receive_waiting_full", waiting.full)]
    }

    /// Empties queue pair 1. The alarm will ring when more MADs arrive.
    pub(super) fn collect(&self, device: &Device) {
        let mut waiting = self.lock();
        let Some(gsi) = waiting.gsi.clone() else { return };
        // Armed first, so that a completion after the last poll rings the alarm.
        let _ = gsi.received.req_notify(false); // it has a channel
        let mut done = [Wc::default(); BATCH];
        let mut gids = None;
        for _ in 0..RECEIVES as usize / BATCH {
            let n = look(&gsi.received, &mut done);
            for wc in &done[..n] {
                if wc.is_ok() {
                    let gids = gids.get_or_insert_with(|| device.gids());
                    waiting.take(&gsi, gids, wc);
                }
                // This cannot fail: the queue pair's state always permits receives, and this request has just left the queue.
                let _ = gsi.post_receive(wc.wr_id as usize);
            }
            if n < done.len() {
                return;
            }
        }
        device.alarm().ring();
    }

    /// Takes the next MAD; hosts take turns.
    pub(super) fn pop(&self) -> Option<Arrived> {
        self.lock().mads.pop()
    }
}

impl Waiting {
    /// Copies a received MAD out of its buffer.
    fn take(&mut self, gsi: &Gsi, gids: &[Gid], wc: &Wc) {
        let at = wc.wr_id as usize * STRIDE;
        let (mut grh, mut mad) = ([0; GRH_LEN], [0; MAD_LEN]);
        let len = (wc.byte_len as usize).saturating_sub(GRH_LEN).min(MAD_LEN);
        let read = gsi.mr.read(at, &mut grh).and_then(|()| gsi.mr.read(at + GRH_LEN, &mut mad[..len]));
        let attr = attr_from_wc(gids, wc, &grh);
        // The shard wrote valid bytes there, so this fails only if the local address was removed meanwhile.
        let (Ok(()), Ok(AhAttr { grh: Some(grh), sl, .. })) = (read, attr) else {
            self.not_ours += 1;
            return;
        };
        let path = Path {
            sgid: gids[usize::from(grh.sgid_index)],
            dgid: grh.dgid,
            flow_label: grh.flow_label,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            sl,
        };
        let refused = self.mads.push(WAITING_MAX, path.dgid, Arrived { path, mad, len });
        self.full += u64::from(refused.is_some());
    }
}
