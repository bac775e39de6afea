//! Command lines: which are accepted, which are refused, and with which error message.

use apps::cli::perf::{PerfCli, PerfCommand};
use apps::cli::pingpong::PingpongCli;
use apps::cli::run::RunCli;
use apps::cli::specs::specs_of;
use apps::plan::{Mode, Op, Pattern, Spec};
use clap::{CommandFactory, Parser};
use tools::interop::cli::InteropCli;

/// What `roce-perf client host` with these arguments measures, or the error message.
fn client(args: &[&str]) -> Result<Vec<Spec>, String> {
    let line = ["roce-perf", "client", "host"].iter().chain(args);
    match PerfCli::try_parse_from(line).map_err(|e| e.to_string())?.command {
        Some(PerfCommand::Client(args)) => specs_of(&args.measure).map_err(|e| e.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definitions_are_consistent() {
    PerfCli::command().debug_assert();
    PingpongCli::command().debug_assert();
    RunCli::command().debug_assert();
}

#[test]
fn help_teaches_by_example() {
    for (command, part) in [
        (PerfCli::command(), "roce-perf client HOST"),
        (PingpongCli::command(), "ibv_rc_pingpong -d rxe0 -g 1"),
        (RunCli::command(), "roce-run ib_write_bw HOST"),
    ] {
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("Examples") && help.contains(part), "{help}");
    }
    let mut perf = PerfCli::command();
    for name in ["server", "client", "raw"] {
        let help = perf.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        assert!(help.len() > 200, "{name}: {help}");
    }
}

/// Addresses that an option or argument must accept, by the name of its value in the help.
fn addresses(value: &str, option: &str) -> &'static [&'static str] {
    match (value, option) {
        ("ADDR", "gateway") => &["10.0.0.1"],
        ("ADDR", "gateway6") => &["fd00::1", "[fd00::1]"],
        ("ADDR", _) => &["10.0.0.1", "fd00::1", "[fd00::1]"],
        ("ADDR/PREFIX", _) => {
            &["10.0.0.1/24", "10.0.0.1", "fd00::1/64", "[fd00::1]/64", "fd00::1", "[fd00::1]"]
        }
        ("ADDR[:PORT]" | "HOST[:PORT]", _) => {
            &["10.0.0.1", "10.0.0.1:80", "fd00::1", "[fd00::1]", "[fd00::1]:80", "localhost", "localhost:80"]
        }
        ("[ADDR:]PORT", _) => &["80", "10.0.0.1:80", "[fd00::1]:80"],
        ("ADDR:PORT", _) => &["10.0.0.1:80", "[fd00::1]:80"],
        _ => &[],
    }
}

#[test]
fn every_address_may_be_an_ipv6_address_bare_or_in_brackets() {
    let mut seen = std::collections::BTreeSet::new();
    for (line, command) in [
        ("roce-perf server", PerfCli::command()),
        ("roce-perf client fd00::1", PerfCli::command()),
        ("roce-perf client", PerfCli::command()),
        ("roce-perf raw server", PerfCli::command()),
        ("roce-perf raw client [fd00::1]:80", PerfCli::command()),
        ("roce-perf client -R", PerfCli::command()),
        ("roce-pingpong", PingpongCli::command()),
        ("roce-run --print", RunCli::command()),
        ("roce-interop run --port loopback", InteropCli::command()),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let named = words[1..].iter().fold(&command, |at, word| at.find_subcommand(word).unwrap_or(at));
        let has_host = words.iter().any(|word| word.contains("fd00"));
        for arg in named.get_arguments() {
            let value = arg.get_value_names().map_or("", |names| names[0].as_str());
            assert!(
                !value.contains("ADDR") && !value.contains("HOST") || !addresses(value, "").is_empty(),
                "{value}"
            );
            for address in addresses(value, arg.get_id().as_str()) {
                let mut all = words.clone();
                let long = arg.get_long().map(|long| format!("--{long}"));
                match &long {
                    Some(long) => all.push(long),
                    None if has_host => continue,
                    None => {}
                }
                all.push(address);
                if long.is_some() && named.get_positionals().any(|p| p.is_required_set()) && !has_host {
                    all.push("localhost");
                }
                if all.contains(&"-R") && all.contains(&"--peer-ip") {
                    continue; // the two exclude each other
                }
                command.clone().try_get_matches_from(&all).unwrap_or_else(|e| panic!("{all:?}: {e}"));
                seen.insert(long.unwrap_or_else(|| arg.get_id().to_string()));
            }
        }
    }
    let all = ["--bind", "--gateway", "--gateway6", "--guest", "--ip", "--metrics", "--peer-ip", "host"];
    assert!(seen.iter().eq(all), "{seen:?}");
}

#[test]
fn short_options_are_those_of_perftest() {
    let line = "-s 4096 -n 100 -t 64 -r 128 -q 2 -m 1024 -I 0 -l 4 -Q 8 -b --mode bw --op write";
    let specs = client(&line.split(' ').collect::<Vec<_>>()).unwrap();
    let [spec] = &specs[..] else { panic!("{specs:?}") };
    assert_eq!((spec.op, spec.mode, spec.size, spec.iters), (Op::Write, Mode::Bw, 4096, Some(100)));
    assert_eq!((spec.tx_depth, spec.rx_depth, spec.qps, spec.mtu), (64, 128, 2, Some(1024)));
    assert_eq!((spec.inline, spec.post_list, spec.cq_mod, spec.bidirectional), (false, 4, 8, true));
}

#[test]
fn lists_multiply_and_atomics_have_one_size() {
    let specs = client(&["--op", "send,atomic", "--mode", "lat,rate", "-s", "64,1k"]).unwrap();
    let short: Vec<_> = specs.iter().map(|s| (s.mode, s.op, s.size)).collect();
    let per_mode = [(Op::Send, 64), (Op::Send, 1024), (Op::FetchAdd, 8), (Op::CmpSwap, 8)];
    let want: Vec<_> =
        [Mode::Lat, Mode::Rate].iter().flat_map(|m| per_mode.map(|(o, s)| (*m, o, s))).collect();
    assert_eq!(short, want);
    assert!(specs.iter().all(|s| s.check().is_ok()));
}

#[test]
fn many_queue_pairs_are_visited_at_random() {
    let line = "--mode rate --qps 100000 --pattern random --visit 16";
    let [spec] = &client(&line.split(' ').collect::<Vec<_>>()).unwrap()[..] else { panic!() };
    assert_eq!((spec.qps, spec.pattern, spec.visit, spec.in_flight), (100_000, Pattern::Random, 16, 64));
    assert_eq!((spec.tx_depth, spec.rx_depth, spec.cq_mod, spec.post_list), (16, 64, 16, 16));
    for (asked, posted) in [("1", 32), ("32", 32), ("40", 48)] {
        let line = ["--mode", "rate", "--pattern", "random", "--visit", "16", "-r", asked];
        assert_eq!(client(&line).unwrap()[0].rx_depth, posted, "whole visits, two at least: -r {asked}");
    }
    let odd = Spec { rx_depth: 40, ..spec.clone() };
    assert!(odd.check().unwrap_err().contains("the receive depth is not a multiple of a visit"));
    let few = &client(&["--mode", "rate", "--pattern", "random", "-q", "3"]).unwrap()[0];
    assert_eq!((few.visit, few.in_flight), (1, 3));
    for (bad, part) in [
        ("--mode rate --qps 1025", "use --pattern random"),
        ("--mode rate --qps 131073 --pattern random", "1..=131072"),
        ("--mode rate --visit 2", "--visit and --in-flight are for --pattern random"),
        ("--mode rate --pattern random --visit 65", "1..=64"),
        ("--mode rate --pattern random -t 7", "--tx-depth, --post-list and --cq-mod are for --pattern all"),
        ("--mode rate --pattern random --verify", "without checks of the data"),
        ("--mode rate --pattern random --qps 100000 -r 1000", "queue pairs times queue depth exceed"),
        ("--mode lat --pattern random", "in the modes bw and rate"),
    ] {
        let said = client(&bad.split(' ').collect::<Vec<_>>()).unwrap_err();
        assert!(said.contains(part), "{bad}: {said}");
    }
}

#[test]
fn a_shared_receive_queue_is_for_send() {
    let line = "--op send,write --mode rate --srq --qps 100000 --pattern random --visit 16";
    let specs = client(&line.split(' ').collect::<Vec<_>>()).unwrap();
    assert_eq!((specs[0].srq, specs[1].srq, specs[0].rx_slots()), (true, false, 4 * 64 * 16));
    let all = &client(&["--mode", "bw", "--srq", "-s", "1m", "-q", "8"]).unwrap()[0];
    assert_eq!(all.rx_slots(), 64);
    for (bad, part) in [
        ("--op write,read --mode bw --srq", "--srq is for SEND"),
        ("--mode lat --srq", "in the modes bw and rate"),
        ("--mode bw --srq --verify", "without checks of the data"),
    ] {
        let said = client(&bad.split(' ').collect::<Vec<_>>()).unwrap_err();
        assert!(said.contains(part), "{bad}: {said}");
    }
}

#[test]
fn all_sizes_are_the_powers_of_two_to_8_mib() {
    let specs = client(&["--op", "write", "--mode", "bw", "--all"]).unwrap();
    let sizes: Vec<_> = specs.iter().map(|s| s.size).collect();
    assert_eq!(sizes.len(), 23);
    assert_eq!((sizes[0], sizes[22]), (2, 8 << 20));
    assert!(sizes.windows(2).all(|w| w[1] == 2 * w[0]));
}

#[test]
fn every_plan_can_be_carried_out() {
    for extra in
        [&["--verify"][..], &["-t", "1"], &["-t", "7", "-Q", "3", "-l", "5"], &["-q", "16"], &["-r", "1"]]
    {
        for mode in ["bw", "rate", "lat"] {
            if mode == "lat" && extra[0] == "-q" {
                continue;
            }
            let line = [&["--op", "send,write,read,atomic", "--all", "--mode", mode][..], extra].concat();
            for spec in client(&line).unwrap() {
                spec.check().unwrap();
                assert!(spec.tx_depth % spec.cq_mod == 0 && spec.tx_depth > 0, "{spec:?}");
                assert!(spec.post_list <= spec.tx_depth - spec.cq_mod + 1, "{spec:?}");
                if spec.verify {
                    assert_eq!(spec.tx_slots(), u64::from(spec.tx_depth), "{spec:?}");
                }
            }
        }
    }
}

#[test]
fn errors_name_the_problem() {
    for (args, part) in [
        (&["--op", "sendd"][..], "possible values: send, write, read, atomic"),
        (&["--mode", "fast"], "possible values: bw, lat, rate"),
        (&["-m", "1000"], "there are 256, 512, 1024, 2048 and 4096"),
        (&["-s", "64x"], "is not a size; write 64, 4k or 8m"),
        (&["-s", "2g"], "at most 1073741824 bytes"),
        (&["-s", "64", "-a"], "cannot be used with"),
        (&["-n", "0"], "1..=1000000000000"),
        (&["-n", "5", "-D", "1"], "cannot be used with"),
        (&["-D", "2h"], "write 2, 2s, 500ms"),
        (&["-q", "0"], "1..=131072"),
        (&["-q", "2", "--mode", "lat"], "uses one queue pair"),
        (&["--mode", "lat", "--op", "write", "-s", "0"], "measure at least 1 byte"),
        (&["-q", "1024", "-t", "32768", "--mode", "bw", "-s", "8"], "use fewer or shorter queues"),
        (&["--ip", "10.0.0.1/40"], "a number up to 32"),
        (&["--ip", "host"], "write 10.77.0.1/24"),
        (&["--mac", "1:2:3"], "a MAC address"),
        (&["--port", "vhost:"], "path is missing"),
        (&["--port", "eth0"], "no such kind of port"),
        (&["--timeout", "32"], "0..=31"),
        (&["--drive", "auto"], "embedded"),
        (&["--wrong"], "unexpected argument '--wrong'"),
    ] {
        let error = client(args).unwrap_err();
        assert!(error.contains(part), "{args:?} gave {error:?}");
    }
}

#[test]
fn pingpong_has_the_stock_tools_options() {
    let cli = PingpongCli::try_parse_from(
        "roce-pingpong -p 1 -s 64 -m 512 -r 3 -n 4 -l 5 -e -g 2 -c host".split(' '),
    )
    .unwrap();
    assert_eq!((cli.tcp_port, cli.message_size(), cli.mtu.bytes(), cli.rx_depth), (1, 64, 512, 3));
    assert_eq!((cli.iters, cli.sl, cli.events, cli.gid_idx, cli.check), (4, 5, true, Some(2), true));
    assert_eq!(cli.host.map(|host| host.name).as_deref(), Some("host"));
    let cli = PingpongCli::try_parse_from(["roce-pingpong"]).unwrap();
    assert_eq!((cli.tcp_port, cli.message_size(), cli.mtu.bytes(), cli.rx_depth), (18515, 4096, 1024, 500));
    assert_eq!((cli.iters, cli.gid_idx, cli.host), (1000, None, None));
}

// A server on a port that uses the host's network may have clients on other hosts, so it binds to all addresses. A server on any other
// port has clients on this host, so it binds to the loopback address, unless an option says otherwise.
#[test]
fn servers_bind_to_the_addresses_that_clients_of_their_port_can_reach() {
    let perf = |args: &[&str]| match PerfCli::try_parse_from([&["roce-perf", "server"], args].concat())
        .unwrap()
        .command
    {
        Some(PerfCommand::Server(args)) => {
            let bind = args.device.bind(args.bind.as_ref());
            (bind.to_string(), args.max_session.as_secs(), args.max_memory >> 30)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(perf(&[]), ("::".into(), 3600, 4));
    assert_eq!(perf(&["--port", "udp:127.0.0.1"]).0, "::");
    assert_eq!(perf(&["--port", "memif"]).0, "127.0.0.1");
    assert_eq!(
        perf(&["--bind", "[::1]", "--max-session", "5m", "--max-memory", "16g"]),
        ("::1".into(), 300, 16)
    );
    let pingpong = |args: &[&str]| {
        let cli = PingpongCli::try_parse_from([&["roce-pingpong"], args].concat()).unwrap();
        cli.device.bind(cli.bind.as_ref()).to_string()
    };
    assert_eq!(pingpong(&[]), "::");
    assert_eq!(pingpong(&["--port", "tap:roce0"]), "127.0.0.1");
    let mut perf = PerfCli::command();
    perf.build();
    let server = perf.find_subcommand_mut("server").unwrap().render_long_help().to_string();
    for help in [server, PingpongCli::command().render_long_help().to_string()] {
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("--bind") && words.contains("0.0.0.0 or ::"), "{help}");
    }
}
