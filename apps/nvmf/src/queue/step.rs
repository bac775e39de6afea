//! What the program has to do next for a queue.

use crate::data::{Remote, Source};
use crate::io::Request;
use crate::wire::Cqe;

use super::slots::Ticket;

/// What to do next for a command. Where it cannot be done because the connection failed, drop the queue.
#[derive(Debug)]
#[must_use]
pub enum Step<'a> {
    /// Send the response; the command is done.
    Respond(Response),
    /// Get these bytes of the host, then call [`Queue::handle_data`](super::Queue::handle_data). They are at most
    /// [`INPUT_MAX`](crate::limits::INPUT_MAX).
    Fetch(Ticket, Source),
    /// Call [`Queue::poll_data`](super::Queue::poll_data) for as many bytes as `Remote` says, write them there, then send the
    /// response.
    Give(Ticket, Remote),
    /// Do what is requested, then call [`Queue::handle_done`](super::Queue::handle_done).
    Run(Ticket, Request<'a>),
    /// Nothing: the command waits for an event, or Connect for the host's earlier commands;
    /// [`Queue::poll_response`](super::Queue::poll_response) will answer it.
    Wait,
}

/// A response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Response {
    /// Its bytes.
    pub cqe: Cqe,
    /// Send it by SEND with Invalidate of this key, else by SEND.
    pub invalidate: Option<u32>,
}

/// Why a queue has ended. The program disconnects, and drops it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// A capsule that is shorter than a command.
    #[error("the host sent a capsule of {0} bytes, which is no command")]
    ShortCapsule(usize),
    /// More commands at a time than the queue has entries.
    #[error("the host sent more commands than its queue has entries")]
    TooManyCommands,
    /// No Connect came in time.
    #[error("the host did not send Connect in time")]
    NoConnect,
    /// No command came in time.
    #[error("the host's keep alive timeout expired")]
    KeepAliveExpired,
    /// The subsystem was removed, or the host may use it no longer.
    #[error("the host may not use the subsystem any more")]
    NotServed,
    /// The admin queue has ended, or the controller was reset or shut down.
    #[error("the controller was reset, shut down or has ended")]
    ControllerGone,
}
