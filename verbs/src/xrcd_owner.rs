//! The owner of a shared XRC domain: the implementation of the program `roce-xrcd`.

use std::time::Duration;

use stack::xrc::{DomainFile, OwnerName, RelayedDomain};

use crate::context::Context;
use crate::error::VerbsError;

/// The right to own the XRC domain of a file. In a network namespace, one process of a user has it.
///
/// Programs that open such a domain ([`Context::open_xrcd_of`]) start the program `roce-xrcd`, which consists of calls to this type.
#[derive(Debug)]
pub struct XrcdOwner(OwnerName);

impl XrcdOwner {
    /// Becomes the owner. From now on processes can connect, and wait until they are served. `None` if another process is the owner.
    ///
    /// # Errors
    /// [`VerbsError::Xrc`] if a socket cannot be created.
    pub fn new(file: &DomainFile) -> Result<Option<Self>, VerbsError> {
        Ok(OwnerName::take(file)?.map(Self))
    }

    /// Keeps the targets of the domain on this device and forwards their messages to the processes that have its shared receive queues.
    /// Returns when no process has had the domain open for the duration `linger`.
    ///
    /// # Errors
    /// [`VerbsError::Xrc`] on a port that does not connect processes, and if the device fails.
    pub fn serve(self, context: &Context, linger: Duration) -> Result<(), VerbsError> {
        Ok(self.0.serve(context.device(), RelayedDomain::new(context.device())?, linger)?)
    }
}
