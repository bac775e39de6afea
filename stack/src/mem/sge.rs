//! Scatter/gather lists: which bytes of memory a range of a message is.

/// A scatter/gather element, laid out as `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte; an offset where the region is zero-based.
    pub addr: u64,
    /// Length in bytes; zero is an element that holds nothing.
    pub len: u32,
    /// Key of the region that the bytes are in.
    pub lkey: u32,
}

const _: () = assert!(size_of::<Sge>() == 16);

/// Bytes that a list holds.
#[inline]
pub fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| sge.len as u64).sum()
}

/// The pieces of memory that bytes `offset .. offset + len` of a list are, in order. None of them is empty, and
/// together they are `len` bytes.
///
/// `None` if the list holds fewer than `offset + len` bytes, or an element among those that are needed or come
/// before them reaches past the end of the address space.
#[inline]
pub fn pieces(sges: &[Sge], offset: u64, len: u64) -> Option<Pieces<'_>> {
    let end = offset.checked_add(len)?;
    // Find the element that `offset` is in, then make sure that `end` is reached.
    let (mut rest, mut before) = (sges, 0u64);
    let mut skip = 0;
    let mut found = false;
    for (i, sge) in sges.iter().enumerate() {
        if before >= end {
            break;
        }
        sge.addr.checked_add(sge.len as u64)?;
        let after = before + sge.len as u64;
        if !found && offset < after {
            found = true;
            rest = &sges[i..];
            skip = (offset - before) as u32;
        }
        before = after;
    }
    (before >= end).then_some(Pieces { rest, skip, left: len })
}

/// Iterator made by [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    rest: &'a [Sge],
    /// Bytes of the first element that come before the range.
    skip: u32,
    left: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Sge;

    #[inline]
    fn next(&mut self) -> Option<Sge> {
        while self.left > 0 {
            let (first, rest) = self.rest.split_first()?;
            self.rest = rest;
            let skip = core::mem::take(&mut self.skip);
            let len = ((first.len - skip) as u64).min(self.left) as u32;
            if len > 0 {
                self.left -= len as u64;
                return Some(Sge { addr: first.addr + skip as u64, len, lkey: first.lkey });
            }
        }
        None
    }
}
