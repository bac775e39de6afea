//! Processes of other users, those that say nothing or nonsense, and members that go mad.

use crate::by_hand::{connect, join_request, listen, name};
use crate::member::{Starter, config, hex, run, wait_for};
use crate::process::become_user;
use rustix::process::Signal;
use stack::registry::{Counts, Holder, Registry, RegistryConfig, RegistryError, VERSION};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The user without rights.
pub const NOBODY: u32 = 65534;

/// Has a thread of another user take names, if we may. The kernel says of a name whose thread it was.
pub fn squat(config: &RegistryConfig, names: &[String]) -> Option<Vec<OwnedFd>> {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/registry: it needs root");
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
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/registry: it needs root");
        return;
    }
    let to = name(&config, &format!("run/{}", registry.runs()[0]));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(NOBODY);
            // To join, a link, statistics, and something unknown.
            for kind in 1..=4u32 {
                let stranger = connect(&to);
                let mut request = join_request(VERSION);
                request[8..12].copy_from_slice(&kind.to_ne_bytes());
                let _ = rustix::net::send(&stranger, &request, rustix::net::SendFlags::NOSIGNAL);
                let mut bytes = [0; 64];
                let got = rustix::io::read(&stranger, &mut bytes);
                assert!(matches!(got, Ok(0) | Err(rustix::io::Errno::CONNRESET)), "{kind}: {got:?}");
            }
        });
    });
    wait_for(|| registry.counts().foreign == 4);
    let Counts { joins, calls, asked, .. } = registry.counts();
    assert_eq!((joins, calls, asked), (0, 0, 0));
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
    let mut unknown = join_request(VERSION);
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
        let bytes = join_request(VERSION);
        let slices = [std::io::IoSlice::new(&bytes)];
        rustix::net::sendmsg(&client, &slices, &mut control, SendFlags::empty()).unwrap();
    }
    member.signal(Signal::CONT);
    let (_another, theirs, _) = Starter::joined(&config);
    assert_eq!(theirs, guid);
}
