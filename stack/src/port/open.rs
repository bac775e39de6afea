//! Opens the port that a specification names.

#[cfg(feature = "dpdk")]
use super::dpdk;
use super::error::PortError;
use super::info::PortOptions;
use super::spec::{HostAddress, PortSpec};
use super::traits::Port;
use super::{host, loopback, memif, udp, unix};

impl PortSpec {
    /// Opens the port. Its peer may appear later.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(&self, options: &PortOptions) -> Result<Box<dyn Port>, PortError> {
        options.check()?;
        match self {
            Self::Loopback => Ok(Box::new(loopback::loopback(options))),
            Self::Unix { local, peer, options: more } => unix::open(self, local, peer, more, options),
            Self::Memif { path, role, options: more } => memif::open(self, path, *role, more, options),
            Self::Udp { addrs, options: more } => Ok(Box::new(udp::open(self, addrs, more, options)?)),
            Self::Host { addrs, options: more } => host::open(self, addrs, more, options),
            #[cfg(feature = "dpdk")]
            _ => dpdk::open(self, options),
            #[cfg(not(feature = "dpdk"))]
            _ => Err(PortError::NoDpdk(self.to_string())),
        }
    }

    /// Same as [`open`](Self::open), but may defer a memif, or a DPDK device and the start of EAL, until the port is started
    /// ([`Port::start`]).
    ///
    /// Ports are deferred if the stack chooses their address and MTU: memif, tap, vhost, and virtual devices of `dpdk:` whose options or
    /// arguments name an address (`mac=`). Such a port is a link that is down until it is started; for a memif without a role, the start
    /// decides which end is the server. A device that chooses its own address (af_packet, PCI, other virtual devices) is opened at once,
    /// and so are the other ports without DPDK.
    ///
    /// # Errors
    /// See [`PortError`]. Errors that show without DPDK are returned here, the others by [`Port::start`].
    pub fn open_lazy(&self, options: &PortOptions) -> Result<Box<dyn Port>, PortError> {
        match self {
            Self::Memif { path, role, options: more } => {
                options.check()?;
                memif::open_lazy(self, path, *role, more, options)
            }
            #[cfg(feature = "dpdk")]
            Self::Tap { .. } | Self::Vhost { .. } | Self::Dpdk { .. } => {
                options.check()?;
                dpdk::open_lazy(self, options)
            }
            _ => self.open(options),
        }
    }

    /// The host's addresses that a device over the port has at present, in the order of its GID table. Empty if the device has addresses of
    /// its own.
    ///
    /// # Errors
    /// When the kernel does not report the addresses.
    pub fn host_addresses(&self) -> std::io::Result<Vec<HostAddress>> {
        match self {
            Self::Udp { addrs, .. } | Self::Host { addrs, .. } => udp::addresses(addrs),
            _ => Ok(Vec::new()),
        }
    }
}
