//! A queue: one connection of a host, from the connection request to its end.
//!
//! For each command capsule, a [`Step`] says what the program has to do next, until the step is a response. Data are not copied here: the
//! program moves them between the host's memory, its own buffers and the storage.

mod connect;
mod serve;
mod slots;
mod state;
mod step;

pub use connect::Accepted;
pub use slots::Ticket;
pub use state::Queue;
pub use step::{End, Response, Step};
