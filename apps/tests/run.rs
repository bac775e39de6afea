//! `roce-run`: what the program gets, and which programs are refused. The library here is an empty file or one of the tests' own:
//! the loader only warns of it.

use crate::common::{Finished, RUN};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory with a place for the library, and a runtime directory.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("roce-run-{}-{name}", std::process::id()));
        for inside in ["lib", "runtime", "bin"] {
            std::fs::create_dir_all(dir.join(inside)).unwrap();
        }
        std::fs::write(dir.join("lib/libibverbs.so.1"), "").unwrap();
        Self(dir)
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Finished {
        let mut run = Command::new(RUN);
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "ROCE_PORT", "ROCE_STATS", "ROCE_ADDR", "ROCE_MAC"] {
            run.env_remove(name);
        }
        run.env("XDG_RUNTIME_DIR", self.0.join("runtime")).current_dir(&self.0);
        run.arg("--library").arg(self.0.join("lib")).args(options).args(command);
        run.stdin(Stdio::null()).output().unwrap().into()
    }

    /// A file that may be executed.
    fn program(&self, name: &str, bytes: &[u8], mode: u32) -> String {
        let path = self.0.join("bin").join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The value of a variable in what `env` printed.
fn value<'a>(printed: &'a str, name: &str) -> Option<&'a str> {
    printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn a_program_gets_the_paths_and_the_options() {
    let place = Place::new("env");
    let lib = place.0.join("lib").canonicalize().unwrap();
    let options = [
        ["--port", "udp:"],
        ["--ip", "10.0.0.1"],
        ["--ip", "fd00::1/64"],
        ["--link-mtu", "1500"],
        ["--drive", "dedicated"],
        ["--cores", "1,2"],
        ["--pcap", "a.pcap"],
    ]
    .concat();
    let ran = place.run(&[&options[..], &["--stats=st"]].concat(), &["env"]).good();
    let here = place.0.canonicalize().unwrap();
    let preload = format!("{}/libibverbs.so.1", lib.display());
    for (name, expected) in [
        ("LD_LIBRARY_PATH", lib.to_str().unwrap()),
        ("LD_PRELOAD", &preload),
        ("ROCE_PORT", "udp:"),
        ("ROCE_ADDR", "10.0.0.1/24,fd00::1/64"),
        ("ROCE_MTU", "1500"),
        ("ROCE_DRIVE", "dedicated:1,2"),
        ("ROCE_DEFAULT_UCX_UD_ETH_DGID_CHECK", "n"),
        ("ROCE_PCAP", here.join("a.pcap").to_str().unwrap()),
        ("ROCE_STATS", here.join("st").to_str().unwrap()),
    ] {
        assert_eq!(value(&ran.stdout, name), Some(expected), "{name} in\n{}", ran.stdout);
    }
    let tree = PathBuf::from(value(&ran.stdout, "ROCE_PATHS").unwrap());
    assert_eq!(
        std::fs::read_to_string(tree.join("sys/class/infiniband_verbs/uverbs0/ibdev")).unwrap(),
        "roce0\n"
    );
    let stats = place.run(&["--stats"], &["env"]).good();
    assert_eq!(value(&stats.stdout, "ROCE_STATS"), tree.parent().unwrap().to_str(), "where roce-stat looks");
    place.run(&["--cores", "1"], &["env"]).bad("--drive dedicated");
    // Nothing more than was asked for, and the same tree again: that of this host's addresses.
    let plain = place.run(&[], &["env"]).good();
    assert_eq!(value(&plain.stdout, "ROCE_PORT"), None);
    assert_eq!(value(&plain.stdout, "ROCE_STATS"), None);
    let paths = |ran: &Finished| value(&ran.stdout, "ROCE_PATHS").map(str::to_owned);
    assert_eq!(paths(&plain), paths(&place.run(&["--pcap", "b.pcap"], &["env"]).good()));
    assert_eq!(paths(&plain).as_deref(), tree.to_str());
    assert_eq!(std::fs::read_dir(place.0.join("runtime/roce")).unwrap().count(), 1);
}

