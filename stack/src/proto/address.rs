//! Destinations of packets: the check of an address vector, and the address block of a datagram in the slot of its send request.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attr::{AhAttr, GlobalRoute, PORT_NUM};
use super::wqe::{GRANULE, Granule, SendWqe};
use crate::id::{Gid, Qpn};

/// The Q_Key of every queue pair 1 (IBA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Why an address vector was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AvError {
    /// The address vector has no global route.
    #[error("ah_attr has no GRH (is_global is 0); RoCE needs one")]
    NoGrh,
    /// A value is out of range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// The value given.
        value: u32,
        /// Smallest allowed value.
        min: u32,
        /// Largest allowed value.
        max: u32,
    },
    /// The GID table has no address at this index.
    #[error("ah_attr.grh.sgid_index is {index}, where the GID table has no address; choose one that it has")]
    NoSuchGid {
        /// The index.
        index: u8,
    },
    /// The destination is the zero address.
    #[error("dgid is {0}, which is nobody's address")]
    NoDestination(Gid),
    /// Source and destination are of different IP versions.
    #[error("dgid is {dgid}, the address at sgid_index is {ours}; both must be IPv4, or both IPv6")]
    Family {
        /// The destination.
        dgid: Gid,
        /// Our address.
        ours: Gid,
    },
}

impl AhAttr {
    /// Checks the values of an address vector and returns its global route. `source` is the address at its `sgid_index`, in a GID table of
    /// `gids` entries; `None` if there is none.
    ///
    /// # Errors
    /// [`AvError`] for the first value that is wrong.
    pub fn check(&self, gids: usize, source: Option<Gid>) -> Result<GlobalRoute, AvError> {
        let range = |name, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(AvError::OutOfRange { name, value, min, max })
            }
        };
        let grh = self.grh.ok_or(AvError::NoGrh)?;
        let last = u32::try_from(gids.saturating_sub(1)).unwrap_or(u32::MAX);
        range("ah_attr.port_num", self.port_num.into(), PORT_NUM.into(), PORT_NUM.into())?;
        range("ah_attr.grh.sgid_index", grh.sgid_index.into(), 0, last)?;
        range("ah_attr.grh.flow_label", grh.flow_label, 0, FLOW_LABEL_MAX)?;
        range("ah_attr.sl", self.sl.into(), 0, 7)?;
        let ours = source.ok_or(AvError::NoSuchGid { index: grh.sgid_index })?;
        if grh.dgid.is_zero() {
            return Err(AvError::NoDestination(grh.dgid));
        }
        if !ours.same_family(&grh.dgid) {
            return Err(AvError::Family { dgid: grh.dgid, ours });
        }
        Ok(grh)
    }
}

const FLOW_LABEL_MAX: u32 = 0xf_ffff;

/// One of our addresses: an index of the GID table, and which of the addresses that had this index so far. A queued send request that
/// stored the index alone would use another address once the entry is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Source(u32);

impl Source {
    /// The address with number `life` at `index`. The low 24 bits of `life` count.
    pub const fn new(index: u8, life: u32) -> Self {
        Self(life << 8 | index as u32)
    }
    /// The index in the GID table.
    pub const fn index(self) -> u8 {
        self.0 as u8
    }
    /// Index (low 8 bits) and number in one word.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Destination of a datagram: address handle, queue pair and Q_Key. Takes two granules, after the fixed part of the send request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct UdAddress {
    dgid: [u8; 16],
    /// Our address.
    pub source: Source,
    /// Service level (bits 28 to 30); DSCP and ECN (bits 20 to 27) and flow label (bits 0 to 19) as in an IPv6 header.
    label: u32,
    /// Time to live (bits 24 to 31) and the peer's queue pair (bits 0 to 23).
    hops_qpn: u32,
    /// The peer's Q_Key. If bit 31 is set, the Q_Key of the sending queue pair is used instead.
    pub remote_qkey: u32,
}

/// How many granules a [`UdAddress`] takes.
pub const UD_ADDR_GRANULES: usize = size_of::<UdAddress>() / GRANULE;
const _: () = assert!(size_of::<UdAddress>() == 32);

