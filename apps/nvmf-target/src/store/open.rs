//! Opening a file or a block device for a namespace: its lock, its size, and whether direct I/O is used.

use std::fs::{File as Handle, FileType, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, MemfdFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::aligned::Aligned;

/// Whether to use direct I/O (`O_DIRECT`), which bypasses the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direct {
    /// Do not use direct I/O.
    No,
    /// Use direct I/O, or fail to open if that is not possible.
    Yes,
    /// Use direct I/O if that is possible.
    Try,
}

/// Options for opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Size in bytes: the file is created, or grown if it is smaller. `None`: the file must exist, and keeps its size.
    pub size: Option<u64>,
    /// Open the file for reading only.
    pub read_only: bool,
    /// Whether to use direct I/O. `None`: [`Direct::Yes`] for block devices, [`Direct::No`] for files.
    pub direct: Option<Direct>,
    /// Block size of the namespace in bytes: the smallest unit of reads and writes.
    pub block: u32,
}

impl Default for Opening {
    fn default() -> Self {
        Self { size: None, read_only: false, direct: None, block: 512 }
    }
}

/// Why a file cannot be used for a namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened or created.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The directory in which the file is to be created does not exist.
    #[error("the directory {} does not exist: make it first (mkdir -p)", .0.display())]
    NoDirectory(PathBuf),
    /// Something else uses the file.
    #[error("{} is in use: by another namespace, another program, or mounted", .0.display())]
    InUse(PathBuf),
    /// It is neither a file nor a block device.
    #[error("{} is no file and no block device", .0.display())]
    Kind(PathBuf),
    /// The file system does not support direct I/O.
    #[error("{} cannot be used without the page cache where it is; set direct to false or \"try\"", .0.display())]
    NoDirect(PathBuf),
    /// The device needs larger blocks for direct I/O.
    #[error("{} has larger blocks than {block} bytes; give the namespace block = 4096, or set direct to false", path.display())]
    DirectBlock {
        /// The file.
        path: PathBuf,
        /// The block size of the namespace, in bytes.
        block: u32,
    },
}

/// An open file with its lock (flock(2)): exclusive, or shared if it is only read. Dropping it releases the lock.
#[derive(Debug)]
pub struct Locked(Handle);

impl Locked {
    fn new(file: Handle, read_only: bool) -> Result<Self, TryLockError> {
        if read_only {
            file.try_lock_shared()?
        } else {
            file.try_lock()?
        }
        Ok(Self(file))
    }
}

impl Deref for Locked {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.0
    }
}

impl Drop for Locked {
    /// Unlocks explicitly. Closing is not enough: a child process that another thread is just starting shares the open file, and with it
    /// the lock, until it executes its program.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// A file that was opened, and its properties.
#[derive(Debug)]
pub struct Opened {
    /// The open file.
    pub file: Locked,
    /// Whether it is a file or a block device.
    pub kind: FileType,
    /// Its size in bytes.
    pub len: u64,
    /// Whether I/O is direct.
    pub direct: bool,
}

/// Opens a file and locks it.
///
/// # Errors
/// If the file cannot be opened, or is in use.
pub fn open(path: &Path, how: &Opening) -> Result<Opened, FileError> {
    open_at(path, how, false)
}
/// A dry run of [`open`]: fails if that would fail, but creates and grows nothing. Instead of creating a file it opens one without a name,
/// which is gone when it is closed.
///
/// # Errors
/// As [`open`].
pub fn open_dry(path: &Path, how: &Opening) -> Result<Opened, FileError> {
    open_at(path, how, true)
}

/// The directory of a file; the current one if its path names none.
pub(crate) fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a file of `size` bytes without a name, in the directory of `path`, or in memory if the file system does not support that. Fails if
/// no file could be created in the directory.
fn unnamed(path: &Path, size: u64, flags: i32) -> io::Result<Handle> {
    let dir = dir_of(path);
    let mut options = OpenOptions::new();
    let file = match options.read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(dir) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let (enter, effective) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            rustix::fs::accessat(CWD, dir, enter, effective)?;
            rustix::fs::memfd_create("roce-nvmf-check", MemfdFlags::CLOEXEC)?.into()
        }
        file => file?,
    };
    file.set_len(size)?;
    Ok(file)
}

