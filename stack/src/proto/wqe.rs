//! Work queue elements: the layout of a work request in its ring slot, and the completion queue entry ([`Cqe`]).
//!
//! A slot consists of [`Granule`]s, 16 bytes each. A send slot holds a [`SendWqe`] (three granules), then for datagrams and XRC an address
//! block ([`SendWqe::addr_granules`] granules), then either the scatter/gather list (a granule for each element) or inline data. A receive
//! slot holds a [`RecvWqe`] (one granule), then its list. All slots of a queue have the same size, which is chosen when the queue is
//! created ([`send_stride`], [`recv_stride`]), so the sequence number of a work request determines its slot.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute_ref};

use super::status::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use crate::id::Qpn;
use crate::mem::Access;
pub use crate::mem::Sge;
use crate::wire::{AtomicEth, Feth, Reth};

/// The unit of a ring slot, 16 bytes: the basic block of a work queue element. NICs use such blocks, too: a WQEBB of mlx5 has 64 bytes, in
/// segments of 16.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct Granule(pub [u64; 2]);

/// Length of a [`Granule`] in bytes.
pub const GRANULE: usize = size_of::<Granule>();

/// The fixed part of a send work request in its slot.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendWqe {
    /// The caller's tag.
    pub wr_id: u64,
    /// Virtual address in the peer's memory (WRITE, READ, atomics, FLUSH), or the address to bind or register.
    pub remote_addr: u64,
    /// Remote key; for a local operation, the key to bind, register or invalidate.
    pub rkey: u32,
    /// Length of the message in bytes, `0 ..= 2^31`.
    pub length: u32,
    /// Epoch of the queue pair when the request was posted.
    pub epoch: u32,
    opcode: u8,
    flags: u8,
    /// Elements of the scatter/gather list; 0 for inline data.
    pub num_sge: u8,
    /// Granules of the address block.
    pub addr_granules: u8,
    /// By operation. SEND and WRITE: immediate data or the key to invalidate (low half). Atomic: the compare or add operand. FLUSH:
    /// selectivity and placement. Bind and registration: the access rights (high half), and for a bind the key of the region (low half).
    pub arg0: u64,
    /// The swap operand of COMPARE&SWAP; the length of a FLUSH, a bind or a registration.
    pub arg1: u64,
}

/// The fixed part of a receive work request in its slot.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecvWqe {
    /// The caller's tag.
    pub wr_id: u64,
    /// Epoch of the queue pair when the request was posted.
    pub epoch: u32,
    /// Elements of the scatter/gather list.
    pub num_sge: u32,
}

const SEND_HEADER: usize = size_of::<SendWqe>() / GRANULE;
const RECV_HEADER: usize = size_of::<RecvWqe>() / GRANULE;
const _: () = assert!(size_of::<Granule>() == 16 && size_of::<Sge>() == GRANULE);
const _: () = assert!(size_of::<SendWqe>() == 48 && size_of::<RecvWqe>() == 16);

/// Size in granules of a send slot for an address block of `addr_granules` granules and either `max_sge` elements or `max_inline` bytes; a
/// multiple of 64 bytes, the cache line.
pub const fn send_stride(addr_granules: usize, max_sge: usize, max_inline: usize) -> usize {
    let inline = max_inline.div_ceil(GRANULE);
    let longer = if max_sge > inline { max_sge } else { inline };
    (SEND_HEADER + addr_granules + longer).next_multiple_of(64 / GRANULE)
}

/// Size in granules of a receive slot for `max_sge` elements; a multiple of 32 bytes, so that the usual slot, with one element, lies in one
/// cache line.
pub const fn recv_stride(max_sge: usize) -> usize {
    (RECV_HEADER + max_sge).next_multiple_of(2)
}

