//! Goal: DPDK devices of any kind work as ports; and DPDK's own memif driver, unmodified, works as the peer of our port in either role.

use process::{PATIENCE, Peer, exchange, socket};
use stack::port::dpdk::EalOptions;
use stack::port::{AtOnce, Port, PortOptions, PortSpec, Route, RxBurst, TxBurst};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Once;
use std::time::Instant;

mod process;

#[test]
fn child() {
    plain_memory();
    process::child();
}

/// Makes the tests' processes use no huge pages, because others may take them at the same time.
fn plain_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let options = EalOptions { huge_pages: false, ..EalOptions::default() };
        stack::port::dpdk::configure(options).unwrap();
    });
}

fn open(spec: &str, queues: usize) -> Box<dyn Port> {
    plain_memory();
    process::open(spec, queues)
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
    }
}

/// The specification of DPDK's own memif driver at a path.
fn stock(path: &Path, role: &str, more: &str) -> String {
    format!("dpdk:net_memif0,role={role},socket={},socket-abstract=no{more}", path.display())
}

#[test]
fn a_stock_client_comes_goes_and_comes_again() {
    for (queues, more) in [(1, ",bsize=4288"), (3, ",rsize=9,bsize=9000")] {
        let path = socket(&format!("stock-client-{queues}"));
        let port = open(&format!("memif:{},role=server", path.display()), queues);
        let mut all: Vec<_> = (0..queues).map(|i| port.take_queue(i).unwrap()).collect();
        for round in 0..3 {
            let peer = Peer::start(&stock(&path, "client", more), queues);
            for (i, queue) in all.iter_mut().enumerate() {
                exchange(&*port, &mut **queue, &format!("stock client, round {round}, queue {i}"));
            }
            assert!(port.link_up());
            drop(peer);
            wait_until("the link stays up without a peer", || !port.link_up());
        }
        assert_eq!((port.stats().restarts, port.stats().refused), (3, 0));
    }
}

#[test]
fn a_stock_client_with_small_buffers() {
    // Goal: frames that take several of a peer's buffers pass in both directions.
    let path = socket("stock-small");
    let port = open(&format!("memif:{},role=server", path.display()), 1);
    let mut queue = port.take_queue(0).unwrap();
    let _peer = Peer::start(&stock(&path, "client", ",bsize=2048"), 1);
    exchange(&*port, &mut *queue, "buffers of 2048 bytes");
    assert_eq!(
        queue.build_burst(Route::default(), 1, &mut AtOnce(|_: &mut [u8]| panic!("they hold no frame"))),
        None
    );
}

