//! Checks that there is enough memory before it is allocated: the operating system kills a process that uses too much, without a message.

use std::path::Path;

use super::offer::{Mistake, Offer, Storage};

/// Checks that there is enough memory for the namespaces in memory, and for `also` more bytes.
///
/// # Errors
/// The first namespace for which not enough memory is left.
pub fn fits(offer: &Offer, also: u64) -> Result<(), Mistake> {
    fits_into(offer, also, available())
}

fn fits_into(offer: &Offer, also: u64, there: u64) -> Result<(), Mistake> {
    let mut needed = also;
    check(needed, there).map_err(|what| Mistake { what: format!("buffers: {what}"), span: None })?;
    for namespace in offer.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces) {
        if let Storage::Memory(bytes) = namespace.storage {
            needed = needed.saturating_add(bytes);
            check(needed, there).map_err(|what| Mistake {
                what: format!("namespace {}: {what}", namespace.nsid),
                span: Some(namespace.span.clone()),
            })?;
        }
    }
    Ok(())
}

/// Checks that there is enough memory for a namespace of `bytes` bytes.
///
/// # Errors
/// Why there is not, as a sentence.
pub(super) fn has(bytes: u64) -> Result<(), String> {
    check(bytes, available())
}

fn check(needed: u64, there: u64) -> Result<(), String> {
    if needed <= there {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(format!("{} MiB of memory are needed so far, and there are {}", mib(needed), mib(there)))
}

/// How many bytes this process can allocate at most: the available memory of the system, limited by the memory limits of its control
/// groups. The current use of the groups is not subtracted: much of it is page cache, which the kernel frees when memory is needed.
fn available() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let of_system = of_meminfo(&read(Path::new("/proc/meminfo"))).unwrap_or(u64::MAX);
    let group = read(Path::new("/proc/self/cgroup"));
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let here = root.join(group);
    // Each of its parents may have a limit, too.
    let groups = here.ancestors().take_while(|group| group.starts_with(root));
    let limits = groups.filter_map(|group| read(&group.join("memory.max")).trim().parse().ok());
    limits.fold(of_system, u64::min)
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_names_the_namespace() {
        let nqn = "nqn.2024-01.org.example:disks".parse().unwrap();
        let mut offer = Offer::of_memory(&nqn, 3 << 20, 512);
        let second = offer.subsystems[0].namespaces[0].clone();
        offer.subsystems[0].namespaces.push(super::super::offer::OfferedNamespace { nsid: 2, ..second });
        assert_eq!(fits_into(&offer, 0, 6 << 20), Ok(()));
        let of = |also, there| fits_into(&offer, also, there).unwrap_err().what;
        assert_eq!(of(1, 6 << 20), "namespace 2: 7 MiB of memory are needed so far, and there are 6");
        assert!(of(0, 2 << 20).starts_with("namespace 1: 3 MiB"));
        assert!(of(u64::MAX, 1 << 20).starts_with("buffers: "));
    }

    #[test]
    fn the_system_says_how_much_there_is() {
        assert_eq!(of_meminfo("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert!((1 << 20..1 << 50).contains(&available()), "{}", available());
    }
}
