//! Starts the programs in pairs, each pair on its own ports.
#![allow(dead_code)]

use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest run here: longer than the programs' own timeouts, so that they report the error.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The programs poll, and a pair of them fills two cores: one pair at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The port between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Unix datagrams.
    Unix,
    /// Shared memory.
    Memif,
    /// UDP sockets on the loopback interface.
    Udp,
}

impl Link {
    /// Every kind whose ends meet in a file, and which needs no setup.
    pub const ALL: &'static [Self] = &[Self::Unix, Self::Memif];
}

/// A directory and a TCP port for one pair of programs.
pub struct Bench {
    dir: PathBuf,
    link: Link,
    pub tcp: u16,
    _guard: MutexGuard<'static, ()>,
}

impl Bench {
    pub fn new(link: Link) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("roce-apps-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, link, tcp: free_port(), _guard: guard }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn server_port(&self) -> String {
        self.port("a", "b")
    }

    pub fn client_port(&self) -> String {
        self.port("b", "a")
    }

    /// The socket that a server creates.
    pub fn server_socket(&self) -> PathBuf {
        match self.link {
            Link::Unix => self.path("a"),
            Link::Memif => self.path("memif"),
            Link::Udp => unreachable!("it is on no path"),
        }
    }

    fn port(&self, ours: &str, theirs: &str) -> String {
        match self.link {
            Link::Unix => format!("unix:{},peer={}", self.path(ours).display(), self.path(theirs).display()),
            Link::Memif => {
                let _ = (ours, theirs);
                format!("memif:{}", self.path("memif").display())
            }
            // Addresses of this pair alone: its TCP port is its own, too.
            Link::Udp => {
                let ([high, low], end) = (self.tcp.to_be_bytes(), if ours == "a" { 1 } else { 2 });
                format!("udp:127.{high}.{low}.{end}")
            }
        }
    }

    /// `roce-perf server` with the options that every pair needs.
    pub fn perf_server(&self, args: &[&str]) -> Running {
        let (port, tcp) = (self.server_port(), self.tcp.to_string());
        let base = ["server", "--port", &port, "--oob-port", &tcp, "--bind", "127.0.0.1"];
        Running::start(PERF, &[&base[..], args].concat())
    }

    /// `roce-perf server -R`.
    pub fn cm_server(&self, args: &[&str]) -> Running {
        let (port, cm) = (self.server_port(), self.tcp.to_string());
        let base = ["server", "-R", "--port", &port, "--oob-port", &cm];
        Running::start(PERF, &[&base[..], args].concat())
    }

    /// `roce-perf client -R` to it.
    pub fn cm_client(&self, args: &[&str]) -> Running {
        let (port, cm) = (self.client_port(), self.tcp.to_string());
        let base = ["client", "-R", "--port", &port, "--oob-port", &cm, "--timeout", "17", "10.77.0.1"];
        Running::start(PERF, &[&base[..], args].concat())
    }

    /// `roce-perf client` likewise.
    pub fn perf_client(&self, args: &[&str]) -> Running {
        let (port, tcp) = (self.client_port(), self.tcp.to_string());
        let to = ["client", "--port", &port, "--oob-port", &tcp, "127.0.0.1"];
        Running::start(PERF, &[&to[..], &PATIENCE, args].concat())
    }

    /// `roce-pingpong` as the server, likewise.
    pub fn pingpong_server(&self, args: &[&str]) -> Running {
        let (port, tcp) = (self.server_port(), self.tcp.to_string());
        let base = ["--port", &port, "-p", &tcp, "--bind", "127.0.0.1"];
        Running::start(PINGPONG, &[&base[..], &PATIENCE, args].concat())
    }

