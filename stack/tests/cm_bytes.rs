//! Messages of connection management, byte by byte.

use std::net::IpAddr;

use stack::cm::mad::{HEADER_LEN, Mad};
use stack::cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, ReqPath, Rtu, SidrRep, SidrReq};
use stack::cm::{
    Config, Connect, Counter, Error, Event, GSI_QKEY, IpHeader, IpHeaderError, Listen, MAD_LEN, Machine,
    Path, PortSpace, RDMA_UDP_QKEY, Reason, ServiceId, SidrRequest, SidrStatus, Timing,
};
use stack::id::{Gid, Psn, Qpn};
use stack::time::Instant;

/// A worked packet: the payload of a datagram that carries an RTU, up to its 224 zero bytes.
#[rustfmt::skip]
const RTU: [u8; 32] = [
    0x01, 0x07, 0x02, 0x03, 0x00, 0x00, 0x00, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x0b, 0x0c, 0x0d, 0x01, 0x02, 0x03, 0x04,
];

#[test]
fn m01_worked_rtu() {
    let rtu = Rtu { local_comm_id: 0x0a0b_0c0d, remote_comm_id: 0x0102_0304, private_data: [0; 224] };
    let mad = Mad::new(0x1122_3344_5566_7788, rtu);
    let bytes = mad.encode();
    assert_eq!(bytes.len(), 256);
    assert_eq!(bytes[..32], RTU);
    assert!(bytes[32..].iter().all(|b| *b == 0));
    assert_eq!(Mad::decode(&bytes), Ok(mad));
    assert_eq!(GSI_QKEY, 0x8001_0000);
    // P_Key, queue pair and Q_Key of the datagram around this MAD: test `p02` has the whole frame.
}

/// The bits of the body in which a message differs from an all-zero one: the first bit, and their number. They must be adjacent.
fn bits(message: impl Into<Message>, attribute: u16) -> (usize, usize) {
    let message = message.into();
    assert_eq!(message.attribute(), attribute);
    let mad = Mad::new(0, message);
    let bytes = mad.encode();
    assert_eq!(Mad::decode(&bytes), Ok(mad), "what is written is read");
    let body = &bytes[HEADER_LEN..];
    let ones: Vec<usize> = (0..body.len() * 8).filter(|i| body[i / 8] >> (7 - i % 8) & 1 == 1).collect();
    let (first, last) = (ones[0], ones[ones.len() - 1]);
    assert_eq!(ones.len(), last - first + 1, "a field has a gap");
    (first, ones.len())
}

/// Checks that each field, with all of its bits set, is at the byte and bit that the specification names, with that many bits.
macro_rules! places {
    ($message:ident $attribute:literal: $($field:ident = $ones:expr, $byte:literal $bit:literal $width:expr;)*) => {$(
        let message = $message { $field: $ones, ..$message::default() };
        let place = ($byte * 8 + $bit, $width);
        assert_eq!(bits(message, $attribute), place, concat!(stringify!($message), ".", stringify!($field)));
    )*};
}

const GID: Gid = Gid([0xff; 16]);
const QPN: Qpn = Qpn::new(0xff_ffff);
const PSN: Psn = Psn::new(0xff_ffff);

