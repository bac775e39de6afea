//! Loads, stores and copies of *racy memory*: bytes and words that the program, its peers and every shard may access at the same
//! moment.
//!
//! Registered memory is like memory that a device writes. Two sides access it at once, one in bytes and one in words, and no rule
//! of RDMA forbids that. Rust's memory model forbids it: plain accesses must not race, and atomic accesses that race must have
//! one size. So every access here is made by instructions that the compiler does not see into (`asm!`), and means what the
//! processor's manual says. On x86-64 that is: a byte is never torn; nor is an aligned word of eight bytes that [`load_u64`],
//! [`store_u64`] or a read-modify-write function accesses, nor, in practice, a word within a copy; loads acquire, stores release;
//! overlapping accesses give some mix of old and new bytes. So these functions never make the behaviour of the program undefined.
//!
//! One access is elsewhere: [`crc`](crate::crc) loads the payload of a long packet by wide instructions, in the same way, and
//! computes the CRC while it copies. It loads each byte once: packet and ICRC are made from one register. The packet may be some
//! mix; as ibv_post_send(3) says, leave a buffer alone until its request has completed.
//!
//! Memory that may not even be mapped is copied by the [`kernel`].
//!
//! A copy calls the C library's `memcpy`, so it is as fast as one that the compiler makes.
//!
//! Where these instructions cannot be used (Miri; ThreadSanitizer, which would take a `memcpy` for a plain access, with `--cfg
//! racy_model`; other processors), one global lock replaces them: correct, and slow.

pub mod kernel;

#[cfg(not(all(target_arch = "x86_64", not(miri), not(racy_model))))]
use model as machine;
#[cfg(all(target_arch = "x86_64", not(miri), not(racy_model)))]
use x86_64 as machine;

/// Bytes that [`read_block`] copies.
pub const BLOCK: usize = 16;

/// Copies `len` bytes of racy memory to memory of our own.
///
/// # Safety
/// `from` is mapped for reading for `len` bytes, which any other thread may write; `to` is valid for writes of as many that
/// nothing else accesses.
#[inline(always)]
pub unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::copy(to, from, len) }
}

/// As [`read`] of [`BLOCK`] bytes, by way of a register.
///
/// # Safety
/// As for `read`.
#[inline(always)]
pub unsafe fn read_block(from: *const u8, to: *mut u8) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::copy_block(to, from) }
}

/// Copies `len` bytes of our own to racy memory.
///
/// # Safety
/// `to` is mapped for writing for `len` bytes, which any other thread may access, and the program tolerates that they change;
/// `from` is valid for reads of as many that nothing else writes.
#[inline(always)]
pub unsafe fn write(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::copy(to, from, len) }
}

/// As [`write()`] of [`BLOCK`] bytes, by way of a register.
///
/// # Safety
/// As for `write`.
#[inline(always)]
pub unsafe fn write_block(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::copy_block_in(to, from) }
}

/// Copies `len` bytes of racy memory to racy memory. Where the two overlap, the result is some mix.
///
/// # Safety
/// `from` as for [`read`], `to` as for [`write()`].
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::copy(to, from, len) }
}

/// Sets `len` bytes of racy memory to `value`.
///
/// # Safety
/// As for [`write()`].
#[inline]
pub unsafe fn fill(to: *mut u8, value: u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::fill(to, value, len) }
}

/// Loads a byte, with acquire.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
pub unsafe fn load_u8(from: *const u8) -> u8 {
    // SAFETY: as the caller guarantees.
    unsafe { machine::load_u8(from) }
}

/// Stores a byte, with release.
///
/// # Safety
/// As for [`write()`].
#[inline(always)]
pub unsafe fn store_u8(to: *mut u8, value: u8) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::store_u8(to, value) }
}

/// Loads a word atomically, with acquire.
///
/// # Safety
/// As for [`read`], and `from` is a multiple of 8.
#[inline(always)]
pub unsafe fn load_u64(from: *const u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { machine::load_u64(from) }
}

/// Stores a word atomically, with release.
///
/// # Safety
/// As for [`write()`], and `to` is a multiple of 8.
#[inline(always)]
pub unsafe fn store_u64(to: *mut u64, value: u64) {
    // SAFETY: as the caller guarantees.
    unsafe { machine::store_u64(to, value) }
}

/// Stores a word atomically, sequentially consistent; returns the old value.
///
/// # Safety
/// As for [`store_u64`].
#[inline]
pub unsafe fn swap_u64(word: *mut u64, value: u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { machine::swap_u64(word, value) }
}

/// Adds to a word atomically, sequentially consistent; returns the old value.
///
/// # Safety
/// As for [`store_u64`].
#[inline]
pub unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { machine::fetch_add_u64(word, add) }
}

