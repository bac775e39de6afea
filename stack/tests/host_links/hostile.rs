//! A member that violates the protocol: whatever it sends and writes, it harms only its own link, and nobody waits for it.

use crate::by_hand::{answer, mute};
use crate::member::{Member, Other, config, wait_for};
use rustix::fs::SealFlags;
use rustix::process::Signal;
use sim::host_liar::{
    HEAD, HELLO, LINK_VERSION, Liar, MAX_FRAME, NEWS, OFFER, REFUSED, RING, SIZE, TAIL, TO_CALLED, TO_CALLER,
    UP, about, good_memory, memory, memory_with, message, offer,
};
use stack::port::host::{LinkId, Reach};
use stack::port::{AtOnce, Frame, RxBurst, TxBurst};
use stack::registry::RegistryConfig;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The reason in a refusal that reports an error.
const WRONG: u32 = 2;
const LINKED: u32 = 0;

/// Checks that a process that follows the protocol can use the member.
fn works(config: &RegistryConfig, here: &mut Member) {
    let mut other = Other::new(config);
    let before = here.received();
    other.tell(&format!("send {} 100", here.run()));
    here.receive(before + 100);
    assert_eq!(other.hear(), "sent");
    other.tell("receive 100");
    here.send(other.run, 100);
    assert_eq!(other.hear(), "received");
    other.kill();
    drop(here.next_ended());
}

/// An offer with another number at index `at`.
fn offer_with(at: usize, number: u32) -> Vec<u8> {
    let mut numbers = offer();
    numbers[at] = number;
    message(LINK_VERSION, OFFER, &numbers)
}

#[test]
fn who_lies_in_a_greeting_is_refused() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let good = || message(LINK_VERSION, OFFER, &offer());
    let sealed = |size| memory(size, SealFlags::SHRINK | SealFlags::GROW);
    let null = || -> OwnedFd { File::open("/dev/null").unwrap().into() };
    let pipe = || -> OwnedFd { std::io::pipe().unwrap().1.into() };
    let page = || sealed(NEWS);
    let both = || vec![good_memory(), page()];
    let mut tricks: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("no message", vec![0x5a; 128], both()),
        ("an unknown kind", message(LINK_VERSION, 77, &offer()), both()),
        ("another release", message(9, OFFER, &offer()), both()),
        ("a greeting at the wrong time", message(LINK_VERSION, HELLO, &about()), vec![page()]),
        ("consent at the wrong time", message(LINK_VERSION, UP, &[0]), vec![]),
        ("a refusal without a reason", message(LINK_VERSION, REFUSED, &[99]), vec![]),
        ("no descriptor", good(), vec![]),
        ("one too few", good(), vec![good_memory()]),
        ("one too many", good(), vec![good_memory(), page(), page()]),
        ("as many as there is room for", good(), (0..4).map(|_| page()).collect()),
        ("more than that", good(), (0..60).map(|_| page()).collect()),
        ("no memory", good(), vec![null(), page()]),
        ("the wrong order", good(), vec![page(), good_memory()]),
        ("no news", good(), vec![good_memory(), null()]),
        ("a pipe for news", good(), vec![good_memory(), pipe()]),
        ("news that are too small", good(), vec![good_memory(), sealed(NEWS - 1)]),
        ("news that can shrink", good(), vec![good_memory(), memory(NEWS, SealFlags::GROW)]),
        ("memory without seals", good(), vec![memory_with(SealFlags::empty()), page()]),
        ("memory that can shrink", good(), vec![memory_with(SealFlags::GROW), page()]),
        ("memory that is too small", good(), vec![sealed(SIZE - 1), page()]),
        ("memory of a page", good(), vec![sealed(4096), page()]),
        ("no bytes", good(), vec![sealed(0), page()]),
        ("memory that cannot be written", good(), vec![read_only(), page()]),
    ];
    // Link, shards, frames, runs and a run; then rings, slots, the size of a buffer, and the total size.
    for at in (0..5).chain(12..17) {
        for number in [0, 1 << 20, u32::MAX] {
            // Link 0 and run 0 are valid.
            if offer()[at] != number && ![(0, 0), (4, 0)].contains(&(at, number)) {
                tricks.push(("a number", offer_with(at, number), both()));
            }
        }
    }
    let refused = tricks.len() as u64;
    for (what, bytes, fds) in tricks {
        let liar = Liar::call(&config, here.run());
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        liar.send(&bytes, &fds);
        assert_eq!(liar.refusal(), WRONG, "{what}");
    }
    // The counter is raised after the refusal was sent.
    wait_for(|| here.links.counts().refused == refused);
    assert_eq!(here.links.counts().made, 0);
    works(&config, &mut here);
}

