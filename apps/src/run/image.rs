//! The program's file: where it is, and whether the loader would load our library into its process.
//!
//! The loader ignores LD_PRELOAD and LD_LIBRARY_PATH if a program gets rights that its user does not have, and a static program has no
//! loader. Such a program would run without the stack and fail because it finds no device, so it is refused here.

use crate::error::{AppError, Result};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A script's interpreter may be a script again; the kernel's limit.
const SCRIPTS_MAX: u32 = 5;
/// Bytes that the kernel reads to find a script's interpreter.
const SCRIPT_LINE: u64 = 256;
/// Most program headers that are read: more than linkers write.
const HEADERS_MAX: u64 = 1024;

/// Bytes of a program that are searched at most, and bytes that are searched at once.
const SCANNED_MAX: u64 = 64 << 20;
const BLOCK: usize = 1 << 20;
/// A text that libibverbs contains, and the beginning of the shared library's name. Blocks overlap by the longer text.
const INSIDE: &[u8] = b"RDMAV_HUGEPAGES_SAFE\0";
const SHARED: &[u8] = b"libibverbs.so";
const _: () = assert!(SHARED.len() <= INSIDE.len());

const PT_INTERP: u32 = 3;
/// The set-user-ID and set-group-ID bits.
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Finds a program as a shell does: by its path, or by its name in PATH.
///
/// # Errors
/// The program does not exist, or is not executable.
pub fn search(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let text = Path::new(name).display();
    if name.as_bytes().contains(&b'/') {
        let program = PathBuf::from(name);
        return match program.metadata() {
            Ok(m) if m.is_dir() => Err(AppError::Usage(format!("{text} is a directory, not a program"))),
            Ok(m) if m.mode() & 0o111 == 0 => Err(AppError::Usage(format!(
                "{text} is not executable; chmod +x makes it so, if it is a program"
            ))),
            Ok(_) => Ok(program),
            Err(e) => Err(AppError::Usage(format!("{text} cannot be run: {e}"))),
        };
    }
    let directories = path.map(std::env::split_paths).into_iter().flatten();
    let runnable = |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    directories.map(|dir| dir.join(name)).find(runnable).ok_or_else(|| {
        AppError::Usage(format!("there is no program {text} in PATH; install it, or name it with its path"))
    })
}

