//! Huge pages under memory that is in use already: fewer look-ups of addresses where very many objects are touched at
//! random.
//!
//! An address that no translation buffer knows costs a walk through page tables, in a virtual machine through two sets
//! of them. Whoever has a hundred thousand queue pairs pays that for nearly every one of them that a message needs.

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks the kernel to put huge pages under the memory between two addresses, as far as whole ones fit in. Contents stay,
/// whoever they belong to. Takes some 0.3 ms a huge page. `false`: it could not, or cannot (Linux before 6.1, no memory).
#[cfg(not(any(miri, loom)))]
pub fn collapse(from: usize, to: usize) -> bool {
    /// `MADV_COLLAPSE` of `<linux/mman.h>`.
    const MADV_COLLAPSE: libc::c_int = 25;
    let (first, end) = (from.next_multiple_of(HUGE_PAGE), to / HUGE_PAGE * HUGE_PAGE);
    if first >= end {
        return true;
    }
    let at = core::ptr::without_provenance_mut(first);
    // SAFETY: the advice changes neither what memory contains nor who may touch it, whatever lies there; where nothing does
    // it fails.
    unsafe { libc::madvise(at, end - first, MADV_COLLAPSE) == 0 }
}

/// [`collapse`] of a slice.
pub fn collapse_slice<T>(of: &[T]) -> bool {
    let range = of.as_ptr_range();
    collapse(range.start.addr(), range.end.addr())
}

/// Nothing where memory is the tool's.
#[cfg(any(miri, loom))]
pub fn collapse(_from: usize, _to: usize) -> bool {
    false
}

/// Watches where objects are allocated one after the other, and puts huge pages under a region when it is full of them.
#[derive(Debug)]
pub struct Region {
    low: usize,
    high: usize,
    /// Huge pages are to be had, as far as is known.
    works: bool,
}

impl Default for Region {
    fn default() -> Self {
        Self { low: 0, high: 0, works: true }
    }
}

impl Region {
    /// Bytes between two objects that belong to one region, at most.
    const GAP: usize = HUGE_PAGE / 2;
    /// Bytes of a region that is full.
    const FULL: usize = 4 * HUGE_PAGE;

    /// An object is at this address. The next ones are expected behind it.
    pub fn add(&mut self, at: usize) {
        if at < self.low.saturating_sub(Self::GAP) || at > self.high.saturating_add(Self::GAP) {
            (self.low, self.high) = (at, at); // elsewhere: what was begun stays as it is
        }
        self.low = self.low.min(at);
        self.high = self.high.max(at);
        if self.high - self.low >= Self::FULL {
            self.collapse();
        }
    }

    /// Puts huge pages under what there is of the region.
    #[cold]
    fn collapse(&mut self) {
        // Objects behind the last whole huge page are the next region's.
        self.works = self.works && collapse(self.low, self.high);
        self.low = self.high / HUGE_PAGE * HUGE_PAGE;
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
    fn nothing_fits_in() {
        assert!(cfg!(miri) || collapse(1, HUGE_PAGE - 1));
        assert!(cfg!(miri) || collapse(HUGE_PAGE, 2 * HUGE_PAGE - 1));
    }

    // Nothing is mapped there.
    #[test]
    fn an_address_of_nothing_fails() {
        assert!(!collapse(HUGE_PAGE, 4 * HUGE_PAGE));
    }

    // Neighbours make a region, whichever way they grow; what is elsewhere begins another, and one that is full leaves
    // only what did not fill a huge page.
    #[test]
    fn regions_begin_and_end() {
        let mut region = Region { works: false, ..Region::default() };
        let base = 1 << 40;
        region.add(base);
        region.add(base - Region::GAP);
        region.add(base + Region::GAP);
        assert_eq!((region.low, region.high), (base - Region::GAP, base + Region::GAP));
        region.add(base / 2);
        assert_eq!((region.low, region.high), (base / 2, base / 2));
        (0..=Region::FULL / 4096).for_each(|n| region.add(base + 4096 * n));
        assert_eq!((region.low, region.high), (base + Region::FULL, base + Region::FULL));
    }
}
