//! Commands under way that wait for something: a buffer, bytes of the host, the storage, or the end of the response.

use nvmf::config::Backend;
use nvmf::{Remote, Ticket};

use super::ids::{ConnId, ReceiveId};
use super::pool::Buffer;
use crate::store::{CommandIndex, MrSlice, Work};

/// What a command waits for, and what happens then.
#[derive(Clone, Copy, Debug)]
pub enum CommandState {
    /// A buffer, to fetch bytes of the host.
    Fetch(Remote, Purpose),
    /// A buffer, to give bytes to the host.
    Give(Remote),
    /// A buffer, to read bytes of the storage into, which are then given to the host.
    Load {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// The host's memory.
        to: Remote,
        /// FUA: the bytes that are read must be on stable storage.
        fua: bool,
    },
    /// A buffer, to copy so many bytes into: they came in the capsule, and cannot go to the storage from there.
    Copy(u32, Transfer),
    /// The bytes of the host: an RDMA READ is under way.
    Fetched(u32, Purpose),
    /// The storage, which works on it. For a Read: the memory of the host that the data go to afterwards.
    Storage(Option<Remote>),
    /// The end of the turn, when its data are copied into a namespace in memory.
    Place {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// Where they are, in the region of its capsule or else of its buffer.
        at: usize,
        /// Bytes.
        len: u32,
    },
    /// Zeros are being written, a piece a turn.
    Zeroing,
    /// The host, to acknowledge the response that was sent: the data before it are in the buffer until then.
    Answered,
}

/// What bytes of the host are for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The controller itself.
    Controller,
    /// A namespace's storage.
    Storage(Transfer),
}

/// What the storage does with bytes of the host.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The namespace's storage.
    pub backend: Backend,
    /// Offset in it.
    pub offset: u64,
    /// FUA: the command ends when the bytes are on stable storage.
    pub fua: bool,
    /// They are compared with those that are there, and not written.
    pub compare: bool,
}

impl Transfer {
    /// The work, where the bytes are at a place.
    pub fn work(self, place: MrSlice) -> Work {
        let Self { offset, fua, compare, .. } = self;
        match compare {
            false => Work::Write { offset, from: place, fua },
            true => Work::Compare { offset, with: place, fua },
        }
    }
}

/// Data that came in a capsule.
#[derive(Debug)]
pub enum Capsule {
    /// They are in this buffer, until the end of the turn.
    Now(ReceiveId),
    /// They are in this buffer, at this offset of the region of all receives, until the storage has them. The buffer counts in the
    /// host's share.
    Kept(ReceiveId, usize),
    /// They were copied out, because the host's commands keep as many buffers as its share allows.
    Copied(Box<[u8]>),
}

/// A command under way.
#[derive(Debug)]
pub struct Command {
    /// Its connection.
    pub connection: ConnId,
    /// The controller's name for it.
    pub ticket: Ticket,
    /// What it waits for.
    pub state: CommandState,
    /// The buffer that it has.
    pub buffer: Option<Buffer>,
    /// The capsule that its data are in.
    pub capsule: Option<Capsule>,
}

/// All commands under way of a core, by number.
#[derive(Debug, Default)]
pub struct Commands {
    entries: Vec<Option<Command>>,
    free: Vec<CommandIndex>,
}

impl Commands {
    /// Keeps a command; returns its number. Allocates only if more are under way than ever before.
    #[inline]
    pub fn insert(&mut self, command: Command) -> CommandIndex {
        if let Some(id) = self.free.pop() {
            self.entries[id.0 as usize] = Some(command);
            return id;
        }
        self.entries.push(Some(command));
        CommandIndex((self.entries.len() - 1) as u32)
    }
    /// The command of a number.
    #[inline]
    pub fn get_mut(&mut self, id: CommandIndex) -> Option<&mut Command> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }
    /// Notes which capsule a command's data are in; `None`: in none any more.
    #[inline]
    pub fn set_capsule(&mut self, id: CommandIndex, capsule: Option<Capsule>) {
        if let Some(command) = self.get_mut(id) {
            command.capsule = capsule;
        }
    }
    /// Takes a command out.
    #[inline]
    pub fn remove(&mut self, id: CommandIndex) -> Option<Command> {
        let command = self.entries.get_mut(id.0 as usize)?.take()?;
        self.free.push(id);
        Some(command)
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
