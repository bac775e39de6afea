//! Performance hints for programs with very many objects of their own.

/// Asks the kernel to put huge pages under memory that is in use and will be touched at random, such as the
/// [`SendQueue`](crate::SendQueue)s of a hundred thousand queue pairs, to avoid TLB misses. Covers as many pages of 2 MiB as
/// lie entirely in `memory`; contents and addresses stay. Takes some 0.3 ms a huge page.
///
/// The stack does this itself for its tables of many queue pairs, and so does [`reg_mr`](crate::Pd::reg_mr) for a region.
///
/// `false`: the kernel could not (Linux before 6.1, or no free huge page). Only performance differs.
#[doc(alias = "MADV_COLLAPSE")]
pub fn huge_pages<T>(memory: &[T]) -> bool {
    stack::device::collapse_slice(memory)
}

/// Prefetches the first cache line of `of`, such as a [`SendQueue`](crate::SendQueue) that is going to be posted to, without
/// waiting for it. For programs that know early which of very many handles comes next: the line arrives while they do other
/// work, before [`prefetch_each`](crate::SendQueue::prefetch_each) needs it.
#[inline]
pub fn prefetch<T>(of: &T) {
    stack::device::prefetch_line(of);
}
