//! The configuration of a target: it is read from a file and checked, and the target is built from it.
//!
//! A mistake is reported as one sentence, with the file and the line.

mod build;
mod file;
mod identity;
mod memory;
mod offer;
mod opener;

pub use build::{Built, build, build_dry};
pub use file::parse;
pub use identity::{host_id, parse_uuid, uuid_text};
pub use memory::fits;
pub(crate) use offer::no_block;
pub use offer::{
    BLOCKS, Mistake, Offer, OfferedNamespace, OfferedSubsystem, PORT, Storage, check_block, check_size,
};
pub use opener::{Len, Opener, namespace_of};
