//! The data that a write puts into each sector. They identify the run, the position of the sector, and the write.
//!
//! Every byte is computed from these three. So a sector of another position, of an earlier write or of another run is detected, and so is a
//! sector that is only partly right.

use std::fmt;

/// Bytes of a sector, which is the smallest block. A larger block has several sectors, so that torn blocks are detected.
pub const SECTOR: usize = 512;

/// Bytes of a word.
const WORD: usize = 8;

/// The number of a write of the run: 1, 2, 3 in the order in which they were sent. 0 stands for no write.
pub type Generation = u64;

/// What identifies the data of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sector {
    /// The run: a random number, so that data of an earlier run are not mistaken for those of this run.
    pub run: u64,
    /// Its position in the namespace, in units of 512 bytes.
    pub at: u64,
    /// The number of the write.
    pub generation: Generation,
}

impl Sector {
    /// Fills `out` with the data of the sector. The first three words are its identity, and the others are computed from it.
    pub fn fill(&self, out: &mut [u8]) {
        let seed = mixed(self.run ^ mixed(self.at ^ mixed(self.generation)));
        for (n, word) in (0u64..).zip(out.chunks_exact_mut(WORD)) {
            let value = match n {
                0 => self.run,
                1 => self.at,
                2 => self.generation,
                n => seed.wrapping_add(n.wrapping_mul(0xd1b5_4a32_d192_ed03)).rotate_left(23),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    /// The identity in the first three words of a sector, whether or not its other bytes are right; `None` if `bytes` are too short.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks();
        let [run, at, generation] = *words.first_chunk()?;
        let [run, at, generation] = [run, at, generation].map(u64::from_le_bytes);
        Some(Self { run, at, generation })
    }
}

/// Mixes the bits of `x`, so that each bit of the result depends on all of them (the last steps of SplitMix64).
const fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The data of one write: consecutive sectors.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// The first sector.
    pub first: Sector,
}

impl Content {
    /// Fills `out` with the data.
    pub fn fill(&self, out: &mut [u8]) {
        for (n, sector) in (0..).zip(out.chunks_exact_mut(SECTOR)) {
            Sector { at: self.first.at + n, ..self.first }.fill(sector);
        }
    }
    /// The index of the first byte of `bytes` that differs from the data; `None` if none does.
    pub fn first_wrong(&self, bytes: &[u8]) -> Option<usize> {
        let mut right = [0; SECTOR];
        (0..).zip(bytes.chunks_exact(SECTOR)).find_map(|(n, sector)| {
            Sector { at: self.first.at + n, ..self.first }.fill(&mut right);
            let at = sector.iter().zip(&right).position(|(is, want)| is != want)?;
            Some(n as usize * SECTOR + at)
        })
    }
}

/// What was found in a sector instead of the expected data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The data of this other write of the run.
    Write(Generation),
    /// The data of a sector at another position.
    Misplaced(Sector),
    /// A torn sector: its first words are those of this write, but the byte at this index is not.
    Torn(Generation, usize),
    /// Only zeros.
    Zeros,
    /// Data that this run has not written.
    Unknown,
}

impl Found {
    /// Finds out what `bytes` are, which were read where the sector `wanted` should be.
    pub fn of(bytes: &[u8], wanted: Sector) -> Self {
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Zeros;
        }
        let Some(is) = Sector::of(bytes).filter(|is| is.run == wanted.run) else { return Self::Unknown };
        let torn = Content { first: is }.first_wrong(bytes);
        match torn {
            Some(at) => Self::Torn(is.generation, at),
            None if is.at != wanted.at => Self::Misplaced(is),
            None => Self::Write(is.generation),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(generation) => write!(f, "what write {generation} put there"),
            Self::Misplaced(Sector { at, generation, .. }) => {
                write!(f, "what write {generation} put at byte {} of the namespace", at * SECTOR as u64)
            }
            Self::Torn(generation, at) => write!(f, "what write {generation} put there, to byte {at} alone"),
            Self::Zeros => f.write_str("zeros"),
            Self::Unknown => f.write_str("what this run has not written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Sector = Sector { run: 77, at: 1000, generation: 5 };

    #[test]
    fn sectors_of_other_runs_places_and_writes_differ_in_many_bytes() {
        let bytes = |sector: Sector| {
            let mut bytes = [0; SECTOR];
            sector.fill(&mut bytes);
            bytes
        };
        let ours = bytes(FIRST);
        for other in [
            Sector { run: 78, ..FIRST },
            Sector { at: 1001, ..FIRST },
            Sector { generation: 6, ..FIRST },
            Sector { at: 1005, generation: 0, ..FIRST },
        ] {
            let same = ours.iter().zip(bytes(other)).filter(|(a, b)| **a == *b).count();
            assert!(same < SECTOR / 8, "{other:?}: {same} bytes are the same");
        }
    }

    #[test]
    fn every_flip_shows_and_what_is_found_is_said() {
        let (content, len) = (Content { first: FIRST }, 2 * SECTOR);
        let mut bytes = vec![0; len];
        content.fill(&mut bytes);
        assert_eq!(content.first_wrong(&bytes), None);
        for at in 0..len {
            bytes[at] ^= 0x10;
            assert_eq!(content.first_wrong(&bytes), Some(at));
            bytes[at] ^= 0x10;
        }
        let (first, second) = bytes.split_at_mut(SECTOR);
        assert_eq!(Found::of(first, FIRST), Found::Write(5));
        assert_eq!(Found::of(second, FIRST), Found::Misplaced(Sector { at: 1001, ..FIRST }));
        first[100..].fill(0xa5);
        assert_eq!(Found::of(first, FIRST), Found::Torn(5, 100));
        assert_eq!(Found::of(&[0; SECTOR], FIRST), Found::Zeros);
        assert_eq!(Found::of(&[0xa5; SECTOR], FIRST), Found::Unknown);
        assert_eq!(Found::of(second, Sector { run: 1, ..FIRST }), Found::Unknown);
    }
}
