//! The NVM command set: commands in, requests to a namespace's backend out.
//!
//! A command that goes beyond the namespace or the largest transfer fails without a request. The backend's answer becomes the
//! status of the command.

use zerocopy::FromBytes;

use crate::commands;
use crate::config::{Backend, Namespace, Settings};
use crate::data::{Need, Remote, Source, from_host, to_host};
use crate::limits;
use crate::live::Table;
use crate::status::Status;
use crate::wire::io::{Control, DSM_DEALLOCATE, DsmRange};
use crate::wire::{Sqe, io_opcode};

/// A request to the backend of a namespace.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The namespace.
    pub nsid: u32,
    /// The program's number for its storage.
    pub backend: Backend,
    /// What to do.
    pub op: Op<'a>,
}

/// An operation on bytes of the namespace. `offset + len` is within it.
///
/// `fua` (force unit access): the bytes must be on stable storage before the request is done, also bytes that are only read.
#[derive(Clone, Debug)]
pub enum Op<'a> {
    /// Read bytes, write them to the host by RDMA WRITE.
    Read {
        /// Byte offset in the namespace.
        offset: u64,
        /// The host's memory; its length is the number of bytes to read.
        to: Remote,
        /// See above.
        fua: bool,
    },
    /// Get bytes of the host, write them.
    Write {
        /// Byte offset in the namespace.
        offset: u64,
        /// Where the data are; their length is the number of bytes to write.
        from: Source,
        /// See above.
        fua: bool,
    },
    /// Get bytes of the host, compare the namespace's with them.
    Compare {
        /// Byte offset in the namespace.
        offset: u64,
        /// Where the data are; their length is the number of bytes to compare.
        from: Source,
        /// See above.
        fua: bool,
    },
    /// Read bytes, to see whether they can be read.
    Verify {
        /// Byte offset in the namespace.
        offset: u64,
        /// Bytes.
        len: u64,
        /// See above.
        fua: bool,
    },
    /// Make bytes zero.
    WriteZeroes {
        /// Byte offset in the namespace.
        offset: u64,
        /// Bytes.
        len: u64,
        /// See above.
        fua: bool,
        /// Their storage may be given back, if they read as zeros then.
        deallocate: bool,
    },
    /// Give storage back, where the namespace can ([`deallocates`](Namespace::deallocates)). The bytes read as zeros afterwards.
    Deallocate(Ranges<'a>),
    /// Make stable all that was written before.
    Flush,
}

/// The ranges of a Dataset Management command, each within the namespace.
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    ranges: &'a [DsmRange],
    block_shift: u8,
}

impl Iterator for Ranges<'_> {
    /// Offset in the namespace, and bytes.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        loop {
            let (range, rest) = self.ranges.split_first()?;
            self.ranges = rest;
            if range.blocks.get() != 0 {
                let len = (range.blocks.get() as u64) << self.block_shift;
                return Some((range.slba.get() << self.block_shift, len));
            }
        }
    }
}

/// Why a backend did not do what was requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BackendError {
    /// The device failed (`EIO`).
    #[error("the device failed")]
    Io,
    /// No space is left (`ENOSPC`, `EDQUOT`).
    #[error("no space is left")]
    NoSpace,
    /// It cannot be written (`EROFS`).
    #[error("the storage is read-only")]
    ReadOnly,
    /// It has become smaller.
    #[error("the range is beyond the end")]
    OutOfRange,
    /// It is away, and may come back.
    #[error("the storage is not there now")]
    NotReady,
    /// Data that were written may be gone. The namespace fails until [`Target::set_online`](crate::Target::set_online): its hosts are
    /// told by the SMART log and an asynchronous event, and the storage fails every command with this.
    #[error("data that were written may be lost")]
    Lost,
    /// The bytes that were to be compared differ.
    #[error("the bytes differ")]
    Mismatch,
    /// Anything else.
    #[error("the target failed")]
    Internal,
}

