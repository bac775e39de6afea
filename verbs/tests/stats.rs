//! The statistics socket: its contents, which users may connect, and misbehaving clients, which do no harm.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::common::{self, Pair, Stop};
use verbs::stats::{Snapshot, StatsError};
use verbs::{Context, Counter, DeviceConfig, Drive, OpenError, RecvWr, SendWr, VerbsError};

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("roce-stats-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn names(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Takes a snapshot. Tries again if the snapshot is missing or cut short because one end got no core for longer than the other waits.
fn fetch(path: impl AsRef<Path>) -> Result<Snapshot, StatsError> {
    let start = Instant::now();
    loop {
        let result = Snapshot::fetch(path.as_ref());
        let in_time = match &result {
            Err(StatsError::Io { source, .. }) => source.kind() != ErrorKind::WouldBlock,
            Err(StatsError::Format { .. }) => false,
            _ => true,
        };
        if in_time || start.elapsed() > common::PATIENCE {
            return result;
        }
    }
}

fn open(path: impl Into<PathBuf>) -> Context {
    Context::open(DeviceConfig::loopback().drive(Drive::Embedded).stats(path)).unwrap()
}

fn refused(path: impl Into<PathBuf>) -> String {
    let error = Context::open(DeviceConfig::loopback().stats(path)).unwrap_err();
    assert!(matches!(&error, VerbsError::Open(e) if matches!(e, OpenError::Stats { .. })), "{error:?}");
    error.to_string()
}

#[test]
fn it_shows_what_the_device_says() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let p = Pair::new(open(&path));
    p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(0..100).unwrap()])]).unwrap();
    p.a.post_send(&[SendWr::send(2, &[p.mr.sge(200..300).unwrap()]).signaled()]).unwrap();
    p.done_a(1);
    p.done_b(1);
    // Nothing drives the shard now, so the fetched snapshot equals the device's own, except for the time.
    let mut fetched = fetch(&path).unwrap();
    let here = p.context.stats();
    assert!(fetched.at_ns <= here.at_ns);
    fetched.at_ns = here.at_ns;
    assert_eq!(fetched, here);
    assert_eq!((here.version, here.pid, here.qps_total), (1, std::process::id(), 2));
    assert_eq!((here.shards.len(), here.shards[0].qps), (1, 2));
    let a = here.qps.iter().find(|qp| qp.qpn == p.a.qp_num().get()).unwrap();
    let peer = a.peer.as_ref().unwrap();
    assert_eq!((a.qp_type.as_str(), a.state.as_str(), a.shard), ("RC", "RTS", 0));
    assert_eq!(
        (peer.qpn, peer.gid.as_str()),
        (p.b.qp_num().get(), p.context.gid_table()[1].to_string().as_str())
    );
    assert_eq!(a.counters["send_bytes"], 100);
    assert_eq!(a.counters, (&p.a.counters()).into());
    let qpn = p.a.qp_num().get();
    common::enter(&p.a, verbs::QpState::Reset);
    let reset = p.context.stats();
    let a = reset.qps.iter().find(|qp| qp.qpn == qpn).unwrap();
    assert_eq!((a.state.as_str(), &a.peer), ("RESET", &None));
    drop(p.a);
    assert_eq!(fetch(&path).unwrap().qps_total, 1, "a queue pair that is gone is not listed");
}

#[test]
fn only_this_user_may_connect_and_nothing_stays() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let context = open(&path);
    let metadata = std::fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(dir.names(), ["s.sock"], "nothing else is left in the directory");
    assert_eq!(context.stats_path(), Some(path.as_path()));
    drop(context);
    assert!(dir.names().is_empty());
    assert!(matches!(fetch(&path), Err(StatsError::Io { .. })));
    assert_eq!(common::device().stats_path(), None, "off unless asked for");
}

#[test]
fn paths_that_cannot_be() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let first = open(&path);
    assert!(refused(&path).contains("another process listens"));
    assert!(fetch(&path).is_ok(), "the first one is as it was");
    drop(first);
    assert!(refused("/nonexistent/s.sock").contains("no directory /nonexistent"));
    let file = dir.path("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(refused(&file).contains("no socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    assert!(refused(dir.path(&"x".repeat(200))).contains("cannot be made"));
    assert_eq!(dir.names(), ["file"]);
    // A file left behind by a process that died is no obstacle.
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(fetch(&path), Err(StatsError::Stale { .. })));
    let context = open(&path);
    assert!(fetch(&path).is_ok());
    // Another socket's file under the same name must not be removed.
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(context);
    assert!(path.exists());
    drop(other);
}

