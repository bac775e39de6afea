//! The `host` port (`port`). All processes of a host form a network: UDP sockets that they share, and direct links between pairs
//! of these processes. A link is made when a shard first needs it, and consists of rings in memory that its two processes share.
//!
//! A guest, a process of another user whom the owner of the host admits, has no sockets that receive: a process of the owner passes on what
//! the network brings for it, over a link (`passing`).
//!
//! Frames cross a link as they cross a memif; only the setup of the connection differs. A link has no socket path and no listening process:
//! a process calls another process through the registry (`keeper`, `greeting`), by the name of the run that contains a queue pair number. A
//! shard has one [`LinkQueue`] for all links, and reads without a lock which link leads to a queue pair number (`published`).
//!
//! Processes of the host are admitted, but not trusted. Each message is checked where it is received (`greeting`); shared memory that
//! a peer writes is copied first and then checked, as for a memif; the kernel, not the peer, says which runs a process holds. A peer can
//! break its own links, and cannot make this process wait. A forked child has none of its parent's links.

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
mod passing;
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
