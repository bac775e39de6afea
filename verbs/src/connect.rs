//! Connecting an RC queue pair with endpoints that the two sides exchange out of band.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use stack::device::{Access, Device, Gid, Mtu, Psn, QpAttr, QpState, Qpn, required};

use crate::attr::{attr_init, attr_init_ud, attr_rtr, attr_rts, attr_rts_uc, attr_rts_ud, attr_to};
use crate::error::VerbsError;
use crate::qp::Qp;

/// What one side sends the other, out of band, to be connected: shown as `IP,QPN,PSN` and parsed from that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RcEndpoint {
    /// Address.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
}

impl fmt::Display for RcEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{:#08x},{:#08x}", self.gid.to_ip(), self.qpn.get(), self.psn.get())
    }
}

/// A text that is not an [`RcEndpoint`].
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

/// Attributes of an RC connection. By default the peer may WRITE, READ and do atomics, the path MTU is the port's, timeout 14
/// (67 ms), 7 retries, endless RNR retries, RNR timer 12 (0.64 ms), and 16 READ and atomic requests each way. What shall be
/// otherwise is set by the method that is named after the field: `RcOptions::default().timeout(16).retry_cnt(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RcOptions {
    /// Index of the local address in the GID table ([`Context::query_gid`](crate::Context::query_gid)). 0, the default,
    /// selects the address from which the peer is reached: the peer's own if that is local, else one on its subnet, else any
    /// of its IP version. For a peer with a link-local address that is index 0 itself.
    pub sgid_index: u8,
    /// Path MTU; the largest that the port carries where absent. Both sides need the same.
    pub path_mtu: Option<Mtu>,
    /// What the peer may do.
    pub access: Access,
    /// Hop limit (time to live).
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; with 0 the queue pair numbers determine the UDP source port.
    pub flow_label: u32,
    /// Service level, 0 to 7: the VLAN priority.
    pub sl: u8,
    /// Exponent of the local ACK timeout, 0 to 31: 4.096 us * 2^timeout; 0 waits for ever.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// Code of the delay that RNR NAKs ask the peer for, 0 to 31.
    pub min_rnr_timer: u8,
    /// READ and atomic requests outstanding as requester.
    pub max_rd_atomic: u8,
    /// READ and atomic requests outstanding as responder.
    pub max_dest_rd_atomic: u8,
}

impl RcOptions {
    /// With this path MTU.
    #[must_use]
    pub fn path_mtu(mut self, path_mtu: impl Into<Option<Mtu>>) -> Self {
        self.path_mtu = path_mtu.into();
        self
    }
    /// From the address at this index of the GID table.
    #[must_use]
    pub const fn sgid_index(mut self, sgid_index: u8) -> Self {
        self.sgid_index = sgid_index;
        self
    }
    /// The peer may do this.
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// With this hop limit.
    #[must_use]
    pub const fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }
    /// With this DSCP and ECN.
    #[must_use]
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }
    /// With this flow label.
    #[must_use]
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }
    /// With this service level.
    #[must_use]
    pub const fn sl(mut self, sl: u8) -> Self {
        self.sl = sl;
        self
    }
    /// With this exponent of the local ACK timeout.
    #[must_use]
    pub const fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }
    /// With so many transport retries.
    #[must_use]
    pub const fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }
    /// With so many RNR retries.
    #[must_use]
    pub const fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }
    /// With this code of the delay that RNR NAKs ask for.
    #[must_use]
    pub const fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }
    /// With so many READ and atomic requests outstanding as requester.
    #[must_use]
    pub const fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = max_rd_atomic;
        self
    }
    /// With so many READ and atomic requests outstanding as responder.
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
    /// INIT to RTR: the path to `peer`, and what it may ask for.
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

/// The index of the address from which a peer is reached, or would be if there were a route; 0 without any of its IP
/// version.
fn index_towards(device: &Device, peer: &Gid) -> u8 {
    let gids = device.gids();
    let source = device.source_to(peer, 0).and_then(|source| gids.iter().position(|gid| *gid == source));
    let of_its_version = || gids.iter().position(|gid| !gid.is_zero() && gid.same_family(peer));
    source.or_else(of_its_version).and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

impl Qp {
    /// What to send to the peer out of band: the local address at `sgid_index`, this queue pair's number and its first PSN,
    /// which was drawn at random when the queue pair was created.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn endpoint(&self, sgid_index: u8) -> Result<RcEndpoint, VerbsError> {
        let gid = self.gid(sgid_index)?;
        Ok(RcEndpoint { gid, qpn: self.qp_num(), psn: self.first_psn() })
    }

    /// RESET to INIT, so that receives can be posted before the peer learns of the queue pair.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn init_rc(&self, options: &RcOptions) -> Result<(), VerbsError> {
        let (attr, mask) = attr_init(options.access);
        self.modify(&attr, mask)
    }

    /// Connects an RC queue pair, or an XRC initiator, to `peer`: from RESET (or INIT, after [`init_rc`](Self::init_rc)) to RTS.
    ///
    /// Returns as soon as the queue pair is ready; the peer's Ethernet address is resolved meanwhile, and posted requests
    /// wait for it.
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

    /// Connects a UC queue pair to `peer`, as [`connect_rc`](Self::connect_rc) does an RC one. Of the options, timeout,
    /// retries, RNR timer and READ and atomic depths mean nothing to UC.
    ///
    /// # Errors
    /// As [`connect_rc`](Self::connect_rc).
    pub fn connect_uc(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        self.init_connected(options)?;
        self.modify_to_rtr(peer, options)?;
        let (attr, mask) = attr_rts_uc(self.first_psn());
        self.modify(&attr, mask)
    }

    /// Brings a UD queue pair from RESET (or INIT) to RTS with the Q_Key `qkey`, below 0x80000000. Queue pair 1 (GSI) has
    /// the Q_Key [`GSI_QKEY`](crate::GSI_QKEY), whatever is given here.
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

    /// The state that a bring-up starts from.
    fn starts_at(&self) -> Result<QpState, VerbsError> {
        match self.state()? {
            from @ (QpState::Reset | QpState::Init) => Ok(from),
            found => Err(VerbsError::WrongState { found, wanted: "connecting starts from RESET or INIT" }),
        }
    }

    fn init_connected(&self, options: &RcOptions) -> Result<(), VerbsError> {
        if self.starts_at()? == QpState::Reset { self.init_rc(options) } else { Ok(()) }
    }

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
