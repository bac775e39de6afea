//! A host whose owner, root, admits the processes of another user: among themselves, and with another host. Needs root.

use crate::common::{Bench, Link, PATIENCE, PERF, Running, count, run, until};
use crate::udp::{Lab, V4};
use std::path::PathBuf;

const STAT: &str = env!("CARGO_BIN_EXE_roce-stat");
/// A user without rights, whom no test names otherwise.
const GUEST: &str = "65533";
const OPS: [&str; 9] = ["--op", "write,read,send", "--mode", "bw", "--qps", "4", "-n", "300", "--verify"];

/// Two hosts; on the second one there are guests.
struct Hosts {
    lab: Lab,
    bench: Bench,
    /// A copy of `roce-perf` that every user reaches.
    program: PathBuf,
}

impl Hosts {
    fn new(tag: char) -> Option<Self> {
        let bench = Bench::new(Link::Udp);
        let lab = Lab::new(tag, &V4)?;
        let program = bench.path("roce-perf");
        std::fs::copy(PERF, &program).unwrap();
        Some(Self { lab, bench, program })
    }

    /// A process of the owner, with these variables.
    fn owners(&self, variables: &[&str], args: &[&str]) -> Running {
        self.lab.start(1, "env", &[variables, &[PERF], args].concat())
    }

    /// A process of the other user beside it, on the host of this user.
    fn guests(&self, of: &str, args: &[&str]) -> Running {
        let user = ["--reuid", GUEST, "--regid", GUEST, "--clear-groups", "env"];
        let owner = format!("ROCE_HOST_USER={of}");
        let program = [&*owner, self.program.to_str().unwrap()];
        self.lab.start(1, "setpriv", &[&user[..], &program, args].concat())
    }

    /// A process of the first host.
    fn away(&self, args: &[&str]) -> Running {
        self.lab.start(0, PERF, args)
    }
}

fn server<'a>(port: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["server", "-R", "--port", "host", "--oob-port", port][..], more].concat()
}

fn client<'a>(port: &'a str, to: &'a str) -> Vec<&'a str> {
    [&["client", "-R", "--port", "host", "--oob-port", port, to][..], &PATIENCE, &OPS].concat()
}

// Goal: a guest has what a process of the owner has: it reaches that user's processes and other hosts, is reached from everywhere, also for
// much at once, and is gone when it ends.
#[test]
fn a_guest_is_part_of_the_host_in_all_directions() {
    let Some(hosts) = Hosts::new('g') else { return };
    let [away, here] = [V4[0].host, V4[1].host];
    let stats = hosts.bench.path("stats");
    let socket = format!("--stats={}", stats.display());
    let admits = ["ROCE_ADMIT=65533"];
    let mut owners = hosts.owners(&admits, &server("7000", &[&socket]));
    until(|| stats.exists().then_some(()));
    hosts.guests("root", &client("7000", here)).finish().good();
    // By links, but for the messages that make connections.
    let received = count(&stats, "rx_frames");
    let passed_on = count(&stats, "passed_on");
    assert!(received > 1000 && (1..300).contains(&passed_on), "{received}, {passed_on}");
    let mut guest = hosts.guests("0", &server("7001", &["--shards", "2"]));
    let clients = [
        hosts.away(&client("7001", here)),
        hosts.owners(&admits, &client("7001", here)),
        hosts.guests("root", &client("7001", here)),
    ];
    clients.into_iter().for_each(|client| _ = client.finish().good());
    // What came from the network for the guest arrived at the owner's process.
    let passed_on = count(&stats, "passed_on") - passed_on;
    assert!(passed_on > 1000, "{passed_on}");
    let strayed = count(&stats, "rx_strayed");
    assert!(strayed < passed_on / 10, "{strayed}");
    // Who looks sees both users' processes.
    let variables = ["netns", "exec", hosts.lab.host(1), "env", admits[0], STAT];
    let shown = run("ip", &[&variables[..], &["--host", "--json", "--once", "--interval", "10ms"]].concat());
    let shown: serde_json::Value = serde_json::from_str(&shown.good().stdout).unwrap();
    let of = |user: Option<u64>| {
        let processes = shown["processes"].as_array().unwrap();
        processes.iter().filter(|row| row["answers"] == true && row["user"].as_u64() == user).count()
    };
    assert_eq!((of(None), of(Some(65533))), (1, 1), "{shown}");
    let _away = hosts.away(&server("7002", &[]));
    hosts.guests("root", &client("7002", away)).finish().good();
    // The owner's only process ends, and another one begins: the guest is part of its host.
    owners.kill();
    owners.finish();
    let again = hosts.bench.path("again");
    let _owners = hosts.owners(&admits, &server("7000", &[&format!("--stats={}", again.display())]));
    until(|| again.exists().then_some(()));
    hosts.away(&client("7001", here)).finish().good();
    assert!(count(&again, "passed_on") > 1000);
    guest.kill();
    guest.finish();
    let soon = ["client", "-R", "--port", "host", "--oob-port", "7001", here, "--wait", "2s"];
    for gone in [hosts.away(&soon), hosts.owners(&admits, &soon)] {
        gone.finish().bad("no program listens");
    }
}

#[test]
fn who_is_not_admitted_is_told_what_to_do() {
    let Some(hosts) = Hosts::new('n') else { return };
    let here = V4[1].host;
    hosts.guests("root", &client("7000", here)).finish().bad("no process of user 0 has the port host open");
    hosts
        .guests("nobody-of-this-name", &client("7000", here))
        .finish()
        .bad("ROCE_HOST_USER: there is no user");
    hosts.owners(&["ROCE_ADMIT=,root,"], &server("7000", &["--once"])).kill();
    hosts.owners(&["ROCE_ADMIT=root,x y"], &server("7000", &[])).finish().bad("ROCE_ADMIT: there is no user");
    let stats = hosts.bench.path("stats");
    let _owners = hosts.owners(&[], &server("7000", &[&format!("--stats={}", stats.display())]));
    until(|| stats.exists().then_some(()));
    hosts.guests("root", &client("7000", here)).finish().bad("do not admit this user");
}
