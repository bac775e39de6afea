//! Fair shares: how much of a shared resource each host may have, and which host is served next.
//!
//! Shares belong to hosts. A host is identified by its address, and by its name once it has sent Connect. A host does not get more by
//! opening more connections or queues, or by sending more commands. Names are not authenticated, and one address may use many of them; so
//! each address has a share and a turn, too.
//!
//! A host may take one more unit of a resource while it has fewer units than are free, and while its address has fewer than twice as many
//! as are free. So a host has at most half of the resource and an address at most two thirds, and n hosts that each take as much as they
//! may leave one part in n + 1 free. Nothing has to be configured, and a host that is alone does not wait for others.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};

use crate::nqn::Nqn;

/// The identity of a host, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Who {
    /// Its IP address.
    pub address: IpAddr,
    /// Hash of its NQN and host identifier; 0 before Connect.
    name: u64,
}

impl Who {
    /// Whether the host's name is known.
    pub const fn is_named(&self) -> bool {
        self.name != 0
    }
    /// A host of which only the address is known.
    pub const fn at(address: IpAddr) -> Self {
        Self { address, name: 0 }
    }
    /// A host with this address, NQN and host identifier.
    pub fn named(address: IpAddr, nqn: &Nqn, id: &[u8; 16]) -> Self {
        let mut hasher = DefaultHasher::new();
        (nqn.as_str(), id).hash(&mut hasher);
        Self { address, name: hasher.finish().max(1) }
    }
    /// The same host at another address.
    #[must_use]
    pub(crate) const fn moved_to(self, address: IpAddr) -> Self {
        Self { address, ..self }
    }
}

/// The rule: whether a host that has `host` units may take one more. `address` is how many its address has, including those of the host,
/// and `left` how many are free.
#[inline]
pub const fn may_have(host: usize, address: usize, left: usize) -> bool {
    host < left && address < 2 * left
}

/// A host's key in [`Shares`]. It is valid until the host leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Party {
    host: u32,
    address: u32,
}

/// How many units of each kind of resource each host has. A host has an entry from its first connection until the end of its last one.
#[derive(Debug, Default)]
pub struct Shares<const KINDS: usize> {
    hosts: Members<Who, KINDS>,
    addresses: Members<IpAddr, KINDS>,
}

impl<const KINDS: usize> Shares<KINDS> {
    /// Adds a connection of a host, and returns the host's key.
    pub fn join(&mut self, who: Who) -> Party {
        Party { host: self.hosts.join(who), address: self.addresses.join(who.address) }
    }
    /// Removes a connection of a host. With its last connection, the host must have given everything back.
    pub fn leave(&mut self, party: Party) {
        self.hosts.leave(party.host);
        self.addresses.leave(party.address);
    }
    /// Moves a connection that has `has` units of each kind from `party` to the host `who`, and returns the key of that host.
    pub fn rename(&mut self, party: Party, who: Who, has: &[usize; KINDS]) -> Party {
        let new = self.join(who);
        for (kind, &n) in has.iter().enumerate() {
            self.give(party, kind, n);
            self.take(new, kind, n);
        }
        self.leave(party);
        new
    }
    /// How many units of a kind an address has.
    pub fn of_address(&self, address: IpAddr, kind: usize) -> usize {
        self.addresses.of_key(&address)[kind]
    }
    /// Whether a host may take one more unit of a kind, of which `left` are free.
    #[inline]
    pub fn may_have(&self, party: Party, kind: usize, left: usize) -> bool {
        may_have(self.has(party, kind), self.addresses.of(party.address)[kind], left)
    }
    /// As [`may_have`](Self::may_have), for a host that may have no connection yet.
    pub fn may_come(&self, who: Who, kind: usize, left: usize) -> bool {
        may_have(self.hosts.of_key(&who)[kind], self.addresses.of_key(&who.address)[kind], left)
    }
    /// How many units of a kind a host has.
    #[inline]
    pub fn has(&self, party: Party, kind: usize) -> usize {
        self.hosts.of(party.host)[kind]
    }
    /// Gives a host `n` more units of a kind.
    #[inline]
    pub fn take(&mut self, party: Party, kind: usize, n: usize) {
        self.hosts.of_mut(party.host)[kind] += n;
        self.addresses.of_mut(party.address)[kind] += n;
    }
    /// Takes `n` units of a kind back from a host.
    #[inline]
    pub fn give(&mut self, party: Party, kind: usize, n: usize) {
        self.hosts.of_mut(party.host)[kind] -= n;
        self.addresses.of_mut(party.address)[kind] -= n;
    }
}

