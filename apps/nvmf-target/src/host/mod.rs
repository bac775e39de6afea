//! An NVMe host for tests and measurements: connects to subsystems, identifies controllers, reads and writes.
//!
//! While it waits, it polls its shards, and it reads the clock of the device. So a test can poll a target in between ([`Host::beside`]),
//! and needs only one thread and no real clock.

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
