//! The numbers of what a core has, which do not mix. That of a command is [`CommandId`](crate::store::CommandId): storage knows it, too.

/// A connection of a core, by its place among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnId(pub u32);

impl ConnId {
    /// Its place.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer for a capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapsuleId(pub u32);

impl CapsuleId {
    /// Its place among them.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
