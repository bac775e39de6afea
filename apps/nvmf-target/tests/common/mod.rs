//! A target, each core on a thread of its own, and a host, connected by a pair of ports.

#![allow(dead_code, reason = "each test file uses only some of it")]

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvmf::config::{Hosts, Namespace, Port, Ports, Settings, Subsystem};
use nvmf::{Nqn, Target};
use nvmf_target::host::Host;
use nvmf_target::store::{BlockingStorage, Direct, File, FileError, Memory, Opening, Store, Stores, Workers};
use nvmf_target::target::{Config, Core, Counters, Usage};
use verbs::port::fault::{self, Met, Plan};
use verbs::port::{self, PortOptions};
use verbs::{Context, DeviceConfig, Drive, Pd};

pub const SUBSYSTEM: &str = "nqn.2024-01.test.blocks:ram0";
/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Timeout of every wait: far longer than needed, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Further addresses of the hosts' device.
pub const OTHERS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3)), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 4))];

pub fn nqn(text: &str) -> Nqn {
    text.parse().expect("an NQN")
}
pub fn host_name(n: u32) -> Nqn {
    nqn(&format!("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-{n:012x}"))
}

/// Configuration of a target and its link.
#[derive(Clone)]
pub struct Setup {
    pub settings: Settings,
    pub config: Config,
    pub cores: usize,
    /// Size of the namespace in bytes.
    pub bytes: usize,
    pub mtu: usize,
    /// The file of the namespace; `None`: it is in memory, unless `blocks` is set.
    pub file: Option<PathBuf>,
    /// Whether the file is used without the page cache; `None`: the default.
    pub direct: Option<Direct>,
    /// Storage of the test's own for the namespace, instead.
    pub blocks: Option<Arc<dyn BlockingStorage>>,
    /// Faults of the link, in each direction.
    pub faults: Plan,
    /// Whether idle cores sleep, as in the program. Then [`View::usage`] is not updated.
    pub sleeps: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let config = Config { receives: 512, buffers: 4 << 20, ..Config::default() };
        let settings = Settings::default();
        let (bytes, faults) = (8 << 20, Plan::CLEAN);
        let sleeps = false;
        Self {
            settings,
            config,
            cores: 1,
            bytes,
            mtu: 4200,
            file: None,
            direct: None,
            blocks: None,
            faults,
            sleeps,
        }
    }
}

/// What tests see of the target, and the hosts' device.
pub struct View {
    pub at: SocketAddr,
    pub target: Target,
    pub stores: Arc<Stores>,
    pub pd: Arc<Pd>,
    pub counters: Vec<Arc<Counters>>,
    usage: Vec<Mutex<Usage>>,
    stop: AtomicBool,
    /// If set, hosts that take nothing of what is sent to them are disconnected after 1 ms.
    pub impatient: AtomicBool,
    /// Faults that happened on the link.
    pub met: Arc<Met>,
    /// The hosts' device.
    pub context: Context,
}

impl View {
    /// A host on the hosts' device.
    pub fn host(&self, n: u32) -> Host<'_> {
        Host::new(&self.context, &Drive::Embedded, host_name(n), [n as u8; 16]).unwrap()
    }
    /// What all cores have in use together.
    pub fn usage(&self) -> Usage {
        let each = self.usage.iter().map(|usage| *usage.lock().unwrap());
        each.fold(Usage::default(), |a, b| Usage {
            connections: a.connections + b.connections,
            commands: a.commands + b.commands,
            buffers: a.buffers + b.buffers,
            capsules: a.capsules + b.capsules,
            receives: a.receives + b.receives,
        })
    }
    /// The counters of all cores.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        self.counters.iter().flat_map(|counters| counters.iter().collect::<Vec<_>>()).collect()
    }
    /// A counter, summed over the cores.
    pub fn count(&self, name: &str) -> u64 {
        let of =
            |counters: &Counters| counters.iter().find(|(known, _)| *known == name).expect("a counter").1;
        self.counters.iter().map(|counters| of(counters)).sum()
    }
    /// Makes turns of the host until `holds` returns true. Panics with `what` after [`PATIENCE`].
    pub fn until(&self, host: &mut Host<'_>, what: &str, mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            host.turn();
            std::thread::yield_now();
            assert!(since.elapsed() < PATIENCE, "{what}: {:?} {:?}", self.usage(), self.counted());
        }
    }
    /// Waits until the target holds nothing for any host. Posted receives do not count: the next capsules use them.
    pub fn until_nothing_is_left(&self, host: &mut Host<'_>) {
        let is_free = |usage: Usage| Usage { receives: 0, ..usage } == Usage::default();
        self.until(host, "something is left", || {
            is_free(self.usage()) && self.target.controllers() == (0, 0)
        });
    }
}

/// Ends the target when dropped, even if the test panics.
struct Stop<'v>(&'v AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A device on a port, with the address 10.77.0.`last`. Tests poll its shards.
pub fn device(port: Box<dyn port::Port>, last: u8, shards: usize) -> Context {
    let addr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, last));
    let drive = Drive::Embedded;
    let mut addrs = vec![(addr, 24)];
    if last == 2 {
        // The hosts' device: some hosts connect from other addresses.
        addrs.extend(OTHERS.map(|other| (other, 24)));
    }
    let config = DeviceConfig::new(port).addrs(addrs).shards(shards).drive(drive);
    Context::open(config).unwrap()
}

