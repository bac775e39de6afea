//! Replacements for the functions of the C library that take a path.
//!
//! `open` and similar functions are variadic in C: a mode follows if a file is created. On the architectures that this stack supports the
//! mode is passed like a fixed argument, so the replacements declare it as one, and pass it on whether the caller gave it or not.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::redirect::{PathBuffer, redirect};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("variadic arguments may be passed differently from fixed ones on this architecture");

/// A function of the C library, whose address is looked up at the first call.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null if this C library does not have it. No program can then have been linked with it.
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: looks up a name; threads that do so at the same time get the same result.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines functions with the names and arguments of those of the C library, which redirect the argument `path`.
macro_rules! calls {
    ($($name:ident ($($before:ident: $b:ty),*) path ($($after:ident: $a:ty),*) -> $result:ty, $failed:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library, with its path redirected.")]
        ///
        /// # Safety
        /// As the C library's.
        // SAFETY: replaces the function of this name on purpose, and has the same arguments.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($before: $b,)* path: *const c_char $(, $after: $a)*) -> $result {
            static NEXT: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero byte"),
                },
            );
            let next = NEXT.get();
            if next.is_null() {
                // SAFETY: `errno` of this thread.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return $failed;
            }
            // SAFETY: the C library's function of this name has this type. The caller keeps its contract, and `place` outlives
            // the call.
            unsafe {
                let next = core::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn($($b,)* *const c_char $(, $a)*) -> $result,
                >(next);
                let mut place = PathBuffer::uninit();
                next($($before,)* redirect(path, &mut place) $(, $after)*)
            }
        }
    )* };
}

type Any = *mut c_void;
const NULL: Any = core::ptr::null_mut();

// Each line: the arguments before the path, those after it, the result, and the result of a failure.
#[rustfmt::skip]
calls! {
    open                   ()                           path (flags: c_int, mode: libc::mode_t)              -> c_int, -1;
    open64                 ()                           path (flags: c_int, mode: libc::mode_t)              -> c_int, -1;
    __open_2               ()                           path (flags: c_int)                                  -> c_int, -1;
    __open64_2             ()                           path (flags: c_int)                                  -> c_int, -1;
    openat                 (dir: c_int)                 path (flags: c_int, mode: libc::mode_t)              -> c_int, -1;
    openat64               (dir: c_int)                 path (flags: c_int, mode: libc::mode_t)              -> c_int, -1;
    __openat_2             (dir: c_int)                 path (flags: c_int)                                  -> c_int, -1;
    __openat64_2           (dir: c_int)                 path (flags: c_int)                                  -> c_int, -1;
    fopen                  ()                           path (mode: *const c_char)                           -> Any, NULL;
    fopen64                ()                           path (mode: *const c_char)                           -> Any, NULL;
    opendir                ()                           path ()                                              -> Any, NULL;
    scandir                ()                           path (list: Any, filter: Any, order: Any)            -> c_int, -1;
    scandir64              ()                           path (list: Any, filter: Any, order: Any)            -> c_int, -1;
    stat                   ()                           path (buffer: Any)                                   -> c_int, -1;
    stat64                 ()                           path (buffer: Any)                                   -> c_int, -1;
    lstat                  ()                           path (buffer: Any)                                   -> c_int, -1;
    lstat64                ()                           path (buffer: Any)                                   -> c_int, -1;
    fstatat                (dir: c_int)                 path (buffer: Any, flags: c_int)                     -> c_int, -1;
    fstatat64              (dir: c_int)                 path (buffer: Any, flags: c_int)                     -> c_int, -1;
    statx                  (dir: c_int)                 path (flags: c_int, mask: libc::c_uint, buffer: Any) -> c_int, -1;
    __xstat                (version: c_int)             path (buffer: Any)                                   -> c_int, -1;
    __xstat64              (version: c_int)             path (buffer: Any)                                   -> c_int, -1;
    __lxstat               (version: c_int)             path (buffer: Any)                                   -> c_int, -1;
    __lxstat64             (version: c_int)             path (buffer: Any)                                   -> c_int, -1;
    __fxstatat             (version: c_int, dir: c_int) path (buffer: Any, flags: c_int)                     -> c_int, -1;
    __fxstatat64           (version: c_int, dir: c_int) path (buffer: Any, flags: c_int)                     -> c_int, -1;
    access                 ()                           path (mode: c_int)                                   -> c_int, -1;
    eaccess                ()                           path (mode: c_int)                                   -> c_int, -1;
    euidaccess             ()                           path (mode: c_int)                                   -> c_int, -1;
    faccessat              (dir: c_int)                 path (mode: c_int, flags: c_int)                     -> c_int, -1;
    readlink               ()                           path (buffer: *mut c_char, size: usize)              -> isize, -1;
    __readlink_chk         ()                           path (buffer: *mut c_char, size: usize, room: usize) -> isize, -1;
    readlinkat             (dir: c_int)                 path (buffer: *mut c_char, size: usize)              -> isize, -1;
    __readlinkat_chk       (dir: c_int)                 path (buffer: *mut c_char, size: usize, room: usize) -> isize, -1;
    realpath               ()                           path (resolved: *mut c_char)                         -> *mut c_char, core::ptr::null_mut();
    __realpath_chk         ()                           path (resolved: *mut c_char, room: usize)            -> *mut c_char, core::ptr::null_mut();
    canonicalize_file_name ()                           path ()                                              -> *mut c_char, core::ptr::null_mut();
    chdir                  ()                           path ()                                              -> c_int, -1;
    getxattr               ()                           path (name: *const c_char, value: Any, size: usize)  -> isize, -1;
    lgetxattr              ()                           path (name: *const c_char, value: Any, size: usize)  -> isize, -1;
    listxattr              ()                           path (list: *mut c_char, size: usize)                -> isize, -1;
    llistxattr             ()                           path (list: *mut c_char, size: usize)                -> isize, -1;
}
