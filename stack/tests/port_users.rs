//! Goal: a process of another user is not accepted as a peer, by ports of either role, unless an option allows it. As root, which can have
//! threads of another user.

use process::{PATIENCE, Ticker, become_user, echo, exchange, open};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sim::memif_peer::{Peer, init};
use stack::port::{Port, Route, RxBurst, TxBurst};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod process;

/// The user without privileges.
const NOBODY: u32 = 65534;
/// Options of a port of root, and whether they allow a process of the user nobody as the peer.
const OPTIONS: [(&str, bool); 4] =
    [("", false), (",peer-uid=65533", false), (",peer-uid=65534", true), (",peer-uid=any", true)];

/// A directory in which every user may create sockets, removed when the test ends; `None` if this process cannot change its user.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            // Not through the test harness, which would swallow it.
            let _ = writeln!(std::io::stderr(), "SKIPPED {name} of stack/tests/port_users.rs: it needs root");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("roce-users-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        open_to_all(&dir);
        Some(Self(dir))
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lets every user connect to the socket, so that only the port's own check can refuse a peer.
fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// Opens `ours`; the server's socket is at `socket`. A thread of the user nobody opens `theirs` and sends every frame back. Either the
/// frames pass, or none does and the refusal is counted.
fn joined(ours: &str, theirs: &str, socket: &str, we_serve: bool, welcome: bool) {
    let done = AtomicBool::new(false);
    let serve = || {
        let port = open(ours, 1);
        open_to_all(Path::new(socket));
        port
    };
    let server = we_serve.then(serve);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(NOBODY);
            let port = open(theirs, 1);
            echo(&*port, &done);
        });
        // Also if the test fails: the other thread would run on.
        let _end = OnDrop(&done);
        let port = server.unwrap_or_else(|| open(ours, 1));
        let mut queue = port.take_queue(0).unwrap();
        if welcome {
            exchange(&*port, &mut *queue, ours);
            assert_eq!(port.stats().refused, 0, "{ours}");
            return;
        }
        let mut clock = Ticker::new();
        let (mut burst, mut got) = (TxBurst::new(), RxBurst::new());
        let start = Instant::now();
        while port.stats().refused == 0 {
            assert!(start.elapsed() < PATIENCE, "{ours}: nobody is refused");
            if let Some(mut frame) = queue.alloc() {
                frame.fill(&[0; 60]);
                burst.push(frame);
                queue.tx_burst(Route::default(), &mut burst);
                burst.clear();
            }
            clock.maintain(&*port);
            assert_eq!(queue.rx_burst(&mut got), 0, "{ours}");
        }
    });
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_memif_has_a_peer_of_its_own_user() {
    let Some(dir) = Dir::new("memif") else { return };
    for (role, other) in [("server", "client"), ("client", "server")] {
        for (n, (option, welcome)) in OPTIONS.into_iter().enumerate() {
            let path = dir.path(&format!("{role}{n}"));
            let ours = format!("memif:{path},role={role}{option}");
            joined(&ours, &format!("memif:{path},role={other}"), &path, role == "server", welcome);
        }
    }
}

#[test]
fn datagrams_come_from_its_own_user() {
    let Some(dir) = Dir::new("datagrams") else { return };
    for (n, (option, welcome)) in OPTIONS.into_iter().enumerate() {
        let (a, b) = (dir.path(&format!("a{n}")), dir.path(&format!("b{n}")));
        joined(&format!("unix:{a},peer={b}{option}"), &format!("unix:{b},peer={a}"), &a, true, welcome);
    }
}

