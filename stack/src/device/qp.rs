//! Queue pairs: two rings to post into, and a place on a shard.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use super::Device;
use super::claim::not_inside_turn;
use super::cq::CqCore;
use super::error::DeviceError;
use super::pd::PdCore;
use super::srq::SrqCore;
use super::stats::QpEntry;
use super::td::TdCore;
use super::xrcd::XrcdCore;
use crate::config::{INLINE_MAX, QUEUE_DEPTH_MAX, SGE_MAX, SHARDS_MAX};
use crate::id::{PdId, Psn, QpState, QpType, Qpn};
use crate::proto::address::UD_EXT;
use crate::proto::attr::{AttrMask, QpAttr, QpCap};
use crate::proto::requester::Policies;
use crate::proto::state::Gates;
use crate::proto::tables::ack_timeout;
use crate::proto::wqe::{Granule, XRC_EXT, recv_stride, send_stride};
use crate::shard::counters::{CounterSnapshot, QpCounters};
use crate::shard::{EventElement, LaneId, QpSpec, RecvSource};
use crate::sync::asymmetric;
use crate::sync::doorbell::Doorbells;
use crate::sync::exclusive::Exclusive;
use crate::sync::spsc::{self, Producer};
use crate::sync::words::Word;

/// The shortest rest of a queue pair's number, for peers with longer timeouts than ours.
const REST_MIN: Duration = Duration::from_secs(1);
/// The longest rest: a peer's REQ chooses timeout and retries, and so the rest. CM waits for a peer no longer than this either.
const REST_MAX: Duration = Duration::from_secs(70);

/// Draws of a number for a queue pair before creation fails. A drawn number may still belong to a connection in TIMEWAIT; the
/// chance is the share of such numbers in the block, a half at most.
const NUMBER_TRIES: usize = 64;

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Service type.
    pub qp_type: QpType,
    /// The completion queue of send requests; an XRC target has none.
    pub send_cq: Option<&'a Arc<CqCore>>,
    /// The completion queue of receive requests; an XRC queue pair has none.
    pub recv_cq: Option<&'a Arc<CqCore>>,
    /// The shared receive queue that it takes from instead of a queue of its own.
    pub srq: Option<&'a Arc<SrqCore>>,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Every send request makes a completion.
    pub sq_sig_all: bool,
    /// The shard; where absent, that of its thread domain, or the least loaded one.
    pub shard: Option<usize>,
    /// It gets no copy of what it sends to a multicast group that it is attached to.
    pub block_self_mcast_lb: bool,
    /// A number that a queue pair of the same shard had before, which need not rest any longer; where absent, one drawn at random.
    pub number: Option<Qpn>,
    /// Loss recovery and congestion control, if it is reliable.
    pub policies: Policies,
}

impl QpInit<'_> {
    /// An XRC target: it has no queues of its own.
    pub(super) fn target(shard: Option<usize>, number: Option<Qpn>) -> Self {
        let cap = QpCap::default();
        Self {
            qp_type: QpType::XrcTgt,
            send_cq: None,
            recv_cq: None,
            srq: None,
            cap,
            sq_sig_all: false,
            shard,
            block_self_mcast_lb: false,
            number,
            policies: Policies::default(),
        }
    }
}

/// The owner of an XRC target.
#[derive(Debug)]
pub(super) enum TargetOf {
    /// A user, who made it through this open of the domain.
    Open(Arc<XrcdCore>),
    /// The domain with this number: the queue pair is receive-only, and has no handle.
    Domain(u32),
}

/// Whether a type of queue pair can be made of these parts.
fn suits(init: &QpInit<'_>, target: Option<&TargetOf>) -> Result<(), DeviceError> {
    let wrong = match (init.qp_type, init.srq, target) {
        (QpType::XrcTgt, _, None) => {
            "an XRC target is made on an XRC domain (open_xrcd), not on a protection domain"
        }
        (QpType::XrcIni, Some(_), _) => {
            "an XRC initiator receives nothing, and takes no shared receive queue"
        }
        (_, Some(srq), _) if srq.is_xrc() => {
            "an XRC shared receive queue is named by its senders; other queue pairs take a basic one"
        }
        _ => return Ok(()),
    };
    Err(DeviceError::Unsuitable(wrong))
}

