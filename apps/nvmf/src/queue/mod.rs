//! A queue: one connection of a host, from its first capsule to its end.
//!
//! Capsules come in, and for each a [`Step`] says what the program has to do next, until there is a response. Nothing is
//! copied here: the program moves data between the host's memory, its buffers and the storage.

mod connect;
mod serve;
mod slots;
mod state;
mod step;

pub use connect::Accepted;
pub use slots::Ticket;
pub use state::Queue;
pub use step::{End, Response, Step};
