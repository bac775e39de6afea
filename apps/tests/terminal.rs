//! Programs whose terminal, reader or disk goes away, and signals: each ends at once, or continues where that is intended,
//! and none panics.

use crate::common::{self, Bench, Finished, Link, PERF, PINGPONG, Running, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const STAT: &str = env!("CARGO_BIN_EXE_roce-stat");

/// A terminal like a window: its output, and how to close it.
pub struct Terminal {
    path: String,
    shown: Arc<Mutex<String>>,
    closed: Arc<AtomicBool>,
    window: Option<std::thread::JoinHandle<()>>,
}

impl Terminal {
    pub fn open() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let (shown, closed) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (to, end) = (Arc::clone(&shown), Arc::clone(&closed));
        let mut master = File::from(master);
        let window = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !end.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&master, PollFlags::IN)];
                let slice = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                if poll(&mut fds, Some(&slice)).unwrap() > 0 {
                    // Fails while no program has the terminal open.
                    let n = master.read(&mut bytes).unwrap_or(0);
                    to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
                }
            }
        });
        Self { path, shown, closed, window: Some(window) }
    }

    /// Starts a program on it. Where it is the controlling terminal, closing it sends SIGHUP.
    pub fn start(&self, controlling: bool, program: &str, args: &[&str]) -> Running {
        let end = || {
            let flags = OFlags::NOCTTY.bits() as i32;
            Stdio::from(File::options().read(true).write(true).custom_flags(flags).open(&self.path).unwrap())
        };
        let mut command = Command::new(if controlling { "setsid" } else { program });
        if controlling {
            command.args(["--ctty", program]);
        }
        Running::spawn(command.args(args).stdin(end()).stdout(end()).stderr(end()))
    }

    pub fn shows(&self, text: &str) {
        until(|| self.shown.lock().unwrap().contains(text).then_some(()));
    }

    fn close(mut self) {
        self.closed.store(true, Ordering::Relaxed);
        self.window.take().unwrap().join().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn send(signal: Signal, to: &mut Running) {
    kill_process(Pid::from_raw(to.id() as i32).unwrap(), signal).unwrap();
}

/// Ended by a signal that it handled, or by the end of its terminal.
#[track_caller]
pub fn interrupted(end: &Finished) {
    assert_eq!(end.code, Some(130), "{}", end.all());
}

/// A program with a statistics socket that waits for a client.
fn shown(bench: &Bench) -> (Running, String) {
    let stats = bench.path("stats").display().to_string();
    let (port, tcp) = (bench.server_port(), bench.tcp.to_string());
    let server = Running::start(
        PERF,
        &["server", "-R", "--port", &port, "--oob-port", &tcp, &format!("--stats={stats}")],
    );
    until(|| UnixStream::connect(&stats).ok());
    (server, stats)
}

#[test]
fn roce_stat_ends_with_its_terminal() {
    for controlling in [true, false] {
        let bench = Bench::new(Link::Unix);
        let (_server, stats) = shown(&bench);
        let terminal = Terminal::open();
        let stat = terminal.start(controlling, STAT, &[&stats]);
        terminal.shows("Shards");
        terminal.close();
        interrupted(&stat.finish());
    }
}

#[test]
fn roce_stat_ends_with_one_signal_and_gives_the_terminal_back() {
    let bench = Bench::new(Link::Unix);
    let (_server, stats) = shown(&bench);
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let terminal = Terminal::open();
        let mut stat = terminal.start(true, STAT, &[&stats]);
        terminal.shows("Shards");
        send(signal, &mut stat);
        interrupted(&stat.finish());
        terminal.shows("\u{1b}[?1049l");
    }
}

// A stopped process does not accept, and a client's connect waits for it.
#[test]
fn roce_stat_ends_with_one_signal_while_a_stack_does_not_answer() {
    let bench = Bench::new(Link::Unix);
    let path = bench.path("stopped.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    let full = |waiting: &mut Vec<UnixStream>| {
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        let kind = rustix::net::SocketType::STREAM;
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap();
        let done = rustix::net::connect(&socket, &address);
        waiting.push(socket.into());
        done.is_err()
    };
    while !full(&mut waiting) {}
    let mut stat = Running::start(STAT, &["--once", path.to_str().unwrap()]);
    // It reacts to signals only after it has installed its handlers.
    until(|| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", stat.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        (u64::from_str_radix(&caught, 16).unwrap() & 1 << 14 != 0).then_some(())
    });
    send(Signal::TERM, &mut stat);
    interrupted(&stat.finish());
}

