//! Changes of a target that runs, as its hosts see them, and by the socket and the programs.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf::config::Hosts;
use nvmf::status::Status;
use nvmf::wire::log::lid;
use nvmf::wire::{Sgl, Sqe};
use nvmf_target::config::{OfferedNamespace, Opener, Storage};
use nvmf_target::control::{Answer, Control, ControlSocket, List, Request, ask, find};
use nvmf_target::host::{Controller, Data, Host, Io, Options, discover};
use nvmf_target::store::{File, FileError};
use verbs::{Access, Mr};
use zerocopy::FromZeros as _;
use zerocopy::little_endian::U32;

use crate::common::{BLOCK, PATIENCE, Running, SUBSYSTEM, Scratch, Setup, View, host_name, nqn, with_target};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

fn control(view: &View) -> Control {
    Control::new(view.target.clone(), view.stores.clone(), Opener::new(&view.pd), "disks.toml")
}
fn offered(id: u32, storage: Storage) -> OfferedNamespace {
    OfferedNamespace { nsid: id, storage, block: 512, uuid: None, read_only: false, span: 0..0 }
}
fn file(path: &Path, size: u64) -> Storage {
    Storage::File { path: path.into(), size: Some(size), direct: None }
}
fn add(id: u32, storage: Storage) -> Request {
    Request::AddNamespace { nqn: SUBSYSTEM.into(), namespace: offered(id, storage) }
}
fn remove(id: u32) -> Request {
    Request::RemoveNamespace { nqn: SUBSYSTEM.into(), id }
}
fn resize(id: u32, size: Option<u64>) -> Request {
    Request::ResizeNamespace { nqn: SUBSYSTEM.into(), id, size }
}
fn done(answer: Answer) -> String {
    match answer {
        Answer::Done(text) => text,
        other => panic!("{other:?}"),
    }
}
fn refused(answer: Answer) -> String {
    match answer {
        Answer::Refused(text) => text,
        other => panic!("{other:?}"),
    }
}

/// The admin queue of a controller that asked for events.
struct Watch<'v> {
    view: &'v View,
    host: Host<'v>,
    controller: Controller,
    page: Mr,
}

impl<'v> Watch<'v> {
    /// Which events: bits of the feature.
    fn new(view: &'v View, subsystem: &str, events: u32) -> Self {
        let mut host = view.host(1);
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(subsystem), Options::default()).unwrap();
        let page = host.pd().reg_mr(4096, RIGHTS).unwrap();
        let sqe = Sqe { cdw10: U32::new(0x0B), cdw11: U32::new(events), ..admin(0x09) };
        host.call(controller.admin(), &sqe, Data::Elsewhere).unwrap();
        let mut watch = Self { view, host, controller, page };
        watch.ask();
        watch
    }
    /// Asks for an event.
    fn ask(&mut self) {
        self.controller.admin().submit(&admin(0x0C), Data::Elsewhere).unwrap().unwrap();
    }
    /// Waits for an event, which is about `log`; asks for the next one, and reads the log: its first words.
    fn told(&mut self, kind: u64, log: u8) -> [u32; 4] {
        self.told_of(2 | kind << 8, log)
    }
    /// The same, of an event of any type.
    fn told_of(&mut self, what: u64, log: u8) -> [u32; 4] {
        let controller = &mut self.controller;
        let mut result = None;
        self.view.until(&mut self.host, "an event", || {
            controller.admin().poll(|cqe| result = Some(cqe.result.get())).unwrap();
            result.is_some()
        });
        assert_eq!(result, Some(what | (log as u64) << 16));
        self.ask();
        self.log(log)
    }
    /// The first words of a log.
    fn log(&mut self, log: u8) -> [u32; 4] {
        let sgl = Sgl::keyed(self.page.iova(), 16, self.page.rkey(), false);
        let sqe = Sqe { cdw10: U32::new(log as u32 | 3 << 16), sgl, ..admin(0x02) };
        self.host.call(self.controller.admin(), &sqe, Data::Elsewhere).unwrap();
        let mut words = [U32::ZERO; 4];
        self.page.read(0, zerocopy::IntoBytes::as_mut_bytes(&mut words)).unwrap();
        words.map(U32::get)
    }
}

fn admin(opcode: u8) -> Sqe {
    Sqe { opcode, flags: Sqe::FLAGS_SGL, sgl: Sgl::keyed(0, 0, 0, false), ..Sqe::new_zeroed() }
}

