//! The connections of a core, by their own numbers and by those of their queue pairs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use verbs::Qpn;

use super::connection::Connection;
use super::ids::ConnId;

/// Those that there are.
#[derive(Default)]
pub struct Connections {
    entries: Vec<Option<Box<Connection>>>,
    by_qpn: HashMap<Qpn, ConnId, BuildHasherDefault<QpnHasher>>,
}

impl Connections {
    /// The number that the next one has.
    pub fn next_id(&self) -> ConnId {
        let free = self.entries.iter().position(Option::is_none);
        ConnId(free.unwrap_or(self.entries.len()) as u32)
    }
    /// Adds one of the [next](Self::next_id) number.
    pub fn insert(&mut self, connection: Connection) {
        let id = connection.id;
        if self.entries.len() == id.index() {
            self.entries.push(None);
        }
        self.by_qpn.insert(connection.qp.qp_num(), id);
        self.entries[id.index()] = Some(Box::new(connection));
    }
    /// The one of a number, which may be gone.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.entries.get_mut(id.index())?.as_deref_mut()
    }
    /// The one of a command: it is kept until it has none.
    #[inline]
    pub fn of_command(&mut self, id: ConnId) -> &mut Connection {
        self.get_mut(id).expect("a connection is kept while it has commands")
    }
    /// The one of a queue pair, which may be gone.
    #[inline]
    pub fn of_qp(&mut self, qpn: Qpn) -> Option<&mut Connection> {
        let id = *self.by_qpn.get(&qpn)?;
        self.get_mut(id)
    }
    /// All.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.entries.iter_mut().flatten().map(Box::as_mut)
    }
    /// Drops those that are gone.
    pub fn drop_those(&mut self, mut is_gone: impl FnMut(&mut Connection) -> bool) {
        for entry in &mut self.entries {
            if let Some(gone) = entry.take_if(|connection| is_gone(connection)) {
                self.by_qpn.remove(&gone.qp.qp_num());
            }
        }
    }
    /// A connection that may make room for a host of this address: the oldest one of the address that has most connections which do not
    /// say who they are, if it has two more of them at least. So nobody keeps others out by connections that do nothing.
    pub fn replaceable(&mut self, by: IpAddr) -> Option<&mut Connection> {
        struct Silent {
            count: usize,
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
            let of = silent.entry(who.address).or_insert(Silent { count: 0, oldest, id });
            of.count += 1;
            if oldest < of.oldest {
                (of.oldest, of.id) = (oldest, id);
            }
        }
        let ours = silent.get(&by).map_or(0, |of| of.count);
        let most = silent.into_values().max_by_key(|of| (of.count, Reverse(of.oldest)))?;
        self.get_mut(most.id).filter(|_| most.count > ours + 1)
    }
}

/// Spreads queue pair numbers, which this side has drawn itself.
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
