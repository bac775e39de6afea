//! Where a queue pair waits for its turn to send.

/// Whether a queue pair is in a list of those with something to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listed {
    No,
    /// In the shard's list.
    Yes,
    /// In that of its route, until the route has room.
    Parked,
}
