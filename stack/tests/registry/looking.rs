//! Goal: who looks from outside sees every member, whatever it says, waits for none of them long, and is none itself.

use crate::by_hand::{connect, listen, name};
use crate::member::{Starter, config, run, wait_for};
use crate::process::{PATIENCE, become_user};
use crate::services::bind;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use stack::registry::{
    Admitted, Call, Look, Reader, Registry, RegistryConfig, Run, Said, Seen, TakeCalls, VERSION,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Tells everybody the same.
struct Tells(&'static [u8]);

impl TakeCalls for Tells {
    fn take(&self, call: Call) -> Option<Call> {
        assert_eq!(call.connection.send_some(self.0).unwrap(), self.0.len());
        None
    }
}

pub fn reader(config: &RegistryConfig) -> Reader {
    Reader::new(&config.space, config.runs, Admitted::new(config.owner, &config.admit).unwrap())
}

/// Looks, and waits for who does not answer as long as a test may take.
fn look(config: &RegistryConfig) -> Look {
    reader(config).look(PATIENCE).unwrap()
}

fn of(look: &Look, run: Run) -> &Seen {
    look.seen.iter().find(|seen| seen.runs.contains(&run)).unwrap_or_else(|| panic!("{run}: {look:?}"))
}

/// Stops a process, and waits until each of its threads has seen that.
fn stop(of: &Starter) {
    of.signal(Signal::STOP);
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap();
    wait_for(|| tasks().all(|task| is_stopped(task.unwrap())));
}

#[test]
fn every_member_is_seen_with_what_it_says_and_what_is_known_of_it() {
    let config = config();
    assert!(look(&config).seen.is_empty());
    let [first, second] = [(); 2].map(|()| Registry::join(&config).unwrap());
    first.lease_run().unwrap();
    first.take_questions(Some(Arc::new(Tells(b"statistics"))));
    let claim = bind(&second).unwrap();
    second.listen(claim).unwrap();
    second.serve_cm(true);
    assert_eq!(first.keeper(), Some(second.runs()[0]));
    let (other, _, others) = Starter::joined(&config);
    let used = first.used_runs();
    let look = look(&config);
    assert!(look.has_memory && look.foreign == 0 && look.seen.len() == 3, "{look:?}");
    let telling = of(&look, first.runs()[0]);
    assert_eq!((telling.pid, &telling.runs), (std::process::id(), &first.runs()));
    assert_eq!(telling.said, Said::Text(b"statistics".to_vec()));
    assert!(
        telling.age.is_some_and(|age| age < PATIENCE) && telling.listens.is_empty() && !telling.is_keeper
    );
    let listening = of(&look, second.runs()[0]);
    assert_eq!((&listening.said, listening.listens.len()), (&Said::Unknown, 1));
    assert!(listening.is_keeper && listening.listens[0].service & 0xffff == 7000);
    assert_eq!((of(&look, run(others)).pid, &of(&look, run(others)).said), (other.pid(), &Said::Unknown));
    // It was counted by the registry's thread, behind the hand-over.
    wait_for(|| first.counts().asked == 1);
    assert_eq!(first.used_runs(), used, "who looks leases nothing");
    drop(second);
    let gone = reader(&config).look(PATIENCE).unwrap();
    assert_eq!(gone.seen.len(), 2, "{gone:?}");
}

// Goal: a process that is stopped costs one wait, and one place in its queue, however often somebody looks.
#[test]
fn a_process_that_is_stopped_is_waited_for_once() {
    // Few names, so that many looks take little time.
    let config = RegistryConfig { runs: 16, ..config() };
    let (mut stopped, _, at) = Starter::joined(&config);
    assert!(stopped.order("lease").starts_with("leased"));
    let registry = Registry::join(&config).unwrap();
    registry.take_questions(Some(Arc::new(Tells(b"{}"))));
    stop(&stopped);
    let mut reader = reader(&config);
    let first = reader.look(Duration::from_millis(50)).unwrap();
    let silent = of(&first, run(at));
    assert_eq!((silent.pid, silent.runs.len(), &silent.said), (stopped.pid(), 2, &Said::Nothing));
    assert!(first.seen.len() == 2 && first.has_memory && silent.age.is_some(), "{first:?}");
    // More often than there is room in its queue; and each would take as long as a test may.
    for _ in 0..1100 {
        let next = reader.look(PATIENCE).unwrap();
        assert_eq!(of(&next, run(at)).said, Said::Nothing);
    }
    drop(connect(&name(&config, &format!("run/{at}"))));
    stopped.signal(Signal::CONT);
    wait_for(|| stack_says(&config, at) == Said::Unknown);
    let mut said = Said::Nothing;
    while said == Said::Nothing {
        said = of(&reader.look(PATIENCE).unwrap(), run(at)).said.clone();
    }
    assert_eq!(said, Said::Unknown, "the question of before is answered");
    // One that ends while a question is open is gone, and so is the memory that it gave.
    stop(&stopped);
    reader.look(Duration::ZERO).unwrap();
    stopped.kill();
    let mut left = 2;
    while left > 1 {
        left = reader.look(PATIENCE).unwrap().seen.len();
    }
}

fn stack_says(config: &RegistryConfig, at: usize) -> Said {
    of(&look(config), run(at)).said.clone()
}

#[test]
fn where_all_are_stopped_they_are_there_all_the_same() {
    let config = config();
    let (stopped, _, at) = Starter::joined(&config);
    stop(&stopped);
    let look = reader(&config).look(Duration::from_millis(20)).unwrap();
    assert!(!look.has_memory && look.seen.len() == 1, "{look:?}");
    let seen = of(&look, run(at));
    assert_eq!((seen.pid, &seen.said, seen.age), (stopped.pid(), &Said::Nothing, None));
}

#[test]
fn names_of_another_user_are_counted_and_not_seen() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a test of stack/tests/registry: it needs root");
        return;
    }
    let config = config();
    let _squatter = std::thread::scope(|scope| {
        let squatter = scope.spawn(|| {
            let name = name(&config, "run/3");
            become_user(65534);
            listen(&name)
        });
        squatter.join().unwrap()
    });
    let look = look(&config);
    assert!(look.seen.is_empty() && look.foreign == 1, "{look:?}");
}

