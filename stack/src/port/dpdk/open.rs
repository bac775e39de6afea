//! Opens the DPDK device of a [`PortSpec`]: first checks for failures that DPDK would not explain, then takes the steps in DPDK.

use super::drivers;
use super::eal::{self, Eal, errno_text, last_log};
use super::iface::Iface;
use super::port::DpdkPort;
use super::shared::{Device, Pool, Shared};
use crate::id::Mac;
use crate::port::counters::Counters;
use crate::port::error::PortError;
use crate::port::info::{L2_OVERHEAD, PortInfo, PortOptions};
use crate::port::peers::Peers;
use crate::port::socket_file::DirLock;
use crate::port::spec::PortSpec;
use crate::port::traits::Port;
use crate::port::{lazy, socket_file};
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use dpdk_sys as sys;
use rustix::fs::Mode;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// Entries of a device's rings, unless the device prefers another number.
const RING: u16 = 1024;

/// The most bytes that drivers add to an L3 packet: Ethernet header, two VLAN tags, frame checksum, virtio header. With less room a driver
/// refuses the buffers, or receives a frame in several segments.
const OVERHEAD: usize = 14 + 8 + 4 + 12;
/// Sizes of receive buffers are multiples of this (i40e, ice): a driver does not use the rest.
const ROOM_UNIT: usize = 128;

/// What a specification asks of DPDK.
#[derive(Debug)]
struct DeviceRequest {
    bus: &'static str,
    name: String,
    args: String,
    /// Data room of an mbuf, in bytes.
    room: usize,
    mtu: usize,
    /// The port's Ethernet address, which is set in the device where possible; `None`: the device's own.
    mac: Option<Mac>,
    /// The Linux interface below, if there is one.
    iface: Option<String>,
    /// Whether the device makes that interface. The interface gets an address of its own, which must differ from the port's.
    makes_iface: bool,
    /// Whether to set the device's MTU.
    set_mtu: bool,
    /// Whether every user may connect to a socket that the device makes; else only our user and root.
    any_user: bool,
    /// Lock of the directory in which the device will make its socket.
    _dir_lock: Option<DirLock>,
}

impl DeviceRequest {
    /// The request for a virtual device, without a name yet.
    fn new(port: &PortOptions) -> Self {
        Self {
            bus: "vdev",
            name: String::new(),
            args: String::new(),
            room: (port.mtu + OVERHEAD).next_multiple_of(ROOM_UNIT),
            mtu: port.mtu,
            mac: port.mac,
            iface: None,
            makes_iface: false,
            set_mtu: true,
            any_user: false,
            _dir_lock: None,
        }
    }
}

/// Opens a DPDK port.
pub(in crate::port) fn open(spec: &PortSpec, options: &PortOptions) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let request = request_of(spec, options).map_err(fail)?;
    // With its options: EAL probes the PCI device of the first port when it starts.
    let pci = (request.bus == "pci").then(|| match request.args.as_str() {
        "" => request.name.clone(),
        args => format!("{},{args}", request.name),
    });
    let eal = Eal::get(pci.as_deref())?;
    if pci.is_some() && !eal.pci {
        return Err(fail(
            "DPDK runs without PCI in this process, as its first port was none: open the PCI port first"
                .into(),
        ));
    }
    let queues = options.queues;
    let frames = options.frames;
    let device = Device { eal, bus: request.bus, name: request.name.clone() };
    let name = spec.to_string();
    let opened = eal.call(move || {
        eal::forget_log();
        steps(device, &request, queues, frames).map(|(shared, mac, mtu)| {
            let info = PortInfo { name, mac, mtu, queues, message: 0 };
            DpdkPort::new(info, shared)
        })
    });
    Ok(Box::new(opened.map_err(fail)?))
}

/// An MTU that every tap carries. Taps of DPDK 22.11 carry no more; later ones do, which is known only once the device is open.
const TAP_MTU: usize = 1500;

/// Opens a DPDK port. If its address and MTU are known beforehand, its device is opened only when the port is started.
pub(in crate::port) fn open_lazy(spec: &PortSpec, options: &PortOptions) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    // Made only for its errors. It is made again at the start, as much may change until then.
    let request = request_of(spec, options).map_err(fail)?;
    let Some(mac) = chosen_address(spec, &request) else { return open(spec, options) };
    let mtu = if request.makes_iface { request.mtu.min(TAP_MTU) } else { request.mtu };
    let info = PortInfo { name: spec.to_string(), mac, mtu, queues: options.queues, message: 0 };
    Ok(lazy::later(info, spec, options))
}

