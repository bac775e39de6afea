//! Connection management, as librdmacm has it: `rdma_*` over [`verbs::rdma_cm`].
//!
//! | what | where |
//! |---|---|
//! | addresses of sockets; names | `addr`, `info` |
//! | event channels and waiting; events | `channel`, `event` |
//! | identifiers: creating, binding, resolving, listening, options | `id` |
//! | queue pairs of identifiers, connections, groups | `qp`, `connect`, `multicast` |
//! | endpoints: identifiers with everything | `endpoint` |
//! | the context that `id->verbs` names | `device` |
//! | sockets over RDMA, which are not supported | `rsocket` |
//!
//! In [`verbs`] every identifier here has an event channel. One that C made without a channel is *synchronous*: it has a channel of
//! its own, and its calls wait for their event there and leave it in `id->event`, as in librdmacm.
//!
//! Calls that may wait are `extern "C-unwind"`, and nothing in them needs to be dropped while they wait: a thread can be cancelled
//! there, and is then unwound.

mod addr;
mod channel;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod info;
mod multicast;
mod qp;
mod rsocket;

use core::ffi::c_int;

use crate::errno::Result;
use crate::guard::minus_one;

/// For calls that return 0, or -1 and set `errno`: all of librdmacm's.
fn zero(call: impl FnOnce() -> Result<()>) -> c_int {
    minus_one(|| call().map(|()| 0))
}
