//! Sockets over RDMA are not supported. Only `rpoll` and `repoll_*` work, because programs call them with other descriptors too.

use core::ffi::c_int;

use crate::errno::{self, Errno};
use crate::wait::poll;

unsafe extern "C-unwind" {
    // epoll_wait(2) would not be cancelled here (`uncancelled.c`).
    fn epoll_pwait(
        epoll: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Calls poll(2), because no descriptor is a socket over RDMA.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of poll(2).
    unsafe { poll(fds, count, timeout) }
}

/// Calls epoll_create1(2).
#[unsafe(no_mangle)]
extern "C" fn repoll_create(flags: c_int) -> c_int {
    // SAFETY: passes a number, of which only one flag is used.
    unsafe { libc::epoll_create1(flags & libc::EPOLL_CLOEXEC) }
}

/// Calls epoll_ctl(2), but returns the error number.
#[unsafe(no_mangle)]
unsafe extern "C" fn repoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller keeps the contract of epoll_ctl(2).
    match unsafe { libc::epoll_ctl(epoll, operation, fd, event) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// Calls epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn repoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of epoll_wait(2).
    unsafe { epoll_pwait(epoll, events, max, timeout, core::ptr::null()) }
}

/// Defines functions that fail for any arguments.
macro_rules! refuse {
    ($result:ty, $value:expr; $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                errno::set(Errno(libc::ENOSYS));
                $value
            }
        )*
    };
}

refuse! { c_int, -1;
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riounmap rlisten rselect rsetsockopt rshutdown rsocket
}

refuse! { isize, -1;
    riowrite rread rreadv rrecv rrecvfrom rrecvmsg rsend rsendmsg rsendto rwrite rwritev
}

refuse! { libc::off_t, -1; riomap }
