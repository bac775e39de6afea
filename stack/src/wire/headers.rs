//! The transport headers, field by field.
//!
//! [`Bth`] keeps its twelve bytes and has an accessor for each packed field; the extension headers have
//! whole-byte fields and are plain structs with `read` and `write`.

use super::numbers::BTH_LEN;
use super::opcode::Opcode;
use crate::id::{Psn, Qpn};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Base transport header (IBA 9.2), as its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Bth(pub [u8; BTH_LEN]);

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = BTH_LEN;

    /// Views these bytes as a header.
    #[inline(always)]
    pub const fn of(bytes: &[u8; Self::LEN]) -> &Self {
        zerocopy::transmute_ref!(bytes)
    }

    /// Opcode byte.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0[0])
    }
    /// SE: the receiver requests an event.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.0[1] & 0x80 != 0
    }
    /// M: migration state. Sent as 1 by hardware, 0 by soft-RoCE; means nothing on reception.
    #[inline]
    pub const fn mig_req(&self) -> bool {
        self.0[1] & 0x40 != 0
    }
    /// Sets M.
    pub(crate) const fn set_mig_req(&mut self, on: bool) {
        self.0[1] = self.0[1] & !0x40 | (on as u8) << 6;
    }
    /// Pad bytes after the payload, 0..=3.
    #[inline]
    pub const fn pad(&self) -> u8 {
        self.0[1] >> 4 & 3
    }
    /// Transport header version; 0 is the only one.
    #[inline]
    pub(crate) const fn tver(&self) -> u8 {
        self.0[1] & 0x0f
    }
    /// Partition key.
    #[inline]
    pub const fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }
    /// Sets the partition key.
    pub(crate) const fn set_pkey(&mut self, pkey: u16) {
        [self.0[2], self.0[3]] = pkey.to_be_bytes();
    }
    /// Destination queue pair.
    #[inline]
    pub const fn dqpn(&self) -> Qpn {
        Qpn::new(u32::from_be_bytes([self.0[4], self.0[5], self.0[6], self.0[7]]))
    }
    /// Sets the destination queue pair.
    pub(crate) const fn set_dqpn(&mut self, dqpn: Qpn) {
        [_, self.0[5], self.0[6], self.0[7]] = dqpn.get().to_be_bytes();
    }
    /// A: the requester requests an acknowledgement.
    #[inline]
    pub const fn ack_req(&self) -> bool {
        self.0[8] & 0x80 != 0
    }
    /// Packet sequence number.
    #[inline]
    pub const fn psn(&self) -> Psn {
        Psn::new(u32::from_be_bytes([self.0[8], self.0[9], self.0[10], self.0[11]]))
    }
}

/// Returns `N` bytes of `bytes` from `at` on; the callers' lengths are constants.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reth {
    /// Remote virtual address.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// From its bytes.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Self {
            va: u64::from_be_bytes(part(b, 0)),
            rkey: u32::from_be_bytes(part(b, 8)),
            len: u32::from_be_bytes(part(b, 12)),
        }
    }
    /// To its bytes.
    #[inline]
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
    }
}

/// Atomic extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AtomicEth {
    /// Remote virtual address.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
    /// The new value of a swap, or the addend.
    pub swap_add: u64,
    /// The expected value of a swap; means nothing to an addition.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;
    /// From its bytes.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Self {
            va: u64::from_be_bytes(part(b, 0)),
            rkey: u32::from_be_bytes(part(b, 8)),
            swap_add: u64::from_be_bytes(part(b, 12)),
            compare: u64::from_be_bytes(part(b, 20)),
        }
    }
    /// To its bytes.
    #[inline]
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// ACK extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Aeth {
    /// ACK with credits, RNR NAK with timer, or NAK with code (IBA 9.7.5.2).
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// From its bytes.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: b[0], msn: u32::from_be_bytes(*b) & 0x00ff_ffff }
    }
    /// To its bytes; of `msn` the low 24 bits.
    #[inline]
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        *b = (u32::from(self.syndrome) << 24 | self.msn & 0x00ff_ffff).to_be_bytes();
    }
}

/// Datagram extended transport header (IBA 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// The queue pair that sent the packet.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
    /// From its bytes.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Self { qkey: u32::from_be_bytes(part(b, 0)), src_qpn: Qpn::new(u32::from_be_bytes(part(b, 4))) }
    }
    /// To its bytes.
    #[inline]
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b[..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4..].copy_from_slice(&self.src_qpn.get().to_be_bytes());
    }
}

/// FLUSH extended transport header (IBA A19).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Feth {
    /// What to flush: 0 for the range of the RETH, 1 for the whole memory region.
    pub selectivity: u8,
    /// How far to flush: bit 0 to global visibility, bit 1 to persistence.
    pub placement: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// From its bytes; reserved bits are ignored.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Self { selectivity: b[3] >> 4 & 3, placement: b[3] & 0x0f }
    }
    /// To its bytes: 2 bits of `selectivity`, 4 of `placement`, reserved bits 0.
    #[inline]
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        *b = [0, 0, 0, (self.selectivity & 3) << 4 | self.placement & 0x0f];
    }
}
