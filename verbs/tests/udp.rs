//! Devices over UDP sockets, on addresses of the loopback interface that no other test uses.

use crate::common::{PATIENCE, all_rights, options, pump};
use stack::wire::{Flow, HEADERS_MAX, Header, Template};
use std::net::UdpSocket;
use std::time::Instant;
use verbs::port::PortSpec;
use verbs::{
    Context, Counter, Cq, DeviceConfig, Discard, Drive, Gid, Mr, Psn, Qp, QpInitAttr, Qpn, RcEndpoint,
    RecvWr, SendWr, Wc, WcStatus,
};

const QUEUE_PAIRS: usize = 8;
const LEN: usize = 64 << 10;

/// A device with queue pairs.
struct End {
    context: Context,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    done: usize,
}

impl End {
    fn new(spec: &str) -> Self {
        let spec: PortSpec = spec.parse().unwrap();
        let context = Context::open(DeviceConfig::new(spec).drive(Drive::Embedded)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096).unwrap();
        let qps = (0..QUEUE_PAIRS).map(|_| pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap()).collect();
        let mr = pd.reg_mr(LEN, all_rights()).unwrap();
        Self { context, cq, mr, qps, done: 0 }
    }

    fn connect(&self, other: &Self) {
        // Without an ACK timer nothing is retransmitted, however long this process waits for a core.
        let options = options().sgid_index(0).timeout(0);
        for (own, other) in self.qps.iter().zip(&other.qps) {
            own.connect_rc(&other.endpoint(0).unwrap(), &options).unwrap();
        }
    }

    /// Posts a WRITE and a READ of all of the other end's memory to each queue pair.
    fn post(&self, other: &Self) {
        for qp in &self.qps {
            let (sges, va, rkey) = ([self.mr.sge(0..LEN).unwrap()], other.mr.addr(), other.mr.rkey());
            let write = SendWr::write(1, &sges, va, rkey).signaled();
            let read = SendWr::read(2, &sges, va, rkey).signaled();
            qp.post_send(&[write, read]).unwrap();
        }
    }

    /// Drives the device until it can make no progress without the other end.
    fn turn(&mut self) {
        for _ in 0..200 {
            pump(&self.context);
        }
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        assert!(wc[..n].iter().all(|wc| wc.status == WcStatus::Success), "{wc:?}");
        self.done += n;
    }
}

#[test]
fn what_is_in_flight_fits_a_socket_whose_owner_does_not_run() {
    // Goal: each end sends all that it may before the other polls its socket, and the kernel drops none of it.
    let spec = |addr: &str| format!("udp:{addr},buffer=131072");
    let (mut a, mut b) = (End::new(&spec("127.47.93.1")), End::new(&spec("127.47.93.2")));
    a.connect(&b);
    b.connect(&a);
    const ROUNDS: usize = 4;
    for round in 1..=ROUNDS {
        a.post(&b);
        b.post(&a);
        let began = Instant::now();
        while a.done.min(b.done) < 2 * QUEUE_PAIRS * round {
            assert!(began.elapsed() < PATIENCE, "{} and {} completions", a.done, b.done);
            a.turn();
            b.turn();
        }
    }
    for end in [&a, &b] {
        let port = end.context.port_stats();
        assert_eq!((port.rx_dropped, port.tx_dropped), (0, 0), "{port:?}");
    }
}

/// A program that sends from the peer's host.
struct Sender {
    socket: UdpSocket,
    template: Template,
}

/// Bytes of the headers that the kernel writes.
const HEADERS: usize = 14 + 20 + 8;

impl Sender {
    fn new(from: &str, to: &str, qpn: Qpn) -> Self {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.connect((to, 4791)).unwrap();
        let gid = |addr: &str| Gid::from_ip(addr.parse().unwrap());
        let src_port = socket.local_addr().unwrap().port();
        let flow = Flow { src: gid(from), dst: gid(to), src_port, dqpn: qpn, ..Flow::default() };
        Self { socket, template: Template::new(&flow) }
    }
    /// Sends an empty SEND, sealed as by a host that numbers its packets and has reached this IP identification.
    fn send(&self, psn: u32, ip_id: u16) {
        let header = Header { psn: Psn::new(psn), ip_id, ..Header::default() };
        let mut frame = [0; HEADERS_MAX + 8];
        let at = self.template.begin(&mut frame, &header);
        let len = self.template.seal(&mut frame, at, 0);
        self.socket.send(&frame[HEADERS..len]).unwrap();
    }
}

// Goal: another program on the peer's host, which knows only the queue pair's number, sends arbitrary packets. The peer's own packets, whose
// IP identifications count up as a NIC's do, are accepted nevertheless. A packet with a distant identification is not.
#[test]
fn only_accepted_packets_decide_which_are_right() {
    const FIRST: u32 = 500;
    let (ours, theirs) = ("127.47.94.1", "127.47.94.2");
    let spec: PortSpec = format!("udp:{ours}").parse().unwrap();
    let context = Context::open(DeviceConfig::new(spec).drive(Drive::Embedded)).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let gid = Gid::from_ip(theirs.parse().unwrap());
    let peer = RcEndpoint { gid, qpn: Qpn::new(0x77), psn: Psn::new(FIRST) };
    qp.connect_rc(&peer, &options().sgid_index(0)).unwrap();
    qp.post_recv((0..100).map(|n| RecvWr::new(n, &[]))).unwrap();
    let (peer, stranger) = (Sender::new(theirs, ours, qp.qp_num()), Sender::new(theirs, ours, qp.qp_num()));
    let received = || context.counters().get(Counter::RxFrames);
    let pump_until = |frames: u64| {
        let began = Instant::now();
        while received() < frames {
            assert!(began.elapsed() < PATIENCE, "{} of {frames} frames", received());
            pump(&context);
        }
        pump(&context);
    };
    let accepted = || qp.counters().get(Counter::RecvMessages);
    let mut frames = 0;
    for n in 0..40 {
        peer.send(FIRST + n, 5000 + n as u16);
        frames += 1;
        pump_until(frames);
        assert_eq!(accepted(), u64::from(n) + 1, "the peer's packet is right");
        // Duplicates and packets far ahead, with identifications that count from elsewhere, or drift away from the peer's.
        for i in 0..20u16 {
            let psn = if i % 2 == 0 { FIRST.wrapping_sub(10) } else { FIRST + 1000 };
            stranger.send(psn, 30_000 + i);
            stranger.send(psn, 5000 + n as u16 + 3 * i);
            frames += 2;
        }
        pump_until(frames);
        assert_eq!(accepted(), u64::from(n) + 1);
    }
    // By now the device has learnt that the peer's host numbers the packets of this connection separately.
    for n in 40..300 {
        qp.post_recv([RecvWr::new(n, &[])]).unwrap();
        peer.send(FIRST + n as u32, 5000 + n as u16);
        frames += 1;
        pump_until(frames);
        while cq.poll(&mut [Wc::default(); 16]).unwrap() > 0 {}
    }
    // A packet that would be accepted except for its identification counts as damaged. Both packets arrive before either is received,
    // because a counter may advance far while this thread does not run.
    let wrong = qp.counters().discarded(Discard::BadIcrc);
    peer.send(FIRST + 300, 5300);
    stranger.send(FIRST + 301, 44_000);
    pump_until(frames + 2);
    assert_eq!((accepted(), qp.counters().discarded(Discard::BadIcrc)), (301, wrong + 1));
}