    /// `roce-pingpong` as its client.
    pub fn pingpong_client(&self, args: &[&str]) -> Running {
        let (port, tcp) = (self.client_port(), self.tcp.to_string());
        let base = ["--port", &port, "-p", &tcp, "127.0.0.1"];
        Running::start(PINGPONG, &[&base[..], &PATIENCE, args].concat())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Retries that outlast the other end's wait for a core on a machine where many tests poll at once, and an equally long
/// timeout for a server's start.
pub const PATIENCE: [&str; 4] = ["--timeout", "17", "--wait", "60s"];

pub const PERF: &str = env!("CARGO_BIN_EXE_roce-perf");
pub const PINGPONG: &str = env!("CARGO_BIN_EXE_roce-pingpong");
pub const RUN: &str = env!("CARGO_BIN_EXE_roce-run");

/// What roce-stat shows of the program with this socket.
pub fn counted(stats: &Path) -> String {
    let shown = run(
        env!("CARGO_BIN_EXE_roce-stat"),
        &["--once", "--json", "--interval", "10ms", stats.to_str().unwrap()],
    );
    let shown: serde_json::Value = serde_json::from_str(&shown.good().stdout).unwrap();
    shown["stacks"][0].to_string()
}

/// A counter of it; 0 before there is such a program.
pub fn count(stats: &Path, name: &str) -> u64 {
    let said = if stats.exists() { counted(stats) } else { String::new() };
    let found = said.split_once(&format!("\"{name}\":"));
    found.and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok()).unwrap_or(0)
}

/// Frames that it has received.
pub fn frames(stats: &Path) -> u64 {
    count(stats, "rx_frames")
}

/// A TCP port that was free a moment ago.
pub fn free_port() -> u16 {
    tools::bench::child::free_port().unwrap()
}

/// Waits for a result that must come; how soon depends on the load of the cores.
#[track_caller]
pub fn until<T>(mut come: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(come) = come() {
            return come;
        }
        assert!(since.elapsed() < LIMIT, "it has not come after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that runs; killed when dropped.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(&mut command)
    }

    /// A program whose streams the caller sets up.
    pub fn spawn(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"))))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub fn id(&mut self) -> u32 {
        self.child().id()
    }

    pub fn kill(&mut self) {
        self.child().kill().unwrap();
        self.child().wait().unwrap();
    }

    /// Waits for the end, within the limit.
    pub fn finish(mut self) -> Finished {
        let since = Instant::now();
        while self.child().try_wait().unwrap().is_none() {
            if since.elapsed() > LIMIT {
                self.child().kill().unwrap();
                let output = self.0.take().unwrap().wait_with_output().unwrap();
                panic!("still running after {LIMIT:?}: {}", Finished::from(output).all());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0.take().unwrap().wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        // If a test fails at one end, the other end's output is needed.
        match child.wait_with_output() {
            Ok(output) if std::thread::panicking() => eprintln!("killed: {}", Finished::from(output).all()),
            _ => {}
        }
    }
}

/// How a program ended.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    pub fn all(&self) -> String {
        format!("code {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
    }

    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.all());
        self
    }

    /// Failed, with one sentence that contains `part`.
    #[track_caller]
    pub fn bad(self, part: &str) -> Self {
        assert!(!matches!(self.code, None | Some(0 | 101)), "{}", self.all());
        assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.all());
        assert!(!self.stderr.contains("panicked"), "{}", self.all());
        self
    }
}

/// Runs a program to its end.
pub fn run(program: &str, args: &[&str]) -> Finished {
    Running::start(program, args).finish()
}

/// The rows of a JSON file.
pub fn rows(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Vec<serde_json::Value>>(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Waits until a measurement is running: a fixed sleep would end before a client on a busy machine has connected.
pub fn wait_for_traffic(pcap: &Path) {
    until(|| (std::fs::metadata(pcap).map_or(0, |file| file.len()) >= 64 << 10).then_some(()));
}

/// Sends a signal to a process.
pub fn signal(name: Signal, process: u32) {
    kill_process(Pid::from_raw(process as i32).unwrap(), name).unwrap();
}
