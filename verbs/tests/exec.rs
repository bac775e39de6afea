//! Goal: a program that a process with open devices starts inherits none of their descriptors, whatever the port. An inherited descriptor
//! would keep a socket listening, or a queue of an interface open, for as long as the program runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use verbs::port::PortSpec;
use verbs::rdma_cm::PortSpace;
use verbs::{Context, DeviceConfig, Mac, PortState, QpInitAttr};

const PATIENCE: Duration = Duration::from_secs(60);

/// The descriptors that a program started now inherits beside its standard streams, by their targets.
fn inherited() -> BTreeSet<String> {
    let output = Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("ls is there");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let open = text.lines().filter_map(|line| line.split_once(" -> ")).filter_map(|(left, target)| {
        let fd: u32 = left.rsplit(' ').next()?.parse().ok()?;
        // ls itself has the directory open.
        (fd > 2 && !target.ends_with("/fd")).then(|| target.to_owned())
    });
    open.collect()
}

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("roce-exec-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
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

/// Opens a device on the port, with every kind of object that has a descriptor, and passes it to `look`.
fn with_device(dir: &Dir, spec: &str, look: impl FnOnce(&Context)) {
    let mut config = DeviceConfig::new(spec.parse::<PortSpec>().unwrap()).shards(2).stats(&*dir.0);
    if !spec.starts_with("udp:") {
        config = config.addr([10, 0, 0, 1], 24);
    }
    config.pcap = Some(dir.0.join("a.pcap"));
    config.mac = spec.starts_with("dpdk:").then_some(Mac([2, 0, 0, 0, 0, 7]));
    let context = Context::open(config).unwrap_or_else(|error| panic!("{spec}: {error}"));
    context.start().unwrap_or_else(|error| panic!("{spec}: {error}"));
    let completions = context.create_comp_channel().unwrap();
    let cq = context.create_cq(16).unwrap();
    let pd = context.alloc_pd().unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let fd = context.async_fd().unwrap();
    let events = verbs::rdma_cm::EventChannel::new().unwrap();
    let id = context.create_id(Some(&events), PortSpace::Tcp).unwrap();
    look(&context);
    drop((completions, qp, fd, id, events));
}

/// Checks until `done` that nothing more is inherited than before.
fn nothing_is_inherited(before: &BTreeSet<String>, spec: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{spec} does not get there");
        std::thread::sleep(Duration::from_millis(5));
    }
    let now = inherited();
    let more: Vec<_> = now.difference(before).collect();
    assert!(more.is_empty(), "{spec}: a program that is started now gets {more:?}");
}

#[test]
fn ports_without_dpdk_leave_no_descriptor_to_programs() {
    let (before, dir) = (inherited(), Dir::new("plain"));
    for spec in ["loopback".to_owned(), format!("unix:{},peer={}", dir.path("a"), dir.path("b"))] {
        with_device(&dir, &spec, |_| nothing_is_inherited(&before, &spec, || true));
    }
}

#[test]
fn sockets_of_the_host_leave_no_descriptor_to_programs() {
    let (before, dir) = (inherited(), Dir::new("udp"));
    // An address of this machine only, which no other test uses.
    let [.., high, low] = std::process::id().to_be_bytes();
    let spec = format!("udp:127.91.{high}.{}", low.clamp(1, 254));
    with_device(&dir, &spec, |context| {
        nothing_is_inherited(&before, &spec, || is_up(context));
        // A thread that waits for datagrams has a descriptor of its own.
        assert!(context.get_async_event(Duration::from_millis(20)).is_ok());
        nothing_is_inherited(&before, &spec, || true);
    });
}

// Control: the test detects an inherited descriptor.
#[test]
fn the_test_sees_what_is_inherited() {
    let file = std::fs::File::open("/dev/zero").unwrap();
    let inherit = Command::new("ls").args(["-l", "/proc/self/fd"]).stdin(Stdio::from(file)).output().unwrap();
    assert!(String::from_utf8_lossy(&inherit.stdout).contains("0 -> /dev/zero"));
}

