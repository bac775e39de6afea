//! The identity of a host: a user and a network namespace, on one boot of the system.
//!
//! Never a directory, and no environment variable but for a guest, which says whose host it visits (`admission`): what a user starts by
//! cron, in a unit or in another session has others of these, and the same network.

use super::draw::mix;
use super::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::unix::fs::MetadataExt;

/// A host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The effective user, as numbered in the parent user namespace: a container that shares a user's network has the same number.
    pub uid: u32,
    /// The network namespace: its cookie, which is unique until the next boot. Before Linux 5.14, the inode number of its file.
    pub namespace: u64,
    /// The ID of this boot.
    pub boot: u128,
}

impl Identity {
    /// The host on which this process runs.
    pub fn of_this_process() -> Self {
        Self::of_user(rustix::process::geteuid().as_raw())
    }

    /// That of a user, as this process calls it, where this process runs.
    pub fn of_user(uid: u32) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            uid: outer_uid(&read("/proc/self/uid_map"), uid),
            namespace: cookie().or_else(inode).unwrap_or_default(),
            boot: boot_id(&read("/proc/sys/kernel/random/boot_id")).unwrap_or_default(),
        }
    }

    /// The node GUID of a registry on this host: a locally administered EUI-64. The same inputs give the same GUID in every build.
    pub fn node_guid(&self, birth: u128) -> [u8; 8] {
        let halves = |number: u128| [(number >> 64) as u64, number as u64];
        let words = [halves(self.boot), [self.namespace, self.uid.into()], halves(birth)];
        let hash = words.iter().flatten().fold(0, |hash, word| mix(hash ^ word));
        let mut guid = hash.to_be_bytes();
        guid[0] = guid[0] & !1 | 2;
        guid
    }
}

fn cookie() -> Option<u64> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    sys::namespace_cookie(&socket).ok()
}

fn inode() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

fn boot_id(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// The number of a user in the parent user namespace, by a `uid_map`: lines of first number inside, first number outside, count. With
/// nested namespaces, the direct parent counts.
fn outer_uid(map: &str, uid: u32) -> u32 {
    let outer = map.lines().find_map(|line| {
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [inside, outside, count] = numbers[..] else { return None };
        let at = uid.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    });
    outer.unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_that_of_one_birth_on_one_host() {
        let host = Identity { uid: 1000, namespace: 1, boot: 1 << 100 };
        let others =
            [Identity { uid: 1001, ..host }, Identity { namespace: 2, ..host }, Identity { boot: 1, ..host }];
        let mut guids: Vec<_> = others.iter().map(|other| other.node_guid(7)).collect();
        guids.extend([host.node_guid(7), host.node_guid(8), host.node_guid(7 << 64)]);
        assert!(guids.iter().all(|guid| guid[0] & 3 == 2), "local, and no group");
        guids.sort_unstable();
        guids.dedup();
        assert_eq!(guids.len(), 6);
        // It must not depend on the build.
        assert_eq!(host.node_guid(7), [142, 83, 32, 175, 173, 6, 208, 202]);
    }

    #[test]
    fn a_user_has_one_number_in_and_around_a_container() {
        assert_eq!(outer_uid("         0          0 4294967295\n", 1000), 1000);
        let rootless = "0 1000 1\n1 100000 65536\n";
        assert_eq!([0, 1, 33].map(|uid| outer_uid(rootless, uid)), [1000, 100_000, 100_032]);
        assert_eq!((outer_uid(rootless, 70_000), outer_uid("", 5)), (70_000, 5), "nobody knows");
    }

    #[test]
    fn the_number_of_a_start_is_read() {
        let id = boot_id("0b1c2d3e-0000-1111-2222-333344445555\n");
        assert_eq!(id, Some(0x0b1c_2d3e_0000_1111_2222_3333_4444_5555));
        assert_eq!(boot_id(""), None);
    }

    #[cfg(not(miri))]
    #[test]
    fn this_process_has_a_host() {
        let host = Identity::of_this_process();
        assert_eq!(host, Identity::of_this_process());
        assert!(host.namespace != 0);
    }
}