/// The address that a port will have, if we choose it; `None` for devices with an address of their own.
fn chosen_address(spec: &PortSpec, request: &DeviceRequest) -> Option<Mac> {
    match spec {
        PortSpec::Tap { .. } | PortSpec::Vhost { .. } => request.mac,
        PortSpec::Dpdk { .. } if request.bus == "vdev" => {
            let given = request.args.split(',').find_map(|arg| arg.strip_prefix("mac="));
            request.mac.or(given.and_then(|mac| mac.parse().ok()).filter(Mac::is_unicast))
        }
        _ => None,
    }
}

/// Makes two ports joined by rings of DPDK (`net_ring`). Each is an Ethernet device like any other, but its driver does no work of its own:
/// for tests, and to count the instructions of the path through ethdev.
///
/// # Errors
/// [`PortError::Options`], [`PortError::Eal`], and [`PortError::Open`] if memory is short.
pub fn ring_pair(options: &PortOptions) -> Result<[Box<dyn Port>; 2], PortError> {
    options.check()?;
    let eal = Eal::get(None)?;
    let pair = number();
    let ends = ["a", "b"].map(|end| format!("roce{pair}{end}"));
    let PortOptions { queues, frames, mtu, .. } = *options;
    let mut request = DeviceRequest::new(options);
    request.set_mtu = false;
    let opened = eal.call(move || {
        eal::forget_log();
        Pool::reap();
        let [a, b] = [c_string(&ends[0])?, c_string(&ends[1])?];
        // SAFETY: terminated strings that DPDK copies.
        let ret = unsafe { sys::dpdk_sys_ring_pair(a.as_ptr(), b.as_ptr(), queues as u16, u32::from(RING)) };
        if ret != 0 {
            return Err(format!("no rings were made: {}{}", errno_text(ret), last_log()));
        }
        let mut open = |end: &str| -> Result<Box<dyn Port>, String> {
            let name = format!("net_ring_{end}");
            let device = Device { eal, bus: request.bus, name: name.clone() };
            request.name.clone_from(&name);
            request.mac = Some(Mac::random());
            let (shared, mac, _) = set_up(device, &request, queues, frames)?;
            let info = PortInfo { name, mac, mtu, queues, message: 0 };
            Ok(Box::new(DpdkPort::new(info, shared)))
        };
        Ok([open(&ends[0])?, open(&ends[1])?])
    });
    opened.map_err(|reason| PortError::Open { port: "net_ring".into(), reason })
}

/// Adds the device, configures it and starts it, on DPDK's thread.
fn steps(
    device: Device,
    request: &DeviceRequest,
    queues: usize,
    frames: usize,
) -> Result<(Arc<Shared>, Mac, usize), String> {
    Pool::reap();
    let name = c_string(&request.name)?;
    let bus = c_string(device.bus)?;
    let args = c_string(&request.args)?;
    // Sets the umask of DPDK's thread alone.
    if eal::set_umask(if request.any_user { Mode::empty() } else { Mode::RWXG | Mode::RWXO }).is_err() {
        tracing::warn!("{}: the socket's permissions are those of this process's umask", request.name);
    }
    // SAFETY: terminated strings that DPDK copies.
    let ret = unsafe { sys::dpdk_sys_hotplug_add(bus.as_ptr(), name.as_ptr(), args.as_ptr()) };
    if ret != 0 {
        // Nothing was added, so there is nothing to remove.
        let eal = device.eal;
        core::mem::forget(device);
        return Err(match request.bus {
            "pci" => drivers::pci_not_added(&request.name, ret),
            _ => drivers::virtual_not_added(&request.name, ret, eal),
        });
    }
    set_up(device, request, queues, frames)
}

