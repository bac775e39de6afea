#![allow(unsafe_code)]
//! Does work on a thread of its own: work that another process can block for as long as it likes, or that takes longer than a turn may.
//!
//! close(2) is the common case. It waits for the server of a FUSE file, and for the data of a TCP socket that lingers; and closing a unix
//! socket also closes the descriptors that nobody has received from it. Each piece of work has its own thread, which ends with it, so that
//! one that blocks holds up no other. The caller bounds how many there are at a time.

use super::lock::lock;
use super::process::Process;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// Bytes of the stack of such a thread.
const STACK: usize = 256 << 10;

type Work = Box<dyn FnOnce() + Send>;

/// Work for which no thread could be started, and whether there is any.
static LEFT: Mutex<Vec<Work>> = Mutex::new(Vec::new());
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Does `work` on a thread of its own. If no thread can be started, the work waits until [`retry`] can start one.
pub fn run(work: impl FnOnce() + Send + 'static) {
    start(Box::new(work));
}

fn start(work: Work) {
    // If a thread cannot be started, its closure is dropped. So the closure only shares the work.
    let place = Arc::new(Mutex::new(Some(work)));
    let take = |place: &Mutex<Option<Work>>| lock(place).take();
    let theirs = Arc::clone(&place);
    let started = spawn("roce-apart", move || {
        if let Some(work) = take(&theirs) {
            work();
        }
    });
    if started.is_err()
        && let Some(work) = take(&place)
    {
        lock(&LEFT).push(work);
        IS_SHORT.store(true, Ordering::Relaxed);
    }
}

/// Tries again to start threads for waiting work. Returns whether some still waits: then begin nothing new.
pub fn retry() -> bool {
    // Nearly always it is false: then nothing is written.
    if IS_SHORT.load(Ordering::Relaxed) && IS_SHORT.swap(false, Ordering::Relaxed) {
        let left = core::mem::take(&mut *lock(&LEFT));
        left.into_iter().for_each(start);
    }
    IS_SHORT.load(Ordering::Relaxed)
}

/// Starts a thread in which all signals are blocked.
///
/// # Errors
/// Those of pthread_create(3).
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into()).stack_size(STACK);
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are ours; `all` is filled before it is used. The new thread has the mask of the thread that makes it.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = builder.spawn(body);
    // SAFETY: `before` was filled above: that call cannot fail.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    thread
}

/// A value that is dropped on a thread of its own.
#[derive(Debug)]
pub struct Apart<T: Send + 'static> {
    /// `None` only while it is dropped or taken out.
    value: Option<T>,
    made_by: Process,
}

impl<T: Send + 'static> Apart<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), made_by: Process::this() }
    }

    /// Takes the value out, for work that is itself done apart.
    pub fn into_inner(mut self) -> T {
        self.value.take().expect("it is there until it is dropped")
    }
}

impl<T: Send + 'static> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: AsFd + Send + 'static> AsFd for Apart<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Send + 'static> DerefMut for Apart<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        // A forked child leaks its copy of the value; its sockets are given up when it starts (`unforked`).
        if let Some(value) = self.value.take()
            && self.made_by.is_this()
        {
            run(move || drop(value));
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::ThreadId;

    struct Tells(mpsc::Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    #[test]
    fn a_value_is_dropped_on_another_thread_each_on_its_own() {
        let (tell, told) = mpsc::channel();
        let here = std::thread::current().id();
        drop([(); 2].map(|()| Apart::new(Tells(tell.clone()))));
        let [a, b] = [told.recv().unwrap(), told.recv().unwrap()];
        assert!(a != here && b != here && a != b);
        drop(Apart::new(Tells(tell)).into_inner());
        assert_eq!(told.recv().unwrap(), here);
    }

    #[test]
    fn work_that_waits_keeps_no_other() {
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let (first, second) = (tell.clone(), tell);
        run(move || {
            let _ = wait.recv();
            first.send(1).unwrap();
        });
        run(move || second.send(2).unwrap());
        assert_eq!(told.recv().unwrap(), 2);
        drop(go);
        assert_eq!(told.recv().unwrap(), 1);
    }
}
