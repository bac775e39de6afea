//! The programs against each other, as two processes over a real port.

use crate::common::{self, Bench, Link, PERF, PINGPONG, Running, rows, run};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn pingpong(link: Link, extra: &[&str]) {
    let bench = Bench::new(link);
    let (json, pcap) = (bench.path("rows.json"), bench.path("frames.pcap"));
    let server = bench.pingpong_server(&[&["-n", "100", "-c"][..], extra].concat());
    let files = ["-n", "100", "-c", "--json", json.to_str().unwrap(), "--pcap", pcap.to_str().unwrap()];
    let client = bench.pingpong_client(&[&files[..], extra].concat());
    for end in [client.finish().good(), server.finish().good()] {
        let lines: Vec<_> = end.stdout.lines().collect();
        assert!(lines[0].starts_with("  local address:  LID 0x0000, QPN 0x"), "{}", end.all());
        assert!(lines[1].starts_with("  remote address: LID 0x0000, QPN 0x"), "{}", end.all());
        assert!(lines[2].contains(" bytes in ") && lines[2].ends_with(" Mbit/sec"), "{}", end.all());
        assert!(lines[3].starts_with("100 iters in ") && lines[3].ends_with(" usec/iter"), "{}", end.all());
    }
    let rows = rows(&json);
    assert_eq!((rows.len(), &rows[0]["op"]), (1, &"pingpong".into()));
    let pcap = std::fs::read(&pcap).unwrap();
    assert!(pcap.len() > 100 * 1024, "{} bytes captured", pcap.len());
    // In the byte order of the magic number, the last word of the header is the link type.
    let word = if pcap[0] == 0xa1 { u32::from_be_bytes } else { u32::from_le_bytes };
    assert_eq!(word(pcap[20..24].try_into().unwrap()), 1, "link type Ethernet");
}

#[test]
fn pingpong_over_every_link() {
    for &link in Link::ALL {
        pingpong(link, &[]);
    }
}

// SIGSTOP, a debugger or a frozen container are not death: over a link that shows it, hardly any retry is needed.
#[test]
fn a_stopped_server_is_waited_for() {
    for op in ["write", "send", "read"] {
        let bench = Bench::new(Link::Memif);
        let pcap = bench.path("frames.pcap");
        let mut server = bench.perf_server(&["--once"]);
        let (port, tcp) = (bench.client_port(), bench.tcp.to_string());
        let to =
            ["client", "--port", &port, "--oob-port", &tcp, "127.0.0.1", "--pcap", pcap.to_str().unwrap()];
        let few = ["--op", op, "--mode", "rate", "-D", "3s", "--timeout", "14", "--retry", "2"];
        let client = Running::start(PERF, &[&to[..], &few].concat());
        common::wait_for_traffic(&pcap);
        common::signal(Signal::STOP, server.id());
        // 22 times the ACK timeout.
        std::thread::sleep(Duration::from_millis(1500));
        common::signal(Signal::CONT, server.id());
        client.finish().good();
        server.finish().good();
    }
}

// Messages of a measurement that began earlier used up their retries while no peer was reachable.
#[test]
fn a_measurement_begins_when_both_ends_of_the_link_are_up() {
    let bench = Bench::new(Link::Unix);
    let (late, tcp) = (bench.path("late"), bench.tcp.to_string());
    let port = format!("unix:{},peer={}", bench.path("a").display(), late.display());
    let base = ["server", "--once", "--port", &port, "--oob-port", &tcp, "--bind", "127.0.0.1"];
    let server = Running::start(PERF, &base);
    let stats = bench.path("stats");
    let shown = format!("--stats={}", stats.display());
    let client = bench.perf_client(&["--mode", "lat", "-n", "10", &shown]);
    let look = || verbs::stats::Snapshot::fetch(&stats).ok();
    common::until(look);
    let since = std::time::Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        assert_eq!(look().expect("the client waits").qps_total, 0, "a queue pair, and nobody to talk to");
    }
    std::fs::hard_link(bench.path("b"), late).expect("the client waits for it");
    client.finish().good();
    server.finish().good();
}

