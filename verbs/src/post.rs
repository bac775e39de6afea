//! Posting a list.

use crate::error::{PostError, PostErrorKind};

/// Puts the requests of a list into a queue, up to the first that fails: the number put, and the error.
#[inline]
pub(crate) fn post_each<W>(
    wrs: &[W],
    mut put: impl FnMut(u32, &W) -> Result<(), PostErrorKind>,
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
