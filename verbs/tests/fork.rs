//! Goal: a forked child of a process with open devices can drop its copies of the objects and make any call. Nothing panics or hangs, and
//! nothing of the parent process is touched.

mod common;

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{PATIENCE, all_rights, options};
use verbs::errno::EPERM;
use verbs::port::PortSpec;
use verbs::rdma_cm::{CmId, EventChannel, PortSpace};
use verbs::{
    AttrMask, CompChannel, Context, Cq, CqInitAttr, DeviceConfig, DeviceError, Drive, Mr, Pd, PortState, Qp,
    QpAttr, QpInitAttr, QpState, RecvWr, SendWr, VerbsError, Wc, WcStatus,
};

/// Serializes the tests: at the moment of a fork, another test's thread may hold a lock of the test harness.
static ALONE: Mutex<()> = Mutex::new(());

/// Passes `things` to `job` in a forked child, which has to exit with success. The parent process keeps them.
fn in_fork<T>(things: T, job: impl FnOnce(T)) -> T {
    // SAFETY: the child runs `job` on its only thread and leaves by `_exit`, without the process's exit handlers. It may meet locks that
    // threads of its parent held: that is what these tests check, and an alarm ends the child if it hangs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(60) };
        let good = catch_unwind(AssertUnwindSafe(|| job(things))).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for that child; the status is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(!libc::WIFSIGNALED(status), "the fork hung, or died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the fork panicked");
    things
}

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("roce-fork-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A device and every kind of object on it.
struct Host {
    qp: Qp,
    mr: Mr,
    cq: Cq,
    _listener: CmId,
    _events: EventChannel,
    _completions: CompChannel,
    pd: Pd,
    context: Context,
}

impl Host {
    fn new(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let mr = pd.reg_mr(4096, all_rights()).unwrap();
        let events = EventChannel::new().unwrap();
        let listener = context.create_id(Some(&events), PortSpace::Tcp).unwrap();
        listener.bind_addr(std::net::SocketAddr::from(([0, 0, 0, 0], 7000))).unwrap();
        listener.listen(4).unwrap();
        let completions = context.create_comp_channel().unwrap();
        Self { qp, mr, cq, _listener: listener, _events: events, _completions: completions, pd, context }
    }
}

/// Two devices whose queue pairs are connected.
struct Ends {
    a: Host,
    b: Host,
}

impl Ends {
    fn new(config: impl Fn(usize) -> DeviceConfig) -> Self {
        let [a, b] = [0, 1]
            .map(|side| Host::new(Context::open(config(side).addr([10, 0, 0, 1 + side as u8], 24)).unwrap()));
        let ends = Self { a, b };
        let start = Instant::now();
        while [&ends.a, &ends.b].iter().any(|h| h.context.query_port(1).unwrap().state != PortState::Active) {
            assert!(start.elapsed() < PATIENCE, "the link does not come up");
            ends.turn();
        }
        ends.a.qp.connect_rc(&ends.b.qp.endpoint(1).unwrap(), &options()).unwrap();
        ends.b.qp.connect_rc(&ends.a.qp.endpoint(1).unwrap(), &options()).unwrap();
        ends
    }

    /// Makes one turn of each device, if no thread of the device does.
    fn turn(&self) {
        for host in [&self.a, &self.b] {
            if let Ok(mut reactor) = host.context.reactor(0) {
                reactor.poll_once();
            }
        }
    }

    /// Sends a message from A to B, and waits for both completions.
    fn talk(&self) {
        let sge = |host: &Host| [host.mr.sge(0..64).unwrap()];
        self.b.qp.post_recv(&[RecvWr::new(1, &sge(&self.b))]).unwrap();
        self.a.qp.post_send(&[SendWr::send(2, &sge(&self.a)).signaled()]).unwrap();
        let (start, mut wc) = (Instant::now(), [Wc::default(); 2]);
        let (mut sent, mut received) = (0, 0);
        while (sent, received) != (1, 1) {
            assert!(start.elapsed() < PATIENCE, "{sent} sent, {received} received: {wc:?}");
            self.turn();
            sent += self.a.cq.poll(&mut wc[..1]).unwrap();
            received += self.b.cq.poll(&mut wc[1..]).unwrap();
        }
        assert!(wc.iter().all(|wc| wc.status == WcStatus::Success), "{wc:?}");
    }
}

fn drives() -> [Drive; 3] {
    [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: Vec::new() }]
}

fn unix(dir: &Dir, drive: &Drive, side: usize) -> DeviceConfig {
    let (ours, theirs) = if side == 0 { ("a", "b") } else { ("b", "a") };
    let spec = format!("unix:{},peer={}", dir.path(ours).display(), dir.path(theirs).display());
    let mut config = DeviceConfig::new(spec.parse::<PortSpec>().unwrap()).drive(drive.clone());
    config.pcap = Some(dir.path(&format!("{ours}.pcap")));
    config.stats(dir.path(&format!("{ours}.stats")))
}

fn shows_statistics(path: &Path) -> bool {
    let mut text = String::new();
    let read = UnixStream::connect(path).and_then(|mut s| s.read_to_string(&mut text));
    read.is_ok() && text.contains("\"shards\"")
}

#[test]
fn a_fork_that_drops_everything_leaves_the_other_process_its_devices() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for drive in drives() {
        let dir = Dir::new();
        let ends = Ends::new(|side| unix(&dir, &drive, side));
        ends.talk();
        let ends = in_fork(ends, drop);
        for name in ["a", "b", "a.stats", "b.stats"] {
            assert!(dir.path(name).exists(), "{drive:?}: the fork removed {name}");
        }
        assert!(shows_statistics(&dir.path("a.stats")), "{drive:?}: the socket of the counters is shut");
        ends.talk();
        drop(ends);
        for name in ["a", "b", "a.stats", "b.stats"] {
            assert!(!dir.path(name).exists(), "{drive:?}: {name} is left behind");
        }
    }
}

