//! Errors end in one sentence and an exit code, and leave nothing behind.

use crate::common::{self, Bench, Link, PERF, PINGPONG, free_port, run, signal, until, wait_for_traffic};
use rustix::process::Signal;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn wrong_options() {
    run(PERF, &["client", "--wrong", "host"]).bad("unexpected argument '--wrong'");
    run(PERF, &["client", "--port", "eth0", "host"]).bad("no such kind of port");
    run(PERF, &[]).bad("Usage");
    run(PINGPONG, &["-m", "1000"]).bad("there are 256, 512");
    let tcp = free_port().to_string();
    run(PERF, &["server", "--port", "loopback", "--oob-port", &tcp, "--cores", "4000"])
        .bad("core 4000 is not one");
    run(PINGPONG, &["--port", "loopback", "-g", "9", "host"]).bad("there is no GID with index 9");
    run(PINGPONG, &["--port", "loopback", "--link-mtu", "1500", "-m", "4096", "host"]).bad("use -m 1024");
}

#[test]
fn missing_devices_and_files() {
    let bench = Bench::new(Link::Unix);
    let port = bench.client_port();
    let tcp = free_port().to_string();
    run(PERF, &["server", "--oob-port", &tcp, "--port", "unix:/nonexistent/a,peer=/nonexistent/b"])
        .bad("/nonexistent/a");
    run(PERF, &["client", "--port", &port, "--json", "/nonexistent/x", "host"]).bad("--json /nonexistent/x");
    run(PERF, &["client", "--port", &port, "--pcap", "/nonexistent/x", "host"]).bad("--pcap");
    run(PINGPONG, &["--port", &port, "--pcap", "/nonexistent/x", "host"]).bad("--pcap");
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn a_build_without_dpdk_says_so() {
    let tcp = free_port().to_string();
    run(PERF, &["server", "--oob-port", &tcp, "--port", "tap:roce-none0"]).bad("needs DPDK");
}

#[cfg(feature = "dpdk")]
#[test]
fn missing_dpdk_devices() {
    let tcp = free_port().to_string();
    run(PERF, &["server", "--oob-port", &tcp, "--port", "af_packet:no-such-if0"]).bad("no-such-if0");
    run(PERF, &["server", "--oob-port", &tcp, "--port", "dpdk:0000:ff:1f.7"]).bad("0000:ff:1f.7");
}

// As user `nobody`, which a test that runs as root can become.
#[test]
fn no_permission() {
    let id = Command::new("id").arg("-u").output().unwrap();
    if id.stdout != b"0\n" || Command::new("setpriv").arg("--version").output().is_err() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED no_permission: it needs root, and setpriv, to become another user"
        );
        return;
    }
    let bench = Bench::new(Link::Unix);
    // The user `nobody` may have no access to the build's directory.
    let program = bench.path("roce-perf");
    std::fs::copy(PERF, &program).unwrap();
    let tcp = free_port().to_string();
    let nobody = |port: &str, tcp: &str| {
        let drop = ["--reuid=65534", "--regid=65534", "--clear-groups", program.to_str().unwrap()];
        run("setpriv", &[&drop[..], &["server", "--oob-port", tcp, "--port", port]].concat())
    };
    nobody(&bench.server_port(), &tcp).bad("Permission denied");
    nobody("loopback", "80").bad("choose a TCP port from 1024 on");
    nobody(&format!("memif:{}", bench.path("memif").display()), &tcp)
        .bad("a directory that you may write to");
    if cfg!(feature = "dpdk") {
        nobody("tap:roce-none0", &tcp).bad("CAP_NET_ADMIN");
        nobody("af_packet:lo", &tcp).bad("CAP_NET_RAW");
    }
}

#[test]
fn nobody_answers() {
    let bench = Bench::new(Link::Unix);
    let port = bench.client_port();
    let tcp = free_port().to_string();
    let args = ["client", "--port", &port, "--oob-port", &tcp, "--wait", "300ms", "127.0.0.1"];
    run(PERF, &args).bad("no server answers at 127.0.0.1");
    run(PINGPONG, &["--port", &port, "-p", &tcp, "--wait", "300ms", "127.0.0.1"]).bad("no server answers");
    assert!(!bench.path("b").exists(), "the socket is left behind");
}

