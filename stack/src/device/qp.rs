//! Queue pairs: two rings to post into, and a place on a shard.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Device;
use super::claim::{lock, not_inside_turn};
use super::cq::CqCore;
use super::error::DeviceError;
use super::pd::PdCore;
use crate::config::{INLINE_MAX, QUEUE_DEPTH_MAX, SGE_MAX};
use crate::id::{Psn, QpState, QpType, Qpn};
use crate::proto::address::UD_EXT;
use crate::proto::attr::{AttrMask, QpAttr, QpCap};
use crate::proto::state::Gates;
use crate::proto::tables::ack_timeout;
use crate::proto::wqe::{Granule, recv_stride, send_stride};
use crate::shard::QpSpec;
use crate::sync::asymmetric;
use crate::sync::spsc::{self, Producer};
use crate::sync::words::Word;

/// The shortest rest of a queue pair's number, for peers with longer timeouts than ours.
const REST_MIN: Duration = Duration::from_secs(1);

/// What a queue pair is to be.
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Service type.
    pub qp_type: QpType,
    /// Where send requests complete.
    pub send_cq: &'a Arc<CqCore>,
    /// Where receive requests complete.
    pub recv_cq: &'a Arc<CqCore>,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Every send request makes a completion.
    pub sq_sig_all: bool,
    /// The shard; the least loaded one where absent.
    pub shard: Option<usize>,
}

/// The posting end of a queue: whoever has it may post.
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
    /// Requests that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.0.free()
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

/// A queue pair.
pub struct QpCore {
    pd: Arc<PdCore>,
    send_cq: Arc<CqCore>,
    recv_cq: Arc<CqCore>,
    sq: Mutex<Option<RingTap>>,
    rq: Mutex<Option<RingTap>>,
    /// Index in the device's table of words.
    index: u32,
    /// Index in its shard.
    slot: u32,
    shard: usize,
    qpn: Qpn,
    qp_type: QpType,
    sq_sig_all: bool,
    cap: QpCap,
    first_psn: Psn,
}

/// Checks sizes against the device's limits; what is granted.
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

