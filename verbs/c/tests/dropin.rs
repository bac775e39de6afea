//! Goal: the shared library does for C programs what libibverbs does: calls with good and bad arguments, forks, cancelled threads,
//! ends of all kinds, and every symbol under its version.
//!
//! Programs in `tests/c` are compiled against the installed headers and run as processes of their own.
#![cfg(headers)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

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

/// Compiles a program of `tests/c` and runs it for each list of arguments, over this port.
fn run(dir: &Dir, source: &str, port: &str, stories: &[&str]) {
    let Some(library) = library() else { return };
    let program = dir.0.join(source.trim_end_matches(".c"));
    if !program.exists() {
        let mut cc = Command::new("cc");
        // `scripts/deep asan`: the program's accesses are checked, and every allocation, the library's too.
        cc.args(std::env::var("ROCE_C_SANITIZE").ok().map(|name| format!("-fsanitize={name}")));
        cc.args(["-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source));
        if source != "load.c" {
            cc.arg(library.join("libibverbs.so.1")).arg("-lpthread");
        }
        let compiled = cc.output().expect("cc is there");
        assert!(compiled.status.success(), "{}", text(&compiled));
    }
    for story in stories {
        // A hang is a failure; nothing else depends on time.
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "100"]).arg(&program);
        if !story.is_empty() {
            command.arg(story);
        }
        command.current_dir(&dir.0).env("LD_LIBRARY_PATH", library);
        // What a process leaves at its end is no leak. A thread that is cancelled leaves marks on its stack, which its end on a
        // signal stack of the sanitizer's would run into.
        command.env("ASAN_OPTIONS", "detect_leaks=0:use_sigaltstack=0");
        command.env("XDG_RUNTIME_DIR", &dir.0).env("ROCE_PORT", port.replace("DIR", dir.0.to_str().unwrap()));
        let output = command.output().expect("timeout(1) is there");
        assert!(output.status.success(), "{source} {story} over {port}: {}", text(&output));
    }
}

#[test]
fn calls_with_good_and_bad_arguments() {
    run(&Dir::new("calls"), "calls.c", "loopback", &[""]);
}

#[test]
fn data_by_every_way_to_post_and_to_poll() {
    run(&Dir::new("traffic"), "traffic.c", "loopback", &[""]);
}

#[test]
fn connection_management() {
    run(&Dir::new("cm"), "cm.c", "loopback", &[""]);
}

#[test]
fn forks() {
    let dir = Dir::new("forks");
    for port in ["loopback", "memif:DIR/link"] {
        run(&dir, "life.c", port, &["fork-before", "fork-opened", "fork-started"]);
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

#[test]
fn a_program_that_does_nothing_is_left_alone() {
    run(&Dir::new("idle"), "life.c", "memif:DIR/link", &["idle"]);
}

#[test]
fn programs_that_load_and_unload_the_library() {
    run(&Dir::new("load"), "load.c", "memif:DIR/link", &[""]);
}

/// Symbols that a library defines, with their versions; those that only old programs have (`@`, not `@@`) aside.
fn symbols(library: &Path) -> BTreeMap<String, String> {
    let output =
        Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output().expect("readelf is there");
    let text = String::from_utf8(output.stdout).expect("readelf writes text");
    let rows = text.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // Num: Value Size Type Bind Vis Ndx Name
        let (kind, section, name) = (*fields.get(3)?, *fields.get(6)?, *fields.get(7)?);
        (matches!(kind, "FUNC" | "OBJECT" | "TLS" | "IFUNC") && section != "UND" && section != "ABS")
            .then(|| name.to_string())
    });
    rows.filter_map(|name| match name.split_once("@@") {
        Some((name, version)) => Some((name.to_string(), version.to_string())),
        None if name.contains('@') => None,
        None => Some((name, "none".into())),
    })
    .collect()
}

#[test]
fn every_symbol_has_its_version_and_there_are_no_others() {
    let Some(library) = library() else { return };
    let ours = symbols(&library.join("libibverbs.so.1"));
    let list = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/symbols")).unwrap();
    let private = ours.get("ibv_query_gid_type").expect("the private node has it").clone();
    let number = private.rsplit('_').next().expect("a node has a number").to_string();
    let listed: BTreeMap<String, String> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(node, name)| match node {
            "PRIVATE" => (name.replace("_PRIVATE", &format!("_{number}")), private.clone()),
            node => (name.to_string(), node.to_string()),
        })
        .collect();
    assert!(listed.len() > 200);
    let beyond: Vec<_> = ours.iter().filter(|(name, node)| listed.get(*name) != Some(*node)).collect();
    let missing: Vec<_> = listed.iter().filter(|(name, node)| ours.get(*name) != Some(*node)).collect();
    assert!(beyond.is_empty() && missing.is_empty(), "not in the list: {beyond:?}; not there: {missing:?}");
}

#[test]
fn the_installed_libraries_have_no_symbol_that_is_not_here() {
    let Some(library) = library() else { return };
    let ours = symbols(&library.join("libibverbs.so.1"));
    let mut compared = 0;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let Some(path) = places.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists()) else {
            println!("SKIPPED comparing symbols: {name} is not installed");
            continue;
        };
        for (symbol, version) in symbols(&path) {
            compared += 1;
            assert_eq!(ours.get(&symbol), Some(&version), "{symbol} of {}", path.display());
        }
    }
    println!("{compared} symbols compared");
}

// A program of an older system finds everything that the library needs of it.
#[test]
fn the_library_needs_no_newer_libc_than_that_of_debian_12() {
    let Some(library) = library() else { return };
    let output =
        Command::new("readelf").args(["-W", "-V"]).arg(library.join("libibverbs.so.1")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let versions = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_2."));
    let newest = versions.filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok()).max();
    assert!(newest.is_some_and(|minor| minor <= 36), "GLIBC_2.{newest:?}");
}
