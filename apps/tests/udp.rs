//! RoCEv2 over UDP sockets between two network namespaces with a router in between. Needs root, for the namespaces alone.

use crate::common::{Bench, Link, PATIENCE, PERF, PINGPONG, Running, counted, frames, rows, until};
use std::io::Write as _;
use std::process::Command;

fn run(command: &str) -> bool {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).output().is_ok_and(|output| output.status.success())
}

/// Two hosts, each on a link of its own to a router; gone when the test ends.
pub struct Lab {
    hosts: [String; 2],
    router: String,
}

/// Addresses of a host and of the router's end of its link.
pub struct Ends {
    pub host: &'static str,
    router: &'static str,
    prefix: u8,
}

pub const V4: [Ends; 2] = [
    Ends { host: "10.91.1.2", router: "10.91.1.1", prefix: 24 },
    Ends { host: "10.91.2.2", router: "10.91.2.1", prefix: 24 },
];
pub const V6: [Ends; 2] = [
    Ends { host: "fd91:1::2", router: "fd91:1::1", prefix: 64 },
    Ends { host: "fd91:2::2", router: "fd91:2::1", prefix: 64 },
];

impl Lab {
    /// `None`, with a printed reason, where it cannot be set up.
    pub fn new(tag: char, ends: &[Ends; 2]) -> Option<Self> {
        let name = |what: &str| format!("rou{tag}{what}{}", std::process::id());
        let lab = Self { hosts: [name("a"), name("b")], router: name("r") };
        let all = [&lab.hosts[0], &lab.hosts[1], &lab.router];
        if !all.iter().all(|ns| run(&format!("ip netns add {ns}"))) {
            let _ = writeln!(std::io::stderr(), "SKIPPED apps/tests/udp.rs: it needs root and the ip tool");
            return None;
        }
        for (i, (ns, ends)) in lab.hosts.iter().zip(ends).enumerate() {
            let Ends { host, router, prefix } = ends;
            let r = &lab.router;
            let nodad = if host.contains(':') { " nodad" } else { "" };
            for command in [
                format!("link add up0 netns {ns} mtu 1500 type veth peer name down{i} netns {r}"),
                format!("-n {ns} addr add {host}/{prefix} dev up0{nodad}"),
                format!("-n {r} addr add {router}/{prefix} dev down{i}{nodad}"),
                format!("-n {ns} link set lo up"),
                format!("-n {ns} link set up0 up"),
                format!("-n {r} link set down{i} up"),
                format!("-n {ns} route add default via {router}"),
            ] {
                assert!(run(&format!("ip {command}")), "{command}");
            }
        }
        // Not by sysctl(8), which a minimal install lacks.
        for switch in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let mut sh = Command::new("ip");
            sh.args(["netns", "exec", &lab.router, "sh", "-c", "echo 1 >/proc/sys/net/$0", switch]);
            assert!(sh.status().is_ok_and(|status| status.success()), "{switch}");
        }
        Some(lab)
    }

    /// From now on all that goes to the second host comes from the router's address. `false`, with a printed reason, where that cannot
    /// be.
    fn masquerades(&self) -> bool {
        let rules = [
            "add table ip roce",
            "add chain ip roce out { type nat hook postrouting priority 100 ; }",
            "add rule ip roce out oifname down1 masquerade",
        ];
        let done = rules.iter().all(|rule| run(&format!("ip netns exec {} nft {rule}", self.router)));
        if !done {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED apps/tests/udp.rs: address translation needs nftables");
        }
        done
    }

    /// From now on the first host lets in only what it asked for, as stateful firewalls do. `false`, with a printed reason, where that
    /// cannot be.
    fn lets_in_answers_alone(&self) -> bool {
        let rules = [
            "add table inet roce",
            "add chain inet roce in { type filter hook input priority 0 ; policy drop ; }",
            "add rule inet roce in ct state established,related accept",
        ];
        let done = rules.iter().all(|rule| run(&format!("ip netns exec {} nft {rule}", self.hosts[0])));
        if !done {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED apps/tests/udp.rs: a stateful firewall needs nftables");
        }
        done
    }

    /// The name of a host's namespace.
    pub fn host(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    pub fn start(&self, host: usize, program: &str, args: &[&str]) -> Running {
        Running::start("ip", &[&["netns", "exec", &self.hosts[host], program][..], args].concat())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in self.hosts.iter().chain([&self.router]) {
            run(&format!("ip netns del {ns}"));
        }
    }
}