// Goal: a file that somebody cuts while it is served has lost data. A write does not make it whole, and nobody reads zeros for what was
// there: the namespace fails, the host is told, and the administrator decides.
#[test]
fn a_file_that_is_cut_fails_its_namespace_until_somebody_says_otherwise() {
    let scratch = Scratch::new("cut");
    let path = scratch.path();
    let long = 64 * BLOCK as u64;
    with_target(&Setup::default(), |view| {
        let mut control = control(view);
        done(control.handle(add(2, file(&path, long))));
        let mut watch = Watch::new(view, SUBSYSTEM, 1 << 2);
        let mut queue = watch.controller.io_queue(&mut watch.host, 1, 16).unwrap();
        let mr = watch.host.pd().reg_mr(BLOCK, RIGHTS).unwrap();
        let sgl = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        let mut code = |watch: &mut Watch<'_>, sqe: Sqe| {
            let answer = watch.host.call(&mut queue, &sqe, Data::Elsewhere);
            answer.map_or_else(|e| e.code().unwrap(), |_| 0)
        };
        let (read, write) = (Status::UnrecoveredReadError.code(), Status::WriteFault.code());
        let set_len = |bytes| {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        };
        let online = || Request::OnlineNamespace { nqn: SUBSYSTEM.into(), id: 2 };
        for lba in 0..64 {
            assert_eq!(code(&mut watch, Io::new(2, lba, 1).write(sgl)), 0);
        }
        assert!(refused(control.handle(online())).contains("has not failed"));
        // What notices it first: a read behind the new end, or a write that would make the file as long as it was.
        for (first, expected) in [(Io::new(2, 40, 1).read(sgl), read), (Io::new(2, 63, 1).write(sgl), write)]
        {
            set_len(16 * BLOCK as u64);
            assert_eq!(code(&mut watch, first), expected);
            assert_eq!(watch.told_of(1, lid::SMART)[0] & 0xFF, 1 << 2, "reliability");
            let has = || std::fs::metadata(&path).unwrap().len();
            for lba in [0, 15, 16, 40, 63] {
                assert_eq!(code(&mut watch, Io::new(2, lba, 1).write(sgl)), write, "block {lba}");
                assert_eq!(code(&mut watch, Io::new(2, lba, 1).read(sgl)), read, "block {lba}");
            }
            assert_eq!(code(&mut watch, Io::new(2, 0, 1).flush()), write);
            assert_eq!(has(), 16 * BLOCK as u64, "nothing made it longer");
            let Answer::List(list) = control.handle(Request::List) else { panic!("no list") };
            let why = list.subsystems[0].namespaces[1].failed.clone().expect("it has failed");
            assert_eq!(why, format!("it was cut to {} of {long} bytes", 16 * BLOCK));
            assert!(refused(control.handle(online())).contains("8192 of 32768 bytes"));
            set_len(long);
            assert_eq!(
                code(&mut watch, Io::new(2, 0, 1).read(sgl)),
                read,
                "as long as before, and still failed"
            );
            assert!(done(control.handle(online())).contains("is served again"));
            assert_eq!(code(&mut watch, Io::new(2, 63, 1).write(sgl)), 0);
            assert_eq!(code(&mut watch, Io::new(2, 40, 1).read(sgl)), 0);
            assert_eq!(watch.log(lid::SMART)[0] & 0xFF, 0);
        }
        // Other namespaces of the subsystem never noticed.
        assert_eq!(code(&mut watch, Io::new(1, 0, 1).write(sgl)), 0);
    });
}

