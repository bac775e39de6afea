//! Numbers that an attacker cannot guess: from the operating system, or from a seed for repeatable runs.

use std::sync::Mutex;

use super::error::{DeviceError, OpenError};
use crate::sync::lock::lock;

pub(super) struct Random {
    /// State of the generator; `None`: use the operating system.
    seeded: Option<Mutex<u64>>,
}

impl Random {
    pub(super) fn new(seed: Option<u64>) -> Result<Self, OpenError> {
        if seed.is_none() {
            // Without random numbers, opening fails now, rather than a later call.
            getrandom::u32().map_err(|_| OpenError::Random)?;
        }
        Ok(Self { seeded: seed.map(Mutex::new) })
    }

    pub(super) fn next(&self) -> Result<u32, DeviceError> {
        match &self.seeded {
            None => getrandom::u32().map_err(|_| DeviceError::Random),
            Some(state) => Ok((split_mix(&mut lock(state)) >> 32) as u32),
        }
    }

    /// 128 bits. A seeded generator advances by one step for them, not two: recorded runs depend on the number of steps.
    pub(super) fn wide(&self) -> Result<u128, DeviceError> {
        let mut bytes = [0; 16];
        match &self.seeded {
            None => getrandom::fill(&mut bytes).map_err(|_| DeviceError::Random)?,
            Some(state) => {
                let mut high = split_mix(&mut lock(state));
                bytes[..8].copy_from_slice(&high.to_be_bytes());
                bytes[8..].copy_from_slice(&split_mix(&mut high).to_be_bytes());
            }
        }
        Ok(u128::from_be_bytes(bytes))
    }
}

/// The next number of SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
