//! A deterministic network of whole devices, for tests.
pub mod memory;
pub mod node;
pub mod peer;
pub mod port;
pub mod rng;
pub mod seen;
