//! Finds the library, and sets the variables by which the loader of a program finds it.

use crate::error::{AppError, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The library, by the name that programs link to. It contains librdmacm, too.
const LIBRARY: &str = "libibverbs.so.1";
/// The library that shows programs the device's files below /sys and /dev.
const PATHS: &str = "libroce-paths.so";
/// Suppressions for ThreadSanitizer, which cannot see what the library does.
const SUPPRESSIONS: &str = "tsan.supp";

/// The directory with the library: the given one, or where an installation or a build puts it.
///
/// # Errors
/// The library is not there, or the loader could not be given its path.
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
    // The loader splits LD_PRELOAD at these characters.
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

/// The directories beside this program: `PREFIX/lib/roce` for `PREFIX/bin`, `target/dropin` for `target/release`.
fn beside_us() -> Vec<PathBuf> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let above = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    vec![above.join("lib/roce"), above.join("dropin")]
}

/// The loader's variables. LD_LIBRARY_PATH serves libraries that are opened later by name; LD_PRELOAD serves programs with an RPATH,
/// which would otherwise take precedence. Libraries that the user preloads stay before ours, except those of another `roce-run`.
pub fn loader(dir: &Path, old: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
    let paths = dir.join(PATHS);
    let ours = [Some(dir.join(LIBRARY)), paths.is_file().then_some(paths)];
    let old_path = old("LD_LIBRARY_PATH").unwrap_or_default();
    let old_preload = old("LD_PRELOAD").unwrap_or_default();
    let theirs = old_preload.as_bytes().split(|byte| b": ".contains(byte)).filter(|path| {
        let name = Path::new(OsStr::from_bytes(path)).file_name();
        !path.is_empty() && name != Some(OsStr::new(LIBRARY)) && name != Some(OsStr::new(PATHS))
    });
    let ours = ours.iter().flatten().map(|path| path.as_os_str());
    vec![
        ("LD_LIBRARY_PATH", joined([dir.as_os_str(), &old_path])),
        ("LD_PRELOAD", joined(theirs.map(OsStr::from_bytes).chain(ours))),
    ]
}

/// Options for the runtimes of sanitizers, which expect to be the first library of a process, and do not know what this library does
/// with a program's memory. Options of the user come later, and override these.
pub fn sanitizers(dir: &Path, old: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
    let mut all = Vec::new();
    let mut set = |name: &'static str, option: OsString| {
        all.push((name, joined([option.as_os_str(), &old(name).unwrap_or_default()])));
    };
    set("ASAN_OPTIONS", "verify_asan_link_order=0".into());
    let known = dir.join(SUPPRESSIONS);
    if known.is_file() {
        let mut option = OsString::from("suppressions=");
        option.push(known);
        set("TSAN_OPTIONS", option);
    }
    all
}

/// The parts that are not empty, separated by colons.
fn joined<'a>(parts: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let parts: Vec<&OsStr> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_stays_first_and_directories_come_after_ours() {
        let old = |name: &str| match name {
            "LD_PRELOAD" => {
                Some(OsString::from("libasan.so.8 /b.so:/old/libibverbs.so.1:/old/libroce-paths.so"))
            }
            "LD_LIBRARY_PATH" => Some("/c:/d".into()),
            _ => None,
        };
        let [path, preload] = &loader(Path::new("/a"), old)[..] else { panic!("two variables") };
        assert_eq!(*path, ("LD_LIBRARY_PATH", "/a:/c:/d".into()));
        assert_eq!(*preload, ("LD_PRELOAD", "libasan.so.8:/b.so:/a/libibverbs.so.1".into()));
        let [path, preload] = &loader(Path::new("/a"), |_| None)[..] else { panic!("two variables") };
        assert_eq!((&path.1, &preload.1), (&"/a".into(), &"/a/libibverbs.so.1".into()));
    }

    #[test]
    fn options_of_sanitizers_that_the_user_has_set_come_later() {
        let old = |name: &str| (name == "ASAN_OPTIONS").then(|| OsString::from("detect_leaks=0"));
        let set = sanitizers(Path::new("/a"), old);
        assert_eq!(set, [("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0".into())]);
    }
}
