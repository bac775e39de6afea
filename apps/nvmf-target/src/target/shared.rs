//! The resources that the hosts of a core share: its buffers, the receive buffers whose capsules it keeps, and its places for connections.
//! [`nvmf::fair`] has the rules for how much each host may have, and whose turn it is.

use std::collections::VecDeque;
use std::net::IpAddr;

use nvmf::fair::{Party, Shares, Turns, Who};

use super::ids::{ConnId, ReceiveId};
use super::pool::{Buffer, CLASSES, Class, Pool};
use super::receives::Receives;
use crate::store::CommandIndex;

/// The kind of kept capsules, whose data wait for the storage. The kinds before it are the classes of buffers.
const CAPSULES: usize = CLASSES;
/// The kind of places for connections.
const CONNECTIONS: usize = CAPSULES + 1;
/// The number of kinds of shared resources.
const KINDS: usize = CONNECTIONS + 1;
/// If a subsystem lists its hosts, one in this many places is reserved for listed hosts.
const KEPT: usize = 4;

/// Whether there is room for one more connection of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is room.
    Free,
    /// There is room only in a reserved place: the host may have it if its subsystem lists it, which Connect will show.
    Kept,
    /// There is no room, or the host or its address has its share already.
    None,
}

/// Places for connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Places that the address uses.
    pub has: usize,
    /// Places that are free.
    pub left: usize,
    /// All places.
    pub most: usize,
}

/// A connection's part of the shared resources.
#[derive(Debug)]
pub struct Share {
    connection: ConnId,
    /// The host, as far as it is known.
    who: Who,
    /// Whether the host is not known to be listed by its subsystem.
    guest: bool,
    /// The host's key in the shares.
    party: Party,
    /// How many units of each kind the connection has.
    has: [usize; KINDS],
    /// The connection's commands that wait for a buffer, by class.
    wants: [VecDeque<CommandIndex>; CLASSES],
}

impl Share {
    /// The host, as far as it is known.
    pub const fn who(&self) -> Who {
        self.who
    }
}

/// A connection that waits for a buffer.
#[derive(Debug)]
struct Waiting {
    connection: ConnId,
    party: Party,
}

/// The shared resources of a core.
pub struct Shared {
    pub pool: Pool,
    pub receives: Receives,
    shares: Shares<KINDS>,
    /// Connections with commands that wait for a buffer, by class.
    waiting: [Turns<Waiting>; CLASSES],
    /// The maximum number of connections.
    places: usize,
    /// The number of connections.
    connections: usize,
    /// The number of connections whose host is not known to be listed by its subsystem.
    guests: usize,
}