/// Granules of the address block in a type's send requests.
const fn ext_of(qp_type: QpType) -> usize {
    match qp_type {
        QpType::Ud | QpType::Gsi => UD_EXT,
        QpType::XrcIni => XRC_EXT,
        _ => 0,
    }
}

/// The posting end of a queue: its holder may post.
pub struct RingTap(Producer<Granule>);

impl RingTap {
    /// The slot for the `ahead`-th request that is not published yet; `None` when the queue is full.
    #[inline]
    pub fn slot(&mut self, ahead: u32) -> Option<&mut [Granule]> {
        self.0.slot(ahead)
    }
    /// Makes the next `n` requests visible to the shard.
    #[inline]
    pub fn publish(&mut self, n: u32) {
        self.0.publish(n);
    }
    /// Prefetches what posting the next `n` requests touches.
    #[inline]
    pub fn prefetch(&self, n: u32) {
        self.0.prefetch(n);
    }
    /// Requests that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.0.free()
    }
    /// Requests that are posted and not released by the shard.
    pub fn in_use(&self) -> u32 {
        self.0.in_use()
    }
    /// Requests that the queue holds.
    pub fn depth(&self) -> u32 {
        self.0.slots()
    }
}

impl fmt::Debug for RingTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingTap").field("depth", &self.depth()).finish()
    }
}

/// Why nothing can be posted to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateClosed {
    /// It is in this state.
    State(QpState),
    /// Its shard, with this number, died of a panic.
    ShardDied(usize),
}

/// What posting needs of a queue pair beside the ring. It is small, so that it shares a cache line with the handle that has it.
#[derive(Clone)]
pub struct Poster {
    device: Arc<Device>,
    /// Index in the device's table of words.
    index: u32,
    shard: u8,
    sq_sig_all: bool,
}

const _: () = assert!(size_of::<Poster>() == 16 && SHARDS_MAX <= u8::MAX as usize + 1);

impl Poster {
    #[inline]
    fn word(&self) -> Word {
        self.device.words().load(self.index)
    }
    /// Its index in its shard.
    #[inline]
    fn slot(&self) -> u32 {
        self.index - u32::from(self.shard) * self.device.core().shared.qps_per_shard as u32
    }
    #[inline]
    fn gate(&self, gate: Gates) -> Result<u32, GateClosed> {
        let word = self.word();
        if Gates::from_bits(word.gates()).has(gate) { Ok(word.epoch()) } else { Err(self.closed(word)) }
    }
    #[cold]
    fn closed(&self, word: Word) -> GateClosed {
        if word.is_dead() {
            GateClosed::ShardDied(self.shard.into())
        } else {
            GateClosed::State(state_of(word))
        }
    }
    /// Prefetches what a poster checks before it posts, and the doorbell.
    #[inline]
    pub fn prefetch(&self) {
        self.device.words().prefetch(self.index);
        self.doorbells().prefetch(self.slot());
    }
    /// Whether every send request makes a completion.
    #[inline]
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }
    /// The epoch under which a send request may be posted, or why none may be.
    ///
    /// # Errors
    /// [`GateClosed`].
    #[inline]
    pub fn may_post_send(&self) -> Result<u32, GateClosed> {
        self.gate(Gates::POST_SEND)
    }
    /// The epoch under which a receive request may be posted, or why none may be.
    ///
    /// # Errors
    /// [`GateClosed`].
    #[inline]
    pub fn may_post_recv(&self) -> Result<u32, GateClosed> {
        self.gate(Gates::POST_RECV)
    }
    /// Notifies the shard of send requests that were published.
    #[inline]
    pub fn send_posted(&self) {
        // Here: publish, fence, read the flag. In the shard: clear the flag, heavy fence, read the ring. One of the two sees the
        // other.
        asymmetric::light();
        if !self.word().is_watched() {
            self.ring();
        }
    }
    /// Notifies the shard of receive requests that were published, where needed: the shard finds them when a message arrives, but
    /// requests that are posted in ERR have to be flushed.
    #[inline]
    pub fn recv_posted(&self) {
        // Here: publish, fence, read the state. In the shard: publish the state, heavy fence, read the ring. One of the two sees
        // the other.
        asymmetric::light();
        if Gates::from_bits(self.word().gates()).has(Gates::FLUSH_RQ) {
            self.ring();
        }
    }
    /// Rings the queue pair's doorbell.
    #[inline]
    fn ring(&self) {
        self.doorbells().ring(self.slot());
        self.device.core().shared.sleeper.wake_for(1 << self.shard);
    }
    #[inline]
    fn doorbells(&self) -> &Doorbells {
        self.device.doorbells(self.shard.into())
    }
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("index", &self.index).finish_non_exhaustive()
    }
}

