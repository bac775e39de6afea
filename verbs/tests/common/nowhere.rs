//! Memory that is nowhere, for tests of how many regions there can be, and how large.

use stack::device::UserMemory;

/// As if there were `len` bytes at `addr`. For regions that no request names.
pub fn nowhere(addr: u64, len: u64) -> UserMemory {
    // SAFETY: the tests that use it post nothing, so no shard looks at what the key grants.
    unsafe { UserMemory::new(addr, len) }
}
