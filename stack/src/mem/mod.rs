//! Memory keys, bounds and scatter/gather arithmetic.
//!
//! Turns a key, an address and a length into a host address or a fault, and a list of scatter/gather elements into the pieces
//! that cover a range of a message. Never blocks a lookup, reads no clock, and does not access the memory that keys name
//! ([`racy`](crate::racy) does). Called by control threads that register and by every shard for every packet.

mod access;
mod allocator;
mod cached;
mod key;
mod range;
pub mod sge;
mod table;
mod variable;

#[cfg(test)]
mod edges;

pub use access::Access;
pub use cached::CachedKey;
pub use key::{MwType, inc_rkey};
pub use range::{GrantedRange, Indirect, TurnsPassed, UserMemory};
pub use sge::Sge;
pub use table::{KeyFault, MemError, MrTable};
pub use variable::Bind;
