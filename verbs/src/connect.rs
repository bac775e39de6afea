//! Connecting RC and UC queue pairs by endpoints that the two sides exchange out of band.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use stack::device::{Access, Device, Gid, Mtu, Psn, QpAttr, QpState, Qpn, required};

use crate::attr::{attr_init, attr_init_ud, attr_rtr, attr_rts, attr_rts_uc, attr_rts_ud, attr_to};
use crate::error::VerbsError;
use crate::qp::Qp;

/// What each side sends to the other, out of band, in order to connect. Its text form is `IP,QPN,PSN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RcEndpoint {
    /// The GID, made from the IP address.
    pub gid: Gid,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that this side sends.
    pub psn: Psn,
}

impl fmt::Display for RcEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{:#08x},{:#08x}", self.gid.to_ip(), self.qpn.get(), self.psn.get())
    }
}

/// The error for a text that is not an [`RcEndpoint`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not an endpoint; it is written IP,QPN,PSN as in 10.0.0.1,0x1234ab,0x000100")]
pub struct ParseEndpointError(String);

impl FromStr for RcEndpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.trim().split(',');
            let ip: IpAddr = parts.next()?.trim().parse().ok()?;
            let mut number = || {
                let part = parts.next()?.trim();
                let n = match part.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => part.parse(),
                };
                // `parse` accepts a leading `+`.
                n.ok().filter(|n| *n < 1 << 24 && !part.contains('+'))
            };
            let endpoint = Self { gid: Gid::from_ip(ip), qpn: Qpn::new(number()?), psn: Psn::new(number()?) };
            parts.next().is_none().then_some(endpoint)
        };
        parse().ok_or_else(|| ParseEndpointError(text.into()))
    }
}

/// Options of an RC connection. By default the peer may WRITE, READ and do atomics, the path MTU is the port's, the timeout code is 14 (67
/// ms), with 7 retries, unlimited RNR retries, RNR timer code 12 (0.64 ms), and 16 outstanding READ and atomic requests in each direction.
/// Each field has a method of its name that changes it: `RcOptions::default().timeout(16).retry_cnt(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RcOptions {
    /// Index of the local address in the GID table ([`Context::query_gid`](crate::Context::query_gid)). With 0, the default, the stack
    /// chooses the address from which the peer is reached: the peer's own if that is local, otherwise one on its subnet, otherwise any of
    /// its IP version. For a peer with a link-local address that is index 0 itself.
    pub sgid_index: u8,
    /// Path MTU, which must be the same on both sides. `None` selects the largest that the port supports.
    pub path_mtu: Option<Mtu>,
    /// The access rights of the peer.
    pub access: Access,
    /// Hop limit (time to live).
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits. With 0 the UDP source port is derived from the queue pair numbers.
    pub flow_label: u32,
    /// Service level, 0 to 7: the VLAN priority.
    pub sl: u8,
    /// Exponent of the local ACK timeout, 0 to 31: 4.096 us * 2^timeout; 0 disables the timeout.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries, 0 to 6; 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the delay that RNR NAKs request from the peer, 0 to 31.
    pub min_rnr_timer: u8,
    /// Maximum of outstanding READ and atomic requests as requester.
    pub max_rd_atomic: u8,
    /// Maximum of outstanding READ and atomic requests as responder.
    pub max_dest_rd_atomic: u8,
}

impl RcOptions {
    /// Sets the path MTU.
    #[must_use]
    pub fn path_mtu(mut self, path_mtu: impl Into<Option<Mtu>>) -> Self {
        self.path_mtu = path_mtu.into();
        self
    }
    /// Sets the index of the local address in the GID table.
    #[must_use]
    pub const fn sgid_index(mut self, sgid_index: u8) -> Self {
        self.sgid_index = sgid_index;
        self
    }
    /// Sets the access rights of the peer.
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// Sets the hop limit.
    #[must_use]
    pub const fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }
    /// Sets DSCP and ECN.
    #[must_use]
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }
    /// Sets the flow label.
    #[must_use]
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }
    /// Sets the service level.
    #[must_use]
    pub const fn sl(mut self, sl: u8) -> Self {
        self.sl = sl;
        self
    }
    /// Sets the exponent of the local ACK timeout.
    #[must_use]
    pub const fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }
    /// Sets the number of transport retries.
    #[must_use]
    pub const fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }
    /// Sets the number of RNR retries.
    #[must_use]
    pub const fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }
    /// Sets the code of the delay that RNR NAKs request.
    #[must_use]
    pub const fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }
    /// Sets the maximum of outstanding READ and atomic requests as requester.
    #[must_use]
    pub const fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = max_rd_atomic;
        self
    }
    /// Sets the maximum of outstanding READ and atomic requests as responder.
    #[must_use]
    pub const fn max_dest_rd_atomic(mut self, max_dest_rd_atomic: u8) -> Self {
        self.max_dest_rd_atomic = max_dest_rd_atomic;
        self
    }
}

