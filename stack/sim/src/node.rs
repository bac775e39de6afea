//! A simulated host: a device on a simulated port, with simulated time, and the memory and verbs objects of one program on it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::memory::Region;
use super::port::{PortPanicked, SimPort, SimWire};
use super::rng::Rng;
use stack::device::{
    Clock, CqCore, CqInit, Device, DeviceConfig, DeviceError, Drive, MrCore, MwCore, PdCore, PeerCheck,
    Policies, QpCore, QpInit, RelayedTarget, SrqAttr, SrqCore, XrcSrqInit, XrcdCore, XrcdInitAttr,
};
use stack::id::{Gid, Mac, Mtu, PdId, QpState, QpType, Qpn};
use stack::mem::{Access, Bind, KeyFault, MwType, Sge, inc_rkey, sge};
use stack::net::NetConfig;
use stack::port::Port;
use stack::proto::address::{Source, UD_ADDR_GRANULES, UdAddress};
use stack::proto::attr::{AhAttr, AttrMask, GlobalRoute, QpAttr, QpCap};
use stack::proto::state::{ModifyError, QP_ACCESS_FLAGS, required};
use stack::proto::status::{AsyncEvent, SendFlags, WrOpcode};
use stack::proto::wqe::{Cqe, RecvWqe, SendWqe, XRC_ADDR_GRANULES, put_sges, put_srqn};
use stack::shard::counters::{Counter, CounterSnapshot};
use stack::shard::{EventElement, Shard, Shared, Turn};
use stack::time::Instant;
use stack::wire::Discard;

/// The Q_Key of every datagram queue pair.
pub const QKEY: u32 = 0x1122;

/// `EINVAL`: the request or the state is wrong.
pub const EINVAL: i32 = 22;
/// `ENOMEM`: the queue is full.
pub const ENOMEM: i32 = 12;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Index of the node. Its addresses are derived from it.
    pub index: u8,
    /// Number of shards, 1 to 4.
    pub shards: usize,
    /// Largest path MTU of the port.
    pub mtu: Mtu,
    /// Whether it has an IPv6 address instead of an IPv4 one.
    pub ipv6: bool,
    /// VLAN identifier of the port; `None`: untagged.
    pub vlan: Option<u16>,
    /// Frame buffers of each port queue.
    pub buffers: usize,
    /// The most bytes that reliable queue pairs may have in flight together; `None`: the port sets no limit.
    pub window: Option<usize>,
    /// Queue pairs each shard can hold.
    pub qps_per_shard: usize,
    /// Whether the port detects that its frames wait for a peer that has stopped, as a memif port does.
    pub sees_stalls: bool,
    /// Whether each flow has a UDP source port of its own, as on a port over sockets.
    pub own_source_ports: bool,
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
            window: None,
            qps_per_shard: 16,
            sees_stalls: false,
            own_source_ports: false,
        }
    }
}

/// Configuration of a queue pair and of its connection.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Service type: RC, UC, UD, GSI, or either end of XRC.
    pub ty: QpType,
    /// Depth of the send queue, a power of two.
    pub send_depth: u32,
    /// Depth of the receive queue, a power of two.
    pub recv_depth: u32,
    /// The most scatter/gather elements of a send or receive request.
    pub sges: u32,
    /// The most inline bytes of a send request.
    pub inline: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// ACK timeout: 4.096 us times 2 to this power.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code in RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: u8,
    /// Access rights of the peer.
    pub access: Access,
    /// First PSN sent.
    pub sq_psn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// Whether every send request is signalled.
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

/// A queue pair of a node: its index in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct QpId(pub usize);

/// A completion queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CqId(pub usize);

/// A memory region of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MrId(pub usize);

/// An XRC shared receive queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SrqId(pub usize);

