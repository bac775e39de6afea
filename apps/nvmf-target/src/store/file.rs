//! A namespace in a file or on a block device.
//!
//! Every call here waits for the file; [`Workers`](super::Workers) make them.

use std::fs::{File as Handle, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use nvmf::BackendError;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use verbs::{Mr, VerbsError};

/// Bytes that are compared, verified, or written as zeros at a time.
const PIECE: usize = 256 << 10;

/// Why a file cannot be a namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be opened, or made.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something else has it.
    #[error("{} is in use by another namespace or program", .0.display())]
    InUse(PathBuf),
    /// A directory, a pipe and so on.
    #[error("{} is no file and no block device", .0.display())]
    Kind(PathBuf),
}

/// The file.
#[derive(Debug)]
pub struct File {
    file: Handle,
    len: u64,
    /// Storage can be given back, and reads as zeros then.
    punches: bool,
}

impl File {
    /// Opens a file, and locks it. With `size` it is made, or grown to that, where it is smaller.
    ///
    /// # Errors
    /// If that is not possible, or somebody else has locked it.
    pub fn open(path: &Path, size: Option<u64>, read_only: bool) -> Result<Self, FileError> {
        let failed = |error| FileError::Open { path: path.into(), error };
        let make = size.is_some() && !read_only;
        let file = OpenOptions::new().read(true).write(!read_only).create(make).truncate(false).open(path);
        let file = file.map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(FileError::Kind(path.into()));
        }
        let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::InUse(path.into())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut len = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        if let Some(size) = size.filter(|&size| make && kind.is_file() && size > len) {
            file.set_len(size).map_err(failed)?;
            len = size;
        }
        // Behind the end: it changes nothing, and says whether the file system can.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punches = kind.is_file() && !read_only && fallocate(&file, hole, len, 4096).is_ok();
        Ok(Self { file, len, punches })
    }
    /// The length of a file that is not opened for use.
    ///
    /// # Errors
    /// If it is not there.
    pub fn look(path: &Path) -> Result<u64, FileError> {
        let look = || Handle::open(path)?.seek(SeekFrom::End(0));
        look().map_err(|error| FileError::Open { path: path.into(), error })
    }

    /// The open file.
    pub(super) fn handle(&self) -> &Handle {
        &self.file
    }
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Whether what was deallocated reads as zeros.
    pub fn deallocated_reads_zero(&self) -> bool {
        self.punches
    }

    /// Reads into a region.
    ///
    /// # Errors
    /// If the file fails, or has become shorter.
    pub fn read(&self, mut offset: u64, to: &Mr, at: usize, len: usize) -> Result<(), BackendError> {
        let mut range = at..at + len;
        while !range.is_empty() {
            match to.pread(&self.file, offset, range.clone()).map_err(of_verbs)? {
                0 => return Err(BackendError::OutOfRange),
                n => {
                    range.start += n;
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }
    /// Writes from a region; with `fua` it is on stable storage then.
    ///
    /// # Errors
    /// If the file fails.
    pub fn write(
        &self,
        mut offset: u64,
        from: &Mr,
        at: usize,
        len: usize,
        fua: bool,
    ) -> Result<(), BackendError> {
        let mut range = at..at + len;
        while !range.is_empty() {
            match from.pwrite(&self.file, offset, range.clone()).map_err(of_verbs)? {
                0 => return Err(BackendError::Io),
                n => {
                    range.start += n;
                    offset += n as u64;
                }
            }
        }
        if fua { self.flush() } else { Ok(()) }
    }
    /// Compares with bytes of a region.
    ///
    /// # Errors
    /// If they differ, or the file fails.
    pub fn compare(&self, offset: u64, with: &Mr, at: usize, len: usize) -> Result<(), BackendError> {
        let mut theirs = vec![0; PIECE.min(len)];
        self.each_piece(offset, len as u64, |done, ours| {
            let theirs = &mut theirs[..ours.len()];
            with.read(at + done as usize, theirs).map_err(|_| BackendError::Internal)?;
            if ours == theirs { Ok(()) } else { Err(BackendError::Mismatch) }
        })
    }
    /// Reads, to see whether it can be read.
    ///
    /// # Errors
    /// If it cannot.
    pub fn verify(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        self.each_piece(offset, len, |_, _| Ok(()))
    }
    fn each_piece(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut piece = vec![0; PIECE.min(len as usize)];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(PIECE as u64) as usize;
            self.file.read_exact_at(&mut piece[..n], offset + done).map_err(|e| of_io(&e))?;
            each(done, &piece[..n])?;
            done += n as u64;
        }
        Ok(())
    }
    /// Makes a range zeros; its storage may be given back.
    ///
    /// # Errors
    /// If the file fails.
    pub fn zero(&self, offset: u64, len: u64, fua: bool, deallocate: bool) -> Result<(), BackendError> {
        let how =
            if deallocate && self.punches { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => {}
            // The file system or the device has no such operation.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeros(offset, len)?,
            Err(e) => return Err(of_errno(e.raw_os_error())),
        }
        if fua { self.flush() } else { Ok(()) }
    }
    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        let zeros = vec![0; PIECE.min(len as usize)];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(PIECE as u64) as usize;
            self.file.write_all_at(&zeros[..n], offset + done).map_err(|e| of_io(&e))?;
            done += n as u64;
        }
        Ok(())
    }
    /// Gives storage back, where that is possible. It is a hint: where not, nothing happens.
    ///
    /// # Errors
    /// If the file fails.
    pub fn deallocate(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        if self.punches { self.zero(offset, len, false, true) } else { Ok(()) }
    }
    /// Makes stable what was written.
    ///
    /// # Errors
    /// If the file fails.
    pub fn flush(&self) -> Result<(), BackendError> {
        self.file.sync_data().map_err(|e| of_io(&e))
    }
}

