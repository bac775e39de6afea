//! A checker of captures that shares no code with the stack: it parses the bytes in order, as the specification defines them,
//! and computes each packet's ICRC (IBA A17.3.3) over its own pseudo packet.

use apps::error::{AppError, Result};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// The results for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Frames of any kind.
    pub frames: u64,
    /// RoCEv2 packets with a valid ICRC: this stack's, and those of others.
    pub right: [u64; 2],
    /// Number of packets of each opcode.
    pub opcodes: BTreeMap<u8, u64>,
    /// The source port of this stack's last packet to each connected queue pair, by the queue pair's host and number.
    sources: BTreeMap<(Vec<u8>, u32), u16>,
    /// The first errors, each with the number of its frame.
    pub wrong: Vec<String>,
    /// Frames with an error.
    pub wrong_frames: u64,
}

/// Checks the frames of a capture; `ours` is the Ethernet address that distinguishes this stack's packets from others'.
///
/// # Errors
/// A file that cannot be read, or is no capture of Ethernet frames.
pub fn file(path: &Path, ours: [u8; 6]) -> Result<Findings> {
    let fail = |e: String| AppError::Setup(format!("{}: {e}", path.display()));
    let file = File::open(path).map_err(|e| fail(e.to_string()))?;
    let mut reader =
        PcapReader::new(BufReader::with_capacity(1 << 20, file)).map_err(|e| fail(e.to_string()))?;
    let mut found = Findings::default();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|e| fail(e.to_string()))?;
        found.frame(&packet.data, ours);
    }
    Ok(found)
}

impl Findings {
    /// Checks one frame.
    pub fn frame(&mut self, bytes: &[u8], ours: [u8; 6]) {
        self.frames += 1;
        let packet = match roce(bytes) {
            Ok(None) => return,
            Ok(Some(packet)) => packet,
            Err(why) => return self.wrong(&why),
        };
        let our_own = bytes[6..12] == ours;
        self.right[usize::from(!our_own)] += 1;
        *self.opcodes.entry(packet.opcode).or_default() += 1;
        if our_own && let Err(why) = self.source_port(&packet) {
            self.wrong(&why);
        }
    }

    fn wrong(&mut self, why: &str) {
        self.wrong_frames += 1;
        if self.wrong.len() < 10 {
            self.wrong.push(format!("frame {}: {why}", self.frames));
        }
    }

    /// Checks a UDP source port (IBA A17.3.2, and the custom of NICs): 49152 or above, and the same for all packets of a connection, because
    /// packets on different paths could overtake each other. A connection without answers may change to port 4791 once, and must stay there.
    fn source_port(&mut self, packet: &Packet<'_>) -> core::result::Result<(), String> {
        let Packet { opcode, source, to, qpn } = *packet;
        if source != WELL_KNOWN && source < 0xc000 {
            return Err(format!("source port {source}"));
        }
        // RC, UC and XRC.
        if ![0, 1, 5].contains(&(opcode >> 5)) {
            return Ok(());
        }
        match self.sources.insert((to.to_vec(), qpn), source) {
            Some(before) if before != source && source != WELL_KNOWN => {
                Err(format!("source port {source}, and {before} before it, to queue pair {qpn:#08x}"))
            }
            _ => Ok(()),
        }
    }
}

/// The UDP port of RoCEv2.
const WELL_KNOWN: u16 = 4791;