/// A send work request, as `struct ibv_send_wr`.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The program's identifier, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: WrOpcode,
    /// Flags: signalled, solicited, fenced.
    pub flags: SendFlags,
    /// The local buffers. Not used with `inline`.
    pub sges: Vec<Sge>,
    /// The data itself, copied when the request is posted.
    pub inline: Option<Vec<u8>>,
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate data, in network byte order.
    pub imm: [u8; 4],
    /// The key that a SEND with invalidate names.
    pub inv: u32,
    /// Compare operand of COMPARE&SWAP, addend of FETCH&ADD; first operand of a FLUSH, bind or registration.
    pub compare_add: u64,
    /// Swap operand of COMPARE&SWAP; second operand of a FLUSH, bind or registration.
    pub swap: u64,
    /// Destination of a datagram.
    pub address: Option<UdAddress>,
    /// Number of the peer's shared receive queue; used on an XRC initiator.
    pub srqn: u32,
}

impl SendWr {
    /// A signalled request of `opcode`, with all other fields zero or empty.
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
    /// A BIND_MW request: binds the memory window with key `window` to `len` bytes at `addr` of the region with key `region`.
    pub fn bind(wr_id: u64, window: u32, region: u32, (addr, len): (u64, u64), access: Access) -> Self {
        let rights = u64::from(access.bits()) << 32;
        Self::new(wr_id, WrOpcode::BindMw).remote(addr, window).operands(rights | u64::from(region), len)
    }
    /// Sets the local buffers.
    #[must_use]
    pub fn sges(mut self, sges: &[Sge]) -> Self {
        self.sges = sges.to_vec();
        self
    }
    /// Sets the inline data.
    #[must_use]
    pub fn inline(mut self, data: &[u8]) -> Self {
        self.inline = Some(data.to_vec());
        self
    }
    /// Sets the remote buffer.
    #[must_use]
    pub fn remote(mut self, addr: u64, rkey: u32) -> Self {
        (self.remote_addr, self.rkey) = (addr, rkey);
        self
    }
    /// Sets the immediate data.
    #[must_use]
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.imm = imm;
        self
    }
    /// Sets the operands of an atomic: compare operand or addend, and swap operand.
    #[must_use]
    pub fn operands(mut self, compare_add: u64, swap: u64) -> Self {
        (self.compare_add, self.swap) = (compare_add, swap);
        self
    }
    /// Makes the request unsignalled.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }
    /// Adds flags.
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

/// A queue pair of a node.
#[derive(Debug)]
pub struct SimQp {
    /// Its queue pair number.
    pub qpn: Qpn,
    /// Index of its shard.
    pub shard: usize,
    /// The completion queue of its send queue.
    pub send_cq: CqId,
    /// The completion queue of its receive queue.
    pub recv_cq: CqId,
    /// Its configuration; [`Node::configure`] changes it.
    pub config: QpConfig,
    core: Arc<QpCore>,
}

impl SimQp {
    /// Its slot in the shard's table of queue pairs.
    pub fn slot(&self) -> u32 {
        self.core.slot()
    }
}

/// A host with one device, and the objects of one program.
pub struct Node {
    /// Its configuration.
    pub config: NodeConfig,
    /// Ethernet address.
    pub mac: Mac,
    /// IP address.
    pub gid: Gid,
    /// State that the device's shards share.
    pub shared: Arc<Shared>,
    /// The world's ends of the port's queues.
    pub wires: Vec<SimWire>,
    /// The device's time in nanoseconds.
    clock: Arc<AtomicU64>,
    // Fields are dropped in this order: objects before those that they depend on, and the memory last.
    qps: Vec<Option<SimQp>>,
    srqs: Vec<Option<Arc<SrqCore>>>,
    cqs: Vec<Option<Arc<CqCore>>>,
    mrs: Vec<MrCore>,
    windows: Vec<MwCore>,
    xrcd: Arc<XrcdCore>,
    /// The domain at index `n` has number `n + 1`.
    pds: Vec<Arc<PdCore>>,
    device: Arc<Device>,
    regions: Vec<Region>,
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").field("index", &self.config.index).field("qps", &self.qps.len()).finish()
    }
}

/// Index of the configured address in the GID table; index 0 is the link-local one.
pub(super) const SGID_INDEX: u8 = 1;
/// The protection domain of regions and queue pairs, unless a test chooses another.
pub const PD: PdId = PdId(1);

/// The most scatter/gather elements of a request in a shared receive queue.
const SRQ_SGES: usize = 4;

