//! Frames and datagrams: reads the headers of a frame, which the kernel will write anew, and writes the headers that it removed from a
//! datagram.

use core::net::IpAddr;
use core::ops::Range;

use crate::id::{Gid, Mac};
use crate::port::frame::Frame;
use crate::wire::{
    ETH_LEN, ETHER_IPV4, ETHER_IPV6, ICRC_LEN, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, UDP_LEN, UDP_PORT, be16,
    icrc,
};

/// Offset of the IP header.
const L3: usize = ETH_LEN;
/// Offset of the word of an IPv4 header with identification, flags and fragment offset.
pub(super) const IDENTIFICATION: usize = L3 + 4;
/// Don't fragment: the only flag that is ever set.
pub(super) const DF: [u8; 2] = [0x40, 0];

/// Bytes of the headers in front of a datagram.
pub(super) fn headers_len(v6: bool) -> usize {
    L3 + if v6 { IPV6_LEN } else { IPV4_LEN } + UDP_LEN
}

/// The larger value of [`headers_len`].
pub(super) const HEADERS_MAX: usize = L3 + IPV6_LEN + UDP_LEN;

/// The fields of an IP header that a program can choose: addresses, traffic class and hop limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpFields {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TOS byte or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

/// A RoCEv2 packet in a frame of the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Its IP header.
    pub ip: IpFields,
    /// UDP source port.
    pub port: u16,
    /// Range of the UDP payload in the frame.
    pub payload: Range<usize>,
}

impl Outgoing {
    /// Reads a frame's headers; `None` if it is not RoCEv2, or has a VLAN tag.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let v6 = match be16(frame.first_chunk::<ETH_LEN>()?, 12) {
            ETHER_IPV4 => false,
            ETHER_IPV6 => true,
            _ => return None,
        };
        let from = headers_len(v6);
        let (ip, udp) = frame.get(L3..from)?.split_last_chunk::<UDP_LEN>()?;
        let address = |at: usize| ip.get(at..)?.first_chunk::<16>().map(|bytes| Gid(*bytes).to_ip());
        let address_v4 = |at: usize| ip.get(at..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes));
        let (protocol, fields) = if v6 {
            let traffic_class = ip[0] << 4 | ip[1] >> 4;
            (ip[6], IpFields { src: address(8)?, dst: address(24)?, traffic_class, hop_limit: ip[7] })
        } else {
            let (src, dst) = (address_v4(12)?, address_v4(16)?);
            (ip[9], IpFields { src, dst, traffic_class: ip[1], hop_limit: ip[8] })
        };
        let payload = from..from + usize::from(be16(udp, 4)).checked_sub(UDP_LEN)?;
        let whole =
            payload.end <= frame.len() && payload.len() >= ICRC_LEN && payload.len().is_multiple_of(4);
        (protocol == IP_PROTO_UDP && be16(udp, 2) == UDP_PORT && whole).then_some(Self {
            ip: fields,
            port: be16(udp, 0),
            payload,
        })
    }

    /// Writes into the frame what the kernel will send: the IPv4 identification, and `port`, the source port of the socket. Updates the
    /// ICRC, which covers both.
    pub fn fit(&self, frame: &mut Frame, identification: u16, port: u16) {
        let (frame, end) = (frame.data_mut(), self.payload.end);
        let ([source_high, source_low], [high, low]) = (port.to_be_bytes(), UDP_PORT.to_be_bytes());
        icrc::exchange(frame, self.payload.start - UDP_LEN, end, [source_high, source_low, high, low]);
        if self.ip.src.is_ipv4() {
            let [high, low] = identification.to_be_bytes();
            icrc::exchange(frame, IDENTIFICATION, end, [high, low, DF[0], DF[1]]);
        }
    }
}

