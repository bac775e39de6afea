//! Tests of the wire format, by conformance id where there is one.

mod codec;
mod located;
mod properties;
mod table;
mod vectors;

use super::*;
use crate::id::{Gid, Mac, Psn, Qpn};

/// The checks of a receiver that need no state.
fn accept(frame: &[u8]) -> Result<Layout, Discard> {
    let mut copy = frame.to_vec();
    match locate(&copy)? {
        Ingress::Roce(layout) => {
            let good = icrc::check(&mut copy, &layout, None);
            assert_eq!(copy, frame, "check() must leave the frame as it was");
            if good { Ok(layout) } else { Err(Discard::BadIcrc) }
        }
        Ingress::Other => panic!("no RoCEv2 frame"),
    }
}

/// Builds a packet in a buffer full of 0xa5 and checks that nothing beyond its end was touched.
fn build(flow: &Flow, h: &Header, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0xa5; HEADERS_MAX + payload.len() + 64];
    let h = Header { payload_len: payload.len() as u32, ..*h };
    let template = Template::new(flow);
    let at = template.begin(&mut buf, &h);
    assert!(buf[at..].iter().all(|b| *b == 0xa5), "begin() wrote past the headers");
    buf[at..at + payload.len()].copy_from_slice(payload);
    let len = template.seal(&mut buf, at, payload.len());
    assert!(buf[len..].iter().all(|b| *b == 0xa5), "seal() wrote past the frame");
    buf.truncate(len);
    buf
}

/// Puts the right ICRC at the end of a frame, with the computation done byte by byte from the definition.
fn reseal(frame: &mut [u8], l3: usize) {
    let ipv6 = frame[l3] >> 4 == 6;
    let udp = l3 + if ipv6 { 40 } else { 20 };
    let udp_len = be16(frame, udp + 4) as usize;
    let end = udp + udp_len - 4;
    let icrc = slow_icrc(&frame[l3..end]);
    frame[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
}

/// The ICRC of IP header to pad, from the text of the specification: no table, no seed, no shared mask.
pub(super) fn slow_icrc(covered: &[u8]) -> u32 {
    let ipv6 = covered[0] >> 4 == 6;
    let mut input = vec![0xff; 8];
    input.extend_from_slice(covered);
    let ip = &mut input[8..];
    let bth = if ipv6 {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
        48
    } else {
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
        28
    };
    ip[bth - 2..bth].fill(0xff);
    ip[bth + 4] = 0xff;
    let mut register = u32::MAX;
    for byte in input {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !register
}

/// The addresses of the worked packets over IPv4: host 1 to host 2.
fn flow_v4() -> Flow {
    Flow {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        src: Gid::v4([192, 168, 10, 1]),
        dst: Gid::v4([192, 168, 10, 2]),
        src_port: 0xc132,
        dqpn: Qpn::new(0x12),
        mig_req: false,
        ..Flow::default()
    }
}

/// As [`flow_v4`] over IPv6, with a VLAN and a flow label.
fn flow_v6() -> Flow {
    let gid = |host: u8| {
        let mut gid = [0; 16];
        gid[0] = 0xfd;
        gid[15] = host;
        Gid(gid)
    };
    Flow {
        vlan: Some(3 << 13 | 100),
        src: gid(1),
        dst: gid(2),
        traffic_class: 0x6a,
        flow_label: 0x12345,
        ..flow_v4()
    }
}
