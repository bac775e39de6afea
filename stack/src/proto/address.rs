//! The address block of a datagram: where a UD send request goes, as it lies in its ring slot.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attr::GlobalRoute;
use super::wqe::{GRANULE, Granule, SendWqe};
use crate::id::{Gid, Qpn};

/// The Q_Key of every queue pair 1 (IBA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Destination of a datagram: address handle, queue pair and Q_Key. Two granules behind the fixed part of the request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct UdAddress {
    dgid: [u8; 16],
    /// Index of our address in the GID table.
    pub sgid_index: u8,
    /// Time to live; 0 counts as 64 on the wire.
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Service level, `0 ..= 7`.
    pub sl: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The peer's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// The peer's Q_Key; with bit 31 set, the sender's own is sent instead.
    pub remote_qkey: u32,
}

/// Granules of a [`UdAddress`].
pub const UD_EXT: usize = size_of::<UdAddress>() / GRANULE;
const _: () = assert!(size_of::<UdAddress>() == 32);

impl UdAddress {
    /// The path of an address handle, to no queue pair yet.
    pub fn new(grh: &GlobalRoute, sl: u8) -> Self {
        Self {
            dgid: grh.dgid.0,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            sl,
            flow_label: grh.flow_label,
            remote_qpn: 0,
            remote_qkey: 0,
        }
    }
    /// To this queue pair.
    #[inline]
    #[must_use]
    pub fn to(mut self, remote_qpn: Qpn, remote_qkey: u32) -> Self {
        self.remote_qpn = remote_qpn.get();
        self.remote_qkey = remote_qkey;
        self
    }
    /// The destination address.
    #[inline]
    pub fn dgid(&self) -> Gid {
        Gid(self.dgid)
    }
    /// Whether frames to `other` have the same headers up to the UDP source port.
    #[inline]
    pub fn same_path(&self, other: &Self) -> bool {
        self.as_bytes()[..24] == other.as_bytes()[..24]
    }
    /// The address block of a request's slot; none of a request that carries no block.
    #[inline]
    pub fn of(slot: &[Granule]) -> Option<&Self> {
        let block = SendWqe::ext_block(slot).as_bytes();
        Self::ref_from_prefix(block).ok().map(|(address, _)| address)
    }
    /// Writes the block to the front of `body`, what [`SendWqe::put`] returned, and returns the rest.
    #[inline]
    pub fn put<'a>(&self, body: &'a mut [u8]) -> &'a mut [u8] {
        let (block, rest) = body.split_at_mut(size_of::<Self>());
        block.copy_from_slice(self.as_bytes());
        rest
    }
    /// The Q_Key that goes on the wire, of a queue pair whose own is `own` (IBA 10.2.5).
    #[inline]
    pub const fn qkey(&self, own: u32) -> u32 {
        if self.remote_qkey >> 31 != 0 { own } else { self.remote_qkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::status::{SendFlags, WrOpcode};

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
        let address = UdAddress::new(&grh, 3).to(Qpn::new(0x1234), 0x11);
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
        wqe.ext = UD_EXT as u8;
        let body = address.put(wqe.put(&mut slot));
        body[..2].copy_from_slice(b"hi");
        assert_eq!(UdAddress::of(&slot), Some(&address));
        assert_eq!(SendWqe::inline_data(&slot), b"hi");
        assert_eq!(address.dgid(), grh.dgid);
        assert!(address.same_path(&address.to(Qpn::new(9), 9)));
        assert!(!address.same_path(&UdAddress { sl: 4, ..address }));
    }
}
