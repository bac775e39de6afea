//! Byte copying between packets and registered memory: the only code of a shard that touches it.
//!
//! Registered memory belongs to the program and to its peers at the same time, so it is never borrowed: bytes
//! are copied in and out by the functions of [`racy`], and out to long packets by [`OnePass`], which loads as they do.
//! Every [`GrantedRange`] that is opened here comes from a lookup ([`MrTable::check`]) in the same turn, which is what makes the
//! accesses sound: a region stays mapped until each shard has passed a turn boundary after its key was revoked (`device`
//! waits for that when it deregisters, and a shard that died is in no turn), and whoever registered the range vouched for
//! it ([`UserMemory`](crate::mem::UserMemory)). A place says how long it is, and nothing is opened beyond.
//!
//! Memory that may be unmapped at any moment is not opened: the kernel copies ([`racy::kernel`]), and an access that it refuses
//! fails like one that the key does not grant.

use core::sync::atomic::Ordering;

use crate::id::PdId;
use crate::mem::{Access, CachedKey, GrantedRange, Indirect, MrTable, Sge, sge};
use crate::proto::status::SendFlags;
use crate::proto::wqe::{Granule, SendWqe};
use crate::racy::{self, kernel};
use crate::sync::prefetch;
use crate::wire::icrc::OnePass;
use crate::wire::{Header, ICRC_LEN, Template};

/// A local key, range or right is invalid, and nothing was copied; or some of the bytes are not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalProtection;

impl From<kernel::NotMapped> for LocalProtection {
    fn from(_: kernel::NotMapped) -> Self {
        Self
    }
}

/// Memory of one protection domain, as seen within one turn.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The device's regions.
    pub keys: &'a MrTable,
    /// The queue pair's protection domain.
    pub pd: PdId,
}

