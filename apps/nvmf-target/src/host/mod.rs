//! A host: connects to subsystems, asks who they are, reads and writes. For tests and figures.
//!
//! While it waits, it polls its shards, and it takes the time from the device: so a test that polls a target between them
//! ([`Host::beside`]) needs one thread and no clock.

mod command;
mod controller;
mod device;
mod error;
mod queue;

pub use command::Io;
pub use controller::{Controller, NamespaceInfo, Options, discover};
pub use device::Host;
pub(crate) use device::go_on;
pub use error::HostError;
pub(crate) use error::in_words;
pub use queue::{Data, HostQueue};
