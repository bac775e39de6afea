//! A namespace in memory. It is registered, so reads leave from where the blocks are, without a copy.
//!
//! Writes come by way of a buffer: a host that dies in the middle of a transfer leaves no block half written.

use nvmf::BackendError;
use verbs::{Access, Mr, Pd, Sge, VerbsError};

/// Bytes that are compared at a time.
const PIECE: usize = 4096;

/// A namespace's bytes.
#[derive(Debug)]
pub struct Memory {
    mr: Mr,
}

impl Memory {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(pd: &Pd, len: usize) -> Result<Self, VerbsError> {
        // No rights: hosts reach it through commands only.
        Ok(Self { mr: pd.reg_mr(len, Access::LOCAL_WRITE)? })
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
        self.mr.copy_from(to, from, at..at + len as usize).map_err(outside)
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
        let at = self.range(offset, len)?;
        self.mr.fill(at..at + len as usize, 0).map_err(outside)
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
