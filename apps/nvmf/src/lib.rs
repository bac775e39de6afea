//! NVMe over Fabrics controllers, without I/O.
//!
//! A [`Target`] has the configuration: ports, subsystems, namespaces, hosts. For each connection of a host it makes a
//! [`Queue`]. Command capsules go into the queue; for each it says by a [`Step`] what the program has to do: fetch bytes of
//! the host, ask a namespace's storage, write bytes to the host, send the response. The crate reads no clock, starts no
//! thread, moves no data, and allocates nothing a command. A queue may be on any thread.
//!
//! What is served: the admin commands of an I/O controller and a discovery controller; Read, Write, Flush, Compare, Verify,
//! Write Zeroes and Dataset Management (deallocate); in-capsule data, keyed descriptors, remote invalidation. What is not
//! (fused commands, metadata, ANA, reservations, authentication) is not announced and refused.
//!
//! No host can make it panic or name a byte outside of its capsule, the namespace or what it has described itself.

#![forbid(unsafe_code)]

mod admin;
mod association;
mod commands;
pub mod config;
mod counters;
mod data;
mod io;
pub mod limits;
mod live;
mod nqn;
mod queue;
pub mod status;
mod sync;
mod target;
mod time;
mod window;
pub mod wire;

pub use counters::Totals;
pub use data::{Remote, Source};
pub use io::{BackendError, Op, Ranges, Request};
pub use nqn::{Nqn, NqnError};
pub use queue::{Accepted, End, Queue, Response, Step, Ticket};
pub use target::Target;
pub use time::Instant;
