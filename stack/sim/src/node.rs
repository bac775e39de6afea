//! A simulated host: real shards over simulated port queues, with the memory, queues and calls of a program on it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::memory::Region;
use super::port::{self, PortPanicked, SimWire};
use super::rng::Rng;
use stack::id::{Gid, Mac, Mtu, PdId, QpState, QpType, Qpn};
use stack::mem::{Access, Bind, KeyFault, MemError, MwType, Sge, inc_rkey, sge};
use stack::net::{Net, NetConfig};
use stack::port::L2_OVERHEAD;
use stack::proto::address::{Source, UD_EXT, UdAddress};
use stack::proto::attr::{AhAttr, AttrMask, GlobalRoute, QpAttr, QpCap};
use stack::proto::state::{Gates, ModifyError, QP_ACCESS_FLAGS, required};
use stack::proto::status::{AsyncEvent, SendFlags, WrOpcode};
use stack::proto::wqe::{
    Cqe, Granule, RecvWqe, SendWqe, XRC_EXT, put_sges, put_srqn, recv_stride, send_stride,
};
use stack::shard::counters::{Counter, CounterSnapshot};
use stack::shard::{
    CqState, EventElement, LaneId, QpSpec, RecvSource, Shard, Shared, SharedConfig, SrqEnd, Turn, XrcSrq,
    srq_words,
};
use stack::sync::lanes::{CqReader, cq};
use stack::sync::spsc::{Producer, ring};
use stack::sync::srq::{self, Poster};
use stack::time::Instant;
use stack::wire::Discard;

/// `EINVAL`: the request or the state is wrong.
pub const EINVAL: i32 = 22;
/// `ENOMEM`: the queue is full.
pub const ENOMEM: i32 = 12;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Number of the node, which its addresses are made of.
    pub index: u8,
    /// Shards, 1 to 4.
    pub shards: usize,
    /// Largest path MTU of the port.
    pub mtu: Mtu,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// VLAN of the port.
    pub vlan: Option<u16>,
    /// Buffers of each queue.
    pub buffers: usize,
    /// Queue pairs each shard can hold.
    pub qps_per_shard: usize,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            index: 0,
            shards: 1,
            mtu: Mtu::Mtu4096,
            ipv6: false,
            vlan: None,
            buffers: 512,
            qps_per_shard: 16,
        }
    }
}

/// How a queue pair is created and connected.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Service type: RC, UC, UD, GSI, or either end of XRC.
    pub ty: QpType,
    /// Send requests, a power of two.
    pub send_depth: u32,
    /// Receive requests, a power of two.
    pub recv_depth: u32,
    /// Scatter/gather elements of either.
    pub sges: u32,
    /// Inline bytes.
    pub inline: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Exponent of the ACK timeout.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code sent.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: u8,
    /// The peer's rights.
    pub access: Access,
    /// First sequence number sent.
    pub sq_psn: u32,
    /// First sequence number expected.
    pub rq_psn: u32,
    /// Every send request makes a completion.
    pub sq_sig_all: bool,
}

impl Default for QpConfig {
    /// The set-up of the conformance cases: PMTU 1024, PSN 0x100 both ways, timeout 14, 7 retries of each
    /// kind, 4 READs and atomics, all remote rights.
    fn default() -> Self {
        Self {
            ty: QpType::Rc,
            send_depth: 64,
            recv_depth: 64,
            sges: 4,
            inline: 128,
            mtu: Mtu::Mtu1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: remote_rights(),
            sq_psn: 0x100,
            rq_psn: 0x100,
            sq_sig_all: false,
        }
    }
}

/// Local write and every remote right of the base protocol.
pub fn remote_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A queue pair of a node, by number in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct QpId(pub usize);

/// A completion queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CqId(pub usize);

/// A region of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MrId(pub usize);

/// An XRC shared receive queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SrqId(pub usize);

