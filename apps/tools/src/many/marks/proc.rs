//! Memory and CPU time of a process, as the system reports them (proc(5)).

use apps::error::{AppError, Result};
use std::time::Duration;

/// Memory of a process's links. Of a mapping that two processes share, each counts half (proportional set size).
///
/// # Errors
/// The process has ended.
pub fn pss_of_links(pid: u32) -> Result<u64> {
    read(pid, "smaps").map(|text| pss_of(&text, LINKS))
}

/// Number of links of a process.
///
/// # Errors
/// The process has ended.
pub fn links(pid: u32) -> Result<usize> {
    read(pid, "maps").map(|text| text.matches("/memfd:roce-link").count())
}

/// All memory of a process; of shared memory its proportional part.
///
/// # Errors
/// The process has ended.
pub fn pss(pid: u32) -> Result<u64> {
    read(pid, "smaps_rollup").map(|text| text.lines().filter_map(pss_in).sum())
}

/// CPU time that the threads of a process have used so far.
///
/// # Errors
/// The process has ended.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(&path).map_err(|e| failed(&path, &e))?;
    let mut all = Duration::ZERO;
    for thread in threads.flatten() {
        // A thread that has ended meanwhile counts nothing.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        all += Duration::from_nanos(on_cpu_ns(&text).unwrap_or(0));
    }
    Ok(all)
}

/// Prefix of the names of the files that are the memory of links.
const LINKS: &str = "/memfd:roce-";

fn read(pid: u32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_to_string(&path).map_err(|e| failed(&path, &e))
}

fn failed(path: &str, error: &std::io::Error) -> AppError {
    AppError::Setup(format!("{path} cannot be read: {error}"))
}

/// The first number of a schedstat: nanoseconds on a core.
fn on_cpu_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// The proportional set size in bytes, if this line of smaps holds it.
fn pss_in(line: &str) -> Option<u64> {
    let kib = line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?;
    Some(kib.trim().parse::<u64>().ok()? << 10)
}

/// The sum of the proportional set sizes of all mappings of files with this prefix.
fn pss_of(smaps: &str, begin: &str) -> u64 {
    let mut is_one = false;
    let mut all = 0;
    for line in smaps.lines() {
        // A mapping begins with its addresses: from-to, rights, offset, device, inode, name.
        let first = line.split_ascii_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            is_one = line.split_ascii_whitespace().nth(5).is_some_and(|name| name.starts_with(begin));
        } else if is_one {
            all += pss_in(line).unwrap_or(0);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000100000 rw-s 00000000 00:01 1047                       /memfd:roce-link (deleted)
Size:               1024 kB
Rss:                  16 kB
Pss:                   8 kB
Pss_Dirty:             8 kB
VmFlags: rd wr sh mr mw me ms sd
7f0000100000-7f0000200000 rw-p 00000000 00:00 0
Pss:                 500 kB
7f0000200000-7f0000201000 rw-s 00000000 00:01 1048                       /memfd:roce-news (deleted)
Pss:                   1 kB
7f0000300000-7f0000301000 r--p 00000000 08:01 17                         /usr/lib/a file
Pss:                   3 kB
";

    #[test]
    fn memory_of_some_mappings_is_that_of_their_names() {
        assert_eq!(pss_of(SMAPS, "/memfd:roce-"), 9 << 10);
        assert_eq!(pss_of(SMAPS, "/memfd:roce-news"), 1 << 10);
        assert_eq!(pss_of(SMAPS, "/usr"), 3 << 10);
        assert_eq!(pss_of("", "/"), 0);
    }

    #[test]
    fn the_system_says_these_of_this_process() {
        let this = std::process::id();
        assert!(pss(this).unwrap() > 100 << 10);
        pss_of_links(this).unwrap();
        cpu_time(this).unwrap();
        assert!(pss(u32::MAX).unwrap_err().to_string().contains("/proc/4294967295/smaps_rollup"));
        assert_eq!(on_cpu_ns("683345 12 1\n"), Some(683_345));
    }
}
