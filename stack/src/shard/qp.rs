//! A queue pair as its shard holds it: requester, completer and responder, their rings, and the path to the peer.

use std::sync::Arc;

use crate::id::{Mac, PdId, QpState, QpType, Qpn};
use crate::port::Route;
use crate::proto::address::{GSI_QKEY, UdAddress};
use crate::proto::attr::{QpAttr, QpCap};
use crate::proto::fault::Fault;
use crate::proto::recovery::RetryCause;
use crate::proto::requester::{Policies, Requester, RequesterConfig, SendRing};
use crate::proto::responder::{Responder, ResponderConfig};
use crate::proto::state::Gates;
use crate::proto::status::WcStatus;
use crate::proto::wqe::Granule;
use crate::sync::prefetch::LINE;
use crate::sync::spsc::Consumer;
use crate::time::Instant;
use crate::wire::{Discard, Flow, Packet, Template, Transport, udp_source_port};

use super::counters::QpCounters;
use super::cq::LaneId;
use super::deferred::list::DeferredReceives;
use super::held::Held;
use super::held_gid::HeldGid;
use super::identification::IpIdTracker;
use super::listed::Listed;
use super::peer_check::check::Check;
use super::peer_hosts::Peer;
#[cfg(not(loom))]
use super::qp_table::QpTable;
use super::rq::{RecvSource, Rq};
use super::segments::Segments;
use super::shared::Shared;
#[cfg(not(loom))]
use super::wheel::Wheel;

/// The parameters of a new queue pair, for [`Shard::create_qp`](super::Shard::create_qp).
#[derive(Debug)]
pub struct QpSpec {
    /// Slot in the shard, free.
    pub slot: u32,
    /// Number, from a block that this shard leases.
    pub qpn: Qpn,
    /// Service type.
    pub ty: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// The send queue's ring.
    pub sq: Consumer<Granule>,
    /// Where its receive requests come from.
    pub rq: RecvSource,
    /// Where send completions go.
    pub send_lane: LaneId,
    /// Where receive completions go; for an XRC target each shared receive queue names its own lane.
    pub recv_lane: LaneId,
    /// Capacities, as granted.
    pub cap: QpCap,
    /// Policies for loss recovery and congestion control.
    pub policies: Policies,
}

/// The send queue's ring, consumer side.
#[derive(Debug)]
pub(super) struct Sq(pub Consumer<Granule>);

impl SendRing for Sq {
    #[inline]
    fn published(&self) -> u32 {
        self.0.published()
    }
    #[inline(always)]
    fn slot(&self, seq: u32) -> &[Granule] {
        self.0.slot(seq)
    }
    #[inline(always)]
    fn contiguous(&self, seq: u32, max: u32) -> (&[Granule], usize) {
        (self.0.contiguous(seq, max), self.0.stride())
    }
}

/// The route of frames to a shard of this device. No port has a route with this number.
pub(super) const INSIDE: Route = Route(Route::COUNT as u8);

/// The next hop of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hop {
    /// The template holds the neighbour's Ethernet address. Frames leave by this route.
    Known(Route),
    /// A queue pair of this device: frames are looped back inside, to the shard with this number.
    Inside(u8),
    /// Not known: the next hop is being resolved.
    Pending,
}

impl Hop {
    /// The route whose backlog holds the frames.
    #[inline(always)]
    pub fn route(self) -> Route {
        match self {
            Self::Known(route) => route,
            Self::Inside(_) => INSIDE,
            Self::Pending => Route::default(),
        }
    }

    /// Whether frames leave by the port.
    #[inline(always)]
    pub fn is_outside(self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// Whether frames leave by the route that the port's window limits.
    pub fn is_bounded(self) -> bool {
        self.route() == Route::default()
    }

    /// Whether frames go to a queue pair of this device.
    #[inline(always)]
    pub fn is_inside(self) -> bool {
        matches!(self, Self::Inside(_))
    }
}

/// Where the UDP source port of a queue pair's packets comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourcePort {
    /// From the path, or 4791.
    Given,
    /// Taken from the port.
    Taken,
    /// Taken, and packets left from it. If nothing is answered for long, the queue pair falls back to 4791 (`Env::tries`).
    Tried,
    /// Taken, and either its packets were answered, or it is not in doubt.
    Answered,
    /// The queue pair fell back to 4791: no packet that left from the taken port was answered.
    FellBack,
}

impl SourcePort {
    /// Whether the queue pair must return the source port to the port.
    pub fn is_taken(self) -> bool {
        matches!(self, Self::Taken | Self::Tried | Self::Answered)
    }
}