/// Waits until the server has its sockets.
fn wait_for(path: &std::path::Path) {
    until(|| path.exists().then_some(()));
}

#[test]
fn busy_sockets() {
    let bench = Bench::new(Link::Unix);
    let _server = bench.perf_server(&[]);
    wait_for(&bench.path("a"));
    let (tcp, other) = (bench.tcp.to_string(), free_port().to_string());
    run(PERF, &["server", "--port", &bench.server_port(), "--oob-port", &other]).bad("another process");
    let port = format!("unix:{},peer=/tmp/x", bench.path("c").display());
    run(PERF, &["server", "--port", &port, "--oob-port", &tcp]).bad("choose another TCP port");
}

// Each operation and mode, over the links in turn: to notice costs seconds.
#[test]
fn a_server_that_is_killed_and_started_again() {
    let all =
        ["send", "write", "read"].into_iter().flat_map(|op| ["rate", "bw", "lat"].map(|mode| (op, mode)));
    for (n, (op, mode)) in all.enumerate() {
        let link = Link::ALL[n % Link::ALL.len()];
        let bench = Bench::new(link);
        let mut server = bench.perf_server(&[]);
        wait_for(&bench.server_socket());
        let pcap = bench.path("frames.pcap");
        // Far longer than the test waits: the server's end ends it.
        let args =
            ["--op", op, "--mode", mode, "-D", "50m", "--retry", "3", "--pcap", pcap.to_str().unwrap()];
        let client = bench.perf_client(&args);
        wait_for_traffic(&pcap);
        server.kill();
        let client = client.finish().bad("roce-perf: ");
        let told = client.stderr.contains("RETRY_EXC_ERR") || client.stderr.contains("closed the connection");
        assert!(told, "{link:?} {op} {mode}: {}", client.all());
        // The next server finds the socket file of the dead one.
        let _server = bench.perf_server(&[]);
        bench.perf_client(&["--op", op, "-n", "20", "--verify"]).finish().good();
    }
}

#[test]
fn a_client_that_is_killed_does_not_take_the_server_along() {
    for &link in Link::ALL {
        let bench = Bench::new(link);
        let _server = bench.perf_server(&[]);
        for op in ["send", "write", "read"] {
            let pcap = bench.path(&format!("{op}.pcap"));
            let args = ["--op", op, "--mode", "rate", "-D", "50m", "--pcap", pcap.to_str().unwrap()];
            let mut client = bench.perf_client(&args);
            wait_for_traffic(&pcap);
            client.kill();
            bench.perf_client(&["--op", op, "-n", "20", "--verify"]).finish().good();
        }
    }
}

#[test]
fn a_client_may_start_before_its_server() {
    for &link in Link::ALL {
        let bench = Bench::new(link);
        let client = bench.perf_client(&["-n", "20", "--verify"]);
        std::thread::sleep(Duration::from_millis(500));
        let server = bench.perf_server(&["--once"]);
        client.finish().good();
        server.finish().good();
    }
}

// With rdma_cm the exchange is RDMA itself, which does not detect a dead peer while no request is outstanding: after ten seconds the
// server asks.
#[test]
fn a_client_of_rdma_cm_that_is_killed_does_not_take_the_server_along() {
    for (&link, ops) in Link::ALL.iter().zip([&["send", "read"][..], &["write"]]) {
        let bench = Bench::new(link);
        let _server = bench.cm_server(&[]);
        for op in ops {
            let pcap = bench.path(&format!("{op}.pcap"));
            let args = ["--op", op, "--mode", "rate", "-D", "50m", "--pcap", pcap.to_str().unwrap()];
            let mut client = bench.cm_client(&args);
            wait_for_traffic(&pcap);
            client.kill();
            bench.cm_client(&["--op", op, "-n", "20", "--verify", "--wait", "60s"]).finish().good();
        }
    }
}

