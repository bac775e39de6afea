//! Where a user's processes find each other's sockets.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A directory that cannot be used, and why: the end of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Its path.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// The directory of this user's sockets: `$XDG_RUNTIME_DIR/roce`, or `/tmp/roce-UID` where that is not set. It is made if it does
/// not exist, for this user alone.
///
/// # Errors
/// It cannot be made, or another user could put a socket into it.
pub fn dir() -> Result<PathBuf, Unusable> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_dir());
    let uid = rustix::process::geteuid().as_raw();
    let dir = base.map_or_else(|| PathBuf::from(format!("/tmp/roce-{uid}")), |base| base.join("roce"));
    check(&dir, uid).map_err(|reason| Unusable { path: dir.clone(), reason })?;
    Ok(dir)
}

/// Makes the directory if it is missing, and checks that it belongs to this user and that nobody else may write to it.
fn check(dir: &Path, uid: u32) -> Result<(), String> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("cannot be made ({error}); name a path yourself")),
    }
    match std::fs::symlink_metadata(dir) {
        Ok(m) if !m.is_dir() => Err("is no directory; remove it, or name a path yourself".into()),
        Ok(m) if m.uid() != uid => {
            Err(format!("belongs to user {}, not to us; name a path yourself", m.uid()))
        }
        Ok(m) if m.permissions().mode() & 0o022 != 0 => {
            Err("may be written by others; make it yours (chmod 700), or name a path yourself".into())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
