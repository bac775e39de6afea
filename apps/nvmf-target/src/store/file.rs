//! A namespace in a file or on a block device.
//!
//! Before each command, a core calls [`look_before`](File::look_before). It may let the kernel read and write asynchronously
//! ([`Ring`](super::Ring)). All other work blocks, and [`Workers`](super::Workers) do it.
//!
//! The kernel reports a failed write-back to only one caller of fsync, and then marks the pages as clean. So only one fsync of a file runs
//! at a time, and the first one that fails marks the storage as [failed](Health).
//!
//! Other programs may truncate the file although it is locked, because the lock is advisory. So the length is checked before commands: at
//! most once a millisecond, and always before a write up to the end of the file, which would make a truncated file as long as before.

use std::fs::File as Handle;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmf::BackendError;
use nvmf::sync::lock;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use verbs::{Mr, VerbsError};

use super::aligned::Aligned;
use super::device;
use super::health::Health;
use super::open::{self, FileError, Locked, Opened, Opening};
use super::work::{BlockingStorage, Work};

/// Bytes that are compared, verified, or written as zeros at a time.
const PIECE: usize = 256 << 10;
/// Nanoseconds between two checks of a file's length. At this interval they have no measurable cost.
const LOOK_NS: u64 = 1_000_000;

/// A file or block device that holds the blocks of a namespace.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: Locked,
    health: Health,
    /// The size that is served, in bytes. A file with fewer bytes was truncated.
    served: AtomicU64,
    /// When the length was last checked, in nanoseconds.
    looked_ns: AtomicU64,
    /// How many flushes were requested so far.
    flushes: AtomicU64,
    /// How many of them are done. The holder of the lock calls fsync.
    flushed: Mutex<u64>,
    /// Whether it is a file, which can be truncated, and not a device.
    is_file: bool,
    /// Whether it can grow: it is a file that may be written.
    grows: bool,
    /// The granularity of deallocation in bytes; deallocated bytes read as zeros. `None` if it cannot deallocate.
    deallocates: Option<u32>,
    direct: bool,
}

