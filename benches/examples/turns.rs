//! The time of a message at both ends, on one thread: `cargo run --release -p roce-benches --example turns`.

use benches::Link;
use stack::id::Mtu;
use stack::proto::status::WrOpcode;

fn main() {
    let only = std::env::args().nth(1);
    if only.as_deref().is_none_or(|o| o == "PING") {
        let mut link = Link::new(Mtu::Mtu4096);
        link.ping(64, 100_000);
        let start = std::time::Instant::now();
        link.ping(64, 2_000_000);
        println!("{:12} {:8.1} ns a message", "PING 64", start.elapsed().as_nanos() as f64 / 2e6);
    }
    for (name, opcode, len, count) in [
        ("SEND 64", WrOpcode::Send, 64, 2_000_000),
        ("WRITE 64", WrOpcode::RdmaWrite, 64, 2_000_000),
        ("READ 64", WrOpcode::RdmaRead, 64, 1_000_000),
        ("FETCH_ADD 8", WrOpcode::AtomicFetchAndAdd, 8, 1_000_000),
        ("WRITE 65536", WrOpcode::RdmaWrite, 65536, 20_000),
        ("SEND 65536", WrOpcode::Send, 65536, 20_000),
    ] {
        if only.as_deref().is_some_and(|o| !name.starts_with(o)) {
            continue;
        }
        let mut link = Link::new(Mtu::Mtu4096);
        link.run(opcode, len, count / 10);
        let start = std::time::Instant::now();
        link.run(opcode, len, count);
        let ns = start.elapsed().as_nanos() as f64;
        println!(
            "{name:12} {:8.1} ns a message, {:8.2} Gb/s",
            ns / f64::from(count),
            f64::from(count) * f64::from(len) * 8.0 / ns
        );
    }
}