/// A queue pair.
pub struct QpCore {
    poster: Poster,
    pd: Option<Arc<PdCore>>,
    send_cq: Option<Arc<CqCore>>,
    recv_cq: Option<Arc<CqCore>>,
    srq: Option<Arc<SrqCore>>,
    /// The open of the XRC domain through which an XRC target was made: it cannot be closed before this is destroyed.
    _xrcd: Option<Arc<XrcdCore>>,
    sq: Exclusive<RingTap>,
    rq: Exclusive<RingTap>,
    qpn: Qpn,
    qp_type: QpType,
    block_self_mcast_lb: bool,
    cap: QpCap,
    first_psn: Psn,
    counters: Arc<QpCounters>,
}

/// Checks sizes against the device's limits; returns the granted ones.
fn grant(cap: &QpCap) -> Result<QpCap, DeviceError> {
    let within = |what, given: u32, max: u32| {
        if given <= max {
            return Ok(());
        }
        Err(DeviceError::Range { what, given: given.into(), min: 0, max: max.into() })
    };
    within("max_send_wr", cap.max_send_wr, QUEUE_DEPTH_MAX)?;
    within("max_recv_wr", cap.max_recv_wr, QUEUE_DEPTH_MAX)?;
    within("max_send_sge", cap.max_send_sge, SGE_MAX as u32)?;
    within("max_recv_sge", cap.max_recv_sge, SGE_MAX as u32)?;
    within("max_inline_data", cap.max_inline_data, INLINE_MAX)?;
    Ok(QpCap {
        max_send_wr: cap.max_send_wr.max(1).next_power_of_two(),
        max_recv_wr: cap.max_recv_wr.max(1).next_power_of_two(),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: cap.max_recv_sge.max(1),
        max_inline_data: cap.max_inline_data,
    })
}

/// Takes a slot and a number that no connection holds: a connection in TIMEWAIT may rest longer than the queue pair that it had,
/// and peers would refuse a new connection with the same number (IBA 12.9.8).
fn number(
    device: &Device,
    td: Option<&Arc<TdCore>>,
    shard: Option<usize>,
    mut wish: Option<Qpn>,
) -> Result<(usize, (u32, Qpn)), DeviceError> {
    for _ in 0..NUMBER_TRIES {
        let (shard, (slot, qpn)) = {
            let mut numbers = device.numbers();
            let at = shard.or(td.and_then(|td| td.shard()));
            let at = at.unwrap_or_else(|| numbers.least_loaded(|shard| device.core.cells[shard].is_dead()));
            let blocks = &device.core.shared.blocks;
            let taken = numbers.take(device.now(), at, wish.take(), blocks, || device.random.next())?;
            // Under the lock, so that two threads that make the first one choose the same shard.
            if let (Some(td), None) = (td, shard) {
                td.set_shard(at);
            }
            (at, taken)
        };
        if !device.service_holds(qpn) {
            return Ok((shard, (slot, qpn)));
        }
        device.numbers().put_back(shard, slot, qpn, device.now().after(REST_MIN));
    }
    let what = "queue pair number of those drawn";
    Err(DeviceError::Exhausted { what, limit: NUMBER_TRIES })
}

