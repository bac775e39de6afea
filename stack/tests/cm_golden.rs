//! Connection management as Linux implements it: every MAD of the captures is decoded, and built again byte for byte.
//!
//! `testdata/pcap/README.md` says where the captures come from.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use pcap_file::pcap::PcapReader;
use stack::cm::mad::Mad;
use stack::cm::message::Message;
use stack::cm::{
    Accept, Config, Connect, Event, GSI_QKEY, IpHeader, Listen, MAD_LEN, Machine, PortSpace, RDMA_UDP_QKEY,
    Reason, SidrStatus,
};
use stack::id::{Gid, Mtu, Qpn};
use stack::time::Instant;
use stack::wire::{Ingress, locate};

/// A MAD, and the addresses of its sender and receiver.
struct Captured {
    mad: Vec<u8>,
    src: Gid,
    dst: Gid,
}

/// Every MAD of a capture.
fn mads(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pcap").join(name).with_extension("pcap");
    let mut reader = PcapReader::new(File::open(path).expect(name)).expect(name);
    let mut mads = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.expect(name).data.into_owned();
        let Ok(Ingress::Roce(layout)) = locate(&frame) else { continue };
        let packet = layout.packet(&frame);
        if packet.dqpn() != Qpn::GSI {
            continue;
        }
        let deth = packet.deth();
        assert_eq!((deth.qkey, deth.src_qpn, packet.pkey()), (GSI_QKEY, Qpn::GSI, 0xffff), "{name}");
        mads.push(Captured { mad: packet.payload.to_vec(), src: packet.src(), dst: packet.dst() });
    }
    mads
}

/// Captures with connection management.
#[rustfmt::skip]
const FILES: &[&str] = &[
    "cm-rping",
    "cm-reject",
    "cm-ucmatose",
    "cm-udaddy-sidr",
    "rc-write-cm-qp",
    "arp-cm-rping",
    
    "ipv6-rping",
    "ipv6-nd-rping",
    "vlan-rping",
    "nvme-discover",
    "nvme-connect",
    
    "nvme-disconnect",
    "rsockets-rstream",
    "rdma-client",
    "k7-cm-rping",
    "k7-nvme-connect",
];

/// The first MAD of a capture with this attribute.
fn first(name: &str, attribute: u16) -> (Captured, Mad) {
    let all = mads(name).into_iter().map(|c| (Mad::decode(&c.mad).expect(name), c));
    let (mad, captured) = all.into_iter().find(|(m, _)| m.message.attribute() == attribute).expect(name);
    (captured, mad)
}

// Goal: no field is read from or written to a wrong place, and reserved fields are kept: a MAD of Linux is rebuilt from its fields.
#[test]
fn every_mad_is_rebuilt_byte_for_byte() {
    let mut seen = BTreeMap::new();
    for name in FILES {
        let all = mads(name);
        assert!(!all.is_empty(), "{name} has no MADs");
        for captured in all {
            assert_eq!(captured.mad.len(), MAD_LEN, "{name}");
            let mad = Mad::decode(&captured.mad).expect(name);
            assert!(mad.encode()[..] == captured.mad[..], "{name}: {mad:x?}");
            *seen.entry(mad.message.attribute()).or_insert(0) += 1;
        }
    }
    // REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP.
    let expected =
        [(0x10, 18), (0x12, 1), (0x13, 17), (0x14, 17), (0x15, 20), (0x16, 20), (0x17, 1), (0x18, 1)];
    assert_eq!(seen, BTreeMap::from(expected));
}

