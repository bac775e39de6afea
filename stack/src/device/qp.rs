//! Queue pairs: two queues for posting, and a slot of a shard.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use super::cq::CqCore;
use super::error::DeviceError;
use super::handle::Device;
use super::inside_turn::not_inside_turn;
use super::pd::PdCore;
use super::posting::{QpSignals, RecvPoster, SendPoster, state_of};
use super::qp_init::{QpInit, Queues, TargetOf};
use super::qp_number::{QpNumber, quarantine};
use super::srq::SrqCore;
use super::stats::list::QpEntry;
use super::xrcd::XrcdCore;
use crate::id::{Gid, PdId, Psn, QpState, QpType, Qpn};
use crate::proto::attr::{AttrMask, QpAttr, QpCap};
use crate::shard::counters::{CounterSnapshot, QpCounters};
use crate::shard::{EventElement, QpSpec};
use crate::sync::exclusive::Exclusive;

/// A queue pair.
pub struct QpCore {
    device: Arc<Device>,
    signals: QpSignals,
    pd: Option<Arc<PdCore>>,
    send_cq: Option<Arc<CqCore>>,
    recv_cq: Option<Arc<CqCore>>,
    srq: Option<Arc<SrqCore>>,
    /// The open of the XRC domain through which an XRC target was created: it cannot be closed before this queue pair is destroyed.
    _xrcd: Option<Arc<XrcdCore>>,
    sq: Exclusive<SendPoster>,
    rq: Exclusive<RecvPoster>,
    qpn: Qpn,
    qp_type: QpType,
    block_self_mcast_lb: bool,
    cap: QpCap,
    first_psn: Psn,
    counters: Arc<QpCounters>,
}

impl PdCore {
    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn create_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Arc<QpCore>, DeviceError> {
        QpCore::new(self.device().clone(), Some(self.clone()), init, None)
    }
}

