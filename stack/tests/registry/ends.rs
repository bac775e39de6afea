//! Processes end, are killed and fork: what becomes of their runs.

use crate::member::{Starter, config, hex, run};
use crate::process::{self, PATIENCE};
use stack::registry::{Holder, Mark, Registry, RegistryConfig, RegistryError};
use std::time::{Duration, Instant};

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
