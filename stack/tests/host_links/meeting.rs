//! Processes connect to each other.

use crate::member::{Member, Other, config, number_in, wait_for};
use stack::config::RX_BURST;
use stack::port::host::Reach;
use stack::registry::Run;

const ONE: &str = "up 1 made 1 ended 0 refused 0";

#[test]
fn two_meet_and_frames_pass_both_ways() {
    let config = config();
    let (mut a, mut b) = (Other::new(&config), Other::new(&config));
    a.tell(&format!("send {} 5000", b.run));
    assert_eq!(b.order("receive 5000"), "received");
    assert_eq!(a.hear(), "sent");
    b.tell(&format!("send {} 5000", a.run));
    assert_eq!(a.order("receive 5000"), "received");
    assert_eq!(b.hear(), "sent");
    assert_eq!([a.order("counts"), b.order("counts")], [ONE, ONE]);
}

#[test]
fn shards_of_unlike_number_meet() {
    let config = config();
    for (one, other) in [(1, 3), (4, 1), (2, 3)] {
        let (mut a, mut b) = (Other::with(&config, one), Other::with(&config, other));
        let runs = format!("{} {}", a.run, b.run);
        for one in [&mut a, &mut b] {
            one.tell(&format!("exchange 2000 {runs}"));
        }
        assert_eq!([a.hear(), b.hear()], ["exchanged", "exchanged"]);
    }
}

#[test]
fn of_two_that_begin_at_once_comes_one_link() {
    let config = config();
    for round in 0..50 {
        let mut both = Other::start(&config, 1, 2);
        let order = format!("exchange 100 {} {}", both[0].run, both[1].run);
        both.iter_mut().for_each(|one| one.tell(&order));
        for one in &mut both {
            assert_eq!(one.hear(), "exchanged");
            assert_eq!(one.order("counts"), ONE, "round {round}");
        }
    }
}

#[test]
fn a_process_with_several_runs_has_one_link() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut other = Other::new(&config);
    let ours: Vec<usize> = (0..3).map(|_| here.registry.lease_run().unwrap().index()).collect();
    assert_eq!(here.reach(ours[1]), Reach::Asked);
    wait_for(|| here.reach(ours[1]) == Reach::Ourselves);
    for run in ours.iter().chain([&here.run()]) {
        other.tell(&format!("send {run} 10"));
        let all = here.received() + 10;
        wait_for(|| {
            here.poll();
            here.received() >= all
        });
        assert_eq!(other.hear(), "sent");
    }
    assert_eq!(other.order("counts"), ONE);
}

#[test]
fn sixteen_send_to_all() {
    const COUNT: usize = 16;
    let config = config();
    let mut all = Other::start(&config, 1, COUNT);
    let before: Vec<_> = all.iter().map(Other::descriptors).collect();
    assert!(before.iter().all(|(_, high)| *high == 1), "its news: {before:?}");
    let runs: Vec<String> = all.iter().map(|one| one.run.to_string()).collect();
    let order = |count: usize| format!("exchange {count} {}", runs.join(" "));
    all.iter_mut().for_each(|one| one.tell(&order(1)));
    all.iter_mut().for_each(|one| assert_eq!(one.hear(), "exchanged"));
    // Two descriptors a link, with high numbers, and no others.
    for (one, (before, _)) in all.iter().zip(before) {
        wait_for(|| one.descriptors().1 == 1 + 2 * (COUNT - 1));
        let (low, _) = one.descriptors();
        assert!(low <= before, "{low} and {before} before");
        let (mappings, kib) = one.memory();
        assert_eq!(mappings, COUNT - 1);
        // The limit for 63 such links is 2 MiB.
        assert!(kib <= 32 * (COUNT - 1), "{kib} KiB");
    }
    all.iter_mut().for_each(|one| one.tell(&order(2000)));
    all.iter_mut().for_each(|one| assert_eq!(one.hear(), "exchanged"));
    let counts = format!("up {0} made {0} ended 0 refused 0", COUNT - 1);
    all.iter_mut().for_each(|one| assert_eq!(one.order("counts"), counts));
}

#[test]
fn a_number_that_nobody_has_leads_nowhere_until_somebody_has_it() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let free = Run::all().map(Run::index).find(|run| *run != here.run()).unwrap();
    assert_eq!(here.reach(free), Reach::Asked);
    wait_for(|| here.reach(free) == Reach::Vacant);
    // The other process may have leased any run: the run that it has is reached.
    let other = Other::new(&config);
    wait_for(|| matches!(here.queues[0].route_to(number_in(other.run)), Reach::Link(_)));
    let ours = here.run();
    wait_for(|| here.reach(ours) == Reach::Ourselves);
}

#[test]
fn a_process_that_sleeps_is_woken() {
    let config = config();
    let mut sleeper = Other::new(&config);
    let mut here = Member::new(&config, 1);
    // First by a process without a link to it.
    for _ in 0..200 {
        assert_eq!(sleeper.order("sleep"), "sleeps");
        here.send(sleeper.run, 1);
        assert_eq!(sleeper.hear(), "woke");
    }
}

// Goal: of many processes that send much, each gets its turn.
#[test]
fn all_who_send_have_their_turn() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut others = Other::start(&config, 1, 5);
    for other in &mut others {
        let before = here.received();
        other.tell(&format!("send {} 1", here.run()));
        here.receive(before + 1);
        assert_eq!(other.hear(), "sent");
    }
    for other in &mut others {
        let said = other.order(&format!("fill {}", here.run()));
        let filled: usize = said.strip_prefix("filled ").unwrap().parse().unwrap();
        assert!(filled >= 32, "{said}");
    }
    // Each burst has frames of several processes; over as many bursts as there are processes, each has the same share.
    let of = |came: &[u32], other: &Other| came.iter().filter(|pid| **pid == other.pid()).count();
    let mut all = Vec::new();
    for _ in &others {
        let came = here.burst(0);
        assert_eq!(came.len(), RX_BURST);
        assert!(others.iter().all(|other| of(&came, other) <= RX_BURST / 4), "{came:?}");
        all.extend(came);
    }
    assert!(others.iter().all(|other| of(&all, other) == RX_BURST), "{all:?}");
}

// Goal: a shard that sleeps until a route is known is woken when the answer is there: no process has the number, or a link exists already.
#[test]
fn who_sleeps_learns_what_it_asked_for() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let other = Other::new(&config);
    let (ours, theirs) = (here.run(), other.run);
    let mut last = ours;
    let free = Run::all().map(Run::index).filter(|run| ![ours, theirs].contains(run)).take(20);
    for run in [theirs].into_iter().chain(free) {
        while here.reach(run) == Reach::Asked {
            here.poll();
            here.sleep(|here| here.reach(run) != Reach::Asked);
        }
        last = run;
    }
    assert_eq!(here.reach(last), Reach::Vacant);
}
