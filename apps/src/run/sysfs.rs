//! The contents of the device's files below `/sys/class/infiniband`: those of the kernel's documentation
//! (`Documentation/ABI/stable/sysfs-class-infiniband`), and others that its drivers have.
//!
//! No device is opened for these files: they hold what is known before the program runs, and apply to every process that it starts.
//! An identity that each process draws for itself (the GUID) is zero, as the kernel shows one that is not assigned. Counters, which
//! would have to change, are left out, as on the kernel's own soft-RoCE; so are files that only a device on a bus has.

use std::net::IpAddr;
use std::path::PathBuf;
use verbs::port::{HostAddress, PortSpec};
use verbs::{Gid, Mac};

/// The device, and its character device.
pub const DEVICE: &str = "roce0";
pub const UVERBS: &str = "uverbs0";
/// Number of GID indexes for which files are written if the table's length is unknown.
const GIDS: usize = 256;

/// What is known of the device.
#[derive(Default, Debug)]
pub struct Facts {
    /// The port; `None` if the variable's value is no port.
    pub port: Option<PortSpec>,
    /// The configured addresses.
    pub addrs: Vec<IpAddr>,
    /// The configured Ethernet address.
    pub mac: Option<Mac>,
    /// The addresses of the host that the device uses.
    pub host: Vec<HostAddress>,
}

/// What is at a path of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A regular file with this text.
    File(String),
    /// A symbolic link.
    Link(PathBuf),
}

