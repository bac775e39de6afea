//! Memory that processes share: a memfd that cannot change its size. An access beyond the end of a file ends the process by SIGBUS, so
//! what another process gives is mapped only if it is sealed, and no further than it is long.

use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The type that statfs(2) reports for a memfd without huge pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Makes memory of this size, all zero; /proc shows the name.
///
/// # Errors
/// Those of memfd_create(2) and ftruncate(2).
pub fn make(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Bytes of memory that another process gives, which it has from now on; `None`: it is no memfd of small pages with these seals,
/// [`SealFlags::SHRINK`] among them.
pub fn len(given: impl AsFd, seals: SealFlags) -> Option<u64> {
    // Seals are checked first: fstatfs(2) on a file of FUSE waits for as long as its daemon likes, but such files have none. Huge
    // pages are refused: where none is left, the first access ends the process.
    let has = rustix::fs::fcntl_get_seals(&given).ok()?;
    let is_fixed = has.contains(seals | SealFlags::SHRINK)
        && rustix::fs::fstatfs(&given).is_ok_and(|of| of.f_type == TMPFS_MAGIC);
    // Sealed, it is never less than now.
    if is_fixed { rustix::fs::fstat(&given).ok()?.st_size.try_into().ok() } else { None }
}
