//! The choices of a seed: the nodes, the links and their faults, the work.

use core::time::Duration;

use super::link::{Conditions, Fault};
use super::node::{QpConfig, remote_rights};
use super::rng::Rng;
use super::world::Steering;
use stack::id::{Mtu, QpType};
use stack::mem::Access;

/// The choices of a seed.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Number of shards of each node. The number of entries is the number of nodes, 2 to 5.
    pub shards: Vec<usize>,
    /// How ports choose the queue of a received frame.
    pub steering: Steering,
    /// Whether to use IPv6 instead of IPv4.
    pub ipv6: bool,
    /// VLAN of every port.
    pub vlan: Option<u16>,
    /// The nodes at the ends of each connection: two nodes, one node with two queue pairs, or one node with a queue pair that is connected
    /// to itself.
    pub conns: Vec<Ends>,
    /// Buffers of each port queue.
    pub buffers: usize,
    /// The most bytes that reliable queue pairs of a node may have in flight; `None` for no limit.
    pub window: Option<usize>,
    /// Pairs of UC or UD queue pairs: the type and the two nodes.
    pub lossy: Vec<(QpType, usize, usize)>,
    /// The configuration of every queue pair.
    pub qp: QpConfig,
    /// The faults of the links, by sending and receiving node. The faults of a node's link to the next node also apply to its port and
    /// program.
    pub conditions: Vec<Vec<Conditions>>,
    /// Number of requests of each direction of each connection.
    pub ops: u64,
    /// Most bytes of a message.
    pub max_len: usize,
    /// Whether regions are zero-based.
    pub zero_based: bool,
    /// Whether queue pairs may run out of retries.
    pub may_fail: bool,
    /// The faults end after this many steps at the latest.
    pub steps: u64,
    /// The faults end after this much virtual time at the latest.
    pub time: Duration,
}

/// The ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// A queue pair on each of these nodes, which may be the same.
    Two(usize, usize),
    /// A queue pair that is connected to itself.
    Itself(usize),
    /// An XRC initiator on the first node and a target on the second, which may be the same.
    Xrc(usize, usize),
}

impl Swarm {
    /// Draws the choices from `rng`.
    pub fn draw(rng: &mut Rng) -> Self {
        let nodes = rng.pick(&[2, 2, 2, 3, 4, 5]);
        // Sometimes, messages longer than a window.
        let bulk = rng.one_in(24);
        let mtu = if bulk { Mtu::Mtu256 } else { rng.pick(&Mtu::ALL) };
        let mut conditions = Conditions::CLEAN;
        conditions.path.delay = Duration::from_nanos(rng.range(500, 8_000));
        let mut harsh = false;
        // Swarm: each fault is in half of the runs, rare in most of those, frequent in some.
        for &fault in Fault::ALL {
            if rng.one_in(2) {
                continue;
            }
            let ppm = rate(fault, rng);
            conditions = conditions.with(fault, ppm);
            harsh |= match fault {
                Fault::Partition | Fault::Blackhole | Fault::Narrow => ppm > 0,
                Fault::Loss | Fault::Corrupt | Fault::Truncate => ppm > 10_000,
                _ => false,
            };
        }
        conditions.path.hole = Duration::from_micros(rng.pick(&[20, 200, 2_000]));
        conditions.path.jitter = Duration::from_micros(rng.pick(&[1, 5, 20]));
        conditions.path.late = Duration::from_micros(rng.pick(&[100, 1_000, 20_000]));
        conditions.stall = Duration::from_micros(rng.pick(&[1, 10, 100, 1_500]));
        let mut conditions = vec![vec![conditions; nodes]; nodes];
        for link in conditions.iter_mut().flatten() {
            if rng.one_in(6) {
                *link = link.without_faults();
            }
        }
        let depth = |rng: &mut Rng| 1 << rng.range(0, 5);
        let slots = rng.pick(&[1, 2, 4, 16]);
        let conns = (0..rng.range(1, if nodes == 2 { 3 } else { 4 }))
            .map(|_| {
                let a = rng.below(nodes as u64) as usize;
                let other = (a + rng.range(1, nodes as u64 - 1) as usize) % nodes;
                match rng.below(12) {
                    0 => Ends::Two(a, a),
                    1 => Ends::Itself(a),
                    2 => Ends::Xrc(a, a),
                    3..=5 => Ends::Xrc(a, other),
                    _ => Ends::Two(a, other),
                }
            })
            .collect();
        Self {
            shards: (0..nodes).map(|_| rng.range(1, 4) as usize).collect(),
            steering: rng.pick(&[Steering::ByQpn, Steering::Hash, Steering::Random]),
            ipv6: rng.one_in(3),
            vlan: rng.one_in(3).then(|| rng.range(1, 4094) as u16),
            conns,
            lossy: (0..rng.below(3))
                .map(|_| {
                    let (a, b) = (rng.below(nodes as u64), rng.below(nodes as u64));
                    (rng.pick(&[QpType::Uc, QpType::Ud]), a as usize, b as usize)
                })
                .collect(),
            buffers: rng.pick(&[128, 128, 256, 512]),
            qp: QpConfig {
                send_depth: depth(rng),
                recv_depth: depth(rng),
                mtu,
                timeout: rng.range(7, 10) as u8,
                retry_cnt: 7,
                rnr_retry: if harsh { rng.pick(&[7, 7, 1, 0]) } else { 7 },
                min_rnr_timer: rng.range(1, 14) as u8,
                max_rd_atomic: rng.range(1, u64::from(slots)) as u8,
                max_dest_rd_atomic: slots,
                sq_psn: if rng.one_in(2) { 0xff_fff0 } else { rng.next() as u32 & 0xff_ffff },
                sq_sig_all: rng.one_in(4),
                access: rights(),
                ..QpConfig::default()
            },
            conditions,
            ops: if bulk { 8 } else { rng.range(10, 60) },
            max_len: mtu.bytes() * if bulk { 400 } else { rng.range(1, 5) as usize } + rng.below(7) as usize,
            zero_based: rng.one_in(3),
            may_fail: harsh,
            steps: 20_000,
            time: Duration::from_secs(2),
            // Less than a packet for each queue pair, a few packets, or many.
            window: rng.one_in(3).then(|| mtu.bytes() * rng.pick(&[1, 4, 16, 64])),
        }
    }

