//! Properties of block devices, read from sysfs.

use std::fs::File as Handle;
use std::path::Path;

use rustix::fs::{fstat, major, minor};

/// The granularity of deallocation of a device, in bytes; `None` if it cannot deallocate, or does not promise that deallocated bytes read
/// as zeros.
pub fn deallocates(device: &Handle) -> Option<u32> {
    let number = fstat(device).ok()?.st_rdev;
    of(Path::new(&format!("/sys/dev/block/{}:{}", major(number), minor(number))))
}

/// As [`deallocates`], for the device with this sysfs directory.
fn of(device: &Path) -> Option<u32> {
    // A partition uses the queue of its disk.
    let queue = [device.join("queue"), device.join("../queue")].into_iter().find(|queue| queue.is_dir())?;
    let limit = |name: &str| std::fs::read_to_string(queue.join(name)).ok()?.trim().parse::<u64>().ok();
    // The kernel punches a hole in a device by a command that writes zeros and may unmap.
    if limit("discard_max_bytes")? == 0 || limit("write_zeroes_max_bytes")? == 0 {
        return None;
    }
    u32::try_from(limit("discard_granularity")?).ok().map(|bytes| bytes.max(512))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a device and its partitions deallocate with the granularity of the queue. A device that supports only Write Zeroes, or only
    // discard, does not deallocate.
    #[test]
    fn a_device_gives_back_what_its_queue_says() {
        let dir = std::env::temp_dir().join(format!("roce-nvmf-sysfs-{}", std::process::id()));
        let (queue, partition) = (dir.join("disk/queue"), dir.join("disk/disk1"));
        std::fs::create_dir_all(&queue).unwrap();
        std::fs::create_dir_all(&partition).unwrap();
        for (discard, zeroes, granularity, gives) in [
            ("4294966784", "33554432", "65536", Some(65536)),
            ("4294966784", "33554432", "0", Some(512)),
            ("4294966784", "0", "512", None),
            ("0", "33554432", "0", None),
            ("none", "33554432", "0", None),
        ] {
            for (name, value) in [
                ("discard_max_bytes", discard),
                ("write_zeroes_max_bytes", zeroes),
                ("discard_granularity", granularity),
            ] {
                std::fs::write(queue.join(name), format!("{value}\n")).unwrap();
            }
            assert_eq!(
                [of(&dir.join("disk")), of(&partition)],
                [gives; 2],
                "{discard} {zeroes} {granularity}"
            );
        }
        assert_eq!(of(&dir), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