/// Configuration of the IP host of node `index`.
pub fn net_config(index: u8, ipv6: bool) -> NetConfig {
    let addr = if ipv6 {
        (core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(index) + 1).into(), 64)
    } else {
        (core::net::Ipv4Addr::new(10, 0, 0, index + 1).into(), 24)
    };
    NetConfig { addrs: vec![addr], ..NetConfig::new(Mac([2, 0, 0, 0, 0, index + 1])) }
}

impl Node {
    /// A node whose time is `now`. `rng` replaces the operating system's randomness.
    pub fn new(config: NodeConfig, now: Instant, mut rng: Rng) -> Self {
        assert!((1..=4).contains(&config.shards), "a node has 1 to 4 shards");
        // Odd nodes run code that only some ports and shards need: a port that lends memory in which frames are built, and the
        // prefetching of shards with very many queue pairs.
        let special = config.index % 2 == 1;
        let net = net_config(config.index, config.ipv6);
        let (port, wires) = SimPort::new(net.mac, config.mtu, config.shards, config.buffers, special);
        let port: Box<dyn Port> =
            Box::new(port.with_window(config.window).like_sockets(config.own_source_ports));
        let shards = config.shards;
        let node = Self::open(config, DeviceConfig::new(port).addrs(net.addrs), wires, now, &mut rng);
        for shard in (0..shards).filter(|_| special) {
            node.device.with_shard(shard, |shard| shard.prefetch_from(0));
        }
        node
    }

    /// A process of a host, whose addresses are those of this port. The second one counts as the node's.
    pub fn on_host(config: NodeConfig, port: Box<dyn Port>, now: Instant, mut rng: Rng) -> Self {
        Self::open(config, DeviceConfig::new(port), Vec::new(), now, &mut rng)
    }

    fn open(
        config: NodeConfig,
        device: DeviceConfig,
        wires: Vec<SimWire>,
        now: Instant,
        rng: &mut Rng,
    ) -> Self {
        let clock = Arc::new(AtomicU64::new(now.as_nanos()));
        let device = Device::open(
            device
                .vlan(config.vlan)
                .shards(config.shards)
                .drive(Drive::Embedded)
                .seed(rng.next())
                .clock(Clock::Manual(clock.clone()))
                .qps_per_shard(config.qps_per_shard),
        )
        .expect("the configuration is good");
        let xrcd = device.open_xrcd(&XrcdInitAttr::anonymous()).expect("a new domain");
        let shared = device.shared().clone();
        let mut node = Self {
            config,
            mac: shared.mac,
            gid: device.gids()[usize::from(SGID_INDEX)],
            shared,
            wires,
            clock,
            qps: Vec::new(),
            srqs: Vec::new(),
            cqs: Vec::new(),
            mrs: Vec::new(),
            windows: Vec::new(),
            xrcd,
            pds: Vec::new(),
            device,
            regions: Vec::new(),
        };
        node.pd(PD);
        node
    }

    /// Sets the device's time.
    fn at(&self, now: Instant) {
        self.clock.store(now.as_nanos(), Ordering::Release);
    }

