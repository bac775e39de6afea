//! A namespace in memory. The memory is registered, so Reads are sent from it without a copy.
//!
//! Writes go through a buffer, so that a host that fails in the middle of a transfer leaves no block half written.
//!
//! Each piece of the memory has a mark that says whether it is all zeros, so that zeroing a piece again costs almost nothing. One core may
//! write to a piece while another core zeroes it. The core that zeroes puts a number of its own into the mark, writes the zeros, and
//! changes the mark to "zeros" only if the number is still there. The core that writes stores its bytes first and the mark "written" after
//! them. So a piece that is marked as zeros is zeros, whichever core is last.
//!
//! Memory that hosts deallocate goes back to the operating system, in units of a huge page, and is allocated again when it is written.

use std::sync::atomic::{AtomicU32, Ordering};

use nvmf::BackendError;
use verbs::{Access, Mr, Pd, Sge, VerbsError};

/// Bytes that are compared at a time.
const PIECE: usize = 4096;
/// Bytes of a piece that has a mark.
const MARKED: u64 = 64 << 10;
/// The cost of finding that a piece is zeros already, in bytes that could be written in the same time.
const LOOK: u64 = 256;

/// The unit in which memory is given back to the operating system, in bytes.
const GIVEN_BACK: u64 = 2 << 20;

/// The mark of a piece to which bytes were written. Greater marks than these three are numbers; each zeroing takes a new one.
const WRITTEN: u32 = 0;
/// The mark of a piece of zeros.
const ZEROS: u32 = 1;
/// The mark of a piece that was given back to the operating system, and reads as zeros.
const NOTHING: u32 = 2;

/// The result of a zeroing step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroed {
    /// How many bytes were zeroed, or were zeros already.
    pub bytes: u64,
    /// The cost, in bytes that could be written in the same time.
    pub cost: u64,
}

/// The memory of a namespace.
#[derive(Debug)]
pub struct Memory {
    mr: Mr,
    marks: Box<[AtomicU32]>,
    /// The last number that was taken for a zeroing.
    number: AtomicU32,
}

