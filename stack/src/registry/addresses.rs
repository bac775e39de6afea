//! Which addresses of the host its processes use.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// The addresses of the host that all processes of the user use: either some that were named, in the same order for all processes, or, by
/// default, all addresses of the host.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Addresses([Option<IpAddr>; Addresses::MAX]);

impl Addresses {
    /// Most addresses that can be named.
    pub const MAX: usize = 4;
    /// Words that they occupy in memory.
    pub(super) const WORDS: usize = 2 * Self::MAX;

    /// These addresses; if `named` is empty, all addresses of the host. `None` if `named` has more than [`Self::MAX`].
    pub fn new(named: &[IpAddr]) -> Option<Self> {
        let mut addresses = Self::default();
        for (at, addr) in named.iter().enumerate() {
            *addresses.0.get_mut(at)? = Some(addr.to_canonical());
        }
        Some(addresses)
    }

    /// The named addresses; none for all addresses of the host.
    pub fn named(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Whether a process that requests these addresses can use `others`: it names none, or the same ones.
    pub(super) fn suit(&self, others: &Self) -> bool {
        let covers = |these: &Self, those: &Self| these.named().all(|addr| those.0.contains(&Some(addr)));
        self.named().next().is_none() || covers(self, others) && covers(others, self)
    }

    /// Encodes them as words of memory.
    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        for (at, addr) in self.0.iter().enumerate() {
            let bits = match addr {
                None => 0,
                Some(IpAddr::V4(addr)) => addr.to_ipv6_mapped().to_bits(),
                Some(IpAddr::V6(addr)) => addr.to_bits(),
            };
            (words[2 * at], words[2 * at + 1]) = ((bits >> 64) as u64, bits as u64);
        }
        words
    }

    /// Decodes words of memory. Invalid contents give addresses that the host does not have.
    pub(super) fn of_words(words: [u64; Self::WORDS]) -> Self {
        let mut addresses = Self::default();
        for (addr, words) in addresses.0.iter_mut().zip(words.chunks_exact(2)) {
            let bits = u128::from(words[0]) << 64 | u128::from(words[1]);
            *addr = (bits != 0).then(|| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical());
        }
        addresses
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = self.named();
        let Some(first) = named.next() else { return f.write_str("all addresses of this host") };
        write!(f, "{first}")?;
        named.try_for_each(|addr| write!(f, ", {addr}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Addresses {
        let named: Vec<IpAddr> = text.split_whitespace().map(|addr| addr.parse().unwrap()).collect();
        Addresses::new(&named).unwrap()
    }

    #[test]
    fn they_come_out_of_memory_as_they_went_in() {
        for text in ["", "10.0.0.1", "fd00::1 10.0.0.1", "::1 127.0.0.1 fe80::1 10.0.0.9"] {
            assert_eq!(Addresses::of_words(addresses(text).words()), addresses(text));
        }
        assert_eq!(Addresses::new(&["10.0.0.1".parse().unwrap(); Addresses::MAX + 1]), None);
        // Any words decode to addresses.
        let nonsense = Addresses::of_words([u64::MAX; Addresses::WORDS]);
        assert_eq!(nonsense.named().count(), Addresses::MAX);
    }

    #[test]
    fn a_process_takes_what_the_others_have_or_the_same() {
        let suit = |asked, theirs| addresses(asked).suit(&addresses(theirs));
        assert!(suit("", "") && suit("", "10.0.0.1"));
        assert!(suit("10.0.0.1 fd00::1", "fd00::1 10.0.0.1"), "the order is the others'");
        assert!(!suit("10.0.0.1", ""), "they have all");
        assert!(!suit("10.0.0.1", "10.0.0.1 10.0.0.2") && !suit("10.0.0.1 10.0.0.2", "10.0.0.1"));
    }

    #[test]
    fn they_are_named_in_messages() {
        assert_eq!(addresses("10.0.0.1 fd00::1").to_string(), "10.0.0.1, fd00::1");
        assert_eq!(addresses("").to_string(), "all addresses of this host");
    }
}