    /// Makes one turn of a shard. Does nothing if the shard has died.
    pub fn turn(&mut self, shard: usize, now: Instant) -> Turn {
        self.at(now);
        match catch_unwind(AssertUnwindSafe(|| self.device.turn(shard))) {
            Ok(turn) => turn.unwrap_or_default(),
            Err(panic) if panic.is::<PortPanicked>() => Turn::default(),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Whether a shard has died.
    pub fn is_dead(&self, shard: usize) -> bool {
        self.device.may_turn(shard).is_err()
    }

    /// Calls `look` with a shard, between two turns.
    ///
    /// # Panics
    /// If it has died.
    pub fn shard<R>(&self, shard: usize, look: impl FnOnce(&mut Shard) -> R) -> R {
        self.device.with_shard(shard, look).expect("the shard lives")
    }

    /// Calls `look` with every shard that lives.
    pub fn shards<R>(&self, look: impl Fn(&mut Shard) -> R) -> impl Iterator<Item = R> {
        (0..self.config.shards).filter_map(move |shard| self.device.with_shard(shard, &look))
    }

    /// The protection domain with this number. Allocates domains in order until it exists.
    fn pd(&mut self, pd: PdId) -> Arc<PdCore> {
        while self.pds.len() < pd.0 as usize {
            self.pds.push(self.device.alloc_pd().expect("there are fewer than the most"));
        }
        self.pds[pd.0 as usize - 1].clone()
    }

    /// Allocates `len` bytes and registers them in [`PD`].
    pub fn register(&mut self, len: usize, access: Access) -> MrId {
        self.register_in(PD, len, access)
    }

    /// Allocates `len` bytes and registers them in a protection domain.
    pub fn register_in(&mut self, pd: PdId, len: usize, access: Access) -> MrId {
        let mut region = Region::new(len);
        region.access = access;
        let mr = self.pd(pd).reg_mr(region.memory(), access).expect("the access flags go together");
        self.keep(region, mr)
    }

    /// Stores a memory region and its memory.
    fn keep(&mut self, mut region: Region, mr: MrCore) -> MrId {
        region.key = mr.key();
        self.regions.push(region);
        self.mrs.push(mr);
        MrId(self.regions.len() - 1)
    }

    /// Allocates `len` bytes and a region for fast registration (`ibv_alloc_mr`), in which nothing is registered yet.
    pub fn alloc_fast(&mut self, len: usize) -> MrId {
        let region = Region::new(len);
        let mr = self.pd(PD).alloc_mr(region.memory()).expect("a slot is free");
        self.keep(region, mr)
    }

    /// Allocates `len` bytes and registers them as a REG_MR request does, but without a queue pair.
    pub fn register_fast(&mut self, len: usize, access: Access) -> MrId {
        let mr = self.alloc_fast(len);
        let region = &mut self.regions[mr.0];
        region.access = access;
        let registered =
            self.shared.mrs.fast_register(region.key, PD, region.addr(), region.len() as u64, access);
        registered.expect("the access flags go together");
        mr
    }

    /// Registers a region for fast registration again under its next key, after its key was invalidated.
    pub fn register_fast_again(&mut self, mr: MrId) {
        let region = &mut self.regions[mr.0];
        region.key = inc_rkey(region.key);
        let (key, addr, len) = (region.key, region.addr(), region.len() as u64);
        let registered = self.shared.mrs.fast_register(key, PD, addr, len, region.access);
        registered.expect("the access flags go together");
    }

    /// Allocates a memory window, which is not bound yet. Returns its key.
    pub fn alloc_window(&mut self, ty: MwType) -> u32 {
        let window = self.pd(PD).alloc_mw(ty).expect("a slot is free");
        let key = window.rkey();
        self.windows.push(window);
        key
    }

    /// Deallocates a memory window, whether bound or not. A new window may reuse its slot.
    pub fn dealloc_window(&mut self, key: u32) {
        // The program chooses the low 8 bits of a key.
        let found = self.windows.iter().position(|window| window.rkey() >> 8 == key >> 8);
        let window = self.windows.swap_remove(found.expect("the window is there"));
        window.dealloc().expect("no turn is under way");
    }

    /// Binds a type 2 window as a BIND_MW request on queue pair `qpn` does, but without that queue pair.
    pub fn bind_without_qp(&self, window: u32, qpn: Qpn, mr: MrId) {
        let region = self.mr(mr);
        let (addr, len) = (region.addr(), region.len() as u64);
        let bind = Bind { window, qpn, pd: PD, region: region.key, addr, len, access: Access::REMOTE_READ };
        self.shared.mrs.bind(&bind).expect("the window can be bound");
    }

    /// Deregisters a region. Its memory stays readable through [`Node::mr`].
    pub fn deregister(&mut self, mr: MrId) {
        self.try_deregister(mr).expect("the region is registered, and no window is bound to it");
    }

    /// Deregisters a region.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while windows are bound to it.
    pub fn try_deregister(&mut self, mr: MrId) -> Result<(), DeviceError> {
        self.mrs[mr.0].dereg()
    }

    /// Registers a deregistered region again, under a new key, with the same access rights.
    pub fn register_again(&mut self, mr: MrId) {
        let (memory, access) = (self.regions[mr.0].memory(), self.regions[mr.0].access);
        let again = self.pd(PD).reg_mr(memory, access).expect("the access flags go together");
        self.regions[mr.0].key = again.key();
        self.mrs[mr.0] = again;
    }

    /// Whether a key, of a region or a window, is valid.
    pub fn key_lives(&self, key: u32) -> bool {
        let nobody = Qpn::new(0);
        self.shared.mrs.check_remote(key, PD, nobody, Access::empty(), 0, 0) != Err(KeyFault::UnknownKey)
    }

    /// Changes the configuration for the next connection of a queue pair. Its queues keep their sizes.
    pub fn configure(&mut self, qp: QpId, config: QpConfig) {
        self.qp_mut(qp).config = config;
    }

    /// A region by its index.
    pub fn mr(&self, mr: MrId) -> &Region {
        &self.regions[mr.0]
    }

    /// All regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Creates a completion queue of `cqe` entries, which every shard can use.
    pub fn create_cq(&mut self, cqe: u32) -> CqId {
        let init = CqInit { cqe, channel: None, context: 0, parent: None };
        self.cqs.push(Some(self.device.create_cq(&init).expect("the size is good")));
        CqId(self.cqs.len() - 1)
    }

    fn cq(&self, cq: CqId) -> &Arc<CqCore> {
        self.cqs[cq.0].as_ref().expect("the completion queue is there")
    }

    /// Whether a completion queue has overrun, and all completions before the lost one can be polled. The asynchronous event may come
    /// earlier, because completions are published after the answers of their turn.
    pub fn cq_failed(&self, cq: CqId) -> bool {
        self.cq(cq).state().failed()
    }

    /// Destroys a completion queue, which no queue pair may use any more.
    pub fn destroy_cq(&mut self, cq: CqId) {
        let cq = self.cqs[cq.0].take().expect("the completion queue is there");
        CqCore::destroy(cq).expect("nothing uses the completion queue");
    }

    /// Takes and acknowledges all asynchronous events.
    pub fn events(&self) -> Vec<(AsyncEvent, EventElement)> {
        let next = || self.device.try_event().inspect(|event| self.device.ack_event(event));
        core::iter::from_fn(next).map(|event| (event.event, event.element)).collect()
    }

    /// How asynchronous events name a completion queue.
    pub fn cq_element(&self, cq: CqId) -> EventElement {
        EventElement::Cq(self.cq(cq).state().number())
    }

    /// Creates an XRC shared receive queue of `depth` entries, whose requests complete in `cq`.
    pub fn create_srq(&mut self, depth: u32, cq: CqId) -> SrqId {
        self.create_srq_as(None, depth, cq)
    }

    /// Same as [`Node::create_srq`], with the shared receive queue number `number` if given.
    pub fn create_srq_as(&mut self, number: Option<u32>, depth: u32, cq: CqId) -> SrqId {
        let attr = SrqAttr { max_wr: depth, max_sge: SRQ_SGES as u32, srq_limit: 0 };
        let (xrcd, cq) = (self.xrcd.clone(), self.cq(cq).clone());
        let xrc = XrcSrqInit { xrcd: &xrcd, cq: &cq, number };
        let srq = self.pd(PD).create_srq(&attr, Some(xrc)).expect("the sizes are good");
        self.srqs.push(Some(srq));
        SrqId(self.srqs.len() - 1)
    }

    fn srq(&self, srq: SrqId) -> &Arc<SrqCore> {
        self.srqs[srq.0].as_ref().expect("the shared receive queue is there")
    }

    /// Destroys a shared receive queue with its entries.
    pub fn destroy_srq(&mut self, srq: SrqId) {
        let srq = self.srqs[srq.0].take().expect("the shared receive queue is there");
        SrqCore::destroy(srq).expect("no event of it is left");
    }

    /// Number of a shared receive queue, by which XRC senders name it.
    pub fn srqn(&self, srq: SrqId) -> u32 {
        self.srq(srq).number()
    }

    /// Number of receive requests in a shared receive queue.
    pub fn srq_waiting(&self, srq: SrqId) -> u32 {
        self.srq(srq).poster().expect("no call of the node is under way").waiting()
    }

    /// Posts to a shared receive queue (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// `ENOMEM` if it is full, `EINVAL` for a list that is too long.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        if sges.len() > SRQ_SGES {
            return Err(EINVAL);
        }
        // Requests of a shared receive queue belong to no queue pair's epoch.
        let wqe = RecvWqe { wr_id, epoch: 0, num_sge: sges.len() as u32 };
        let mut poster = self.srq(srq).poster().expect("no call of the node is under way");
        let mut batch = poster.begin();
        batch.put(|entry| put_sges(wqe.put(entry), sges)).map_err(|_| ENOMEM)?;
        batch.post();
        Ok(())
    }

