//! The cores of a target, which run and end together.

use std::sync::atomic::{AtomicBool, Ordering};

use verbs::VerbsError;

use super::core::Core;

/// Sets the flag when it is dropped: a core has ended, possibly by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the first core on this thread and each other core on a thread of its own, until `stop` returns true. A core that ends earlier,
/// because its shard of the device failed, ends the others, too: otherwise its hosts would wait without an answer, and nobody would notice.
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If a core panics, for example in the code of a port that the program provides.
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