#[test]
fn pingpong_in_every_drive_and_odd_sizes() {
    for extra in [
        &["--drive", "caller"][..],
        &["--drive", "dedicated"],
        &["-s", "1", "-r", "1"],
        &["-s", "10001", "-m", "256"],
        &["-s", "0"],
        &["--transport", "uc"],
        &["--transport", "ud"],
        &["--transport", "ud", "-s", "4096", "-r", "1"],
        &["--transport", "ud", "-s", "0", "--drive", "dedicated"],
    ] {
        let bench = Bench::new(Link::Unix);
        let args = [&["-n", "20", "-c"][..], extra].concat();
        let server = bench.pingpong_server(&args);
        bench.pingpong_client(&args).finish().good();
        server.finish().good();
    }
}

// A datagram is one packet, whatever the path MTU option.
#[test]
fn a_datagram_longer_than_a_packet_is_refused_before_anything_is_sent() {
    let bench = Bench::new(Link::Unix);
    let end = Running::start(PINGPONG, &["--port", &bench.server_port(), "--transport", "ud", "-s", "4097"]);
    let end = end.finish();
    assert_eq!(end.code, Some(2), "{}", end.all());
    assert!(end.stderr.contains("of at most 4096 bytes"), "{}", end.all());
}

/// Accepts a client of roce-pingpong's exchange, and gives it an address that no host has.
fn strand(listener: &std::net::TcpListener) {
    use std::io::{Read, Write};
    let mut stream = listener.accept().unwrap().0;
    let mut line = [0; 52];
    stream.read_exact(&mut line).unwrap();
    line[..20].copy_from_slice(b"0000:000123:000456:0");
    line[20..51].copy_from_slice(b"0000000000000000000ffff0a4d0001");
    stream.write_all(&line).unwrap();
    stream.read_exact(&mut line[..5]).unwrap();
}

// Neither end of an unreliable run can distinguish a repeat from the next message: the one that waits gives up, and reports
// why and its counts. Here the peer exchanges addresses and never sends a frame.
#[test]
fn an_unreliable_pingpong_gives_up_when_a_message_is_lost() {
    let bench = Bench::new(Link::Unix);
    let clients = ["uc", "ud"].map(|transport| {
        let path = |end: &str| bench.path(&format!("{transport}-{end}"));
        let peer = std::os::unix::net::UnixDatagram::bind(path("peer")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!("unix:{},peer={}", path("own").display(), path("peer").display());
        let tcp = listener.local_addr().unwrap().port().to_string();
        let args = ["--port", &port, "-p", &tcp, "--transport", transport, "127.0.0.1"];
        let client = Running::start(PINGPONG, &args);
        strand(&listener);
        (transport, peer, client)
    });
    for (transport, _peer, client) in clients {
        let end = client.finish();
        assert_eq!(end.code, Some(1), "{}", end.all());
        for part in ["after 0 of 1000", "nobody repeats", "unreachable "] {
            assert!(end.stderr.contains(part), "{transport}: {}", end.all());
        }
    }
}

// Like the stock tool, whose scripts search for the number and the tag.
#[test]
fn a_failed_completion_is_told_with_its_number() {
    let bench = Bench::new(Link::Unix);
    let _peer = std::os::unix::net::UnixDatagram::bind(bench.path("a")).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (b, tcp) = (bench.client_port(), listener.local_addr().unwrap().port().to_string());
    let client = Running::start(PINGPONG, &["--port", &b, "-p", &tcp, "127.0.0.1"]);
    strand(&listener);
    client.finish().bad("Failed status RETRY_EXC_ERR (12) for wr_id 2");
}

// Like the stock tool: a run needs only the connection over which both have exchanged their addresses.
#[test]
fn the_next_server_may_listen_while_a_game_goes_on() {
    use std::io::{Read, Write};
    let bench = Bench::new(Link::Unix);
    let _peer = UnixDatagram::bind(bench.path("b")).unwrap();
    let (a, tcp) = (bench.server_port(), bench.tcp.to_string());
    let _server = Running::start(PINGPONG, &["--port", &a, "-p", &tcp, "--bind", "127.0.0.1"]);
    let mut first = common::until(|| std::net::TcpStream::connect(("127.0.0.1", bench.tcp)).ok());
    first.write_all(b"0000:000123:000456:00000000000000000000ffff0a4d0002\0").unwrap();
    first.read_exact(&mut [0; 52]).unwrap();
    first.write_all(b"done\0").unwrap();
    let _next = common::until(|| std::net::TcpListener::bind(("127.0.0.1", bench.tcp)).ok());
    drop(first);
}

/// Forwards frames from one end of a pair to the other until `stop`, those that `takes` accepts.
fn carry(from: &UnixDatagram, to: &str, stop: &AtomicBool, mut takes: impl FnMut(&[u8]) -> bool) {
    let mut frame = [0; 8192];
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let Ok(n) = from.recv(&mut frame) else { continue };
        if takes(&frame[..n]) {
            let _ = from.send_to(&frame[..n], to);
        }
    }
}

