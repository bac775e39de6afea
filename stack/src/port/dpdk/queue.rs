//! One queue pair of a DPDK port. Each burst is one call into the C shim.

use super::shared::Shared;
use crate::config::{RX_BURST, TX_BURST};
use crate::port::frame::{FIELD_OFFSETS, FrameKind};
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::traits::{Armed, Build, FlowKind, PortQueue, Route, Routes, Stalled};
use crate::time::Instant;
use arrayvec::ArrayVec;
use core::mem::{align_of, offset_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use dpdk_sys as sys;
use std::sync::Arc;

/// Free buffers that a queue allocates at a time.
const STOCK: usize = 32;

const _: () = assert!(RX_BURST <= sys::DPDK_SYS_BURST_MAX as usize);
const _: () = assert!(TX_BURST <= sys::DPDK_SYS_BURST_MAX as usize);
const _: () = assert!(STOCK <= sys::DPDK_SYS_BURST_MAX as usize);
const _: () = {
    // The shim reads and writes frames in place.
    assert!(size_of::<Frame>() == size_of::<sys::dpdk_sys_frame>());
    assert!(align_of::<Frame>() == align_of::<sys::dpdk_sys_frame>());
    assert!(FIELD_OFFSETS[0] == offset_of!(sys::dpdk_sys_frame, data));
    assert!(FIELD_OFFSETS[1] == offset_of!(sys::dpdk_sys_frame, len));
    assert!(FIELD_OFFSETS[2] == offset_of!(sys::dpdk_sys_frame, cap));
    assert!(FIELD_OFFSETS[3] == offset_of!(sys::dpdk_sys_frame, sum));
    assert!(FIELD_OFFSETS[4] == offset_of!(sys::dpdk_sys_frame, handle));
    assert!(FIELD_OFFSETS[5] == offset_of!(sys::dpdk_sys_frame, kind));
};

/// Frames whose buffer is an mbuf, of whatever pool.
static MBUF: FrameKind = FrameKind { free: free_mbuf };

unsafe extern "C" fn free_mbuf(handle: NonNull<()>) {
    // SAFETY: the handle of a frame of this kind is an mbuf that the frame owned.
    unsafe { sys::dpdk_sys_free(handle.as_ptr().cast()) }
}

/// The result of a burst that moved nothing.
const NOTHING: sys::dpdk_sys_burst = sys::dpdk_sys_burst { bytes: 0, frames: 0, dropped: 0 };

/// One queue pair.
pub(super) struct DpdkQueue {
    raw: sys::dpdk_sys_queue,
    stock: ArrayVec<Frame, STOCK>,
    index: usize,
    shared: Arc<Shared>,
}

// SAFETY: `raw` points to the pool, which `shared` keeps, and to a static; both may be used on any thread. The
// queue's lcore id is lent to the calling thread inside a call only, and calls take `&mut self`.
unsafe impl Send for DpdkQueue {}

impl DpdkQueue {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        let raw = sys::dpdk_sys_queue {
            port: shared.port,
            queue: index as u16,
            lcore: shared.lcores[index],
            pool: shared.pool.as_ptr(),
            kind: (&raw const MBUF).cast(),
            max_len: shared.longest.load(Ordering::Relaxed),
        };
        Self { raw, stock: ArrayVec::new(), index, shared }
    }

    /// Copies a frame that is not in an mbuf into one. `None` if no mbuf is free.
    #[cold]
    fn import(&mut self, frame: &Frame) -> Option<Frame> {
        let mut copy = self.alloc()?;
        copy.fill(frame.data());
        Some(copy)
    }
}

impl PortQueue for DpdkQueue {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let room = out.remaining_capacity();
        if room == 0 {
            return 0;
        }
        let first = out.len();
        let mut result = NOTHING;
        // SAFETY: the vector has room for `room` frames after the first `first`; the shim writes whole frames, each of which owns its mbuf
        // from then on.
        unsafe {
            let spare = out.as_mut_ptr().add(first).cast();
            sys::dpdk_sys_rx_burst(&raw const self.raw, spare, room as u32, &raw mut result);
        }
        let n = result.frames as usize;
        if n > 0 {
            // SAFETY: the shim filled in `n <= room` frames.
            unsafe { out.set_len(first + n) };
            let counters = &self.shared.counters[self.index];
            counters.rx_frames.add(n as u64);
            counters.rx_bytes.add(result.bytes);
        }
        if result.dropped > 0 {
            self.shared.counters[self.index].rx_dropped.add(u64::from(result.dropped));
        }
        n
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    #[inline]
    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        let mut taken = 0;
        self.raw.max_len = self.shared.longest.load(Ordering::Relaxed);
        while !frames.is_empty() {
            let len = frames.len();
            let mut result = NOTHING;
            // SAFETY: `len` frames are there; those that the result counts belong to DPDK afterwards and are forgotten below.
            unsafe {
                let frames = frames.as_ptr().cast();
                sys::dpdk_sys_tx_burst(&raw const self.raw, frames, len as u32, &raw mut result);
            }
            let n = result.frames as usize;
            if n > 0 {
                // SAFETY: the first `n <= len` frames have a new owner; the others move to the front.
                unsafe {
                    frames.set_len(0);
                    core::ptr::copy(frames.as_ptr().add(n), frames.as_mut_ptr(), len - n);
                    frames.set_len(len - n);
                }
                taken += n;
                let counters = &self.shared.counters[self.index];
                counters.tx_frames.add(n as u64);
                counters.tx_bytes.add(result.bytes);
            }
            let Some(front) = frames.first() else { break };
            if front.len() > self.raw.max_len as usize {
                self.shared.counters[self.index].tx_dropped.add(1);
                frames.remove(0);
                taken += 1;
            } else if front.is(&MBUF) {
                break; // The device is full.
            } else {
                let foreign = frames.remove(0);
                let Some(copy) = self.import(&foreign) else {
                    frames.insert(0, foreign);
                    break;
                };
                frames.insert(0, copy);
            }
        }
        taken
    }

    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        if self.stock.is_empty() {
            // SAFETY: the stock is empty and has room for STOCK frames; on success all of them were written.
            unsafe {
                let out = self.stock.as_mut_ptr().cast();
                if sys::dpdk_sys_alloc(&raw const self.raw, out, STOCK as u32) == 0 {
                    self.stock.set_len(STOCK);
                }
            }
        }
        self.stock.pop()
    }

    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        let (first, n) = (out.len(), n.min(out.remaining_capacity()));
        // SAFETY: the vector has room for `n` frames after the first `first`; on success all of them were written.
        unsafe {
            let spare = out.as_mut_ptr().add(first).cast();
            if n > 0 && sys::dpdk_sys_alloc(&raw const self.raw, spare, n as u32) == 0 {
                return out.set_len(first + n);
            }
        }
        // The pool has fewer free buffers than that.
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

    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        let n = frames.len();
        if n == 0 {
            return;
        }
        // SAFETY: `n` frames are there; if the shim freed them they are forgotten, otherwise nothing happened.
        unsafe {
            if sys::dpdk_sys_free_bulk(&raw const self.raw, frames.as_ptr().cast(), n as u32) != 0 {
                frames.set_len(0);
            }
        }
        frames.clear();
    }
}
