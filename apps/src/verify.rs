//! The pattern that `--verify` writes and checks: it differs for every message, so that lost, duplicated or swapped messages
//! are detected as well as damaged bytes.
//!
//! Long messages are written and checked in slices, with a turn of the shards between two: half a gigabyte takes so long that
//! the peer would count a silent host as dead.

use crate::error::{AppError, Result};
use std::ops::Range;
use verbs::Mr;

/// Bytes that are written or checked between two turns, at most: some tens of microseconds.
pub const SLICE: usize = 64 << 10;

/// Identifies a message: its number, and its stream (a queue pair's number in the run, and a direction).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// The stream.
    pub stream: u32,
    /// The number.
    pub seq: u64,
}

impl Which {
    /// The eight bytes at `word * 8`.
    fn word(self, word: u64) -> u64 {
        let x = (u64::from(self.stream) << 48) ^ self.seq;
        let x = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29);
        x.wrapping_add(word.wrapping_mul(0xd1b5_4a32_d192_ed03)).rotate_left(23)
    }

    /// Writes the message's bytes from offset `at` on, a multiple of 8.
    pub fn fill(self, out: &mut [u8], at: usize) {
        for (n, chunk) in (at as u64 / 8..).zip(out.chunks_mut(8)) {
            chunk.copy_from_slice(&self.word(n).to_le_bytes()[..chunk.len()]);
        }
    }

    /// The first wrong byte of `data`, which begin at offset `at` of the message, a multiple of 8: the byte's offset in the
    /// message, its value, and the right value.
    pub fn first_wrong(self, data: &[u8], at: usize) -> Option<(usize, u8, u8)> {
        (at / 8..).zip(data.chunks(8)).find_map(|(n, chunk)| {
            let want = self.word(n as u64).to_le_bytes();
            let k = chunk.iter().zip(&want).position(|(a, b)| a != b)?;
            Some((n * 8 + k, chunk[k], want[k]))
        })
    }

    /// Checks that `data` are the message's bytes from offset `at` on, a multiple of 8; `len` is the length of the message.
    ///
    /// # Errors
    /// [`AppError::Verify`] with the place of the first wrong byte.
    pub fn check(self, data: &[u8], at: usize, len: usize) -> Result<()> {
        let Some((byte, is, want)) = self.first_wrong(data, at) else { return Ok(()) };
        let (message, qp) = (self.seq, self.stream & 0x7fff);
        Err(AppError::Verify(format!(
            "message {message} of queue pair {qp} differs at byte {byte} of {len}: {is:#04x} instead of {want:#04x}"
        )))
    }
}

/// Processes memory in slices.
#[derive(Debug, Default)]
pub struct Slices {
    scratch: Vec<u8>,
    /// Bytes since the last turn.
    since: usize,
}

