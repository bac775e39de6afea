//! Packets with known bytes. A to F were computed by a separate program, the CNP was captured.

use super::*;

/// The fields of a packet, and its bytes.
pub struct Vector {
    pub flow: Flow,
    pub header: Header,
    pub payload: &'static [u8],
    pub bytes: Vec<u8>,
}

/// Bytes of a hex dump.
fn hex(dump: &str) -> Vec<u8> {
    dump.split_whitespace().map(|b| u8::from_str_radix(b, 16).expect("hex digits")).collect()
}

/// RC SEND ONLY of 5 bytes.
pub fn a() -> Vector {
    Vector {
        flow: Flow { traffic_class: 0x6a, ..flow_v4() },
        header: Header {
            psn: Psn::new(0x100),
            ack_req: true,
            solicited: true,
            ip_id: 0x1234,
            payload_len: 5,
            ..Header::default()
        },
        payload: b"hello",
        bytes: hex("02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 6a
            00 34 12 34 40 00 40 11 92 c7 c0 a8 0a 01 c0 a8
            0a 02 c1 32 12 b7 00 20 00 00 04 b0 ff ff 00 00
            00 12 80 00 01 00 68 65 6c 6c 6f 00 00 00 40 bf
            df b7"),
    }
}

/// Its acknowledgement.
pub fn b() -> Vector {
    let there = flow_v4();
    Vector {
        flow: Flow {
            src_mac: there.dst_mac,
            dst_mac: there.src_mac,
            src: there.dst,
            dst: there.src,
            traffic_class: 0x6a,
            dqpn: Qpn::new(0x11),
            ..there
        },
        header: Header {
            opcode: Opcode::RC_ACKNOWLEDGE,
            psn: Psn::new(0x100),
            ip_id: 0x4321,
            ext: Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 }),
            ..Header::default()
        },
        payload: &[],
        bytes: hex("02 00 00 00 00 01 02 00 00 00 00 02 08 00 45 6a
            00 30 43 21 40 00 40 11 61 de c0 a8 0a 02 c0 a8
            0a 01 c1 32 12 b7 00 1c 00 00 11 00 ff ff 00 00
            00 11 00 00 01 00 1f 00 00 01 3b b3 d5 11"),
    }
}