/// Two ends of a wait: its timeout, and a signal long before that.
fn waits_as_told(bench: &Bench, wait: &str, args: &[&str], says: &str) {
    let run_with = |wait| common::Running::start(PERF, &[&["client", "--wait", wait][..], args].concat());
    let end = run_with(wait).finish().bad(says);
    assert!(end.stderr.contains("--wait"), "{}", end.all());
    let mut patient = run_with("50m");
    wait_for(&bench.path("b"));
    std::thread::sleep(Duration::from_millis(300));
    signal(Signal::TERM, patient.id());
    let patient = patient.finish().bad("interrupted");
    assert_eq!(patient.code, Some(130), "{}", patient.all());
}

// Servers of each kind that run and listen, but never accept the connection.
#[test]
fn the_wait_for_a_server_that_does_not_answer_ends_when_it_should() {
    use verbs::{Context, DeviceConfig, Drive, port::PortSpec, rdma_cm::PortSpace};
    let bench = Bench::new(Link::Unix);
    let (client, tcp) = (bench.client_port(), bench.tcp.to_string());
    let base = ["--port", &client, "--oob-port", &tcp];
    {
        let _silent = std::net::TcpListener::bind(("127.0.0.1", bench.tcp)).unwrap();
        waits_as_told(&bench, "1s", &[&base[..], &["127.0.0.1"]].concat(), "said nothing for 5s");
    }
    let port = bench.server_port().parse::<PortSpec>().unwrap();
    let addrs = vec![("10.77.0.1".parse().unwrap(), 24)];
    let drive = Drive::Dedicated { cores: vec![0] };
    let context = Context::open(DeviceConfig::new(port).addrs(addrs).drive(drive)).unwrap();
    context.start().unwrap();
    let _other = context.create_id(None, PortSpace::Tcp).unwrap();
    let id = context.create_id(None, PortSpace::Tcp).unwrap();
    id.bind_addr(([0, 0, 0, 0], bench.tcp)).unwrap();
    id.listen(0).unwrap();
    waits_as_told(&bench, "1s", &[&base[..], &["-R", "10.77.0.1"]].concat(), "within 1s: 10.77.0.1");
    id.destroy().unwrap();
    // Long enough for the refusal to arrive.
    waits_as_told(
        &bench,
        "10s",
        &[&base[..], &["-R", "10.77.0.1"]].concat(),
        "no program listens at 10.77.0.1",
    );
}

// A refusal names both ends' MTUs; without the option the ends agree on one.
#[test]
fn two_link_mtus_are_told_or_agreed_on() {
    let bench = Bench::new(Link::Unix);
    let large = ["--mtu", "4096", "-n", "20"];
    let part = "path MTU 4096 does not fit through both ports, of 4200 bytes here and 1500 at the other end; use --mtu 1024";
    {
        let _server = bench.cm_server(&["--link-mtu", "1500"]);
        bench.cm_client(&large).finish().bad(part);
        bench.cm_client(&["-n", "20"]).finish().good();
    }
    let _server = bench.perf_server(&["--link-mtu", "1500"]);
    bench.perf_client(&large).finish().bad(part);
    bench.perf_client(&["-n", "20"]).finish().good();
}

// Also one whose client is alive, but does nothing.
#[test]
fn a_signal_ends_a_server_in_the_middle_of_a_session() {
    for by_cm in [true, false] {
        let bench = Bench::new(Link::Unix);
        let pcap = bench.path("frames.pcap");
        let long = ["--op", "write", "--mode", "rate", "-D", "50m", "--pcap", pcap.to_str().unwrap()];
        let (mut server, mut client) = match by_cm {
            true => (bench.cm_server(&[]), bench.cm_client(&long)),
            false => (bench.perf_server(&[]), bench.perf_client(&long)),
        };
        wait_for_traffic(&pcap);
        signal(Signal::STOP, client.id());
        signal(Signal::TERM, server.id());
        let server = server.finish().bad("interrupted");
        assert_eq!(server.code, Some(130), "{}", server.all());
        client.kill();
    }
}

