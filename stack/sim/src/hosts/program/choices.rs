//! The choices of a seed, and what happened in runs.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::hosts::host::Weather;
use crate::link::{Conditions, Fault};
use crate::rng::Rng;

/// The choices of a seed.
#[derive(Clone, Debug)]
pub struct Choices {
    /// The most processes of each host.
    pub processes: Vec<usize>,
    /// The hosts.
    pub weather: Weather,
    /// The network between them.
    pub conditions: Conditions,
    /// Steps in a million in which a process is killed, stopped, or started.
    pub kills: u32,
    /// See `kills`.
    pub stops: u32,
    /// See `kills`.
    pub starts: u32,
    /// How long a process is stopped, at most.
    pub stopped_for: Duration,
    /// Connections that are begun.
    pub connections: usize,
    /// Requests of each direction of each.
    pub ops: u64,
}

impl Choices {
    /// The choices of `rng`.
    pub fn draw(rng: &mut Rng) -> Self {
        let us = Duration::from_micros;
        let hosts = rng.range(1, 3) as usize;
        let mut conditions = Conditions::CLEAN;
        conditions.path.delay = us(rng.range(1, 20));
        conditions.path.jitter = us(rng.range(1, 40));
        for (fault, rates) in [
            (Fault::Loss, [0, 1_000, 10_000]),
            (Fault::Duplicate, [0, 10_000, 50_000]),
            (Fault::LateDuplicate, [0, 1_000, 10_000]),
            (Fault::Reorder, [0, 10_000, 100_000]),
            (Fault::Corrupt, [0, 0, 1_000]),
        ] {
            conditions = conditions.with(fault, rng.pick(&rates));
        }
        Self {
            processes: (0..hosts).map(|_| rng.range(2, 4) as usize).collect(),
            weather: Weather {
                steered_wrong_ppm: rng.pick(&[0, 20_000, 60_000]),
                link_delay: us(rng.pick(&[0, 1, 5, 100])),
                meeting: us(rng.pick(&[1, 50, 2_000, 30_000])),
                ring: rng.pick(&[1, 4, 16, 64]),
                plant: None,
            },
            conditions,
            kills: rng.pick(&[0, 1_000, 5_000]),
            stops: rng.pick(&[0, 1_000, 5_000]),
            starts: rng.pick(&[5_000, 20_000]),
            stopped_for: us(rng.pick(&[500, 5_000, 60_000])),
            connections: rng.range(8, 20) as usize,
            ops: rng.range(10, 60),
        }
    }
}

/// What happened in a run, or in several.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Each event by name.
    pub happened: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Counts something.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(super) fn add(&mut self, what: &'static str, n: u64) {
        *self.happened.entry(what).or_default() += n;
    }

    /// How often something happened.
    pub fn get(&self, what: &str) -> u64 {
        self.happened.get(what).copied().unwrap_or(0)
    }

    /// Adds another run.
    pub fn merge(&mut self, other: &Self) {
        other.happened.iter().for_each(|(what, n)| self.add(what, *n));
    }
}
