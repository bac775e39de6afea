//! Posting a list.

use crate::error::{PostError, PostErrorKind};

/// Puts the requests of a list into a queue, up to the first that fails: the number put, and the error. The rest of the list
/// is not asked for.
#[inline]
pub(crate) fn post_each<W>(
    wrs: impl IntoIterator<Item = W>,
    mut put: impl FnMut(u32, W) -> Result<(), PostErrorKind>,
) -> (u32, Result<(), PostError>) {
    let mut posted = 0;
    for wr in wrs {
        if let Err(kind) = put(posted, wr) {
            return (posted, Err(PostError { bad_wr: posted as usize, kind }));
        }
        posted += 1;
    }
    (posted, Ok(()))
}

/// The result of posting to a queue that takes nothing: an error for the first request; an empty list succeeds.
#[cold]
pub(crate) fn refused<W>(
    wrs: impl IntoIterator<Item = W>,
    kind: impl Into<PostErrorKind>,
) -> Result<(), PostError> {
    match wrs.into_iter().next() {
        None => Ok(()),
        Some(_) => Err(PostError { bad_wr: 0, kind: kind.into() }),
    }
}
