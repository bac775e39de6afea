//! Goal: processes that start, stop, fork, are killed or go mad never have one run twice, and those that live are in one
//! registry.

use process::{Fork, PATIENCE, become_user};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use stack::registry::{
    Call, Called, Came, Holder, Mark, Registry, RegistryConfig, RegistryError, Run, TakeCalls,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

mod process;

const CHILD: &str = "ROCE_REGISTRY_TEST_CHILD";
/// The user without rights.
const NOBODY: u32 = 65534;

/// A configuration of its own for a test: nobody else's names.
fn config() -> RegistryConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let space = format!("roce-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    // Only in tests about patience does somebody lose it.
    RegistryConfig { space, patience: PATIENCE, ..RegistryConfig::default() }
}

/// The other process: does what it is told, line by line, until its stdin ends.
#[test]
fn child() {
    let Ok(job) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = job.split('|').collect();
    let millis = |word: &str| Duration::from_millis(word.parse().unwrap());
    let config = RegistryConfig {
        space: words[0].into(),
        runs: words[1].parse().unwrap(),
        rest: millis(words[2]),
        patience: millis(words[3]),
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

fn hex(guid: [u8; 8]) -> String {
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
struct Starter {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Starter {
    fn new(config: &RegistryConfig) -> Self {
        let RegistryConfig { space, runs, rest, patience } = config;
        let job = format!("{space}|{runs}|{}|{}", rest.as_millis(), patience.as_millis());
        let mut child = Command::new(std::env::current_exe().unwrap())
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
    fn joined(config: &RegistryConfig) -> (Self, String, usize) {
        let mut starter = Self::new(config);
        starter.tell("join");
        let (guid, run) = starter.hear_joined();
        (starter, guid, run)
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended: {:?}", self.child.wait());
        line.trim_end().into()
    }

    /// GUID and run.
    fn hear_joined(&mut self) -> (String, usize) {
        let said = self.hear();
        let words: Vec<&str> = said.split(' ').collect();
        assert!(words[0] == "joined", "{said}");
        (words[1].into(), words[2].parse().unwrap())
    }

    fn order(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }

    /// A fork that lives on when this is killed.
    fn fork(&mut self, how: &str) -> Fork {
        Fork::of(self.order(how).strip_prefix("fork ").unwrap().parse().unwrap())
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(mut self) {
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

fn run(index: usize) -> Run {
    Run::all().nth(index).unwrap()
}

#[test]
fn two_first_starts_at_once_make_one_registry() {
    let config = config();
    let mut guids = BTreeSet::new();
    for round in 0..100 {
        let mut both = [Starter::new(&config), Starter::new(&config)];
        both.iter_mut().for_each(|one| one.tell("join"));
        let [(a, run_a), (b, run_b)] = both.each_mut().map(Starter::hear_joined);
        assert_eq!(a, b, "round {round}: two registries");
        assert_ne!(run_a, run_b, "round {round}");
        assert!(guids.insert(a), "round {round}: the registry of those that were killed");
        both.into_iter().for_each(Starter::kill);
    }
}

#[test]
fn many_that_start_and_end_at_once_are_in_one_registry() {
    // In threads, which meet each other more closely than processes do.
    const THREADS: usize = 6;
    for round in 0..100 {
        let config = config();
        let barrier = Barrier::new(THREADS);
        let joined: Vec<(String, Run)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let registry = Registry::join(&config).unwrap();
                        let found = (hex(registry.node_guid()), registry.runs()[0]);
                        barrier.wait();
                        found
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let guids: BTreeSet<_> = joined.iter().map(|(guid, _)| guid).collect();
        let runs: BTreeSet<_> = joined.iter().map(|(_, run)| run).collect();
        assert_eq!((guids.len(), runs.len()), (1, THREADS), "round {round}");
    }
}

#[test]
fn sixty_four_processes_start_at_once() {
    let config = config();
    let mut all: Vec<Starter> = (0..64).map(|_| Starter::new(&config)).collect();
    all.iter_mut().for_each(|one| one.tell("join"));
    let joined: Vec<_> = all.iter_mut().map(Starter::hear_joined).collect();
    let guids: BTreeSet<_> = joined.iter().map(|(guid, _)| guid).collect();
    let runs: BTreeSet<_> = joined.iter().map(|(_, run)| *run).collect();
    assert_eq!((guids.len(), runs.len()), (1, 64));
    // All runs: eight for each.
    let mut leased = runs;
    for one in &mut all {
        for _ in 1..8 {
            let said = one.order("lease");
            let run = said.strip_prefix("leased ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
            assert!(leased.insert(run), "run {run} was leased twice");
        }
        let said = one.order("lease");
        assert!(said.contains("this process has 8 runs"), "{said}");
    }
    assert_eq!(leased.len(), Run::COUNT);
    let error = Registry::join(&config).unwrap_err();
    assert!(matches!(error, RegistryError::Exhausted { own: Run::COUNT }), "{error}");
}

#[test]
fn a_killed_process_leaves_its_run_which_rests() {
    // As many runs as it takes, and a rest that no machine outlasts.
    let config = RegistryConfig { runs: 3, rest: Duration::from_secs(1 << 20), ..config() };
    let keeper = Registry::join(&config).unwrap();
    let (first, guid, freed) = Starter::joined(&config);
    assert_eq!(guid, hex(keeper.node_guid()));
    assert_eq!(keeper.holder_of(run(freed)).unwrap(), Holder::Process(first.pid()));
    assert_eq!(keeper.holder_of(keeper.runs()[0]).unwrap(), Holder::Ourselves);
    first.kill();
    assert_eq!(keeper.holder_of(run(freed)).unwrap(), Holder::Nobody);
    // The third run was never used: it comes before the one that rests.
    let (second, _, fresh) = Starter::joined(&config);
    assert!(fresh != freed && fresh != keeper.runs()[0].index());
    let mark = |index| keeper.used_runs().into_iter().find(|(of, _)| of.index() == index).unwrap().1.mark;
    assert!(matches!((mark(freed), mark(fresh)), (Mark::Ended(_), Mark::Held(_))));
    // Now there is only that one.
    let (third, _, again) = Starter::joined(&config);
    assert_eq!(again, freed);
    // Of two that rest it is the one that rests longer.
    third.kill();
    assert_eq!(Starter::new(&config).order("join"), format!("joined {guid} {freed}"));
    second.kill();
    drop(keeper);
}

#[test]
fn the_longest_rest_counts_where_none_was_long_enough() {
    let config = RegistryConfig { runs: 4, rest: Duration::from_secs(1 << 20), ..config() };
    let keeper = Registry::join(&config).unwrap();
    let mut others: Vec<_> = (0..3).map(|_| Starter::joined(&config)).collect();
    let order: Vec<usize> = others.iter().map(|(_, _, run)| *run).collect();
    for (other, _, _) in &mut others {
        assert_eq!(other.order("leave"), "left");
    }
    let again: Vec<_> = others
        .iter_mut()
        .map(|(other, _, _)| {
            other.tell("join");
            other.hear_joined().1
        })
        .collect();
    assert_eq!(again, order);
    drop(keeper);
}

#[test]
fn others_answer_while_a_member_is_stopped() {
    let config = config();
    let mut members: Vec<_> = (0..20).map(|_| Starter::joined(&config)).collect();
    let last = members.pop().unwrap();
    for (member, _, _) in &members {
        member.signal(Signal::STOP);
    }
    for _ in 0..5 {
        let (_another, guid, _) = Starter::joined(&config);
        assert_eq!(guid, last.1);
    }
    // When all are stopped nobody is let in, and the error says whom to continue.
    last.0.signal(Signal::STOP);
    let impatient = RegistryConfig { patience: Duration::from_millis(100), ..config.clone() };
    let error = Registry::join(&impatient).unwrap_err();
    let RegistryError::NoAnswer { pids } = &error else { panic!("{error}") };
    assert!(!pids.is_empty() && members.iter().any(|(member, _, _)| pids.contains(&member.pid())), "{error}");
    // One that is continued answers.
    let waits = std::thread::spawn(move || Registry::join(&config).map(|joined| hex(joined.node_guid())));
    members[0].0.signal(Signal::CONT);
    assert_eq!(waits.join().unwrap().unwrap(), last.1);
}

#[test]
fn a_fork_keeps_nothing_of_its_parent() {
    let config = RegistryConfig { runs: 1, ..config() };
    let (mut parent, guid, only) = Starter::joined(&config);
    let fork = parent.fork("fork");
    parent.kill();
    let (_successor, other, again) = Starter::joined(&config);
    assert!(guid != other && only == again);
    assert!(fork.lives());
}

#[test]
fn a_dead_process_counts_as_dead_though_another_has_its_descriptors() {
    let config = RegistryConfig { runs: 2, ..config() };
    let (mut parent, guid, kept) = Starter::joined(&config);
    let fork = parent.fork("fork without handlers");
    let (mut watcher, _, _) = Starter::joined(&config);
    parent.kill();
    assert_eq!(watcher.order(&format!("holder of {kept}")), "Dead");
    watcher.kill();
    // It is no member, but the kernel still has its name.
    let (mut successor, other, another) = Starter::joined(&config);
    assert!(guid != other && another != kept);
    let said = successor.order("lease");
    assert!(said.starts_with("error") && said.contains("all 2 runs"), "{said}");
    drop(fork);
    let start = Instant::now();
    while successor.order("lease") != format!("leased {kept}") {
        assert!(start.elapsed() < PATIENCE, "the run is not free");
    }
}

#[test]
fn a_fork_can_do_nothing_and_may_join() {
    let config = config();
    let mut registry = Some(Registry::join(&config).unwrap());
    let (ours, us) = (registry.as_ref().unwrap().runs()[0], std::process::id());
    let right = process::in_fork(|| {
        // The fork's copy.
        let copy = registry.take().unwrap();
        let refused = matches!(copy.lease_run(), Err(RegistryError::Forked))
            && matches!(copy.holder_of(ours), Err(RegistryError::Forked))
            && copy.runs().is_empty();
        let own = Registry::join(&config).unwrap();
        let joined = own.node_guid() == copy.node_guid() && own.runs()[0] != ours;
        let held = own.holder_of(ours).unwrap() == Holder::Process(us);
        drop(copy);
        refused && joined && held
    });
    assert!(right);
    let registry = registry.unwrap();
    assert_eq!(registry.holder_of(ours).unwrap(), Holder::Ourselves);
    let mark = registry.used_runs().into_iter().find(|(run, _)| *run == ours).unwrap().1.mark;
    assert!(matches!(mark, Mark::Held(_)), "the fork did not end our lease: {mark:?}");
    let (_another, guid, _) = Starter::joined(&config);
    assert_eq!(guid, hex(registry.node_guid()));
}

#[test]
fn a_member_that_writes_to_all_of_the_memory_gives_nobody_a_run_twice() {
    let config = RegistryConfig { runs: 16, ..config() };
    let (mut mad, guid, mads) = Starter::joined(&config);
    let keeper = Registry::join(&config).unwrap();
    let mut held = BTreeSet::from([mads, keeper.runs()[0].index()]);
    let mut others: Vec<(Starter, Vec<usize>)> = Vec::new();
    let join = |held: &mut BTreeSet<usize>| {
        let (other, theirs, run) = Starter::joined(&config);
        assert_eq!(theirs, guid, "all are in one registry");
        assert!(held.insert(run), "run {run} was leased twice");
        (other, vec![run])
    };
    let full = || {
        let error = Registry::join(&config).unwrap_err();
        assert!(matches!(error, RegistryError::Exhausted { own: 16 }), "{error}");
    };
    while held.len() < config.runs {
        assert_eq!(mad.order("scribble"), "scribbled");
        assert!(!keeper.is_sound());
        let (mut other, mut runs) = join(&mut held);
        if held.len() < config.runs && others.len().is_multiple_of(2) {
            assert_eq!(mad.order("scribble"), "scribbled");
            let said = other.order("lease");
            runs.push(said.strip_prefix("leased ").unwrap().parse().unwrap());
            assert!(held.insert(runs[1]), "{said}");
        }
        others.push((other, runs));
    }
    assert_eq!(mad.order("scribble"), "scribbled");
    full();
    // And while it goes on without a pause.
    assert_eq!(mad.order("scribble on"), "scribbles");
    for _ in 0..10 {
        let (other, runs) = others.remove(0);
        other.kill();
        runs.iter().for_each(|run| assert!(held.remove(run)));
        others.extend(runs.iter().map(|_| join(&mut held)));
    }
    full();
}

/// The text of a name: as every version has it.
fn name(config: &RegistryConfig, rest: &str) -> SocketAddrUnix {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("{}/{uid}/{rest}", config.space).as_bytes()).unwrap()
}

fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn connect(to: &SocketAddrUnix) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, to).unwrap();
    socket
}

/// A socket that listens, of whoever calls.
fn listen(at: &SocketAddrUnix) -> OwnedFd {
    let socket = socket();
    // A process that another test starts has all of our descriptors for a moment.
    wait_for(|| rustix::net::bind(&socket, at).is_ok());
    rustix::net::listen(&socket, 100).unwrap();
    socket
}

/// Has a thread of another user take names, if we may. The kernel says of a name whose thread it was.
fn squat(config: &RegistryConfig, names: &[String]) -> Option<Vec<OwnedFd>> {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/registry.rs: it needs root");
        return None;
    }
    std::thread::scope(|scope| {
        let squatter = scope.spawn(|| {
            let names: Vec<_> = names.iter().map(|rest| name(config, rest)).collect();
            become_user(NOBODY);
            names.iter().map(listen).collect()
        });
        Some(squatter.join().unwrap())
    })
}

#[test]
fn names_that_another_user_has_taken_are_passed_over() {
    let config = RegistryConfig { runs: 8, ..config() };
    let mut taken: Vec<String> = (0..7).map(|run| format!("run/{run}")).collect();
    taken.extend((0..7).map(|birth| format!("birth/{birth}")));
    let Some(squatters) = squat(&config, &taken) else { return };
    let registry = Registry::join(&config).unwrap();
    assert_eq!(registry.runs(), [run(7)]);
    assert!(registry.foreign_names() >= 7);
    assert_eq!(registry.holder_of(run(0)).unwrap(), Holder::Foreign(NOBODY));
    let error = registry.lease_run().unwrap_err();
    assert!(matches!(error, RegistryError::Squatted { uid: NOBODY, foreign: 7, own: 1 }), "{error}");
    assert!(error.to_string().contains("user 65534 holds 7 names"), "{error}");
    drop((registry, squatters));
    // All names of births.
    let all: Vec<String> = (0..8).map(|birth| format!("birth/{birth}")).collect();
    let _squatters = squat(&config, &all).unwrap();
    let error = Registry::join(&config).unwrap_err();
    assert!(matches!(error, RegistryError::Squatted { uid: NOBODY, foreign: 8, .. }), "{error}");
}

#[test]
fn another_user_who_connects_is_not_heard() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/registry.rs: it needs root");
        return;
    }
    let to = name(&config, &format!("run/{}", registry.runs()[0]));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(NOBODY);
            let stranger = connect(&to);
            let _ = rustix::net::send(&stranger, &join_request(1), rustix::net::SendFlags::NOSIGNAL);
            let mut bytes = [0; 64];
            let got = rustix::io::read(&stranger, &mut bytes);
            assert!(matches!(got, Ok(0) | Err(rustix::io::Errno::CONNRESET)), "{got:?}");
        });
    });
    assert_eq!(registry.counts().joins, 0);
    wait_for(|| registry.counts().foreign == 1);
}

