//! Command lines: the options of the programs, and their meaning.
//!
//! Turns text into typed values and refuses invalid ones, with a sentence that says what is valid. Opens nothing and starts
//! nothing.

pub mod device;
pub mod parse;
pub mod perf;
pub mod pingpong;
pub mod run;
pub mod specs;
pub mod stat;
pub mod xrcd;

pub use device::DeviceArgs;