/// What a process says that has gone mad, once it was asked.
type Says = fn(&OwnedFd);

fn say(to: &OwnedFd, bytes: &[u8]) -> bool {
    rustix::net::send(to, bytes, SendFlags::NOSIGNAL).is_ok_and(|sent| sent == bytes.len())
}

/// An answer of this kind, with this behind it.
fn answer(kind: u32, version: u32, rest: &[u8]) -> Vec<u8> {
    [&b"ROCEJOIN"[..], &kind.to_ne_bytes(), &version.to_ne_bytes(), rest].concat()
}

/// That these are its runs.
fn runs(first: u16, second: u16) -> Vec<u8> {
    let others = [0xff; 12];
    answer(4, VERSION, &[&first.to_ne_bytes()[..], &second.to_ne_bytes(), &others].concat())
}

/// Each liar listens at the run of its index, from 100 on.
const LIARS: [(&str, Says, Option<Said>); 12] = [
    ("says nothing", |to| _ = rustix::net::recv(to, &mut [0; 1], RecvFlags::empty()), Some(Said::Nothing)),
    ("closes at once", |_| {}, Some(Said::Nothing)),
    ("never ends", |to| while say(to, &[b'x'; 4096]) {}, Some(Said::Nonsense)),
    (
        "never ends what it began well",
        |to| {
            say(to, &runs(103, 0xffff));
            while say(to, &[b' '; 4096]) {}
        },
        Some(Said::Nonsense),
    ),
    ("says too little", |to| _ = say(to, &runs(104, 0xffff)[..31]), Some(Said::Nonsense)),
    ("has runs that are none", |to| _ = say(to, &runs(105, 512)), Some(Said::Nonsense)),
    ("has no run", |to| _ = say(to, &runs(0xffff, 0xffff)), Some(Said::Nonsense)),
    ("lets nobody join", |to| _ = say(to, &answer(1, VERSION, &[0; 16])), Some(Said::Nonsense)),
    ("is of another release", |to| _ = say(to, &answer(9, 77, b"")), Some(Said::Unlike(77))),
    (
        "sends descriptors",
        |to| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let (mut control, fds) = (SendAncillaryBuffer::new(&mut space), [to.as_fd()]);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let bytes = runs(109, 0xffff);
            let _ = rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        },
        Some(Said::Nonsense),
    ),
    (
        "begins, and says no more",
        |to| {
            say(to, &runs(110, 0xffff));
            say(to, b"{\"version\":1");
            // Until it is closed.
            let _ = rustix::net::recv(to, &mut [0; 1], RecvFlags::empty());
        },
        Some(Said::Nothing),
    ),
    // Those of the process itself: one line for both.
    ("is beside another one", |to| _ = say(to, &runs(110, 111)), None),
];

/// Answers everybody at the run of a liar, until the test ends.
fn lie(config: &RegistryConfig, index: usize) {
    let (_, says, _) = LIARS[index];
    let listener = listen(&name(config, &format!("run/{}", 100 + index)));
    std::thread::spawn(move || {
        loop {
            let Ok(client) = rustix::net::accept(&listener) else { return };
            std::thread::spawn(move || {
                // The request.
                let _ = rustix::net::recv(&client, &mut [0; 16], RecvFlags::empty());
                says(&client);
            });
        }
    });
}

#[test]
fn liars_are_called_what_they_are_and_keep_nobody_waiting() {
    let config = config();
    let mut registry = Registry::join(&config).unwrap();
    let is_taken = |registry: &Registry| (100..100 + LIARS.len()).contains(&registry.runs()[0].index());
    while is_taken(&registry) {
        registry = Registry::join(&config).unwrap();
    }
    registry.take_questions(Some(Arc::new(Tells(b"statistics"))));
    (0..LIARS.len()).for_each(|index| lie(&config, index));
    let mut reader = reader(&config);
    for round in 0..3 {
        // Long enough for all who say something, also beside others.
        let look = reader.look(Duration::from_secs(3)).unwrap();
        let honest = of(&look, registry.runs()[0]);
        assert_eq!((&honest.said, &honest.runs), (&Said::Text(b"statistics".to_vec()), &registry.runs()));
        assert!(look.has_memory);
        for (index, (what, _, said)) in LIARS.iter().enumerate() {
            let seen = of(&look, run(100 + index));
            assert!(said.as_ref().is_none_or(|said| seen.said == *said), "{what}, {round}: {seen:?}");
            assert_eq!(seen.pid, std::process::id());
        }
    }
}