/// A queue pair. The fields are grouped by cache line, by what uses them: see [`Part`].
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Qp {
    // Line 0: read for every packet and on every visit.
    pub gates: Gates,
    pub ty: QpType,
    /// Transport class of the opcodes of its packets. Requester and responder use the RC opcodes for every class.
    pub class: Transport,
    pub state: QpState,
    pub hop: Hop,
    /// Whether the queue pair is in the list of those with requests to send.
    pub in_ready: Listed,
    /// Whether the queue pair is in the list of those with answers to send.
    pub in_answering: Listed,
    /// Send requests have completed whose ring slots are freed when completions are published. The queue pair is then in the list
    /// of [`Completions`](super::completions::Completions).
    pub sends_finished: bool,
    /// As `sends_finished`, of receive requests. Each ring has a flag of its own, so that the other ring is not touched.
    pub receives_finished: bool,
    /// The queue pair is in the list of those whose requester a response of this burst advanced.
    pub in_answered: bool,
    /// The shard polls the send queue each turn: posters ring no doorbell.
    pub watched: bool,
    /// Packets take the slow path, one by one: the first packet, packets that come while others are [held](Self::has_held), and over some
    /// ports all packets ([`IpIdTracker`]).
    pub slow_path: bool,
    /// The peer is being checked; `check` holds the progress.
    pub checks_peer: bool,
    pub draining: bool,
    /// Consecutive doorbells, each soon after the one before.
    pub rings: u8,
    pub slot: u32,
    pub index: u32,
    pub epoch: u32,
    pub qpn: Qpn,
    pub pd: PdId,
    pub send_lane: LaneId,
    pub counters: Arc<QpCounters>,
    /// When the timer wheel wakes this queue pair; `FAR` if no timer is scheduled.
    pub wakes_at: Instant,
    /// When the shard last noticed a post.
    pub posted_at: Instant,

    // Lines 1 and 2: the requester's state, and what responses need.
    pub sq: Sq,
    pub requester: Requester,
    /// Sequence number in the send ring: all requests before it have been completed.
    pub sq_done: u32,
    /// A request packet of the last burst was long: the next packets are built in the port's own memory, if the port lends some. (Not
    /// the last packet alone: a storage target alternates between data and short responses.)
    pub last_burst_long: bool,
    /// Where the source port in the template comes from.
    pub source_port: SourcePort,

    line_3: LineStart,
    // Line 3: read for every packet sent, and the addresses for every packet received. The fields for IPv6 and VLAN tags follow it.
    pub template: Template,

    // Line 4: what few packets need. The template ends in this line, and the responder begins in it, with the state for READs and atomics.
    pub attr: Box<QpAttr>,

    // Lines 5 and 6: state for received messages.
    pub responder: Responder,
    pub rq: Rq,
    /// Receive completions that wait until their acknowledgement has left; mostly none.
    pub deferred: Option<Box<DeferredReceives>>,
    /// The protection domain of the receive buffers: with a shared receive queue it may differ from `pd`.
    pub recv_pd: PdId,
    pub recv_lane: LaneId,
    /// Packets are held behind a gap, in `held_requests` or `held_responses`.
    pub has_held: bool,
    /// The last READ response was long: the next ones are built in the port's own memory, if the port lends some.
    pub long_answers: bool,

    // Line 7: what few packets need.
    /// Of a datagram queue pair: the destination that the template was made for.
    pub address: Option<Box<UdAddress>>,
    /// While the queue pair is watched: the ring's published index when the shard last polled it.
    pub sq_seen: u32,
    /// Sequence number behind the last unreliable work request whose frames have not left yet.
    pub leaving: u32,
    /// The index of the GID table entry that the queue pair holds.
    pub held_gid: Option<u8>,
    /// A packet from the peer was received (communication established).
    pub comm_est: bool,
    /// No user has a handle: a receive-only queue pair that belongs to an XRC domain. Its events go to the log.
    pub ownerless: bool,
    /// QP_FATAL was raised because a completion queue overran.
    pub overran: bool,
    /// The protocol violation of the peer that ended the queue pair, for the error completion.
    pub fault: Option<Fault>,
    /// The cause of the last retry.
    pub retried: Option<RetryCause>,
    /// The check of the peer, while `checks_peer` is set.
    pub check: Option<Box<Check>>,
    /// The IP identifications of the peer's packets, over a port that does not report them.
    pub ip_ids: Option<Box<IpIdTracker>>,
    /// Request packets that arrived before a missing one.
    pub held_requests: Option<Box<Held>>,
    /// Response packets that arrived before a missing one.
    pub held_responses: Option<Box<Held>>,
    /// The host of a connection's peer.
    pub peer: Peer,
    /// Payload sizes of packets over a link to a process of this host.
    pub segments: Segments,
}