impl QpCore {
    pub(super) fn new(
        device: Arc<Device>,
        pd: Option<Arc<PdCore>>,
        init: &QpInit<'_>,
        target: Option<TargetOf>,
    ) -> Result<Arc<Self>, DeviceError> {
        not_inside_turn()?;
        suits(init, target.as_ref())?;
        for (what, cq) in
            [("send completion queue", init.send_cq), ("receive completion queue", init.recv_cq)]
        {
            if cq.is_some_and(|cq| !Arc::ptr_eq(cq.device(), &device)) {
                return Err(DeviceError::Foreign { what });
            }
            if cq.is_some_and(|cq| cq.state().overran()) {
                return Err(DeviceError::CqOverrun);
            }
        }
        if init.srq.is_some_and(|srq| !Arc::ptr_eq(srq.device(), &device)) {
            return Err(DeviceError::Foreign { what: "shared receive queue" });
        }
        // ibv_create_qp(3): sizes of a queue that does not exist are ignored.
        let no_recv = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
        let cap = match init.qp_type {
            QpType::XrcTgt => QpCap::default(),
            _ if init.srq.is_some() || init.qp_type == QpType::XrcIni => {
                QpCap { max_recv_wr: 0, max_recv_sge: 0, ..grant(&no_recv)? }
            }
            _ => grant(&init.cap)?,
        };
        if let Some(shard) = init.shard.filter(|s| *s >= device.shards()) {
            let max = device.shards() as u64 - 1;
            return Err(DeviceError::Range { what: "shard", given: shard as u64, min: 0, max });
        }
        // The first use of the wire, unless the port was started before.
        device.start()?;
        let first_psn = Psn::new(device.random.next()?);
        let (shard, (slot, qpn)) = match init.qp_type {
            QpType::Gsi => (0, device.numbers().take_gsi()?),
            _ => number(&device, pd.as_ref().and_then(|pd| pd.td()), init.shard, init.number)?,
        };
        let created = || -> Result<Arc<Self>, DeviceError> {
            let lane = |cq: Option<&Arc<CqCore>>| cq.map_or(Ok(LaneId::NONE), |cq| cq.lane(shard));
            let send_lane = lane(init.send_cq)?;
            let recv_lane = lane(init.recv_cq)?;
            let send_stride =
                send_stride(ext_of(init.qp_type), cap.max_send_sge as usize, cap.max_inline_data as usize);
            let (sq_producer, sq) = spsc::ring(cap.max_send_wr.max(1), send_stride);
            let (rq_tap, rq) = match (init.srq, &target) {
                (Some(srq), _) => (None, RecvSource::Shared(srq.end()?)),
                (_, Some(TargetOf::Open(xrcd))) => {
                    (None, RecvSource::Named { xrcd: xrcd.id(), ownerless: false })
                }
                (_, Some(TargetOf::Domain(xrcd))) => {
                    (None, RecvSource::Named { xrcd: *xrcd, ownerless: true })
                }
                (None, None) if init.qp_type == QpType::XrcIni => (None, RecvSource::Nowhere),
                (None, None) => {
                    let (producer, ring) =
                        spsc::ring(cap.max_recv_wr, recv_stride(cap.max_recv_sge as usize));
                    (Some(RingTap(producer)), RecvSource::Own(ring))
                }
            };
            // An XRC target has none of its own: the shared receive queue that a packet names has one.
            let pd_id = pd.as_ref().map_or(PdId(0), |pd| pd.id());
            let spec = QpSpec {
                slot,
                qpn,
                ty: init.qp_type,
                pd: pd_id,
                sq,
                rq,
                send_lane,
                recv_lane,
                cap,
                policies: init.policies,
            };
            let counters = device.core().control(shard, |s, _| s.create_qp(spec))?;
            let per_shard = device.core().shared.qps_per_shard as u32;
            let index = shard as u32 * per_shard + slot;
            device
                .core()
                .qps
                .insert(qpn, QpEntry { qp_type: init.qp_type, shard, index, counters: counters.clone() });
            Ok(Arc::new(Self {
                poster: Poster {
                    device: device.clone(),
                    index,
                    shard: shard as u8,
                    sq_sig_all: init.sq_sig_all,
                },
                pd: pd.clone(),
                send_cq: init.send_cq.cloned(),
                recv_cq: init.recv_cq.cloned(),
                srq: init.srq.cloned(),
                _xrcd: if let Some(TargetOf::Open(xrcd)) = &target { Some(xrcd.clone()) } else { None },
                sq: Exclusive::new((init.qp_type != QpType::XrcTgt).then_some(RingTap(sq_producer))),
                rq: Exclusive::new(rq_tap),
                qpn,
                qp_type: init.qp_type,
                block_self_mcast_lb: init.block_self_mcast_lb,
                cap,
                first_psn,
                counters,
            }))
        };
        created().inspect_err(|_| device.numbers().put_back(shard, slot, qpn, device.now()))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.poster.device
    }
    /// The protection domain; an XRC target has none.
    pub fn pd(&self) -> Option<&Arc<PdCore>> {
        self.pd.as_ref()
    }
    /// The completion queue of send requests; an XRC target has none.
    pub fn send_cq(&self) -> Option<&Arc<CqCore>> {
        self.send_cq.as_ref()
    }
    /// The completion queue of receive requests; an XRC queue pair has none.
    pub fn recv_cq(&self) -> Option<&Arc<CqCore>> {
        self.recv_cq.as_ref()
    }
    /// The shared receive queue that it takes from, if it does.
    #[inline]
    pub fn srq(&self) -> Option<&Arc<SrqCore>> {
        self.srq.as_ref()
    }
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// Its service type.
    #[inline]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }
    /// The part that posting to it needs.
    #[inline]
    pub fn poster(&self) -> &Poster {
        &self.poster
    }
    /// Whether it gets no copy of what it sends to a multicast group that it is attached to.
    pub fn block_self_mcast_lb(&self) -> bool {
        self.block_self_mcast_lb
    }
    /// The sizes that were granted.
    #[inline]
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// The shard that owns it.
    pub fn shard(&self) -> usize {
        self.poster.shard.into()
    }
    /// Its index in the shard.
    pub fn slot(&self) -> u32 {
        self.poster.slot()
    }
    /// A first PSN for it, drawn at random.
    pub fn first_psn(&self) -> Psn {
        self.first_psn
    }
    /// The posting end of the send queue; taken while it is split off, and where there is none.
    #[inline]
    pub fn sq(&self) -> &Exclusive<RingTap> {
        &self.sq
    }
    /// The posting end of the receive queue; taken while it is split off, and where there is none.
    #[inline]
    pub fn rq(&self) -> &Exclusive<RingTap> {
        &self.rq
    }

