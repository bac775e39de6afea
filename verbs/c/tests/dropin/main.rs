//! Goal: the shared library does for C programs what libibverbs does: calls with good and bad arguments, forks, cancelled threads,
//! ends of all kinds, and every symbol under its version.
//!
//! Programs in `tests/c` are compiled against the installed headers and run as processes of their own.
#![cfg(headers)]

mod abi;
mod border;
mod symbols;
mod words;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("verbs/c is in the workspace")
}

/// The folder of the library, which is built as `scripts/dropin --build` does; `None` where a program is missing for that.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        for program in ["cc", "readelf", "awk"] {
            if Command::new(program).arg("--version").output().is_err() {
                println!("SKIPPED the drop-in library: {program} is missing");
                return None;
            }
        }
        // Beside the binary of this test: <target>/debug/deps.
        let test = std::env::current_exe().expect("a test has a binary");
        let target = test.ancestors().nth(3).expect("it is below the target directory");
        let build = Command::new(workspace().join("scripts/dropin"))
            .args(["--build", "--debug"])
            .env("CARGO_TARGET_DIR", target)
            .env("ROCE_DROPIN_DIR", target.join("dropin-test"))
            .output()
            .expect("the script runs");
        assert!(build.status.success(), "{}", text(&build));
        Some(target.join("dropin-test"))
    });
    library.as_deref()
}

fn text(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    format!("{}\n{}{}", output.status, text[0], text[1])
}

/// A folder that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("roce-dropin-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The programs, one a family of calls or of events in the life of a process.
const PROGRAMS: &[&str] = &[
    "absent.c",
    "calls.c",
    "cancel.c",
    "cm.c",
    "events.c",
    "handles.c",
    "life.c",
    "load.c",
    "many.c",
    "memory.c",
    "services.c",
    "shared.c",
    "traffic.c",
    "unread.c",
    "words.c",
];

