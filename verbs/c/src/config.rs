//! The configuration of the process's device: environment variables and their defaults.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `ROCE_PORT` | the port | `host`: the addresses and the network of this host, which all processes of a user share |
//! | `ROCE_ADDRS` | with `host`, the host addresses to use, `ADDR[,ADDR..]`, the same in all processes | those of other processes, or all |
//! | `ROCE_ADMIT` | with `host`, users whose processes may be part of this user's host, `USER[,USER..]`, the same in all processes | none |
//! | `ROCE_HOST_USER` | with `host`, the user whose host this process is to be part of, who admits it | the process's own |
//! | `ROCE_ADDR` | addresses, `ADDR[/PREFIX],...` | with `memif`, `unix` and `loopback` one of 10.77.0.0/24; `host` and `udp` take none |
//! | `ROCE_GATEWAY` | next hop for packets to other networks, `ADDR[,ADDR]` | none |
//! | `ROCE_VLAN` | VLAN ID | none |
//! | `ROCE_MAC` | Ethernet address | the port's own, or a random one |
//! | `ROCE_MTU` | bytes of the largest IP packet | 4200 |
//! | `ROCE_DRIVE` | `caller`, or `dedicated[:CORE,...]` | `caller` |
//! | `ROCE_SHARDS` | number of shards | 1 |
//! | `ROCE_STATS` | a socket, or a directory for it, from which `roce-stat` reads the counters | none |
//! | `ROCE_PCAP` | a file to which every frame is written | none |
//! | `ROCE_MEMORY` | `on-demand`: regions are on demand; if memory is unmapped too early, requests fail | `mapped` |
//! | `ROCE_KEEPALIVE` | seconds between checks whether the peer of an `rdma_cm` connection still has it; 0: never | 30 |
//! | `ROCE_LOG` | level of messages on standard error: `off`, `error`, `warn`, `info`, `debug` | `warn` |
//! | `ROCE_XRCD` | `process`: each process has its own XRC domain of a file | shared with `host`; with other ports, one process only |
//!
//! On a private link (`memif`, `unix`) without an address, the first process of a user that uses a port of that name gets 10.77.0.1, and
//! each further process the lowest free address: 10.77.0.2 for the second. Which of two processes is the first is arbitrary. Therefore each
//! of them reaches the other by either address, unless it listens itself (`Context::meet`).
//! one by either address, unless it listens itself (`Context::meet`).

use std::env;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use verbs::port::PortSpec;
use verbs::{Context, DeviceConfig, Drive, Gid, Mac};

use crate::claims::Claim;
use crate::errno::Errno;
use crate::log::{self, Log};

/// The configuration with which the device is opened.
pub(crate) struct Config {
    pub device: DeviceConfig,
    /// The claim of the process's number among those that use a port of that name.
    pub claim: Option<Claim>,
    /// The addresses of this process and of the other one, if they did not choose them.
    pub address_pair: Option<(IpAddr, IpAddr)>,
    /// Whether nothing outside of the process is used before the port starts.
    pub lazy: bool,
    /// Whether the port has no Ethernet address of its own, so that a random one is chosen.
    pub draws_mac: bool,
    /// Whether the port has links with other processes of the host.
    pub has_links: bool,
}

/// The network of the two ends of a private link.
const PRIVATE: [u8; 3] = [10, 77, 0];

