//! shard
pub mod wheel;
