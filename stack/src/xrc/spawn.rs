#![allow(unsafe_code)]
//! Starts a program that is independent of this process.
//!
//! The library does this inside arbitrary programs, which must not notice: the calling program gets no child to wait for, and no SIGCHLD.
//! So the new program is started by an intermediate process, which ends at once: it is created without an exit signal (fork(2) and exec(2)
//! would restore SIGCHLD), and waited for here. Both new processes share this process's memory and run on their own stacks, while this
//! thread waits for them with all signals blocked; they make system calls, and nothing else. No fork handlers run, because no memory is
//! copied.
//!
//! The new program has a session of its own, and none of this process's file descriptors (otherwise the reader of a pipe would wait for
//! it), nor its working directory, nor its signal dispositions.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use std::ffi::CString;
use std::io;

/// Size of the stack of each of the two processes, in bytes.
const STACK: usize = 64 << 10;
/// Upper bound of the descriptors that are closed one by one, if the kernel cannot close all at once (before Linux 5.9).
const CLOSED_SINGLY: c_int = 1 << 16;
/// One more than the highest signal number.
const SIGNALS: c_int = 65;

/// The input of the two processes, and the result.
struct Job {
    program: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    /// The top of the second process's stack.
    stack: *mut c_void,
    /// The error number of the failed call; 0 for none.
    error: c_int,
}

#[repr(align(16))]
struct Stack([MaybeUninit<u8>; STACK]);

impl Stack {
    fn new() -> Box<[Self; 2]> {
        Box::new([const { Self([MaybeUninit::uninit(); STACK]) }; 2])
    }

    fn top(&mut self) -> *mut c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// Starts a program with these arguments, the first of which is its name, and this environment.
///
/// # Errors
/// The errors of clone(2) and execve(2).
pub fn start(program: &CStr, args: &[CString], env: &[CString]) -> io::Result<()> {
    let (args, env) = (pointers(args), pointers(env));
    let mut stacks = Stack::new();
    let [first, second] = &mut *stacks;
    let mut job = Job {
        program: program.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        stack: second.top(),
        error: 0,
    };
    let job_at: *mut Job = &raw mut job;
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are local; `all` is filled before it is used.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the stack and the job live until this call returns, and by CLONE_VFORK that is after both processes have ended or have
    // executed the program. Nothing else uses them meanwhile.
    let pid =
        unsafe { libc::clone(in_between, first.top(), libc::CLONE_VM | libc::CLONE_VFORK, job_at.cast()) };
    let failed = if pid < 0 { Some(io::Error::last_os_error()) } else { None };
    if pid >= 0 {
        // SAFETY: takes numbers. The process has ended, and is only reaped here; if the program waits for any process with __WALL, it may
        // have reaped it already.
        unsafe {
            libc::syscall(libc::SYS_wait4, pid, null_mut::<c_int>(), libc::__WCLONE, null_mut::<c_void>())
        };
    }
    // SAFETY: `before` was filled above: that call cannot fail.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    // SAFETY: the other processes have ended or left this memory, so this thread alone uses the job again.
    match (failed, unsafe { (*job_at).error }) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether this program runs with more privileges than its user (set-user-ID, file capabilities).
pub fn has_more_rights_than_its_user() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([null()]).collect()
}

/// The intermediate process.
extern "C" fn in_between(job: *mut c_void) -> c_int {
    let job: *mut Job = job.cast();
    // SAFETY: as in `start`, whose thread waits for this process; the second process uses the job while this one waits for it.
    unsafe {
        let pid = libc::clone(becomes_program, (*job).stack, libc::CLONE_VM | libc::CLONE_VFORK, job.cast());
        if pid < 0 {
            (*job).error = *libc::__errno_location();
        }
    }
    0
}

/// The process that executes the program. Returns only if that fails.
extern "C" fn becomes_program(job: *mut c_void) -> c_int {
    let job: *mut Job = job.cast();
    // SAFETY: system calls on numbers, on constants, and on strings that live as long as the job; descriptors and signal dispositions are
    // this process's own copies.
    unsafe {
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        if close_descriptors() {
            reset_signals();
            libc::execve((*job).program, (*job).args, (*job).env);
        }
        (*job).error = *libc::__errno_location();
    }
    1
}

/// Closes all file descriptors, and opens 0, 1 and 2 as /dev/null. `false` if /dev/null cannot be opened.
///
/// # Safety
/// Only for a process that does not need its file descriptors.
unsafe fn close_descriptors() -> bool {
    // Raw system calls: functions of the C library are cancellation points, and the C face replaces some of them. SAFETY: as the caller
    // promises; system calls on numbers and a constant.
    unsafe {
        let null =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_RDWR) as c_int;
        if null < 0 {
            return false;
        }
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        if libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0) != 0 {
            for fd in 3..CLOSED_SINGLY {
                libc::syscall(libc::SYS_close, fd);
            }
        }
    }
    true
}