/// Runs `test` while a target runs.
pub fn with_target(setup: &Setup, test: impl FnOnce(&View)) {
    let options = |queues| PortOptions { queues, mtu: setup.mtu, ..PortOptions::default() };
    let (a, b) =
        port::pair_with(&options(setup.cores), &options(1), Arc::new(|queue, _, queues| queue % queues));
    let (b, met) = match setup.faults {
        Plan::CLEAN => (b, Arc::default()),
        faults => fault::counted(b, faults, faults, 1),
    };
    let context = device(a, 1, setup.cores);
    let at: SocketAddr = "10.77.0.1:4420".parse().unwrap();
    let pd = Arc::new(context.alloc_pd().unwrap());
    let stores = Stores::default();
    let workers = || Arc::new(Workers::new(4).unwrap());
    let of_file = |setup: &Setup| match &setup.file {
        None => Store::Memory(Arc::new(Memory::new(&pd, setup.bytes).unwrap())),
        Some(path) => {
            let size = Some(setup.bytes as u64);
            let opening = Opening { size, direct: setup.direct, block: BLOCK as u32, ..Opening::default() };
            let file = File::open_with(path, &opening).unwrap();
            assert_eq!(file.size().unwrap(), setup.bytes as u64);
            Store::File(Arc::new(file), workers())
        }
    };
    let other = setup.blocks.clone().map(|blocks| Store::Other(blocks, workers()));
    let backend = stores.add(other.unwrap_or_else(|| of_file(setup)));
    let stores = Arc::new(stores);
    let target = Target::new(setup.settings.clone()).unwrap();
    target.add_port(Port { id: 1, address: at }).unwrap();
    let namespace = Namespace {
        nsid: 1,
        backend,
        blocks: (setup.bytes / BLOCK) as u64,
        block_shift: BLOCK.trailing_zeros() as u8,
        uuid: [1; 16],
        nguid: [2; 16],
        read_only: false,
        deallocates: Some(512),
    };
    let (nqn, serial) = (nqn(SUBSYSTEM), "42".try_into().unwrap());
    let subsystem =
        Subsystem { nqn, serial, ports: Ports::All, hosts: Hosts::Any, namespaces: vec![namespace] };
    target.add_subsystem(subsystem).unwrap();

    let mut cores: Vec<Core<'_>> = (0..setup.cores)
        .map(|shard| {
            let config = Config { shard, ..setup.config.clone() };
            Core::new(&context, pd.clone(), target.clone(), stores.clone(), config).unwrap()
        })
        .collect();
    let (first, others) = cores.split_first_mut().unwrap();
    others.iter().for_each(|other| first.share_with(other));
    assert_eq!(first.listen(1, at).unwrap(), at);
    let view = View {
        at,
        target,
        stores,
        pd,
        counters: cores.iter().map(Core::counters).collect(),
        usage: cores.iter().map(|_| Mutex::default()).collect(),
        stop: AtomicBool::new(false),
        impatient: AtomicBool::new(false),
        met,
        context: device(b, 2, 1),
    };
    std::thread::scope(|scope| {
        let stop = Stop(&view.stop);
        for (core, usage) in cores.iter_mut().zip(&view.usage) {
            let (stop, impatient) = (&view.stop, &view.impatient);
            scope.spawn(move || {
                if setup.sleeps {
                    return core.run(|| stop.load(Ordering::Relaxed)).unwrap();
                }
                while !stop.load(Ordering::Relaxed) {
                    if impatient.load(Ordering::Relaxed) {
                        core.set_patience(Duration::from_millis(1));
                    }
                    if !core.turn().unwrap() {
                        *usage.lock().unwrap() = core.usage();
                        std::thread::yield_now();
                    }
                }
            });
        }
        test(&view);
        drop(stop);
    });
}

/// Whether a file can be used without the page cache, in blocks of [`BLOCK`] bytes. If not, prints that tests are skipped.
pub fn goes_direct(path: &Path) -> bool {
    let opening =
        Opening { size: Some(8192), direct: Some(Direct::Yes), block: BLOCK as u32, ..Opening::default() };
    match File::open_with(path, &opening) {
        Ok(file) => {
            assert!(file.is_direct());
            true
        }
        Err(e @ (FileError::NoDirect(_) | FileError::DirectBlock { .. })) => {
            skipped("files without the page cache", &e);
            false
        }
        Err(e) => panic!("{e}"),
    }
}
/// Prints that tests of `what` are skipped, and why.
pub fn skipped(what: &str, why: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
}

/// A block device on a file, made by the kernel's loop driver.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `None` if this user or this machine cannot make one; prints that tests are skipped.
    pub fn new(file: &Path) -> Option<Self> {
        let run = std::process::Command::new("losetup").arg("--find").arg("--show").arg(file).output();
        match run {
            Ok(run) if run.status.success() => {
                Some(Self(String::from_utf8(run.stdout).unwrap().trim().into()))
            }
            Ok(run) => {
                skipped("block devices", &String::from_utf8_lossy(&run.stderr).trim());
                None
            }
            Err(e) => {
                skipped("block devices", &format!("losetup cannot be run ({e})"));
                None
            }
        }
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A file system in memory, unmounted when dropped.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts one. `None` if this user may not mount; prints that tests are skipped.
    pub fn new(at: &Path, options: &str) -> Option<Self> {
        let run =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).output();
        match run {
            Ok(run) if run.status.success() => Some(Self(at.into())),
            Ok(run) => {
                skipped("a full file system", &String::from_utf8_lossy(&run.stderr).trim());
                None
            }
            Err(e) => {
                skipped("a full file system", &e);
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A running program, killed when dropped.
pub struct Running(pub std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A temporary directory, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roce-nvmf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    pub fn path(&self) -> PathBuf {
        self.0.join("disk")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