fn open_at(path: &Path, how: &Opening, dry: bool) -> Result<Opened, FileError> {
    let failed = |error| FileError::Open { path: path.into(), error };
    let make = how.size.is_some() && !how.read_only;
    // The type is checked before the file is opened, because opening a pipe waits for its other end.
    let kind = match std::fs::metadata(path) {
        Ok(there) => Some(there.file_type()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && make => None,
        Err(e) => return Err(failed(e)),
    };
    let usable = |kind: FileType| kind.is_file() || kind.is_block_device();
    if kind.is_some_and(|kind| !usable(kind)) {
        return Err(FileError::Kind(path.into()));
    }
    let device = kind.is_some_and(|kind| kind.is_block_device());
    let direct = how.direct.unwrap_or(if device { Direct::Yes } else { Direct::No });
    let open = |direct: bool| {
        // Opening a device with O_EXCL fails while it is mounted, or while another program has it open with O_EXCL.
        let exclusive = if device { libc::O_EXCL } else { 0 };
        let past = if direct { libc::O_DIRECT } else { 0 };
        let opened = if dry && kind.is_none() {
            unnamed(path, 0, past)
        } else {
            let mut options = OpenOptions::new();
            options.read(true).write(!how.read_only).create(make && !device).truncate(false);
            options.custom_flags(exclusive | past).open(path)
        };
        opened.map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) if direct => FileError::NoDirect(path.into()),
            Some(libc::EBUSY) => FileError::InUse(path.into()),
            Some(libc::ENOENT) if kind.is_none() && !dir_of(path).exists() => {
                FileError::NoDirectory(dir_of(path).into())
            }
            _ => failed(e),
        })
    };
    let first = open(direct != Direct::No).and_then(|file| match direct {
        Direct::No => Ok(file),
        _ => try_blocks(&file, how.block).map(|()| file).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => FileError::DirectBlock { path: path.into(), block: how.block },
            _ => failed(e),
        }),
    });
    let (file, direct) = match first {
        Ok(file) => (file, direct != Direct::No),
        Err(e @ (FileError::NoDirect(_) | FileError::DirectBlock { .. })) if direct == Direct::Try => {
            tracing::warn!("{e}; it is served through the page cache");
            (open(false)?, false)
        }
        Err(e) => return Err(e),
    };
    let kind = file.metadata().map_err(failed)?.file_type();
    if !usable(kind) {
        return Err(FileError::Kind(path.into()));
    }
    let file = Locked::new(file, how.read_only).map_err(|e| match e {
        TryLockError::WouldBlock => FileError::InUse(path.into()),
        TryLockError::Error(error) => failed(error),
    })?;
    let mut len = (&*file).seek(SeekFrom::End(0)).map_err(failed)?;
    if let Some(size) = how.size.filter(|&size| make && kind.is_file() && size > len) {
        if dry {
            // Checks that the file system allows a file of that size.
            drop(unnamed(path, size, 0).map_err(failed)?);
        } else {
            file.set_len(size).map_err(failed)?;
        }
        len = size;
    }
    if make && kind.is_file() {
        warn_if_short_of_space(path, &file, len);
    }
    Ok(Opened { file, kind, len, direct })
}

/// Logs a warning if a file may become larger than its file system has room for.
fn warn_if_short_of_space(path: &Path, file: &Handle, len: u64) {
    let (Ok(there), Ok(space)) = (file.metadata(), rustix::fs::fstatvfs(file)) else { return };
    let needed = len.saturating_sub(there.blocks() * 512);
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if needed > free {
        tracing::warn!(
            "{} may need {needed} more bytes, and its file system has {free} free: writes fail when it is full",
            path.display()
        );
    }
}

/// Reads two blocks. The kernel refuses that if the blocks are smaller than those of the device.
fn try_blocks(file: &Handle, block: u32) -> io::Result<()> {
    let mut bytes = Aligned::new(block as usize);
    for at in [0, block as u64] {
        match file.read_at(&mut bytes, at) {
            // A block that cannot be read is no reason to refuse the device: its other blocks can be served.
            Err(e) if e.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
                tracing::warn!(error = %e, "the first blocks cannot be read");
            }
            other => drop(other?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: if direct I/O is not possible, opening fails or uses the page cache, as the options say. Files in sysfs do not support direct
    // I/O.
    #[test]
    fn a_file_system_without_direct_io_is_said_or_served_through_the_cache() {
        let path = Path::new("/sys/class/net/lo/mtu");
        let opening = |direct| Opening { read_only: true, direct, ..Opening::default() };
        let error = open(path, &opening(Some(Direct::Yes))).unwrap_err();
        assert!(matches!(error, FileError::NoDirect(_)), "{error}");
        assert!(error.to_string().contains("/sys/class/net/lo/mtu") && error.to_string().contains("\"try\""));
        assert!(!open(path, &opening(Some(Direct::Try))).unwrap().direct);
        assert!(!open(path, &opening(None)).unwrap().direct);
    }

    // Goal: a dry run fails if opening would fail, and leaves no file.
    #[test]
    fn an_attempt_fails_where_opening_would_and_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("roce-nvmf-try-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let of = |size| Opening { size, ..Opening::default() };
        let disk = dir.join("disk");
        assert_eq!(open_dry(&disk, &of(Some(8192))).unwrap().len, 8192);
        assert!(!disk.exists());
        std::fs::write(&disk, [0; 512]).unwrap();
        assert_eq!(open_dry(&disk, &of(Some(8192))).unwrap().len, 8192);
        assert_eq!(disk.metadata().unwrap().len(), 512);
        let has = open(&disk, &of(None)).unwrap();
        assert!(matches!(open_dry(&disk, &of(None)), Err(FileError::InUse(_))));
        drop(has);
        let too_large = Some(i64::MAX as u64);
        for (path, size) in
            [(dir.join("none/disk"), Some(8192)), (dir.join("new"), too_large), (disk, too_large)]
        {
            let tried = open_dry(&path, &of(size)).err().map(|e| e.to_string());
            let opened = open(&path, &of(size)).err().map(|e| e.to_string());
            // Some file systems allow files of that size.
            assert!(tried == opened && (tried.is_some() || size == too_large), "{tried:?} {opened:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_before_it_is_opened() {
        let dir = std::env::temp_dir().join(format!("roce-nvmf-open-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let pipe = dir.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        // Opening the pipe would wait for a writer for ever.
        for path in [pipe.as_path(), &dir, Path::new("/dev/null")] {
            assert!(matches!(open(path, &Opening::default()), Err(FileError::Kind(_))), "{path:?}");
            assert!(matches!(open_dry(path, &Opening::default()), Err(FileError::Kind(_))), "{path:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