impl Memory {
    /// Allocates `len` bytes of zeros in `pd`.
    ///
    /// # Errors
    /// If the memory cannot be allocated or registered.
    pub fn new(pd: &Pd, len: usize) -> Result<Self, VerbsError> {
        // No remote access rights: hosts can access it only through commands.
        let mr = pd.reg_mr(len, Access::LOCAL_WRITE)?;
        let marks = (0..(len as u64).div_ceil(MARKED)).map(|_| AtomicU32::new(ZEROS)).collect();
        Ok(Self { mr, marks, number: AtomicU32::new(NOTHING) })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.mr.len() as u64
    }
    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A scatter/gather element for a range, to send it.
    ///
    /// # Errors
    /// If the range is not within the namespace.
    #[inline]
    pub fn sge(&self, offset: u64, len: u32) -> Result<Sge, BackendError> {
        let at = self.range(offset, len as u64)?;
        self.mr.sge(at..at + len as usize).map_err(outside)
    }
    /// Prefetches a range that is going to be written or sent.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: usize) {
        if let Ok(at) = self.range(offset, len as u64) {
            self.mr.prefetch(at..at + len);
        }
    }
    /// Writes `len` bytes, which are at offset `at` of the region `from`.
    ///
    /// # Errors
    /// If the range is not within the namespace.
    #[inline]
    pub fn write(&self, offset: u64, from: &Mr, at: usize, len: u32) -> Result<(), BackendError> {
        let to = self.range(offset, len as u64)?;
        self.mr.copy_from(to, from, at..at + len as usize).map_err(outside)?;
        for mark in self.marks_of(offset, len as u64) {
            // Release: a core that sees the mark sees the bytes, too.
            mark.store(WRITTEN, Ordering::Release);
        }
        Ok(())
    }
    /// Compares with `len` bytes, which are at offset `at` of the region `with`.
    ///
    /// # Errors
    /// If the bytes differ, or the range is not within the namespace.
    pub fn compare(&self, offset: u64, with: &Mr, at: usize, len: u32) -> Result<(), BackendError> {
        let from = self.range(offset, len as u64)?;
        let (mut ours, mut theirs) = ([0; PIECE], [0; PIECE]);
        for done in (0..len as usize).step_by(PIECE) {
            let n = PIECE.min(len as usize - done);
            self.mr.read(from + done, &mut ours[..n]).map_err(outside)?;
            with.read(at + done, &mut theirs[..n]).map_err(outside)?;
            if ours[..n] != theirs[..n] {
                return Err(BackendError::Mismatch);
            }
        }
        Ok(())
    }
    /// Zeroes a range.
    ///
    /// # Errors
    /// If the range is not within the namespace.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        self.zero_some(offset, len, u64::MAX, false).map(drop)
    }
    /// The granularity of deallocation in bytes; `None` if the namespace is smaller than that.
    pub fn deallocates(&self) -> Option<u32> {
        (self.len() >= GIVEN_BACK).then_some(GIVEN_BACK as u32)
    }
    /// Zeroes a range from its start, until the cost is about that of writing `most` bytes. With `give_back`, whole huge pages are given
    /// back to the operating system. This costs as much as writing them, because they will be cleared when they are allocated again.
    ///
    /// # Errors
    /// If the range is not within the namespace.
    pub fn zero_some(
        &self,
        offset: u64,
        len: u64,
        most: u64,
        give_back: bool,
    ) -> Result<Zeroed, BackendError> {
        self.range(offset, len)?;
        let (mut at, end, mut cost) = (offset, offset + len, 0);
        while at < end && cost < most {
            let next = if give_back && at.is_multiple_of(GIVEN_BACK) && end - at >= GIVEN_BACK {
                cost += self.give_back(at)?;
                at + GIVEN_BACK
            } else {
                let next = (at - at % MARKED + MARKED).min(end);
                cost += self.zero_piece(at, next)?;
                next
            };
            at = next;
        }
        Ok(Zeroed { bytes: at - offset, cost })
    }
    /// Gives a huge page back to the operating system; returns the cost in bytes.
    fn give_back(&self, at: u64) -> Result<u64, BackendError> {
        let marks = self.marks_of(at, GIVEN_BACK);
        if marks.iter().all(|mark| mark.load(Ordering::Acquire) == NOTHING) {
            return Ok(LOOK);
        }
        let range = at as usize..(at + GIVEN_BACK) as usize;
        self.zero_marked(marks, || {
            if self.mr.discard(range.clone()) {
                return Ok(NOTHING);
            }
            self.mr.fill(range, 0).map_err(outside)?;
            Ok(ZEROS)
        })?;
        Ok(GIVEN_BACK)
    }
    /// Zeroes a piece or a part of it; returns the cost in bytes.
    fn zero_piece(&self, at: u64, end: u64) -> Result<u64, BackendError> {
        let mark = &self.marks[(at / MARKED) as usize];
        if let ZEROS | NOTHING = mark.load(Ordering::Acquire) {
            return Ok(LOOK);
        }
        let fill = || self.mr.fill(at as usize..end as usize, 0).map_err(outside);
        let whole = at.is_multiple_of(MARKED) && (end.is_multiple_of(MARKED) || end == self.len());
        if whole {
            self.zero_marked(std::slice::from_ref(mark), || fill().map(|()| ZEROS))?;
        } else {
            fill()?;
        }
        Ok(end - at)
    }
    /// Zeroes whole pieces by calling `zero`, which returns their new mark.
    fn zero_marked(
        &self,
        marks: &[AtomicU32],
        zero: impl FnOnce() -> Result<u32, BackendError>,
    ) -> Result<(), BackendError> {
        let number = self.next_number();
        for mark in marks {
            mark.swap(number, Ordering::AcqRel);
        }
        let now = zero()?;
        for mark in marks {
            // Fails if another core has written to the piece meanwhile, or zeroes it, too.
            let _ = mark.compare_exchange(number, now, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }
    /// A new number for a zeroing. Numbers repeat only after about 2^32 zeroings.
    fn next_number(&self) -> u32 {
        loop {
            let number = self.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if number > NOTHING {
                return number;
            }
        }
    }
    /// The marks of a range, which must be within the namespace.
    #[inline]
    fn marks_of(&self, offset: u64, len: u64) -> &[AtomicU32] {
        match len {
            0 => &[],
            len => &self.marks[(offset / MARKED) as usize..=((offset + len - 1) / MARKED) as usize],
        }
    }

    /// The index of the first byte of a range; fails if the range is not within the namespace. The controller has checked the range, but
    /// the size may have changed since.
    fn range(&self, offset: u64, len: u64) -> Result<usize, BackendError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(offset as usize),
            _ => Err(BackendError::OutOfRange),
        }
    }
}

