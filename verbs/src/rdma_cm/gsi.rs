//! Queue pair 1: sending and receiving MADs.
//!
//! The send queue of queue pair 1 does not wait for address resolution: it drops a MAD to an unresolved peer. Therefore a MAD waits here
//! and is posted when its peer's address is resolved. If no host answers, the MAD is lost like any datagram.

use std::net::IpAddr;
use std::sync::Arc;

use stack::cm::{Fair, MAD_LEN, Machine, Path, Send};
use stack::device::{Access, AhAttr, Gid};
use stack::device::{ChannelCore, CqInit, Device, GSI_QKEY, GlobalRoute, PeerPath, QpCap, QpType, Qpn};

use super::error::CmError;
use crate::ah::GRH_LEN;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{Qp, QpInitAttr};
use crate::wc::Wc;
use crate::wr::{RecvWr, SendWr};

/// Number of receives. A receive is posted again as soon as a thread has turned the shard, even if connection management is busy: see
/// [`Inbox`](super::inbox::Inbox).
pub(super) const RECEIVES: u32 = 1024;
/// Maximum number of outstanding sends.
const SENDS: u32 = 256;
/// Bytes of a receive buffer: a network header and a MAD, rounded up to whole cache lines.
pub(super) const STRIDE: usize = (GRH_LEN + MAD_LEN).next_multiple_of(64);
/// How many MADs, of all hosts, may wait for address resolution. If there are more, the host with the most of them loses one.
const WAITING_MAX: usize = 4096;
/// How many waiting MADs one call examines.
const LOOKS: usize = 256;
/// How many completions are taken at once.
pub(super) const BATCH: usize = 64;

/// Queue pair 1 of a device with its buffers. The fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Gsi {
    qp: Qp,
    pub mr: Mr,
    pub received: Cq,
    sent: Cq,
    pd: Pd,
}

impl Gsi {
    /// Creates the queue pair and posts its receives. Its completion events ring the device's alarm, which makes the device call connection
    /// management.
    ///
    /// # Errors
    /// `EINVAL` if the program has created a GSI queue pair itself; any error of the calls of the device.
    pub(super) fn open(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let pd = Pd::new(device.alloc_pd()?);
        let channel = ChannelCore::to_alarm(device)?;
        let cq = |cqe| {
            let init = CqInit { cqe, channel: Some(&channel), context: 0, parent: None };
            Ok::<_, VerbsError>(Cq::new(device.create_cq(&init)?))
        };
        let (received, sent) = (cq(RECEIVES)?, cq(SENDS)?);
        let mr = pd.reg_mr(RECEIVES as usize * STRIDE, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MAD_LEN as u32,
        };
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Gsi, &sent, &received).cap(cap).sig_all())?;
        let gsi = Self { qp, mr, received, sent, pd };
        gsi.received.req_notify(false)?;
        gsi.qp.activate_ud(GSI_QKEY)?;
        for slot in 0..RECEIVES as usize {
            gsi.post_receive(slot)?;
        }
        Ok(gsi)
    }

    /// Posts the receive with this index.
    pub(super) fn post_receive(&self, slot: usize) -> Result<(), VerbsError> {
        let sge = self.mr.sge(slot * STRIDE..slot * STRIDE + GRH_LEN + MAD_LEN)?;
        Ok(self.qp.post_recv(&[RecvWr::new(slot as u64, &[sge])])?)
    }

    /// Posts a MAD whose peer's address is resolved.
    fn post_send(&self, device: &Device, mad: &Send) -> Result<(), VerbsError> {
        let path = &mad.path;
        let index = sgid_index(device, &path.sgid)?;
        let ah = self.pd.create_ah(&ah_attr(path, index))?;
        still_there(device, &path.sgid, index)?;
        let wr = SendWr::send(0, &[]).inline(&mad.mad).to(&ah, Qpn::GSI, GSI_QKEY);
        Ok(self.qp.post_send(&[wr])?)
    }
}

/// Polls without driving a shard, because this may run right after a turn, on its thread.
pub(super) fn look(cq: &Cq, done: &mut [Wc]) -> usize {
    let mut n = 0;
    if let Ok(mut tap) = cq.core().tap().lock() {
        cq.core().poll_with(&mut tap, done.len(), |cqe| {
            done[n] = Wc::from_cqe(cqe);
            n += 1;
        });
    }
    n
}

/// Counters of messages that were lost before they were sent, by reason.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    /// No host answered for their destination address.
    unreachable: u64,
    /// Too many waited for address resolution.
    queue_full: u64,
    /// Their local source address was removed.
    no_source: u64,
}

/// The send side of queue pair 1.
#[derive(Debug)]
pub(super) struct Outbox {
    gsi: Arc<Gsi>,
    /// Number of sends that have not completed.
    outstanding: u32,
    /// MADs that wait for address resolution.
    waiting: Fair<Send>,
    lost: Lost,
}

