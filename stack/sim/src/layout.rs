//! Scattered buffers of a random run.

use super::memory::Region;
use super::rng::Rng;
use stack::mem::Sge;

/// The content of memory that was never written.
pub const BLANK: u8 = 0xa5;
/// Bytes of a slot that are left for gaps around the pieces of a buffer.
pub const GAPS: usize = 64;

/// A scattered buffer, within one slot of a region.
#[derive(Clone, Default, Debug)]
pub struct Layout {
    /// Index of the slot.
    pub slot: usize,
    /// Offset and length of each piece.
    pub pieces: Vec<(usize, usize)>,
}

impl Layout {
    /// Cuts `len` bytes of slot `slot` into up to `max` pieces with gaps between them.
    pub fn draw(rng: &mut Rng, slot: usize, slot_len: usize, len: usize, max: usize) -> Self {
        let n = rng.range(1, max as u64) as usize;
        let mut pieces = Vec::new();
        let (mut at, mut left) = (slot * slot_len + rng.below(8) as usize, len);
        for i in 0..n {
            let part = if i + 1 == n { left } else { rng.below(left as u64 + 1) as usize };
            pieces.push((at, part));
            at += part + rng.below(8) as usize;
            left -= part;
        }
        Self { slot, pieces }
    }

    /// Length of the buffer in bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|p| p.1).sum()
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its scatter/gather list.
    pub fn sges(&self, region: &Region, rng: &mut Rng) -> Vec<Sge> {
        let sge = |&(at, len): &(usize, usize)| {
            let mut sge = region.sge(at, len);
            if len == 0 && rng.one_in(2) {
                sge.lkey = 0xdead_beef; // a key is not checked for zero bytes
            }
            sge
        };
        self.pieces.iter().map(sge).collect()
    }

    /// The first `len` bytes of the buffer. Returns an error if another byte of the slot was written.
    pub fn gather(&self, region: &Region, slot_len: usize, len: usize) -> Result<Vec<u8>, String> {
        let base = self.slot * slot_len;
        let whole = region.read(base, slot_len);
        let mut out = Vec::with_capacity(len);
        let mut checked = 0;
        let blank = |from: usize, to: usize| match whole[from..to].iter().position(|byte| *byte != BLANK) {
            Some(i) => {
                Err(format!("byte {} of a buffer was written, outside of the message", base + from + i))
            }
            None => Ok(()),
        };
        for &(at, part) in &self.pieces {
            let n = part.min(len - out.len());
            blank(checked, at - base)?;
            out.extend_from_slice(&whole[at - base..at - base + n]);
            checked = at - base + n;
        }
        blank(checked, slot_len)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the bytes of the pieces are returned in order, and a write beside them is detected.
    #[test]
    fn bytes_beside_a_message_are_noticed() {
        let region = Region::new(64);
        region.fill(0, 64, BLANK);
        let layout = Layout { slot: 1, pieces: vec![(34, 3), (40, 0), (44, 4)] };
        region.write(34, &[1, 2, 3]);
        region.write(44, &[4, 5]);
        assert_eq!(layout.gather(&region, 32, 5), Ok(vec![1, 2, 3, 4, 5]));
        assert!(layout.gather(&region, 32, 4).is_err(), "more than the message");
        for at in [32, 37, 43, 46, 63] {
            let old = region.read(at, 1);
            region.write(at, &[0]);
            assert!(layout.gather(&region, 32, 5).unwrap_err().contains(&at.to_string()));
            region.write(at, &old);
        }
    }
}