/// Configures and starts a device that was added.
fn set_up(
    device: Device,
    request: &DeviceRequest,
    queues: usize,
    frames: usize,
) -> Result<(Arc<Shared>, Mac, usize), String> {
    let name = c_string(&request.name)?;
    // SAFETY: a terminated string.
    let port = unsafe { sys::dpdk_sys_port_by_name(name.as_ptr()) };
    let Ok(port) = u16::try_from(port) else {
        return Err(format!("the device {} made no Ethernet port: name an Ethernet device", request.name));
    };

    // SAFETY: an all-zero value of this plain structure is valid.
    let mut limits: sys::dpdk_sys_limits = unsafe { core::mem::zeroed() };
    // SAFETY: the port exists; the structure is ours.
    let ret = unsafe { sys::dpdk_sys_port_limits(port, &raw mut limits) };
    if ret != 0 {
        return Err(format!("the device does not say what it can do: {}{}", errno_text(ret), last_log()));
    }
    let most = usize::from(limits.max_rx_queues.min(limits.max_tx_queues));
    if queues > most {
        return Err(format!("the device has {most} queues, not {queues}: use fewer shards"));
    }

    let ring = |preferred: u16| if preferred == 0 { RING } else { preferred };
    let (mut rx_ring, mut tx_ring) = (ring(limits.rx_ring), ring(limits.tx_ring));
    let buffers = queues * (frames + usize::from(rx_ring) + usize::from(tx_ring));
    let room = request.room.max(limits.min_rx_room as usize);
    let pool = pool(device.eal, buffers, room)?;
    let mut stage = core::ptr::null();
    // SAFETY: the port exists and is stopped; the pool outlives it (see `Shared`).
    let ret = unsafe {
        sys::dpdk_sys_port_setup(
            port,
            queues as u16,
            request.mtu as u32,
            &raw mut rx_ring,
            &raw mut tx_ring,
            pool.as_ptr(),
            &raw mut stage,
        )
    };
    if ret != 0 {
        // SAFETY: the shim set it to a literal.
        let stage = unsafe { CStr::from_ptr(stage) }.to_string_lossy();
        return Err(format!("{stage} failed: {}{}", errno_text(ret), last_log()));
    }

    let mac = address(port, request.mac);
    let mut mtu = request.mtu;
    if request.set_mtu {
        // SAFETY: the port exists. A software device without the call carries what its buffers hold; a NIC and
        // net_tap refuse longer frames than theirs.
        let ret = unsafe { sys::dpdk_sys_port_set_mtu(port, mtu as u32) };
        if ret != 0 && (request.bus == "pci" || request.makes_iface) {
            let mut has = 0;
            // SAFETY: the port exists; the number is ours.
            if unsafe { sys::dpdk_sys_port_get_mtu(port, &raw mut has) } == 0 {
                mtu = mtu.min(has as usize);
                tracing::warn!("{} carries an MTU of {mtu} at most", request.name);
            }
        }
    }
    // SAFETY: the port exists. Devices that do not support promiscuous mode receive all frames anyway.
    let _ = unsafe { sys::dpdk_sys_port_promiscuous(port) };

    let iface = request.iface.as_deref().map(Iface::find).transpose()?;
    let counters = (0..queues).map(|_| Counters::default()).collect();
    let longest = AtomicU32::new((mtu + L2_OVERHEAD) as u32);
    // From here until `Shared` has the ids nothing fails.
    // SAFETY: runs on DPDK's thread; the ids go back when the port does.
    let lcores = (0..queues).map(|_| unsafe { sys::dpdk_sys_lcore_reserve() }).collect();
    let shared = Arc::new(Shared { port, mtu, longest, iface, lcores, counters, device, pool });
    let ret = shared.start();
    if ret != 0 {
        return Err(format!("the device does not start: {}{}", errno_text(ret), last_log()));
    }
    if let Some(iface) = shared.iface.as_ref().filter(|_| request.makes_iface) {
        tell_apart(iface, mac);
    }
    Ok((shared, mac, mtu))
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "there is a NUL in it".to_owned())
}

fn pool(eal: &Eal, buffers: usize, room: usize) -> Result<Pool, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = c_string(&format!("roce_{}", NUMBER.fetch_add(1, Ordering::Relaxed)))?;
    let mut error = 0;
    // SAFETY: a terminated name; the numbers are bounded by the options' checks.
    let pool =
        unsafe { sys::dpdk_sys_pool_create(name.as_ptr(), buffers as u32, room as u32, &raw mut error) };
    match NonNull::new(pool) {
        // SAFETY: made just now.
        Some(pool) => Ok(unsafe { Pool::new(pool) }),
        None => {
            let mib = buffers * (room + 512) / (1 << 20) + 1;
            let remedy = if eal.huge {
                "reserve more huge pages (sysctl vm.nr_hugepages=512) or ask for fewer frames"
            } else {
                "raise EalOptions::memory_mib, reserve huge pages (sysctl vm.nr_hugepages=512) or ask for fewer frames"
            };
            Err(format!("no memory for {buffers} buffers, {mib} MiB ({}): {remedy}", errno_text(error)))
        }
    }
}

