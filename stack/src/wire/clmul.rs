//! The invariant CRC of short packets by carry-less multiplication, with the mask in registers.
//!
//! A packet of a few hundred bytes is over before a folding loop has filled its pipeline. Here each block of 16 bytes is
//! multiplied by a constant of its own, which moves it to its place before the end and takes the remainder of that move in
//! one step; the products do not wait for each other, and their sum is reduced once. The fields that are masked are
//! masked in the registers that a block is loaded to: the frame is only read.
//!
//! Of a long packet this does the headers, and the sum of the payload is added ([`register_with`]). The arithmetic is that of
//! [`crate::crc`]: a block `H x^64 + L` that `n` blocks follow contributes `H (x^(128 n + 96) mod P) + L (x^(128 n + 32) mod P)`.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_setzero_si128, _mm_xor_si128,
};
use core::sync::atomic::{AtomicU8, Ordering};

use super::icrc::{MASK_LEN, MASK_V4, MASK_V6};
use super::{ETH_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use crate::crc::{SUM_FROM, advance, factor, reduce};

/// Blocks that the longest packet has.
const BLOCKS_MAX: usize = 16;
/// Bytes before the IP header that are looked at, to begin with a whole block. An Ethernet header has more.
pub(super) const BEFORE: usize = 12;
const BLOCK: usize = 16;

/// The register after eight bytes of ones.
const START: u32 = 0xdebb_20e3;

/// Factors of the two halves of a block, by the blocks from it to the end, the last one first in order.
static KEYS: [[u64; 2]; BLOCKS_MAX] = {
    let mut keys = [[0; 2]; BLOCKS_MAX];
    let mut i = 0;
    while i < BLOCKS_MAX {
        let bits = 128 * (BLOCKS_MAX - 1 - i);
        keys[i] = [factor(bits + 96), factor(bits + 32)];
        i += 1;
    }
    keys
};

/// What is done to a block: bits that stay, and bits that are turned over then.
#[derive(Clone, Copy)]
struct Mask {
    keep: [u64; 2],
    flip: [u64; 2],
}

/// Blocks of a packet that have something to mask.
const MASKED_V4: usize = 3;
const MASKED_V6: usize = 5;
const _: () = assert!(MASK_LEN >= MASKED_V6 * BLOCK - BEFORE - BLOCK / 4);

/// For packets whose IP header begins after so many bytes of the first block: what is before the packet goes, masked bits
/// become ones, and the register at the start is added.
const fn masks<const N: usize>(mask: &[u8; MASK_LEN], before: usize) -> [Mask; N] {
    let mut all = [Mask { keep: [0; 2], flip: [0; 2] }; N];
    let mut at = 0;
    while at < N * BLOCK {
        let (mut keep, mut flip) = (0xff, 0);
        if at < before {
            keep = 0;
        } else if at - before < MASK_LEN {
            keep = !mask[at - before];
            flip = mask[at - before];
        }
        if at >= before && at < before + 4 {
            flip ^= START.to_le_bytes()[at - before];
        }
        let (block, half, shift) = (at / BLOCK, at / 8 % 2, at % 8 * 8);
        all[block].keep[half] |= (keep as u64) << shift;
        all[block].flip[half] |= (flip as u64) << shift;
        at += 1;
    }
    all
}

/// For packets whose first block has `4 * i` bytes (none: all 16).
const fn rows<const N: usize>(mask: &[u8; MASK_LEN]) -> [[Mask; N]; 4] {
    [masks(mask, 0), masks(mask, 12), masks(mask, 8), masks(mask, 4)]
}

static MASKS_V4: [[Mask; MASKED_V4]; 4] = rows(&MASK_V4);
static MASKS_V6: [[Mask; MASKED_V6]; 4] = rows(&MASK_V6);

/// Blocks of a whole frame, from its Ethernet header on, that have something to mask.
const MASKED_FRAME: usize = 5;
const _: () = assert!(ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN + 5 <= MASKED_FRAME * BLOCK, "to BTH byte 4");
/// For frames without a VLAN tag and with one.
static FRAMES_V4: [[Mask; MASKED_FRAME]; 2] = [masks(&MASK_V4, ETH_LEN), masks(&MASK_V4, ETH_LEN + VLAN_LEN)];
static FRAMES_V6: [[Mask; MASKED_FRAME]; 2] = [masks(&MASK_V6, ETH_LEN), masks(&MASK_V6, ETH_LEN + VLAN_LEN)];

/// Whether the processor multiplies so: 0 for not asked yet, else [`NO`] or [`YES`].
static AVAILABLE: AtomicU8 = AtomicU8::new(0);
const NO: u8 = 1;
const YES: u8 = 2;

#[inline(always)]
fn available() -> bool {
    match AVAILABLE.load(Ordering::Relaxed) {
        0 => ask(),
        known => known == YES,
    }
}

#[cold]
fn ask() -> bool {
    let yes = std::arch::is_x86_feature_detected!("pclmulqdq") && std::arch::is_x86_feature_detected!("avx");
    AVAILABLE.store(if yes { YES } else { NO }, Ordering::Relaxed);
    yes
}

/// The register of the CRC over the bytes of `frame` from `l3`, where its IP header begins, to `end`. `None` where another
/// function has to do it: the packet is too long, too short or no multiple of four bytes, there are fewer than [`BEFORE`]
/// bytes before it, or the processor cannot multiply so.
#[inline(always)]
pub(super) fn register(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> Option<u32> {
    let len = end.wrapping_sub(l3);
    let first = l3.wrapping_sub(len.wrapping_neg() % BLOCK);
    if l3 < BEFORE || !len.is_multiple_of(4) || len > BLOCKS_MAX * BLOCK || !available() {
        return None;
    }
    let (blocks, _) = frame.get(first..end)?.as_chunks();
    let row = len / 4 % 4;
    // SAFETY: the processor has what the functions are compiled for: asked just above.
    unsafe {
        match ipv6 {
            false => sum(blocks, &MASKS_V4[row]),
            true => sum(blocks, &MASKS_V6[row]),
        }
    }
}

/// The register of the CRC over the bytes of `frame` from `l3`, where its IP header begins, to `end`, of which those from
/// [`SUM_FROM`] on have this sum. `None` where another function has to do it: the frame has no such layout, or the processor
/// cannot multiply so.
#[inline(always)]
pub(super) fn register_with(frame: &[u8], l3: usize, end: usize, ipv6: bool, sum: u32) -> Option<u32> {
    let tagged = match l3 {
        ETH_LEN => 0,
        _ if l3 == ETH_LEN + VLAN_LEN => 1,
        _ => return None,
    };
    let masks = if ipv6 { &FRAMES_V6[tagged] } else { &FRAMES_V4[tagged] };
    let (blocks, _) = frame.first_chunk::<SUM_FROM>()?.as_chunks();
    if !available() {
        return None;
    }
    // SAFETY: the processor has what the function is compiled for: asked just above.
    let head = unsafe { self::sum(blocks, masks) }?;
    Some(advance(head, end.checked_sub(SUM_FROM)?)? ^ sum)
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn load(block: &[u8; BLOCK]) -> __m128i {
    // SAFETY: the sixteen bytes are there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn pair(words: &[u64; 2]) -> __m128i {
    // SAFETY: as above.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn product(block: __m128i, key: &[u64; 2]) -> __m128i {
    let key = pair(key);
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(block, key), _mm_clmulepi64_si128::<0x11>(block, key))
}

/// The register after `blocks`, of which the first `N` are masked; `None` for fewer, or more than [`BLOCKS_MAX`].
#[target_feature(enable = "pclmulqdq,avx")]
fn sum<const N: usize>(blocks: &[[u8; BLOCK]], masks: &[Mask; N]) -> Option<u32> {
    let keys = KEYS.get(BLOCKS_MAX.wrapping_sub(blocks.len())..)?;
    let ((head, tail), (head_keys, tail_keys)) =
        (blocks.split_first_chunk::<N>()?, keys.split_first_chunk()?);
    let mut sum = _mm_setzero_si128();
    for i in 0..N {
        let mask: &Mask = &masks[i];
        let block = _mm_xor_si128(_mm_and_si128(load(&head[i]), pair(&mask.keep)), pair(&mask.flip));
        let key: &[[u64; 2]; N] = head_keys;
        sum = _mm_xor_si128(sum, product(block, &key[i]));
    }
    for (block, key) in tail.iter().zip(tail_keys) {
        sum = _mm_xor_si128(sum, product(load(block), key));
    }
    Some(reduce(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::GENERATOR;

    /// Bytes of the longest packet.
    const LEN_MAX: usize = BLOCKS_MAX * BLOCK;

    /// The slow way: bit by bit, over a copy with ones in it.
    fn slow(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> u32 {
        let mask = if ipv6 { &MASK_V6 } else { &MASK_V4 };
        let mut crc = START;
        for (i, byte) in frame[l3..end].iter().enumerate() {
            crc ^= u32::from(byte | mask.get(i).unwrap_or(&0));
            for _ in 0..8 {
                crc = crc >> 1 ^ (if crc & 1 != 0 { GENERATOR.reverse_bits() } else { 0 });
            }
        }
        crc
    }

    #[test]
    fn agrees_with_the_bits_for_every_length() {
        if !available() {
            eprintln!("SKIPPED: this processor has no carry-less multiplication");
            return;
        }
        let mut x = 1u32;
        let frame: Vec<u8> = core::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .take(400)
        .collect();
        let mut compared = 0;
        for (l3, ipv6) in [(14, false), (14, true), (18, false), (18, true), (BEFORE, false)] {
            for len in 0..300 {
                let min = if ipv6 { 68 } else { 36 };
                match register(&frame, l3, l3 + len, ipv6) {
                    Some(crc) => assert_eq!(crc, slow(&frame, l3, l3 + len, ipv6), "{l3} {len} {ipv6}"),
                    None => assert!(len % 4 != 0 || !(min..=LEN_MAX).contains(&len), "{l3} {len} {ipv6}"),
                }
                compared += u32::from(len % 4 == 0 && (min..=LEN_MAX).contains(&len));
            }
        }
        assert_eq!(compared, 3 * 56 + 2 * 48);
        assert_eq!(register(&frame, 2, 2 + 60, false), None, "there are not so many bytes before it");
        assert_eq!(register(&frame, 300, 300 + 108, false), None, "the frame ends before");
    }
}
