//! Byte copying between packets and registered memory: the only code of a shard that touches registered memory.
//!
//! Registered memory belongs to the program and to its peers at the same time, so it is never borrowed: bytes are copied in and out by the
//! functions of [`racy`], and out to long packets by [`OnePass`], which loads in the same way. Every [`GrantedRange`] that is opened here
//! comes from a lookup ([`MrTable::check`]) in the same turn. That makes the accesses sound: a region stays mapped until each shard has
//! passed a turn boundary after its key was revoked (`device` waits for that when it deregisters, and a shard that died is in no turn), and
//! the code that registered the range vouched for it ([`UserMemory`](crate::mem::UserMemory)). A range carries its length, and nothing
//! beyond it is opened.
//!
//! Memory that may be unmapped at any moment is not opened: the kernel copies ([`racy::kernel`]), and an access that the kernel refuses
//! fails like an access that the key does not grant.

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
    /// The key table of the device.
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

    /// The range of bytes `offset..offset + len` of the message of a send request, if they are contiguous in memory.
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

    /// Copies `from` to bytes `offset..` of a scatter/gather list, after checking all of it. With `last`, the last byte is stored last.
    /// Returns the address behind the copied bytes, where the next bytes of the message are likely to go. `known` caches the key that was
    /// checked last in this turn.
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

/// Gathers the payloads of many packets of one turn, with a cached key check.
pub struct Gather<'a> {
    memory: Memory<'a>,
    known: CachedKey,
}

impl<'a> Gather<'a> {
    pub fn new(memory: Memory<'a>) -> Self {
        Self { memory, known: CachedKey::new(Access::empty()) }
    }

    /// Copies the first bytes of a list's single element into `to`, which is not empty.
    #[inline(always)]
    pub fn sole(&mut self, element: &Sge, to: &mut [u8]) -> Result<(), LocalProtection> {
        let Some(piece) = sge::sole(core::slice::from_ref(element), 0, to.len()) else {
            return Err(LocalProtection);
        };
        read_short(self.memory.check_known(&mut self.known, &piece)?, to)
    }
}

/// As [`read`], for mostly short data: 16 to 64 bytes are copied through registers, without a call.
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
    // The first and the last block, and if these do not meet, their inner neighbours. Overlapping bytes are copied twice.
    block(0);
    block(len - BLOCK);
    if len > 2 * BLOCK {
        block(BLOCK);
        block(len - 2 * BLOCK);
    }
    Ok(())
}

/// Copies the first bytes of a granted range of registered memory into `to`.
#[inline]
pub fn read(place: GrantedRange, to: &mut [u8]) -> Result<(), LocalProtection> {
    // SAFETY: the range was looked up in this turn, so it is mapped (module comment); `to` is a packet buffer or a local variable, never
    // registered memory. A concurrent writer can make the bytes stale or mixed, as on any RDMA device.
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
        // SAFETY: the range was looked up for reading: the program has registered whatever is mapped there.
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
        // SAFETY: the range was looked up for writing: the program has registered whatever is mapped there.
        Indirect::ByKernel(to) => Ok(unsafe { kernel::write(to, from, last) }?),
        Indirect::Nowhere => Ok(()),
    }
}

/// A long packet between two steps of one turn. The first step copies the headers here and prefetches the payload in the program's
/// memory; the second writes both to the frame in one pass.
#[derive(Clone, Copy)]
pub struct LongPacket {
    /// The headers, masked for the ICRC, followed by the first bytes of the payload.
    head: [u8; OnePass::HEAD],
    /// Length of the headers in bytes.
    headers: usize,
    payload: GrantedRange,
    /// `None` if no packet is laid out.
    pass: Option<OnePass>,
}

impl Default for LongPacket {
    fn default() -> Self {
        Self { head: [0; OnePass::HEAD], headers: 0, payload: GrantedRange::EMPTY, pass: None }
    }
}

impl LongPacket {
    /// Cache lines of payload to prefetch when a packet is laid out: enough until the hardware prefetcher follows the copy.
    const FIRST_LINES: usize = 4;

    /// Minimum payload of a long packet, in bytes: with headers of any length, enough payload remains behind the head.
    const PAYLOAD_MIN: u32 = (OnePass::HEAD + OnePass::REST_MIN) as u32;

    /// The one-pass writer for a packet with this many bytes of payload. `None` if the packet has to be built step by step: it is short,
    /// needs a pad, or the processor lacks the instructions.
    #[inline(always)]
    pub fn pass(template: &Template, payload_len: u32) -> Option<OnePass> {
        let fits = payload_len >= Self::PAYLOAD_MIN && payload_len.is_multiple_of(4);
        if fits { template.one_pass() } else { None }
    }

