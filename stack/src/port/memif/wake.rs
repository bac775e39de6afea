#![allow(unsafe_code)]
//! Wakes a peer that waits for an event; the peer can never block the caller.
//!
//! Both ends have the same eventfd(2) open. A peer may make it blocking and fill it, so that a write(2) would wait for that peer. So this
//! module does not write: the kernel itself adds to an eventfd when an asynchronous read (AIO) completes, and never blocks to do so. The
//! read is from an empty file of this process, and completes at once. Descriptors that are not an eventfd are refused.

use rustix::fs::MemfdFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// An AIO request, `struct iocb` of `<linux/aio_abi.h>`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    /// `key` and `rw_flags`, whose order depends on the byte order; both are zero.
    zero: u64,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}
const _: () = assert!(size_of::<Request>() == 64);

/// An AIO result, `struct io_event` of `<linux/aio_abi.h>`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done([u64; 4]);

/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: signal `event_fd`.
const SIGNAL: u32 = 1;
/// Capacity of the AIO context, in requests.
const REQUESTS: usize = 4;

/// Whether it is an eventfd(2). Other descriptors of a peer are never waited on: the wait itself could block on the process that serves the
/// descriptor (FUSE).
pub fn is_event(fd: &OwnedFd) -> bool {
    rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), [])
        .is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]")
}

/// An AIO context that adds to eventfds.
#[derive(Debug)]
pub struct Waker {
    context: libc::c_ulong,
    empty: OwnedFd,
}

impl Waker {
    /// Makes an AIO context.
    ///
    /// # Errors
    /// Those of memfd_create(2) and io_setup(2): asynchronous requests are not permitted, or there are too many; no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let empty = rustix::fs::memfd_create("roce-wake", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes one word, `context`, which is a local variable.
        match unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) } {
            0 => Ok(Self { context, empty }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds 1 to an eventfd, however full it is.
    ///
    /// # Errors
    /// `event` is not an eventfd.
    pub fn wake(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        let (mut done, mut byte) = ([Done::default(); REQUESTS], 0u8);
        let request = Request {
            opcode: READ,
            fd: self.empty.as_raw_fd() as u32,
            buffer: (&raw mut byte).expose_provenance() as u64,
            bytes: 1,
            flags: SIGNAL,
            event_fd: event.as_raw_fd() as u32,
            ..Request::default()
        };
        let requests = [&raw const request];
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the request and its buffer are local variables. The read is complete when the call returns: it reads a file in memory
        // that has no bytes.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, requests.as_ptr()) };
        let result = if submitted == 1 { Ok(()) } else { Err(io::Error::last_os_error()) };
        // SAFETY: fetches at most `REQUESTS` results, for which `done` has room, and waits for none; the kernel only reads the time.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                REQUESTS,
                done.as_mut_ptr(),
                &raw const no_time,
            )
        };
        result
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: the context was made by `new`, and no request of it is in progress. A forked child has no such context, and the call
        // fails there.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sync::eventfd::EventFd;
    use rustix::fs::OFlags;
    use std::os::fd::AsFd;

    fn count(event: &EventFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(event, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    #[test]
    fn a_full_event_that_blocks_does_not_block_the_waker() {
        // Goal: the waker does not block, whatever a peer does to the eventfd that it shares: it makes the eventfd blocking and fills it.
        let mut waker = Waker::new().unwrap();
        let event = EventFd::new().unwrap();
        waker.wake(event.as_fd()).unwrap();
        assert_eq!(count(&event), 1);
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        for _ in 0..100 {
            waker.wake(event.as_fd()).unwrap();
        }
        rustix::fs::fcntl_setfl(&event, OFlags::NONBLOCK).unwrap();
        assert!(count(&event) >= u64::MAX - 1);
        assert_eq!(count(&event), 0);
        waker.wake(event.as_fd()).unwrap();
        assert_eq!(count(&event), 1, "it works on");
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let mut waker = Waker::new().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let file = std::fs::File::open("/dev/zero").unwrap();
        for fd in [read.as_fd(), write.as_fd(), file.as_fd()] {
            assert!(waker.wake(fd).is_err());
        }
    }
}
