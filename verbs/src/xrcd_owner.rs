//! The owner of an XRC domain that processes share: what the program `roce-xrcd` does.

use std::time::Duration;

use stack::xrc::{DomainFile, OwnerName, RelayedDomain};

use crate::context::Context;
use crate::error::VerbsError;

/// The right to own the XRC domain of a file: one process of a user in a network namespace has it.
///
/// Programs that open such a domain ([`Context::open_xrcd_of`]) start the program `roce-xrcd`, which is this and no more.
#[derive(Debug)]
pub struct XrcdOwner(OwnerName);

impl XrcdOwner {
    /// Becomes the owner; processes can connect from now on, and wait to be served. `None`: another process is it.
    ///
    /// # Errors
    /// [`VerbsError::Xrc`]: a socket cannot be had.
    pub fn new(file: &DomainFile) -> Result<Option<Self>, VerbsError> {
        Ok(OwnerName::take(file)?.map(Self))
    }

    /// Has the targets of the domain on this device, and passes their messages on to the processes that have its shared receive queues,
    /// until no process has had the domain open for so long.
    ///
    /// # Errors
    /// [`VerbsError::Xrc`] on a port that joins no processes, and when the device fails.
    pub fn serve(self, context: &Context, linger: Duration) -> Result<(), VerbsError> {
        Ok(self.0.serve(context.device(), RelayedDomain::new(context.device())?, linger)?)
    }
}
