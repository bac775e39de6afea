//! The port of a host (`port`): a network by sockets that all processes of a user share, and links between these processes, each with
//! each other one, made when a shard first needs it, over rings in memory that two processes share.
//!
//! Frames pass a link as a memif; only how the two ends come together differs. There is no path of a socket and nobody who waits there:
//! a process calls another one by the registry (`keeper`, `greeting`), at the name of the run that a queue pair number is in. A shard
//! has one [`LinkQueue`] for all links, and reads which of them leads to a number without a lock (`published`).
//!
//! Processes of the same user are admitted, and never believed. What one says is checked where it enters (`greeting`), what it writes
//! is copied and then checked, as a memif does, and which numbers it has is the kernel's word. It can spoil its own links, and cannot
//! make this process wait. A fork has nothing of its parent's links.

mod attention;
mod budget;
mod end;
mod ended;
mod farewell;
mod following;
mod greeting;
mod growing;
mod id;
mod inbox;
mod keeper;
mod links;
mod look;
mod making;
mod meeting;
mod news;
mod port;
mod published;
mod queue;
mod shared;
mod sleep;
mod table;
mod talk;
mod terms;

pub use ended::Ended;
pub use farewell::end_links;
pub use id::{LINKS_MAX, LinkId};
pub use links::{Links, LinksConfig};
pub use published::{Published, Way};
pub use queue::{LinkQueue, Reach};
pub use shared::LinkCounts;
pub use table::{FOREIGN_FOR, REFUSED_FOR, Table, VACANT_FOR};

pub(in crate::port) use port::open;
