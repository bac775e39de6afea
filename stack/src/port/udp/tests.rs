//! Tests of the port over sockets, on addresses of the loopback interface that no other test uses.

use super::control::Name;
use super::packet::Outgoing;
use super::shared::ERRORS;
use super::socket::unusable_in;
use super::*;
use crate::id::{Gid, Psn, Qpn};
use crate::port::{Armed, FlowKind, Frame, Port, PortQueue, Route, RxBurst, TxBurst};
use crate::wire::{Flow, HEADERS_MAX, Header, Ingress, Template, UDP_PORT, icrc, locate};
use rustix::event::epoll;
use std::io::Write as _;
use std::net::UdpSocket;

/// A port on one address of 127.0.0.0/8.
fn port(addr: &str, more: &str) -> Box<dyn Port> {
    let spec: PortSpec = format!("udp:{addr}{more}").parse().unwrap();
    spec.open(&PortOptions { frames: 512, ..PortOptions::default() }).unwrap()
}

/// Sealed packets with payloads of these lengths, and identifications as a shard counts them.
pub(super) fn packets(src: &str, dst: &str, tclass: u8, lens: &[usize]) -> Vec<Vec<u8>> {
    packets_from(0xc777, src, dst, tclass, lens)
}

/// Same as [`packets`], from this UDP port.
fn packets_from(src_port: u16, src: &str, dst: &str, tclass: u8, lens: &[usize]) -> Vec<Vec<u8>> {
    packets_to(Qpn::new(9), src_port, src, dst, tclass, lens)
}

/// Same as [`packets_from`], to this queue pair.
fn packets_to(dqpn: Qpn, src_port: u16, src: &str, dst: &str, tclass: u8, lens: &[usize]) -> Vec<Vec<u8>> {
    let gid = |addr: &str| Gid::from_ip(addr.parse().unwrap());
    let (src, dst) = (gid(src), gid(dst));
    let flow = Flow { src, dst, src_port, dqpn, traffic_class: tclass, hop_limit: 3, ..Flow::default() };
    let template = Template::new(&flow);
    let packet = |(i, len): (usize, &usize)| {
        let psn = Psn::new(i as u32);
        let header = Header { ip_id: 700 + i as u16, psn, payload_len: *len as u32, ..Header::default() };
        let mut buffer = vec![0; HEADERS_MAX + len + 8];
        let at = template.begin(&mut buffer, &header);
        buffer[at..at + len].fill(i as u8);
        let end = template.seal(&mut buffer, at, *len);
        buffer.truncate(end);
        buffer
    };
    lens.iter().enumerate().map(packet).collect()
}

fn send(queue: &mut dyn PortQueue, packets: &[Vec<u8>]) -> usize {
    let mut burst = TxBurst::new();
    burst.extend(packets.iter().map(|packet| {
        let mut frame = queue.alloc().unwrap();
        assert!(frame.fill(packet));
        frame
    }));
    queue.tx_burst(Route::default(), &mut burst)
}

/// Receives this many frames.
fn receive(queue: &mut dyn PortQueue, n: usize) -> Vec<Frame> {
    let (mut all, mut burst) = (Vec::new(), RxBurst::new());
    while all.len() < n {
        if queue.rx_burst(&mut burst) == 0 {
            std::thread::yield_now();
        }
        all.extend(burst.drain(..));
    }
    assert_eq!(queue.rx_burst(&mut burst), 0, "more than was sent");
    all
}

/// Whether a frame's ICRC is right, with and without its sum.
fn is_right(frame: &mut Frame) -> bool {
    let sum = frame.sum();
    let Ok(Ingress::Roce(layout)) = locate(frame.data()) else { return false };
    let right = icrc::check(frame.data_mut(), &layout, None);
    assert!(sum.is_none() || icrc::check(frame.data_mut(), &layout, sum) == right);
    right
}

