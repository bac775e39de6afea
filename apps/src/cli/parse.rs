//! Values of options: sizes, times, addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;
use verbs::port::PortSpec;
use verbs::{Mac, Mtu};

/// Longest message of the programs: their buffers are memory of this process.
pub const SIZE_MAX: u64 = 1 << 30;

/// A length of a message: bytes, with an optional suffix k, m or g (1024 each).
///
/// # Errors
/// A sentence for the user.
pub fn size(text: &str) -> Result<u64, String> {
    match memory_size(text)? {
        n if n <= SIZE_MAX => Ok(n),
        _ => Err(format!("a message has at most {SIZE_MAX} bytes (1g) here")),
    }
}

/// An amount of memory, written as a [`size`].
///
/// # Errors
/// A sentence for the user.
pub fn memory_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size; write 64, 4k or 8m"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is more than there can be"))
}

/// A time, in seconds unless it has a suffix ms, s or m.
///
/// # Errors
/// A sentence for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text {
        t if t.ends_with("ms") => (&t[..t.len() - 2], 1e-3),
        t if t.ends_with('s') => (&t[..t.len() - 1], 1.0),
        t if t.ends_with('m') => (&t[..t.len() - 1], 60.0),
        t => (t, 1.0),
    };
    let seconds: f64 = digits.parse().map_err(|_| format!("{text:?} is not a time; write 2, 2s, 500ms"))?;
    let seconds = seconds * unit;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("a run lasts between 1ms and 3600s".into())
    }
}

/// A path MTU in bytes.
///
/// # Errors
/// A sentence for the user.
pub fn mtu(text: &str) -> Result<Mtu, String> {
    let known = text.parse().ok().and_then(Mtu::from_bytes);
    known.ok_or_else(|| format!("{text:?} is not a path MTU; there are 256, 512, 1024, 2048 and 4096"))
}

/// An IP address; an IPv6 one bare or in brackets, as it stands in front of a port.
///
/// # Errors
/// A sentence for the user.
pub fn ip(text: &str) -> Result<IpAddr, String> {
    let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let addr = match inside {
        Some(inside) => inside.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    };
    addr.ok_or_else(|| format!("{text:?} is not an address; write 10.77.0.1 or fd00::1"))
}

/// The socket address of a host that is given by its IP address. A link-local address may have its zone, as in `fe80::1%eth0`:
/// then the result holds the index of that interface.
pub fn peer(name: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(ip) = ip(name) {
        return Some(SocketAddr::new(ip, port));
    }
    let (addr, _) = name.split_once('%')?;
    addr.parse::<Ipv6Addr>().ok()?;
    // The resolver of the system knows the interfaces by name.
    (name, port).to_socket_addrs().ok()?.next()
}

/// An IPv4 address.
///
/// # Errors
/// A sentence for the user.
pub fn ipv4(text: &str) -> Result<Ipv4Addr, String> {
    match ip(text)? {
        IpAddr::V4(addr) => Ok(addr),
        IpAddr::V6(addr) => Err(format!("{addr} is an IPv6 address; this one is of IPv4, as 10.77.0.254")),
    }
}

/// An IPv6 address.
///
/// # Errors
/// A sentence for the user.
pub fn ipv6(text: &str) -> Result<Ipv6Addr, String> {
    match ip(text)? {
        IpAddr::V6(addr) => Ok(addr),
        IpAddr::V4(addr) => Err(format!("{addr} is an IPv4 address; this one is of IPv6, as fd00::fe")),
    }
}

/// A host, by name or address, and its port if one is given: `localhost`, `localhost:18515`, `10.77.0.1`,
/// `10.77.0.1:18515`, `fd00::1`, `[fd00::1]`, `[fd00::1]:18515`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, without brackets; of a link-local IPv6 address with its zone.
    pub name: String,
    /// The port.
    pub port: Option<u16>,
}

