//! Receiving from one shared receive queue, as a server with very many peers does: its memory for messages then grows with the number
//! of outstanding messages, not with the number of peers.

use super::exchange::Receiving;
use super::meter::Meter;
use super::queues::{QueueSet, wr_id};
use crate::error::Result;
use crate::plan::Spec;
use crate::protocol::Flow;
use crate::rig::Driver;
use arrayvec::ArrayVec;
use verbs::{RecvWr, Sge, Wc};

/// Completions taken in one poll.
const POLL: usize = 128;

/// The receiving half. A request is reposted as soon as its message has been checked.
pub(super) struct Rx<'a> {
    spec: &'a Spec,
    meter: Meter,
    wcs: [Wc; POLL],
}

impl<'a> Rx<'a> {
    pub(super) fn new(spec: &'a Spec) -> Self {
        Self { spec, meter: Meter::after(spec.before()), wcs: [Wc::default(); POLL] }
    }
}

impl Receiving for Rx<'_> {
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet, _: &mut Driver) -> Result<()> {
        let n = queues.recv_cq.poll(&mut self.wcs)?;
        if n == 0 {
            self.meter.pause();
            return Ok(());
        }
        let mut used = ArrayVec::<(u32, [Sge; 1]), POLL>::new();
        for wc in &self.wcs[..n] {
            let (_, index) = queues.received(wc, self.spec.size)?;
            used.push((index, [queues.rx.sge(0, index as usize)]));
        }
        let wrs: ArrayVec<_, POLL> = used.iter().map(|(n, sge)| RecvWr::new(wr_id(0, *n), sge)).collect();
        queues.post_shared(&wrs)?;
        self.meter.count(n as u64);
        Ok(())
    }

    fn total(&self) -> u64 {
        self.meter.total
    }

    fn flow(self) -> Flow {
        self.meter.flow()
    }
}
