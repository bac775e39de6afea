//! Where the library is, and how the loader of a program finds it.

use crate::error::{AppError, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library, by the name that programs are linked with. It contains librdmacm, too.
const LIBRARY: &str = "libibverbs.so.1";
/// Shows programs the device's files below /sys and /dev.
const PATHS: &str = "libroce-paths.so";

/// The directory with the library: the one that is given, or where an installation or a build has it.
///
/// # Errors
/// It is not there, or the loader could not be told of it.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let candidates = match given {
        Some(dir) => vec![dir.to_path_buf()],
        None => beside_us(),
    };
    let Some(dir) = candidates.iter().find_map(|dir| with_library(dir)) else {
        let places: Vec<_> = candidates.iter().map(|dir| dir.display().to_string()).collect();
        return Err(AppError::Setup(format!(
            "there is no {LIBRARY} in {}; build it with scripts/dropin --build, or name its directory with --library",
            places.join(" or ")
        )));
    };
    // The loader splits LD_PRELOAD at these.
    if dir.to_string_lossy().contains([':', ' ', '\t', '\n']) {
        return Err(AppError::Setup(format!(
            "the loader cannot take a library from {:?}: use a directory without spaces and colons in its path",
            dir.display().to_string()
        )));
    }
    Ok(dir)
}

fn with_library(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    dir.join(LIBRARY).is_file().then_some(dir)
}

/// `PREFIX/lib/roce` beside `PREFIX/bin`, `target/dropin` beside `target/release`.
fn beside_us() -> Vec<PathBuf> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let above = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    vec![above.join("lib/roce"), above.join("dropin")]
}

/// The loader's variables: LD_LIBRARY_PATH for what is opened later by name, LD_PRELOAD for programs that carry paths of
/// their own (RPATH), which come first otherwise.
pub fn loader(dir: &Path, old: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
    let paths = dir.join(PATHS);
    let preload = [Some(dir.join(LIBRARY)), paths.is_file().then_some(paths)];
    let first = |name: &'static str, ours: Vec<OsString>| {
        let mut value = OsString::new();
        for element in ours.into_iter().chain(old(name).filter(|rest| !rest.is_empty())) {
            if !value.is_empty() {
                value.push(":");
            }
            value.push(element);
        }
        (name, value)
    };
    vec![
        first("LD_LIBRARY_PATH", vec![dir.into()]),
        first("LD_PRELOAD", preload.into_iter().flatten().map(PathBuf::into_os_string).collect()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_comes_after_ours() {
        let old = |name: &str| (name == "LD_PRELOAD").then(|| OsString::from("/b.so"));
        let [path, preload] = &loader(Path::new("/a"), old)[..] else { panic!("two variables") };
        assert_eq!(*path, ("LD_LIBRARY_PATH", "/a".into()));
        assert_eq!(*preload, ("LD_PRELOAD", "/a/libibverbs.so.1:/b.so".into()));
    }
}