#[test]
fn a_stock_server_comes_goes_and_comes_again() {
    for queues in [1, 3] {
        let path = socket(&format!("stock-server-{queues}"));
        let port = open(&format!("memif:{},role=client", path.display()), queues);
        let mut all: Vec<_> = (0..queues).map(|i| port.take_queue(i).unwrap()).collect();
        for round in 0..3 {
            // The driver does not reuse a path that an earlier server left.
            let _ = std::fs::remove_file(&path);
            let peer = Peer::start(&stock(&path, "server", ""), queues);
            for (i, queue) in all.iter_mut().enumerate() {
                exchange(&*port, &mut **queue, &format!("stock server, round {round}, queue {i}"));
            }
            drop(peer);
            wait_until("the link stays up without a peer", || !port.link_up());
        }
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn a_client_of_ours_comes_again_to_a_stock_server() {
    let path = socket("stock-stays");
    let peer = Peer::start(&stock(&path, "server", ",secret=psst,id=5"), 1);
    for round in 0..3 {
        let port = open(&format!("memif:{},role=client,secret=psst,id=5", path.display()), 1);
        let mut queue = port.take_queue(0).unwrap();
        exchange(&*port, &mut *queue, &format!("our client, round {round}"));
    }
    let wrong = open(&format!("memif:{},role=client,secret=other,id=5", path.display()), 1);
    wait_until("it is not refused", || {
        assert!(!wrong.link_up());
        wrong.stats().refused > 0
    });
    drop(peer);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_virtio_driver_and_a_vhost_port_are_joined() {
    // Goal: DPDK's virtio driver, whose PCI variant guests use, accepts the buffers of a port as they are. It counts more bytes to a
    // frame than other drivers do.
    let path = socket("virtio");
    let port = open(&format!("vhost:{}", path.display()), 1);
    let mut queue = port.take_queue(0).unwrap();
    let driver = format!("dpdk:net_virtio_user0,path={},queues=1", path.display());
    let _peer = Peer::start(&driver, 1);
    exchange(&*port, &mut *queue, "virtio");
}

#[test]
fn errors_say_what_to_do() {
    plain_memory();
    let error = |spec: &str, options: &PortOptions| {
        spec.parse::<PortSpec>().unwrap().open(options).err().expect("an error").to_string()
    };
    let options = PortOptions { frames: 1024, ..PortOptions::default() };
    let wrong = error("dpdk:net_memif0,role=neither", &options);
    assert!(wrong.contains("check its options"), "{wrong}");
    let big = error("dpdk:net_ring8", &PortOptions { frames: 1 << 18, queues: 16, ..options });
    assert!(big.contains("no memory for") && big.contains("huge pages"), "{big}");
}

#[test]
fn a_device_without_a_driver_is_told_from_one_with_wrong_options() {
    plain_memory();
    let options = PortOptions { frames: 1024, ..PortOptions::default() };
    let spec: PortSpec = "dpdk:net_nosuchdriver0,iface=lo".parse().unwrap();
    let says = spec.open(&options).err().expect("an error").to_string();
    assert!(says.contains("net_nosuchdriver is not built in"), "{says}");
    let add =
        if dpdk_sys::BUILT_IN.is_empty() { "the distribution's libraries" } else { "DPDK_SYS_DRIVERS=" };
    assert!(says.contains(add), "{says}");
    for driver in dpdk_sys::BUILT_IN.split(',') {
        assert!(says.contains(driver), "{driver} is built in: {says}");
    }
}

#[test]
fn the_documentation_lists_the_drivers_of_a_build() {
    let read =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let build = read("../dpdk-sys/build.rs");
    let table = build
        .split_once("const DRIVERS: &[&str] = &[")
        .and_then(|(_, rest)| rest.split_once("];"))
        .unwrap()
        .0;
    let listed: BTreeSet<&str> = table.split('"').filter_map(|word| word.strip_prefix("net_")).collect();
    let ports = read("../docs/ports.md");
    let section = ports.split_once("## Drivers").unwrap().1.split("\n## ").next().unwrap();
    let in_docs: BTreeSet<&str> = section
        .split_once("\n| built in |")
        .and_then(|(_, rest)| rest.split_once("\n\n"))
        .unwrap()
        .0
        .split('`')
        .skip(1)
        .step_by(2)
        .collect();
    assert_eq!(in_docs, listed);
    for driver in dpdk_sys::BUILT_IN.split(',').filter_map(|name| name.strip_prefix("net_")) {
        assert!(section.contains(&format!("`{driver}`")), "{driver} is built in, and not in docs/ports.md");
    }
}

#[test]
fn other_devices() {
    let port = open("dpdk:net_ring7", 1);
    let mut queue = port.take_queue(0).unwrap();
    assert!(port.link_up());
    let mut burst = TxBurst::new();
    let mut frame = queue.alloc().unwrap();
    frame.fill(b"round");
    burst.push(frame);
    assert_eq!(queue.tx_burst(Route::default(), &mut burst), 1);
    let mut got = RxBurst::new();
    assert_eq!(queue.rx_burst(&mut got), 1);
    assert_eq!(got[0].data(), b"round");
}

#[test]
fn ports_come_and_go_and_frames_outlive_them() {
    // Goal: neither a pool nor an lcore id is leaked: far more rounds than memory would last for.
    let mut kept = Vec::new();
    plain_memory();
    for round in 0..40u8 {
        let options = PortOptions { queues: 2, frames: 512, ..PortOptions::default() };
        let spec: PortSpec = "dpdk:net_null9".parse().unwrap();
        let port = spec.open(&options).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let mut queue = port.take_queue(1).unwrap();
        drop(port);
        let mut frame = queue.alloc().unwrap();
        assert!(frame.capacity() >= 4218);
        frame.fill(&[round; 100]);
        if round % 16 == 0 {
            kept.push(frame);
        }
    }
    for (i, frame) in kept.iter().enumerate() {
        assert_eq!(frame.data(), [i as u8 * 16; 100]);
    }
}

// Goal: two devices that are joined by rings carry full-size frames in both directions on each queue.
#[test]
fn rings_join_two_devices() {
    let options = PortOptions { queues: 2, frames: 1024, ..PortOptions::default() };
    let ports = stack::port::dpdk::ring_pair(&options).unwrap();
    let mut queues: [Vec<_>; 2] =
        ports.each_ref().map(|port| (0..2).map(|index| port.take_queue(index).unwrap()).collect());
    assert!(ports.iter().all(|port| port.link_up()));
    let (mut burst, mut got) = (TxBurst::new(), RxBurst::new());
    for round in 0..1000usize {
        let (from, index) = (round % 2, round / 2 % 2);
        let bytes = vec![round as u8; ports[from].info().max_frame() - round % 60];
        let mut frame = queues[from][index].alloc().unwrap();
        assert!(frame.fill(&bytes));
        burst.push(frame);
        assert_eq!(queues[from][index].tx_burst(Route::default(), &mut burst), 1);
        assert_eq!(queues[1 - from][index].rx_burst(&mut got), 1);
        assert_eq!(got[0].data(), bytes);
        queues[1 - from][index].recycle(&mut got);
    }
    assert_ne!(ports[0].info().mac, ports[1].info().mac);
}