#[test]
#[cfg(feature = "dpdk")]
fn a_guest_of_another_user_does_not_reach_a_vhost_port() {
    use std::os::unix::net::UnixStream;
    let Some(dir) = Dir::new("vhost") else { return };
    let plain = stack::port::dpdk::EalOptions { huge_pages: false, ..Default::default() };
    stack::port::dpdk::configure(plain).unwrap();
    for (option, welcome) in [("", false), (",peer-uid=any", true)] {
        let path = dir.path(if welcome { "any" } else { "ours" });
        let _port = open(&format!("vhost:{path}{option}"), 1);
        let connected = std::thread::scope(|scope| {
            let connect = || {
                become_user(NOBODY);
                UnixStream::connect(&path).map_err(|error| error.kind())
            };
            scope.spawn(connect).join().unwrap()
        });
        match welcome {
            true => drop(connected.unwrap()),
            false => assert_eq!(connected.unwrap_err(), std::io::ErrorKind::PermissionDenied),
        }
    }
    // A server's socket that belongs to the user nobody: the port, as its client, refuses it.
    let path = dir.path("served");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    let spec = format!("vhost:{path},client=1").parse::<stack::port::PortSpec>().unwrap();
    let error = spec.open(&stack::port::PortOptions::default()).err().unwrap().to_string();
    assert!(error.contains("was made by user 65534"), "{error}");
}

#[test]
fn frames_do_not_go_to_a_socket_of_another_user() {
    let Some(dir) = Dir::new("stranger") else { return };
    for (n, (option, welcome)) in OPTIONS.into_iter().enumerate() {
        let (a, b, link) =
            (dir.path(&format!("a{n}")), dir.path(&format!("b{n}")), dir.path(&format!("l{n}")));
        // The other user binds the path first, or places a symbolic link to a socket of ours there.
        let theirs = std::thread::scope(|scope| {
            let bind = || {
                become_user(NOBODY);
                std::os::unix::fs::symlink(&a, &link).unwrap();
                UnixDatagram::bind(&b).unwrap()
            };
            scope.spawn(bind).join().unwrap()
        });
        theirs.set_nonblocking(true).unwrap();
        for peer in [&b, &link] {
            let port = open(&format!("unix:{a},peer={peer}{option}"), 1);
            let mut queue = port.take_queue(0).unwrap();
            assert_eq!(port.link_up(), welcome && peer == &b, "{peer}{option}");
            let mut burst = TxBurst::new();
            burst.push(queue.alloc().unwrap());
            assert!(burst[0].fill(b"secret"));
            assert_eq!(queue.tx_burst(Route::default(), &mut burst), 1);
            let refused = u64::from(!welcome);
            assert_eq!((port.stats().refused, port.stats().tx_dropped), (refused, refused), "{peer}{option}");
        }
        assert_eq!(theirs.recv(&mut [0; 16]).is_ok(), welcome, "{option}");
    }
}

/// A TCP socket whose close(2) blocks until its data is sent, which never happens, because nobody reads it. Also returns the other end:
/// when that is closed, the close of the first succeeds.
fn lingering() -> (TcpStream, TcpListener) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let lingering = TcpStream::connect(deaf.local_addr().unwrap()).unwrap();
    lingering.set_nonblocking(true).unwrap();
    while (&lingering).write(&[0; 65536]).is_ok() {}
    set_socket_linger(&lingering, Some(Duration::from_secs(3600))).unwrap();
    (lingering, deaf)
}

/// Runs `call` as another user, or as this user.
fn as_user<R: Send>(user: Option<u32>, call: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            user.into_iter().for_each(become_user);
            call()
        });
        thread.join().unwrap()
    })
}

#[test]
fn what_a_peer_sends_along_blocks_no_caller() {
    // Goal: close(2) of the last file descriptor of a lingering TCP socket blocks until its data is sent. A peer, of another user or of this
    // user, sends the last descriptor of such a socket whose data is never read: to a port that refuses the user, to a port that refuses the
    // message, and after connecting.
    let Some(dir) = Dir::new("linger") else { return };
    let cases = [(Some(NOBODY), ""), (Some(NOBODY), ",peer-uid=any"), (None, "")];
    for (n, (user, option)) in cases.into_iter().enumerate() {
        for connected in [false, true] {
            let path = dir.path(&format!("server{n}{connected}"));
            let port = open(&format!("memif:{path},role=server{option}"), 1);
            open_to_all(Path::new(&path));
            let (lingering, _deaf) = lingering();
            let refused = || port.stats().refused;
            let peer = as_user(user, || Peer::new(Path::new(&path)));
            let welcome = user.is_none() || !option.is_empty();
            let peer = if connected && welcome { peer.connected(&*port) } else { peer };
            peer.send(&init(), &[lingering.as_fd()]);
            drop(lingering);
            let mut clock = Ticker::new();
            let start = Instant::now();
            while refused() == 0 {
                assert!(start.elapsed() < PATIENCE, "nobody is refused");
                clock.maintain(&*port);
            }
            // Also descriptors that were never received, which are closed with the port.
            drop(port);
        }
    }
}