/// The fields of a RoCEv2 packet that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet<'a> {
    opcode: u8,
    /// UDP source port.
    source: u16,
    /// IP address of the destination.
    to: &'a [u8],
    /// Number of the destination queue pair.
    qpn: u32,
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// A RoCEv2 packet with valid lengths and ICRC; `None` for other frames.
fn roce(frame: &[u8]) -> core::result::Result<Option<Packet<'_>>, String> {
    if frame.len() < 14 {
        return Err("shorter than an Ethernet header".into());
    }
    let (mut ethertype, mut at) = (word(frame, 12), 14);
    if ethertype == 0x8100 && frame.len() >= 18 {
        (ethertype, at) = (word(frame, 16), 18);
    }
    let ip = &frame[at..];
    // Where UDP begins, the length of the IP packet by its header, and the ranges of the header that may change on the path.
    let (udp, total, changing): (usize, usize, &[core::ops::Range<usize>]) = match ethertype {
        0x0800 if ip.len() >= 20 && ip[0] == 0x45 && ip[9] == 17 => {
            let sum: usize = (0..10).map(|n| word(ip, 2 * n)).sum();
            if (sum & 0xffff) + (sum >> 16) != 0xffff {
                return Err("the IPv4 header's checksum is wrong".into());
            }
            // Type of service, time to live, checksum.
            (20, word(ip, 2), &[1..2, 8..9, 10..12])
        }
        // Traffic class and flow label (the version stays), hop limit.
        0x86dd if ip.len() >= 40 && ip[6] == 17 => (40, 40 + word(ip, 4), &[1..4, 7..8]),
        _ => return Ok(None),
    };
    if ip.len() < udp + 8 || word(ip, udp + 2) != usize::from(WELL_KNOWN) {
        return Ok(None);
    }
    let (length, packet) = (word(ip, udp + 4), ip.get(..total).ok_or("shorter than IP says")?);
    if udp + length != total {
        return Err(format!("UDP says {length} bytes, IP {}", total - udp));
    }
    if length < 8 + 12 + 4 || length % 4 != 0 {
        return Err(format!("{length} bytes of UDP hold no packet"));
    }
    let (body, icrc) = packet.split_at(total - 4);
    let icrc = u32::from_le_bytes([icrc[0], icrc[1], icrc[2], icrc[3]]);
    // Eight bytes of ones stand for the local route header of InfiniBand.
    let mut pseudo = vec![0xff; 8];
    pseudo.extend_from_slice(body);
    let header = &mut pseudo[8..];
    for range in changing {
        header[range.clone()].fill(0xff);
    }
    if udp == 40 {
        header[0] |= 0x0f;
    }
    // UDP checksum, and the byte of the BTH with FECN and BECN.
    header[udp + 6..udp + 8].fill(0xff);
    header[udp + 8 + 4] = 0xff;
    let wanted = crc32fast::hash(&pseudo);
    if icrc != wanted {
        return Err(format!("ICRC {icrc:#010x}, not {wanted:#010x}, opcode {:#04x}", body[udp + 8]));
    }
    Ok(Some(Packet {
        opcode: body[udp + 8],
        source: word(ip, udp) as u16,
        to: if udp == 20 { &ip[16..20] } else { &ip[24..40] },
        qpn: u32::from_be_bytes([0, ip[udp + 13], ip[udp + 14], ip[udp + 15]]),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledgement over IPv4 without its ICRC.
    fn ack() -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0x99, 0x0a, 2, 0, 0, 0, 0x99, 2, 8, 0];
        f.extend([0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 99, 0, 2, 10, 99, 0, 10]);
        f.extend([0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        f.extend([0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 7, 0x1f, 0, 0, 1]);
        let sum: usize = (0..10).map(|n| word(&f, 14 + 2 * n)).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        f[24..26].copy_from_slice(&sum.to_be_bytes());
        f
    }

    fn sealed() -> Vec<u8> {
        let mut f = ack();
        let mut pseudo = vec![0xff; 8];
        pseudo.extend(&f[14..]);
        for at in [1, 8, 10, 11, 26, 27, 32] {
            pseudo[8 + at] = 0xff;
        }
        f.extend(crc32fast::hash(&pseudo).to_le_bytes());
        f
    }

    const OURS: [u8; 6] = [2, 0, 0, 0, 0x99, 0x0a];

    #[test]
    fn a_packet_is_right_until_a_bit_of_it_changes() {
        let whole = sealed();
        let right = Packet { opcode: 0x11, source: 0xc000, to: &[10, 99, 0, 10], qpn: 0x11 };
        assert_eq!(roce(&whole), Ok(Some(right)));
        // Fields that may change on the path: here the UDP checksum and FECN.
        let mut marked = whole.clone();
        marked[40] = 0x12;
        marked[46] = 0x40;
        assert_eq!(roce(&marked), Ok(Some(right)));
        for at in [26, 34, 42, 43, 49, 53, 54, 58, 59, 61] {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            assert!(roce(&bad).is_err(), "byte {at}");
        }
        for len in 0..whole.len() {
            let short = roce(&whole[..len]);
            assert!(!matches!(short, Ok(Some(_))), "{len} bytes: {short:?}");
        }
    }

    #[test]
    fn packets_are_counted_by_who_sent_them_and_others_are_let_be() {
        let mut found = Findings::default();
        let mut mine = sealed();
        mine[6..12].copy_from_slice(&OURS);
        let mut broken = sealed();
        broken[58] ^= 0x80;
        let arp = [&[0xff; 12][..], &[8, 6], &[0; 28]].concat();
        for frame in [&sealed(), &mine, &mine, &broken, &arp] {
            found.frame(frame, OURS);
        }
        assert_eq!((found.frames, found.right, found.wrong_frames), (5, [2, 1], 1));
        assert!(found.wrong[0].starts_with("frame 4: ICRC"), "{:?}", found.wrong);
        assert_eq!(found.opcodes, BTreeMap::from([(0x11, 3)]));
    }

    // Goal: packets of a connection keep to one source port, except for one change to the well-known port.
    #[test]
    fn a_connection_has_one_source_port_until_it_goes_on_from_the_well_known_one() {
        let wrong = |packets: &[(u8, u16)]| {
            let mut found = Findings::default();
            let of = |&(opcode, source)| Packet { opcode, source, to: &[10, 99, 0, 10], qpn: 0x11 };
            packets.iter().map(of).filter(|packet| found.source_port(packet).is_err()).count()
        };
        let [one, two] = [61_000, 61_001];
        assert_eq!(wrong(&[(0x04, one), (0x11, one), (0x04, WELL_KNOWN), (0x04, WELL_KNOWN)]), 0);
        assert_eq!(wrong(&[(0x04, one), (0x11, two)]), 1);
        assert_eq!(wrong(&[(0x04, WELL_KNOWN), (0x04, one)]), 1);
        assert_eq!(wrong(&[(0x64, one), (0x64, two), (0x64, WELL_KNOWN)]), 0);
        assert_eq!(wrong(&[(0x64, 49_151), (0x04, 0)]), 2);
    }

    // Captures of this stack and Linux, which connect over IPv6 and in a VLAN.
    #[test]
    fn what_we_say_to_linux_is_right() {
        for name in ["ipv6-rping-client", "ipv6-rping-server", "ipv6-ucmatose", "ipv6-udaddy", "vlan-rping"] {
            let path = format!("{}/../testdata/ours-{name}.pcap", env!("CARGO_MANIFEST_DIR"));
            let found = file(Path::new(&path), OURS).unwrap();
            assert_eq!(found.wrong_frames, 0, "{name}: {:?}", found.wrong);
            assert!(found.right.iter().all(|n| *n >= 4), "{name}: {:?}", found.right);
            assert!(found.opcodes.contains_key(&0x64), "{name}: no datagram of queue pair 1");
        }
    }

    fn golden(name: &str) -> Findings {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../stack/testdata/pcap/");
        file(&Path::new(path).join(name), OURS).unwrap()
    }

    // Captures of two Linux hosts.
    #[test]
    fn what_linux_sends_is_right_but_for_its_flush() {
        for name in ["jumbo-rc-send.pcap", "jumbo-rc-read.pcap", "ipv6-rping.pcap", "case-atomic-write.pcap"]
        {
            let found = golden(name);
            assert_eq!((found.wrong_frames, found.right[0]), (0, 0), "{name}: {:?}", found.wrong);
            assert!(found.right[1] > 0, "{name}");
        }
        let flush = golden("case-flush.pcap");
        assert!(
            flush.wrong_frames > 0 && flush.wrong.iter().all(|w| w.ends_with("opcode 0x1c")),
            "{flush:?}"
        );
    }
}
