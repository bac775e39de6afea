//! Sockets over RDMA are not supported. Only `rpoll` and `repoll_*` work: programs call them with other descriptors.

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

/// As poll(2): no descriptor is that of a socket over RDMA.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: what C promises for poll.
    unsafe { poll(fds, count, timeout) }
}

/// As epoll_create1(2).
#[unsafe(no_mangle)]
extern "C" fn repoll_create(flags: c_int) -> c_int {
    // SAFETY: a number, of which one flag is passed on.
    unsafe { libc::epoll_create1(flags & libc::EPOLL_CLOEXEC) }
}

/// As epoll_ctl(2), but the error number is what it returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn repoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: what C promises for epoll_ctl.
    match unsafe { libc::epoll_ctl(epoll, operation, fd, event) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// As epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn repoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: what C promises for epoll_wait.
    unsafe { epoll_pwait(epoll, events, max, timeout, core::ptr::null()) }
}

/// Functions that refuse, whatever they are given.
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
