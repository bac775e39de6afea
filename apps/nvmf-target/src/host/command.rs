//! Builds the submission queue entries of commands.

use nvmf::wire::fabrics::{self, ConnectCommand, PropertyCommand, fctype};
use nvmf::wire::{Sgl, Sqe, admin_opcode, io_opcode};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, transmute};

/// An entry with an opcode, a namespace identifier and the SGL descriptor of the data.
pub(super) fn sqe(opcode: u8, nsid: u32, sgl: Sgl) -> Sqe {
    Sqe { opcode, flags: Sqe::FLAGS_SGL, nsid: U32::new(nsid), sgl, ..Sqe::new_zeroed() }
}
/// The SGL descriptor of a command without data.
pub(super) fn nothing() -> Sgl {
    Sgl::keyed(0, 0, 0, false)
}

/// The fields of a command of the NVM command set.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// The namespace.
    pub nsid: u32,
    /// The first block.
    pub slba: u64,
    /// The number of blocks, 1 to 65536.
    pub blocks: u32,
    /// Whether to request force unit access (FUA).
    pub fua: bool,
}

impl Io {
    /// Fields for these blocks of a namespace, without FUA.
    pub const fn new(nsid: u32, slba: u64, blocks: u32) -> Self {
        Self { nsid, slba, blocks, fua: false }
    }
    /// The same fields with force unit access (FUA).
    #[must_use]
    pub const fn fua(mut self) -> Self {
        self.fua = true;
        self
    }
    fn with(self, opcode: u8, sgl: Sgl) -> Sqe {
        let mut sqe = sqe(opcode, self.nsid, sgl);
        sqe.cdw10 = U32::new(self.slba as u32);
        sqe.cdw11 = U32::new((self.slba >> 32) as u32);
        sqe.cdw12 = U32::new(self.blocks.wrapping_sub(1) & 0xFFFF | (self.fua as u32) << 30);
        sqe
    }
    /// A Read into the memory of `to`.
    pub fn read(self, to: Sgl) -> Sqe {
        self.with(io_opcode::READ, to)
    }
    /// A Write of the data at `from`.
    pub fn write(self, from: Sgl) -> Sqe {
        self.with(io_opcode::WRITE, from)
    }
    /// A Compare with the data at `with`.
    pub fn compare(self, with: Sgl) -> Sqe {
        self.with(io_opcode::COMPARE, with)
    }
    /// A Write Zeroes.
    pub fn write_zeroes(self) -> Sqe {
        self.with(io_opcode::WRITE_ZEROES, nothing())
    }
    /// A Verify.
    pub fn verify(self) -> Sqe {
        self.with(io_opcode::VERIFY, nothing())
    }
    /// A Flush of the namespace.
    pub fn flush(self) -> Sqe {
        sqe(io_opcode::FLUSH, self.nsid, nothing())
    }
    /// A Dataset Management that deallocates `ranges` ranges, whose list is the data at `from`.
    pub fn deallocate(nsid: u32, ranges: u32, from: Sgl) -> Sqe {
        let mut sqe = sqe(io_opcode::DATASET_MANAGEMENT, nsid, from);
        sqe.cdw10 = U32::new(ranges - 1);
        sqe.cdw11 = U32::new(nvmf::wire::io::DSM_DEALLOCATE);
        sqe
    }
}

pub(super) fn connect(qid: u16, entries: u16, kato_ms: u32, data: Sgl) -> Sqe {
    transmute!(ConnectCommand {
        opcode: fabrics::OPCODE,
        flags: Sqe::FLAGS_SGL,
        fctype: fctype::CONNECT,
        sgl: data,
        qid: U16::new(qid),
        sqsize: U16::new(entries - 1),
        kato_ms: U32::new(kato_ms),
        ..ConnectCommand::new_zeroed()
    })
}
fn property(fctype: u8, offset: u32, is_8_bytes: bool, value: u64) -> Sqe {
    transmute!(PropertyCommand {
        opcode: fabrics::OPCODE,
        flags: Sqe::FLAGS_SGL,
        fctype,
        attributes: is_8_bytes as u8,
        offset: U32::new(offset),
        value: U64::new(value),
        ..PropertyCommand::new_zeroed()
    })
}
pub(super) fn property_get(offset: u32, is_8_bytes: bool) -> Sqe {
    property(fctype::PROPERTY_GET, offset, is_8_bytes, 0)
}
pub(super) fn property_set(offset: u32, value: u32) -> Sqe {
    property(fctype::PROPERTY_SET, offset, false, value as u64)
}
pub(super) fn identify(cns: u8, nsid: u32, to: Sgl) -> Sqe {
    let mut sqe = sqe(admin_opcode::IDENTIFY, nsid, to);
    sqe.cdw10 = U32::new(cns as u32);
    sqe
}
pub(super) fn log_page(page: u8, offset: u64, len: u32, to: Sgl) -> Sqe {
    let mut sqe = sqe(admin_opcode::GET_LOG_PAGE, 0, to);
    let dwords = len / 4 - 1;
    sqe.cdw10 = U32::new(page as u32 | (dwords & 0xFFFF) << 16);
    sqe.cdw11 = U32::new(dwords >> 16);
    sqe.cdw12 = U32::new(offset as u32);
    sqe.cdw13 = U32::new((offset >> 32) as u32);
    sqe
}
/// A Set Features for Number of Queues: `queues` submission queues and as many completion queues.
pub(super) fn queues(queues: u16) -> Sqe {
    let mut sqe = sqe(admin_opcode::SET_FEATURES, 0, nothing());
    sqe.cdw10 = U32::new(0x07);
    sqe.cdw11 = U32::new((queues as u32 - 1) * 0x1_0001);
    sqe
}
pub(super) fn keep_alive() -> Sqe {
    sqe(admin_opcode::KEEP_ALIVE, 0, nothing())
}
