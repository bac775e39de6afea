//! Which paths are ours, and what stands in their place.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;

use crate::caller;

/// What the tree has; each with all that is below it.
const PREFIXES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];
/// The variable with the directory of the tree.
const TREE: &CStr = c"ROCE_PATHS";
/// Longest path that the kernel takes, with its end.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Room for a path in the tree.
pub(crate) type PathBuffer = MaybeUninit<[u8; PATH_MAX]>;

/// The path to use: the caller's, or one in the tree, which is written into `place`.
///
/// # Safety
/// `path` is null or ends with a zero byte.
pub(crate) unsafe fn redirect(path: *const c_char, place: &mut PathBuffer) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: the caller promises a string.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_ours(name) {
        return path;
    }
    let tree = tree();
    let len = tree.len() + name.len();
    if tree.is_empty() || len >= PATH_MAX || caller::is_foreign() {
        return path;
    }
    let bytes = place.as_mut_ptr().cast::<u8>();
    // SAFETY: `place` has room for both and the zero byte behind them, and overlaps neither.
    unsafe {
        bytes.copy_from_nonoverlapping(tree.as_ptr(), tree.len());
        bytes.add(tree.len()).copy_from_nonoverlapping(name.as_ptr(), name.len());
        bytes.add(len).write(0);
    }
    bytes.cast_const().cast()
}

/// The directory of the tree; empty where there is none.
fn tree<'a>() -> &'a [u8] {
    // SAFETY: reads the environment, as the caller's C library does; the program keeps to its rules for changing it. The value of a
    // variable is a string.
    unsafe {
        let tree = libc::getenv(TREE.as_ptr());
        if tree.is_null() { &[] } else { CStr::from_ptr(tree).to_bytes() }
    }
}

/// Whether there is a tree to show.
pub(crate) fn has_tree() -> bool {
    !tree().is_empty()
}

/// Whether a path is one of those, or below one. Repeated slashes count as one.
fn is_ours(name: &[u8]) -> bool {
    // Almost every path ends here.
    if !matches!(name, [b'/', b's' | b'd' | b'/', ..]) {
        return false;
    }
    PREFIXES.iter().any(|prefix| starts_with(name, prefix))
}

fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    let mut at = 0;
    for byte in prefix {
        if name.get(at) != Some(byte) {
            return false;
        }
        at += 1;
        while *byte == b'/' && name.get(at) == Some(&b'/') {
            at += 1;
        }
    }
    matches!(name.get(at), None | Some(b'/'))
}
