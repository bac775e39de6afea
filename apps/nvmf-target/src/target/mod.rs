//! The target: cores that serve hosts.
//!
//! Each core has one thread, one shard of the device, and the connections on it; nothing of them is shared with another
//! core. It polls, takes each command as far as it goes without waiting, posts, and turns the shard. What a host can make
//! it keep is bounded: connections, commands by the size of their queues, buffers by the pool.
//!
//! A core (`core`) has connections, and parts that do one thing each and do not know them: what hosts share (`shared`), commands
//! (`commands`), storage (`disks`, `zeroing`, `batch`), what is counted (`statistics`). `env` holds these parts. With a connection, which
//! was looked up once, it takes a command from step to step (`requests`, `transfers`) and the connection to its end (`life`).

mod accept;
mod batch;
mod commands;
mod connection;
mod connections;
mod core;
mod counters;
mod disks;
mod env;
mod ids;
mod life;
mod log_limit;
mod meter;
mod network;
mod outbox;
mod pace;
mod pool;
mod receives;
mod requests;
mod shared;
mod siblings;
mod statistics;
mod tag;
mod together;
mod transfers;
mod zeroing;

pub use self::core::{Config, Core};
pub use counters::{Counters, Usage};
pub use meter::Meters;
pub use together::run_all;
