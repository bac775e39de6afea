//! A connection manager on a simulated node. Its MADs are datagrams of the node's queue pair 1, which real shards send and receive.

use core::time::Duration;

use super::node::{CqId, MrId, Node, QpConfig, QpId, SGID_INDEX, SendWr};
use super::world::World;
use stack::cm::{Config, GSI_QKEY, MAD_LEN, Machine, Path, QpParams};
use stack::device::{cm_init, cm_rtr, cm_rts};
use stack::id::{Gid, QpType, Qpn};
use stack::mem::Access;
use stack::proto::address::UdAddress;
use stack::proto::attr::GlobalRoute;
use stack::proto::responder::GRH_LEN;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::time::Instant;

/// The most outstanding sends, and the most posted receives.
const DEPTH: usize = 32;
/// Bytes of a buffer.
const SLOT: usize = 512;

/// A connection management [`Machine`] and the queue pair 1 that carries its MADs.
pub struct Manager {
    /// The state machine of connection management.
    pub machine: Machine,
    /// Index of its node in the world.
    pub node: usize,
    /// Its queue pair 1.
    pub qp: QpId,
    /// The completion queue of both work queues.
    cq: CqId,
    send: MrId,
    recv: MrId,
    /// Indices of the free send buffers.
    free: Vec<u64>,
}

/// Source and destination of a datagram, from the 40 bytes before its payload (IBA 11.4.1.2). An IPv4 header is in the last 20 of them.
fn addresses(grh: &[u8]) -> Option<(Gid, Gid)> {
    match (grh.first()? >> 4, grh.get(20)? >> 4) {
        (6, _) => Some((Gid(*grh[8..].first_chunk()?), Gid(*grh[24..].first_chunk()?))),
        (_, 4) => Some((Gid::v4(*grh[32..].first_chunk()?), Gid::v4(*grh[36..].first_chunk()?))),
        _ => None,
    }
}

impl Manager {
    /// Creates queue pair 1 of a node, brings it to RTS, and starts a connection manager on it.
    ///
    /// # Panics
    /// If the node has a queue pair 1 already.
    pub fn new(world: &mut World, node: usize, config: Config) -> Self {
        Self::of(&mut world.nodes[node], node, world.now, config)
    }

    /// The same, of a node that is in no world; `index` is its number.
    pub fn of(n: &mut Node, index: usize, now: Instant, config: Config) -> Self {
        let cq = n.create_cq(4 * DEPTH as u32);
        let depth = DEPTH as u32;
        let kind = QpConfig { ty: QpType::Gsi, send_depth: depth, recv_depth: depth, ..QpConfig::default() };
        let qp = n.create_qp(0, kind, cq, cq);
        n.to_init(now, qp);
        n.to_rtr(now, qp, Gid::default(), Qpn::default());
        n.to_rts(now, qp);
        let mut machine = Machine::new(config);
        machine.set_gids(&[n.gid]);
        let send = n.register(DEPTH * SLOT, Access::empty());
        let recv = n.register(DEPTH * SLOT, Access::LOCAL_WRITE);
        for slot in 0..DEPTH {
            post(n, qp, recv, slot as u64);
        }
        Self { machine, node: index, qp, cq, send, recv, free: (0..DEPTH as u64).collect() }
    }

    /// The path to another node.
    pub fn path(&self, world: &World, to: usize) -> Path {
        Path { sgid: world.nodes[self.node].gid, dgid: world.nodes[to].gid, hop_limit: 64, ..Path::default() }
    }

    /// Passes received MADs to the machine, runs its timers, and sends MADs that are due.
    ///
    /// # Panics
    /// If a datagram completes with an error.
    pub fn turn(&mut self, world: &mut World) {
        self.turn_of(&mut world.nodes[self.node], world.now);
    }

    /// The same, with the node.
    pub fn turn_of(&mut self, n: &mut Node, now: Instant) {
        for cqe in n.poll_cq(self.cq, 2 * DEPTH) {
            let status = super::check::status(&cqe);
            assert_eq!(status, WcStatus::Success, "queue pair 1 of node {}", self.node);
            // Work request ids of receives are odd, those of sends are even.
            if cqe.wr_id & 1 == 0 {
                self.free.push(cqe.wr_id >> 1);
                continue;
            }
            let slot = cqe.wr_id >> 1;
            let bytes = n.mr(self.recv).read(slot as usize * SLOT, cqe.byte_len as usize);
            if let Some((source, ours)) = addresses(&bytes) {
                let path = Path { sgid: ours, dgid: source, ..Path::default() };
                self.machine.handle_mad(now, &path, &bytes[GRH_LEN..]);
            }
            post(n, self.qp, self.recv, slot);
        }
        self.machine.poll_timers(now);
        while let Some(slot) = self.free.pop() {
            let Some(send) = self.machine.poll_send() else {
                self.free.push(slot);
                break;
            };
            let (mr, at) = (n.mr(self.send), slot as usize * SLOT);
            mr.write(at, &send.mad);
            let path = send.path;
            let grh = GlobalRoute {
                dgid: path.dgid,
                flow_label: path.flow_label,
                sgid_index: SGID_INDEX,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            };
            let mut wr = SendWr::new(slot << 1, WrOpcode::Send).sges(&[mr.sge(at, MAD_LEN)]);
            wr.address = Some(UdAddress::new(&grh, n.source(), path.sl).to(Qpn::GSI, GSI_QKEY));
            n.post_send(self.qp, &wr).expect("a buffer for each request");
        }
    }
}

/// Posts the receive buffer with index `slot`.
fn post(node: &mut Node, qp: QpId, recv: MrId, slot: u64) {
    let sge = node.mr(recv).sge(slot as usize * SLOT, SLOT - 16);
    node.post_recv(qp, slot << 1 | 1, &[sge]).expect("a receive for each buffer");
}

/// Brings a queue pair from RESET to INIT, with the attributes for a connection.
///
/// # Panics
/// If the transition is refused.
pub fn init(world: &mut World, node: usize, qp: QpId) {
    let (now, (attr, mask)) = (world.now, cm_init());
    world.nodes[node].modify(now, qp, &attr, mask).expect("RESET to INIT");
}

/// Brings a queue pair from INIT to RTS with the parameters that connection management agreed on.
///
/// # Panics
/// If the transition is refused.
pub fn connect(world: &mut World, node: usize, qp: QpId, params: &QpParams) {
    let now = world.now;
    for (attr, mask) in [cm_rtr(params, SGID_INDEX), cm_rts(params)] {
        world.nodes[node].modify(now, qp, &attr, mask).expect("the parameters fit the queue pair");
    }
}

/// Runs the world and the managers until `done` returns true or `time` has passed. Returns whether `done` returned true.
///
/// # Panics
/// If a check of the world fails.
pub fn run(
    world: &mut World,
    managers: &mut [Manager],
    time: Duration,
    mut done: impl FnMut(&mut World, &mut [Manager]) -> bool,
) -> bool {
    let end = world.now.after(time);
    loop {
        for manager in managers.iter_mut() {
            manager.turn(world);
        }
        if done(world, managers) {
            return true;
        }
        if world.now >= end {
            return false;
        }
        let timers = managers.iter().filter_map(|m| m.machine.next_timer());
        let next = timers.chain([end]).min().unwrap_or(Instant::FAR);
        let limit = Duration::from_nanos(next.nanos_since(world.now).max(1000));
        world.step_within(limit).unwrap_or_else(|e| panic!("{e}"));
    }
}
