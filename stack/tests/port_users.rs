//! Goal: a process of another user is no peer, for ports of either role, unless an option says so. As root, which can have
//! another user's threads.

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

/// The user without rights.
const NOBODY: u32 = 65534;
/// Options of a port of root's, and whether a process of nobody's may be the peer then.
const OPTIONS: [(&str, bool); 4] =
    [("", false), (",peer-uid=65533", false), (",peer-uid=65534", true), (",peer-uid=any", true)];

/// A directory into which every user may put sockets, removed when the test ends; `None` where we cannot be another user.
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

/// Opens `ours`, the server's socket being at `socket`, and has a thread of nobody's open `theirs` and send every frame back:
/// either the frames pass, or none does and it is counted.
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
        // Also where the test fails: the other thread would go on.
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
    // A socket of nobody's, as a client.
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
        // The other user is there first, or has a link that leads to a socket of ours.
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

/// A TCP socket whose close(2) waits for its data to be sent, which they never are: nobody reads them. The other end is returned,
/// too; once it is closed, the first one can be.
fn lingering() -> (TcpStream, TcpListener) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let lingering = TcpStream::connect(deaf.local_addr().unwrap()).unwrap();
    lingering.set_nonblocking(true).unwrap();
    while (&lingering).write(&[0; 65536]).is_ok() {}
    set_socket_linger(&lingering, Some(Duration::from_secs(3600))).unwrap();
    (lingering, deaf)
}

/// Runs `call` as another user, or as ourselves.
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
    // Goal: close(2) of the last descriptor of a TCP socket that lingers waits until its data are sent. A peer, of another user or of
    // our own, sends the last descriptor of one whose data are never read, to a port that refuses the user, and to one that refuses
    // the message; and once it is connected.
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
            // Also what was never received, and is closed with the port.
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

// Goal: closes that wait hold up the party that sent the descriptors, and nobody else: not another user's process at the same port,
// nor any at another port; and once they end, that party is welcome again.
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
    // More than a process may have at a time.
    for _ in 0..12 {
        let (lingering, deaf) = lingering();
        let peer = as_user(Some(NOBODY), || Peer::new(path));
        peer.send(&init(), &[lingering.as_fd(); 60]);
        // Before the port takes it: this must not be the last one.
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
    // The sockets are reset, and the closes end.
    drop(waiting);
    links(path, &**port, Some(NOBODY));
}

// Goal: a process of another PID namespace, which has no number here, is a peer like any other: containers of one user meet.
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
