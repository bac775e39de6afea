//! Results of posting a list.

use crate::error::{PostError, PostErrorKind};

/// The error of a list of which only the first `put` requests could be posted.
pub(crate) fn stopped(put: u32, kind: PostErrorKind) -> PostError {
    PostError { bad_wr: put as usize, kind }
}

/// The result of posting to a queue that accepts nothing: an error for the first request. An empty list succeeds.
pub(crate) fn refused<W>(
    wrs: impl IntoIterator<Item = W>,
    kind: impl Into<PostErrorKind>,
) -> Result<(), PostError> {
    match wrs.into_iter().next() {
        None => Ok(()),
        Some(_) => Err(PostError { bad_wr: 0, kind: kind.into() }),
    }
}
