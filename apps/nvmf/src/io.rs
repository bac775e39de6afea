//! The NVM command set: turns commands into requests to the backend (the storage) of a namespace.
//!
//! A command whose range exceeds the namespace or the largest transfer fails without a request. The result of the request becomes the
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
    /// The operation.
    pub op: Op<'a>,
}

/// An operation on bytes of the namespace. `offset + len` is within the namespace.
///
/// `fua` is force unit access: the bytes must be on stable storage before the request completes. This holds for reads, too: bytes still in
/// a volatile cache must be made stable first.
#[derive(Clone, Debug)]
pub enum Op<'a> {
    /// Read bytes from the storage, and write them to the host by RDMA WRITE.
    Read {
        /// Byte offset in the namespace.
        offset: u64,
        /// The host's memory; its length is the number of bytes to read.
        to: Remote,
        /// Force unit access, see [`Op`].
        fua: bool,
    },
    /// Fetch bytes from the host, and write them to the storage.
    Write {
        /// Byte offset in the namespace.
        offset: u64,
        /// Where the data are; their length is the number of bytes to write.
        from: Source,
        /// Force unit access, see [`Op`].
        fua: bool,
    },
    /// Fetch bytes from the host, and compare the bytes of the namespace with them.
    Compare {
        /// Byte offset in the namespace.
        offset: u64,
        /// Where the data are; their length is the number of bytes to compare.
        from: Source,
        /// Force unit access, see [`Op`].
        fua: bool,
    },
    /// Check that the bytes can be read; no data are transferred.
    Verify {
        /// Byte offset in the namespace.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Force unit access, see [`Op`].
        fua: bool,
    },
    /// Set bytes to zero.
    WriteZeroes {
        /// Byte offset in the namespace.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Force unit access, see [`Op`].
        fua: bool,
        /// The storage of the bytes may be deallocated, provided that they read as zeros afterwards.
        deallocate: bool,
    },
    /// Deallocate the storage of bytes, with the granularity [`deallocates`](Namespace::deallocates). The bytes read as zeros afterwards.
    Deallocate(Ranges<'a>),
    /// Put everything that was written before on stable storage.
    Flush,
}

/// An iterator over the ranges of a Dataset Management command, each within the namespace. It leaves out empty ranges.
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    ranges: &'a [DsmRange],
    block_shift: u8,
}

impl Iterator for Ranges<'_> {
    /// Byte offset in the namespace, and length in bytes.
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

/// Why a request to a backend failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BackendError {
    /// The device failed (`EIO`).
    #[error("the device failed")]
    Io,
    /// No space is left (`ENOSPC`, `EDQUOT`).
    #[error("no space is left")]
    NoSpace,
    /// The storage cannot be written (`EROFS`).
    #[error("the storage is read-only")]
    ReadOnly,
    /// The range is beyond the end of the storage, which has become smaller.
    #[error("the range is beyond the end")]
    OutOfRange,
    /// The storage is not available now, but may be later.
    #[error("the storage is not there now")]
    NotReady,
    /// Data that were written may be lost. Hosts are told by the SMART log and an asynchronous event, until
    /// [`Target::set_online`](crate::Target::set_online). Until then the backend must fail every request with this error.
    #[error("data that were written may be lost")]
    Lost,
    /// The bytes that were to be compared differ.
    #[error("the bytes differ")]
    Mismatch,
    /// Anything else.
    #[error("the target failed")]
    Internal,
}

/// What is kept of a request until it completes, for the status, the error log and the counters.
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
            // Media errors, which tell the host not to retry: another path leads to the same blocks.
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

/// What has to be done for an I/O command that passed its checks.
#[derive(Debug)]
pub(crate) enum Action<'a> {
    /// Nothing: the command is done.
    Done,
    /// Pass the request to the backend.
    Run(Running, Request<'a>),
    /// Fetch the ranges of Dataset Management from the host.
    Ranges(Deallocate, Source),
}

/// A Dataset Management command whose ranges are being fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deallocate {
    nsid: u32,
    count: usize,
}

/// Checks an I/O command that came in a capsule of `capsule` bytes, and says what has to be done for it.
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
        // The other attributes are hints, which are ignored.
        if self.sqe.cdw11.get() & DSM_DEALLOCATE == 0 {
            return Ok(Action::Done);
        }
        self.writable()?;
        // Success without deallocation would mislead the host. Hosts cope with the failure.
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
    /// Byte offset and length in bytes of the command's blocks. Fails if they are not in the namespace.
    fn range(&self) -> Result<(u64, u64), Status> {
        bytes(self.namespace, self.sqe.slba(), Control::of(self.sqe).blocks())
    }
    /// As [`range`](Self::range), for a command that transfers its blocks: also fails if they exceed the largest transfer.
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

/// Byte offset and length in bytes of blocks. Fails if they are not in the namespace.
fn bytes(namespace: &Namespace, slba: u64, blocks: u32) -> Result<(u64, u64), Status> {
    let end = slba.checked_add(blocks as u64).ok_or(Status::LbaOutOfRange)?;
    if end > namespace.blocks {
        return Err(Status::LbaOutOfRange);
    }
    // The shifts cannot overflow: the configuration limits the size of a namespace in bytes.
    Ok((slba << namespace.block_shift, (blocks as u64) << namespace.block_shift))
}

/// Makes the request for a Dataset Management command from its ranges, `data`. Fails if any range is not in the namespace.
pub(crate) fn ranges<'a>(
    table: &Table,
    of: Deallocate,
    data: &'a [u8],
) -> Result<(Running, Request<'a>), Status> {
    // The namespace may have been removed or resized while the ranges were being fetched.
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
