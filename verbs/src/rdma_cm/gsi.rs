//! Queue pair 1: sending and receiving MADs.
//!
//! The send queue of queue pair 1 waits for no address resolution: it drops a MAD to an unresolved peer. So a MAD waits here, and
//! is posted when its peer's address is resolved. If no host answers it is lost, like any datagram.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use stack::cm::{MAD_LEN, Machine, Path, Send};
use stack::device::{Access, AhAttr, Gid};
use stack::device::{
    ChannelCore, CqInit, Device, GSI_QKEY, GlobalRoute, Instant, PeerPath, QpCap, QpType, Qpn, WcOpcode,
};

use super::error::CmError;
use crate::ah::{GRH_LEN, attr_from_wc};
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{Qp, QpInitAttr};
use crate::wc::Wc;
use crate::wr::{RecvWr, SendWr};

/// Posted receives, and at most as many outstanding sends.
const DEPTH: u32 = 256;
/// Bytes of a receive buffer: a network header and a MAD, in whole cache lines.
const STRIDE: usize = (GRH_LEN + MAD_LEN).next_multiple_of(64);
/// MADs that may wait for address resolution.
const WAITING_MAX: usize = 1024;
/// MADs handled in one call.
const BATCH: usize = 64;

/// Queue pair 1 of a device with its buffers. The order of the fields is the order of their drops.
#[derive(Debug)]
pub(super) struct Gsi {
    qp: Qp,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    /// Sends that have not completed.
    outstanding: u32,
    waiting: VecDeque<Send>,
    pub lost: Lost,
}

/// Messages that were lost on this side, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    /// No host answered for their destination address.
    pub unreachable: u64,
    /// Too many waited for address resolution.
    pub queue_full: u64,
    /// Their local source address was removed.
    pub no_source: u64,
    /// Received, with a network header that names no local address.
    pub not_ours: u64,
}

impl Lost {
    pub(super) fn iter(self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("send_unreachable", self.unreachable),
            ("send_waiting_full", self.queue_full),
            ("send_no_source", self.no_source),
            ("ignored_not_ours", self.not_ours),
        ]
        .into_iter()
    }
}

