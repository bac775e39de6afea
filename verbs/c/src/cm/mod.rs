//! Connection management as in librdmacm: `rdma_*` over [`verbs::rdma_cm`].
//!
//! A file uses only files of its own row and of the rows above it:
//!
//! | what | where |
//! |---|---|
//! | socket addresses; names | `addr`, `info` |
//! | the context for `id->verbs`; event channels | `device`, `channel` |
//! | identifiers and their public fields | `id` |
//! | queue pairs of identifiers | `qp` |
//! | events, and waiting for them | `event`, `sync` |
//! | creating and destroying identifiers; addresses, options, connections, groups | `create`, `resolve`, `option`, `connect`, `multicast` |
//! | endpoints: identifiers created with a queue pair in one call | `endpoint` |
//! | sockets over RDMA, which are not supported | `rsocket` |
//!
//! In [`verbs`] every identifier created here has an event channel. An identifier that C creates without a channel is *synchronous*: it has
//! a channel of its own, on which its calls wait for their event. They leave the event in `id->event`, as in librdmacm.
//!
//! Functions that may wait are `extern "C-unwind"`, because a thread that is cancelled there is unwound. They own nothing that needs to be
//! dropped during the wait.

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