// Goal: a symbolic link counts as its target, because connect(2) follows links.
#[test]
fn what_is_at_a_path_is_told_through_links_too() {
    let dir = Dir::new();
    let [socket, link] = ["s.sock", "link"].map(|name| dir.path(name));
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let context = open(&socket);
    assert!(fetch(&link).is_ok());
    drop(context);
    assert!(matches!(Snapshot::fetch(&link), Err(StatsError::Io { .. })), "it leads nowhere");
    drop(UnixListener::bind(&socket).unwrap());
    for path in [&socket, &link] {
        assert!(matches!(Snapshot::fetch(path), Err(StatsError::Stale { path: named }) if named == *path));
    }
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "mine").unwrap();
    for path in [&socket, &link] {
        let text = Snapshot::fetch(path).unwrap_err().to_string();
        assert!(text.contains("is no socket") && text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn devices_in_a_directory_have_names_of_their_own() {
    let dir = Dir::new();
    let (a, b) = (open(&dir.0), open(&dir.0));
    let (a, b) = (a.stats_path().unwrap(), b.stats_path().unwrap());
    assert_ne!(a, b);
    let pid = format!("{}-", std::process::id());
    for path in [a, b] {
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(&pid), "{path:?}");
        assert!(fetch(path).is_ok());
    }
}

// Data from clients is never read; clients that disconnect, or stay without reading, delay the others only briefly.
#[test]
fn bad_clients_do_no_harm() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let config = DeviceConfig::loopback().qps_per_shard(8192);
    let context = Context::open(config.drive(Drive::Embedded).stats(&path)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    // More than a socket buffers for a client that does not read.
    let qps: Vec<_> =
        (0..8000).map(|_| pd.create_qp(&verbs::QpInitAttr::rc(&cq, &cq).cap(small())).unwrap()).collect();
    let text = context.stats().to_json();
    assert!(text.len() > 256 << 10, "{} bytes", text.len());

    let mut garbage = UnixStream::connect(&path).unwrap();
    let _ = garbage.write_all(&[0xff; 4096]);
    let _ = garbage.write_all(b"GET / HTTP/1.1\r\n\r\n{\"stop\":true}");
    drop(UnixStream::connect(&path).unwrap());
    let hanging: Vec<_> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let start = Instant::now();
    let snapshot = fetch(&path);
    // Each hanging client is dropped after a quarter of a second; the timeout of `fetch` is two.
    assert_eq!(snapshot.unwrap().qps_total, qps.len(), "{:?}", start.elapsed());
    // The hanging clients were cut off in the middle.
    for mut stream in hanging {
        let mut part = Vec::new();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream.read_to_end(&mut part).unwrap();
        assert!(part.len() < text.len(), "{} of {}", part.len(), text.len());
    }
    // The device works, and closes while one more hangs.
    common::pump(&context);
    let _hanging = UnixStream::connect(&path).unwrap();
    drop((qps, cq, pd));
    let start = Instant::now();
    drop(context);
    assert!(start.elapsed() < common::PATIENCE && !path.exists());
}

fn small() -> verbs::QpCap {
    verbs::QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
}

// Reading statistics needs no claim: the device answers while its only shard is held, however long.
#[test]
fn looking_on_waits_for_no_shard() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let p = Pair::new(open(&path));
    p.a.post_send(&[SendWr::write(1, &[p.mr.sge(0..64).unwrap()], p.mr.addr(), p.mr.rkey()).signaled()])
        .unwrap();
    // Many fetches while a thread drives the shard without a break: neither waits for the other, and numbers never decrease.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let (context, stop) = (&p.context, &stop);
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                common::pump(context);
            }
        });
        let _stop = Stop(stop);
        let mut last = 0;
        for _ in 0..20 {
            let frames = fetch(&path).unwrap().shards[0].counters.get("requests_sent").copied().unwrap_or(0);
            assert!(frames >= last);
            last = frames;
        }
    });
    p.done_a(1);
    assert_eq!(p.context.counters().get(Counter::SendMessages), 1);
}

// Goal: tables are code of the program. A table that panics costs the requesting client its snapshot, and no other client; a table may take
// snapshots and add tables.
#[test]
fn tables_that_panic_or_call_back_do_no_harm() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let context = std::sync::Arc::new(open(&path));
    let calls = AtomicU32::new(0);
    let own = std::sync::Arc::downgrade(&context);
    context.add_stats(move || {
        let n = calls.fetch_add(1, Ordering::Relaxed);
        assert!(n != 0, "the table panics, once");
        let context = own.upgrade().expect("it is open");
        assert!(context.stats().tables.is_empty(), "inside a table there are none");
        if n == 1 {
            context.add_stats(|| verbs::stats::Table { name: "later".into(), ..Default::default() });
        }
        verbs::stats::Table { name: "first".into(), ..Default::default() }
    });
    assert!(Snapshot::fetch(&path).is_err(), "cut short, or in longer than it waits");
    let names = || {
        let tables = fetch(&path).unwrap().tables;
        tables.into_iter().map(|table| table.name).collect::<Vec<_>>()
    };
    assert_eq!(names()[0], "first");
    assert_eq!(names(), ["first", "later"]);
    drop(context);
    assert!(!path.exists());
}

// Goal: the thread that serves the counters does not wait for itself.
#[test]
fn a_table_may_drop_the_last_handle_of_the_device() {
    let dir = Dir::new();
    let path = dir.path("s.sock");
    let context = open(&path);
    let place = std::sync::Arc::new(std::sync::Mutex::new(None));
    let taken = place.clone();
    context.add_stats(move || {
        drop(taken.lock().unwrap().take());
        verbs::stats::Table::default()
    });
    *place.lock().unwrap() = Some(context);
    // The answer may be cut short: the socket has ended.
    let _ = fetch(&path);
    assert!(place.lock().unwrap().is_none() && !path.exists());
}