impl QpCore {
    pub(super) fn new(pd: Arc<PdCore>, init: &QpInit<'_>) -> Result<Arc<Self>, DeviceError> {
        not_inside_turn()?;
        let device = pd.device().clone();
        for (what, cq) in
            [("send completion queue", init.send_cq), ("receive completion queue", init.recv_cq)]
        {
            if !Arc::ptr_eq(cq.device(), &device) {
                return Err(DeviceError::Foreign { what });
            }
        }
        let cap = grant(&init.cap)?;
        if let Some(shard) = init.shard.filter(|s| *s >= device.shards()) {
            let max = device.shards() as u64 - 1;
            return Err(DeviceError::Range { what: "shard", given: shard as u64, min: 0, max });
        }
        // The first use of the wire, if nobody started the port before.
        device.start()?;
        let first_psn = Psn::new(device.random.next()?);
        let (shard, (slot, qpn)) = {
            let mut numbers = device.numbers();
            if init.qp_type == QpType::Gsi {
                (0, numbers.take_gsi()?)
            } else {
                let shard = init.shard.unwrap_or_else(|| numbers.least_loaded());
                (shard, numbers.take(device.now(), shard, || device.random.next())?)
            }
        };
        let created = || -> Result<Arc<Self>, DeviceError> {
            let send_lane = init.send_cq.lane(shard)?;
            let recv_lane = init.recv_cq.lane(shard)?;
            let send_stride =
                send_stride(ext_of(init.qp_type), cap.max_send_sge as usize, cap.max_inline_data as usize);
            let recv_stride = recv_stride(cap.max_recv_sge as usize);
            let (sq_producer, sq) = spsc::ring(cap.max_send_wr, send_stride);
            let (rq_producer, rq) = spsc::ring(cap.max_recv_wr, recv_stride);
            let spec = QpSpec { slot, qpn, ty: init.qp_type, pd: pd.id(), sq, rq, send_lane, recv_lane, cap };
            device.core().control(shard, |s, _| s.create_qp(spec))?;
            let per_shard = device.core().shared.qps_per_shard as u32;
            Ok(Arc::new(Self {
                pd: pd.clone(),
                send_cq: init.send_cq.clone(),
                recv_cq: init.recv_cq.clone(),
                sq: Mutex::new(Some(RingTap(sq_producer))),
                rq: Mutex::new(Some(RingTap(rq_producer))),
                index: shard as u32 * per_shard + slot,
                slot,
                shard,
                qpn,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
                cap,
                first_psn,
            }))
        };
        created().inspect_err(|_| device.numbers().put_back(shard, slot, qpn, device.now()))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// Where send requests complete.
    pub fn send_cq(&self) -> &Arc<CqCore> {
        &self.send_cq
    }
    /// Where receive requests complete.
    pub fn recv_cq(&self) -> &Arc<CqCore> {
        &self.recv_cq
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
    /// Whether every send request makes a completion.
    #[inline]
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }
    /// The sizes that were granted.
    #[inline]
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// The shard that owns it.
    pub fn shard(&self) -> usize {
        self.shard
    }
    /// A first PSN for it, drawn at random.
    pub fn first_psn(&self) -> Psn {
        self.first_psn
    }
    /// The posting end of the send queue, `None` while it is split off.
    #[inline]
    pub fn sq(&self) -> MutexGuard<'_, Option<RingTap>> {
        lock(&self.sq)
    }
    /// The posting end of the receive queue, `None` while it is split off.
    #[inline]
    pub fn rq(&self) -> MutexGuard<'_, Option<RingTap>> {
        lock(&self.rq)
    }

    #[inline]
    fn word(&self) -> Word {
        self.device().words().load(self.index)
    }
    #[inline]
    fn gate(&self, gate: Gates) -> Result<u32, QpState> {
        let word = self.word();
        if Gates::from_bits(word.gates()).has(gate) { Ok(word.epoch()) } else { Err(state_of(word)) }
    }
    /// The state, as its shard published it last.
    pub fn state(&self) -> QpState {
        state_of(self.word())
    }
    /// Whether a send request may be posted: the epoch to post it under, or the state that forbids it.
    ///
    /// # Errors
    /// The state.
    #[inline]
    pub fn may_post_send(&self) -> Result<u32, QpState> {
        self.gate(Gates::POST_SEND)
    }
    /// Whether a receive request may be posted: the epoch to post it under, or the state that forbids it.
    ///
    /// # Errors
    /// The state.
    #[inline]
    pub fn may_post_recv(&self) -> Result<u32, QpState> {
        self.gate(Gates::POST_RECV)
    }
    /// Tells the shard of send requests that were published.
    #[inline]
    pub fn send_posted(&self) {
        // Publish, fence, look at the promise here; take the promise back, fence (heavy), look at the ring in the shard.
        asymmetric::light();
        if !self.word().is_watched() {
            self.ring();
        }
    }
    /// Rings the queue pair's doorbell.
    #[inline]
    fn ring(&self) {
        self.device().doorbells(self.shard).ring(self.slot);
    }
    /// Tells the shard of receive requests that were published, where that matters: it finds them by itself when a
    /// message arrives, but one posted in ERR has to be flushed.
    #[inline]
    pub fn recv_posted(&self) {
        // Publish, fence, look at the state here; publish the state, fence (heavy), look at the ring in the shard: one of the
        // two sees the other.
        asymmetric::light();
        if Gates::from_bits(self.word().gates()).has(Gates::FLUSH_RQ) {
            self.ring();
        }
    }

    /// Changes attributes, and the state where the mask says so.
    ///
    /// # Errors
    /// [`DeviceError::Modify`], [`DeviceError::InsideTurn`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), DeviceError> {
        let core = self.device().core();
        Ok(core.control(self.shard, |s, now| s.modify_qp(now, self.slot, attr, mask))??)
    }

    /// Every attribute.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`].
    pub fn query(&self) -> Result<QpAttr, DeviceError> {
        let attr = self.device().core().control(self.shard, |s, _| s.query_qp(self.slot))?;
        Ok(QpAttr { cap: self.cap, ..attr })
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while something else refers to it, [`DeviceError::InsideTurn`]; it comes back with the
    /// error.
    pub fn destroy(qp: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = not_inside_turn() {
            return Err((e, qp));
        }
        Arc::try_unwrap(qp).map(drop).map_err(|qp| {
            let users = Arc::strong_count(&qp) - 1;
            (DeviceError::Busy { object: "queue pair", users }, qp)
        })
    }
}

impl Drop for QpCore {
    fn drop(&mut self) {
        let device = self.pd.device();
        // Refused only inside a turn, where no handle of a user is dropped; slot and number then stay taken.
        let destroyed = device.core().control(self.shard, |s, now| {
            let attr = s.query_qp(self.slot);
            s.destroy_qp(self.slot);
            now.after(retry_span(&attr).max(REST_MIN))
        });
        if let Ok(until) = destroyed {
            device.numbers().put_back(self.shard, self.slot, self.qpn, until);
        }
    }
}

/// How long packets of a connection with these attributes may go on arriving: every retry, each after up to four times
/// the timeout (IBA 9.7.6.1.3).
fn retry_span(attr: &QpAttr) -> Duration {
    ack_timeout(attr.timeout).map_or(Duration::ZERO, |t| t * 4 * (u32::from(attr.retry_cnt) + 1))
}

/// Granules of the address block in a type's send requests.
const fn ext_of(qp_type: QpType) -> usize {
    match qp_type {
        QpType::Ud | QpType::Gsi => UD_EXT,
        _ => 0,
    }
}

fn state_of(word: Word) -> QpState {
    QpState::from_enum(word.state()).unwrap_or(QpState::Reset)
}

impl fmt::Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpCore")
            .field("qpn", &self.qpn)
            .field("type", &self.qp_type)
            .field("shard", &self.shard)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
