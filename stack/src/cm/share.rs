//! Fair sharing of a table whose entries are created by remote hosts. Hosts are told apart by their address.
//!
//! When the table is full, a new entry takes the place of the oldest entry of the host with most entries, and is refused only if no other
//! host has more than the new entry's host. So a host that fills the table shuts out nobody but itself, and many forged addresses with one
//! entry each only push out the oldest entries.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::Gid;

/// The entries of a table, by host. Entries are increasing numbers: a smaller one is older.
#[derive(Debug)]
pub struct Shares<T> {
    of: BTreeMap<Gid, BTreeSet<T>>,
    /// For each host, how many entries it has, and the oldest of them. The last element is the host with most entries; of several such
    /// hosts, the one with the oldest entry.
    sizes: BTreeSet<(usize, Reverse<T>, Gid)>,
    len: usize,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), sizes: BTreeSet::new(), len: 0 }
    }
}

impl<T: Copy + Ord> Shares<T> {
    /// How many entries there are, of all hosts.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Adds an entry.
    pub fn insert(&mut self, host: Gid, entry: T) {
        self.change(host, |entries| {
            entries.insert(entry);
        });
    }
    /// Removes an entry, if it exists.
    pub fn remove(&mut self, host: Gid, entry: T) {
        self.change(host, |entries| {
            entries.remove(&entry);
        });
    }

    /// Whether one more entry of `host` fits into a table of `max` entries. `Some` is the entry to remove for it.
    ///
    /// # Errors
    /// [`Full`] if the table is full and no other host has more entries than this one.
    pub fn room(&self, max: usize, host: Gid) -> Result<Option<T>, Full> {
        if self.len < max {
            return Ok(None);
        }
        let own = self.of.get(&host).map_or(0, BTreeSet::len);
        let greediest = self.sizes.last().filter(|(len, ..)| *len > own);
        greediest.map(|(_, oldest, _)| Some(oldest.0)).ok_or(Full)
    }

    fn change(&mut self, host: Gid, change: impl FnOnce(&mut BTreeSet<T>)) {
        let entries = self.of.entry(host).or_default();
        let before = entries.len();
        if let Some(oldest) = entries.first() {
            self.sizes.remove(&(before, Reverse(*oldest), host));
        }
        change(entries);
        self.len = self.len + entries.len() - before;
        match entries.first() {
            Some(oldest) => {
                self.sizes.insert((entries.len(), Reverse(*oldest), host));
            }
            None => {
                self.of.remove(&host);
            }
        }
    }
}

/// There is no room for one more entry of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

#[cfg(test)]
mod tests {
    use super::*;

    const fn host(n: u8) -> Gid {
        Gid::v4([10, 0, 0, n])
    }

    #[test]
    fn the_oldest_of_the_greediest_goes_for_a_host_that_has_less() {
        let mut shares = Shares::default();
        for (n, entry) in [(1, 10), (2, 11), (2, 12), (2, 13), (1, 14)] {
            assert_eq!(shares.room(5, host(n)), Ok(None));
            shares.insert(host(n), entry);
        }
        assert_eq!(shares.room(6, host(2)), Ok(None));
        assert_eq!(shares.room(5, host(2)), Err(Full), "nobody has more than the greediest");
        assert_eq!(shares.room(5, host(1)), Ok(Some(11)));
        assert_eq!(shares.room(5, host(3)), Ok(Some(11)));
        shares.remove(host(2), 11);
        assert_eq!(shares.room(4, host(1)), Err(Full), "it has as many as the greediest");
        assert_eq!(shares.room(4, host(3)), Ok(Some(10)), "of two that are as greedy, the oldest");
        for (n, entry) in [(1, 10), (2, 12), (2, 13), (1, 14), (1, 14)] {
            shares.remove(host(n), entry);
        }
        assert!(shares.is_empty() && shares.of.is_empty() && shares.sizes.is_empty());
    }

    // Goal: hosts that are made up, one an entry, push out the oldest entries, whatever their addresses are.
    #[test]
    fn hosts_that_are_made_up_push_out_the_oldest() {
        let mut shares = Shares::default();
        for entry in 0..100 {
            let new = host(if entry % 2 == 0 { entry } else { 200 - entry });
            if let Some(oldest) = shares.room(4, new).unwrap() {
                assert_eq!(oldest, entry - 4);
                let old = host(if oldest % 2 == 0 { oldest } else { 200 - oldest });
                shares.remove(old, oldest);
            }
            shares.insert(new, entry);
        }
        assert_eq!(shares.len(), 4);
    }
}