    /// Its counters since it was made; 0 where only a shard counts ([`Counter::per_qp`](super::Counter::per_qp)). Never stops the
    /// shard.
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    /// The state, as its shard published it last.
    pub fn state(&self) -> QpState {
        state_of(self.poster.word())
    }

    /// As [`state`](Self::state), if its shard lives.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub fn living_state(&self) -> Result<QpState, DeviceError> {
        let word = self.poster.word();
        if word.is_dead() { Err(DeviceError::ShardDied { shard: self.shard() }) } else { Ok(state_of(word)) }
    }

    /// Changes attributes, and the state where the mask has it.
    ///
    /// # Errors
    /// [`DeviceError::Modify`], [`DeviceError::InsideTurn`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), DeviceError> {
        let core = self.device().core();
        core.control(self.shard(), |s, now| s.modify_qp(now, self.slot(), attr, mask))??;
        if mask.contains(AttrMask::STATE) && attr.qp_state == QpState::Reset {
            self.drop_stale();
        }
        Ok(())
    }

    /// Takes completions of an earlier life out of the completion queues.
    fn drop_stale(&self) {
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.drop_stale();
        }
    }

    /// Every attribute.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`].
    pub fn query(&self) -> Result<QpAttr, DeviceError> {
        let attr = self.device().core().control(self.shard(), |s, _| s.query_qp(self.slot()))?;
        Ok(QpAttr { cap: self.cap, ..attr })
    }

    /// Destroys the queue pair. Posted requests that need not wait for an answer or an address are sent before, unless the program
    /// turns the shards itself: then that is left to it. Asynchronous events of the queue pair that were not fetched are dropped.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while something else refers to it or it is attached to a multicast group,
    /// [`DeviceError::Unacked`] while an event of it that was fetched is not acknowledged, [`DeviceError::InsideTurn`],
    /// [`DeviceError::Forked`]; it comes back with the error.
    pub fn destroy(qp: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = not_inside_turn().and_then(|()| qp.device().core().not_forked()) {
            return Err((e, qp));
        }
        let groups = qp.groups().len();
        if groups > 0 {
            let busy = DeviceError::Busy { object: "queue pair attached to multicast groups", users: groups };
            return Err((busy, qp));
        }
        let qp = Arc::try_unwrap(qp).map_err(|qp| {
            let users = Arc::strong_count(&qp) - 1;
            (DeviceError::Busy { object: "queue pair", users }, qp)
        })?;
        match qp.device().core().shared.events.retire(qp.element()) {
            Ok(()) => {
                drop(qp);
                Ok(())
            }
            Err(events) => Err((DeviceError::Unacked { object: "queue pair", events }, Arc::new(qp))),
        }
    }

    /// [`destroy`](Self::destroy) that waits until its events are acknowledged, for at most `timeout`.
    ///
    /// # Errors
    /// As `destroy`.
    pub fn destroy_wait(qp: Arc<Self>, timeout: Duration) -> Result<(), (DeviceError, Arc<Self>)> {
        let (device, element) = (qp.device().clone(), qp.element());
        device.destroy_wait(timeout, qp, Self::destroy, || device.core().shared.events.unacked(element))
    }

    fn element(&self) -> EventElement {
        EventElement::Qp(self.qpn)
    }
}