/// Stores `new` if the word is `current`, atomically, sequentially consistent; returns the old value.
///
/// # Safety
/// As for [`store_u64`].
#[inline]
pub unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { machine::compare_exchange_u64(word, current, new) }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(racy_model)))]
mod x86_64 {
    //! SAFETY of every block: the instructions access what the caller guarantees, change no other memory and no register but
    //! those named. Without `nomem` the compiler keeps its own accesses on their side of them.

    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    unsafe extern "C" {
        fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
        fn memset(to: *mut u8, value: i32, len: usize) -> *mut u8;
    }

    #[inline(always)]
    pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: see above; a call by the C convention, with the stack as it requires.
        unsafe {
            asm!("call {}", sym memcpy, in("rdi") to, in("rsi") from, in("rdx") len, clobber_abi("C"));
        }
    }

    #[inline(always)]
    pub unsafe fn copy_block(to: *mut u8, from: *const u8) {
        let block: __m128i;
        // SAFETY: see above; `to` needs no alignment.
        unsafe {
            asm!("movdqu {}, [{}]", out(xmm_reg) block, in(reg) from, options(nostack, preserves_flags, readonly));
            to.cast::<__m128i>().write_unaligned(block);
        }
    }

    #[inline(always)]
    pub unsafe fn copy_block_in(to: *mut u8, from: *const u8) {
        // SAFETY: see above; neither needs alignment.
        unsafe {
            let block = from.cast::<__m128i>().read_unaligned();
            asm!("movdqu [{}], {}", in(reg) to, in(xmm_reg) block, options(nostack, preserves_flags));
        }
    }

    #[inline]
    pub unsafe fn fill(to: *mut u8, value: u8, len: usize) {
        // SAFETY: see above; a call by the C convention, with the stack as it requires.
        unsafe {
            asm!("call {}", sym memset, in("rdi") to, in("esi") u32::from(value), in("rdx") len, clobber_abi("C"));
        }
    }

    #[inline(always)]
    pub unsafe fn load_u8(from: *const u8) -> u8 {
        let value: u8;
        // SAFETY: see above.
        unsafe { asm!("mov {}, [{}]", out(reg_byte) value, in(reg) from, options(nostack, preserves_flags)) };
        value
    }

    #[inline(always)]
    pub unsafe fn store_u8(to: *mut u8, value: u8) {
        // SAFETY: see above.
        unsafe { asm!("mov [{}], {}", in(reg) to, in(reg_byte) value, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub unsafe fn load_u64(from: *const u64) -> u64 {
        let value: u64;
        // SAFETY: see above.
        unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) from, options(nostack, preserves_flags)) };
        value
    }

    #[inline(always)]
    pub unsafe fn store_u64(to: *mut u64, value: u64) {
        // SAFETY: see above.
        unsafe { asm!("mov [{}], {}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) };
    }

    #[inline]
    pub unsafe fn swap_u64(word: *mut u64, mut value: u64) -> u64 {
        // SAFETY: see above.
        unsafe { asm!("xchg [{}], {}", in(reg) word, inout(reg) value, options(nostack, preserves_flags)) };
        value
    }

    #[inline]
    pub unsafe fn fetch_add_u64(word: *mut u64, mut add: u64) -> u64 {
        // SAFETY: see above.
        unsafe { asm!("lock xadd [{}], {}", in(reg) word, inout(reg) add, options(nostack)) };
        add
    }

    #[inline]
    pub unsafe fn compare_exchange_u64(word: *mut u64, mut current: u64, new: u64) -> u64 {
        // SAFETY: see above.
        unsafe {
            asm!("lock cmpxchg [{}], {}", in(reg) word, in(reg) new, inout("rax") current, options(nostack));
        }
        current
    }
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri), not(racy_model)))))]
#[cfg_attr(
    all(target_arch = "x86_64", not(miri), not(racy_model)),
    allow(dead_code, reason = "compared in tests")
)]
mod model {
    //! SAFETY of every block: as the caller guarantees, and every other access to the memory is made under the lock.

    use std::sync::{Mutex, MutexGuard, PoisonError};

