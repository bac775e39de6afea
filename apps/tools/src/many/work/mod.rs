//! The work of members, one kind per file: called by [`member`](super::member), on its thread.

pub mod beat;
pub mod flood;
pub mod greet;
pub mod kill;
pub mod meet;
pub mod ping_pong;
pub mod turns;