impl Host {
    /// The given port, or else `other`.
    pub fn port_or(&self, other: u16) -> u16 {
        self.port.unwrap_or(other)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A [`Host`].
///
/// # Errors
/// A sentence for the user.
pub fn host(text: &str) -> Result<Host, String> {
    let wrong = || {
        format!(
            "{text:?} is not a host; write a name, 10.77.0.1 or fd00::1, and a port as localhost:18515 or [fd00::1]:18515"
        )
    };
    let (name, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return Err(wrong()),
        Some(Some((addr, rest))) => {
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) };
            (addr, port)
        }
        // Several colons belong to an IPv6 address.
        None => match text.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, Some(port)),
            _ => (text, None),
        },
    };
    let is_ipv6 = name.split('%').next().is_some_and(|addr| addr.parse::<Ipv6Addr>().is_ok());
    let foreign = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    if name.is_empty() || (name.contains(':') || text.starts_with('[')) && !is_ipv6 || name.contains(foreign)
    {
        return Err(wrong());
    }
    // `parse` accepts a leading `+`.
    let number = |port: &str| port.parse().ok().filter(|_| !port.starts_with('+')).ok_or_else(wrong);
    let port = port.map(number).transpose()?;
    Ok(Host { name: name.into(), port })
}

/// An IP address with its prefix length; /24 or /64 if none is given.
///
/// # Errors
/// A sentence for the user.
pub fn ip_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (addr, prefix) = match text.split_once('/') {
        Some((addr, prefix)) => (addr, Some(prefix)),
        None => (text, None),
    };
    let addr =
        ip(addr).map_err(|_| format!("{text:?} is not an address; write 10.77.0.1/24 or fd00::1/64"))?;
    let (max, usual) = if addr.is_ipv4() { (32, 24) } else { (128, 64) };
    let prefix = match prefix {
        None => usual,
        Some(p) => match p.parse() {
            Ok(p) if p <= max => p,
            _ => return Err(format!("the prefix length after {addr}/ is a number up to {max}, not {p:?}")),
        },
    };
    if addr.is_multicast() || addr.is_unspecified() {
        return Err(format!("{addr} is not the address of a host"));
    }
    Ok((addr, prefix))
}

/// A port's specification.
///
/// # Errors
/// A sentence for the user.
pub fn port(text: &str) -> Result<PortSpec, String> {
    let spec = text.parse::<PortSpec>().map_err(|e| e.to_string())?;
    let spec = match std::env::var(ADDRS) {
        Ok(list) => spec.or_addresses(&list).map_err(|e| format!("{ADDRS}: {e}"))?,
        Err(_) => spec,
    };
    spec.or_users(variable(ADMIT)?.as_deref(), variable(HOST_USER)?.as_deref())
}

fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is no UTF-8 text")),
    }
}

/// The environment variable with the addresses of the port `host`, for a specification that names none.
const ADDRS: &str = "ROCE_ADDRS";
/// The variables with the users who are part of the host of the port `host`, and with its owner.
const ADMIT: &str = "ROCE_ADMIT";
const HOST_USER: &str = "ROCE_HOST_USER";