/// A second transcription of the tables of the specification.
#[test]
fn m02_every_field_of_a_req_is_at_its_place() {
    places! { Req 0x10:
        local_comm_id = u32::MAX, 0 0 32;
        vendor_id = 0xff_ffff, 5 0 24;
        service_id = ServiceId(u64::MAX), 8 0 64;
        local_ca_guid = u64::MAX, 16 0 64;
        local_qkey = u32::MAX, 28 0 32;
        local_qpn = QPN, 32 0 24;
        responder_resources = 255, 35 0 8;
        local_eecn = 0xff_ffff, 36 0 24;
        initiator_depth = 255, 39 0 8;
        remote_eecn = 0xff_ffff, 40 0 24;
        remote_response_timeout = 31, 43 0 5;
        transport = 3, 43 5 2;
        flow_control = true, 43 7 1;
        starting_psn = PSN, 44 0 24;
        local_response_timeout = 31, 47 0 5;
        retry_count = 7, 47 5 3;
        pkey = u16::MAX, 48 0 16;
        path_mtu = 15, 50 0 4;
        rdc_exists = true, 50 4 1;
        rnr_retry_count = 7, 50 5 3;
        max_cm_retries = 15, 51 0 4;
        srq = true, 51 4 1;
        extended_transport = 7, 51 5 3;
        sap_supported = true, 139 5 1;
        private_data = [0xff; 92], 140 0 (92 * 8);
    }
    let zero = ReqPath::default();
    let paths = [
        (ReqPath { local_lid: u16::MAX, ..zero }, 52 * 8, 16),
        (ReqPath { remote_lid: u16::MAX, ..zero }, 54 * 8, 16),
        (ReqPath { local_gid: GID, ..zero }, 56 * 8, 128),
        (ReqPath { remote_gid: GID, ..zero }, 72 * 8, 128),
        (ReqPath { flow_label: 0xf_ffff, ..zero }, 88 * 8, 20),
        (ReqPath { packet_rate: 63, ..zero }, 91 * 8 + 2, 6),
        (ReqPath { traffic_class: 255, ..zero }, 92 * 8, 8),
        (ReqPath { hop_limit: 255, ..zero }, 93 * 8, 8),
        (ReqPath { sl: 15, ..zero }, 94 * 8, 4),
        (ReqPath { subnet_local: true, ..zero }, 94 * 8 + 4, 1),
        (ReqPath { local_ack_timeout: 31, ..zero }, 95 * 8, 5),
    ];
    for (path, first, width) in paths {
        assert_eq!(bits(Req { primary: path, ..Req::default() }, 0x10), (first, width), "{path:?}");
        // The alternate path has the same layout, 44 bytes later.
        assert_eq!(
            bits(Req { alternate: path, ..Req::default() }, 0x10),
            (first + 44 * 8, width),
            "{path:?}"
        );
    }
    let mad = Mad::new(0, Req { private_data: [0xee; 92], ..Req::default() }).encode();
    assert_eq!(mad.iter().position(|b| *b == 0xee), Some(164));
}

#[test]
fn m03_every_field_of_the_other_messages_is_at_its_place() {
    places! { Mra 0x11:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        message = 3, 8 0 2;
        service_timeout = 31, 9 0 5;
        private_data = [0xff; 222], 10 0 (222 * 8);
    }
    places! { Rej 0x12:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        message = 3, 8 0 2;
        info_length = 127, 9 0 7;
        reason = Reason(u16::MAX), 10 0 16;
        info = [0xff; 72], 12 0 (72 * 8);
        private_data = [0xff; 148], 84 0 (148 * 8);
    }
    places! { Rep 0x13:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        local_qkey = u32::MAX, 8 0 32;
        local_qpn = QPN, 12 0 24;
        vendor_id_high = 255, 15 0 8;
        local_eecn = 0xff_ffff, 16 0 24;
        vendor_id_mid = 255, 19 0 8;
        starting_psn = PSN, 20 0 24;
        vendor_id_low = 255, 23 0 8;
        responder_resources = 255, 24 0 8;
        initiator_depth = 255, 25 0 8;
        target_ack_delay = 31, 26 0 5;
        failover = 3, 26 5 2;
        flow_control = true, 26 7 1;
        rnr_retry_count = 7, 27 0 3;
        srq = true, 27 3 1;
        local_ca_guid = u64::MAX, 28 0 64;
        private_data = [0xff; 196], 36 0 (196 * 8);
    }
    places! { Rtu 0x14:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        private_data = [0xff; 224], 8 0 (224 * 8);
    }
    places! { Dreq 0x15:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        remote_qpn = QPN, 8 0 24;
        private_data = [0xff; 220], 12 0 (220 * 8);
    }
    places! { Drep 0x16:
        local_comm_id = u32::MAX, 0 0 32;
        remote_comm_id = u32::MAX, 4 0 32;
        private_data = [0xff; 224], 8 0 (224 * 8);
    }
    places! { SidrReq 0x17:
        request_id = u32::MAX, 0 0 32;
        pkey = u16::MAX, 4 0 16;
        service_id = ServiceId(u64::MAX), 8 0 64;
        private_data = [0xff; 216], 16 0 (216 * 8);
    }
    places! { SidrRep 0x18:
        request_id = u32::MAX, 0 0 32;
        status = SidrStatus(255), 4 0 8;
        info_length = 255, 5 0 8;
        vendor_id_high = u16::MAX, 6 0 16;
        qpn = QPN, 8 0 24;
        vendor_id_low = 255, 11 0 8;
        service_id = ServiceId(u64::MAX), 12 0 64;
        qkey = u32::MAX, 20 0 32;
        info = [0xff; 72], 24 0 (72 * 8);
        private_data = [0xff; 136], 96 0 (136 * 8);
    }
    // Offset of private data in the MAD.
    let offsets = [
        (Message::from(Mra { private_data: [0xee; 222], ..Mra::default() }), 34),
        (Rej { private_data: [0xee; 148], ..Rej::default() }.into(), 108),
        (Rep { private_data: [0xee; 196], ..Rep::default() }.into(), 60),
        (Rtu { private_data: [0xee; 224], ..Rtu::default() }.into(), 32),
        (Dreq { private_data: [0xee; 220], ..Dreq::default() }.into(), 36),
        (Drep { private_data: [0xee; 224], ..Drep::default() }.into(), 32),
        (SidrReq { private_data: [0xee; 216], ..SidrReq::default() }.into(), 40),
        (SidrRep { private_data: [0xee; 136], ..SidrRep::default() }.into(), 120),
    ];
    for (message, offset) in offsets {
        let mad = Mad::new(0, message).encode();
        assert_eq!(mad.iter().position(|b| *b == 0xee), Some(offset));
        assert_eq!(mad[255], 0xee, "private data ends with the MAD");
    }
}

