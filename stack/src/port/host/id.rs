//! The numbers of links.

/// Most links of a process. Each link has two descriptors, and a process may have 1024 descriptors by default. A
/// [`Route`](crate::port::Route) can number all of them.
pub const LINKS_MAX: usize = 224;

/// The number of a link. Once [`LinkQueue::next_ended`](super::LinkQueue::next_ended) has reported the end of the link, another link may
/// get the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct LinkId(pub(super) u8);

impl LinkId {
    /// The number, below [`LINKS_MAX`].
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Links in a word of a set.
const BITS: usize = u64::BITS as usize;
const WORDS: usize = LINKS_MAX.div_ceil(BITS);

/// A set of links.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Links([u64; WORDS]);

impl Links {
    /// Adds a link.
    #[inline]
    pub fn add(&mut self, link: u8) {
        self.0[usize::from(link) / BITS] |= 1 << (usize::from(link) % BITS);
    }

    /// Whether the set contains a link.
    #[inline]
    pub fn has(&self, link: u8) -> bool {
        self.0[usize::from(link) / BITS] >> (usize::from(link) % BITS) & 1 == 1
    }

    /// Adds links of the sixteen that begin at `16 * at`, a bit for each.
    #[inline]
    pub fn add_of(&mut self, at: usize, bits: u16) {
        self.0[at * 16 / BITS] |= u64::from(bits) << (at * 16 % BITS);
    }

    /// Iterates over the links from `first` on, then over those below `first`.
    #[inline]
    pub fn from(self, first: u8) -> impl Iterator<Item = u8> {
        let (at, low) = (usize::from(first) / BITS, (1u64 << (usize::from(first) % BITS)) - 1);
        // The word that contains `first` is visited twice: at the beginning for the bits from `first` on, at the end for the bits below.
        let mut step = 0;
        let mut bits = self.0[at] & !low;
        core::iter::from_fn(move || {
            while bits == 0 {
                step += 1;
                bits = match step {
                    WORDS => self.0[at] & low,
                    1..WORDS => self.0[(at + step) % WORDS],
                    _ => return None,
                };
            }
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(((at + step) % WORDS * BITS + bit) as u8)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_come_in_turn_from_any_one_on() {
        let all = [0, 1, 7, 8, 9, 100, 222, 223];
        let mut links = Links::default();
        all.iter().for_each(|link| links.add(*link));
        for first in 0..LINKS_MAX as u8 {
            let (before, behind): (Vec<u8>, Vec<u8>) = all.iter().partition(|link| **link < first);
            assert_eq!(links.has(first), all.contains(&first));
            assert!(links.from(first).eq(behind.into_iter().chain(before)), "{first}");
        }
        assert_eq!(Links::default().from(77).count(), 0);
    }
}
