//! The target: cores that serve hosts.
//!
//! Each core has one thread, one shard of the device, and the connections on it; nothing of them is shared with another
//! core. It polls, takes each command as far as it goes without waiting, posts, and turns the shard. What a host can make
//! it keep is bounded: connections, commands by the size of their queues, buffers by the pool.

mod batch;
mod commands;
mod connection;
mod core;
mod counters;
mod life;
mod meter;
mod party;
mod pool;
mod qpns;
mod receives;
mod storage;
mod tag;
mod together;

pub use self::core::{Config, Core};
pub use counters::{Counters, Usage};
pub use meter::Meters;
pub use together::run_all;
