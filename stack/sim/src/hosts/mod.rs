//! Hosts of several processes on one seed: each process is a whole device with a connection manager, on a port of its host.
//!
//! Real is what decides: devices, shards and connection managers; leases, listeners, requests and the keeper in the registry, over its
//! simulated system ([`registry::host`](crate::registry::host)); which process a datagram is for, and the header with which it is passed
//! on ([`stack::port::sorting`]); to whom a process calls for a link, when, and what becomes known of it ([`stack::port::host::Table`]);
//! which peer counts as stalled.
//!
//! Simulated is what carries: the rings of links, which are of bounded size and take time, and how two processes come to have one
//! ([`links`]); the sockets, whose kernel chooses a process by a table that may be old, or by chance, in place of the program that is
//! attached to real ones ([`sockets`]); the network between hosts, with its faults; the end of a process, after which nothing of it runs
//! and all that it had sent arrives ([`world`]). A call of the registry is one step here: what happens between its steps is tried in
//! [`registry`](crate::registry).
//!
//! [`program::run`] has programs connect, talk, listen, and stop at random, kills processes and starts new ones, and checks what comes
//! of it.

pub mod checks;
pub mod host;
pub mod links;
pub mod port;
pub mod program;
pub mod sockets;
pub mod world;
