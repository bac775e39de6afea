//! Goal: a port on a Linux interface follows the interface's state: down, no carrier, another MTU, deleted. Events are raised, and frames
//! that could not leave are counted. Needs root, to create and change interfaces.

mod common;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use common::{PATIENCE, all_rights, options, pump};
use verbs::port::{PortSpec, dpdk};
use verbs::{
    AsyncEvent, Context, Cq, DeviceConfig, Drive, Mr, Mtu, Pd, PortState, Qp, QpInitAttr, RcOptions, SendWr,
    Wc, WcStatus,
};

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// Two interfaces that form a cable, removed when the test ends. `None`, with a printed reason, if they cannot be created.
struct Veth(String, String);

impl Veth {
    fn new(letter: char) -> Option<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            dpdk::configure(dpdk::EalOptions { huge_pages: false, ..Default::default() }).unwrap();
        });
        let name = |side: char| format!("rofo{letter}{side}{}", std::process::id() % 100_000);
        let (a, b) = (name('a'), name('b'));
        if !ip(&format!("link add {a} mtu 4200 type veth peer name {b} mtu 4200")) {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED verbs/tests/follow.rs: it needs root and the ip tool");
            return None;
        }
        let made = Self(a, b);
        for name in [&made.0, &made.1] {
            // No frames of other sources: the test expects exactly its own.
            let quiet = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            let _ = std::fs::write(quiet, "1");
            assert!(ip(&format!("link set {name} up")));
        }
        Some(made)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.0));
    }
}

fn open(spec: &str, address: u8) -> Context {
    let config = DeviceConfig::new(spec.parse::<PortSpec>().unwrap()).addr([10, 0, 0, address], 24);
    Context::open(config.drive(Drive::Embedded)).unwrap_or_else(|error| panic!("{error}"))
}

