//! The parameters of a new queue pair, their checks, and the creation of its queues.

use std::sync::Arc;

use super::cq::CqCore;
use super::error::DeviceError;
use super::handle::Device;
use super::posting::{Poster, QpSignals, RecvPoster, SendPoster};
use super::srq::SrqCore;
use super::xrcd::XrcdCore;
use crate::config::{INLINE_MAX, QUEUE_DEPTH_MAX, SGE_MAX};
use crate::id::{QpType, Qpn};
use crate::proto::address::UD_ADDR_GRANULES;
use crate::proto::attr::QpCap;
use crate::proto::requester::Policies;
use crate::proto::wqe::{Granule, XRC_ADDR_GRANULES, recv_stride, send_stride};
use crate::shard::{LaneId, RecvSource};
use crate::sync::spsc::{self, Consumer};

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Service type.
    pub qp_type: QpType,
    /// The completion queue of send requests; an XRC target has none.
    pub send_cq: Option<&'a Arc<CqCore>>,
    /// The completion queue of receive requests; an XRC queue pair has none.
    pub recv_cq: Option<&'a Arc<CqCore>>,
    /// The shared receive queue that replaces a receive queue of its own.
    pub srq: Option<&'a Arc<SrqCore>>,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Whether every send request generates a completion.
    pub sq_sig_all: bool,
    /// The shard; if absent, that of its thread domain, or the least loaded one.
    pub shard: Option<usize>,
    /// It gets no copy of its own messages to a multicast group that it is attached to.
    pub block_self_mcast_lb: bool,
    /// A number that a queue pair of the same shard had before, even if the number is still in quarantine; if absent, one drawn at random.
    pub number: Option<Qpn>,
    /// Policies for loss recovery and congestion control of a reliable queue pair.
    pub policies: Policies,
}

impl QpInit<'_> {
    /// The parameters of an XRC target, which has no queues of its own.
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
    /// Checks everything that can be checked without a shard; returns the granted sizes.
    pub(super) fn check(
        &self,
        device: &Arc<Device>,
        target: Option<&TargetOf>,
    ) -> Result<QpCap, DeviceError> {
        self.suits(target)?;
        self.is_of(device)?;
        let cap = self.granted()?;
        if let Some(shard) = self.shard.filter(|s| *s >= device.shards()) {
            let max = device.shards() as u64 - 1;
            return Err(DeviceError::Range { what: "shard", given: shard as u64, min: 0, max });
        }
        Ok(cap)
    }

    /// Checks whether a queue pair of this type can be created from these objects.
    fn suits(&self, target: Option<&TargetOf>) -> Result<(), DeviceError> {
        let wrong = match (self.qp_type, self.srq, target) {
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

    /// Checks that its completion and receive queues belong to this device, and are usable.
    fn is_of(&self, device: &Arc<Device>) -> Result<(), DeviceError> {
        for (what, cq) in
            [("send completion queue", self.send_cq), ("receive completion queue", self.recv_cq)]
        {
            if cq.is_some_and(|cq| !Arc::ptr_eq(cq.device(), device)) {
                return Err(DeviceError::Foreign { what });
            }
            if cq.is_some_and(|cq| cq.state().overran()) {
                return Err(DeviceError::CqOverrun);
            }
        }
        if self.srq.is_some_and(|srq| !Arc::ptr_eq(srq.device(), device)) {
            return Err(DeviceError::Foreign { what: "shared receive queue" });
        }
        Ok(())
    }

    /// The sizes as granted. Sizes of a queue that the type lacks are ignored (ibv_create_qp(3)).
    fn granted(&self) -> Result<QpCap, DeviceError> {
        match self.qp_type {
            QpType::XrcTgt => Ok(QpCap::default()),
            _ if self.srq.is_some() || self.qp_type == QpType::XrcIni => {
                let no_recv = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..self.cap };
                Ok(QpCap { max_recv_wr: 0, max_recv_sge: 0, ..grant(&no_recv)? })
            }
            _ => grant(&self.cap),
        }
    }

    /// The lanes from a shard to the completion queues for send and for receive requests.
    pub(super) fn lanes(&self, shard: usize) -> Result<(LaneId, LaneId), DeviceError> {
        let lane = |cq: Option<&Arc<CqCore>>| cq.map_or(Ok(LaneId::NONE), |cq| cq.lane(shard));
        Ok((lane(self.send_cq)?, lane(self.recv_cq)?))
    }

    /// Creates the queues.
    pub(super) fn queues(
        &self,
        cap: &QpCap,
        target: Option<&TargetOf>,
        signals: &QpSignals,
    ) -> Result<Queues, DeviceError> {
        let addr_granules = addr_granules_of(self.qp_type);
        let send_stride = send_stride(addr_granules, cap.max_send_sge as usize, cap.max_inline_data as usize);
        let (ring, sq) = spsc::ring(cap.max_send_wr.max(1), send_stride);
        let send = (self.qp_type != QpType::XrcTgt).then(|| Poster::new(ring, signals.clone()));
        let rq = match (self.srq, target) {
            (Some(srq), _) => RecvSource::Shared(srq.end()?),
            (_, Some(target)) => target.receives(),
            (None, None) if self.qp_type == QpType::XrcIni => RecvSource::Nowhere,
            (None, None) => {
                let (ring, rq) = spsc::ring(cap.max_recv_wr, recv_stride(cap.max_recv_sge as usize));
                let recv = Some(Poster::new(ring, signals.clone()));
                return Ok(Queues { send, recv, sq, rq: RecvSource::Own(rq) });
            }
        };
        Ok(Queues { send, recv: None, sq, rq })
    }
}

/// The queues of a new queue pair: the posting ends, if it has them, and the consumer ends for its shard.
pub(super) struct Queues {
    pub send: Option<SendPoster>,
    pub recv: Option<RecvPoster>,
    pub sq: Consumer<Granule>,
    pub rq: RecvSource,
}

/// The owner of an XRC target.
#[derive(Debug)]
pub(super) enum TargetOf {
    /// A user, who created it through this open of the domain.
    Open(Arc<XrcdCore>),
    /// The domain with this number: the queue pair is receive-only, and has no handle.
    Domain(u32),
    /// The target with this number in another process, which this queue pair is a shadow of; and the number of the domain.
    Shadow(u32, Qpn),
}

impl TargetOf {
    /// The open, if a user owns the target.
    pub(super) fn open(self) -> Option<Arc<XrcdCore>> {
        match self {
            Self::Open(xrcd) => Some(xrcd),
            Self::Domain(_) | Self::Shadow(..) => None,
        }
    }

    fn receives(&self) -> RecvSource {
        let (xrcd, shadows) = match self {
            Self::Open(xrcd) => (xrcd.id(), None),
            Self::Domain(xrcd) => (*xrcd, None),
            Self::Shadow(xrcd, target) => (*xrcd, Some(*target)),
        };
        RecvSource::Named { xrcd, ownerless: !matches!(self, Self::Open(_)), shadows }
    }
}

/// Number of granules of the address block in send requests of a type.
const fn addr_granules_of(qp_type: QpType) -> usize {
    match qp_type {
        QpType::Ud | QpType::Gsi => UD_ADDR_GRANULES,
        QpType::XrcIni => XRC_ADDR_GRANULES,
        _ => 0,
    }
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