/// Memory that is large enough and sealed, but also sealed against writing.
fn read_only() -> OwnedFd {
    let fd = good_memory();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
    fd
}

#[test]
fn a_message_comes_in_one_piece_and_a_link_once() {
    let config = config();
    let mut here = Member::new(&config, 1);
    for len in [1, 16, 127] {
        let liar = Liar::call(&config, here.run());
        let offer = message(LINK_VERSION, OFFER, &offer());
        liar.send(&offer[..len], &liar.offer_fds()[..1]);
        liar.send(&offer[len..], &liar.offer_fds()[1..]);
        assert_eq!(liar.refusal(), WRONG);
    }
    let _liar = Liar::linked(&config, here.run());
    let second = Liar::call(&config, here.run());
    second.send(&message(LINK_VERSION, OFFER, &offer()), &second.offer_fds());
    assert_eq!(second.refusal(), LINKED);
    assert_eq!(here.links.counts().made, 1);
    works(&config, &mut here);
}

// Goal: file descriptors that block in close hold up the threads of their sender's share only.
#[test]
fn descriptors_that_wait_when_they_are_closed_keep_nobody() {
    let config = config();
    let mut member = Other::new(&config);
    // Closing such a socket takes as long as its linger time, until its peer has read everything: for ever.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut unread = Vec::new();
    let mut slow = || {
        let mut slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        unread.push(listener.accept().unwrap());
        rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(3600))).unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 1 << 16]).is_ok() {}
        OwnedFd::from(slow)
    };
    // Such descriptors arrive with greetings, on links, and in excess of what is accepted.
    let mut heard = 0;
    for round in 0..40 {
        // While its share is in use, a call is not answered.
        let Some(liar) = Liar::try_call(&config, member.run, Some(Duration::from_millis(20))) else {
            continue;
        };
        let is_linked = round % 4 == 0 && liar.is_accepted();
        // Stopped, so that the member is the last process that has the descriptors.
        member.stop();
        let all: Vec<OwnedFd> = (0..if round % 3 == 0 { 2 } else { 6 }).map(|_| slow()).collect();
        let fds: Vec<_> = all.iter().map(AsFd::as_fd).collect();
        liar.send(&message(LINK_VERSION, if is_linked { UP } else { OFFER }, &offer()), &fds);
        drop(all);
        member.signal(Signal::CONT);
        heard += 1;
    }
    assert!(heard > 4, "{heard}");
    let mut other = Other::new(&config);
    for (from, to) in [(0, 1), (1, 0)] {
        let run = [member.run, other.run][to];
        let both = [&mut member, &mut other];
        both[from].tell(&format!("send {run} 100"));
        assert_eq!(both[to].order("receive 100"), "received");
        assert_eq!(both[from].hear(), "sent");
    }
}

#[test]
fn who_says_nothing_is_given_up() {
    let config = config();
    let mut here = Member::with(&config, 1, Duration::from_millis(50));
    // Many callers that send nothing, and many names whose processes never accept.
    let silent: Vec<Liar> = (0..100).map(|_| Liar::call(&config, here.run())).collect();
    let runs: Vec<usize> = (0..20).filter(|run| *run != here.run()).collect();
    let _mute: Vec<OwnedFd> = runs.iter().map(|run| mute(&config, *run)).collect();
    runs.iter().for_each(|run| assert_eq!(here.reach(*run), Reach::Asked));
    for run in runs {
        wait_for(|| here.reach(run) == Reach::Unlinked);
    }
    for liar in silent {
        assert!(liar.hear().0.is_empty());
    }
    works(&config, &mut here);
}

