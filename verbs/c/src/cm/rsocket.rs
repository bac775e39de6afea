//! Sockets over RDMA are not supported. Only `rpoll` works: programs call it with other descriptors.

use core::ffi::c_int;

use crate::errno::{self, Errno};

unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// As poll(2): no descriptor is that of a socket over RDMA.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: what C promises for poll.
    unsafe { poll(fds, count, timeout) }
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
