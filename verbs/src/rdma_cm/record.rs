//! The record of an identifier.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stack::device::cm::{
    ConnId, Connect, Path, QpParams, Request, Shares, SidrId, SidrReply, SidrStatus, Timing,
};
use stack::device::{
    AttrMask, Device, Gid, Instant, Mtu, QpAttr, QpState, QpType, Qpn, cm_init, cm_rtr, cm_rts,
};

use super::error::CmError;
use super::event::EventData;
use super::farewell::Ready;
use super::gsi::{sgid_index, still_there};
use super::param::{CmOptions, PortSpace};
use super::ports::Family;
use super::state::IdState;
use crate::attr::attr_to;
use crate::error::VerbsError;
use crate::qp::Qp;

/// The value of [`CmOption::KeepAlive`](super::CmOption::KeepAlive) if it was not set.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// An identifier.
pub(super) struct Id {
    pub space: PortSpace,
    /// The type of its queue pair.
    pub qp_type: QpType,
    pub state: IdState,
    /// The queue of its events: that of its channel, or its own.
    pub queue: u64,
    pub context: u64,
    pub options: CmOptions,
    /// The local address. Its port is 0 until one is bound.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The bound port. `None` for an incoming connection, which shares its listener's port.
    pub port: Option<u16>,
    pub path: Path,
    /// The time at which address resolution times out.
    pub deadline: Instant,
    pub conn: Option<ConnId>,
    /// The message to the peer in case a signal ends the process; set while the connection is established.
    pub farewell: Option<Ready>,
    pub sidr: Option<SidrId>,
    pub request: Option<Request>,
    /// The request that it sent, until the peer answers.
    pub asked: Option<Box<Connect>>,
    /// The agreed attributes of its queue pair.
    pub params: Option<QpParams>,
    pub qp: Option<Arc<Qp>>,
    /// How many frames the queue pair had received when the request was accepted.
    pub frames: u64,
    /// The multicast groups that it joined, and whether its queue pair is attached to each.
    pub groups: Vec<(Gid, bool)>,
    /// For a listener: how many requests may wait to be fetched.
    pub backlog: u32,
    /// For a listener: the requests that wait to be fetched, by peer.
    pub unfetched: Shares<u64>,
    /// For a request that waits to be fetched: the listener in whose backlog it counts.
    pub listener: Option<u64>,
    /// Number of events that were fetched and not acknowledged.
    pub unacked: u32,
    /// The event that the last synchronous call waited for.
    pub last: Option<EventData>,
}

impl Id {
    pub(super) fn new(space: PortSpace, qp_type: QpType, queue: u64) -> Self {
        Self {
            space,
            qp_type,
            state: IdState::Idle,
            queue,
            context: 0,
            options: CmOptions::default(),
            local: None,
            peer: None,
            port: None,
            path: Path::default(),
            deadline: Instant::ZERO,
            conn: None,
            farewell: None,
            sidr: None,
            request: None,
            asked: None,
            params: None,
            qp: None,
            frames: 0,
            groups: Vec::new(),
            backlog: 0,
            unfetched: Shares::default(),
            listener: None,
            unacked: 0,
            last: None,
        }
    }

    /// Whether it is for datagrams, and so has no connection.
    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// The port space whose messages have the same room for private data as its own messages.
    pub(super) fn room(&self) -> PortSpace {
        if self.is_ud() { PortSpace::Udp } else { PortSpace::Tcp }
    }

    /// Fails unless the identifier is in one of these states.
    pub(super) fn expect(
        &self,
        call: &'static str,
        states: &[IdState],
        wanted: &'static str,
    ) -> Result<(), CmError> {
        if states.contains(&self.state) {
            Ok(())
        } else {
            Err(CmError::State { call, found: self.state, wanted })
        }
    }

