//! The device's own threads: dedicated ones, or one helper that takes over while no other thread polls.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Instant as SystemInstant;

use super::claim::Core;
use super::config::Drive;
use super::error::OpenError;
use super::pace::{Callers, Next, Pace};
use super::poller::Poller;
use super::sleep::SLEEP;
use crate::config::{HELPER_HOT, HELPER_SLEEP};
use crate::sync::scheduling::wake_at_once;

/// The longest sleep of the helper, reached while nothing happens.
const IDLE_SLEEP: Duration = Duration::from_millis(200);

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
        // Threads that did start notice it and end; they hold only the shards.
        core.stop();
    }
    started
}

/// Starts a thread, and returns when it runs: the C library's start-up code in the thread has finished by then. libfabric overwrites the
/// code of munmap(2) right after the call that opens the device, which a starting thread may be executing.
fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    let (beginning, over) = channel::<()>();
    let body = move || {
        drop(beginning);
        body();
    };
    let thread = thread::Builder::new().name(name.clone()).spawn(body);
    let thread = thread.map_err(|source| OpenError::Thread { name, source })?;
    let _ = over.recv(); // returns when `beginning` is dropped: nothing is sent
    Ok(thread)
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
                    // The core was in this process's affinity mask a moment ago. If it is gone, the thread runs elsewhere: slower, but
                    // correct.
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
            // Each panic ends one shard; the others go on.
            while catch_unwind(AssertUnwindSafe(|| help(&core))).is_err() && !core.all_dead() {}
        })?
    };
    Ok(thread)
}

/// Turns every shard that no caller turned since the last check. Spins while there is work and a core to spare, sleeps when there is
/// none.
fn help(core: &Core) {
    wake_at_once();
    let now = SystemInstant::now();
    let mut callers: Vec<Callers> =
        (0..core.cells.len()).map(|index| Callers::new(now, core.turns_of_callers(index))).collect();
    let mut pollers: Vec<Poller> = core.cells.iter().map(|_| Poller::default()).collect();
    let mut pace = Pace::new(now);
    // A peer can lose a wake-up only while a sleep begins, and an armed port stays armed until frames arrive. So after a sleep in which
    // nothing arrived the next one may be longer.
    let mut longest = SLEEP;
    while !core.stopped() && !core.all_dead() {
        let (mut look, mut at_most) = (SLEEP, Duration::MAX);
        let (mut helped, mut left, mut work) = (0u32, 0u32, false);
        for (index, callers) in callers.iter_mut().enumerate() {
            let callers_turned = callers.turned(core.turns_of_callers(index)) || core.is_polled(index);
            let poller = &mut pollers[index];
            if callers_turned {
                poller.turned();
            }
            let waits = !callers_turned
                && callers.are_present()
                && pace.knows_busy(SystemInstant::now())
                && poller.waits_for_core(core.caller(index));
            if core.is_left_to_pollers(index, callers_turned || waits) {
                left |= 1 << index;
                at_most = at_most.min(HELPER_SLEEP);
            }
            let turn = if callers_turned || waits { None } else { core.turn_by_helper(index) };
            let now = SystemInstant::now();
            let Some((turn, connected)) = turn else {
                // A caller polls, or is inside a turn: leaves the shard and its posts to that thread, and checks again soon.
                left |= 1 << index;
                at_most = at_most.min(callers.pause(now));
                longest = HELPER_SLEEP;
                continue;
            };
            callers.absent(now);
            helped |= 1 << index;
            // A backlog does not count as work: without a link it cannot be sent.
            work |= turn.rx > 0 || turn.tx > 0;
            if connected > 0 {
                look = look.min(HELPER_SLEEP);
            }
        }
        if work {
            longest = longest.min(SLEEP);
        }
        match pace.next(SystemInstant::now(), helped != 0, work) {
            Next::Spin => core::hint::spin_loop(),
            Next::Yield => thread::yield_now(),
            Next::Sleep => {
                core.sleep(helped, left, None, longest.min(at_most), look);
                longest = (longest * 2).min(IDLE_SLEEP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A new thread has the name of its creator until it sets its own, before it runs its function. A listing of threads may leave some out
    // while others end, so this counts threads that should not be there. All threads share one core, so that none starts early by chance.
    #[test]
    #[cfg_attr(miri, ignore = "/proc")]
    fn a_thread_runs_when_the_call_that_starts_it_returns() {
        let named = |name: &str| {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names =
                tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
            names.filter(|found| found.trim_end() == name).count()
        };
        let start = move || {
            core_affinity::set_for_current(core_affinity::get_core_ids().unwrap()[0]);
            let mut running = Vec::new();
            for started in 1..=100 {
                let (end, waiting) = channel::<()>();
                let thread = spawn("roce-begun".into(), move || waiting.recv().unwrap_or(())).unwrap();
                assert!(named("roce-starts") <= 1, "thread {started} does not run yet");
                running.push((end, thread));
            }
            for (end, thread) in running {
                drop(end);
                thread.join().unwrap();
            }
        };
        thread::Builder::new().name("roce-starts".into()).spawn(start).unwrap().join().unwrap();
    }
}
