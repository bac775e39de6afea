//! Indices of a core's connections and receives, a type for each. A command has a [`CommandIndex`](crate::store::CommandIndex), which
//! is in `store` because storage names commands by it, too.

/// A connection of a core: its index in [`Connections`](super::connections::Connections).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnId(pub u32);

impl ConnId {
    /// As an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A receive for a capsule: the index of its buffer in [`Receives`](super::receives::Receives).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveId(pub u32);

impl ReceiveId {
    /// As an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