/// What they have in common.
const HELPERS: &[&str] = &["check.h", "ends.h", "filter.h"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// Compiles a program of `tests/c`, unless it was; one that loads the library itself is linked without.
fn compile(dir: &Dir, library: &Path, source: &str) -> PathBuf {
    let program = dir.0.join(source.trim_end_matches(".c"));
    if program.exists() {
        return program;
    }
    let list = std::fs::read_to_string(Path::new(env!("OUT_DIR")).join("private.h")).unwrap();
    let number = symbols::private_node(library);
    std::fs::write(dir.0.join("private.h"), list.replace("_PRIVATE", &format!("_{number}"))).unwrap();
    let mut cc = Command::new("cc");
    // `scripts/deep asan`: the program's accesses are checked, and every allocation, the library's too.
    cc.args(std::env::var("ROCE_C_SANITIZE").ok().map(|name| format!("-fsanitize={name}")));
    cc.args(["-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&dir.0).arg("-o").arg(&program);
    cc.arg(sources().join(source));
    if source != "load.c" {
        cc.arg(library.join("libibverbs.so.1")).arg("-lpthread");
    }
    let compiled = cc.output().expect("cc is there");
    assert!(compiled.status.success(), "{}", text(&compiled));
    program
}

/// Compiles a program of `tests/c` and runs it for each list of arguments, over this port.
fn run(dir: &Dir, source: &str, port: &str, stories: &[&str]) {
    let stories: Vec<_> = stories.iter().map(core::slice::from_ref).collect();
    run_with(dir, source, port, &[], &stories);
}

fn run_with(dir: &Dir, source: &str, port: &str, settings: &[(&str, &str)], stories: &[&[&str]]) {
    let Some(library) = library() else { return };
    let program = compile(dir, library, source);
    for story in stories {
        let mut command = program_on(library, dir, &program);
        command.args(story.iter().filter(|word| !word.is_empty()));
        command.env("ROCE_PORT", port.replace("DIR", dir.0.to_str().unwrap())).envs(settings.iter().copied());
        let output = command.output().expect("timeout(1) is there");
        assert!(output.status.success(), "{source} {story:?} over {port}: {}", text(&output));
    }
}

/// Runs a program over the default port, on a host of its own: a network namespace with lo alone. `None`, with a printed reason, where
/// that cannot be made.
fn on_a_host(dir: &Dir, library: &Path, source: &str, arguments: &[&str]) -> Option<Output> {
    let program = compile(dir, library, source);
    let mut command = program_on(library, dir, Path::new("unshare"));
    command.env_remove("ROCE_PORT").args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    let output = command.arg(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare") {
        let _ = writeln!(std::io::stderr(), "SKIPPED {source} on a host of its own: {said}");
        return None;
    }
    Some(output)
}

/// The command of a program on the library.
fn program_on(library: &Path, dir: &Dir, program: &Path) -> Command {
    // A hang is a failure; nothing else depends on time.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "100"]).arg(program).current_dir(&dir.0);
    // What a process leaves at its end is no leak. A thread that is cancelled leaves marks on its stack, which its end on a
    // signal stack of the sanitizer's would run into. More memory than there is may be asked for.
    command.env("ASAN_OPTIONS", "detect_leaks=0:use_sigaltstack=0:allocator_may_return_null=1");
    command.env("LD_LIBRARY_PATH", library).env("XDG_RUNTIME_DIR", &dir.0);
    // The owner of an XRC domain that processes share: built beside this test, and installed beside the library.
    command.env("ROCE_XRCD_PROGRAM", library.with_file_name("debug").join("roce-xrcd"));
    command
}

#[test]
fn calls_with_good_and_bad_arguments() {
    run(&Dir::new("calls"), "calls.c", "loopback", &[""]);
}

#[test]
fn pointers_to_nothing_and_numbers_too_large() {
    run(&Dir::new("handles"), "handles.c", "loopback", &[""]);
}

#[test]
fn calls_for_what_there_is_not() {
    run(&Dir::new("absent"), "absent.c", "loopback", &[""]);
}

#[test]
fn memory_that_may_not_be_accessed_and_regions_without_memory() {
    run(&Dir::new("memory"), "memory.c", "loopback", &["", "old-kernel", "every-region"]);
}

#[test]
fn fields_that_the_stock_libraries_do_not_read_are_not_read() {
    run(&Dir::new("unread"), "unread.c", "loopback", &[""]);
}

#[test]
fn data_by_every_way_to_post_and_to_poll() {
    run(&Dir::new("traffic"), "traffic.c", "loopback", &[""]);
    run(&Dir::new("services"), "services.c", "loopback", &[""]);
}

#[test]
fn events_of_what_ends() {
    run(
        &Dir::new("events"),
        "events.c",
        "loopback",
        &["unfetched", "ending-cq", "busy-cq", "closed-context", "targets"],
    );
}

#[test]
fn events_of_several_contexts() {
    run(&Dir::new("events-of-several"), "events.c", "loopback", &["whose"]);
}

#[test]
fn events_of_a_forked_child() {
    run(&Dir::new("events-forked"), "events.c", "loopback", &["forked", "forked-closed"]);
}

#[test]
fn a_context_that_cannot_be_opened() {
    run(
        &Dir::new("no-descriptors"),
        "events.c",
        "loopback",
        &["no-descriptors", "refused-events", "unknown-events"],
    );
}

#[test]
fn connection_management() {
    run(&Dir::new("cm"), "cm.c", "loopback", &[""]);
}

#[test]
fn forks() {
    let dir = Dir::new("forks");
    for port in ["loopback", "memif:DIR/link"] {
        run(
            &dir,
            "life.c",
            port,
            &["fork-before", "fork-opened", "fork-started", "fork-beside", "spawn", "prefork"],
        );
    }
}

/// `udp:` with addresses of this machine only, which no other test uses. The programs of C use the second one.
fn udp() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(92);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = format!("{high}.{}", low.clamp(1, 254));
    let net = NEXT.fetch_add(2, Ordering::Relaxed);
    format!("udp:127.{net}.{host},127.{}.{host}", net + 1)
}

// Goal: a process that holds nothing of the device forks as if it had never had one, over every port.
#[test]
fn forks_of_processes_that_hold_nothing() {
    let dir = Dir::new("forks-of-nothing");
    for port in ["loopback", "memif:DIR/link", "unix:DIR/a,peer=DIR/b", &udp()] {
        let stories =
            ["fork-closed", "fork-listed", "fork-listed-by-cm", "daemon", "fork-any-time", "fork-files"];
        run(&dir, "life.c", port, &stories);
    }
}

#[test]
fn programs_that_are_started_inherit_nothing() {
    let dir = Dir::new("exec");
    for port in ["loopback", "memif:DIR/link"] {
        run(&dir, "life.c", port, &["exec"]);
    }
}

#[test]
fn threads_that_are_cancelled_and_processes_that_end() {
    let dir = Dir::new("ends");
    run(&dir, "life.c", "loopback", &["cancel", "leave", "destructors"]);
    run(&dir, "life.c", "memif:DIR/link", &["cancel", "leave", "last-completion"]);
    run(&dir, "life.c", "memif:DIR/link", &["last-datagram", "last-post", "last-words"]);
}

// Goal: a signal ends a process whose connection is idle, and over the network nothing says so but its own message: keep-alive, which
// would, is off.
#[test]
fn the_peers_of_a_process_that_a_signal_ends_are_told() {
    let dir = Dir::new("signals");
    let settings = [("ROCE_VISITOR", &*udp()), ("ROCE_KEEPALIVE", "0")];
    run_with(&dir, "life.c", &udp(), &settings, &[&["interrupted"], &["terminated"]]);
}

// Goal: what a signal does to a process is the library's matter only where links with other processes are to be ended first.
#[test]
fn a_process_with_links_ends_them_when_a_signal_ends_it() {
    let dir = Dir::new("links");
    run(&dir, "life.c", "loopback", &["no-links"]);
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) != 0 {
        return eprintln!("SKIPPED: a network namespace needs root");
    }
    run(&dir, "life.c", "host", &["links"]);
}

// Goal: a client that comes before its server, and so has the address that the server is expected at, reaches it.
#[test]
fn a_client_that_comes_before_its_server_reaches_it() {
    run(&Dir::new("first"), "life.c", "memif:DIR/link", &["first-client", "first-client-bound"]);
}

// Goal: many processes of a host that connect all at once, each with each other one, exchange data by every operation, and none is wrong
// or left out.
#[test]
fn processes_of_a_host_are_connected_each_with_each_other_one() {
    let dir = Dir::new("many");
    let Some(library) = library() else { return };
    for story in [["24", "1", "2"], ["4", "16", "2"]] {
        let Some(output) = on_a_host(&dir, library, "many.c", &story) else { return };
        assert!(output.status.success(), "{story:?}: {}", text(&output));
    }
}

// Goal: processes that share an XRC domain by a file receive by one target, which outlives the process that made it, and those that
// receive beside others. None of them notices that the library started another process.
#[test]
fn processes_of_a_host_share_an_xrc_domain() {
    let dir = Dir::new("shared");
    let Some(library) = library() else { return };
    for story in ["", "killed", "fewer"] {
        let file = dir.0.join(format!("domain-{story}"));
        let arguments = [file.to_str().unwrap(), "4", "60", story];
        let Some(output) = on_a_host(&dir, library, "shared.c", &arguments) else { return };
        assert!(output.status.success(), "{story:?}: {}", text(&output));
    }
}

// Goal: a process ends while its peer does not run: it waits for it, says so, and every connection's end is told.
#[test]
fn a_process_that_ends_waits_for_a_peer_that_is_stopped() {
    run(&Dir::new("patient"), "life.c", "memif:DIR/link", &["patient-words"]);
}

// Goal: a thread is cancelled while its poll sends, receives or writes the capture, and the process lives.
#[test]
fn threads_that_are_cancelled_while_they_poll() {
    let dir = Dir::new("cancelled");
    for port in [&udp(), "unix:DIR/a,peer=DIR/b", "loopback"] {
        let capture = dir.0.join("frames.pcap");
        run_with(&dir, "life.c", port, &[("ROCE_PCAP", capture.to_str().unwrap())], &[&["cancel"]]);
    }
}

/// Ports, each with that of its visitors; none over `loopback`.
fn visited_ports(dir: &Dir) -> Vec<(String, String)> {
    let at = dir.0.display();
    vec![
        (format!("memif:{at}/s,role=server"), format!("memif:{at}/s,role=client")),
        (format!("memif:{at}/c,role=client"), format!("memif:{at}/c,role=server")),
        (udp(), udp()),
        (format!("unix:{at}/a,peer={at}/b"), format!("unix:{at}/b,peer={at}/a")),
        ("loopback".into(), String::new()),
    ]
}

/// Runs `cancel.c`: so many peers come and go.
fn visits(dir: &Dir, story: &str, visits: u32, more: &[(&str, &str)]) {
    let capture = dir.0.join("visits.pcap");
    for (port, visitor) in visited_ports(dir) {
        let visits = if visitor.is_empty() { 0 } else { visits };
        let settings =
            [&[("ROCE_PCAP", capture.to_str().unwrap()), ("ROCE_VISITOR", &*visitor)], more].concat();
        run_with(dir, "cancel.c", &port, &settings, &[&[story, &visits.to_string()]]);
    }
}

// Goal: no call of libc that is a cancellation point is reached in a post or a poll while the thread may be cancelled, whatever port
// it is and though peers come and go: a cancelled thread would be unwound there, and end the process.
#[test]
fn posts_and_polls_reach_no_cancellation_point() {
    let dir = Dir::new("points");
    let points = dir.0.join("points.so");
    let mut cc = Command::new("cc");
    cc.args(["-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&points);
    let Ok(compiled) = cc.arg(sources().join("points.c")).arg("-ldl").output() else { return };
    assert!(compiled.status.success(), "{}", text(&compiled));
    visits(&dir, "count", 6, &[("LD_PRELOAD", points.to_str().unwrap())]);
}

#[test]
fn threads_that_poll_are_cancelled_while_peers_come_and_go() {
    visits(&Dir::new("storm"), "storm", 12, &[]);
}

#[test]
fn nothing_starts_before_it_is_needed() {
    run(&Dir::new("beginnings"), "life.c", "memif:DIR/link", &["beginnings"]);
}

#[test]
fn a_line_that_cannot_be_written() {
    run(&Dir::new("mute"), "life.c", "loopback", &["mute"]);
}

#[test]
fn a_program_that_does_nothing_is_left_alone() {
    run(&Dir::new("idle"), "life.c", "memif:DIR/link", &["idle"]);
}

#[test]
fn programs_that_load_and_unload_the_library() {
    run(&Dir::new("load"), "load.c", "memif:DIR/link", &["", "beside"]);
}
