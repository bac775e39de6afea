//! The measurements, one per file, as the parent runs them.

pub mod fair;
pub mod first;
pub mod idle;
pub mod killed;
pub mod latency;
pub mod memory;
pub mod pause;
pub mod proc;
pub mod turn;
