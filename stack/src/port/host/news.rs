//! The page of news of a process: a byte for each link and each of its shards, by which others tell that they have sent something
//! ([`sync::news`](crate::sync::news)).
//!
//! All processes with which it has links have the page, and may write any of it at any moment: one that goes mad can have a shard look
//! at rings in vain, and can hide what others tell until all rings are looked at again.

use super::id::LinkId;
use crate::config::SHARDS_MAX;
use crate::ipc::sealed;
use crate::port::memif::shm::{BLOCK, Page};
use crate::sync::news::Byte;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes for a shard.
const ROW: usize = 256;
/// Bytes of it all.
const BYTES: usize = ROW * SHARDS_MAX;
/// Links that are looked at in one go.
pub const TOGETHER: usize = BLOCK;

/// A page of news.
#[derive(Clone, Debug)]
pub struct News(Arc<Page>);

impl News {
    /// Makes it, with no news; what others need of it comes first.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn make() -> io::Result<(OwnedFd, Self)> {
        let fd = sealed::make("roce-news", BYTES as u64)?;
        let page = Page::map(fd.as_fd(), BYTES)?;
        Ok((fd, Self(Arc::new(page))))
    }

    /// That of another process.
    ///
    /// # Errors
    /// Why not.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, String> {
        match sealed::len(fd, SealFlags::SHRINK) {
            Some(len) if len >= BYTES as u64 => {}
            _ => return Err(format!("its news are no {BYTES} bytes of a sealed memfd of small pages")),
        }
        let page = Page::map(fd, BYTES).map_err(|error| format!("its news cannot be mapped: {error}"))?;
        Ok(Self(Arc::new(page)))
    }

    /// Tells a shard that there is something on a link, by that process's number of it.
    #[inline]
    pub fn tell(&self, shard: usize, link: LinkId) {
        if let Some(byte) = self.0.byte(shard * ROW + usize::from(link.0)) {
            byte.set();
        }
    }

    /// Takes what was told of a link. Returns whether something was. The link is looked at next.
    #[inline]
    pub fn take(&self, shard: usize, link: LinkId) -> bool {
        self.0.byte(shard * ROW + usize::from(link.0)).is_some_and(Byte::take)
    }

    /// Whether there is something of any link, in so many pieces of sixteen links.
    #[inline]
    pub fn has_any(&self, shard: usize, pieces: usize) -> bool {
        let piece = |at| self.0.block(shard * ROW + at * TOGETHER).map_or(0, u128::from_ne_bytes);
        (0..pieces).fold(0, |any, at| any | piece(at)) != 0
    }

    /// The links, of the sixteen from `16 * at` on, of which there is something, as bits.
    #[inline]
    pub fn told(&self, shard: usize, at: usize) -> u16 {
        match self.0.block(shard * ROW + at * TOGETHER) {
            Some(block) if u128::from_ne_bytes(block) != 0 => {
                block.iter().rev().fold(0, |bits, byte| bits << 1 | u16::from(*byte != 0))
            }
            _ => 0,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn each_link_has_a_byte_of_its_own_in_each_shard() {
        let (fd, ours) = News::make().unwrap();
        let theirs = News::of(fd.as_fd()).unwrap();
        for shard in [0, 1, SHARDS_MAX - 1] {
            for link in [0, 7, 8, 223] {
                theirs.tell(shard, LinkId(link));
                let all = (0..SHARDS_MAX).flat_map(|shard| (0..ROW / TOGETHER).map(move |at| (shard, at)));
                let told: Vec<_> = all.filter(|(shard, at)| ours.told(*shard, *at) != 0).collect();
                let at = usize::from(link) / TOGETHER;
                assert_eq!(told, [(shard, at)]);
                assert!(ours.has_any(shard, at + 1) && !ours.has_any(shard, at));
                assert_eq!(ours.told(shard, usize::from(link) / TOGETHER), 1 << (link % 16));
                assert!(ours.take(shard, LinkId(link)) && !ours.take(shard, LinkId(link)));
            }
        }
    }

    #[test]
    fn only_memory_that_stays_is_taken() {
        let small = sealed::make("small", BYTES as u64 - 1).unwrap();
        assert!(News::of(small.as_fd()).is_err());
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert!(News::of(file.as_fd()).is_err());
    }
}
