//! Regions and files: the kernel reads and writes registered memory, just as another device would.

use core::ops::Range;
use std::io;
use std::os::fd::AsFd;

use crate::error::VerbsError;
use crate::memory::Memory;
use crate::mr::Mr;

/// A range of a region that stays at its address, from [`Mr::pin`]. For calls of the operating system that use the memory after they
/// return, such as those on the buffers of an `io_uring`.
///
/// While it exists, the memory is neither freed nor replaced: [`Mr::dereg`] and [`Mr::rereg`] fail with `EBUSY`. The region may be dropped.
/// Its key is then revoked, and its buffer lives until the last pin is dropped.
#[derive(Debug)]
#[must_use = "the bytes stay only as long as the pin exists"]
pub struct MrPin {
    memory: Memory,
    at: usize,
    len: usize,
}

impl MrPin {
    /// A pointer to the first byte. Peers and shards access the bytes at any moment, so use it as described for [`Mr::as_ptr`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.at(self.at, self.len)
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Mr {
    /// Reads from a file at `file_offset` into a range of the region, with one pread(2) and without an intermediate copy. Returns how many
    /// bytes were read, which may be fewer than the range; 0 at the end of the file. Waits for the file, without holding a lock.
    ///
    /// ```no_run
    /// # use verbs::{Access, Context, DeviceConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = Context::open(DeviceConfig::loopback())?.alloc_pd()?;
    /// let mr = pd.reg_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// let file = std::fs::File::open("/var/lib/blocks")?;
    /// let n = mr.pread(&file, 0, 0..mr.len())?;
    /// println!("peers can read {n} bytes");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::ReadOnly`]; [`VerbsError::File`] with the error of the system call.
    #[doc(alias = "read_at")]
    pub fn pread(&self, fd: impl AsFd, file_offset: u64, range: Range<usize>) -> Result<usize, VerbsError> {
        self.contains(&range)?;
        self.writable()?;
        let from = offset("pread", file_offset)?;
        let read = self.memory.pread(fd.as_fd(), from, range.start, range.len());
        read.map_err(|e| failed("pread", &e))
    }

    /// Writes a range of the region to a file at `file_offset`, with one pwrite(2). Returns how many bytes were written, which may be fewer
    /// than the range. Bytes that a peer writes during the call may reach the file or not.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::File`] with the error of the system call.
    #[doc(alias = "write_at")]
    pub fn pwrite(&self, fd: impl AsFd, file_offset: u64, range: Range<usize>) -> Result<usize, VerbsError> {
        self.contains(&range)?;
        let to = offset("pwrite", file_offset)?;
        let written = self.memory.pwrite(fd.as_fd(), to, range.start, range.len());
        written.map_err(|e| failed("pwrite", &e))
    }

    /// Pins a range of the region: while the result exists, the bytes stay at their address.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`].
    pub fn pin(&self, range: Range<usize>) -> Result<MrPin, VerbsError> {
        self.contains(&range)?;
        Ok(MrPin { memory: self.memory.clone(), at: range.start, len: range.len() })
    }
}

/// Converts a file offset to the type that the system calls take.
fn offset(call: &'static str, file_offset: u64) -> Result<i64, VerbsError> {
    i64::try_from(file_offset).map_err(|_| VerbsError::File { call, errno: libc::EINVAL })
}

fn failed(call: &'static str, error: &io::Error) -> VerbsError {
    VerbsError::File { call, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}
