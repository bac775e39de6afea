//! The target: cores that serve hosts.
//!
//! Each core has one thread, one shard of the device, and the connections on it; it shares none of these with other cores. In each turn, a
//! core makes a turn of the shard, polls the completion queue, takes each command as far as possible without waiting, and posts work
//! requests. The resources that hosts can occupy are limited: the number of connections, the commands of each by the size of its queue, and
//! the buffers by the size of the pool.
//!
//! A core (`core`) has connections, and parts that do not access the connections: resources that hosts share (`shared`), waiting commands
//! (`commands`), storage (`disks`, `zeroing`, `batch`), counters and logs (`statistics`). `Env` (`env`) holds these parts. Its methods get
//! the connection from the caller. They take a command from step to step (`requests`, `transfers`), and a connection to its end (`life`).

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