    /// Creates a queue pair in RESET on a shard.
    pub fn create_qp(&mut self, shard: usize, config: QpConfig, send_cq: CqId, recv_cq: CqId) -> QpId {
        self.create_qp_as(None, shard, config, send_cq, recv_cq)
    }

    /// Same as [`Node::create_qp`], with the number of a destroyed queue pair of that shard, even while the number is still held back.
    pub fn create_qp_as(
        &mut self,
        number: Option<Qpn>,
        shard: usize,
        config: QpConfig,
        send_cq: CqId,
        recv_cq: CqId,
    ) -> QpId {
        let (of_sends, of_receives) = (self.cq(send_cq).clone(), self.cq(recv_cq).clone());
        let init = QpInit {
            qp_type: config.ty,
            send_cq: Some(&of_sends),
            recv_cq: (config.ty != QpType::XrcIni).then_some(&of_receives),
            srq: None,
            cap: QpCap {
                max_send_wr: config.send_depth,
                max_recv_wr: config.recv_depth,
                max_send_sge: config.sges,
                max_recv_sge: config.sges,
                max_inline_data: config.inline,
            },
            sq_sig_all: config.sq_sig_all,
            shard: Some(shard),
            block_self_mcast_lb: false,
            number,
            policies: Policies::default(),
        };
        let made = match config.ty {
            QpType::XrcTgt => self.xrcd.create_qp(Some(shard), number),
            _ => self.pd(PD).create_qp(&init),
        };
        let core = made.expect("the shard has room");
        let qpn = core.qpn();
        self.qps.push(Some(SimQp { qpn, shard, send_cq, recv_cq, config, core }));
        QpId(self.qps.len() - 1)
    }