// The capture is buffered: the child's copy of the buffer must not be written a second time.
#[test]
fn a_fork_writes_nothing_into_a_capture() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Dir::new();
    let ends = Ends::new(|side| unix(&dir, &Drive::Embedded, side));
    ends.talk();
    let len = |name: &str| std::fs::metadata(dir.path(name)).unwrap().len();
    let before = (len("a.pcap"), len("b.pcap"));
    let ends = in_fork(ends, drop);
    assert_eq!((len("a.pcap"), len("b.pcap")), before);
    drop(ends);
    assert!(len("a.pcap") > before.0, "there was something left to write");
}

#[test]
fn calls_in_a_fork_fail_with_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for drive in drives() {
        let dir = Dir::new();
        let ends = Ends::new(|side| unix(&dir, &drive, side));
        // The other end's message stays for the parent process, whatever the child polls.
        let sge = |host: &Host| [host.mr.sge(0..64).unwrap()];
        ends.b.qp.post_recv(&[RecvWr::new(1, &sge(&ends.b))]).unwrap();
        let ends = in_fork(ends, |ends| {
            fn refused<T>(result: Result<T, impl Into<VerbsError>>) {
                let Err(error) = result else { panic!("a fork may not do that") };
                let error = error.into();
                assert!(matches!(error, VerbsError::Device(DeviceError::Forked)), "{error}");
                assert_eq!(error.errno(), EPERM);
                assert!(error.to_string().contains("open a device after the fork"), "{error}");
            }
            let Host { qp, mr, cq, pd, context, _events: events, _completions: completions, .. } = ends.a;
            let err = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
            refused(qp.modify(&err, AttrMask::STATE));
            refused(pd.create_qp(&QpInitAttr::rc(&cq, &cq)));
            refused(context.start());
            refused(context.add_address([10, 0, 0, 9], 24));
            refused(context.create_id(Some(&events), PortSpace::Tcp).and_then(|id| id.listen(1)));
            refused(events.get_event(Duration::from_secs(100)).map(drop));
            refused(mr.dereg().map_err(|(error, _)| error));
            assert!(completions.try_get_cq_event().is_none());
            let _ = qp.post_send(&[SendWr::send(3, &[])]);
            assert_eq!(cq.poll(&mut [Wc::default()]).unwrap(), 0);
            refused(qp.destroy().map_err(|(error, _)| error));
            refused(cq.destroy().map_err(|(error, _)| error));
            // A device that the child opens works like any other.
            let pair = common::Pair::new(common::embedded());
            pair.b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
            pair.a.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
            assert_eq!(pair.done_a(1)[0].status, WcStatus::Success);
        });
        ends.talk();
    }
}

// The descriptors that are readable while events wait are shared with a forked child.
#[test]
fn a_fork_leaves_events_to_the_other_process() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let context = common::embedded();
    let (pd, channel) = (context.alloc_pd().unwrap(), context.create_comp_channel().unwrap());
    let cq = context.create_cq_ex(&CqInitAttr::new(4).channel(&channel)).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    cq.req_notify(false).unwrap();
    qp.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
    let readable = || {
        let mut fd = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one such structure, which is ours.
        unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
    };
    let start = Instant::now();
    while !readable() {
        assert!(start.elapsed() < PATIENCE, "no completion comes");
        common::pump(&context);
    }
    in_fork((&channel, &cq), |(channel, _)| assert!(channel.try_get_cq_event().is_none()));
    assert!(readable() && channel.try_get_cq_event().is_some());
}

#[test]
fn a_fork_leaves_a_memif_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for drive in drives() {
        let dir = Dir::new();
        let socket = dir.path("memif.sock");
        let ends = Ends::new(|side| {
            let role = ["server", "client"][side];
            let spec = format!("memif:{},role={role}", socket.display());
            DeviceConfig::new(spec.parse::<PortSpec>().unwrap()).drive(drive.clone())
        });
        ends.talk();
        let ends = in_fork(ends, |ends| {
            drop(ends);
            // The child may open a port of its own.
            let spec: PortSpec = format!("memif:{}", dir.path("other.sock").display()).parse().unwrap();
            let own = Context::open(DeviceConfig::new(spec).addr([10, 0, 0, 3], 24)).unwrap();
            own.start().unwrap();
            assert!(dir.path("other.sock").exists());
        });
        assert!(socket.exists(), "{drive:?}: the fork removed the socket");
        ends.talk();
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn a_fork_leaves_dpdk_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let plain = verbs::port::dpdk::EalOptions { huge_pages: false, ..Default::default() };
    verbs::port::dpdk::configure(plain).unwrap();
    let open = |name: &str| {
        let spec: PortSpec = format!("dpdk:{name}").parse().unwrap();
        let mac = Some(verbs::Mac([2, 0, 0, 0, 0, 7]));
        let config = DeviceConfig::new(spec).addr([10, 0, 0, 3], 24);
        Context::open(config.mac(mac)).unwrap()
    };
    let device = open("net_null0");
    device.start().unwrap();
    let device = in_fork(device, |device| {
        drop(device);
        let error = open("net_null1").start().unwrap_err().to_string();
        assert!(error.contains("a fork of one that uses DPDK"), "{error}");
    });
    assert_eq!(device.query_port(1).unwrap().state, verbs::PortState::Active);
}
