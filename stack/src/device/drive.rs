//! The device's own threads: dedicated ones, or one helper for when no other thread polls.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant as SystemInstant;

use super::claim::Core;
use super::config::Drive;
use super::error::OpenError;
use super::{IDLE_SLEEP, SLEEP};
use crate::config::{HELPER_HOT, HELPER_SLEEP};

/// After its hot phase the helper yields its time slice between turns, for this long.
const HELPER_YIELD: Duration = Duration::from_micros(200);

const _: () = assert!(HELPER_HOT.as_nanos() < HELPER_SLEEP.as_nanos());
const _: () = assert!(HELPER_SLEEP.as_nanos() <= SLEEP.as_nanos());

/// Starts the threads that a drive needs.
pub(super) fn start(core: &Arc<Core>, drive: &Drive) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let started = match drive {
        Drive::Embedded => Ok(Vec::new()),
        Drive::Caller => helper(core).map(|thread| vec![thread]),
        Drive::Dedicated { cores } => dedicated(core, cores),
    };
    if started.is_err() {
        // Threads that did start see it and end; they hold nothing but the shards.
        core.stop();
    }
    started
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    thread::Builder::new().name(name.clone()).spawn(body).map_err(|source| OpenError::Thread { name, source })
}

fn dedicated(core: &Arc<Core>, cores: &[usize]) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let available = core_affinity::get_core_ids().unwrap_or_default();
    let mut pins = Vec::with_capacity(cores.len());
    for &wanted in cores.iter().take(core.cells.len()) {
        let pin = available.iter().find(|c| c.id == wanted).ok_or_else(|| OpenError::NoSuchCore {
            core: wanted,
            available: available.iter().map(|c| c.id).collect(),
        })?;
        pins.push(*pin);
    }
    (0..core.cells.len())
        .map(|index| {
            let (core, pin) = (core.clone(), pins.get(index).copied());
            spawn(format!("roce-shard-{index}"), move || {
                if let Some(pin) = pin {
                    // The core was in our set a moment ago. If it is gone, the thread runs elsewhere: slower, but correct.
                    if !core_affinity::set_for_current(pin) {
                        tracing::warn!(
                            core = pin.id,
                            shard = index,
                            "the shard's thread could not be pinned"
                        );
                    }
                }
                // A panic has ended the shard and was reported (`claim`); the thread ends with it.
                let _ = catch_unwind(AssertUnwindSafe(|| core.run_dedicated(index)));
            })
        })
        .collect()
}

fn helper(core: &Arc<Core>) -> Result<JoinHandle<()>, OpenError> {
    let thread = {
        let core = core.clone();
        spawn("roce-helper".into(), move || {
            // Each panic is the end of a shard; the others go on.
            while catch_unwind(AssertUnwindSafe(|| help(&core))).is_err() && !core.all_dead() {}
        })?
    };
    Ok(thread)
}

/// Turns every shard that no caller turned since the last check; hot while there is work, asleep when there is none.
fn help(core: &Core) {
    let shards = core.cells.len();
    let mut seen: Vec<u32> = (0..shards).map(|i| core.turns_of_callers(i)).collect();
    let mut last_work = SystemInstant::now();
    // A wake-up that a peer loses is lost as the sleep begins, and frames end what the port has promised: who slept and found
    // nothing may sleep longer.
    let mut longest = SLEEP;
    while !core.stopped() && !core.all_dead() {
        let mut look = SLEEP;
        let (mut helped, mut work) = (0u32, false);
        for (index, seen) in seen.iter_mut().enumerate() {
            let turns = core.turns_of_callers(index);
            if turns != *seen {
                // A caller polls: leave the shard to it, and check again soon.
                *seen = turns;
                longest = HELPER_SLEEP;
                continue;
            }
            let Some((turn, connected)) = core.turn_by_helper(index) else {
                longest = HELPER_SLEEP;
                continue;
            };
            helped |= 1 << index;
            // What cannot leave is no work: without a link there is nothing to do for it.
            work |= turn.rx > 0 || turn.tx > 0;
            if connected > 0 {
                look = look.min(HELPER_SLEEP);
            }
        }
        if work {
            last_work = SystemInstant::now();
            longest = longest.min(SLEEP);
        }
        let idle = last_work.elapsed();
        if helped != 0 && idle < HELPER_HOT {
            core::hint::spin_loop();
        } else if idle < HELPER_HOT + HELPER_YIELD {
            // Also where a caller made the last turn: one that was woken by our work polls once, posts, and waits again.
            thread::yield_now();
        } else {
            core.sleep(helped, None, longest, look);
            longest = (longest * 2).min(IDLE_SLEEP);
        }
    }
}