/// Checks that the loader loads the library into the program. Returns a warning if the program may nevertheless run without the stack.
///
/// # Errors
/// The loader does not; the sentence says why.
pub fn check(program: &Path) -> Result<Option<String>> {
    let mut program = program.to_path_buf();
    for _ in 0..SCRIPTS_MAX {
        if let Some(why) = privileged(&program) {
            return Err(refused(&program, why));
        }
        let Ok(file) = File::open(&program) else { return Ok(None) };
        match kind(&file) {
            Ok(Kind::Script(interpreter)) => program = interpreter.into(),
            Ok(Kind::Dynamic) => {
                let own = carries_its_own(&file);
                return Ok(own.then(|| format!("{} {OWN}", program.display())));
            }
            Ok(Kind::Static) => {
                return Err(refused(
                    &program,
                    "is linked statically, so no library can take another's place in it",
                ));
            }
            Ok(Kind::Foreign) => {
                return Err(refused(&program, "is for another machine or another libc than the library"));
            }
            // A program that may be executed but not read, or that the kernel runs by a handler (binfmt_misc).
            Ok(Kind::Unknown) | Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether the first part of a program contains libibverbs, but no name of a shared one, neither for the loader nor for dlopen(3).
fn carries_its_own(file: &File) -> bool {
    let (mut inside, mut block) = (false, vec![0; BLOCK]);
    for at in (0..SCANNED_MAX).step_by(BLOCK - INSIDE.len()) {
        let Ok(len) = file.read_at(&mut block, at) else { return false };
        if memmem(&block[..len], SHARED) {
            return false;
        }
        inside = inside || memmem(&block[..len], INSIDE);
        if len < BLOCK {
            break;
        }
    }
    inside
}

/// Whether these bytes contain a text.
fn memmem(bytes: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return true };
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| byte == first) {
        at += next + 1;
        if bytes[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

/// The warning for a program that [`carries_its_own`].
const OWN: &str = "has a libibverbs of its own linked into it (libibverbs.a), which is for hardware and will find no RDMA device; \
                   link the program with the shared library";

fn refused(program: &Path, why: &str) -> AppError {
    AppError::Usage(format!("{} {why}: it cannot be run on this stack", program.display()))
}

/// Whether the kernel would give the program rights that this process does not have; the reason.
fn privileged(program: &Path) -> Option<&'static str> {
    let m = program.metadata().ok()?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if m.mode() & SETUID != 0 && m.uid() != uid {
        return Some("is setuid, so the loader takes no library of ours into it");
    }
    if m.mode() & SETGID != 0 && m.gid() != gid {
        return Some("is setgid, so the loader takes no library of ours into it");
    }
    // Capabilities of a file give nothing to root.
    let mut value = [0u8; 64];
    if uid != 0 && rustix::fs::getxattr(program, "security.capability", &mut value[..]).is_ok() {
        return Some("has file capabilities, so the loader takes no library of ours into it");
    }
    None
}

/// What a program's file is.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Loaded by the dynamic loader of this C library.
    Dynamic,
    Static,
    /// For another machine, or another C library.
    Foreign,
    /// A script, with its interpreter.
    Script(OsString),
    Unknown,
}

/// Reads the first bytes of a program, and its program headers.
fn kind(file: &File) -> std::io::Result<Kind> {
    let mut head = Vec::new();
    file.take(SCRIPT_LINE).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
        let word = line.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
        return Ok(if word.is_empty() {
            Kind::Unknown
        } else {
            Kind::Script(OsStr::from_bytes(word).into())
        });
    }
    if head.len() < 64 || !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Unknown);
    }
    // 64 bits, little endian, as this program is; then the machine.
    let ours = [2, 1];
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if head[4..6] != ours || u16_at(18) != machine {
        return Ok(Kind::Foreign);
    }
    let table = u64::from_le_bytes(head[32..40].try_into().expect("eight bytes"));
    let (size, count) = (u64::from(u16_at(54)), u64::from(u16_at(56)));
    for n in 0..count.min(HEADERS_MAX) {
        let mut header = [0u8; 56];
        file.read_exact_at(&mut header, table.saturating_add(n * size))?;
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if u32::from_le_bytes(header[..4].try_into().expect("four bytes")) == PT_INTERP {
            let mut name = vec![0; u64_at(32).min(4096) as usize];
            file.read_exact_at(&mut name, u64_at(8))?;
            let musl = name.windows(4).any(|part| part == b"musl");
            return Ok(if musl { Kind::Foreign } else { Kind::Dynamic });
        }
    }
    Ok(Kind::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of a file with these bytes.
    fn of(bytes: &[u8]) -> Kind {
        let name = format!("roce-image-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name.replace(['(', ')'], ""));
        std::fs::write(&path, bytes).unwrap();
        let found = kind(&File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        found.unwrap_or(Kind::Unknown)
    }

    /// A 64-bit ELF file of this machine with these program headers.
    fn elf(headers: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * headers.len()];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = headers.len() as u8;
        for (n, (what, content)) in headers.iter().enumerate() {
            let (at, offset) = (64 + 56 * n, bytes.len() as u64);
            bytes[at..at + 4].copy_from_slice(&what.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        let loader: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(of(&elf(&[(1, b""), (PT_INTERP, loader)])), Kind::Dynamic);
        assert_eq!(of(&elf(&[(1, b""), (2, b"")])), Kind::Static);
        assert_eq!(of(&elf(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")])), Kind::Foreign);
        for (at, other) in [(4, 1), (5, 2), (18, 3)] {
            let mut bytes = elf(&[(PT_INTERP, loader)]);
            bytes[at] = other;
            assert_eq!(of(&bytes), Kind::Foreign, "byte {at}");
        }
        assert_eq!(of(b"#!/usr/bin/env python3\nx"), Kind::Script("/usr/bin/env".into()));
        assert_eq!(of(b"#! /bin/sh"), Kind::Script("/bin/sh".into()));
        // Truncated files, a file that is no program, and missing program headers.
        let whole = elf(&[(PT_INTERP, loader)]);
        for bytes in [&b""[..], b"#!", b"\x7fELF", b"text", &whole[..63], &whole[..100]] {
            assert_eq!(of(bytes), Kind::Unknown, "{bytes:?}");
        }
    }
}
