//! Any text as the name of a port, or an Ethernet address.

use super::Input;
use stack::id::Mac;
use stack::port::{MemifRole, PortError, PortSpec};

/// Reads a text of any bytes as a port's name and as an address, and shows a port of any parts and reads that.
///
/// # Panics
/// If a name that was parsed is shown as something else, or a refusal is no sentence.
pub fn port_names(data: &[u8]) {
    any_text(&String::from_utf8_lossy(data));
    any_parts(&mut Input(data));
}

fn any_text(text: &str) {
    match text.parse::<PortSpec>() {
        Ok(spec) => {
            let shown = spec.to_string();
            assert_eq!(shown.parse().as_ref(), Ok(&spec), "{shown:?}");
            holds(&spec);
        }
        Err(PortError::Spec { spec, reason }) => {
            assert_eq!(spec, text);
            let sentence = PortError::Spec { spec, reason: reason.clone() }.to_string();
            assert!(!reason.is_empty() && !sentence.chars().any(char::is_control), "{sentence:?}");
        }
        Err(other) => panic!("{text:?} gave {other:?}"),
    }
    match text.parse::<Mac>() {
        Ok(mac) => {
            assert_eq!(mac.to_string().parse(), Ok(mac));
            assert!(text.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'), "{text:?}");
        }
        Err(reason) => assert!(reason.contains("02:00:00:00:00:01")),
    }
}

/// The system's requirements for the parts.
fn holds(spec: &PortSpec) {
    let path = |path: &std::path::Path| {
        let path = path.to_str().expect("from a text");
        assert!((1..=107).contains(&path.len()) && !path.contains('\0'), "{path:?}");
    };
    match spec {
        PortSpec::Unix { local, peer, .. } => {
            path(local);
            path(peer);
            assert_ne!(local, peer);
        }
        // Without one, it is the user's own.
        PortSpec::Memif { path: socket, .. } if socket.as_os_str().is_empty() => {}
        PortSpec::Memif { path: socket, .. } | PortSpec::Vhost { path: socket, .. } => path(socket),
        PortSpec::Tap { iface, .. } | PortSpec::AfPacket { iface, .. } => {
            assert!((1..=15).contains(&iface.len()) && iface != "." && iface != "..", "{iface:?}");
            let bad = |c: char| c.is_control() || c.is_whitespace() || c == '/' || c == ':';
            assert!(!iface.contains(bad), "{iface:?}");
        }
        PortSpec::Udp { addrs, options } | PortSpec::Host { addrs, options } => {
            assert!(addrs.iter().all(|addr| !addr.is_unspecified() && !addr.is_multicast()), "{addrs:?}");
            assert!(options.len() <= 5);
        }
        PortSpec::Dpdk { devargs } => assert!(!devargs.contains('\0'), "{devargs:?}"),
        PortSpec::Loopback => {}
        other => panic!("{other:?} has no check here"),
    }
}

/// A port of parts that can be written is read as it was.
fn any_parts(input: &mut Input<'_>) {
    let kind = input.below(7);
    let addrs = [core::net::IpAddr::from([10, 0, 0, input.below(256) as u8])];
    let mut word = |most: usize| {
        let n = 1 + input.below(most);
        (0..n)
            .map(|_| char::from(input.pick(b"abcdefghijklmnopqrstuvwxyz0123456789-_+@%#~^")))
            .collect::<String>()
    };
    let (mut first, second) = (word(40), word(40));
    let iface = word(15);
    let options: Vec<_> = (0..word(3).len() - 1).map(|i| (format!("{}{i}", word(8)), word(12))).collect();
    // These names are parts of their own.
    let options: Vec<_> = options.into_iter().filter(|(key, _)| key != "role" && key != "peer").collect();
    let role = [None, Some(MemifRole::Server), Some(MemifRole::Client)][word(3).len() - 1];
    let spec = match kind {
        0 if first == second => return,
        0 => {
            let options = options.first().map(|(_, user)| ("peer-uid".into(), user.clone()));
            PortSpec::Unix {
                local: first.into(),
                peer: second.into(),
                options: options.into_iter().collect(),
            }
        }
        1 => PortSpec::Memif {
            path: if first.len() == 1 { first.split_off(1) } else { first }.into(),
            role,
            options,
        },
        2 => PortSpec::Tap { iface, options },
        3 => PortSpec::AfPacket { iface, options },
        4 => PortSpec::Vhost { path: first.into(), options },
        5 => {
            let gso = options.first().map(|_| ("gso".into(), "on".into()));
            PortSpec::Udp {
                addrs: addrs[..options.len().min(1)].to_vec(),
                options: gso.into_iter().collect(),
            }
        }
        _ => PortSpec::Dpdk { devargs: first },
    };
    assert_eq!(spec.to_string().parse(), Ok(spec));
}
