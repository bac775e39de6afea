//! Whether the thread that polls for a shard waits for a core.
//!
//! Where cores are busy, a thread that polls is off its core for milliseconds at a time, and the helper finds that nobody turns the shard. To
//! turn it then would delay that thread still more, for single frames each of which costs a wake-up; the thread takes all of them at once when
//! it has its turn on the core. So the helper leaves the shard to a thread that has polled until it lost its core.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The thread that polls for a shard.
#[derive(Debug, Default)]
pub(super) struct Poller {
    thread: u32,
    files: Option<Files>,
    /// Time that it had on a core until the last look that found no turn of it, in nanoseconds.
    ran: Option<u64>,
}

/// What the system says of a thread (proc(5)).
#[derive(Debug)]
struct Files {
    stat: File,
    schedstat: File,
}

impl Poller {
    /// It has turned the shard since the last look.
    pub fn turned(&mut self) {
        self.ran = None;
    }

    /// It has not. Whether this thread of the process can run, but did not since the last such look; what it did before the first one is
    /// not known. `false` where the system does not say, and for thread 0.
    pub fn waits_for_core(&mut self, thread: u32) -> bool {
        if self.thread != thread {
            *self = Self { thread, files: Files::open(thread), ran: None };
        }
        let Some(files) = &self.files else { return false };
        let Some(ran) = files.ran().filter(|_| files.can_run()) else { return false };
        self.ran.replace(ran).is_none_or(|before| before == ran)
    }
}

impl Files {
    fn open(thread: u32) -> Option<Self> {
        let file = |name| File::open(format!("/proc/self/task/{thread}/{name}")).ok();
        Some(Self { stat: file("stat")?, schedstat: file("schedstat")? })
    }

    /// Whether its state is R: it runs, or waits for a core.
    fn can_run(&self) -> bool {
        let mut stat = [0; 64];
        let len = self.stat.read_at(&mut stat, 0).unwrap_or(0);
        let name_ends = stat[..len].iter().rposition(|&byte| byte == b')');
        name_ends.is_some_and(|at| stat.get(at + 2) == Some(&b'R'))
    }

    /// Nanoseconds that it had on a core.
    fn ran(&self) -> Option<u64> {
        let mut schedstat = [0; 64];
        let len = self.schedstat.read_at(&mut schedstat, 0).ok()?;
        core::str::from_utf8(&schedstat[..len]).ok()?.split_ascii_whitespace().next()?.parse().ok()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::sync::scheduling::thread_number;
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    static OVER: AtomicBool = AtomicBool::new(false);

    /// Ends those that spin, also where an assertion fails.
    struct EndsThem;
    impl Drop for EndsThem {
        fn drop(&mut self) {
            OVER.store(true, Ordering::Relaxed);
        }
    }

    /// A thread that says its number and spins on the first core.
    fn spin(number: Sender<u32>) {
        core_affinity::set_for_current(core_affinity::get_core_ids().unwrap()[0]);
        number.send(thread_number()).unwrap();
        while !OVER.load(Ordering::Relaxed) {
            core::hint::spin_loop();
        }
    }

    // Of two threads that spin on one core one waits at any time. Each is looked at until it was seen to wait, and to have run.
    #[test]
    fn a_thread_waits_while_another_has_its_core() {
        let (to, numbers) = channel();
        thread::scope(|scope| {
            let _ends = EndsThem;
            for to in [to.clone(), to] {
                scope.spawn(|| spin(to));
            }
            for thread in numbers.iter().take(2) {
                let mut poller = Poller::default();
                assert!(poller.waits_for_core(thread), "what it did before is not known");
                for expected in [true, false, true] {
                    while poller.waits_for_core(thread) != expected {
                        thread::yield_now();
                    }
                }
                poller.turned();
                assert!(poller.waits_for_core(thread), "it has polled until it lost its core");
            }
        });
    }

    #[test]
    fn a_thread_that_sleeps_waits_for_no_core() {
        let (to, number) = channel();
        let (end, over) = channel::<()>();
        let asleep = thread::spawn(move || {
            to.send(thread_number()).unwrap();
            over.recv().unwrap_or(());
        });
        let thread = number.recv().unwrap();
        let mut poller = Poller::default();
        while poller.waits_for_core(thread) {
            thread::yield_now();
        }
        for _ in 0..10 {
            poller.turned();
            assert!(!poller.waits_for_core(thread));
        }
        drop(end);
        asleep.join().unwrap();
        // It is gone, and 0 is none.
        assert!(!poller.waits_for_core(thread));
        assert!(!poller.waits_for_core(0));
    }
}
