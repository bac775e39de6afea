//! A port in another process, which sends every frame back: for tests of links between two.

use rustix::process::{Pid, Signal, kill_process};
use stack::port::{Port, PortOptions, PortQueue, PortSpec, RxBurst, TxBurst};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "ROCE_PORT_TEST_CHILD";
/// The time that a machine may take, however busy it is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The other process: sends every frame back with its first byte changed, until its stdin ends. To be called by a test of
/// this name; in the process that runs all tests it does nothing.
pub fn child() {
    let Ok(job) = std::env::var(CHILD) else { return };
    let (queues, spec) = job.split_once('|').unwrap();
    let queues: usize = queues.parse().unwrap();
    let port = open(spec, queues);
    println!("\nchild is ready");
    let done = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            done.store(true, Ordering::Relaxed);
        }
    });
    let mut all: Vec<_> = (0..queues).map(|i| port.take_queue(i).unwrap()).collect();
    let mut clock = Ticker::new();
    let mut got = RxBurst::new();
    let mut back = TxBurst::new();
    while !done.load(Ordering::Relaxed) {
        clock.maintain(&*port);
        for queue in &mut all {
            queue.rx_burst(&mut got);
            for mut frame in got.drain(..) {
                frame.data_mut()[0] = 0xee;
                back.push(frame);
            }
            queue.tx_burst(&mut back);
            back.clear();
        }
    }
}

/// Maintains a port now and then.
pub struct Ticker(Instant);

impl Ticker {
    pub fn new() -> Self {
        Self(Instant::now())
    }
    pub fn maintain(&mut self, port: &dyn Port) {
        if self.0.elapsed() >= Duration::from_millis(10) {
            self.0 = Instant::now();
            port.maintain();
            std::thread::yield_now();
        }
    }
}

/// The other process; killed when dropped.
pub struct Peer(pub Child);

impl Peer {
    pub fn start(spec: &str, queues: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(CHILD, format!("{queues}|{spec}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if !lines.any(|line| line.unwrap() == "child is ready") {
            panic!("the other process did not start: {}", child.wait().unwrap());
        }
        Self(child)
    }

    #[allow(dead_code, reason = "not every test has a use for it")]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path without a file.
pub fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("roce-{}-{name}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Opens a port.
pub fn open(spec: &str, queues: usize) -> Box<dyn Port> {
    let options = PortOptions { queues, frames: 1024, ..PortOptions::default() };
    spec.parse::<PortSpec>().unwrap().open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// Sends frames of many sizes and waits until each size came back.
pub fn exchange(port: &dyn Port, queue: &mut dyn PortQueue, what: &str) {
    let max = port.info().max_frame();
    let mut clock = Ticker::new();
    let mut got = RxBurst::new();
    let mut burst = TxBurst::new();
    let start = Instant::now();
    for size in [14, 60, 64, 65, 1000, 1514, 2048, 4096, max] {
        let mut sent: Option<Instant> = None;
        'answered: loop {
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: no answer to {size} bytes, link up: {}",
                port.link_up()
            );
            clock.maintain(port);
            // A frame that was sent while the link went down is lost, as on every link: send again.
            if sent.is_none_or(|at| at.elapsed() > Duration::from_millis(50)) {
                let mut frame = queue.alloc().expect("buffers come back");
                frame.set_len(size);
                for (i, byte) in frame.data_mut().iter_mut().enumerate() {
                    *byte = (i % 251) as u8;
                }
                burst.push(frame);
                queue.tx_burst(&mut burst);
                burst.clear();
                sent = Some(Instant::now());
            }
            queue.rx_burst(&mut got);
            for frame in &got {
                if frame.len() == size {
                    assert_eq!(frame.data()[0], 0xee);
                    assert!(
                        frame.data().iter().enumerate().skip(1).all(|(i, &byte)| byte == (i % 251) as u8)
                    );
                    queue.recycle(&mut got);
                    break 'answered;
                }
            }
            queue.recycle(&mut got);
        }
    }
}