fn of_verbs(e: VerbsError) -> BackendError {
    match e {
        VerbsError::File { errno, .. } => of_errno(errno),
        _ => BackendError::Internal,
    }
}
fn of_io(e: &io::Error) -> BackendError {
    match e.raw_os_error() {
        Some(errno) => of_errno(errno),
        None if e.kind() == ErrorKind::UnexpectedEof => BackendError::OutOfRange,
        None => BackendError::Io,
    }
}
/// What an error number of the system means for a command.
pub(super) fn of_errno(errno: i32) -> BackendError {
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => BackendError::NoSpace,
        Errno::ROFS | Errno::PERM | Errno::BADF => BackendError::ReadOnly,
        Errno::NXIO | Errno::NODEV => BackendError::NotReady,
        Errno::IO | Errno::REMOTEIO | Errno::TIMEDOUT => BackendError::Io,
        _ => BackendError::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_their_meaning() {
        for (errno, means) in [
            (Errno::IO, BackendError::Io),
            (Errno::NOSPC, BackendError::NoSpace),
            (Errno::DQUOT, BackendError::NoSpace),
            (Errno::ROFS, BackendError::ReadOnly),
            (Errno::NXIO, BackendError::NotReady),
            (Errno::INVAL, BackendError::Internal),
        ] {
            assert_eq!(of_errno(errno.raw_os_error()), means);
        }
    }

    #[test]
    fn a_file_is_made_grown_and_had_by_one() {
        let dir = std::env::temp_dir().join(format!("roce-nvmf-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk");
        assert!(matches!(File::open(&path, None, false), Err(FileError::Open { .. })));
        let file = File::open(&path, Some(8192), false).unwrap();
        assert_eq!((file.len(), File::look(&path).unwrap()), (8192, 8192));
        assert!(matches!(File::open(&path, None, false), Err(FileError::InUse(_))));
        assert!(matches!(File::open(&path, None, true), Err(FileError::InUse(_))));
        drop(file);
        assert_eq!(File::open(&path, Some(4096), false).unwrap().len(), 8192, "never cut off");
        let reader = File::open(&path, None, true).unwrap();
        assert_eq!(File::open(&path, None, true).unwrap().len(), reader.len());
        assert!(matches!(File::open(&dir, None, true), Err(FileError::Kind(_))));
        assert_eq!(reader.verify(8192, 1), Err(BackendError::OutOfRange));
        assert_eq!(reader.zero(0, 512, false, false), Err(BackendError::ReadOnly));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
