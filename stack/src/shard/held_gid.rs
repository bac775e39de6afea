//! Holds on indexes of the GID table, by queue pairs and address handles.

use super::shared::Shared;
use crate::id::Gid;
use crate::proto::address::Source;

/// A held index: its address stays, even if it is removed from the port. Dropping it ends the hold.
#[derive(Debug)]
pub struct HeldGid<'a> {
    shared: &'a Shared,
    gid: Gid,
    source: Source,
}

impl HeldGid<'_> {
    /// The address.
    pub fn gid(&self) -> Gid {
        self.gid
    }
    /// Keeps the hold until [`Shared::release_gid`].
    pub fn keep(self) -> Source {
        let source = self.source;
        core::mem::forget(self);
        source
    }
}

impl Drop for HeldGid<'_> {
    fn drop(&mut self) {
        self.shared.release_gid(self.source.index());
    }
}

impl Shared {
    /// Holds an index of the GID table. `None` if the port has no address there.
    pub fn hold_gid(&self, index: u8) -> Option<HeldGid<'_>> {
        let (gid, source) = self.gids.hold(index.into())?;
        Some(HeldGid { shared: self, gid, source })
    }

    /// Ends a hold that was kept (`HeldGid::keep`). An address that was removed from the port disappears with its last holder.
    pub fn release_gid(&self, index: u8) {
        if self.gids.release(index.into()) {
            self.with_net(crate::net::Net::source_gone);
        }
    }
}
