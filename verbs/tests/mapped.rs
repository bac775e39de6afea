//! Memory that a program maps and unmaps at any time, for the tests of on-demand regions.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;

use verbs::{Access, Mr, Pd};

/// Pages at addresses that no other allocation gets. Regions on them are [on demand](Access::ON_DEMAND).
pub struct Mapped {
    at: *mut c_void,
    len: usize,
}

fn pages(at: *mut c_void, len: usize, protection: i32, flags: i32) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: new pages, or pages in place of those of a `Mapped`, to which no references exist.
    let got = unsafe { libc::mmap(at, len, protection, flags, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    got
}

impl Mapped {
    pub fn new(len: usize) -> Self {
        let at = pages(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, 0);
        Self { at, len }
    }
    pub fn addr(&self) -> u64 {
        self.at as u64
    }
    fn range(&self, range: &Range<usize>) -> *mut c_void {
        assert!(range.start <= range.end && range.end <= self.len);
        self.at.wrapping_byte_add(range.start)
    }

    /// Registers all of the pages, mapped or not.
    pub fn register(&self, pd: &Pd, access: Access) -> Mr {
        assert!(access.contains(Access::ON_DEMAND));
        // SAFETY: the pages need not stay mapped, because no test calls a method of the region that accesses them; no references exist.
        unsafe { pd.reg_mr_raw(self.at.cast(), self.len, access) }.unwrap()
    }

    /// Makes the range inaccessible, as if nothing were mapped there; no other thread of the tests is given the addresses.
    pub fn unmap(&self, range: Range<usize>) {
        pages(self.range(&range), range.len(), libc::PROT_NONE, libc::MAP_FIXED | libc::MAP_NORESERVE);
    }
    /// Maps new pages, filled with zeros.
    pub fn map(&self, range: Range<usize>) {
        pages(self.range(&range), range.len(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED);
    }
    /// Makes all of the pages read-only.
    pub fn protect(&self) {
        // SAFETY: pages of this object.
        assert_eq!(unsafe { libc::mprotect(self.at, self.len, libc::PROT_READ) }, 0);
    }

    /// Copies bytes while no shard runs: the test drives the shards itself.
    pub fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        // SAFETY: the test has the range mapped, and nothing else accesses it now.
        unsafe { ptr::copy_nonoverlapping(self.range(&range).cast(), out.as_mut_ptr(), out.len()) };
        out
    }
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(&(offset..offset + bytes.len()));
        // SAFETY: as for `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: pages of this object; accesses of a region that still refers to them fail.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
