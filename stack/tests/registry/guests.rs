//! Processes of users whom the owner of a host admits.

use crate::looking::reader;
use crate::member::{Starter, config, hear, hex, wait_for};
use crate::process::PATIENCE;
use crate::strangers::{NOBODY, squat};
use stack::registry::{
    Call, Called, Holder, Registry, RegistryConfig, RegistryError, Resident, Run, Said, TakeCalls,
};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Two users without rights.
const GUEST: u32 = 65533;
const OTHER: u32 = 65532;

/// A configuration of the owner, who admits two users, and that of their processes. We are the owner: root.
fn configs() -> Option<(RegistryConfig, RegistryConfig)> {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/registry: it needs root");
        return None;
    }
    let owners = RegistryConfig { rest: Duration::ZERO, admit: vec![GUEST, OTHER], ..config() };
    let guests = RegistryConfig { owner: Some(0), admit: Vec::new(), ..owners.clone() };
    Some((owners, guests))
}

/// Says hello to whoever calls.
struct Hello;

impl TakeCalls for Hello {
    fn take(&self, call: Call) -> Option<Call> {
        assert_eq!(call.uid, GUEST);
        assert!(call.connection.send(b"hello", &[]).unwrap());
        None
    }
}

#[test]
fn a_guest_is_a_member_as_any_other_until_it_ends() {
    let Some((owners, guests)) = configs() else { return };
    let (owners, guests) = (RegistryConfig { runs: 2, ..owners }, RegistryConfig { runs: 2, ..guests });
    let registry = Registry::join(&owners).unwrap();
    let mut guest = Starter::of_user(&guests, GUEST);
    guest.tell("join");
    let (guid, run) = guest.hear_joined();
    assert_eq!(guid, hex(registry.node_guid()), "one host");
    // Each sees the other one.
    let (ours, its) = (registry.runs()[0], Run::at(run).unwrap());
    assert_eq!(registry.holder_of(its).unwrap(), Holder::Process(guest.pid()));
    assert_eq!(registry.resident(its), Resident::Guest);
    assert_eq!(
        guest.order(&format!("holder of {}", ours.index())),
        format!("Process({})", std::process::id())
    );
    // Each calls the other one.
    registry.take_calls(Some(Arc::new(Hello)));
    assert_eq!(guest.order(&format!("call {}", ours.index())), "heard hello with 0");
    let Called::Open(call) = registry.call(its).unwrap() else { panic!("it is there") };
    assert_eq!(call.uid, GUEST);
    // It takes no calls: the end of the connection.
    assert_eq!(hear(&call), (Vec::new(), 0));
    // And whoever looks sees both.
    let look = reader(&owners).look(PATIENCE).unwrap();
    assert!(look.foreign == 0 && look.has_memory);
    let of = |run| look.seen.iter().find(|seen| seen.runs == [run]).unwrap();
    assert_eq!((of(its).uid, of(ours).uid, &of(its).said), (Some(GUEST), Some(0), &Said::Unknown));
    // Its run is free when it ends.
    let error = registry.lease_run().unwrap_err();
    assert!(matches!(error, RegistryError::Exhausted { own: 2 }), "{error}");
    guest.kill();
    wait_for(|| registry.holder_of(its).unwrap() == Holder::Nobody);
    assert_eq!((registry.resident(its), registry.lease_run().unwrap()), (Resident::Nobody, its));
}

#[test]
fn who_is_not_admitted_gets_nothing_and_is_told_what_the_owner_has_to_set() {
    let Some((owners, guests)) = configs() else { return };
    let nobodys = RegistryConfig { admit: Vec::new(), ..owners };
    let registry = Registry::join(&nobodys).unwrap();
    let (_another, ..) = Starter::joined(&nobodys);
    let mut guest = Starter::of_user(&guests, GUEST);
    let said = guest.order("join");
    assert!(said.starts_with("error the processes of user 0 do not admit this user"), "{said}");
    assert!(said.contains("ROCE_ADMIT") && said.contains(&std::process::id().to_string()), "{said}");
    let counts = registry.counts();
    assert!(counts.foreign > 0 && counts.joins == 1, "{counts:?}");
    assert_eq!(registry.used_runs().len(), 2, "it has no run");
}

#[test]
fn a_guest_makes_no_registry() {
    let Some((owners, guests)) = configs() else { return };
    // Names that a third user has, who answers nothing, are passed over.
    let all: Vec<String> = (0..4).map(|run| format!("run/{run}")).collect();
    let few = RegistryConfig { runs: 5, ..guests };
    let _squatters = squat(&few, &all).unwrap();
    let mut guest = Starter::of_user(&few, GUEST);
    let said = guest.order("join");
    assert!(said.starts_with("error no process of user 0 has the port host open"), "{said}");
    // The owner's first process does.
    let registry = Registry::join(&RegistryConfig { runs: 5, ..owners }).unwrap();
    assert_eq!(registry.runs()[0].index(), 4);
    // And a guest has no right to that which would keep the owner waiting.
    let (owners, _) = configs().unwrap();
    let owners = RegistryConfig { admit: vec![NOBODY], ..owners };
    let births: Vec<String> = (0..7).map(|birth| format!("birth/{birth}")).collect();
    let _squatters = squat(&owners, &births).unwrap();
    assert_eq!(Registry::join(&owners).unwrap().runs().len(), 1);
}

// Goal: all processes of the owner are in one registry, also where some admit nobody, and the others only guests are left to ask.
#[test]
fn the_owners_processes_stay_together() {
    let Some((owners, guests)) = configs() else { return };
    let (first, guid, _) = Starter::joined(&owners);
    let mut guest = Starter::of_user(&guests, GUEST);
    guest.tell("join");
    assert_eq!(guest.hear_joined().0, guid);
    first.kill();
    // The guest is left of the registry. It lets in whom it knows: its own user, and the owner.
    let mut same = Starter::of_user(&guests, GUEST);
    same.tell("join");
    assert_eq!(same.hear_joined().0, guid);
    let said = Starter::of_user(&guests, OTHER).order("join");
    assert!(said.starts_with("error no process of user 0"), "{said}");
    let (second, again, _) = Starter::joined(&owners);
    assert_eq!(again, guid, "those whom it admits have the registry");
    second.kill();
    // One that admits nobody sees no member, and makes another one.
    let strict = RegistryConfig { admit: Vec::new(), ..owners.clone() };
    let (_third, new, _) = Starter::joined(&strict);
    assert_ne!(new, guid);
    for config in [&strict, &owners, &owners, &owners] {
        assert_eq!(Starter::joined(config).1, new, "the owner's processes are asked before guests");
    }
}

#[test]
fn a_guest_takes_nothing_from_another_one_that_it_does_not_know() {
    let Some((owners, guests)) = configs() else { return };
    let registry = Registry::join(&owners).unwrap();
    let mut both = [GUEST, OTHER].map(|user| Starter::of_user(&guests, user));
    let runs = both.each_mut().map(|guest| {
        guest.tell("join");
        guest.hear_joined().1
    });
    let [one, other] = &mut both;
    assert_eq!(one.order(&format!("holder of {}", runs[1])), format!("Foreign({OTHER})"));
    assert_eq!(one.order("bind"), "bound");
    assert_eq!(other.order("bind"), "Taken", "it may live");
    assert!(registry.lives(Run::at(runs[0]).unwrap()), "the owner knows it");
}
