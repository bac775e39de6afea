//! Counters explain every packet: a scripted peer causes each drop reason, which must be counted at the device, the shard and, if the
//! packet has one, the queue pair. Retries, NAKs by code and messages must be counted, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{self, Pair, all_rights, options};
use sim::peer::{Pkt, ack, ack_with, bth_of, frame, pkt, reseal};
use stack::wire::{Flow, Opcode as O};
use verbs::port::{Frame, PortOptions, PortQueue, Route, RxBurst, TxBurst, pair_with};
use verbs::{
    Clock, Context, Counter, CounterSnapshot, Cq, DeviceConfig, Discard, Drive, Gid, Mac, Mr, Psn, Qp,
    QpInitAttr, QpState, Qpn, RcEndpoint, RecvWr, SendWr, Wc, WcStatus, ah_attr_to,
};

const PEER_QPN: Qpn = Qpn::new(0xab_cdef);
const PEER_IP: [u8; 4] = [192, 0, 2, 2];
const PEER_PSN: u32 = 0x100;

/// A device on one end of a link, a queue pair on its shard 1, and a scripted peer on the other end.
struct Bench {
    peer: Box<dyn PortQueue>,
    /// The queue of the device on which frames arrive.
    to_queue: Arc<AtomicU64>,
    clock: Arc<AtomicU64>,
    flow: Flow,
    mr: Mr,
    cq: Cq,
    qp: Qp,
    context: Context,
}

impl Bench {
    fn new() -> Self {
        Self::with_frames(4096)
    }

    /// A bench with this many buffers per queue.
    fn with_frames(frames: usize) -> Self {
        let device = PortOptions { queues: 2, frames, ..PortOptions::default() };
        let one = PortOptions { queues: 1, ..PortOptions::default() };
        let to_queue = Arc::new(AtomicU64::new(1));
        let steer = to_queue.clone();
        let (a, b) = pair_with(
            &device,
            &one,
            Arc::new(
                move |_, _, queues| {
                    if queues == 2 { steer.load(Ordering::Relaxed) as usize } else { 0 }
                },
            ),
        );
        let peer = b.take_queue(0).unwrap();
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let mac = a.info().mac;
        let context = Context::open(
            DeviceConfig::new(a)
                .addr([192, 0, 2, 1], 24)
                .shards(2)
                .drive(Drive::Embedded)
                .clock(Clock::Manual(clock.clone())),
        )
        .unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024).unwrap();
        let mr = pd.reg_mr(64 << 10, all_rights()).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(1)).unwrap();
        let gid = Gid::v4(PEER_IP);
        qp.connect_rc(&RcEndpoint { gid, qpn: PEER_QPN, psn: Psn::new(PEER_PSN) }, &options()).unwrap();
        let src_mac = Mac([2, 0, 0, 0, 0, 2]);
        let flow = Flow {
            src_mac,
            dst_mac: mac,
            src: gid,
            dst: Gid::v4([192, 0, 2, 1]),
            dqpn: qp.qp_num(),
            ..Flow::default()
        };
        let mut bench = Self { peer, to_queue, clock, flow, mr, cq, qp, context };
        bench.answer_arp(mac);
        bench
    }

    /// Answers the device's ARP request with the peer's Ethernet address.
    fn answer_arp(&mut self, to: Mac) {
        let mut reply = Vec::new();
        reply.extend_from_slice(&to.0);
        reply.extend_from_slice(&self.flow.src_mac.0);
        reply.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        reply.extend_from_slice(&self.flow.src_mac.0);
        reply.extend_from_slice(&PEER_IP);
        reply.extend_from_slice(&to.0);
        reply.extend_from_slice(&[192, 0, 2, 1]);
        self.send_frame(&reply);
        self.turn();
        assert_eq!(self.context.counters().get(Counter::NetFrames), 1);
        self.drain();
    }

    fn turn(&self) {
        (0..4).for_each(|_| common::pump(&self.context));
    }
    fn later(&self, ns: u64) {
        self.clock.fetch_add(ns, Ordering::Relaxed);
        self.turn();
    }
    fn alloc(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.peer.alloc().expect("the peer has a buffer");
        frame.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame
    }
    fn send_frame(&mut self, bytes: &[u8]) {
        let mut burst = TxBurst::new();
        let frame = self.alloc(bytes);
        burst.push(frame);
        assert_eq!(self.peer.tx_burst(Route::default(), &mut burst), 1);
    }
    /// The number of frames that the device sent since the last call.
    fn drain(&mut self) -> usize {
        let mut n = 0;
        let mut burst = RxBurst::new();
        while self.peer.rx_burst(&mut burst) > 0 {
            n += burst.len();
            burst.clear();
        }
        n
    }
    fn frame(&self, packet: &Pkt) -> Vec<u8> {
        frame(&self.flow, packet)
    }
    fn send(&mut self, packet: &Pkt) {
        let bytes = self.frame(packet);
        self.send_frame(&bytes);
        self.turn();
    }
    /// A valid request packet: a WRITE of 0 bytes.
    fn write(&self, psn: u32) -> Pkt {
        pkt(O::RC_WRITE_ONLY, psn).reth(0, 0, 0).a()
    }
    fn post_write(&self, wr_id: u64) {
        self.qp
            .post_send(&[SendWr::write(wr_id, &[self.mr.sge(0..8).unwrap()], 0x1000, 7).signaled()])
            .unwrap();
    }
    fn counted(&self) -> [CounterSnapshot; 3] {
        [self.context.counters(), self.context.shard_counters(1).unwrap(), self.qp.counters()]
    }
    fn done(&self) -> Vec<Wc> {
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        wc[..n].to_vec()
    }
    fn next_psn(&self) -> u32 {
        self.qp.query().unwrap().0.sq_psn
    }
}