fn outside(_: VerbsError) -> BackendError {
    BackendError::OutOfRange
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::port::fault::rng::Rng;
    use verbs::{Context, DeviceConfig};

    fn memory(len: usize) -> (Memory, Mr) {
        let pd = Context::open(DeviceConfig::loopback()).unwrap().alloc_pd().unwrap();
        (Memory::new(&pd, len).unwrap(), pd.reg_mr(len, Access::LOCAL_WRITE).unwrap())
    }

    // Goal: zeroing a range that is zeros already costs almost nothing, however often a host orders it, until a host writes to it.
    #[test]
    fn zeros_that_are_there_already_are_not_written_again() {
        const LEN: usize = 64 << 20;
        let (memory, from) = memory(LEN);
        from.fill(0..LEN, 0xa5).unwrap();
        memory.write(0, &from, 0, LEN as u32).unwrap();
        let all = LEN as u64;
        let came = |most: u64| memory.zero_some(0, all, most, false).unwrap().bytes;
        assert_eq!(came(1 << 20), 1 << 20, "it is written, a MiB at a time");
        memory.zero(0, all).unwrap();
        assert_eq!(came(1 << 20), all, "now a MiB's worth sees that all is zeros");
        memory.write(5 * MARKED + 512, &from, 0, 512).unwrap();
        assert_eq!(came(MARKED), 6 * MARKED);
        assert_eq!(memory.mr.to_vec(0..LEN).unwrap(), vec![0; LEN]);
    }

    // Goal: a piece whose mark says zeros is zeros, whatever was written and zeroed before. The memory is compared with a vector.
    #[test]
    fn what_was_made_zeros_reads_as_zeros_and_nothing_else_does() {
        // The memory has a huge page that can be given back, and ends within a piece.
        const LEN: usize = (GIVEN_BACK + 5 * MARKED / 2) as usize;
        let (memory, from) = memory(LEN);
        let mut model = vec![0u8; LEN];
        let mut random = Rng::new(9);
        for step in 0..1500 {
            let len = if step % 5 == 0 {
                LEN as u64
            } else {
                1 + random.below(if step % 3 == 0 { LEN as u64 } else { 2048 })
            };
            let at = random.below(LEN as u64 - len + 1);
            let range = at as usize..(at + len) as usize;
            if random.below(2) == 0 {
                let value = 1 + random.below(255) as u8;
                from.fill(0..len as usize, value).unwrap();
                memory.write(at, &from, 0, len as u32).unwrap();
                model[range].fill(value);
            } else {
                memory.zero_some(at, len, u64::MAX, random.below(2) == 0).unwrap();
                model[range].fill(0);
            }
            assert!(memory.mr.to_vec(0..LEN).unwrap() == model, "step {step}");
        }
    }

    // Goal: one core writes to a piece while another zeroes it. A write after all zeroing is not lost, nor is zeroing after all writes.
    #[test]
    fn a_piece_that_is_written_while_it_becomes_zeros_is_not_taken_for_zeros() {
        let (memory, from) = memory(MARKED as usize);
        from.fill(0..512, 7).unwrap();
        for _ in 0..200 {
            std::thread::scope(|scope| {
                scope.spawn(|| memory.write(4096, &from, 0, 512).unwrap());
                scope.spawn(|| memory.zero(0, MARKED).unwrap());
            });
            memory.zero(0, MARKED).unwrap();
            assert_eq!(memory.mr.to_vec(4096..4608).unwrap(), [0; 512]);
        }
    }

    /// Whether a page of the region is backed by memory.
    fn is_there(mr: &Mr, at: usize) -> bool {
        use std::os::unix::fs::FileExt as _;
        let mut entry = [0; 8];
        let page = (mr.as_ptr().addr() + at) / 4096;
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        pages.read_exact_at(&mut entry, page as u64 * 8).unwrap();
        u64::from_le_bytes(entry) >> 62 != 0
    }

    // Goal: deallocated memory goes back to the operating system, once, and is allocated again when it is written.
    #[test]
    fn memory_that_is_deallocated_goes_back_to_the_system() {
        const LEN: usize = 4 * GIVEN_BACK as usize;
        let (memory, from) = memory(LEN);
        let there = || (0..LEN).step_by(4096).filter(|&at| is_there(&memory.mr, at)).count();
        from.fill(0..LEN, 0xa5).unwrap();
        memory.write(0, &from, 0, LEN as u32).unwrap();
        assert_eq!(there(), LEN / 4096);
        let (second, end) = (GIVEN_BACK, 3 * GIVEN_BACK + 512);
        let zeroed = memory.zero_some(second, end - second, u64::MAX, true).unwrap();
        assert_eq!(zeroed, Zeroed { bytes: end - second, cost: end - second });
        assert_eq!(there(), LEN / 4096 / 2);
        let bytes = memory.mr.to_vec(0..LEN).unwrap();
        assert!(bytes[second as usize..end as usize].iter().all(|&b| b == 0));
        assert!(bytes[..second as usize].iter().chain(&bytes[end as usize..]).all(|&b| b == 0xa5));
        assert_eq!(memory.zero_some(second, 2 * GIVEN_BACK, u64::MAX, true).unwrap().cost, 2 * LOOK);
        memory.write(2 * GIVEN_BACK, &from, 0, 512).unwrap();
        assert_eq!(
            memory.mr.to_vec(2 * GIVEN_BACK as usize..2 * GIVEN_BACK as usize + 512).unwrap(),
            [0xa5; 512]
        );
        assert_eq!(memory.zero_some(second, 2 * GIVEN_BACK, u64::MAX, true).unwrap().cost, LOOK + GIVEN_BACK);
    }
}
