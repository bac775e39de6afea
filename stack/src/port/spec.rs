//! Specifications of ports: from text to [`PortSpec`] and back.

use super::error::PortError;
use super::socket_file::PATH_MAX;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use std::path::PathBuf;

/// Which end of a memif socket a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens on the socket.
    Server,
    /// Connects to the socket.
    Client,
}

/// Names a port and its options. Parsed from text, and displayed as text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortSpec {
    /// `loopback`: what is sent is received.
    Loopback,
    /// `unix:LOCAL,peer=REMOTE[,peer-uid=USER|any]`: one Ethernet frame in each datagram of a unix socket.
    Unix {
        /// Our socket.
        local: PathBuf,
        /// The peer's socket.
        peer: PathBuf,
        /// `peer-uid=`: a user whose datagrams are accepted, besides our own and root; or `any`.
        options: Vec<(String, String)>,
    },
    /// `memif:PATH[,role=server|client][,OPTION=VALUE..]`: shared memory between two processes (memif protocol 2.0).
    ///
    /// Without a role, the end that finds no process listening on PATH becomes the server. `memif` without a path meets at
    /// `memif.sock` in the user's [runtime directory](crate::runtime::dir).
    Memif {
        /// The socket by which the ends find each other; empty for `memif.sock`.
        path: PathBuf,
        /// Which end this is.
        role: Option<MemifRole>,
        /// More options: `rsize=11` (2^11 slots in each ring), `bsize=9000` (bytes of a buffer), `id=`, `secret=`, `owner-uid=`,
        /// `owner-gid=` (of the socket), `peer-uid=` (a user whose processes may be the peer, besides our own, root and the owner; or
        /// `any`).
        options: Vec<(String, String)>,
    },
    /// `tap:IFACE[,OPTION=VALUE..]`: a Linux network interface of that name is made (DPDK net_tap).
    Tap {
        /// The interface that appears.
        iface: String,
        /// More options of net_tap.
        options: Vec<(String, String)>,
    },
    /// `af_packet:IFACE[,OPTION=VALUE..]`: an existing Linux network interface (DPDK net_af_packet).
    AfPacket {
        /// The interface.
        iface: String,
        /// More options of net_af_packet.
        options: Vec<(String, String)>,
    },
    /// `vhost:PATH[,OPTION=VALUE..]`: a QEMU guest with virtio-net over vhost-user (DPDK net_vhost).
    Vhost {
        /// The vhost-user socket.
        path: PathBuf,
        /// More options of net_vhost, and `peer-uid=any`: every user may connect, not only our own and root. As the client (`client=1`),
        /// `peer-uid=USER` accepts a socket that this user made.
        options: Vec<(String, String)>,
    },
    /// `udp:[ADDR,..][OPTION=VALUE,..]`: UDP sockets on these addresses of the host, or on all that it has.
    Udp {
        /// The addresses; empty for all.
        addrs: Vec<IpAddr>,
        /// More options: `gso=on|off` (whether consecutive datagrams to one peer are sent as one message and segmented later, UDP_SEGMENT;
        /// by default only if the IPv4 identifications of the segments are known); `buffer=BYTES` (requested size of each socket buffer,
        /// 16384 to 2^30, by default up to 4 MiB; the system's limit may be less); `flows=N` (number of UDP source ports for connections, 0
        /// to 64, by default 64; with 0 every packet is sent from port 4791).
        options: Vec<(String, String)>,
    },
    /// `host[:ADDR,..][OPTION=VALUE,..]`: the device of the host, which all processes of a user share: UDP sockets on these addresses of
    /// the host, or on all that it has, and links of shared memory between the processes.
    Host {
        /// The addresses, at most four, the same for all processes of the user. Empty: those that the other processes have; for the first
        /// process, all addresses of the host.
        addrs: Vec<IpAddr>,
        /// More options: those of [`Udp`](Self::Udp); `admit=UID[+UID..]` (users whose processes may be part of this user's host);
        /// `owner=UID` (the user whose host this process is to be part of, if that one admits it).
        options: Vec<(String, String)>,
    },
    /// `dpdk:DEVARGS`: any DPDK device, a virtual one with its arguments or a PCI address.
    Dpdk {
        /// The device, as given to EAL's `--vdev` or `--allow`.
        devargs: String,
    },
}

