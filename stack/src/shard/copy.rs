//! Byte copying between packets and registered memory: the only code that touches it.
//!
//! Registered memory belongs to the program and to its peers at the same time, so it is never borrowed: bytes
//! are copied in and out through raw pointers. Every address comes from [`MrTable::check`] in the same turn,
//! which is what makes the accesses sound: a region stays mapped until each shard has passed a turn boundary
//! after its key was revoked (`device` sees to that when it deregisters), and whoever registered the range
//! vouched for it.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::crc::{LEN_MIN, SUM_FROM, Sum, copy_function};
use crate::id::PdId;
use crate::mem::{Access, KeyFault, MrTable, Sge, Span, sge};
use crate::proto::status::SendFlags;
use crate::proto::wqe::{Granule, SendWqe};

/// A local key, range or right is not good: nothing was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalProtection;

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
            read(self.check(&piece, Access::empty())?, to);
            return Ok(());
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

    /// [`Memory::fill`] for the payload of a frame, `frame[payload]`, with the sum of the frame's bytes from
    /// [`SUM_FROM`] to the end of the payload where that comes with the copy.
    #[inline]
    pub fn fill_frame(
        &self,
        slot: &[Granule],
        offset: usize,
        frame: &mut [u8],
        payload: Range<usize>,
    ) -> Result<Option<Sum>, LocalProtection> {
        if comes_with_sum(&payload)
            && !SendWqe::of(slot).flags().contains(SendFlags::INLINE)
            && let Some(piece) = sge::sole(SendWqe::sges(slot), offset as u64, payload.len())
        {
            return Ok(read_frame(self.check(&piece, Access::empty())?, frame, payload));
        }
        self.fill(slot, offset, &mut frame[payload])?;
        Ok(None)
    }

    #[inline(never)]
    fn gather_pieces(&self, sges: &[Sge], offset: u64, to: &mut [u8]) -> Result<(), LocalProtection> {
        let mut done = 0;
        for piece in sge::pieces(sges, offset, to.len() as u64).ok_or(LocalProtection)? {
            let len = piece.length as usize;
            let from = self.check(&piece, Access::empty())?;
            read(from, &mut to[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Copies `from` to bytes `offset..` of a scatter/gather list, after checking all of it. With `last` the
    /// last byte is stored last. Returns the address behind them, where the next bytes of the message are likely to go.
    #[inline(always)]
    pub fn scatter(
        &self,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<u64, LocalProtection> {
        if let Some(piece) = sge::sole(sges, offset, from.len()) {
            let to = self.check(&piece, Access::LOCAL_WRITE)?;
            write(to, from, last);
            return Ok(to.wrapping_add(from.len() as u64));
        }
        self.scatter_pieces(sges, offset, from, last)
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
            write(to, &from[done..done + len], last && done + len == from.len());
            done += len;
            end = to.wrapping_add(len as u64);
        }
        Ok(end)
    }

    /// Where a piece is, and all that its key grants; nothing where that may change.
    #[inline(never)]
    fn look_up(&self, lkey: u32, va: u64, len: u64) -> (Result<u64, KeyFault>, Span) {
        let addr = self.keys.check(lkey, self.pd, Access::empty(), va, len);
        (addr, self.keys.span(lkey, self.pd, Access::empty()).unwrap_or_default())
    }

    #[inline]
    fn check(&self, piece: &Sge, need: Access) -> Result<u64, LocalProtection> {
        self.keys
            .check(piece.lkey, self.pd, need, piece.addr, u64::from(piece.length))
            .map_err(|_| LocalProtection)
    }
}

/// Gathers for many packets of one turn, and remembers the key that it used last: those of a program are mostly one.
pub struct Gather<'a> {
    memory: Memory<'a>,
    last: Span,
}

impl<'a> Gather<'a> {
    pub fn new(memory: Memory<'a>) -> Self {
        Self { memory, last: Span::default() }
    }

    /// Copies the first bytes of the only element of a list into `to`, one at least.
    #[inline(always)]
    pub fn sole(&mut self, element: &Sge, to: &mut [u8]) -> Result<(), LocalProtection> {
        let Some(piece) = sge::sole(core::slice::from_ref(element), 0, to.len()) else {
            return Err(LocalProtection);
        };
        let len = u64::from(piece.length);
        let addr = if self.last.key == piece.lkey {
            self.last.place(piece.addr, len)
        } else {
            let (addr, span) = self.memory.look_up(piece.lkey, piece.addr, len);
            self.last = span;
            addr
        };
        read_short(addr.map_err(|_| LocalProtection)?, to);
        Ok(())
    }
}

/// [`read`] for what is mostly short: 16 to 64 bytes go by way of registers, without a call.
#[inline(always)]
pub fn read_short(addr: u64, to: &mut [u8]) {
    const BLOCK: usize = 16;
    let len = to.len();
    if !(BLOCK..=4 * BLOCK).contains(&len) {
        return read(addr, to);
    }
    let (from, to) = (addr as *const u8, to.as_mut_ptr());
    // SAFETY: as in `read`: all blocks lie inside of the `len` bytes on both sides.
    let block = |at: usize| unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), BLOCK) };
    // The first and the last block, and where these do not meet, the ones next to them: some bytes twice.
    block(0);
    block(len - BLOCK);
    if len > 2 * BLOCK {
        block(BLOCK);
        block(len - 2 * BLOCK);
    }
}