/// What is kept of a request, for the status and the counters when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub kind: Kind,
    pub nsid: u32,
    pub backend: Backend,
    pub lba: u64,
    pub len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Compare,
    Write,
    Other { writes: bool },
}

impl BackendError {
    /// The status of the command.
    pub(crate) const fn status(self, kind: Kind) -> Status {
        match self {
            // Of the medium, and not to be tried again: another path leads to the same blocks.
            Self::Io | Self::Lost => match kind {
                Kind::Read | Kind::Compare | Kind::Other { writes: false } => Status::UnrecoveredReadError,
                Kind::Write | Kind::Other { writes: true } => Status::WriteFault,
            },
            Self::NoSpace => Status::CapacityExceeded,
            Self::ReadOnly => Status::WriteProtected,
            Self::OutOfRange => Status::LbaOutOfRange,
            Self::NotReady => Status::NamespaceNotReady,
            Self::Mismatch => Status::CompareFailure,
            Self::Internal => Status::InternalError,
        }
    }
}

/// What an I/O command needs.
#[derive(Debug)]
pub(crate) enum Action<'a> {
    /// Nothing: it is done.
    Done,
    /// The backend.
    Run(Running, Request<'a>),
    /// Its ranges, from the host.
    Ranges(Deallocate, Source),
}

/// A Dataset Management command whose ranges are on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deallocate {
    nsid: u32,
    count: usize,
}

/// Checks a command that came in a capsule of `capsule` bytes.
pub(crate) fn check(
    settings: &Settings,
    table: &Table,
    sqe: &Sqe,
    capsule: usize,
) -> Result<Action<'static>, Status> {
    if !commands::is_io(sqe.opcode) {
        return Err(Status::InvalidOpcode);
    }
    let nsid = sqe.nsid.get();
    let namespace = table.get(nsid).ok_or(Status::InvalidNamespace)?;
    let command = Command { settings, namespace, sqe, capsule };
    match sqe.opcode {
        io_opcode::READ => command.read(),
        io_opcode::WRITE => command.write(),
        io_opcode::FLUSH => Ok(command.run(Kind::Other { writes: true }, 0, 0, Op::Flush)),
        io_opcode::COMPARE => command.compare(),
        io_opcode::VERIFY => command.verify(),
        io_opcode::WRITE_ZEROES => command.write_zeroes(),
        io_opcode::DATASET_MANAGEMENT => command.dataset_management(),
        _ => Err(Status::InvalidOpcode),
    }
}

/// A command and what it is checked against.
struct Command<'a> {
    settings: &'a Settings,
    namespace: &'a Namespace,
    sqe: &'a Sqe,
    capsule: usize,
}