impl File {
    /// Opens a file and locks it. With `size` (in bytes) the file is created, or grown to that size if it is smaller.
    ///
    /// # Errors
    /// If that is not possible, or the file is in use.
    pub fn open(path: &Path, size: Option<u64>, read_only: bool) -> Result<Self, FileError> {
        Self::open_with(path, &Opening { size, read_only, ..Opening::default() })
    }
    /// As [`open`](Self::open), with all options.
    ///
    /// # Errors
    /// If that is not possible, or the file is in use.
    pub fn open_with(path: &Path, how: &Opening) -> Result<Self, FileError> {
        let Opened { file, kind, len, direct } = open::open(path, how)?;
        let grows = kind.is_file() && !how.read_only;
        let deallocates = match (how.read_only, grows) {
            (true, _) => None,
            (false, true) => {
                // Punching a hole after the end changes nothing, and shows whether the file system supports holes.
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let block = file.metadata().map_or(4096, |file| file.blksize());
                fallocate(&*file, hole, len, 4096).ok().and(u32::try_from(block).ok())
            }
            (false, false) => device::deallocates(&file),
        };
        Ok(Self {
            path: path.into(),
            file,
            health: Health::default(),
            served: AtomicU64::new(len),
            looked_ns: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            flushed: Mutex::default(),
            is_file: kind.is_file(),
            grows,
            deallocates,
            direct,
        })
    }
    /// A dry run of [`open_with`](Self::open_with): creates and grows nothing. Returns the length that the file would have, in bytes, and
    /// the locked file.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub fn open_dry(path: &Path, how: &Opening) -> Result<(u64, Locked), FileError> {
        open::open_dry(path, how).map(|opened| (opened.len, opened.file))
    }

    /// Its health.
    pub fn health(&self) -> &Health {
        &self.health
    }
    /// Sets the size that is served, in bytes.
    pub fn serve(&self, bytes: u64) {
        self.served.store(bytes, Ordering::Relaxed);
    }
    /// Call this before each command, with the time in nanoseconds: fails if the storage has failed or the file was truncated. `end` is the
    /// offset where a write ends; `None` for other commands. A write up to the end of the file always checks the length, other commands at
    /// most once a millisecond.
    ///
    /// # Errors
    /// [`BackendError::Lost`]; another error if the length cannot be read.
    #[inline]
    pub fn look_before(&self, now_ns: u64, end: Option<u64>) -> Result<(), BackendError> {
        self.health.check()?;
        let at_the_end = end.is_some_and(|end| end >= self.served.load(Ordering::Relaxed));
        if !at_the_end && now_ns < self.looked_ns.load(Ordering::Relaxed).saturating_add(LOOK_NS) {
            return Ok(());
        }
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        self.check_length()
    }
    /// Fails if the file was truncated.
    ///
    /// # Errors
    /// [`BackendError::Lost`]; another error if the length cannot be read.
    pub fn check_length(&self) -> Result<(), BackendError> {
        if !self.is_file {
            return Ok(());
        }
        let has = rustix::fs::fstat(self.handle()).map_err(|e| of_errno(e.raw_os_error()))?.st_size as u64;
        let served = self.served.load(Ordering::Relaxed);
        if has >= served {
            return Ok(());
        }
        Err(self.health.fail(self.path.display(), format_args!("it was cut to {has} of {served} bytes")))
    }
    /// The error for a read that found the end of the file within the namespace.
    pub(super) fn ended(&self) -> BackendError {
        self.check_length().err().unwrap_or(BackendError::OutOfRange)
    }

    /// The open file.
    pub(super) fn handle(&self) -> &Handle {
        &self.file
    }
    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The current size in bytes.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn size(&self) -> io::Result<u64> {
        self.handle().seek(SeekFrom::End(0))
    }
    /// Grows the file to `size` bytes, if it is smaller. Returns its size afterwards, in bytes.
    ///
    /// # Errors
    /// If it cannot grow to that size.
    pub fn grow(&self, size: u64) -> io::Result<u64> {
        let now = self.size()?;
        if now >= size {
            return Ok(now);
        }
        if !self.grows {
            let what = format!("it has {now} bytes and cannot grow to {size}");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        // A truncated file must not grow, or its lost bytes would read as zeros.
        self.check_length().map_err(|e| io::Error::other(e.to_string()))?;
        self.file.set_len(size)?;
        Ok(size)
    }
    /// Whether I/O is direct: then memory must be aligned.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct
    }
    /// The granularity of deallocation in bytes; deallocated bytes read as zeros. `None` if it cannot deallocate.
    pub fn deallocates(&self) -> Option<u32> {
        self.deallocates
    }

    /// Reads `len` bytes into a region at `at`. With `fua` the bytes that were read are on stable storage when this returns.
    ///
    /// # Errors
    /// If an I/O error occurs, or the file has become shorter.
    pub fn read(
        &self,
        mut offset: u64,
        to: &Mr,
        at: usize,
        len: usize,
        fua: bool,
    ) -> Result<(), BackendError> {
        let mut range = at..at + len;
        while !range.is_empty() {
            match to.pread(self.handle(), offset, range.clone()).map_err(of_verbs)? {
                0 => return Err(self.ended()),
                n => {
                    range.start += n;
                    offset += n as u64;
                }
            }
        }
        self.flush_if(fua)
    }
    /// Writes `len` bytes from a region at `at`. With `fua` the bytes are on stable storage when this returns.
    ///
    /// # Errors
    /// If an I/O error occurs.
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
            match from.pwrite(self.handle(), offset, range.clone()).map_err(of_verbs)? {
                0 => return Err(BackendError::Io),
                n => {
                    range.start += n;
                    offset += n as u64;
                }
            }
        }
        self.flush_if(fua)
    }
    /// Compares bytes of the file with `len` bytes of a region at `at`. With `fua` the bytes of the file are on stable storage when this
    /// returns.
    ///
    /// # Errors
    /// If the bytes differ, or an I/O error occurs.
    pub fn compare(
        &self,
        offset: u64,
        with: &Mr,
        at: usize,
        len: usize,
        fua: bool,
    ) -> Result<(), BackendError> {
        let mut theirs = vec![0; PIECE.min(len)];
        self.each_piece(offset, len as u64, |done, ours| {
            let theirs = &mut theirs[..ours.len()];
            with.read(at + done as usize, theirs).map_err(|_| BackendError::Internal)?;
            if ours == theirs { Ok(()) } else { Err(BackendError::Mismatch) }
        })?;
        self.flush_if(fua)
    }
    /// Checks that a range can be read, by reading it. With `fua` it is on stable storage when this returns.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn verify(&self, offset: u64, len: u64, fua: bool) -> Result<(), BackendError> {
        self.each_piece(offset, len, |_, _| Ok(()))?;
        self.flush_if(fua)
    }
    fn each_piece(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut piece = Aligned::new(PIECE.min(len as usize));
        let mut done = 0;
        while done < len {
            let n = (len - done).min(PIECE as u64) as usize;
            self.file.read_exact_at(&mut piece[..n], offset + done).map_err(|e| match of_io(&e) {
                BackendError::OutOfRange => self.ended(),
                other => other,
            })?;
            each(done, &piece[..n])?;
            done += n as u64;
        }
        Ok(())
    }
    /// Fills a range with zeros. With `deallocate` its storage is deallocated if that is possible. With `fua` the zeros are on stable
    /// storage when this returns.
    ///
    /// # Errors
    /// If an I/O error occurs.
    pub fn zero(&self, offset: u64, len: u64, fua: bool, deallocate: bool) -> Result<(), BackendError> {
        let how = if deallocate && self.deallocates.is_some() {
            FallocateFlags::PUNCH_HOLE
        } else {
            FallocateFlags::ZERO_RANGE
        };
        match fallocate(self.handle(), how | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => {}
            // The file system or the device does not support the operation.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeros(offset, len)?,
            Err(e) => return Err(of_errno(e.raw_os_error())),
        }
        self.flush_if(fua)
    }
    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        let zeros = Aligned::new(PIECE.min(len as usize));
        let mut done = 0;
        while done < len {
            let n = (len - done).min(PIECE as u64) as usize;
            self.file.write_all_at(&zeros[..n], offset + done).map_err(|e| of_io(&e))?;
            done += n as u64;
        }
        Ok(())
    }
    /// Deallocates a range, which reads as zeros afterwards. Does nothing if that is not possible, which hosts have been told.
    ///
    /// # Errors
    /// If an I/O error occurs.
    pub fn deallocate(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        if self.deallocates.is_some() { self.zero(offset, len, false, true) } else { Ok(()) }
    }
    /// Puts everything that was written on stable storage. Flushes are serialized, and one fsync serves all flushes that wait when it
    /// begins.
    ///
    /// # Errors
    /// If the fsync fails, or one failed before.
    pub fn flush(&self) -> Result<(), BackendError> {
        self.flush_by(|| self.file.sync_data())
    }
    fn flush_by(&self, sync: impl FnOnce() -> io::Result<()>) -> Result<(), BackendError> {
        let mine = self.flushes.fetch_add(1, Ordering::SeqCst) + 1;
        let mut flushed = lock(&self.flushed);
        self.health.check()?;
        if *flushed >= mine {
            return Ok(());
        }
        // The writes of every flush that was requested so far are complete: this fsync makes them stable, too.
        let all = self.flushes.load(Ordering::SeqCst);
        match sync() {
            Ok(()) => *flushed = all,
            Err(e) => {
                let why =
                    format_args!("what was written to it could not be made stable ({e}), and may be lost");
                return Err(self.health.fail(self.path.display(), why));
            }
        }
        Ok(())
    }
    fn flush_if(&self, fua: bool) -> Result<(), BackendError> {
        if fua { self.flush() } else { Ok(()) }
    }
}