#[test]
fn who_is_called_and_lies_is_refused() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let ours = here.run();
    let runs = (0..).filter(|run| *run != ours);
    let hello = message(LINK_VERSION, HELLO, &about());
    let tricks: Vec<Vec<(Vec<u8>, usize)>> = vec![
        vec![(vec![0; 128], 1)],
        vec![(hello.clone(), 0)],
        vec![(hello.clone(), 2)],
        vec![(hello.clone(), 60)],
        vec![(message(LINK_VERSION, HELLO, &[0; 11]), 1)],
        vec![(message(LINK_VERSION, OFFER, &offer()), 2)],
        vec![(message(LINK_VERSION, UP, &[0]), 0)],
        vec![(hello.clone(), 1), (hello.clone(), 1)],
        vec![(hello.clone(), 1), (message(LINK_VERSION, OFFER, &offer()), 2)],
        vec![(hello, 1), (message(LINK_VERSION, UP, &[224]), 0)],
        // Of another release: it is told ours.
        vec![(message(9, HELLO, &[u32::MAX; 20]), 1)],
    ];
    let count = tricks.len() as u64;
    for (run, answers) in runs.zip(tricks) {
        let liar = answer(&config, run, answers);
        assert_eq!(here.reach(run), Reach::Asked);
        assert_eq!(liar.join().unwrap()[..20], message(LINK_VERSION, REFUSED, &[WRONG])[..20]);
        wait_for(|| here.reach(run) == Reach::Unlinked);
    }
    assert_eq!((here.links.counts().refused, here.links.counts().made), (count, 0));
    works(&config, &mut here);
}

#[test]
fn who_says_that_it_has_the_runs_of_others_gets_nothing_of_theirs() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut other = Other::new(&config);
    let mut numbers = offer();
    numbers[4] = other.run as u32;
    let liar = Liar::call(&config, here.run());
    liar.send(&message(LINK_VERSION, OFFER, &numbers), &liar.offer_fds());
    assert_eq!(liar.hear().0[..16], message(LINK_VERSION, UP, &[])[..16]);
    other.tell("receive 100");
    here.send(other.run, 100);
    assert_eq!(other.hear(), "received");
    wait_for(|| here.links.counts().made == 2);
}

#[test]
fn an_index_that_cannot_be_ends_the_link() {
    let config = config();
    let mut here = Member::new(&config, 1);
    for (ring, at, number) in
        [(TO_CALLED, HEAD, 513), (TO_CALLED, HEAD, 0x8000), (TO_CALLER, TAIL, 9), (TO_CALLER, TAIL, 0x8000)]
    {
        let liar = Liar::linked(&config, here.run());
        let refused = here.links.counts().refused;
        let link = link_of(&mut here, None);
        liar.write_u16(ring + at, number);
        wait_for(|| {
            here.poll();
            let mut frames: TxBurst = [Frame::from_vec(vec![1; 100])].into_iter().collect();
            here.queues[0].tx_burst(link, &mut frames);
            here.links.counts().refused == refused + 1
        });
        liar.wait_for_end();
        drop(here.next_ended());
    }
    // And so do descriptors on its connection, which carries wake-ups.
    for fds in [1, 60] {
        let liar = Liar::linked(&config, here.run());
        let refused = here.links.counts().refused;
        liar.wake(3);
        liar.send(&[0], &vec![liar.news.as_fd(); fds]);
        wait_for(|| {
            here.poll();
            here.sleep(|_| false);
            here.links.counts().refused == refused + 1
        });
        drop(here.next_ended());
    }
    works(&config, &mut here);
}

/// The link of the misbehaving process: the link that is not `others`.
fn link_of(here: &mut Member, others: Option<LinkId>) -> LinkId {
    let mut link = None;
    wait_for(|| {
        drop(here.queues[0].next_ended());
        link = here.queues[0].links().find(|link| Some(*link) != others);
        link.is_some()
    });
    link.unwrap()
}

#[test]
fn memory_that_changes_all_the_time_harms_nobody() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let mut other = Other::new(&config);
    let others = here.link_to(other.run);
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..300 {
        let liar = Liar::linked(&config, here.run());
        let link = link_of(&mut here, Some(others));
        for _ in 0..random(40) {
            // Mostly headers and descriptors, with numbers that are mostly almost right.
            let in_ring = if random(2) == 0 { random(72) } else { random(RING) };
            let at = if random(10) == 0 { random(SIZE - 8) } else { random(2) * RING + in_ring };
            let numbers =
                [random(70), random(1 << 16), random(1 << 32), u64::from(u32::MAX), SIZE - random(70)];
            let number = numbers[random(5) as usize];
            liar.memory.write_all_at(&number.to_ne_bytes()[..1 + random(7) as usize], at).unwrap();
            use_all(&mut here, link);
        }
        drop(liar);
        // The frames of the misbehaving process are not checked.
        wait_for(|| {
            use_all(&mut here, link);
            here.queues[0].next_ended().is_some()
        });
        other.tell("take 50");
        here.send(other.run, 50);
        assert_eq!(other.hear(), "taken", "round {round}");
    }
    assert!(here.links.counts().refused > 10, "{:?}", here.links.counts());
}