    /// Creates an XRC target in RESET that passes its requests on to other nodes ([`RelayedTarget`]).
    pub fn create_relayed(&mut self, config: QpConfig, cq: CqId) -> (QpId, RelayedTarget) {
        let (pd, of_legs) = (self.pd(PD), self.cq(cq).clone());
        let relayed = self.xrcd.create_relayed(&pd, &of_legs).expect("the shard has room");
        (self.keep_qp(config, cq, relayed.qp().clone()), relayed)
    }

    /// Creates the shadow of the relayed target `target` of another node, in RTR. `attr` has the attributes for RTR.
    pub fn create_shadow(
        &mut self,
        now: Instant,
        config: QpConfig,
        cq: CqId,
        target: Qpn,
        attr: &QpAttr,
    ) -> QpId {
        self.at(now);
        let mut attr = *attr;
        attr.ah_attr.grh.iter_mut().for_each(|grh| grh.sgid_index = SGID_INDEX);
        let shadow = self.xrcd.create_shadow(target, &attr).expect("the shard has room");
        self.keep_qp(config, cq, shadow)
    }

    /// Stores a queue pair.
    fn keep_qp(&mut self, config: QpConfig, cq: CqId, core: Arc<QpCore>) -> QpId {
        let (qpn, shard) = (core.qpn(), core.shard());
        self.qps.push(Some(SimQp { qpn, shard, send_cq: cq, recv_cq: cq, config, core }));
        QpId(self.qps.len() - 1)
    }

    /// Sets which member gets the requests of relayed targets that name shared receive queue `number`; `None`: no member.
    pub fn set_srq_member(&self, number: u32, member: Option<u32>) {
        self.xrcd.set_srq_member(number, member).expect("the shards live");
    }