/// Sends packets of many lengths from one queue to another, perhaps the same one, and checks what arrives.
fn exchange(src: &str, dst: &str, (a, b): (&dyn Port, &dyn Port)) {
    let mut qa = a.take_queue(0).unwrap();
    let mut qb = b.take_queue(0);
    assert!(a.link_up() && a.mtu() == 4200);
    let lens = [0, 4, 64, 64, 64, 1, 64, 64, 1024, 1024, 1024, 1000, 4096, 4096, 4096, 8, 8];
    let sent = packets(src, dst, 0xb9, &lens);
    assert_eq!(send(&mut *qa, &sent), lens.len());
    let mut got = receive(qb.as_deref_mut().unwrap_or(&mut *qa), lens.len());
    for (i, (frame, sent)) in got.iter_mut().zip(&sent).enumerate() {
        assert!(is_right(frame), "{i}");
        // Addresses, traffic class, hop limit and length; then everything up to the end of the ICRC.
        // Packets with a source port that was not taken are sent from 4791.
        let was = Outgoing { port: UDP_PORT, ..Outgoing::of(sent).unwrap() };
        let is = Outgoing::of(frame.data()).unwrap();
        assert_eq!(was, is, "{i}");
        let body = was.payload.start..was.payload.end - 4;
        assert_eq!(frame.data()[body.clone()], sent[body], "{i}");
    }
    let (sent, got) = (a.stats(), b.stats());
    assert_eq!((sent.tx_frames, got.rx_frames), (lens.len() as u64, lens.len() as u64));
    assert_eq!((sent.tx_dropped, got.rx_dropped, got.refused), (0, 0, 0));
}

#[test]
fn packets_arrive_as_they_were_sent() {
    // Goal: whatever the kernel coalesces and segments, each packet arrives once, in order and intact.
    for more in ["", ",gso=on", ",gso=off"] {
        let (src, dst) = ("127.47.91.1", "127.47.91.2");
        exchange(src, dst, (&*port(src, more), &*port(dst, more)));
    }
}

#[test]
fn packets_of_ipv6_arrive_as_they_were_sent() {
    if UdpSocket::bind("[::1]:0").is_err() {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED packets_of_ipv6_arrive_as_they_were_sent: there is no ::1");
        return;
    }
    let port = port("::1", "");
    exchange("::1", "::1", (&*port, &*port));
}

#[test]
fn packets_leave_from_the_source_port_that_was_taken() {
    let (src, dst) = ("127.47.91.30", "127.47.91.31");
    for more in ["", ",gso=on", ",gso=off"] {
        let (a, b) = (port(src, more), port(dst, more));
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let [one, two] = [0xc000, 0xc001].map(|hint| qa.take_source_port(hint, FlowKind::Own));
        assert!(one != two && one >= 61_000 && two >= 61_000);
        // Three flows in one burst.
        let flow = |port| packets_from(port, src, dst, 0, &[64, 64, 1000]);
        let sent: Vec<_> = [flow(one), flow(two), flow(0xc777), flow(one)].concat();
        assert_eq!(send(&mut *qa, &sent), 12);
        let mut ports: Vec<u16> = receive(&mut *qb, 12)
            .iter_mut()
            .map(|frame| {
                assert!(is_right(frame));
                Outgoing::of(frame.data()).unwrap().port
            })
            .collect();
        ports.sort_unstable();
        assert_eq!(ports, [[UDP_PORT; 3].as_slice(), &[one; 6], &[two; 3]].concat());
        assert_eq!((a.stats().tx_dropped, b.stats().rx_dropped), (0, 0));
    }
}

// Each queue receives the packets of its numbers. Until the port is told which these are, the first queue receives all.
#[test]
fn packets_arrive_at_the_queue_of_their_number() {
    let to = "127.47.91.41";
    let spec: PortSpec = format!("udp:{to}").parse().unwrap();
    let options = PortOptions { queues: 3, frames: 512, ..PortOptions::default() };
    let b = spec.open(&options).unwrap();
    let mut queues: Vec<_> = (0..3).map(|queue| b.take_queue(queue).unwrap()).collect();
    let a = port("127.47.91.40", "");
    let mut from = a.take_queue(0).unwrap();
    let numbers = [9, 0x1000, 0x1fff, 0x2000, 0xab_c000, 0xff_ffff].map(Qpn::new);
    let mut arrive_at = |wanted: [usize; 6]| {
        for (number, wanted) in numbers.iter().zip(wanted) {
            assert_eq!(send(&mut *from, &packets_to(*number, 0xc777, "127.47.91.40", to, 0, &[8, 8])), 2);
            let got = receive(&mut *queues[wanted], 2);
            assert_eq!(locate(got[0].data()).unwrap(), locate(got[1].data()).unwrap());
        }
    };
    arrive_at([0; 6]);
    let range = |from, to| Qpn::new(from)..=Qpn::new(to);
    b.steer(&[(range(0x1000, 0x1fff), 1), (range(0x2000, 0x2fff), 0), (range(0xab_c000, 0xab_cfff), 2)]);
    arrive_at([0, 1, 1, 0, 2, 0]);
    b.steer(&[(range(0x1000, 0x2fff), 2)]);
    arrive_at([0, 2, 2, 2, 0, 0]);
    assert_eq!(b.stats().rx_dropped, 0);
    // No other program gets the UDP port, although the sockets share it among them.
    assert!(
        spec.open(&options).is_err_and(|error| error.to_string().contains("is taken by another program"))
    );
}