    /// Two nodes and one connection, with `ops` requests in each direction. The link faults `faults` have these rates, per million, to the
    /// end.
    pub fn plain(ops: u64, faults: &[(Fault, u32)]) -> Self {
        let conditions =
            faults.iter().fold(Conditions::CLEAN, |conditions, (fault, ppm)| conditions.with(*fault, *ppm));
        Self {
            shards: vec![1, 1],
            steering: Steering::ByQpn,
            ipv6: false,
            vlan: None,
            conns: vec![Ends::Two(0, 1)],
            lossy: Vec::new(),
            buffers: 512,
            window: None,
            qp: QpConfig { timeout: 8, access: rights(), ..QpConfig::default() },
            conditions: vec![vec![conditions; 2]; 2],
            ops,
            max_len: 5000,
            zero_based: false,
            may_fail: false,
            steps: u64::MAX,
            time: Duration::MAX,
        }
    }

    /// The rate of a fault of a node's program, per million turns.
    pub fn program(&self, node: usize, fault: Fault) -> u32 {
        self.conditions[node][(node + 1) % self.shards.len()].rate(fault)
    }
}

/// The access rights of the peer in a run: all, including FLUSH.
pub fn rights() -> Access {
    remote_rights() | Access::FLUSH_GLOBAL
}

/// Draws the rate of a fault that is on: per million frames, or per million turns of a port or a program.
fn rate(fault: Fault, rng: &mut Rng) -> u32 {
    match fault {
        Fault::Partition => rng.pick(&[0, 0, 500, 2_000]),
        Fault::Blackhole | Fault::Narrow => rng.pick(&[0, 500, 3_000]),
        Fault::TxFull | Fault::NoBuffer => rng.pick(&[200, 2_000, 10_000]),
        Fault::Stopped => rng.pick(&[100, 1_000]),
        // Caused by other faults.
        Fault::EarlierLife => 0,
        Fault::SlowConsumer | Fault::FewReceives => rng.pick(&[1_000, 10_000, 50_000]),
        Fault::Drain => rng.pick(&[0, 2_000, 20_000]),
        Fault::ToError | Fault::ToReset | Fault::Destroy | Fault::Deregister => {
            rng.pick(&[0, 0, 2_000, 10_000])
        }
        // Per million queue pairs created.
        Fault::CqOverflow => 300_000,
        // Per million queue pairs destroyed.
        Fault::NumberAgain => 500_000,
        _ => rng.pick(&[1_000, 10_000, 10_000, 60_000]),
    }
}
