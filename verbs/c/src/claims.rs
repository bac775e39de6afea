//! Names that one process of a user claims for itself, by locking bytes of a file in the user's directory for sockets.
//!
//! A lock ends with its process and is not inherited by a fork. Nothing is ever written to the file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, Weak};

use verbs::stats;

use crate::process::OfProcess;

/// A name that this process has claimed. The claim ends when the last clone is dropped.
pub(crate) struct Claim {
    _byte: Arc<Byte>,
}

/// A locked byte of the file.
struct Byte {
    at: i64,
    file: Arc<File>,
}

impl Drop for Byte {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock();
        // Another thread may have claimed the name again, with the same lock, before this thread took the mutex.
        if claims.bytes.get(&self.at).is_some_and(|byte| core::ptr::eq(byte.as_ptr(), self)) {
            claims.bytes.remove(&self.at);
            change(&self.file, self.at, libc::F_UNLCK);
        }
    }
}

static CLAIMS: OfProcess<Mutex<Claims>> = OfProcess::new();

/// The claims of a process.
#[derive(Default)]
struct Claims {
    /// Opened once for all claims, because closing any descriptor of the file ends every lock that the process has on it (fcntl(2)).
    file: Option<Arc<File>>,
    bytes: HashMap<i64, Weak<Byte>>,
}

/// How many numbers a name can have.
const NUMBERS: u8 = 254;

impl Claim {
    /// Claims a name. This process may have claimed it already. `None` if another process has it.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::at(first(name), true)
    }

    /// Claims the lowest free number of a name; `None` if none is free.
    pub(crate) fn lowest_of(name: &str) -> Option<(u8, Self)> {
        let first = first(name);
        (0..NUMBERS).find_map(|number| Some((number, Self::at(first + i64::from(number), false)?)))
    }

    /// Claims the name at an offset. With `shared`, succeeds also if this process has claimed it already.
    fn at(at: i64, shared: bool) -> Option<Self> {
        let mut claims = CLAIMS.lock();
        if let Some(byte) = claims.bytes.get(&at).and_then(Weak::upgrade) {
            drop(claims); // before `byte`: if that is the last clone, dropping it takes this lock
            return shared.then_some(Self { _byte: byte });
        }
        let file = match &claims.file {
            Some(file) => file.clone(),
            None => {
                let path = stats::runtime_dir().ok()?.join("claims");
                let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
                claims.file.insert(Arc::new(file.ok()?)).clone()
            }
        };
        if !change(&file, at, libc::F_WRLCK) {
            return None;
        }
        let byte = Arc::new(Byte { at, file });
        claims.bytes.insert(at, Arc::downgrade(&byte));
        Some(Self { _byte: byte })
    }
}

/// Whether a claim can be dropped now without waiting for another call.
pub(crate) fn can_be_dropped() -> bool {
    CLAIMS.get().try_lock().is_ok()
}

/// The offset of a name's first byte. If the hashes of two names collide, a claim of one excludes a claim of the other.
fn first(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 16 & 0xffff_ffff) as i64 * 256
}

/// Locks a byte for this process, or unlocks it. Returns `false` if another process has locked it.
fn change(file: &File, at: i64, how: libc::c_int) -> bool {
    // SAFETY: the call reads a structure of ours.
    unsafe {
        let mut range: libc::flock = core::mem::zeroed();
        range.l_type = how as _;
        range.l_whence = libc::SEEK_SET as _;
        range.l_start = at;
        range.l_len = 1;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const range) == 0
    }
}
