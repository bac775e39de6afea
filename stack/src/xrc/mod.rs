//! XRC domains that processes of one user share (IBA A14): who opens one by the same file has the same one.
//!
//! One process makes a target, others have shared receive queues, and a sender names any of these in each packet. A target outlives
//! whoever made it, as long as a process has the domain open. So none of these processes has it, but one that is there for nothing else,
//! the *owner* of the domain (the program `roce-xrcd`): the library starts it when the domain gets its first target or shared receive
//! queue, and it ends some time after the last process that had the domain open, a *member*, has gone.
//!
//! The owner passes the request packets of its targets on to *shadows*, queue pairs of the members ([`device`](crate::device) and below).
//! Here is what the two say to each other about that (`message`), by packet sockets (`socket`): what the owner decides, without I/O
//! (`owner`), its loop (`serve`), the thread by which a member answers it (`membership`, `shadows`), and what a program has of such a
//! domain (`shared`). The owner is found beside the library (`start`), and becomes nobody's child (`spawn`, which has the `unsafe`).
//!
//! All are processes of one user in one network namespace; who else connects is sent away. They are admitted, and not believed: each
//! message is checked where it enters, each queue has a bound, and who does not answer is dropped after a while.

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