/// Reads the environment.
///
/// # Errors
/// A text that names the variable and says what to do.
pub(crate) fn read() -> Result<Config, String> {
    let port = match env::var_os("ROCE_PORT") {
        None => PortSpec::Host { addrs: Vec::new(), options: Vec::new() },
        Some(_) => value::<PortSpec>("ROCE_PORT")?.unwrap_or(PortSpec::Loopback),
    };
    let port = match text("ROCE_ADDRS")? {
        Some(list) => port.or_addresses(&list).map_err(|why| format!("ROCE_ADDRS: {why}"))?,
        None => port,
    };
    let port = match has_more_rights_than_its_user() {
        false => port.or_users(text("ROCE_ADMIT")?.as_deref(), text("ROCE_HOST_USER")?.as_deref())?,
        true => port.without_users(),
    };
    let meets = matches!(port, PortSpec::Memif { .. } | PortSpec::Unix { .. } | PortSpec::Loopback);
    let lazy = matches!(
        port,
        PortSpec::Memif { .. } | PortSpec::Loopback | PortSpec::Tap { .. } | PortSpec::Vhost { .. }
    );
    let has_links = matches!(port, PortSpec::Host { .. });
    let draws_mac = lazy || has_links || matches!(port, PortSpec::Unix { .. } | PortSpec::Udp { .. });
    let mut device = DeviceConfig::default().mac(value::<Mac>("ROCE_MAC")?);
    device.addrs = list("ROCE_ADDR", address)?;
    for gateway in list("ROCE_GATEWAY", |text| text.parse::<IpAddr>().map_err(|e| e.to_string()))? {
        match gateway {
            IpAddr::V4(gateway) => device.gateway = Some(gateway),
            IpAddr::V6(gateway) => device.gateway6 = Some(gateway),
        }
    }
    let (mut claim, mut address_pair) = (None, None);
    if meets && device.addrs.is_empty() {
        // Without a directory for sockets nothing can be claimed, and the process takes the first address.
        let (number, claimed) = Claim::lowest_of(&port.to_string()).unzip();
        let [a, b, c] = PRIVATE;
        let addr = |number| IpAddr::V4(Ipv4Addr::new(a, b, c, number + 1));
        let number = number.unwrap_or(0);
        device.addrs = vec![(addr(number), 24)];
        if number < 2 && !matches!(port, PortSpec::Loopback) {
            address_pair = Some((addr(number), addr(1 - number)));
        }
        claim = claimed;
    }
    device.vlan = value("ROCE_VLAN")?;
    device.mtu = value("ROCE_MTU")?.unwrap_or(device.mtu);
    device.shards = value("ROCE_SHARDS")?.unwrap_or(1);
    device.drive = value::<DriveValue>("ROCE_DRIVE")?.map_or(Drive::Caller, |drive| drive.0);
    let on_demand = value::<Memory>("ROCE_MEMORY")? == Some(Memory::OnDemand);
    ON_DEMAND.store(on_demand, Ordering::Relaxed);
    KEEP_ALIVE.store(value::<u32>("ROCE_KEEPALIVE")?.map_or(UNSET, u64::from), Ordering::Relaxed);
    device.stats = env::var_os("ROCE_STATS").map(PathBuf::from);
    device.pcap = env::var_os("ROCE_PCAP").map(PathBuf::from);
    // The process may start before the peer on its link.
    device.assume_link = meets;
    device.port = port.into();
    Ok(Config { device, claim, address_pair, lazy, draws_mac, has_links })
}

/// Prints once what to change if a program names an address of the private link `memif`, which was the default port before `host`, and the
/// device has no such address.
pub(crate) fn warn_of_private_link(addr: IpAddr, device: impl FnOnce() -> Result<Arc<Context>, Errno>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let of_link = matches!(addr, IpAddr::V4(addr) if addr.octets()[..3] == PRIVATE);
    if of_link
        && env::var_os("ROCE_PORT").is_none()
        && device().is_ok_and(|device| !device.gid_table().contains(&Gid::from_ip(addr)))
    {
        log::say_once(
            &SAID,
            format_args!(
                "{addr} is an address of the private link memif, which was the port where ROCE_PORT names none; that is host now, with the \
             addresses of this host: use one of these, or ROCE_PORT=memif (roce-run --port memif) at both ends"
            ),
        );
    }
}

/// The level of messages on standard error.
///
/// # Errors
/// A text that names the variable and says what to do.
pub(crate) fn log() -> Result<Log, String> {
    Ok(value("ROCE_LOG")?.unwrap_or_default())
}

/// The value of `ROCE_MEMORY` when the device was opened.
static ON_DEMAND: AtomicBool = AtomicBool::new(false);

