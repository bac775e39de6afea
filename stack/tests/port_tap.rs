//! Goal: frames pass in both directions between a net_tap port and the Linux interface that it creates.

use stack::port::dpdk::EalOptions;
use stack::port::{PortOptions, PortSpec, Route, RxBurst, TxBurst};
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

fn possible() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    let net_admin = u64::from_str_radix(effective.trim(), 16).unwrap_or(0) >> 12 & 1 == 1;
    let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok();
    let ip = Command::new("ip").arg("-V").output().is_ok();
    for (there, what) in [(net_admin, "CAP_NET_ADMIN"), (tun, "/dev/net/tun"), (ip, "the ip tool")] {
        if !there {
            // Not through the test harness, which swallows the output of passing tests.
            let _ = writeln!(std::io::stderr(), "SKIPPED port_tap: it needs {what}");
            return false;
        }
    }
    // The two tests share the process, and only the first call configures it.
    let plain = EalOptions { huge_pages: false, ..EalOptions::default() };
    let _ = stack::port::dpdk::configure(plain);
    true
}

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Turns an ARP request for 10.213.7.2 or UDP to it into the answer, in place. Returns whether there is an answer to send.
fn answer(frame: &mut [u8], mac: [u8; 6]) -> bool {
    let (dst, src) = frame.split_at_mut(6);
    dst.copy_from_slice(&src[..6]);
    src[..6].copy_from_slice(&mac);
    match (&frame[12..14], frame.len()) {
        ([0x08, 0x06], 42..) if frame[20..22] == [0, 1] && frame[38..42] == [10, 213, 7, 2] => {
            frame[21] = 2;
            frame.copy_within(22..32, 32);
            frame[22..28].copy_from_slice(&mac);
            frame[28..32].copy_from_slice(&[10, 213, 7, 2]);
            true
        }
        ([0x08, 0x00], 42..) if frame[23] == 17 && frame[30..34] == [10, 213, 7, 2] => {
            // Addresses and ports are swapped, which leaves the checksums right.
            for i in 26..30 {
                frame.swap(i, i + 4);
            }
            frame.swap(34, 36);
            frame.swap(35, 37);
            true
        }
        _ => false,
    }
}

#[test]
fn datagrams_through_a_tap() {
    if !possible() {
        return;
    }
    let iface = format!("rocet{}", std::process::id() % 100_000);
    let spec: PortSpec = format!("tap:{iface}").parse().unwrap();
    let options = PortOptions { queues: 1, frames: 1024, ..PortOptions::default() };
    let port = spec.open(&options).unwrap_or_else(|error| panic!("{error}"));
    assert!(port.link_up());
    let mtu = port.info().mtu;
    assert!((1500..=4200).contains(&mtu), "4200 where the driver can");
    let read = |file: &str| std::fs::read_to_string(format!("/sys/class/net/{iface}/{file}")).unwrap();
    assert_eq!(read("mtu").trim(), mtu.to_string());
    assert_ne!(read("address").trim(), port.info().mac.to_string(), "a bridge would keep the port's frames");

    ip(&format!("addr add 10.213.7.1/24 dev {iface}"));
    ip(&format!("link set {iface} up"));
    let mut queue = port.take_queue(0).unwrap();
    let talk = std::thread::spawn(|| {
        let socket = UdpSocket::bind("10.213.7.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.connect("10.213.7.2:4791").unwrap();
        let mut answers = 0;
        let mut buffer = [0; 2000];
        for len in [1, 100, 1472, 1472, 1472] {
            let sent = vec![len as u8; len];
            // The first datagram may be lost while the interface comes up.
            for _ in 0..5 {
                socket.send(&sent).unwrap();
                if socket.recv(&mut buffer).is_ok_and(|n| buffer[..n] == sent) {
                    answers += 1;
                    break;
                }
            }
        }
        answers
    });
    let mac = port.info().mac.0;
    let mut got = RxBurst::new();
    let mut back = TxBurst::new();
    while !talk.is_finished() {
        queue.rx_burst(&mut got);
        for mut frame in got.drain(..) {
            if frame.len() >= 14 && answer(frame.data_mut(), mac) {
                back.push(frame);
            }
        }
        queue.tx_burst(Route::default(), &mut back);
        back.clear();
    }
    assert_eq!(talk.join().unwrap(), 5, "every datagram comes back");
    assert!(port.stats().rx_frames >= 4 && port.stats().tx_frames >= 4, "{:?}", port.stats());
    drop((queue, port));
    assert!(
        !std::path::Path::new(&format!("/sys/class/net/{iface}")).exists(),
        "the interface goes with the port"
    );

    let error = "tap:lo".parse::<PortSpec>().unwrap().open(&options).err().unwrap().to_string();
    assert!(error.contains("lo exists and is no tap interface"), "{error}");
}

#[test]
fn frames_through_a_veth() {
    if !possible() {
        return;
    }
    let (a, b) = (
        format!("roceva{}", std::process::id() % 100_000),
        format!("rocevb{}", std::process::id() % 100_000),
    );
    ip(&format!("link add {a} mtu 4200 type veth peer name {b} mtu 4200"));
    ip(&format!("link set {a} up"));
    ip(&format!("link set {b} up"));
    let options = PortOptions { queues: 1, frames: 1024, ..PortOptions::default() };
    let open = |iface: &str| {
        let spec: PortSpec = format!("af_packet:{iface}").parse().unwrap();
        spec.open(&options).unwrap_or_else(|error| panic!("{error}"))
    };
    let ports = [open(&a), open(&b)];
    let mut queues = [ports[0].take_queue(0).unwrap(), ports[1].take_queue(0).unwrap()];
    for len in [60, 1514, ports[0].info().mtu + 14] {
        let mut frame = queues[0].alloc().unwrap();
        frame.set_len(len);
        frame.data_mut().fill(0x5a);
        frame.data_mut()[..14]
            .copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        let mut burst = TxBurst::new();
        burst.push(frame);
        queues[0].tx_burst(Route::default(), &mut burst);
        let start = Instant::now();
        let mut got = RxBurst::new();
        while !got.iter().any(|frame| frame.len() == len && frame.data()[12..14] == [0x88, 0xb5]) {
            assert!(start.elapsed() < Duration::from_secs(60), "{len} bytes did not arrive");
            queues[1].recycle(&mut got);
            queues[1].rx_burst(&mut got);
        }
    }
    drop((queues, ports));
    ip(&format!("link del {a}"));
}