impl Command<'_> {
    fn read(&self) -> Result<Action<'static>, Status> {
        let (offset, len) = self.transfer()?;
        let to = to_host(&self.sqe.sgl, len)?;
        Ok(self.run(Kind::Read, offset, len as u64, Op::Read { offset, to, fua: self.fua() }))
    }
    fn write(&self) -> Result<Action<'static>, Status> {
        if Control::of(self.sqe).directive() != 0 {
            return Err(Status::InvalidField);
        }
        self.writable()?;
        let (offset, len) = self.transfer()?;
        let from = self.source(Need::Exactly(len))?;
        Ok(self.run(Kind::Write, offset, len as u64, Op::Write { offset, from, fua: self.fua() }))
    }
    fn compare(&self) -> Result<Action<'static>, Status> {
        let (offset, len) = self.transfer()?;
        let from = self.source(Need::Exactly(len))?;
        Ok(self.run(Kind::Compare, offset, len as u64, Op::Compare { offset, from, fua: self.fua() }))
    }
    fn verify(&self) -> Result<Action<'static>, Status> {
        let (offset, len) = self.range()?;
        Ok(self.run(Kind::Other { writes: false }, offset, len, Op::Verify { offset, len, fua: self.fua() }))
    }
    fn write_zeroes(&self) -> Result<Action<'static>, Status> {
        self.writable()?;
        let (offset, len) = self.range()?;
        let deallocate = Control::of(self.sqe).deallocate();
        let op = Op::WriteZeroes { offset, len, fua: self.fua(), deallocate };
        Ok(self.run(Kind::Other { writes: true }, offset, len, op))
    }
    fn dataset_management(&self) -> Result<Action<'static>, Status> {
        let count = (self.sqe.cdw10.get() & 0xFF) as usize + 1;
        // Hints alone change nothing.
        if self.sqe.cdw11.get() & DSM_DEALLOCATE == 0 {
            return Ok(Action::Done);
        }
        self.writable()?;
        // To succeed and keep everything would be a lie; hosts then do without.
        if self.namespace.deallocates.is_none() {
            return Err(Status::InvalidField);
        }
        let len = (count * size_of::<DsmRange>()) as u32;
        let from = self.source(Need::AtLeast(len))?;
        Ok(Action::Ranges(Deallocate { nsid: self.namespace.nsid, count }, from))
    }

    fn run(&self, kind: Kind, offset: u64, len: u64, op: Op<'static>) -> Action<'static> {
        let Namespace { nsid, backend, block_shift, .. } = *self.namespace;
        Action::Run(
            Running { kind, nsid, backend, lba: offset >> block_shift, len },
            Request { nsid, backend, op },
        )
    }
    fn fua(&self) -> bool {
        Control::of(self.sqe).fua()
    }
    fn writable(&self) -> Result<(), Status> {
        if self.namespace.read_only { Err(Status::WriteProtected) } else { Ok(()) }
    }
    /// Offset and length of the command's blocks.
    fn range(&self) -> Result<(u64, u64), Status> {
        bytes(self.namespace, self.sqe.slba(), Control::of(self.sqe).blocks())
    }
    /// As [`range`](Self::range), of a command that transfers its blocks: they must not be more than the largest transfer.
    fn transfer(&self) -> Result<(u64, u32), Status> {
        let len = (Control::of(self.sqe).blocks() as u64) << self.namespace.block_shift;
        if len > self.settings.transfer_max() as u64 {
            return Err(Status::InvalidField);
        }
        Ok((self.range()?.0, len as u32))
    }
    fn source(&self, need: Need) -> Result<Source, Status> {
        from_host(&self.sqe.sgl, need, self.capsule, self.settings.in_capsule)
    }
}

/// Offset and length of blocks that are in the namespace.
fn bytes(namespace: &Namespace, slba: u64, blocks: u32) -> Result<(u64, u64), Status> {
    let end = slba.checked_add(blocks as u64).ok_or(Status::LbaOutOfRange)?;
    if end > namespace.blocks {
        return Err(Status::LbaOutOfRange);
    }
    // No overflow: the configuration bounds the namespace's size in bytes.
    Ok((slba << namespace.block_shift, (blocks as u64) << namespace.block_shift))
}

/// The ranges of a Dataset Management command have come. All are checked before one is given back.
pub(crate) fn ranges<'a>(
    table: &Table,
    of: Deallocate,
    data: &'a [u8],
) -> Result<(Running, Request<'a>), Status> {
    // The namespace may have gone, or shrunk, meanwhile.
    let namespace = table.get(of.nsid).ok_or(Status::InvalidNamespace)?;
    if namespace.read_only {
        return Err(Status::WriteProtected);
    }
    let (ranges, _) =
        <[DsmRange]>::ref_from_prefix_with_elems(data, of.count).map_err(|_| Status::InternalError)?;
    for range in ranges {
        bytes(namespace, range.slba.get(), range.blocks.get())?;
    }
    let ranges = Ranges { ranges, block_shift: namespace.block_shift };
    let backend = namespace.backend;
    let running = Running { kind: Kind::Other { writes: true }, nsid: of.nsid, backend, lba: 0, len: 0 };
    Ok((running, Request { nsid: of.nsid, backend, op: Op::Deallocate(ranges) }))
}

const _: () = assert!(limits::DSM_RANGES == 1 << 8);
