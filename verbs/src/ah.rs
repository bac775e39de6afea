//! Address handles: the path to the peer of a datagram.

use stack::device::{AhAttr, AhCore, Gid, GlobalRoute, WcFlags};

use crate::context::Context;
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::wc::Wc;

/// Length in bytes of the network header at the start of a datagram's receive buffers: an IPv6 header, or 20 bytes of zeros and an IPv4
/// header (IBA 11.4.1.2, A17). A receive request needs room for it and for the payload.
pub const GRH_LEN: usize = 40;

/// An address handle (`struct ibv_ah`): the path to a peer, for datagrams of queue pairs of the same protection domain.
///
/// A posted request carries a copy, so the handle may be dropped as soon as the post call has returned. While the handle exists, its source
/// address remains usable, even after that address is removed from the port. If the source address of a request is neither on the port nor
/// held by a handle when the request is sent, the datagram is dropped ([`Discard::NoSource`](crate::Discard::NoSource)).
///
/// ```
/// use verbs::{Access, Context, DeviceConfig, GRH_LEN, QpInitAttr, RecvWr, SendWr, Wc, ah_attr_to};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(DeviceConfig::loopback())?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
/// let cq = context.create_cq(16)?;
/// let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq))?;
/// qp.activate_ud(0x1234)?;
///
/// // To ourselves; the first 40 bytes of the receive are for the network header.
/// let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1)?, 1))?;
/// qp.post_recv(&[RecvWr::new(1, &[mr.sge(0..GRH_LEN + 100)?])])?;
/// qp.post_send(&[SendWr::send(2, &[]).inline(b"hello").to(&ah, qp.qp_num(), 0x1234)])?;
/// let mut done = [Wc::default()];
/// while cq.poll(&mut done)? == 0 {}
/// assert_eq!((done[0].byte_len, done[0].src_qp), (45, qp.qp_num()));
/// assert_eq!(mr.to_vec(GRH_LEN..GRH_LEN + 5)?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_ah")]
pub struct Ah {
    core: AhCore,
}

impl Ah {
    pub(crate) fn core(&self) -> &AhCore {
        &self.core
    }
    /// The attributes that it was created with.
    pub fn attr(&self) -> &AhAttr {
        self.core.attr()
    }
    /// Frees the address handle. Cannot fail, because posted requests carry a copy.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(self) {}
}

/// The address vector for `dgid`, from the local address at `sgid_index`, on port 1, with hop limit 64.
pub fn ah_attr_to(dgid: Gid, sgid_index: u8) -> AhAttr {
    let grh = GlobalRoute { dgid, sgid_index, hop_limit: 64, ..GlobalRoute::default() };
    AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() }
}

impl Pd {
    /// Creates an address handle. Does not resolve the peer's Ethernet address. Datagrams to a peer that does not answer wait until address
    /// resolution gives up (1.25 s), and are then lost.
    ///
    /// # Errors
    /// `EINVAL` without a global route; for a GID index, service level or flow label out of range; and for a destination of another IP
    /// version than the local address ([`AvError`](crate::AvError)).
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, VerbsError> {
        Ok(Ah { core: self.core().create_ah(attr)? })
    }

    /// Creates the address handle for a reply to a datagram: [`Context::init_ah_from_wc`], then [`create_ah`](Self::create_ah). The queue
    /// pair to reply to is [`Wc::src_qp`].
    ///
    /// # Errors
    /// Those of the two calls.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from_wc(&self, wc: &Wc, grh: &[u8; GRH_LEN]) -> Result<Ah, VerbsError> {
        self.create_ah(&attr_from_wc(&self.core().device().gids(), wc, grh)?)
    }
}

impl Context {
    /// The address vector for a reply to a datagram, from its completion and the first [`GRH_LEN`] bytes of its receive buffers. The reply
    /// to a multicast datagram is sent from the first local address of the same IP version.
    ///
    /// # Errors
    /// [`VerbsError::NoNetworkHeader`] if the completion is not of a datagram, the bytes are not a network header, or its destination is
    /// not a local address.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn init_ah_from_wc(&self, wc: &Wc, grh: &[u8; GRH_LEN]) -> Result<AhAttr, VerbsError> {
        attr_from_wc(&self.gid_table(), wc, grh)
    }

    /// Corrects the source address of an address vector to a multicast group. If `sgid_index` names an address of the other IP version than
    /// the group's, it is replaced by the index of the first local address of the group's version. Programs that choose their own MGIDs may
    /// name any local address, because NICs do not compare the versions. Unicast vectors are returned unchanged, and so is a vector to a
    /// group if the port has no address of the group's version.
    #[must_use]
    pub fn ah_attr_to_group(&self, attr: AhAttr) -> AhAttr {
        let Some(grh) = attr.grh.filter(|grh| grh.dgid.is_multicast()) else { return attr };
        let gids = self.gid_table();
        let of_version = |gid: &Gid| !gid.is_zero() && gid.same_family(&grh.dgid);
        let other = gids.get(usize::from(grh.sgid_index)).is_some_and(|gid| !of_version(gid));
        let index = gids.iter().position(of_version).filter(|_| other).and_then(|i| u8::try_from(i).ok());
        let sgid_index = index.unwrap_or(grh.sgid_index);
        AhAttr { grh: Some(GlobalRoute { sgid_index, ..grh }), ..attr }
    }
}

