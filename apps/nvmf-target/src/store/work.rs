//! Work for blocking storage, and the trait of such storage.

use std::fmt::Debug;
use std::sync::Arc;

use nvmf::BackendError;
use verbs::Mr;

use super::health::Health;

/// The index of a waiting command of a core. It is not the CID, which the host chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CommandIndex(pub u32);

/// The result of work.
#[derive(Debug)]
pub struct Done {
    /// The command whose work it was.
    pub command: CommandIndex,
    /// Its outcome.
    pub result: Result<(), BackendError>,
}

/// A range of a memory region.
#[derive(Clone, Debug)]
pub struct MrSlice {
    /// The region.
    pub mr: Arc<Mr>,
    /// Offset of the first byte in the region.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

/// An operation on storage. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "operations and fields are those of nvmf::Op, with regions in the place of the host's memory"
)]
pub enum Work {
    Read { offset: u64, to: MrSlice, fua: bool },
    Write { offset: u64, from: MrSlice, fua: bool },
    Compare { offset: u64, with: MrSlice, fua: bool },
    Verify { offset: u64, len: u64, fua: bool },
    Zero { offset: u64, len: u64, fua: bool, deallocate: bool },
    Deallocate(Vec<(u64, u64)>),
    Flush,
}

/// The most bytes that a thread zeroes, verifies or deallocates before the work of another host has its turn.
pub(super) const PART: u64 = 8 << 20;

impl Work {
    /// Splits a part off the front of long work and returns it; `self` becomes the rest. `None`: the work is short enough. The parts do not
    /// have FUA, only the rest has: its flush is the last step and makes all parts stable.
    pub(super) fn take_front(&mut self) -> Option<Self> {
        // A part ends at a multiple of `PART`, which is aligned for deallocation.
        let end_of = |offset: u64| offset - offset % PART + PART;
        match self {
            Self::Verify { offset, len, .. } | Self::Zero { offset, len, .. } => {
                let (at, part) = (*offset, end_of(*offset) - *offset);
                if *len <= part {
                    return None;
                }
                (*offset, *len) = (at + part, *len - part);
                Some(match *self {
                    Self::Zero { deallocate, .. } => {
                        Self::Zero { offset: at, len: part, fua: false, deallocate }
                    }
                    _ => Self::Verify { offset: at, len: part, fua: false },
                })
            }
            Self::Deallocate(ranges) => {
                let (at, len) = *ranges.first()?;
                let part = (end_of(at) - at).min(len);
                if ranges.len() == 1 && part == len {
                    return None;
                }
                if part == len {
                    ranges.remove(0);
                } else {
                    ranges[0] = (at + part, len - part);
                }
                Some(Self::Deallocate(vec![(at, part)]))
            }
            Self::Read { .. } | Self::Write { .. } | Self::Compare { .. } | Self::Flush => None,
        }
    }
}

/// Storage that blocks its caller. [`Workers`](super::Workers) call it. Programs may implement it for storage of their own.
pub trait BlockingStorage: Debug + Send + Sync {
    /// Its current size in bytes.
    ///
    /// # Errors
    /// If the storage is gone.
    fn size(&self) -> std::io::Result<u64>;
    /// The granularity of deallocation in bytes; deallocated bytes read as zeros. `None` if it cannot deallocate.
    fn deallocates(&self) -> Option<u32> {
        None
    }
    /// Does the work, and returns when it is done. Several threads may call it at a time.
    ///
    /// # Errors
    /// Why the work failed; it becomes the NVMe status of the command. After [`BackendError::Lost`] no work is run until the health of the
    /// storage is restored.
    fn run(&self, work: &Work) -> Result<(), BackendError>;
    /// Its health.
    fn health(&self) -> &Health;
}

#[cfg(test)]
mod tests {
    use super::super::ranges::merged;
    use super::*;

    // Goal: long work is split into parts, so that the work of other hosts can come in between, and the parts make up the whole.
    #[test]
    fn long_work_is_done_in_parts_that_are_together_what_it_was() {
        let range = |work: &Work| match *work {
            Work::Zero { offset, len, .. } | Work::Verify { offset, len, .. } => vec![(offset, len)],
            Work::Deallocate(ref ranges) => ranges.clone(),
            _ => Vec::new(),
        };
        for (offset, len) in [(0, 1), (512, PART), (0, PART), (0, 5 * PART), (PART - 512, 3 * PART + 1024)] {
            for mut work in [
                Work::Zero { offset, len, fua: true, deallocate: true },
                Work::Verify { offset, len, fua: true },
                Work::Deallocate(vec![(offset, len), (offset + 2 * len, len), (offset + 4 * len, 512)]),
            ] {
                let whole = range(&work);
                let mut done = Vec::new();
                while let Some(part) = work.take_front() {
                    assert!(!matches!(part, Work::Zero { fua: true, .. } | Work::Verify { fua: true, .. }));
                    done.extend(range(&part));
                }
                assert!(!matches!(work, Work::Zero { fua: false, .. } | Work::Verify { fua: false, .. }));
                done.extend(range(&work));
                assert!(done.iter().all(|&(_, len)| 0 < len && len <= PART), "{done:?}");
                assert_eq!(merged(done.into_iter()), merged(whole.into_iter()));
            }
        }
    }
}
