//! A member of a host with links: in this process, or in another one that executes orders, line by line.

use crate::process::{self, Fork, PATIENCE, fork};
use rustix::process::{Pid, Signal, kill_process};
use sim::host_liar::MAX_FRAME;
use stack::id::Qpn;
use stack::port::host::{Ended, LinkId, LinkQueue, Links, LinksConfig, Reach};
use stack::port::{Armed, PortInfo, PortOptions, PortSpec, RxBurst, Stalled, TxBurst};
use stack::registry::{Registry, RegistryConfig, Run};
use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "ROCE_LINKS_TEST_CHILD";
/// The user that the other process becomes, and whose host it is part of.
const USER: &str = "ROCE_LINKS_TEST_USER";
const OWNER: &str = "ROCE_LINKS_TEST_OWNER";

/// A configuration for one test, with names of its own.
pub fn config() -> RegistryConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let space = format!("roce-links-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    RegistryConfig { space, patience: PATIENCE, ..RegistryConfig::default() }
}

pub fn wait_for(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

/// A member, turned by the thread that owns it.
pub struct Member {
    pub registry: Arc<Registry>,
    pub links: Links,
    pub queues: Vec<LinkQueue>,
    /// The number of the next frame from each process; and on each link to a process.
    next_from: BTreeMap<u32, u32>,
    next_to: BTreeMap<LinkId, u32>,
}

impl Member {
    pub fn new(config: &RegistryConfig, queues: usize) -> Self {
        Self::with(config, queues, PATIENCE)
    }

    pub fn with(config: &RegistryConfig, queues: usize, patience: Duration) -> Self {
        let registry = Arc::new(Registry::join(config).unwrap());
        let stall = Duration::from_secs(3600);
        let config = LinksConfig { queues, max_frame: MAX_FRAME, frames: 512, patience, stall };
        let links = Links::new(Arc::clone(&registry), &config).unwrap();
        let queues = (0..queues).map(|index| links.take_queue(index).unwrap()).collect();
        Self { registry, links, queues, next_from: BTreeMap::new(), next_to: BTreeMap::new() }
    }

    pub fn run(&self) -> usize {
        self.registry.runs()[0].index()
    }

    /// Receives all available frames, and checks that those of each process are in order, whole, and complete.
    pub fn poll(&mut self) -> usize {
        (0..self.queues.len()).map(|queue| self.burst(queue).len()).sum()
    }

    /// Receives one burst of a queue; returns the processes of its frames.
    pub fn burst(&mut self, queue: usize) -> Vec<u32> {
        let mut got = RxBurst::new();
        self.queues[queue].rx_burst(&mut got);
        let all: Vec<(u32, u32)> = got.iter().map(|frame| read(frame.data())).collect();
        self.queues[queue].recycle(&mut got);
        for (pid, number) in &all {
            let next = self.next_from.entry(*pid).or_insert(0);
            assert_eq!(*next, *number, "the next frame of process {pid}");
            *next += 1;
        }
        all.into_iter().map(|(pid, _)| pid).collect()
    }

    /// The link to the process that has a run; polls until it exists.
    pub fn link_to(&mut self, run: usize) -> LinkId {
        let start = Instant::now();
        loop {
            match self.reach(run) {
                Reach::Link(link) => return link,
                Reach::Ourselves => panic!("run {run} is ours"),
                Reach::Asked | Reach::Vacant | Reach::Unlinked => {}
            }
            assert!(start.elapsed() < PATIENCE, "there is no link to run {run}");
            self.poll();
            std::thread::yield_now();
        }
    }

    pub fn reach(&mut self, run: usize) -> Reach {
        self.queues[0].route_to(number_in(run))
    }

    /// Sends at most `most` frames, until the link is full; returns how many it took.
    pub fn try_send(&mut self, link: LinkId, most: usize) -> usize {
        let next = self.next_to.entry(link).or_insert(0);
        let queue = &mut self.queues[0];
        let mut burst = TxBurst::new();
        queue.alloc_burst(&mut burst, most);
        for (frame, number) in burst.iter_mut().zip(*next..) {
            write(frame, number);
        }
        let taken = queue.tx_burst(link, &mut burst);
        *next += taken as u32;
        taken
    }

    /// Sends `count` frames, and polls meanwhile.
    pub fn send(&mut self, run: usize, count: usize) {
        let (start, mut sent) = (Instant::now(), 0);
        while sent < count {
            let link = self.link_to(run);
            let taken = self.try_send(link, count - sent);
            sent += taken;
            if taken == 0 {
                self.poll();
                assert!(start.elapsed() < 2 * PATIENCE, "{sent} of {count} frames to run {run} are sent");
                std::thread::yield_now();
            }
        }
    }

    /// Receives until `count` frames have arrived in all.
    pub fn receive(&mut self, count: usize) {
        wait_for(|| {
            self.poll();
            self.received() >= count
        });
        assert_eq!(self.received(), count);
    }

    /// Sleeps until an event of the links occurs, however long that takes, unless `is_so` holds already.
    pub fn sleep(&mut self, is_so: impl FnOnce(&mut Self) -> bool) {
        use rustix::event::{PollFd, PollFlags, poll};
        let Armed::Event(event) = self.queues[0].arm() else { return };
        if !is_so(self) {
            poll(&mut [PollFd::new(&event, PollFlags::IN)], None).unwrap();
        }
    }

    pub fn received(&self) -> usize {
        self.next_from.values().sum::<u32>() as usize
    }

    pub fn next_ended(&mut self) -> Ended {
        let mut ended = None;
        wait_for(|| {
            self.poll();
            ended = self.queues[0].next_ended();
            ended.is_some()
        });
        let ended = ended.unwrap();
        self.next_to.remove(&ended.link());
        ended
    }
}

/// A queue pair number in a run.
pub fn number_in(run: usize) -> Qpn {
    *Run::at(run).unwrap().numbers().start()
}

/// Writes a frame whose length follows from its number.
fn write(frame: &mut stack::port::Frame, number: u32) {
    let len = 64 + (number as usize * 37) % 1400;
    let bytes = &mut frame.buffer_mut()[..len];
    bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[4..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..].fill(number as u8);
    frame.set_len(len);
}

/// The process that sent a frame, and the frame's number. Checks that the frame is whole.
fn read(bytes: &[u8]) -> (u32, u32) {
    let [pid, number] = [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
    assert_eq!(bytes.len(), 64 + (number as usize * 37) % 1400);
    assert!(
        bytes[8..].iter().all(|byte| *byte == number as u8),
        "frame {number} of process {pid} is damaged"
    );
    (pid, number)
}

/// The other process: executes its orders.
pub fn child() {
    let Ok(job) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = job.split('|').collect();
    let number = |name| std::env::var(name).ok().map(|number| number.parse().unwrap());
    if let Some(user) = number(USER) {
        process::become_user(user);
    }
    let config = RegistryConfig {
        space: words[0].into(),
        patience: PATIENCE,
        owner: number(OWNER),
        ..RegistryConfig::default()
    };
    let mut member = Member::new(&config, words[1].parse().unwrap());
    println!("\nchild has run {}", member.run());
    for line in std::io::stdin().lines().map(Result::unwrap) {
        let words: Vec<&str> = line.split(' ').collect();
        println!("{}", obey(&words, &mut member));
    }
    std::process::exit(0);
}

fn obey(words: &[&str], member: &mut Member) -> String {
    let number = |at: usize| -> usize { words[at].parse().unwrap() };
    match words[0] {
        "send" => {
            member.send(number(1), number(2));
            "sent".into()
        }
        "receive" => {
            member.receive(number(1));
            "received".into()
        }
        "take" => {
            let all = member.received() + number(1);
            wait_for(|| {
                member.poll();
                member.received() >= all
            });
            "taken".into()
        }
        "fill" => {
            let link = member.link_to(number(1));
            let mut all = 0;
            // The receiver polls no more, so the buffers that it has given are all that exist.
            loop {
                match member.try_send(link, 64) {
                    0 => break,
                    taken => all += taken,
                }
            }
            format!("filled {all}")
        }
        "flood" => {
            println!("floods");
            loop {
                member.send(number(1), 1000);
            }
        }
        "exchange" => exchange(member, number(1), &words[2..]),
        "stalled" => {
            let link = member.link_to(number(1));
            let mut clock = 0;
            wait_for(|| {
                clock += 1_000_000;
                let now = stack::time::Instant::from_nanos(clock);
                matches!(member.queues[0].stalled(link, now), Stalled::Yes(_))
            });
            "stalled".into()
        }
        "ended" => {
            let ended = member.next_ended();
            format!("ended {} {}", ended.pid(), ended.runs()[0].index())
        }
        "bye" => {
            stack::port::host::end_links();
            "said bye".into()
        }
        "counts" => {
            let counts = member.links.counts();
            format!("up {} made {} ended {} refused {}", counts.up, counts.made, counts.ended, counts.refused)
        }
        "fork" => format!("fork {}", fork()),
        "memory" => format!("memory {}", memory()),
        "rest" => {
            // Sleeps between events.
            let start = Instant::now();
            while memory() > number(1) {
                member.poll();
                member.sleep(|_| false);
                assert!(start.elapsed() < PATIENCE, "{} bytes are left", memory());
            }
            "rested".into()
        }
        "sleep" => sleep(member),
        other => panic!("{other}"),
    }
}

/// Bytes of link memory that this process has mapped, as far as either end has touched them.
fn memory() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut all, mut is_link) = (0, false);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if is_link => all += 1024 * words.next().unwrap().parse::<usize>().unwrap(),
            Some(first) if !first.ends_with(':') => is_link = line.contains("memfd:roce-link"),
            _ => {}
        }
    }
    all
}