impl SendWqe {
    /// A request with this opcode and these flags; all else is 0.
    #[inline]
    pub const fn new(wr_id: u64, opcode: WrOpcode, flags: SendFlags) -> Self {
        Self {
            wr_id,
            remote_addr: 0,
            rkey: 0,
            length: 0,
            epoch: 0,
            opcode: opcode as u8,
            flags: flags.bits() as u8,
            num_sge: 0,
            addr_granules: 0,
            arg0: 0,
            arg1: 0,
        }
    }
    #[inline]
    const fn of_opcode(wr_id: u64, opcode: WrOpcode) -> Self {
        Self::new(wr_id, opcode, SendFlags::empty())
    }
    #[inline]
    const fn at(mut self, remote_addr: u64, rkey: u32) -> Self {
        self.remote_addr = remote_addr;
        self.rkey = rkey;
        self
    }
    #[inline]
    const fn args(mut self, arg0: u64, arg1: u64) -> Self {
        self.arg0 = arg0;
        self.arg1 = arg1;
        self
    }
    /// SEND.
    #[inline]
    pub const fn send(wr_id: u64) -> Self {
        Self::of_opcode(wr_id, WrOpcode::Send)
    }
    /// SEND with immediate data, which is sent in network byte order.
    #[inline]
    pub const fn send_with_imm(wr_id: u64, imm: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::SendWithImm).args(imm.to_be() as u64, 0)
    }
    /// SEND that invalidates a key of the peer.
    #[inline]
    pub const fn send_with_inv(wr_id: u64, invalidate_rkey: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::SendWithInv).args(invalidate_rkey as u64, 0)
    }
    /// RDMA WRITE.
    #[inline]
    pub const fn write(wr_id: u64, remote_addr: u64, rkey: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::RdmaWrite).at(remote_addr, rkey)
    }
    /// RDMA WRITE with immediate data.
    #[inline]
    pub const fn write_with_imm(wr_id: u64, remote_addr: u64, rkey: u32, imm: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::RdmaWriteWithImm).at(remote_addr, rkey).args(imm.to_be() as u64, 0)
    }
    /// RDMA READ.
    #[inline]
    pub const fn read(wr_id: u64, remote_addr: u64, rkey: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::RdmaRead).at(remote_addr, rkey)
    }
    /// COMPARE & SWAP. [`atomic`](Self::atomic) returns its operands.
    #[inline]
    pub const fn cmp_and_swp(wr_id: u64, remote_addr: u64, rkey: u32, compare: u64, swap: u64) -> Self {
        Self::of_opcode(wr_id, WrOpcode::AtomicCmpAndSwp).at(remote_addr, rkey).args(compare, swap)
    }
    /// FETCH & ADD. [`atomic`](Self::atomic) returns its operand.
    #[inline]
    pub const fn fetch_and_add(wr_id: u64, remote_addr: u64, rkey: u32, add: u64) -> Self {
        Self::of_opcode(wr_id, WrOpcode::AtomicFetchAndAdd).at(remote_addr, rkey).args(add, 0)
    }
    /// ATOMIC WRITE.
    #[inline]
    pub const fn atomic_write(wr_id: u64, remote_addr: u64, rkey: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::AtomicWrite).at(remote_addr, rkey)
    }
    /// FLUSH of `len` bytes, or of the whole region if `selectivity` says so. [`flush`](Self::flush) returns the arguments.
    #[inline]
    pub const fn flush_of(
        wr_id: u64,
        remote_addr: u64,
        len: u32,
        rkey: u32,
        selectivity: u8,
        placement: u8,
    ) -> Self {
        let selects = (selectivity as u64) << 8 | placement as u64;
        Self::of_opcode(wr_id, WrOpcode::Flush).at(remote_addr, rkey).args(selects, len as u64)
    }
    /// LOCAL_INV.
    #[inline]
    pub const fn local_inv(wr_id: u64, rkey: u32) -> Self {
        Self::of_opcode(wr_id, WrOpcode::LocalInv).at(0, rkey)
    }
    /// BIND_MW: binds a memory window, whose new key is `rkey`, to a range of a region. [`key_and_access`](Self::key_and_access) returns
    /// the region's key and the access rights.
    pub const fn bind_mw(wr_id: u64, rkey: u32, region: u32, addr: u64, length: u64, access: Access) -> Self {
        let grant = (access.bits() as u64) << 32 | region as u64;
        Self::of_opcode(wr_id, WrOpcode::BindMw).at(addr, rkey).args(grant, length)
    }
    /// REG_MR: registers a range under the key `rkey`.
    pub const fn reg_mr(wr_id: u64, rkey: u32, addr: u64, length: u64, access: Access) -> Self {
        let grant = (access.bits() as u64) << 32;
        Self::of_opcode(wr_id, WrOpcode::RegMr).at(addr, rkey).args(grant, length)
    }
    /// The request with additional flags.
    #[inline]
    #[must_use]
    pub const fn with_flags(mut self, flags: SendFlags) -> Self {
        self.flags |= flags.bits() as u8;
        self
    }
    /// The request with the values that are known only when it is posted.
    #[inline]
    #[must_use]
    pub const fn posted(mut self, length: u32, num_sge: usize, addr_granules: usize, epoch: u32) -> Self {
        self.length = length;
        self.num_sge = num_sge as u8;
        self.addr_granules = addr_granules as u8;
        self.epoch = epoch;
        self
    }
    /// The operation; [`WrOpcode::Driver1`] if the number is unknown.
    #[inline]
    pub fn opcode(&self) -> WrOpcode {
        WrOpcode::from_number(u32::from(self.opcode)).unwrap_or(WrOpcode::Driver1)
    }
    /// The number of the operation, which may be unknown.
    #[inline]
    pub fn opcode_number(&self) -> u8 {
        self.opcode
    }
    /// The send flags.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(u32::from(self.flags))
    }
    /// Opcode, flags without [`SendFlags::SIGNALED`], number of elements and size of the address block, in one word. Packets of requests
    /// with the same word are built in the same way.
    #[inline(always)]
    pub(super) fn shape_key(&self) -> u32 {
        const SIGNALED: u32 = u32::from_ne_bytes([0, SendFlags::SIGNALED.bits() as u8, 0, 0]);
        let four = self.as_bytes()[core::mem::offset_of!(Self, opcode)..].first_chunk();
        u32::from_ne_bytes(*four.expect("opcode, flags, num_sge, addr_granules")) & !SIGNALED
    }
    /// Whether the request produces a completion when it succeeds.
    #[inline]
    pub fn signaled(&self) -> bool {
        self.flags().contains(SendFlags::SIGNALED)
    }
    /// Immediate data, in network byte order.
    #[inline]
    pub fn imm(&self) -> [u8; 4] {
        (self.arg0 as u32).to_ne_bytes()
    }
    /// The key that a SEND with invalidate names.
    #[inline]
    pub(crate) fn rkey_to_invalidate(&self) -> u32 {
        self.arg0 as u32
    }
    /// The RETH of a WRITE or READ.
    #[inline]
    pub fn reth(&self) -> Reth {
        Reth { va: self.remote_addr, rkey: self.rkey, len: self.length }
    }
    /// The AtomicETH of an atomic.
    #[inline]
    pub fn atomic(&self) -> AtomicEth {
        let (swap_add, compare) =
            if self.opcode() == WrOpcode::AtomicCmpAndSwp { (self.arg1, self.arg0) } else { (self.arg0, 0) };
        AtomicEth { va: self.remote_addr, rkey: self.rkey, swap_add, compare }
    }
    /// The FETH of a FLUSH, and the length of the range in bytes.
    pub fn flush(&self) -> (Feth, u32) {
        let feth = Feth { selectivity: (self.arg0 >> 8) as u8, placement: self.arg0 as u8 };
        (feth, self.arg1 as u32)
    }
    /// The key of the region to bind to (0 for a registration), and the access rights to grant.
    pub fn key_and_access(&self) -> (u32, Access) {
        (self.arg0 as u32, Access::from_bits_retain((self.arg0 >> 32) as u32))
    }
    /// The fixed part of a slot.
    #[inline]
    pub fn of(slot: &[Granule]) -> &Self {
        let header: &[Granule; SEND_HEADER] = slot.first_chunk().expect("a send slot holds a header");
        transmute_ref!(header)
    }
    /// The address block of a slot.
    #[inline]
    pub(crate) fn addr_block(slot: &[Granule]) -> &[Granule] {
        &slot[SEND_HEADER..SEND_HEADER + Self::of(slot).addr_granules as usize]
    }
    /// The scatter/gather list of a slot.
    #[inline]
    pub fn sges(slot: &[Granule]) -> &[Sge] {
        let wqe = Self::of(slot);
        let (n, body) = (wqe.num_sge as usize, &slot[SEND_HEADER + wqe.addr_granules as usize..]);
        let list: &[Granule] = body.get(..n).unwrap_or_default();
        transmute_ref!(list)
    }
    /// The first element of the list, in a slot without an address block. For speed, this does not check that the list has an element: the
    /// caller must know.
    #[inline(always)]
    pub(crate) fn first_sge(slot: &[Granule]) -> Option<&Sge> {
        slot.get(SEND_HEADER).map(|granule| transmute_ref!(granule))
    }
    /// The inline data of a slot.
    #[inline]
    pub(crate) fn inline_data(slot: &[Granule]) -> &[u8] {
        let wqe = Self::of(slot);
        let body = slot[SEND_HEADER + wqe.addr_granules as usize..].as_bytes();
        &body[..(wqe.length as usize).min(body.len())]
    }
    /// The body of a slot, which holds the list or the inline data. It follows the fixed part and an address block of `addr_granules`
    /// granules.
    #[inline]
    pub fn body(slot: &mut [Granule], addr_granules: usize) -> &mut [u8] {
        slot[SEND_HEADER + addr_granules..].as_mut_bytes()
    }
    /// Changes the epoch of the request in a slot.
    pub fn restamp(slot: &mut [Granule], epoch: u32) {
        let (wqe, _) = Self::mut_from_prefix(slot.as_mut_bytes()).expect("a send slot holds a header");
        wqe.epoch = epoch;
    }
    /// Writes the fixed part. Returns the rest of the slot: the address block, if `addr_granules` is not 0, then the body (the list or the
    /// inline data).
    #[inline]
    pub fn put(self, slot: &mut [Granule]) -> &mut [u8] {
        let (head, tail) = slot.split_at_mut(SEND_HEADER);
        head.as_mut_bytes().copy_from_slice(self.as_bytes());
        tail.as_mut_bytes()
    }
}