/// Polls the devices until the condition holds.
fn until(what: &str, devices: &[&Context], mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        devices.iter().for_each(|device| pump(device));
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn event(device: &Context) -> Option<AsyncEvent> {
    device.try_get_async_event().map(|event| event.event)
}

fn state(device: &Context) -> PortState {
    device.query_port(1).unwrap().state
}

/// Two devices, with a connected queue pair on each.
struct Ends {
    a: Context,
    b: Context,
    qp: [Qp; 2],
    cq: Cq,
    mr: [Mr; 2],
    pd: [Pd; 2],
}

impl Ends {
    fn new(veth: &Veth, options: &RcOptions) -> Self {
        let (a, b) = (open(&format!("af_packet:{}", veth.0), 1), open(&format!("af_packet:{}", veth.1), 2));
        let pd = [&a, &b].map(|device| device.alloc_pd().unwrap());
        let (cq, other) = (a.create_cq(16).unwrap(), b.create_cq(16).unwrap());
        let qp = [(0, &cq), (1, &other)].map(|(i, cq)| pd[i].create_qp(&QpInitAttr::rc(cq, cq)).unwrap());
        qp[0].connect_rc(&qp[1].endpoint(1).unwrap(), options).unwrap();
        qp[1].connect_rc(&qp[0].endpoint(1).unwrap(), options).unwrap();
        let mr = [0, 1].map(|i: usize| pd[i].reg_mr(64 << 10, all_rights()).unwrap());
        let ends = Self { a, b, qp, cq, mr, pd };
        until("both links come up", &[&ends.a, &ends.b], || {
            state(&ends.a) == PortState::Active && state(&ends.b) == PortState::Active
        });
        while event(&ends.a).is_some() || event(&ends.b).is_some() {}
        ends
    }

    fn post_write(&self, len: usize) {
        let from = [self.mr[0].sge(0..len).unwrap()];
        let wr = SendWr::write(1, &from, self.mr[1].addr(), self.mr[1].rkey());
        self.qp[0].post_send(&[wr.signaled()]).unwrap();
    }

    fn write(&self, len: usize) -> WcStatus {
        self.post_write(len);
        let mut wc = [Wc::default()];
        until("the WRITE completes", &[&self.a, &self.b], || self.cq.poll(&mut wc).unwrap() == 1);
        wc[0].status
    }
}

#[test]
fn af_packet_reports_an_interface_that_goes_down_and_comes_back() {
    let Some(veth) = Veth::new('d') else { return };
    let ends = Ends::new(&veth, &options());
    assert_eq!(ends.write(50_000), WcStatus::Success);
    let lost = ends.a.port_stats().tx_dropped;

    assert!(ip(&format!("link set {} down", veth.0)));
    let both = [&ends.a, &ends.b];
    until("PORT_ERR", &both, || event(&ends.a) == Some(AsyncEvent::PortErr));
    until("PORT_ERR at the other end, which has no carrier", &both, || {
        event(&ends.b) == Some(AsyncEvent::PortErr)
    });
    assert_eq!((state(&ends.a), state(&ends.b)), (PortState::Down, PortState::Down));

    // Frames sent meanwhile are lost, and counted; the connection continues when the interface is up again.
    ends.post_write(50_000);
    until("the loss is counted", &both, || ends.a.port_stats().tx_dropped > lost);
    assert!(ip(&format!("link set {} up", veth.0)));
    until("PORT_ACTIVE", &both, || event(&ends.a) == Some(AsyncEvent::PortActive));
    until("PORT_ACTIVE at the other end", &both, || event(&ends.b) == Some(AsyncEvent::PortActive));
    let mut wc = [Wc::default()];
    until("the WRITE completes", &both, || ends.cq.poll(&mut wc).unwrap() == 1);
    assert_eq!(wc[0].status, WcStatus::Success);
    assert_eq!(ends.write(50_000), WcStatus::Success);
}

#[test]
fn af_packet_follows_the_mtu_of_its_interface() {
    let Some(veth) = Veth::new('m') else { return };
    let few = options().timeout(15).retry_cnt(3);
    let ends = Ends::new(&veth, &few);
    assert_eq!(ends.write(50_000), WcStatus::Success);
    let mtu = |device: &Context| device.query_port(1).unwrap().active_mtu;
    assert_eq!(mtu(&ends.a), Mtu::Mtu4096);

    assert!(ip(&format!("link set {} mtu 1500", veth.0)) && ip(&format!("link set {} mtu 1500", veth.1)));
    let both = [&ends.a, &ends.b];
    until("the active MTU follows", &both, || mtu(&ends.a) == Mtu::Mtu1024 && mtu(&ends.b) == Mtu::Mtu1024);
    assert_eq!(ends.a.query_port(1).unwrap().link_mtu, 1500);
    // On the existing connection, frames that fit still pass; longer ones are lost, and counted.
    assert_eq!(ends.write(500), WcStatus::Success);
    let lost = ends.a.port_stats().tx_dropped;
    assert_eq!(ends.write(50_000), WcStatus::RetryExcErr);
    assert!(ends.a.port_stats().tx_dropped > lost, "{:?}", ends.a.port_stats());
    // The MTU cannot exceed the one that the port was opened with.
    let set = |mtu: u32| [&veth.0, &veth.1].iter().all(|name| ip(&format!("link set {name} mtu {mtu}")));
    assert!(set(9000));
    until("the active MTU comes back", &both, || mtu(&ends.a) == Mtu::Mtu4096);
    assert_eq!(ends.a.query_port(1).unwrap().link_mtu, 4200);
    // A new connection uses the link's MTU, and refuses a larger one.
    assert!(set(1500));
    let fresh = ends.a.create_cq(1).unwrap();
    let qp = ends.pd[0].create_qp(&QpInitAttr::rc(&fresh, &fresh)).unwrap();
    qp.connect_rc(&ends.qp[1].endpoint(1).unwrap(), &few).unwrap();
    assert_eq!(qp.query().unwrap().0.path_mtu, Mtu::Mtu1024 as u8);
    let too_long = few.path_mtu(Mtu::Mtu4096);
    let qp = ends.pd[0].create_qp(&QpInitAttr::rc(&fresh, &fresh)).unwrap();
    let error = qp.connect_rc(&ends.qp[1].endpoint(1).unwrap(), &too_long).unwrap_err();
    assert!(error.to_string().contains("1024"), "{error}");
}

#[test]
fn a_port_whose_interface_was_deleted_stays_down_and_the_program_goes_on() {
    let Some(veth) = Veth::new('x') else { return };
    let few = options().timeout(15).retry_cnt(3);
    let ends = Ends::new(&veth, &few);
    assert_eq!(ends.write(50_000), WcStatus::Success);
    drop(veth);
    let both = [&ends.a, &ends.b];
    until("PORT_ERR", &both, || event(&ends.a) == Some(AsyncEvent::PortErr));
    let lost = ends.a.port_stats().tx_dropped;
    assert_eq!(ends.write(50_000), WcStatus::RetryExcErr);
    assert!(ends.a.port_stats().tx_dropped > lost, "{:?}", ends.a.port_stats());
    // A new interface with the same name: only a port that is opened after its creation uses it.
    let veth = Veth::new('x').unwrap();
    for _ in 0..1000 {
        pump(&ends.a);
        std::thread::sleep(Duration::from_micros(50));
    }
    assert_eq!(state(&ends.a), PortState::Down);
    drop(ends);
    let again = Ends::new(&veth, &options());
    assert_eq!(again.write(50_000), WcStatus::Success);
}

#[test]
fn a_tap_reports_its_interface_too() {
    let Some(_root) = Veth::new('t') else { return };
    if !Path::new("/dev/net/tun").exists() {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED taps of verbs/tests/follow.rs: there is no /dev/net/tun");
        return;
    }
    let name = format!("rofot{}", std::process::id() % 100_000);
    let device = open(&format!("tap:{name}"), 1);
    assert_eq!(device.query_port(1).unwrap().link_mtu, 1500, "what every release of DPDK carries");
    device.start().unwrap();
    until("it comes up", &[&device], || event(&device) == Some(AsyncEvent::PortActive));
    // The MTU is the one that the driver accepted, and the Linux interface has the same.
    let carries = device.query_port(1).unwrap().link_mtu;
    let read = || std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap();
    assert!((1500..=4200).contains(&carries));
    assert_eq!(read().trim(), carries.to_string());

    assert!(ip(&format!("link set {name} mtu 1280")));
    until("the MTU follows", &[&device], || device.query_port(1).unwrap().link_mtu == 1280);
    assert!(ip(&format!("link set {name} down")));
    until("PORT_ERR", &[&device], || event(&device) == Some(AsyncEvent::PortErr));
    assert!(ip(&format!("link set {name} up")));
    until("PORT_ACTIVE", &[&device], || event(&device) == Some(AsyncEvent::PortActive));
    assert!(ip(&format!("link del {name}")));
    until("PORT_ERR of one that is gone", &[&device], || event(&device) == Some(AsyncEvent::PortErr));
}

// Goal: over the host's sockets the active MTU is the MTU of the routes, not of the interface that holds the address.
#[test]
fn a_virtual_address_has_the_mtu_of_the_links() {
    const VIRTUAL: &str = "10.94.9.9";
    let Some(veth) = Veth::new('v') else { return };
    let active = |spec: &str| {
        let config = DeviceConfig::new(format!("udp:{spec}").parse::<PortSpec>().unwrap());
        let device = Context::open(config.drive(Drive::Embedded)).unwrap();
        device.query_port(1).unwrap().active_mtu
    };
    assert!(ip(&format!("addr add 10.94.1.1/24 dev {}", veth.0)));
    assert_eq!(active("10.94.1.1"), Mtu::Mtu4096, "the link carries 4200 bytes");
    assert!(ip(&format!("link set {} mtu 1500", veth.0)));
    let dummy = format!("rofod{}", std::process::id() % 100_000);
    for (iface, made) in [("lo", true), (&dummy, ip(&format!("link add {dummy} type dummy")))] {
        if !made {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED verbs/tests/follow.rs: there are no dummy interfaces");
            continue;
        }
        assert!(ip(&format!("link set {iface} up")) && ip(&format!("addr add {VIRTUAL}/32 dev {iface}")));
        let mtu = active(VIRTUAL);
        assert!(ip(&format!("addr del {VIRTUAL}/32 dev {iface}")));
        assert_eq!(mtu, Mtu::Mtu1024, "on {iface}");
    }
    ip(&format!("link del {dummy}"));
}
