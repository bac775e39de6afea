//! The addresses of a device's port: programs may add and remove them while the device is open.

use core::net::IpAddr;

use super::error::DeviceError;
use super::handle::Device;
use super::inside_turn::not_inside_turn;
use crate::id::Gid;
use crate::net::{GIDS_MAX, canonical, check_address};
use crate::proto::status::AsyncEvent;
use crate::shard::{EventElement, GidRefused};

impl Device {
    /// The port's addresses by index: the link-local one, the configured ones in order, then later additions; zero where one was removed.
    pub fn gids(&self) -> Vec<Gid> {
        self.core().shared.gids.snapshot()
    }

    /// Adds an address to the port, announces it on the link, and reports GID_CHANGE to the program. Returns its index.
    ///
    /// # Errors
    /// [`DeviceError::Address`], [`DeviceError::Exists`], [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`],
    /// [`DeviceError::HostAddress`].
    pub fn add_address(&self, addr: IpAddr, prefix: u8) -> Result<usize, DeviceError> {
        not_inside_turn()?; // a turn may hold the IP host
        self.core().not_forked()?;
        self.not_of_host()?;
        let (addr, prefix) = canonical(addr, prefix);
        check_address(addr, prefix)?;
        let shared = &self.core().shared;
        let index = shared.gids.insert(Gid::from_ip(addr)).map_err(|refused| match refused {
            GidRefused::Exists => DeviceError::Exists { what: "address" },
            GidRefused::Full => DeviceError::Exhausted { what: "entry of the GID table", limit: GIDS_MAX },
        })?;
        shared.with_net(|net| net.add_address(addr, prefix));
        shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
        self.core().wake_helper();
        Ok(index)
    }

    /// Removes an address from the port, and reports GID_CHANGE to the program. Queue pairs that use it keep their index.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchAddress`] also for the link-local address derived from the port's Ethernet address,
    /// [`DeviceError::InsideTurn`], [`DeviceError::HostAddress`].
    pub fn remove_address(&self, addr: IpAddr) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.core().not_forked()?;
        self.not_of_host()?;
        let shared = &self.core().shared;
        let gid = Some(Gid::from_ip(addr)).filter(|gid| *gid != Gid::link_local(shared.mac));
        gid.and_then(|gid| shared.gids.remove(&gid)).ok_or(DeviceError::NoSuchAddress { addr })?;
        shared.with_net(|net| net.remove_address(addr));
        // A shard in a turn may still use the address.
        self.core().pass_turn_boundaries()?;
        shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
        Ok(())
    }
    /// Refuses a change of addresses if the kernel below the port owns them.
    fn not_of_host(&self) -> Result<(), DeviceError> {
        if self.port().host().is_some() { Err(DeviceError::HostAddress) } else { Ok(()) }
    }
}
