//! One owned frame buffer, whatever memory it is in, and a pool of buffers on the heap.
//!
//! A [`Frame`] is the only handle to its buffer: it is neither `Copy` nor `Clone`, and dropping it returns the buffer. So a frame can be
//! neither leaked because a return code was ignored nor freed twice.
//!
//! This file owns the raw pointers. They are sound because a frame is made in three places only: by
//! [`HeapPool`], from a slot that was taken off the free list; by [`Frame::from_vec`], from a vector that it leaks; and by
//! `port/dpdk`, from an mbuf that DPDK handed over. Each gives up its own access until the frame is dropped.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::config;
use crate::crc::Sum;
use crate::sync::lock::lock;
use arrayvec::ArrayVec;

/// Frames that a queue received in one burst.
pub type RxBurst = ArrayVec<Frame, { config::RX_BURST }>;
/// Frames that wait to be sent, oldest first.
pub type TxBurst = ArrayVec<Frame, { config::TX_BURST }>;

/// How a frame's buffer goes back to where it came from.
///
/// Each kind of buffer has one `static` of this type; its address tells the kinds apart.
#[repr(C)]
pub(crate) struct FrameKind {
    /// Takes back the frame's handle. Called once, when the frame is dropped.
    pub(crate) free: unsafe extern "C" fn(NonNull<()>),
}

/// An owned buffer with one Ethernet frame in it.
///
/// The frame occupies the first [`len`](Self::len) bytes of a buffer of [`capacity`](Self::capacity) bytes.
/// Dropping a frame returns its buffer to its pool, on any thread.
#[repr(C)]
pub struct Frame {
    data: NonNull<u8>,
    len: u16,
    cap: u16,
    sum: Option<Sum>,
    handle: NonNull<()>,
    kind: &'static FrameKind,
}

const _: () = assert!(size_of::<Frame>() == 32 && size_of::<Option<Frame>>() == 32);

/// Offsets of the fields data, len, cap, sum, handle and kind, for the C code that fills in frames.
#[cfg(feature = "dpdk")]
pub(crate) const FIELD_OFFSETS: [usize; 6] = [
    core::mem::offset_of!(Frame, data),
    core::mem::offset_of!(Frame, len),
    core::mem::offset_of!(Frame, cap),
    core::mem::offset_of!(Frame, sum),
    core::mem::offset_of!(Frame, handle),
    core::mem::offset_of!(Frame, kind),
];

// SAFETY: a frame is the only handle to its buffer, and every `FrameKind::free` may be called on any thread.
unsafe impl Send for Frame {}
// SAFETY: `&Frame` gives out `&[u8]` alone.
unsafe impl Sync for Frame {}

impl Frame {
    /// Whether the buffer is of this kind.
    #[cfg(feature = "dpdk")]
    pub(crate) fn is(&self, kind: &'static FrameKind) -> bool {
        core::ptr::eq(self.kind, kind)
    }

    /// Makes a frame of its parts.
    ///
    /// # Safety
    /// `data` is valid for reads and writes of `cap` initialised bytes and nothing else accesses them until
    /// `kind.free(handle)` is called; `len <= cap`; `kind.free` may be called once with `handle`, on any thread.
    unsafe fn from_raw(
        data: NonNull<u8>,
        len: u16,
        cap: u16,
        handle: NonNull<()>,
        kind: &'static FrameKind,
    ) -> Self {
        debug_assert!(len <= cap);
        Self { data, len, cap, sum: None, handle, kind }
    }