/// Copies registered memory at `addr` into `to`.
#[inline]
pub fn read(addr: u64, to: &mut [u8]) {
    // SAFETY: `addr .. addr + len` passed `MrTable::check` in this turn, so it is mapped (module comment);
    // `to` is a packet buffer or a local, never registered memory. A concurrent writer can make the bytes
    // stale or mixed, as on any RDMA device; they are plain bytes.
    unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) }
}

/// Whether there is a sum for a frame with this payload.
#[inline(always)]
fn comes_with_sum(payload: &Range<usize>) -> bool {
    payload.start <= SUM_FROM && payload.end >= SUM_FROM + LEN_MIN && payload.len().is_multiple_of(4)
}

/// Copies registered memory at `addr` to the payload of a frame, `frame[payload]`, and returns the sum of the frame's bytes
/// from [`SUM_FROM`] to its end where that comes with the copy: not with short ones, and not where a pad follows.
#[inline]
pub fn read_frame(addr: u64, frame: &mut [u8], payload: Range<usize>) -> Option<Sum> {
    let copy = if comes_with_sum(&payload) { copy_function() } else { None };
    let Some(copy) = copy else {
        read(addr, &mut frame[payload]);
        return None;
    };
    // The sum begins at a cache line, which is where wide stores are best begun, too.
    let head = SUM_FROM - payload.start;
    let (head, rest) = frame[payload].split_at_mut(head);
    read(addr, head);
    // SAFETY: as in `read`, of `rest` and the memory that it is copied from.
    unsafe { copy(rest.as_mut_ptr(), (addr as *const u8).add(head.len()), rest.len(), core::ptr::null()) }
}

/// Copies `from` to registered memory at `addr`. With `last` the last byte is stored last, with release:
/// programs spin on the last byte of a message.
#[inline]
pub fn write(addr: u64, from: &[u8], last: bool) {
    let to = addr as *mut u8;
    match from {
        [body @ .., tail] if last => {
            // SAFETY: `addr .. addr + len` passed `MrTable::check` for writing in this turn, so it is mapped
            // and writable (module comment); `from` is a packet buffer, never registered memory. A byte has no
            // alignment to break.
            unsafe {
                core::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len());
                AtomicU8::from_ptr(to.add(body.len())).store(*tail, Ordering::Release);
            }
        }
        // SAFETY: as above.
        _ => unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) },
    }
}

/// ATOMIC WRITE: stores the eight bytes of `from` at `addr` in one step, with release. Does nothing with any other
/// number of bytes, which the responder has refused.
#[cold]
pub fn store(addr: u64, from: &[u8]) {
    debug_assert!(addr.is_multiple_of(8) && from.len() == 8);
    let Ok(bytes) = <[u8; 8]>::try_from(from) else { return };
    // SAFETY: the eight bytes passed `MrTable::check` for writing in this turn, so they are mapped and writable
    // (module comment), and the responder refused an address that is not a multiple of 8.
    let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
    word.store(u64::from_ne_bytes(bytes), Ordering::Release);
}

/// FLUSH to global visibility: what this core has stored is visible to every CPU before anything after it. Memory is
/// coherent, so a fence is all it takes.
#[cold]
pub fn flush() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// COMPARE&SWAP (`swap`) or FETCH&ADD on the host-order word at `addr`; returns what it held. A CPU atomic:
/// atomic against other shards and against the program.
pub fn atomic(addr: u64, swap: bool, swap_add: u64, compare: u64) -> u64 {
    debug_assert!(addr.is_multiple_of(8));
    // SAFETY: the eight bytes passed `MrTable::check` for atomics in this turn, so they are mapped and
    // writable (module comment), and the responder refused an address that is not a multiple of 8.
    let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
    if swap {
        match word.compare_exchange(compare, swap_add, Ordering::AcqRel, Ordering::Acquire) {
            Ok(original) | Err(original) => original,
        }
    } else {
        word.fetch_add(swap_add, Ordering::AcqRel)
    }
}