/// A send work request, as a program writes it.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The caller's tag.
    pub wr_id: u64,
    /// What to do.
    pub opcode: WrOpcode,
    /// Signalled, solicited, fenced.
    pub flags: SendFlags,
    /// The local buffers.
    pub sges: Vec<Sge>,
    /// The data itself, instead.
    pub inline: Option<Vec<u8>>,
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate data, in the order of the wire.
    pub imm: [u8; 4],
    /// The key that a SEND with invalidate names.
    pub inv: u32,
    /// Compare operand of a swap, addend of an addition; first operand of a FLUSH, bind or registration.
    pub compare_add: u64,
    /// Swap operand; second operand of a FLUSH, bind or registration.
    pub swap: u64,
    /// Where a datagram goes.
    pub address: Option<UdAddress>,
    /// The peer's shared receive queue, on an XRC initiator.
    pub srqn: u32,
}

impl SendWr {
    /// A request of `opcode`, signalled, with nothing else set.
    pub fn new(wr_id: u64, opcode: WrOpcode) -> Self {
        Self {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            sges: Vec::new(),
            inline: None,
            remote_addr: 0,
            rkey: 0,
            imm: [0; 4],
            inv: 0,
            compare_add: 0,
            swap: 0,
            address: None,
            srqn: 0,
        }
    }
    /// BIND_MW: `window` is these bytes of `region` from now on, with these rights.
    pub fn bind(wr_id: u64, window: u32, region: u32, (addr, len): (u64, u64), access: Access) -> Self {
        let rights = u64::from(access.bits()) << 32;
        Self::new(wr_id, WrOpcode::BindMw).remote(addr, window).operands(rights | u64::from(region), len)
    }
    /// The local buffers.
    #[must_use]
    pub fn sges(mut self, sges: &[Sge]) -> Self {
        self.sges = sges.to_vec();
        self
    }
    /// Inline data.
    #[must_use]
    pub fn inline(mut self, data: &[u8]) -> Self {
        self.inline = Some(data.to_vec());
        self
    }
    /// The remote buffer.
    #[must_use]
    pub fn remote(mut self, addr: u64, rkey: u32) -> Self {
        (self.remote_addr, self.rkey) = (addr, rkey);
        self
    }
    /// Immediate data.
    #[must_use]
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.imm = imm;
        self
    }
    /// Operands of an atomic: compare or add, swap.
    #[must_use]
    pub fn operands(mut self, compare_add: u64, swap: u64) -> Self {
        (self.compare_add, self.swap) = (compare_add, swap);
        self
    }
    /// Success makes no completion.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }
    /// More flags.
    #[must_use]
    pub fn with(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }
    /// Bytes of the message.
    pub fn length(&self) -> u64 {
        self.inline.as_ref().map_or_else(|| sge::total(&self.sges), |d| d.len() as u64)
    }
}

/// The program's side of a queue pair.
#[derive(Debug)]
pub struct SimQp {
    /// Its number.
    pub qpn: Qpn,
    /// Its shard.
    pub shard: usize,
    /// Its slot there.
    pub slot: u32,
    /// The completion queue of its send queue.
    pub send_cq: CqId,
    /// The completion queue of its receive queue.
    pub recv_cq: CqId,
    /// The configuration that it was created with.
    pub config: QpConfig,
    index: u32,
    sq: Producer<Granule>,
    /// XRC queue pairs have none.
    rq: Option<Producer<Granule>>,
}

struct SimCq {
    reader: CqReader<Cqe>,
    state: Arc<CqState>,
    /// One lane a shard.
    lanes: Vec<LaneId>,
}

struct SimSrq {
    number: u32,
    poster: Poster,
    /// An entry is laid out here.
    entry: Box<[Granule]>,
}

/// A host with one device, in its own memory.
pub struct Node {
    /// Its configuration.
    pub config: NodeConfig,
    /// Ethernet address.
    pub mac: Mac,
    /// IP address.
    pub gid: Gid,
    /// State that the shards share.
    pub shared: Arc<Shared>,
    /// The shards.
    pub shards: Vec<Shard>,
    /// The other ends of their port queues.
    pub wires: Vec<SimWire>,
    /// Shards whose port panicked in a turn: as in a device, they get no other turn.
    dead: Vec<bool>,
    regions: Vec<Region>,
    qps: Vec<Option<SimQp>>,
    cqs: Vec<SimCq>,
    srqs: Vec<SimSrq>,
    rng: Rng,
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").field("index", &self.config.index).field("qps", &self.qps.len()).finish()
    }
}