    /// Makes a frame of a vector, whose length becomes the capacity. It allocates, so it is for tests and rare paths.
    ///
    /// # Panics
    /// When the vector is longer than 65535 bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        static BOXED: FrameKind = FrameKind { free: free_boxed };
        unsafe extern "C" fn free_boxed(handle: NonNull<()>) {
            // SAFETY: `handle` is the box that `from_vec` leaked for this frame alone.
            drop(unsafe { Box::from_raw(handle.cast::<Vec<u8>>().as_ptr()) });
        }
        let len = u16::try_from(bytes.len()).expect("a frame is shorter than 64 KiB");
        let mut boxed = NonNull::from(Box::leak(Box::new(bytes)));
        // SAFETY: the box was leaked just now, nothing else refers to it.
        let data = NonNull::from(unsafe { boxed.as_mut() }.as_mut_slice()).cast();
        // SAFETY: the vector's `len` bytes stay where they are until `free_boxed` takes the box back.
        unsafe { Self::from_raw(data, len, len, boxed.cast(), &BOXED) }
    }

    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the buffer can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.cap as usize
    }

    /// The bytes of the frame, starting with the destination MAC address.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: `data` is valid for `cap >= len` initialised bytes, and `&self` excludes writers.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }

    /// The sum of the frame's bytes, if it was computed while they were copied. Any mutable access to the bytes clears it.
    #[inline]
    pub fn sum(&self) -> Option<Sum> {
        self.sum
    }

    /// Sets the sum of the frame's bytes.
    #[inline]
    pub fn set_sum(&mut self, sum: Option<Sum>) {
        self.sum = sum;
    }

    /// The bytes of the frame, mutable.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.sum = None;
        // SAFETY: as in `data`; `&mut self` excludes every other access.
        unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }
    }

    /// The whole buffer, mutable. After writing to it, call [`set_len`](Self::set_len).
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.sum = None;
        // SAFETY: `data` is valid for `cap` initialised bytes; `&mut self` excludes every other access.
        unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.cap as usize) }
    }

    /// Sets the length of the frame in bytes.
    ///
    /// # Panics
    /// When `n` exceeds the [`capacity`](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, n: usize) {
        assert!(n <= self.cap as usize, "a frame of {n} bytes in a buffer of {}", self.cap);
        self.sum = None;
        self.len = n as u16;
    }

    /// Replaces the contents by as many of `bytes` as the buffer holds. Returns whether it holds all of them.
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        let n = bytes.len().min(self.capacity());
        self.buffer_mut()[..n].copy_from_slice(&bytes[..n]);
        self.set_len(n);
        n == bytes.len()
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the frame's drop, so `handle` is given back once.
        unsafe { (self.kind.free)(self.handle) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} of {} bytes)", self.len, self.cap)
    }
}

/// A bounded pool of heap buffers, for ports without DPDK and for tests.
///
/// All memory is allocated by [`new`](Self::new); [`alloc`](Self::alloc) and dropping frames never allocate.
/// Clones share the pool. The memory lives until the last clone and the last frame are gone.
#[derive(Clone)]
pub struct HeapPool {
    slab: Arc<Slab>,
}

/// The header of a slot; the buffer follows at [`HEADER`].
struct SlotHeader {
    slab: *const Slab,
    index: u32,
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Distance from a slot to its buffer: buffers stay aligned to cache lines.
const HEADER: usize = LINE;
const _: () = assert!(size_of::<SlotHeader>() <= HEADER);

struct Slab {
    /// The allocation, its layout, and the first cache line in it, where the slots start.
    memory: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
    /// Bytes of all slots.
    bytes: usize,
    stride: usize,
    frames: u32,
    capacity: u16,
    /// Slots without a frame. A lock fits, because a burst takes or returns many of them at once.
    free: Mutex<Free>,
}

/// Slots without a frame.
struct Free {
    /// Slots that had a frame before; has capacity for all slots. The last one returned is taken first, as it is still in a cache.
    back: Vec<u32>,
    /// The first slot that never had a frame. The memory from there on is untouched, so the kernel has not allocated pages for it yet.
    fresh: u32,
}

// SAFETY: the slots are handed out through `free`, each to one frame at a time.
unsafe impl Send for Slab {}
// SAFETY: as above; the other fields never change.
unsafe impl Sync for Slab {}

static HEAP: FrameKind = FrameKind { free: free_slot };

unsafe extern "C" fn free_slot(handle: NonNull<()>) {
    let (slab, index) = of_slot(handle);
    // SAFETY: `frame` leaked one count of the `Arc` for this frame; this takes it back.
    let slab = unsafe { Arc::from_raw(slab) };
    slab.free().back.push(index);
}

/// The slab and the slot number that belong to the handle of a frame.
#[inline]
fn of_slot(handle: NonNull<()>) -> (*const Slab, u32) {
    // SAFETY: the header was written before the slot's first frame was made, and is never written again; the slab lives, as the
    // frame holds one count of its `Arc`.
    let header = unsafe { handle.cast::<SlotHeader>().as_ref() };
    (header.slab, header.index)
}

impl HeapPool {
    /// A pool of `frames` buffers of `capacity` bytes each.
    ///
    /// # Panics
    /// When the numbers are zero or too large, the capacity exceeds 65535 bytes, or memory has run out.
    pub fn new(frames: usize, capacity: usize) -> Self {
        assert!(frames > 0 && capacity > 0, "a pool has room for at least one frame of one byte");
        let stride = (HEADER + capacity).next_multiple_of(LINE);
        let capacity = u16::try_from(capacity).expect("a frame is shorter than 64 KiB");
        let count = u32::try_from(frames).expect("a pool has fewer than 2^32 frames");
        let bytes = stride.checked_mul(frames).expect("the pool fits the address space");
        // Fresh pages are zero and stay untouched. With a larger alignment the allocator would write the zeros itself.
        let layout = Layout::from_size_align(bytes + LINE, 1).expect("the pool fits the address space");
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { std::alloc::handle_alloc_error(layout) };
        let to_line = memory.addr().get().next_multiple_of(LINE) - memory.addr().get();
        // SAFETY: the offset is less than a line, and the allocation is a line longer than the slots.
        let base = unsafe { memory.add(to_line) };
        let free = Mutex::new(Free { back: Vec::with_capacity(frames), fresh: 0 });
        Self { slab: Arc::new(Slab { memory, layout, base, bytes, stride, frames: count, capacity, free }) }
    }

