//! Processes that end, stop and fork.

use crate::member::{Member, Other, config, wait_for};
use rustix::process::Signal;
use sim::host_liar::Liar;
use stack::port::host::Reach;
use stack::registry::{Registry, RegistryConfig};
use std::os::fd::AsFd;
use std::time::Duration;

#[test]
fn what_a_killed_process_had_sent_arrives_before_its_end_is_told() {
    let config = config();
    let mut here = Member::new(&config, 1);
    for _ in 0..20 {
        let mut other = Other::new(&config);
        let (pid, run) = (other.pid(), other.run);
        // Exchange a frame, so that the link exists and its slots are in use.
        let before = here.received();
        other.tell(&format!("send {} 1", here.run()));
        here.receive(before + 1);
        assert_eq!(other.hear(), "sent");
        let said = other.order(&format!("fill {}", here.run()));
        let filled: usize = said.strip_prefix("filled ").unwrap().parse().unwrap();
        assert!(filled >= 32, "{said}");
        other.kill();
        wait_for(|| here.links.counts().up == 0);
        let ended = here.next_ended();
        assert_eq!(here.received(), before + 1 + filled);
        assert_eq!((ended.pid(), ended.runs()[0].index()), (pid, run));
        drop(ended);
        assert!(here.queues[0].next_ended().is_none(), "it is told once");
    }
    assert_eq!(here.links.counts().ended, 20);
}

// Goal: a socket lives on while its descriptor lies in a socket, also in its own peer's, which nobody empties.
#[test]
fn a_process_that_leaves_its_socket_in_ours_is_dead_all_the_same() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let run = here.run();
    assert!(crate::process::in_fork(|| {
        let liar = Liar::linked(&config, run);
        liar.send(&[0], &[liar.socket.as_fd()]);
        true
    }));
    drop(here.next_ended());
    assert_eq!(here.links.counts().up, 0);
}

// Goal: a process that is about to end says so on its links while it still runs; what it had sent arrives.
#[test]
fn a_process_ends_its_links_before_it_ends() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut other = Other::new(&config);
    let (pid, run) = (other.pid(), other.run);
    assert_eq!(other.order(&format!("send {} 5", here.run())), "sent");
    assert_eq!(other.order("bye"), "said bye");
    wait_for(|| here.links.counts().up == 0);
    here.receive(5);
    let ended = here.next_ended();
    assert_eq!((ended.pid(), ended.runs()[0].index()), (pid, run));
    drop(ended);
    assert!(other.order("counts").starts_with("up"), "it still runs");
    other.kill();
}

#[test]
fn a_process_that_is_killed_under_load_harms_nobody_else() {
    let config = config();
    let mut here = Other::new(&config);
    let mut neighbour = Other::new(&config);
    for round in 1..=10 {
        let mut victim = Other::new(&config);
        assert_eq!(victim.order(&format!("flood {}", here.run)), "floods");
        assert_eq!(here.order("take 500"), "taken");
        neighbour.tell(&format!("receive {}", 2000 * round));
        assert_eq!(here.order(&format!("send {} 2000", neighbour.run)), "sent");
        let (pid, run) = (victim.pid(), victim.run);
        victim.kill();
        assert_eq!(here.order("ended"), format!("ended {pid} {run}"));
        assert_eq!(neighbour.hear(), "received");
    }
    let counts = here.order("counts");
    assert!(counts.starts_with("up 1 made 11 ended 10 refused 0"), "{counts}");
}

#[test]
fn frames_to_a_link_that_has_ended_are_counted_and_its_run_is_asked_anew() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let other = Other::new(&config);
    let run = other.run;
    let link = here.link_to(run);
    other.kill();
    wait_for(|| here.links.counts().up == 0);
    // The end of the link is not taken yet, so its number is not reused.
    assert_eq!(here.try_send(link, 5), 5);
    assert_eq!(here.links.counts().tx_ended, 5);
    wait_for(|| here.reach(run) == Reach::Vacant);
    let next = Other::new(&config);
    let new = here.link_to(next.run);
    assert_ne!(new, link);
    drop(here.next_ended());
    next.kill();
    drop(here.next_ended());
    let last = Other::new(&config);
    assert!([link, new].contains(&here.link_to(last.run)), "numbers are used again");
}