/// Where a reason is counted in addition to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// Nowhere else: the packet never reaches a queue pair.
    Device,
    /// The queue pair counts it once, too.
    QueuePair,
    /// The queue pair counts it for each try, too.
    EachTry,
}

/// How to cause a reason, and where it is then counted. `None` if a peer of an RC queue pair cannot cause it.
#[allow(clippy::type_complexity, reason = "a table of functions")]
fn provoke(reason: Discard) -> Option<(Seen, fn(&mut Bench))> {
    fn bytes(b: &mut Bench, change: impl FnOnce(&mut Vec<u8>, usize), seal: bool) {
        let mut bytes = b.frame(&b.write(PEER_PSN));
        let bth = bth_of(&bytes);
        change(&mut bytes, bth);
        if seal {
            reseal(&mut bytes);
        }
        b.send_frame(&bytes);
        b.turn();
    }
    fn flow(b: &mut Bench, change: impl FnOnce(&mut Flow)) {
        let mut flow = b.flow;
        change(&mut flow);
        let bytes = frame(&flow, &b.write(PEER_PSN));
        b.send_frame(&bytes);
        b.turn();
    }
    let (seen, how): (Seen, fn(&mut Bench)) = match reason {
        Discard::TooShort => (Seen::Device, |b| bytes(b, |f, bth| f.truncate(bth + 4), false)),
        Discard::BadLength => (Seen::Device, |b| bytes(b, |f, bth| f[bth - 3] ^= 1, false)),
        Discard::BadEtherType => {
            (Seen::Device, |b| bytes(b, |f, _| f[12..14].copy_from_slice(&[0x89, 0x15]), false))
        }
        Discard::IpOptions => (Seen::Device, |b| bytes(b, |f, _| f[14] = 0x46, false)),
        Discard::Fragment => (Seen::Device, |b| bytes(b, |f, _| f[20] |= 0x20, false)),
        Discard::BadTver => (Seen::Device, |b| bytes(b, |f, bth| f[bth + 1] |= 1, true)),
        Discard::UnknownOpcode => (Seen::Device, |b| bytes(b, |f, bth| f[bth] = 0x1f, true)),
        Discard::BadIcrc => (Seen::QueuePair, |b| bytes(b, |f, _| *f.last_mut().unwrap() ^= 1, false)),
        Discard::NotOurAddress => (Seen::QueuePair, |b| flow(b, |f| f.dst = Gid::v4([192, 0, 2, 77]))),
        Discard::WrongPeer => (Seen::QueuePair, |b| flow(b, |f| f.src = Gid::v4([192, 0, 2, 77]))),
        Discard::UnknownVlan => (Seen::QueuePair, |b| flow(b, |f| f.vlan = Some(9))),
        Discard::BadPkey => (Seen::QueuePair, |b| flow(b, |f| f.pkey = 0x8001)),
        Discard::UnknownQpn => (Seen::Device, |b| flow(b, |f| f.dqpn = Qpn::new(f.dqpn.get() ^ 1))),
        Discard::WrongTransport => (Seen::QueuePair, |b| b.send(&pkt(O(0x24), PEER_PSN))),
        Discard::BadState => (Seen::QueuePair, |b| {
            common::enter(&b.qp, QpState::Err);
            let write = b.write(PEER_PSN);
            b.send(&write);
        }),
        Discard::OutOfSequence => (Seen::QueuePair, |b| {
            // Too far ahead to be held.
            let write = b.write(PEER_PSN + stack::config::HELD_PER_QP + 1);
            b.send(&write);
        }),
        Discard::Duplicate => (Seen::QueuePair, |b| {
            let atomic = pkt(O::RC_FETCH_ADD, PEER_PSN - 1).atomic(0, 0, 1, 0);
            b.send(&atomic);
        }),
        Discard::GhostAck => (Seen::QueuePair, |b| {
            let psn = b.next_psn();
            b.send(&ack(psn + 5, 0));
        }),
        Discard::ReservedSyndrome => (Seen::QueuePair, |b| {
            let psn = b.next_psn();
            b.post_write(1);
            b.turn();
            b.send(&ack_with(psn, 0x7f, 1));
        }),
        Discard::InboxFull => (Seen::Device, |b| {
            // Shard 1 is not polled, and shard 0 hands all frames over to it.
            b.to_queue.store(0, Ordering::Relaxed);
            let bytes = b.frame(&b.write(PEER_PSN));
            let mut reactor = b.context.reactor(0).unwrap();
            for _ in 0..stack::config::INBOX_DEPTH + 1 {
                b.send_frame(&bytes);
                reactor.poll_once().unwrap();
            }
        }),
        Discard::TxStalled => (Seen::Device, |b| {
            fill_the_link(b);
            b.later(1);
            b.later(stack::config::TX_STALL.as_nanos() as u64);
        }),
        Discard::NoBuffer => (Seen::EachTry, fill_the_link),
        // Reasons of multicast, of datagrams and of unreliable connections: caused in the tests of those.
        Discard::NotOurMulticast
        | Discard::OwnMulticast
        | Discard::Unreachable
        | Discard::NoSource
        | Discard::BadQkey
        | Discard::BadRequest
        | Discard::NoReceive
        | Discard::ReceiveTooSmall => return None,
        // No opcode of RC is a response of a fourth kind.
        Discard::UnexpectedResponse => return None,
        other => panic!("{other} is caused by nothing here"),
    };
    Some((seen, how))
}