    /// Takes an empty frame; `None` while all buffers are in use.
    #[inline]
    pub fn alloc(&self) -> Option<Frame> {
        let mut free = self.slab.free();
        let index = match free.back.pop() {
            Some(index) => index,
            None => self.first_use(&mut free)?,
        };
        drop(free);
        Some(self.frame(index))
    }

    /// Appends up to `n` empty frames to `out`; fewer if buffers run out or `out` is full.
    #[inline]
    pub fn alloc_burst<const N: usize>(&self, out: &mut ArrayVec<Frame, N>, n: usize) {
        if n == 1 && !out.is_full() {
            return out.extend(self.alloc());
        }
        let mut free = self.slab.free();
        let n = n.min(out.remaining_capacity());
        let from = free.back.len().saturating_sub(n);
        let more = n - (free.back.len() - from);
        out.extend(free.back.drain(from..).rev().map(|index| self.frame(index)));
        out.extend((0..more).map_while(|_| self.first_use(&mut free)).map(|index| self.frame(index)));
    }

    /// Drops frames, adjacent ones of the same pool under one lock.
    #[inline]
    pub fn recycle(frames: &mut RxBurst) {
        if frames.len() < 2 {
            return frames.clear();
        }
        let pooled = |frame: &Frame| core::ptr::eq(frame.kind, &raw const HEAP);
        while let Some(last) = frames.last().filter(|last| pooled(last)) {
            let (slab, _) = of_slot(last.handle);
            let is_its = |frame: &Frame| pooled(frame) && of_slot(frame.handle).0 == slab;
            let n = frames.iter().rev().take_while(|frame| is_its(frame)).count();
            // SAFETY: at least one frame of the slab holds a count.
            let mut free = unsafe { &*slab }.free();
            let from = frames.len() - n;
            free.back.extend(frames[from..].iter().map(|frame| of_slot(frame.handle).1));
            drop(free);
            for frame in frames.drain(from..) {
                core::mem::forget(frame);
                // SAFETY: each of these frames held a count, and is forgotten.
                unsafe { Arc::decrement_strong_count(slab) };
            }
        }
        frames.clear();
    }

    /// Takes a slot that never had a frame; `None` if all slots had one.
    #[cold]
    fn first_use(&self, free: &mut Free) -> Option<u32> {
        let index = free.fresh;
        if index == self.slab.frames {
            return None;
        }
        free.fresh += 1;
        let header = SlotHeader { slab: Arc::as_ptr(&self.slab), index };
        // SAFETY: slot `index` lies inside the allocation, is aligned to 64 bytes and has no owner yet.
        unsafe { self.slab.slot(index).cast::<SlotHeader>().write(header) };
        Some(index)
    }

    /// Makes the frame of a slot that was just taken.
    #[inline]
    fn frame(&self, index: u32) -> Frame {
        let slot = self.slab.slot(index);
        let _ = Arc::into_raw(Arc::clone(&self.slab));
        // SAFETY: the slot came off the free list, so nothing else uses it; its buffer is `capacity` bytes that were zeroed when
        // they were allocated; the `Arc` count that was just leaked belongs to this frame.
        unsafe { Frame::from_raw(slot.add(HEADER), 0, self.slab.capacity, slot.cast(), &HEAP) }
    }

    /// Whether a frame's buffer is one of this pool's.
    #[inline]
    pub(super) fn owns(&self, frame: &Frame) -> bool {
        let bytes = frame.data.addr().get().wrapping_sub(self.slab.base.addr().get());
        bytes < self.slab.bytes
    }

    /// Number of free buffers.
    pub fn available(&self) -> usize {
        let free = self.slab.free();
        free.back.len() + (self.slab.frames - free.fresh) as usize
    }