/// Both programs, through the router: every operation, checked, and nothing lost at the ports.
fn through_a_router(tag: char, ends: &[Ends; 2], more: &str) {
    let bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new(tag, ends) else { return };
    let (port, there) = (format!("udp{more}"), ends[1].host);
    let server = lab.start(1, PINGPONG, &[&["--port", &port, "--bind", there, "-c"][..], &PATIENCE].concat());
    let args = [&["--port", &port, "-c", there][..], &PATIENCE].concat();
    lab.start(0, PINGPONG, &args).finish().good();
    let end = server.finish().good();
    assert!(end.stdout.contains(ends[0].host), "the GID is the host's address: {}", end.all());

    let json = bench.path("rows.json");
    let server = lab.start(1, PERF, &["server", "--once", "--port", &port, "--bind", there]);
    let ops = ["--op", "send,write,read,atomic", "--mode", "lat,bw,rate", "-n", "64", "--verify"];
    let args =
        [&["client", "--port", &port, "--json", json.to_str().unwrap(), there][..], &PATIENCE, &ops].concat();
    let end = lab.start(0, PERF, &args).finish().good();
    server.finish().good();
    assert_eq!(rows(&json).len(), 15, "{}", end.all());
    for row in rows(&json) {
        assert_eq!((&row["verified"], &row["mtu"]), (&true.into(), &1024.into()), "{row}");
    }

    // By connection management, which asks the kernel where the peer is.
    let server = lab.start(1, PERF, &["server", "-R", "--once", "--port", &port]);
    let args = [&["client", "-R", "--port", &port, there, "-n", "10"][..], &PATIENCE].concat();
    lab.start(0, PERF, &args).finish().good();
    server.finish().good();
}

#[test]
fn ipv4_through_a_router() {
    through_a_router('4', &V4, "");
}

#[test]
fn ipv4_through_a_router_in_long_messages() {
    through_a_router('g', &V4, ":gso=on");
}

#[test]
fn ipv6_alone_through_a_router() {
    through_a_router('6', &V6, "");
}

// Goal: each shard receives what is for its own queue pairs.
#[test]
fn no_packet_is_handed_from_shard_to_shard() {
    let bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('s', &V4) else { return };
    let (there, stats) = (V4[1].host, bench.path("stats"));
    let socket = format!("--stats={}", stats.display());
    let shards = ["--port", "udp", "--shards", "2"];
    let mut server = lab.start(1, PERF, &[&["server", "--bind", there, &socket][..], &shards].concat());
    let client =
        ["client", there, "--op", "write,read", "--mode", "bw", "-n", "64", "--qps", "16", "--verify"];
    lab.start(0, PERF, &[&client[..], &shards, &PATIENCE].concat()).finish().good();
    let counted = counted(&stats);
    assert!(counted.contains("\"rx_frames\":") && !counted.contains("\"handed_over\":"), "{counted}");
    server.kill();
    server.finish();
}

// Goal: several processes have the addresses of their host at the same time, each receives what is for its own queue pairs, from its host and
// from the network, and the end of one is no matter to the others.
#[test]
fn the_processes_of_a_host_share_its_addresses() {
    let bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('h', &V4) else { return };
    let there = V4[1].host;
    let start = |host, which: &'static str, role: &[&str]| {
        let stats = bench.path(&format!("{}{which}", role[0]));
        let socket = format!("--stats={}", stats.display());
        let more = ["--port", "host", "--oob-port", which, &socket];
        (lab.start(host, PERF, &[role, &more[..]].concat()), stats)
    };
    let client = [&["client", there, "--op", "send,write,read,atomic"][..], &PATIENCE].concat();
    let few = ["--mode", "lat,bw,rate", "-n", "64", "--qps", "4", "--verify"];
    // Two pairs between the hosts that go on all the time, by many flows.
    let pair = |port, duration| {
        let (server, _) = start(1, port, &["server", "--bind", there]);
        let many = ["--mode", "rate", "--qps", "8", "--duration", duration, "--timeout", "17"];
        let (going, seen) = start(0, port, &[&client[..3], &["write"], &many].concat());
        until(|| (frames(&seen) > 1000).then_some(()));
        ([server, going], seen)
    };
    let (mut oldest, seen) = pair("7000", "100s");
    let (second, _) = pair("7001", "100s");
    for (host, port) in [(1, "7002"), (0, "7003"), (1, "7004")] {
        let (mut server, stats) = start(1, port, &["server", "--bind", there]);
        let (end, _) = start(host, port, &[&client[..], &few].concat());
        end.finish().good();
        assert!(frames(&stats) > 0);
        server.kill();
        server.finish();
        let before = frames(&seen);
        until(|| (frames(&seen) > before + 1000).then_some(()));
    }
    // The kernel puts the socket of the last one in the place of the first.
    let ([mut server, last], _) = pair("7005", "10s");
    oldest[0].kill();
    last.finish().good();
    server.kill();
    server.finish();
    for mut running in oldest.into_iter().chain(second) {
        running.kill();
        running.finish();
    }
}

