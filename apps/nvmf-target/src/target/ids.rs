//! Index types for the connections and receives of a core. The index of a command is [`CommandIndex`](crate::store::CommandIndex), in
//! `store`, because storage uses it, too.

/// A connection of a core: its index in [`Connections`](super::connections::Connections).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnId(pub u32);

impl ConnId {
    /// The index as a `usize`.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A receive for a capsule: the index of its buffer in [`Receives`](super::receives::Receives).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveId(pub u32);

impl ReceiveId {
    /// The index as a `usize`.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
