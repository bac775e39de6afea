//! Work for storage that blocks its caller, and the trait of such storage.

use std::fmt::Debug;
use std::sync::Arc;

use nvmf::BackendError;
use verbs::Mr;

use super::health::Health;

/// A command of a core, by its index among those under way there. It is no CID, which the host chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CommandIndex(pub u32);

/// A command whose work is done.
#[derive(Debug)]
pub struct Done {
    /// Which one.
    pub command: CommandIndex,
    /// How it ended.
    pub result: Result<(), BackendError>,
}

/// Bytes of a region.
#[derive(Clone, Debug)]
pub struct MrSlice {
    /// The region, which lives as long as any work refers to it.
    pub mr: Arc<Mr>,
    /// The first byte.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// What to do with storage.
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

/// Bytes that a thread makes zeros, verifies or gives back before work of another host has its turn.
pub(super) const PART: u64 = 8 << 20;

impl Work {
    /// Splits a part off the front of long work and returns it; `self` is the rest then. `None`: the work is short enough. No part has
    /// FUA, only the rest has: its flush, the last, makes all parts stable.
    pub(super) fn take_front(&mut self) -> Option<Self> {
        // Up to a multiple of `PART`, so that parts end where storage can be given back.
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

/// Storage that blocks the thread that uses it: [`Workers`](super::Workers) wait for it. A program may have kinds of its own.
pub trait BlockingStorage: Debug + Send + Sync {
    /// Bytes that it has now.
    ///
    /// # Errors
    /// If it is gone.
    fn size(&self) -> std::io::Result<u64>;
    /// Bytes that it gives back together, which read as zeros then; `None` if it gives nothing back.
    fn deallocates(&self) -> Option<u32> {
        None
    }
    /// Does this work, and returns when it is done. Several threads call it.
    ///
    /// # Errors
    /// Why the work failed; the host gets the NVMe status for it. After [`BackendError::Lost`] nothing is run any more until the
    /// storage's health is restored.
    fn run(&self, work: &Work) -> Result<(), BackendError>;
    /// Its health.
    fn health(&self) -> &Health;
}

#[cfg(test)]
mod tests {
    use super::super::ranges::merged;
    use super::*;

    // Goal: a command is done in parts that other hosts' work can come between, and its parts are together what it was.
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