/// Causes acknowledgements that the peer does not receive, until the link is full or the device has no buffers left.
fn fill_the_link(b: &mut Bench) {
    for n in 0..1200 {
        let write = b.write(PEER_PSN + n);
        let bytes = b.frame(&write);
        b.send_frame(&bytes);
        common::pump(&b.context);
    }
    b.turn();
}

#[test]
fn every_reason_has_its_counter() {
    let mut left_out = Vec::new();
    for reason in Discard::ALL {
        let Some((seen, how)) = provoke(reason) else {
            left_out.push(reason);
            continue;
        };
        let mut bench = if reason == Discard::NoBuffer { Bench::with_frames(256) } else { Bench::new() };
        let before = bench.counted();
        how(&mut bench);
        let after = bench.counted();
        let [device, shard, qp] = [0, 1, 2].map(|i| (after[i] - before[i]).discarded(reason));
        let all = (after[0] - before[0]).drops();
        assert!(device > 0, "{reason}");
        match seen {
            Seen::QueuePair => {
                assert_eq!(
                    (device, shard, qp, all),
                    (1, 1, 1, 1),
                    "{reason}: one packet, one reason, everywhere"
                );
            }
            Seen::EachTry => assert!(qp > 0 && qp == device && qp == shard, "{reason}"),
            Seen::Device => assert_eq!(qp, 0, "{reason}"),
        }
    }
    assert_eq!(left_out.len(), 9, "{left_out:?}");
}

