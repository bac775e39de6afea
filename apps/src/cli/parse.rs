//! Values of options: sizes, times, addresses.

use std::net::IpAddr;
use std::time::Duration;
use verbs::Mtu;
use verbs::port::PortSpec;

/// Longest message that the programs move: their buffers are memory of this process.
pub const SIZE_MAX: u64 = 1 << 30;

/// A number of bytes, with an optional suffix k, m or g (1024 each).
///
/// # Errors
/// A sentence for whoever typed it.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size; write 64, 4k or 8m"))?;
    match number.checked_mul(factor) {
        Some(n) if n <= SIZE_MAX => Ok(n),
        _ => Err(format!("a message has at most {SIZE_MAX} bytes (1g) here")),
    }
}

/// A time, in seconds unless a suffix ms, s or m says otherwise.
///
/// # Errors
/// A sentence for whoever typed it.
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
/// A sentence for whoever typed it.
pub fn mtu(text: &str) -> Result<Mtu, String> {
    let known = text.parse().ok().and_then(Mtu::from_bytes);
    known.ok_or_else(|| format!("{text:?} is not a path MTU; there are 256, 512, 1024, 2048 and 4096"))
}

/// An IP address with its prefix length; /24 or /64 where none is written.
///
/// # Errors
/// A sentence for whoever typed it.
pub fn ip_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (addr, prefix) = match text.split_once('/') {
        Some((addr, prefix)) => (addr, Some(prefix)),
        None => (text, None),
    };
    let addr: IpAddr =
        addr.parse().map_err(|_| format!("{text:?} is not an address; write 10.77.0.1/24 or fd00::1/64"))?;
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
/// A sentence for whoever typed it.
pub fn port(text: &str) -> Result<PortSpec, String> {
    text.parse::<PortSpec>().map_err(|e| e.to_string())
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
    fn addresses() {
        assert_eq!(ip_prefix("10.0.0.1/8"), Ok(("10.0.0.1".parse().unwrap(), 8)));
        assert_eq!(ip_prefix("10.0.0.1"), Ok(("10.0.0.1".parse().unwrap(), 24)));
        assert_eq!(ip_prefix("fd00::1"), Ok(("fd00::1".parse().unwrap(), 64)));
        for text in ["10.0.0.1/33", "10.0.0.1/", "host/24", "224.0.0.1/4", "::/0"] {
            assert!(ip_prefix(text).is_err(), "{text}");
        }
    }
}
