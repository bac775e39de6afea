//! Turns packets and work requests into verdicts and segments. Never reads a clock, touches user memory or
//! allocates on the data path. Called by `shard` and by tests.

pub mod wqe;
