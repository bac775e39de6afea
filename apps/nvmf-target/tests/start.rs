//! How a target starts: what `check` says beforehand is what `serve` says, and who waits for it learns when it is ready.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{PATIENCE, Running, Scratch, Tmpfs};

/// A folder for a configuration, and the programs' sockets in it.
struct Folder(Scratch);

impl Folder {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().with_file_name(name)
    }
    /// A command on a target that has these namespaces, and listens at this address.
    fn command(&self, what: &str, address: &str, namespaces: &str) -> Command {
        let config = self.path("disks.toml");
        let port = format!("[[port]]\naddress = \"{address}\"\n");
        let subsystem = "[[subsystem]]\nnqn = \"nqn.2024-01.org.example:disks\"\n";
        std::fs::write(&config, format!("{port}{subsystem}{namespaces}")).unwrap();
        let memif = format!("memif:{}", self.path("memif").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_roce-nvmf"));
        command.arg(what).arg(config).args(["--port", &memif, "--control"]).arg(self.path("control"));
        command
    }
}

const HERE: &str = "10.77.0.1:4420";

fn file(path: &Path, size: &str) -> String {
    format!("[[subsystem.namespace]]\nfile = \"{}\"\nsize = \"{size}\"\n", path.display())
}
fn said(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

// Goal: whoever asks `check` before a start is told what the start would fail for, in the same words.
#[test]
fn check_refuses_what_serve_refuses_and_in_its_words() {
    let folder = Folder::new("check");
    let small = folder.path("small");
    std::fs::create_dir(&small).unwrap();
    let sealed = folder.path("sealed");
    std::fs::create_dir(&sealed).unwrap();
    let taken = folder.path("taken");
    std::fs::write(&taken, [0; 8192]).unwrap();
    let taken_file = std::fs::File::open(&taken).unwrap();
    taken_file.try_lock().unwrap();
    let memory = |size: &str| format!("[[subsystem.namespace]]\nmemory = \"{size}\"\n");
    let mut cases = vec![
        (HERE, file(&folder.path("none/disk"), "1m"), "none does not exist: make it first"),
        (HERE, file(&taken.join("disk"), "1m"), "Not a directory"),
        (HERE, file(&taken, "8k"), "is in use"),
        (HERE, file(&small, "8k"), "is no file and no block device"),
        (HERE, format!("{}{}", memory("1m"), memory("1000000g")), "MiB of memory are needed"),
        ("192.0.2.7:4420", memory("1m"), "has no address 192.0.2.7; it has 10.77.0.1"),
    ];
    // All but the root of the folder goes into the last inode of one, and nobody may write to the other.
    let _full = Tmpfs::new(&small, "size=64k,nr_inodes=1").inspect(|_| {
        cases.push((HERE, file(&small.join("disk"), "8k"), "No space left on device"));
    });
    let _sealed = Tmpfs::new(&sealed, "ro").inspect(|_| {
        cases.push((HERE, file(&sealed.join("disk"), "8k"), "Read-only file system"));
    });
    for (address, namespaces, words) in cases {
        let run = |what| folder.command(what, address, &namespaces).output().unwrap();
        let [check, serve] = ["check", "serve"].map(run);
        assert!(said(&check).contains(words), "{words:?}: {check:?}");
        // How much memory there is may change meanwhile.
        let without_numbers = |run| said(run).replace(|c: char| c.is_ascii_digit(), "");
        assert_eq!(without_numbers(&check), without_numbers(&serve));
        assert_eq!((check.status.code(), serve.status.code()), (Some(1), Some(1)), "{words:?}");
    }
}

// Goal: a start that fails for what is written leaves no files behind, and none of another length.
#[test]
fn a_mistake_is_found_before_any_file_is_made_or_grown() {
    let folder = Folder::new("before");
    let [disk, small, odd] = ["disk", "small", "odd"].map(|name| folder.path(name));
    std::fs::write(&small, [0; 512]).unwrap();
    std::fs::write(&odd, [0; 1000]).unwrap();
    let both = format!("{}{}", file(&disk, "1m"), file(&small, "1m"));
    let memory = |more: &str| format!("[[subsystem.namespace]]\nmemory = \"1m\"\n{more}\n");
    let uuid = memory("uuid = \"11111111-2222-3333-4444-555555555555\"");
    for (last, words) in [
        (memory("id = 1"), "a namespace 1 already"),
        (memory("id = 0"), "not 0"),
        (format!("{uuid}{uuid}"), "namespace 4"),
        (format!("[[subsystem.namespace]]\nfile = \"{}\"\n", odd.display()), "no multiple of a block"),
        ("[[subsystem]]\nnqn = \"nqn.2024-01.org.example:disks\"\n".into(), "nqn.2024-01.org.example:disks"),
        ("[target]\nin_capsule = \"1g\"\n".into(), "at most 1048576"),
    ] {
        let run = folder.command("serve", HERE, &format!("{both}{last}")).output().unwrap();
        assert!(run.status.code() == Some(1) && said(&run).contains(words), "{words:?}: {run:?}");
        assert!(!disk.exists(), "{words:?}");
        assert_eq!(std::fs::metadata(&small).unwrap().len(), 512, "{words:?}");
    }
}

#[test]
fn check_makes_nothing_and_does_not_mind_the_target_that_runs() {
    let folder = Folder::new("check-runs");
    let disk = folder.path("disk");
    let namespaces = file(&disk, "1m");
    let check = || folder.command("check", HERE, &namespaces).output().unwrap();
    let first = check();
    assert!(first.status.success() && !disk.exists(), "{first:?}");
    let target = Target::start(&mut folder.command("serve", HERE, &namespaces), &folder);
    assert_eq!(target.told(), "READY=1");
    let second = check();
    assert!(second.status.success(), "its file is in use, by the target: {second:?}");
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 1 << 20);
}

