//! Objects by slot, contiguous in large chunks. An object's address is computed from its slot, not loaded from a table, and few huge
//! pages, and so few TLB entries, hold all objects.

use crate::sync::huge::{Filling, TLB_REACH};

/// Number of slots in a chunk: large, so that few pages straddle the end of a chunk. Such a page becomes a huge page only when the next
/// chunk fills the rest of it ([`Filling`]), which may never happen.
const CHUNK: usize = 32768;

/// Objects by slot. An object does not move while it is in its slot.
#[derive(Debug)]
pub(super) struct Slab<T> {
    /// Number of slots.
    slots: usize,
    chunks: Vec<Chunk<T>>,
    memory: Filling,
}

/// Contiguous slots. The memory for all of them is allocated at once, and untouched until a slot is used; it is freed when the last
/// object is removed.
#[derive(Debug)]
struct Chunk<T> {
    /// Never grows beyond its initial capacity.
    entries: Vec<Option<T>>,
    live: usize,
}

impl<T> Slab<T> {
    /// An empty slab with `slots` slots.
    pub fn new(slots: usize) -> Self {
        Self { slots, chunks: Vec::new(), memory: Filling::beyond(TLB_REACH) }
    }

    /// The object in a slot.
    #[inline(always)]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?.entries.get(slot as usize % CHUNK)?.as_ref()
    }

    /// The object in a slot.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.chunks.get_mut(slot as usize / CHUNK)?.entries.get_mut(slot as usize % CHUNK)?.as_mut()
    }

    /// The address of the object in a slot, whether or not the slot is used; null if its chunk does not exist.
    #[inline(always)]
    pub fn place(&self, slot: u32) -> *const T {
        let chunk = self.chunks.get(slot as usize / CHUNK);
        chunk.map_or(core::ptr::null(), |chunk| {
            chunk.entries.as_ptr().wrapping_add(slot as usize % CHUNK).cast()
        })
    }

    /// Puts an object into a free slot.
    ///
    /// # Panics
    /// If the slot is taken or beyond the last one.
    pub fn insert(&mut self, slot: u32, object: T) -> &mut T {
        assert!((slot as usize) < self.slots, "slot {slot} of {}", self.slots);
        let (chunk, at) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let first = chunk * CHUNK;
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || Chunk { entries: Vec::new(), live: 0 });
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.live == 0 {
            chunk.entries = Vec::with_capacity(CHUNK.min(self.slots - first));
        }
        if chunk.entries.len() <= at {
            chunk.entries.resize_with(at + 1, || None);
        }
        assert!(chunk.entries[at].is_none(), "slot {slot} is taken");
        chunk.live += 1;
        let object = chunk.entries[at].insert(object);
        self.memory.add(core::ptr::from_mut(object).addr(), size_of::<T>());
        object
    }

    /// Removes the object from its slot.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?;
        let object = chunk.entries.get_mut(slot as usize % CHUNK)?.take()?;
        chunk.live -= 1;
        if chunk.live == 0 {
            chunk.entries = Vec::new();
        }
        Some(object)
    }

    /// Every object, in the order of the slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flat_map(|chunk| &mut chunk.entries).filter_map(Option::as_mut)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn objects_stay_where_they_are() {
        let mut slab = Slab::new(3 * CHUNK);
        let places: Vec<*const u32> = (0..3 * CHUNK as u32).map(|n| &raw const *slab.insert(n, n)).collect();
        for (n, place) in places.iter().enumerate() {
            let n = n as u32;
            assert_eq!((slab.get(n), slab.get(n).map(|at| &raw const *at)), (Some(&n), Some(*place)));
            assert_eq!(slab.get_mut(n), Some(&mut { n }));
        }
        assert!(slab.iter_mut().map(|n| *n).eq(0..3 * CHUNK as u32));
    }

    // Slots far apart cost nothing in between; slots that were never used are empty.
    #[test]
    fn slots_are_found_and_freed() {
        let mut slab = Slab::<u32>::new(10 * CHUNK - 7);
        assert!(slab.get(0).is_none() && slab.get_mut(u32::MAX).is_none() && slab.remove(7).is_none());
        for n in [5, 0, CHUNK as u32 * 9 + 1] {
            *slab.insert(n, 0) += n;
        }
        assert_eq!((slab.chunks[0].live, slab.chunks[1].entries.capacity(), slab.chunks[9].live), (2, 0, 1));
        let capacity = |chunk: usize| slab.chunks[chunk].entries.capacity();
        assert_eq!((capacity(0), capacity(9)), (CHUNK, CHUNK - 7), "for no more than there are");
        assert_eq!(
            (slab.remove(5), slab.remove(5), slab.get(5), slab.get(0)),
            (Some(5), None, None, Some(&0))
        );
        slab.remove(0);
        assert_eq!((slab.chunks[0].live, slab.chunks[0].entries.capacity()), (0, 0));
        slab.insert(5, 1);
        assert_eq!(slab.iter_mut().map(|n| *n).collect::<Vec<_>>(), [1, CHUNK as u32 * 9 + 1]);
    }

    #[test]
    #[should_panic(expected = "slot 3 is taken")]
    fn a_slot_takes_one_object() {
        let mut slab = Slab::new(4);
        slab.insert(3, 'a');
        slab.insert(3, 'b');
    }
}
