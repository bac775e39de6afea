//! The shared memory of a connection: a client lays out rings and buffers in it, and a server maps it.

use super::ring::{self, Ring};
use super::shm::{Fill, Region};
use super::slots::Buffers;
use crate::ipc::sealed;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The layout of the memory that a client creates: the rings to the server, the rings to the client, then the buffers of each ring in the
/// same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rings in each direction.
    pub queues: usize,
    /// Base-2 logarithm of the slots of each ring.
    pub log2: u8,
    /// Bytes of a buffer.
    pub buffer: u32,
}

impl Layout {
    /// Number of a ring among the rings of both directions.
    fn number(&self, to_server: bool, index: usize) -> usize {
        index + if to_server { 0 } else { self.queues }
    }

    /// Offset of a ring.
    pub fn ring(&self, to_server: bool, index: usize) -> u32 {
        (self.number(to_server, index) * ring::bytes(self.log2)) as u32
    }

    /// Offset of the first buffer of a ring.
    fn first(&self, to_server: bool, index: usize) -> u32 {
        let first = 2 * self.queues * ring::bytes(self.log2);
        (first + (self.number(to_server, index) << self.log2) * self.buffer as usize) as u32
    }

    /// The buffers of a ring, as the end sees them that laid them out.
    pub fn buffers(&self, to_server: bool, index: usize) -> Buffers {
        Buffers::Ours { first: self.first(to_server, index), size: self.buffer }
    }

    /// The memory of a ring's buffers: offset and length in bytes.
    pub fn room(&self, to_server: bool, index: usize) -> (u32, u32) {
        (self.first(to_server, index), self.buffer << self.log2)
    }

    /// Bytes of the whole memory.
    pub fn size(&self) -> u64 {
        let buffers = ((2 * self.queues) as u64) << self.log2;
        (2 * self.queues * ring::bytes(self.log2)) as u64 + buffers * u64::from(self.buffer)
    }

    /// # Errors
    /// An error message if the memory is larger than the 32-bit offsets of the protocol can address.
    pub fn check(&self) -> Result<(), String> {
        match self.size() {
            0..=REGION_MAX => Ok(()),
            size => Err(format!(
                "{} queues with rings of 2^{} slots of {} bytes take {} MiB, where a memif has 4096 MiB at most: use a \
                 smaller rsize or bsize",
                self.queues,
                self.log2,
                self.buffer,
                size >> 20
            )),
        }
    }

    /// Creates the memory, filled with zeros.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn make_empty(&self, name: &str, fill: Fill) -> io::Result<(OwnedFd, Arc<Region>)> {
        let fd = sealed::make(name, self.size())?;
        let region = Region::map(fd.as_fd(), self.size() as usize, fill)?;
        Ok((fd, Arc::new(region)))
    }

    /// Creates the memory, and initialises its rings as those of a memif.
    ///
    /// # Errors
    /// As [`make_empty`](Self::make_empty).
    pub fn make(&self, name: &str, fill: Fill) -> io::Result<(OwnedFd, Arc<Region>)> {
        let (fd, region) = self.make_empty(name, fill)?;
        for to_server in [true, false] {
            for index in 0..self.queues {
                let ring =
                    Ring::new(&region, self.ring(to_server, index), self.log2).map_err(io::Error::other)?;
                ring.mark(self.first(to_server, index), self.buffer);
            }
        }
        Ok((fd, region))
    }
}

/// Bytes of the largest region, as offsets in it have 32 bits.
const REGION_MAX: u64 = u32::MAX as u64;

/// Maps the memory that a client offers.
///
/// # Errors
/// Why it is refused: the memory could shrink while it is mapped, is smaller than offered, or cannot be mapped.
pub fn take(fd: BorrowedFd<'_>, size: u64, fill: Fill) -> Result<Arc<Region>, String> {
    let there = sealed::len(fd, SealFlags::SHRINK)
        .ok_or("the region could shrink: use a memfd of small pages with F_SEAL_SHRINK")?;
    if size > there || size > REGION_MAX {
        return Err(format!(
            "the region has {there} bytes of the {size} that are offered, or more than 4 GiB"
        ));
    }
    Region::map(fd, size as usize, fill)
        .map(Arc::new)
        .map_err(|error| format!("the region of {size} bytes cannot be mapped: {error}"))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn rings_and_buffers_do_not_overlap() {
        for queues in [1, 2, 16] {
            for log2 in [1, 4, 10] {
                let layout = Layout { queues, log2, buffer: 4288 };
                let mut pieces = Vec::new();
                for to_server in [true, false] {
                    for index in 0..queues {
                        pieces.push((layout.ring(to_server, index), ring::bytes(log2) as u64));
                        pieces.push((layout.first(to_server, index), 4288 << log2));
                    }
                }
                pieces.sort_unstable();
                for pair in pieces.windows(2) {
                    assert_eq!(u64::from(pair[0].0) + pair[0].1, u64::from(pair[1].0));
                }
                let (at, bytes) = pieces[pieces.len() - 1];
                assert_eq!(u64::from(at) + bytes, layout.size());
            }
        }
        let large = Layout { queues: 16, log2: 14, buffer: 9700 };
        assert!(large.check().unwrap_err().contains("smaller rsize"));
        assert_eq!(Layout { queues: 16, log2: 10, buffer: 9700 }.check(), Ok(()));
    }

    #[test]
    fn only_memory_that_stays_is_taken() {
        let layout = Layout { queues: 2, log2: 10, buffer: 4288 };
        let (fd, ours) = layout.make("test", Fill::Now).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err(), "ours can neither shrink");
        assert!(rustix::fs::ftruncate(&fd, layout.size() + 4096).is_err(), "nor grow");
        let take = |fd: BorrowedFd<'_>, size| take(fd, size, Fill::Now);
        let theirs = take(fd.as_fd(), layout.size()).unwrap();
        assert_eq!((ours.len(), theirs.len()), (layout.size() as usize, layout.size() as usize));
        assert!(take(fd.as_fd(), layout.size() + 1).unwrap_err().contains("are offered"));
        assert!(take(fd.as_fd(), u64::MAX).unwrap_err().contains("are offered"));
        assert!(take(fd.as_fd(), 0).unwrap_err().contains("cannot be mapped"));

        let refused = |fd: &OwnedFd| take(fd.as_fd(), 4096).unwrap_err();
        let memfd = |flags| {
            let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | flags).unwrap();
            let _ = rustix::fs::ftruncate(&fd, 2 << 20);
            fd
        };
        let open = memfd(MemfdFlags::ALLOW_SEALING);
        assert!(refused(&open).contains("could shrink"));
        rustix::fs::fcntl_add_seals(&open, SealFlags::GROW).unwrap();
        assert!(refused(&open).contains("could shrink"));
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
        assert!(refused(&open).contains("cannot be mapped"), "not for writing");
        assert!(refused(&memfd(MemfdFlags::empty())).contains("could shrink"));
        if let Ok(huge) = rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING) {
            let _ = rustix::fs::ftruncate(&huge, 2 << 20);
            rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
            assert!(refused(&huge).contains("small pages"));
        }
        for path in ["/proc/self/exe", "/dev/zero"] {
            assert!(refused(&std::fs::File::open(path).unwrap().into()).contains("could shrink"), "{path}");
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(refused(&socket.into()).contains("could shrink"));
    }
}