// Goal: a host that is connected is told of namespaces that come, grow and go, and uses them at once.
#[test]
fn namespaces_come_grow_and_go_under_the_eyes_of_a_host() {
    let scratch = Scratch::new("live");
    with_target(&Setup::default(), |view| {
        let mut control = control(view);
        let mut watch = Watch::new(view, SUBSYSTEM, 1 << 8);
        let mut queue = watch.controller.io_queue(&mut watch.host, 1, 16).unwrap();
        let mr = watch.host.pd().reg_mr(4096, RIGHTS).unwrap();
        let sgl = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        let mut write = |watch: &mut Watch<'_>, id: u32, lba: u64| {
            let sqe = Io::new(id, lba, 1).write(sgl);
            watch.host.call(&mut queue, &sqe, Data::Elsewhere).map(drop).map_err(|e| e.code().unwrap())
        };
        mr.fill(0..BLOCK, 0x77).unwrap();
        assert_eq!(write(&mut watch, 2, 0), Err(Status::InvalidNamespace.code()));

        let said = done(control.handle(add(0, file(&scratch.path(), 8 * BLOCK as u64))));
        assert!(said.contains("namespace 2 of"), "{said}");
        assert_eq!(watch.told(0, lid::CHANGED_NAMESPACES), [2, 0, 0, 0]);
        let namespaces = watch.controller.namespaces(&mut watch.host).unwrap();
        assert_eq!(namespaces.iter().map(|n| (n.nsid, n.blocks)).nth(1), Some((2, 8)));
        assert_eq!(write(&mut watch, 2, 7), Ok(()));
        assert_eq!(write(&mut watch, 2, 8), Err(Status::LbaOutOfRange.code()));

        done(control.handle(resize(2, Some(16 * BLOCK as u64))));
        assert_eq!(watch.told(0, lid::CHANGED_NAMESPACES), [2, 0, 0, 0]);
        assert_eq!(watch.controller.namespaces(&mut watch.host).unwrap()[1].blocks, 16);
        assert_eq!(write(&mut watch, 2, 15), Ok(()));
        // A smaller size hides the end and cuts off nothing.
        done(control.handle(resize(2, Some(4 * BLOCK as u64))));
        watch.told(0, lid::CHANGED_NAMESPACES);
        assert_eq!(write(&mut watch, 2, 4), Err(Status::LbaOutOfRange.code()));
        done(control.handle(resize(2, None)));
        watch.told(0, lid::CHANGED_NAMESPACES);
        assert_eq!(write(&mut watch, 2, 14), Ok(()));

        let in_use = File::open(&scratch.path(), None, false).unwrap_err();
        assert!(matches!(in_use, FileError::InUse(_)));
        done(control.handle(remove(2)));
        // Its file is free as soon as that is said.
        drop(File::open(&scratch.path(), None, false).unwrap());
        assert_eq!(watch.told(0, lid::CHANGED_NAMESPACES), [2, 0, 0, 0]);
        assert_eq!(write(&mut watch, 2, 0), Err(Status::InvalidNamespace.code()));
        let bytes = std::fs::read(scratch.path()).unwrap();
        assert!(bytes.len() == 16 * BLOCK && bytes[14 * BLOCK..] == [0x77; 2 * BLOCK]);

        // A new namespace with the same identifier is another disk.
        done(control.handle(add(2, Storage::Memory(4 * BLOCK as u64))));
        watch.told(0, lid::CHANGED_NAMESPACES);
        assert_eq!(write(&mut watch, 2, 3), Ok(()));
        done(control.handle(remove(2)));
        assert_eq!(write(&mut watch, 2, 3), Err(Status::InvalidNamespace.code()));
        assert_eq!(write(&mut watch, 1, 0), Ok(()));
    });
}

// Goal: a host that finds a UUID that it knows writes to the disk what it still has for it. So another disk in the place of one
// that was removed has another UUID, and a file that comes back its own.
#[test]
fn another_disk_in_the_place_of_one_has_another_identity() {
    let scratch = Scratch::new("place");
    let (one, other) = (scratch.path(), scratch.path().with_extension("other"));
    with_target(&Setup::default(), |view| {
        let mut control = control(view);
        let mut second = |storage| {
            done(control.handle(add(0, storage)));
            let namespaces = view.target.subsystems().remove(0).namespaces;
            done(control.handle(remove(2)));
            (namespaces[1].nsid, namespaces[1].uuid, namespaces[1].nguid)
        };
        let seen = [file(&one, 4096), file(&other, 4096), Storage::Memory(4096), Storage::Memory(4096)]
            .map(&mut second);
        assert!(seen.iter().all(|of| of.0 == 2), "each has the free place: {seen:?}");
        for n in 0..seen.len() {
            assert!(seen[..n].iter().all(|of| of.1 != seen[n].1 && of.2 != seen[n].2), "{n}: {seen:?}");
        }
        assert_eq!(second(file(&one, 4096)), seen[0]);
    });
}

