//! Waiting in a C function, where the thread may be cancelled.
//!
//! pthread_cancel(3) unwinds a thread that waits. Therefore the stack frames between C and the wait own nothing that must be dropped, may
//! be unwound (`C-unwind`), and are not inside a guard, which would end the process (`guard`).

use core::ffi::c_int;

use crate::errno::{self, Errno, Result, fail};
use crate::guard::uncancelled;

unsafe extern "C-unwind" {
    /// The only cancellation point of the library: see `uncancelled.c`.
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Calls poll(2). The thread may be cancelled in it.
///
/// # Safety
/// As poll(2).
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(crate) unsafe extern "C-unwind" fn poll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let ms = i64::from(timeout_ms);
    let time = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let timeout = if ms < 0 { core::ptr::null() } else { &raw const time };
    // SAFETY: as the caller promises; the timeout is only read, and no signal mask is given.
    unsafe { ppoll(fds, count, timeout, core::ptr::null()) }
}

/// The result of a check by a call that may have to wait.
pub(crate) enum Found {
    /// The call has found what it waits for and returns.
    Done,
    /// Not yet. The descriptor becomes readable when there may be something.
    Nothing(c_int),
}

/// Calls `look` until it finds something, and waits between the calls. Returns 0, or -1 with `errno` if `look` fails, a signal handler ran,
/// or the descriptor is non-blocking (`O_NONBLOCK`).
#[inline(always)]
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(crate) extern "C-unwind" fn until<A: Copy>(look: fn(A) -> Result<Found>, at: A) -> c_int {
    loop {
        let fd = match uncancelled(|| look(at)) {
            Ok(Found::Done) => return 0,
            Ok(Found::Nothing(fd)) if !does_not_block(fd) => fd,
            Ok(Found::Nothing(_)) => return fail(Errno(libc::EAGAIN)),
            Err(error) => return fail(error),
        };
        let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: passes one structure of ours.
        if unsafe { poll(&raw mut wanted, 1, -1) } < 0 && failed_for_good() {
            return -1;
        }
    }
}

/// Whether the failure of `poll` must be reported: not EINTR, or EINTR while any signal has a handler without SA_RESTART. In the stock
/// libraries these functions wait in read(2), which the kernel resumes after a handler with SA_RESTART; it never resumes poll(2).
#[cold]
fn failed_for_good() -> bool {
    let last = std::io::Error::last_os_error();
    if last.kind() != std::io::ErrorKind::Interrupted {
        return true;
    }
    (1..=64).any(|signal| {
        // SAFETY: the call fills in a structure of numbers and changes nothing.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction != libc::SIG_DFL
                && action.sa_sigaction != libc::SIG_IGN
                && action.sa_flags & libc::SA_RESTART == 0
        }
    }) && {
        errno::set(Errno(libc::EINTR));
        true
    }
}

/// Whether a descriptor is non-blocking.
fn does_not_block(fd: c_int) -> bool {
    // SAFETY: only reads the flags of the descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Makes a descriptor of ours blocking, as descriptors of the kernel are until the program changes it.
pub(crate) fn let_block(fd: c_int) {
    // SAFETY: only changes the flags of the descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) & !libc::O_NONBLOCK) };
}
