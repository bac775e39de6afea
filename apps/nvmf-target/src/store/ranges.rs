//! Merging of the ranges of a command.

/// Merges ranges of offset and length, in bytes: those that overlap or touch become one. The result is in ascending order. So the work of a
/// command is limited by the size of the namespace, however often the command names the same bytes.
pub fn merged(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = ranges.collect();
    all.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
    for (at, len) in all {
        match merged.last_mut() {
            Some((start, before)) if at <= *start + *before => *before = (*before).max(at + len - *start),
            _ => merged.push((at, len)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: each byte that was in no range is in none, and every other byte is in exactly one. Many lists are compared with a map of bytes.
    #[test]
    fn ranges_that_are_merged_name_the_same_bytes_once() {
        let mut n = 1u64;
        let mut next = |below: u64| {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (n >> 33) % below
        };
        for _ in 0..2000 {
            let ranges: Vec<_> = (0..1 + next(8)).map(|_| (next(32), next(9))).collect();
            let named = |ranges: &[(u64, u64)]| {
                let mut bytes = [0; 48];
                for &(at, len) in ranges {
                    bytes[at as usize..(at + len) as usize].iter_mut().for_each(|byte| *byte += 1);
                }
                bytes
            };
            let merged = merged(ranges.iter().copied());
            assert_eq!(named(&ranges).map(|n| n.min(1)), named(&merged), "{ranges:?}");
            assert!(merged.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{merged:?}");
        }
    }

    #[test]
    fn one_range_that_is_named_many_times_is_one() {
        assert_eq!(merged((0..256).map(|_| (4096, 64 << 20))), [(4096, 64 << 20)]);
    }
}
