//! A port in another process, which sends every frame back: for tests of links between two processes.
#![allow(dead_code, reason = "not every test has a use for everything")]

use rustix::process::{Pid, Signal, kill_process};
use stack::port::{Port, PortOptions, PortQueue, PortSpec, Route, RxBurst, TxBurst};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "ROCE_PORT_TEST_CHILD";
const FORKS: &str = "ROCE_PORT_TEST_FORKS";
/// Time limit of a wait, for a machine that is arbitrarily busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The other process: sends every frame back with its first byte changed, until its standard input ends. To be called by a test of this
/// name; in the process that runs all tests it does nothing.
pub fn child() {
    let Ok(job) = std::env::var(CHILD) else { return };
    let (queues, spec) = job.split_once('|').unwrap();
    let queues: usize = queues.parse().unwrap();
    let port = open(spec, queues);
    if std::env::var_os(FORKS).is_some() {
        println!("\nfork is {}", fork());
    }
    println!("\nchild is ready");
    let done = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            done.store(true, Ordering::Relaxed);
        }
    });
    echo(&*port, &done);
}

/// Sends every frame back with its first byte changed, until `done` is set.
pub fn echo(port: &dyn Port, done: &AtomicBool) {
    let mut all: Vec<_> = (0..port.info().queues).map(|i| port.take_queue(i).unwrap()).collect();
    let mut clock = Ticker::new();
    let mut got = RxBurst::new();
    let mut back = TxBurst::new();
    while !done.load(Ordering::Relaxed) {
        clock.maintain(port);
        for queue in &mut all {
            queue.rx_burst(&mut got);
            for mut frame in got.drain(..) {
                frame.data_mut()[0] = 0xee;
                back.push(frame);
            }
            queue.tx_burst(Route::default(), &mut back);
            back.clear();
        }
    }
}

/// Forks a child, which does nothing until it is killed.
pub fn fork() -> i32 {
    // SAFETY: the child only makes system calls, and dies of one of them at the latest.
    idle_child(unsafe { libc::fork() })
}

/// Forks a child by the bare system call, as some programs do: the C library does not know of it, and no fork handler runs.
pub fn fork_without_handlers() -> i32 {
    // SAFETY: as in `fork`. The call has the arguments of fork(2): a signal for the child's end, and nothing else.
    idle_child(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32)
}

/// Whether a condition holds in a forked child of this process.
pub fn in_fork(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only what the caller wants to check in a forked child, and exits without running anything else of its parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: takes a number. A child that hangs is ended by the signal.
        unsafe { libc::alarm(5 * PATIENCE.as_secs() as u32) };
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(holds)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if right { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for that child; the status is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) == (true, 7)
}

/// Handles the result of a fork: returns it in the parent, and never returns in the child.
fn idle_child(child: i32) -> i32 {
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        loop {
            // SAFETY: takes numbers. The alarm ends the process if nobody kills it.
            unsafe {
                libc::alarm(5 * PATIENCE.as_secs() as u32);
                libc::pause();
            }
        }
    }
    child
}

/// Maintains a port at intervals.
pub struct Ticker(Instant);

impl Ticker {
    pub fn new() -> Self {
        Self(Instant::now())
    }
    pub fn maintain(&mut self, port: &dyn Port) {
        if self.0.elapsed() >= Duration::from_millis(10) {
            self.0 = Instant::now();
            port.maintain();
            std::thread::yield_now();
        }
    }
}

/// The other process; killed when dropped.
pub struct Peer(pub Child);

/// A forked child of the other process; killed when dropped.
pub struct Fork(Pid);

