//! Checks that memory of the program is mapped with the rights that a region needs, and faults it in.
//!
//! Shards access registered memory directly, so a page that may not be accessed would end the process. Therefore the kernel accesses every
//! page first: it reports a failure as an error and not by a signal. The result is the same as for registration with a NIC: memory that is
//! not mapped, lacks the right or lies beyond the end of its file is refused, and so are mappings of devices.

#![allow(unsafe_code, reason = "system calls on memory that is named by address")]

use std::sync::OnceLock;

use stack::device::racy::kernel::{self, NotMapped};

/// Faults in every page of a range for reading, and if `write` is set also for writing. Changes no content.
///
/// # Errors
/// [`NotMapped`] if a page may not be accessed in this way.
pub(crate) fn populate(addr: u64, len: u64, write: bool) -> Result<(), NotMapped> {
    if len == 0 {
        return Ok(());
    }
    let end = addr.checked_add(len).ok_or(NotMapped)?;
    let start = addr & !(page_size() - 1);
    at_once(start, end, write).or_else(|refused| match knows_the_advice() {
        true => Err(refused),
        false => page_by_page(start, end, write),
    })
}

/// The page size of the system in bytes: 4096 or more.
pub(crate) fn page_size() -> u64 {
    static PAGE_SIZE: OnceLock<u64> = OnceLock::new();
    // SAFETY: returns a number and accesses no memory of ours.
    *PAGE_SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}

/// Faults the range in with one or two system calls, which kernels before Linux 5.14 do not have.
fn at_once(start: u64, end: u64, write: bool) -> Result<(), NotMapped> {
    let advise = |advice| {
        // SAFETY: populating faults pages in as an access would, and changes no content.
        match unsafe { libc::madvise(start as *mut _, (end - start) as usize, advice) } {
            0 => Ok(()),
            _ => Err(NotMapped),
        }
    };
    if write {
        // Before the reads, so that new pages are allocated once.
        advise(libc::MADV_POPULATE_WRITE)?;
    }
    advise(libc::MADV_POPULATE_READ)
}

/// Whether the kernel knows the advice of [`at_once`]. A failure of `at_once` does not tell, because EINVAL also stands for memory without
/// the right.
fn knows_the_advice() -> bool {
    static KNOWS: OnceLock<bool> = OnceLock::new();
    *KNOWS.get_or_init(|| {
        let here = 0_u64;
        let page = &raw const here as u64 & !(page_size() - 1);
        at_once(page, page + 1, true).is_ok()
    })
}

/// Faults the range in with one or two system calls per page.
fn page_by_page(start: u64, end: u64, write: bool) -> Result<(), NotMapped> {
    let mut page = start;
    while page < end {
        if write {
            futex(page, FutexCall::Or)?;
        }
        if kernel::works() {
            // SAFETY: the program registers this memory; the byte is not used.
            unsafe { kernel::read(page, &mut [0]) }?;
        } else {
            // Equivalent, except that it accepts the mapping of a device.
            futex(page, FutexCall::Compare)?;
        }
        // There is no page after the last one of the address space.
        page = page.checked_add(page_size()).unwrap_or(end);
    }
    Ok(())
}

/// The operation that futex(2) performs on a word. The value of the word stays the same.
#[derive(Clone, Copy)]
enum FutexCall {
    /// Reads the word and does not wait.
    Compare,
    /// Sets none of its bits with an atomic instruction: writes the word, without losing a store of another thread.
    Or,
}

