//! The files that a kernel would show of the device, below /sys and /dev: a tree of our own in the user's runtime directory,
//! which `libroce-paths.so` shows to the program in their place.
//!
//! It contains what programs look for there, and only what is the same for every process. Its name has a checksum of its
//! contents: all processes of a release share it, and those of another release have their own.

use crate::error::{AppError, Result};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Entries of a GID table: more than a device has addresses.
const GIDS: usize = 256;
/// The device, and its character device.
const DEVICE: &str = "roce0";
const UVERBS: &str = "uverbs0";

/// Makes the tree unless it exists; returns its path.
///
/// # Errors
/// The runtime directory cannot be made, belongs to somebody else, or is full.
pub fn make() -> Result<PathBuf> {
    let dir = verbs::stats::runtime_dir().map_err(|e| AppError::Setup(e.to_string()))?;
    let files = files();
    let mut hash = crc32fast::Hasher::new();
    for (path, text) in &files {
        hash.update(path.as_bytes());
        hash.update(text.as_bytes());
    }
    let tree = dir.join(format!("paths-{:08x}", hash.finalize()));
    if !tree.is_dir() {
        write(&dir, &tree, &files).map_err(|e| AppError::Setup(format!("{}: {e}", tree.display())))?;
    }
    Ok(tree)
}

/// Regular files, by path and contents.
fn files() -> Vec<(String, String)> {
    let device = format!("sys/class/infiniband/{DEVICE}");
    let uverbs = format!("sys/class/infiniband_verbs/{UVERBS}");
    let mut all = vec![
        (format!("{device}/node_type"), "1: CA\n".to_owned()),
        (format!("{device}/ports/1/link_layer"), "Ethernet\n".into()),
        (format!("{device}/ports/1/pkeys/0"), "0xffff\n".into()),
        // No NUMA node is nearer than another.
        (format!("{device}/device/numa_node"), "-1\n".into()),
        ("sys/class/infiniband_verbs/abi_version".into(), "6\n".into()),
        (format!("{uverbs}/ibdev"), format!("{DEVICE}\n")),
        (format!("{uverbs}/abi_version"), "1\n".into()),
    ];
    // Every GID of the stack is one of RoCE v2.
    all.extend((0..GIDS).map(|n| (format!("{device}/ports/1/gid_attrs/types/{n}"), "RoCE v2\n".into())));
    all
}

/// Writes the tree beside its place, then moves it there: nobody sees half of it.
fn write(dir: &Path, tree: &Path, files: &[(String, String)]) -> io::Result<()> {
    let draft = dir.join(format!("paths.{}", std::process::id()));
    // Left by a process of the same number that was killed.
    let _ = std::fs::remove_dir_all(&draft);
    let filled = fill(&draft, files);
    let moved = filled.and_then(|()| match std::fs::rename(&draft, tree) {
        // Another process was faster.
        Err(_) if tree.is_dir() => Ok(()),
        result => result,
    });
    let _ = std::fs::remove_dir_all(&draft);
    moved
}

fn fill(draft: &Path, files: &[(String, String)]) -> io::Result<()> {
    for (path, text) in files {
        let path = draft.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(draft))?;
        std::fs::write(path, text)?;
    }
    // Programs look whether these are character devices. Nothing goes through them.
    let nodes = draft.join("dev/infiniband");
    std::fs::create_dir_all(&nodes)?;
    for name in [UVERBS, "rdma_cm"] {
        symlink("/dev/null", nodes.join(name))?;
    }
    Ok(())
}
