//! What the program has to do next for a command, and why a queue ended.

use crate::data::{Remote, Source};
use crate::io::Request;
use crate::wire::Cqe;

use super::slots::Ticket;

/// What to do next for a command. If it cannot be done because the connection failed, drop the queue.
#[derive(Debug)]
#[must_use]
pub enum Step<'a> {
    /// Send the response; the command is done.
    Respond(Response),
    /// Fetch these bytes from the host, at most [`INPUT_MAX`](crate::limits::INPUT_MAX), then call
    /// [`Queue::handle_data`](super::Queue::handle_data).
    Fetch(Ticket, Source),
    /// Call [`Queue::poll_data`](super::Queue::poll_data) for as many bytes as the `Remote` has, write them to it by RDMA WRITE, then send
    /// the response.
    Give(Ticket, Remote),
    /// Carry out the request, then call [`Queue::handle_done`](super::Queue::handle_done).
    Run(Ticket, Request<'a>),
    /// Do nothing. The command waits for an asynchronous event, or it is a Connect that waits for the host's earlier commands.
    /// [`Queue::poll_response`](super::Queue::poll_response) will return its response.
    Wait,
}

/// A response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Response {
    /// The bytes to send.
    pub cqe: Cqe,
    /// Send by SEND with Invalidate of this R_Key; if `None`, by SEND.
    pub invalidate: Option<u32>,
}

/// Why a queue has ended. The program must disconnect the host and drop the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The host sent a capsule that is shorter than a command.
    #[error("the host sent a capsule of {0} bytes, which is no command")]
    ShortCapsule(usize),
    /// The host sent more commands at a time than the queue has entries.
    #[error("the host sent more commands than its queue has entries")]
    TooManyCommands,
    /// No Connect came in time.
    #[error("the host did not send Connect in time")]
    NoConnect,
    /// No command came before the keep alive timeout expired.
    #[error("the host's keep alive timeout expired")]
    KeepAliveExpired,
    /// The subsystem was removed, or the host may no longer use it.
    #[error("the host may not use the subsystem any more")]
    NotServed,
    /// The admin queue has ended, or the controller was reset or shut down.
    #[error("the controller was reset, shut down or has ended")]
    ControllerGone,
}