impl Fork {
    pub fn lives(&self) -> bool {
        // A process whose parent is not in this test leaves no zombie here.
        rustix::process::test_kill_process(self.0).is_ok()
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

impl Fork {
    pub fn of(pid: i32) -> Self {
        Self(Pid::from_raw(pid).unwrap())
    }
}

impl Peer {
    pub fn start(spec: &str, queues: usize) -> Self {
        Self::spawn(spec, queues, |command| command).0
    }

    /// A process that forks a child when its port is open.
    pub fn start_and_fork(spec: &str) -> (Self, Fork) {
        let (peer, said) = Self::spawn(spec, 1, |command| command.env(FORKS, ""));
        let fork = said.iter().find_map(|line| line.strip_prefix("fork is ")?.parse().ok());
        (peer, Fork::of(fork.unwrap()))
    }

    /// A process in a PID namespace of its own, in which this process has no number; only as root. `None` if unshare(1) is missing.
    pub fn start_in_a_pid_namespace(spec: &str) -> Option<Self> {
        let unshare = || Command::new("unshare");
        if !unshare().args(["--pid", "--fork", "true"]).status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: unshare(1) is missing, or makes no PID namespace");
            return None;
        }
        let mut command = unshare();
        command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
        Some(Self::spawned(command, spec, 1, |command| command).0)
    }

    /// Starts the other process; also returns the lines that it printed before it was ready.
    fn spawn(
        spec: &str,
        queues: usize,
        more: impl FnOnce(&mut Command) -> &mut Command,
    ) -> (Self, Vec<String>) {
        Self::spawned(Command::new(std::env::current_exe().unwrap()), spec, queues, more)
    }

    fn spawned(
        mut command: Command,
        spec: &str,
        queues: usize,
        more: impl FnOnce(&mut Command) -> &mut Command,
    ) -> (Self, Vec<String>) {
        command
            .args(["child", "--exact", "--nocapture"])
            .env(CHILD, format!("{queues}|{spec}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = more(&mut command).spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
            if line == "child is ready" {
                return (Self(child), said);
            }
            said.push(line);
        }
        panic!("the other process did not start: {}", child.wait().unwrap());
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Changes the user of the calling thread only: to the kernel each thread has its own user. Only as root.
pub fn become_user(user: u32) {
    for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
        // SAFETY: takes numbers. Called without the C library, which would change every thread.
        let result = unsafe { libc::syscall(call, user, user, user) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// A path at which no file exists.
pub fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("roce-{}-{name}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Opens a port.
pub fn open(spec: &str, queues: usize) -> Box<dyn Port> {
    let options = PortOptions { queues, frames: 1024, ..PortOptions::default() };
    spec.parse::<PortSpec>().unwrap().open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// Sends frames of many sizes and waits until each size came back.
pub fn exchange(port: &dyn Port, queue: &mut dyn PortQueue, what: &str) {
    let max = port.info().max_frame();
    let mut clock = Ticker::new();
    let mut got = RxBurst::new();
    let mut burst = TxBurst::new();
    let start = Instant::now();
    for size in [14, 60, 64, 65, 1000, 1514, 2048, 4096, max] {
        let mut sent: Option<Instant> = None;
        'answered: loop {
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: no answer to {size} bytes, link up: {}",
                port.link_up()
            );
            clock.maintain(port);
            // A frame that was sent while the link went down is lost, as on every link: send again.
            if sent.is_none_or(|at| at.elapsed() > Duration::from_millis(50)) {
                let mut frame = queue.alloc().expect("buffers come back");
                frame.set_len(size);
                for (i, byte) in frame.data_mut().iter_mut().enumerate() {
                    *byte = (i % 251) as u8;
                }
                burst.push(frame);
                queue.tx_burst(Route::default(), &mut burst);
                burst.clear();
                sent = Some(Instant::now());
            }
            queue.rx_burst(&mut got);
            for frame in &got {
                if frame.len() == size {
                    assert_eq!(frame.data()[0], 0xee);
                    assert!(
                        frame.data().iter().enumerate().skip(1).all(|(i, &byte)| byte == (i % 251) as u8)
                    );
                    queue.recycle(&mut got);
                    break 'answered;
                }
            }
            queue.recycle(&mut got);
        }
    }
}

/// The test runner's own message about a test that takes long; it may appear between other lines.
const LONG: &str = "has been running for over";

/// The next line of a child that runs as a test; `None` if the child has ended.
pub fn hear(said: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = String::new();
        match said.read_line(&mut line).unwrap() {
            0 => return None,
            _ if line.contains(LONG) => {}
            _ => return Some(line.trim_end().into()),
        }
    }
}