/// Sends `count` frames to each of these runs, and receives as many from each.
fn exchange(member: &mut Member, count: usize, runs: &[&str]) -> String {
    let runs: Vec<usize> =
        runs.iter().map(|run| run.parse().unwrap()).filter(|run| *run != member.run()).collect();
    let mut left: Vec<(usize, usize)> = runs.iter().map(|run| (*run, count)).collect();
    let (start, all) = (Instant::now(), member.received() + count * runs.len());
    while !left.is_empty() || member.received() < all {
        for (run, left) in &mut left {
            if let Reach::Link(link) = member.reach(*run) {
                *left -= member.try_send(link, 8.min(*left));
            }
        }
        left.retain(|(_, left)| *left > 0);
        if member.poll() == 0 {
            std::thread::yield_now();
        }
        assert!(start.elapsed() < 4 * PATIENCE, "left {left:?}, received {} of {all}", member.received());
    }
    assert_eq!(member.received(), all);
    "exchanged".into()
}

/// Waits until a frame arrives, however long that takes.
fn sleep(member: &mut Member) -> String {
    let start = member.received();
    println!("sleeps");
    loop {
        member.poll();
        if member.received() > start {
            return "woke".into();
        }
        member.sleep(|_| false);
    }
}

/// A member in another process; killed when dropped.
pub struct Other {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
    pub run: usize,
}