impl QpCore {
    pub(super) fn new(
        device: Arc<Device>,
        pd: Option<Arc<PdCore>>,
        init: &QpInit<'_>,
        target: Option<TargetOf>,
    ) -> Result<Arc<Self>, DeviceError> {
        not_inside_turn()?;
        let cap = init.check(&device, target.as_ref())?;
        // The first use of the wire, unless the port was started before.
        device.start()?;
        let first_psn = Psn::new(device.random.next()?);
        let number = QpNumber::take(&device, pd.as_ref().and_then(|pd| pd.td()), init)?;
        let (shard, slot, qpn) = (number.shard, number.slot, number.qpn);
        let (send_lane, recv_lane) = init.lanes(shard)?;
        let shared = device.core().shared.clone();
        let signals = QpSignals::new(shared, shard, slot, init.qp_type, init.sq_sig_all);
        let Queues { send, recv, sq, rq } = init.queues(&cap, target.as_ref(), &signals)?;
        // An XRC target has no protection domain: the shared receive queue that a packet names has one.
        let pd_id = pd.as_ref().map_or(PdId(0), |pd| pd.id());
        let (ty, policies) = (init.qp_type, init.policies);
        let spec = QpSpec { slot, qpn, ty, pd: pd_id, sq, rq, send_lane, recv_lane, cap, policies };
        let counters = device.core().control(shard, |s, _| s.create_qp(spec))?;
        number.keep();
        let entry = QpEntry { qp_type: ty, shard, index: signals.index, counters: counters.clone() };
        device.core().qps.insert(qpn, entry);
        Ok(Arc::new(Self {
            device,
            signals,
            pd,
            send_cq: init.send_cq.cloned(),
            recv_cq: init.recv_cq.cloned(),
            srq: init.srq.cloned(),
            _xrcd: target.and_then(TargetOf::open),
            sq: Exclusive::new(send),
            rq: Exclusive::new(recv),
            qpn,
            qp_type: ty,
            block_self_mcast_lb: init.block_self_mcast_lb,
            cap,
            first_psn,
            counters,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
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
    /// The shared receive queue that it takes requests from, if any.
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
    /// Whether every send request generates a completion.
    pub fn sq_sig_all(&self) -> bool {
        self.signals.sq_sig_all
    }
    /// Whether it gets no copy of its own messages to a multicast group that it is attached to.
    pub fn block_self_mcast_lb(&self) -> bool {
        self.block_self_mcast_lb
    }
    /// The granted sizes.
    #[inline]
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// The shard that owns it.
    pub fn shard(&self) -> usize {
        self.signals.shard.into()
    }
    /// Its slot in the shard.
    pub fn slot(&self) -> u32 {
        self.signals.slot()
    }
    /// A first PSN for it, drawn at random.
    pub fn first_psn(&self) -> Psn {
        self.first_psn
    }
    /// The posting end of the send queue; unavailable while another owner has it, or without a send queue.
    #[inline]
    pub fn sq(&self) -> &Exclusive<SendPoster> {
        &self.sq
    }
    /// The posting end of the receive queue; unavailable while another owner has it, or without a receive queue.
    #[inline]
    pub fn rq(&self) -> &Exclusive<RecvPoster> {
        &self.rq
    }

    /// Its counters since its creation; 0 for counters that only a shard has ([`Counter::per_qp`](super::Counter::per_qp)). Never stops
    /// the shard.
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    /// The state that its shard published last.
    pub fn state(&self) -> QpState {
        state_of(self.signals.word())
    }

    /// As [`state`](Self::state), but fails if its shard is dead.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub fn living_state(&self) -> Result<QpState, DeviceError> {
        let word = self.signals.word();
        if word.is_dead() { Err(DeviceError::ShardDied { shard: self.shard() }) } else { Ok(state_of(word)) }
    }

    /// Changes attributes, and the state if the mask includes it.
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

    /// Removes completions of earlier epochs from the completion queues.
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

    /// Destroys the queue pair. Before that, posted requests that need not wait for a response or an address are sent, except with
    /// [`Drive::Embedded`](super::Drive::Embedded): there the program itself has to make the turns. Unfetched asynchronous events of the queue pair
    /// are dropped.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while other objects refer to it or it is attached to a multicast group, [`DeviceError::Unacked`] while a
    /// fetched event of it is not acknowledged, [`DeviceError::InsideTurn`], [`DeviceError::Forked`]. The queue pair is returned with the
    /// error.
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

    /// As [`destroy`](Self::destroy), but waits until its events are acknowledged, for at most `timeout`.
    ///
    /// # Errors
    /// As `destroy`.
    pub fn destroy_wait(qp: Arc<Self>, timeout: Duration) -> Result<(), (DeviceError, Arc<Self>)> {
        let (device, element) = (qp.device().clone(), qp.element());
        device.destroy_wait(timeout, qp, Self::destroy, || device.core().shared.events.unacked(element))
    }

    /// Multicast groups that it is attached to.
    fn groups(&self) -> Vec<Gid> {
        if self.qp_type == QpType::Ud { self.device().groups.of(self.qpn) } else { Vec::new() }
    }

    /// Leaves every group.
    fn leave_groups(&self) {
        // Inside a turn, where no user's handle is dropped, another thread may hold the lock and wait for this very shard.
        if not_inside_turn().is_ok() {
            let device = self.device();
            for group in self.groups() {
                let _ = device.groups.detach(device.core(), device.port(), &group, self.qpn); // cannot fail: it is attached
            }
        }
    }

    fn element(&self) -> EventElement {
        EventElement::Qp(self.qpn)
    }
}

impl Drop for QpCore {
    fn drop(&mut self) {
        let device = self.device();
        if device.is_forked() {
            return;
        }
        self.leave_groups();
        device.core().qps.remove(self.qpn);
        let core = device.core();
        // Refused inside a turn: slot and number then stay taken.
        let destroyed = core.control(self.shard(), |s, now| {
            if core.turns_by_itself() {
                s.send_posted(now, self.slot());
            }
            let attr = s.query_qp(self.slot());
            s.destroy_qp(self.slot());
            now.after(quarantine(&attr))
        });
        match &destroyed {
            Ok(_) => {}
            Err(DeviceError::ShardDied { .. }) => core.shared.forget_qp(self.signals.index, self.qpn),
            Err(_) => return,
        }
        self.drop_stale();
        core.shared.events.purge(self.element());
        core.shared.events.forget(self.element());
        device.note_number(self.qpn, false);
        if let Ok(until) = destroyed {
            device.numbers().put_back(self.shard(), self.slot(), self.qpn, until);
        }
    }
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
