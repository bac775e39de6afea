//! Numbers that an attacker cannot guess: from the operating system, or from a seed where a run must repeat.

use std::sync::Mutex;

use super::claim::lock;
use super::error::{DeviceError, OpenError};

pub(super) struct Random {
    /// State of the generator; `None`: use the operating system.
    seeded: Option<Mutex<u64>>,
}

impl Random {
    pub(super) fn new(seed: Option<u64>) -> Result<Self, OpenError> {
        if seed.is_none() {
            // Fails here rather than later, if at all.
            getrandom::u32().map_err(|_| OpenError::Random)?;
        }
        Ok(Self { seeded: seed.map(Mutex::new) })
    }

    pub(super) fn next(&self) -> Result<u32, DeviceError> {
        match &self.seeded {
            None => getrandom::u32().map_err(|_| DeviceError::Random),
            Some(state) => {
                // SplitMix64 (Steele, Lea and Flood, 2014).
                let mut state = lock(state);
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                Ok(((z ^ (z >> 31)) >> 32) as u32)
            }
        }
    }
}