#[test]
fn m04_service_ids_of_port_spaces() {
    assert_eq!(ServiceId::new(PortSpace::Tcp, 4420), ServiceId(0x0000_0000_0106_1144));
    for (space, number) in
        [(PortSpace::Tcp, 0x0106), (PortSpace::Udp, 0x0111), (PortSpace::IpoIb, 2), (PortSpace::Ib, 0x013f)]
    {
        assert_eq!(PortSpace::from_enum(number), Some(space));
        let id = ServiceId::new(space, 0xfffe);
        assert_eq!(
            (id.0, id.port_space(), id.port()),
            (u64::from(number) << 16 | 0xfffe, Some(space), 0xfffe)
        );
    }
    assert_eq!(PortSpace::from_enum(0x0107), None);
    for other in [0, 0x0107_0001, 1 << 32 | 0x0106_1144, u64::MAX] {
        assert_eq!(ServiceId(other).port_space(), None, "{other:#x}");
    }
}

fn header(src: &str, dst: &str) -> (IpHeader, [u8; 36]) {
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    let header = IpHeader { src_port: 0x9c40, src: ip(src), dst: ip(dst) };
    let mut bytes = [0xa5; 36];
    header.write(&mut bytes);
    (header, bytes)
}

#[test]
fn m05_private_header() {
    let (v4, bytes) = header("10.1.2.3", "10.4.5.6");
    let mut expected = [0; 36];
    expected[1..4].copy_from_slice(&[0x40, 0x9c, 0x40]);
    expected[16..20].copy_from_slice(&[10, 1, 2, 3]);
    expected[32..36].copy_from_slice(&[10, 4, 5, 6]);
    assert_eq!(bytes, expected);
    assert_eq!(IpHeader::read(&bytes), Ok(v4));

    let (v6, bytes) = header("fd00::1:2", "fd00::3:4");
    let mut expected = [0; 36];
    expected[1..4].copy_from_slice(&[0x60, 0x9c, 0x40]);
    expected[4..6].copy_from_slice(&[0xfd, 0]);
    expected[16..20].copy_from_slice(&[0, 1, 0, 2]);
    expected[20..22].copy_from_slice(&[0xfd, 0]);
    expected[32..36].copy_from_slice(&[0, 3, 0, 4]);
    assert_eq!(bytes, expected);
    assert_eq!(IpHeader::read(&bytes), Ok(v6));

    // User data follows at byte 36, in REQ and in SIDR_REQ.
    let path = Path { sgid: Gid::v4([10, 1, 2, 3]), dgid: Gid::v4([10, 4, 5, 6]), ..Path::default() };
    let mut machine = Machine::new(Config::default());
    let mut connect = Connect::new(ServiceId::new(PortSpace::Tcp, 1), path, Qpn::new(2));
    connect.ip = Some(v4);
    connect.private_data = (1..=56).collect();
    machine.connect(Instant::ZERO, &connect).unwrap();
    let mad = machine.poll_send().unwrap().mad;
    assert_eq!(IpHeader::read(mad[164..200].first_chunk().unwrap()), Ok(v4));
    assert!(mad[200..].iter().copied().eq(1..=56));
    let request = SidrRequest {
        service_id: ServiceId::new(PortSpace::Udp, 1),
        path,
        timing: Timing::default(),
        ip: Some(v4),
        private_data: (1..=180).collect(),
    };
    machine.sidr_request(Instant::ZERO, &request).unwrap();
    let mad = machine.poll_send().unwrap().mad;
    assert_eq!(IpHeader::read(mad[40..76].first_chunk().unwrap()), Ok(v4));
    assert!(mad[76..].iter().copied().eq(1..=180));
    // One more byte does not fit; neither does a header for a service id outside `rdma_cm`, nor a missing header for one of `rdma_cm`.
    let more = Connect { private_data: vec![0; 57], qpn: Qpn::new(3), ..connect.clone() };
    assert_eq!(
        machine.connect(Instant::ZERO, &more),
        Err(Error::PrivateData { given: 57, max: 56 }),
        "a header takes 36 of 92"
    );
    let id = ServiceId(7);
    let odd = Connect { service_id: id, private_data: Vec::new(), ..more.clone() };
    assert_eq!(machine.connect(Instant::ZERO, &odd), Err(Error::IpHeader(id)));
    let none = Connect { ip: None, private_data: Vec::new(), ..more };
    assert_eq!(machine.connect(Instant::ZERO, &none), Err(Error::IpHeader(none.service_id)));
    let plain = Connect { service_id: id, private_data: vec![0; 92], ..none };
    assert!(machine.connect(Instant::ZERO, &plain).is_ok(), "without header there is room for 92");
}