// Goal: where somebody else has port 4791, the processes of a user reach each other all the same, by both ways of connecting, and each
// says that it reaches no other host. What they have chosen is chosen until the last of them has ended.
#[test]
fn processes_meet_where_somebody_else_has_the_port() {
    let Some(lab) = Lab::new('x', &V4) else { return };
    let here = V4[0].host;
    // Somebody who shares the port with nobody.
    let mut other = lab.start(0, PERF, &["server", "--port", "udp", "--oob-port", "7100"]);
    let start = |role: &[&str]| lab.start(0, PERF, &[role, &["--port", "host"]].concat());
    let client = |more: &[&str]| {
        let few = ["--op", "send,write,read", "--mode", "lat,bw", "-n", "64", "--verify"];
        start(&[&["client"][..], more, &few, &PATIENCE].concat())
    };
    let says = "reach each other on this host, by UDP port 65504, and no other host";
    let is_taken = format!("ip netns exec {} grep -q :12B7 /proc/net/udp6", lab.host(0));
    until(|| run(&is_taken).then_some(()));
    let mut by_tcp = start(&["server", "--oob-port", "7101"]);
    let client_by_tcp = client(&["localhost", "--oob-port", "7101"]).finish().good();
    assert!(client_by_tcp.stderr.contains(says));
    // The port is free again, and the one that was chosen stays.
    other.kill();
    other.finish();
    let mut by_cm = start(&["server", "-R", "--oob-port", "7102"]);
    assert!(client(&["-R", here, "--oob-port", "7102"]).finish().good().stderr.contains(says));
    for server in [&mut by_tcp, &mut by_cm] {
        server.kill();
    }
    let said = by_tcp.finish().stderr + &client_by_tcp.stderr;
    assert!(said.contains("is taken by another program"), "the one that was first says who has it: {said}");
    by_cm.finish();
    // Whoever comes then has 4791.
    let mut last = start(&["server", "--oob-port", "7103"]);
    assert!(!client(&["localhost", "--oob-port", "7103"]).finish().good().stderr.contains("no other host"));
    last.kill();
    last.finish();
}

// Goal: a client whose firewall lets in only what it asked for connects all the same, by either way of connecting, and is told why its
// queue pairs share one path. Each has several.
#[test]
fn a_firewall_that_lets_in_answers_alone() {
    let Some(lab) = Lab::new('f', &V4) else { return };
    if !lab.lets_in_answers_alone() {
        return;
    }
    let there = V4[1].host;
    for (port, warns) in [("udp", true), ("udp:flows=0", false)] {
        for by_manager in [false, true] {
            let (managed, at): (&[&str], &[&str]) =
                if by_manager { (&["-R"], &[]) } else { (&[], &["--bind", there]) };
            let server =
                lab.start(1, PERF, &[&["server", "--once", "--port", port][..], managed, at].concat());
            let client = [
                "client",
                "--port",
                port,
                there,
                "--op",
                "write,read",
                "--mode",
                "lat,bw",
                "-n",
                "64",
                "--qps",
                "4",
            ];
            let end = lab
                .start(0, PERF, &[&client[..], &["--verify"], managed, &PATIENCE].concat())
                .finish()
                .good();
            server.finish().good();
            let said = end.all();
            let warned = said.contains("a firewall seems to drop those from other ports");
            assert_eq!(warned, warns, "{port} {by_manager}: {said}");
        }
    }
}

