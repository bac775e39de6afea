//! The pattern that `--verify` writes and checks: every message has its own, so that a lost, doubled or
//! swapped message shows as well as a damaged byte.

use crate::error::{AppError, Result};

/// The eight bytes at `word * 8` of message `seq` of stream `stream`.
fn word(stream: u32, seq: u64, word: u64) -> u64 {
    let x = (u64::from(stream) << 48) ^ seq;
    let x = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29);
    x.wrapping_add(word.wrapping_mul(0xd1b5_4a32_d192_ed03)).rotate_left(23)
}

/// Fills `out` with message `seq` of stream `stream` (a queue pair's number in the run, and a direction).
pub fn fill(out: &mut [u8], stream: u32, seq: u64) {
    for (n, chunk) in out.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(stream, seq, n as u64).to_le_bytes()[..chunk.len()]);
    }
}

/// Checks that `data` is message `seq` of stream `stream`.
///
/// # Errors
/// [`AppError::Verify`] with the place of the first wrong byte.
pub fn check(data: &[u8], stream: u32, seq: u64) -> Result<()> {
    for (n, chunk) in data.chunks(8).enumerate() {
        let want = word(stream, seq, n as u64).to_le_bytes();
        if let Some(k) = chunk.iter().zip(&want).position(|(a, b)| a != b) {
            return Err(AppError::Verify(format!(
                "message {seq} of queue pair {} differs at byte {} of {}: {:#04x} instead of {:#04x}",
                stream & 0x7fff,
                n * 8 + k,
                data.len(),
                chunk[k],
                want[k]
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_round_trips_and_every_flip_shows() {
        for len in 0..40 {
            let mut data = vec![0; len];
            fill(&mut data, 3, 77);
            check(&data, 3, 77).unwrap();
            for at in 0..len {
                data[at] ^= 0x10;
                let text = check(&data, 3, 77).unwrap_err().to_string();
                assert!(text.contains(&format!("at byte {at} of {len}")), "{text}");
                data[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn messages_and_streams_differ() {
        let mut data = vec![0; 16];
        fill(&mut data, 0, 5);
        for (stream, seq) in [(0, 4), (0, 6), (1, 5), (0x8000, 5)] {
            assert!(check(&data, stream, seq).is_err(), "{stream} {seq}");
        }
    }
}
