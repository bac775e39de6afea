//! Posting a list.

use crate::error::{PostError, PostErrorKind};

/// Why a list was not posted to its end: behind the requests that were put, one could not be.
pub(crate) fn stopped(put: u32, kind: PostErrorKind) -> PostError {
    PostError { bad_wr: put as usize, kind }
}

/// The result of posting to a queue that takes nothing: an error for the first request; an empty list succeeds.
pub(crate) fn refused<W>(
    wrs: impl IntoIterator<Item = W>,
    kind: impl Into<PostErrorKind>,
) -> Result<(), PostError> {
    match wrs.into_iter().next() {
        None => Ok(()),
        Some(_) => Err(PostError { bad_wr: 0, kind: kind.into() }),
    }
}