/// The port's address: `wanted`, which is set in the device if possible, or the device's own.
fn address(port: u16, wanted: Option<Mac>) -> Mac {
    let mut mac = Mac::default();
    if let Some(wanted) = wanted {
        // SAFETY: the port exists; six bytes. Software devices need not support this: they receive every frame.
        let _ = unsafe { sys::dpdk_sys_port_set_mac(port, wanted.0.as_ptr()) };
        return wanted;
    }
    // SAFETY: the port exists; six bytes.
    unsafe { sys::dpdk_sys_port_get_mac(port, mac.0.as_mut_ptr()) };
    mac
}

/// Gives the Linux interface another address: net_tap gives it the port's, and a bridge would then not forward the port's frames.
fn tell_apart(iface: &Iface, port: Mac) {
    let mut other = port;
    other.0[0] |= 2;
    other.0[5] ^= 0x80;
    // On failure the interface works, but not in a bridge.
    if let Err(error) = iface.set_mac(other) {
        let name = &iface.name;
        tracing::warn!("{name} keeps the port's own address and will not work in a bridge: {error}");
    }
}

/// Returns a number that no other device of this process has.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

fn request_of(spec: &PortSpec, port: &PortOptions) -> Result<DeviceRequest, String> {
    let max_frame = port.mtu + L2_OVERHEAD;
    let mut request = DeviceRequest::new(port);
    match spec {
        PortSpec::Tap { iface, options } => {
            tap_possible(iface)?;
            let mac = port.mac.unwrap_or_else(Mac::random);
            request.mac = Some(mac);
            request.name = format!("net_tap{}", number());
            request.args = format!("iface={iface},mac={mac}");
            more(&mut request.args, options, &["remote"])?;
            request.iface = Some(iface.clone());
            request.makes_iface = true;
        }
        PortSpec::AfPacket { iface, options } => {
            let mtu = interface_mtu(iface)?;
            if !capable(CAP_NET_RAW) {
                return Err("raw sockets need CAP_NET_RAW: run as root or grant the capability".into());
            }
            request.iface = Some(iface.clone());
            request.mtu = request.mtu.min(mtu);
            request.set_mtu = false;
            request.name = format!("net_af_packet{}", number());
            // A slot holds the kernel's header and then the frame, and the driver copies whole slots.
            let slot = (max_frame + 128).next_power_of_two().max(2048);
            request.room = slot;
            let given = |key: &str| options.iter().any(|(k, _)| k == key);
            request.args = format!("iface={iface},qpairs={}", port.queues);
            for (key, value) in [("framesz", slot), ("blocksz", slot.max(4096)), ("framecnt", 512)] {
                if !given(key) {
                    request.args.push_str(&format!(",{key}={value}"));
                }
            }
            more(
                &mut request.args,
                options,
                &["framesz", "blocksz", "framecnt", "qdisc_bypass", "fanout_mode"],
            )?;
        }
        PortSpec::Vhost { path, options } => {
            let path = socket_file::absolute(path)?;
            let mut peers = Peers::default();
            let (users, options): (Vec<_>, Vec<_>) =
                options.iter().cloned().partition(|(key, _)| key == "peer-uid");
            users.iter().try_for_each(|(_, user)| peers.take(user))?;
            if options.iter().any(|(key, value)| key == "client" && value == "1") {
                socket_file::belongs_to(Path::new(&path), &peers)?;
            } else {
                // DPDK does not report who connects: only the socket's permissions keep others away.
                request.any_user = peers == Peers::Any;
                if !users.is_empty() && !request.any_user {
                    return Err("who connects is not known here: peer-uid=any lets every user do so".into());
                }
                request._dir_lock = Some(socket_file::lock_and_clear_for_dpdk(Path::new(&path))?);
            }
            request.mac = Some(port.mac.unwrap_or_else(Mac::random));
            request.name = format!("net_vhost{}", number());
            request.args = format!("iface={path},queues={}", port.queues);
            more(
                &mut request.args,
                &options,
                &[
                    "client",
                    "iommu-support",
                    "postcopy-support",
                    "tso",
                    "linear-buffer",
                    "ext-buffer",
                    "legacy-ol-flags",
                ],
            )?;
        }
        PortSpec::Dpdk { devargs } => {
            let (name, args) = devargs.split_once(',').unwrap_or((devargs, ""));
            request.args = args.into();
            match pci_address(name) {
                Some(address) => {
                    if !Path::new("/sys/bus/pci/devices").join(&address).exists() {
                        return Err(format!("there is no PCI device {address}: see lspci -D"));
                    }
                    request.bus = "pci";
                    request.name = address;
                }
                None => request.name = name.into(),
            }
        }
        PortSpec::Loopback
        | PortSpec::Unix { .. }
        | PortSpec::Memif { .. }
        | PortSpec::Udp { .. }
        | PortSpec::Host { .. } => {
            return Err("this port does not use DPDK".into());
        }
    }
    Ok(request)
}

