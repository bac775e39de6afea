//! Asks for cache lines that will be needed: a hint, which neither waits nor changes anything.
//!
//! With very many queue pairs nothing of the next one is in a cache. Its lines are asked for a burst ahead, those of
//! all queue pairs of the burst one after the other, so that their misses overlap.
//!
//! They are asked for into the second nearest cache ([`line()`]). The nearest one waits for few lines at a time, and who asks for
//! more waits, too: with lines at random in 256 MiB, asked for by the dozen, one took 10 to 14 ns to come into the nearest cache
//! and 4 to 5 ns into the next, from where it is some 15 cycles away. What comes next is asked for from there ([`near`]).

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// The caches that a line is asked into, by their numbers for PREFETCHh (`_MM_HINT_T0`, `_MM_HINT_T1`).
const NEAREST: i32 = 3;
const NEXT: i32 = 2;

/// Asks for the line at `at`. Any address will do: a hint for one that cannot be read is ignored by the processor.
#[inline(always)]
pub fn line<T>(at: *const T) {
    ask::<NEXT>(at.cast());
}

/// Asks for the line at `at`, which is in the second nearest cache, into the nearest.
#[inline(always)]
pub fn near<T>(at: *const T) {
    ask::<NEAREST>(at.cast());
}

#[inline(always)]
fn ask<const INTO: i32>(at: *const i8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: PREFETCHh is a hint: it reads nothing that a program could see, and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<INTO>(at);
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = at;
}

/// Asks for the lines of `of` from `first` up to and not including `end`, counted from its start.
#[inline(always)]
pub fn lines<T>(of: *const T, first: usize, end: usize) {
    let at = of.cast::<u8>();
    for n in first..end {
        line(at.wrapping_add(n * LINE));
    }
}

/// Asks for the lines of the `len` bytes from `at` on.
#[inline]
pub fn bytes<T>(at: *const T, len: usize) {
    for n in (0..len).step_by(LINE) {
        line(at.wrapping_byte_add(n));
    }
}

#[cfg(test)]
mod tests {
    // Where nothing is, nothing happens.
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