// Goal: what cannot work is told, by who can know it, and the program ends with its error.
#[test]
fn address_translation_in_between_is_told_and_counted() {
    let bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('n', &V4) else { return };
    if !lab.masquerades() {
        return;
    }
    let (there, stats) = (V4[1].host, bench.path("stats"));
    let socket = format!("--stats={}", stats.display());
    let mut server = lab.start(1, PERF, &["server", "--port", "udp", "--bind", there, &socket]);
    // Several queue pairs: by chance the ICRC of one in some hundred seems right once, and that one's packets tell nothing.
    let args =
        ["client", "--port", "udp", there, "--op", "write", "--mode", "bw", "--size", "64k", "--qps", "4"];
    let ends_soon = ["--retry", "2", "--wait", "60s"];
    lab.start(0, PERF, &[&args[..], &ends_soon].concat()).finish().bad("RETRY_EXC_ERR");
    let counted = counted(&stats);
    let wrong = counted.split_once("\"bad_icrc\":").expect("it is counted").1;
    let wrong: u32 = wrong.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!(wrong >= 64, "{counted}");
    server.kill();
    let said = server.finish().all();
    for part in
        [&*format!("every packet from {} has a wrong ICRC", V4[1].router), "address translation (NAT)"]
    {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

// Goal: a request for a connection, which comes but a few times, is enough to tell.
#[test]
fn address_translation_is_told_from_requests_alone() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('q', &V4) else { return };
    if !lab.masquerades() {
        return;
    }
    let mut server = lab.start(1, PERF, &["server", "-R", "--port", "udp"]);
    let args = ["client", "-R", "--port", "udp", V4[1].host, "-n", "10", "--wait", "10s"];
    lab.start(0, PERF, &args).finish().bad("no session");
    server.kill();
    let said = server.finish().all();
    assert!(said.contains(&format!("every packet from {} has a wrong ICRC", V4[1].router)), "{said}");
}

// Goal: the zone of a link-local address says behind which interface the peer is: here two hosts have the same one.
#[test]
fn a_link_local_peer_is_where_its_zone_says() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('l', &V4) else { return };
    for (i, host) in lab.hosts.iter().enumerate() {
        for command in [
            format!("-n {host} addr add fe80::91:2/64 dev up0 nodad"),
            format!("-n {} addr add fe80::91:1{i}/64 dev down{i} nodad", lab.router),
        ] {
            assert!(run(&format!("ip {command}")), "{command}");
        }
    }
    for i in [0, 1] {
        let server = lab.start(i, PERF, &["server", "-R", "--once", "--port", "udp"]);
        let there = format!("fe80::91:2%down{i}");
        let client =
            ["netns", "exec", &lab.router, PERF, "client", "-R", "--port", "udp", &there, "-n", "10"];
        Running::start("ip", &[&client[..], &PATIENCE].concat()).finish().good();
        server.finish().good();
    }
}

/// A route from one host to the other that carries 700 bytes: no connection, by either way to make one, has a path MTU above 512.
fn a_narrow_route_from(host: usize, tag: char) {
    let bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new(tag, &V4) else { return };
    let there = V4[1].host;
    let (peer, via) = (V4[1 - host].host, V4[host].router);
    let route = format!("ip -n {} route add {peer}/32 via {via} mtu 700", lab.hosts[host]);
    assert!(run(&route), "{route}");
    let json = bench.path("rows.json");
    for more in [&[][..], &["-R"]] {
        let bind: &[_] = if more.is_empty() { &["--bind", there] } else { &[] };
        let server = lab.start(1, PERF, &[&["server", "--once", "--port", "udp"][..], bind, more].concat());
        let args = ["client", "--port", "udp", there, "-n", "10", "--op", "write,read", "--size", "64k"];
        let args = [&args[..], &PATIENCE, &["--json", json.to_str().unwrap()], more].concat();
        let end = lab.start(0, PERF, &args).finish().good();
        server.finish().good();
        for row in rows(&json) {
            assert_eq!(row["mtu"], 512, "{row} {}", end.all());
        }
    }
}

// Goal: the path MTU is one that the route to this peer carries, not that of the port; connection management announces it.
#[test]
fn a_route_with_a_small_mtu_bounds_the_path_mtu_to_its_peers() {
    a_narrow_route_from(0, 'm');
}

