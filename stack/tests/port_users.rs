//! Goal: a process of another user is no peer, for ports of either role, unless an option says so. As root, which can have
//! another user's threads.

use process::{PATIENCE, Ticker, become_user, echo, exchange, open};
use rustix::net::sockopt::set_socket_linger;
use sim::memif_peer::{Peer, init};
use stack::port::{RxBurst, TxBurst};
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
                queue.tx_burst(&mut burst);
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
            assert_eq!(queue.tx_burst(&mut burst), 1);
            let refused = u64::from(!welcome);
            assert_eq!((port.stats().refused, port.stats().tx_dropped), (refused, refused), "{peer}{option}");
        }
        assert_eq!(theirs.recv(&mut [0; 16]).is_ok(), welcome, "{option}");
    }
}

#[test]
fn what_another_user_sends_along_blocks_no_caller() {
    // Goal: close(2) of the last descriptor of a TCP socket that lingers waits until its data are sent. The other user sends the
    // last descriptor of a socket whose data are never read, to a port that refuses the user, and to one that refuses the message.
    let Some(dir) = Dir::new("linger") else { return };
    for (n, option) in ["", ",peer-uid=any"].into_iter().enumerate() {
        let path = dir.path(&format!("server{n}"));
        let port = open(&format!("memif:{path},role=server{option}"), 1);
        open_to_all(Path::new(&path));
        // Nobody reads there: the data stay.
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let lingering = TcpStream::connect(deaf.local_addr().unwrap()).unwrap();
        lingering.set_nonblocking(true).unwrap();
        while (&lingering).write(&[0; 65536]).is_ok() {}
        set_socket_linger(&lingering, Some(Duration::from_secs(3600))).unwrap();
        let _peer = std::thread::scope(|scope| {
            let connect = || {
                become_user(NOBODY);
                let peer = Peer::new(Path::new(&path));
                peer.send(&init(), &[lingering.as_fd()]);
                peer
            };
            scope.spawn(connect).join().unwrap()
        });
        drop(lingering);
        let mut clock = Ticker::new();
        let start = Instant::now();
        while port.stats().refused == 0 {
            assert!(start.elapsed() < PATIENCE, "nobody is refused");
            clock.maintain(&*port);
        }
    }
}
