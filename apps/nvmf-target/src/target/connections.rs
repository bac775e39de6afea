//! The connections of a core: found by index, and by the number of their queue pair.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use verbs::Qpn;

use super::connection::Connection;
use super::ids::ConnId;

/// The connections. The index of a connection that was dropped is reused.
#[derive(Default)]
pub struct Connections {
    entries: Vec<Option<Box<Connection>>>,
    by_qpn: HashMap<Qpn, ConnId, BuildHasherDefault<QpnHasher>>,
}

impl Connections {
    /// The index that the next connection will have.
    pub fn next_id(&self) -> ConnId {
        let free = self.entries.iter().position(Option::is_none);
        ConnId(free.unwrap_or(self.entries.len()) as u32)
    }
    /// Adds a connection, which was made with the [next index](Self::next_id).
    pub fn insert(&mut self, connection: Connection) {
        let id = connection.id;
        if self.entries.len() == id.index() {
            self.entries.push(None);
        }
        self.by_qpn.insert(connection.qp.qp_num(), id);
        self.entries[id.index()] = Some(Box::new(connection));
    }
    /// The connection with this index; `None` if there is none.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.entries.get_mut(id.index())?.as_deref_mut()
    }
    /// The connection of a waiting command, by the index in the command. A connection is kept until none of its commands waits.
    #[inline]
    pub fn of_command(&mut self, id: ConnId) -> &mut Connection {
        self.get_mut(id).expect("a connection is kept while it has commands")
    }
    /// The connection with this queue pair number; `None` if there is none.
    #[inline]
    pub fn of_qp(&mut self, qpn: Qpn) -> Option<&mut Connection> {
        let id = *self.by_qpn.get(&qpn)?;
        self.get_mut(id)
    }
    /// All connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.entries.iter_mut().flatten().map(Box::as_mut)
    }
    /// Drops the connections for which `is_gone` returns true.
    pub fn drop_those(&mut self, mut is_gone: impl FnMut(&mut Connection) -> bool) {
        for entry in &mut self.entries {
            if let Some(gone) = entry.take_if(|connection| is_gone(connection)) {
                self.by_qpn.remove(&gone.qp.qp_num());
            }
        }
    }
    /// A connection that may be closed to make room for a host at the address `by`. Only silent connections are considered: open
    /// connections whose host has not sent Connect. The result is the oldest silent connection of the address that has the most of them, if
    /// it has at least two more than `by`. So no address can keep others out by connections that do nothing.
    pub fn replaceable(&mut self, by: IpAddr) -> Option<&mut Connection> {
        struct Silent {
            count: usize,
            /// How many connections the core had accepted before the oldest one.
            oldest: u64,
            id: ConnId,
        }
        let mut silent: HashMap<IpAddr, Silent> = HashMap::new();
        for connection in self.iter_mut() {
            let who = connection.share.who();
            if who.is_named() || !connection.is_open() {
                continue;
            }
            let (oldest, id) = (connection.accepted_before, connection.id);
            let here = silent.entry(who.address).or_insert(Silent { count: 0, oldest, id });
            here.count += 1;
            if oldest < here.oldest {
                (here.oldest, here.id) = (oldest, id);
            }
        }
        let ours = silent.get(&by).map_or(0, |here| here.count);
        let most = silent.into_values().max_by_key(|here| (here.count, Reverse(here.oldest)))?;
        self.get_mut(most.id).filter(|_| most.count > ours + 1)
    }
}

/// A cheap hash of queue pair numbers. The target assigns them, so no host can choose numbers that collide.
#[derive(Default)]
struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u32(b as u32);
        }
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
