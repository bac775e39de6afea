//! The measurements, a file each: the parent's side of them.

pub mod fair;
pub mod first;
pub mod idle;
pub mod killed;
pub mod latency;
pub mod memory;
pub mod pause;
pub mod proc;
pub mod turn;