impl Default for RcOptions {
    fn default() -> Self {
        Self {
            sgid_index: 0,
            path_mtu: None,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }
}

impl RcOptions {
    /// The attributes for INIT to RTR: the path to `peer`, and limits of its requests.
    pub(crate) fn rtr(&self, device: &Device, peer: &RcEndpoint) -> QpAttr {
        let path_mtu = self.path_mtu.unwrap_or(device.port_attr().active_mtu);
        let sgid_index = match self.sgid_index {
            0 => index_towards(device, &peer.gid),
            index => index,
        };
        let (mut attr, _) = attr_rtr(peer.gid, sgid_index, peer.qpn, peer.psn, path_mtu);
        attr.ah_attr.sl = self.sl;
        if let Some(grh) = &mut attr.ah_attr.grh {
            grh.hop_limit = self.hop_limit;
            grh.traffic_class = self.traffic_class;
            grh.flow_label = self.flow_label;
        }
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr
    }
}

/// The GID index of the address from which a peer is reached, or would be reached if there were a route. 0 if there is none of the peer's
/// IP version.
fn index_towards(device: &Device, peer: &Gid) -> u8 {
    let gids = device.gids();
    let source = device.source_to(peer, 0).and_then(|source| gids.iter().position(|gid| *gid == source));
    let of_its_version = || gids.iter().position(|gid| !gid.is_zero() && gid.same_family(peer));
    source.or_else(of_its_version).and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

impl Qp {
    /// What to send to the peer out of band: the local address at `sgid_index`, this queue pair's number and its first PSN, which was
    /// chosen at random when the queue pair was created.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn endpoint(&self, sgid_index: u8) -> Result<RcEndpoint, VerbsError> {
        let gid = self.gid(sgid_index)?;
        Ok(RcEndpoint { gid, qpn: self.qp_num(), psn: self.first_psn() })
    }

    /// Moves the queue pair from RESET to INIT, so that receives can be posted before the peer gets the endpoint.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn init_rc(&self, options: &RcOptions) -> Result<(), VerbsError> {
        let (attr, mask) = attr_init(options.access);
        self.modify(&attr, mask)
    }

    /// Connects an RC queue pair or an XRC initiator to `peer`: moves it from RESET (or INIT, after [`init_rc`](Self::init_rc)) to RTS.
    ///
    /// Returns as soon as the queue pair is in RTS. The peer's Ethernet address is resolved in the background, and posted requests wait for
    /// it.
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig, QpInitAttr, QpState, RcEndpoint, RcOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
    /// // Endpoints are exchanged as text, over TCP for example; here the peer is the queue pair itself.
    /// let ours = qp.endpoint(1)?.to_string();
    /// let theirs: RcEndpoint = ours.parse()?;
    /// qp.connect_rc(&theirs, &RcOptions::default().timeout(14))?;
    /// assert_eq!(qp.state()?, QpState::Rts);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`VerbsError::WrongState`] from another state, or as [`Qp::modify`].
    pub fn connect_rc(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        self.init_connected(options)?;
        self.modify_to_rtr(peer, options)?;

        let (mut attr, mask) = attr_rts(self.first_psn());
        attr.timeout = options.timeout;
        attr.retry_cnt = options.retry_cnt;
        attr.rnr_retry = options.rnr_retry;
        attr.max_rd_atomic = options.max_rd_atomic;
        self.modify(&attr, mask)
    }

    /// Connects a UC queue pair to `peer`, as [`connect_rc`](Self::connect_rc) does for RC. The options for timeout, retries, RNR timer and
    /// READ and atomic depth have no effect.
    ///
    /// # Errors
    /// As [`connect_rc`](Self::connect_rc).
    pub fn connect_uc(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        self.init_connected(options)?;
        self.modify_to_rtr(peer, options)?;
        let (attr, mask) = attr_rts_uc(self.first_psn());
        self.modify(&attr, mask)
    }

    /// Moves a UD queue pair from RESET (or INIT) to RTS with the Q_Key `qkey`, which must be below 0x80000000. Queue pair 1 (GSI) always
    /// has the Q_Key [`GSI_QKEY`](crate::GSI_QKEY).
    ///
    /// # Errors
    /// [`VerbsError::WrongState`] from another state, or as [`Qp::modify`].
    pub fn activate_ud(&self, qkey: u32) -> Result<(), VerbsError> {
        if self.starts_at()? == QpState::Reset {
            let (attr, _) = attr_init_ud(qkey);
            self.modify(&attr, required(QpState::Reset, QpState::Init, self.qp_type()))?;
        }
        let (attr, mask) = attr_to(QpState::Rtr);
        self.modify(&attr, mask)?;
        let (attr, mask) = attr_rts_ud(self.first_psn());
        self.modify(&attr, mask)
    }

    /// The current state, if a queue pair can be brought up from it.
    fn starts_at(&self) -> Result<QpState, VerbsError> {
        match self.state()? {
            from @ (QpState::Reset | QpState::Init) => Ok(from),
            found => Err(VerbsError::WrongState { found, wanted: "connecting starts from RESET or INIT" }),
        }
    }

    /// Moves the queue pair to INIT, unless it is in INIT already.
    fn init_connected(&self, options: &RcOptions) -> Result<(), VerbsError> {
        if self.starts_at()? == QpState::Reset { self.init_rc(options) } else { Ok(()) }
    }

    /// Moves the queue pair from INIT to RTR.
    fn modify_to_rtr(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        let attr = options.rtr(self.core().device(), peer);
        self.modify(&attr, required(QpState::Init, QpState::Rtr, self.qp_type()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_back_from_their_text() {
        for ip in ["10.0.0.1", "fd00::7"] {
            let e = RcEndpoint {
                gid: Gid::from_ip(ip.parse().unwrap()),
                qpn: Qpn::new(0xabcdef),
                psn: Psn::new(0x100),
            };
            assert_eq!(e.to_string(), format!("{ip},0xabcdef,0x000100"));
            assert_eq!(e.to_string().parse(), Ok(e));
        }
        let decimal: RcEndpoint = "10.0.0.1,17,256\n".parse().unwrap();
        assert_eq!((decimal.qpn.get(), decimal.psn.get()), (17, 256));
        for bad in ["", "10.0.0.1", "10.0.0.1,1", "x,1,1", "10.0.0.1,0x1000000,1", "10.0.0.1,1,1,1"] {
            assert!(bad.parse::<RcEndpoint>().is_err(), "{bad:?}");
        }
    }
}
