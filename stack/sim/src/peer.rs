//! A node with one connected queue pair and a hand-made peer: a test writes the peer's packets and reads the node's packets one by one.

use core::time::Duration;

use super::node::{CqId, MrId, Node, NodeConfig, QpConfig, QpId, SendWr, SrqId, net_config, remote_rights};
use super::rng::Rng;
use super::seen::Seen;
use stack::id::{Gid, Mac, Psn, QpState, QpType, Qpn};
use stack::mem::{Access, Sge};
use stack::net::{FRAME_MAX, Net, NetConfig};
use stack::proto::status::{AsyncEvent, WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;
use stack::time::Instant;
use stack::wire::{
    Aeth, AtomicEth, Ext, Flow, HEADERS_MAX, Header, ICRC_LEN, Ingress, Opcode, Reth, Template, Transport,
    icrc, locate,
};

/// A packet that the peer will send.
#[derive(Clone, Debug)]
pub struct Pkt {
    header: Header,
    payload: Vec<u8>,
}

/// A packet with this opcode and PSN, without payload. The headers that its opcode requires must be set.
pub fn pkt(opcode: Opcode, psn: u32) -> Pkt {
    Pkt { header: Header { opcode, psn: Psn::new(psn), ..Header::default() }, payload: Vec::new() }
}

/// A positive acknowledgement without a credit limit.
pub fn ack(psn: u32, msn: u32) -> Pkt {
    ack_with(psn, 0x1f, msn)
}

/// An ACKNOWLEDGE with any syndrome.
pub fn ack_with(psn: u32, syndrome: u8, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACKNOWLEDGE, psn).aeth(syndrome, msn)
}

impl Pkt {
    /// Sets the PSN.
    #[must_use]
    pub fn at(mut self, psn: u32) -> Self {
        self.header.psn = Psn::new(psn);
        self
    }
    /// Changes the service type; the operation stays.
    #[must_use]
    pub fn in_class(mut self, transport: Transport) -> Self {
        self.header.opcode = self.header.opcode.in_class(transport);
        self
    }
    /// Requests an acknowledgement.
    #[must_use]
    pub fn a(mut self) -> Self {
        self.header.ack_req = true;
        self
    }
    /// Sets the solicited event bit.
    #[must_use]
    pub fn se(mut self) -> Self {
        self.header.solicited = true;
        self
    }
    /// Sets the payload.
    #[must_use]
    pub fn data(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self.header.payload_len = payload.len() as u32;
        self
    }
    /// Sets a payload of `n` bytes with ascending values.
    #[must_use]
    pub fn len(self, n: usize) -> Self {
        let bytes: Vec<u8> = (0..n).map(|i| i as u8).collect();
        self.data(&bytes)
    }
    /// Sets a RETH: address, key and length.
    #[must_use]
    pub fn reth(mut self, va: u64, rkey: u32, len: u32) -> Self {
        let reth = Reth { va, rkey, len };
        self.header.ext = match self.header.ext {
            Ext::Imm(imm) => Ext::RethImm(reth, imm),
            _ => Ext::Reth(reth),
        };
        self
    }
    /// Sets immediate data.
    #[must_use]
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.header.ext = match self.header.ext {
            Ext::Reth(reth) => Ext::RethImm(reth, imm),
            _ => Ext::Imm(imm),
        };
        self
    }
    /// Sets the key to invalidate.
    #[must_use]
    pub fn inv(mut self, key: u32) -> Self {
        self.header.ext = Ext::Inv(key);
        self
    }
    /// Sets an AtomicETH: address, key and operands.
    #[must_use]
    pub fn atomic(mut self, va: u64, rkey: u32, swap_add: u64, compare: u64) -> Self {
        self.header.ext = Ext::Atomic(AtomicEth { va, rkey, swap_add, compare });
        self
    }
    /// Sets an AETH: syndrome and MSN.
    #[must_use]
    pub fn aeth(mut self, syndrome: u8, msn: u32) -> Self {
        self.header.ext = Ext::Aeth(Aeth { syndrome, msn });
        self
    }
    /// Sets an AtomicAckETH: MSN, and the value before the atomic.
    #[must_use]
    pub fn atomic_ack(mut self, msn: u32, original: u64) -> Self {
        self.header.ext = Ext::AtomicAck(Aeth { syndrome: 0x1f, msn }, original);
        self
    }
    /// Sets any extension headers.
    #[must_use]
    pub fn ext(mut self, ext: Ext) -> Self {
        self.header.ext = ext;
        self
    }
}

