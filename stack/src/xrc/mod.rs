//! XRC domains that processes of one user share (IBA A14): processes that open one by the same file have the same domain.
//!
//! One process creates a target, others have shared receive queues, and a sender names any of these in each packet. A target outlives
//! its creator, as long as a process has the domain open. So the targets belong to none of these processes, but to a dedicated one, the
//! *owner* of the domain (the program `roce-xrcd`): the library starts it when the domain gets its first target or shared receive queue,
//! and it ends some time after the last process that had the domain open, a *member*, has left.
//!
//! The owner relays the request packets of its targets to *shadows*, queue pairs of the members ([`device`](crate::device) and below).
//! This module has the messages between the two (`message`), over packet sockets (`socket`); the owner's decisions, without I/O
//! (`owner`), and its loop (`serve`); the thread by which a member responds to it (`membership`, `shadows`); and a program's handles of
//! such a domain (`shared`). The owner's program is found beside the library (`start`), and is started as an orphan (`spawn`, which has
//! the `unsafe`).
//!
//! All are processes of one user in one network namespace; connections of others are rejected. Members are admitted, but not trusted:
//! each message is checked on receipt, each queue has a bound, and a process that does not respond is dropped after a while.

mod attributes;
mod bytes;
mod domain;
mod error;
mod members;
mod membership;
mod message;
mod owner;
mod parts;
mod refusal;
mod relayed;
mod serve;
mod shadows;
mod shared;
mod socket;
mod spawn;
mod start;
mod targets;

pub use attributes::Attributes;
pub use domain::DomainFile;
pub use error::XrcError;
pub use members::MemberId;
pub use parts::{Domain, Target};
pub use refusal::{Reason, Refusal};
pub use relayed::RelayedDomain;
pub use serve::OwnerName;
pub use shared::{SharedDomains, SharedTarget, SharedXrcd, SrqNumber, can_share};

#[cfg(all(test, not(miri)))]
mod tests;