#[test]
fn changes_that_cannot_be_are_refused_in_a_sentence_and_change_nothing() {
    let scratch = Scratch::new("refused");
    with_target(&Setup::default(), |view| {
        let mut control = control(view);
        let before = control.handle(Request::List);
        let other = "nqn.2024-01.test:other";
        let elsewhere = |id| Request::RemoveNamespace { nqn: other.into(), id };
        let odd = OfferedNamespace { block: 520, ..offered(3, Storage::Memory(5200)) };
        for (request, says) in [
            (add(1, Storage::Memory(4096)), "a namespace 1 already"),
            (add(0, Storage::Memory(1000)), "no multiple of a block"),
            (add(0, Storage::Memory(0)), "at least one block"),
            (add(70_000_000, Storage::Memory(4096)), "70000000"),
            (add(0, file(Path::new("/nowhere/at/all"), 4096)), "the directory /nowhere/at does not exist"),
            (add(0, file(Path::new("/dev/null"), 4096)), "/dev/null is no file"),
            (Request::AddNamespace { nqn: SUBSYSTEM.into(), namespace: odd }, "not 520"),
            (Request::AddNamespace { nqn: other.into(), namespace: offered(0, Storage::Memory(512)) }, other),
            (Request::AddNamespace { nqn: "x".into(), namespace: offered(0, Storage::Memory(512)) }, "\"x\""),
            (remove(9), "no namespace 9"),
            (elsewhere(1), other),
            (resize(1, Some(1 << 30)), "cannot grow to 1073741824"),
            (resize(1, Some(1000)), "no multiple of a block"),
            (resize(9, None), "no namespace 9"),
            (
                Request::DenyHost { nqn: SUBSYSTEM.into(), host: host_name(1).to_string() },
                "every host may use",
            ),
            (Request::AllowHost { nqn: other.into(), host: host_name(1).to_string() }, other),
            (Request::AllowHost { nqn: SUBSYSTEM.into(), host: "me".into() }, "\"me\""),
        ] {
            let said = refused(control.handle(request.clone()));
            assert!(said.contains(says) && !said.contains('\n'), "{request:?}: {said}");
        }
        assert_eq!(control.handle(Request::List), before);
        // A file is in one namespace alone.
        done(control.handle(add(0, file(&scratch.path(), 4096))));
        let said = refused(control.handle(add(0, file(&scratch.path(), 4096))));
        assert!(said.contains("is in use"), "{said}");
        done(control.handle(remove(2)));
        assert_eq!(control.handle(Request::List), before);
    });
}

// Goal: a host that is denied a subsystem loses it at once, and discovery tells of it.
#[test]
fn hosts_are_allowed_and_denied_while_they_are_there() {
    with_target(&Setup::default(), |view| {
        let mut control = control(view);
        let names = || (SUBSYSTEM.to_string(), host_name(2).to_string());
        let allow = || Request::AllowHost { nqn: names().0, host: names().1 };
        let deny = || Request::DenyHost { nqn: names().0, host: names().1 };
        assert!(done(control.handle(allow())).contains("every host may use"));
        view.target.set_hosts(&nqn(SUBSYSTEM), Hosts::Listed(vec![host_name(1)])).unwrap();
        let mut host = view.host(2);
        let mut watch = Watch::new(view, nvmf::Nqn::DISCOVERY, 1 << 31);
        let connect =
            |host: &mut Host<'_>| Controller::connect(host, view.at, &nqn(SUBSYSTEM), Options::default());
        let sees = |host: &mut Host<'_>| {
            let log = discover(host, view.at).unwrap();
            log.iter().any(|record| nvmf::Nqn::of_field(&record.subsystem).unwrap() == nqn(SUBSYSTEM))
        };
        assert_eq!(connect(&mut host).err().and_then(|e| e.code()), Some(Status::InvalidHost.code()));
        assert!(!sees(&mut host));

        done(control.handle(allow()));
        watch.told(0xF0, lid::DISCOVERY);
        assert!(sees(&mut host));
        let controller = connect(&mut host).unwrap();
        let Answer::List(List { controllers, .. }) = control.handle(Request::List) else { panic!("a list") };
        assert!(controllers.iter().any(|host| host.nqn == names().1 && host.subsystem == Some(names().0)));

        done(control.handle(deny()));
        watch.told(0xF0, lid::DISCOVERY);
        view.until(&mut host, "its controller ends", || view.target.controllers() == (0, 1));
        drop(controller);
        assert!(!sees(&mut host));
        assert_eq!(connect(&mut host).err().and_then(|e| e.code()), Some(Status::InvalidHost.code()));
        assert!(refused(control.handle(deny())).contains(&names().1));
    });
}