/// An address of the host, as a device over the port has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostAddress {
    /// The address.
    pub addr: IpAddr,
    /// Name of its network interface; empty if no interface has the address at present.
    pub iface: String,
    /// Whether the interface is up and has a carrier.
    pub up: bool,
    /// Whether one call can send many datagrams by this interface, because the kernel segments them and not a device.
    pub segments: bool,
}

impl PortSpec {
    /// Name of the Linux network interface of a `tap` or `af_packet` port; `None` for other ports.
    pub fn iface(&self) -> Option<&str> {
        match self {
            Self::Tap { iface, .. } | Self::AfPacket { iface, .. } => Some(iface),
            _ => None,
        }
    }

    /// Returns this specification. If it is `host` without addresses, it gets those of a list, `ADDR[,ADDR..]`, which programs read from
    /// the variable `ROCE_ADDRS`.
    ///
    /// # Errors
    /// [`PortError::Spec`] if the list contains anything else than addresses of a host.
    pub fn or_addresses(self, list: &str) -> Result<Self, PortError> {
        let Self::Host { addrs, options } = self else { return Ok(self) };
        if !addrs.is_empty() {
            return Ok(Self::Host { addrs, options });
        }
        let fail = |reason| PortError::Spec { spec: format!("host:{list}"), reason };
        match addresses("host", list).map_err(fail)? {
            (addrs, more) if more.is_empty() => Ok(Self::Host { addrs, options }),
            _ => Err(fail("options are no addresses".into())),
        }
    }
}

/// The options of the port `host` that name users.
const ADMIT: &str = "admit";
const OWNER: &str = "owner";

impl PortSpec {
    /// Returns this specification. If it is `host` and names no such users itself, it gets those that the processes of the host admit,
    /// `USER[,USER..]` by name or number, and the one whose host it is: programs read them from the variables `ROCE_ADMIT` and
    /// `ROCE_HOST_USER`.
    ///
    /// # Errors
    /// A sentence that names the variable, if there is no such user.
    pub fn or_users(mut self, admit: Option<&str>, owner: Option<&str>) -> Result<Self, String> {
        let Self::Host { options, .. } = &mut self else { return Ok(self) };
        let lists =
            [(ADMIT, "ROCE_ADMIT", admit), (OWNER, "ROCE_HOST_USER", owner.filter(|user| !user.is_empty()))];
        for (key, variable, list) in lists {
            let is_named = options.iter().any(|(other, _)| other == key);
            let users = list.unwrap_or_default().split(',').filter(|user| !user.is_empty());
            let users = users.map(|user| crate::registry::user(user).map(|uid| uid.to_string()));
            let users: Vec<String> =
                users.collect::<Result<_, _>>().map_err(|why| format!("{variable}: {why}"))?;
            if key == OWNER && users.len() > 1 {
                return Err(format!("{variable}: a process is part of one user's host; name one user"));
            }
            if !is_named && !users.is_empty() {
                options.push((key.into(), users.join("+")));
            }
        }
        Ok(self)
    }

    /// Returns this specification without users that it names: for programs with more rights than whoever wrote it.
    pub fn without_users(mut self) -> Self {
        if let Self::Host { options, .. } = &mut self {
            options.retain(|(key, _)| key != ADMIT && key != OWNER);
        }
        self
    }

    /// The user whose host a port of this specification is part of; `None`: that of the process.
    pub fn owner(&self) -> Option<u32> {
        self.users(OWNER).first().copied()
    }

