//! The invariant CRC (IBA 7.8.1, A17): CRC-32/ISO-HDLC over eight bytes of ones, then everything from the IP
//! header to the pad, with the fields that a router may change set to ones.
//!
//! Short packets are computed by `clmul`, long ones by [`crate::crc`], if the processor has the features for it. Otherwise `crc32fast` does
//! it, which was measured to be faster than `crc-fast` (crc32fast / crc-fast, ns, Xeon with AVX-512): 64 bytes 8 / 43, 128 bytes 8 / 59,
//! 1080 bytes 31 / 81, 4140 bytes 63 / 103.

use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use super::clmul;
use super::locate::Layout;
use super::masks::{MASK_LEN, MASK_V4, MASK_V6};
use super::numbers::ICRC_LEN;
use crate::crc::{self, Sum};

#[cfg(not(target_arch = "x86_64"))]
pub use crate::crc::OnePass;
#[cfg(target_arch = "x86_64")]
pub use clmul::OnePass;

/// CRC of eight bytes of ones, which stand for the link header that RoCEv2 does not have.
const SEED: u32 = !0xdebb_20e3;

/// A hasher at the seed, to be cloned: to make one detects the processor's features, which takes longer.
static START: LazyLock<crc32fast::Hasher> = LazyLock::new(|| crc32fast::Hasher::new_with_initial(SEED));

/// The CRC of any bytes followed by their own CRC.
const RESIDUE: u32 = 0x2144_df1c;

/// ICRC of `covered`: the IP header to the end of the pad, variant fields already all ones. It goes to the
/// wire with its least significant byte first.
#[inline]
pub fn of_masked(covered: &[u8]) -> u32 {
    let mut hasher = START.clone();
    hasher.update(covered);
    hasher.finalize()
}

/// ICRC of a frame's bytes from its IP header at `l3` to `end`, the end of the pad. As for [`of_masked`], the variant fields are already
/// all ones.
///
/// # Panics
/// If the frame has fewer bytes.
#[inline(always)]
pub(crate) fn of_frame(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(register) = clmul::register(frame, l3, end, ipv6) {
        return !register;
    }
    of_long(frame, l3, end, ipv6)
}

