//! One queue pair of a DPDK port: bursts, each one call into the shim.

use super::port::Shared;
use crate::config::{RX_BURST, RX_BURST_BYTES, TX_BURST};
use crate::crc::{CopyFn, copy_function};
use crate::port::frame::{FIELD_OFFSETS, FrameKind};
use crate::port::{Build, Frame, PortQueue, RxBurst, TxBurst};
use crate::sync::asymmetric::{light, prepare};
use arrayvec::ArrayVec;
use core::ffi::c_void;
use core::mem::{align_of, offset_of, size_of, transmute};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use dpdk_sys as sys;
use std::sync::Arc;

/// Buffers that a queue keeps at hand.
const STOCK: usize = 32;

const _: () = assert!(RX_BURST <= sys::DPDK_SYS_BURST_MAX as usize);
const _: () = assert!(RX_BURST_BYTES <= sys::DPDK_SYS_BURST_BYTES as u64);
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

/// The two bytes of a gate, as in the shim: a burst is inside; the gate is closed.
type Gate = [AtomicU8; 2];

/// One queue pair.
pub(super) struct DpdkQueue {
    raw: sys::dpdk_sys_queue,
    gate: &'static Gate,
    stock: ArrayVec<Frame, STOCK>,
    index: usize,
    shared: Arc<Shared>,
}

// SAFETY: `raw` points to the pool, which `shared` keeps, and to a static; both may be used on any thread. The
// queue's lcore id is lent to the calling thread inside a call only, and calls take `&mut self`.
unsafe impl Send for DpdkQueue {}

/// Says that a burst is inside of the gate, until it is dropped.
struct Leave<'a>(&'a AtomicU8);

impl Drop for Leave<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl DpdkQueue {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        prepare();
        // SAFETY: the port has fewer than DPDK_SYS_PORTS_MAX and the queue fewer than DPDK_SYS_QUEUES_MAX (`open`
        // checks both); its two bytes are a static of the shim that is only ever accessed atomically.
        let gate = unsafe { &*sys::dpdk_sys_gate(shared.port, index as u16).cast::<Gate>() };
        let raw = sys::dpdk_sys_queue {
            port: shared.port,
            queue: index as u16,
            lcore: shared.lcores[index],
            pool: shared.pool.as_ptr(),
            kind: (&raw const MBUF).cast(),
            max_len: shared.longest.load(Ordering::Relaxed),
            // SAFETY: the two types are one: `Option<Sum>` is a `uint32_t` for C, and pointers to bytes are pointers.
            copy: unsafe { transmute::<Option<CopyFn>, sys::dpdk_sys_copy>(copy_function()) },
        };
        Self { raw, gate, stock: ArrayVec::new(), index, shared }
    }

    /// Runs `burst` inside the gate; `None` while the device is being restarted.
    #[inline]
    fn inside(
        &self,
        burst: impl FnOnce(&sys::dpdk_sys_queue, &mut sys::dpdk_sys_burst),
    ) -> Option<sys::dpdk_sys_burst> {
        let [inside, closed] = self.gate;
        inside.store(1, Ordering::Relaxed);
        light();
        if closed.load(Ordering::Acquire) != 0 {
            inside.store(0, Ordering::Release);
            return None;
        }
        // Also where the burst panics: whoever restarts the device waits for it.
        let _leave = Leave(inside);
        let mut result = sys::dpdk_sys_burst { bytes: 0, frames: 0, dropped: 0 };
        burst(&self.raw, &mut result);
        Some(result)
    }

    /// Copies a frame that is no mbuf into one.
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
        let Some(result) = self.inside(|raw, result| {
            // SAFETY: the vector has room for `room` frames behind `first`; the shim writes whole frames, each of
            // which owns its mbuf from then on; we hold the gate.
            unsafe {
                let spare = out.as_mut_ptr().add(first).cast();
                sys::dpdk_sys_rx_burst(raw, spare, room as u32, result);
            }
        }) else {
            return 0;
        };
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

    #[inline]
    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize {
        let mut taken = 0;
        self.raw.max_len = self.shared.longest.load(Ordering::Relaxed);
        while !frames.is_empty() {
            let len = frames.len();
            let Some(result) = self.inside(|raw, result| {
                // SAFETY: `len` frames are there; those that the result counts belong to DPDK afterwards and are
                // forgotten below; we hold the gate.
                unsafe { sys::dpdk_sys_tx_burst(raw, frames.as_ptr().cast(), len as u32, result) }
            }) else {
                return taken;
            };
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
        // SAFETY: the vector has room for `n` frames behind `first`; on success all of them were written.
        unsafe {
            let spare = out.as_mut_ptr().add(first).cast();
            if n > 0 && sys::dpdk_sys_alloc(&raw const self.raw, spare, n as u32) == 0 {
                return out.set_len(first + n);
            }
        }
        // The pool has fewer than that.
        out.extend(core::iter::from_fn(|| self.alloc()).take(n));
    }

    fn build_burst(&mut self, most: usize, builder: &mut dyn Build) -> Option<usize> {
        let max = self.raw.max_len as usize;
        let most = most.min(TX_BURST);
        let mut there_is = true;
        let result = self.inside(|raw, result| {
            let mut slots = [core::ptr::null_mut(); TX_BURST];
            // SAFETY: the queue's port exists, and there is room for `most` buffers; we hold the gate.
            let n = unsafe { sys::dpdk_sys_tx_slots(raw, slots.as_mut_ptr(), most as u32) };
            there_is = n >= 0;
            let slots = &slots[..most.min(n.max(0) as usize)];
            let buffer = |slot: &*mut c_void| {
                // SAFETY: the slot is memory of `max` bytes that stays mapped while we hold the gate. It is ours until it
                // is published: no other thread of this process has it, and each buffer is gone before the next is asked
                // for. The peer's process has it mapped, too; what it writes there can only spoil the bytes of this frame,
                // and nothing is decided by them.
                unsafe { core::slice::from_raw_parts_mut(slot.cast::<u8>(), max) }
            };
            let mut lens = ArrayVec::<u32, TX_BURST>::new();
            for slot in slots {
                let Some(len) = builder.build(buffer(slot)) else { break };
                lens.push(len.min(max) as u32);
            }
            for (i, slot) in slots[..lens.len()].iter().enumerate() {
                builder.finish(i, buffer(slot));
            }
            if !lens.is_empty() {
                // SAFETY: the first buffers hold frames of these lengths; we hold the gate.
                unsafe { sys::dpdk_sys_tx_publish(raw, lens.as_ptr(), lens.len() as u32) };
            }
            result.bytes = lens.iter().map(|len| u64::from(*len)).sum();
            result.frames = lens.len() as u32;
        })?;
        let counters = &self.shared.counters[self.index];
        counters.tx_frames.add(u64::from(result.frames));
        counters.tx_bytes.add(result.bytes);
        there_is.then_some(result.frames as usize)
    }

    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        let n = frames.len();
        if n == 0 {
            return;
        }
        // SAFETY: the queue's port exists; we hold the gate.
        let _ = self.inside(|raw, _| unsafe { sys::dpdk_sys_give_back(raw) });
        // SAFETY: `n` frames are there; if the shim freed them they are forgotten, otherwise nothing happened.
        unsafe {
            if sys::dpdk_sys_free_bulk(&raw const self.raw, frames.as_ptr().cast(), n as u32) != 0 {
                frames.set_len(0);
            }
        }
        frames.clear();
    }
}
