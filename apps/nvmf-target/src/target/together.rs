//! The cores of a target, which run and end together.

use std::sync::atomic::{AtomicBool, Ordering};

use verbs::VerbsError;

use super::core::Core;

/// Says that a core has ended, also where it panicked.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the first core on this thread and each other one on a thread of its own, until `stop` says so. A core that ends before,
/// because its part of the device is dead, ends the others: half a target would keep its hosts waiting, and nobody would know.
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If a core does, as where a port of the program's own panics.
pub fn run_all(cores: &mut [Core<'_>], stop: impl Fn() -> bool + Sync) -> Result<(), VerbsError> {
    let ended = AtomicBool::new(false);
    let run = |core: &mut Core<'_>| {
        let _ended = Ended(&ended);
        core.run(|| stop() || ended.load(Ordering::Relaxed))
    };
    let Some((first, others)) = cores.split_first_mut() else { return Ok(()) };
    std::thread::scope(|scope| {
        let threads: Vec<_> = others.iter_mut().map(|core| scope.spawn(|| run(core))).collect();
        let result = run(first);
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.fold(result, Result::and)
    })
}