impl BlockingStorage for File {
    fn size(&self) -> std::io::Result<u64> {
        File::size(self)
    }
    fn deallocates(&self) -> Option<u32> {
        File::deallocates(self)
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        match work {
            Work::Read { offset, to, fua } => self.read(*offset, &to.mr, to.at, to.len, *fua),
            Work::Write { offset, from, fua } => self.write(*offset, &from.mr, from.at, from.len, *fua),
            Work::Compare { offset, with, fua } => self.compare(*offset, &with.mr, with.at, with.len, *fua),
            Work::Verify { offset, len, fua } => self.verify(*offset, *len, *fua),
            Work::Zero { offset, len, fua, deallocate } => self.zero(*offset, *len, *fua, *deallocate),
            Work::Deallocate(ranges) => ranges.iter().try_for_each(|&(at, len)| self.deallocate(at, len)),
            Work::Flush => self.flush(),
        }
    }
    fn health(&self) -> &Health {
        File::health(self)
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
/// The error of a command for an errno.
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
    fn a_file_is_created_and_grown_and_has_one_writer() {
        let dir = std::env::temp_dir().join(format!("roce-nvmf-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk");
        let size = |file: File| file.size().unwrap();
        assert!(matches!(File::open(&path, None, false), Err(FileError::Open { .. })));
        let file = File::open(&path, Some(8192), false).unwrap();
        assert_eq!(file.size().unwrap(), 8192);
        assert!(matches!(File::open(&path, None, false), Err(FileError::InUse(_))));
        assert!(matches!(File::open(&path, None, true), Err(FileError::InUse(_))));
        assert_eq!((file.grow(4096).unwrap(), file.grow(16384).unwrap()), (8192, 16384));
        drop(file);
        assert_eq!(size(File::open(&path, Some(4096), false).unwrap()), 16384, "never cut off");
        let reader = File::open(&path, None, true).unwrap();
        assert_eq!(size(File::open(&path, None, true).unwrap()), reader.size().unwrap());
        assert_eq!(reader.verify(16384, 1, false), Err(BackendError::OutOfRange));
        assert_eq!(reader.zero(0, 512, false, false), Err(BackendError::ReadOnly));
        assert!(reader.grow(1 << 20).unwrap_err().to_string().contains("16384"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    fn scratch(name: &str, bytes: u64) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("roce-nvmf-{name}-{}", std::process::id()));
        let file = File::open(&path, Some(bytes), false).unwrap();
        (path, file)
    }

    // Goal: a truncated file is marked as failed, whichever command finds it, and stays failed when it is as long as before.
    #[test]
    fn a_file_that_was_cut_has_failed_and_stays_so() {
        let (path, file) = scratch("cut", 1 << 20);
        let cut = || std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(file.look_before(0, None), Ok(()));
        cut();
        assert_eq!(file.look_before(1, Some(8192)), Ok(()), "it was checked a moment ago");
        assert_eq!(
            file.look_before(1, Some(1 << 20)),
            Err(BackendError::Lost),
            "a write to the end always checks"
        );
        file.file.set_len(1 << 20).unwrap();
        assert_eq!(file.look_before(LOOK_NS, None), Err(BackendError::Lost), "it is as long as before");
        assert_eq!(file.flush(), Err(BackendError::Lost));
        assert!(file.health.why().unwrap().contains("4096 of 1048576"), "{:?}", file.health.why());
        file.health.restore();
        assert_eq!(file.look_before(LOOK_NS, None), Ok(()));
        cut();
        assert_eq!(file.verify(8192, 512, false), Err(BackendError::Lost), "a read found it");
        file.health.restore();
        cut();
        assert!(file.grow(2 << 20).is_err(), "that is no way to repair it");
        assert_eq!(file.look_before(3 * LOOK_NS, None), Err(BackendError::Lost));
        file.health.restore();
        file.serve(4096);
        assert_eq!(file.look_before(5 * LOOK_NS, None), Ok(()), "the rest is not served any more");
        std::fs::remove_file(&path).unwrap();
    }

    // Goal: the kernel reports a failed write-back only once. All flushes that run at the same time, and all later ones, fail, too.
    #[test]
    fn a_flush_that_failed_fails_all_that_wait_and_all_that_follow() {
        let (path, file) = scratch("flush", 4096);
        assert_eq!(file.flush(), Ok(()));
        let begun = std::sync::Barrier::new(2);
        let results: Vec<_> = std::thread::scope(|threads| {
            let first = threads.spawn(|| {
                file.flush_by(|| {
                    begun.wait();
                    // Two more flushes were requested meanwhile.
                    while file.flushes.load(Ordering::SeqCst) < 4 {
                        std::thread::yield_now();
                    }
                    Err(io::Error::from_raw_os_error(Errno::IO.raw_os_error()))
                })
            });
            begun.wait();
            let others = [threads.spawn(|| file.flush()), threads.spawn(|| file.flush())];
            std::iter::once(first).chain(others).map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results, [Err(BackendError::Lost); 3]);
        assert_eq!(file.flush(), Err(BackendError::Lost), "the kernel would say that all is well");
        file.health.restore();
        assert_eq!(file.flush(), Ok(()));
        std::fs::remove_file(&path).unwrap();
    }

    // Goal: all flushes that wait for a running one need only one more fsync, not one each.
    #[test]
    fn flushes_that_wait_are_done_together() {
        let (path, file) = scratch("together", 4096);
        let (begun, calls) = (std::sync::Barrier::new(2), AtomicU64::new(0));
        let counted = || {
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                file.flush_by(|| {
                    begun.wait();
                    while file.flushes.load(Ordering::SeqCst) < 9 {
                        std::thread::yield_now();
                    }
                    counted()
                })
            });
            begun.wait();
            for _ in 0..8 {
                threads.spawn(|| file.flush_by(counted));
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        std::fs::remove_file(&path).unwrap();
    }

    // Goal: a file that was dropped can be opened at once, even while a child process that another thread started still has its descriptor.
    #[test]
    fn a_file_is_free_when_a_child_still_has_its_descriptor() {
        let path = std::env::temp_dir().join(format!("roce-nvmf-child-{}", std::process::id()));
        let file = File::open(&path, Some(4096), false).unwrap();
        let of_child = file.handle().try_clone().unwrap();
        drop(file);
        drop(File::open(&path, None, false).unwrap());
        drop(of_child);
        std::fs::remove_file(&path).unwrap();
    }
}
