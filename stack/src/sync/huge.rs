//! Huge pages for memory that is in use already: fewer TLB misses if very many objects are accessed at random.
//!
//! A TLB miss costs a page walk, in a virtual machine through two sets of tables. With a hundred thousand queue pairs, nearly every one
//! that a message needs costs a miss.

use std::collections::HashMap;

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Bytes that a TLB of 2048 entries reaches with small pages.
pub const TLB_REACH: usize = 8 << 20;

/// Asks the kernel to replace the small pages between two addresses by huge ones, where whole ones fit. The contents stay, and may be
/// accessed meanwhile. Takes about 0.3 ms per huge page. Returns `false` if it failed, or the kernel cannot (Linux before 6.1, no memory).
#[cfg(not(any(miri, loom)))]
pub fn collapse(from: usize, to: usize) -> bool {
    /// `MADV_COLLAPSE` of `<linux/mman.h>`.
    const MADV_COLLAPSE: libc::c_int = 25;
    let (first, end) = (from.next_multiple_of(HUGE_PAGE), to / HUGE_PAGE * HUGE_PAGE);
    if first >= end {
        return true;
    }
    let at = core::ptr::without_provenance_mut(first);
    // SAFETY: the advice changes neither what memory contains nor who may touch it, whatever is mapped there; where nothing is it
    // fails.
    unsafe { libc::madvise(at, end - first, MADV_COLLAPSE) == 0 }
}

/// Populates all of the memory between two addresses, with huge pages where they fit and the kernel can. Missing pages cannot become a huge
/// one, so they are filled first; if the kernel cannot do that (Linux before 5.14), the first access does.
#[cfg(not(any(miri, loom)))]
pub fn fill(from: usize, to: usize) {
    // SAFETY: as in `collapse`.
    unsafe { libc::madvise(core::ptr::without_provenance_mut(from), to - from, libc::MADV_POPULATE_WRITE) };
    collapse(from, to);
}

/// Same as [`collapse`], for a slice.
pub fn collapse_slice<T>(of: &[T]) -> bool {
    let range = of.as_ptr_range();
    collapse(range.start.addr(), range.end.addr())
}

/// Does nothing where Miri or loom manages memory.
#[cfg(any(miri, loom))]
pub fn fill(_from: usize, _to: usize) {}

/// Does nothing where Miri or loom manages memory.
#[cfg(any(miri, loom))]
pub fn collapse(_from: usize, _to: usize) -> bool {
    false
}

/// Tracks where objects are allocated, and asks for huge pages where objects fill enough of one. A *page* is a huge one here, or the range
/// of addresses where one fits.
///
/// Allocators mostly put objects that are made in succession side by side, but jump now and then. A page is tried when the next object lies
/// on another page. If objects use too little of it by then, it is tried after they have come back to it and left it again. So is a page
/// that failed: mostly a part of it is not mapped yet, as at the end of a heap, or never will be, as at its start.
///
/// Nothing is tried while all objects together are few, so that the TLB reaches them anyway. A try makes all cores of the system flush
/// their lists of pages (`lru_add_drain_all`), one process after the other: if many processes start on busy cores, that takes seconds.
#[derive(Debug, Default)]
pub struct Filling {
    /// Bytes of all objects.
    bytes: usize,
    /// Pages are tried once there are this many.
    enough: usize,
    /// Pages that have objects and are not huge yet, by page number.
    pages: HashMap<usize, Page>,
    /// The page of the last object.
    at: usize,
    /// Number of pages in a row whose first try failed.
    failed: u32,
}

/// A page that objects fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    /// Bytes of objects on it.
    bytes: usize,
    /// It is tried once objects have this many bytes of it.
    due: usize,
}

impl Filling {
    /// Bytes of objects that make a huge page worth its memory: other allocations lie between them.
    const WORTH: usize = HUGE_PAGE / 8;
    /// A page that failed is tried again with this many more bytes: some thirty tries at most.
    const AGAIN: usize = HUGE_PAGE / 32;
    /// If the first try fails for this many pages in a row, no more are tried: this kernel gives none. Later tries of a page do not count,
    /// as objects can alternate between two pages that fail.
    const FAILURES: u32 = 8;

    /// Tracks no objects yet. Pages are tried once there are `enough` bytes of objects.
    pub fn beyond(enough: usize) -> Self {
        Self { enough, ..Self::default() }
    }

    /// Records an object of `len` bytes at this address.
    pub fn add(&mut self, at: usize, len: usize) {
        if self.failed == Self::FAILURES {
            return;
        }
        let page = at / HUGE_PAGE;
        if page != self.at {
            if self.bytes >= self.enough {
                self.leave();
            }
            self.at = page;
        }
        let before = self.bytes;
        self.bytes += len;
        if before < self.enough && self.bytes >= self.enough {
            let pages: Vec<usize> = self.pages.keys().copied().filter(|of| *of != page).collect();
            pages.into_iter().for_each(|page| self.try_page(page));
        }
        self.pages.entry(page).or_insert(Page { bytes: 0, due: Self::WORTH }).bytes += len;
    }

    /// Tries the page that objects have left.
    fn leave(&mut self) {
        self.try_page(self.at);
    }