/// Appends options to `args`. Refuses those that are not in `known`: DPDK's own message for them is of little help.
fn more(args: &mut String, options: &[(String, String)], known: &[&str]) -> Result<(), String> {
    for (key, value) in options {
        if !known.contains(&key.as_str()) {
            return Err(format!("there is no option {key}; the options are {}", known.join(", ")));
        }
        args.push_str(&format!(",{key}={value}"));
    }
    Ok(())
}

/// The full PCI address, if the text is one: `03:00.0` or `0000:03:00.0`.
fn pci_address(text: &str) -> Option<String> {
    let (bus, function) = text.rsplit_once('.')?;
    let hex = |part: &str, most: usize| {
        !part.is_empty() && part.len() <= most && part.chars().all(|c| c.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = bus.split(':').collect();
    let (domain, bus, device) = match *parts.as_slice() {
        [bus, device] => ("0000", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    (hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
        .then(|| format!("{domain:0>4}:{bus:0>2}:{device:0>2}.{function}").to_lowercase())
}

/// Bits of a capability set (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;

/// Whether the process has the capability; true if that is unknown.
fn capable(bit: u32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let Some(line) = status.lines().find_map(|line| line.strip_prefix("CapEff:")) else { return true };
    u64::from_str_radix(line.trim(), 16).map_or(true, |set| set >> bit & 1 == 1)
}

fn tap_possible(iface: &str) -> Result<(), String> {
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        return Err(match error.kind() {
            std::io::ErrorKind::NotFound => "there is no /dev/net/tun: load it with modprobe tun".into(),
            std::io::ErrorKind::PermissionDenied => {
                "/dev/net/tun may not be opened: run as root or allow it".into()
            }
            _ => format!("/dev/net/tun cannot be opened: {error}"),
        });
    }
    if !capable(CAP_NET_ADMIN) {
        return Err("network interfaces need CAP_NET_ADMIN: run as root or grant the capability".into());
    }
    let existing = Path::new("/sys/class/net").join(iface);
    if existing.exists() && !existing.join("tun_flags").exists() {
        return Err(format!(
            "{iface} exists and is no tap interface: choose another name, or use af_packet:{iface}"
        ));
    }
    Ok(())
}

fn interface_mtu(iface: &str) -> Result<usize, String> {
    let file = Path::new("/sys/class/net").join(iface).join("mtu");
    match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().map_err(|_| format!("{} has no number", file.display())),
        Err(_) => Err(format!("there is no network interface {iface}: see ip link")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(text: &str) -> Result<DeviceRequest, String> {
        request_of(&text.parse().unwrap(), &PortOptions::default())
    }

    #[test]
    fn pci_addresses_differ_from_names() {
        assert_eq!(pci_address("3:0.1").as_deref(), Some("0000:03:00.1"));
        assert_eq!(pci_address("0000:AF:00.0").as_deref(), Some("0000:af:00.0"));
        for name in ["net_ring0", "net_pcap0.1", "a:b:c:d.0", "03:00", ".0", "::.0"] {
            assert_eq!(pci_address(name), None, "{name}");
        }
    }

    #[test]
    fn devices_that_are_not_there() {
        let error = requested("af_packet:nosuchif0").unwrap_err();
        assert_eq!(error, "there is no network interface nosuchif0: see ip link");
        let error = requested("dpdk:ffff:ff:1f.7").unwrap_err();
        assert_eq!(error, "there is no PCI device ffff:ff:1f.7: see lspci -D");
    }
}
