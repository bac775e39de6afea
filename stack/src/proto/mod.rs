//! The protocol of queue pairs: turns received packets into effects and answers, and work requests into packets to send. Never reads a
//! clock, touches user memory, or allocates on the data path. Called by `shard` and by tests.
//!
//! The tables of the specification are tables here ([`state`], [`tables`], [`fault`], [`status`]); its procedures are code.

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