#[test]
fn the_socket_serves_its_user_and_answers_nonsense_in_a_sentence() {
    let scratch = Scratch::new("socket");
    let path = scratch.path().with_file_name("control");
    // What a process left that was killed.
    drop(UnixListener::bind(&path).unwrap());
    with_target(&Setup::default(), |view| {
        let socket = ControlSocket::open(&path, control(view)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = ControlSocket::open(&path, control(view));
        assert!(again.unwrap_err().reason.contains("another process listens"));
        let Answer::List(list) = ask(&path, &Request::List).unwrap() else { panic!("a list") };
        assert_eq!((list.pid, &list.subsystems[0].nqn[..]), (std::process::id(), SUBSYSTEM));
        assert!(done(ask(&path, &add(0, Storage::Memory(4096))).unwrap()).contains("namespace 2"));
        for nonsense in [
            "",
            "\n",
            "hello\n",
            "{\"do\":\"end\"}\n",
            "{\"do\":\"remove-namespace\",\"nqn\":\"x\"}\n",
            "[1]\n",
            "\"list\"\n",
        ] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(nonsense.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.contains("this is no request"), "{nonsense:?}: {text}");
        }
        // Clients that come and go, and one that says too much.
        for _ in 0..20 {
            drop(UnixStream::connect(&path).unwrap());
        }
        let mut long = UnixStream::connect(&path).unwrap();
        let _ = long.write_all(&vec![b'x'; 1 << 20]);
        drop(long);
        done(ask(&path, &remove(2)).unwrap());
        drop(socket);
        assert!(!path.exists());
    });
}

// Goal: neither the name given to a socket nor a search of the directory deletes a user's file or a running target's socket.
#[test]
fn files_that_are_no_sockets_of_targets_that_ended_stay() {
    let scratch = Scratch::new("mine");
    let dir = scratch.path().with_file_name("run");
    std::fs::create_dir(&dir).unwrap();
    let (mine, control_path) = (dir.join("mine.control"), dir.join("nvmf.control"));
    std::fs::write(&mine, "mine").unwrap();
    with_target(&Setup::default(), |view| {
        let refused = ControlSocket::open(&mine, control(view)).unwrap_err();
        assert!(refused.reason.contains("is no socket"), "{refused}");
        let first = ControlSocket::open(&control_path, control(view)).unwrap();
        // It may find a target of the system beside this one.
        let _ = find(&dir);
        assert!(control_path.exists());
        // A socket file that another target has put at the same path stays when the first target ends.
        std::fs::remove_file(&control_path).unwrap();
        let second = ControlSocket::open(&control_path, control(view)).unwrap();
        drop(first);
        assert!(control_path.exists());
        drop(second);
        assert!(!control_path.exists());
    });
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
}

// Goal: a target ends when it is to, whoever has connected to its socket: here one that says nothing, and one that waits behind.
#[test]
fn clients_that_say_nothing_or_little_do_not_keep_a_target() {
    let scratch = Scratch::new("silent");
    let path = scratch.path().with_file_name("control");
    with_target(&Setup::default(), |view| {
        let socket = ControlSocket::open(&path, control(view)).unwrap();
        let clients = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(socket);
                ended.store(true, Ordering::Release);
            });
            // Byte by byte, the request of the first one would take hours.
            while !ended.load(Ordering::Acquire) {
                let _ = (&clients[0]).write_all(b" ");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
    });
}

// Goal: a target ends when it is to, whatever it was asked last: here to remove a file that a core does not let go of.
#[test]
fn a_removal_that_waits_for_a_core_does_not_keep_a_target() {
    let scratch = Scratch::new("kept");
    let path = scratch.path().with_file_name("control");
    with_target(&Setup::default(), |view| {
        let socket = ControlSocket::open(&path, control(view)).unwrap();
        done(ask(&path, &add(2, file(&scratch.path(), 4096))).unwrap());
        let kept = view.stores.table();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&path, &remove(2)));
            while view.target.subsystems()[0].namespaces.len() > 1 {
                std::thread::yield_now();
            }
            let since = std::time::Instant::now();
            drop(socket);
            assert!(since.elapsed() < std::time::Duration::from_secs(8), "it waited for the core");
            // Whoever asked may have no answer any more.
            drop(asked.join().unwrap());
        });
        drop(kept);
    });
}

