//! Signals are the program's: no thread of the device handles one.

use core::ffi::c_int;
use core::ptr;
use std::sync::Once;

use verbs::rdma_cm::send_farewells;

use crate::guard::guarded;

/// Runs `call` with all signals blocked: threads that it starts have them blocked for good, so the program's handlers run on its own
/// threads.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals, and calls that read and write them.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// From the first connection on, or the first queue pair that other processes of the host reach by a link: where SIGINT or SIGTERM would end
/// the process, its peers are told first. What the program has set itself,
/// or sets later, counts.
pub(crate) fn tell_peers_of_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: a disposition that the calls read and write; the handler makes async-signal-safe calls alone.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                if libc::sigaction(signal, ptr::null(), &raw mut action) == 0
                    && action.sa_sigaction == libc::SIG_DFL
                {
                    action.sa_sigaction = end as extern "C" fn(c_int) as usize;
                    action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
                    libc::sigaction(signal, &raw const action, ptr::null_mut());
                }
            }
        }
    });
}

/// The handler. The system has restored the disposition.
extern "C" fn end(signal: c_int) {
    let _ = guarded(|| {
        send_farewells();
        Ok(())
    });
    // SAFETY: a call without memory.
    unsafe {
        libc::raise(signal);
    }
}

/// Makes SIGINT and SIGTERM end the process, unless it ignores them: nothing of the program runs any more that could handle them.
pub(crate) fn end_by_signals() {
    // SAFETY: sets of signals and their dispositions, and calls that read and write them.
    unsafe {
        let (mut both, mut action): (libc::sigset_t, libc::sigaction) = core::mem::zeroed();
        libc::sigemptyset(&raw mut both);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, ptr::null(), &raw mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::sigaddset(&raw mut both, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const both, ptr::null_mut());
    }
}