// A peer that had no core for longer than the stack's address resolution lasts. A message that never left can be sent again.
#[test]
fn an_unreliable_message_that_could_not_leave_goes_out_again() {
    for transport in ["ud", "uc"] {
        let bench = Bench::new(Link::Unix);
        let path = |name: &str| bench.path(name).display().to_string();
        let sockets = ["ra", "rb"].map(|name| UnixDatagram::bind(path(name)).unwrap());
        let [stop, answers] = [(); 2].map(|()| AtomicBool::new(false));
        let is_arp = |frame: &[u8]| frame[12..14] == [8, 6];
        let takes = |frame: &[u8]| answers.load(Ordering::Relaxed) || !is_arp(frame);
        let (tcp, stats) = (bench.tcp.to_string(), path("stats"));
        std::thread::scope(|threads| {
            threads.spawn(|| carry(&sockets[0], &path("b"), &stop, takes));
            threads.spawn(|| carry(&sockets[1], &path("a"), &stop, takes));
            let ports = [("a", "ra"), ("b", "rb")]
                .map(|(own, peer)| format!("unix:{},peer={}", path(own), path(peer)));
            let game = ["-p", &tcp, "-n", "5", "--transport", transport];
            let server = Running::start(PINGPONG, &[&["--port", &ports[0]][..], &game].concat());
            let stats_at = format!("--stats={stats}");
            let args = ["--port", &ports[1], &stats_at, "127.0.0.1"];
            let client = Running::start(PINGPONG, &[&args[..], &game].concat());
            common::until(|| {
                let shown = verbs::stats::Snapshot::fetch(stats.as_ref()).ok()?;
                shown.shards.iter().any(|s| s.counters.get("unreachable") > Some(&0)).then_some(())
            });
            answers.store(true, Ordering::Relaxed);
            let ends = [client.finish(), server.finish()];
            stop.store(true, Ordering::Relaxed);
            ends.into_iter().for_each(|end| drop(end.good()));
        });
    }
}