    /// Users whose processes a port of this specification admits to its host, besides the owner and the user of the process.
    pub fn admits(&self) -> Vec<u32> {
        self.users(ADMIT)
    }

    fn users(&self, key: &str) -> Vec<u32> {
        let Self::Host { options, .. } = self else { return Vec::new() };
        let value = options.iter().find(|(other, _)| other == key).map_or("", |(_, value)| value);
        numbers(value).unwrap_or_default()
    }
}

/// Numbers of users with a plus sign between them.
fn numbers(users: &str) -> Option<Vec<u32>> {
    // The last number stands for no user.
    users.split('+').map(|user| user.parse().ok().filter(|uid| *uid != u32::MAX)).collect()
}

/// The forms, for messages.
const FORMS: &str = "loopback, unix:LOCAL,peer=REMOTE, memif, memif:PATH, host, host:ADDR, udp, udp:ADDR, tap:IFACE, af_packet:IFACE, vhost:PATH, dpdk:DEVARGS";

impl FromStr for PortSpec {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        parse(text).map_err(|reason| PortError::Spec { spec: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<PortSpec, String> {
    // Neither the kernel nor DPDK accepts such a text, and neither reports why.
    if text.contains('\0') {
        return Err("there is a NUL in it".into());
    }
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "loopback" if rest.is_empty() => return Ok(PortSpec::Loopback),
        "loopback" => return Err("loopback takes no arguments".into()),
        "udp" => return addresses("udp", rest).map(|(addrs, options)| PortSpec::Udp { addrs, options }),
        "host" => return addresses("host", rest).map(|(addrs, options)| PortSpec::Host { addrs, options }),
        "unix" | "memif" | "tap" | "af_packet" | "vhost" | "dpdk" => {}
        _ => return Err(format!("no such kind of port; there are {FORMS}")),
    }
    if kind == "dpdk" {
        return match rest {
            "" => Err("a device is missing, as in dpdk:net_ring0 or dpdk:0000:03:00.0".into()),
            devargs => Ok(PortSpec::Dpdk { devargs: devargs.into() }),
        };
    }
    let mut parts = rest.split(',');
    let first = parts.next().unwrap_or_default();
    let mut options = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                if options.iter().any(|(k, _)| k == key) {
                    return Err(format!("option {key:?} is there twice"));
                }
                options.push((key.to_owned(), value.to_owned()));
            }
            _ => return Err(format!("{part:?} is not an option; options are written NAME=VALUE")),
        }
    }
    let mut take = |key: &str| options.iter().position(|(k, _)| k == key).map(|i| options.remove(i).1);
    match kind {
        "unix" => {
            let peer = take("peer").ok_or("the peer's socket is missing: unix:LOCAL,peer=REMOTE")?;
            if let Some((key, _)) = options.iter().find(|(key, _)| key != "peer-uid") {
                return Err(format!("a unix port has no option {key:?}; only peer=PATH and peer-uid=USER"));
            }
            // Compared as paths: /tmp//a is /tmp/a.
            let (local, peer) = (socket(first)?, socket(&peer)?);
            if local == peer {
                return Err("the local socket and the peer's are the same; each end needs its own".into());
            }
            Ok(PortSpec::Unix { local, peer, options })
        }
        "memif" => {
            let role = match take("role").as_deref() {
                None => None,
                Some("server") => Some(MemifRole::Server),
                Some("client") => Some(MemifRole::Client),
                Some(other) => return Err(format!("role={other:?} is unknown; it is server or client")),
            };
            let path = if first.is_empty() { PathBuf::new() } else { socket(first)? };
            Ok(PortSpec::Memif { path, role, options })
        }
        "tap" => Ok(PortSpec::Tap { iface: iface(first)?, options }),
        "af_packet" => Ok(PortSpec::AfPacket { iface: iface(first)?, options }),
        _ => Ok(PortSpec::Vhost { path: socket(first)?, options }),
    }
}

