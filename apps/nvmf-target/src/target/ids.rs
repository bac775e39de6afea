//! The numbers of what a core has, which do not mix. That of a command is [`CommandIndex`](crate::store::CommandIndex): storage knows it, too.

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
pub struct ReceiveId(pub u32);

impl ReceiveId {
    /// Its place among them.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
