//! The controller properties (NVMe base 3.1.4): registers that hosts read and write by fabrics commands.

use crate::config::Settings;
use crate::status::Status;
use crate::wire::fabrics::PropertyCommand;

/// Offsets of the properties.
mod offset {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1C;
}

/// VS: 1.4, the version that introduced Verify and the controller type. Version 2.0 has more requirements.
pub(crate) const VERSION: u32 = 0x0001_0400;

/// CC: enable.
const CC_EN: u32 = 1;
/// CC: command set, memory page size, arbitration mechanism. Only 0 is supported for each.
const CC_ZERO: u32 = 7 << 4 | 0xF << 7 | 7 << 11;
/// CC: shutdown notification.
const CC_SHN: u32 = 3 << 14;
/// CC: sizes of I/O submission and completion queue entries, as powers of two.
const CC_IOSQES: u32 = 0xF << 16;
const CC_IOCQES: u32 = 0xF << 20;
/// CC: the supported entry sizes, 64 and 16 bytes.
const CC_ENTRIES: u32 = 6 << 16 | 4 << 20;

/// CSTS: ready.
const CSTS_RDY: u32 = 1;
/// CSTS: controller fatal status. Only a reset clears it.
const CSTS_CFS: u32 = 1 << 1;
/// CSTS: the shutdown is complete.
const CSTS_SHUT_DOWN: u32 = 2 << 2;

/// What a write to CC makes the controller do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Nothing,
    Enable,
    /// The I/O queues end, and the controller is as after Connect.
    Reset,
    /// The I/O queues end.
    ShutDown,
}

/// The properties that change: CC and CSTS.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Properties {
    cc: u32,
    csts: u32,
}

impl Properties {
    /// Whether the controller is ready: it then executes commands other than fabrics commands.
    pub const fn is_ready(&self) -> bool {
        self.csts == CSTS_RDY
    }

    /// Executes Property Get. Returns the value of the property.
    pub fn get(&self, settings: &Settings, command: &PropertyCommand) -> Result<u64, Status> {
        let (value, eight) = match command.offset.get() {
            offset::CAP => (cap(settings), true),
            offset::VS => (VERSION as u64, false),
            offset::CC => (self.cc as u64, false),
            offset::CSTS => (self.csts as u64, false),
            _ => return Err(Status::InvalidField),
        };
        // The size must be that of the property.
        if command.attributes & 7 != eight as u8 { Err(Status::InvalidField) } else { Ok(value) }
    }

    /// Executes Property Set.
    pub fn set(&mut self, discovery: bool, command: &PropertyCommand) -> Result<Change, Status> {
        if command.offset.get() != offset::CC || command.attributes & 7 != 0 {
            return Err(Status::InvalidField);
        }
        let (old, new) = (self.cc, command.value.get() as u32);
        self.cc = new;
        if old & CC_EN != 0 && new & CC_EN == 0 {
            self.csts = 0;
            return Ok(Change::Reset);
        }
        let mut change = Change::Nothing;
        if old & CC_EN == 0 && new & CC_EN != 0 {
            // A discovery controller has no I/O queues, so the sizes of their entries do not matter.
            let entries = discovery || new & (CC_IOSQES | CC_IOCQES) == CC_ENTRIES;
            self.csts = if entries && new & CC_ZERO == 0 { CSTS_RDY } else { CSTS_CFS };
            if self.is_ready() {
                change = Change::Enable;
            }
        }
        if old & CC_SHN == 0 && new & CC_SHN != 0 {
            self.csts |= CSTS_SHUT_DOWN;
            change = Change::ShutDown;
        }
        Ok(change)
    }
}

/// CAP: queue entries (0's based), contiguous queues, a timeout of 7.5 s to become ready, the NVM command set, memory pages of 4 KiB.
fn cap(settings: &Settings) -> u64 {
    (settings.queue_entries - 1) as u64 | 1 << 16 | 15 << 24 | 1 << 37
}