/// Writes the headers of a datagram of `len` bytes that arrived from the UDP port `src_port` to `headers`, which has [`headers_len`] bytes.
/// `macs` are the Ethernet addresses (destination, source).
///
/// A socket does not report all fields. The checksums of IPv4 and UDP, which the kernel has verified, and the flow label are set to zero.
/// So is the IPv4 identification: the ICRC covers it, and the caller fills it in afterwards.
pub(super) fn write_headers(
    headers: &mut [u8],
    macs: (Mac, Mac),
    fields: &IpFields,
    src_port: u16,
    len: usize,
) {
    let v6 = fields.dst.is_ipv6();
    let udp_len = ((UDP_LEN + len) as u16).to_be_bytes();
    headers.fill(0);
    headers[..6].copy_from_slice(&macs.0.0);
    headers[6..12].copy_from_slice(&macs.1.0);
    headers[12..14].copy_from_slice(&if v6 { ETHER_IPV6 } else { ETHER_IPV4 }.to_be_bytes());
    let (ip, udp) = headers[L3..].split_at_mut(headers_len(v6) - L3 - UDP_LEN);
    match (fields.src, fields.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ip[0] = 0x45;
            ip[1] = fields.traffic_class;
            ip[2..4].copy_from_slice(&((IPV4_LEN + UDP_LEN + len) as u16).to_be_bytes());
            ip[6..8].copy_from_slice(&DF);
            ip[8] = fields.hop_limit;
            ip[9] = IP_PROTO_UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
        }
        (src, dst) => {
            ip[0] = 0x60 | fields.traffic_class >> 4;
            ip[1] = fields.traffic_class << 4;
            ip[4..6].copy_from_slice(&udp_len);
            ip[6] = IP_PROTO_UDP;
            ip[7] = fields.hop_limit;
            ip[8..24].copy_from_slice(&Gid::from_ip(src).0);
            ip[24..40].copy_from_slice(&Gid::from_ip(dst).0);
        }
    }
    udp[..2].copy_from_slice(&src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Psn, Qpn};
    use crate::wire::{Flow, HEADERS_MAX, Header, Ingress, Template, locate};

    /// A sealed packet of the stack with this identification and source port.
    fn packet(v6: bool, payload: usize, ip_id: u16, src_port: u16) -> Frame {
        let gid = |n| {
            if v6 { Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]) } else { Gid::v4([10, 0, 0, n]) }
        };
        let flow = Flow {
            src: gid(1),
            dst: gid(2),
            src_port,
            dqpn: Qpn::new(77),
            traffic_class: 0x6a,
            ..Flow::default()
        };
        let template = Template::new(&flow);
        let header = Header { ip_id, psn: Psn::new(5), payload_len: payload as u32, ..Header::default() };
        let mut buffer = vec![0; HEADERS_MAX + payload + 8];
        let at = template.begin(&mut buffer, &header);
        buffer[at..at + payload].iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let len = template.seal(&mut buffer, at, payload);
        buffer.truncate(len);
        Frame::from_vec(buffer)
    }

    #[test]
    fn what_the_kernel_decides_goes_into_the_icrc() {
        // Goal: after the change the packet is, byte for byte, the one that is built with those values.
        for v6 in [false, true] {
            for payload in [0, 1, 64, 1000, 1024, 4096, 9000] {
                let mut frame = packet(v6, payload, 0xabcd, 0xc123);
                let out = Outgoing::of(frame.data()).unwrap();
                assert_eq!((out.ip.traffic_class, out.ip.hop_limit), (0x6a, 64));
                out.fit(&mut frame, 17, 61_007);
                let right = packet(v6, payload, 17, 61_007);
                // The kernel computes the checksum of the IPv4 header.
                let (from, payload_right) =
                    (out.payload.start - UDP_LEN, &right.data()[out.payload.start - UDP_LEN..]);
                assert_eq!(&frame.data()[from..], payload_right, "{v6} {payload}");
            }
        }
    }

    #[test]
    fn a_datagram_becomes_the_frame_that_it_was() {
        for v6 in [false, true] {
            let sent = packet(v6, 300, 0, UDP_PORT);
            let out = Outgoing::of(sent.data()).unwrap();
            let datagram = &sent.data()[out.payload.clone()];
            let mut frame = vec![0xee; headers_len(v6)];
            let macs = (Mac::default(), Mac::default());
            write_headers(&mut frame, macs, &out.ip, UDP_PORT, datagram.len());
            frame.extend_from_slice(datagram);
            let mut frame = Frame::from_vec(frame);
            let Ok(Ingress::Roce(layout)) = locate(frame.data()) else { panic!("no packet") };
            assert!(icrc::check(frame.data_mut(), &layout, None));
            assert_eq!(layout.packet(frame.data()).src(), Gid::from_ip(out.ip.src));
        }
    }

    #[test]
    fn what_is_no_packet_of_ours_is_not_sent() {
        let good = packet(false, 64, 0, 0xc000);
        for (at, value) in
            [(12, 0x81), (L3 + 9, 6), (L3 + 22, 0), (L3 + 24, 0xff), (L3 + 25, 5), (L3 + 25, 0)]
        {
            let mut bytes = good.data().to_vec();
            bytes[at] = value;
            assert_eq!(Outgoing::of(&bytes), None, "{at} {value}");
        }
        for len in 0..good.len() {
            assert_eq!(Outgoing::of(&good.data()[..len]), None, "{len}");
        }
    }
}