impl Slices {
    /// Calls `work` for `0..len` in slices, and `turn` so often that at most [`SLICE`] bytes are between two calls, including
    /// those of earlier messages.
    ///
    /// # Errors
    /// Those of both functions.
    pub fn each(
        &mut self,
        len: usize,
        mut turn: impl FnMut() -> Result<()>,
        mut work: impl FnMut(&mut Vec<u8>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < len {
            if self.since == SLICE {
                self.since = 0;
                turn()?;
            }
            let n = (len - at).min(SLICE - self.since);
            work(&mut self.scratch, at..at + n)?;
            // Counted in whole words, which the pattern is made of.
            (at, self.since) = (at + n, (self.since + n).next_multiple_of(8));
        }
        Ok(())
    }

    /// Writes a message of `len` bytes to `offset` in `mr`.
    ///
    /// # Errors
    /// Those of `turn`; an invalid range.
    pub fn write(
        &mut self,
        mr: &Mr,
        offset: usize,
        len: usize,
        which: Which,
        turn: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.each(len, turn, |scratch, part| {
            scratch.resize(part.len(), 0);
            which.fill(scratch, part.start);
            Ok(mr.write(offset + part.start, scratch)?)
        })
    }

    /// Checks a message of `len` bytes at `offset` in `mr`.
    ///
    /// # Errors
    /// [`AppError::Verify`] with the place of the first wrong byte; those of `turn`; an invalid range.
    pub fn check(
        &mut self,
        mr: &Mr,
        offset: usize,
        len: usize,
        which: Which,
        turn: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.each(len, turn, |scratch, part| {
            scratch.resize(part.len(), 0);
            mr.read(offset + part.start, scratch)?;
            which.check(scratch, part.start, len)
        })
    }

    /// Sets `len` bytes at `offset` in `mr` to `value`.
    ///
    /// # Errors
    /// Those of `turn`; an invalid range.
    pub fn set(
        &mut self,
        mr: &Mr,
        offset: usize,
        len: usize,
        value: u8,
        turn: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.each(len, turn, |_, part| Ok(mr.fill(offset + part.start..offset + part.end, value)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, Context, DeviceConfig};

    const WHICH: Which = Which { stream: 3, seq: 77 };

    #[test]
    fn every_length_round_trips_and_every_flip_shows() {
        for len in 0..40 {
            let mut data = vec![0; len];
            WHICH.fill(&mut data, 0);
            WHICH.check(&data, 0, len).unwrap();
            for at in 0..len {
                data[at] ^= 0x10;
                let text = WHICH.check(&data, 0, len).unwrap_err().to_string();
                assert!(text.contains(&format!("at byte {at} of {len}")), "{text}");
                data[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn messages_and_streams_differ() {
        let mut data = vec![0; 16];
        Which { stream: 0, seq: 5 }.fill(&mut data, 0);
        for (stream, seq) in [(0, 4), (0, 6), (1, 5), (0x8000, 5)] {
            assert!(Which { stream, seq }.check(&data, 0, 16).is_err(), "{stream} {seq}");
        }
    }

    // A peer counts a host that makes no turns as dead: there must be turns between slices that are written or checked.
    #[test]
    fn no_more_than_a_slice_is_written_or_checked_between_two_turns() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let len = 5 * SLICE + 13;
        let mr = pd.reg_mr(8 + len, Access::LOCAL_WRITE).unwrap();
        for size in [1, 8, 4099, SLICE, len] {
            let (mut slices, mut turns, mut bytes) = (Slices::default(), 0, 0);
            while bytes < 10 * SLICE {
                let mut turn = || {
                    turns += 1;
                    Ok(())
                };
                slices.write(&mr, 8, size, WHICH, &mut turn).unwrap();
                slices.check(&mr, 8, size, WHICH, &mut turn).unwrap();
                slices.set(&mr, 8, size, 0, &mut turn).unwrap();
                assert!(slices.check(&mr, 8, size, WHICH, &mut turn).is_err());
                bytes += 3 * size;
            }
            assert!(turns >= bytes / SLICE - 1, "{turns} turns in {bytes} bytes, {size} at a time");
        }
    }

    #[test]
    fn a_slice_is_told_from_that_of_another_place() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let mr = context.alloc_pd().unwrap().reg_mr(4 * SLICE, Access::LOCAL_WRITE).unwrap();
        let (mut slices, len) = (Slices::default(), 4 * SLICE);
        slices.write(&mr, 0, len, WHICH, || Ok(())).unwrap();
        let mut whole = vec![0; len];
        WHICH.fill(&mut whole, 0);
        assert_eq!(mr.to_vec(0..len).unwrap(), whole);
        mr.write(3 * SLICE + 5, &[!whole[3 * SLICE + 5]]).unwrap();
        let told = slices.check(&mr, 0, len, WHICH, || Ok(())).unwrap_err().to_string();
        assert!(told.contains(&format!("at byte {} of {len}", 3 * SLICE + 5)), "{told}");
    }
}
