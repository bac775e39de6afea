//! A process that joins: in another process, it does what it is told, line by line.

use crate::by_hand::{listen, name};
use crate::process::{self, Fork, PATIENCE};
use crate::services::bind;
use rustix::process::{Pid, Signal, kill_process};
use stack::registry::{Call, Called, Came, Registry, RegistryConfig, Run};
use std::io::{BufReader, Read as _, Seek as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "ROCE_REGISTRY_TEST_CHILD";
/// The user that the other process becomes.
const USER: &str = "ROCE_REGISTRY_TEST_USER";

/// A configuration of its own for a test: nobody else's names.
pub fn config() -> RegistryConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let space = format!("roce-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    // Only in tests about patience does somebody lose it.
    RegistryConfig { space, patience: PATIENCE, ..RegistryConfig::default() }
}

/// The other process: does what it is told, line by line, until its stdin ends.
pub fn child() {
    let Ok(job) = std::env::var(CHILD) else { return };
    if let Ok(user) = std::env::var(USER) {
        process::become_user(user.parse().unwrap());
    }
    let words: Vec<&str> = job.split('|').collect();
    let millis = |word: &str| Duration::from_millis(word.parse().unwrap());
    let config = RegistryConfig {
        space: words[0].into(),
        runs: words[1].parse().unwrap(),
        rest: millis(words[2]),
        patience: millis(words[3]),
        owner: words[4].parse().ok(),
        admit: words[5].split(',').filter_map(|user| user.parse().ok()).collect(),
        ..RegistryConfig::default()
    };
    let mut registry: Option<Registry> = None;
    println!("\nchild is ready");
    for line in std::io::stdin().lines().map(Result::unwrap) {
        println!("{}", obey(&line, &config, &mut registry));
    }
    // Without any destructor, as a program that calls exit.
    std::process::exit(0);
}

fn obey(order: &str, config: &RegistryConfig, registry: &mut Option<Registry>) -> String {
    let said = match order {
        "join" => Registry::join(config).map(|joined| {
            let said = format!("joined {} {}", hex(joined.node_guid()), joined.runs()[0].index());
            *registry = Some(joined);
            said
        }),
        "lease" => registry.as_ref().unwrap().lease_run().map(|run| format!("leased {}", run.index())),
        "leave" => {
            *registry = None;
            Ok("left".into())
        }
        "fork" => Ok(format!("fork {}", process::fork())),
        "fork without handlers" => Ok(format!("fork {}", process::fork_without_handlers())),
        "scribble" => {
            scribble();
            Ok("scribbled".into())
        }
        _ => return obey_more(order, config, registry),
    };
    said.unwrap_or_else(|error| format!("error {error}"))
}

fn obey_more(order: &str, config: &RegistryConfig, registry: &mut Option<Registry>) -> String {
    if let Some(rest) = order.strip_prefix("hold ") {
        std::mem::forget(listen(&name(config, rest)));
        return "held".into();
    }
    if order == "scribble on" {
        std::thread::spawn(|| {
            loop {
                scribble();
            }
        });
        return "scribbles".into();
    }
    if order == "bind" {
        return bind(registry.as_ref().unwrap())
            .map_or_else(|clash| format!("{clash:?}"), |_| "bound".into());
    }
    if let Some(index) = order.strip_prefix("holder of ") {
        let run = run(index.parse().unwrap());
        return format!("{:?}", registry.as_ref().unwrap().holder_of(run).unwrap());
    }
    if let Some(index) = order.strip_prefix("call ") {
        let Called::Open(call) = registry.as_ref().unwrap().call(run(index.parse().unwrap())).unwrap() else {
            return "nobody".into();
        };
        let (bytes, fds) = hear(&call);
        return format!("heard {} with {fds}", String::from_utf8(bytes).unwrap());
    }
    let limit = order.strip_prefix("join with ").unwrap_or_else(|| panic!("{order}")).parse().unwrap();
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let less = rustix::process::Rlimit { current: Some(limit), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, less).unwrap();
    let said = obey("join", config, registry);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    said
}

pub fn hex(guid: [u8; 8]) -> String {
    guid.map(|byte| format!("{byte:02x}")).concat()
}

/// Writes nonsense to all of the memory, through the descriptor that every member has.
fn scribble() {
    let memory =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).find(|path| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:roce-registry"))
        });
    let mut file = std::fs::File::options().write(true).open(memory.unwrap()).unwrap();
    let len = std::fs::File::metadata(&file).unwrap().len() as usize;
    let mut nonsense = vec![0; len];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut nonsense).unwrap();
    file.rewind().unwrap();
    file.write_all(&nonsense).unwrap();
}

/// A process that joins; killed when dropped.
pub struct Starter {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Starter {
    pub fn new(config: &RegistryConfig) -> Self {
        Self::with(config, |command| command)
    }

    /// One of another user, which we may make as root.
    pub fn of_user(config: &RegistryConfig, user: u32) -> Self {
        Self::with(config, |command| command.env(USER, user.to_string()))
    }

    fn with(config: &RegistryConfig, more: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let RegistryConfig { space, runs, rest, patience, owner, admit, .. } = config;
        let owner = owner.map_or_else(String::new, |owner| owner.to_string());
        let admit: Vec<String> = admit.iter().map(u32::to_string).collect();
        let (rest, patience, admit) = (rest.as_millis(), patience.as_millis(), admit.join(","));
        let job = format!("{space}|{runs}|{rest}|{patience}|{owner}|{admit}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = more(&mut command)
            .args(["child", "--exact", "--nocapture"])
            .env(CHILD, job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut starter = Self { child, orders, said };
        while starter.hear() != "child is ready" {}
        starter
    }

    /// One that has joined.
    pub fn joined(config: &RegistryConfig) -> (Self, String, usize) {
        let mut starter = Self::new(config);
        starter.tell("join");
        let (guid, run) = starter.hear_joined();
        (starter, guid, run)
    }

    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let said = process::hear(&mut self.said);
        said.unwrap_or_else(|| panic!("it ended: {:?}", self.child.wait()))
    }

    /// GUID and run.
    pub fn hear_joined(&mut self) -> (String, usize) {
        let said = self.hear();
        let words: Vec<&str> = said.split(' ').collect();
        assert!(words[0] == "joined", "{said}");
        (words[1].into(), words[2].parse().unwrap())
    }

    pub fn order(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }

    /// A fork that lives on when this is killed.
    pub fn fork(&mut self, how: &str) -> Fork {
        Fork::of(self.order(how).strip_prefix("fork ").unwrap().parse().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(index: usize) -> Run {
    Run::all().nth(index).unwrap()
}

pub fn wait_for(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

pub fn hear(call: &Call) -> (Vec<u8>, usize) {
    let mut bytes = [0; 64];
    loop {
        match call.connection.receive(&mut bytes) {
            Came::Nothing => std::thread::yield_now(),
            Came::Message(len, fds) => break (bytes[..len].to_vec(), fds.len()),
            Came::End => break (Vec::new(), 0),
            Came::NoRoom => panic!("there is room"),
        }
    }
}