/// The address of a neighbour with its Ethernet address.
///
/// # Errors
/// A sentence for the user.
pub fn neighbour(text: &str) -> Result<(IpAddr, Mac), String> {
    let (addr, mac) = text.split_once('=').unwrap_or((text, ""));
    let sample = "write 10.77.0.1=02:00:00:00:00:01";
    let addr = ip(addr).map_err(|_| format!("{addr:?} is not an address; {sample}"))?;
    let mac =
        mac.parse().map_err(|_| format!("{mac:?} behind {addr}= is not an Ethernet address; {sample}"))?;
    Ok((addr, mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, n) in [("0", 0), ("64", 64), ("4k", 4096), ("8M", 8 << 20), ("1g", 1 << 30)] {
            assert_eq!(size(text), Ok(n));
        }
        for text in ["", "k", "-1", "4kb", "2g", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    // Goal: any text is parsed, or refused with one sentence; a parsed value can be written and parsed again.
    #[test]
    fn any_text_is_understood_or_refused_in_a_sentence() {
        let seeds = [
            "localhost:18515",
            "10.77.0.1:80",
            "[fd00::1]:18515",
            "[fe80::1%eth0]",
            "fd00::1/64",
            "10.0.0.1/24",
            "4k",
            "1g",
            "1.5s",
            "500ms",
            "4096",
            "é:1",
            "[",
            "]:",
            "%",
            "a b:1",
            "h\n:2",
            "h:+1",
            "1e400s",
            "NaNm",
        ];
        let pieces: Vec<char> = "0123456789abcdef.:[]%/-+ kmgsNaéß\u{2028}\n\0".chars().collect();
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let sentence = |error: String| {
            assert!(!error.is_empty() && !error.chars().any(char::is_control), "{error:?}");
        };
        for round in 0..20_000 {
            let mut text: Vec<char> = seeds[round % seeds.len()].chars().collect();
            for _ in 0..below(4) {
                let at = below(text.len() + 1);
                match below(3) {
                    0 => text.insert(at, pieces[below(pieces.len())]),
                    1 if at < text.len() => text[at] = pieces[below(pieces.len())],
                    _ => text.truncate(at),
                }
            }
            let text: String = text.into_iter().collect();
            match host(&text) {
                Ok(Host { name, port }) => {
                    let bare = if name.contains(':') { format!("[{name}]") } else { name.clone() };
                    let again = port.map_or(bare.clone(), |port| format!("{bare}:{port}"));
                    assert_eq!(host(&again), Ok(Host { name, port }), "{text:?}");
                }
                Err(error) => sentence(error),
            }
            match ip(&text) {
                Ok(addr) => assert_eq!(ip(&addr.to_string()), Ok(addr)),
                Err(error) => sentence(error),
            }
            let others = [size(&text).err(), duration(&text).err(), mtu(&text).err(), ip_prefix(&text).err()];
            others.into_iter().flatten().for_each(sentence);
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "s", "0", "-1", "2h", "NaN", "inf", "3601"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_are_names_and_addresses_with_a_port_or_without() {
        for (text, name, port) in [
            ("localhost", "localhost", None),
            ("localhost:80", "localhost", Some(80)),
            ("10.0.0.1", "10.0.0.1", None),
            ("10.0.0.1:18515", "10.0.0.1", Some(18515)),
            ("fd00::1", "fd00::1", None),
            ("::", "::", None),
            ("[fd00::1]", "fd00::1", None),
            ("[fd00::1]:18515", "fd00::1", Some(18515)),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", Some(1)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
        ] {
            assert_eq!(host(text), Ok(Host { name: name.into(), port }), "{text}");
        }
        for text in [
            "",
            ":80",
            "[]",
            "[fd00::1",
            "fd00::1]",
            "[fd00::1]80",
            "[fd00::1]:",
            "[localhost]",
            "[10.0.0.1]:80",
            "localhost:",
            "localhost:http",
            "localhost:65536",
            "fd00::1::2",
            "a:b:c",
            "10.0.0.1/24",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_of_the_version_that_is_asked_for() {
        assert_eq!(ip("[fd00::1]"), ip("fd00::1"));
        assert!(ipv4("10.0.0.1").is_ok() && ipv4("fd00::1").unwrap_err().contains("IPv6"));
        assert!(ipv6("[fd00::1]").is_ok() && ipv6("10.0.0.1").unwrap_err().contains("IPv4"));
        for text in ["", "[]", "[10.0.0.1]", "[fd00::1", "fd00::1]", "host", "10.0.0.1:80", "[fd00::1]:80"] {
            assert!(ip(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(ip_prefix("10.0.0.1/8"), Ok(("10.0.0.1".parse().unwrap(), 8)));
        assert_eq!(ip_prefix("10.0.0.1"), Ok(("10.0.0.1".parse().unwrap(), 24)));
        assert_eq!(ip_prefix("fd00::1"), Ok(("fd00::1".parse().unwrap(), 64)));
        assert_eq!(ip_prefix("[fd00::1]/48"), Ok(("fd00::1".parse().unwrap(), 48)));
        assert_eq!(ip_prefix("[fd00::1]"), Ok(("fd00::1".parse().unwrap(), 64)));
        for text in [
            "[fd00::1/64]",
            "[10.0.0.1]/24",
            "[fd00::1]:80",
            "10.0.0.1/33",
            "10.0.0.1/",
            "host/24",
            "224.0.0.1/4",
            "::/0",
        ] {
            assert!(ip_prefix(text).is_err(), "{text}");
        }
    }

    #[test]
    fn neighbours() {
        let (addr, mac) = neighbour("[fd00::1]=02:00:00:00:00:01").unwrap();
        assert_eq!((addr.to_string(), mac), ("fd00::1".into(), Mac([2, 0, 0, 0, 0, 1])));
        for text in
            ["10.0.0.1", "10.0.0.1=", "10.0.0.1=02:00", "host=02:00:00:00:00:01", "=02:00:00:00:00:01"]
        {
            assert!(neighbour(text).unwrap_err().contains("write 10.77.0.1=02"), "{text}");
        }
    }
}
