//! The supported commands. The Commands Supported and Effects log page is made from these tables.

use crate::wire::{admin_opcode, io_opcode};

/// Opcodes of the admin commands.
pub(crate) const ADMIN: &[u8] = &[
    admin_opcode::GET_LOG_PAGE,
    admin_opcode::IDENTIFY,
    admin_opcode::ABORT,
    admin_opcode::SET_FEATURES,
    admin_opcode::GET_FEATURES,
    admin_opcode::ASYNC_EVENT_REQUEST,
    admin_opcode::KEEP_ALIVE,
];

/// Opcodes of the I/O commands, and whether the command changes the content of blocks.
#[rustfmt::skip]
pub(crate) const IO: &[(u8, bool)] = &[
    (io_opcode::FLUSH,              false),
    (io_opcode::WRITE,              true),
    (io_opcode::READ,               false),
    (io_opcode::COMPARE,            false),
    (io_opcode::WRITE_ZEROES,       true),
    (io_opcode::DATASET_MANAGEMENT, true),
    (io_opcode::VERIFY,             false),
];

/// Whether an opcode is that of a supported I/O command.
pub(crate) const fn is_io(opcode: u8) -> bool {
    const BITS: u64 = {
        let (mut bits, mut i) = (0, 0);
        while i < IO.len() {
            bits |= 1 << IO[i].0;
            i += 1;
        }
        bits
    };
    opcode < 64 && BITS >> opcode & 1 != 0
}
