//! Single-producer single-consumer rings of fixed-size slots.
//!
//! The producer fills slots in place and publishes them; the consumer reads every published slot, in any
//! order and as often as it likes, until it releases it. A send queue keeps its work requests that way until
//! they are acknowledged. Sequence numbers are wrapping `u32`s: slot `seq` lives at `seq % slots`.
//!
//! # Who may touch a slot
//!
//! With `released <= published <= released + slots` on the circle of sequence numbers:
//!
//! | sequence numbers | belong to | access |
//! | --- | --- | --- |
//! | `released .. published` | [`Consumer`] | shared references, bounded by a borrow of the consumer |
//! | `published .. released + slots` | [`Producer`] | one exclusive reference, bounded by a borrow of the producer |
//!
//! Slots change hands in two places only. [`Producer::publish`] takes `&mut self`, so no reference of the
//! producer is alive, and is a release store that the consumer acquires. [`Consumer::release_to`] takes
//! `&mut self`, so no reference of the consumer is alive, and is a release store that the producer acquires.
//! Both ends check a sequence number against their own index and a copy of the other's; a copy is never ahead
//! of the original, so a stale one only makes an end see fewer slots than it has.
//!
//! # Cost
//!
//! Each end's index has a cache line of its own. The producer reads the consumer's index only when the ring
//! looks full, the consumer reads the producer's only when it looks empty (or when [`Consumer::published`]
//! needs the present value), so a line travels once a batch and not once a slot. Indices and slots are one piece of
//! memory, so that a program with very many rings finds what belongs together on one page.

use super::prefetch;
use super::primitive::{AtomicU32, Ordering, fence};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::Layout;

/// Alignment of the slot memory, and so of slot 0, in bytes.
pub const ALIGN: usize = 64;
/// The most bytes of slots that one call prefetches.
const PREFETCH_MAX: usize = 16 * prefetch::LINE;
/// Slot memory up to this many bytes is initialised at creation, later slots when they are first used, so that a ring made for the worst
/// case costs only what it uses.
const EAGER_BYTES: usize = if cfg!(miri) { 1 << 10 } else { 1 << 20 };

/// The start of the ring's memory; the slots follow.
#[repr(C, align(64))]
struct Head {
    /// Next sequence number to publish. Only the producer writes it.
    published: AtomicU32,
    /// Number of ends that exist: the one that takes it to zero frees the memory.
    ends: AtomicU32,
    released: Released,
    #[cfg(loom)]
    trackers: Vec<loom::cell::UnsafeCell<()>>,
}

/// Oldest sequence number that is not released yet, on a line of its own. Only the consumer writes it.
#[repr(C, align(64))]
struct Released(AtomicU32);

/// Where the slots begin.
const SLOTS_AT: usize = size_of::<Head>();

const _: () = assert!(SLOTS_AT.is_multiple_of(ALIGN));

/// One end's view of the memory.
struct View<T> {
    /// The memory: a [`Head`], then the slots. Initialised by [`ring_at`], freed when the second end is dropped.
    head: NonNull<Head>,
    mask: u32,
    /// Elements per slot.
    stride: u32,
    _slots: PhantomData<T>,
}

// SAFETY: `head` points to memory that lives as long as one end does. Its atomics are `Sync`; slots are only dereferenced through
// `Producer` and `Consumer`, which touch disjoint ones (module documentation). `T: Send` lets values written by one thread be
// read by another, and `T: Copy` means that nothing is dropped here.
unsafe impl<T: Send> Send for View<T> {}