/// Keeps the calls of others.
#[derive(Default)]
struct Kept(Mutex<Vec<Call>>);

impl TakeCalls for Kept {
    fn take(&self, call: Call) -> Option<Call> {
        self.0.lock().unwrap().push(call);
        None
    }
}

impl Kept {
    fn next(&self) -> Call {
        wait_for(|| !self.0.lock().unwrap().is_empty());
        self.0.lock().unwrap().remove(0)
    }
}

fn hear(call: &Call) -> (Vec<u8>, usize) {
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

#[test]
fn a_call_reaches_who_takes_calls_at_the_run() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let (mut other, _, theirs) = Starter::joined(&config);
    let ours = registry.runs()[0];
    // Nobody takes calls: it ends.
    let Called::Open(refused) = registry.call(run(theirs)).unwrap() else { panic!("it lives") };
    assert_eq!(refused.pid, other.pid());
    assert_eq!(hear(&refused), (Vec::new(), 0));
    assert!(matches!(registry.call(ours).unwrap(), Called::Nobody(Holder::Ourselves)));
    let nobodys = Run::all().find(|run| *run != ours && run.index() != theirs).unwrap();
    assert!(matches!(registry.call(nobodys).unwrap(), Called::Nobody(Holder::Nobody)));
    // We do: who is called speaks first, and descriptors come along.
    let kept = Arc::new(Kept::default());
    registry.take_calls(Some(Arc::clone(&kept) as Arc<dyn TakeCalls>));
    other.tell(&format!("call {}", ours.index()));
    let call = kept.next();
    assert_eq!((call.pid, registry.counts().calls), (other.pid(), 1));
    let mut bytes = [0; 8];
    assert!(matches!(call.connection.receive(&mut bytes), Came::Nothing));
    assert!(call.connection.send(b"hello", &[call.connection.as_fd(); 2]).unwrap());
    assert_eq!(other.hear(), "heard hello with 2");
    // Others join meanwhile, and one that says more than the request is refused: that is no request.
    let (_another, _, _) = Starter::joined(&config);
    let eager = connect(&name(&config, &format!("run/{ours}")));
    let more = [link_request(1), vec![0]].concat();
    rustix::io::write(&eager, &more).unwrap();
    let mut reply = [0; 64];
    assert_eq!((rustix::io::read(&eager, &mut reply).unwrap(), reply[8]), (32, 3));
    // And one of another release is told so.
    let unlike = connect(&name(&config, &format!("run/{ours}")));
    rustix::io::write(&unlike, &link_request(9)).unwrap();
    assert_eq!(rustix::io::read(&unlike, &mut reply).unwrap(), 32);
    assert_eq!((reply[8], reply[12]), (2, 1));
    assert_eq!(registry.counts().calls, 1);
    other.kill();
    assert!(matches!(registry.call(run(theirs)).unwrap(), Called::Nobody(Holder::Nobody)));
}