impl Outbox {
    pub(super) fn new(gsi: Arc<Gsi>) -> Self {
        Self { gsi, outstanding: 0, waiting: Fair::default(), lost: Lost::default() }
    }

    /// Counters of lost messages, by name.
    pub(super) fn lost(&self) -> [(&'static str, u64); 3] {
        let Lost { unreachable, queue_full, no_source } = self.lost;
        [("send_unreachable", unreachable), ("send_waiting_full", queue_full), ("send_no_source", no_source)]
    }

    /// Posts the MADs whose address resolution has ended.
    pub(super) fn send_resolved(&mut self, device: &Device) {
        self.reap();
        for _ in 0..self.waiting.len().min(LOOKS) {
            if let Some(mad) = self.waiting.pop() {
                self.dispatch(device, mad);
            }
        }
    }

    /// Posts what the machine has to send, while there is room in the send queue. The rest stays in the machine until the alarm rings.
    /// Returns whether MADs wait for address resolution.
    pub(super) fn send(&mut self, device: &Device, machine: &mut Machine) -> bool {
        self.reap();
        while self.outstanding < SENDS {
            let Some(mad) = machine.poll_send() else { break };
            self.dispatch(device, mad);
        }
        if self.outstanding == SENDS {
            // Request the notification, then check again: a completion in between would not ring the alarm.
            let _ = self.gsi.sent.req_notify(false); // it has a channel
            self.reap();
            if self.outstanding < SENDS {
                device.alarm().ring();
            }
        }
        !self.waiting.is_empty()
    }

    /// Takes the completions of sends.
    fn reap(&mut self) {
        let mut done = [Wc::default(); BATCH];
        while self.outstanding > 0 {
            let n = look(&self.gsi.sent, &mut done);
            self.outstanding = self.outstanding.saturating_sub(n as u32);
            if n < done.len() {
                break;
            }
        }
    }

    /// Posts a MAD if its peer's address is resolved; otherwise it waits, or is lost if the peer is unreachable.
    fn dispatch(&mut self, device: &Device, mad: Send) {
        // If the local address was removed, the MAD is lost; the timer of its sender handles that.
        if sgid_index(device, &mad.path.sgid).is_err() {
            self.lost.no_source += 1;
            return;
        }
        match device.path_of_answer(&mad.path.dgid) {
            PeerPath::Known if self.outstanding < SENDS => match self.gsi.post_send(device, &mad) {
                Ok(()) => self.outstanding += 1,
                Err(_) => self.lost.no_source += 1,
            },
            PeerPath::Known | PeerPath::Pending => {
                let refused = self.waiting.push(WAITING_MAX, mad.path.dgid, mad);
                self.lost.queue_full += u64::from(refused.is_some());
            }
            PeerPath::Unreachable => self.lost.unreachable += 1,
        }
    }

    /// Whether every posted send has completed.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.reap();
        self.outstanding == 0
    }
}

/// The GID index of a local address.
pub(super) fn sgid_index(device: &Device, gid: &Gid) -> Result<u8, VerbsError> {
    let gids = device.gids();
    let index = gids.iter().position(|g| g == gid).and_then(|i| u8::try_from(i).ok());
    index.ok_or_else(|| CmError::AddrNotAvail { addr: gid.to_ip() }.into())
}

/// The local address from which to reach a group: the identifier's own if it has the group's IP version, otherwise one that the device
/// chooses.
pub(super) fn sgid_for(device: &Device, local: IpAddr, group: IpAddr) -> Option<Gid> {
    let own = (!local.is_unspecified()).then(|| Gid::from_ip(local));
    let same = |g: &Gid| !g.is_zero() && g.to_ip().is_ipv4() == group.is_ipv4();
    own.filter(same).or_else(|| device.source_to(&Gid::from_ip(group), 0))
}

/// Checks that an index still belongs to the address, once an object holds the index; before, another address could have got it.
pub(super) fn still_there(device: &Device, gid: &Gid, index: u8) -> Result<(), VerbsError> {
    if sgid_index(device, gid)? == index {
        return Ok(());
    }
    Err(CmError::AddrNotAvail { addr: gid.to_ip() }.into())
}

/// The address vector of a path.
pub(super) fn ah_attr(path: &Path, sgid_index: u8) -> AhAttr {
    let grh = GlobalRoute {
        dgid: path.dgid,
        flow_label: path.flow_label,
        sgid_index,
        hop_limit: if path.hop_limit == 0 { 64 } else { path.hop_limit },
        traffic_class: path.traffic_class,
    };
    AhAttr { grh: Some(grh), sl: path.sl, port_num: 1, ..AhAttr::default() }
}