// Goal: the commands of the documentation change a target that was started as documented.
#[test]
fn the_programs_change_a_target_that_runs() {
    let scratch = Scratch::new("programs");
    let socket = scratch.path().with_file_name("control");
    let program = env!("CARGO_BIN_EXE_roce-nvmf");
    let mut serve = Command::new(program);
    serve.args(["serve", "--memory", "1m", "--port", "loopback", "--control"]).arg(&socket);
    let mut target = Running(serve.stdout(Stdio::null()).spawn().unwrap());
    let run = |words: &[&str]| -> Output {
        Command::new(program).args(words).arg("--control").arg(&socket).output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let since = std::time::Instant::now();
    while !run(&["list"]).status.success() {
        assert!(since.elapsed() < PATIENCE && target.0.try_wait().unwrap().is_none(), "it does not start");
    }
    let said = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let disk = scratch.path().display().to_string();
    assert!(said(&["namespace", "add", "--file", &disk, "--size", "64k"]).contains("namespace 2 of"));
    assert!(said(&["namespace", "resize", "2", "128k"]).contains("256 blocks of 512 bytes"));
    let list = said(&["list"]);
    assert!(list.contains("namespace 2: 256 blocks") && list.contains(&disk), "{list}");
    assert!(said(&["list", "--json"]).contains("\"size\":131072"));
    assert!(said(&["host", "allow", "nqn.2024-01.test:me"]).contains("every host may use"));
    said(&["namespace", "remove", "2"]);
    for (words, says) in [
        (&["namespace", "remove", "2"][..], "has no namespace 2"),
        (&["namespace", "add", "--memory", "1000"], "no multiple of a block"),
        (&["host", "deny", "nqn.2024-01.test:me"], "every host may use"),
        (&["namespace", "add"], "--file"),
    ] {
        let output = run(words);
        assert!(!output.status.success() && text(&output.stderr).contains(says), "{words:?}: {output:?}");
    }
    let pid = rustix::process::Pid::from_child(&target.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(target.0.wait().unwrap().success());
    assert!(!socket.exists(), "it removes its socket");
}

// Goal: changes are lost when the target ends, so it says which they are: in its answers, in the list, and in the log at the end. A
// change that is taken back is none, and a file that has grown stays so.
#[test]
fn what_differs_from_the_configuration_is_said() {
    let grown = Scratch::new("differs");
    let listed = host_name(7).to_string();
    with_target(&Setup { file: Some(grown.path()), ..Setup::default() }, |view| {
        view.target.set_hosts(&nqn(SUBSYSTEM), Hosts::Listed(vec![host_name(1), host_name(2)])).unwrap();
        let mut control = control(view);
        let differs = |control: &mut Control| match control.handle(Request::List) {
            Answer::List(list) => list.differs,
            other => panic!("{other:?}"),
        };
        assert_eq!(differs(&mut control), [""; 0]);
        let size = Setup::default().bytes as u64;
        assert!(!done(control.handle(resize(1, Some(2 * size)))).contains("differs"), "the file has grown");
        assert_eq!(differs(&mut control), [""; 0]);
        let answer = done(control.handle(add(2, Storage::Memory(4096))));
        assert!(answer.contains("the target now differs from disks.toml"), "{answer}");
        done(control.handle(resize(1, Some(size))));
        let allow = Request::AllowHost { nqn: SUBSYSTEM.into(), host: listed.clone() };
        done(control.handle(allow));
        done(control.handle(Request::DenyHost { nqn: SUBSYSTEM.into(), host: host_name(2).to_string() }));
        let (now, again) = (size / BLOCK as u64, 2 * size / BLOCK as u64);
        assert_eq!(
            differs(&mut control),
            [
                format!("namespace 1 of {SUBSYSTEM} has {now} blocks, and will have {again} by disks.toml"),
                format!("disks.toml does not have namespace 2 of {SUBSYSTEM}"),
                format!("disks.toml does not allow {listed} to use {SUBSYSTEM}"),
                format!("disks.toml allows {} to use {SUBSYSTEM}, which was denied", host_name(2)),
            ]
        );
        done(control.handle(resize(1, Some(2 * size))));
        done(control.handle(remove(2)));
        done(control.handle(Request::DenyHost { nqn: SUBSYSTEM.into(), host: listed.clone() }));
        done(control.handle(Request::AllowHost { nqn: SUBSYSTEM.into(), host: host_name(2).to_string() }));
        assert_eq!(differs(&mut control), [""; 0]);
        done(control.handle(remove(1)));
        assert_eq!(
            differs(&mut control),
            [format!("disks.toml has namespace 1 of {SUBSYSTEM}, which was removed")]
        );
    });
}
