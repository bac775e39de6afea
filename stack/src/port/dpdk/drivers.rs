//! Why DPDK did not add a device, in particular whether it has a driver for it.

use super::eal::{Eal, errno_text, last_log};
use dpdk_sys as sys;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

/// Kernel drivers that give a PCI device to a user-space program.
const USER_SPACE: &[&str] = &["vfio-pci", "uio_pci_generic", "igb_uio"];

/// NICs, by vendor, whose DPDK driver works beside the kernel's driver: they stay bound to that.
const BESIDE_THE_KERNEL: &[(&str, &str)] = &[("0x15b3", "net_mlx5"), ("0x1414", "net_mana")];

/// The message for a virtual device that was not added.
pub(super) fn virtual_not_added(name: &str, ret: i32, eal: &Eal) -> String {
    let says = last_log();
    let known = CString::new(name).is_ok_and(|name| {
        // SAFETY: a terminated string, which DPDK reads only.
        unsafe { sys::dpdk_sys_has_driver(name.as_ptr()) != 0 }
    });
    if !known {
        let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
        return format!("no driver for {name}: {}", not_built_in(driver));
    }
    if !eal.huge && says.contains("memory") {
        return format!("out of memory: raise EalOptions::memory_mib or reserve huge pages{says}");
    }
    format!("the device {name} was not added: {}; check its options{says}", errno_text(ret))
}

/// The message for a PCI device that was not added.
pub(super) fn pci_not_added(address: &str, ret: i32) -> String {
    let (what, says) = (errno_text(ret), last_log());
    let Some(device) = PciDevice::find(address) else {
        return format!("the PCI device {address} was not added: {what}{says}");
    };
    let beside = BESIDE_THE_KERNEL.iter().find(|(vendor, _)| *vendor == device.vendor);
    if let Some((_, driver)) = beside.filter(|(_, driver)| !is_built_in(driver)) {
        return format!("no driver for the PCI device {address} ({device}): {}", not_built_in(driver));
    }
    let bound = device.driver.as_deref();
    if beside.is_none() && !bound.is_some_and(|driver| USER_SPACE.contains(&driver)) {
        return format!(
            "the PCI device {address} ({device}) was not added: it is bound to {}; bind it to vfio-pci (dpdk-devbind.py)",
            bound.unwrap_or("no driver"),
        );
    }
    match ret.abs() {
        // The bus reports these if no driver accepted the device.
        libc::ENOTSUP | libc::ENODEV => {
            format!("no driver for the PCI device {address} ({device}): {}", not_built_in("its driver"))
        }
        _ => format!(
            "the PCI device {address} ({device}) was not added: {what}; is /dev/vfio open to this user?{says}"
        ),
    }
}

/// Whether this build contains the driver.
fn is_built_in(driver: &str) -> bool {
    sys::BUILT_IN.is_empty() || sys::BUILT_IN.split(',').any(|name| name == driver)
}

/// Says that a driver is missing, which ones there are, and how to add one.
fn not_built_in(driver: &str) -> String {
    if sys::BUILT_IN.is_empty() {
        return format!(
            "DPDK has loaded its drivers from the distribution's libraries, and {driver} is not among them"
        );
    }
    format!(
        "{driver} is not built in ({} are); build with DPDK_SYS_DRIVERS=NAME to add one that is installed, or with \
         DPDK_SYS_LINK=shared to use all that are",
        sys::BUILT_IN.replace(',', ", ")
    )
}

/// A PCI device, from sysfs.
struct PciDevice {
    /// `0x` and four hexadecimal digits, as in sysfs.
    vendor: String,
    id: String,
    /// The kernel driver that it is bound to.
    driver: Option<String>,
}

impl PciDevice {
    /// Finds the device with this address (with or without its domain). `None` if there is none.
    fn find(address: &str) -> Option<Self> {
        let of = |address: &str| Path::new("/sys/bus/pci/devices").join(address);
        let dirs = [of(address), of(&format!("0000:{address}"))];
        let dir: PathBuf = dirs.into_iter().find(|dir| dir.is_dir())?;
        let read = |file: &str| fs::read_to_string(dir.join(file)).map(|text| text.trim().to_owned()).ok();
        let driver = fs::read_link(dir.join("driver")).ok();
        let driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
        Some(Self { vendor: read("vendor")?, id: read("device")?, driver })
    }
}

impl core::fmt::Display for PciDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "vendor {}, device {}", self.vendor, self.id)
    }
}