/// RC READ REQUEST over IPv6 with a VLAN tag.
pub fn c() -> Vector {
    Vector {
        flow: flow_v6(),
        header: Header {
            opcode: Opcode::RC_READ_REQUEST,
            psn: Psn::new(0xff_fffe),
            ack_req: true,
            ext: Ext::Reth(Reth { va: 0x7f00_1234_5000, rkey: 0x207, len: 4096 }),
            ..Header::default()
        },
        payload: &[],
        bytes: hex("02 00 00 00 00 02 02 00 00 00 00 01 81 00 60 64
            86 dd 66 a1 23 45 00 28 11 40 fd 00 00 00 00 00
            00 00 00 00 00 00 00 00 00 01 fd 00 00 00 00 00
            00 00 00 00 00 00 00 00 00 02 c1 32 12 b7 00 28
            00 00 0c 00 ff ff 00 00 00 12 80 ff ff fe 00 00
            7f 00 12 34 50 00 00 00 02 07 00 00 10 00 2f 17
            88 af"),
    }
}

/// RC WRITE ONLY with immediate data.
pub fn d() -> Vector {
    Vector {
        flow: Flow { traffic_class: 2, ..flow_v4() },
        header: Header {
            opcode: Opcode::RC_WRITE_ONLY_IMM,
            psn: Psn::new(0x101),
            ack_req: true,
            ext: Ext::RethImm(Reth { va: 0x7f00_1234_5000, rkey: 0x207, len: 8 }, [0xca, 0xfe, 0xba, 0xbe]),
            payload_len: 8,
            ..Header::default()
        },
        payload: &[0, 1, 2, 3, 4, 5, 6, 7],
        bytes: hex("02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 02
            00 48 00 00 40 00 40 11 a5 4f c0 a8 0a 01 c0 a8
            0a 02 c1 32 12 b7 00 34 00 00 0b 00 ff ff 00 00
            00 12 80 00 01 01 00 00 7f 00 12 34 50 00 00 00
            02 07 00 00 00 08 ca fe ba be 00 01 02 03 04 05
            06 07 4b 09 a3 6d"),
    }
}

/// UD SEND ONLY to the GSI.
pub fn e() -> Vector {
    static MAD: [u8; 256] = {
        let mut mad = [0; 256];
        let start = [
            0x01, 0x07, 0x02, 0x03, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x00, 0x14,
            0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 0x01, 0x02, 0x03, 0x04,
        ];
        let mut i = 0;
        while i < start.len() {
            mad[i] = start[i];
            i += 1;
        }
        mad
    };
    let mut bytes = hex("02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 00
            01 34 00 01 40 00 40 11 a4 64 c0 a8 0a 01 c0 a8
            0a 02 c0 01 12 b7 01 20 00 00 64 00 ff ff 00 00
            00 01 00 00 00 05 80 01 00 00 00 00 00 01 01 07
            02 03 00 00 00 00 11 22 33 44 55 66 77 88 00 14
            00 00 00 00 00 00 0a 0b 0c 0d 01 02 03 04");
    bytes.resize(318, 0);
    bytes.extend(hex("3f 83 d8 d3"));
    Vector {
        flow: Flow { src_port: 0xc001, dqpn: Qpn::GSI, ..flow_v4() },
        header: Header {
            opcode: Opcode::UD_SEND_ONLY,
            psn: Psn::new(5),
            ip_id: 1,
            ext: Ext::Deth(Deth { qkey: 0x8001_0000, src_qpn: Qpn::GSI }),
            payload_len: 256,
            ..Header::default()
        },
        payload: &MAD,
        bytes,
    }
}

/// RC CMP SWAP.
pub fn f() -> Vector {
    Vector {
        flow: Flow { traffic_class: 2, ..flow_v4() },
        header: Header {
            opcode: Opcode::RC_CMP_SWAP,
            psn: Psn::new(0x102),
            ack_req: true,
            ext: Ext::Atomic(AtomicEth { va: 0x7f00_1234_5008, rkey: 0x207, swap_add: 2, compare: 1 }),
            ..Header::default()
        },
        payload: &[],
        bytes: hex("02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 02
            00 48 00 00 40 00 40 11 a5 4f c0 a8 0a 01 c0 a8
            0a 02 c1 32 12 b7 00 34 00 00 13 00 ff ff 00 00
            00 12 80 00 01 02 00 00 7f 00 12 34 50 08 00 00
            02 07 00 00 00 00 00 00 00 02 00 00 00 00 00 00
            00 01 3f e9 e3 f5"),
    }
}

/// CNP of a ConnectX-4 Lx.
pub fn cnp() -> Vector {
    Vector {
        flow: Flow {
            src_mac: Mac([0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32]),
            dst_mac: Mac([0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2]),
            src: Gid::v4([10, 0, 17, 1]),
            dst: Gid::v4([10, 0, 18, 1]),
            traffic_class: 0xc2,
            src_port: 0,
            dqpn: Qpn::new(0x118),
            mig_req: false,
            ..Flow::default()
        },
        header: Header { opcode: Opcode::CNP, ip_id: 0x718c, payload_len: 16, ..Header::default() },
        payload: &[0; 16],
        bytes: hex("e4 1d 2d ab 2b c2 7c fe 90 64 3b 32 08 00 45 c2
            00 3c 71 8c 40 00 40 11 91 61 0a 00 11 01 0a 00
            12 01 00 00 12 b7 00 28 00 00 81 00 ff ff 40 00
            01 18 00 00 00 00 00 00 00 00 00 00 00 00 00 00
            00 00 00 00 00 00 82 fd 00 2a"),
    }
}

/// All of them.
pub fn all() -> [Vector; 7] {
    [a(), b(), c(), d(), e(), f(), cnp()]
}