/// A request for a link, of a release with this version.
fn link_request(version: u32) -> Vec<u8> {
    [&b"ROCEJOIN"[..], &2u32.to_ne_bytes(), &version.to_ne_bytes()].concat()
}

fn wait_for(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

/// A request to join, of a release with this version.
fn join_request(version: u32) -> Vec<u8> {
    [&b"ROCEJOIN"[..], &1u32.to_ne_bytes(), &version.to_ne_bytes()].concat()
}

#[test]
fn a_name_at_which_a_birth_is_never_finished_keeps_nobody_for_ever() {
    let config = config();
    // Who has it does not listen: it has not begun.
    let begun = socket();
    rustix::net::bind(&begun, &name(&config, "birth/0")).unwrap();
    drop(Registry::join(&config).unwrap());
    // Who has it listens, and is alive.
    rustix::net::listen(&begun, 100).unwrap();
    let impatient = RegistryConfig { patience: Duration::from_millis(100), ..config.clone() };
    let error = Registry::join(&impatient).unwrap_err();
    let us = std::process::id();
    assert!(matches!(error, RegistryError::Unfinished { pid } if pid == us), "{error}");
    let waits = std::thread::spawn({
        let config = config.clone();
        move || Registry::join(&config).map(drop)
    });
    drop(begun);
    waits.join().unwrap().unwrap();
    // Who has it is a fork of one that is dead.
    let mut dead = Starter::new(&config);
    dead.tell("hold birth/0");
    assert_eq!(dead.hear(), "held");
    let fork = dead.fork("fork without handlers");
    dead.kill();
    let first = Registry::join(&config).unwrap();
    assert!(fork.lives());
    let (_second, guid, _) = Starter::joined(&config);
    assert_eq!(guid, hex(first.node_guid()));
}

#[test]
fn connections_that_say_nothing_or_nonsense_keep_nobody_out() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let to = name(&config, &format!("run/{}", registry.runs()[0]));
    let guid = hex(registry.node_guid());
    let silent: Vec<OwnedFd> = (0..200).map(|_| connect(&to)).collect();
    let (_first, theirs, _) = Starter::joined(&config);
    assert_eq!(theirs, guid);
    for len in [1, 15, 16, 17, 4096] {
        let garbage = connect(&to);
        rustix::io::write(&garbage, &vec![0xa5; len]).unwrap();
        assert_eq!(rustix::io::read(&garbage, &mut [0; 64]).unwrap_or(0), 0, "{len} bytes");
    }
    // Of a kind that is not known yet: it is told so.
    let mut unknown = join_request(1);
    unknown[8..12].copy_from_slice(&77u32.to_ne_bytes());
    let asks = connect(&to);
    rustix::io::write(&asks, &unknown).unwrap();
    let mut reply = [0; 64];
    assert_eq!(rustix::io::read(&asks, &mut reply).unwrap(), 32);
    assert_eq!((&reply[..8], reply[8]), (&b"ROCEJOIN"[..], 3));
    let (_second, theirs, _) = Starter::joined(&config);
    assert_eq!(theirs, guid);
    assert!(registry.counts().refused > 100, "{:?}", registry.counts());
    drop(silent);
}

