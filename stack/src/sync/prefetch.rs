//! Prefetches cache lines: a hint, which neither waits nor changes anything.
//!
//! With very many queue pairs, the state of the next one is not in the cache. Its lines are prefetched a burst ahead, together with those
//! of the burst's other queue pairs, so that the misses overlap.
//!
//! [`line()`] prefetches into L2. L1 has room for few outstanding misses, and a core that exceeds them stalls: with random lines in 256
//! MiB, prefetched by the dozen, each took 10 to 14 ns into L1 and 4 to 5 ns into L2, which is some 15 cycles away. [`near`] brings what is
//! needed next from L2 into L1.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// The target caches, by their numbers for PREFETCHh (`_MM_HINT_T0`, `_MM_HINT_T1`).
const L1: i32 = 3;
const L2: i32 = 2;

/// Prefetches the line at `at` into L2. Any address is allowed: the processor ignores the hint if it cannot read there.
#[inline]
pub fn line<T>(at: *const T) {
    hint::<L2>(at.cast());
}

/// Prefetches the line at `at` into L1; meant for a line that is in L2.
#[inline]
pub fn near<T>(at: *const T) {
    hint::<L1>(at.cast());
}

#[inline]
fn hint<const INTO: i32>(at: *const i8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: PREFETCHh is a hint: it reads nothing that a program could see, and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<INTO>(at);
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = at;
}

/// Prefetches the lines of `of` from `first` up to and not including `end`, counted from its start.
#[inline]
pub fn lines<T>(of: *const T, first: usize, end: usize) {
    let at = of.cast::<u8>();
    for n in first..end {
        line(at.wrapping_add(n * LINE));
    }
}

/// Prefetches the lines of the `len` bytes from `at` on.
#[inline]
pub fn bytes<T>(at: *const T, len: usize) {
    for n in (0..len).step_by(LINE) {
        line(at.wrapping_byte_add(n));
    }
}

#[cfg(test)]
mod tests {
    // Nothing happens at addresses without memory.
    #[test]
    fn any_address_will_do() {
        super::line(core::ptr::null::<u8>());
        super::line(core::ptr::without_provenance::<u8>(usize::MAX));
        super::near(core::ptr::null::<u8>());
        super::lines(&0u8, 0, 1000);
        super::bytes(core::ptr::null::<u8>(), 5000);
        super::bytes(core::ptr::without_provenance::<u8>(usize::MAX - 100), 5000);
    }
}