    /// A queue pair by its index.
    ///
    /// # Panics
    /// If it was destroyed.
    pub fn qp(&self, qp: QpId) -> &SimQp {
        self.qps[qp.0].as_ref().expect("the queue pair is there")
    }

    fn qp_mut(&mut self, qp: QpId) -> &mut SimQp {
        self.qps[qp.0].as_mut().expect("the queue pair is there")
    }

    /// Modifies a queue pair, as `ibv_modify_qp(3)`.
    pub fn modify(
        &mut self,
        now: Instant,
        qp: QpId,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        self.at(now);
        self.qp(qp).core.modify(attr, mask).map_err(|error| match error {
            DeviceError::Modify(refused) => refused,
            other => panic!("{other}"),
        })
    }

    /// Changes only the state of a queue pair.
    pub fn modify_state(&mut self, now: Instant, qp: QpId, to: QpState) -> Result<(), ModifyError> {
        self.modify(now, qp, &QpAttr { qp_state: to, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// Takes the queue pairs whose peer was a process of this host that has ended.
    pub fn take_ended_peers(&self) -> Vec<Qpn> {
        self.device.take_ended_peers()
    }

    /// Starts a check whether the peer of a queue pair still has its queue pair.
    pub fn check_peer(&mut self, now: Instant, qp: QpId) -> PeerCheck {
        self.at(now);
        self.device.check_peer(self.qp(qp).qpn).expect("the shard lives")
    }

    /// Attributes of a queue pair, as `ibv_query_qp(3)`.
    pub fn query(&mut self, qp: QpId) -> QpAttr {
        self.qp(qp).core.query().expect("the shard lives")
    }

    /// The state of a queue pair that pollers and posters see.
    pub fn state(&self, qp: QpId) -> QpState {
        self.qp(qp).core.state()
    }

    /// Destroys a queue pair.
    pub fn destroy(&mut self, qp: QpId) {
        let gone = self.qps[qp.0].take().expect("the queue pair is there");
        QpCore::destroy(gone.core).expect("nothing uses the queue pair");
    }

    /// The source address of its datagrams.
    pub fn source(&self) -> Source {
        self.shared.gids.source(usize::from(SGID_INDEX)).expect("a node keeps its addresses")
    }

    /// All attributes to connect a queue pair to a peer, from the queue pair's configuration.
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
            qkey: QKEY,
            ..QpAttr::default()
        }
    }

    /// Mask of the attributes that the queue pair's type requires for a transition.
    fn required_mask(&self, qp: QpId, from: QpState, to: QpState) -> AttrMask {
        required(from, to, self.qp(qp).config.ty)
    }

    /// Brings a queue pair from RESET to INIT.
    pub fn to_init(&mut self, now: Instant, qp: QpId) {
        let attr = QpAttr { qp_state: QpState::Init, ..self.attr_to(qp, Gid::default(), Qpn::default()) };
        let mask = self.required_mask(qp, QpState::Reset, QpState::Init);
        self.modify(now, qp, &attr, mask).expect("RESET to INIT");
    }

    /// Brings a queue pair from INIT to RTR, connected to queue pair `dest` of `peer`.
    pub fn to_rtr(&mut self, now: Instant, qp: QpId, peer: Gid, dest: Qpn) {
        let attr = QpAttr { qp_state: QpState::Rtr, ..self.attr_to(qp, peer, dest) };
        let mask = self.required_mask(qp, QpState::Init, QpState::Rtr);
        self.modify(now, qp, &attr, mask).expect("INIT to RTR");
    }

    /// Brings a queue pair from RTR to RTS.
    pub fn to_rts(&mut self, now: Instant, qp: QpId) {
        let attr = QpAttr { qp_state: QpState::Rts, ..self.attr_to(qp, Gid::default(), Qpn::default()) };
        let mask = self.required_mask(qp, QpState::Rtr, QpState::Rts);
        self.modify(now, qp, &attr, mask).expect("RTR to RTS");
    }

    /// Posts a send request as `verbs` does: checks it, encodes it in place, publishes it and rings the doorbell.
    ///
    /// # Errors
    /// `EINVAL` if the queue pair's state does not allow posting or the request is invalid, `ENOMEM` if the queue is full.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr) -> Result<(), i32> {
        let q = self.qp(qp);
        let mut sq = q.core.sq().lock().map_err(|_| EINVAL)?;
        let mut batch = sq.begin().map_err(|_| EINVAL)?;
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
        let mut flags = wr.flags;
        flags.set(SendFlags::INLINE, wr.inline.is_some());
        let mut wqe = SendWqe::new(wr.wr_id, wr.opcode, flags);
        wqe.remote_addr = wr.remote_addr;
        wqe.rkey = wr.rkey;
        wqe.length = length as u32;
        wqe.num_sge = if wr.inline.is_some() { 0 } else { wr.sges.len() as u8 };
        match wr.opcode {
            WrOpcode::SendWithInv => wqe.arg0 = u64::from(wr.inv),
            WrOpcode::Flush | WrOpcode::BindMw | WrOpcode::RegMr => {
                (wqe.arg0, wqe.arg1) = (wr.compare_add, wr.swap);
            }
            _ if atomic => (wqe.arg0, wqe.arg1) = (wr.compare_add, wr.swap),
            _ => wqe.arg0 = u32::from_ne_bytes(wr.imm).into(),
        }
        if q.config.sq_sig_all {
            wqe = wqe.with_flags(SendFlags::SIGNALED);
        }
        let xrc = q.config.ty == QpType::XrcIni;
        wqe.addr_granules = match wr.address {
            Some(_) => UD_ADDR_GRANULES as u8,
            None if xrc => XRC_ADDR_GRANULES as u8,
            None => 0,
        };
        let put = batch.put(|slot, epoch| {
            wqe.epoch = epoch;
            let body = wqe.put(slot);
            let body = wr.address.iter().fold(body, |body, address| address.put(body));
            let body = if xrc { put_srqn(body, wr.srqn) } else { body };
            match &wr.inline {
                Some(data) => body[..data.len()].copy_from_slice(data),
                None => put_sges(body, &wr.sges),
            }
        });
        put.map_err(|_| ENOMEM)?;
        batch.post();
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Those of [`Node::post_send`].
    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        let q = self.qp(qp);
        let mut rq = q.core.rq().lock().map_err(|_| EINVAL)?;
        let mut batch = rq.begin().map_err(|_| EINVAL)?;
        if sges.len() > q.config.sges as usize {
            return Err(EINVAL);
        }
        let num_sge = sges.len() as u32;
        let put = batch.put(|slot, epoch| put_sges(RecvWqe { wr_id, epoch, num_sge }.put(slot), sges));
        put.map_err(|_| ENOMEM)?;
        batch.post();
        Ok(())
    }