/// The implementation of [`Context::init_ah_from_wc`], with the GID table as an argument.
pub(crate) fn attr_from_wc(gids: &[Gid], wc: &Wc, grh: &[u8; GRH_LEN]) -> Result<AhAttr, VerbsError> {
    let fail = |reason| VerbsError::NoNetworkHeader { reason };
    if !wc.is_ok() || !wc.wc_flags.contains(WcFlags::GRH) {
        return Err(fail("the completion is not of a datagram that arrived"));
    }
    let header = NetworkHeader::read(grh).ok_or(fail("the bytes are neither an IPv4 nor an IPv6 header"))?;
    let ours = |gid: &Gid| {
        if header.dst.is_multicast() {
            gid.as_v4().is_some() == header.dst.as_v4().is_some()
        } else {
            *gid == header.dst
        }
    };
    let index = gids.iter().position(ours).and_then(|i| u8::try_from(i).ok());
    let route = GlobalRoute {
        dgid: header.src,
        flow_label: header.flow_label,
        sgid_index: index.ok_or(fail("its destination is none of our addresses"))?,
        hop_limit: 64,
        traffic_class: header.traffic_class,
    };
    Ok(AhAttr { grh: Some(route), sl: wc.sl, port_num: 1, ..AhAttr::default() })
}

/// The fields of an IPv4 or IPv6 header that are needed for a reply.
struct NetworkHeader {
    src: Gid,
    dst: Gid,
    traffic_class: u8,
    flow_label: u32,
}

impl NetworkHeader {
    /// Parses the 40 bytes. With IPv4 the first 20 bytes are arbitrary and may look like IPv6 by chance, so an IPv4 header with a valid
    /// checksum takes precedence.
    fn read(grh: &[u8; GRH_LEN]) -> Option<Self> {
        let v4 = &grh[20..];
        if v4[0] == 0x45 && (grh[0] >> 4 != 6 || checksum_is_right(v4)) {
            let gid = |at: usize| Gid::v4([v4[at], v4[at + 1], v4[at + 2], v4[at + 3]]);
            return Some(Self { src: gid(12), dst: gid(16), traffic_class: v4[1], flow_label: 0 });
        }
        if grh[0] >> 4 != 6 {
            return None;
        }
        let gid = |at: usize| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&grh[at..at + 16]);
            Gid(gid)
        };
        let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
        Some(Self {
            src: gid(8),
            dst: gid(24),
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
        })
    }
}

/// Whether the sum of the header's words, including the checksum, is all ones (RFC 1071).
fn checksum_is_right(header: &[u8]) -> bool {
    let words = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    // The header of a captured packet (RFC 791 checksum 0x9161).
    const V4: [u8; 20] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a,
        0x00, 0x12, 0x01,
    ];

    #[test]
    fn ipv4_is_told_from_ipv6() {
        let mut area = [0; GRH_LEN];
        assert!(NetworkHeader::read(&area).is_none());
        area[20..].copy_from_slice(&V4);
        let header = NetworkHeader::read(&area).unwrap();
        assert_eq!((header.src, header.dst), (Gid::v4([10, 0, 17, 1]), Gid::v4([10, 0, 18, 1])));
        assert_eq!((header.traffic_class, header.flow_label), (0xc2, 0));
        area[0] = 0x60;
        assert!(NetworkHeader::read(&area).unwrap().src.as_v4().is_some(), "the checksum is right");
        area[30] ^= 1;
        assert!(NetworkHeader::read(&area).unwrap().src.as_v4().is_none(), "so it is IPv6");
        area[0] = 0x6a;
        area[1..4].copy_from_slice(&[0xb1, 0x23, 0x45]);
        let header = NetworkHeader::read(&area).unwrap();
        assert_eq!((header.traffic_class, header.flow_label), (0xab, 0x12345));
    }
}