impl Other {
    pub fn new(config: &RegistryConfig) -> Self {
        Self::with(config, 1)
    }

    pub fn with(config: &RegistryConfig, queues: usize) -> Self {
        let mut all = Self::start(config, queues, 1);
        all.pop().unwrap()
    }

    /// One of another user, a guest on the host of this one; as root only.
    pub fn guest(config: &RegistryConfig, queues: usize, user: u32) -> Self {
        let owner = rustix::process::geteuid().as_raw();
        let env = [(USER, user.to_string()), (OWNER, owner.to_string())];
        Self::start_with(config, queues, 1, &env).pop().unwrap()
    }

    /// So many, started at once.
    pub fn start(config: &RegistryConfig, queues: usize, count: usize) -> Vec<Self> {
        Self::start_with(config, queues, count, &[])
    }

    fn start_with(config: &RegistryConfig, queues: usize, count: usize, env: &[(&str, String)]) -> Vec<Self> {
        let start = || {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .envs(env.iter().map(|(name, value)| (name, value)))
                .args(["child", "--exact", "--nocapture"])
                .env(CHILD, format!("{}|{queues}", config.space))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (orders, said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            Self { child, orders, said, run: 0 }
        };
        let mut all: Vec<Self> = (0..count).map(|_| start()).collect();
        for one in &mut all {
            one.run = loop {
                if let Some(run) = one.hear().strip_prefix("child has run ") {
                    break run.parse().unwrap();
                }
            };
        }
        all
    }

    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let said = process::hear(&mut self.said);
        said.unwrap_or_else(|| panic!("it ended: {:?}", self.child.wait()))
    }

    pub fn order(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }

    pub fn fork(&mut self) -> Fork {
        Fork::of(self.order("fork").strip_prefix("fork ").unwrap().parse().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process, and waits until it is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let options = rustix::process::WaitOptions::UNTRACED;
        rustix::process::waitpid(Some(Pid::from_child(&self.child)), options).unwrap();
    }

    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Number of its file descriptors below 256, and from 256 on.
    pub fn descriptors(&self) -> (usize, usize) {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let numbers = all.map(|entry| entry.unwrap().file_name().to_string_lossy().parse::<usize>().unwrap());
        let (low, high): (Vec<_>, Vec<_>) = numbers.partition(|number| *number < 256);
        (low.len(), high.len())
    }

    /// Number of link mappings, and KiB of them that the process has touched; shared memory counts in proportion.
    pub fn memory(&self) -> (usize, usize) {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let (mut mappings, mut kib, mut is_ours) = (0, 0, false);
        for line in text.lines() {
            if line.contains('-') && line.split(' ').next().is_some_and(|range| range.contains('-')) {
                is_ours = line.contains("/memfd:roce-link");
                mappings += usize::from(is_ours);
            }
            if let Some(pss) = line.strip_prefix("Pss:").filter(|_| is_ours) {
                kib += pss.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        (mappings, kib)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port's description of itself suffices for links.
#[test]
fn a_port_has_links() {
    let spec: PortSpec = "loopback".parse().unwrap();
    let port = spec.open(&PortOptions::default()).unwrap();
    let info: &PortInfo = port.info();
    let config = LinksConfig::of(info, 512);
    assert_eq!((config.queues, config.max_frame), (1, info.max_frame()));
}