    /// Send requests that are posted and that the shard has not released yet.
    pub fn sends_in_use(&self, qp: QpId) -> u32 {
        self.qp(qp).core.sq().lock().map_or(0, |sq| sq.in_use())
    }

    /// Receive requests that are posted and that the shard has not released yet.
    pub fn receives_in_use(&self, qp: QpId) -> u32 {
        self.qp(qp).core.rq().lock().map_or(0, |rq| rq.in_use())
    }

    /// Takes up to `max` completions, as `ibv_poll_cq(3)`. Skips completions from before the last RESET of their queue pair.
    pub fn poll_cq(&mut self, cq: CqId, max: usize) -> Vec<Cqe> {
        let mut out = Vec::new();
        let cq = self.cq(cq);
        let mut tap = cq.tap().lock().expect("the node reads it");
        cq.poll_with(&mut tap, max, |cqe| out.push(*cqe));
        out
    }

    /// The sum of the shards' counters.
    pub fn counters(&self) -> CounterSnapshot {
        self.device.counters()
    }

    /// One counter, summed over the shards.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters().get(counter)
    }

    /// Packets dropped for a reason, summed over the shards.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.counters().discarded(reason)
    }

    /// The earliest time at which a shard needs a turn; `None` if none does.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shards(|shard| shard.next_deadline()).flatten().min()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A device that closes waits a while until its last frames are sent, so this lets the wires take them at once.
        for wire in &self.wires {
            wire.limit_tx(None);
            wire.starve(false);
        }
    }
}
