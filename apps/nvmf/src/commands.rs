//! The commands that there are: what the effects log announces is what is served.

use crate::wire::{admin_opcode, io_opcode};

/// Admin commands.
pub(crate) const ADMIN: &[u8] = &[
    admin_opcode::GET_LOG_PAGE,
    admin_opcode::IDENTIFY,
    admin_opcode::ABORT,
    admin_opcode::SET_FEATURES,
    admin_opcode::GET_FEATURES,
    admin_opcode::ASYNC_EVENT_REQUEST,
    admin_opcode::KEEP_ALIVE,
];

/// I/O commands, and whether they change blocks.
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

/// Whether an I/O command is one of them: the table as bits.
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
