//! The files of `--pcap`, as tshark decodes them.

use crate::common::{Bench, Link};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Fields of every frame that matches `filter`, one line each; `None` without tshark.
fn tshark(pcap: &Path, filter: &str, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(pcap).args(["-Y", filter, "-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        other => other.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn tshark_decodes_every_frame() {
    for &link in Link::ALL {
        let bench = Bench::new(link);
        let files = [bench.path("server.pcap"), bench.path("client.pcap")];
        let server = bench.perf_server(&["--once", "--pcap", files[0].to_str().unwrap()]);
        let args = "--op send,write,read,atomic --mode lat,bw -s 64,10k -n 10 --verify --pcap";
        let args: Vec<_> = args.split(' ').chain([files[1].to_str().unwrap()]).collect();
        bench.perf_client(&args).finish().good();
        server.finish().good();
        for pcap in files {
            let Some(opcodes) = tshark(&pcap, "infiniband", &["infiniband.bth.opcode"]) else {
                let _ = writeln!(
                    std::io::stderr(),
                    "SKIPPED tshark_decodes_every_frame: tshark is not installed (apt-get install tshark)"
                );
                return;
            };
            let mut seen = BTreeMap::new();
            for opcode in opcodes {
                *seen.entry(opcode.parse::<u8>().unwrap()).or_insert(0) += 1;
            }
            // SEND, WRITE and their responses of one packet and of several, READ likewise, both atomics.
            for opcode in [0, 1, 2, 4, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20] {
                assert!(
                    seen.contains_key(&opcode),
                    "{link:?}: no packet with opcode {opcode} among {seen:?}"
                );
            }
            for filter in ["_ws.malformed", "not infiniband and not arp", "ip.checksum.status == 0"] {
                let frames = tshark(&pcap, filter, &["frame.number"]).unwrap();
                assert!(frames.is_empty(), "{link:?}: {filter}: frames {frames:?}");
            }
        }
    }
}

// Recorded by scripts/interop/run: this stack and Linux 6.12 connect over IPv6 and in a VLAN.
#[test]
fn tshark_decodes_our_connection_management() {
    // REQ, REP, RTU, DREQ, DREP; and the two of datagram services.
    let connections = ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"];
    for (name, ours, wanted) in [
        ("ipv6-rping-client", "0x0010", &connections[..]),
        ("ipv6-rping-server", "0x0013", &connections),
        ("ipv6-ucmatose", "0x0013", &connections),
        ("ipv6-udaddy", "0x0017", &["0x0017", "0x0018"]),
        ("vlan-rping", "0x0010", &connections),
    ] {
        let path = format!("{}/testdata/ours-{name}.pcap", env!("CARGO_MANIFEST_DIR"));
        let pcap = Path::new(&path);
        let attribute = "infiniband.mad.attributeid";
        let Some(seen) = tshark(pcap, "infiniband.mad", &[attribute]) else {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED tshark_decodes_our_connection_management: tshark is not installed (apt-get install tshark)"
            );
            return;
        };
        for message in wanted {
            assert!(seen.iter().any(|m| m == message), "{name}: no {message} among {seen:?}");
        }
        let of_ours = format!("{attribute} == {ours} and eth.src == 02:00:00:00:99:0a");
        assert!(!tshark(pcap, &of_ours, &["frame.number"]).unwrap().is_empty(), "{name}: no {ours} of ours");
        let malformed = tshark(pcap, "_ws.malformed", &["frame.number"]).unwrap();
        assert!(malformed.is_empty(), "{name}: frames {malformed:?}");
    }
}
