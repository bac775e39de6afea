//! Where a queue pair waits to send.

/// Whether a queue pair is in a list of queue pairs with something to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listed {
    No,
    /// In the shard's list.
    Yes,
    /// In the list of its route, until the route has room.
    Parked,
}
