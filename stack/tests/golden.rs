//! Packets of another implementation are decoded and built again, byte for byte.
//!
//! `testdata/pcap/README.md` names their sources.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use stack::wire::{Ingress, Kind, Row, Template, icrc, locate};

/// Files, each with the number of its frames, and of its RoCEv2 frames.
#[rustfmt::skip]
const FILES: [(&str, usize, usize); 67] = [
    ("rc-send-pingpong", 30, 30),
    ("rc-send-small", 24, 24),
    ("rc-send-bw", 32, 32),
    ("rc-write", 20, 20),
    ("rc-write-small", 20, 20),
    ("rc-read", 30, 30),
    ("rc-read-small", 10, 10),
    ("rc-atomic-fetch-add", 10, 10),
    ("rc-atomic-cmp-swap", 10, 10),
    ("rc-rnr-nak", 102, 102),
    ("rc-srq", 40, 40),
    ("rc-tclass", 15, 15),
    ("rc-write-cm-qp", 86, 86),
    ("uc-send", 24, 24),
    ("uc-write", 15, 15),
    ("ud-pingpong", 10, 10),
    ("cm-rping", 41, 41),
    ("cm-reject", 2, 2),
    ("cm-ucmatose", 34, 34),
    ("cm-udaddy-sidr", 8, 8),
    ("mcast-mckey", 3, 3),
    ("rsockets-rstream", 29, 29),
    ("rdma-client", 11, 11),
    ("rc-write-loss", 49, 49),
    ("rc-read-loss", 69, 69),
    ("rc-read-resp-loss", 101, 101),
    ("rc-atomic-loss", 53, 53),
    ("arp-cm-rping", 19, 17),
    ("ipv6-linklocal", 12, 12),
    ("ipv6-rping", 29, 29),
    ("ipv6-nd-rping", 21, 17),
    ("vlan-rping", 29, 29),
    ("nvme-discover", 81, 81),
    ("nvme-connect", 175, 175),
    ("nvme-io", 59, 59),
    ("nvme-disconnect", 30, 30),
    ("jumbo-rc-send", 12, 12),
    ("jumbo-rc-write", 20, 20),
    ("jumbo-rc-read", 20, 20),
    ("case-imm", 16, 16),
    ("case-zero-length", 6, 6),
    ("case-pad", 22, 22),
    ("case-solicited", 5, 5),
    ("case-psn-wrap", 22, 22),
    ("case-psn-wrap-read", 11, 11),
    ("case-mtu256", 15, 15),
    ("case-mtu512", 12, 12),
    ("case-atomics", 8, 8),
    ("case-nak-rkey-write", 2, 2),
    ("case-nak-rkey-read", 2, 2),
    ("case-nak-bounds-write", 2, 2),
    ("case-nak-bounds-write-long", 5, 5),
    ("case-nak-bounds-read", 2, 2),
    ("case-nak-permission-read", 2, 2),
    ("case-nak-permission-write", 2, 2),
    ("case-nak-recv-too-small", 2, 2),
    ("case-nak-recv-too-small-long", 4, 4),
    ("case-nak-atomic-misaligned", 2, 2),
    ("case-nak-then-more", 6, 6),
    ("case-rnr-exhausted", 6, 6),
    ("case-rnr-then-ok", 22, 22),
    ("case-timeout-exhausted", 4, 4),
    ("case-pipeline", 24, 24),
    ("case-atomic-write", 4, 4),
    ("case-flush", 6, 6),
    ("k7-cm-rping", 29, 29),
    ("k7-nvme-connect", 196, 196),
];

/// The total of all frames, and of RoCEv2 frames.
const TOTAL: (usize, usize) = (1824, 1818);

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pcap")
}

/// The frames of a capture.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let file = File::open(directory().join(name).with_extension("pcap")).expect(name);
    let mut reader = PcapReader::new(file).expect(name);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect(name);
        assert_eq!(packet.orig_len as usize, packet.data.len(), "{name}: a frame is cut");
        frames.push(packet.data.into_owned());
    }
    frames
}

/// Whether soft-RoCE computes the packet's ICRC differently: see the README.
fn is_quirk(name: &str, row: &Row) -> bool {
    name == "case-flush" && row.kind == Kind::Flush
}

#[test]
fn every_file_is_listed() {
    let listed: BTreeSet<String> = FILES.iter().map(|(name, ..)| format!("{name}.pcap")).collect();
    let present: BTreeSet<String> = directory()
        .read_dir()
        .expect("testdata")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("ASCII"))
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    assert_eq!(present, listed);
    let readme = std::fs::read_to_string(directory().join("README.md")).expect("README.md");
    for (name, ..) in FILES {
        assert!(readme.contains(&format!("| {name} |")), "{name} has no line in the README");
    }
}

#[test]
fn every_packet_is_rebuilt_byte_for_byte() {
    let (mut total, mut roce_total, mut quirks, mut ipv6, mut tagged) = (0, 0, 0, 0, 0);
    let mut opcodes = BTreeSet::new();
    for (name, frames_wanted, roce_wanted) in FILES {
        let frames = frames(name);
        assert_eq!(frames.len(), frames_wanted, "{name}");
        let mut roce = 0;
        for (index, frame) in frames.iter().enumerate() {
            let at = format!("{name} frame {}", index + 1);
            let layout = match locate(frame).unwrap_or_else(|why| panic!("{at}: {why}")) {
                Ingress::Roce(layout) => layout,
                Ingress::Other => continue,
            };
            roce += 1;
            ipv6 += usize::from(layout.ipv6);
            tagged += usize::from(layout.vlan.is_some());
            opcodes.insert(layout.row.name);

            let mut copy = frame.clone();
            let good = icrc::check(&mut copy, &layout, None);
            assert_eq!(&copy, frame, "{at}: the check leaves the frame as it was");
            let quirk = is_quirk(name, layout.row);
            quirks += usize::from(quirk);
            assert_eq!(good, !quirk, "{at}: ICRC of {}", layout.row.name);

            let packet = layout.packet(frame);
            let header = packet.to_header().expect("no reliable datagrams here");
            let template = Template::new(&layout.flow(frame));
            let mut buf = vec![0xa5; frame.len() + 128];
            let offset = template.begin(&mut buf, &header);
            buf[offset..offset + packet.payload.len()].copy_from_slice(packet.payload);
            let len = template.seal(&mut buf, offset, packet.payload.len());
            assert_eq!(len, layout.end as usize, "{at}");
            let same = if quirk { len - 4 } else { len };
            assert_eq!(buf[..same], frame[..same], "{at}: {}", layout.row.name);
            assert_eq!(buf[same..len] != frame[same..len], quirk, "{at}: ICRC of {}", layout.row.name);
            assert!(buf[len..].iter().all(|b| *b == 0xa5), "{at}: written past the end");
        }
        assert_eq!(roce, roce_wanted, "{name}");
        total += frames.len();
        roce_total += roce;
    }
    assert_eq!((total, roce_total), TOTAL);
    assert_eq!(quirks, 2, "the FLUSH requests");
    assert_eq!((ipv6, tagged), (58, 29), "the IPv6 files, and the VLAN file");
    assert_eq!(opcodes.len(), 32, "{opcodes:?}");
}
