//! Commands that wait: for a buffer, for data of the host, for the storage, or for the completion of their response.

use nvmf::config::Backend;
use nvmf::{Remote, Ticket};

use super::ids::{ConnId, ReceiveId};
use super::pool::Buffer;
use crate::store::{CommandIndex, MrSlice, Work};

/// What a command waits for, and what is done next.
#[derive(Clone, Copy, Debug)]
pub enum CommandState {
    /// For a buffer, to fetch bytes from the host.
    Fetch(Remote, Purpose),
    /// For a buffer, to write data of the controller to the host.
    Give(Remote),
    /// For a buffer, to read bytes of the storage into. They are then written to the host.
    Load {
        /// The namespace's storage.
        backend: Backend,
        /// Byte offset in the storage.
        offset: u64,
        /// The host memory to write them to.
        to: Remote,
        /// FUA: the bytes that are read must be on stable storage.
        fua: bool,
    },
    /// For a buffer, to copy this many bytes into. They came in the capsule, and the storage cannot take them from there.
    Copy(u32, Transfer),
    /// For an RDMA READ of this many bytes.
    Fetched(u32, Purpose),
    /// For the storage. If the command is a Read: the host memory to which the data are written afterwards.
    Storage(Option<Remote>),
    /// For the end of the turn, when its data are copied to a namespace in memory.
    Place {
        /// The namespace's storage.
        backend: Backend,
        /// Byte offset in the storage.
        offset: u64,
        /// Offset of the data in the memory region of the receives if they are in a capsule, else in that of the pool.
        at: usize,
        /// Length in bytes.
        len: u32,
    },
    /// For zeros to be written, a piece in each turn.
    Zeroing,
    /// For the completion of its response, which was sent: the buffer holds the data that were sent before it.
    Answered,
}

/// What bytes of the host are fetched for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// For the controller itself.
    Controller,
    /// For the storage of a namespace.
    Storage(Transfer),
}

/// What the storage does with bytes of the host.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The namespace's storage.
    pub backend: Backend,
    /// Byte offset in the storage.
    pub offset: u64,
    /// FUA: the bytes must be on stable storage before the command ends.
    pub fua: bool,
    /// Compare the bytes with the stored ones, instead of writing them.
    pub compare: bool,
}

impl Transfer {
    /// The work for the storage, with the bytes at `place`.
    pub fn work(self, place: MrSlice) -> Work {
        let Self { offset, fua, compare, .. } = self;
        match compare {
            false => Work::Write { offset, from: place, fua },
            true => Work::Compare { offset, with: place, fua },
        }
    }
}

/// Where the data of a command are that came in its capsule.
#[derive(Debug)]
pub enum Capsule {
    /// In this receive buffer, until the end of the turn.
    Now(ReceiveId),
    /// In this receive buffer, at this offset in the memory region of the receives, until the storage is done with them. The buffer counts
    /// toward the host's share.
    Kept(ReceiveId, usize),
    /// In memory of their own, because the host's commands already keep as many receive buffers as its share allows.
    Copied(Box<[u8]>),
}

/// A command that waits.
#[derive(Debug)]
pub struct Command {
    /// Its connection.
    pub connection: ConnId,
    /// The controller's handle to it.
    pub ticket: Ticket,
    /// What it waits for.
    pub state: CommandState,
    /// Its buffer from the pool, if it has one.
    pub buffer: Option<Buffer>,
    /// Its in-capsule data, if it has some.
    pub capsule: Option<Capsule>,
}

/// All commands of a core that wait, by index.
#[derive(Debug, Default)]
pub struct Commands {
    entries: Vec<Option<Command>>,
    free: Vec<CommandIndex>,
}

impl Commands {
    /// Adds a command; returns its index. Allocates only if more commands wait than ever before.
    #[inline]
    pub fn insert(&mut self, command: Command) -> CommandIndex {
        if let Some(id) = self.free.pop() {
            self.entries[id.0 as usize] = Some(command);
            return id;
        }
        self.entries.push(Some(command));
        CommandIndex((self.entries.len() - 1) as u32)
    }
    /// The command with this index; `None` if there is none.
    #[inline]
    pub fn get_mut(&mut self, id: CommandIndex) -> Option<&mut Command> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }
    /// Sets where the in-capsule data of a command are; `None` if it has none any more.
    #[inline]
    pub fn set_capsule(&mut self, id: CommandIndex, capsule: Option<Capsule>) {
        if let Some(command) = self.get_mut(id) {
            command.capsule = capsule;
        }
    }
    /// Removes a command and returns it.
    #[inline]
    pub fn remove(&mut self, id: CommandIndex) -> Option<Command> {
        let command = self.entries.get_mut(id.0 as usize)?.take()?;
        self.free.push(id);
        Some(command)
    }
    /// How many commands wait.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