fn is_up(context: &Context) -> bool {
    context.query_port(1).unwrap().state == PortState::Active
}

#[test]
fn a_memif_leaves_no_descriptor_to_programs() {
    let (before, dir) = (inherited(), Dir::new("memif"));
    let spec = |role: &str| format!("memif:{},role={role}", dir.path("memif.sock"));
    with_device(&dir, &spec("server"), |server| {
        nothing_is_inherited(&before, "a server alone", || Path::new(&dir.path("memif.sock")).exists());
        // A client connects, disappears, and another client connects: these descriptors are opened later.
        for _ in 0..2 {
            with_device(&dir, &spec("client"), |client| {
                nothing_is_inherited(&before, "a connected memif", || is_up(server) && is_up(client));
            });
            nothing_is_inherited(&before, "a memif whose peer is gone", || !is_up(server));
        }
    });
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Once;

    fn static_dpdk() -> bool {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let plain = verbs::port::dpdk::EalOptions { huge_pages: false, ..Default::default() };
            verbs::port::dpdk::configure(plain).unwrap();
        });
        // DPDK as shared libraries is the distribution's build, whose descriptors this test does not control.
        let shared = std::fs::read_to_string("/proc/self/maps").unwrap().contains("librte_eal.so");
        if shared {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED DPDK ports of verbs/tests/exec.rs: DPDK is linked as shared libraries"
            );
        }
        !shared
    }

    #[test]
    fn a_vhost_port_leaves_no_descriptor_to_programs() {
        if !static_dpdk() {
            return;
        }
        let (before, dir) = (inherited(), Dir::new("vhost"));
        let (path, spec) = (dir.path("vhost.sock"), format!("vhost:{}", dir.path("vhost.sock")));
        with_device(&dir, &spec, |_| {
            let mut qemu = None;
            nothing_is_inherited(&before, &spec, || {
                qemu = UnixStream::connect(&path).ok();
                qemu.is_some()
            });
            // VHOST_USER_GET_FEATURES: once it is answered, the connection has been accepted.
            let mut qemu = qemu.unwrap();
            qemu.set_read_timeout(Some(PATIENCE)).unwrap();
            qemu.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            std::io::Read::read_exact(&mut qemu, &mut [0; 20]).unwrap();
            nothing_is_inherited(&before, "a vhost port with a guest", || true);
        });
    }

    #[test]
    fn virtual_devices_leave_no_descriptor_to_programs() {
        if !static_dpdk() {
            return;
        }
        let (before, dir) = (inherited(), Dir::new("vdev"));
        for spec in ["dpdk:net_ring7", "dpdk:net_null7"] {
            with_device(&dir, spec, |_| nothing_is_inherited(&before, spec, || true));
        }
    }

    #[test]
    fn linux_interfaces_leave_no_descriptor_to_programs() {
        if !static_dpdk() {
            return;
        }
        let pid = std::process::id() % 10_000;
        let (tap, a, b) = (format!("roex{pid}"), format!("roexa{pid}"), format!("roexb{pid}"));
        let ip =
            |args: &str| Command::new("ip").args(args.split(' ')).output().is_ok_and(|o| o.status.success());
        if !ip(&format!("link add {a} type veth peer name {b}")) || !Path::new("/dev/net/tun").exists() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED taps and af_packet of verbs/tests/exec.rs: they need root, ip and /dev/net/tun"
            );
            return;
        }
        assert!(ip(&format!("link set {a} up")) && ip(&format!("link set {b} up")));
        let (before, dir) = (inherited(), Dir::new("iface"));
        for spec in [format!("tap:{tap}"), format!("af_packet:{a}")] {
            with_device(&dir, &spec, |context| nothing_is_inherited(&before, &spec, || is_up(context)));
        }
        assert!(ip(&format!("link del {a}")));
    }
}