#[test]
fn what_comes_with_a_datagram_blocks_no_caller() {
    let Some(dir) = Dir::new("datagrams") else { return };
    let path = dir.path("ours");
    let port = open(&format!("unix:{path},peer={}", dir.path("theirs")), 1);
    let mut queue = port.take_queue(0).unwrap();
    let theirs = UnixDatagram::bind(dir.path("theirs")).unwrap();
    theirs.connect(&path).unwrap();
    let mut got = RxBurst::new();
    for round in 0..4u8 {
        let (lingering, _deaf) = lingering();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [lingering.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let text = [std::io::IoSlice::new(b"with a descriptor")];
        rustix::net::sendmsg(&theirs, &text, &mut control, SendFlags::empty()).unwrap();
        drop(lingering);
        theirs.send(&[round; 60]).unwrap();
        let start = Instant::now();
        while queue.rx_burst(&mut got) == 0 {
            assert!(start.elapsed() < PATIENCE, "the datagram behind it does not arrive");
        }
        assert_eq!((got.len(), got[0].data()), (1, &[round; 60][..]));
        queue.recycle(&mut got);
    }
    assert_eq!((port.stats().refused, port.stats().rx_dropped), (4, 4));
}

// Goal: a blocking close holds up the party that sent the descriptors, and no other: neither another user's process at the same port
// nor any process at another port. When the closes end, the party is accepted again.
#[test]
fn descriptors_that_wait_to_be_closed_keep_no_other_peer_out() {
    let Some(dir) = Dir::new("waiting") else { return };
    let ports = ["a", "b"].map(|name| {
        let path = dir.path(name);
        let port = open(&format!("memif:{path},role=server,peer-uid=any"), 1);
        open_to_all(Path::new(&path));
        (PathBuf::from(path), port)
    });
    let (path, port) = &ports[0];
    let mut waiting = Vec::new();
    // More than one process may have blocked at a time.
    for _ in 0..12 {
        let (lingering, deaf) = lingering();
        let peer = as_user(Some(NOBODY), || Peer::new(path));
        peer.send(&init(), &[lingering.as_fd(); 60]);
        // Before the port receives it: this descriptor must not be the last one.
        drop(lingering);
        waiting.push((peer, deaf));
        port.maintain();
    }
    let links = |path: &Path, port: &dyn Port, user| {
        let start = Instant::now();
        loop {
            let peer = as_user(user, || Peer::new(path));
            peer.play(peer.script());
            match peer.outcome(port) {
                Ok(()) => break drop(peer),
                Err(why) => assert!(start.elapsed() < PATIENCE, "no link: {why}"),
            }
        }
        while port.link_up() {
            assert!(start.elapsed() < PATIENCE);
        }
    };
    for _ in 0..3 {
        for (path, port) in &ports {
            links(path, &**port, None);
        }
        links(&ports[1].0, &*ports[1].1, Some(NOBODY));
    }
    // The sockets are reset, and the blocked closes end.
    drop(waiting);
    links(path, &**port, Some(NOBODY));
}

// Goal: a process of another PID namespace, which has no process number here, is accepted like any other: containers of one user can link.
#[test]
fn a_peer_in_another_pid_namespace_links() {
    let Some(dir) = Dir::new("namespace") else { return };
    for (ours, theirs) in [("client", "server"), ("server", "client")] {
        let path = dir.path(ours);
        let spec = |role: &str| format!("memif:{path},role={role}");
        let server = (ours == "server").then(|| open(&spec(ours), 1));
        let Some(_peer) = process::Peer::start_in_a_pid_namespace(&spec(theirs)) else { return };
        let port = server.unwrap_or_else(|| open(&spec(ours), 1));
        let mut queue = port.take_queue(0).unwrap();
        exchange(&*port, &mut *queue, theirs);
    }
}

#[test]
fn child() {
    process::child();
}
