//! Goal: what processes are bound to, and who answers for all of them, is one thing on a host, and ends with its process.

use crate::member::{Starter, config, wait_for};
use stack::registry::{Beside, Binding, Claim, Clash, Family, Registry, RequestKey};
use std::net::IpAddr;
use std::time::Duration;

const PORT: u32 = 0x0106_1b58;

fn binding() -> Binding {
    Binding { service: PORT, addr: None, family: Family::V4, reuse: false }
}

pub fn bind(registry: &Registry) -> Result<Claim, Clash> {
    registry.bind(&binding(), Beside::Clashing)
}

#[test]
fn a_port_is_free_when_its_process_leaves() {
    let config = config();
    let [first, second] = [(); 2].map(|()| Registry::join(&config).unwrap());
    let claim = bind(&first).unwrap();
    assert_eq!(bind(&second), Err(Clash::Taken));
    first.release(claim);
    let claim = bind(&second).unwrap();
    let here: IpAddr = "10.0.0.1".parse().unwrap();
    let listener = |of: &Registry| of.listener(PORT, here, &|run| of.lives(run));
    assert_eq!(listener(&first), None);
    second.listen(claim).unwrap();
    assert_eq!(listener(&first), second.runs().first().copied());
    drop(second);
    assert_eq!(listener(&first), None);
    bind(&first).unwrap();
}

// Goal: nobody has to notice the end of a process that was killed.
#[test]
fn a_port_is_free_when_its_process_is_killed() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let (mut other, ..) = Starter::joined(&config);
    assert_eq!(other.order("bind"), "bound");
    assert_eq!(bind(&registry), Err(Clash::Taken));
    other.kill();
    // The kernel frees its names a little later.
    wait_for(|| bind(&registry).is_ok());
}

#[test]
fn the_keeper_is_one_that_serves_and_says_so() {
    let config = config();
    let [first, second, third] = [(); 3].map(|()| Registry::join(&config).unwrap());
    assert_eq!(first.keeper(), None);
    assert!(!first.still_serves() && !second.still_serves());
    second.serve_cm(true);
    third.serve_cm(true);
    let run = |of: &Registry| of.runs().first().copied();
    assert!(third.still_serves(), "there is none yet");
    assert_eq!(first.keeper(), run(&second).min(run(&third)), "the first that serves");
    let (keeper, other) = if first.keeper() == run(&second) { (second, third) } else { (third, second) };
    assert!(!other.still_serves() && other.keeper() == run(&keeper));
    // As long as it says so, nobody else is.
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(30));
        assert!(!keeper.still_serves() && !other.still_serves());
    }
    // It stops.
    let changes = other.changes();
    wait_for(|| other.still_serves());
    assert_eq!(other.keeper(), run(&other));
    assert!(other.changes() > changes && first.keeper() == run(&other));
    // It goes on, and is not the keeper any more.
    assert!(!keeper.still_serves() && keeper.keeper() == run(&other));
    other.serve_cm(false);
    assert!(keeper.still_serves() && keeper.keeper() == run(&keeper));
    drop(keeper);
    assert_eq!(first.keeper(), None);
}

// Goal: a repeated request finds whom the first went to also when he who knew it has ended.
#[test]
fn where_a_request_went_outlives_who_noted_it() {
    let config = config();
    let [first, second] = [(); 2].map(|()| Registry::join(&config).unwrap());
    let key = |id| RequestKey::new(first.birth(), "10.0.0.9".parse().unwrap(), false, id);
    let run = first.runs()[0];
    second.note_request(key(7), run);
    drop(second);
    assert_eq!((first.request(key(7)), first.request(key(8))), (Some(run), None));
}

// Goal: who lives is said to live, however often and by however many one asks.
#[test]
fn who_lives_is_said_to_live() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let (_other, _, index) = Starter::joined(&config);
    let run = crate::member::run(index);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..20_000 {
                    let said = registry.holder_of(run);
                    assert!(registry.lives(run), "{n}: {said:?}, then not");
                }
            });
        }
    });
}
