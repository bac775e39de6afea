//! Turns received packets into effects and answers, and work requests into segments. Never reads a clock, touches user memory or
//! allocates on the data path. Called by `shard` and by tests.
//!
//! What the specification prints as a table is a table here ([`state`], [`tables`], [`fault`], [`status`]);
//! what it writes as procedure is code.

pub mod address;
pub mod attr;
pub mod completer;
pub mod congestion;
pub mod fault;
mod in_flight;
pub mod recovery;
pub mod relay;
pub mod requester;
pub mod responder;
pub mod rtt;
pub mod state;
pub mod status;
pub mod tables;
pub mod vendor;
pub mod wqe;