/// Receives, sends and builds frames, with any result.
fn use_all(here: &mut Member, link: LinkId) {
    let queue = &mut here.queues[0];
    let mut got = RxBurst::new();
    queue.rx_burst(&mut got);
    assert!(got.iter().all(|frame| (1..=MAX_FRAME).contains(&frame.len())));
    queue.recycle(&mut got);
    let mut frames: TxBurst = [100, 4000].into_iter().map(|len| Frame::from_vec(vec![1; len])).collect();
    queue.tx_burst(link, &mut frames);
    let mut fill = AtOnce(|buffer: &mut [u8]| {
        buffer.fill(9);
        Some(buffer.len())
    });
    queue.build_burst(link, 3, &mut fill);
    let _ = queue.arm();
}

// Goal: a process that takes no wake-ups holds up nobody who wakes it, and one that sends as many as it can hides none of others.
#[test]
fn wake_ups_that_nobody_takes_and_too_many_keep_nobody() {
    let config = config();
    let mut here = Member::new(&config, 1);
    let liar = Liar::linked(&config, here.run());
    let link = link_of(&mut here, None);
    // It says that it sleeps, and takes nothing.
    let mut sent = 0;
    wait_for(|| {
        let mut frames: TxBurst = [Frame::from_vec(vec![1; 100])].into_iter().collect();
        sent += here.queues[0].tx_burst(link, &mut frames);
        liar.write_u16(TO_CALLER + TAIL, sent as u16);
        sent == 2000
    });
    assert!(liar.wake(1 << 20) > 0);
    let mut other = Other::new(&config);
    for _ in 0..20 {
        other.tell(&format!("send {} 10", here.run()));
        here.sleep(|_| false);
        let all = here.received() + 10;
        wait_for(|| {
            here.poll();
            here.sleep(|here| here.received() >= all);
            here.received() >= all
        });
        assert_eq!(other.hear(), "sent");
        liar.wake(1 << 20);
    }
    drop(liar);
    drop(here.next_ended());
    // Of one that sends them one by one, each that comes when the shard has looked ends a sleep, however many came before.
    let others = here.link_to(other.run);
    let liar = Liar::linked(&config, here.run());
    link_of(&mut here, Some(others));
    assert_eq!(liar.wake(1), 1);
    here.sleep(|_| false);
    for _ in 0..100 {
        while liar.wake(1) == 1 {}
        here.sleep(|_| {
            assert_eq!(liar.wake(1), 1, "there is room");
            false
        });
    }
    drop(other);
    works(&config, &mut here);
}

/// Ends a thread when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Goal: a peer that all the time clears the news of others, or announces news that do not exist, delays no frames for good.
#[test]
fn news_that_lie_hide_nothing() {
    let config = config();
    let mut here = Member::new(&config, 1);
    // More links than a turn polls without news.
    let mut others = Other::start(&config, 1, 8);
    for filler in [0, 1] {
        let liar = Liar::linked(&config, here.run());
        let link = link_of_liar(&mut here, &others);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also if the test fails.
            let _ends = Ends(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    liar.their_news.write_all_at(&[filler; NEWS as usize], 0).unwrap();
                }
            });
            for round in 0..5 {
                let all = here.received() + 10 * others.len();
                others.iter_mut().for_each(|other| other.tell(&format!("send {} 10", here.run())));
                here.receive(all);
                others.iter_mut().for_each(|other| assert_eq!(other.hear(), "sent", "round {round}"));
            }
        });
        drop(liar);
        let ended = here.next_ended();
        assert_eq!(ended.link(), link);
    }
}

/// The link of the misbehaving process beside those of others, which are made first.
fn link_of_liar(here: &mut Member, others: &[Other]) -> LinkId {
    let theirs: Vec<LinkId> = others.iter().map(|other| here.link_to(other.run)).collect();
    let mut link = None;
    wait_for(|| {
        here.poll();
        link = here.queues[0].links().find(|link| !theirs.contains(link));
        link.is_some()
    });
    link.unwrap()
}