impl Shared {
    /// Makes the shared resources of a core with `places` places for connections.
    pub fn new(pool: Pool, receives: Receives, places: usize) -> Self {
        Self {
            pool,
            receives,
            shares: Shares::default(),
            waiting: Default::default(),
            places,
            connections: 0,
            guests: 0,
        }
    }
    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.connections
    }
    fn places_left(&self) -> usize {
        self.places.saturating_sub(self.connections)
    }
    /// The places for connections, and how many of them an address uses.
    pub fn places_of(&self, address: IpAddr) -> Places {
        let has = self.shares.of_address(address, CONNECTIONS);
        Places { has, left: self.places_left(), most: self.places }
    }
    /// Whether there is room for one more connection of a host. `named`: its subsystem is known to list it. `some_named`: some subsystem
    /// lists its hosts.
    pub fn room(&self, who: Who, named: bool, some_named: bool) -> Room {
        let kept = if some_named { self.places / KEPT } else { 0 };
        let left = self.places_left();
        let free = if named { left } else { left.min((self.places - kept).saturating_sub(self.guests)) };
        if self.shares.may_come(who, CONNECTIONS, free) {
            Room::Free
        } else if free < left && self.shares.may_come(who, CONNECTIONS, left - free) {
            Room::Kept
        } else {
            Room::None
        }
    }
    /// Adds a connection of a host, which takes a place.
    pub fn join(&mut self, connection: ConnId, who: Who, named: bool) -> Share {
        let party = self.shares.join(who);
        let mut share =
            Share { connection, who, guest: !named, party, has: [0; KINDS], wants: Default::default() };
        self.take(&mut share, CONNECTIONS);
        self.connections += 1;
        self.guests += usize::from(share.guest);
        share
    }
    /// Removes a connection. It must have given back everything except its place.
    pub fn leave(&mut self, share: &mut Share) {
        self.give(share, CONNECTIONS);
        self.connections -= 1;
        self.guests -= usize::from(share.guest);
        self.shares.leave(share.party);
    }
    /// Moves a connection's resources to the share of its host, whose name is known now. `named`: its subsystem lists it.
    pub fn rename(&mut self, share: &mut Share, who: Who, named: bool) {
        if share.guest && named {
            share.guest = false;
            self.guests -= 1;
        }
        share.who = who;
        share.party = self.shares.rename(share.party, who, &share.has);
        for class in Class::ALL {
            if !share.wants[class.index()].is_empty() {
                self.waiting[class.index()].retain(|other| other.connection != share.connection);
                self.wait(share, class);
            }
        }
    }

    #[inline]
    fn take(&mut self, share: &mut Share, kind: usize) {
        share.has[kind] += 1;
        self.shares.take(share.party, kind, 1);
    }
    #[inline]
    fn give(&mut self, share: &mut Share, kind: usize) {
        share.has[kind] -= 1;
        self.shares.give(share.party, kind, 1);
    }

    /// Takes a buffer for `len` bytes. `None`: the command waits for one, and [`hand_out`](Self::hand_out) will return it.
    #[inline]
    pub fn get_buffer(&mut self, share: &mut Share, command: CommandIndex, len: u32) -> Option<Buffer> {
        let class = self.pool.class_of(len as usize);
        // Commands that already wait come first.
        let may = self.waiting[class.index()].is_empty()
            && self.shares.may_have(share.party, class.index(), self.pool.left(class));
        let buffer = may.then(|| self.pool.take(class)).flatten();
        match buffer {
            Some(_) => self.take(share, class.index()),
            None => {
                let wants = &mut share.wants[class.index()];
                wants.push_back(command);
                if wants.len() == 1 {
                    self.wait(share, class);
                }
            }
        }
        buffer
    }
    fn wait(&mut self, share: &Share, class: Class) {
        let waiting = Waiting { connection: share.connection, party: share.party };
        self.waiting[class.index()].push(share.who, waiting);
    }
    /// Takes a buffer of a class for the next connection that waits and may have one; hosts take turns. Call [`hand_out`](Self::hand_out)
    /// with it. `None`: no connection waits, or none may have a buffer now.
    #[inline]
    pub fn next_buffer(&mut self, class: Class) -> Option<(ConnId, Buffer)> {
        let waiting = &mut self.waiting[class.index()];
        if waiting.is_empty() {
            return None;
        }
        let left = self.pool.left(class);
        let may = |_, waiting: &Waiting| self.shares.may_have(waiting.party, class.index(), left);
        let (_, Waiting { connection, .. }) = waiting.pop_if(may)?;
        Some((connection, self.pool.take(class).expect("none may have one of none")))
    }
    /// Counts a buffer of [`next_buffer`](Self::next_buffer) toward the connection's share. Returns the command that the buffer is for.
    pub fn hand_out(&mut self, share: &mut Share, buffer: &Buffer) -> CommandIndex {
        let class = buffer.class();
        self.take(share, class.index());
        let wants = &mut share.wants[class.index()];
        let command = wants.pop_front().expect("who waits wants a buffer");
        if !wants.is_empty() {
            self.wait(share, class);
        }
        command
    }
    /// Frees the buffer of a command.
    #[inline]
    pub fn give_buffer(&mut self, share: &mut Share, buffer: Buffer) {
        self.give(share, buffer.class().index());
        self.pool.give(buffer);
    }
    /// Returns the connection's commands that wait for buffers, and forgets that they wait.
    pub fn forget_wants(&mut self, share: &mut Share) -> impl Iterator<Item = CommandIndex> + use<> {
        for waiting in &mut self.waiting {
            waiting.retain(|other| other.connection != share.connection);
        }
        std::mem::take(&mut share.wants).into_iter().flatten()
    }

    /// Whether a command may keep its capsule until the storage is done with the data. If true, the capsule counts toward the share of its
    /// host. If false, the host has as many as it may have.
    pub fn keep_capsule(&mut self, share: &mut Share) -> bool {
        let may = self.shares.may_have(share.party, CAPSULES, self.receives.left());
        if may {
            self.take(share, CAPSULES);
        }
        may
    }
    /// Frees the receive buffer of a capsule that a command kept.
    pub fn release_kept_receive(&mut self, share: &mut Share, capsule: ReceiveId) {
        self.give(share, CAPSULES);
        self.receives.give(capsule);
    }
}