/// Makes the kernel access a word at the start of a page. Uses futex(2), which needs no privilege and is permitted in every sandbox.
fn futex(page: u64, call: FutexCall) -> Result<(), NotMapped> {
    const OR_ZERO: u32 = (libc::FUTEX_OP_OR as u32) << 28;
    let (nobody, at_once) = (0_u32, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the kernel checks the address. A thread that waits on the word may be woken, which may happen at any time anyway.
    let result = unsafe {
        match call {
            FutexCall::Compare => libc::syscall(
                libc::SYS_futex,
                page,
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                0,
                &raw const at_once,
            ),
            FutexCall::Or => {
                let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
                libc::syscall(libc::SYS_futex, &raw const nobody, operation, 0, 0_usize, page, OR_ZERO)
            }
        }
    };
    let failed = result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
    if failed { Err(NotMapped) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd;

    use super::*;

    const READ: i32 = libc::PROT_READ;
    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    /// Pages that stay mapped until this is dropped.
    struct Pages {
        at: u64,
        count: u64,
    }

    impl Pages {
        fn map(count: u64, protection: i32, flags: i32, fd: i32) -> Self {
            // SAFETY: maps new memory.
            let at = unsafe {
                libc::mmap(core::ptr::null_mut(), (count * page_size()) as usize, protection, flags, fd, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            Self { at: at as u64, count }
        }
        /// Maps anonymous memory with one page for each protection.
        fn of(protections: &[i32]) -> Self {
            let pages = Self::map(protections.len() as u64, libc::PROT_NONE, ANONYMOUS, -1);
            for (page, protection) in (pages.at..).step_by(page_size() as usize).zip(protections) {
                // SAFETY: memory of this test.
                let changed = unsafe { libc::mprotect(page as *mut _, page_size() as usize, *protection) };
                assert_eq!(changed, 0);
            }
            pages
        }
        fn len(&self) -> u64 {
            self.count * page_size()
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: mapped by `map`, and nothing refers to it any more.
            unsafe { libc::munmap(self.at as *mut _, self.len() as usize) };
        }
    }

    /// Creates a file of two pages and a byte.
    fn file(write: bool) -> File {
        let path = std::env::temp_dir().join(format!("roce-populate-{}-{write}", std::process::id()));
        File::create(&path).unwrap().write_all(&vec![7; 2 * page_size() as usize + 1]).unwrap();
        let file = File::options().read(true).write(write).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    /// The address of the kernel's clock data: a mapping without memory that every process may read. `None` if there is none.
    fn device() -> Option<u64> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("[vvar"))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    }

    // Goal: the rights to read and to write are checked by the system call of new kernels and by those of old kernels, with the same
    // result.
    #[test]
    #[cfg_attr(miri, ignore = "the kernel accesses the memory")]
    fn every_mapping_without_the_right_is_refused_by_every_kernel() {
        let (whole, beyond) = (2 * page_size() + 1, 3 * page_size() + 1);
        let (rw, ro) = (file(true), file(false));
        let shared = Pages::map(5, BOTH, libc::MAP_SHARED, rw.as_raw_fd());
        let shared_to_read = Pages::map(5, READ, libc::MAP_SHARED, ro.as_raw_fd());
        let private = Pages::map(5, BOTH, libc::MAP_PRIVATE, ro.as_raw_fd());
        let plain = Pages::of(&[BOTH; 4]);
        let to_read = Pages::of(&[READ; 2]);
        let no_guard = Pages::of(&[BOTH, READ, BOTH, READ]);
        let guard = Pages::of(&[BOTH, libc::PROT_NONE, BOTH]);
        let guard_last = Pages::of(&[BOTH, libc::PROT_NONE]);
        let to_write = Pages::of(&[libc::PROT_WRITE]);
        #[rustfmt::skip]
        let mut table = vec![
            ("anonymous memory",                  plain.at,                     plain.len(),         true,  true),
            ("a part of pages",                   plain.at + 7,                 page_size(),         true,  true),
            ("one byte",                          plain.at + page_size() - 1,   1,                   true,  true),
            ("no byte, nowhere",                  8,                            0,                   true,  true),
            ("memory to be read",                 to_read.at,                   to_read.len(),       true,  false),
            ("parts with unlike rights",          no_guard.at,                  no_guard.len(),      true,  false),
            ("the last byte may not be written",  no_guard.at,                  page_size() + 1,     true,  false),
            ("a page before that",                no_guard.at,                  page_size(),         true,  true),
            ("a guard page in the middle",        guard.at,                     guard.len(),         false, false),
            ("a guard page at the end",           guard_last.at,                page_size() + 1,     false, false),
            ("the page before a guard page",      guard_last.at,                page_size(),         true,  true),
            ("memory to be written alone",        to_write.at,                  page_size(),         false, false),
            ("a shared file",                     shared.at,                    whole,               true,  true),
            ("beyond the end of a shared file",   shared.at,                    beyond,              false, false),
            ("a file that may be read",           shared_to_read.at,            whole,               true,  false),
            ("a private copy of a file",          private.at,                   whole,               true,  true),
            ("beyond the end of a private copy",  private.at,                   beyond,              false, false),
            ("nothing is mapped",                 8,                            1,                   false, false),
            ("around the end of the addresses",   u64::MAX - 3,                 9,                   false, false),
            ("the end of the addresses",          u64::MAX - 9,                 9,                   false, false),
        ];
        match device() {
            Some(at) => table.push(("a device", at, 1, false, false)),
            None => println!("SKIPPED the mapping of a device: this kernel shows none"),
        }
        for (what, addr, len, readable, writable) in table {
            for (write, may) in [(false, readable), (true, writable)] {
                assert_eq!(populate(addr, len, write).is_ok(), may, "{what}, write {write}");
                let (Some(end), true) = (addr.checked_add(len), len > 0) else { continue };
                let start = addr & !(page_size() - 1);
                assert_eq!(page_by_page(start, end, write).is_ok(), may, "{what}, write {write}, by pages");
            }
        }
    }

    // Goal: if the kernel cannot copy within a process, pages are checked in another way, with the same result.
    #[test]
    #[cfg_attr(miri, ignore = "the kernel accesses the memory")]
    fn a_word_is_accessed_and_stays_as_it_is() {
        let pages = Pages::of(&[BOTH, READ, libc::PROT_NONE]);
        let at = |page: u64| pages.at + page * page_size();
        let word = |page: u64| core::ptr::with_exposed_provenance_mut::<u32>(at(page) as usize);
        for value in [0, 1, u32::MAX] {
            // SAFETY: memory of this test.
            unsafe { word(0).write_volatile(value) };
            for call in [FutexCall::Compare, FutexCall::Or] {
                assert_eq!(futex(at(0), call), Ok(()));
                // SAFETY: as above.
                assert_eq!(unsafe { word(0).read_volatile() }, value);
            }
        }
        assert_eq!((futex(at(1), FutexCall::Compare), futex(at(1), FutexCall::Or)), (Ok(()), Err(NotMapped)));
        let nowhere = (futex(at(2), FutexCall::Compare), futex(at(2), FutexCall::Or));
        assert_eq!(nowhere, (Err(NotMapped), Err(NotMapped)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the kernel accesses the memory")]
    fn refusals_of_memory_are_told_from_those_of_the_advice() {
        // Older kernels may have the advice too, by a backport.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(knows_the_advice() || version < (5, 14), "{release}");
    }
}
