//! Queue pair 1: sending and receiving MADs.
//!
//! The send queue of queue pair 1 waits for no address resolution: it drops a MAD to an unresolved peer. So a MAD waits here, and
//! is posted when its peer's address is resolved. If no host answers it is lost, like any datagram.

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

/// Receives. They are free again as soon as a thread has turned the shard, however busy connection management is: see
/// [`Inbox`](super::inbox::Inbox).
pub(super) const RECEIVES: u32 = 1024;
/// Outstanding sends, at most.
const SENDS: u32 = 256;
/// Bytes of a receive buffer: a network header and a MAD, in whole cache lines.
pub(super) const STRIDE: usize = (GRH_LEN + MAD_LEN).next_multiple_of(64);
/// MADs of all hosts that may wait for address resolution. If there are more, the host with most of them loses one.
const WAITING_MAX: usize = 4096;
/// MADs that wait, looked at in one call.
const LOOKS: usize = 256;
/// Completions taken at once.
pub(super) const BATCH: usize = 64;

/// Queue pair 1 of a device with its buffers. The order of the fields is the order of their drops.
#[derive(Debug)]
pub(super) struct Gsi {
    qp: Qp,
    pub mr: Mr,
    pub received: Cq,
    sent: Cq,
    pd: Pd,
}

impl Gsi {
    /// Creates the queue pair and posts its receives. Its completion events ring the device's alarm.
    ///
    /// # Errors
    /// `EINVAL` where the program has created a GSI queue pair itself; any error of the device's calls.
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

    pub(super) fn post_receive(&self, slot: usize) -> Result<(), VerbsError> {
        let sge = self.mr.sge(slot * STRIDE..slot * STRIDE + GRH_LEN + MAD_LEN)?;
        Ok(self.qp.post_recv(&[RecvWr::new(slot as u64, &[sge])])?)
    }

    fn post_send(&self, device: &Device, mad: &Send) -> Result<(), VerbsError> {
        let path = &mad.path;
        let index = sgid_index(device, &path.sgid)?;
        let ah = self.pd.create_ah(&ah_attr(path, index))?;
        still_there(device, &path.sgid, index)?;
        let wr = SendWr::send(0, &[]).inline(&mad.mad).to(&ah, Qpn::GSI, GSI_QKEY);
        Ok(self.qp.post_send(&[wr])?)
    }
}

/// Polls without driving a shard: this may run right after a turn, on its thread.
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

/// Messages that were lost before they were sent, by reason.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    /// No host answered for their destination address.
    unreachable: u64,
    /// Too many waited for address resolution.
    queue_full: u64,
    /// Their local source address was removed.
    no_source: u64,
}

/// The sends of queue pair 1.
#[derive(Debug)]
pub(super) struct Outbox {
    gsi: Arc<Gsi>,
    /// Sends that have not completed.
    outstanding: u32,
    /// MADs that wait for address resolution.
    waiting: Fair<Send>,
    lost: Lost,
}

impl Outbox {
    pub(super) fn new(gsi: Arc<Gsi>) -> Self {
        Self { gsi, outstanding: 0, waiting: Fair::default(), lost: Lost::default() }
    }

    /// Counters of what was lost.
    pub(super) fn lost(&self) -> [(&'static str, u64); 3] {
        let Lost { unreachable, queue_full, no_source } = self.lost;
        [("send_unreachable", unreachable), ("send_waiting_full", queue_full), ("send_no_source", no_source)]
    }

    /// Posts what waited for address resolution, where that is over.
    pub(super) fn send_resolved(&mut self, device: &Device) {
        self.reap();
        for _ in 0..self.waiting.len().min(LOOKS) {
            if let Some(mad) = self.waiting.pop() {
                self.dispatch(device, mad);
            }
        }
    }

    /// Posts what the machine has to send, as far as there is room: the rest stays there until the alarm rings. Returns whether MADs
    /// wait for address resolution.
    pub(super) fn send(&mut self, device: &Device, machine: &mut Machine) -> bool {
        self.reap();
        while self.outstanding < SENDS {
            let Some(mad) = machine.poll_send() else { break };
            self.dispatch(device, mad);
        }
        if self.outstanding == SENDS {
            // Armed, then looked at again: a completion in between would ring nothing.
            let _ = self.gsi.sent.req_notify(false); // it has a channel
            self.reap();
            if self.outstanding < SENDS {
                device.alarm().ring();
            }
        }
        !self.waiting.is_empty()
    }

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

    fn dispatch(&mut self, device: &Device, mad: Send) {
        // If the local address was removed the MAD is lost; its sender's timer handles that.
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

    /// Whether every posted send has left.
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

/// The local address from which a group is reached: the identifier's own if it is of the group's IP version, or the device's choice.
pub(super) fn sgid_for(device: &Device, local: IpAddr, group: IpAddr) -> Option<Gid> {
    let own = (!local.is_unspecified()).then(|| Gid::from_ip(local));
    let same = |g: &Gid| !g.is_zero() && g.to_ip().is_ipv4() == group.is_ipv4();
    own.filter(same).or_else(|| device.source_to(&Gid::from_ip(group), 0))
}

/// Checks that an index still belongs to the address, now that an object holds it: until then another address could get it.
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