// Goal: the same where only the server knows of the narrow route, by which READ responses go.
#[test]
fn a_route_back_with_a_small_mtu_bounds_the_path_mtu_of_a_connection() {
    a_narrow_route_from(1, 'w');
}

// Goal: a message of ICMP that the way carries less, which anybody can forge, ends no connection, though the kernel believes it.
#[test]
fn that_the_way_carries_less_ends_no_connection() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('i', &V4) else { return };
    let there = V4[1].host;
    let server = lab.start(1, PERF, &["server", "--once", "--port", "udp", "--bind", there]);
    let args = ["client", "--port", "udp", there, "--op", "write", "--size", "64k", "-D", "20s"];
    let client = lab.start(0, PERF, &[&args[..], &["--mode", "bw"], &PATIENCE].concat());
    // It is true for a moment, and the kernel remembers it for ten minutes.
    until(|| {
        for mtu in [600, 1500] {
            assert!(run(&format!("ip -n {} link set down1 mtu {mtu}", lab.router)));
        }
        let route = Command::new("ip").args(["-n", &lab.hosts[0], "route", "get", there]).output().unwrap();
        String::from_utf8_lossy(&route.stdout).contains("mtu 600").then_some(())
    });
    client.finish().good();
    server.finish().good();
}

/// The finding about a thing in what `--check --json` printed, and its verdict.
fn verdict<'a>(findings: &'a [serde_json::Value], topic: &str) -> (&'a str, String) {
    let of = |field: &str, finding: &'a serde_json::Value| finding[field].as_str().unwrap();
    let finding = findings.iter().find(|finding| of("topic", finding) == topic);
    let finding = finding.unwrap_or_else(|| panic!("{topic} is not in {findings:?}"));
    (of("verdict", finding), format!("{}: {}", of("what", finding), of("advice", finding)))
}

// Goal: who holds the port, what a firewall drops, and what the way to a peer carries are seen before a program fails of them.
#[test]
fn a_check_names_what_keeps_roce_from_working() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('c', &V4) else { return };
    let there = V4[1].host;
    let check = |program: &str, args: &[&str]| {
        let end = lab.start(0, program, &[&["--check", "--json"][..], args].concat()).finish();
        let found: Vec<serde_json::Value> =
            serde_json::from_str(&end.stdout).unwrap_or_else(|e| panic!("{e}: {}", end.all()));
        (end, found)
    };

    let (end, found) = check(crate::common::RUN, &[there]);
    end.good();
    // What all sockets of the host hold is not shown in a namespace.
    verdict(&found, "UDP memory");
    for topic in ["UDP port 4791", "firewall", "interface", "route", "socket buffers", "open files", "cores"]
    {
        assert!(!["broken", "unknown"].contains(&verdict(&found, topic).0), "{found:?}");
    }
    let (_, route) = verdict(&found, "route");
    assert!(route.starts_with("10.91.2.2 from 10.91.1.2, MTU 1500: path MTU 1024"), "{route}");
    let (_, peer) = verdict(&found, "peer");
    assert!(peer.contains("no program there has UDP port 4791"), "{peer}");

    // Somebody else has the port; then a firewall drops what is sent to it.
    let holder = lab.start(0, PINGPONG, &["--port", "udp"]);
    until(|| (verdict(&check(PERF, &[]).1, "UDP port 4791").0 == "broken").then_some(()));
    let (end, found) = check(PERF, &[]);
    end.bad("BROKEN");
    let (how, what) = verdict(&found, "UDP port 4791");
    assert!(how == "broken" && what.contains("roce-pingpong (process "), "{what}");
    assert_eq!(verdict(&found, "firewall").0, "unknown");
    drop(holder);

    let rules = [
        "add table inet roce",
        "add chain inet roce in { type filter hook input priority 0 ; }",
        "add rule inet roce in udp dport 4791 drop",
    ];
    if !rules.iter().all(|rule| run(&format!("ip netns exec {} nft {rule}", lab.hosts[0]))) {
        let _ = writeln!(std::io::stderr(), "SKIPPED apps/tests/udp.rs: a firewall needs nftables");
        return;
    }
    let (end, found) = check(crate::common::RUN, &[]);
    end.bad("BROKEN");
    let (how, what) = verdict(&found, "firewall");
    assert!(how == "broken" && what.contains(V4[0].host), "{what}");
}