// A queue pair whose packets nobody receives sends until no buffer is left, as a reliable one sends answers.
#[test]
fn unreliable_queue_pairs_count_missing_buffers() {
    let b = Bench::with_frames(256);
    let pd = b.context.alloc_pd().unwrap();
    let ud = pd.create_qp(&QpInitAttr::ud(&b.cq, &b.cq).on_shard(1)).unwrap();
    ud.activate_ud(1).unwrap();
    let ah = pd.create_ah(&ah_attr_to(Gid::v4(PEER_IP), 1)).unwrap();
    let no_buffer = |counted: CounterSnapshot| counted.discarded(Discard::NoBuffer);
    for _ in 0..1200 {
        let _ = ud.post_send(&[SendWr::send(1, &[]).to(&ah, PEER_QPN, 1)]); // full, in the end
        common::pump(&b.context);
    }
    let [device, shard, _] = b.counted().map(no_buffer);
    assert!(device > 0, "the link has taken all");
    assert_eq!((no_buffer(ud.counters()), shard), (device, device));
}

#[test]
fn naks_are_counted_by_code_both_ways() {
    // NAKs that this device sends: for a gap, for a key that does not exist, for an opcode out of order.
    for (counter, packet) in [
        (Counter::NaksSentSequence, pkt(O::RC_WRITE_ONLY, PEER_PSN + 1).reth(0, 0, 0)),
        (Counter::NaksSentAccess, pkt(O::RC_WRITE_ONLY, PEER_PSN).reth(0x1000, 0x77, 4).len(4)),
        (Counter::NaksSentInvalid, pkt(O::RC_WRITE_MIDDLE, PEER_PSN).len(1024)),
    ] {
        let mut b = Bench::new();
        b.send(&packet);
        b.later(2 * stack::config::GAP_LONGEST.as_nanos() as u64);
        assert_eq!(b.drain(), 1, "{counter:?}");
        for counted in b.counted() {
            assert_eq!((counted.get(counter), counted.get(Counter::NaksSent)), (1, 1), "{counter:?}");
        }
        assert_eq!(b.qp.counters().get(Counter::RequestsRefused), 1);
    }
    let mut b = Bench::new();
    b.send(&pkt(O::RC_SEND_ONLY, PEER_PSN).len(4).a());
    for counted in b.counted() {
        assert_eq!((counted.get(Counter::RnrNaksSent), counted.get(Counter::NaksSent)), (1, 0));
    }
    // NAKs that this device receives.
    for (code, counter) in [
        (0x60, Counter::NaksReceivedSequence),
        (0x61, Counter::NaksReceivedInvalid),
        (0x62, Counter::NaksReceivedAccess),
        (0x63, Counter::NaksReceivedOperational),
    ] {
        let mut b = Bench::new();
        let psn = b.next_psn();
        b.post_write(1);
        b.turn();
        b.send(&ack_with(psn, code, 0));
        for counted in b.counted() {
            assert_eq!((counted.get(counter), counted.get(Counter::NaksReceived)), (1, 1), "{code:#x}");
            assert_eq!(counted.get(Counter::RetriesSequence), u64::from(code == 0x60));
            assert_eq!(counted.get(Counter::QpErrors), u64::from(code != 0x60));
        }
    }
}

#[test]
fn retries_and_timeouts_by_cause() {
    // No answer: each retry is a timeout, and so is the last one, after which the request fails.
    let b = Bench::new();
    let retries = u64::from(b.qp.query().unwrap().0.retry_cnt);
    b.post_write(1);
    b.turn();
    for _ in 0..1000 {
        b.later(1_000_000_000);
    }
    let done = b.done();
    assert_eq!(done.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExcErr]);
    for counted in b.counted() {
        assert_eq!(
            (counted.get(Counter::RetriesTimeout), counted.get(Counter::Timeouts)),
            (retries, retries + 1)
        );
        assert_eq!((counted.get(Counter::Retransmitted), counted.retries()), (retries, retries));
    }
    // The peer is not ready once: one NAK, one retry after its delay, no timeout.
    let mut b = Bench::new();
    let psn = b.next_psn();
    b.post_write(1);
    b.turn();
    b.send(&ack_with(psn, 0x20 | 1, 0));
    b.later(100_000_000);
    b.send(&ack(psn, 1));
    assert!(b.done()[0].is_ok());
    for counted in b.counted() {
        assert_eq!((counted.get(Counter::RnrNaksReceived), counted.get(Counter::RetriesRnr)), (1, 1));
        assert_eq!((counted.get(Counter::Retransmitted), counted.get(Counter::Timeouts)), (1, 0));
        assert_eq!((counted.get(Counter::SendMessages), counted.get(Counter::SendBytes)), (1, 8));
    }
    // The acknowledgement of a later request overtakes a READ response.
    let mut b = Bench::new();
    let psn = b.next_psn();
    b.qp.post_send(&[SendWr::read(1, &[b.mr.sge(0..8).unwrap()], 0x1000, 7).signaled()]).unwrap();
    b.post_write(2);
    b.turn();
    b.send(&ack(psn + 1, 2));
    b.later(1_000_000);
    for counted in b.counted() {
        assert_eq!(counted.get(Counter::RetriesImplied), 1);
    }
}