/// A target with a service manager.
struct Target {
    program: Running,
    manager: UnixDatagram,
}

impl Target {
    fn start(command: &mut Command, folder: &Folder) -> Self {
        let socket = folder.path("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("NOTIFY_SOCKET", socket).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { program: Running(command.spawn().unwrap()), manager }
    }
    fn told(&self) -> String {
        let mut bytes = [0; 64];
        let n = self.manager.recv(&mut bytes).expect("the manager is told");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }
}

// Goal: a service is ready when it listens, and no earlier; its log says when what happened.
#[test]
fn the_service_manager_is_told_when_the_target_listens_and_when_it_ends() {
    let folder = Folder::new("notify");
    let mut command = folder.command("serve", HERE, &file(&folder.path("disk"), "1m"));
    let mut target = Target::start(command.args(["--log", "info"]), &folder);
    assert_eq!(target.told(), "READY=1");
    // What it prints before it waits is there.
    let mut lines = BufReader::new(target.program.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listening on 10.77.0.1:4420");
    let control = folder.path("control");
    let add = [Path::new("namespace"), Path::new("add"), Path::new("--memory"), Path::new("1m")];
    let mut change = Command::new(env!("CARGO_BIN_EXE_roce-nvmf"));
    let change = change.args(add).arg("--control").arg(control).output().unwrap();
    assert!(change.status.success(), "{change:?}");
    kill_process(Pid::from_child(&target.program.0), Signal::TERM).unwrap();
    assert_eq!(target.told(), "STOPPING=1");
    let log = BufReader::new(target.program.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = log.into_iter().find(|line| line.contains("is added")).expect("the change is logged");
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{line}");
    assert!(rest.starts_with("info: namespace 2 of"), "{line}");
}

// Goal: a host whose target does not run says what it waits for, and does not sit there mute.
#[test]
fn a_host_without_a_target_says_what_it_waits_for() {
    let folder = Folder::new("silent");
    let memif = format!("memif:{}", folder.path("memif").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce-nvmf-perf"));
    let command = command.args(["run", "--port", &memif]).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut host = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(host.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.find(|line| line.contains("waiting for the other end"));
    assert!(said.is_some_and(|said| said.contains("is it running?")));
}