impl UdAddress {
    /// The destination of an address handle whose values were [checked](AhAttr::check), with queue pair number and Q_Key 0. `source` is the
    /// address at its `sgid_index`.
    pub fn new(grh: &GlobalRoute, source: Source, sl: u8) -> Self {
        let class = u32::from(sl & 7) << 28 | u32::from(grh.traffic_class) << 20;
        Self {
            dgid: grh.dgid.0,
            source,
            label: class | (grh.flow_label & FLOW_LABEL_MAX),
            hops_qpn: u32::from(grh.hop_limit) << 24,
            remote_qkey: 0,
        }
    }
    /// The same destination with this queue pair and Q_Key.
    #[inline]
    #[must_use]
    pub fn to(mut self, remote_qpn: Qpn, remote_qkey: u32) -> Self {
        self.hops_qpn = (self.hops_qpn & !0xff_ffff) | remote_qpn.get();
        self.remote_qkey = remote_qkey;
        self
    }
    /// The destination address.
    #[inline]
    pub fn dgid(&self) -> Gid {
        Gid(self.dgid)
    }
    /// Service level, `0 ..= 7`.
    pub const fn sl(&self) -> u8 {
        (self.label >> 28) as u8
    }
    /// DSCP (upper six bits) and ECN.
    pub const fn traffic_class(&self) -> u8 {
        (self.label >> 20) as u8
    }
    /// Flow label, 20 bits.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.label & FLOW_LABEL_MAX
    }
    /// Time to live; 0 counts as 64 on the wire.
    pub const fn hop_limit(&self) -> u8 {
        (self.hops_qpn >> 24) as u8
    }
    /// The peer's queue pair.
    #[inline]
    pub const fn remote_qpn(&self) -> Qpn {
        Qpn::new(self.hops_qpn)
    }
    /// Whether frames to both destinations have the same headers up to the UDP source port.
    #[inline]
    pub(crate) fn same_path(&self, other: &Self) -> bool {
        self.as_bytes()[..24] == other.as_bytes()[..24] && self.hop_limit() == other.hop_limit()
    }
    /// The address block in the slot of a send request; `None` if it has none.
    #[inline]
    pub fn of(slot: &[Granule]) -> Option<&Self> {
        let block = SendWqe::addr_block(slot).as_bytes();
        Self::ref_from_prefix(block).ok().map(|(address, _)| address)
    }
    /// Writes the block to the front of the tail of a slot, which [`SendWqe::put`] returned. Returns the rest, where the body begins.
    #[inline]
    pub fn put<'a>(&self, tail: &'a mut [u8]) -> &'a mut [u8] {
        let (block, body) = tail.split_at_mut(size_of::<Self>());
        block.copy_from_slice(self.as_bytes());
        body
    }
    /// The Q_Key to put into the packet, when the Q_Key of the sending queue pair is `own` (IBA 10.2.5).
    #[inline]
    pub const fn qkey(&self, own: u32) -> u32 {
        if self.remote_qkey >> 31 != 0 { own } else { self.remote_qkey }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::status::{SendFlags, WrOpcode};

    #[test]
    fn address_vectors_are_checked() {
        let gids = [Gid::from_ip("fe80::1".parse().unwrap()), Gid::v4([10, 0, 0, 1])];
        let check = |attr: &AhAttr| {
            let index = attr.grh.map_or(0, |grh| usize::from(grh.sgid_index));
            attr.check(gids.len(), gids.get(index).copied())
        };
        let grh = GlobalRoute { dgid: Gid::v4([10, 0, 0, 2]), sgid_index: 1, ..GlobalRoute::default() };
        let good = AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() };
        assert_eq!(check(&good), Ok(grh));
        let with = |change: fn(&mut GlobalRoute)| {
            let mut grh = grh;
            change(&mut grh);
            AhAttr { grh: Some(grh), ..good }
        };
        assert!(check(&with(|g| g.dgid = Gid::v4([239, 1, 2, 3]))).is_ok(), "groups too");
        assert_eq!(check(&AhAttr { grh: None, ..good }), Err(AvError::NoGrh));
        let ranges = [
            (AhAttr { port_num: 0, ..good }, "ah_attr.port_num"),
            (AhAttr { port_num: 2, ..good }, "ah_attr.port_num"),
            (AhAttr { sl: 8, ..good }, "ah_attr.sl"),
            (with(|g| g.flow_label = 1 << 20), "ah_attr.grh.flow_label"),
            (with(|g| g.sgid_index = 2), "ah_attr.grh.sgid_index"),
        ];
        for (attr, wrong) in ranges {
            let e = check(&attr).unwrap_err();
            assert!(matches!(e, AvError::OutOfRange { name, .. } if name == wrong), "{wrong}: {e}");
        }
        assert_eq!(check(&with(|g| g.dgid = Gid::default())), Err(AvError::NoDestination(Gid::default())));
        let ours = gids[0];
        let mixed = with(|g| g.sgid_index = 0);
        assert_eq!(check(&mixed), Err(AvError::Family { dgid: grh.dgid, ours }));
        let mixed = with(|g| g.dgid = Gid::from_ip("fd00::2".parse().unwrap()));
        assert!(matches!(check(&mixed), Err(AvError::Family { .. })));
        assert_eq!(good.check(2, None), Err(AvError::NoSuchGid { index: 1 }));
    }

    proptest! {
        #[test]
        fn a_path_keeps_its_values(
            (index, life, sl, class, hops) in (any::<u8>(), 0u32..1 << 24, 0u8..8, any::<u8>(), any::<u8>()),
            (label, qpn, qkey) in (0u32..1 << 20, 0u32..1 << 24, any::<u32>()),
        ) {
            let grh = GlobalRoute {
                dgid: Gid::v4([10, 0, 0, 2]),
                flow_label: label,
                sgid_index: index,
                hop_limit: hops,
                traffic_class: class,
            };
            let path = UdAddress::new(&grh, Source::new(index, life), sl);
            let a = path.to(Qpn::new(!qpn), !qkey).to(Qpn::new(qpn), qkey);
            prop_assert_eq!((a.dgid(), a.source.index(), a.source.bits() >> 8), (grh.dgid, index, life));
            prop_assert_eq!((a.sl(), a.traffic_class(), a.flow_label(), a.hop_limit()), (sl, class, label, hops));
            prop_assert_eq!((a.remote_qpn(), a.remote_qkey), (Qpn::new(qpn), qkey));
            prop_assert!(a.same_path(&path));
        }
    }

    #[test]
    fn paths_differ_by_each_of_their_values() {
        let grh = GlobalRoute { dgid: Gid::v4([10, 0, 0, 2]), ..GlobalRoute::default() };
        let path = UdAddress::new(&grh, Source::new(1, 1), 0);
        for other in [
            UdAddress::new(&GlobalRoute { dgid: Gid::v4([10, 0, 0, 3]), ..grh }, path.source, 0),
            UdAddress::new(&GlobalRoute { flow_label: 1, ..grh }, path.source, 0),
            UdAddress::new(&GlobalRoute { hop_limit: 1, ..grh }, path.source, 0),
            UdAddress::new(&GlobalRoute { traffic_class: 1, ..grh }, path.source, 0),
            UdAddress::new(&grh, Source::new(2, 1), 0),
            UdAddress::new(&grh, Source::new(1, 2), 0),
            UdAddress::new(&grh, path.source, 1),
        ] {
            assert!(!path.same_path(&other), "{other:?}");
        }
    }

    #[test]
    fn u11_privileged_qkeys_stand_for_our_own() {
        let address = |key| UdAddress { remote_qkey: key, ..UdAddress::default() };
        for (given, sent) in
            [(0, 0), (5, 5), (0x7fff_ffff, 0x7fff_ffff), (0x8000_0000, 0x11), (u32::MAX, 0x11)]
        {
            assert_eq!(address(given).qkey(0x11), sent, "{given:#x}");
        }
    }

    #[test]
    fn a_block_lies_between_header_and_list() {
        let grh = GlobalRoute { dgid: Gid::v4([10, 0, 0, 2]), flow_label: 7, ..GlobalRoute::default() };
        let address = UdAddress::new(&grh, Source::new(1, 9), 3).to(Qpn::new(0x1234), 0x11);
        let mut slot = [Granule::default(); 8];
        let mut wqe = SendWqe::new(1, WrOpcode::Send, SendFlags::INLINE);
        wqe.length = 2;
        assert!(
            UdAddress::of({
                wqe.put(&mut slot);
                &slot
            })
            .is_none(),
            "no block, no address"
        );
        wqe.addr_granules = UD_ADDR_GRANULES as u8;
        let body = address.put(wqe.put(&mut slot));
        body[..2].copy_from_slice(b"hi");
        assert_eq!(UdAddress::of(&slot), Some(&address));
        assert_eq!(SendWqe::inline_data(&slot), b"hi");
        assert_eq!(address.dgid(), grh.dgid);
    }
}