/// The hosts, or the addresses, and how many units each has.
#[derive(Debug)]
struct Members<K, const KINDS: usize> {
    by_key: HashMap<K, u32>,
    entries: Vec<Member<K, KINDS>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Member<K, const KINDS: usize> {
    key: K,
    connections: u32,
    has: [usize; KINDS],
}

impl<K, const KINDS: usize> Default for Members<K, KINDS> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), entries: Vec::new(), free: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash, const KINDS: usize> Members<K, KINDS> {
    fn join(&mut self, key: K) -> u32 {
        let n = match self.by_key.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let member = Member { key, connections: 0, has: [0; KINDS] };
                let n = self.free.pop().unwrap_or(self.entries.len() as u32);
                match self.entries.get_mut(n as usize) {
                    Some(entry) => *entry = member,
                    None => self.entries.push(member),
                }
                *new.insert(n)
            }
        };
        self.entries[n as usize].connections += 1;
        n
    }
    fn leave(&mut self, n: u32) {
        let member = &mut self.entries[n as usize];
        member.connections -= 1;
        if member.connections == 0 {
            debug_assert!(member.has == [0; KINDS], "who leaves has given everything back");
            self.by_key.remove(&member.key);
            self.free.push(n);
        }
    }
    fn of_key(&self, key: &K) -> [usize; KINDS] {
        self.by_key.get(key).map_or([0; KINDS], |&n| *self.of(n))
    }
    #[inline]
    fn of(&self, n: u32) -> &[usize; KINDS] {
        &self.entries[n as usize].has
    }
    #[inline]
    fn of_mut(&mut self, n: u32) -> &mut [usize; KINDS] {
        &mut self.entries[n as usize].has
    }
}

/// A fair queue of items: addresses take turns, and the hosts of an address take turns within it. The items of a host stay in order.
#[derive(Debug)]
pub struct Turns<T> {
    addresses: VecDeque<Line<IpAddr, Line<Who, T>>>,
    len: usize,
}

/// The waiting hosts of an address, or the waiting items of a host.
#[derive(Debug)]
struct Line<K, W> {
    key: K,
    waits: VecDeque<W>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { addresses: VecDeque::new(), len: 0 }
    }
}

impl<T> Turns<T> {
    /// Whether no item waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// How many items wait.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Adds an item after all others of its host.
    pub fn push(&mut self, who: Who, item: T) {
        self.line(who).push_back(item);
    }
    /// Puts an item that was taken, but is not done, before all others of its host.
    pub fn put_back(&mut self, who: Who, item: T) {
        self.line(who).push_front(item);
    }
    fn line(&mut self, who: Who) -> &mut VecDeque<T> {
        self.len += 1;
        waits_of(waits_of(&mut self.addresses, who.address), who)
    }
    /// Takes the next item.
    pub fn pop(&mut self) -> Option<(Who, T)> {
        self.pop_if(|_, _| true)
    }
    /// Takes the first item of the next host for which `may` returns true, given that item. Hosts that are passed over keep their place.
    pub fn pop_if(&mut self, mut may: impl FnMut(Who, &T) -> bool) -> Option<(Who, T)> {
        for at in 0..self.addresses.len() {
            let hosts = &mut self.addresses[at].waits;
            let may_one = |host: &Line<Who, T>| host.waits.front().is_some_and(|item| may(host.key, item));
            let Some(host) = hosts.iter().position(may_one) else { continue };
            let who = hosts[host].key;
            let item = hosts[host].waits.pop_front()?;
            rotate(hosts, host);
            rotate(&mut self.addresses, at);
            self.len -= 1;
            return Some((who, item));
        }
        None
    }
    /// Drops the items for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.len = 0;
        for address in &mut self.addresses {
            for host in &mut address.waits {
                host.waits.retain(&mut keep);
                self.len += host.waits.len();
            }
            address.waits.retain(|host| !host.waits.is_empty());
        }
        self.addresses.retain(|address| !address.waits.is_empty());
    }
}