impl Drop for QpCore {
    fn drop(&mut self) {
        let device = &self.poster.device;
        if device.is_forked() {
            return;
        }
        self.detach_all();
        device.core().qps.remove(self.qpn);
        let core = device.core();
        // Inside a turn it is refused: slot and number then stay taken.
        let destroyed = core.control(self.shard(), |s, now| {
            if core.turns_by_itself() {
                s.send_posted(now, self.slot());
            }
            let attr = s.query_qp(self.slot());
            s.destroy_qp(self.slot());
            now.after(rest(&attr))
        });
        match &destroyed {
            Ok(_) => {}
            Err(DeviceError::ShardDied { .. }) => core.shared.forget_qp(self.poster.index, self.qpn),
            Err(_) => return,
        }
        self.drop_stale();
        core.shared.events.purge(self.element());
        core.shared.events.forget(self.element());
        if let Ok(until) = destroyed {
            device.numbers().put_back(self.shard(), self.slot(), self.qpn, until);
        }
    }
}

/// How long the number of a queue pair with these attributes rests. Packets of its connection may arrive as long as the peer
/// retries: each retry comes after up to four times the timeout (IBA 9.7.6.1.3).
fn rest(attr: &QpAttr) -> Duration {
    let retries =
        ack_timeout(attr.timeout).map_or(Duration::ZERO, |t| t * 4 * (u32::from(attr.retry_cnt) + 1));
    retries.clamp(REST_MIN, REST_MAX)
}

fn state_of(word: Word) -> QpState {
    QpState::from_enum(word.state()).unwrap_or(QpState::Reset)
}

impl fmt::Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpCore")
            .field("qpn", &self.qpn)
            .field("type", &self.qp_type)
            .field("shard", &self.shard())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_for_every_retry_and_no_longer_than_a_minute_or_so() {
        let rest = |timeout, retry_cnt| rest(&QpAttr { timeout, retry_cnt, ..QpAttr::default() });
        assert_eq!(rest(0, 7), REST_MIN);
        assert_eq!(rest(14, 7), Duration::from_nanos(4096 << 14) * 32);
        assert_eq!(rest(31, 7), REST_MAX);
    }
}