#[test]
fn source_ports_are_the_least_used() {
    let port = port("127.47.91.32", ",flows=3");
    let mut queue = port.take_queue(0).unwrap();
    let mut take = || queue.take_source_port(0xc000, FlowKind::Own);
    let [a, b, c, d, e] = [take(), take(), take(), take(), take()];
    assert!(a != b && b != c && a != c);
    assert_eq!((d, e), (a, b));
    queue.release_source_port(c);
    assert_eq!(queue.take_source_port(0xc000, FlowKind::Own), c, "one that nobody has");
    // A flow label gets the same source port each time.
    let [x, y, z] = [0xd001, 0xd001, 0xd002].map(|hint| queue.take_source_port(hint, FlowKind::Labelled));
    assert!(x == y && x != z && [a, b, c].contains(&x), "{x} {y} {z}");
    let none = self::port("127.47.91.33", ",flows=0");
    assert_eq!(none.take_queue(0).unwrap().take_source_port(0xc000, FlowKind::Labelled), UDP_PORT);
}

// A source port that another program has on any address is skipped.
#[test]
fn a_source_port_that_is_taken_is_passed_over() {
    let (ours, both) = ("127.47.91.34", "127.47.91.34,127.47.91.35");
    let first = port(ours, "").take_queue(0).unwrap().take_source_port(0, FlowKind::Own);
    let _other = UdpSocket::bind(("127.47.91.35", first)).unwrap();
    let port = port(both, "");
    let taken = port.take_queue(0).unwrap().take_source_port(0, FlowKind::Own);
    assert!(taken != first && taken >= 61_000, "{taken}");
}

// Datagrams to a socket that only sends are dropped, and errors that come back for what it sent are counted.
#[test]
fn a_source_port_receives_errors_alone() {
    let (a, to) = (port("127.47.91.36", ""), "127.47.91.37");
    let mut queue = a.take_queue(0).unwrap();
    let source = queue.take_source_port(0, FlowKind::Own);
    let stranger = UdpSocket::bind("127.47.91.38:0").unwrap();
    for _ in 0..100 {
        stranger.send_to(b"x", ("127.47.91.36", source)).unwrap();
    }
    assert_eq!(send(&mut *queue, &packets_from(source, "127.47.91.36", to, 0, &[8])), 1);
    a.maintain();
    assert_eq!((a.stats().refused, a.stats().tx_dropped), (1, 0));
}

#[test]
fn a_port_that_is_taken_says_so() {
    let _first = port("127.47.91.3", "");
    let spec: PortSpec = "udp:127.47.91.3".parse().unwrap();
    let error = spec.open(&PortOptions::default()).err().unwrap().to_string();
    assert!(error.contains("UDP port 4791 of 127.47.91.3 is taken"), "{error}");
    let spec: PortSpec = "udp:192.0.2.77".parse().unwrap();
    let error = spec.open(&PortOptions::default()).err().unwrap().to_string();
    assert!(error.contains("no interface of this host has the address 192.0.2.77"), "{error}");
}

#[test]
fn an_address_that_is_tentative_is_called_so() {
    let list = "fe80000000000000a0b0c0fffe0d0e0f 02 40 20 40     eth0\n\
                00000000000000000000000000000001 01 80 10 80       lo\n\
                fd000000000000000000000000000009 02 40 00 c8     eth0\n";
    let said = |addr: &str| unusable_in(addr.parse().unwrap(), list).unwrap_or_default();
    assert!(said("fe80::a0b0:c0ff:fe0d:e0f").contains("is still tentative"));
    assert!(said("fd00::9").contains("another host on the link has it"));
    assert_eq!((said("::1"), said("fd00::1")), ("", ""));
}

