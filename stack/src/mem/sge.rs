//! Scatter/gather lists: the bytes of memory for a range of a message.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A scatter/gather element, laid out as `struct ibv_sge`.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte; an offset if the region is zero-based.
    pub addr: u64,
    /// Length in bytes; an element of length zero holds nothing.
    pub length: u32,
    /// Key of the region that the bytes are in.
    pub lkey: u32,
}

const _: () = assert!(size_of::<Sge>() == 16);

/// Number of bytes in a list.
#[inline]
pub fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| sge.length as u64).sum()
}

/// The piece of memory for bytes `offset .. offset + len` of a list, if the first element holds all of them: a shortcut for [`pieces`].
/// After `None`, [`pieces`] may still find them.
#[inline]
pub(crate) fn sole(sges: &[Sge], offset: u64, len: usize) -> Option<Sge> {
    let first = sges.first()?;
    let end = offset.checked_add(len as u64)?;
    if len == 0 || end > u64::from(first.length) {
        return None;
    }
    first.addr.checked_add(u64::from(first.length))?;
    Some(Sge { addr: first.addr + offset, length: len as u32, lkey: first.lkey })
}

/// The pieces of memory for bytes `offset .. offset + len` of a list, in order. None of them is empty, and together they are
/// `len` bytes.
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
        sge.addr.checked_add(sge.length as u64)?;
        let after = before + sge.length as u64;
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
            let len = ((first.length - skip) as u64).min(self.left) as u32;
            if len > 0 {
                self.left -= len as u64;
                return Some(Sge { addr: first.addr + skip as u64, length: len, lkey: first.lkey });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sge(addr: u64, len: u32, lkey: u32) -> Sge {
        Sge { addr, length: len, lkey }
    }

    #[test]
    fn covers_the_range() {
        let list = [sge(100, 10, 1), sge(0, 0, 9), sge(200, 5, 2), sge(300, 7, 3)];
        let get = |offset, len| pieces(&list, offset, len).map(Iterator::collect::<Vec<_>>);
        assert_eq!(total(&list), 22);
        assert_eq!(get(0, 22), Some(vec![sge(100, 10, 1), sge(200, 5, 2), sge(300, 7, 3)]));
        assert_eq!(get(10, 5), Some(vec![sge(200, 5, 2)]));
        assert_eq!(get(9, 3), Some(vec![sge(109, 1, 1), sge(200, 2, 2)]));
        assert_eq!(get(22, 0), Some(vec![]));
        assert_eq!(get(0, 0), Some(vec![]));
        assert_eq!(get(23, 0), None);
        assert_eq!(get(0, 23), None);
        assert_eq!(get(21, 2), None);
        assert_eq!(get(1, u64::MAX), None);
        assert_eq!(get(u64::MAX, 1), None);
        assert_eq!(pieces(&[], 0, 0).map(Iterator::count), Some(0));
        assert!(pieces(&[], 0, 1).is_none() && pieces(&[], 1, 0).is_none());
    }

    #[test]
    fn large_lists_do_not_overflow() {
        let list = [sge(0, u32::MAX, 1); 16];
        assert_eq!(total(&list), 16 * u32::MAX as u64);
        let last = pieces(&list, total(&list) - 1, 1).map(Iterator::collect::<Vec<_>>);
        assert_eq!(last, Some(vec![sge(u32::MAX as u64 - 1, 1, 1)]));
    }

    /// An element that wraps around the end of the address space must not become one at its beginning.
    #[test]
    fn wrapping_element_is_refused() {
        let list = [sge(8, 8, 1), sge(u64::MAX - 3, 8, 2)];
        assert!(pieces(&list, 0, 8).is_some(), "the element is not needed");
        assert!(pieces(&list, 0, 9).is_none());
        assert!(pieces(&list, 13, 1).is_none());
        assert_eq!(sole(&list[1..], 0, 1), None);
    }

    #[test]
    fn the_sole_piece_is_in_the_first_element() {
        let list = [sge(100, 10, 1), sge(200, 5, 2)];
        assert_eq!(sole(&list, 3, 7), Some(sge(103, 7, 1)));
        for (offset, len) in [(0, 11), (3, 8), (10, 1), (0, 0), (u64::MAX, 2)] {
            assert_eq!(sole(&list, offset, len), None, "{offset} {len}");
        }
        assert_eq!(sole(&[], 0, 1), None);
    }

    /// Elements of up to four bytes, at an address of their own or at the end of the address space, where some reach past it.
    fn small_elements(number: u32) -> impl Iterator<Item = Sge> + Clone {
        let ends = [u64::from(number + 1) * 100, u64::MAX - 2];
        ends.into_iter().flat_map(move |addr| (0..=4).map(move |len| sge(addr, len, number)))
    }

    /// Every range of a list, the ends of the number space among them, against the list written out byte by byte.
    fn check_every_range(list: &[Sge]) {
        let bytes = |s: Sge| (0..u64::from(s.length)).map(move |i| (s.addr.wrapping_add(i), s.lkey));
        let flat: Vec<(u64, u32)> = list.iter().copied().flat_map(bytes).collect();
        assert_eq!(total(list), flat.len() as u64);
        let numbers = || (0..14u64).chain([u64::from(u32::MAX) + 1, u64::MAX - 1, u64::MAX]);
        for (offset, len) in numbers().flat_map(|offset| numbers().map(move |len| (offset, len))) {
            let (from, end) = (u128::from(offset), u128::from(offset) + u128::from(len));
            // The expected pieces: the bytes of each element in the range, and whether one of the elements is invalid.
            let (mut expected, mut bad, mut before) = (Vec::new(), end > flat.len() as u128, 0u128);
            for s in list {
                let after = before + u128::from(s.length);
                bad |= before < end && u128::from(s.addr) + u128::from(s.length) > u128::from(u64::MAX);
                let wanted = (before..after).zip(bytes(*s)).filter(|(at, _)| (from..end).contains(at));
                let wanted: Vec<(u64, u32)> = wanted.map(|(_, byte)| byte).collect();
                if let [(addr, lkey), ..] = wanted[..] {
                    expected.push(sge(addr, wanted.len() as u32, lkey));
                }
                before = after;
            }
            let expected = (!bad).then_some(expected);
            let got = pieces(list, offset, len).map(Iterator::collect::<Vec<_>>);
            assert_eq!(got, expected, "{offset} + {len} of {list:?}");
            let inside = len > 0 && list.first().is_some_and(|first| end <= u128::from(first.length));
            let one = expected.filter(|_| inside).map(|pieces| pieces[0]);
            // An element that reaches past the end counts as a whole, wherever in it the range is.
            assert_eq!(sole(list, offset, len as usize), one, "{offset} + {len} of {list:?}");
        }
    }

    /// Every list of up to three small elements.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn every_range_of_every_small_list() {
        check_every_range(&[]);
        for a in small_elements(0) {
            check_every_range(&[a]);
            for b in small_elements(1) {
                check_every_range(&[a, b]);
                small_elements(2).for_each(|c| check_every_range(&[a, b, c]));
            }
        }
    }

    proptest! {
        /// Against a message written out as one `(address, key)` for each byte.
        #[test]
        fn matches_a_flat_model(
            list in proptest::collection::vec((0..1u64 << 40, prop_oneof![Just(0u32), 0..20u32], 0..4u32), 0..17),
            offset in 0..200u64,
            len in 0..200u64,
        ) {
            let list: Vec<Sge> = list.into_iter().map(|(addr, len, lkey)| sge(addr, len, lkey)).collect();
            let bytes = |s: Sge| (0..s.length as u64).map(move |i| (s.addr + i, s.lkey));
            let flat: Vec<(u64, u32)> = list.iter().copied().flat_map(bytes).collect();
            prop_assert_eq!(total(&list), flat.len() as u64);
            let expected = flat.get(offset as usize..(offset + len) as usize);
            let got = pieces(&list, offset, len);
            prop_assert_eq!(got.is_some(), expected.is_some());
            if let Some(sole) = sole(&list, offset, len as usize) {
                prop_assert_eq!(got.clone().map(Iterator::collect::<Vec<_>>), Some(vec![sole]));
            }
            if let (Some(got), Some(expected)) = (got, expected) {
                prop_assert!(got.clone().all(|piece| piece.length > 0));
                prop_assert_eq!(got.flat_map(bytes).collect::<Vec<_>>(), expected);
            }
        }
    }
}
