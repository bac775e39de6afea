//! The notification page of a process: one byte for each link and each shard of the process, which the peer sets to signal that it has sent
//! frames ([`sync::news`](crate::sync::news)).
//!
//! Each process with which a link exists maps the page, and may write any byte of it at any moment. A faulty process can make a shard poll
//! rings in vain, and can hide the notifications of others until the shard polls all rings.

use super::id::LinkId;
use crate::config::SHARDS_MAX;
use crate::ipc::sealed;
use crate::port::memif::shm::{BLOCK, Page};
use crate::sync::news::Byte;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of the row of a shard.
const ROW: usize = 256;
/// Bytes of the page.
const BYTES: usize = ROW * SHARDS_MAX;
/// Links whose bytes are read together.
pub const TOGETHER: usize = BLOCK;

/// A notification page.
#[derive(Clone, Debug)]
pub struct News(Arc<Page>);

impl News {
    /// Makes the page, with no notification set. Returns the descriptor to send to peers, and the mapped page.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn make() -> io::Result<(OwnedFd, Self)> {
        let fd = sealed::make("roce-news", BYTES as u64)?;
        let page = Page::map(fd.as_fd(), BYTES)?;
        Ok((fd, Self(Arc::new(page))))
    }

    /// Maps the notification page of another process.
    ///
    /// # Errors
    /// Why the page is not accepted: it is not a sealed memfd of sufficient length, or mmap(2) fails.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, String> {
        match sealed::len(fd, SealFlags::SHRINK) {
            Some(len) if len >= BYTES as u64 => {}
            _ => return Err(format!("its news are no {BYTES} bytes of a sealed memfd of small pages")),
        }
        let page = Page::map(fd, BYTES).map_err(|error| format!("its news cannot be mapped: {error}"))?;
        Ok(Self(Arc::new(page)))
    }

    /// Signals a shard of the process that owns the page that frames were sent on a link. `link` is that process's number of the link.
    #[inline]
    pub fn tell(&self, shard: usize, link: LinkId) {
        if let Some(byte) = self.0.byte(shard * ROW + usize::from(link.0)) {
            byte.set();
        }
    }

    /// Clears the notification of a link, and returns whether one was set. The caller polls the link next.
    #[inline]
    pub fn take(&self, shard: usize, link: LinkId) -> bool {
        self.0.byte(shard * ROW + usize::from(link.0)).is_some_and(Byte::take)
    }

    /// Whether a notification is set for any link, in the first `pieces` groups of sixteen links.
    #[inline]
    pub fn has_any(&self, shard: usize, pieces: usize) -> bool {
        let piece = |at| self.0.block(shard * ROW + at * TOGETHER).map_or(0, u128::from_ne_bytes);
        (0..pieces).fold(0, |any, at| any | piece(at)) != 0
    }

    /// The links with a notification, of the sixteen from `16 * at` on, a bit for each.
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