/// The configuration of a [`Rig`].
#[derive(Clone, Debug)]
pub struct RigConfig {
    /// Configuration of the queue pair.
    pub qp: QpConfig,
    /// Whether to use IPv6 instead of IPv4.
    pub ipv6: bool,
    /// The state to which the queue pair is brought: INIT, RTR or RTS.
    pub state: QpState,
    /// Number of receives posted at the start, of 4096 bytes each.
    pub receives: usize,
    /// Entries of its completion queue.
    pub cqe: u32,
    /// Buffers of its port.
    pub buffers: usize,
    /// The most bytes in flight that its port permits; `None` for no limit.
    pub window: Option<usize>,
}

impl Default for RigConfig {
    fn default() -> Self {
        Self {
            qp: QpConfig::default(),
            ipv6: false,
            state: QpState::Rts,
            receives: 16,
            cqe: 1024,
            buffers: 512,
            window: None,
        }
    }
}

/// Bytes of each receive buffer that a rig posts by itself.
pub const RECV_LEN: usize = 4096;

/// One node under test, and its peer's end of the link.
#[derive(Debug)]
pub struct Rig {
    /// Virtual time.
    pub now: Instant,
    /// The node.
    pub node: Node,
    /// Its queue pair.
    pub qp: QpId,
    /// The completion queue of both work queues.
    pub cq: CqId,
    /// A region of 64 KiB with all access rights, the target of the peer's requests.
    pub mr: MrId,
    /// A region of 64 KiB for buffers of the node's own requests.
    pub buf: MrId,
    /// Buffers of the receives posted at the start.
    pub recv: MrId,
    /// The shared receive queue of an XRC target.
    pub srq: Option<SrqId>,
    /// The peer's flow towards the node.
    pub flow: Flow,
    peer_net: Net,
    dst_mac: Mac,
    receives: u64,
}

/// The remote address of requests of [`Rig::wr`].
pub const REMOTE_VA: u64 = 0x7000_0000;
/// The remote key of these requests.
pub const REMOTE_KEY: u32 = 0x1234_5678;

/// The opcodes of packets.
pub fn opcodes(sent: &[Seen]) -> Vec<Opcode> {
    sent.iter().map(|s| s.opcode).collect()
}

/// The sequence numbers of packets.
pub fn psns(sent: &[Seen]) -> Vec<u32> {
    sent.iter().map(|s| s.psn).collect()
}

