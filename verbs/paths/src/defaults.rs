//! Variables of UCX for which the program gets a value where the user has set none: `ROCE_DEFAULT_NAME` has it, which `roce-run`
//! sets.
//!
//! They are not in the environment under their own names, because a release of UCX that does not know one of them warns of it. So
//! a release gets the value of what it asks for.

use core::ffi::{CStr, c_char};

/// What precedes the name of a variable in the name of its default.
const DEFAULT_PREFIX: &[u8] = b"ROCE_DEFAULT_";
/// The names of UCX's variables begin with this.
const UCX_PREFIX: &[u8] = b"UCX_";
/// Bytes of the longest name of a default, with the zero that ends it.
const NAME_MAX: usize = 128;

/// `getenv` of the C library, with a default for the variables of UCX.
///
/// # Safety
/// As the C library's.
// SAFETY: takes the place of the function of this name on purpose, with its arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    // The C library's `secure_getenv` differs from its `getenv` only in set-user-ID programs and the like, into which the loader does not
    // preload us. To ask the loader for `getenv` could need an allocator, which may be the caller.
    // SAFETY: the caller promises a string.
    let value = unsafe { secure_getenv(name) };
    if !value.is_null() || name.is_null() {
        return value;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let mut bytes = [0; NAME_MAX];
    // The last byte stays zero.
    if !name.starts_with(UCX_PREFIX) || DEFAULT_PREFIX.len() + name.len() >= NAME_MAX {
        return value;
    }
    bytes[..DEFAULT_PREFIX.len()].copy_from_slice(DEFAULT_PREFIX);
    bytes[DEFAULT_PREFIX.len()..][..name.len()].copy_from_slice(name);
    // SAFETY: a string that lives until the call returns.
    unsafe { secure_getenv(bytes.as_ptr().cast()) }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}