// A peer's kernel that looks up a route when it gets the address needs its carrier by then.
#[test]
fn pingpong_exchanges_addresses_once_the_link_is_up() {
    use std::io::{ErrorKind, Read};
    let bench = Bench::new(Link::Unix);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (b, tcp) = (bench.client_port(), listener.local_addr().unwrap().port().to_string());
    let mut client = Running::start(PINGPONG, &["--port", &b, "-p", &tcp, "127.0.0.1"]);
    let mut stream = listener.accept().unwrap().0;
    let mut line = [0; 52];
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = stream.read(&mut line).map_err(|e| e.kind());
    assert!(matches!(early, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{early:?}");
    let _peer = std::os::unix::net::UnixDatagram::bind(bench.path("a")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.read_exact(&mut line).unwrap();
    client.kill();
}

// The stock tool closes its TCP connection right after the exchange, so that means nothing for the messages. Here a relay
// does the same, and loses the acknowledgement of the last message once.
#[test]
fn pingpong_stays_to_repeat_its_last_acknowledgement_when_the_peer_closed_early() {
    use std::io::{Read, Write};
    let bench = Bench::new(Link::Unix);
    let path = |name: &str| bench.path(name).display().to_string();
    let sockets = ["ra", "rb"].map(|name| UnixDatagram::bind(path(name)).unwrap());
    let stop = AtomicBool::new(false);
    let all = |_: &[u8]| true;
    let all_but_one_ack = || {
        let mut lost = 0;
        carry(&sockets[1], &path("a"), &stop, |frame| {
            let is_ack = frame.len() > 42 && frame[12..14] == [8, 0] && frame[42] == 17;
            lost += u32::from(is_ack);
            !is_ack || lost > 1
        });
        assert!(lost > 0, "no acknowledgement came by");
    };
    let tcp = bench.tcp.to_string();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap().port().to_string();
    std::thread::scope(|threads| {
        threads.spawn(|| carry(&sockets[0], &path("b"), &stop, all));
        threads.spawn(all_but_one_ack);
        let ports =
            [("a", "ra"), ("b", "rb")].map(|(own, peer)| format!("unix:{},peer={}", path(own), path(peer)));
        let server = Running::start(PINGPONG, &["--port", &ports[0], "-p", &tcp, "-n", "1"]);
        let client = Running::start(PINGPONG, &["--port", &ports[1], "-p", &relay, "-n", "1", "127.0.0.1"]);
        let mut near = listener.accept().unwrap().0;
        let mut far = common::until(|| std::net::TcpStream::connect(("127.0.0.1", bench.tcp)).ok());
        let mut line = [0; 52];
        near.read_exact(&mut line).unwrap();
        far.write_all(&line).unwrap();
        far.read_exact(&mut line).unwrap();
        near.write_all(&line).unwrap();
        near.read_exact(&mut line[..5]).unwrap();
        near.shutdown(std::net::Shutdown::Both).unwrap();
        far.write_all(&line[..5]).unwrap();
        far.shutdown(std::net::Shutdown::Both).unwrap();
        let [client, server] = [client.finish(), server.finish()];
        stop.store(true, Ordering::Relaxed);
        client.good();
        server.good();
    });
}

fn perf(link: Link, args: &[&str]) -> Vec<serde_json::Value> {
    perf_with(link, &[], args).0
}

/// The rows, and the client's output.
fn perf_with(link: Link, both: &[&str], args: &[&str]) -> (Vec<serde_json::Value>, String) {
    let bench = Bench::new(link);
    let json = bench.path("rows.json");
    let server = bench.perf_server(&[&["--once"][..], both].concat());
    let files = ["--json", json.to_str().unwrap()];
    let client = bench.perf_client(&[args, both, &files].concat()).finish();
    let server = server.finish();
    assert!(client.code == Some(0) && server.code == Some(0), "{}\n{}", client.all(), server.all());
    assert!(client.stdout.contains("client: ") && client.stdout.contains("server: "), "{}", client.all());
    (rows(&json), client.stdout)
}

#[test]
fn every_operation_in_every_mode_with_checked_data() {
    for &link in Link::ALL {
        let rows =
            perf(link, &["--op", "send,write,read,atomic", "--mode", "lat,bw,rate", "-n", "64", "--verify"]);
        let names: Vec<_> =
            rows.iter().map(|r| format!("{}-{}", r["op"], r["mode"]).replace('"', "")).collect();
        assert_eq!(names.len(), 15, "{names:?}");
        for row in &rows {
            assert_eq!(row["verified"], true);
            let lat = row["mode"] == "lat";
            assert_eq!(row["p50_ns"].is_u64(), lat, "{row}");
            assert_eq!(row["msgs_per_s"].is_f64(), !lat, "{row}");
            assert!(row["limit"].is_null() && row["ratio"].is_null(), "{row}");
            assert!(row["messages"].as_u64().unwrap() >= 57, "{row}");
        }
    }
}

#[test]
fn sizes_around_the_path_mtu_with_checked_data() {
    let rows = perf(
        Link::Unix,
        &[
            "--op",
            "send,write,read",
            "--mode",
            "bw,lat",
            "-s",
            "1,255,256,257,1000",
            "-m",
            "256",
            "-n",
            "10",
            "--verify",
        ],
    );
    assert_eq!(rows.len(), 30);
    assert!(rows.iter().all(|r| r["mtu"] == 256));
}

#[test]
fn empty_messages() {
    assert_eq!(perf(Link::Unix, &["--op", "send", "--mode", "lat,rate", "-s", "0", "-n", "20"]).len(), 2);
}

#[test]
fn several_queue_pairs_both_ways() {
    let rows = perf(
        Link::Unix,
        &[
            "--op",
            "send,write,read,atomic",
            "--mode",
            "bw",
            "-s",
            "64",
            "-q",
            "3",
            "-b",
            "-n",
            "40",
            "--verify",
        ],
    );
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert_eq!((&row["qps"], &row["bidirectional"]), (&3.into(), &true.into()));
        assert_eq!(row["messages"], 240, "{row}");
    }
}

// When taken 32 at a time, completions piled up after turns that deliver four times as many, and receives were reposted too
// late.
#[test]
fn a_rate_of_sends_always_finds_receives() {
    for &link in Link::ALL {
        let args = ["--op", "send", "--mode", "rate", "--qps", "16", "--duration", "300ms"];
        // A Unix socket holds some ten frames: a thousand could not wait for a peer that has no core at the moment.
        let few: &[&str] = if link == Link::Unix { &["-t", "8"] } else { &[] };
        let rows = perf(link, &[&args[..], few].concat());
        assert_eq!(rows[0]["rnr"], 0, "{}", rows[0]);
    }
}

#[test]
fn queue_pairs_visited_at_random() {
    for &link in Link::ALL {
        for visit in ["1", "5"] {
            let args = "--op send,write,read,atomic --mode rate -s 64 -q 50 -n 20 --pattern random --in-flight 4 --visit";
            let (rows, text) = perf_with(link, &[], &args.split(' ').chain([visit]).collect::<Vec<_>>());
            assert_eq!(rows.len(), 5, "{text}");
            for row in &rows {
                assert_eq!((&row["qps"], &row["pattern"]), (&50.into(), &"random".into()));
                assert_eq!((row["visit"].to_string().as_str(), &row["in_flight"]), (visit, &4.into()));
                assert_eq!(row["messages"], 1000, "{row}");
                assert!(row["msgs_per_s"].is_f64(), "{row}");
            }
        }
    }
}

// All queue pairs share one receive queue, with either pattern and both ways; other operations take nothing from it.
#[test]
fn a_shared_receive_queue() {
    for &link in Link::ALL {
        for line in
            ["-q 50 -n 20 --pattern random --in-flight 4 --visit 5", "-q 3 -n 500 -t 8 -Q 4 -l 4 -r 32"]
        {
            let args = format!("--op send,write --mode rate -s 64 -b --srq {line}");
            let (rows, text) = perf_with(link, &[], &args.split(' ').collect::<Vec<_>>());
            assert_eq!(rows.len(), 2, "{text}");
            assert_eq!((&rows[0]["srq"], &rows[1]["srq"]), (&true.into(), &false.into()), "{text}");
            assert!(rows.iter().all(|row| row["messages"].as_u64() >= Some(2000)), "{rows:?}");
            assert!(text.contains("receives") && text.contains("shared"), "{text}");
        }
    }
}

// More queue pairs than one line of the exchange holds, fewer than may be outstanding, and all drives.
#[test]
fn visits_with_many_queue_pairs_few_and_in_every_drive() {
    for (qps, extra) in [
        ("9000", &["--pattern", "random", "-n", "1"][..]),
        ("3", &["--pattern", "random", "-n", "100", "-b"]),
        ("1", &["--pattern", "random", "-n", "100", "--visit", "7"]),
    ] {
        // A Unix socket holds some ten frames: more could not wait for a peer that has no core at the moment.
        let common = ["--mode", "rate", "--in-flight", "4", "-q", qps];
        let rows = perf(Link::Unix, &[&common[..], extra].concat());
        assert_eq!(rows[0]["qps"].to_string(), qps);
        assert!(rows[0]["messages"].as_u64().unwrap() >= 100, "{rows:?}");
    }
    for drive in ["caller", "dedicated"] {
        let args = "--mode rate -q 200 -n 5 --pattern random --visit 2 --in-flight 4";
        let (rows, text) = perf_with(Link::Unix, &["--drive", drive], &args.split(' ').collect::<Vec<_>>());
        assert_eq!(rows[0]["messages"], 1000, "{text}");
    }
}

#[test]
fn queues_of_awkward_depths() {
    for args in ["-t 1 -r 1", "-t 7 -r 3 -Q 3 -l 5", "-t 16 -Q 16 -l 16 -I 64", "-t 33 -Q 1 -l 33"] {
        let common = ["--op", "send,write", "--mode", "rate,lat", "-n", "50", "--verify"];
        let rows = perf(Link::Unix, &[&common[..], &args.split(' ').collect::<Vec<_>>()].concat());
        assert_eq!(rows.len(), 4, "{args}");
    }
}

// Two queue pairs, so that either shard has one. Over memif frames arrive on the queue of the same number; over
// unix datagrams all arrive on the first, and the second shard's are handed over.
#[test]
fn every_drive_with_one_shard_and_with_two() {
    for &link in Link::ALL {
        for drive in ["embedded", "caller", "dedicated"] {
            for shards in ["1", "2"] {
                let both = ["--drive", drive, "--shards", shards];
                let args = "--op send,write,read --mode lat,bw -q 2 -s 8k -n 40 --verify";
                let (rows, text) = perf_with(link, &both, &args.split(' ').collect::<Vec<_>>());
                assert_eq!(rows.len(), 6, "{link:?} {both:?}");
                let (bw, lat): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r["mode"] == "bw");
                assert!(bw.iter().all(|r| r["qps"] == 2 && r["messages"] == 80), "{bw:?}");
                assert!(lat.iter().all(|r| r["qps"] == 1), "{lat:?}");
                let wrong_queue = link == Link::Unix && shards == "2";
                let told = text.lines().filter(|line| line.contains("handed_over")).count();
                assert_eq!(told, if wrong_queue { 2 } else { 0 }, "{link:?} {both:?}\n{text}");
            }
        }
    }
}

#[test]
fn the_limit_is_measured_on_the_same_port_in_the_same_run() {
    for &link in Link::ALL {
        let args = "--op send,write --mode lat,bw,rate -D 100ms --limit --limit-duration 100ms -s 64,12k";
        let rows = perf(link, &args.split(' ').collect::<Vec<_>>());
        let (raw, rdma): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r["op"] == "raw");
        // Raw: latency of two lengths of frames (SEND, WRITE), rate of these and of the two of full packets.
        assert_eq!((raw.len(), rdma.len()), (5, 12), "{rows:?}");
        for row in rdma {
            if row["mode"] == "lat" && row["size"] == 12 << 10 {
                assert!(row["limit"].is_null() && row["ratio"].is_null(), "{row}");
                continue;
            }
            let (limit, ratio) = (row["limit"].as_f64().unwrap(), row["ratio"].as_f64().unwrap());
            assert!(limit > 0.0 && ratio > 0.0, "{row}");
        }
        assert!(raw.iter().all(|r| r["mtu"].is_null() && r["retries"].is_null()), "{raw:?}");
    }
}

