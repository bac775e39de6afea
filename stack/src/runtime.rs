//! Where a user's processes find each other's sockets, and which paths other users could turn elsewhere.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Symbolic links that a path may go through, as in the kernel.
const LINKS_MAX: usize = 40;
/// The sticky bit: in such a directory nobody renames or removes what belongs to others.
const STICKY: u32 = 0o1000;
/// The right to write, of others than the owner.
const OTHERS_WRITE: u32 = 0o022;

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
/// It cannot be made, or another user could put a socket into it, or another directory in its place.
pub fn dir() -> Result<PathBuf, Unusable> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_dir());
    let uid = rustix::process::geteuid().as_raw();
    let dir = base.map_or_else(|| PathBuf::from(format!("/tmp/roce-{uid}")), |base| base.join("roce"));
    check(&dir, uid).map_err(|reason| Unusable { path: dir.clone(), reason })?;
    Ok(dir)
}

/// Makes the directory if it is missing, and checks that it belongs to this user and that nobody else may write to it, nor turn the path
/// elsewhere.
fn check(dir: &Path, uid: u32) -> Result<(), String> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    check_way(parent, uid).map_err(|why| format!("{why}; name a path yourself"))?;
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
        Ok(m) if is_shared(&m) => {
            Err("may be written by others; make it yours (chmod 700), or name a path yourself".into())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the directories on the way to `path`, itself included: each belongs to this user or to root, and nobody else may write to
/// it, unless nobody may touch what belongs to others there. So do the symbolic links that it goes through.
fn check_way(path: &Path, uid: u32) -> Result<(), String> {
    let foreign = Foreign::of(uid);
    walk(path, |step| match step {
        Step::Dir(at, dir) if foreign.has(dir) => {
            Err(format!("{} on the way to it belongs to user {}, not to us", at.display(), dir.uid()))
        }
        Step::Dir(at, dir) if may_be_replaced_in(dir) => {
            Err(format!("{} on the way to it may be written by others (chmod go-w)", at.display()))
        }
        Step::Link(at, link, _) if foreign.has(link) => Err(format!(
            "the link {} on the way to it belongs to user {}, not to us",
            at.display(),
            link.uid()
        )),
        _ => Ok(()),
    })
    .map(drop)
}

/// Checks that no symbolic link of another user leads `path` elsewhere, from a directory where others may put one. Returns the directory
/// that it leads to.
///
/// # Errors
/// Which link does: the end of a sentence.
pub(crate) fn without_foreign_links(path: &Path) -> Result<PathBuf, String> {
    let foreign = Foreign::of(rustix::process::geteuid().as_raw());
    walk(path, |step| match step {
        Step::Link(at, link, dir) if is_shared(dir) && foreign.has(link) => Err(format!(
            "the link {} belongs to user {}, and others may put one there",
            at.display(),
            link.uid()
        )),
        _ => Ok(()),
    })
}

/// The directory that a file is in: the current one where its path names none.
pub(crate) fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether somebody else than its owner may put files into a directory.
pub(crate) fn is_shared(dir: &Metadata) -> bool {
    dir.mode() & OTHERS_WRITE != 0
}
/// Whether somebody else may put something else in the place of what is in a directory.
fn may_be_replaced_in(dir: &Metadata) -> bool {
    is_shared(dir) && dir.mode() & STICKY == 0
}

/// Whether the kernel also calls users by this number whom this user namespace does not know.
pub(crate) fn stands_for_unknown(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    stands_for_others(uid, &read("/proc/sys/kernel/overflowuid"), &read("/proc/self/uid_map"))
}

fn stands_for_others(uid: u32, stand_in: &str, map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    // Every number but the last one, which is no user.
    let knows_all = counts.sum::<u64>() >= u32::MAX.into();
    stand_in.trim().parse() == Ok(uid) && !knows_all
}

/// Who is neither this user nor root.
struct Foreign {
    uid: u32,
    /// The user who stands for those that this user namespace does not know, such as the root outside of it.
    unknown: Option<u32>,
}

impl Foreign {
    fn of(uid: u32) -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let unknown = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let unknown = unknown.and_then(|text| text.trim().parse().ok());
        Self { uid, unknown: unknown.filter(|unknown| !is_mapped(&map, *unknown)) }
    }
    fn has(&self, of: &Metadata) -> bool {
        let owner = of.uid();
        owner != 0 && owner != self.uid && Some(owner) != self.unknown
    }
}

/// Whether a user namespace with this map (`/proc/self/uid_map`) has a user.
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (Some(Some(first)), _, Some(Some(count))) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        uid.checked_sub(first).is_some_and(|at| at < count)
    })
}

/// A step on the way to a directory.
enum Step<'a> {
    /// A directory.
    Dir(&'a Path, &'a Metadata),
    /// A symbolic link, and the directory that it is in.
    Link(&'a Path, &'a Metadata, &'a Metadata),
}