// Goal: a process that has just begun is not taken for the ended process that had its numbers before.
#[test]
fn a_run_is_vacant_until_a_new_process_has_it() {
    let config = RegistryConfig { runs: 2, rest: Duration::ZERO, ..config() };
    let mut here = Member::new(&config, 1);
    let mut other = Registry::join(&config).unwrap();
    let run = other.runs()[0].index();
    for _ in 0..50 {
        drop(other);
        wait_for(|| here.reach(run) == Reach::Vacant);
        other = Registry::join(&config).unwrap();
        assert_eq!(here.reach(run), Reach::Asked, "no matter for how long that would be believed");
    }
}

#[test]
fn a_process_that_is_stopped_is_not_dead() {
    let config = config();
    let (mut a, mut b) = (Other::new(&config), Other::new(&config));
    a.tell(&format!("send {} 10", b.run));
    assert_eq!(b.order("receive 10"), "received");
    assert_eq!(a.hear(), "sent");
    b.stop();
    let said = a.order(&format!("fill {}", b.run));
    let filled: usize = said.strip_prefix("filled ").unwrap().parse().unwrap();
    assert_eq!(a.order(&format!("stalled {}", b.run)), "stalled");
    assert_eq!(a.order(&format!("fill {}", b.run)), "filled 0");
    // Another process connects and sends meanwhile.
    let mut c = Other::new(&config);
    c.tell(&format!("send {} 1000", a.run));
    assert_eq!(a.order("receive 1000"), "received");
    assert_eq!(c.hear(), "sent");
    assert_eq!(a.order("counts"), "up 2 made 2 ended 0 refused 0");
    b.signal(Signal::CONT);
    assert_eq!(b.order(&format!("receive {}", 10 + filled)), "received");
    // A process without a link yet is stopped: the call is repeated until it continues.
    b.stop();
    c.tell(&format!("send {} 10", b.run));
    b.signal(Signal::CONT);
    assert_eq!(b.order(&format!("receive {}", 20 + filled)), "received");
    assert_eq!(c.hear(), "sent");
}

#[test]
fn a_fork_has_nothing_of_its_parent() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut other = Other::new(&config);
    other.tell(&format!("send {} 3", here.run()));
    here.receive(3);
    assert_eq!(other.hear(), "sent");
    // The forked child lives on, and keeps no link open.
    let fork = other.fork();
    let (pid, run) = (other.pid(), other.run);
    other.kill();
    let ended = here.next_ended();
    assert_eq!((ended.pid(), ended.runs()[0].index()), (pid, run));
    assert!(fork.lives());
    drop(ended);

    // The child's copy of a queue sends and receives nothing.
    let mut other = Other::new(&config);
    let link = here.link_to(other.run);
    let before = here.links.stats();
    let right = crate::process::in_fork(|| {
        let sent = here.try_send(link, 3) == 3;
        let unable = matches!(here.queues[0].arm(), stack::port::Armed::Unable);
        let nobody = here.reach(other.run) == Reach::Unlinked;
        sent && unable && nobody && here.poll() == 0 && here.queues[0].next_ended().is_none()
    });
    assert!(right);
    assert_eq!(here.links.stats(), before);
    here.send(other.run, 5);
    assert_eq!(other.order("receive 5"), "received");
}

// Goal: a shard that polls late sees every link that was made and ended meanwhile, although other links were made since.
#[test]
fn links_end_when_they_are_dropped_and_are_not_missed() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let (mut other, mut third) = (Other::new(&config), Other::new(&config));
    here.send(other.run, 7);
    let (pid, run) = (std::process::id(), here.run());
    drop(here);
    assert_eq!(third.order(&format!("send {} 1", other.run)), "sent");
    assert_eq!(other.order("ended"), format!("ended {pid} {run}"));
    assert_eq!(other.order("receive 8"), "received");
}