impl<T> View<T> {
    /// Layout of a ring's memory; `None` if it would not fit the address space.
    fn layout(slots: u32, stride: u32) -> Option<Layout> {
        let elements = (slots as usize).checked_mul(stride as usize)?;
        let slots = Layout::array::<T>(elements).ok()?.align_to(ALIGN).ok()?;
        let (layout, at) = Layout::new::<Head>().extend(slots).ok()?;
        (at == SLOTS_AT).then_some(layout)
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: initialised by `ring_at`, and alive as long as this end is.
        unsafe { self.head.as_ref() }
    }
    /// First element of the slot of `seq`.
    #[inline]
    fn slot(&self, seq: u32) -> NonNull<T> {
        let at = (seq & self.mask) as usize * self.stride as usize;
        // SAFETY: `seq & mask < slots`, and `slots * stride` elements follow the head.
        unsafe { self.head.byte_add(SLOTS_AT).cast::<T>().add(at) }
    }
    #[inline]
    fn slots(&self) -> u32 {
        self.mask + 1
    }
    /// Prefetches the lines of `n` slots from that of `seq` on, at most sixteen lines.
    #[inline]
    fn prefetch(&self, seq: u32, n: u32) {
        let n = n.min(self.slots() - (seq & self.mask)) as usize;
        let bytes = (n * self.stride as usize * size_of::<T>()).min(PREFETCH_MAX);
        prefetch::bytes(self.slot(seq).as_ptr().cast_const(), bytes);
    }
    /// Reports to loom that the slot is written (`true`) or read.
    #[cfg(loom)]
    fn track(&self, seq: u32, write: bool) {
        let cell = &self.head().trackers[(seq & self.mask) as usize];
        if write {
            cell.with_mut(|_| ());
        } else {
            cell.with(|_| ());
        }
    }
    #[cfg(not(loom))]
    #[inline(always)]
    fn track(&self, _seq: u32, _write: bool) {}
}

impl<T> Drop for View<T> {
    fn drop(&mut self) {
        // As in `Arc`: what the other end did with the memory happens before it is freed.
        if self.head().ends.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let layout = Self::layout(self.slots(), self.stride).expect("it was allocated with it");
        // SAFETY: both ends are gone; `head` was written and allocated with exactly this layout in `ring_at`.
        unsafe {
            self.head.drop_in_place();
            std::alloc::dealloc(self.head.as_ptr().cast(), layout);
        }
    }
}

/// The end that fills slots. `Send`, not `Sync`: one thread at a time.
///
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(stack::sync::spsc::ring::<u64>(2, 1).0);
/// ```
pub struct Producer<T> {
    view: View<T>,
    /// This end's index; the shared one is a copy for the consumer.
    published: u32,
    /// The consumer's index as last read: never ahead of the original.
    released: Cell<u32>,
    /// Slots `0 .. initialised` hold values; the others are filled when they are first handed out.
    initialised: u32,
}

/// The end that reads and releases slots. `Send`, not `Sync`: one thread at a time.
///
/// A reference to a slot cannot outlive its release:
/// ```compile_fail
/// let (mut tx, mut rx) = stack::sync::spsc::ring::<u64>(2, 1);
/// tx.publish(1);
/// let slot = rx.slot(0);
/// rx.release_to(1);
/// assert_eq!(slot[0], 0);
/// ```
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(stack::sync::spsc::ring::<u64>(2, 1).1);
/// ```
pub struct Consumer<T> {
    view: View<T>,
    /// This end's index; the shared one is a copy for the producer.
    released: u32,
    /// The producer's index as last read: never ahead of the original.
    published: Cell<u32>,
}

/// Makes a ring of `slots` slots of `stride` elements each, all `T::default()`. Sequence numbers start at 0.
///
/// The memory is contiguous and starts at a multiple of [`ALIGN`] bytes; slots are aligned likewise when
/// `stride * size_of::<T>()` is a multiple of it.
///
/// # Panics
/// If `slots` is not a power of two, `stride` or the size of `T` is zero, or the memory would not fit the
/// address space. Aborts as `Vec` does when the allocator has no memory.
pub fn ring<T: Copy + Default + Send>(slots: u32, stride: usize) -> (Producer<T>, Consumer<T>) {
    ring_at(slots, stride, 0)
}