#[test]
fn raw_alone() {
    let bench = Bench::new(Link::Unix);
    let json = bench.path("rows.json");
    let (a, b, tcp) = (bench.server_port(), bench.client_port(), bench.tcp.to_string());
    let server = Running::start(PERF, &["raw", "server", "--once", "--port", &a, "--oob-port", &tcp]);
    let base = ["raw", "client", "--port", &b, "--oob-port", &tcp, "127.0.0.1"];
    let args = ["-D", "50ms", "-s", "60,1514", "--json", json.to_str().unwrap()];
    Running::start(PERF, &[&base[..], &args].concat()).finish().good();
    server.finish().good();
    assert_eq!(rows(&json).len(), 4);
}

#[test]
fn one_server_serves_one_client_after_the_other() {
    let bench = Bench::new(Link::Unix);
    let _server = bench.perf_server(&[]);
    for extra in [&[][..], &["--limit", "--limit-duration", "20ms"], &["--mode", "rate"]] {
        bench.perf_client(&[&["-n", "20"][..], extra].concat()).finish().good();
    }
}

// Without TCP: the exchange and every queue pair are connected by rdma_cm.
#[test]
fn perf_connects_by_rdma_cm() {
    for (drive, extra) in [
        ("embedded", &["--op", "send,write,read,atomic", "--mode", "lat,bw", "-s", "64,3000", "-q", "3"][..]),
        (
            "caller",
            &["--op", "send", "--mode", "bw", "-s", "3000", "-q", "2", "--bidirectional", "-m", "1024"],
        ),
    ] {
        let bench = Bench::new(Link::Unix);
        let (a, b, port) = (bench.server_port(), bench.client_port(), bench.tcp.to_string());
        let json = bench.path("rows.json");
        let base = ["server", "-R", "--once", "--port", &a, "--oob-port", &port, "--drive", drive];
        let server = Running::start(PERF, &base);
        let base =
            ["client", "-R", "--port", &b, "--oob-port", &port, "--drive", drive, "-n", "40", "--verify"];
        let files = ["--json", json.to_str().unwrap(), "10.77.0.1"];
        Running::start(PERF, &[&base[..], extra, &files].concat()).finish().good();
        server.finish().good();
        let rows = rows(&json);
        assert_eq!(rows.len(), if drive == "embedded" { 16 } else { 1 }, "{rows:?}");
        assert!(
            rows.iter().all(|row| row["verified"] == true && row["messages"].as_u64() > Some(30)),
            "{rows:?}"
        );
        assert!(rows.iter().all(|row| row["mtu"] == if drive == "embedded" { 4096 } else { 1024 }));
    }
    // Impossible options: raw frames beside an open device, a host name.
    for (args, part) in [
        (&["client", "-R", "--limit", "10.77.0.1"][..], "cannot be used with"),
        (&["client", "-R", "--port", "loopback", "localhost"], "the server's RDMA address"),
        (
            &["client", "-R", "--port", "loopback", "--wait", "1s", "10.77.0.9"],
            "no session at 10.77.0.9:18515 by rdma_cm within 1s: ",
        ),
    ] {
        common::run(PERF, args).bad(part);
    }
}

