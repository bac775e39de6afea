//! Connection management, and sockets over it: calls that exist so that programs load, and refuse with `ENOSYS`.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use crate::errno::{self, Errno};

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

refuse! { *mut c_void, null_mut(); rdma_create_event_channel rdma_get_devices }

refuse! { *const c_char, c"unknown".as_ptr(); rdma_event_str }

refuse! { c_int, -1;
    raccept
    rbind
    rclose
    rconnect
    rdma_accept
    rdma_ack_cm_event
    rdma_bind_addr
    rdma_connect
    rdma_create_ep
    rdma_create_id
    rdma_create_qp
    rdma_create_qp_ex
    rdma_create_srq
    rdma_create_srq_ex
    rdma_destroy_ep
    rdma_destroy_event_channel
    rdma_destroy_id
    rdma_destroy_qp
    rdma_destroy_srq
    rdma_disconnect
    rdma_freeaddrinfo
    rdma_free_devices
    rdma_getaddrinfo
    rdma_get_cm_event
    rdma_get_dst_port
    rdma_get_request
    rdma_get_src_port
    rdma_join_multicast
    rdma_leave_multicast
    rdma_listen
    rdma_migrate_id
    rdma_notify
    rdma_reject
    rdma_resolve_addr
    rdma_resolve_route
    rdma_set_option
    rfcntl
    rgetpeername
    rgetsockname
    rgetsockopt
    riomap
    riounmap
    riowrite
    rlisten
    rpoll
    rread
    rreadv
    rrecv
    rrecvfrom
    rrecvmsg
    rselect
    rsend
    rsendmsg
    rsendto
    rsetsockopt
    rshutdown
    rsocket
    rwrite
    rwritev
    rdma_join_multicast_ex
    rdma_establish
    rdma_init_qp_attr
    rdma_get_remote_ece
    rdma_reject_ece
    rdma_set_local_ece
}