// Frames that are no RoCE packets go to the IP host, which has a named counter for each outcome, too.
#[test]
fn frames_of_the_ip_host() {
    let mut b = Bench::new();
    let net = |b: &Bench| -> u64 { b.context.net_counters().iter().map(|(_, n)| n).sum() };
    let before = (net(&b), b.context.counters().get(Counter::NetFrames));
    let mut lldp = vec![0; 60];
    lldp[..6].copy_from_slice(&b.flow.dst_mac.0);
    lldp[6..12].copy_from_slice(&b.flow.src_mac.0);
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    b.send_frame(&lldp);
    b.turn();
    assert_eq!((net(&b), b.context.counters().get(Counter::NetFrames)), (before.0 + 1, before.1 + 1));
    assert!(b.context.net_counters().iter().any(|(name, n)| name.contains("ethertype") && *n == 1));
}

#[test]
fn frames_and_bytes_of_a_queue_pair() {
    let mut b = Bench::new();
    let before = b.qp.counters();
    let packets = [b.write(PEER_PSN), b.write(PEER_PSN + 1), b.write(PEER_PSN + 1)];
    let bytes: usize = packets.iter().map(|p| b.frame(p).len()).sum();
    packets.iter().for_each(|p| b.send(p));
    let counted = b.qp.counters() - before;
    assert_eq!((counted.get(Counter::RxFrames), counted.get(Counter::RxBytes)), (3, bytes as u64));
    assert_eq!(counted.get(Counter::DuplicatesAnswered), 1);
    // Three acknowledgements, 62 bytes each: Ethernet 14, IPv4 20, UDP 8, BTH 12, AETH 4, ICRC 4.
    assert_eq!(b.drain(), 3);
    assert_eq!((counted.get(Counter::TxFrames), counted.get(Counter::TxBytes)), (3, 3 * 62));
}

// Messages and their bytes at both ends, unsignalled ones among them; READ counts what it fetched.
#[test]
fn messages_and_bytes() {
    let p = Pair::new(common::embedded());
    let sge = |r| p.mr.sge(r).unwrap();
    p.b.post_recv(&[RecvWr::new(1, &[sge(0..3000)]), RecvWr::new(2, &[])]).unwrap();
    p.a.post_send(&[
        SendWr::send(1, &[sge(4096..7000)]),
        SendWr::write(2, &[sge(0..10)], p.mr.addr() + 8192, p.mr.rkey()),
        SendWr::write_with_imm(3, &[sge(0..20)], p.mr.addr() + 8192, p.mr.rkey(), 5),
        SendWr::read(4, &[sge(0..500)], p.mr.addr() + 8192, p.mr.rkey()).signaled(),
    ])
    .unwrap();
    p.done_a(1);
    p.done_b(2);
    let (a, b, all) = (p.a.counters(), p.b.counters(), p.context.counters());
    assert_eq!((a.get(Counter::SendMessages), a.get(Counter::SendBytes)), (4, 2904 + 10 + 20 + 500));
    assert_eq!((b.get(Counter::RecvMessages), b.get(Counter::RecvBytes)), (2, 2904 + 20));
    assert_eq!((b.get(Counter::SendMessages), a.get(Counter::RecvMessages)), (0, 0));
    for counter in [Counter::SendMessages, Counter::SendBytes, Counter::RecvMessages, Counter::RecvBytes] {
        assert_eq!(all.get(counter), a.get(counter) + b.get(counter), "{counter:?}");
    }
    assert_eq!(a.get(Counter::TxFrames), b.get(Counter::RxFrames), "nothing was lost inside");
    assert_eq!(a.get(Counter::TxBytes), b.get(Counter::RxBytes));
    assert_eq!(a.get(Counter::NetFrames), 0);
    assert_eq!(a.drops() + b.drops(), 0);
}
