//! `--metrics`: the counters of a program's device, and its own, for collectors that speak OpenMetrics (Prometheus and others).
//!
//! `families` turns a snapshot into text, and `server` answers HTTP requests with it.

mod families;
mod server;

pub use families::text;
pub use server::{MetricsError, MetricsServer};

use std::net::{Ipv4Addr, SocketAddr};

/// The address to listen on: `9100` alone means 127.0.0.1.
///
/// # Errors
/// A sentence for the user.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text).parse();
    match (port, text.parse()) {
        (Ok(port), _) => Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)),
        (_, Ok(address)) => Ok(address),
        _ => Err(format!("{text:?} is no port and no address with a port, as 9100 or 10.0.0.1:9100")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        for (text, is) in [
            ("9100", "127.0.0.1:9100"),
            (":9100", "127.0.0.1:9100"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:2", "[::1]:2"),
        ] {
            assert_eq!(address(text), Ok(is.parse().unwrap()));
        }
        for text in ["", ":", "10.0.0.1", "70000", "here:1"] {
            assert!(address(text).unwrap_err().contains(&format!("{text:?}")));
        }
    }
}
