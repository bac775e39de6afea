//! Tests only: grants of keys at every edge of a range and of the address space, compared with arithmetic in 128 bits; and which keys
//! exist.

use super::key::{TAG_BITS, USER_BITS};
use super::*;
use crate::id::{PdId, Qpn};

pub(super) const PD: PdId = PdId(7);
pub(super) const QP: Qpn = Qpn::new(0x1234);
pub(super) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Where arithmetic in 64 bits, or in fewer of them, goes wrong.
const EDGES: [u64; 15] = [
    0,
    1,
    2,
    0xfff,
    0x1000,
    i32::MAX as u64 + 1,
    u32::MAX as u64,
    u32::MAX as u64 + 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    i64::MAX as u64 + 2,
    u64::MAX - 0x1000,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
];

/// `len` bytes from `addr`.
type Range = (u64, u64);

fn wraps((addr, len): Range) -> bool {
    u128::from(addr) + u128::from(len) > u128::from(u64::MAX)
}

/// The right answer for the range `asked`; `bytes` is the region by the addresses that requests use, and `host` its host address.
fn grants(bytes: Range, host: u64, asked: Range) -> Result<GrantedRange, KeyFault> {
    let [start, size, va, len] = [bytes.0, bytes.1, asked.0, asked.1].map(u128::from);
    if va < start || va + len > start + size {
        return Err(KeyFault::OutOfRange);
    }
    Ok(GrantedRange::found((u128::from(host) + va - start) as u64, asked.1))
}

/// Ranges whose ends are next to those of this one, and at every edge.
fn near((start, size): Range) -> impl Iterator<Item = Range> {
    let around = |at: u64| [at.wrapping_sub(1), at, at.wrapping_add(1)];
    let starts = [start, start.wrapping_add(size / 2), start.wrapping_add(size)];
    let addrs = starts.into_iter().flat_map(around).chain(EDGES);
    addrs.flat_map(move |va| {
        let rest = start.wrapping_add(size).wrapping_sub(va);
        let lens = [size, rest, 1].into_iter().flat_map(around).chain(EDGES);
        lens.map(move |len| (va, len))
    })
}

/// The grant of a key to local access, by each way to check it.
fn checks_local(t: &MrTable, key: u32, (va, len): Range) -> [Result<GrantedRange, KeyFault>; 3] {
    let mut cached = CachedKey::new(Access::LOCAL_WRITE);
    let first = cached.check(t, key, PD, None, va, len);
    [t.check(key, PD, Access::LOCAL_WRITE, va, len), first, cached.check(t, key, PD, None, va, len)]
}

/// The grant of a key to the peer, by each way to check it.
fn checks_remote(t: &MrTable, key: u32, (va, len): Range) -> [Result<GrantedRange, KeyFault>; 3] {
    let mut cached = CachedKey::new(Access::REMOTE_WRITE);
    let first = cached.check(t, key, PD, Some(QP), va, len);
    let again = cached.check(t, key, PD, Some(QP), va, len);
    [t.check_remote(key, PD, QP, Access::REMOTE_WRITE, va, len), first, again]
}

/// Every pair of two edges.
fn ranges() -> impl Iterator<Item = Range> {
    EDGES.into_iter().flat_map(|addr| EDGES.map(|len| (addr, len)))
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_edge_of_every_region() {
    let t = MrTable::new();
    for (memory, zero_based) in ranges().flat_map(|range| [(range, false), (range, true)]) {
        let access = if zero_based { ALL | Access::ZERO_BASED } else { ALL };
        let key = t.register(PD, UserMemory::nowhere(memory.0, memory.1), access, 1);
        if wraps(memory) {
            assert_eq!(key, Err(MemError::InvalidRange), "{memory:x?}");
            continue;
        }
        let key = key.unwrap();
        let bytes = if zero_based { (0, memory.1) } else { memory };
        for asked in near(bytes) {
            let expected = grants(bytes, memory.0, asked);
            assert_eq!(checks_local(&t, key, asked), [expected; 3], "{asked:x?} of {memory:x?}, {access:?}");
            assert_eq!(checks_remote(&t, key, asked), [expected; 3], "{asked:x?} of {memory:x?}, {access:?}");
        }
        t.revoke(key).unwrap();
    }
}

/// Memory that requests name by other addresses (IOVA): a key grants these, and never the host addresses.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_edge_of_every_iova() {
    let t = MrTable::new();
    for (memory, iova) in ranges().flat_map(|range| EDGES.map(|iova| (range, iova))) {
        let registered = t.register(PD, UserMemory::nowhere(memory.0, memory.1).at_iova(iova), ALL, 1);
        let bytes = (iova, memory.1);
        if wraps(memory) || wraps(bytes) {
            assert_eq!(registered, Err(MemError::InvalidRange), "{memory:x?} at {iova:x}");
            continue;
        }
        let key = registered.unwrap();
        for asked in near(bytes) {
            let expected = grants(bytes, memory.0, asked);
            assert_eq!(checks_local(&t, key, asked), [expected; 3], "{asked:x?} of {memory:x?} at {iova:x}");
            assert_eq!(checks_remote(&t, key, asked), [expected; 3], "{asked:x?} of {memory:x?} at {iova:x}");
        }
        t.revoke(key).unwrap();
    }
}

