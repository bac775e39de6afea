//! A deterministic network of hosts, for tests: shards, protocol machines and IP hosts, without the claims, threads and objects
//! of `device`.
//!
//! Turns a seed into a run: real shards over simulated ports, links on which everything goes wrong that can, and
//! virtual time that jumps from one thing to the next. Nothing here reads a clock, starts a thread or depends on
//! the order of a hash map, so a seed that failed fails again. Called by tests alone.
//!
//! - [`peer::Rig`]: one node and a hand-made peer, packet by packet; the conformance cases use it.
//! - [`world::World`]: several nodes and links with [faults](link::Fault); hand-written stories use it.
//! - [`story::Story`]: two connected queue pairs and a few words to tell what happens to them.
//! - [`liar::Liar`]: a third host that says it has the addresses of others.
//! - `memif_peer`: the other end of a memif, by hand.
//! - [`fuzz`]: any bytes as packets, calls or attributes; fuzzers and the replay of what they found use it.
//! - [`mads::MadWorld`]: connection managers alone, on a link for MADs, where a [third host](forger) lies; [`manager::Manager`]: one behind the queue pair 1 of a
//!   node, whose MADs go through shards.
//! - [`workload::run`]: a whole random run of one seed: what is on and how often ([`swarm`]), connections that are drained,
//!   broken and made anew, RC ([`flow`]), UC and UD ([`lossy`]), with every [checker](check::CHECKERS).

#![deny(unsafe_code)] // but for what vouches for memory, in `memory`

pub mod check;
mod conn;
pub mod flow;
pub mod forger;
pub mod fuzz;
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
pub mod rng;
pub mod seen;
pub mod story;
pub mod swarm;
pub mod window;
pub mod workload;
pub mod world;