    /// The IP versions that it accepts if it is bound to the wildcard `addr`.
    pub(super) fn family(&self, addr: IpAddr) -> Family {
        match addr {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(a) if a.is_unspecified() && !self.options.af_only => Family::Both,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Whether packets from this local address can reach a destination by IP version. The wildcard stands for any local address.
    pub(super) fn reaches(&self, src: IpAddr, dst: IpAddr) -> bool {
        match self.family(src) {
            Family::V4 => dst.is_ipv4(),
            Family::V6 => dst.is_ipv6(),
            Family::Both => true,
        }
    }

    /// How specifically a listener matches a destination: 0 for no match, 1 for a match by the wildcard, 2 by the address.
    pub(super) fn serves(&self, dst: IpAddr) -> u8 {
        match self.local.map(|l| l.ip()) {
            Some(own) if own == dst => 2,
            Some(own) if own.is_unspecified() => match (self.family(own), dst) {
                (Family::V4, IpAddr::V4(_)) | (Family::V6, IpAddr::V6(_)) | (Family::Both, _) => 1,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// The timeouts of its exchanges.
    pub(super) fn timing(&self) -> Timing {
        let usual = Timing::default();
        let o = &self.options;
        Timing {
            // The ACK timeout is twice the packet lifetime (IBA 12.7.34, assuming no delay at the other end).
            packet_lifetime: o.ack_timeout.map_or(usual.packet_lifetime, |t| t.saturating_sub(1)),
            remote_response: o.cm_response_timeout.unwrap_or(usual.remote_response),
            local_response: o.cm_response_timeout.unwrap_or(usual.local_response),
            max_cm_retries: o.max_cm_retries.unwrap_or(usual.max_cm_retries),
        }
    }

    /// How often its peer is asked whether it still has the connection; `None` for never.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        let time = self.options.keep_alive.unwrap_or(KEEP_ALIVE);
        Some(time).filter(|time| !time.is_zero() && self.qp_type == QpType::Rc)
    }

    /// The path MTU that it has requested or will request.
    pub(super) fn mtu(&self, device: &Device) -> Mtu {
        let asked = self.asked.as_ref().map(|asked| asked.mtu);
        asked.or(self.options.path_mtu).unwrap_or_else(|| device.path_mtu_to(&self.path.dgid))
    }

    /// The path MTU of its connection: the agreed one, the one that the peer requested, or the one of its own request.
    pub(super) fn path_mtu(&self, device: &Device) -> Mtu {
        let agreed = self.params.map(|params| params.path_mtu);
        agreed.or(self.request.as_ref().map(|request| request.mtu)).unwrap_or_else(|| self.mtu(device))
    }

    /// The attributes of the queue pair, as overridden by the program's options.
    pub(super) fn tuned(&self, params: QpParams) -> QpParams {
        QpParams { timeout: self.options.ack_timeout.unwrap_or(params.timeout), ..params }
    }

    /// Whether the peer may believe that it is connected.
    pub(super) fn had_connection(&self) -> bool {
        use IdState::{Accepting, Connected, Connecting, Disconnecting, Responded};
        !self.is_ud() && matches!(self.state, Accepting | Connected | Connecting | Disconnecting | Responded)
    }

    /// Moves the queue pair to ERR, which flushes its requests.
    pub(super) fn qp_to_err(&self) {
        if let Some(qp) = &self.qp
            && qp.state().is_ok_and(|s| !matches!(s, QpState::Reset | QpState::Err))
        {
            let (attr, mask) = attr_to(QpState::Err);
            // Cannot fail: ERR can be entered from every state, and this is never called from inside a turn.
            let _ = qp.modify(&attr, mask);
        }
    }

    /// Moves the queue pair from INIT to RTS, or from RESET if the identifier did not create it.
    pub(super) fn qp_to_rts(&self, device: &Device, params: &QpParams) -> Result<(), VerbsError> {
        let Some(qp) = &self.qp else { return Ok(()) };
        if qp.state()? == QpState::Reset {
            let (init, mask) = cm_init();
            qp.modify(&init, mask)?;
        }
        let (rtr, mask) = self.rtr(device, params)?;
        qp.modify(&rtr, mask)?;
        if let Some(grh) = rtr.ah_attr.grh {
            still_there(device, &params.path.sgid, grh.sgid_index)?;
        }
        let (rts, mask) = cm_rts(params);
        qp.modify(&rts, mask)
    }

    /// The attributes for INIT to RTR.
    pub(super) fn rtr(&self, device: &Device, params: &QpParams) -> Result<(QpAttr, AttrMask), VerbsError> {
        Ok(cm_rtr(params, sgid_index(device, &params.path.sgid)?))
    }

    /// Leaves every multicast group.
    pub(super) fn leave_groups(&mut self) {
        if let Some(qp) = &self.qp {
            for (group, _) in self.groups.drain(..).filter(|(_, attached)| *attached) {
                let _ = qp.detach_mcast(group, 0); // it is attached
            }
        }
    }
}

/// The reply of a datagram service that refuses a request.
pub(super) fn refusal(private_data: Vec<u8>) -> SidrReply {
    SidrReply { status: SidrStatus::REJECT, qpn: Qpn::new(0), qkey: 0, info: Vec::new(), private_data }
}
