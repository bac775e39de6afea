//! Performance hints for programs that have very many objects.

/// Asks the kernel to move memory that is in use to huge pages, to avoid TLB misses. For memory that is accessed at random, such as the
/// [`SendQueue`](crate::SendQueue)s of a hundred thousand queue pairs. Affects the 2 MiB pages that lie entirely inside `memory`; contents
/// and addresses stay the same. Takes about 0.3 ms per huge page.
///
/// The stack does this itself for its tables of many queue pairs, and so does [`reg_mr`](crate::Pd::reg_mr) for a region.
///
/// Returns `false` if the kernel could not do it (Linux before 6.1, or no free huge page). That affects only performance.
#[doc(alias = "MADV_COLLAPSE")]
pub fn huge_pages<T>(memory: &[T]) -> bool {
    stack::device::collapse_slice(memory)
}

/// Prefetches the first cache line of `of`, such as a [`SendQueue`](crate::SendQueue) that is about to be posted to, without waiting for
/// it. For programs that know in advance which of very many handles comes next: the line arrives during other work, before
/// [`prefetch_each`](crate::SendQueue::prefetch_each) needs it.
#[inline]
pub fn prefetch<T>(of: &T) {
    stack::device::prefetch_line(of);
}
