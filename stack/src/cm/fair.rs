//! A bounded queue shared by several hosts. Items are taken from the hosts in turn. When the queue is full, an item of the host with most
//! items is dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::Gid;

/// The items of each host, in order.
#[derive(Debug)]
pub struct Fair<T> {
    of: BTreeMap<Gid, Own<T>>,
    /// Hosts with items, in the order in which their turns come.
    turns: BTreeMap<u64, Gid>,
    /// How many items each host has.
    sizes: BTreeSet<(usize, Gid)>,
    len: usize,
    next_turn: u64,
}

/// The items of one host; at least one.
#[derive(Debug)]
struct Own<T> {
    items: VecDeque<T>,
    turn: u64,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        let (of, turns, sizes) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { of, turns, sizes, len: 0, next_turn: 0 }
    }
}

impl<T> Fair<T> {
    /// How many items the queue has.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// Whether the queue is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item of a host. If the queue has `max` items already, one is dropped and returned: the last item of the host with most
    /// items, or `item` itself if no other host has more items than this one.
    pub fn push(&mut self, max: usize, host: Gid, item: T) -> Option<T> {
        let mut out = None;
        if self.len >= max {
            let own = self.of.get(&host).map_or(0, |own| own.items.len());
            let Some(&(_, greediest)) = self.sizes.last().filter(|(len, _)| *len > own) else {
                return Some(item);
            };
            out = self.take(greediest, VecDeque::pop_back);
        }
        let turn = self.new_turn();
        let own = self.of.entry(host).or_insert_with(|| Own { items: VecDeque::new(), turn });
        self.sizes.remove(&(own.items.len(), host));
        own.items.push_back(item);
        self.sizes.insert((own.items.len(), host));
        self.turns.insert(own.turn, host);
        self.len += 1;
        out
    }

    /// Takes the oldest item of the host whose turn it is; `None` if the queue is empty.
    pub fn pop(&mut self) -> Option<T> {
        let (_, host) = self.turns.first_key_value()?;
        let host = *host;
        let item = self.take(host, VecDeque::pop_front);
        let turn = self.new_turn();
        if let Some(own) = self.of.get_mut(&host) {
            self.turns.remove(&own.turn);
            own.turn = turn;
            self.turns.insert(turn, host);
        }
        item
    }

    fn new_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    fn take(&mut self, host: Gid, end: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let own = self.of.get_mut(&host)?;
        self.sizes.remove(&(own.items.len(), host));
        let item = end(&mut own.items);
        self.len -= 1;
        if own.items.is_empty() {
            self.turns.remove(&own.turn);
            self.of.remove(&host);
        } else {
            self.sizes.insert((own.items.len(), host));
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn host(n: u8) -> Gid {
        Gid::v4([10, 0, 0, n])
    }

    #[test]
    fn hosts_take_turns_and_the_greediest_loses_its_own() {
        let mut queue = Fair::default();
        for item in 0..6 {
            assert_eq!(queue.push(6, host(1), (1, item)), None);
        }
        assert_eq!(queue.push(6, host(1), (1, 6)), Some((1, 6)), "it has all");
        for item in 0..3 {
            assert_eq!(queue.push(6, host(2), (2, item)), Some((1, 5 - item)));
        }
        assert_eq!(queue.push(6, host(2), (2, 3)), Some((2, 3)), "they have as many each");
        assert_eq!(queue.push(6, host(3), (3, 0)), Some((2, 2)));
        assert_eq!(queue.len(), 6);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)]);
        assert!(queue.is_empty() && queue.of.is_empty() && queue.turns.is_empty() && queue.sizes.is_empty());
    }
}