    fn bus() -> MutexGuard<'static, ()> {
        static BUS: Mutex<()> = Mutex::new(());
        BUS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
        let _bus = bus();
        // SAFETY: see above.
        unsafe { core::ptr::copy(from, to, len) }
    }

    pub unsafe fn copy_block(to: *mut u8, from: *const u8) {
        // SAFETY: as the caller guarantees.
        unsafe { copy(to, from, super::BLOCK) }
    }

    pub unsafe fn copy_block_in(to: *mut u8, from: *const u8) {
        // SAFETY: as the caller guarantees.
        unsafe { copy(to, from, super::BLOCK) }
    }

    pub unsafe fn fill(to: *mut u8, value: u8, len: usize) {
        let _bus = bus();
        // SAFETY: see above.
        unsafe { to.write_bytes(value, len) }
    }

    pub unsafe fn load_u8(from: *const u8) -> u8 {
        let _bus = bus();
        // SAFETY: see above.
        unsafe { from.read() }
    }

    pub unsafe fn store_u8(to: *mut u8, value: u8) {
        let _bus = bus();
        // SAFETY: see above.
        unsafe { to.write(value) }
    }

    pub unsafe fn load_u64(from: *const u64) -> u64 {
        let _bus = bus();
        // SAFETY: see above.
        unsafe { from.read() }
    }

    pub unsafe fn store_u64(to: *mut u64, value: u64) {
        // SAFETY: as the caller guarantees.
        unsafe { update(to, |_| value) };
    }

    unsafe fn update(word: *mut u64, new: impl FnOnce(u64) -> u64) -> u64 {
        let _bus = bus();
        // SAFETY: see above.
        unsafe {
            let was = word.read();
            word.write(new(was));
            was
        }
    }

    pub unsafe fn swap_u64(word: *mut u64, value: u64) -> u64 {
        // SAFETY: as the caller guarantees.
        unsafe { update(word, |_| value) }
    }

    pub unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> u64 {
        // SAFETY: as the caller guarantees.
        unsafe { update(word, |was| was.wrapping_add(add)) }
    }

    pub unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> u64 {
        // SAFETY: as the caller guarantees.
        unsafe { update(word, |was| if was == current { new } else { was }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instructions do what the model does, for every length and place, and nothing beside.
    #[test]
    fn instructions_do_what_the_model_does() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 7 + 1) as u8).collect();
        let lens = if cfg!(miri) { 0..20 } else { 0..600 };
        for len in lens {
            for (skip, at) in [(0, 0), (1, 0), (3, 5), (8, 16)] {
                let (mut is, mut wanted) = ([0xaa; 700], [0xaa; 700]);
                // SAFETY: both are arrays of ours, and longer.
                unsafe {
                    write(is[at..].as_mut_ptr(), source[skip..].as_ptr(), len);
                    model::copy(wanted[at..].as_mut_ptr(), source[skip..].as_ptr(), len);
                }
                assert_eq!(is, wanted);
                // SAFETY: likewise.
                unsafe {
                    fill(is[at..].as_mut_ptr(), len as u8, len / 2);
                    model::fill(wanted[at..].as_mut_ptr(), len as u8, len / 2);
                    read_block(source[skip..].as_ptr(), is[len..].as_mut_ptr());
                    model::copy_block(wanted[len..].as_mut_ptr(), source[skip..].as_ptr());
                    write_block(is[len + at..].as_mut_ptr(), source[len..].as_ptr());
                    model::copy_block_in(wanted[len + at..].as_mut_ptr(), source[len..].as_ptr());
                }
                assert_eq!(is, wanted);
            }
        }
        let mut word = [5u64, 1 << 60];
        let bytes = word.as_mut_ptr();
        // SAFETY: the words are ours.
        unsafe {
            assert_eq!(load_u64(bytes), 5);
            store_u64(bytes, u64::MAX);
            assert_eq!((fetch_add_u64(bytes, 3), load_u64(bytes)), (u64::MAX, 2));
            assert_eq!((compare_exchange_u64(bytes, 1, 9), load_u64(bytes)), (2, 2));
            assert_eq!((compare_exchange_u64(bytes, 2, 9), load_u64(bytes)), (2, 9));
            assert_eq!((swap_u64(bytes, 0x0102), load_u8(bytes.cast())), (9, 2));
            store_u8(bytes.cast(), 7);
            assert_eq!(load_u64(bytes), 0x0107);
        }
        assert_eq!(word[1], 1 << 60);
    }

    /// Bytes and words of one place from two threads at once; every word is whole, no addition is lost.
    #[test]
    fn bytes_and_words_at_once() {
        struct Shared(*mut u64);
        // SAFETY: it is accessed by the functions of this file alone.
        unsafe impl Sync for Shared {}
        let rounds = if cfg!(miri) { 20 } else { 100_000 };
        let mut memory = [0u64; 4];
        let shared = Shared(memory.as_mut_ptr());
        let shared = &shared;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..rounds {
                    // SAFETY: the words outlive the scope.
                    unsafe {
                        store_u64(shared.0, if i % 2 == 0 { u64::MAX } else { 0 });
                        fetch_add_u64(shared.0.add(1), 1);
                    }
                }
            });
            let mut bytes = [0; 32];
            for _ in 0..rounds {
                // SAFETY: the words outlive the scope.
                unsafe {
                    read(shared.0.cast(), bytes.as_mut_ptr(), 32);
                    assert!([0, u64::MAX].contains(&load_u64(shared.0)));
                    fetch_add_u64(shared.0.add(1), 1);
                    write(shared.0.add(2).cast(), bytes.as_ptr(), 13);
                }
            }
        });
        assert_eq!(memory[1], 2 * rounds as u64);
    }
}
