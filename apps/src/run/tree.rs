//! The files that a kernel would show for the device, below /sys and /dev: a directory tree in the user's runtime directory, which
//! `libroce-paths.so` shows to the program in place of the kernel's files.
//!
//! The tree's name contains a checksum of its contents: processes of one release with the same device share a tree.

use super::sysfs::{Entry, Facts, UVERBS};
use crate::error::{AppError, Result};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Prefix of a tree's name.
const NAME: &str = "paths-";
/// Most trees that are kept: the least recently used is removed first.
const TREES_MAX: usize = 32;

/// Makes the tree unless it exists; returns its path.
///
/// # Errors
/// The runtime directory cannot be made, belongs to another user, or is full.
pub fn make(facts: &Facts) -> Result<PathBuf> {
    let dir = verbs::stats::runtime_dir().map_err(|e| AppError::Setup(e.to_string()))?;
    let files = facts.files();
    let mut hash = crc32fast::Hasher::new();
    for (path, entry) in &files {
        hash.update(path.as_bytes());
        match entry {
            Entry::File(text) => hash.update(text.as_bytes()),
            Entry::Link(to) => hash.update(to.as_os_str().as_encoded_bytes()),
        }
    }
    let tree = dir.join(format!("{NAME}{:08x}", hash.finalize()));
    let failed = |e: io::Error| AppError::Setup(format!("{}: {e}", tree.display()));
    if !tree.is_dir() {
        write(&dir, &tree, &files).map_err(failed)?;
        forget(&dir, &tree);
    }
    // Mark as recently used. Fails if this user may only read the directory.
    let _ = std::fs::File::open(&tree).and_then(|tree| tree.set_modified(SystemTime::now()));
    Ok(tree)
}

/// Removes the least recently used trees beyond [`TREES_MAX`], but not `ours`.
fn forget(dir: &Path, ours: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let trees = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME));
    let asked_for = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let mut trees: Vec<_> =
        trees.map(|entry| entry.path()).filter_map(|path| Some((asked_for(&path)?, path))).collect();
    trees.sort();
    let too_many = trees.len().saturating_sub(TREES_MAX);
    for (_, tree) in trees.iter().filter(|(_, tree)| tree != ours).take(too_many) {
        // Another process may be removing it, too.
        let _ = std::fs::remove_dir_all(tree);
    }
}

/// Writes the tree under a temporary name, then renames it: no process sees an incomplete tree.
fn write(dir: &Path, tree: &Path, files: &[(String, Entry)]) -> io::Result<()> {
    let draft = dir.join(format!("paths.{}", std::process::id()));
    // Left by a killed process with the same number.
    let _ = std::fs::remove_dir_all(&draft);
    let filled = fill(&draft, files);
    let moved = filled.and_then(|()| match std::fs::rename(&draft, tree) {
        // Another process has made it first.
        Err(_) if tree.is_dir() => Ok(()),
        result => result,
    });
    let _ = std::fs::remove_dir_all(&draft);
    moved
}

fn fill(draft: &Path, files: &[(String, Entry)]) -> io::Result<()> {
    // Files of a directory with the same text are hard links to one file: the GID table has hundreds of such files.
    let mut made: BTreeMap<(PathBuf, &str), PathBuf> = BTreeMap::new();
    for (path, entry) in files {
        let path = draft.join(path);
        let parent = path.parent().unwrap_or(draft).to_path_buf();
        std::fs::create_dir_all(&parent)?;
        match entry {
            Entry::Link(to) => symlink(to, path)?,
            Entry::File(text) => match made.get(&(parent.clone(), text.as_str())) {
                // Unless the file system has no hard links, or the file has too many.
                Some(other) if std::fs::hard_link(other, &path).is_ok() => {}
                _ => {
                    std::fs::write(&path, text)?;
                    made.insert((parent, text), path);
                }
            },
        }
    }
    // Programs check whether these are character devices. No data goes through them.
    let nodes = draft.join("dev/infiniband");
    std::fs::create_dir_all(&nodes)?;
    for name in [UVERBS, "rdma_cm"] {
        symlink("/dev/null", nodes.join(name))?;
    }
    Ok(())
}