#[test]
fn strangers_at_the_tcp_port() {
    let bench = Bench::new(Link::Unix);
    let _server = bench.perf_server(&[]);
    wait_for(&bench.path("a"));
    for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"", b"{\"type\":\"go\"}\n", &[b'x'; 2 << 20]] {
        let mut stranger = TcpStream::connect(("127.0.0.1", bench.tcp)).unwrap();
        let _ = stranger.write_all(junk);
    }
    bench.perf_client(&["-n", "20"]).finish().good();
    // Silent and slow peers wait beside the others and not in front of them.
    let mut silent: Vec<_> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", bench.tcp)).unwrap()).collect();
    for slow in &mut silent[50..] {
        let _ = slow.write_all(b"{\"type\":");
    }
    // In sequence they would have 10 s each: longer than any run may take.
    bench.perf_client(&["-n", "20"]).finish().good();
}

// Each program refuses the other one's clients with its name, and serves its own afterwards.
#[test]
fn a_client_of_another_program_ends_no_server() {
    let bench = Bench::new(Link::Unix);
    let (a, b, tcp) = (bench.server_port(), bench.client_port(), bench.tcp.to_string());
    {
        let _server = bench.perf_server(&[]);
        wait_for(&bench.path("a"));
        run(PINGPONG, &["--port", &b, "-p", &tcp, "127.0.0.1"]).bad("this end speaks with roce-perf alone");
        bench.perf_client(&["-n", "20"]).finish().good();
    }
    let server = common::Running::start(PINGPONG, &["--port", &a, "-p", &tcp, "-n", "20"]);
    bench.perf_client(&["-n", "20"]).finish().bad("this is roce-pingpong");
    drop(TcpStream::connect(("127.0.0.1", bench.tcp)).unwrap());
    run(PINGPONG, &["--port", &b, "-p", &tcp, "-n", "20", "127.0.0.1"]).good();
    let server = server.finish().good();
    assert!(server.stderr.contains("a message of roce-perf"), "{}", server.all());
}

// A session's use of a server is limited, and both ends report it.
#[test]
fn a_session_has_a_budget_of_time_and_memory() {
    let bench = Bench::new(Link::Unix);
    let mut server = bench.perf_server(&["--max-session", "10s", "--max-memory", "64m"]);
    for (args, part) in [
        (
            &["-D", "5s", "--op", "send,write,read"][..],
            "take 15 s, and this server gives a session 10 s (--max-session)",
        ),
        (&["--mode", "bw", "-s", "64m", "-n", "1"], "gives it 64 MiB (--max-memory)"),
        (&["--mode", "rate", "-n", "1000000000000"], "--max-session"),
    ] {
        bench.perf_client(args).finish().bad(part);
    }
    bench.perf_client(&["-n", "20"]).finish().good();
    signal(Signal::TERM, server.id());
    let said = server.finish().stderr;
    assert_eq!(said.matches("ended early").count(), 3, "{said}");
    for part in ["(--max-session)", "(--max-memory)", "for the 10s that this end gives one"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_signal_ends_a_server_and_removes_its_socket() {
    for (name, program) in [(Signal::INT, PERF), (Signal::TERM, PINGPONG)] {
        let bench = Bench::new(Link::Unix);
        let (port, tcp) = (bench.server_port(), bench.tcp.to_string());
        let args = match program == PERF {
            true => vec!["server", "--oob-port", &tcp, "--port", &port],
            false => vec!["-p", &tcp, "--port", &port],
        };
        let mut server = common::Running::start(program, &args);
        wait_for(&bench.path("a"));
        std::thread::sleep(Duration::from_millis(200));
        signal(name, server.id());
        let server = server.finish().bad("interrupted");
        assert_eq!(server.code, Some(130), "{}", server.all());
        assert!(!bench.path("a").exists(), "the socket is left behind");
    }
}
