//! A deterministic network of hosts, for tests: whole devices, as programs use them, driven by the simulation on its own clock.
//!
//! Turns a seed into a run: real devices over simulated ports, links with every kind of fault, and virtual time that jumps from one event
//! to the next. Nothing here reads a clock, starts a thread or depends on the order of a hash map, so a seed that failed fails again. Used
//! by tests only.
//!
//! - [`peer::Rig`]: one node and a hand-made peer, packet by packet; the conformance cases use it.
//! - [`world::World`]: several nodes and links with [faults](link::Fault); hand-written stories use it.
//! - [`story::Story`]: two connected queue pairs and a few functions to script and check what happens to them.
//! - [`liar::Liar`]: a third host that claims the addresses of others.
//! - `memif_peer`: a hand-made peer of a memif; `host_liar`: a hand-made peer of a link between two processes of a host.
//! - [`fuzz`]: arbitrary bytes as packets, calls or attributes; used by fuzzers and by the replay of their findings.
//! - [`mads::MadWorld`]: connection managers alone, on a link for MADs, where a [third host](forger) forges messages; [`manager::Manager`]:
//!   a connection manager on queue pair 1 of a node, whose MADs go through shards.
//!   [`manager::Manager`]: one behind the queue pair 1 of a node, whose MADs go through shards.
//! - [`hosts`]: hosts of several processes each, with links between them, that start, stop and are killed.
//! - [`registry::run`]: the processes of a host, which join its registry, stop, fork and die.
//! - [`workload::run`]: a whole random run of one seed: which faults are on and how often ([`swarm`]); connections that are drained, broken
//!   and made anew; RC ([`flow`]), UC and UD ([`lossy`]); with every [checker](check::CHECKERS).

#![deny(unsafe_code)] // except for the memory that shards access, in `memory`

pub mod check;
mod conn;
pub mod flow;
pub mod forger;
pub mod fuzz;
#[cfg(not(miri))]
pub mod host_liar;
pub mod hosts;
pub mod layout;
pub mod liar;
pub mod link;
pub mod lossy;
pub mod mads;
pub mod manager;
#[cfg(not(miri))]
pub mod memif_peer;
pub mod memory;
pub mod node;
pub mod peer;
pub mod port;
pub mod registry;
pub mod seen;
pub mod story;
pub mod swarm;
pub mod window;
pub mod workload;
pub mod world;

pub use stack::port::fault::rng;