// Under loom each atomic carries its history, so sizes differ.
#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Qp>() <= 512, "the state of a queue pair is eight cache lines");
    assert!(size_of::<Option<Qp>>() == size_of::<Qp>(), "a slot is no larger than what is in it");
    assert!(offset_of!(Qp, posted_at) < 64 && offset_of!(Qp, sq) == 64);
    assert!(offset_of!(Qp, last_burst_long) < 192 && offset_of!(Qp, template) == 192);
    assert!(offset_of!(Qp, responder) + Responder::MESSAGES == 320 && offset_of!(Qp, long_answers) < 448);
};

/// The hot state: the bytes of a queue pair's state that a message of one packet touches. At each end these are the lines of [`Qp`]
/// that its [`Part`] names, the first line of the counters and the entry in the queue pair table; at the sender also the timer and
/// the requester's record of the request. The rings are not counted, because they grow with their depth: a message touches a line
/// for each index, and its request.
#[cfg(not(loom))]
const _: () = {
    const FOUND: usize = QpTable::ENTRY;
    assert!(Part::Send.bytes() + LINE + FOUND + Wheel::ENTRY + Requester::REMEMBERED <= HOT_STATE_MAX);
    assert!(Part::Request.bytes() + LINE + FOUND <= HOT_STATE_MAX);
};
/// Upper bound of the hot state, in bytes.
#[cfg(not(loom))]
const HOT_STATE_MAX: usize = 348;

impl Qp {
    pub fn new(spec: QpSpec, index: u32, epoch: u32, shared: &Arc<Shared>) -> Self {
        let attr = QpAttr { cap: spec.cap, port_num: 1, ..QpAttr::default() };
        let first = spec.sq.released();
        let recv_pd = if let RecvSource::Shared(end) = &spec.rq { end.pd } else { spec.pd };
        let ownerless = matches!(spec.rq, RecvSource::Named { ownerless: true, .. });
        let mut requester = Requester::new(spec.sq.slots(), spec.policies);
        requester.reset(first);
        Self {
            gates: Gates::CLOSED,
            ty: spec.ty,
            class: match spec.ty {
                QpType::Rc => Transport::Rc,
                QpType::Uc => Transport::Uc,
                QpType::Ud | QpType::Gsi => Transport::Ud,
                QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
            },
            state: QpState::Reset,
            hop: Hop::Pending,
            in_ready: Listed::No,
            in_answering: Listed::No,
            sends_finished: false,
            receives_finished: false,
            in_answered: false,
            watched: false,
            slow_path: true,
            checks_peer: false,
            has_held: false,
            draining: false,
            slot: spec.slot,
            index,
            epoch,
            qpn: spec.qpn,
            pd: spec.pd,
            recv_pd,
            send_lane: spec.send_lane,
            recv_lane: spec.recv_lane,
            wakes_at: Instant::FAR,
            rings: 0,
            posted_at: Instant::ZERO,
            sq_seen: first,
            sq_done: first,
            last_burst_long: false,
            sq: Sq(spec.sq),
            rq: Rq::new(spec.rq, epoch, shared),
            requester,
            responder: Responder::new(),
            line_3: LineStart,
            template: Template::new(&Flow::default()),
            address: matches!(spec.ty, QpType::Ud | QpType::Gsi).then(Box::default),
            leaving: first,
            counters: Arc::new(QpCounters::default()),
            deferred: None,
            long_answers: false,
            comm_est: false,
            ownerless,
            overran: false,
            fault: None,
            retried: None,
            check: None,
            ip_ids: None,
            held_requests: None,
            held_responses: None,
            peer: Peer::default(),
            segments: Segments::default(),
            source_port: SourcePort::Given,
            held_gid: None,
            attr: Box::new(attr),
        }
    }

    /// Whether each work request names its destination (UD, GSI).
    #[inline]
    pub fn is_datagram(&self) -> bool {
        matches!(self.ty, QpType::Ud | QpType::Gsi)
    }

    /// Whether the next hop is known, so that frames can leave.
    #[inline]
    pub fn is_reachable(&self) -> bool {
        self.hop != Hop::Pending
    }

    /// Whether its packets are not acknowledged (UC, UD, GSI).
    #[inline]
    pub fn is_unreliable(&self) -> bool {
        matches!(self.ty, QpType::Uc | QpType::Ud | QpType::Gsi)
    }