/// Same as [`ring`] with a given first sequence number, so that a test can cross the wrap of `u32` in its first steps.
///
/// # Panics
/// Those of [`ring`].
pub fn ring_at<T: Copy + Default + Send>(
    slots: u32,
    stride: usize,
    start: u32,
) -> (Producer<T>, Consumer<T>) {
    assert!(slots.is_power_of_two(), "a ring has a power of two of slots");
    assert!(stride > 0 && size_of::<T>() > 0, "a slot has a size");
    let short = u32::try_from(stride).expect("a slot has fewer than 2^32 elements");
    let layout = View::<T>::layout(slots, short).expect("ring size overflows");
    // SAFETY: `layout` is not of size zero: it has a head.
    let raw = unsafe { std::alloc::alloc(layout) };
    let Some(head) = NonNull::new(raw.cast::<Head>()) else { std::alloc::handle_alloc_error(layout) };
    let fresh = Head {
        published: AtomicU32::new(start),
        ends: AtomicU32::new(2),
        released: Released(AtomicU32::new(start)),
        #[cfg(loom)]
        trackers: (0..slots).map(|_| loom::cell::UnsafeCell::new(())).collect(),
    };
    // SAFETY: the memory is ours, aligned for a head and at least as large.
    unsafe { head.write(fresh) };
    let view = || View { head, mask: slots - 1, stride: short, _slots: PhantomData };
    let mut producer =
        Producer { view: view(), published: start, released: Cell::new(start), initialised: 0 };
    let eager = (EAGER_BYTES / (stride * size_of::<T>())).min(slots as usize);
    producer.initialise(eager as u32);
    let consumer = Consumer { view: view(), released: start, published: Cell::new(start) };
    (producer, consumer)
}

impl<T> core::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

impl<T: Copy + Default + Send> Producer<T> {
    /// Number of slots of the ring.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.view.slots()
    }

    /// Sequence number of the next slot to be published.
    #[cfg(test)]
    fn published(&self) -> u32 {
        self.published
    }

    /// Prefetches what filling and publishing the next `n` slots accesses: both indices, and the slots.
    #[inline]
    pub fn prefetch(&self, n: u32) {
        prefetch::line(&raw const self.view.head().published);
        prefetch::line(&raw const self.view.head().released);
        self.view.prefetch(self.published, n);
    }

    /// Number of slots that are published and not yet released, as of now. Never too small.
    #[inline]
    pub fn in_use(&self) -> u32 {
        self.refresh();
        self.published.wrapping_sub(self.released.get())
    }

    /// Number of slots that may be filled; 0 only if there is none. Reads the consumer's index only if there seems to be none, so there may
    /// be more; the exact number is `slots() - in_use()`.
    #[inline]
    pub fn free(&mut self) -> u32 {
        if self.free_cached() == 0 {
            self.refresh();
        }
        self.free_cached()
    }

    /// The `ahead`-th slot that is not published yet, to be filled. `None` if the ring has no room for it.
    ///
    /// It still holds what was last written to it.
    #[inline(always)]
    pub fn slot(&mut self, ahead: u32) -> Option<&mut [T]> {
        if !self.has_room(ahead) {
            return None;
        }
        let seq = self.published.wrapping_add(ahead);
        self.ensure_initialised(seq);
        self.view.track(seq, true);
        // SAFETY: `seq` is in `published .. released + slots` (`has_room`), which belongs to the producer: the
        // consumer released it, which `refresh` acquired, or never had it. It is initialised. The reference
        // borrows `self` exclusively, so there is no other one and `publish` cannot run while it lives.
        Some(unsafe {
            core::slice::from_raw_parts_mut(self.view.slot(seq).as_ptr(), self.view.stride as usize)
        })
    }

    /// Hands the next `n` slots to the consumer as they are.
    ///
    /// # Panics
    /// If the ring has fewer than `n` free slots.
    #[inline]
    pub fn publish(&mut self, n: u32) {
        if n == 0 {
            return;
        }
        assert!(self.has_room(n - 1), "published {n} slots of a ring that has fewer free");
        // `publish` does not require a call of `slot`: the consumer must find a value in each slot.
        self.ensure_initialised_through(n);
        self.published = self.published.wrapping_add(n);
        self.view.head().published.store(self.published, Ordering::Release);
    }

    #[inline]
    fn free_cached(&self) -> u32 {
        self.view.slots() - self.published.wrapping_sub(self.released.get())
    }

    #[inline(always)]
    fn has_room(&self, ahead: u32) -> bool {
        ahead < self.free_cached() || self.has_room_now(ahead)
    }

    #[inline(never)]
    fn has_room_now(&self, ahead: u32) -> bool {
        self.refresh();
        ahead < self.free_cached()
    }

    #[inline]
    fn refresh(&self) {
        self.released.set(self.view.head().released.0.load(Ordering::Acquire));
    }

    /// Makes sure that the free slot of `seq` holds values.
    #[inline]
    fn ensure_initialised(&mut self, seq: u32) {
        let index = seq & self.view.mask;
        if index >= self.initialised {
            self.initialise(index + 1);
        }
    }

    /// Makes sure that the next `n` slots, which are free, hold values.
    #[inline]
    fn ensure_initialised_through(&mut self, n: u32) {
        if self.initialised != self.view.slots() {
            for ahead in 0..n {
                self.ensure_initialised(self.published.wrapping_add(ahead));
            }
        }
    }

    /// Fills the slots at index `self.initialised .. end`.
    #[cold]
    fn initialise(&mut self, end: u32) {
        for index in self.initialised..end {
            let slot = self.view.slot(index).as_ptr();
            for i in 0..self.view.stride as usize {
                // SAFETY: inside the allocation (`View::slot`, `i < stride`). A slot that was never initialised
                // was never published (`publish` initialises), so the consumer has no reference to it.
                unsafe { slot.add(i).write(T::default()) };
            }
        }
        self.initialised = end;
    }
}

