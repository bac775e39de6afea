//! A userspace RoCEv2 stack.
//!
//! Bytes come in and go out through [`port`]; [`wire`] turns them into fields and back; [`proto`] is the
//! protocol, a pure function of packets, work requests and the time; [`shard`] is the poll-mode core that
//! joins the three and touches registered memory; [`cm`] makes connections, by MADs of queue pair 1; [`device`]
//! owns the shards and is the front door that the `verbs` crate uses. Imports point one way only
//! (`tests/layering.rs` enforces it).

pub mod cm;
pub mod config;
pub mod crc;
pub mod device;
pub mod id;
pub mod ipc;
pub mod mark;
pub mod mem;
pub mod net;
pub mod port;
pub mod proto;
pub mod racy;
pub mod registry;
pub mod runtime;
pub mod shard;
pub mod sync;
pub mod time;
pub mod wire;
pub mod xrc;
