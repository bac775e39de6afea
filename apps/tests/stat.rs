//! `roce-stat` from end to end: against a device of this process, and against a program.

use crate::common::{self, Bench, Finished, Link, PINGPONG, run};
use apps::cli::stat::StatCli;
use clap::{CommandFactory, Parser};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;
use verbs::{Access, Context, Cq, DeviceConfig, Mr, Qp, QpInitAttr, RcOptions, RecvWr, SendWr, Wc};

const STAT: &str = env!("CARGO_BIN_EXE_roce-stat");

/// A queue pair that is connected to itself, on a device with a statistics socket.
struct Stack {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    context: Context,
}

impl Stack {
    fn at(path: &Path) -> Self {
        let context = Context::open(DeviceConfig::loopback().stats(path)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
        let cq = context.create_cq(16).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &RcOptions::default().sgid_index(1)).unwrap();
        Self { qp, cq, mr, context }
    }

    fn message(&self, len: usize) {
        self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(2048..4096).unwrap()])]).unwrap();
        self.qp.post_send(&[SendWr::send(2, &[self.mr.sge(0..len).unwrap()]).signaled()]).unwrap();
        let (mut done, mut wc, start) = (0, [Wc::default(); 2], Instant::now());
        while done < 2 {
            assert!(start.elapsed() < common::LIMIT);
            let n = self.cq.poll(&mut wc).unwrap();
            assert!(wc[..n].iter().all(Wc::is_ok));
            done += n;
        }
    }

    fn qpn(&self) -> u32 {
        self.qp.qp_num().get()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_definition_is_consistent_and_teaches() {
    StatCli::command().debug_assert();
    let help = StatCli::command().render_long_help().to_string();
    for part in ["Examples", "--stats", "Keys of the live view", "XDG_RUNTIME_DIR", "read only"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for wrong in [&["--interval", "0"][..], &["--count", "2"], &["--sort", "luck"], &["--interval", "2h"]] {
        assert!(StatCli::try_parse_from([&["roce-stat"], wrong].concat()).is_err(), "{wrong:?}");
    }
    let help = run(STAT, &["--help"]).good().stdout;
    assert!(help.contains("roce-pingpong --stats"), "{help}");
}

#[test]
fn one_table_has_the_queue_pair() {
    let bench = Bench::new(Link::Unix);
    let path = bench.path("s.sock");
    let stack = Stack::at(&path);
    stack.message(100);
    let out = run(STAT, &["--once", "--interval", "50ms", text(&path)]).good().stdout;
    let qpn = format!("{:#08x}", stack.qpn());
    let line =
        out.lines().find(|line| line.trim_start().starts_with(&qpn)).unwrap_or_else(|| panic!("{out}"));
    for part in ["RC", "RTS", "192.0.2.1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(out.contains("1 of 1 queue pairs") && out.contains("drops: none"), "{out}");
    assert!(out.contains(&format!("pid {}", std::process::id())), "{out}");
    let none = run(STAT, &["--once", "--interval", "10ms", "--filter", "UD", text(&path)]).good().stdout;
    assert!(!none.contains(&qpn) && none.contains("0 of 1 queue pairs"), "{none}");
}

#[test]
fn json_is_what_the_device_counted() {
    let bench = Bench::new(Link::Unix);
    let path = bench.path("s.sock");
    let stack = Stack::at(&path);
    (0..3).for_each(|_| stack.message(100));
    let out = run(STAT, &["--once", "--json", "--interval", "10ms", text(&path)]).good().stdout;
    assert_eq!(out.lines().count(), 1);
    let line = object(&out);
    assert_eq!(line["version"], 1);
    let shown = &line["stacks"][0];
    assert_eq!(shown["pid"], std::process::id());
    assert_eq!((&shown["qps_total"], &shown["shards"][0]["qps"]), (&1.into(), &1.into()));
    let qp = &shown["qps"][0];
    assert_eq!((&qp["qpn"], &qp["peer"]["qpn"]), (&stack.qpn().into(), &stack.qpn().into()));
    assert_eq!((&qp["qp_type"], &qp["state"]), (&"RC".into(), &"RTS".into()));
    for (name, value) in stack.qp.counters().iter().filter(|(_, value)| *value > 0) {
        assert_eq!(qp["counters"][name], value, "{name}");
    }
    assert_eq!(qp["counters"]["send_messages"], 3);
    assert_eq!(qp["counters"]["recv_bytes"], 300);
    let lines = run(STAT, &["--json", "--count", "3", "--interval", "10ms", text(&path)]).good().stdout;
    let lines: Vec<_> = lines.lines().map(object).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["stacks"][0]["interval_s"].as_f64().unwrap() > 0.009));
}

#[test]
fn a_directory_shows_all_and_what_is_stale_goes() {
    let bench = Bench::new(Link::Unix);
    let dir = bench.path("run");
    std::fs::create_dir(&dir).unwrap();
    let stale = dir.join("1-0.sock");
    drop(UnixListener::bind(&stale).unwrap());
    std::fs::write(dir.join("notes.txt"), "not a socket").unwrap();
    let (a, b) = (Stack::at(&dir), Stack::at(&dir));
    let out = run(STAT, &["--once", "--json", "--interval", "10ms", text(&dir)]).good();
    assert_eq!(object(&out.stdout)["stacks"].as_array().unwrap().len(), 2);
    assert!(out.stderr.contains("removed") && out.stderr.contains("1-0.sock"), "{}", out.stderr);
    assert!(!stale.exists());
    let name = |context: &Context| context.stats_path().unwrap().to_owned();
    let (gone, here) = (name(&a.context), name(&b.context));
    drop(a);
    assert!(!gone.exists() && here.exists(), "a device that closes takes its socket along");
    run(STAT, &["--once", "--interval", "10ms", text(&dir)]).good();
}

// Goal: a directory may have sockets and files of other programs, which are none of ours to remove.
#[test]
fn what_no_device_left_behind_stays() {
    let bench = Bench::new(Link::Unix);
    let dir = bench.path("run");
    std::fs::create_dir(&dir).unwrap();
    let [file, numbered, other] = ["file.sock", "7-0.sock", "other.sock"].map(|name| dir.join(name));
    std::fs::write(&file, "mine").unwrap();
    std::fs::write(&numbered, "mine").unwrap();
    drop(UnixListener::bind(&other).unwrap());
    let _stack = Stack::at(&dir);
    let out = run(STAT, &["--once", "--interval", "10ms", text(&dir)]).good();
    assert!(out.stderr.contains("it is no socket") && !out.stderr.contains("removed"), "{}", out.stderr);
    assert_eq!([file, numbered].map(|path| std::fs::read(path).unwrap()), [b"mine", b"mine"]);
    assert!(other.exists());
}

// Goal: the socket of a memif link, in the same directory by default, is no mistake of the user's.
#[test]
fn the_socket_of_a_memif_link_is_passed_over() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let bench = Bench::new(Link::Unix);
    let dir = bench.path("run");
    std::fs::create_dir(&dir).unwrap();
    let memif = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&memif, &SocketAddrUnix::new(dir.join("memif.sock")).unwrap()).unwrap();
    listen(&memif, 1).unwrap();
    let _stack = Stack::at(&dir);
    let out = run(STAT, &["--once", "--interval", "10ms", text(&dir)]).good();
    assert_eq!(out.stderr, "");
}