/// Entry 1 of the GID table: the configured address, behind the link-local one.
pub(super) const SGID_INDEX: u8 = 1;
/// The protection domain of regions and queue pairs, unless a test chooses another.
pub const PD: PdId = PdId(1);

/// The XRC domain of a node.
const XRCD: u32 = 1;
/// Scatter/gather elements of an entry of a shared receive queue.
const SRQ_SGES: usize = 4;

/// The IP host of node `index`.
pub fn net_config(index: u8, ipv6: bool) -> NetConfig {
    let addr = if ipv6 {
        (core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(index) + 1).into(), 64)
    } else {
        (core::net::Ipv4Addr::new(10, 0, 0, index + 1).into(), 24)
    };
    NetConfig { addrs: vec![addr], ..NetConfig::new(Mac([2, 0, 0, 0, 0, index + 1])) }
}

impl Node {
    /// A node at `now`; `rng` is the operating system's randomness.
    pub fn new(config: NodeConfig, now: Instant, rng: Rng) -> Self {
        assert!((1..=4).contains(&config.shards), "a node has 1 to 4 shards");
        let net = Net::new(&NetConfig { vlan: config.vlan, ..net_config(config.index, config.ipv6) });
        let gids: Vec<Gid> = net.gids().iter().collect();
        let (mac, gid) = (net.mac(), gids[usize::from(SGID_INDEX)]);
        let shared = Arc::new(Shared::new(SharedConfig {
            net,
            gids,
            mac,
            vlan: config.vlan,
            mtu: config.mtu,
            shards: config.shards,
            qps_per_shard: config.qps_per_shard,
        }));
        let frame_len = config.mtu.of_packet() + L2_OVERHEAD;
        let (mut shards, mut wires) = (Vec::new(), Vec::new());
        for id in 0..config.shards {
            let (queue, wire) = port::queue(config.buffers, frame_len);
            // Every other node has features that only some ports and shards have: port memory to build in, very many queue pairs.
            let special = config.index % 2 == 1;
            let queue = if special { queue.lending() } else { queue };
            let mut shard = Shard::new(id, shared.clone(), Box::new(queue), now);
            if special {
                shard.prefetch_from(0);
            }
            shards.push(shard);
            wires.push(wire);
        }
        Self {
            config,
            mac,
            gid,
            shared,
            shards,
            dead: vec![false; wires.len()],
            wires,
            regions: Vec::new(),
            qps: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            rng,
        }
    }

