//! Buffers for data on their way between a host and a namespace: registered memory that is allocated once.
//!
//! Buffers have one of a few sizes, with a free list for each. [`Shared`](super::shared::Shared) decides which host may have a buffer and
//! which has to wait.

use std::sync::Arc;

use verbs::{Access, Mr, Pd, Sge, VerbsError};

/// The number of buffer sizes.
pub const CLASSES: usize = 3;
/// Bytes of a small buffer: the block size of most file systems.
const SMALL: usize = 4096;
/// Bytes of a middle buffer: the size up to which hosts merge requests.
const MIDDLE: usize = 128 << 10;

/// A size class of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(u8);

impl Class {
    /// All classes, smallest first.
    pub const ALL: [Self; CLASSES] = [Self(0), Self(1), Self(2)];

    /// The index of the class: 0 is the smallest size.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer that is in use.
#[derive(Debug)]
#[must_use = "a buffer is given back, or it is lost"]
pub struct Buffer {
    class: Class,
    offset: usize,
}

impl Buffer {
    /// Offset in the pool's memory region.
    pub const fn offset(&self) -> usize {
        self.offset
    }
    /// The size class.
    pub const fn class(&self) -> Class {
        self.class
    }
}

/// The buffers of a core.
#[derive(Debug)]
pub struct Pool {
    mr: Arc<Mr>,
    lens: [usize; CLASSES],
    /// Offsets of the free buffers, by class. The last one used is taken first, because it may be in a cache.
    free: [Vec<usize>; CLASSES],
    total: usize,
}

impl Pool {
    /// Makes a pool of about `memory_size` bytes. The largest buffers have `largest` bytes. There is at least one buffer of each class.
    ///
    /// # Errors
    /// If the memory cannot be allocated or registered.
    pub fn new(pd: &Pd, memory_size: usize, largest: usize) -> Result<Self, VerbsError> {
        let lens = [SMALL.min(largest), MIDDLE.min(largest), largest];
        let shares = [memory_size / 4, memory_size / 2, memory_size / 4];
        let counts: [usize; CLASSES] = std::array::from_fn(|class| (shares[class] / lens[class]).max(1));
        let len = (0..CLASSES).map(|class| counts[class] * lens[class]).sum();
        let mr = Arc::new(pd.reg_mr(len, Access::LOCAL_WRITE)?);
        let mut next = 0;
        let free = std::array::from_fn(|class| {
            let offsets = (0..counts[class]).map(|n| next + n * lens[class]).rev().collect();
            next += counts[class] * lens[class];
            offsets
        });
        Ok(Self { mr, lens, free, total: counts.iter().sum() })
    }

    /// The smallest class that holds `len` bytes. Panics if `len` exceeds the largest buffer.
    pub fn class_of(&self, len: usize) -> Class {
        let fits = |class: &Class| len <= self.lens[class.index()];
        Class::ALL.into_iter().find(fits).expect("a transfer is no longer than the largest buffer")
    }
    /// How many buffers of a class are free.
    pub fn left(&self, class: Class) -> usize {
        self.free[class.index()].len()
    }
    /// Takes a buffer of a class; `None` if none is free.
    pub fn take(&mut self, class: Class) -> Option<Buffer> {
        let offset = self.free[class.index()].pop()?;
        Some(Buffer { class, offset })
    }
    /// Frees a buffer.
    pub fn give(&mut self, buffer: Buffer) {
        self.free[buffer.class.index()].push(buffer.offset);
    }
    /// A scatter/gather element for the first `len` bytes of a buffer.
    pub fn sge(&self, buffer: &Buffer, len: u32) -> Sge {
        debug_assert!(len as usize <= self.lens[buffer.class.index()]);
        Sge { addr: self.mr.iova() + buffer.offset as u64, length: len, lkey: self.mr.lkey() }
    }
    /// The memory region of all buffers.
    pub fn mr(&self) -> &Arc<Mr> {
        &self.mr
    }
    /// How many buffers are in use.
    pub fn in_use(&self) -> usize {
        self.total - self.free.iter().map(Vec::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Context, DeviceConfig};

    // Goal: no two buffers overlap, all are within the region, and a buffer that was freed can be taken again.
    #[test]
    fn buffers_are_apart_and_come_back() {
        let pd = Context::open(DeviceConfig::loopback()).unwrap().alloc_pd().unwrap();
        for (memory, largest) in [(0, 8192), (4 << 20, 128 << 10), (8 << 20, 1 << 20), (1, 4096)] {
            let mut pool = Pool::new(&pd, memory, largest).unwrap();
            let mut taken = Vec::new();
            for class in Class::ALL {
                while let Some(buffer) = pool.take(class) {
                    taken.push(buffer);
                }
            }
            assert!(taken.len() >= CLASSES && pool.in_use() == taken.len());
            let mut ranges: Vec<_> =
                taken.iter().map(|b| b.offset..b.offset + pool.lens[b.class.index()]).collect();
            ranges.sort_unstable_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(ranges.last().unwrap().end <= pool.mr.len());
            let at = pool.mr.pin(0..pool.mr.len()).unwrap().as_ptr().addr();
            assert!(
                ranges.iter().all(|range| (at + range.start).is_multiple_of(4096)),
                "as O_DIRECT wants them"
            );
            assert!(pool.lens[pool.class_of(largest).index()] >= largest && pool.class_of(1) == Class(0));
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert_eq!(pool.in_use(), 0);
        }
    }
}
