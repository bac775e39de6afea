//! Processes of one host, which share its addresses (the port `host`): a network namespace of its own, with lo alone. Needs root.

use crate::common::{Bench, Link, PATIENCE, PERF, Running, count, frames, rows, run, until};
use std::io::Write as _;
use std::path::Path;

const HERE: &str = "127.0.0.1";

/// A host; gone when the test ends.
pub struct Host(String);

impl Host {
    /// `None`, with a printed reason, where it cannot be set up.
    pub fn new(tag: char) -> Option<Self> {
        let host = Self(format!("roh{tag}{}", std::process::id()));
        let done = [&["netns", "add", &host.0][..], &["-n", &host.0, "link", "set", "lo", "up"]];
        if done.iter().all(|args| run("ip", args).code == Some(0)) {
            return Some(host);
        }
        let _ = writeln!(std::io::stderr(), "SKIPPED apps/tests/host.rs: it needs root and the ip tool");
        None
    }

    /// The words before a command that make it run there.
    pub fn exec<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["netns", "exec", &self.0][..], args].concat()
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::start("ip", &self.exec(&[&[PERF][..], args].concat()))
    }

    /// As a user without rights, by a copy of the program that this user can reach.
    fn start_as_nobody(&self, program: &Path, args: &[&str]) -> Running {
        let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        Running::start("ip", &self.exec(&[&user[..], &[program.to_str().unwrap()], args].concat()))
    }

    pub fn server(&self, port: &str, more: &[&str]) -> Running {
        self.start(&[&["server", "--port", "host", "--bind", HERE, "--oob-port", port][..], more].concat())
    }

    pub fn client(&self, port: &str, more: &[&str]) -> Running {
        self.start(&[&["client", "--port", "host", "--oob-port", port, HERE][..], more].concat())
    }

    /// Gives it an Ethernet that leads to a network. `false`, with a printed reason, where that cannot be.
    fn has_network(&self) -> bool {
        let commands = [
            "link add up0 mtu 1500 type veth peer name down0",
            "link set down0 up",
            "addr add 10.92.0.1/24 dev up0",
            "link set up0 up",
            "route add default via 10.92.0.2",
        ];
        let ip = |line: &str| {
            let words: Vec<&str> = ["-n", &self.0].into_iter().chain(line.split(' ')).collect();
            run("ip", &words).code == Some(0)
        };
        let done = commands.into_iter().all(ip);
        if !done {
            let _ = writeln!(std::io::stderr(), "SKIPPED apps/tests/host.rs: there are no veth interfaces");
        }
        done
    }

    /// Datagrams that its sockets received so far.
    fn datagrams(&self) -> u64 {
        let snmp = run("ip", &["netns", "exec", &self.0, "cat", "/proc/net/snmp"]).good().stdout;
        let line = snmp.lines().rfind(|line| line.starts_with("Udp: ")).unwrap();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        run("ip", &["netns", "del", &self.0]);
    }
}

// Goal: what processes of a host send each other passes by their links, not by the kernel; several at once, with several shards.
#[test]
fn processes_of_a_host_have_links() {
    let _bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('l') else { return };
    let ops = ["--op", "send,write,read,atomic", "--mode", "lat,bw,rate", "-n", "500", "--verify"];
    let mut pairs = Vec::new();
    for (port, shards) in [("7100", "1"), ("7101", "2")] {
        let server = host.server(port, &["--once", "--shards", shards]);
        let many = ["--qps", "4", "--shards", "2"];
        pairs.push((server, host.client(port, &[&PATIENCE[..], &many, &ops].concat())));
    }
    for (server, client) in pairs {
        client.finish().good();
        server.finish().good();
    }
    // Probes of their sockets, and few packets at most of queue pairs whose link was not there in time.
    let datagrams = host.datagrams();
    assert!(datagrams < 2000, "{datagrams} datagrams");
}

// Goal: programs that name no port meet wherever they are, by TCP and by rdma_cm, and by a name of the host as well.
#[test]
fn programs_that_name_no_port_have_the_addresses_of_the_host() {
    let Some(host) = Host::new('d') else { return };
    for by in [&[][..], &["-R"]] {
        let mut server = host.start(&[&["server"][..], by].concat());
        let client = [
            &["client", "localhost", "--op", "write", "--mode", "bw", "-n", "100", "--verify"],
            by,
            &PATIENCE,
        ];
        host.start(&client.concat()).finish().good();
        server.kill();
        server.finish();
    }
    let old = host.start(&["client", "-R", "--wait", "1s", "10.77.0.1"]).finish().bad("private link memif");
    assert!(old.stderr.contains("--port memif at both ends"), "{}", old.all());
}

// Goal: the path MTU is that of the network, and packets between processes of the host carry as much as their link does; each way, and
// whoever asks.
#[test]
fn packets_to_a_process_of_the_host_are_longer_than_those_to_the_network() {
    let bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('s') else { return };
    if !host.has_network() {
        return;
    }
    for (op, port) in [("write", "7100"), ("read", "7101"), ("send", "7102")] {
        let [stats, json] = ["stats", "json"].map(|name| bench.path(&format!("{op}.{name}")));
        let socket = format!("--stats={}", stats.display());
        let mut server = host.server(port, &[&socket]);
        let many = ["--op", op, "--mode", "bw", "--size", "64k,3,4097", "-n", "1000", "--verify", "--json"];
        host.client(port, &[&PATIENCE[..], &many, &[json.to_str().unwrap()]].concat()).finish().good();
        for row in rows(&json) {
            assert_eq!((&row["verified"], &row["mtu"]), (&true.into(), &1024.into()), "{row}");
        }
        // Of 64 KiB sixteen, not 64: of what was sent, and of the responses to READs, which are acknowledged by nothing.
        let frames = frames(&stats);
        assert!(frames < 40_000, "{op}: {frames} frames");
        server.kill();
        server.finish();
    }
}