impl<T> core::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

impl<T: Copy + Send> Consumer<T> {
    /// Addresses of the ring: its indices and its slots.
    pub fn memory(&self) -> Range<usize> {
        let start = self.view.head.as_ptr().addr();
        start..start + SLOTS_AT + self.slots() as usize * self.stride() * size_of::<T>()
    }

    /// Number of slots of the ring.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.view.slots()
    }

    /// Elements per slot.
    #[inline]
    pub fn stride(&self) -> usize {
        self.view.stride as usize
    }

    /// Sequence number after the last published slot, as of now (an acquire load).
    #[inline]
    pub fn published(&self) -> u32 {
        let published = self.view.head().published.load(Ordering::Acquire);
        self.published.set(published);
        published
    }

    /// Sequence number of the oldest slot that is not released yet.
    #[inline]
    pub fn released(&self) -> u32 {
        self.released
    }

    /// Number of slots that are published and not yet released, as of now.
    #[inline]
    pub fn unreleased(&self) -> u32 {
        self.published().wrapping_sub(self.released)
    }

    /// Number of slots that are published and not yet released, at most `max`. Reads the producer's index only if its copy shows fewer.
    #[inline]
    pub fn ready(&self, max: u32) -> u32 {
        let known = self.published.get().wrapping_sub(self.released);
        if known >= max { max } else { self.unreleased().min(max) }
    }

    /// Whether slot `seq` is published and not released. Reads the producer's index only if its copy is not as far as the slot.
    #[inline]
    pub fn has(&self, seq: u32) -> bool {
        let ahead = seq.wrapping_sub(self.released);
        if ahead < self.published.get().wrapping_sub(self.released) {
            return true;
        }
        ahead < self.published().wrapping_sub(self.released)
    }

    /// The slot of `seq`; `None` if it is not published or already released.
    #[inline(always)]
    pub fn get(&self, seq: u32) -> Option<&[T]> {
        if !self.has(seq) {
            return None;
        }
        self.view.track(seq, false);
        // SAFETY: `seq` is in `released .. published` (`has`), which belongs to the consumer: the producer wrote
        // it before its release store, which `published` acquired, and writes it again only after we release
        // it. `release_to` needs `&mut self`, so it cannot run while the reference, which borrows `self`, lives.
        Some(unsafe { core::slice::from_raw_parts(self.view.slot(seq).as_ptr(), self.view.stride as usize) })
    }

    /// The slot of `seq`.
    ///
    /// # Panics
    /// If it is not published or already released: the caller lost count.
    #[inline]
    pub fn slot(&self, seq: u32) -> &[T] {
        match self.get(seq) {
            Some(slot) => slot,
            None => self.lost_count(seq),
        }
    }

    /// The slots from that of `seq` on as one slice: at most `max`, and not beyond the end of the ring's memory.
    ///
    /// # Panics
    /// If one of them is not published or already released: the caller lost count.
    #[inline]
    pub fn contiguous(&self, seq: u32, max: u32) -> &[T] {
        let n = max.min(self.view.slots() - (seq & self.view.mask));
        let ahead = seq.wrapping_sub(self.released);
        let known = self.published.get().wrapping_sub(self.released);
        if ahead > known || n > known - ahead {
            self.lost_count(seq.wrapping_add(n));
        }
        for n in 0..n {
            self.view.track(seq.wrapping_add(n), false);
        }
        let len = n as usize * self.view.stride as usize;
        // SAFETY: as in `get`, for each slot of `seq .. seq + n`, which is in `released .. published`; these do not wrap
        // around the end of the memory.
        unsafe { core::slice::from_raw_parts(self.view.slot(seq).as_ptr(), len) }
    }

    /// Prefetches both indices, which a check for new slots and a release access besides the slots.
    #[inline]
    pub fn prefetch_ends(&self) {
        prefetch::line(&raw const self.view.head().published);
        prefetch::line(&raw const self.view.head().released);
    }

    /// Prefetches `n` slots from `seq` on.
    #[inline]
    pub fn prefetch(&self, seq: u32, n: u32) {
        self.view.prefetch(seq, n);
    }

    /// Returns every slot before `seq` to the producer.
    ///
    /// # Panics
    /// If `seq` is not in `released() ..= published()`.
    #[inline]
    pub fn release_to(&mut self, seq: u32) {
        if seq == self.released {
            return;
        }
        if !self.has(seq.wrapping_sub(1)) {
            self.lost_count(seq);
        }
        self.released = seq;
        self.view.head().released.0.store(seq, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn lost_count(&self, seq: u32) -> ! {
        panic!("slot {seq} is not in {} .. {} of the ring", self.released, self.published.get())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sequences::sequences;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Sequence numbers to start from: some cross the wrap at once.
    fn start() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), u32::MAX - 20..=u32::MAX, any::<u32>()]
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// Write the slot this many ahead; publish this many.
        Write(u32),
        Publish(u32),
        Read(u32),
        Release(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..20u32).prop_map(Op::Write),
            (0..6u32).prop_map(Op::Publish),
            (0..20u32).prop_map(Op::Read),
            (0..6u32).prop_map(Op::Release),
        ]
    }

    proptest! {
        /// Against a queue of published values and an array of what the free slots hold.
        #[test]
        fn ring_matches_a_queue(
            start in start(),
            slots_log2 in 0..5u32,
            stride in 1..4usize,
            ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 300 }),
        ) {
            let slots = 1 << slots_log2;
            let (mut tx, mut rx) = ring_at::<u64>(slots, stride, start);
            let mut queue: VecDeque<u64> = VecDeque::new();
            // What free slots hold, the next to be published first.
            let mut free: VecDeque<u64> = vec![0; slots as usize].into();
            let mut value = 0;
            for op in ops {
                match op {
                    Op::Write(ahead) => {
                        let slot = tx.slot(ahead);
                        prop_assert_eq!(slot.is_some(), (ahead as usize) < free.len());
                        if let Some(slot) = slot {
                            prop_assert_eq!(slot[stride - 1], free[ahead as usize]);
                            value += 1;
                            slot.fill(value);
                            free[ahead as usize] = value;
                        }
                    }
                    Op::Publish(n) => {
                        let n = n.min(slots - tx.in_use());
                        tx.publish(n);
                        queue.extend(free.drain(..n as usize));
                    }
                    Op::Read(ahead) => {
                        let seq = rx.released().wrapping_add(ahead);
                        prop_assert_eq!(rx.has(seq), (ahead as usize) < queue.len());
                        let expected = queue.get(ahead as usize).map(|&value| vec![value; stride]);
                        prop_assert_eq!(rx.get(seq).map(<[u64]>::to_vec), expected);
                        prop_assert!(rx.get(rx.released().wrapping_sub(1 + ahead)).is_none());
                    }
                    Op::Release(n) => {
                        let n = n.min(rx.unreleased());
                        rx.release_to(rx.released().wrapping_add(n));
                        free.extend(queue.drain(..n as usize));
                    }
                }
                prop_assert_eq!(rx.unreleased() as usize, queue.len());
                prop_assert_eq!(rx.published(), tx.published());
                prop_assert_eq!(tx.published().wrapping_sub(rx.released()) as usize, queue.len());
                prop_assert!((tx.free() as usize) <= free.len() && (tx.free() == 0) == free.is_empty());
                prop_assert_eq!(tx.in_use() as usize, queue.len());
            }
        }
    }

    /// Sequence numbers to start from, so that the first few cross the wrap, and the change of sign.
    const STARTS: [u32; 6] = [0, u32::MAX, u32::MAX - 1, u32::MAX - 4, i32::MAX as u32, i32::MAX as u32 - 1];

    /// Every short sequence of operations of both ends, in rings of each size. An end refreshes its copy of the other end's index
    /// only where it has to, so the sequences meet every stale copy.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn every_short_history_matches_a_queue() {
        for (slots, start) in [1, 2, 4, 8].into_iter().flat_map(|slots| STARTS.map(|start| (slots, start))) {
            // Pushes and pops alone fill the largest ring, too.
            sequences(2, 12).for_each(|history| replay(slots, start, history.map(|op| [0, 2][op])));
            sequences(6, 6).for_each(|history| replay(slots, start, history));
        }
    }

    fn replay(slots: u32, start: u32, history: impl Iterator<Item = usize> + Clone) {
        let (mut tx, mut rx) = ring_at::<u32>(slots, 1, start);
        let (mut model, mut value) = (VecDeque::new(), 0);
        let case = || format!("{:?} in {slots} slots from {start:#x}", history.clone().collect::<Vec<_>>());
        for op in history.clone() {
            let room = slots as usize - model.len();
            match op {
                // Publishes one, or two at once.
                0 | 1 => {
                    let n = op as u32 + 1;
                    let last = tx.slot(n - 1).is_some();
                    assert_eq!(last, n as usize <= room, "{}", case());
                    for ahead in 0..if last { n } else { 0 } {
                        value += 1;
                        tx.slot(ahead).unwrap()[0] = value;
                        model.push_back(value);
                    }
                    tx.publish(if last { n } else { 0 });
                }
                2 => {
                    let seq = rx.released();
                    assert_eq!(rx.get(seq).map(|slot| slot[0]), model.front().copied(), "{}", case());
                    if model.pop_front().is_some() {
                        rx.release_to(seq.wrapping_add(1));
                    }
                }
                // All there is, piece by piece.
                3 => {
                    let n = rx.ready(slots);
                    let end = rx.released().wrapping_add(n);
                    let mut got = Vec::new();
                    while got.len() < n as usize {
                        let seq = rx.released().wrapping_add(got.len() as u32);
                        got.extend_from_slice(rx.contiguous(seq, end.wrapping_sub(seq)));
                    }
                    assert_eq!(got, model.drain(..).collect::<Vec<_>>(), "{}", case());
                    rx.release_to(end);
                }
                // From before the oldest slot to beyond the last possible one.
                4 => {
                    for ahead in -2..=i64::from(slots) + 1 {
                        let seq = rx.released().wrapping_add(ahead as u32);
                        let expected = usize::try_from(ahead).ok().and_then(|ahead| model.get(ahead));
                        assert_eq!(rx.get(seq).map(|slot| &slot[0]), expected, "{ahead} of {}", case());
                    }
                }
                _ => {
                    let free = tx.free() as usize;
                    assert!(free <= room && (free == 0) == (room == 0), "{free} of {room}: {}", case());
                }
            }
        }
        assert_eq!(tx.in_use() as usize, model.len(), "{}", case());
        assert_eq!(rx.unreleased() as usize, model.len(), "{}", case());
        assert_eq!(tx.published(), start.wrapping_add(value), "{}", case());
    }

    #[test]
    fn memory_is_aligned() {
        #[derive(Clone, Copy, Default)]
        struct Granule([u8; 16]);
        for stride in [1, 3, 4] {
            let (mut tx, _rx) = ring::<Granule>(4, stride);
            let slot = tx.slot(0).unwrap();
            assert_eq!(slot.len(), stride);
            assert_eq!(slot[0].0, [0; 16]);
            assert_eq!(slot.as_ptr() as usize % ALIGN, 0);
        }
        let (mut tx, _rx) = ring::<[u64; 8]>(4, 1);
        assert_eq!(tx.slot(3).unwrap().as_ptr() as usize % 64, 0);
    }

    /// A ring above the eager limit: slots that were never written hold the default, on the first lap and later, wherever the
    /// sequence starts.
    #[test]
    fn large_ring_holds_defaults() {
        #[derive(Clone, Copy, PartialEq, Debug)]
        struct Odd(u64);
        impl Default for Odd {
            fn default() -> Self {
                Self(0x5eed)
            }
        }
        let slots = (2 * EAGER_BYTES / size_of::<Odd>()) as u32;
        for start in [0, 5, slots - 3, u32::MAX - 7] {
            let (mut tx, mut rx) = ring_at::<Odd>(slots, 1, start);
            let mut left = slots + 10;
            while left > 0 {
                let n = left.min(1000).min(slots);
                tx.slot(n - 1).unwrap()[0] = Odd(1);
                tx.publish(n);
                let first = rx.released();
                for i in 0..n {
                    let got = rx.slot(first.wrapping_add(i))[0];
                    assert!(got == Odd(0x5eed) || got == Odd(1), "{got:?}");
                }
                assert_eq!(rx.slot(first.wrapping_add(n - 1))[0], Odd(1));
                rx.release_to(first.wrapping_add(n));
                left -= n;
            }
        }
    }

    #[test]
    #[should_panic(expected = "published 3 slots")]
    fn publishing_too_much_panics() {
        let (mut tx, _rx) = ring::<u64>(2, 1);
        tx.publish(3);
    }

    #[test]
    #[should_panic(expected = "is not in")]
    fn reading_too_far_panics() {
        let (mut tx, rx) = ring::<u64>(2, 1);
        tx.publish(1);
        rx.slot(1);
    }

    #[test]
    fn releasing_too_much_or_backwards_panics() {
        for to in [4, 1, u32::MAX] {
            let (mut tx, mut rx) = ring::<u64>(4, 1);
            tx.publish(3);
            rx.release_to(2);
            let release = std::panic::AssertUnwindSafe(|| rx.release_to(to));
            assert!(std::panic::catch_unwind(release).is_err(), "released to {to}");
        }
    }

    #[test]
    fn either_end_may_go_first() {
        let (mut tx, rx) = ring::<u64>(2, 1);
        tx.slot(0).unwrap()[0] = 7;
        tx.publish(1);
        drop(tx);
        assert_eq!(rx.slot(0), [7]);
        let (mut tx, rx) = ring::<u64>(2, 1);
        drop(rx);
        tx.publish(2);
        assert!(tx.slot(0).is_none());
    }

    /// Two threads, small rings, batches of every size, across the wrap of the sequence numbers. The consumer
    /// reads slots out of order and twice before it releases them.
    #[test]
    fn two_threads_keep_every_byte() {
        const ITEMS: u64 = if cfg!(miri) { 300 } else { 200_000 };
        for slots in [1, 2, 64] {
            let items = if slots < 8 { ITEMS / 20 } else { ITEMS };
            let (mut tx, mut rx) = ring_at::<[u64; 2]>(slots, 4, u32::MAX - 1000);
            let seal = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let producer = std::thread::spawn(move || {
                let mut n = 0u64;
                while n < items {
                    let batch = (1 + n % 7).min(items - n).min(slots.into()) as u32;
                    let mut staged = 0;
                    while staged < batch {
                        let Some(slot) = tx.slot(staged) else {
                            std::thread::yield_now();
                            continue;
                        };
                        slot.fill([n, seal(n)]);
                        n += 1;
                        staged += 1;
                    }
                    tx.publish(staged);
                }
            });
            let mut next = 0u64;
            while next < items {
                let (from, n) = (rx.released(), rx.unreleased());
                if n == 0 {
                    std::thread::yield_now();
                }
                for i in (0..n).rev().chain(0..n) {
                    let expected = next + u64::from(i);
                    assert!(rx.slot(from.wrapping_add(i)).iter().all(|&x| x == [expected, seal(expected)]));
                }
                rx.release_to(from.wrapping_add(n));
                next += u64::from(n);
            }
            producer.join().unwrap();
            assert_eq!(rx.unreleased(), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Three items through two slots: every item arrives once and in order, and the trackers of the slots see no
    /// access that races with another.
    #[test]
    fn capacity_two() {
        loom::model(|| {
            let (mut tx, mut rx) = ring_at::<u32>(2, 1, u32::MAX);
            let producer = thread::spawn(move || {
                let mut n = 0;
                while n < 3 {
                    match tx.slot(0) {
                        Some(slot) => {
                            n += 1;
                            slot[0] = n;
                            tx.publish(1);
                        }
                        None => thread::yield_now(),
                    }
                }
            });
            let mut expected = 1;
            while expected <= 3 {
                let seq = rx.released();
                match rx.get(seq) {
                    Some(slot) => {
                        assert_eq!(slot, [expected]);
                        expected += 1;
                        rx.release_to(seq.wrapping_add(1));
                    }
                    None => thread::yield_now(),
                }
            }
            producer.join().unwrap();
            assert_eq!(rx.unreleased(), 0);
        });
    }

    /// Batches, and a consumer that releases both slots at once.
    #[test]
    fn capacity_two_batched() {
        loom::model(|| {
            let (mut tx, mut rx) = ring::<u32>(2, 1);
            let producer = thread::spawn(move || {
                for first in [1, 3] {
                    while tx.slot(1).is_none() {
                        thread::yield_now();
                    }
                    tx.slot(0).unwrap()[0] = first;
                    tx.slot(1).unwrap()[0] = first + 1;
                    tx.publish(2);
                }
            });
            for first in [1, 3] {
                let seq = rx.released();
                while rx.unreleased() == 0 {
                    thread::yield_now();
                }
                assert_eq!(rx.unreleased(), 2, "a batch appears as a whole");
                assert_eq!((rx.slot(seq.wrapping_add(1))[0], rx.slot(seq)[0]), (first + 1, first));
                rx.release_to(seq.wrapping_add(2));
            }
            producer.join().unwrap();
        });
    }
}