// The bar is drawn by a separate thread; the server is not affected, and serves the next client.
#[test]
fn a_measurement_ends_with_its_terminal_or_without_a_panic() {
    let bench = Bench::new(Link::Unix);
    let _server = bench.perf_server(&[]);
    let (port, tcp) = (bench.client_port(), bench.tcp.to_string());
    for (controlling, code) in [(true, 130), (false, 1)] {
        let terminal = Terminal::open();
        let to = ["client", "--port", &port, "--oob-port", &tcp, "--timeout", "17", "127.0.0.1"];
        let client = terminal.start(controlling, PERF, &[&to[..], &["-D", "3s"]].concat());
        terminal.shows("0/1");
        terminal.close();
        let end = client.finish();
        assert_eq!(end.code, Some(code), "{}", end.all());
    }
    bench.perf_client(&["-n", "20"]).finish().good();
}

// A run between two ends that are never idle.
#[test]
fn a_game_ends_with_one_signal() {
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let bench = Bench::new(Link::Unix);
        let stats = bench.path("stats").display().to_string();
        let game = ["-n", "1000000000000"];
        let mut server = bench.pingpong_server(&game);
        let mut client = bench.pingpong_client(&[&game[..], &[&format!("--stats={stats}")]].concat());
        until(|| {
            let snapshot = verbs::stats::Snapshot::fetch(stats.as_ref()).ok()?;
            snapshot.qps.iter().any(|qp| qp.counters.get("send_messages") > Some(&100)).then_some(())
        });
        for end in [&mut client, &mut server] {
            send(signal, end);
        }
        [client, server].into_iter().for_each(|end| interrupted(&end.finish()));
    }
}

// A program that was started to outlive its terminal must do so.
#[test]
fn a_server_that_is_to_ignore_the_end_of_its_terminal_goes_on() {
    let bench = Bench::new(Link::Unix);
    let (port, tcp) = (bench.server_port(), bench.tcp.to_string());
    let line = [
        "-c",
        "trap '' HUP; exec \"$@\"",
        "sh",
        PERF,
        "server",
        "--once",
        "--port",
        &port,
        "--oob-port",
        &tcp,
    ];
    let mut server = Running::start("sh", &line);
    until(|| bench.server_socket().exists().then_some(()));
    send(Signal::HUP, &mut server);
    bench.perf_client(&["-n", "20"]).finish().good();
    server.finish().good();
}

/// A stream whose reader has gone.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn nobody_reads() {
    let bench = Bench::new(Link::Unix);
    let (a, b, tcp) = (bench.server_port(), bench.client_port(), bench.tcp.to_string());
    let server = ["server", "--once", "--port", &a, "--oob-port", &tcp];
    let json = bench.path("rows.json");
    let client = [
        "client",
        "--port",
        &b,
        "--oob-port",
        &tcp,
        "--wait",
        "60s",
        "-n",
        "20",
        "--json",
        json.to_str().unwrap(),
        "127.0.0.1",
    ];
    // The results are in the file nevertheless.
    let server = Running::spawn(Command::new(PERF).args(server).stderr(unread()));
    let client = Running::spawn(Command::new(PERF).args(client).stdout(unread()).stderr(Stdio::piped()));
    client.finish().good();
    server.finish().good();
    assert_eq!(common::rows(&json).len(), 1);
    // Its first output cannot be written: it does not run.
    let pingpong = Running::spawn(
        Command::new(PINGPONG)
            .args(["--port", "loopback", "-p", &tcp, "127.0.0.1"])
            .stdout(unread())
            .stderr(Stdio::piped()),
    );
    let end = pingpong.finish().good();
    assert_eq!(end.stderr, "");
    // An error that cannot be printed is still an error.
    let wrong = Running::spawn(
        Command::new(PERF)
            .args(["client", "--port", "loopback", "--wait", "1ms", "127.0.0.1:1"])
            .stderr(unread()),
    );
    assert_eq!(wrong.finish().code, Some(1));
    let (_server, stats) = shown(&bench);
    Running::spawn(Command::new(STAT).args(["--json", "--interval", "10ms", &stats]).stdout(unread()))
        .finish()
        .good();
}

#[test]
fn a_disk_that_is_full_is_an_error() {
    let bench = Bench::new(Link::Unix);
    let (_server, stats) = shown(&bench);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let stat = Running::spawn(
        Command::new(STAT).args(["--once", "--interval", "10ms", &stats]).stdout(full).stderr(Stdio::piped()),
    );
    stat.finish().bad("the output cannot be written");
}
