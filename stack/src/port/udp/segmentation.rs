//! Whether the kernel or a device segments messages that leave by an interface (UDP_SEGMENT). The ICRC of a packet covers its IPv4
//! identification, so the identifications of the segments must be known in advance.
//!
//! The kernel numbers segments 0, 1, 2, … wherever it segments: at the interface itself, or below a virtual device at the first interface
//! that cannot send the message whole. How hardware numbers them is not known.

use std::os::fd::BorrowedFd;

use crate::port::netdevice;

/// Drivers of virtual devices whose other end is a program, or an interface that passes on what comes: veth, and tun and tap.
const ENDS: [&str; 2] = ["veth", "tun"];
/// Drivers of virtual devices on top of others, by which their packets leave.
const STACKED: [&str; 7] = ["bridge", "macvlan", "ipvlan", "bonding", "team", "802.1Q VLAN Support", "vrf"];
/// The most stacked devices that are looked through.
const DEPTH: u32 = 8;

/// What is asked about interfaces.
trait Ask {
    /// Whether the device segments messages.
    fn offloads(&self, iface: &str) -> Option<bool>;
    /// Its driver.
    fn driver(&self, iface: &str) -> Option<String>;
    /// The interfaces below it.
    fn lower(&self, iface: &str) -> Option<Vec<String>>;
}

/// The kernel, asked through a socket.
struct Kernel<'a>(BorrowedFd<'a>);

impl Ask for Kernel<'_> {
    fn offloads(&self, iface: &str) -> Option<bool> {
        netdevice::has_feature(self.0, iface, "tx-udp-segmentation")
    }

    fn driver(&self, iface: &str) -> Option<String> {
        netdevice::driver(self.0, iface)
    }

    fn lower(&self, iface: &str) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(format!("/sys/class/net/{iface}")).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Some(names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)).collect())
    }
}

/// Whether the kernel, and not a device, segments what leaves by an interface of this host. Asks through `socket`. `None` if there is no
/// such interface, or it does not tell.
pub(super) fn by_kernel(socket: BorrowedFd<'_>, iface: &str) -> Option<bool> {
    look(&Kernel(socket), iface, DEPTH)
}

fn look(kernel: &impl Ask, iface: &str, depth: u32) -> Option<bool> {
    if !kernel.offloads(iface)? {
        return Some(true);
    }
    let driver = kernel.driver(iface).unwrap_or_default();
    if ENDS.contains(&driver.as_str()) {
        return Some(true);
    }
    if !STACKED.contains(&driver.as_str()) || depth == 0 {
        return Some(false);
    }
    let below = kernel.lower(iface).unwrap_or_default();
    let any_device = below.iter().any(|lower| look(kernel, lower, depth - 1) != Some(true));
    Some(!below.is_empty() && !any_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces: name, whether it offloads, driver, those below.
    struct Told(&'static [(&'static str, bool, &'static str, &'static [&'static str])]);

    impl Told {
        fn of(&self, iface: &str) -> Option<&(&'static str, bool, &'static str, &'static [&'static str])> {
            self.0.iter().find(|told| told.0 == iface)
        }
    }

    impl Ask for Told {
        fn offloads(&self, iface: &str) -> Option<bool> {
            self.of(iface).map(|told| told.1)
        }
        fn driver(&self, iface: &str) -> Option<String> {
            self.of(iface).map(|told| told.2.to_owned())
        }
        fn lower(&self, iface: &str) -> Option<Vec<String>> {
            self.of(iface).map(|told| told.3.iter().map(|name| (*name).to_owned()).collect())
        }
    }

    // Goal: messages leave where their parts get numbers that are known, through whatever virtual devices; never by hardware that
    // takes them apart.
    #[test]
    fn what_no_device_takes_apart_the_kernel_does() {
        let host = Told(&[
            ("plain", false, "e1000e", &[]),
            ("smart", true, "mlx5_core", &[]),
            ("veth0", true, "veth", &[]),
            ("tap0", true, "tun", &[]),
            ("inner", true, "bridge", &["veth0", "tap0"]),
            ("outer", true, "bridge", &["veth0", "smart"]),
            ("empty", true, "bridge", &[]),
            ("mac0", true, "macvlan", &["smart"]),
            ("mac1", true, "macvlan", &["veth0"]),
            ("vlan", true, "802.1Q VLAN Support", &["inner"]),
            ("loop", true, "bonding", &["loop"]),
        ]);
        let said = |iface| look(&host, iface, DEPTH);
        for iface in ["plain", "veth0", "tap0", "inner", "mac1", "vlan"] {
            assert_eq!(said(iface), Some(true), "{iface}");
        }
        for iface in ["smart", "outer", "empty", "mac0", "loop"] {
            assert_eq!(said(iface), Some(false), "{iface}");
        }
        assert_eq!(said("gone"), None);
    }
}