impl Facts {
    /// The files, by their paths below the tree's root.
    pub fn files(&self) -> Vec<(String, Entry)> {
        let file = |path: String, text: &str| (path, Entry::File(format!("{text}\n")));
        let device = format!("sys/class/infiniband/{DEVICE}");
        let port = format!("{device}/ports/1");
        let uverbs = format!("sys/class/infiniband_verbs/{UVERBS}");
        let guid = guid(self.mac);
        let (state, phys_state) =
            if self.is_up() { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        let mut all: Vec<_> = [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", DEVICE),
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("hw_rev", "0x0"),
            ("hca_type", "userspace RoCEv2"),
            ("board_id", "userspace RoCEv2"),
            // No NUMA node is nearer than another.
            ("device/numa_node", "-1"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/state", state),
            ("ports/1/phys_state", phys_state),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/cap_mask", "0x04010000"),
            ("ports/1/lid", "0x0"),
            ("ports/1/lid_mask_count", "0"),
            ("ports/1/sm_lid", "0x0"),
            ("ports/1/sm_sl", "0"),
            ("ports/1/pkeys/0", "0xffff"),
        ]
        .map(|(name, text)| file(format!("{device}/{name}"), text))
        .into();
        all.extend([
            file("sys/class/infiniband_verbs/abi_version".into(), "6"),
            file(format!("{uverbs}/ibdev"), DEVICE),
            file(format!("{uverbs}/abi_version"), "1"),
            // Programs that manage InfiniBand read this file before they list devices. No umad0 exists.
            file("sys/class/infiniband_mad/abi_version".into(), "5"),
        ]);
        all.extend(
            self.gids().iter().enumerate().map(|(n, gid)| file(format!("{port}/gids/{n}"), &colons(gid))),
        );
        let types = if self.host.is_empty() { GIDS } else { self.host.len() };
        // Every GID of the stack is of type RoCE v2.
        all.extend((0..types).map(|n| file(format!("{port}/gid_attrs/types/{n}"), "RoCE v2")));
        let mut ifaces: Vec<_> = self.host.iter().map(|host| host.iface.as_str()).collect();
        if let Some(iface) = self.port.as_ref().and_then(PortSpec::iface) {
            ifaces = vec![iface; GIDS];
        }
        for (n, iface) in ifaces.iter().enumerate().filter(|(_, iface)| !iface.is_empty()) {
            all.push(file(format!("{port}/gid_attrs/ndevs/{n}"), iface));
        }
        ifaces.sort_unstable();
        ifaces.dedup();
        for iface in ifaces.iter().filter(|iface| !iface.is_empty()) {
            let link = Entry::Link(format!("/sys/class/net/{iface}").into());
            all.push((format!("{device}/device/net/{iface}"), link));
        }
        all
    }

    /// Whether network interfaces of the kernel are behind the GIDs.
    pub fn has_interfaces(&self) -> bool {
        !self.host.is_empty() || self.port.as_ref().is_some_and(|port| port.iface().is_some())
    }

    /// The GID table as far as it is known: the addresses of the host, or else the link-local address and the configured ones.
    fn gids(&self) -> Vec<[u8; 16]> {
        if !self.host.is_empty() {
            return self.host.iter().map(|host| Gid::from_ip(host.addr).0).collect();
        }
        let first = self.mac.map_or([0; 16], |mac| Gid::link_local(mac).0);
        [first].into_iter().chain(self.addrs.iter().map(|addr| Gid::from_ip(*addr).0)).collect()
    }

    /// Whether the port is active, as far as is known without the device.
    fn is_up(&self) -> bool {
        self.host.is_empty() || self.host.iter().any(|host| host.up)
    }
}

/// The EUI-64 of an Ethernet address, as the files show it; zero if each process draws its own.
fn guid(mac: Option<Mac>) -> String {
    let low = mac.map_or([0; 16], |mac| Gid::link_local(mac).0);
    colons(&low)[20..].to_owned()
}

/// Bytes as the kernel prints a GID.
fn colons(gid: &[u8; 16]) -> String {
    let parts: Vec<_> = gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Context, DeviceConfig, GidType};

    fn text(facts: &Facts, name: &str) -> Option<Entry> {
        let path = format!("sys/class/infiniband/{DEVICE}/{name}");
        facts.files().into_iter().find(|(other, _)| *other == path).map(|(_, entry)| entry)
    }

    fn file(text: &str) -> Option<Entry> {
        Some(Entry::File(format!("{text}\n")))
    }

    #[test]
    fn what_each_process_draws_is_not_said_and_what_was_given_is() {
        let unknown = Facts { port: "memif".parse().ok(), ..Facts::default() };
        assert_eq!(text(&unknown, "node_guid"), file("0000:0000:0000:0000"));
        assert_eq!(text(&unknown, "ports/1/gids/0"), file("0000:0000:0000:0000:0000:0000:0000:0000"));
        assert_eq!(text(&unknown, "ports/1/gids/1"), None);
        assert_eq!(text(&unknown, "ports/1/gid_attrs/ndevs/0"), None);
        let mac = Some(Mac([2, 0, 0, 0, 0, 0x2a]));
        let given = Facts { addrs: vec!["10.77.0.1".parse().unwrap()], mac, ..unknown };
        assert_eq!(text(&given, "node_guid"), file("0000:00ff:fe00:002a"));
        assert_eq!(text(&given, "ports/1/gids/0"), file("fe80:0000:0000:0000:0000:00ff:fe00:002a"));
        assert_eq!(text(&given, "ports/1/gids/1"), file("0000:0000:0000:0000:0000:ffff:0a4d:0001"));
        assert!(!given.has_interfaces());
    }

    #[test]
    fn files_say_what_the_device_says() {
        let (mac, addr) = (Mac([2, 0, 0, 0, 0, 0x2b]), "10.77.0.9".parse().unwrap());
        let config = DeviceConfig::loopback().mac(mac).addrs(vec![(addr, 24)]);
        let context = Context::open(config).unwrap();
        let facts =
            Facts { port: "loopback".parse().ok(), addrs: vec![addr], mac: Some(mac), ..Facts::default() };
        let (device, port) = (context.query_device(), context.query_port(1).unwrap());
        let mut guid = [0; 16];
        guid[8..].copy_from_slice(&device.node_guid);
        assert_eq!(text(&facts, "node_guid"), file(&colons(&guid)[20..]));
        assert_eq!(text(&facts, "fw_ver"), file(device.fw_ver));
        assert_eq!(text(&facts, "hw_rev"), file(&format!("{:#x}", device.hw_ver)));
        assert_eq!(text(&facts, "ports/1/cap_mask"), file(&format!("{:#010x}", port.port_cap_flags.bits())));
        assert_eq!(text(&facts, "ports/1/state"), file(&format!("{}: ACTIVE", port.state as u8)));
        assert_eq!(text(&facts, "ports/1/phys_state"), file(&format!("{}: LinkUp", port.phys_state as u8)));
        // Four lanes, each of 25 Gb/s.
        assert_eq!((port.active_width, port.active_speed), (2, 32));
        for (index, gid) in facts.gids().iter().enumerate() {
            let entry = context.query_gid_ex(1, index).unwrap();
            assert_eq!((entry.gid.0, entry.gid_type), (*gid, GidType::RoceV2), "index {index}");
        }
    }

    #[test]
    fn interfaces_of_the_kernel_are_named() {
        let host = |addr: &str, iface: &str| {
            let mut all = "udp:127.0.0.1".parse::<PortSpec>().unwrap().host_addresses().unwrap();
            let mut one = all.pop().expect("the loopback interface has this address");
            (one.addr, one.iface, one.up) = (addr.parse().unwrap(), iface.into(), false);
            one
        };
        let hosts = vec![host("10.0.0.1", "eth0"), host("fd00::1", "eth1"), host("10.0.0.2", "eth0")];
        let facts = Facts { port: "udp".parse().ok(), host: hosts, ..Facts::default() };
        assert_eq!(text(&facts, "ports/1/gid_attrs/ndevs/1"), file("eth1"));
        assert_eq!(text(&facts, "ports/1/gid_attrs/types/3"), None, "the table has three");
        assert_eq!(text(&facts, "ports/1/gids/1"), file("fd00:0000:0000:0000:0000:0000:0000:0001"));
        assert_eq!(text(&facts, "device/net/eth0"), Some(Entry::Link("/sys/class/net/eth0".into())));
        assert_eq!(text(&facts, "ports/1/state"), file("1: DOWN"));
        let bound = Facts { port: "af_packet:eth2".parse().ok(), ..Facts::default() };
        assert_eq!(text(&bound, "ports/1/gid_attrs/ndevs/5"), file("eth2"));
        assert!(facts.has_interfaces() && bound.has_interfaces());
    }
}