/// Granules of the address block of a request on an XRC initiator. It holds the number of the peer's shared receive queue.
pub const XRC_ADDR_GRANULES: usize = 1;

/// Writes the address block of a request on an XRC initiator to the front of the tail that [`SendWqe::put`] returned; returns the rest,
/// where the body begins.
pub fn put_srqn(tail: &mut [u8], srqn: u32) -> &mut [u8] {
    let (block, body) = tail.split_at_mut(XRC_ADDR_GRANULES * GRANULE);
    block.fill(0);
    block[..4].copy_from_slice(&srqn.to_ne_bytes());
    body
}

/// Number of the peer's shared receive queue that a request on an XRC initiator names; 0 if it names none.
pub fn srqn(slot: &[Granule]) -> u32 {
    SendWqe::addr_block(slot).first().map_or(0, |block| {
        let bytes = block.as_bytes();
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    })
}

impl RecvWqe {
    /// The fixed part of a slot.
    #[inline]
    pub fn of(slot: &[Granule]) -> &Self {
        let header: &[Granule; RECV_HEADER] = slot.first_chunk().expect("a receive slot holds a header");
        transmute_ref!(header)
    }
    /// The scatter/gather list of a slot.
    #[inline(always)]
    pub fn sges(slot: &[Granule]) -> &[Sge] {
        let n = Self::of(slot).num_sge as usize;
        let list: &[Granule] = slot[RECV_HEADER..].get(..n).unwrap_or_default();
        transmute_ref!(list)
    }
    /// Writes the fixed part. Returns the rest of the slot, for the list.
    #[inline]
    pub fn put(self, slot: &mut [Granule]) -> &mut [u8] {
        let (head, body) = slot.split_at_mut(RECV_HEADER);
        head.as_mut_bytes().copy_from_slice(self.as_bytes());
        body.as_mut_bytes()
    }
}

