//! Hints for programs with very many objects of their own.

/// Asks the kernel to put huge pages under memory that is in use and will be touched at random, such as the
/// [`SendQueue`](crate::SendQueue)s of a hundred thousand queue pairs: then hardly an access has to look its address up.
/// As many as lie entirely in `memory`, of 2 MiB each; contents and addresses stay. Takes some 0.3 ms a huge page.
///
/// What the stack keeps for many queue pairs it sees to itself, and so does a region of
/// [`reg_mr`](crate::Pd::reg_mr).
///
/// `false`: it could not. Linux before 6.1, or no memory in pieces of that size; only speed differs.
#[doc(alias = "MADV_COLLAPSE")]
pub fn huge_pages<T>(memory: &[T]) -> bool {
    stack::device::collapse_slice(memory)
}

/// Asks for the first cache line of `of`, such as a [`SendQueue`](crate::SendQueue) that is going to be posted to, and does
/// not wait for it. For programs that know long before which of very many it will be: it comes while they do other work, and
/// [`prefetch_each`](crate::SendQueue::prefetch_each) finds it there.
#[inline]
pub fn prefetch<T>(of: &T) {
    stack::device::prefetch_line(of);
}
