//! A device on a link whose other end is scripted: the test writes and reads frames one by one.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sim::peer::{Pkt, frame};
use sim::seen::Seen;
use stack::net::{Net, NetConfig};
use stack::port::{PortQueue, Route, RxBurst, TxBurst};
use stack::wire::{Deth, Ext, Flow, Ingress, Opcode, locate};
use verbs::{
    Context, Cq, DeviceConfig, Discard, Drive, Gid, Mr, Pd, Psn, Qp, Qpn, RcEndpoint, RcOptions, RecvWr, Wc,
};

use crate::common::{all_rights, embedded, options, pump};

/// The peer's queue pair.
pub const PEER_QPN: Qpn = Qpn::new(0xab_cdef);
/// The first PSN of the peer.
pub const PEER_PSN: u32 = 0x100;

/// The device under test and the peer's end of the link.
pub struct Wire {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
    pub gid: Gid,
    pub peer: Gid,
    queue: Box<dyn PortQueue>,
    net: Net,
    /// Whether the peer's IP host answers.
    pub answers: bool,
    /// Received frames, RoCE only.
    pub frames: Vec<Vec<u8>>,
}

impl Wire {
    pub fn new(ipv6: bool) -> Self {
        let (a, b) = verbs::port::pair(1);
        let addr = |n: u8| -> IpAddr {
            if ipv6 {
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
            } else {
                Ipv4Addr::new(10, 0, 0, n).into()
            }
        };
        let prefix = if ipv6 { 64 } else { 24 };
        let mac = b.info().mac;
        let queue = b.take_queue(0).unwrap();
        let config = DeviceConfig::new(a).addr(addr(1), prefix).drive(Drive::Embedded);
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
        let mr = pd.reg_mr(64 << 10, all_rights()).unwrap();
        let net = Net::new(&NetConfig { addrs: vec![(addr(2), prefix)], ..NetConfig::new(mac) });
        let (gid, peer) = (Gid::from_ip(addr(1)), Gid::from_ip(addr(2)));
        Self { context, pd, cq, mr, gid, peer, queue, net, answers: true, frames: Vec::new() }
    }

    /// The peer, as the remote endpoint of a connection.
    pub fn endpoint(&self) -> RcEndpoint {
        RcEndpoint { gid: self.peer, qpn: PEER_QPN, psn: Psn::new(PEER_PSN) }
    }

    /// The peer's flow towards a queue pair.
    pub fn flow(&self, qp: &Qp) -> Flow {
        Flow {
            src_mac: self.net.mac(),
            dst_mac: self.context.query_port(1).unwrap().mac,
            src: self.peer,
            dst: self.gid,
            src_port: 0xd00d,
            dqpn: qp.qp_num(),
            ..Flow::default()
        }
    }

    /// Puts arbitrary bytes on the link.
    pub fn inject(&mut self, bytes: &[u8]) {
        let mut frame = self.queue.alloc().unwrap();
        assert!(frame.fill(bytes));
        let mut burst = TxBurst::new();
        burst.push(frame);
        assert_eq!(self.queue.tx_burst(Route::default(), &mut burst), 1);
    }

    /// Sends packets to a queue pair, one by one; returns the device's packets.
    pub fn send(&mut self, qp: &Qp, pkts: &[Pkt]) -> Vec<Seen> {
        let flow = self.flow(qp);
        self.send_on(&flow, pkts)
    }

    /// Like [`send`](Self::send), in any flow.
    pub fn send_on(&mut self, flow: &Flow, pkts: &[Pkt]) -> Vec<Seen> {
        pkts.iter().for_each(|pkt| self.inject(&frame(flow, pkt)));
        self.run()
    }

    /// Drives the device until it is idle; returns its packets.
    pub fn run(&mut self) -> Vec<Seen> {
        let mut sent = Vec::new();
        let mut quiet = 0;
        while quiet < 8 {
            quiet += 1;
            pump(&self.context);
            let mut burst = RxBurst::new();
            if self.queue.rx_burst(&mut burst) > 0 {
                quiet = 0;
            }
            for frame in &burst {
                match locate(frame.data()).unwrap() {
                    Ingress::Roce(_) => {
                        self.frames.push(frame.data().to_vec());
                        sent.push(
                            Seen::decode(stack::time::Instant::ZERO, frame.data()).expect("a sound packet"),
                        );
                    }
                    Ingress::Other if self.answers => {
                        let mut reply = [0; 256];
                        let now = stack::time::Instant::ZERO;
                        if let Some(len) = self.net.handle_frame(now, frame.data(), &mut reply) {
                            self.inject(&reply[..len]);
                        }
                    }
                    Ingress::Other => {}
                }
            }
        }
        sent
    }

    /// The waiting completions.
    pub fn done(&mut self) -> Vec<Wc> {
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        wc[..n].to_vec()
    }

    /// The number of packets dropped for this reason.
    pub fn dropped(&self, reason: Discard) -> u64 {
        self.context.counters().discarded(reason)
    }

    /// Posts receives of `len` bytes each; request `i` starts at byte `i * 4096` of the region.
    pub fn post_recvs(&self, qp: &Qp, ids: std::ops::Range<u64>, len: usize) {
        for id in ids {
            let at = id as usize * 4096;
            qp.post_recv(&[RecvWr::new(id, &[self.mr.sge(at..at + len).unwrap()])]).unwrap();
        }
    }

    /// Fills the region with a byte that no test sends.
    pub fn wipe(&self) {
        self.mr.fill(0..64 << 10, 0xee).unwrap();
    }

    /// The bytes at the start of a receive of [`post_recvs`](Self::post_recvs).
    pub fn received(&self, id: u64, len: usize) -> Vec<u8> {
        let at = id as usize * 4096;
        self.mr.to_vec(at..at + len).unwrap()
    }
}

/// A datagram of `payload`.
pub fn datagram(psn: u32, qkey: u32, payload: &[u8]) -> Pkt {
    let deth = Deth { qkey, src_qpn: PEER_QPN };
    sim::peer::pkt(Opcode::UD_SEND_ONLY, psn).ext(Ext::Deth(deth)).data(payload)
}

/// Options with a small path MTU, for messages of several packets.
pub fn mtu256() -> RcOptions {
    options().path_mtu(verbs::Mtu::Mtu256)
}

/// A device on a loopback port.
pub fn loopback() -> Context {
    embedded()
}