    /// Lays out a packet whose payload is in this [direct](GrantedRange::is_direct) range, with the writer from [`LongPacket::pass`].
    /// Returns the length of its frame in bytes. Does not wait for the payload prefetch: packets are laid out one after the other, and
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

    /// The address of the payload, if a packet is laid out.
    #[inline(always)]
    pub fn payload(&self) -> Option<*const u8> {
        self.pass.is_some().then(|| core::ptr::without_provenance(self.payload.addr() as usize))
    }

    /// Copies the first bytes of the payload behind the headers, if a packet is laid out. Call it once before [`write`](Self::write), and
    /// best well before: `write` loads headers and payload in whole lines, and a load of bytes that several stores have just written waits
    /// until these and all earlier stores are done, those of the previous frame included.
    #[inline(always)]
    pub fn complete_head(&mut self) {
        if self.pass.is_some() {
            let read = read(self.payload, &mut self.head[self.headers..]);
            debug_assert!(read.is_ok(), "what may not be mapped is not laid out");
        }
    }

    /// Writes the frame to the start of `buffer`, if a packet is laid out and its head is complete. Also prefetches as many bytes from
    /// `ahead`, the payload of the next packet; null for none.
    ///
    /// # Panics
    /// If `buffer` is shorter than the frame.
    #[inline(always)]
    pub fn write(&self, template: &Template, buffer: &mut [u8], ahead: *const u8) {
        let Some(pass) = self.pass else { return };
        let frame = &mut buffer[..self.frame_len()];
        let rest = self.payload.behind(OnePass::HEAD - self.headers);
        let len = rest.len() as usize;
        // SAFETY: as in `read`, for the rest of the payload; the frame has room for head and rest, and `lay_out` ensured that the rest is
        // long enough.
        let icrc = unsafe {
            let rest = rest.open(len).expect("what may not be mapped is not laid out");
            pass.write(frame.as_mut_ptr(), &self.head, rest, len, ahead)
        };
        template.finish(frame, icrc);
    }
}

/// Copies `from` to the start of a granted range of registered memory. With `last`, the last byte is stored last, with release
/// ordering: programs spin on the last byte of a message.
#[inline(always)]
pub fn write(place: GrantedRange, from: &[u8], last: bool) -> Result<(), LocalProtection> {
    // SAFETY: the range was looked up for writing in this turn, so it is mapped and writable (module comment).
    let Some(to) = (unsafe { place.open(from.len()) }) else { return write_indirect(place, from, last) };
    match from {
        [body @ .., tail] if last => {
            // SAFETY: as above, for all but the last byte, and for the last byte.
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

/// Copies mostly short data: 16 to 64 bytes are copied through registers, without a call, as in [`read_short`].
///
/// # Safety
/// `to` points to an opened range of at least `from.len()` bytes; `from` is a packet buffer, never registered memory.
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

/// The 64-bit word at the start of a range; `None` if the range is indirect.
///
/// # Panics
/// If the range is not aligned to 8 bytes: the responder has refused such an address.
#[inline]
fn word(place: GrantedRange) -> Option<*mut u64> {
    assert!(place.addr().is_multiple_of(8), "a word at {:#x}", place.addr());
    // SAFETY: the range was looked up for writing, or for atomics, in this turn, so it is mapped and writable (module comment).
    unsafe { place.open(8) }.map(<*mut u8>::cast)
}

/// ATOMIC WRITE: stores the eight bytes of `from` at the start of a range in one step, with release ordering. Does nothing for any
/// other number of bytes, which the responder has refused. Refuses memory that may be unmapped too, because the kernel copies in an
/// unspecified number of steps.
#[cold]
pub fn store(place: GrantedRange, from: &[u8]) -> Result<(), LocalProtection> {
    let Ok(bytes) = <[u8; 8]>::try_from(from) else { return Ok(()) };
    let word = word(place).ok_or(LocalProtection)?;
    // SAFETY: `word` is mapped and writable.
    unsafe { racy::store_u64(word, u64::from_ne_bytes(bytes)) }
    Ok(())
}

/// FLUSH to global visibility: the stores of this core become visible to every CPU before anything that follows. Memory is coherent, so
/// a fence is enough.
#[cold]
pub fn flush() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// COMPARE&SWAP (`swap`) or FETCH&ADD on the host-order word at the start of a range; returns the old value. A CPU atomic: atomic with
/// respect to other shards and to the program. In memory that may be unmapped it is atomic only with respect to others of its kind.
pub fn atomic(place: GrantedRange, swap: bool, swap_add: u64, compare: u64) -> Result<u64, LocalProtection> {
    let Some(word) = word(place) else { return atomic_indirect(place, swap, swap_add, compare) };
    // SAFETY: `word` is mapped and writable.
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
    // SAFETY: the range was looked up for atomics: the program has registered whatever is mapped there.
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
        // Miri takes seconds for each packet: under Miri only some lengths, with each remainder modulo 4.
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