#[test]
fn the_files_below_sys_are_those_of_the_device_and_do_not_pile_up() {
    let place = Place::new("sysfs");
    let tree = |options: &[&str]| {
        let ran = place.run(options, &["env"]).good();
        let reachability =
            value(&ran.stdout, "ROCE_DEFAULT_UCX_IB_ROCE_REACHABILITY_MODE").map(str::to_owned);
        (
            PathBuf::from(value(&ran.stdout, "ROCE_PATHS").unwrap()).join("sys/class/infiniband/roce0"),
            reachability,
        )
    };
    let read =
        |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Without a port the device has all of this host's addresses; lo is the last interface.
    let (device, reachability) = tree(&[]);
    let gids = || (0..).map_while(|n| std::fs::read_to_string(device.join(format!("ports/1/gids/{n}"))).ok());
    assert!(gids().any(|gid| gid == "0000:0000:0000:0000:0000:ffff:7f00:0001\n"));
    assert_eq!(reachability, None, "the kernel has the routes");
    let (device, reachability) = tree(&["--port", "udp:127.0.0.1"]);
    assert_eq!(read(device.join("ports/1/gids/0")), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
    assert_eq!(read(device.join("ports/1/gid_attrs/ndevs/0")), "lo\n");
    assert_eq!(read(device.join("device/net/lo/ifindex")), read("/sys/class/net/lo/ifindex".into()));
    assert_eq!(reachability, None, "the kernel has the routes");
    let private = |addr: &str| tree(&["--port", "memif", "--ip", addr]);
    let (device, reachability) = private("10.77.0.5");
    assert_eq!(read(device.join("ports/1/gids/1")), "0000:0000:0000:0000:0000:ffff:0a4d:0005\n");
    assert!(!device.join("device/net").exists() && !device.join("ports/1/gid_attrs/ndevs").exists());
    assert_eq!(reachability.as_deref(), Some("all"));
    // What a program writes there changes no other file.
    std::fs::write(device.join("node_desc"), "other\n").unwrap();
    assert_eq!(read(device.join("../../infiniband_verbs/uverbs0/ibdev")), "roce0\n");
    let devices: Vec<_> = (10..60).map(|n| private(&format!("10.77.0.{n}")).0).collect();
    let last = devices.last().unwrap();
    assert!(last.join("node_type").exists());
    assert_eq!(std::fs::read_dir(place.0.join("runtime/roce")).unwrap().count(), 32);
}

#[test]
fn a_program_keeps_its_arguments_name_and_exit_code() {
    let place = Place::new("args");
    let ran = place.run(&[], &["sh", "-c", "echo $0 \"$@\"; exit 7", "--port", "-x", "a b"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(7), "--port -x a b\n"), "{}", ran.all());
}

#[test]
fn what_it_prints_is_what_a_program_gets() {
    let place = Place::new("print");
    let printed = place.run(&["--port", "loopback"], &["--print"]).good().stdout;
    let output = Command::new("sh").args(["-c", &format!("{printed}\nenv")]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    assert_eq!(value(&output, "ROCE_PORT"), Some("loopback"));
    assert!(value(&output, "LD_PRELOAD").is_some_and(|v| v.ends_with("/libibverbs.so.1")), "{output}");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_sentence() {
    let place = Place::new("refused");
    let refused = |command: &str, why: &str| {
        let ran = place.run(&[], &[command]).bad(why);
        assert_eq!((ran.stdout.as_str(), ran.stderr.lines().count()), ("", 1), "{}", ran.all());
    };
    refused("no-such-program", "there is no program no-such-program in PATH");
    refused("./no/such", "./no/such cannot be run: No such file");
    refused("/", "/ is a directory");
    refused(&place.program("text", b"x", 0o644), "is not executable");
    // A static program: an ELF header of this machine without program headers.
    let mut elf = [0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    refused(&place.program("static", &elf, 0o755), "is linked statically");
    elf[4] = 1;
    let foreign = place.program("foreign", &elf, 0o755);
    refused(&foreign, "is for another machine");
    refused(
        &place.program("script", format!("#!{foreign}\n").as_bytes(), 0o755),
        "foreign is for another machine",
    );
    // The rights of the user itself are none that it does not have.
    let own = place.program("own", b"#!/bin/sh\necho own\n", 0o4755);
    assert_eq!(place.run(&[], &[&own]).good().stdout, "own\n");
    let Some(other) = setuid_of_another(&place) else {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED a setuid program: making one of another user needs root");
        return;
    };
    refused(&other, "is setuid");
}

// Such a program runs, and finds no device.
#[test]
fn a_program_with_libibverbs_linked_into_it_is_told_of() {
    let place = Place::new("own-libibverbs");
    let compiled = |name: &str, text: &str| {
        let (source, program) = (place.0.join(format!("{name}.c")), place.0.join(name));
        std::fs::write(
            &source,
            format!("#include <stdio.h>\nint main(void) {{ return puts({text}) < 0; }}\n"),
        )
        .unwrap();
        let cc = Command::new("cc").arg("-o").args([&program, &source]).output();
        cc.is_ok_and(|cc| cc.status.success()).then(|| program.display().to_string())
    };
    let Some(own) = compiled("own", "\"RDMAV_HUGEPAGES_SAFE\"") else {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED a program with libibverbs.a: there is no C compiler, cc");
        return;
    };
    let none = compiled("none", "\"text\"").unwrap();
    // Beyond the first blocks of the file that are looked at, and across the edge of two.
    let far = |len: usize| {
        let mut bytes = std::fs::read(&none).unwrap();
        bytes.resize(len, 0);
        bytes.extend_from_slice(b"RDMAV_HUGEPAGES_SAFE\0");
        place.program(&format!("far-{len}"), &bytes, 0o755)
    };
    for own in [own, far(3 << 20), far((1 << 20) - 7)] {
        let ran = place.run(&[], &[&own]).good();
        assert!(ran.stderr.contains("has a libibverbs of its own linked into it"), "{}", ran.all());
    }
    // One that loads the shared library may mention the variable, and others are as they are.
    let loads = compiled("loads", "\"RDMAV_HUGEPAGES_SAFE\" \"libibverbs.so.1\"").unwrap();
    for other in [loads, none] {
        let ran = place.run(&[], &[&other]).good();
        assert!(!ran.stderr.contains("libibverbs of its own"), "{}", ran.all());
    }
}

/// A setuid program of another user.
fn setuid_of_another(place: &Place) -> Option<String> {
    let program = place.program("setuid", b"#!/bin/sh\n", 0o755);
    std::os::unix::fs::chown(&program, Some(65534), None).ok()?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).ok()?;
    Some(program)
}

#[test]
fn a_library_that_is_not_there_or_cannot_be_named_is_an_error() {
    let place = Place::new("library");
    let at = |dir: &Path| -> Finished {
        Command::new(RUN).arg("--library").arg(dir).arg("true").output().unwrap().into()
    };
    at(&place.0.join("bin")).bad("build it with scripts/dropin --build");
    let spaced = place.0.join("a b");
    std::fs::create_dir_all(&spaced).unwrap();
    std::fs::write(spaced.join("libibverbs.so.1"), "").unwrap();
    at(&spaced).bad("without spaces and colons");
    let help: Finished = Command::new(RUN).arg("--help").output().unwrap().into();
    let help = help.good().stdout;
    for part in ["Examples", "roce-run ib_write_bw HOST", "ROCE_PORT", "setuid"] {
        assert!(help.contains(part), "{help}");
    }
    let none: Finished = Command::new(RUN).output().unwrap().into();
    none.bad("PROGRAM");
}
