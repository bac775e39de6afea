//! Which library calls.
//!
//! A program may load another libibverbs or librdmacm beside that of `roce-run`: by its path, or as a copy that it brings along.
//! Such a library is for hardware, and crashes on a device that has no driver in it. So it is shown none, and one line says why.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

/// What `_dl_find_object` of the C library says (2.35 and later).
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    object: *const Object,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// The beginning of `struct link_map`.
#[repr(C)]
struct Object {
    base: usize,
    name: *const c_char,
}

type Frame = c_void;

unsafe extern "C" {
    /// Takes no lock.
    fn _dl_find_object(address: *const c_void, found: *mut Found) -> c_int;
    fn _Unwind_Backtrace(frame: extern "C" fn(*mut Frame, *mut c_void) -> c_int, to: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut Frame) -> usize;
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
}

/// The path of the object that has this address in it, as the loader was given it; empty for the program itself.
fn object_at(address: *const c_void) -> Option<&'static CStr> {
    // SAFETY: numbers and pointers, which may be NULL; the call fills them in.
    unsafe {
        let mut found: Found = core::mem::zeroed();
        if _dl_find_object(address, &raw mut found) != 0 {
            return None;
        }
        let name = found.object.as_ref()?.name;
        // An object that calls is not unloaded meanwhile.
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }
}

/// The path of this library.
fn this() -> Option<&'static CStr> {
    object_at(is_foreign as *const c_void)
}

/// Whether the function of this library that runs was called by a libibverbs or librdmacm that is not `roce-run`'s.
pub(crate) fn is_foreign() -> bool {
    /// Unwinding goes on, or ends.
    const ON: c_int = 0;
    const END: c_int = 4;

    extern "C" fn frame(frame: *mut Frame, to: *mut c_void) -> c_int {
        // SAFETY: the frame that the unwinder gives. A return address may be that of the next function.
        let at = unsafe { _Unwind_GetIP(frame) } as *const c_void;
        let object = object_at(at.wrapping_byte_sub(1));
        if object == this() {
            return ON;
        }
        // SAFETY: the place that `is_foreign` gives.
        unsafe { *to.cast::<Option<&CStr>>() = object };
        END
    }

    let mut caller: Option<&CStr> = None;
    // SAFETY: a function that keeps to the unwinder's rules, and a place that lives until it returns.
    unsafe { _Unwind_Backtrace(frame, (&raw mut caller).cast()) };
    let is_one = |path| (is_library(path) || is_driver(path)) && is_elsewhere(path);
    let Some(caller) = caller.filter(|caller| is_one(caller.to_bytes())) else { return false };
    say(caller);
    true
}

/// Whether an object is a libibverbs or librdmacm.
fn is_library(path: &[u8]) -> bool {
    let is_one = |prefix: &[u8]| {
        // `libibverbs.so.1`, and copies like `libibverbs-1a2b3c4d.so.1.14.44.0` in packages of Python.
        let rest = split(path).1.strip_prefix(prefix);
        rest.is_some_and(|rest| matches!(rest.first(), Some(b'.' | b'-')))
    };
    is_one(b"libibverbs") || is_one(b"librdmacm")
}

/// Whether it is a driver of a libibverbs.
fn is_driver(path: &[u8]) -> bool {
    split(path).1.windows(6).any(|part| part == b"-rdmav")
}

/// Whether it is not `roce-run`'s, which is beside this library.
fn is_elsewhere(path: &[u8]) -> bool {
    this().is_none_or(|this| split(this.to_bytes()).0 != split(path).0)
}

/// The directory and the name of a file.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]))
}

/// Says once that there is another library.
fn say(library: &CStr) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: a text for each place of the format; `errno` is as before afterwards.
    unsafe {
        let before = *libc::__errno_location();
        dprintf(
            2,
            c"roce: %s was loaded beside roce-run's library, by its path or as a copy of a package; it is for hardware, and finds no RDMA \
              device here: load libibverbs.so.1 and librdmacm.so.1 by these names\n"
                .as_ptr(),
            library.as_ptr(),
        );
        *libc::__errno_location() = before;
    }
}

/// The linker's list of what runs at the end of the process: another library may have asked the C library directly (RTLD_DEEPBIND).
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = at_the_end;

extern "C" fn at_the_end() {
    extern "C" fn look(object: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
        // SAFETY: an object of the loader's, with a name or NULL.
        let name = unsafe { (*object).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        let path = name.to_bytes();
        if !(is_library(path) && !is_driver(path) && is_elsewhere(path)) {
            return 0;
        }
        say(name);
        1
    }
    if crate::redirect::has_tree() {
        // SAFETY: a function that keeps to the loader's rules.
        unsafe { libc::dl_iterate_phdr(Some(look), ptr::null_mut()) };
    }
}