/// Copies a scatter/gather list into the body of a slot.
#[inline]
pub fn put_sges(body: &mut [u8], sges: &[Sge]) {
    match sges {
        // Nearly every list has one element: two moves, no call.
        [sge] => body[..GRANULE].copy_from_slice(sge.as_bytes()),
        _ => put_data(body, sges.as_bytes()),
    }
}

/// Copies inline data, one piece after the other, into the body of a slot.
#[inline]
pub fn put_pieces<'a>(body: &mut [u8], pieces: impl Iterator<Item = &'a [u8]>) {
    let mut rest = body;
    for piece in pieces {
        let (here, behind) = rest.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        rest = behind;
    }
}

/// Copies inline data, or a list as bytes, into the body of a slot. Not inlined, so that posting a single element, which does not call it,
/// keeps everything in registers.
#[inline(never)]
pub fn put_data(body: &mut [u8], data: &[u8]) {
    body[..data.len()].copy_from_slice(data);
}

/// A completion queue entry, one cache line: the contents of `struct ibv_wc`, and what is needed to skip stale entries.
///
/// The fields that a program gets come first, in the order of the program's type, so that polling copies them with few loads.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, align(64))]
pub struct Cqe {
    /// The caller's tag of the work request.
    pub wr_id: u64,
    /// When the completion was created, in nanoseconds of the shard's clock.
    pub timestamp: u64,
    /// Bytes received; for READ and atomics, bytes returned.
    pub byte_len: u32,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Queue pair that sent the datagram.
    pub src_qp: Qpn,
    /// Details of an error ([`super::vendor`]); 0 on success.
    pub vendor_err: u32,
    /// Number of the XRC shared receive queue that held the receive request; 0 if none did.
    pub srqn: u32,
    /// Immediate data in network byte order, or the invalidated key; `flags` says which.
    pub imm: u32,
    /// Which other fields are valid.
    pub flags: WcFlags,
    /// How the work request ended.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Service level of a datagram: the priority of its VLAN tag.
    pub sl: u8,
    /// Whether the message requested a solicited event.
    pub solicited: bool,
    /// Whether a receive completion need not wait for the acknowledgement of its message. It may have to wait until that was built, and is
    /// set then.
    pub acknowledged: bool,
    /// Index of the queue pair in the device's table of words (see [`crate::sync::words`]).
    pub qp_index: u32,
    /// Epoch of the queue pair. Polling skips the entry if the table of words has a newer one.
    pub epoch: u32,
}

