//! Posting a list.

use crate::error::{PostError, PostErrorKind};

/// Puts the requests of a list into a batch, up to the first that fails; the rest of the list is not asked for.
#[inline]
pub(crate) fn put_each<W>(
    wrs: impl IntoIterator<Item = W>,
    mut put: impl FnMut(W) -> Result<(), PostErrorKind>,
) -> Result<(), PostError> {
    for (bad_wr, wr) in wrs.into_iter().enumerate() {
        put(wr).map_err(|kind| PostError { bad_wr, kind })?;
    }
    Ok(())
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
