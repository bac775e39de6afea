//! Processes join at once, beside members that are stopped, of another release, or not done; and with few descriptors.

use crate::by_hand::{connect, join_request, listen, name, socket};
use crate::member::{Starter, config, hex, wait_for};
use rustix::process::Signal;
use stack::registry::{Registry, RegistryConfig, RegistryError, Run, VERSION};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::time::Duration;

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
        [[&b"ROCEJOIN"[..], &1u32.to_ne_bytes(), &VERSION.to_ne_bytes(), &[0; 16]].concat(), vec![0; 100]]
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
    assert_eq!((reply[8], reply[12]), (2, VERSION as u8));
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
