//! Connection management, as librdmacm has it: `rdma_*` over [`verbs::rdma_cm`].
//!
//! A file uses those of its own row and of the rows above it:
//!
//! | what | where |
//! |---|---|
//! | addresses of sockets; names | `addr`, `info` |
//! | the context that `id->verbs` names; event channels | `device`, `channel` |
//! | identifiers and their public fields | `id` |
//! | queue pairs of identifiers | `qp` |
//! | events, and calls that wait for them | `event`, `sync` |
//! | making and ending identifiers; addresses, options, connections, groups | `create`, `resolve`, `option`, `connect`, `multicast` |
//! | endpoints: identifiers with everything | `endpoint` |
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
mod create;
mod device;
mod endpoint;
mod event;
mod id;
mod info;
mod multicast;
mod option;
mod qp;
mod resolve;
mod rsocket;
mod sync;