/// Resets all signals to their default disposition, and unblocks them.
///
/// # Safety
/// Only for a process with signal dispositions of its own.
unsafe fn reset_signals() {
    // The kernel's structure: handler, flags, restorer, signal mask. All zeros mean the default disposition.
    let usual = [0_usize; 8];
    // SAFETY: as the caller promises; the system call reads the structure, and the sets are local. (A raw call, because the C library's
    // function refuses the signals that it reserves, and a program may have been started with those ignored.)
    unsafe {
        for signal in 1..SIGNALS {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                usual.as_ptr(),
                null_mut::<c_void>(),
                size_of::<u64>(),
            );
        }
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), null_mut());
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    fn strings(all: &[&str]) -> Vec<CString> {
        all.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    /// Has a shell run a script, and waits for the output that it writes to a file.
    fn said_by(script: &str) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("roce-spawn-{}-{number}", std::process::id()));
        let part = file.with_extension("part");
        let script = format!("{{ {script}; }} >{} && mv {0} {}", part.display(), file.display());
        start(c"/bin/sh", &strings(&["sh", "-c", &script]), &strings(&["A=b", "PATH=/usr/bin:/bin"]))
            .unwrap();
        let since = Instant::now();
        while !file.exists() {
            assert!(since.elapsed() < Duration::from_secs(60), "nothing came");
            std::thread::sleep(Duration::from_millis(2));
        }
        let said = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        said
    }

    #[test]
    fn the_program_is_nobodys_child_and_has_a_session_of_its_own() {
        // Field 1: process id, 4: parent's process id, 6: session id.
        let stat = said_by("cat /proc/$$/stat");
        let fields: Vec<&str> = stat.split(' ').collect();
        assert_ne!(fields[3], std::process::id().to_string());
        assert_eq!(fields[5], fields[0], "{stat}");
    }

    #[test]
    fn the_program_has_no_descriptor_directory_or_signal_of_ours() {
        let (_reader, writer) = std::io::pipe().unwrap();
        // A descriptor that exec does not close.
        let kept = rustix::io::dup(&writer).unwrap();
        // The signals of a child of the shell, because the shell itself blocks some while it waits.
        let said = said_by("ls -l /proc/$$/fd; pwd; echo $A; grep Sig /proc/self/status");
        drop(kept);
        assert!(!said.contains("pipe:") && said.contains("0 -> /dev/null"), "{said}");
        assert!(said.contains("\n/\nb\n"), "{said}");
        for line in ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"] {
            assert!(said.contains(line), "{said}");
        }
    }

    // Goal: a program that waits for any of its children finds no child of this module.
    #[test]
    fn no_child_is_left_behind() {
        start(c"/bin/true", &strings(&["true"]), &[]).unwrap();
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let children = std::path::Path::new("/proc").join(thread).join("children");
        match std::fs::read_to_string(children) {
            Ok(children) => assert_eq!(children, ""),
            Err(error) => {
                eprintln!("SKIPPED the children of a thread: the kernel does not list them ({error})")
            }
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = start(c"/nonexistent/program", &strings(&["program"]), &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = start(c"/", &strings(&["program"]), &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