// Goal: the fields have the values in the tools' output that is stored beside the capture.
#[test]
fn m02_m05_a_request_of_linux() {
    let (captured, mad) = first("cm-rping", 0x10);
    let Message::Req(req) = mad.message else { panic!() };
    assert_eq!((captured.src, captured.dst), (Gid::v4([10, 99, 0, 2]), Gid::v4([10, 99, 0, 3])));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (captured.src, captured.dst));
    assert_eq!(req.service_id.port_space(), Some(PortSpace::Tcp));
    assert_eq!(req.service_id.port(), 7174, "rping's port");
    assert_eq!((req.local_ca_guid, req.pkey), (0xff_fe00_9902, 0xffff));
    assert_eq!((req.path_mtu, req.retry_count, req.rnr_retry_count), (Mtu::Mtu1024 as u8, 7, 7));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout, req.max_cm_retries), (20, 20, 15));
    assert_eq!(
        (req.primary.local_ack_timeout, req.primary.hop_limit, req.primary.subnet_local),
        (17, 64, false)
    );
    let ip = IpHeader::read(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!((ip.src, ip.dst), (captured.src.to_ip(), captured.dst.to_ip()));

    let (captured, mad) = first("ipv6-rping", 0x10);
    let Message::Req(req) = mad.message else { panic!() };
    let ip = IpHeader::read(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!((ip.src, ip.dst), (captured.src.to_ip(), captured.dst.to_ip()));
    assert!(ip.src.is_ipv6());
}

#[test]
fn m03_a_rejection_of_linux() {
    let (_, mad) = first("cm-reject", 0x12);
    let Message::Rej(rej) = mad.message else { panic!() };
    assert_eq!((rej.reason, rej.message, rej.local_comm_id), (Reason::INVALID_SERVICE_ID, 0, 0));
    let (_, request) = first("cm-reject", 0x10);
    let Message::Req(req) = request.message else { panic!() };
    assert_eq!((rej.remote_comm_id, mad.tid), (req.local_comm_id, request.tid));
}

#[test]
fn m25_a_datagram_service_of_linux() {
    let (_, request) = first("cm-udaddy-sidr", 0x17);
    let (_, reply) = first("cm-udaddy-sidr", 0x18);
    let (Message::SidrReq(req), Message::SidrRep(rep)) = (request.message, reply.message) else { panic!() };
    assert_eq!(req.service_id.port_space(), Some(PortSpace::Udp));
    assert_eq!((rep.status, rep.qkey, rep.request_id), (SidrStatus::SUCCESS, RDMA_UDP_QKEY, req.request_id));
    assert_eq!((rep.service_id, reply.tid), (req.service_id, request.tid));
}

/// A machine in the role of the node with this GUID.
fn machine(guid: u64) -> Machine {
    Machine::new(Config { ca_guid: guid, seed: 5, mtu: Mtu::Mtu1024, ..Config::default() })
}

fn path(from: &Captured) -> stack::cm::Path {
    stack::cm::Path { sgid: from.src, dgid: from.dst, hop_limit: 64, ..Default::default() }
}

/// The path as the receiver of `from` sees it.
fn path_here(from: &Captured) -> stack::cm::Path {
    stack::cm::Path { sgid: from.dst, dgid: from.src, ..Default::default() }
}

// Goal: for the same connection our machine sends the bytes that Linux sent, except for randomly drawn numbers.
#[test]
fn m08_our_request_is_that_of_linux() {
    for name in ["cm-rping", "ipv6-rping", "vlan-rping", "cm-ucmatose"] {
        let (captured, theirs) = first(name, 0x10);
        let Message::Req(req) = &theirs.message else { panic!() };
        let mut path = path(&captured);
        path.flow_label = req.primary.flow_label;
        path.traffic_class = req.primary.traffic_class;
        let mut connect = Connect::new(req.service_id, path, req.local_qpn);
        connect.psn = Some(req.starting_psn);
        connect.mtu = Mtu::from_enum(req.path_mtu).unwrap();
        connect.responder_resources = req.responder_resources;
        connect.initiator_depth = req.initiator_depth;
        connect.rnr_retry_count = req.rnr_retry_count;
        connect.retry_count = req.retry_count;
        connect.srq = req.srq;
        connect.ip = Some(IpHeader::read(req.private_data.first_chunk().unwrap()).unwrap());
        connect.private_data = req.private_data[IpHeader::LEN..].to_vec();
        let mut machine = machine(req.local_ca_guid);
        machine.connect(Instant::ZERO, &connect).unwrap();
        let send = machine.poll_send().expect("a REQ");
        let mut ours = Mad::decode(&send.mad).unwrap();
        ours.tid = theirs.tid;
        let Message::Req(our) = &mut ours.message else { panic!() };
        our.local_comm_id = req.local_comm_id;
        assert_eq!(ours, theirs, "{name}");
        assert!(ours.encode()[..] == captured.mad[..], "{name}");
    }
}

// Goal: a request of Linux is understood, and our answer is that of Linux except for randomly drawn numbers.
#[test]
fn m07_our_reply_to_linux_is_that_of_linux() {
    for name in ["cm-rping", "ipv6-rping", "cm-ucmatose"] {
        let (req_captured, req) = first(name, 0x10);
        let (rep_captured, theirs) = first(name, 0x13);
        let (Message::Req(req), Message::Rep(rep)) = (&req.message, &theirs.message) else { panic!() };
        let mut machine = machine(rep.local_ca_guid);
        machine.listen(&Listen { service_id: req.service_id, address: None, backlog: 1 }).unwrap();
        machine.handle_mad(Instant::ZERO, &path_here(&req_captured), &req_captured.mad);
        let Some(Event::ConnectRequest { id, request, .. }) = machine.poll_event() else { panic!("{name}") };
        assert_eq!(request.private_data, &req.private_data[IpHeader::LEN..]);
        assert_eq!((request.remote_qpn, request.mtu), (req.local_qpn, Mtu::Mtu1024));
        let mut accept = Accept::new(rep.local_qpn);
        accept.responder_resources = rep.responder_resources;
        accept.initiator_depth = rep.initiator_depth;
        accept.rnr_retry_count = rep.rnr_retry_count;
        accept.srq = rep.srq;
        accept.private_data = rep.private_data.to_vec();
        let params = machine.accept(Instant::ZERO, id, &accept).unwrap();
        assert_eq!((params.timeout, params.sq_psn, params.dest_qpn), (17, req.starting_psn, req.local_qpn));
        let send = machine.poll_send().expect("a REP");
        assert_eq!((send.path.sgid, send.path.dgid), (rep_captured.src, rep_captured.dst));
        let mut ours = Mad::decode(&send.mad).unwrap();
        let Message::Rep(our) = &mut ours.message else { panic!() };
        our.local_comm_id = rep.local_comm_id;
        our.starting_psn = rep.starting_psn;
        assert_eq!(ours, theirs, "{name}");
        assert!(ours.encode()[..] == rep_captured.mad[..], "{name}");
    }
}
