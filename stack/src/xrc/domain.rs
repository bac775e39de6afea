//! The identity of a domain: the file through which processes open it.

use core::fmt;
use core::str::FromStr;
use std::io;
use std::os::fd::AsFd;

/// A file, by device and inode: processes that share an XRC domain open the same file (`ibv_open_xrcd` with a file descriptor).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct DomainFile {
    dev: u64,
    ino: u64,
}

impl DomainFile {
    /// The file that a file descriptor refers to.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { dev: stat.st_dev, ino: stat.st_ino })
    }

    /// Name of the owner's socket in the abstract namespace, which is separate for each network namespace.
    pub(super) fn socket_name(&self, uid: u32) -> String {
        format!("roce/{uid}/xrcd/{self}")
    }
}

impl fmt::Display for DomainFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dev, self.ino)
    }
}

impl FromStr for DomainFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no domain; write the device and the inode of its file, as in 2049:131");
        let (dev, ino) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().map_err(|_| wrong());
        Ok(Self { dev: number(dev)?, ino: number(ino)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(miri))]
    #[test]
    fn a_file_has_one_name_however_it_is_opened() {
        let open = || std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let one = DomainFile::of(open()).unwrap();
        assert_eq!(DomainFile::of(open()).unwrap(), one);
        assert_eq!(one.to_string().parse(), Ok(one));
        let other = DomainFile { ino: one.ino + 1, ..one };
        assert_ne!(one.socket_name(7), other.socket_name(7));
        assert_ne!(one.socket_name(7), one.socket_name(8));
    }

    #[test]
    fn what_names_no_file_is_refused_with_an_example() {
        for text in ["", "12", "12:", ":3", "a:3", "1:2:3", "-1:2"] {
            assert!(text.parse::<DomainFile>().unwrap_err().contains("2049:131"), "{text}");
        }
    }
}
