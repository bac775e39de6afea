//! Goal: what the stack warns about is said on standard error, one line each, as much as `ROCE_LOG` says; and a program neither
//! waits for whoever reads that nor ends because nobody does.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};

use crate::{Dir, compile, library, on_a_host, program_on, run_with};

/// A program of `words.c` that runs; it is ended with this.
struct Running(Child);

impl Running {
    fn start(dir: &Dir, library: &Path, story: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = program_on(library, dir, &compile(dir, library, "words.c"));
        command.arg(story).env("ROCE_PORT", "memif").envs(settings.iter().copied());
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("timeout(1) is there"))
    }

    fn lines(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.0.stderr.take().expect("a pipe"))
    }

    /// Waits for its end; what it said.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.lines().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What a program says that sends to the one that holds the first address of the directory's link.
fn said(dir: &Dir, story: &str, settings: &[(&str, &str)]) -> Option<String> {
    let said = Running::start(dir, library()?, story, settings).end();
    assert!(said.lines().all(|line| line.starts_with("roce: ")), "{said}");
    assert!(said.lines().count() < 30, "{said}");
    Some(said)
}

/// The first of two programs on the link of a directory.
fn first(dir: &Dir) -> Option<Running> {
    let mut server = Running::start(dir, library()?, "hold", &[("ROCE_LOG", "info")]);
    // It listens when its socket is there.
    while !std::fs::read_dir(dir.0.join("roce"))
        .is_ok_and(|mut files| files.any(|file| is_socket(&file.unwrap().path())))
    {
        assert!(server.0.try_wait().unwrap().is_none(), "{}", server.end());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Some(server)
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|file| file.file_type().is_socket())
}

#[test]
fn a_third_program_on_a_link_is_told_so() {
    let dir = Dir::new("third");
    let Some(mut server) = first(&dir) else { return };
    let Some(library) = library() else { return };
    let _second = Running::start(&dir, library, "hold", &[]);
    let mut line = String::new();
    server.lines().read_line(&mut line).unwrap();
    assert!(line.starts_with("roce: info: ") && line.contains("the link is up"), "{line}");
    let third = said(&dir, "send", &[]).unwrap();
    assert!(third.contains("roce: warning: ") && third.contains("another client is connected"), "{third}");
}

#[test]
fn a_link_that_lacks_shared_memory_or_descriptors_is_explained() {
    let dir = Dir::new("forbidden");
    let Some(_server) = first(&dir) else { return };
    let text = said(&dir, "no-memfd", &[]).unwrap();
    assert!(text.contains("memfd_create(2)") && text.contains("seccomp"), "{text}");
    // A client that has not found its server yet when it has no descriptor left.
    let port = format!("memif:{}/later,role=client", dir.0.display());
    let text = said(&dir, "no-descriptors", &[("ROCE_PORT", &port)]).unwrap();
    assert!(text.contains("Too many open files") && text.contains("ulimit -n"), "{text}");
}

#[test]
fn the_variable_says_how_much_is_said() {
    let dir = Dir::new("levels");
    let Some(_server) = first(&dir) else { return };
    for (level, lines) in [("off", 0), ("error", 0), ("warn", 1), ("debug", 1)] {
        let text = said(&dir, "no-memfd", &[("ROCE_LOG", level)]).unwrap();
        assert!(text.lines().count() >= lines && (lines > 0 || text.is_empty()), "{level}: {text}");
    }
    let Some(library) = library() else { return };
    let mut wrong = Running::start(&dir, library, "send", &[("ROCE_LOG", "loud")]);
    let mut text = String::new();
    wrong.lines().read_to_string(&mut text).unwrap();
    assert!(!wrong.0.wait().unwrap().success());
    assert!(text.contains("roce: ROCE_LOG=loud: it is off, error, warn, info, or debug"), "{text}");
}

// Without ROCE_PORT a program has the addresses of its host: here those of a network namespace.
#[test]
fn a_program_that_names_an_address_of_the_former_default_is_told_what_to_change() {
    let dir = Dir::new("private");
    let Some(library) = library() else { return };
    let Some(output) = on_a_host(&dir, library, "words.c", &["private-addresses"]) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.starts_with("roce: 10.77.0.1 is an address of the private link memif, "), "{said}");
}

#[test]
fn a_program_does_not_wait_for_whoever_reads_its_errors() {
    let dir = Dir::new("deaf");
    // Where the capture cannot be written there is something to say.
    run_with(&dir, "words.c", "loopback", &[("ROCE_PCAP", "/dev/full")], &[&["full-pipe"], &["closed-pipe"]]);
}