impl Memory<'_> {
    /// Copies bytes `offset..` of a scatter/gather list into `to`.
    #[inline]
    pub fn gather(&self, sges: &[Sge], offset: u64, to: &mut [u8]) -> Result<(), LocalProtection> {
        if let Some(piece) = sge::sole(sges, offset, to.len()) {
            return read(self.check(&piece, Access::empty())?, to);
        }
        self.gather_pieces(sges, offset, to)
    }

    /// Copies bytes `offset..` of the message of a send request into `to`.
    #[inline]
    pub fn fill(&self, slot: &[Granule], offset: usize, to: &mut [u8]) -> Result<(), LocalProtection> {
        if SendWqe::of(slot).flags().contains(SendFlags::INLINE) {
            to.copy_from_slice(&SendWqe::inline_data(slot)[offset..offset + to.len()]);
            return Ok(());
        }
        self.gather(SendWqe::sges(slot), offset as u64, to)
    }

    /// Where bytes `offset..offset + len` of the message of a send request are, if they are contiguous in memory.
    #[inline]
    pub fn locate(
        &self,
        slot: &[Granule],
        offset: usize,
        len: usize,
    ) -> Result<Option<GrantedRange>, LocalProtection> {
        if SendWqe::of(slot).flags().contains(SendFlags::INLINE) {
            return Ok(None);
        }
        match sge::sole(SendWqe::sges(slot), offset as u64, len) {
            Some(piece) => self.check(&piece, Access::empty()).map(Some),
            None => Ok(None),
        }
    }

    #[inline(never)]
    fn gather_pieces(&self, sges: &[Sge], offset: u64, to: &mut [u8]) -> Result<(), LocalProtection> {
        let mut done = 0;
        for piece in sge::pieces(sges, offset, to.len() as u64).ok_or(LocalProtection)? {
            let len = piece.length as usize;
            let from = self.check(&piece, Access::empty())?;
            read(from, &mut to[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Copies `from` to bytes `offset..` of a scatter/gather list, after checking all of it. With `last` the
    /// last byte is stored last. Returns the address behind them, where the next bytes of the message are likely to go.
    /// `known` is the key that was checked last in this turn.
    #[inline(always)]
    pub fn scatter(
        &self,
        known: &mut CachedKey,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<u64, LocalProtection> {
        let Some(piece) = sge::sole(sges, offset, from.len()) else {
            return self.scatter_pieces(sges, offset, from, last);
        };
        let to = self.check_known(known, &piece)?;
        write(to, from, last)?;
        Ok(to.addr().wrapping_add(from.len() as u64))
    }

    #[inline(never)]
    fn scatter_pieces(
        &self,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<u64, LocalProtection> {
        let pieces = sge::pieces(sges, offset, from.len() as u64).ok_or(LocalProtection)?;
        for piece in pieces.clone() {
            self.check(&piece, Access::LOCAL_WRITE)?;
        }
        let (mut done, mut end) = (0, 0);
        for piece in pieces {
            let len = piece.length as usize;
            let to = self.check(&piece, Access::LOCAL_WRITE)?;
            write(to, &from[done..done + len], last && done + len == from.len())?;
            done += len;
            end = to.addr().wrapping_add(len as u64);
        }
        Ok(end)
    }

    #[inline]
    fn check(&self, piece: &Sge, need: Access) -> Result<GrantedRange, LocalProtection> {
        self.keys
            .check(piece.lkey, self.pd, need, piece.addr, u64::from(piece.length))
            .map_err(|_| LocalProtection)
    }

    #[inline(always)]
    fn check_known(&self, known: &mut CachedKey, piece: &Sge) -> Result<GrantedRange, LocalProtection> {
        known
            .check(self.keys, piece.lkey, self.pd, None, piece.addr, u64::from(piece.length))
            .map_err(|_| LocalProtection)
    }
}

/// Gathers for many packets of one turn.
pub struct Gather<'a> {
    memory: Memory<'a>,
    known: CachedKey,
}

impl<'a> Gather<'a> {
    pub fn new(memory: Memory<'a>) -> Self {
        Self { memory, known: CachedKey::new(Access::empty()) }
    }

    /// Copies the first bytes of the only element of a list into `to`, one at least.
    #[inline(always)]
    pub fn sole(&mut self, element: &Sge, to: &mut [u8]) -> Result<(), LocalProtection> {
        let Some(piece) = sge::sole(core::slice::from_ref(element), 0, to.len()) else {
            return Err(LocalProtection);
        };
        read_short(self.memory.check_known(&mut self.known, &piece)?, to)
    }
}

/// [`read`] for what is mostly short: 16 to 64 bytes go by way of registers, without a call.
#[inline(always)]
pub fn read_short(place: GrantedRange, to: &mut [u8]) -> Result<(), LocalProtection> {
    const BLOCK: usize = racy::BLOCK;
    let len = to.len();
    if !(BLOCK..=4 * BLOCK).contains(&len) {
        return read(place, to);
    }
    // SAFETY: as in `read`.
    let Some(from) = (unsafe { place.open(len) }) else { return read_indirect(place, to) };
    let to = to.as_mut_ptr();
    // SAFETY: as in `read`: all blocks lie inside of the `len` bytes on both sides.
    let block = |at: usize| unsafe { racy::read_block(from.add(at), to.add(at)) };
    // The first and the last block, and where these do not meet, the ones next to them: some bytes twice.
    block(0);
    block(len - BLOCK);
    if len > 2 * BLOCK {
        block(BLOCK);
        block(len - 2 * BLOCK);
    }
    Ok(())
}

/// Copies the first bytes of a place in registered memory into `to`.
#[inline]
pub fn read(place: GrantedRange, to: &mut [u8]) -> Result<(), LocalProtection> {
    // SAFETY: the place was looked up in this turn, so it is mapped (module comment); `to` is a packet buffer or a
    // local, never registered memory. A concurrent writer can make the bytes stale or mixed, as on any RDMA device.
    unsafe {
        let Some(from) = place.open(to.len()) else { return read_indirect(place, to) };
        racy::read(from, to.as_mut_ptr(), to.len());
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn read_indirect(place: GrantedRange, to: &mut [u8]) -> Result<(), LocalProtection> {
    match place.indirect() {
        // SAFETY: the place was looked up for reading: the program has registered whatever it has mapped there.
        Indirect::ByKernel(from) => Ok(unsafe { kernel::read(from, to) }?),
        Indirect::Nowhere => {
            to.fill(0);
            Ok(())
        }
    }
}

#[cold]
#[inline(never)]
fn write_indirect(place: GrantedRange, from: &[u8], last: bool) -> Result<(), LocalProtection> {
    match place.indirect() {
        // SAFETY: the place was looked up for writing: the program has registered whatever it has mapped there.
        Indirect::ByKernel(to) => Ok(unsafe { kernel::write(to, from, last) }?),
        Indirect::Nowhere => Ok(()),
    }
}

/// A long packet between two steps of one turn: when it is laid out, its headers are copied here and its payload is prefetched
/// where the program has it; later both are written in one pass.
#[derive(Clone, Copy)]
pub struct LongPacket {
    /// The headers, in masked form, and room for the first bytes of the payload.
    head: [u8; OnePass::HEAD],
    /// Bytes of the headers.
    headers: usize,
    payload: GrantedRange,
    /// `None`: nothing is laid out.
    pass: Option<OnePass>,
}

impl Default for LongPacket {
    fn default() -> Self {
        Self { head: [0; OnePass::HEAD], headers: 0, payload: GrantedRange::EMPTY, pass: None }
    }
}

impl LongPacket {
    /// Lines of the payload that are prefetched when a packet is laid out: enough until the hardware prefetcher follows the copy.
    const FIRST_LINES: usize = 4;

    /// Bytes of payload from which on a packet is long: whatever its headers, enough is left behind its head.
    const PAYLOAD_MIN: u32 = (OnePass::HEAD + OnePass::REST_MIN) as u32;

    /// What writes a packet with so many bytes of payload. `None` where it has to be built step by step: it is short, has a pad,
    /// or the processor cannot.
    #[inline(always)]
    pub fn pass(template: &Template, payload_len: u32) -> Option<OnePass> {
        let fits = payload_len >= Self::PAYLOAD_MIN && payload_len.is_multiple_of(4);
        if fits { template.one_pass() } else { None }
    }

    /// Lays out a packet whose payload is at this [direct](GrantedRange::is_direct) place, for which there is a [`LongPacket::pass`].
    /// Returns how long its frame is. The payload is prefetched and not waited for: packets are laid out one after the other, and
    /// their cache misses overlap.
    #[inline(always)]
    pub fn lay_out(
        &mut self,
        pass: OnePass,
        template: &Template,
        header: &Header,
        place: GrantedRange,
    ) -> usize {
        assert!(header.payload_len >= Self::PAYLOAD_MIN, "there is no pass for {} bytes", header.payload_len);
        self.headers = template.begin(&mut self.head, header);
        self.payload = place;
        prefetch::lines(place.addr() as *const u8, 0, Self::FIRST_LINES);
        debug_assert_eq!(place.len(), u64::from(header.payload_len));
        self.pass = Some(pass);
        self.frame_len()
    }

    #[inline(always)]
    fn frame_len(&self) -> usize {
        self.headers + self.payload.len() as usize + ICRC_LEN
    }

    /// Where its payload is, if a packet is laid out.
    #[inline(always)]
    pub fn payload(&self) -> Option<*const u8> {
        self.pass.is_some().then(|| core::ptr::without_provenance(self.payload.addr() as usize))
    }

    /// Puts the first bytes of its payload behind its headers, if one is laid out: once, before it is written, and best a while
    /// before. [`write`](Self::write) loads both in whole lines, and a load of bytes that several stores have just written waits
    /// until these and all stores before them are done, those of the frame before among them.
    #[inline(always)]
    pub fn complete_head(&mut self) {
        if self.pass.is_some() {
            let read = read(self.payload, &mut self.head[self.headers..]);
            debug_assert!(read.is_ok(), "what may not be mapped is not laid out");
        }
    }

    /// Writes its frame to the start of `buffer`, if one is laid out, its head complete. Prefetches as many bytes from `ahead`, not
    /// null: what is written next.
    ///
    /// # Panics
    /// If `buffer` is shorter than the frame.
    #[inline(always)]
    pub fn write(&self, template: &Template, buffer: &mut [u8], ahead: *const u8) {
        let Some(pass) = self.pass else { return };
        let frame = &mut buffer[..self.frame_len()];
        let rest = self.payload.behind(OnePass::HEAD - self.headers);
        let len = rest.len() as usize;
        // SAFETY: as in `read`, of the rest of the payload; the frame has room for head and rest, and `lay_out` saw to it that
        // the rest is long enough.
        let icrc = unsafe {
            let rest = rest.open(len).expect("what may not be mapped is not laid out");
            pass.write(frame.as_mut_ptr(), &self.head, rest, len, ahead)
        };
        template.finish(frame, icrc);
    }
}

/// Copies `from` to the start of a place in registered memory. With `last` the last byte is stored last, with release:
/// programs spin on the last byte of a message.
#[inline(always)]
pub fn write(place: GrantedRange, from: &[u8], last: bool) -> Result<(), LocalProtection> {
    // SAFETY: the place was looked up for writing in this turn, so it is mapped and writable (module comment).
    let Some(to) = (unsafe { place.open(from.len()) }) else { return write_indirect(place, from, last) };
    match from {
        [body @ .., tail] if last => {
            // SAFETY: as above, of all but the last byte, and of it.
            unsafe {
                write_at(to, body);
                racy::store_u8(to.add(body.len()), *tail);
            }
        }
        // SAFETY: as above.
        _ => unsafe { write_at(to, from) },
    }
    Ok(())
}

/// Copies what is mostly short: 16 to 64 bytes go by way of registers, without a call, as in [`read_short`].
///
/// # Safety
/// `to` is an opened place, for as many bytes; `from` is a packet buffer, never registered memory.
#[inline(always)]
unsafe fn write_at(to: *mut u8, from: &[u8]) {
    const BLOCK: usize = racy::BLOCK;
    let (len, from) = (from.len(), from.as_ptr());
    if !(BLOCK..=4 * BLOCK).contains(&len) {
        // SAFETY: as the caller says.
        return unsafe { racy::write(to, from, len) };
    }
    // SAFETY: as the caller says: all blocks lie inside of the `len` bytes on both sides.
    let block = |at: usize| unsafe { racy::write_block(to.add(at), from.add(at)) };
    block(0);
    if len > 2 * BLOCK {
        block(BLOCK);
        block(len - 2 * BLOCK);
    }
    block(len - BLOCK);
}

/// The word at a place; `None` for an indirect one.
///
/// # Panics
/// If the place is not aligned to 8 bytes: the responder has refused such an address.
#[inline]
fn word(place: GrantedRange) -> Option<*mut u64> {
    assert!(place.addr().is_multiple_of(8), "a word at {:#x}", place.addr());
    // SAFETY: the place was looked up for writing, or for atomics, in this turn, so it is mapped and writable (module
    // comment).
    unsafe { place.open(8) }.map(<*mut u8>::cast)
}

/// ATOMIC WRITE: stores the eight bytes of `from` at a place in one step, with release. Does nothing with any other
/// number of bytes, which the responder has refused. The kernel copies in any number of steps, so memory that may not be mapped is
/// refused too.
#[cold]
pub fn store(place: GrantedRange, from: &[u8]) -> Result<(), LocalProtection> {
    let Ok(bytes) = <[u8; 8]>::try_from(from) else { return Ok(()) };
    let word = word(place).ok_or(LocalProtection)?;
    // SAFETY: it is a word, mapped and writable.
    unsafe { racy::store_u64(word, u64::from_ne_bytes(bytes)) }
    Ok(())
}

/// FLUSH to global visibility: what this core has stored is visible to every CPU before anything after it. Memory is
/// coherent, so a fence is all it takes.
#[cold]
pub fn flush() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// COMPARE&SWAP (`swap`) or FETCH&ADD on the host-order word at a place; returns what it held. A CPU atomic:
/// atomic against other shards and against the program. In memory that may not be mapped it is atomic against others of its kind.
pub fn atomic(place: GrantedRange, swap: bool, swap_add: u64, compare: u64) -> Result<u64, LocalProtection> {
    let Some(word) = word(place) else { return atomic_indirect(place, swap, swap_add, compare) };
    // SAFETY: it is a word, mapped and writable.
    Ok(unsafe {
        if swap {
            racy::compare_exchange_u64(word, compare, swap_add)
        } else {
            racy::fetch_add_u64(word, swap_add)
        }
    })
}

#[cold]
#[inline(never)]
fn atomic_indirect(
    place: GrantedRange,
    swap: bool,
    swap_add: u64,
    compare: u64,
) -> Result<u64, LocalProtection> {
    let Indirect::ByKernel(at) = place.indirect() else { return Err(LocalProtection) };
    let new = |word: u64| match swap {
        true if word == compare => swap_add,
        true => word,
        false => word.wrapping_add(swap_add),
    };
    // SAFETY: the place was looked up for atomics: the program has registered whatever it has mapped there.
    Ok(unsafe { kernel::update(at, new) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Gid;
    use crate::wire::{Ext, Flow, Opcode, Reth};

    #[test]
    fn a_long_packet_is_the_one_that_is_built_in_steps() {
        let (v4, v6) = (Gid::v4([10, 0, 0, 1]), Gid([0xfd; 16]));
        let memory: Vec<u8> = (0..5000u32).map(|i| (i * 31 % 251) as u8).collect();
        let reth = Ext::Reth(Reth { va: 0x1234_5678, rkey: 77, len: 1 << 16 });
        let kinds = [
            (Opcode::RC_SEND_MIDDLE, Ext::None),
            (Opcode::RC_WRITE_FIRST, reth),
            (Opcode::RC_SEND_LAST_IMM, Ext::Imm([1, 2, 3, 4])),
        ];
        // Miri takes seconds a packet: a few lengths there, of each remainder by four.
        let step = if cfg!(miri) { 131 } else { 1 };
        let untouched = vec![0xaa; 5000];
        let mut laid_out = 0;
        for (dst, vlan) in [(v4, None), (v4, Some(7)), (v6, None), (v6, Some(7))] {
            let template = Template::new(&Flow { src: dst, dst, vlan, traffic_class: 3, ..Flow::default() });
            for (opcode, ext) in kinds {
                for len in (0..1200).step_by(step).chain([2048, 4096]) {
                    let header = Header { opcode, ext, payload_len: len, ip_id: 0x4711, ..Header::default() };
                    let payload = &memory[3..3 + len as usize];
                    let place = GrantedRange::found(payload.as_ptr() as u64, u64::from(len));
                    let mut steps = untouched.clone();
                    let at = template.begin(&mut steps, &header);
                    steps[at..at + payload.len()].copy_from_slice(payload);
                    let frame = template.close(&mut steps, at, payload.len());
                    template.stamp(&mut steps[..frame]);

                    let (mut long, mut whole) = (LongPacket::default(), untouched.clone());
                    let pass = LongPacket::pass(&template, len);
                    if let Some(pass) = pass {
                        assert_eq!(long.lay_out(pass, &template, &header, place), frame);
                    }
                    long.complete_head();
                    long.write(&template, &mut whole, core::ptr::null());
                    assert_eq!(whole != untouched, pass.is_some());
                    if pass.is_some() {
                        assert!(whole == steps, "{opcode:?}, {} bytes", header.payload_len);
                        laid_out += 1;
                    } else {
                        let fits = len >= LongPacket::PAYLOAD_MIN && len.is_multiple_of(4);
                        assert!(!fits || template.one_pass().is_none());
                    }
                }
            }
        }
        if laid_out == 0 {
            use std::io::Write;
            let _ =
                writeln!(std::io::stderr(), "SKIPPED packets in one pass: this processor multiplies none");
        }
    }
}