impl Gsi {
    /// Creates the queue pair and posts its receives. Its completion events ring the device's alarm.
    ///
    /// # Errors
    /// `EINVAL` where the program has created a GSI queue pair itself; any error of the device's calls.
    pub(super) fn open(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let pd = Pd::new(device.alloc_pd()?);
        let channel = ChannelCore::to_alarm(device)?;
        let cq = Cq::new(device.create_cq(&CqInit {
            cqe: 2 * DEPTH,
            channel: Some(&channel),
            context: 0,
            parent: None,
        })?);
        let mr = pd.reg_mr(DEPTH as usize * STRIDE, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MAD_LEN as u32,
        };
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Gsi, &cq, &cq).cap(cap).sig_all())?;
        let (waiting, lost) = (VecDeque::new(), Lost::default());
        let gsi = Self { qp, mr, cq, pd, outstanding: 0, waiting, lost };
        gsi.cq.req_notify(false)?;
        gsi.qp.activate_ud(GSI_QKEY)?;
        for slot in 0..DEPTH as usize {
            gsi.post_receive(slot)?;
        }
        Ok(gsi)
    }

    fn post_receive(&self, slot: usize) -> Result<(), VerbsError> {
        let sge = self.mr.sge(slot * STRIDE..slot * STRIDE + GRH_LEN + MAD_LEN)?;
        Ok(self.qp.post_recv(&[RecvWr::new(slot as u64, &[sge])])?)
    }

    /// Passes received MADs to the machine. Returns whether there may be more.
    pub(super) fn receive(&mut self, device: &Device, now: Instant, machine: &mut Machine) -> bool {
        // Armed first, so that a completion after the last poll rings the alarm.
        let _ = self.cq.req_notify(false); // it has a channel
        let mut done = [Wc::default(); BATCH];
        let n = self.look(&mut done);
        if n == 0 {
            return false;
        }
        let gids = device.gids();
        machine.set_gids(&gids);
        machine.set_mtu(device.active_mtu());
        for wc in &done[..n] {
            if !wc.opcode.is_recv() {
                self.outstanding = self.outstanding.saturating_sub(1);
                continue;
            }
            if wc.is_ok() {
                self.handle(now, machine, &gids, wc);
            }
            // The queue pair is always in a state that takes receives, and this one has just left the queue.
            let _ = self.post_receive(wc.wr_id as usize);
        }
        n == done.len()
    }

    /// Polls without driving a shard: this may run right after a turn, on its thread.
    fn look(&self, done: &mut [Wc]) -> usize {
        let mut n = 0;
        if let Ok(mut tap) = self.cq.core().tap().lock() {
            self.cq.core().poll_with(&mut tap, done.len(), |cqe| {
                done[n] = Wc::from_cqe(cqe);
                n += 1;
            });
        }
        n
    }

    fn handle(&mut self, now: Instant, machine: &mut Machine, gids: &[Gid], wc: &Wc) {
        let at = wc.wr_id as usize * STRIDE;
        let (mut grh, mut mad) = ([0; GRH_LEN], [0; MAD_LEN]);
        let len = (wc.byte_len as usize).saturating_sub(GRH_LEN).min(MAD_LEN);
        let read = self.mr.read(at, &mut grh).and_then(|()| self.mr.read(at + GRH_LEN, &mut mad[..len]));
        let attr = attr_from_wc(gids, wc, &grh);
        // The shard placed valid bytes there, so this fails only if the local address was removed meanwhile.
        let (Ok(()), Ok(AhAttr { grh: Some(grh), sl, .. })) = (read, attr) else {
            self.lost.not_ours += 1;
            return;
        };
        let path = Path {
            sgid: gids[usize::from(grh.sgid_index)],
            dgid: grh.dgid,
            flow_label: grh.flow_label,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            sl,
        };
        machine.handle_mad(now, &path, &mad[..len]);
    }

    /// Posts what the machine has to send, as far as there is room. Returns whether MADs wait for address resolution.
    pub(super) fn send(&mut self, device: &Device, machine: &mut Machine) -> bool {
        for _ in 0..self.waiting.len() {
            if let Some(mad) = self.waiting.pop_front() {
                self.dispatch(device, mad);
            }
        }
        while self.outstanding < DEPTH {
            let Some(mad) = machine.poll_send() else { break };
            self.dispatch(device, mad);
        }
        !self.waiting.is_empty()
    }

    fn dispatch(&mut self, device: &Device, mad: Send) {
        // If the local address was removed the MAD is lost; its sender's timer handles that.
        if sgid_index(device, &mad.path.sgid).is_err() {
            self.lost.no_source += 1;
            return;
        }
        match device.path_of_answer(&mad.path.dgid) {
            PeerPath::Known if self.outstanding < DEPTH => match self.post(device, &mad) {
                Ok(()) => self.outstanding += 1,
                Err(_) => self.lost.no_source += 1,
            },
            PeerPath::Known | PeerPath::Pending if self.waiting.len() < WAITING_MAX => {
                self.waiting.push_back(mad);
            }
            PeerPath::Unreachable => self.lost.unreachable += 1,
            PeerPath::Known | PeerPath::Pending => self.lost.queue_full += 1,
        }
    }

    fn post(&self, device: &Device, mad: &Send) -> Result<(), VerbsError> {
        let path = &mad.path;
        let index = sgid_index(device, &path.sgid)?;
        let ah = self.pd.create_ah(&ah_attr(path, index))?;
        still_there(device, &path.sgid, index)?;
        let wr = SendWr::send(0, &[]).inline(&mad.mad).to(&ah, Qpn::GSI, GSI_QKEY);
        Ok(self.qp.post_send(&[wr])?)
    }

    /// Whether every posted send has left. Drops received MADs: connection management is ending.
    pub(super) fn is_flushed(&mut self) -> bool {
        let mut done = [Wc::default(); BATCH];
        let n = self.look(&mut done);
        let sent = done[..n].iter().filter(|wc| wc.opcode == WcOpcode::Send).count() as u32;
        self.outstanding = self.outstanding.saturating_sub(sent);
        self.outstanding == 0
    }
}

/// The GID index of a local address.
pub(super) fn sgid_index(device: &Device, gid: &Gid) -> Result<u8, VerbsError> {
    let gids = device.gids();
    let index = gids.iter().position(|g| g == gid).and_then(|i| u8::try_from(i).ok());
    index.ok_or_else(|| CmError::AddrNotAvail { addr: gid.to_ip() }.into())
}

/// The local address from which a group is reached: the identifier's own, or one of the group's IP version.
pub(super) fn sgid_for(device: &Device, local: IpAddr, group: IpAddr) -> Option<Gid> {
    let own = (!local.is_unspecified()).then(|| Gid::from_ip(local));
    let same = |g: &Gid| !g.is_zero() && g.to_ip().is_ipv4() == group.is_ipv4();
    own.filter(same).or_else(|| device.gids().into_iter().rev().find(same))
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