/// The line with this key; it is added if there is none.
fn waits_of<K: PartialEq, W>(lines: &mut VecDeque<Line<K, W>>, key: K) -> &mut VecDeque<W> {
    let at = lines.iter().position(|line| line.key == key).unwrap_or_else(|| {
        lines.push_back(Line { key, waits: VecDeque::new() });
        lines.len() - 1
    });
    &mut lines[at].waits
}
/// Moves the line at `at`, which had its turn, to the end; or removes it if it is empty.
fn rotate<K, W>(lines: &mut VecDeque<Line<K, W>>, at: usize) {
    if let Some(line) = lines.remove(at)
        && !line.waits.is_empty()
    {
        lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 77, 0, last])
    }
    fn host(address: u8, name: u8) -> Who {
        let nqn = format!("nqn.2024-01.test:host{name}").parse().expect("an NQN");
        Who::named(at(address), &nqn, &[name; 16])
    }
    /// Lets each host in turn take what it may have, until none may have more. Nobody gives anything back.
    fn share_out(of: usize, parties: &[Who]) -> Vec<usize> {
        let mut shares = Shares::<1>::default();
        let parties: Vec<_> = parties.iter().map(|&who| shares.join(who)).collect();
        let mut left = of;
        loop {
            let before = left;
            for &party in &parties {
                if shares.may_have(party, 0, left) {
                    shares.take(party, 0, 1);
                    left -= 1;
                }
            }
            if left == before {
                return parties.iter().map(|&party| shares.has(party, 0)).collect();
            }
        }
    }

    #[test]
    fn a_host_has_half_at_most_and_hosts_that_come_together_have_the_same() {
        assert_eq!(share_out(64, &[host(1, 1)]), [32]);
        assert_eq!(share_out(64, &[host(1, 1), host(2, 1)]), [22, 21]);
        assert_eq!(share_out(4, &[host(1, 1), host(2, 2), host(3, 3)]), [1, 1, 1]);
        let many: Vec<_> = (0..20).map(|n| host(n, n)).collect();
        let has = share_out(1000, &many);
        assert!(has.iter().all(|n| (47..=48).contains(n)), "{has:?}");
    }

    // Goal: shares belong to hosts, not to connections: a host with a thousand connections has one share.
    #[test]
    fn a_share_is_a_hosts_however_many_connections_it_has() {
        let mut shares = Shares::<1>::default();
        let connections: Vec<_> = (0..1000).map(|_| shares.join(host(1, 1))).collect();
        let mut left = 100;
        for &party in connections.iter().cycle().take(5000) {
            if shares.may_have(party, 0, left) {
                shares.take(party, 0, 1);
                left -= 1;
            }
        }
        assert_eq!(left, 50);
        shares.give(connections[0], 0, 50);
        connections.into_iter().for_each(|party| shares.leave(party));
        assert!(shares.hosts.by_key.is_empty() && shares.addresses.by_key.is_empty());
        assert_eq!((shares.hosts.entries.len(), shares.hosts.free.len()), (1, 1));
    }

    // Goal: names are not authenticated: an address that uses a hundred of them leaves a third to others.
    #[test]
    fn an_address_with_many_names_has_two_thirds_at_most() {
        let names: Vec<_> = (0..100).map(|n| host(1, n)).collect();
        let sum = share_out(300, &names).iter().sum::<usize>();
        assert_eq!(sum, 200);
        let mut with_other = names;
        with_other.push(host(2, 7));
        let has = share_out(300, &with_other);
        assert!(has[100] >= 50, "{}", has[100]);
    }

    #[test]
    fn what_a_host_had_before_it_said_who_it_is_goes_with_it() {
        let mut shares = Shares::<2>::default();
        let stranger = shares.join(Who::at(at(1)));
        let other = shares.join(Who::at(at(1)));
        shares.take(stranger, 1, 3);
        shares.take(other, 1, 1);
        let named = shares.rename(stranger, host(1, 1), &[0, 3]);
        assert_eq!((shares.has(named, 1), shares.has(other, 1)), (3, 1));
        assert_eq!(shares.addresses.of(named.address)[1], 4);
        shares.give(named, 1, 3);
        shares.leave(named);
        assert_eq!(shares.hosts.by_key.len(), 1);
    }

    #[test]
    fn addresses_take_turns_then_their_hosts_and_each_ones_order_stays() {
        let mut turns = Turns::default();
        for n in 0..4 {
            turns.push(host(1, 1), ('a', n));
        }
        turns.push(host(1, 2), ('b', 0));
        turns.push(host(2, 1), ('c', 0));
        turns.push(host(2, 1), ('c', 1));
        let mut order = Vec::new();
        while let Some((_, item)) = turns.pop() {
            order.push(item);
        }
        assert_eq!(order, [('a', 0), ('c', 0), ('b', 0), ('c', 1), ('a', 1), ('a', 2), ('a', 3)]);
        assert!(turns.is_empty());
    }

    #[test]
    fn one_that_is_not_done_is_its_hosts_next_and_others_come_between() {
        let mut turns = Turns::default();
        turns.push(host(1, 1), "long");
        turns.push(host(1, 1), "after it");
        turns.push(host(2, 1), "short");
        let (who, long) = turns.pop().expect("three wait");
        turns.put_back(who, long);
        let rest: Vec<_> = std::iter::from_fn(|| turns.pop()).map(|(_, item)| item).collect();
        assert_eq!(rest, ["short", "long", "after it"]);
    }

    #[test]
    fn a_host_that_may_not_keeps_its_place() {
        let mut turns = Turns::default();
        for n in 1..=3 {
            turns.push(host(n, n), n);
            turns.push(host(n, n), 10 + n);
        }
        assert_eq!(turns.pop_if(|_, &n| n != 1).map(|(_, n)| n), Some(2));
        assert_eq!(turns.pop().map(|(_, n)| n), Some(1));
        turns.retain(|&n| n != 13);
        assert_eq!((turns.len(), turns.pop_if(|_, _| false)), (3, None));
        let rest: Vec<_> = std::iter::from_fn(|| turns.pop()).map(|(_, n)| n).collect();
        assert_eq!(rest, [3, 12, 11]);
    }
}