/// A work request registers a part of the memory, or is refused; the key then grants exactly that part.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_edge_of_fast_registration() {
    let t = MrTable::new();
    for memory in ranges() {
        let key = t.alloc_fast(PD, UserMemory::nowhere(memory.0, memory.1), 1);
        if wraps(memory) {
            assert_eq!(key, Err(MemError::InvalidRange), "{memory:x?}");
            continue;
        }
        let key = key.unwrap();
        for (part, zero_based) in near(memory).flat_map(|part| [(part, false), (part, true)]) {
            let access = if zero_based { ALL | Access::ZERO_BASED } else { ALL };
            let inside = !wraps(part) && grants(memory, memory.0, part).is_ok();
            let registered = t.fast_register(key, PD, part.0, part.1, access);
            assert_eq!(registered.is_ok(), inside, "{part:x?} of {memory:x?}: {registered:?}");
            let bytes = if zero_based { (0, part.1) } else { part };
            for asked in
                [bytes, (bytes.0, 0), (bytes.0.wrapping_sub(1), 1), (bytes.0, bytes.1.wrapping_add(1))]
            {
                let expected = if inside { grants(bytes, part.0, asked) } else { Err(KeyFault::UnknownKey) };
                assert_eq!(
                    checks_local(&t, key, asked),
                    [expected; 3],
                    "{asked:x?} of {part:x?} of {memory:x?}"
                );
                assert_eq!(
                    checks_remote(&t, key, asked),
                    [expected; 3],
                    "{asked:x?} of {part:x?} of {memory:x?}"
                );
            }
            assert_eq!(t.invalidate(key, PD, None).is_ok(), inside);
        }
        t.revoke(key).unwrap();
    }
}

/// A window is bound to a part of a region, or the bind is refused. The key then grants exactly that part, to the peer only.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_edge_of_every_window() {
    let t = MrTable::new();
    let window = t.alloc_window(PD, MwType::Two, 2).unwrap();
    for memory in ranges().filter(|range| !wraps(*range)) {
        let region = t.register(PD, UserMemory::nowhere(memory.0, memory.1), ALL, 1).unwrap();
        for (part, zero_based) in near(memory).flat_map(|part| [(part, false), (part, true)]) {
            let rights = if zero_based { Access::ZERO_BASED } else { Access::empty() };
            let access = Access::REMOTE_WRITE | rights;
            let bound = t.bind(&Bind { window, qpn: QP, pd: PD, region, addr: part.0, len: part.1, access });
            let expected = match grants(memory, memory.0, part) {
                _ if part.1 == 0 => Err(KeyFault::WrongState), // this does not unbind a window of type 2
                granted => granted.map(|_| ()),
            };
            assert_eq!(bound, expected, "{part:x?} of {memory:x?}");
            let bytes = if zero_based { (0, part.1) } else { part };
            for asked in
                [bytes, (bytes.0, 0), (bytes.0.wrapping_sub(1), 1), (bytes.0, bytes.1.wrapping_add(1))]
            {
                let expected =
                    if bound.is_ok() { grants(bytes, part.0, asked) } else { Err(KeyFault::UnknownKey) };
                assert_eq!(
                    checks_remote(&t, window, asked),
                    [expected; 3],
                    "{asked:x?} of {part:x?} of {memory:x?}"
                );
                assert_eq!(checks_local(&t, window, asked), [Err(KeyFault::UnknownKey); 3]);
            }
            assert_eq!(t.invalidate(window, PD, None).is_ok(), bound.is_ok());
        }
        t.revoke(region).unwrap();
    }
}

