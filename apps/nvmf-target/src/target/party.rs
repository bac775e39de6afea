//! What the hosts of a core share: its buffers, the capsules that it keeps, and its connections. Who may have how much, and whose
//! turn it is, says [`nvmf::fair`].

use std::collections::HashMap;
use std::net::IpAddr;

use nvmf::Queue;
use nvmf::fair::Who;
use tracing::warn;

use super::connection::Ending;
use super::core::Core;
use super::pool::{Buffer, CLASSES};

/// Capsules with data that wait for the storage, behind the kinds of buffers.
pub const CAPSULES: usize = CLASSES;
/// Connections, behind the capsules.
pub const CONNECTIONS: usize = CAPSULES + 1;
/// What is shared.
pub const KINDS: usize = CONNECTIONS + 1;
/// Where a subsystem names its hosts, one connection of so many is kept for those.
const KEPT: usize = 4;

/// Whether there is room for one more connection of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is.
    Free,
    /// Only if a subsystem names the host, which it will say.
    Kept,
    /// There is none, or the host has its share.
    None,
}

impl Core<'_> {
    /// Who the host of a connection is.
    #[inline]
    pub(super) fn who(&self, c: u32) -> Who {
        self.connections[c as usize].as_ref().expect("who names a connection keeps it").who
    }
    /// The host may have said who it is.
    pub(super) fn note_who(&mut self, c: u32) {
        let Some(who) = self.queue(c).map(|queue| queue.who()) else { return };
        let connection = self.connections[c as usize].as_mut().expect("it has a queue");
        if connection.who == who {
            return;
        }
        if connection.guest && connection.queue.as_ref().is_some_and(Queue::is_named) {
            connection.guest = false;
            self.guests -= 1;
        }
        connection.who = who;
        connection.party = self.shares.rename(connection.party, who, &connection.has);
        for (waiting, want) in self.waiting.iter_mut().zip(&connection.want) {
            if !want.is_empty() {
                waiting.retain(|&other| other != c);
                waiting.push(who, c);
            }
        }
    }
    /// Whether there is room for one more connection of a host; `named`: one that a subsystem names.
    pub(super) fn room(&self, who: Who, named: bool) -> Room {
        let most = self.config.connections;
        let kept = if self.target.names_hosts() { most / KEPT } else { 0 };
        let left = most.saturating_sub(self.by_qpn.len());
        let free = if named { left } else { left.min((most - kept).saturating_sub(self.guests)) };
        if self.shares.may_come(who, CONNECTIONS, free) {
            Room::Free
        } else if free < left && self.shares.may_come(who, CONNECTIONS, left - free) {
            Room::Kept
        } else {
            Room::None
        }
    }
    /// There is no room for a host. If others do not say who they are, the oldest connection of the address that has most of these
    /// ends: so nobody keeps others out by connections that do nothing.
    pub(super) fn make_room(&mut self, who: Who) {
        let mut silent: HashMap<IpAddr, (usize, u64, u32)> = HashMap::new();
        for (c, connection) in (0..).zip(&self.connections) {
            let Some(connection) = connection.as_ref().filter(|connection| !connection.who.is_named()) else {
                continue;
            };
            if connection.ending != Ending::No {
                continue;
            }
            let (count, oldest, of) =
                silent.entry(connection.who.address).or_insert((0, connection.number, c));
            *count += 1;
            if connection.number < *oldest {
                (*oldest, *of) = (connection.number, c);
            }
        }
        let ours = silent.get(&who.address).map_or(0, |&(count, ..)| count);
        let most = silent.values().max_by_key(|&&(count, oldest, _)| (count, std::cmp::Reverse(oldest)));
        if let Some(&(count, _, c)) = most
            && count > ours + 1
        {
            self.close(c, &"the host does not say who it is, and others want its place");
        }
    }
    /// A connection of a host is refused: says so, once a minute for each address.
    pub(super) fn say_refused(&mut self, who: Who) {
        if self.refused.is_news(who.address, self.now) {
            let (has, most) = (self.shares.of_address(who.address, CONNECTIONS), self.config.connections);
            let left = most.saturating_sub(self.by_qpn.len());
            warn!(
                peer = %who.address, has, left, most,
                "a connection is refused: a host has no more than are left, and some are kept for hosts that a subsystem names; \
                 --connections says how many a core has"
            );
        }
    }

    /// Whether the host of a connection may have one more of a kind, of which `left` are left.
    #[inline]
    fn may_have(&self, c: u32, kind: usize, left: usize) -> bool {
        let connection = self.connections[c as usize].as_ref();
        connection.is_some_and(|connection| self.shares.may_have(connection.party, kind, left))
    }
    #[inline]
    pub(super) fn took(&mut self, c: u32, kind: usize) {
        let connection = self.connections[c as usize].as_mut().expect("who names a connection keeps it");
        connection.has[kind] += 1;
        self.shares.take(connection.party, kind, 1);
    }
    #[inline]
    pub(super) fn gave(&mut self, c: u32, kind: usize) {
        let connection = self.connections[c as usize].as_mut().expect("who names a connection keeps it");
        connection.has[kind] -= 1;
        self.shares.give(connection.party, kind, 1);
    }

    /// Goes on with a command when it has a buffer for `len` bytes.
    #[inline]
    pub(super) fn get_buffer(&mut self, c: u32, n: u32, len: u32) {
        let class = self.pool.class_of(len as usize);
        // Commands that wait already come first.
        let may = self.waiting[class].is_empty() && self.may_have(c, class, self.pool.left(class));
        match may.then(|| self.pool.take(class)).flatten() {
            Some(buffer) => {
                self.took(c, class);
                self.begin(c, n, buffer);
            }
            None => self.waits(c, class, n),
        }
    }
    fn waits(&mut self, c: u32, class: usize, n: u32) {
        self.counters.buffer_waits.add(1);
        let want = &mut self.connection(c).want[class];
        want.push_back(n);
        if want.len() == 1 {
            self.waiting[class].push(self.who(c), c);
        }
    }
    /// A command needs its buffer no more.
    #[inline]
    pub(super) fn give_buffer(&mut self, c: u32, buffer: Buffer) {
        self.gave(c, buffer.class());
        self.pool.give(buffer);
    }
    /// Gives free buffers to the commands that wait for them, host by host; returns whether any was given.
    #[inline]
    pub(super) fn hand_out(&mut self, class: usize) -> bool {
        !self.waiting[class].is_empty() && self.hand_out_some(class)
    }
    fn hand_out_some(&mut self, class: usize) -> bool {
        let mut given = false;
        loop {
            let left = self.pool.left(class);
            let (shares, connections) = (&self.shares, &self.connections);
            let may = |c: u32| {
                let connection = connections[c as usize].as_ref();
                connection.is_some_and(|connection| shares.may_have(connection.party, class, left))
            };
            let Some((who, c)) = self.waiting[class].pop_if(|_, &c| may(c)) else { return given };
            let buffer = self.pool.take(class).expect("none may have one of none");
            self.took(c, class);
            let want = &mut self.connection(c).want[class];
            let n = want.pop_front().expect("who waits wants a buffer");
            if !want.is_empty() {
                self.waiting[class].push(who, c);
            }
            self.begin(c, n, buffer);
            given = true;
        }
    }

    /// Whether a command may keep its capsule, with its data, until the storage has them.
    pub(super) fn may_keep_capsule(&self, c: u32) -> bool {
        self.may_have(c, CAPSULES, self.receives.left())
    }
    /// A command keeps its capsule.
    pub(super) fn keep_capsule(&mut self, c: u32) {
        self.took(c, CAPSULES);
    }
    /// A command needs the capsule that it kept no more.
    pub(super) fn give_capsule(&mut self, c: u32, capsule: u32) {
        self.gave(c, CAPSULES);
        self.receives.give(capsule);
    }
}
