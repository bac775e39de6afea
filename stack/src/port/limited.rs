//! A queue for tests that accepts a limited number of frames and has a limited number of buffers.

use super::frame::{Frame, RxBurst, TxBurst};
use super::traits::{Armed, Build, FlowKind, PortQueue, Route, Routes, Stalled};
use crate::time::Instant;

pub(crate) struct Limited {
    /// Frames that it will still accept.
    pub takes: usize,
    /// Buffers that are left.
    pub buffers: usize,
}

impl PortQueue for Limited {
    fn rx_burst(&mut self, _: &mut RxBurst) -> usize {
        0
    }
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        let n = self.takes.min(frames.len());
        self.takes -= n;
        frames.drain(..n).count()
    }
    fn alloc(&mut self) -> Option<Frame> {
        self.buffers = self.buffers.checked_sub(1)?;
        Some(Frame::from_vec(vec![0; 256]))
    }
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        let n = n.min(out.remaining_capacity());
        out.extend(core::iter::from_fn(|| self.alloc()).take(n));
    }
    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }
    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        Stalled::No
    }
    fn arm(&mut self) -> Armed {
        Armed::Unable
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear();
    }
}