#[test]
fn any_datagram_is_a_frame_or_counted() {
    // Goal: bytes of strangers arrive unchanged, never as a packet that was not sent; what is too long is counted.
    let port = port("127.47.91.4", "");
    let mut queue = port.take_queue(0).unwrap();
    let stranger = UdpSocket::bind("127.47.91.5:0").unwrap();
    let send = |bytes: &[u8]| stranger.send_to(bytes, ("127.47.91.4", UDP_PORT)).map(drop).unwrap();
    let mut right = 0;
    // A datagram without bytes makes no frame.
    send(&[]);
    for len in (1..300).chain([4100]) {
        send(&vec![0x5a; len]);
        right += usize::from(is_right(&mut receive(&mut *queue, 1)[0]));
    }
    assert_eq!(right, 0);
    let own = stranger.local_addr().unwrap().port();
    let good = packets_from(own, "127.47.91.5", "127.47.91.4", 0, &[256]).remove(0);
    for i in 42..good.len() {
        let mut bytes = good.clone();
        bytes[i] ^= 0x10;
        send(&bytes[42..]);
        right += usize::from(is_right(&mut receive(&mut *queue, 1)[0]));
    }
    assert_eq!(right, 1, "the fifth byte of the BTH is outside of the ICRC");
    send(&[0; 5000]);
    assert_eq!(queue.rx_burst(&mut RxBurst::new()), 0);
    assert_eq!(port.stats().rx_dropped, 2, "one without bytes, one too long");
}

#[test]
fn a_peer_that_is_not_there_is_counted_and_the_others_are_reached() {
    let (a, b) = (port("127.47.91.6", ""), port("127.47.91.7", ""));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let nobody = packets("127.47.91.6", "127.47.91.8", 0, &[8]);
    let there = packets("127.47.91.6", "127.47.91.7", 0, &[8]);
    for _ in 0..20 {
        assert_eq!(send(&mut *qa, &nobody), 1);
        assert_eq!(send(&mut *qa, &there), 1);
    }
    assert_eq!(receive(&mut *qb, 20).len(), 20);
    a.maintain();
    assert!(a.stats().refused > 0 && a.stats().tx_dropped == 0, "{:?}", a.stats());
    // From an address that the port does not have.
    assert_eq!(send(&mut *qa, &packets("127.47.91.9", "127.47.91.7", 0, &[8])), 1);
    assert_eq!(a.stats().tx_dropped, 1);
}

#[test]
fn a_flood_of_refusals_costs_no_other_peer_a_packet() {
    // Goal: between two sends more errors come back than one call reads.
    let spec: PortSpec = "udp:127.47.91.16".parse().unwrap();
    let PortSpec::Udp { addrs, options } = &spec else { unreachable!("it is one") };
    let (a, b) = (open(&spec, addrs, options, &PortOptions::default()).unwrap(), port("127.47.91.17", ""));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let nobody = sys::Message {
        to: Name::new(false, "127.47.91.18".parse().unwrap(), UDP_PORT, 0),
        control: control::Control::empty(),
        parts: 0..1,
    };
    let (nobody, parts) = ([nobody], [std::io::IoSlice::new(b"x")]);
    // Each datagram that is sent comes back as an error, which makes the next one fail.
    let mut failed = 0;
    while failed < 4 * ERRORS {
        failed += usize::from(sys::send(a.shared.sockets[0][0].fd(), &nobody, &parts).is_err());
    }
    sys::send(a.shared.sockets[0][0].fd(), &nobody, &parts).unwrap();
    assert_eq!(send(&mut *qa, &packets("127.47.91.16", "127.47.91.17", 0, &[8])), 1);
    assert!(a.stats().tx_dropped == 0 && a.stats().refused > 2 * ERRORS as u64, "{:?}", a.stats());
    assert_eq!(receive(&mut *qb, 1).len(), 1);
}

#[test]
fn a_datagram_wakes_a_sleeper() {
    let (a, b) = (port("127.47.91.10", ""), port("127.47.91.11", ""));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let Armed::Event(event) = qb.arm() else { panic!("a socket can be waited for") };
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&outer, &*event, epoll::EventData::new_u64(1), flags).unwrap();
    let wakes = |ms: i64| {
        let mut events = [const { core::mem::MaybeUninit::uninit() }; 4];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        epoll::wait(&outer, &mut events, Some(&timeout)).unwrap().0.len()
    };
    assert_eq!(wakes(0), 0);
    let one = packets("127.47.91.10", "127.47.91.11", 0, &[8]);
    // Also while other datagrams wait unread.
    for _ in 0..3 {
        send(&mut *qa, &one);
        assert_eq!(wakes(900), 1);
        assert_eq!(wakes(0), 0, "an edge");
    }
    let mut burst = RxBurst::new();
    while burst.len() < 3 {
        qb.rx_burst(&mut burst);
    }
}