#[test]
fn descriptors_that_come_along_are_not_received() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let config = config();
    let (member, guid, run) = Starter::joined(&config);
    let to = name(&config, &format!("run/{run}"));
    // To close such a socket takes as long as its linger time, until its peer has read what was sent: never.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut unread = Vec::new();
    // So that the last one who has it is the member.
    member.signal(Signal::STOP);
    for _ in 0..40 {
        let mut slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        unread.push(listener.accept().unwrap());
        rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(3600))).unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 1 << 16]).is_ok() {}
        let client = connect(&to);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [slow.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = join_request(1);
        let slices = [std::io::IoSlice::new(&bytes)];
        rustix::net::sendmsg(&client, &slices, &mut control, SendFlags::empty()).unwrap();
    }
    member.signal(Signal::CONT);
    let (_another, theirs, _) = Starter::joined(&config);
    assert_eq!(theirs, guid);
}

#[test]
fn a_member_of_another_release_is_told_from_ours() {
    let config = config();
    let serve = |answer: Vec<u8>| {
        let listener = listen(&name(&config, "run/3"));
        std::thread::spawn(move || {
            while let Ok(client) = rustix::net::accept(&listener) {
                let mut bytes = [0; 64];
                match rustix::io::read(&client, &mut bytes) {
                    Ok(16) => drop(rustix::io::write(&client, &answer)),
                    // Not a request: the end.
                    Ok(1) => break,
                    _ => {}
                }
            }
        })
    };
    let end = |thread: std::thread::JoinHandle<()>| {
        rustix::io::write(connect(&name(&config, "run/3")), &[0]).unwrap();
        thread.join().unwrap();
    };
    let other = serve([&b"ROCEJOIN"[..], &1u32.to_ne_bytes(), &9u32.to_ne_bytes(), &[0; 16]].concat());
    let error = Registry::join(&config).unwrap_err();
    let us = std::process::id();
    assert!(matches!(error, RegistryError::Unlike { theirs: 9, pid } if pid == us), "{error}");
    end(other);
    // Welcomes without memory, and nonsense.
    for answer in
        [[&b"ROCEJOIN"[..], &1u32.to_ne_bytes(), &1u32.to_ne_bytes(), &[0; 16]].concat(), vec![0; 100]]
    {
        let mad = serve(answer);
        let error = Registry::join(&config).unwrap_err();
        assert!(matches!(error, RegistryError::NoAnswer { .. }), "{error}");
        end(mad);
    }
    // And we tell those of another release.
    let registry = Registry::join(&config).unwrap();
    let asks = connect(&name(&config, &format!("run/{}", registry.runs()[0])));
    rustix::io::write(&asks, &join_request(9)).unwrap();
    let mut reply = [0; 64];
    assert_eq!(rustix::io::read(&asks, &mut reply).unwrap(), 32);
    assert_eq!((reply[8], reply[12]), (2, 1));
    wait_for(|| registry.counts().unlike == 1);
}

#[test]
fn descriptors_that_are_short_are_told() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let mut seen = BTreeMap::new();
    for limit in 3..24 {
        let mut starter = Starter::new(&config);
        let said = starter.order(&format!("join with {limit}"));
        let what = if said.starts_with("joined") { "joined" } else { "error" };
        assert!(what == "joined" || said.contains("ulimit -n"), "limit {limit}: {said}");
        *seen.entry(what).or_insert(0) += 1;
    }
    assert!(seen["joined"] > 3 && seen["error"] > 1, "{seen:?}");
    drop(registry);
}
