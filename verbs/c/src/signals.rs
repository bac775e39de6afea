//! Signals belong to the program: no thread of the device handles one.

use core::ffi::c_int;
use core::ptr;
use std::sync::Once;

use verbs::rdma_cm::send_farewells;

use crate::guard::guarded;

/// Runs `call` with all signals blocked. Threads started by it keep them blocked, so the program's handlers run only on its own threads.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the calls read and write signal sets of ours.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// Installs handlers, once: if SIGINT or SIGTERM would end the process by default, its peers are told first. Called at the first
/// connection, and at the first queue pair that other processes of the host reach by a link. A disposition that the program has set, or
/// sets later, takes precedence.
pub(crate) fn tell_peers_of_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the calls read and write a disposition of ours; the handler makes only async-signal-safe calls.
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

/// The signal handler. The system has already restored the default disposition.
extern "C" fn end(signal: c_int) {
    let _ = guarded(|| {
        send_farewells();
        Ok(())
    });
    // SAFETY: the call accesses no memory of ours.
    unsafe {
        libc::raise(signal);
    }
}

/// Makes SIGINT and SIGTERM end the process, unless it ignores them. Called when no code of the program runs any more that could handle
/// them.
pub(crate) fn end_by_signals() {
    // SAFETY: the calls read and write signal sets and dispositions of ours.
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