#[test]
fn more_than_a_burst_waits_without_loss() {
    let (a, b) = (port("127.47.91.12", ""), port("127.47.91.13", ""));
    let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
    let many = packets("127.47.91.12", "127.47.91.13", 0, &[64; 60]);
    for _ in 0..8 {
        assert_eq!(send(&mut *qa, &many), 60);
    }
    let mut seen = 0;
    while seen < 480 {
        let mut burst = RxBurst::new();
        let n = qb.rx_burst(&mut burst);
        for frame in &burst {
            let Ok(Ingress::Roce(layout)) = locate(frame.data()) else { panic!() };
            assert_eq!(layout.packet(frame.data()).psn, Psn::new(seen % 60));
            seen += 1;
        }
        if n == crate::config::RX_BURST && seen < 480 {
            assert!(matches!(qb.arm(), Armed::Pending | Armed::Event(_)));
        }
    }
    assert_eq!(b.stats().rx_dropped, 0);
}

// Goal: messages to a multicast group arrive at each port that has joined it, the sender's included, and at no other one.
#[test]
fn a_group_is_received_by_those_who_joined_it() {
    let groups: [IpAddr; 2] = ["239.47.91.1", "239.47.91.2"].map(|group| group.parse().unwrap());
    let addrs = ["127.47.91.40", "127.47.91.41", "127.47.91.42"];
    let ports = addrs.map(|addr| port(addr, ""));
    let mut queues = [0, 1, 2].map(|i: usize| ports[i].take_queue(0).unwrap());
    let host = |i: usize| ports[i].host().unwrap();
    (0..2).for_each(|i| host(i).join(groups[0]).unwrap());
    host(2).join(groups[1]).unwrap();
    host(0).join(groups[0]).expect("joining again changes nothing");
    let lens = [8, 64, 1024, 1024];
    let sent = packets_to(Qpn::MULTICAST, UDP_PORT, addrs[0], "239.47.91.1", 0, &lens);
    assert_eq!(send(&mut *queues[0], &sent), lens.len());
    for i in [0, 1] {
        for (frame, sent) in receive(&mut *queues[i], lens.len()).iter_mut().zip(&sent) {
            assert!(is_right(frame));
            assert_eq!(Outgoing::of(frame.data()), Outgoing::of(sent), "{i}");
        }
    }
    // A port that has left the group receives no more. At the others nothing arrives before what was sent earlier.
    host(1).leave(groups[0]);
    assert_eq!(send(&mut *queues[0], &sent[..1]), 1);
    assert_eq!(receive(&mut *queues[0], 1).len(), 1);
    let other = packets_to(Qpn::MULTICAST, UDP_PORT, addrs[0], "239.47.91.2", 0, &[12]);
    assert_eq!(send(&mut *queues[0], &other), 1);
    let got = receive(&mut *queues[2], 1);
    assert_eq!(Outgoing::of(got[0].data()).unwrap().ip.dst, groups[1]);
    let nothing = &mut RxBurst::new();
    assert_eq!([0, 1].map(|i: usize| queues[i].rx_burst(nothing)), [0, 0]);
    assert!(ports.iter().all(|port| port.stats().rx_dropped == 0));
    // It is not the address of a group: the kernel reports that.
    let refused = host(0).join("10.0.0.1".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("does not join the multicast group 10.0.0.1"), "{refused}");
}

// Goal: a sleeping thread is woken by messages to a group that was joined meanwhile.
#[test]
fn a_group_wakes_as_all_that_arrives() {
    let (a, group) = (port("127.47.91.43", ""), "239.47.91.3");
    let mut queue = a.take_queue(0).unwrap();
    let Armed::Event(event) = queue.arm() else { panic!("nothing waits") };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &event, epoll::EventData::new_u64(0), flags).unwrap();
    a.host().unwrap().join(group.parse().unwrap()).unwrap();
    let sent = packets_to(Qpn::MULTICAST, UDP_PORT, "127.47.91.43", group, 0, &[64]);
    for _ in 0..3 {
        assert_eq!(send(&mut *queue, &sent), 1);
        let mut events = [const { core::mem::MaybeUninit::uninit() }; 1];
        let (found, _) = epoll::wait(&epoll, &mut events, None).unwrap();
        assert_eq!(found.len(), 1);
        assert!(is_right(&mut receive(&mut *queue, 1)[0]));
    }
}
