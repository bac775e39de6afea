//! Links with processes of a user who is admitted.

use crate::member::{Member, Other, config, wait_for};
use stack::port::host::Reach;
use stack::registry::RegistryConfig;
use std::io::Write as _;

/// A user without rights.
const GUEST: u32 = 65533;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let _ = writeln!(std::io::stderr(), "SKIPPED a test of stack/tests/host_links: it needs root");
    }
    is_root
}

#[test]
fn frames_pass_both_ways_between_two_users_and_an_end_is_told() {
    if !is_root() {
        return;
    }
    let config = RegistryConfig { admit: vec![GUEST], ..config() };
    let mut here = Member::new(&config, 2);
    for round in 1..=3 {
        let mut guest = Other::guest(&config, 1, GUEST);
        let (pid, run) = (guest.pid(), guest.run);
        // It calls, or is called.
        if round == 2 {
            here.link_to(run);
        }
        let before = here.received();
        guest.tell(&format!("send {} 3000", here.run()));
        here.receive(before + 3000);
        assert_eq!(guest.hear(), "sent");
        guest.tell("receive 3000");
        here.send(run, 3000);
        assert_eq!(guest.hear(), "received");
        // It sleeps, and is woken by another user's process; and so is this one.
        guest.tell("sleep");
        assert_eq!(guest.hear(), "sleeps");
        here.send(run, 1);
        assert_eq!(guest.hear(), "woke");
        assert_eq!(guest.order("counts"), "up 1 made 1 ended 0 refused 0");
        guest.kill();
        wait_for(|| here.links.counts().up == 0);
        let ended = here.next_ended();
        assert_eq!((ended.pid(), ended.runs()[0].index()), (pid, run));
    }
    assert_eq!(here.links.counts().refused, 0);
}

#[test]
fn who_is_not_admitted_by_a_process_has_no_link_with_it() {
    if !is_root() {
        return;
    }
    let admits = RegistryConfig { admit: vec![GUEST], ..config() };
    let strict = RegistryConfig { admit: Vec::new(), ..admits.clone() };
    let (mut here, mut other) = (Member::new(&strict, 1), Member::new(&admits, 1));
    let mut guest = Other::guest(&admits, 1, GUEST);
    assert_eq!(guest.order(&format!("send {} 100", other.run())), "sent");
    other.receive(100);
    assert_eq!(here.reach(guest.run), Reach::Asked);
    wait_for(|| here.reach(guest.run) == Reach::Unlinked);
    assert!(guest.order("counts").starts_with("up 1 made 1 "));
    assert_eq!((here.links.counts().made, other.links.counts().made), (0, 1));
}