/// Number of the peer's queue pair.
pub const PEER_QPN: Qpn = Qpn::new(0x00ab_cdef);

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// The set-up of the conformance cases.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// The set-up of the conformance cases, with a changed configuration.
    pub fn with(change: impl FnOnce(&mut RigConfig)) -> Self {
        let mut config = RigConfig::default();
        change(&mut config);
        let now = Instant::from_nanos(1_000_000);
        let mut node = Node::new(
            NodeConfig {
                ipv6: config.ipv6,
                buffers: config.buffers,
                window: config.window,
                qps_per_shard: 128,
                ..NodeConfig::default()
            },
            now,
            Rng::new(7),
        );
        let peer_net = Net::new(&net_config(1, config.ipv6));
        let peer = peer_net.gids().get(1).expect("one address is configured");
        let cq = node.create_cq(config.cqe);
        let qp = node.create_qp(0, config.qp, cq, cq);
        let srq = (config.qp.ty == QpType::XrcTgt).then(|| node.create_srq(config.qp.recv_depth, cq));
        let mr = node.register(1 << 16, remote_rights());
        let buf = node.register(1 << 16, Access::LOCAL_WRITE);
        let recv = node.register(RECV_LEN * config.receives.max(1), Access::LOCAL_WRITE);
        let flow = Flow {
            src_mac: peer_net.mac(),
            dst_mac: node.mac,
            src: peer,
            dst: node.gid,
            src_port: 0xd00d,
            dqpn: node.qp(qp).qpn,
            ..Flow::default()
        };
        let dst_mac = peer_net.mac();
        let mut rig = Self { now, node, qp, cq, mr, buf, recv, srq, flow, peer_net, dst_mac, receives: 0 };
        rig.node.to_init(now, qp);
        for _ in 0..config.receives {
            rig.post_recv();
        }
        if config.state != QpState::Init {
            rig.node.to_rtr(now, qp, peer, PEER_QPN);
        }
        if config.state == QpState::Rts {
            rig.node.to_rts(now, qp);
        }
        let sent = rig.run();
        assert!(sent.is_empty(), "a fresh queue pair is silent, not {sent:?}");
        rig
    }

    /// Posts the next receive buffer of [`RECV_LEN`] bytes. Its `wr_id` is the number of receives before it.
    pub fn post_recv(&mut self) {
        let at = RECV_LEN * self.receives as usize % self.node.mr(self.recv).len();
        let sge = self.node.mr(self.recv).sge(at, RECV_LEN);
        match self.srq {
            Some(srq) => self.node.post_srq_recv(srq, self.receives, &[sge]),
            None => self.node.post_recv(self.qp, self.receives, &[sge]),
        }
        .expect("the receive queue has room");
        self.receives += 1;
    }

    /// The bytes at the start of the receive buffer with this `wr_id`.
    pub fn received(&self, wr_id: u64, len: usize) -> Vec<u8> {
        self.node.mr(self.recv).read(RECV_LEN * wr_id as usize, len)
    }

    /// A scatter/gather element in the node's own buffers.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.node.mr(self.buf).sge(offset, len)
    }

    /// A signalled request with one buffer of `len` bytes. A remote operation goes to [`REMOTE_VA`] with [`REMOTE_KEY`].
    pub fn wr(&self, wr_id: u64, opcode: WrOpcode, len: usize) -> SendWr {
        SendWr::new(wr_id, opcode).sges(&[self.sge(0, len)]).remote(REMOTE_VA, REMOTE_KEY)
    }

    /// The peer advertises credits without a limit.
    pub fn unlimited(&mut self) {
        let psn = Psn::new(self.node.qp(self.qp).config.sq_psn).sub(1).get();
        let sent = self.send(&ack(psn, 0));
        assert!(sent.is_empty());
    }

    /// Posts several send requests before the node has a turn, then runs the node. Returns the packets that it sent.
    pub fn post_all(&mut self, wrs: &[SendWr]) -> Vec<Seen> {
        for wr in wrs {
            self.node.post_send(self.qp, wr).expect("the request is good and the queue has room");
        }
        self.run()
    }

    /// Posts a receive request with any buffers.
    pub fn post_recv_of(&mut self, wr_id: u64, sges: &[Sge]) {
        self.node.post_recv(self.qp, wr_id, sges).expect("the receive queue has room");
    }

    /// Makes one turn of the node. Returns the packets that it sent.
    pub fn turn(&mut self) -> Vec<Seen> {
        self.node.turn(0, self.now);
        let frames = core::iter::from_fn(|| self.node.wires[0].take());
        frames.filter_map(|f| Seen::decode(self.now, f.data())).collect()
    }

    /// Posts a send request and runs the node. Returns the packets that it sent.
    pub fn post(&mut self, wr: &SendWr) -> Vec<Seen> {
        self.node.post_send(self.qp, wr).expect("the request is good and the queue has room");
        self.run()
    }

    /// The virtual address of byte `offset` of the region with all access rights.
    pub fn va(&self, offset: usize) -> u64 {
        self.node.mr(self.mr).va(offset)
    }

    /// The key of that region.
    pub fn rkey(&self) -> u32 {
        self.node.mr(self.mr).key
    }

    /// The frame of a packet.
    pub fn frame(&self, pkt: &Pkt) -> Vec<u8> {
        frame(&self.flow, pkt)
    }

    /// Puts a packet into the node's receive ring.
    pub fn inject(&mut self, pkt: &Pkt) {
        let frame = self.frame(pkt);
        self.inject_frame(&frame);
    }

    /// Puts any bytes into the node's receive ring.
    pub fn inject_frame(&mut self, frame: &[u8]) {
        self.node.wires[0].deliver(frame);
    }

    /// Sends a packet to the node and returns the node's packets.
    pub fn send(&mut self, pkt: &Pkt) -> Vec<Seen> {
        self.inject(pkt);
        self.run()
    }

    /// Sends several packets in one burst and returns the node's packets.
    pub fn send_all(&mut self, pkts: &[Pkt]) -> Vec<Seen> {
        pkts.iter().for_each(|p| self.inject(p));
        self.run()
    }

    /// Sends any bytes and returns the node's packets.
    pub fn send_frame(&mut self, frame: &[u8]) -> Vec<Seen> {
        self.inject_frame(frame);
        self.run()
    }

    /// Turns the node without advancing time until it has no more work. Returns its packets.
    ///
    /// # Panics
    /// If it never comes to rest, or sends a frame that does not decode.
    pub fn run(&mut self) -> Vec<Seen> {
        let mut sent = Vec::new();
        for _ in 0..100_000 {
            let turn = self.node.turn(0, self.now);
            let mut moved = !turn.idle();
            while let Some(frame) = self.node.wires[0].take() {
                moved = true;
                let bytes = frame.data().to_vec();
                drop(frame);
                match locate(&bytes) {
                    Ok(Ingress::Roce(_)) => {
                        self.dst_mac = Mac(*bytes.first_chunk().expect("a packet is longer"));
                        let seen = Seen::decode(self.now, &bytes).expect("the node sends sound packets");
                        assert_eq!(seen.dqpn, PEER_QPN);
                        sent.push(seen);
                    }
                    Ok(Ingress::Other) => self.answer(&bytes),
                    Err(reason) => panic!("the node sent a frame that is dropped as {reason}"),
                }
            }
            let due = self.node.next_deadline().is_some_and(|at| at <= self.now);
            if !moved && !due && self.node.wires[0].waiting() == 0 {
                return sent;
            }
            if !moved && due && self.node.shard(0, |shard| shard.tx_backlog()) > 0 {
                return sent; // the port is full: only time helps
            }
        }
        panic!("the node does not come to rest; so far it sent {sent:?}");
    }

    /// Answers a frame by the peer's IP host: ARP and neighbour discovery.
    fn answer(&mut self, frame: &[u8]) {
        let mut reply = [0; 256];
        if let Some(len) = self.peer_net.handle_frame(self.now, frame, &mut reply) {
            self.node.wires[0].deliver(&reply[..len]);
        }
    }

    /// Moves the peer to another Ethernet address. With `announce` it announces the new address.
    pub fn move_peer(&mut self, mac: Mac, announce: bool) {
        let mut net = Net::new(&NetConfig::new(mac));
        let prefix = if self.flow.src.as_v4().is_some() { 24 } else { 64 };
        net.add_address(self.flow.src.to_ip(), prefix);
        let mut frame = [0; FRAME_MAX];
        let len = net.poll_transmit(self.now, &mut frame).expect("a new address is announced");
        (self.peer_net, self.flow.src_mac) = (net, mac);
        if announce {
            self.node.wires[0].deliver(&frame[..len]);
        }
    }

    /// The destination Ethernet address of the last packet.
    pub fn dst_mac(&self) -> Mac {
        self.dst_mac
    }

    /// Advances time by `time`, from deadline to deadline. Returns the node's packets, each with its time.
    pub fn wait(&mut self, time: Duration) -> Vec<Seen> {
        let end = self.now.after(time);
        let mut sent = self.run();
        while let Some(next) = self.node.next_deadline().filter(|next| *next <= end) {
            self.now = next.max(self.now.after_nanos(1));
            sent.extend(self.run());
        }
        self.now = end;
        sent.extend(self.run());
        sent
    }

    /// Takes all completions.
    pub fn cqes(&mut self) -> Vec<Cqe> {
        self.node.poll_cq(self.cq, usize::MAX)
    }

    /// Takes all completions: id and status.
    pub fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.cqes().iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// Takes all asynchronous events.
    pub fn events(&mut self) -> Vec<AsyncEvent> {
        self.node.events().into_iter().map(|(event, _)| event).collect()
    }

    /// The published state of the queue pair.
    pub fn state(&self) -> QpState {
        self.node.state(self.qp)
    }

    /// The peer's address.
    pub fn peer_gid(&self) -> Gid {
        self.flow.src
    }

    /// The peer's Ethernet address.
    pub fn peer_mac(&self) -> Mac {
        self.flow.src_mac
    }
}

