//! Opens of XRC domains.
//!
//! A queue pair with a handle holds the open through which it was created. A receive-only queue pair belongs to the domain: it has no
//! handle, and ends with the domain.

use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use super::inside_turn::not_inside_turn;
use super::xrc_domain::{Domain, XrcdInitAttr};

/// One open of an XRC domain. Shared receive queues and queue pairs created through it hold references to it.
#[derive(Debug)]
pub struct XrcdCore {
    device: Arc<Device>,
    domain: Arc<Domain>,
    open: u32,
}

impl Device {
    /// Opens an XRC domain.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::DomainExists`].
    pub fn open_xrcd(self: &Arc<Self>, init: &XrcdInitAttr<'_>) -> Result<Arc<XrcdCore>, DeviceError> {
        let domain = self.xrcds.open(init)?;
        Ok(Arc::new(XrcdCore { device: self.clone(), domain, open: self.xrcds.number() }))
    }
}

impl XrcdCore {
    /// Opens the same domain again.
    pub fn again(&self) -> Arc<Self> {
        let open = self.device.xrcds.number();
        Arc::new(Self { device: self.device.clone(), domain: self.domain.clone(), open })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The domain's number in the device.
    pub fn id(&self) -> u32 {
        self.domain.id
    }
    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }
    /// The number of this open.
    pub(super) fn open_id(&self) -> u32 {
        self.open
    }

    /// Closes this open; the last close destroys the domain and its receive-only queue pairs.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while shared receive queues or queue pairs created through it exist; [`DeviceError::InsideTurn`]. The open is
    /// returned with the error.
    pub fn close(xrcd: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = not_inside_turn() {
            return Err((e, xrcd));
        }
        Arc::try_unwrap(xrcd).map(drop).map_err(|xrcd| {
            let users = Arc::strong_count(&xrcd) - 1;
            (DeviceError::Busy { object: "XRC domain", users }, xrcd)
        })
    }
}
