//! What the hosts of a core share: its buffers, the capsules that it keeps, and its places for connections. Who may have how much, and
//! whose turn it is, says [`nvmf::fair`]; here alone it is asked.

use std::collections::VecDeque;
use std::net::IpAddr;

use nvmf::fair::{Party, Shares, Turns, Who};

use super::ids::{ConnId, ReceiveId};
use super::pool::{Buffer, CLASSES, Class, Pool};
use super::receives::Receives;
use crate::store::CommandIndex;

/// The kind of capsules that are kept, because their data wait for the storage. The kinds before it are the classes of buffers.
const CAPSULES: usize = CLASSES;
/// The kind of places for connections.
const CONNECTIONS: usize = CAPSULES + 1;
/// Kinds of what is shared.
const KINDS: usize = CONNECTIONS + 1;
/// Where a subsystem names its hosts, one place in so many is kept for the hosts that it names.
const KEPT: usize = 4;

/// Whether there is room for one more connection of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is room.
    Free,
    /// Only a place that is kept: if a subsystem names the host, which is known when the host has said its name.
    Kept,
    /// There is no room, or the host has its share already.
    None,
}

/// Places for connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Places that the address has.
    pub has: usize,
    /// Places that are left.
    pub left: usize,
    /// All places.
    pub most: usize,
}

/// A connection's part of what is shared.
#[derive(Debug)]
pub struct Share {
    connection: ConnId,
    /// The host.
    who: Who,
    /// No subsystem names the host, as far as is known.
    guest: bool,
    /// The host, as the shares know it.
    party: Party,
    /// How much the connection has of each kind.
    has: [usize; KINDS],
    /// Its commands that wait for a buffer, by its class.
    wants: [VecDeque<CommandIndex>; CLASSES],
}

impl Share {
    /// Who the host is.
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

/// What is shared.
pub struct Shared {
    pub pool: Pool,
    pub receives: Receives,
    shares: Shares<KINDS>,
    /// Connections with commands that wait for a buffer, in turn.
    waiting: [Turns<Waiting>; CLASSES],
    /// Connections that there may be.
    places: usize,
    /// Connections that there are.
    connections: usize,
    /// Connections of hosts that no subsystem names, as far as is known.
    guests: usize,
}

impl Shared {
    /// Buffers and receives, and so many places for connections.
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
    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.connections
    }
    fn places_left(&self) -> usize {
        self.places.saturating_sub(self.connections)
    }
    /// The places for connections, as an address sees them.
    pub fn places_of(&self, address: IpAddr) -> Places {
        let has = self.shares.of_address(address, CONNECTIONS);
        Places { has, left: self.places_left(), most: self.places }
    }
    /// Whether there is room for one more connection of a host; `named`: one that a subsystem names; `some_named`: subsystems do so.
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
    /// A connection of a host takes a place.
    pub fn join(&mut self, connection: ConnId, who: Who, named: bool) -> Share {
        let party = self.shares.join(who);
        let mut share =
            Share { connection, who, guest: !named, party, has: [0; KINDS], wants: Default::default() };
        self.take(&mut share, CONNECTIONS);
        self.connections += 1;
        self.guests += usize::from(share.guest);
        share
    }
    /// The connection ends. It has nothing any more, but its place.
    pub fn leave(&mut self, share: &mut Share) {
        self.give(share, CONNECTIONS);
        self.connections -= 1;
        self.guests -= usize::from(share.guest);
        self.shares.leave(share.party);
    }
    /// The host has said who it is; `named`: a subsystem names it.
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

    /// A buffer for `len` bytes; none where the command has to wait for one.
    #[inline]
    pub fn get_buffer(&mut self, share: &mut Share, command: CommandIndex, len: u32) -> Option<Buffer> {
        let class = self.pool.class_of(len as usize);
        // Commands that wait already come first.
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
    /// A buffer of a class for a connection that waits and may have one, host by host; its share [takes](Self::hand_out) it.
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
    /// The connection has a buffer that it waited for; returns the command that it is for.
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
    /// A command needs its buffer no more.
    #[inline]
    pub fn give_buffer(&mut self, share: &mut Share, buffer: Buffer) {
        self.give(share, buffer.class().index());
        self.pool.give(buffer);
    }
    /// Commands that waited for buffers: they need none any more.
    pub fn forget_wants(&mut self, share: &mut Share) -> impl Iterator<Item = CommandIndex> + use<> {
        for waiting in &mut self.waiting {
            waiting.retain(|other| other.connection != share.connection);
        }
        std::mem::take(&mut share.wants).into_iter().flatten()
    }

    /// Whether a command keeps its capsule, with its data, until the storage has them: else its host has as many as it may.
    pub fn keep_capsule(&mut self, share: &mut Share) -> bool {
        let may = self.shares.may_have(share.party, CAPSULES, self.receives.left());
        if may {
            self.take(share, CAPSULES);
        }
        may
    }
    /// A command needs the capsule that it kept no more.
    pub fn release_kept_receive(&mut self, share: &mut Share, capsule: ReceiveId) {
        self.give(share, CAPSULES);
        self.receives.give(capsule);
    }
}
