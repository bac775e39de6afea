//! What may be done with registered memory.

bitflags::bitflags! {
    /// Access rights of a memory region, with the values of `enum ibv_access_flags` (`ibv_reg_mr(3)`).
    ///
    /// The empty set grants local reads, which every region allows.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Access: u32 {
        /// Receives, READ responses and atomic results may be stored.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may use atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses that name the region are offsets from its start.
        const ZERO_BASED = 1 << 5;
        /// The memory need not be mapped (on-demand paging): an access to bytes that are not mapped, or lack the permission, fails like one
        /// that the key does not grant. Every access is a system call. Atomics are atomic only with respect to each other, and ATOMIC WRITE
        /// is refused.
        const ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages.
        const HUGETLB = 1 << 7;
        /// The peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Stores may become visible out of order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Rights that no memory of this device has: it is ordinary memory, which a FLUSH cannot make persistent.
    pub const UNSUPPORTED: Self = Self::FLUSH_PERSISTENT;

    /// Whether a region may have these rights: remote writes and atomics need [`Access::LOCAL_WRITE`] (`ibv_reg_mr(3)`), and
    /// every bit is known.
    pub const fn is_valid(self) -> bool {
        let remote_writes = Self::REMOTE_WRITE.bits() | Self::REMOTE_ATOMIC.bits();
        let known = self.bits() & !Self::all().bits() == 0;
        known && (self.bits() & remote_writes == 0 || self.bits() & Self::LOCAL_WRITE.bits() != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_verbs() {
        let bits = [
            (Access::LOCAL_WRITE, 1),
            (Access::REMOTE_WRITE, 2),
            (Access::REMOTE_READ, 4),
            (Access::REMOTE_ATOMIC, 8),
            (Access::MW_BIND, 16),
            (Access::ZERO_BASED, 32),
            (Access::ON_DEMAND, 64),
            (Access::HUGETLB, 128),
            (Access::FLUSH_GLOBAL, 256),
            (Access::FLUSH_PERSISTENT, 512),
            (Access::RELAXED_ORDERING, 1 << 20),
        ];
        assert_eq!(bits.len(), Access::all().iter().count());
        for (access, value) in bits {
            assert_eq!(access.bits(), value, "{access:?}");
        }
    }

    /// Every subset of the four rights that the rule is about.
    #[test]
    fn remote_writes_need_local_write() {
        for bits in 0..16 {
            let remote_writes = bits & 0b1010 != 0;
            assert_eq!(
                Access::from_bits_retain(bits).is_valid(),
                !remote_writes || bits & 1 != 0,
                "{bits:#b}"
            );
        }
        assert!(!Access::from_bits_retain(1 << 31).is_valid());
    }
}