/// Of the 2^32 keys one names a region; every bit of slot and tag counts, for every kind of check and every right.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn one_key_names_a_region() {
    let t = MrTable::new();
    let key = t.register(PD, UserMemory::nowhere(0x1000, 64), ALL, 0x1234_5678).unwrap();
    let neighbour = t.register(PD, UserMemory::nowhere(0x2000, 64), ALL, 0x1234_5679).unwrap();
    let slot = key >> TAG_BITS << TAG_BITS;
    let of_the_slot = (0..1 << TAG_BITS).map(|tag| slot | tag);
    let of_the_tag = (0..1 << (32 - TAG_BITS)).map(|index| index << TAG_BITS | key & !slot);
    for other in of_the_slot.chain(of_the_tag).filter(|other| ![key, neighbour].contains(other)) {
        let unknown = [Err(KeyFault::UnknownKey); 3];
        assert_eq!(checks_local(&t, other, (0x1000, 1)), unknown, "{other:#x} for {key:#x}");
        assert_eq!(checks_remote(&t, other, (0x1000, 1)), unknown, "{other:#x} for {key:#x}");
        assert_eq!(t.revoke(other), Err(MemError::UnknownKey), "{other:#x} for {key:#x}");
        assert_eq!(t.invalidate(other, PD, None), Err(KeyFault::UnknownKey), "{other:#x} for {key:#x}");
    }
    assert_eq!(checks_local(&t, key, (0x1000, 1)), [Ok(GrantedRange::found(0x1000, 1)); 3]);
}

/// Of the keys of a slot 256 name a variable region or a window to its owner, who chooses among them; the one that was chosen
/// names its memory.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn one_key_of_256_names_what_was_chosen() {
    let t = MrTable::new();
    let region = t.register(PD, UserMemory::nowhere(0x1000, 0x1000), ALL, 1).unwrap();
    let window = t.alloc_window(PD, MwType::Two, 2).unwrap();
    let fast = t.alloc_fast(PD, UserMemory::nowhere(0x1000, 0x1000), 3).unwrap();
    for issued in [window, fast] {
        let chosen = inc_rkey(issued);
        let access = Access::REMOTE_WRITE;
        if issued == window {
            t.bind(&Bind { window: chosen, qpn: QP, pd: PD, region, addr: 0x1000, len: 64, access }).unwrap();
        } else {
            t.fast_register(chosen, PD, 0x1000, 64, ALL).unwrap();
        }
        for other in (0..1 << TAG_BITS).map(|tag| issued >> TAG_BITS << TAG_BITS | tag) {
            let expected =
                if other == chosen { Ok(GrantedRange::found(0x1000, 1)) } else { Err(KeyFault::UnknownKey) };
            assert_eq!(checks_remote(&t, other, (0x1000, 1)), [expected; 3], "{other:#x} for {chosen:#x}");
            let owns = other >> USER_BITS == issued >> USER_BITS;
            assert_eq!(t.allocator().record_of_key(other).is_some(), owns, "{other:#x} for {issued:#x}");
            if other != chosen {
                assert_eq!(t.invalidate(other, PD, None), Err(KeyFault::UnknownKey));
            }
        }
        t.invalidate(chosen, PD, None).unwrap();
    }
}

/// Every right that a region may have, against every right that is needed, whatever else is right or wrong: the answer is the
/// first fault in the order of the checks.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_right_against_every_need() {
    let t = MrTable::new();
    let subsets =
        || (0..1u32 << 10).chain((0..1 << 4).map(|low| low | 1 << 20)).map(Access::from_bits_retain);
    let needs: Vec<Access> = subsets().collect();
    for access in subsets() {
        let key = t.register(PD, UserMemory::nowhere(0x1000, 64), access, 1);
        assert_eq!(key.is_ok(), access.is_valid(), "{access:?}");
        let Ok(key) = key else { continue };
        let start = if access.contains(Access::ZERO_BASED) { 0 } else { 0x1000 };
        for need in &needs {
            for (pd, va) in [(PD, start), (PdId(8), start), (PD, start + 64), (PdId(8), start + 64)] {
                let expected = if pd != PD {
                    Err(KeyFault::WrongPd)
                } else if need.bits() & !access.bits() != 0 {
                    Err(KeyFault::NoAccess)
                } else if va != start {
                    Err(KeyFault::OutOfRange)
                } else if access.contains(Access::ON_DEMAND) {
                    Ok(GrantedRange::found(0x1000, 1).by_kernel())
                } else {
                    Ok(GrantedRange::found(0x1000, 1))
                };
                let mut cached = CachedKey::new(*need);
                let got = [
                    t.check(key, pd, *need, va, 1),
                    t.check_remote(key, pd, QP, *need, va, 1),
                    cached.check(&t, key, pd, None, va, 1),
                    cached.check(&t, key, pd, Some(QP), va, 1),
                ];
                assert_eq!(got, [expected; 4], "{need:?} of {access:?}");
            }
        }
        t.revoke(key).unwrap();
    }
}
