//! The rate at which two processes on two cores move frames over memif, with nothing above the port: the upper limit of all other
//! figures.
//!
//! As a test it runs for a moment and asserts that frames arrive. To measure:
//! `ROCE_RATE_SECONDS=2 cargo test --release -p roce-stack --test port_rate -- --nocapture`
//! (`ROCE_RATE_OPTIONS=rsize=11` adds options to the port, `ROCE_RATE_SIZES=64,4096` chooses sizes).

use stack::port::{Port, PortOptions, PortSpec, Route, RxBurst, TxBurst};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "ROCE_RATE_CHILD";

fn open(spec: &str) -> Box<dyn Port> {
    spec.parse::<PortSpec>().unwrap().open(&PortOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Sends as fast as the port takes until stdin ends.
#[test]
fn sender() {
    let Ok(job) = std::env::var(CHILD) else { return };
    let (size, spec) = job.split_once('|').unwrap();
    let size: usize = size.parse().unwrap();
    let port = open(spec);
    pin(1);
    let done = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            done.store(true, Ordering::Relaxed);
        }
    });
    let mut queue = port.take_queue(0).unwrap();
    let mut burst = TxBurst::new();
    let mut turns = 0u32;
    while !done.load(Ordering::Relaxed) {
        while !burst.is_full() {
            let Some(mut frame) = queue.alloc() else { break };
            frame.set_len(size);
            burst.push(frame);
        }
        queue.tx_burst(Route::default(), &mut burst);
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(65536) {
            port.maintain();
        }
    }
}

fn pin(core: usize) {
    if let Some(ids) = core_affinity::get_core_ids() {
        core_affinity::set_for_current(ids[core % ids.len()]);
    }
}

/// Numbers of frames, bytes and non-empty bursts, and the seconds that they took.
fn receive(port: &dyn Port, time: Duration) -> (u64, u64, u64, f64) {
    pin(0);
    let mut queue = port.take_queue(0).unwrap();
    let mut got = RxBurst::new();
    let mut poll = |time: Duration| {
        let start = Instant::now();
        let (mut frames, mut bytes, mut bursts) = (0u64, 0u64, 0u64);
        while start.elapsed() < time {
            for _ in 0..64 {
                let n = queue.rx_burst(&mut got);
                bursts += u64::from(n > 0);
                frames += n as u64;
                bytes += got.iter().map(|frame| frame.len() as u64).sum::<u64>();
                queue.recycle(&mut got);
            }
        }
        (frames, bytes, bursts, start.elapsed().as_secs_f64())
    };
    let start = Instant::now();
    while poll(Duration::from_millis(20)).0 == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no frame arrived");
    }
    poll(time)
}

#[test]
fn rate() {
    let seconds: f64 =
        std::env::var("ROCE_RATE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    let options = std::env::var("ROCE_RATE_OPTIONS").map(|text| format!(",{text}")).unwrap_or_default();
    let sizes = std::env::var("ROCE_RATE_SIZES").unwrap_or("64,1500,4096".into());
    for size in sizes.split(',') {
        let path = std::env::temp_dir().join(format!("roce-rate-{}.sock", std::process::id()));
        let port = open(&format!("memif:{},role=server{options}", path.display()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["sender", "--exact", "--nocapture"])
            .env(CHILD, format!("{size}|memif:{},role=client{options}", path.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (frames, bytes, bursts, time) = std::thread::scope(|scope| {
            // The other process inherits the affinity of the thread that starts it, so a different thread is pinned.
            scope.spawn(|| receive(&*port, Duration::from_secs_f64(seconds))).join().unwrap()
        });
        println!(
            "{size:>5} B: {:6.2} M frames/s, {:6.1} Gb/s, {:4.1} frames a burst",
            frames as f64 / time / 1e6,
            bytes as f64 * 8.0 / time / 1e9,
            frames as f64 / bursts.max(1) as f64
        );
        assert!(frames > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
        drop(port);
    }
}