    /// Its Q_Key; that of queue pair 1 is fixed.
    pub fn qkey(&self) -> u32 {
        if self.ty == QpType::Gsi { GSI_QKEY } else { self.attr.qkey }
    }

    pub fn requester_config(&self) -> RequesterConfig {
        let a = &self.attr;
        RequesterConfig {
            mtu: self.segments.sent().unwrap_or(self.path_mtu()),
            sq_psn: crate::id::Psn::new(a.sq_psn),
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
        }
    }

    pub fn responder_config(&self) -> ResponderConfig {
        ResponderConfig {
            mtu: self.segments.received().unwrap_or(self.path_mtu()),
            access: crate::mem::Access::from_bits_truncate(self.attr.qp_access_flags),
            min_rnr_timer: self.attr.min_rnr_timer,
        }
    }

    /// The path MTU that the program set.
    pub fn path_mtu(&self) -> crate::id::Mtu {
        crate::id::Mtu::from_enum(self.attr.path_mtu).unwrap_or(crate::id::Mtu::Mtu256)
    }

    /// Takes a reference to a source address, and releases the one before.
    pub fn hold_gid(&mut self, shared: &Shared, held: HeldGid<'_>) {
        self.release_gid(shared);
        self.held_gid = Some(held.keep().index());
    }

    /// Releases the source address.
    pub fn release_gid(&mut self, shared: &Shared) {
        if let Some(index) = self.held_gid.take() {
            shared.release_gid(index);
        }
    }

    /// Rebuilds the template and the next hop from the address vector.
    pub fn set_path(&mut self, shared: &Shared) {
        let Some(grh) = self.attr.ah_attr.grh else { return };
        let remote = Qpn::new(self.attr.dest_qp_num);
        self.counters.set_peer(Some((grh.dgid, remote)));
        let priority = u16::from(self.attr.ah_attr.sl & 7) << 13;
        let inside = shared.is_inside(&grh.dgid, remote);
        self.hop = if inside { Hop::Inside(shared.shard_of(remote) as u8) } else { Hop::Pending };
        self.template = Template::new(&Flow {
            src_mac: shared.mac,
            dst_mac: if inside { shared.mac } else { Mac::default() },
            vlan: shared.vlan.map(|vid| priority | vid),
            src: shared.gids.get(usize::from(grh.sgid_index)).unwrap_or_default(),
            dst: grh.dgid,
            traffic_class: grh.traffic_class,
            hop_limit: if grh.hop_limit == 0 { 64 } else { grh.hop_limit },
            flow_label: grh.flow_label,
            src_port: udp_source_port(grh.flow_label, self.qpn, remote),
            dqpn: remote,
            ..Flow::default()
        });
    }

    /// Checks that a packet carries the addresses of the connection.
    #[inline(always)]
    pub fn check_addresses(&self, pkt: &Packet<'_>) -> Result<(), Discard> {
        if !self.template.comes_from_destination_of(pkt) {
            return Err(Discard::NotOurAddress);
        }
        if !self.template.goes_to_source_of(pkt) {
            return Err(Discard::WrongPeer);
        }
        Ok(())
    }

    /// Credits to advertise to the peer: receive requests that it may use.
    #[inline]
    pub fn credits(&self) -> Option<u32> {
        self.rq.credits()
    }
}

/// A part of a queue pair's state that is about to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// To send requests: lines 0 to 3, the work requests, and the first bytes of their data.
    Send,
    /// To receive messages and acknowledge them: lines 0, 3, 5 and 6, the receive requests, and the places of their data.
    Request,
    /// To handle its timer: lines 0 to 2.
    Timer,
}

impl Part {
    /// The cache lines of a queue pair: ranges of line numbers, the ends excluded.
    #[inline(always)]
    pub const fn lines(self) -> [(usize, usize); 3] {
        match self {
            Self::Send => [(0, 4), (4, 4), (4, 4)],
            Self::Request => [(0, 1), (3, 4), (5, 7)],
            Self::Timer => [(0, 3), (3, 3), (3, 3)],
        }
    }
    /// Bytes in those lines.
    #[cfg(not(loom))]
    pub const fn bytes(self) -> usize {
        let [a, b, c] = self.lines();
        (a.1 - a.0 + b.1 - b.0 + c.1 - c.0) * LINE
    }
}

/// Zero-sized; the field that follows begins at a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct LineStart;

/// Why a queue pair entered ERR.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cause {
    /// Status of the oldest send request, if it is the reason.
    pub send: Option<WcStatus>,
    /// Status of the receive request in use, if it is the reason.
    pub recv: Option<WcStatus>,
}
