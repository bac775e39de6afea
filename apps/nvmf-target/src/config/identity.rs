//! Serial numbers, UUIDs and other identifiers that are computed from names, so that they are the same after a restart without being
//! stored.
//!
//! A host that finds a known UUID assumes that it is the disk that it had before, and writes data to it that it still has in memory. So a
//! UUID must identify the stored data, and not the position of a namespace in its subsystem.

use core::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use arrayvec::ArrayString;
use nvmf::Nqn;

use super::offer::Storage;
use crate::store::dir_of;

/// The 128-bit FNV-1a hash of the parts, one after the other.
fn hash(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(BASIS, |hash, &byte| (hash ^ byte as u128).wrapping_mul(PRIME))
}

/// The serial number of a subsystem, computed from its name.
pub(super) fn serial(nqn: &Nqn) -> ArrayString<20> {
    let mut serial = ArrayString::new();
    let _ = write!(serial, "{:016x}", hash(&[b"serial:", nqn.as_str().as_bytes()]) as u64);
    serial
}

/// A UUID for a namespace (RFC 9562). For a file it is computed from the names of the subsystem and the file. For memory it is random,
/// because memory is empty after each start and so is a different disk.
pub(super) fn uuid(nqn: &Nqn, storage: &Storage) -> [u8; 16] {
    let (version, mut uuid) = match storage {
        Storage::Memory(_) => {
            let mut random = [0; 16];
            getrandom::fill(&mut random).expect("the operating system has randomness");
            (4, random)
        }
        Storage::File { path, .. } => {
            let name = lasting_name(path);
            (8, hash(&[b"uuid:", nqn.as_str().as_bytes(), b"\0", name.as_os_str().as_bytes()]).to_be_bytes())
        }
    };
    uuid[6] = version << 4 | uuid[6] & 0x0F;
    uuid[8] = 0x80 | uuid[8] & 0x3F;
    uuid
}

/// A name of a file that is the same after a restart. The system may name a block device differently at each boot, but links to it (in
/// `/dev/disk/by-id`) keep their names, so links to devices are not resolved.
fn lasting_name(path: &Path) -> PathBuf {
    match path.metadata() {
        Ok(there) if there.file_type().is_block_device() => {
            std::path::absolute(path).unwrap_or_else(|_| path.into())
        }
        _ => canonical(path),
    }
}

/// The path of a file with all links resolved. The file itself need not exist.
pub(super) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let dir = dir_of(path);
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
        path.file_name().map_or(dir.clone(), |name| dir.join(name))
    })
}

/// The NGUID of a namespace, computed from its UUID.
pub(super) fn nguid(uuid: &[u8; 16]) -> [u8; 16] {
    hash(&[b"nguid:", uuid]).to_be_bytes()
}

/// The host identifier of a host, computed from its NQN.
pub fn host_id(nqn: &Nqn) -> [u8; 16] {
    hash(&[b"host:", nqn.as_str().as_bytes()]).to_be_bytes()
}

/// A UUID as text, in its usual form.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// The bytes of a UUID in its usual form; `None` if the text is not a UUID.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12])
        || !text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
    {
        return None;
    }
    let number = u128::from_str_radix(&groups.concat(), 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: impl Into<PathBuf>) -> Storage {
        Storage::File { path: path.into(), size: None, direct: None }
    }

    // Goal: hosts drop a disk whose identity has changed, so these values must never change.
    #[test]
    fn identities_are_the_same_for_ever() {
        let nqn: Nqn = "nqn.2024-01.org.example:disks".parse().unwrap();
        assert_eq!(hash(&[]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(&[b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(serial(&nqn), serial(&nqn));
        let [one, two] = ["/nowhere/one", "/nowhere/two"].map(|path| uuid(&nqn, &file(path)));
        assert_eq!(uuid_text(&one), "aeba8dbb-2948-8773-8172-57a48ee73227");
        assert_ne!(one, two);
        assert_ne!(nguid(&one), one);
    }

    // Goal: a file has the same UUID by all of its names, before and after it is created; memory has a new one each time.
    #[test]
    fn an_identity_goes_with_the_blocks() {
        let nqn: Nqn = "nqn.2024-01.org.example:disks".parse().unwrap();
        let dir = std::env::temp_dir().join(format!("roce-nvmf-identity-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (disk, link) = (dir.join("disk"), dir.join("link"));
        let first = uuid(&nqn, &file(&disk));
        std::fs::write(&disk, "").unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        assert_eq!([&disk, &link].map(|path| uuid(&nqn, &file(path))), [first; 2]);
        let other: Nqn = "nqn.2024-01.org.example:others".parse().unwrap();
        assert_ne!(uuid(&other, &file(&disk)), first);
        // A link to another file has another UUID.
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(dir.join("second"), &link).unwrap();
        std::fs::write(dir.join("second"), "").unwrap();
        assert_ne!(uuid(&nqn, &file(&link)), first);
        std::fs::remove_dir_all(&dir).unwrap();
        let memory = Storage::Memory(4096);
        assert_ne!(uuid(&nqn, &memory), uuid(&nqn, &memory));
        assert_eq!([uuid(&nqn, &memory)[6] >> 4, first[6] >> 4], [4, 8]);
    }

    #[test]
    fn uuids_have_their_form() {
        let text = "11111111-2222-3333-4444-5555aAbBcCdD";
        let uuid = parse_uuid(text).unwrap();
        assert_eq!(uuid[..5], [0x11, 0x11, 0x11, 0x11, 0x22]);
        assert_eq!(uuid_text(&uuid), text.to_lowercase());
        for wrong in [
            "",
            "1111",
            &text[1..],
            "11111111-2222-3333-44445-555aAbBcCdD",
            "+1111111-2222-3333-4444-5555aAbBcCdD",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