/// The MADs with which a machine answers a MAD.
fn answers(machine: &mut Machine, mad: &[u8]) -> Vec<Mad> {
    let path = Path { sgid: Gid::v4([10, 0, 0, 2]), dgid: Gid::v4([10, 0, 0, 1]), ..Path::default() };
    machine.handle_mad(Instant::ZERO, &path, mad);
    let sends = std::iter::from_fn(|| machine.poll_send());
    sends.map(|s| Mad::decode(&s.mad).unwrap()).collect()
}

/// A REQ that the machine accepts.
fn good_req() -> Req {
    let mut req = Req {
        local_comm_id: 7,
        service_id: ServiceId::new(PortSpace::Tcp, 4420),
        local_ca_guid: 9,
        local_qpn: Qpn::new(0x11),
        pkey: 0xffff,
        path_mtu: 3,
        max_cm_retries: 15,
        local_response_timeout: 20,
        ..Req::default()
    };
    req.primary.local_gid = Gid::v4([10, 0, 0, 1]);
    req.primary.remote_gid = Gid::v4([10, 0, 0, 2]);
    let (_, header) = header("10.0.0.1", "10.0.0.2");
    req.private_data[..36].copy_from_slice(&header);
    req
}

fn listening() -> Machine {
    let mut machine = Machine::new(Config::default());
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let service_id = ServiceId::new(space, 4420);
        machine.listen(&Listen { service_id, address: None, backlog: 4 }).unwrap();
    }
    machine
}

