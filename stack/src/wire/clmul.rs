//! The invariant CRC by carry-less multiplication, with the mask in registers: of short packets, and of the heads of long ones.
//!
//! A packet of a few hundred bytes is over before a folding loop has filled its pipeline. So each block of 16 bytes is multiplied by a
//! constant of its own, which in one step moves it to its place before the end and takes the remainder. The products do not wait for each
//! other, and their sum is reduced once. The masked fields are masked in the registers to which a line is loaded: the frame is only read.
//!
//! For a long packet whose sum is known, this computes what masking its headers changes ([`register_with`]); [`OnePass`] sends long
//! packets. The arithmetic is that of [`crate::crc`]: a block `H x^64 + L` that `n` blocks follow contributes `H (x^(128 n + 96) mod P) + L
//! (x^(128 n + 32) mod P)`.

#![allow(unsafe_code)]

use super::masks::{MASK_LEN, MASK_V4, MASK_V6};
use super::numbers::{ETH_LEN, IPV4_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use crate::crc::{self, LINE, Line, Width, Xmm, Ymm, Zmm, factor, for_each_line, reduce, width};

/// Number of blocks of the longest packet.
const BLOCKS_MAX: usize = 16;
const BLOCK: usize = 16;

/// The register after eight bytes of ones.
const START: u32 = 0xdebb_20e3;

/// Factors of the two halves of a block, by its place in the longest packet: the last ones are for the last block of a packet.
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

/// A mask for a line: bits that stay, then bits that are flipped.
#[derive(Clone, Copy)]
struct Mask {
    keep: [u64; LINE / 8],
    flip: [u64; LINE / 8],
}

/// Lines at the start of a packet, or of a frame, that have something to mask.
const MASKED: usize = 2;
const _: () = assert!(LINE - 4 + IPV6_LEN + UDP_LEN + 5 <= MASKED * LINE, "to BTH byte 4");
/// Least length of a packet in bytes: it has all that is masked.
const fn len_min(ipv6: bool) -> usize {
    (if ipv6 { IPV6_LEN } else { IPV4_LEN }) + UDP_LEN + 5
}

/// The masks for packets whose IP header begins `before` bytes after the start of the first line. They make the bytes before the packet
/// zero and the masked bits ones, and add the register at the start.
const fn masks(mask: &[u8; MASK_LEN], before: usize) -> [Mask; MASKED] {
    let mut all = [Mask { keep: [0; LINE / 8], flip: [0; LINE / 8] }; MASKED];
    let mut at = 0;
    while at < MASKED * LINE {
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
        let (of, word, shift) = (at / LINE, at % LINE / 8, at % 8 * 8);
        all[of].keep[word] |= (keep as u64) << shift;
        all[of].flip[word] |= (flip as u64) << shift;
        at += 1;
    }
    all
}

/// The masks for packets that have `4 * i` bytes in the first line (0: all of it).
const fn rows(mask: &[u8; MASK_LEN]) -> [[Mask; MASKED]; LINE / 4] {
    let mut rows = [masks(mask, 0); LINE / 4];
    let mut i = 1;
    while i < LINE / 4 {
        rows[i] = masks(mask, LINE - 4 * i);
        i += 1;
    }
    rows
}

static PACKETS_V4: [[Mask; MASKED]; LINE / 4] = rows(&MASK_V4);
static PACKETS_V6: [[Mask; MASKED]; LINE / 4] = rows(&MASK_V6);

/// The masks for whole frames, starting with the Ethernet header, without a VLAN tag and with one.
const fn frames(mask: &[u8; MASK_LEN]) -> [[Mask; MASKED]; 2] {
    [masks(mask, ETH_LEN), masks(mask, ETH_LEN + VLAN_LEN)]
}

static FRAMES_V4: [[Mask; MASKED]; 2] = frames(&MASK_V4);
static FRAMES_V6: [[Mask; MASKED]; 2] = frames(&MASK_V6);

/// The change that these masks make: the masked bytes are the bytes plus this.
const fn changes(masks: [[Mask; MASKED]; 2]) -> [[Mask; MASKED]; 2] {
    let mut changes = masks;
    let mut i = 0;
    while i < 2 * MASKED * (LINE / 8) {
        let of = &mut changes[i / (LINE / 8) / MASKED][i / (LINE / 8) % MASKED];
        of.keep[i % (LINE / 8)] = !of.keep[i % (LINE / 8)];
        i += 1;
    }
    changes
}

static CHANGES_V4: [[Mask; MASKED]; 2] = changes(FRAMES_V4);
static CHANGES_V6: [[Mask; MASKED]; 2] = changes(FRAMES_V6);
const _: () = assert!(ETH_LEN + VLAN_LEN + IPV4_LEN + UDP_LEN + 5 <= LINE, "one line changes over IPv4");
const _: () = assert!(ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN + 5 <= MASKED * LINE, "to BTH byte 4");

/// The CRC register over the bytes of `frame` from `l3`, where its IP header begins, to `end`. `None` if another function has to compute
/// it: the packet is too long, too short or no multiple of four bytes, or the processor has no carry-less multiplication.
#[inline(always)]
pub(super) fn register(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> Option<u32> {
    register_by(width(), frame, l3, end, ipv6)
}

/// Same as [`register`], for a processor of this width.
#[inline(always)]
fn register_by(width: Width, frame: &[u8], l3: usize, end: usize, ipv6: bool) -> Option<u32> {
    let len = end.wrapping_sub(l3);
    if !len.is_multiple_of(4) || len > BLOCKS_MAX * BLOCK {
        return None;
    }
    let packet = frame.get(l3..end).filter(|packet| packet.len() >= len_min(ipv6))?;
    let row = len / 4 % (LINE / 4);
    let masks = if ipv6 { &PACKETS_V6[row] } else { &PACKETS_V4[row] };
    let (end, lines, words) = (packet.as_ptr_range().end, len.div_ceil(LINE), len / 4);
    // SAFETY: the processor has the features that the functions are compiled for; the first line begins as many bytes before the
    // packet that the last one ends with it, and of these bytes none is read.
    unsafe {
        match width {
            Width::Zmm => Some(zmm::sum(end, lines, words, masks)),
            Width::Ymm => Some(ymm::sum(end, lines, words, masks)),
            Width::Xmm => Some(xmm::sum(end, lines, words, masks)),
            Width::None => None,
        }
    }
}

/// The CRC register over the bytes of `frame` from `l3`, where its IP header begins, to `end`. `sum` is the register, begun at zero, over
/// all unmasked bytes of `frame` before `end`. `None` if another function has to compute it: the frame has another layout, or the processor
/// has no carry-less multiplication.
#[inline(always)]
pub(super) fn register_with(frame: &[u8], l3: usize, end: usize, ipv6: bool, sum: u32) -> Option<u32> {
    register_with_by(width(), frame, l3, end, ipv6, sum)
}

/// Same as [`register_with`], for a processor of this width.
#[inline(always)]
fn register_with_by(width: Width, frame: &[u8], l3: usize, end: usize, ipv6: bool, sum: u32) -> Option<u32> {
    let tagged = match l3 {
        ETH_LEN => 0,
        _ if l3 == ETH_LEN + VLAN_LEN => 1,
        _ => return None,
    };
    let (lines, _) = frame.get(..end)?.as_chunks();
    // SAFETY: the processor has the features that the functions are compiled for.
    let changed = unsafe {
        if ipv6 {
            let (head, changes) = (lines.first_chunk()?, &CHANGES_V6[tagged]);
            match width {
                Width::Zmm => zmm::change::<MASKED>(head, changes, end),
                Width::Ymm => ymm::change::<MASKED>(head, changes, end),
                Width::Xmm => xmm::change::<MASKED>(head, changes, end),
                Width::None => None,
            }
        } else {
            let (head, changes) = (lines.first_chunk()?, &CHANGES_V4[tagged]);
            match width {
                Width::Zmm => zmm::change::<1>(head, changes, end),
                Width::Ymm => ymm::change::<1>(head, changes, end),
                Width::Xmm => xmm::change::<1>(head, changes, end),
                Width::None => None,
            }
        }
    };
    Some(sum ^ changed?)
}

/// Writes long frames of one layout: headers, payload and ICRC in one pass over their bytes. Exists only if the processor has carry-less
/// multiplication.
#[derive(Clone, Copy)]
pub struct OnePass {
    masks: &'static [Mask; MASKED],
}

impl core::fmt::Debug for OnePass {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OnePass")
    }
}

impl OnePass {
    /// Bytes at the start of a frame that are built in a separate buffer before it is written: all headers, and some payload.
    pub const HEAD: usize = crc::HEAD * LINE;
    /// Least bytes of a frame after its head, without the ICRC.
    pub const REST_MIN: usize = 2 * LINE;

    /// For frames with this layout. `None` if the processor has no carry-less multiplication.
    #[inline(always)]
    pub(super) fn new(tagged: bool, ipv6: bool) -> Option<Self> {
        let of = if ipv6 { &FRAMES_V6 } else { &FRAMES_V4 };
        (width() != Width::None).then(|| Self { masks: &of[usize::from(tagged)] })
    }

    /// Writes `head`, and after it `len` bytes from `from`, to `to`. This makes a frame in masked form, whose ICRC it returns. If `ahead`
    /// is not null, it also prefetches `len` bytes from there, which may be any address.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, `to` for writes of `HEAD + len`, and they do not overlap; `len` is at least
    /// [`OnePass::REST_MIN`]. Other threads may write to `from` meanwhile: then some mixture is sent, with its ICRC.
    #[inline(always)]
    pub unsafe fn write(
        &self,
        to: *mut u8,
        head: &[u8; Self::HEAD],
        from: *const u8,
        len: usize,
        ahead: *const u8,
    ) -> u32 {
        // SAFETY: as the caller guarantees; the processor has `width`.
        unsafe { self.write_by(width(), to, head, from, len, ahead) }
    }

    /// Same as [`write`](Self::write), for a processor of this width.
    ///
    /// # Safety
    /// That of [`write`](Self::write).
    #[inline(always)]
    unsafe fn write_by(
        &self,
        width: Width,
        to: *mut u8,
        head: &[u8; Self::HEAD],
        from: *const u8,
        len: usize,
        ahead: *const u8,
    ) -> u32 {
        // SAFETY: the processor has the features that the functions are compiled for; the rest as the caller guarantees.
        unsafe {
            match width {
                Width::Zmm => !zmm::write(self.masks, to, head, from, len, ahead),
                Width::Ymm => !ymm::write(self.masks, to, head, from, len, ahead),
                _ => !xmm::write(self.masks, to, head, from, len, ahead),
            }
        }
    }
}

macro_rules! entries {
    ($of:ident, $line:ty, $lanes:literal, $features:literal) => {
        mod $of {
            use crate::wire::clmul::{self, *};

            /// The register over the `words` words of four bytes that end at `end`, in `lines` lines, 1 to 4. The first
            /// line is not full if `words` is no multiple of a line's.
            ///
            /// # Safety
            /// The words are valid for reads. There are at most `lines * 16` of them, and more than `lines * 16 - 16`. The
            /// processor has the features that this is compiled for.
            #[inline]
            #[target_feature(enable = $features)]
            pub unsafe fn sum(end: *const u8, lines: usize, words: usize, masks: &[Mask; MASKED]) -> u32 {
                // SAFETY: as the caller guarantees.
                unsafe { clmul::sum::<$line>(end, lines, words, masks) }
            }

            /// How masking its head changes the register over `len` bytes.
            ///
            /// # Safety
            /// The processor has the features that this is compiled for.
            #[target_feature(enable = $features)]
            pub unsafe fn change<const N: usize>(
                head: &[[u8; LINE]; N],
                changes: &[Mask; MASKED],
                len: usize,
            ) -> Option<u32> {
                // SAFETY: as the caller guarantees.
                unsafe {
                    let mut changed = [<$line>::zero(); N];
                    for i in 0..N {
                        changed[i] = masked(<$line>::load(head[i].as_ptr()), &changes[i]);
                    }
                    crc::behind(changed, len - N * LINE)
                }
            }

            /// Same as [`OnePass::write`], except for the last step.
            ///
            /// # Safety
            /// That of [`OnePass::write`]; the processor has the features that this is compiled for.
            #[target_feature(enable = $features)]
            pub unsafe fn write(
                masks: &[Mask; MASKED],
                to: *mut u8,
                head: &[u8; OnePass::HEAD],
                from: *const u8,
                len: usize,
                ahead: *const u8,
            ) -> u32 {
                let ([first, second], _) = head.as_chunks::<LINE>() else {
                    unreachable!("a head has two lines")
                };
                // SAFETY: there is room for both at `to`, and for the rest, as the caller guarantees.
                unsafe {
                    let lines = [<$line>::load(first.as_ptr()), <$line>::load(second.as_ptr())];
                    lines[0].store(to);
                    lines[1].store(to.add(LINE));
                    let head = [masked(lines[0], &masks[0]), masked(lines[1], &masks[1])];
                    crc::copy_behind::<$line, $lanes>(head, to.wrapping_add(OnePass::HEAD), from, len, ahead)
                }
            }
        }
    };
}
for_each_line!(entries);

/// # Safety
/// As for [`Line`].
#[inline(always)]
unsafe fn masked<L: Line>(line: L, mask: &Mask) -> L {
    // SAFETY: as the caller guarantees; both are a line's.
    unsafe { line.masked(L::load(mask.keep.as_ptr().cast()), L::load(mask.flip.as_ptr().cast())) }
}

/// The generic body of `sum` of each kind of line.
///
/// # Safety
/// As for that, and for [`Line`].
#[inline(always)]
unsafe fn sum<L: Line>(end: *const u8, lines: usize, words: usize, masks: &[Mask; MASKED]) -> u32 {
    let keys = KEYS.as_flattened();
    let from = |i: usize| end.wrapping_sub((lines - i) * LINE);
    // SAFETY: as the caller guarantees; of the first line only what is there is read, the others are there.
    unsafe {
        let key = |i: usize| {
            let at = keys.len() - (lines - i) * (LINE / 8);
            L::load(
                keys[at..]
                    .first_chunk::<{ LINE / 8 }>()
                    .expect("as many as the longest takes")
                    .as_ptr()
                    .cast(),
            )
        };
        let first = L::load_end(from(0), lines * (LINE / 4) - words);
        let mut sum = masked(first, &masks[0]).fold(key(0), L::zero());
        for i in 1..lines {
            let next = L::load(from(i));
            let next = if let Some(mask) = masks.get(i) { masked(next, mask) } else { next };
            sum = next.fold(key(i), sum);
        }
        reduce(sum.joined())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::{GENERATOR, widths};

    /// Bytes of the longest packet.
    const LEN_MAX: usize = BLOCKS_MAX * BLOCK;

    /// The slow way: bit by bit, over a copy with the mask's ones in it.
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

    fn noise() -> Vec<u8> {
        let mut x = 1u32;
        let next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        };
        core::iter::repeat_with(next).take(500).collect()
    }

    #[test]
    fn agrees_with_the_bits_for_every_length() {
        let frame = noise();
        for width in widths() {
            let register = |l3, end, ipv6| register_by(width, &frame, l3, end, ipv6);
            let mut compared = 0;
            for (l3, ipv6) in [(14, false), (14, true), (18, false), (18, true), (0, false)] {
                for len in 0..300 {
                    let min = if ipv6 { 56 } else { 36 };
                    match register(l3, l3 + len, ipv6) {
                        Some(crc) => {
                            assert_eq!(crc, slow(&frame, l3, l3 + len, ipv6), "{width:?} {l3} {len} {ipv6}")
                        }
                        None => assert!(len % 4 != 0 || !(min..=LEN_MAX).contains(&len), "{l3} {len} {ipv6}"),
                    }
                    compared += u32::from(len % 4 == 0 && (min..=LEN_MAX).contains(&len));
                }
            }
            assert_eq!(compared, 3 * 56 + 2 * 51);
            assert_eq!(register(400, 400 + 108, false), None, "the frame ends before");
            assert_eq!(register(108, 14, false), None, "it ends before it begins");
        }
    }

    #[test]
    fn a_sum_and_the_head_of_a_frame_agree_with_the_bits() {
        let frame = noise();
        for width in widths() {
            let with = |l3, end, ipv6, sum| register_with_by(width, &frame, l3, end, ipv6, sum);
            for (l3, ipv6) in [(14, false), (14, true), (18, false), (18, true)] {
                for end in (l3 + 300..400).step_by(4) {
                    let sum = crc::of(&frame[..end]).unwrap().register();
                    let expected = Some(slow(&frame, l3, end, ipv6));
                    assert_eq!(with(l3, end, ipv6, sum), expected, "{width:?} {l3} {end} {ipv6}");
                }
                assert_eq!(with(l3, l3 + 301, ipv6, 0), None, "no packet has that length");
                assert_eq!(with(l3, frame.len() + 4, ipv6, 0), None, "the frame ends before");
                assert_eq!(with(l3, 40, ipv6, 0), None, "it is shorter than its headers");
            }
            assert_eq!(with(16, 316, false, 0), None, "no frame begins so");
        }
    }

    #[test]
    fn a_frame_in_one_pass_is_the_same_frame() {
        let noise = noise();
        let (head, payload) = noise.split_first_chunk().unwrap();
        for (width, tagged) in widths().into_iter().flat_map(|width| [(width, false), (width, true)]) {
            let l3 = if tagged { 18 } else { 14 };
            for ipv6 in [false, true] {
                let pass = OnePass::new(tagged, ipv6).unwrap();
                // Nothing is there to be prefetched.
                let ahead = core::ptr::without_provenance(usize::MAX - 100);
                for len in OnePass::REST_MIN..=payload.len() {
                    let mut to = vec![0xaa; OnePass::HEAD + len + 1];
                    // SAFETY: both are as long as that, and another allocation.
                    let icrc =
                        unsafe { pass.write_by(width, to.as_mut_ptr(), head, payload.as_ptr(), len, ahead) };
                    assert_eq!(to.pop(), Some(0xaa), "nothing is written behind it");
                    assert_eq!(to, noise[..OnePass::HEAD + len], "{width:?} {l3} {ipv6} {len}");
                    assert_eq!(!icrc, slow(&to, l3, to.len(), ipv6), "{width:?} {l3} {ipv6} {len}");
                }
            }
        }
    }
}
