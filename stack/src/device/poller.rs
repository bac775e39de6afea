//! Whether the thread that polls for a shard waits for a core.
//!
//! If cores are busy, a polling thread is off its core for milliseconds at a time, and the helper finds that no thread turns the shard. A
//! turn of the helper would then delay that thread further, for single frames that each cost a wake-up; the thread takes all of
//! them at once when it gets its core back. So the helper leaves the shard to a thread that has polled until it lost its core.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The thread that polls for a shard.
#[derive(Debug, Default)]
pub(super) struct Poller {
    thread: u32,
    files: Option<Files>,
    /// Its CPU time in nanoseconds at the last check that found no turn of it.
    ran: Option<u64>,
}

/// Status files of a thread (proc(5)).
#[derive(Debug)]
struct Files {
    stat: File,
    schedstat: File,
}

impl Poller {
    /// Notes that the thread has turned the shard since the last check.
    pub fn turned(&mut self) {
        self.ran = None;
    }

    /// Called if the shard's thread made no turn since the last check. Returns whether this thread of the process is runnable and, unless
    /// this is the first such check, has not run since the last one. `false` if the system does not tell, and for thread 0.
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

    /// Whether its state is R: running, or waiting for a core.
    fn can_run(&self) -> bool {
        let mut stat = [0; 64];
        let len = self.stat.read_at(&mut stat, 0).unwrap_or(0);
        let name_ends = stat[..len].iter().rposition(|&byte| byte == b')');
        name_ends.is_some_and(|at| stat.get(at + 2) == Some(&b'R'))
    }

    /// CPU time of the thread in nanoseconds.
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

    /// Ends the spinning threads, even if an assertion fails.
    struct EndsThem;
    impl Drop for EndsThem {
        fn drop(&mut self) {
            OVER.store(true, Ordering::Relaxed);
        }
    }

    /// A thread that sends its number and spins on the first core.
    fn spin(number: Sender<u32>) {
        core_affinity::set_for_current(core_affinity::get_core_ids().unwrap()[0]);
        number.send(thread_number()).unwrap();
        while !OVER.load(Ordering::Relaxed) {
            core::hint::spin_loop();
        }
    }

    // Of two threads that spin on one core one waits at any time. Each is checked until it was seen both waiting and running.
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
        // The thread has ended, and no thread has number 0.
        assert!(!poller.waits_for_core(thread));
        assert!(!poller.waits_for_core(0));
    }
}