/// Goes from the root to a directory, and shows each step. Returns where it is, without links.
fn walk(path: &Path, mut each: impl FnMut(Step<'_>) -> Result<(), String>) -> Result<PathBuf, String> {
    let look = |at: &Path| std::fs::symlink_metadata(at).map_err(|e| format!("{}: {e}", at.display()));
    let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let names = |path: &Path| -> Vec<OsString> {
        let names =
            path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        names.map(|part| part.as_os_str().into()).collect()
    };
    let mut left: VecDeque<OsString> = names(&path).into();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let mut dir = look(&at)?;
    each(Step::Dir(&at, &dir))?;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            dir = look(&at)?;
            continue;
        }
        let next = at.join(name);
        let there = look(&next)?;
        if !there.is_symlink() {
            each(Step::Dir(&next, &there))?;
            (at, dir) = (next, there);
            continue;
        }
        each(Step::Link(&next, &there, &dir))?;
        links += 1;
        if links > LINKS_MAX {
            return Err(format!("{}: too many symbolic links", path.display()));
        }
        let to = std::fs::read_link(&next).map_err(|e| format!("{}: {e}", next.display()))?;
        if to.is_absolute() {
            at = PathBuf::from("/");
            dir = look(&at)?;
        }
        names(&to).into_iter().rev().for_each(|name| left.push_front(name));
    }
    Ok(at)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// A folder with these rights, gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roce-way-{name}-{}", std::process::id()));
            create_dir_all(&path).unwrap();
            Self(path)
        }
        fn dir(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            create_dir_all(&path).unwrap();
            set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn us() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    // Goal: whoever may rename a directory on the way, or is its owner, may put their own in the place of ours.
    #[test]
    fn the_whole_way_to_the_directory_is_ours() {
        let scratch = Scratch::new("whole");
        let good = scratch.dir("good", 0o755);
        assert_eq!(check(&good.join("roce"), us()), Ok(()));
        let sticky = scratch.dir("sticky", 0o1777);
        assert_eq!(check(&sticky.join("roce"), us()), Ok(()), "as /tmp");
        for mode in [0o777, 0o775, 0o757] {
            let open = scratch.dir("open", mode);
            let inner = scratch.dir("open/inner", 0o700);
            for dir in [open.join("roce"), inner.join("roce")] {
                let why = check(&dir, us()).unwrap_err();
                assert!(why.contains("open on the way to it may be written by others"), "{mode:o}: {why}");
                assert!(!dir.exists(), "nothing was made");
            }
        }
        // Through a link, the same holds of where it leads.
        let link = scratch.0.join("link");
        symlink(scratch.0.join("open"), &link).unwrap();
        assert!(check(&link.join("roce"), us()).unwrap_err().contains("open on the way"));
        symlink(&link, scratch.0.join("open/loop")).unwrap();
        let back = scratch.dir("good/there", 0o755).join("../../sticky");
        assert_eq!(check(&back.join("roce"), us()), Ok(()));
    }

    #[test]
    fn a_way_through_what_belongs_to_others_is_refused() {
        if us() != 0 {
            eprintln!("SKIPPED directories of other users: only root makes them");
            return;
        }
        let scratch = Scratch::new("others");
        let theirs = scratch.dir("theirs", 0o755);
        chown(&theirs, Some(54321), None).unwrap();
        let why = check(&theirs.join("roce"), us()).unwrap_err();
        assert!(why.contains("theirs on the way to it belongs to user 54321"), "{why}");
        let (sticky, good) = (scratch.dir("sticky", 0o1777), scratch.dir("good", 0o755));
        let link = sticky.join("link");
        symlink(&good, &link).unwrap();
        assert_eq!(check(&link.join("roce"), us()), Ok(()), "a link of our own");
        std::os::unix::fs::lchown(&link, Some(54321), None).unwrap();
        let why = check(&link.join("roce"), us()).unwrap_err();
        assert!(why.contains("the link") && why.contains("belongs to user 54321"), "{why}");
        assert!(without_foreign_links(&link).unwrap_err().contains("belongs to user 54321"));
        assert_eq!(without_foreign_links(&good), Ok(good.canonicalize().unwrap()));
    }

    #[test]
    fn links_that_lead_in_circles_have_an_end() {
        let scratch = Scratch::new("circle");
        let (a, b) = (scratch.0.join("a"), scratch.0.join("b"));
        symlink(&a, &b).unwrap();
        symlink(&b, &a).unwrap();
        assert!(check(&a.join("roce"), us()).unwrap_err().contains("too many symbolic links"));
    }

    #[test]
    fn a_user_that_the_namespace_does_not_know_is_told_from_one_that_it_knows() {
        assert!(is_mapped("         0          0 4294967295\n", 65534));
        assert!(!is_mapped("      1000       1000          1\n", 65534));
        assert!(is_mapped("0 1000 1\n1 100000 65535\n", 65534));
        assert!(!is_mapped("", 65534));
        let whole = "         0          0 4294967295\n";
        let container = "0 100000 65536\n";
        let cases = [(65534, container, true), (65534, whole, false), (1000, container, false)];
        for (user, map, stands) in cases {
            assert_eq!(stands_for_others(user, "65534\n", map), stands, "{user} {map}");
        }
    }
}