// The host's own sockets, on addresses of the loopback interface.
#[test]
fn programs_meet_over_udp_sockets() {
    for extra in [&[][..], &["--transport", "uc"], &["--transport", "ud"], &["-m", "4096", "-s", "100000"]] {
        pingpong(Link::Udp, extra);
    }
    let ops = ["--op", "send,write,read,atomic", "--mode", "lat,bw,rate", "-n", "64", "--verify"];
    assert_eq!(perf(Link::Udp, &ops).len(), 15);
    let bench = Bench::new(Link::Udp);
    let end = bench.perf_client(&["--limit"]).finish();
    assert_eq!(end.code, Some(2), "{}", end.all());
    assert!(end.stderr.contains("cannot be measured bare"), "{}", end.all());
    let (port, server) = (bench.client_port(), bench.server_port());
    run(PERF, &["raw", "client", "--port", &port, "127.0.0.1"]).bad("cannot be measured bare");
    // A peer that refuses is named.
    let nobody = server.trim_start_matches("udp:");
    let end = Running::start(PERF, &["client", "-R", "--port", &port, "--wait", "1s", nobody]).finish();
    assert_ne!(end.code, Some(0), "{}", end.all());
    assert!(end.stderr.contains(&format!("{nobody} refuses RoCE")), "{}", end.all());
}
