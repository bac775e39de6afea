//! Shared by the benches: two shards on an in-process link with connected queue pairs, driven by one thread ([`Link`]), two
//! whole devices through the public verbs ([`path`]), and the counting of instructions ([`icount`]).
//!
//! [`Link`] works without verbs and DPDK: it measures the stack's own work for both ends of a message.

pub mod icount;
pub mod path;

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use stack::id::{Gid, Mac, Mtu, PdId, QpState, QpType, Qpn};
use stack::mem::{Access, MrTable, Sge, UserMemory};
use stack::net::{Net, NetConfig};
use stack::port::{Port, pair};
use stack::proto::attr::{AhAttr, GlobalRoute, QpAttr, QpCap};
use stack::proto::requester::Policies;
use stack::proto::state::required;
use stack::proto::status::WcStatus;
use stack::proto::status::{SendFlags, WrOpcode};
use stack::proto::wqe::{Cqe, Granule, RecvWqe, SendWqe, put_sges, recv_stride, send_stride};
use stack::shard::{QpSpec, Shard, Shared, SharedConfig};
use stack::sync::lanes::{CqReader, cq};
use stack::sync::spsc::{Producer, ring};
use stack::time::Instant;

const DEPTH: u32 = 512;

/// One end of a [`Link`].
pub struct End {
    /// The shard.
    pub shard: Shard,
    /// The reader of its completion queue.
    pub cq: CqReader<Cqe>,
    shared: Arc<Shared>,
    sq: Producer<Granule>,
    rq: Producer<Granule>,
    memory: Vec<AtomicU8>,
    key: u32,
    qpn: Qpn,
    gid: Gid,
}

/// Two shards with a connected queue pair each.
pub struct Link {
    /// One end.
    pub a: End,
    /// The other.
    pub b: End,
    now: u64,
}

impl End {
    fn new(port: &dyn Port, ip: [u8; 4], qpn: u32) -> Self {
        let config = NetConfig { addrs: vec![(ip.into(), 24)], ..NetConfig::new(port.info().mac) };
        let net = Net::new(&config);
        let gids: Vec<Gid> = net.gids().iter().collect();
        let shared = Arc::new(Shared::new(SharedConfig {
            net,
            gids,
            mac: Mac(port.info().mac.0),
            vlan: None,
            mtu: Mtu::Mtu4096,
            shards: 1,
            qps_per_shard: 16,
            computes_ids: None,
        }));
        let queue = port.take_queue(0).expect("a port has a queue");
        let mut shard = Shard::new(0, shared.clone(), queue, Instant::ZERO);
        let (cq, mut lanes) = cq::<Cqe>(4 * DEPTH, 1);
        let lane = shard.attach_lane(lanes.remove(0));
        let memory: Vec<AtomicU8> = (0..1 << 20).map(|_| AtomicU8::new(0)).collect();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // SAFETY: the shard accesses the memory only in its turns, and `End` owns both.
        let vouched = unsafe { UserMemory::new(memory.as_ptr() as u64, memory.len() as u64) };
        let key = shared.mrs.register(PdId(1), vouched, all, 7).expect("a fresh table has room");
        let (sq, sq_consumer) = ring(DEPTH, send_stride(0, 1, 64));
        let (rq, rq_consumer) = ring(DEPTH, recv_stride(1));
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCap::default() };
        let spec = QpSpec {
            slot: 0,
            qpn: Qpn::new(qpn),
            ty: QpType::Rc,
            pd: PdId(1),
            sq: sq_consumer,
            rq: rq_consumer.into(),
            send_lane: lane,
            recv_lane: lane,
            cap,
            policies: Policies::default(),
        };
        shard.create_qp(spec);
        Self { shard, cq, shared, sq, rq, memory, key, qpn: Qpn::new(qpn), gid: Gid::v4(ip) }
    }

    fn connect(&mut self, peer: (Qpn, Gid), mtu: Mtu) {
        let mut attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: 0xf,
            port_num: 1,
            path_mtu: mtu as u8,
            dest_qp_num: peer.0.get(),
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let grh = GlobalRoute { dgid: peer.1, sgid_index: 1, hop_limit: 64, flow_label: 0, traffic_class: 0 };
        attr.ah_attr = AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() };
        let mut from = QpState::Reset;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = to;
            let mask = required(from, to, QpType::Rc);
            self.shard.modify_qp(Instant::ZERO, 0, &attr, mask).expect("a legal transition");
            from = to;
        }
    }

    fn sge(&self, len: u32) -> Sge {
        Sge { addr: self.memory.as_ptr() as u64, length: len, lkey: self.key }
    }

    /// Posts receives until the queue is full.
    pub fn fill_receives(&mut self, len: u32) {
        let sge = self.sge(len);
        let mut n = 0;
        while let Some(slot) = self.rq.slot(n) {
            put_sges(RecvWqe { wr_id: 0, epoch: 0, num_sge: 1 }.put(slot), &[sge]);
            n += 1;
        }
        self.rq.publish(n);
    }

    /// Posts up to `max` requests, the last one signalled; returns how many the queue had room for.
    pub fn post(&mut self, opcode: WrOpcode, len: u32, remote: (u64, u32), max: u32) -> u32 {
        let sge = self.sge(len);
        let mut n = 0;
        while n < max {
            let Some(slot) = self.sq.slot(n) else { break };
            let flags = if n + 1 == max { SendFlags::SIGNALED } else { SendFlags::empty() };
            let mut wqe = SendWqe::new(0, opcode, flags);
            (wqe.length, wqe.num_sge, wqe.remote_addr, wqe.rkey, wqe.arg0) = (len, 1, remote.0, remote.1, 1);
            put_sges(wqe.put(slot), &[sge]);
            n += 1;
        }
        self.sq.publish(n);
        self.shared.doorbells[0].ring(0);
        n
    }
}