/// The value of `ROCE_KEEPALIVE` when the device was opened, in seconds.
static KEEP_ALIVE: AtomicU64 = AtomicU64::new(UNSET);
const UNSET: u64 = u64::MAX;

/// How often peers are asked whether they still have their connections; `None` if the user has not set it.
pub(crate) fn keep_alive() -> Option<Duration> {
    Some(KEEP_ALIVE.load(Ordering::Relaxed)).filter(|time| *time != UNSET).map(Duration::from_secs)
}

/// Whether every region is registered on demand.
pub(crate) fn memory_on_demand() -> bool {
    ON_DEMAND.load(Ordering::Relaxed)
}

/// Whether each process has XRC domains of its own, as if it were on its own host.
pub(crate) fn each_process_is_a_host() -> bool {
    env::var_os("ROCE_XRCD").is_some_and(|value| value == "process")
}

/// Whether this program runs with rights that its user does not have (set-user-ID): whom it admits is not for that user to say.
fn has_more_rights_than_its_user() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The text of a variable; `None` if it is not set.
fn text(name: &str) -> Result<Option<String>, String> {
    match env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(format!("{name} is no UTF-8 text")),
    }
}

/// The parsed value of a variable; `None` if it is not set.
fn value<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    let Some(text) = text(name)? else { return Ok(None) };
    text.parse().map(Some).map_err(|why| format!("{name}={text}: {why}"))
}

/// The values of a comma-separated variable; empty if it is not set.
fn list<T>(name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let Some(text) = text(name)? else { return Ok(Vec::new()) };
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| parse(part).map_err(|why| format!("{name}={text}: {part:?}: {why}"))).collect()
}

/// Parses `ADDR[/PREFIX]`. The default prefix is 24 bits for IPv4 and 64 for IPv6.
fn address(text: &str) -> Result<(IpAddr, u8), String> {
    let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
    let addr: IpAddr = addr.parse().map_err(|why| format!("{why}; write ADDR or ADDR/PREFIX"))?;
    let usual = if addr.is_ipv4() { 24 } else { 64 };
    let prefix = prefix.map_or(Ok(usual), str::parse).map_err(|why| format!("the prefix: {why}"))?;
    Ok((addr, prefix))
}

struct DriveValue(Drive);

impl FromStr for DriveValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("caller", "") => Ok(Self(Drive::Caller)),
            ("dedicated", cores) => {
                let cores = cores.split(',').filter(|core| !core.is_empty()).map(str::parse);
                let cores = cores.collect::<Result<_, _>>().map_err(|why| format!("a core: {why}"))?;
                Ok(Self(Drive::Dedicated { cores }))
            }
            _ => Err("it is caller, dedicated, or dedicated:CORE,...".into()),
        }
    }
}

/// How memory regions are registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Mapped,
    OnDemand,
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mapped" => Ok(Self::Mapped),
            "on-demand" => Ok(Self::OnDemand),
            _ => Err("it is mapped, or on-demand".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_or_refused_with_a_sentence() {
        assert_eq!(address("10.1.2.3").unwrap(), ("10.1.2.3".parse().unwrap(), 24));
        assert_eq!(address("fd00::1/48").unwrap(), ("fd00::1".parse().unwrap(), 48));
        assert!(address("eth0").unwrap_err().contains("write ADDR"));
        assert!(address("10.0.0.1/x").unwrap_err().contains("prefix"));
        let drive = |text: &str| text.parse::<DriveValue>().map(|drive| drive.0);
        assert_eq!(drive("caller"), Ok(Drive::Caller));
        assert_eq!(drive("dedicated:0,3"), Ok(Drive::Dedicated { cores: vec![0, 3] }));
        assert_eq!("on-demand".parse(), Ok(Memory::OnDemand));
        assert!("pinned".parse::<Memory>().unwrap_err().contains("on-demand"));
        assert!(drive("dedicated:x").is_err() && drive("spin").is_err());
    }
}