    /// Tries a page, if it is due.
    fn try_page(&mut self, number: usize) {
        let Some(page) = self.pages.get_mut(&number).filter(|page| page.bytes >= page.due) else { return };
        let from = number * HUGE_PAGE;
        if collapse(from, from + HUGE_PAGE) {
            self.pages.remove(&number);
            self.failed = 0;
        } else {
            self.failed += u32::from(page.due == Self::WORTH);
            page.due = page.bytes + Self::AGAIN;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Bytes on huge pages in the mapping of an address. Other tests map and unmap, but not here.
    #[cfg(not(miri))]
    fn huge(addr: usize) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let holds = |line: &str| {
            let (low, high) = line.split_once(' ')?.0.split_once('-')?;
            let [low, high] = [low, high].map(|hex| usize::from_str_radix(hex, 16).ok());
            Some((low?..high?).contains(&addr))
        };
        let mut mapping = smaps.lines().skip_while(|line| holds(line) != Some(true));
        let line = mapping.find_map(|line| line.strip_prefix("AnonHugePages:")).expect("told");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    // Contents stay; where the kernel can, the pages are huge afterwards.
    #[test]
    #[cfg(not(miri))]
    fn contents_stay() {
        let memory: Vec<u32> = (0..(4 * HUGE_PAGE / 4) as u32).collect();
        if collapse_slice(&memory) {
            let huge = huge(memory.as_ptr().addr() + memory.len() * 2);
            assert!(huge >= 2 * HUGE_PAGE as u64, "{huge} bytes");
        }
        assert!(memory.iter().copied().eq(0..memory.len() as u32));
    }

    #[test]
    fn a_range_without_a_whole_page_succeeds() {
        assert!(cfg!(miri) || collapse(1, HUGE_PAGE - 1));
        assert!(cfg!(miri) || collapse(HUGE_PAGE, 2 * HUGE_PAGE - 1));
    }

    // Nothing is mapped there.
    #[test]
    fn an_address_of_nothing_fails() {
        assert!(!collapse(HUGE_PAGE, 4 * HUGE_PAGE));
    }

    // Few objects are reached without huge pages. Once there are enough, those before them get theirs too.
    #[test]
    fn few_objects_wait_for_more() {
        let mut filling = Filling::beyond(8 * Filling::WORTH);
        for n in 0..7 {
            filling.add((50 + n % 3) * HUGE_PAGE, Filling::WORTH);
        }
        assert_eq!(filling.failed, 0);
        filling.add(50 * HUGE_PAGE, Filling::WORTH);
        assert_eq!(filling.failed, 2, "nothing is mapped at those that have been left");
        filling.add(51 * HUGE_PAGE, Filling::WORTH);
        assert_eq!(filling.failed, 3, "from here on each as it is left");
    }

    // Objects leave a page and return to it; it is tried when enough of it is full, and again when it has more.
    #[test]
    fn pages_fill() {
        let page = |n: usize| n * HUGE_PAGE;
        let (mut filling, worth) = (Filling::default(), Filling::WORTH);
        for n in 0..4 {
            filling.add(page(40) + n * 4096, worth / 4);
            filling.add(page(50 + n), 1);
        }
        let failed = Page { bytes: worth, due: worth + Filling::AGAIN };
        assert_eq!((filling.failed, filling.pages[&40]), (1, failed), "nothing is mapped there");
        filling.add(page(40), 100);
        filling.add(page(50), 1);
        let waits = Page { bytes: worth + 100, ..failed };
        assert_eq!((filling.failed, filling.pages[&40]), (1, waits), "not tried again so soon");
        filling.add(page(40), worth);
        filling.add(page(50), 1);
        assert_eq!(
            filling.pages[&40].due,
            2 * worth + 100 + Filling::AGAIN,
            "tried again, and still nothing"
        );
        assert_eq!(filling.failed, 1, "one page");
    }

    // At the start of a heap two pages fail, one for good and one for now, and objects alternate between them. Others must be
    // tried nevertheless.
    #[test]
    #[cfg(not(miri))]
    fn two_pages_that_cannot_be_had_do_not_end_it() {
        let mut filling = Filling::default();
        for n in 0..64 * Filling::FAILURES as usize {
            filling.add((40 + n % 2) * HUGE_PAGE, Filling::WORTH / 4);
        }
        assert_eq!(filling.failed, 2);
        let memory = vec![1u8; 3 * HUGE_PAGE];
        let first = memory.as_ptr().addr().next_multiple_of(HUGE_PAGE);
        let can = collapse(first, first + HUGE_PAGE);
        filling.add(first + HUGE_PAGE, Filling::WORTH);
        filling.add(0, 1);
        assert_eq!(filling.failed == 0, can, "what can be had is asked for");
    }

    // Where all pages fail it gives up.
    #[test]
    fn failures_end_it() {
        let mut filling = Filling::default();
        for n in 1..100 {
            filling.add(n * HUGE_PAGE, HUGE_PAGE);
        }
        assert_eq!(filling.failed, Filling::FAILURES);
        assert!(filling.pages.len() <= Filling::FAILURES as usize + 1);
    }

    // Memory that is filled lies on huge pages, where the kernel can.
    #[test]
    #[cfg(not(miri))]
    fn full_pages_are_huge() {
        let memory: Vec<u32> = (0..(4 * HUGE_PAGE / 4) as u32).collect();
        let mut filling = Filling::default();
        for chunk in memory.chunks(1024) {
            filling.add(chunk.as_ptr().addr(), size_of_val(chunk));
        }
        if filling.failed == 0 {
            let huge = huge(memory.as_ptr().addr() + memory.len() * 2);
            assert!(huge >= 2 * HUGE_PAGE as u64, "{huge} bytes");
        }
    }
}