// Goal: a process that ends is missed at once, not after the retries: those would take longer than a test may.
#[test]
fn a_process_that_ends_is_missed_at_once() {
    let bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('e') else { return };
    let mut server = host.server("7100", &[]);
    let stats = bench.path("stats");
    let socket = format!("--stats={}", stats.display());
    let long = ["--timeout", "22", "--wait", "60s", "--op", "write", "--mode", "rate", "--duration", "300s"];
    let client = host.client("7100", &[&long[..], &[&socket]].concat());
    until(|| (frames(&stats) > 1000).then_some(()));
    server.kill();
    server.finish();
    let end = client.finish();
    assert!(end.all().contains("RETRY_EXC_ERR"), "{}", end.all());
}

// Goal: users of a host that have named addresses of their own each have RDMA, among themselves and with each other; what comes by the
// kernel finds the right one of several processes, on each of their addresses.
#[test]
fn users_with_addresses_of_their_own_share_a_host() {
    let bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('u') else { return };
    if !host.has_network() {
        return;
    }
    let reachable = bench.path("roce-perf");
    std::fs::copy(PERF, &reachable).unwrap();
    let measured = ["--op", "write,send", "--mode", "bw", "--qps", "4", "-n", "500", "--verify"];
    let client = |port, addr| {
        let own = ["client", "-R", "--port", "host:127.0.0.1", "--oob-port", port, addr];
        host.start_as_nobody(&reachable, &[&own[..], &PATIENCE, &measured].concat())
    };
    // Root's: one names the addresses, the other one has the same.
    let of_root = [("7100", "host:10.92.0.1,127.0.0.9", "10.92.0.1"), ("7101", "host", "127.0.0.9")];
    let mut pairs = Vec::new();
    for (port, spec, addr) in of_root {
        let stats = bench.path(port);
        let socket = format!("--stats={}", stats.display());
        let server = host.start(&["server", "-R", "--port", spec, "--oob-port", port, &socket]);
        until(|| stats.exists().then_some(()));
        pairs.push((server, stats, client(port, addr)));
    }
    // Nobody's, among themselves.
    let mut own = host.start_as_nobody(&reachable, &["server", "-R", "--port", "host:127.0.0.1"]);
    client("18515", HERE).finish().good();
    for (mut server, stats, client) in pairs {
        client.finish().good();
        let passed_on = count(&stats, "passed_on");
        assert!(passed_on < 10, "{passed_on}");
        server.kill();
        server.finish();
    }
    own.kill();
    own.finish();
}

// Goal: a process that asks for other addresses than those of its user's other processes is told so, and disturbs none.
#[test]
fn the_processes_of_a_user_have_the_same_addresses() {
    let _bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('a') else { return };
    let server = |spec: &'static str, port| {
        host.start(&["server", "--port", spec, "--bind", HERE, "--oob-port", port, "--once"])
    };
    let first = server("host:127.0.0.2", "7100");
    let client = |port, spec| {
        let own = [
            "client",
            "--port",
            spec,
            "--oob-port",
            port,
            HERE,
            "--op",
            "send",
            "--mode",
            "rate",
            "-n",
            "100",
        ];
        host.start(&[&own[..], &PATIENCE].concat()).finish()
    };
    until(|| host.datagrams().gt(&0).then_some(())); // its probes
    let other = client("7100", "host:127.0.0.3").bad("127.0.0.2");
    assert!(other.stderr.contains("all of a user's processes have the same"), "{}", other.all());
    client("7100", "host").good();
    first.finish().good();
    // The next ones choose anew; what cannot be had is said.
    client("7100", "host:10.1.1.1").bad("no interface of this host has the address 10.1.1.1");
    client("7100", "host:127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5").bad("4 at most");
}

// Goal: sockets of a program that shares port 4791 between its own shards are not joined: it would get the packets of others.
#[test]
fn sockets_of_a_program_that_is_no_process_of_the_host_are_left_alone() {
    let _bench = Bench::new(Link::Udp);
    let Some(host) = Host::new('f') else { return };
    let mut udp =
        host.start(&["server", "--port", "udp", "--shards", "2", "--bind", HERE, "--oob-port", "7100"]);
    until(|| {
        let sockets = run("ip", &["netns", "exec", &host.0, "cat", "/proc/net/udp6"]).good().stdout;
        (sockets.matches(":12B7").count() == 2).then_some(())
    });
    let server = host.server("7101", &["--once"]);
    let few = ["--op", "send", "--mode", "rate", "-n", "100"];
    let client = host.client("7101", &[&few[..], &PATIENCE].concat()).finish().good();
    let all = [client.stderr, server.finish().good().stderr];
    assert!(
        all.iter().all(|said| said.contains("this user reach each other on this host, by UDP port")),
        "{all:?}"
    );
    assert!(all.iter().any(|said| said.contains("UDP port 4791 is taken")), "{all:?}");
    udp.kill();
    udp.finish();
}