/// The frame of a packet in a flow.
pub fn frame(flow: &Flow, pkt: &Pkt) -> Vec<u8> {
    let template = Template::new(flow);
    let mut buf = vec![0; HEADERS_MAX + pkt.payload.len() + 8];
    let at = template.begin(&mut buf, &pkt.header);
    buf[at..at + pkt.payload.len()].copy_from_slice(&pkt.payload);
    let len = template.seal(&mut buf, at, pkt.payload.len());
    buf.truncate(len);
    buf
}

/// Offset of the BTH in a frame that the peer made.
pub fn bth_of(frame: &[u8]) -> usize {
    14 + if frame[14] >> 4 == 4 { 20 } else { 40 } + 8
}

/// Recomputes the ICRC of a frame after some of its bytes were changed. The ICRC is taken to be the last bytes of the frame.
pub fn reseal(frame: &mut [u8]) {
    let l3 = 14;
    let v4 = frame[l3] >> 4 == 4;
    let end = frame.len() - ICRC_LEN;
    let mut covered = frame[l3..end].to_vec();
    let variant: &[(usize, u8)] = if v4 {
        &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)]
    } else {
        &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff), (52, 0xff)]
    };
    for (at, mask) in variant {
        if let Some(byte) = covered.get_mut(*at) {
            *byte |= mask;
        }
    }
    frame[end..].copy_from_slice(&icrc::of_masked(&covered).to_le_bytes());
}