/// Options, with their values.
type Options = Vec<(String, String)>;

/// Parses what follows the kind of a port of UDP sockets: addresses and options.
fn addresses(kind: &str, rest: &str) -> Result<(Vec<IpAddr>, Options), String> {
    let (mut addrs, mut options) = (Vec::<IpAddr>::new(), Options::new());
    for part in rest.split(',').filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            let addr = part.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            let addr = addr
                .map_err(|_| format!("{part:?} is not an address; write {kind}:10.0.0.1 or {kind}:fd00::1"))?
                .to_canonical();
            if addr.is_unspecified() || addr.is_multicast() {
                return Err(format!(
                    "{addr} is not the address of a host; all addresses are {kind} without any"
                ));
            }
            if addrs.contains(&addr) {
                return Err(format!("the address {addr} is there twice"));
            }
            addrs.push(addr);
            continue;
        };
        match key {
            "gso" if !matches!(value, "on" | "off") => {
                return Err(format!("gso={value:?} is neither on nor off"));
            }
            "buffer" if !value.parse().is_ok_and(|bytes| BUFFER.contains(&bytes)) => {
                let (least, most) = (BUFFER.start(), BUFFER.end());
                return Err(format!("buffer={value:?} is not a number of bytes from {least} to {most}"));
            }
            "flows" if !value.parse().is_ok_and(|flows: usize| flows <= SOURCES_MAX) => {
                return Err(format!(
                    "flows={value:?} is not a number of source ports from 0 to {SOURCES_MAX}"
                ));
            }
            ADMIT if kind == "host" && numbers(value).is_none() => {
                return Err(format!("admit={value:?} is not the numbers of users, with + between them"));
            }
            OWNER if kind == "host" && numbers(value).is_none_or(|users| users.len() != 1) => {
                return Err(format!("owner={value:?} is not the number of a user"));
            }
            "gso" | "buffer" | "flows" => {}
            ADMIT | OWNER if kind == "host" => {}
            _ => {
                let more = if kind == "host" { ", admit=UID[+UID..] and owner=UID" } else { "" };
                return Err(format!(
                    "the port {kind} has no option {key:?}; only gso=on, gso=off, buffer=BYTES and flows=N{more}"
                ));
            }
        }
        if options.iter().any(|(other, _)| other == key) {
            return Err(format!("option {key:?} is there twice"));
        }
        options.push((key.to_owned(), value.to_owned()));
    }
    Ok((addrs, options))
}

/// Permitted sizes of the buffers of a UDP socket, in bytes.
const BUFFER: core::ops::RangeInclusive<u32> = 1 << 14..=1 << 30;
/// The most sockets of a port besides those on port 4791, each with a source port of its own.
pub(super) const SOURCES_MAX: usize = 64;

/// Longest name of a network interface (`IFNAMSIZ` less its NUL, netdevice(7)).
const IFACE_MAX: usize = 15;

fn socket(path: &str) -> Result<PathBuf, String> {
    match path.len() {
        0 => Err("the socket's path is missing".into()),
        1..=PATH_MAX => Ok(path.into()),
        n => Err(format!("the socket's path has {n} bytes; the system allows {PATH_MAX}, use a shorter one")),
    }
}

/// Characters that no interface has in its name (Linux), and control characters, which a message cannot show.
fn is_foreign(c: char) -> bool {
    c == '/' || c == ':' || c.is_whitespace() || c.is_control()
}