const _: () = assert!(size_of::<Cqe>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_write_what_readers_read() {
        let atomic = SendWqe::cmp_and_swp(1, 2, 3, 4, 5).atomic();
        assert_eq!((atomic.va, atomic.rkey, atomic.compare, atomic.swap_add), (2, 3, 4, 5));
        let atomic = SendWqe::fetch_and_add(1, 2, 3, 4).atomic();
        assert_eq!((atomic.va, atomic.rkey, atomic.compare, atomic.swap_add), (2, 3, 0, 4));
        assert_eq!(SendWqe::send_with_imm(1, 0x0102_0304).imm(), [1, 2, 3, 4]);
        assert_eq!(SendWqe::write_with_imm(1, 2, 3, 0x0102_0304).imm(), [1, 2, 3, 4]);
        assert_eq!(SendWqe::send_with_inv(1, 7).rkey_to_invalidate(), 7);
        let (feth, len) = SendWqe::flush_of(1, 2, u32::MAX, 3, 1, 2).flush();
        assert_eq!((feth.selectivity, feth.placement, len), (1, 2, u32::MAX));
        let access = Access::REMOTE_READ | Access::ZERO_BASED;
        assert_eq!(SendWqe::bind_mw(1, 2, 3, 4, 5, access).key_and_access(), (3, access));
        assert_eq!(SendWqe::reg_mr(1, 2, 4, 5, access).key_and_access(), (0, access));
        let wqe = SendWqe::read(1, 2, 3).with_flags(SendFlags::SIGNALED).posted(4, 5, 6, 7);
        assert_eq!((wqe.opcode(), wqe.remote_addr, wqe.rkey), (WrOpcode::RdmaRead, 2, 3));
        assert_eq!(
            (wqe.length, wqe.num_sge, wqe.addr_granules, wqe.epoch, wqe.signaled()),
            (4, 5, 6, 7, true)
        );
    }

    #[test]
    fn pieces_lie_one_behind_the_other() {
        let mut body = [0; 8];
        put_pieces(&mut body, [&b"ab"[..], b"", b"cde"].into_iter());
        assert_eq!(&body, b"abcde\0\0\0");
    }
}
