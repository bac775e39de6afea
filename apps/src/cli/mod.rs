//! Command lines: what the programs take, and what each option means.
//!
//! Turns text into typed values and refuses what cannot be right, with a sentence that says what would be.
//! Opens nothing and starts nothing.

pub mod bench;
pub mod device;
pub mod interop;
pub mod parse;
pub mod perf;
pub mod pingpong;
pub mod stat;

pub use device::DeviceArgs;