    /// Bytes that each frame can hold.
    pub fn capacity(&self) -> usize {
        self.slab.capacity as usize
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapPool({} of {} buffers free)", self.available(), self.slab.frames)
    }
}

impl Slab {
    #[inline]
    fn slot(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index < self.frames);
        // SAFETY: only indices below the number of slots are ever handed out.
        unsafe { self.base.add(index as usize * self.stride) }
    }

    /// Locks the list of free slots. No code panics while it holds the lock.
    #[inline]
    fn free(&self) -> MutexGuard<'_, Free> {
        lock(&self.free)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; each frame holds a count of the `Arc`, so none is left.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_are_frames_out() {
        // Goal: every buffer comes back exactly once, whatever the order and the thread of the drops.
        let pool = HeapPool::new(8, 100);
        for round in 0..10 {
            let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc()).collect();
            assert_eq!((frames.len(), pool.available()), (8, 0), "round {round}");
            let half = frames.split_off(4);
            std::thread::spawn(move || drop(half)).join().unwrap();
            assert_eq!(pool.available(), 4);
            drop(frames);
            assert_eq!(pool.available(), 8);
        }
    }

    #[test]
    fn a_buffer_is_first_used_when_none_came_back() {
        // Goal: a pool takes the memory of as many frames as were out at the same time.
        let pool = HeapPool::new(8, 100);
        let mut burst = RxBurst::new();
        for round in 0..4 {
            pool.alloc_burst(&mut burst, 3);
            assert_eq!((burst.len(), pool.available(), pool.slab.free().fresh), (3, 5, 3), "round {round}");
            HeapPool::recycle(&mut burst);
        }
        pool.alloc_burst(&mut burst, 5);
        assert_eq!((burst.len(), pool.available(), pool.slab.free().fresh), (5, 3, 5));
        pool.alloc_burst(&mut burst, 9);
        assert_eq!((burst.len(), pool.available(), pool.slab.free().fresh), (8, 0, 8));
        HeapPool::recycle(&mut burst);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let pool = HeapPool::new(4, 65);
        let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc()).collect();
        for (i, frame) in frames.iter_mut().enumerate() {
            assert!(frame.is_empty() && frame.capacity() == 65);
            frame.buffer_mut().fill(i as u8);
            frame.set_len(65);
        }
        for (i, frame) in frames.iter().enumerate() {
            assert!(frame.data().iter().all(|&b| b == i as u8));
            assert_eq!(frame.data().as_ptr() as usize % 64, 0);
        }
    }

    #[test]
    fn the_pool_outlives_its_handle() {
        let pool = HeapPool::new(2, 10);
        let mut frame = pool.alloc().unwrap();
        drop(pool);
        assert!(frame.fill(b"still here"));
        assert_eq!(frame.data(), b"still here");
        assert!(!frame.fill(b"longer than ten"));
        assert_eq!(frame.data(), b"longer tha");
    }

    #[test]
    fn vectors_become_frames() {
        let mut frame = Frame::from_vec(vec![1, 2, 3]);
        frame.data_mut()[1] = 9;
        assert_eq!(frame.data(), [1, 9, 3]);
        frame.set_len(1);
        assert_eq!((frame.len(), frame.capacity()), (1, 3));
        assert!(Frame::from_vec(Vec::new()).is_empty());
    }

    #[test]
    fn a_sum_is_for_the_bytes_as_they_are() {
        // Goal: a frame cannot be changed and keep the sum of what it was.
        let sum = Sum::new(7);
        let changes: [fn(&mut Frame); 4] = [
            |frame| frame.data_mut()[0] ^= 1,
            |frame| frame.buffer_mut()[2] = 4,
            |frame| frame.set_len(2),
            |frame| assert!(frame.fill(&[1])),
        ];
        for change in changes {
            let mut frame = Frame::from_vec(vec![1, 2, 3]);
            assert_eq!(frame.sum(), None);
            frame.set_sum(sum);
            assert_eq!((frame.data(), frame.sum()), (&[1, 2, 3][..], sum));
            change(&mut frame);
            assert_eq!(frame.sum(), None);
        }
    }

    #[test]
    #[should_panic(expected = "a frame of 4 bytes in a buffer of 3")]
    fn a_frame_stays_inside_its_buffer() {
        Frame::from_vec(vec![0; 3]).set_len(4);
    }

    #[test]
    fn threads_share_a_pool() {
        // Goal: under contention no buffer has two owners.
        let pool = HeapPool::new(16, 16);
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
                        let Some(mut frame) = pool.alloc() else { continue };
                        frame.fill(&[id; 16]);
                        assert!(frame.data().iter().all(|&b| b == id));
                    }
                });
            }
        });
        assert_eq!(pool.available(), 16);
    }
}
