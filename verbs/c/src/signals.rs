//! Signals are the program's: no thread of the device handles one.

use core::ptr;

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