#[test]
fn m06_malformed_private_headers() {
    let mut machine = listening();
    for (at, value, error) in [
        (0, 0x10, IpHeaderError::Version(0x10)),
        (0, 0x01, IpHeaderError::Version(0x01)),
        (1, 0x50, IpHeaderError::IpVersion(5)),
        (1, 0x00, IpHeaderError::IpVersion(0)),
    ] {
        let mut req = good_req();
        req.private_data[at] = value;
        assert_eq!(IpHeader::read(req.private_data.first_chunk().unwrap()), Err(error));
        let counted = machine.counters().get(Counter::BadIpHeader);
        let answers = answers(&mut machine, &Mad::new(5, req).encode());
        let [Mad { tid: 5, message: Message::Rej(rej), .. }] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((rej.reason, rej.remote_comm_id, rej.local_comm_id), (Reason::CONSUMER_DEFINED, 7, 0));
        assert_eq!(machine.counters().get(Counter::BadIpHeader), counted + 1);
        assert_eq!(machine.poll_event(), None, "{error}");
        assert_eq!(machine.connections(), 0);

        let mut sidr =
            SidrReq { request_id: 3, service_id: ServiceId::new(PortSpace::Udp, 4420), ..SidrReq::default() };
        sidr.private_data[..36].copy_from_slice(&req.private_data[..36]);
        let answers = self::answers(&mut machine, &Mad::new(6, sidr).encode());
        let [Mad { tid: 6, message: Message::SidrRep(rep), .. }] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!((rep.status, rep.request_id), (SidrStatus::REJECT, 3));
        assert_eq!((machine.poll_event(), machine.sidr_exchanges()), (None, 0));
    }
    answers(&mut machine, &Mad::new(5, good_req()).encode());
    assert!(matches!(machine.poll_event(), Some(Event::ConnectRequest { .. })), "the same, well formed");
    assert_eq!(RDMA_UDP_QKEY, 0x0123_4567);
}

#[test]
fn m24_what_is_no_message_of_connection_management() {
    let mut machine = listening();
    let good = Mad::new(5, good_req()).encode();
    let with = |at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        bytes
    };
    let mut long = good.to_vec();
    long.push(0);
    let cases = [
        (with(0, 2), Counter::BadBaseVersion),
        (with(1, 0x03), Counter::BadClass),
        (with(2, 1), Counter::BadClassVersion),
        (with(3, 0x81), Counter::BadMethod),
        (with(3, 0x01), Counter::BadMethod),
        (with(17, 0x0f), Counter::UnknownAttribute),
        (with(17, 0x1b), Counter::UnknownAttribute),
        (with(16, 0x01), Counter::UnknownAttribute),
        (with(17, 0x19), Counter::NoAlternatePaths),
        (with(17, 0x1a), Counter::NoAlternatePaths),
        (good[..255].to_vec(), Counter::BadLength),
        (long, Counter::BadLength),
        (Vec::new(), Counter::BadLength),
        (Mad::new(5, Req { local_comm_id: 0, ..good_req() }).encode().to_vec(), Counter::BadField),
        (Mad::new(5, Req { local_qpn: Qpn::GSI, ..good_req() }).encode().to_vec(), Counter::BadField),
        (Mad::new(5, Req { local_qpn: Qpn::MULTICAST, ..good_req() }).encode().to_vec(), Counter::BadField),
        (Mad::new(5, Rej { info_length: 73, ..Rej::default() }).encode().to_vec(), Counter::BadField),
        (Mad::new(5, SidrRep { info_length: 73, ..SidrRep::default() }).encode().to_vec(), Counter::BadField),
    ];
    for (bytes, counter) in cases {
        let before = machine.counters().get(counter);
        assert_eq!(answers(&mut machine, &bytes), [], "{counter:?}");
        assert_eq!(machine.counters().get(counter), before + 1, "{counter:?}");
        assert_eq!((machine.poll_event(), machine.connections()), (None, 0), "{counter:?}");
    }
    let path = Path { sgid: Gid::v4([10, 0, 0, 2]), dgid: Gid::v4([239, 0, 0, 1]), ..Path::default() };
    machine.handle_mad(Instant::ZERO, &path, &good);
    assert_eq!(machine.counters().get(Counter::BadAddress), 1, "from a group there is no answer to give");
    assert_eq!((machine.poll_send(), machine.poll_event()), (None, None));
    assert_eq!(good.len(), MAD_LEN);
}