fn iface(name: &str) -> Result<String, String> {
    match name.len() {
        0 => Err("the interface's name is missing".into()),
        1..=IFACE_MAX if name == "." || name == ".." || name.contains(is_foreign) => {
            Err(format!("{name:?} is not an interface's name: no blanks, slashes or colons"))
        }
        1..=IFACE_MAX => Ok(name.into()),
        n => Err(format!("an interface's name has at most {IFACE_MAX} bytes; this one has {n}")),
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = match self {
            Self::Loopback => return f.write_str("loopback"),
            Self::Dpdk { devargs } => return write!(f, "dpdk:{devargs}"),
            Self::Unix { local, peer, options } => {
                write!(f, "unix:{},peer={}", local.display(), peer.display())?;
                options
            }
            Self::Memif { path, role, options } => {
                // Options come after a path, even an empty one.
                let bare = path.as_os_str().is_empty() && role.is_none() && options.is_empty();
                write!(f, "memif{}{}", if bare { "" } else { ":" }, path.display())?;
                match role {
                    Some(MemifRole::Server) => f.write_str(",role=server")?,
                    Some(MemifRole::Client) => f.write_str(",role=client")?,
                    None => {}
                }
                options
            }
            Self::Udp { addrs, options } => return write_parts(f, "udp", addrs, options),
            Self::Host { addrs, options } => return write_parts(f, "host", addrs, options),
            Self::Tap { iface, options } => {
                write!(f, "tap:{iface}")?;
                options
            }
            Self::AfPacket { iface, options } => {
                write!(f, "af_packet:{iface}")?;
                options
            }
            Self::Vhost { path, options } => {
                write!(f, "vhost:{}", path.display())?;
                options
            }
        };
        for (key, value) in options {
            write!(f, ",{key}={value}")?;
        }
        Ok(())
    }
}

