//! Address handles: the path to a peer of datagrams, checked once.

use std::sync::Arc;

use super::error::DeviceError;
use super::pd::PdCore;
use crate::proto::address::UdAddress;
use crate::proto::attr::AhAttr;

/// The device's part of an address handle. It holds its protection domain and a local address (GID). Nothing holds the handle: a request
/// carries a copy of the address.
#[derive(Debug)]
pub struct AhCore {
    pd: Arc<PdCore>,
    attr: AhAttr,
    address: UdAddress,
}

impl PdCore {
    /// Creates an address handle.
    ///
    /// # Errors
    /// [`DeviceError::Ah`].
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<AhCore, DeviceError> {
        AhCore::new(self.clone(), attr)
    }
}

impl AhCore {
    fn new(pd: Arc<PdCore>, attr: &AhAttr) -> Result<Self, DeviceError> {
        let address = {
            let shared = &pd.device().core().shared;
            // Held before the check, so that the local address cannot change after it.
            let source = attr.grh.and_then(|grh| shared.hold_gid(grh.sgid_index));
            let grh = attr.check(shared.gids.len(), source.as_ref().map(|s| s.gid()))?;
            let source = source.expect("the check fails without a local address");
            UdAddress::new(&grh, source.keep(), attr.sl)
        };
        Ok(Self { pd, attr: *attr, address })
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// The attributes it was created with.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }
    /// The path; the destination queue pair is not set.
    #[inline]
    pub fn address(&self) -> &UdAddress {
        &self.address
    }
}

impl Drop for AhCore {
    fn drop(&mut self) {
        if self.pd.device().is_forked() {
            return;
        }
        self.pd.device().core().shared.release_gid(self.address.source.index());
    }
}