#[test]
fn mistakes_are_explained() {
    let bench = Bench::new(Link::Unix);
    let dir = bench.path("run");
    std::fs::create_dir(&dir).unwrap();
    let nothing = run(STAT, &["--once", text(&dir)]).bad("no running stack found in");
    assert!(nothing.stderr.contains("start one with --stats"), "{}", nothing.stderr);
    run(STAT, &["--once", text(&dir.join("missing.sock"))]).bad("missing.sock");
    let stale = bench.path("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    run(STAT, &["--once", text(&stale)]).bad("no process serves this socket");
    assert!(stale.exists(), "a path that was named is left alone");
    let path = bench.path("s.sock");
    let _stack = Stack::at(&path);
    run(STAT, &[text(&path)]).bad("needs a terminal");
    run(PINGPONG, &["--port", "loopback", "--stats=/nonexistent/s", "host"]).bad("no directory /nonexistent");
}

// Another program's socket that sends anything but a snapshot.
#[test]
fn what_is_no_stack_is_refused() {
    use std::io::Write;
    let bench = Bench::new(Link::Unix);
    for (n, (sent, part)) in [
        (&b"hello"[..], "no statistics socket"),
        (b"", "no statistics socket"),
        (b"{\"version\":99}", "version 99"),
        (b"{\"version\":1,\"pid\":", "no statistics socket"),
    ]
    .into_iter()
    .enumerate()
    {
        let path: PathBuf = bench.path(&format!("{n}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(sent).unwrap());
        run(STAT, &["--once", text(&path)]).bad(part);
        server.join().unwrap();
    }
}

/// Runs `roce-stat` with this runtime directory.
fn stat_in(runtime: &Path, args: &[&str]) -> Finished {
    let mut command = std::process::Command::new(STAT);
    command.args(args).env("XDG_RUNTIME_DIR", runtime).output().unwrap().into()
}

// The option without a path, and roce-stat without one: both use the same directory.
#[test]
fn a_program_with_the_option_is_found() {
    let bench = Bench::new(Link::Unix);
    let runtime = bench.path("run");
    std::fs::create_dir(&runtime).unwrap();
    let once = ["--once", "--json", "--interval", "10ms"];
    let nothing = stat_in(&runtime, &once).bad("no running stack found in");
    assert!(nothing.stderr.contains(text(&runtime.join("roce"))), "{}", nothing.stderr);
    // A report is of use there, too.
    let report = ["--report", "--interval", "10ms"];
    let idle = stat_in(&runtime, &report).good();
    assert!(
        idle.stdout.contains("- kernel: Linux") && idle.stdout.contains("no running stack found"),
        "{}",
        idle.stdout
    );
    let (port, tcp) = (bench.server_port(), bench.tcp.to_string());
    let mut server = std::process::Command::new(PINGPONG)
        .args(["--port", &port, "-p", &tcp, "--bind", "127.0.0.1", "--drive", "caller", "--stats"])
        .env("XDG_RUNTIME_DIR", &runtime)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let line = loop {
        let out = stat_in(&runtime, &once);
        if out.code == Some(0) && object(&out.stdout)["stacks"][0]["qps_total"] == 1 {
            break object(&out.stdout);
        }
        assert!(start.elapsed() < common::LIMIT, "{}", out.all());
    };
    let stack = &line["stacks"][0];
    let pid = server.id();
    let running = stat_in(&runtime, &report).good();
    assert!(running.stdout.contains("\n```json\n{\"version\":1,\"stacks\":[{"), "{}", running.stdout);
    // It dies without a cleanup; the next search removes its socket.
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((&stack["pid"], &stack["program"]), (&pid.into(), &"roce-pingpong".into()));
    let gone = stat_in(&runtime, &once).bad("no running stack found in");
    assert!(gone.stderr.contains(&format!("{pid}-0.sock")), "{}", gone.stderr);
    assert_eq!(std::fs::read_dir(runtime.join("roce")).unwrap().count(), 0);
}

// No other user may put a socket where roce-stat looks.
#[test]
fn a_directory_of_others_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(Link::Unix);
    let dir = bench.path("roce");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    stat_in(dir.parent().unwrap(), &["--once"]).bad("may be written by others");
    std::fs::remove_dir(&dir).unwrap();
    std::os::unix::fs::symlink("/tmp", &dir).unwrap();
    stat_in(dir.parent().unwrap(), &["--once"]).bad("is no directory");
}
