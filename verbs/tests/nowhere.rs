//! Memory that does not exist, for tests of the limits on the number and size of regions.

use stack::device::UserMemory;

/// Pretends that `len` bytes exist at `addr`, for regions that no request uses.
pub fn nowhere(addr: u64, len: u64) -> UserMemory {
    // SAFETY: the tests that use it post nothing, so no shard accesses the memory that the key grants.
    unsafe { UserMemory::new(addr, len) }
}