#[inline(never)]
fn of_long(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> u32 {
    match register_with(frame, l3, end, ipv6, None) {
        Some(register) => !register,
        None => of_masked(&frame[l3..end]),
    }
}

/// Whether the ICRC of a located frame is right. `sum` is that of the frame's bytes, if it is known.
///
/// The frame is unchanged afterwards. If the processor has carry-less multiplication, it is only read. Otherwise the variant fields of a
/// packet of 64 bytes or more are set to ones during the computation, then restored.
///
/// # Panics
/// If `frame` is not the frame that `layout` was made from, but a shorter one.
#[inline(always)]
pub fn check(frame: &mut [u8], layout: &Layout, sum: Option<Sum>) -> bool {
    error(frame, layout, sum) == 0
}

/// The difference between the CRC register over a located frame and the one that a right ICRC leaves: 0 if the ICRC is right. Otherwise as
/// [`check`].
#[inline(always)]
fn error(frame: &mut [u8], layout: &Layout, sum: Option<Sum>) -> u32 {
    let (l3, end) = (layout.l3 as usize, layout.end as usize);
    #[cfg(target_arch = "x86_64")]
    if let Some(register) = clmul::register(frame, l3, end, layout.ipv6) {
        return register ^ !RESIDUE;
    }
    error_of_long(frame, l3, end, layout.ipv6, sum)
}

#[inline(never)]
fn error_of_long(frame: &mut [u8], l3: usize, end: usize, ipv6: bool, sum: Option<Sum>) -> u32 {
    // The sum is that of the packet only if no Ethernet padding follows.
    let sum = sum.filter(|_| end == frame.len());
    if let Some(register) = register_with(frame, l3, end, ipv6, sum) {
        return register ^ !RESIDUE;
    }
    let mask = if ipv6 { &MASK_V6 } else { &MASK_V4 };
    crc_masked(&mut frame[l3..end], mask) ^ RESIDUE
}

/// Returns the values that the four bytes at `at` of a located frame need for the ICRC to be right, and how that changes the [sum](Sum) of
/// the frame up to its ICRC. `None` if the packet is too long. Otherwise as [`check`].
///
/// `at` is a multiple of four bytes before the end of the ICRC, and the ICRC covers all four bytes.
pub fn fitting(frame: &mut [u8], layout: &Layout, at: usize, sum: Option<Sum>) -> Option<([u8; 4], u32)> {
    let change = error(frame, layout, sum);
    let found = *frame.get(at..)?.first_chunk()?;
    if change == 0 {
        return Some((found, 0));
    }
    let differs = crc::word_before(change, (layout.end as usize - at) / 4 - 1)?;
    Some((core::array::from_fn(|i| found[i] ^ differs[i]), change))
}

/// Replaces the four bytes at `at` of a sealed frame whose ICRC ends at `end`, and updates the ICRC. Changes nothing if the packet is too
/// long. `at` is as for [`fitting`].
pub fn exchange(frame: &mut [u8], at: usize, end: usize, word: [u8; 4]) {
    let Some(old) = frame.get(at..).and_then(|from| from.first_chunk::<4>()).copied() else { return };
    if old == word {
        return;
    }
    let differs = core::array::from_fn(|i| old[i] ^ word[i]);
    let Some(change) = crc::behind_word(differs, (end - ICRC_LEN - at) / 4 - 1) else { return };
    frame[at..at + 4].copy_from_slice(&word);
    for (byte, change) in frame[end - ICRC_LEN..end].iter_mut().zip(change.to_le_bytes()) {
        *byte ^= change;
    }
}

/// The CRC register over `frame[l3..end]` with its variant fields as ones, from the sum of `frame[..end]`. `None` if the processor lacks
/// the features.
#[cfg(target_arch = "x86_64")]
#[inline]
fn register_with(frame: &[u8], l3: usize, end: usize, ipv6: bool, sum: Option<Sum>) -> Option<u32> {
    let sum = sum.or_else(|| crc::of(frame.get(..end)?))?;
    clmul::register_with(frame, l3, end, ipv6, sum.register())
}

/// Always `None`: `crc32fast` computes the CRC of the masked packet.
#[cfg(not(target_arch = "x86_64"))]
fn register_with(_: &[u8], _: usize, _: usize, _: bool, _: Option<Sum>) -> Option<u32> {
    None
}

/// The CRC over a packet and its ICRC; 0 if the packet is too short.
fn crc_masked(packet: &mut [u8], mask: &[u8; MASK_LEN]) -> u32 {
    // The black box keeps the compiler from turning the mask into a narrow store for each field: the CRC loads whole blocks, and
    // a load that overlaps a narrower store in the store buffer has to wait for it.
    let mask = core::hint::black_box(mask);
    if let Some(head) = packet.first_chunk_mut::<MASK_LEN>() {
        let saved = *head;
        *head = masked(head, mask);
        let crc = of_masked(packet);
        if let Some(head) = packet.first_chunk_mut() {
            *head = saved;
        }
        crc
    } else if let Some((head, rest)) = packet.split_first_chunk::<48>() {
        // IPv4 only. An ACK has just these 48 bytes: three blocks, cheaper to mask in a copy.
        residue(&masked(head, mask), rest)
    } else if let Some((head, rest)) = packet.split_first_chunk::<44>() {
        residue(&masked(head, mask), rest)
    } else {
        0
    }
}

/// `head` with ones over its variant fields.
#[inline(always)]
fn masked<const N: usize>(head: &[u8; N], mask: &[u8; MASK_LEN]) -> [u8; N] {
    let mut masked = *head;
    for (byte, mask) in masked.iter_mut().zip(mask) {
        *byte |= mask;
    }
    masked
}

/// The CRC of a masked head and what follows it.
#[inline(always)]
fn residue(head: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = START.clone();
    hasher.update(head);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::tests::slow_icrc;
    use super::*;

    /// The way of a processor without carry-less multiplication, whatever this one has.
    #[test]
    fn a_masked_packet_is_checked_and_left_as_it_was() {
        for (version, mask, shortest) in [(0x45, &MASK_V4, 44), (0x60, &MASK_V6, 64)] {
            for len in (shortest..=300).step_by(4) {
                let mut packet: Vec<u8> = (0..len).map(|i| (i * 37 + 11) as u8).collect();
                packet[0] = version;
                let icrc = slow_icrc(&packet[..len - ICRC_LEN]);
                packet[len - ICRC_LEN..].copy_from_slice(&icrc.to_le_bytes());
                let before = packet.clone();
                assert_eq!(crc_masked(&mut packet, mask), RESIDUE, "{len} bytes");
                assert_eq!(packet, before);
                packet[len - ICRC_LEN - 1] ^= 1;
                assert_ne!(crc_masked(&mut packet, mask), RESIDUE, "{len} bytes, one bit wrong");
            }
        }
        assert_ne!(crc_masked(&mut [0xff; 43], &MASK_V4), RESIDUE, "a packet without a BTH");
    }
}
