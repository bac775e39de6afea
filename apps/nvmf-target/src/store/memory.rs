//! A namespace in memory. It is registered, so reads leave from where the blocks are, without a copy.
//!
//! Writes come by way of a buffer: a host that dies in the middle of a transfer leaves no block half written.
//!
//! Each piece has a mark that says whether it is zeros, so that to order zeros again and again costs next to nothing. One core may write
//! to a piece while another one makes zeros of it. The core that makes zeros puts a number of its own into the mark, writes the zeros,
//! and changes the mark to "zeros" if that number is still there. The core that writes stores its bytes first and the mark "written"
//! after them. So whoever is last, a piece that is marked as zeros is zeros.
//!
//! Memory that hosts deallocate goes back to the system, a huge page at a time, and comes again when it is written.

use std::sync::atomic::{AtomicU32, Ordering};

use nvmf::BackendError;
use verbs::{Access, Mr, Pd, Sge, VerbsError};

/// Bytes that are compared at a time.
const PIECE: usize = 4096;
/// Bytes of a piece with a mark.
const MARKED: u64 = 64 << 10;
/// What it costs to see that a piece is zeros already, as bytes that are written.
const LOOK: u64 = 256;

/// Bytes that are given back to the system together.
const GIVEN_BACK: u64 = 2 << 20;

/// The mark of a piece to which bytes were written. Marks above these three are numbers: each zeroing of a piece draws one.
const WRITTEN: u32 = 0;
/// The mark of a piece of zeros.
const ZEROS: u32 = 1;
/// The mark of a piece that has no memory behind it, and reads as zeros.
const NOTHING: u32 = 2;

/// How far the making of zeros has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroed {
    /// Bytes.
    pub bytes: u64,
    /// What that cost, as bytes that are written.
    pub cost: u64,
}

/// A namespace's bytes.
#[derive(Debug)]
pub struct Memory {
    mr: Mr,
    marks: Box<[AtomicU32]>,
    /// The number that was given out last.
    number: AtomicU32,
}

impl Memory {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(pd: &Pd, len: usize) -> Result<Self, VerbsError> {
        // No rights: hosts reach it through commands only.
        let mr = pd.reg_mr(len, Access::LOCAL_WRITE)?;
        let marks = (0..(len as u64).div_ceil(MARKED)).map(|_| AtomicU32::new(ZEROS)).collect();
        Ok(Self { mr, marks, number: AtomicU32::new(NOTHING) })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.mr.len() as u64
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A range, to be sent.
    ///
    /// # Errors
    /// If it is not within.
    #[inline]
    pub fn sge(&self, offset: u64, len: u32) -> Result<Sge, BackendError> {
        let at = self.range(offset, len as u64)?;
        self.mr.sge(at..at + len as usize).map_err(outside)
    }
    /// Prefetches a range that is going to be written, or sent.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: usize) {
        if let Ok(at) = self.range(offset, len as u64) {
            self.mr.prefetch(at..at + len);
        }
    }
    /// Writes `len` bytes that are at `at` of `from`.
    ///
    /// # Errors
    /// If the range is not within.
    #[inline]
    pub fn write(&self, offset: u64, from: &Mr, at: usize, len: u32) -> Result<(), BackendError> {
        let to = self.range(offset, len as u64)?;
        self.mr.copy_from(to, from, at..at + len as usize).map_err(outside)?;
        for mark in self.marks_of(offset, len as u64) {
            // Release: behind the bytes.
            mark.store(WRITTEN, Ordering::Release);
        }
        Ok(())
    }
    /// Compares with `len` bytes that are at `at` of `with`.
    ///
    /// # Errors
    /// If they differ, or the range is not within.
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
    /// Makes a range zeros.
    ///
    /// # Errors
    /// If it is not within.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        self.zero_some(offset, len, u64::MAX, false).map(drop)
    }
    /// Bytes that are given back together; `None` if it is smaller than that.
    pub fn deallocates(&self) -> Option<u32> {
        (self.len() >= GIVEN_BACK).then_some(GIVEN_BACK as u32)
    }
    /// Makes zeros of a range, from its start on, until that has cost about as much as to write `most` bytes; with `give_back` whole huge
    /// pages go back to the system. That counts as if they were written: they will be cleared when they come again.
    ///
    /// # Errors
    /// If the range is not within.
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
    /// Gives a huge page back; returns what that cost.
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
    /// Makes zeros of a piece, or of a part of it; returns what that cost.
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
    /// Makes zeros of whole pieces by `zero`, which returns their mark.
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
            // Fails where somebody has written meanwhile, or makes zeros too.
            let _ = mark.compare_exchange(number, now, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }
    /// A number for who makes zeros. They come round after four thousand millions.
    fn next_number(&self) -> u32 {
        loop {
            let number = self.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if number > NOTHING {
                return number;
            }
        }
    }
    /// The marks of a range that is within.
    #[inline]
    fn marks_of(&self, offset: u64, len: u64) -> &[AtomicU32] {
        match len {
            0 => &[],
            len => &self.marks[(offset / MARKED) as usize..=((offset + len - 1) / MARKED) as usize],
        }
    }

    /// Where a range begins, if it is within. The controller has checked it, against a size that may have changed since.
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

    // Goal: what is zeros already costs next to nothing, however often it is ordered: to make it cost again, a host has to write.
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

    // Goal: a mark that says zeros is right, whatever was written and made zeros before: against a vector.
    #[test]
    fn what_was_made_zeros_reads_as_zeros_and_nothing_else_does() {
        // With a huge page that can go, and an end that is no whole piece.
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

    // Goal: writes of one core and zeros of another, at the same piece: a write that came after all zeros is there, and zeros that came
    // after all writes are.
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

    /// Whether a page of the region has memory behind it.
    fn is_there(mr: &Mr, at: usize) -> bool {
        use std::os::unix::fs::FileExt as _;
        let mut entry = [0; 8];
        let page = (mr.as_ptr().addr() + at) / 4096;
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        pages.read_exact_at(&mut entry, page as u64 * 8).unwrap();
        u64::from_le_bytes(entry) >> 62 != 0
    }

    // Goal: what is deallocated goes back to the system, once, and comes again when it is written.
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