    /// One turn of a shard, if it lives.
    pub fn turn(&mut self, shard: usize, now: Instant) -> Turn {
        if self.dead[shard] {
            return Turn::default();
        }
        match catch_unwind(AssertUnwindSafe(|| self.shards[shard].poll_once(now))) {
            Ok(turn) => turn,
            Err(panic) if panic.is::<PortPanicked>() => {
                self.dead[shard] = true;
                self.shared.end_shard(shard);
                Turn::default()
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Whether a shard has died.
    pub fn is_dead(&self, shard: usize) -> bool {
        self.dead[shard]
    }

    /// Registers `len` fresh bytes in [`PD`].
    pub fn register(&mut self, len: usize, access: Access) -> MrId {
        self.register_in(PD, len, access)
    }

    /// Registers `len` fresh bytes in a protection domain.
    pub fn register_in(&mut self, pd: PdId, len: usize, access: Access) -> MrId {
        let mut region = Region::new(len);
        let random = self.rng.next() as u32;
        region.access = access;
        region.key = self
            .shared
            .mrs
            .register(pd, region.memory(), access, random)
            .expect("the access flags go together");
        self.regions.push(region);
        MrId(self.regions.len() - 1)
    }

    /// `len` fresh bytes for fast registration, none of them registered.
    pub fn alloc_fast(&mut self, len: usize) -> MrId {
        let mut region = Region::new(len);
        let random = self.rng.next() as u32;
        region.key = self.shared.mrs.alloc_fast(PD, region.memory(), random).expect("a slot is free");
        self.regions.push(region);
        MrId(self.regions.len() - 1)
    }

    /// `len` fresh bytes, registered as by a REG_MR request.
    pub fn register_fast(&mut self, len: usize, access: Access) -> MrId {
        let mr = self.alloc_fast(len);
        let region = &mut self.regions[mr.0];
        region.access = access;
        let registered =
            self.shared.mrs.fast_register(region.key, PD, region.addr(), region.len() as u64, access);
        registered.expect("the access flags go together");
        mr
    }

    /// Registers a region for fast registration once more, whose key is dead, under its next key.
    pub fn register_fast_again(&mut self, mr: MrId) {
        let region = &mut self.regions[mr.0];
        region.key = inc_rkey(region.key);
        let (key, addr, len) = (region.key, region.addr(), region.len() as u64);
        let registered = self.shared.mrs.fast_register(key, PD, addr, len, region.access);
        registered.expect("the access flags go together");
    }

    /// A memory window that is not bound: its key.
    pub fn alloc_window(&mut self, ty: MwType) -> u32 {
        self.shared.mrs.alloc_window(PD, ty, self.rng.next() as u32).expect("a slot is free")
    }

    /// Deallocates a window, bound or not; its slot may be used again.
    pub fn dealloc_window(&mut self, key: u32) {
        self.shared.mrs.revoke(key).expect("the window is there");
        self.shared.mrs.reclaim(key, Region::between_turns());
    }

    /// Binds a window of type 2 as a queue pair's BIND_MW does, but without the queue pair.
    pub fn bind_in_secret(&self, window: u32, qpn: Qpn, mr: MrId) {
        let region = self.mr(mr);
        let (addr, len) = (region.addr(), region.len() as u64);
        let bind = Bind { window, qpn, pd: PD, region: region.key, addr, len, access: Access::REMOTE_READ };
        self.shared.mrs.bind(&bind).expect("the window can be bound");
    }

    /// Deregisters a region; its memory stays readable here.
    pub fn deregister(&mut self, mr: MrId) {
        self.try_deregister(mr).expect("the region is registered, and no window is bound to it");
    }

    /// Deregisters a region.
    ///
    /// # Errors
    /// [`MemError::Bound`] while windows are bound to it.
    pub fn try_deregister(&mut self, mr: MrId) -> Result<(), MemError> {
        self.shared.mrs.revoke(self.regions[mr.0].key)
    }

    /// Registers a region once more, whose key is dead, with the rights that it had.
    pub fn register_again(&mut self, mr: MrId) {
        let random = self.rng.next() as u32;
        let region = &mut self.regions[mr.0];
        region.key = self
            .shared
            .mrs
            .register(PD, region.memory(), region.access, random)
            .expect("the access flags go together");
    }

    /// Whether a key grants anything, a window's included.
    pub fn key_lives(&self, key: u32) -> bool {
        let nobody = Qpn::new(0);
        self.shared.mrs.check_remote(key, PD, nobody, Access::empty(), 0, 0) != Err(KeyFault::UnknownKey)
    }

    /// Lets the slot of a deregistered region's key be used again.
    pub fn reclaim(&mut self, mr: MrId) {
        self.shared.mrs.reclaim(self.regions[mr.0].key, Region::between_turns());
    }

    /// Other values for the next connection of a queue pair; its queues stay as they are.
    pub fn configure(&mut self, qp: QpId, config: QpConfig) {
        self.qp_mut(qp).config = config;
    }

    /// A region.
    pub fn mr(&self, mr: MrId) -> &Region {
        &self.regions[mr.0]
    }

    /// Every region.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// A completion queue of `cqe` entries, fed by every shard.
    pub fn create_cq(&mut self, cqe: u32) -> CqId {
        let (reader, lanes) = cq(cqe, self.shards.len());
        let state = Arc::new(CqState::new(self.cqs.len() as u32 + 1, 0, None));
        let shards = self.shards.iter_mut().zip(lanes);
        let lanes = shards.map(|(shard, lane)| shard.attach_cq(lane, state.clone())).collect();
        self.cqs.push(SimCq { reader, state, lanes });
        CqId(self.cqs.len() - 1)
    }

    /// Whether a completion queue lost a completion, and all completions before it can be polled. The event may come before that:
    /// completions wait for the answers of their turn.
    pub fn cq_failed(&self, cq: CqId) -> bool {
        self.cqs[cq.0].state.failed()
    }

    /// Removes a completion queue that no queue pair uses any more.
    pub fn destroy_cq(&mut self, cq: CqId) {
        for (shard, lane) in self.shards.iter_mut().zip(core::mem::take(&mut self.cqs[cq.0].lanes)) {
            shard.detach_lane(lane);
        }
        self.retire_events(self.cq_element(cq));
    }

    /// Takes all asynchronous events.
    pub fn events(&self) -> Vec<(AsyncEvent, EventElement)> {
        let next = || self.shared.events.try_get();
        core::iter::from_fn(next)
            .map(|event| {
                self.shared.events.ack(event.element);
                (event.event, event.element)
            })
            .collect()
    }

    /// The element of events of a completion queue.
    pub fn cq_element(&self, cq: CqId) -> EventElement {
        EventElement::Cq(self.cqs[cq.0].state.number())
    }

    /// An XRC shared receive queue of `depth` entries, whose requests complete in `cq`.
    pub fn create_srq(&mut self, depth: u32, cq: CqId) -> SrqId {
        let number = self.srqs.len() as u32 + 1;
        let (poster, taker) = srq::queue(depth, srq_words(SRQ_SGES));
        for (i, shard) in self.shards.iter_mut().enumerate() {
            let end = SrqEnd { number, pd: PD, taker: taker.clone() };
            shard.attach_srq(XrcSrq { xrcd: XRCD, end, lane: self.cqs[cq.0].lanes[i] });
        }
        let entry = vec![Granule::default(); recv_stride(SRQ_SGES)].into_boxed_slice();
        self.srqs.push(SimSrq { number, poster, entry });
        SrqId(self.srqs.len() - 1)
    }

    /// Removes a shared receive queue with its entries.
    pub fn destroy_srq(&mut self, srq: SrqId) {
        let number = self.srqs[srq.0].number;
        self.shards.iter_mut().for_each(|shard| shard.detach_srq(number));
    }

    /// The number by which senders name a shared receive queue.
    pub fn srqn(&self, srq: SrqId) -> u32 {
        self.srqs[srq.0].number
    }

    /// Entries that wait in a shared receive queue.
    pub fn srq_waiting(&self, srq: SrqId) -> u32 {
        self.srqs[srq.0].poster.len()
    }

    /// Posts to a shared receive queue (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// `ENOMEM` if it is full, `EINVAL` for a list that is too long.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        if sges.len() > SRQ_SGES {
            return Err(EINVAL);
        }
        let srq = &mut self.srqs[srq.0];
        // Requests of a shared receive queue belong to no queue pair's epoch.
        let wqe = RecvWqe { wr_id, epoch: 0, num_sge: sges.len() as u32 };
        put_sges(wqe.put(&mut srq.entry), sges);
        let words = <[u64]>::ref_from_bytes(srq.entry.as_bytes()).expect("granules are whole words");
        if !srq.poster.put(0, words) {
            return Err(ENOMEM);
        }
        srq.poster.publish(1);
        Ok(())
    }

    /// A queue pair in RESET, on a shard.
    pub fn create_qp(&mut self, shard: usize, config: QpConfig, send_cq: CqId, recv_cq: CqId) -> QpId {
        self.create_qp_as(None, shard, config, send_cq, recv_cq)
    }

    /// The same with a number that is free, of that shard: one that was used before, for example.
    pub fn create_qp_as(
        &mut self,
        number: Option<Qpn>,
        shard: usize,
        config: QpConfig,
        send_cq: CqId,
        recv_cq: CqId,
    ) -> QpId {
        let slot = (0..self.config.qps_per_shard as u32)
            .find(|slot| !self.qps.iter().flatten().any(|qp| (qp.shard, qp.slot) == (shard, *slot)))
            .expect("the shard has a free slot");
        let qpn = loop {
            let qpn = number.unwrap_or_else(|| Qpn::new(self.rng.below(1 << 24) as u32));
            let free = !self.qps.iter().flatten().any(|qp| qp.qpn == qpn);
            if let Some(qpn) = number {
                assert!(free && self.shared.blocks.grant(qpn.block(), shard), "{qpn:?} is in use");
                break qpn;
            }
            if free && !qpn.block().is_reserved() && self.shared.blocks.grant(qpn.block(), shard) {
                break qpn;
            }
        };
        let ext = match config.ty {
            QpType::Ud | QpType::Gsi => UD_EXT,
            QpType::XrcIni => XRC_EXT,
            _ => 0,
        };
        let (sq, sq_shard) =
            ring(config.send_depth, send_stride(ext, config.sges as usize, config.inline as usize));
        let (rq, source) = match config.ty {
            QpType::XrcIni => (None, RecvSource::Nowhere),
            QpType::XrcTgt => (None, RecvSource::Named { xrcd: XRCD, ownerless: false }),
            _ => {
                let (rq, shard) = ring(config.recv_depth, recv_stride(config.sges as usize));
                (Some(rq), shard.into())
            }
        };
        self.shards[shard].create_qp(QpSpec {
            slot,
            qpn,
            ty: config.ty,
            pd: PD,
            sq: sq_shard,
            rq: source,
            send_lane: self.cqs[send_cq.0].lanes[shard],
            recv_lane: self.cqs[recv_cq.0].lanes[shard],
            cap: QpCap {
                max_send_wr: config.send_depth,
                max_recv_wr: config.recv_depth,
                max_send_sge: config.sges,
                max_recv_sge: config.sges,
                max_inline_data: config.inline,
            },
        });
        let index = (shard * self.config.qps_per_shard) as u32 + slot;
        self.qps.push(Some(SimQp { qpn, shard, slot, send_cq, recv_cq, config, index, sq, rq }));
        QpId(self.qps.len() - 1)
    }

    /// The queue pair.
    ///
    /// # Panics
    /// If it was destroyed.
    pub fn qp(&self, qp: QpId) -> &SimQp {
        self.qps[qp.0].as_ref().expect("the queue pair is there")
    }

    fn qp_mut(&mut self, qp: QpId) -> &mut SimQp {
        self.qps[qp.0].as_mut().expect("the queue pair is there")
    }

    /// `ibv_modify_qp(3)`.
    pub fn modify(
        &mut self,
        now: Instant,
        qp: QpId,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let (shard, slot) = (self.qp(qp).shard, self.qp(qp).slot);
        self.shards[shard].modify_qp(now, slot, attr, mask)
    }

    /// Changes nothing but the state.
    pub fn modify_state(&mut self, now: Instant, qp: QpId, to: QpState) -> Result<(), ModifyError> {
        self.modify(now, qp, &QpAttr { qp_state: to, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// `ibv_query_qp(3)`.
    pub fn query(&mut self, qp: QpId) -> QpAttr {
        let (shard, slot) = (self.qp(qp).shard, self.qp(qp).slot);
        self.shards[shard].query_qp(slot)
    }

    /// The published state.
    pub fn state(&self, qp: QpId) -> QpState {
        QpState::from_enum(self.shared.words.load(self.qp(qp).index).state()).expect("a state is published")
    }

    /// Removes a queue pair.
    pub fn destroy(&mut self, qp: QpId) {
        let gone = self.qps[qp.0].take().expect("the queue pair is there");
        self.shards[gone.shard].destroy_qp(gone.slot);
        self.retire_events(EventElement::Qp(gone.qpn));
    }

    /// Drops the events of an object that is gone.
    fn retire_events(&self, element: EventElement) {
        self.shared.events.retire(element).expect("events are acknowledged at once");
        self.shared.events.forget(element);
    }

    /// The source of datagrams.
    pub fn source(&self) -> Source {
        self.shared.gids.source(usize::from(SGID_INDEX)).expect("a node keeps its addresses")
    }

    /// The attributes that connect a queue pair to a peer, with every value of its configuration.
    pub fn attr_to(&self, qp: QpId, peer: Gid, dest: Qpn) -> QpAttr {
        let c = self.qp(qp).config;
        let grh = GlobalRoute { dgid: peer, sgid_index: SGID_INDEX, ..GlobalRoute::default() };
        QpAttr {
            path_mtu: c.mtu as u8,
            rq_psn: c.rq_psn,
            sq_psn: c.sq_psn,
            dest_qp_num: dest.get(),
            qp_access_flags: c.access.bits() & QP_ACCESS_FLAGS,
            ah_attr: AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() },
            max_rd_atomic: c.max_rd_atomic,
            max_dest_rd_atomic: c.max_dest_rd_atomic,
            min_rnr_timer: c.min_rnr_timer,
            timeout: c.timeout,
            retry_cnt: c.retry_cnt,
            rnr_retry: c.rnr_retry,
            port_num: 1,
            qkey: super::lossy::QKEY,
            ..QpAttr::default()
        }
    }

    /// The attributes that the queue pair's type requires for a transition.
    fn wanted(&self, qp: QpId, from: QpState, to: QpState) -> AttrMask {
        required(from, to, self.qp(qp).config.ty)
    }

    /// RESET → INIT.
    pub fn to_init(&mut self, now: Instant, qp: QpId) {
        let attr = QpAttr { qp_state: QpState::Init, ..self.attr_to(qp, Gid::default(), Qpn::default()) };
        let mask = self.wanted(qp, QpState::Reset, QpState::Init);
        self.modify(now, qp, &attr, mask).expect("RESET to INIT");
    }

    /// INIT → RTR, towards a peer.
    pub fn to_rtr(&mut self, now: Instant, qp: QpId, peer: Gid, dest: Qpn) {
        let attr = QpAttr { qp_state: QpState::Rtr, ..self.attr_to(qp, peer, dest) };
        let mask = self.wanted(qp, QpState::Init, QpState::Rtr);
        self.modify(now, qp, &attr, mask).expect("INIT to RTR");
    }

    /// RTR → RTS.
    pub fn to_rts(&mut self, now: Instant, qp: QpId) {
        let attr = QpAttr { qp_state: QpState::Rts, ..self.attr_to(qp, Gid::default(), Qpn::default()) };
        let mask = self.wanted(qp, QpState::Rtr, QpState::Rts);
        self.modify(now, qp, &attr, mask).expect("RTR to RTS");
    }

    /// Posts a send request as verbs does: checks, encodes in place, publishes, rings.
    ///
    /// # Errors
    /// `EINVAL` in a state that takes none or for a request that is not allowed, `ENOMEM` if the queue is full.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr) -> Result<(), i32> {
        let word = self.shared.words.load(self.qp(qp).index);
        if !Gates::from_bits(word.gates()).has(Gates::POST_SEND) {
            return Err(EINVAL);
        }
        let q = self.qp_mut(qp);
        let length = wr.length();
        let atomic = matches!(wr.opcode, WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd);
        let reads = atomic || wr.opcode == WrOpcode::RdmaRead;
        let word_sized = atomic || wr.opcode == WrOpcode::AtomicWrite;
        if wr.sges.len() > q.config.sges as usize
            || length > 1 << 31
            || wr.inline.as_ref().is_some_and(|d| reads || d.len() > q.config.inline as usize)
            || word_sized && (length != 8 || !wr.remote_addr.is_multiple_of(8))
        {
            return Err(EINVAL);
        }
        let Some(slot) = q.sq.slot(0) else { return Err(ENOMEM) };
        let mut flags = wr.flags;
        flags.set(SendFlags::INLINE, wr.inline.is_some());
        let mut wqe = SendWqe::new(wr.wr_id, wr.opcode, flags);
        wqe.remote_addr = wr.remote_addr;
        wqe.rkey = wr.rkey;
        wqe.length = length as u32;
        wqe.epoch = word.epoch();
        wqe.num_sge = if wr.inline.is_some() { 0 } else { wr.sges.len() as u8 };
        match wr.opcode {
            WrOpcode::SendWithInv => wqe.arg0 = u64::from(wr.inv),
            WrOpcode::Flush | WrOpcode::BindMw | WrOpcode::RegMr => {
                (wqe.arg0, wqe.arg1) = (wr.compare_add, wr.swap);
            }
            _ if atomic => (wqe.arg0, wqe.arg1) = (wr.compare_add, wr.swap),
            _ => wqe.set_imm(wr.imm),
        }
        if q.config.sq_sig_all {
            wqe.set_signaled();
        }
        let xrc = q.config.ty == QpType::XrcIni;
        wqe.ext = match wr.address {
            Some(_) => UD_EXT as u8,
            None if xrc => XRC_EXT as u8,
            None => 0,
        };
        let body = wqe.put(slot);
        let body = wr.address.iter().fold(body, |body, address| address.put(body));
        let body = if xrc { put_srqn(body, wr.srqn) } else { body };
        match &wr.inline {
            Some(data) => body[..data.len()].copy_from_slice(data),
            None => put_sges(body, &wr.sges),
        }
        q.sq.publish(1);
        let (shard, slot) = (q.shard, q.slot);
        self.shared.doorbells[shard].ring(slot);
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`Node::post_send`].
    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        let word = self.shared.words.load(self.qp(qp).index);
        if !Gates::from_bits(word.gates()).has(Gates::POST_RECV) {
            return Err(EINVAL);
        }
        let q = self.qp_mut(qp);
        if sges.len() > q.config.sges as usize {
            return Err(EINVAL);
        }
        let Some(rq) = &mut q.rq else { return Err(EINVAL) };
        let Some(slot) = rq.slot(0) else { return Err(ENOMEM) };
        let wqe = RecvWqe { wr_id, epoch: word.epoch(), num_sge: sges.len() as u32 };
        put_sges(wqe.put(slot), sges);
        rq.publish(1);
        let (shard, slot) = (q.shard, q.slot);
        // Only a queue pair that flushes needs a doorbell.
        if Gates::from_bits(word.gates()).has(Gates::FLUSH_RQ) {
            self.shared.doorbells[shard].ring(slot);
        }
        Ok(())
    }

    /// Send requests that are posted and not released by the shard.
    pub fn sends_in_use(&self, qp: QpId) -> u32 {
        self.qp(qp).sq.in_use()
    }

    /// Receive requests that are posted and not released by the shard.
    pub fn receives_in_use(&self, qp: QpId) -> u32 {
        self.qp(qp).rq.as_ref().map_or(0, Producer::in_use)
    }

    /// `ibv_poll_cq(3)`: takes up to `max` completions; those of an earlier life of a queue pair are skipped.
    pub fn poll_cq(&mut self, cq: CqId, max: usize) -> Vec<Cqe> {
        let mut out = Vec::new();
        let words = &self.shared.words;
        self.cqs[cq.0].reader.poll_with(max, |cqe| {
            if words.load(cqe.qp_index).epoch() == cqe.epoch {
                out.push(*cqe);
            }
        });
        out
    }

    /// The sum of the shards' counters.
    pub fn counters(&self) -> CounterSnapshot {
        let mut sum = CounterSnapshot::default();
        for counters in &self.shared.counters {
            sum += counters.snapshot();
        }
        sum
    }

    /// One counter, summed over the shards.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters().get(counter)
    }

    /// Packets dropped for a reason, summed over the shards.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.counters().discarded(reason)
    }

    /// When a shard wants its next turn.
    pub fn next_deadline(&self) -> Option<Instant> {
        let living = self.shards.iter().zip(&self.dead).filter(|(_, dead)| !**dead);
        living.filter_map(|(shard, _)| shard.next_deadline()).min()
    }
}
