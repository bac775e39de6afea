//! Checks the interfaces with addresses: the largest packet that they carry, and whether packets are sent and received in batches.

use super::finding::{Finding, Verdict, read};
use std::path::Path;
use verbs::Mtu;
use verbs::port::{HostAddress, interface_feature};

pub(super) fn check(root: &Path, addrs: &[HostAddress]) -> Vec<Finding> {
    let names = interfaces_of(addrs);
    if names.is_empty() {
        return vec![
            Finding::new("addresses", Verdict::Broken, "this host has no address that RoCE could use")
                .advice("ip address add ADDR/PREFIX dev IFACE, and ip link set IFACE up"),
        ];
    }
    let mut findings = Vec::new();
    for name in names {
        let of: Vec<_> = addrs.iter().filter(|addr| addr.iface == name).collect();
        let list: Vec<_> = of.iter().map(|of| of.addr.to_string()).collect();
        let up = of.iter().any(|of| of.up);
        findings.push(interface(
            name,
            &list.join(", "),
            up,
            read(root, &format!("sys/class/net/{name}/mtu")).trim(),
        ));
        if name != "lo" {
            findings.extend(batches(
                name,
                of.iter().any(|of| of.segments),
                interface_feature(name, "rx-gro"),
            ));
        }
    }
    findings
}

/// The names of the interfaces that have addresses.
fn interfaces_of(addrs: &[HostAddress]) -> Vec<&str> {
    let mut names: Vec<&str> =
        addrs.iter().map(|addr| addr.iface.as_str()).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn interface(name: &str, addrs: &str, up: bool, mtu: &str) -> Finding {
    const TOPIC: &str = "interface";
    let what = format!("{name}: {addrs}, MTU {mtu}");
    if !up {
        return Finding::new(TOPIC, Verdict::Note, format!("{what}; it is down"))
            .advice(format!("ip link set {name} up"));
    }
    match mtu.parse().ok().map(Mtu::of_link) {
        None => Finding::new(TOPIC, Verdict::Unknown, what),
        Some(None) => {
            Finding::new(TOPIC, Verdict::Broken, format!("{what}: too small for the least path MTU, 256"))
                .advice(format!("ip link set {name} mtu 1500"))
        }
        Some(Some(path)) => {
            let what = format!("{what}: path MTU {}", path.bytes());
            if path.bytes() >= 4096 {
                return Finding::ok(TOPIC, what);
            }
            Finding::ok(TOPIC, what).advice(format!(
                "where the whole network carries it, ip link set {name} mtu 9000: path MTU 4096"
            ))
        }
    }
}

/// Whether the kernel segments what is sent (GSO) and merges what is received (GRO).
fn batches(name: &str, gso: bool, gro: Option<bool>) -> Vec<Finding> {
    let sending = if gso {
        Finding::ok("GSO", format!("{name}: many packets leave with one call"))
    } else {
        Finding::new(
            "GSO",
            Verdict::Note,
            format!("{name}: its device would number the packets in a way that is not known, so each has a call of its own"),
        )
        .advice(format!(
            "ethtool -K {name} tx-udp-segmentation off; or --port udp:gso=on, where every peer has this stack"
        ))
    };
    let receiving = match gro {
        Some(true) => Finding::ok("GRO", format!("{name}: many packets arrive with one call")),
        Some(false) => {
            Finding::new("GRO", Verdict::Note, format!("{name}: each packet that arrives is a call"))
                .advice(format!("ethtool -K {name} gro on"))
        }
        None => {
            Finding::new("GRO", Verdict::Unknown, format!("{name} does not say whether it joins packets"))
        }
    };
    vec![sending, receiving]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_follows_from_the_interfaces() {
        let of = |mtu| interface("eth0", "10.0.0.1", true, mtu);
        assert_eq!(of("1500").what, "eth0: 10.0.0.1, MTU 1500: path MTU 1024");
        assert!(!of("1500").advice.is_empty() && of("9000").advice.is_empty());
        assert_eq!(of("200").verdict, Verdict::Broken);
        assert_eq!(of("").verdict, Verdict::Unknown);
        assert_eq!(interface("eth0", "10.0.0.1", false, "1500").advice, "ip link set eth0 up");
    }

    #[test]
    fn batches_are_seen_by_the_interfaces_features() {
        let verdicts = |gso, gro| {
            let findings = batches("eth0", gso, gro);
            findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(true, Some(true)), [Verdict::Ok, Verdict::Ok]);
        assert_eq!(verdicts(false, Some(false)), [Verdict::Note, Verdict::Note]);
        assert_eq!(verdicts(true, None), [Verdict::Ok, Verdict::Unknown]);
    }
}