impl Link {
    /// Two ends, connected at this path MTU.
    pub fn new(mtu: Mtu) -> Self {
        let (pa, pb) = pair(1);
        let mut a = End::new(&*pa, [10, 0, 0, 1], 0x111);
        let mut b = End::new(&*pb, [10, 0, 0, 2], 0x222);
        a.connect((b.qpn, b.gid), mtu);
        b.connect((a.qpn, a.gid), mtu);
        let mut link = Self { a, b, now: 0 };
        for _ in 0..100 {
            link.turn();
        }
        link
    }

    /// One turn of each shard; a microsecond passes.
    pub fn turn(&mut self) {
        self.now += 1000;
        self.a.shard.poll_once(Instant::from_nanos(self.now));
        self.b.shard.poll_once(Instant::from_nanos(self.now));
    }

    /// Transfers `count` messages of `len` bytes from `a` to `b` (READ: the other way).
    pub fn run(&mut self, opcode: WrOpcode, len: u32, count: u32) {
        let remote = (self.b.memory.as_ptr() as u64, self.b.key);
        let takes_recv =
            matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
        let (mut posted, mut turns) = (0, 0u64);
        while posted < count || self.a.sq.in_use() > 0 {
            turns += 1;
            assert!(turns < 100 * u64::from(count) + 10_000, "no progress:\n{}", self.counters());
            if takes_recv {
                self.b.fill_receives(len);
            }
            let batch = 32.min(count - posted);
            if batch > 0 && self.a.sq.slots() - self.a.sq.in_use() >= batch {
                posted += self.a.post(opcode, len, remote, batch);
            }
            self.turn();
            self.b.cq.poll_with(64, |c| assert_eq!(c.status, WcStatus::Success, "receive completion"));
            self.a.cq.poll_with(64, |c| assert_eq!(c.status, WcStatus::Success, "send completion"));
        }
    }
}

impl Link {
    /// The counters of both ends that are not zero.
    pub fn counters(&self) -> String {
        let one = |e: &End| {
            let all = e.shared.counters[0].snapshot();
            all.iter().filter(|(_, v)| *v > 0).map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", ")
        };
        format!("a: {}\nb: {}", one(&self.a), one(&self.b))
    }
}

impl Link {
    /// Transfers `count` messages of `len` bytes from `a` to `b` by SEND, one after the other, as a ping-pong does.
    pub fn ping(&mut self, len: u32, count: u32) {
        for _ in 0..count {
            self.b.fill_receives(len);
            assert_eq!(self.a.post(WrOpcode::Send, len, (0, 0), 1), 1);
            self.now += 1000;
            let now = Instant::from_nanos(self.now);
            self.a.shard.poll_once(now);
            self.b.shard.poll_once(now);
            let mut received = 0;
            self.b.cq.poll_with(1, |c| received += u32::from(c.status == WcStatus::Success));
            assert_eq!(received, 1, "{}", self.counters());
            self.a.shard.poll_once(now);
            self.a.cq.poll_with(1, |_| ());
        }
    }
}

/// A table with one region, for benches that look up keys and copy nothing.
pub fn keys_of(pd: PdId, addr: u64, len: u64, access: Access) -> (MrTable, u32) {
    let keys = MrTable::new();
    // SAFETY: there is no shard that would access the memory.
    let nowhere = unsafe { UserMemory::new(addr, len) };
    let key = keys.register(pd, nowhere, access, 7).expect("a fresh table has room");
    (keys, key)
}