/// Writes a kind of port, a colon if anything follows, addresses and options.
fn write_parts(
    f: &mut fmt::Formatter<'_>,
    kind: &str,
    addrs: &[IpAddr],
    options: &[(String, String)],
) -> fmt::Result {
    let addrs = addrs.iter().map(IpAddr::to_string);
    let options = options.iter().map(|(key, value)| format!("{key}={value}"));
    let parts: Vec<_> = addrs.chain(options).collect();
    write!(f, "{kind}{}{}", if parts.is_empty() { "" } else { ":" }, parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_went_in() {
        for text in [
            "loopback",
            "unix:/tmp/a,peer=/tmp/b",
            "unix:/tmp/a,peer=/tmp/b,peer-uid=any",
            "memif",
            "memif:,role=server",
            "memif:/tmp/m.sock",
            "memif:/tmp/m.sock,role=server,rsize=11",
            "memif:/tmp/m.sock,role=client",
            "udp",
            "host",
            "host:flows=0,gso=on",
            "host:10.0.0.1,admit=1000+65533,owner=0",
            "host:10.0.0.1,fd00::1,gso=on",
            "udp:10.0.0.1,fd00::1",
            "udp:gso=on",
            "udp:127.0.0.1,gso=off",
            "udp:flows=0",
            "udp:buffer=65536",
            "udp:10.0.0.1,buffer=1048576,gso=on",
            "tap:roce0",
            "af_packet:eth1,framesz=8192",
            "vhost:/tmp/v.sock,client=1",
            "dpdk:net_ring0",
            "dpdk:0000:03:00.0,dv_flow_en=1",
        ] {
            assert_eq!(text.parse::<PortSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let long = format!("memif:/{}", "x".repeat(107));
        for (text, part) in [
            ("", "there are loopback, unix:LOCAL,peer=REMOTE"),
            ("ethernet:x", "no such kind of port"),
            ("loopback:1", "takes no arguments"),
            ("unix:/tmp/a", "peer's socket is missing"),
            ("unix:/tmp/a,peer=/tmp/a", "each end needs its own"),
            ("unix:,peer=/tmp/a", "path is missing"),
            ("unix:/a,peer=/b,x=1", "no option \"x\""),
            ("memif:/a,role=master", "it is server or client"),
            ("memif:/a,rsize", "written NAME=VALUE"),
            ("memif:/a,rsize=1,rsize=2", "twice"),
            (long.as_str(), "the system allows 107"),
            ("tap:", "name is missing"),
            ("tap:a b", "no blanks"),
            ("tap:..", "no blanks"),
            ("af_packet:eth0:1", "or colons"),
            ("memif:/a\0b", "a NUL"),
            ("tap:a-name-that-is-long", "at most 15 bytes"),
            ("dpdk:", "a device is missing"),
            ("udp:eth0", "is not an address"),
            ("udp:0.0.0.0", "is not the address of a host"),
            ("udp:10.0.0.1,::ffff:10.0.0.1", "twice"),
            ("udp:gro=on", "no option \"gro\""),
            ("udp:gso=1", "gso=\"1\" is neither on nor off"),
            ("udp:flows=65", "is not a number of source ports from 0 to 64"),
            ("udp:gso=on,gso=off", "twice"),
            ("udp:buffer=65536,gso=on,buffer=65536", "twice"),
            ("udp:buffer=4k", "not a number of bytes from 16384 to 1073741824"),
            ("udp:buffer=16383", "not a number of bytes"),
            ("udp:buffer=1073741825", "not a number of bytes"),
            ("host:0.0.0.0", "all addresses are host without any"),
            ("host:gro=on", "the port host has no option \"gro\""),
            ("host:admit=bob", "admit=\"bob\" is not the numbers of users"),
            ("host:admit=1,admit=2", "twice"),
            ("host:owner=1+2", "owner=\"1+2\" is not the number of a user"),
            ("host:owner=4294967295", "is not the number of a user"),
            ("udp:admit=1000", "the port udp has no option \"admit\""),
        ] {
            let error = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_list_names_the_addresses_of_the_host_alone() {
        let with = |spec: &str, list: &str| {
            spec.parse::<PortSpec>().unwrap().or_addresses(list).map(|spec| spec.to_string())
        };
        assert_eq!(with("host:gso=on", "10.0.0.1,fd00::1").unwrap(), "host:10.0.0.1,fd00::1,gso=on");
        assert_eq!(with("host", "").unwrap(), "host");
        for own in ["host:10.0.0.2", "udp", "memif:/tmp/m.sock"] {
            assert_eq!(with(own, "10.0.0.1").unwrap(), own);
        }
        for (list, part) in [("eth0", "is not an address"), ("gso=on", "no addresses"), ("::", "of a host")] {
            let error = with("host", list).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(list), "{error}");
        }
    }

    #[test]
    fn users_are_those_of_the_specification_or_of_the_variables() {
        let with = |spec: &str, admit, owner| {
            spec.parse::<PortSpec>().unwrap().or_users(admit, owner).map(|spec| spec.to_string())
        };
        assert_eq!(with("host", None, None).unwrap(), "host");
        assert_eq!(with("host:gso=on", Some("7,0"), Some("9")).unwrap(), "host:gso=on,admit=7+0,owner=9");
        assert_eq!(with("host", Some(""), Some("")).unwrap(), "host");
        assert_eq!(with("host:admit=1,owner=2", Some("7"), Some("9")).unwrap(), "host:admit=1,owner=2");
        for other in ["udp", "memif"] {
            assert_eq!(with(other, Some("7"), Some("9")).unwrap(), other);
        }
        let wrong = [(Some("7,4294967295"), None, "ROCE_ADMIT"), (None, Some("7,8"), "ROCE_HOST_USER")];
        for (admit, owner, part) in wrong {
            let error = with("host", admit, owner).unwrap_err();
            assert!(error.starts_with(part), "{error}");
        }
        let spec: PortSpec = "host:10.0.0.1,admit=7+8,owner=9".parse().unwrap();
        assert_eq!((spec.admits(), spec.owner()), (vec![7, 8], Some(9)));
        let without = spec.without_users();
        assert_eq!(
            (without.admits(), without.owner(), &*without.to_string()),
            (vec![], None, "host:10.0.0.1")
        );
    }
}
