//! Goal: whatever the peer of a memif sends, writes and changes, it can only spoil its own frames and end the link. It cannot reach other
//! memory of this process, end the process or block it; each attack ends with a message or a counter, and the port accepts the next
//! peer.
#![cfg(not(miri))]

use rustix::fs::{OFlags, SealFlags};
use sim::memif_peer::{
    self, BUFFER, CONNECT, Dir, LOG2, Peer, SIZE, SLOTS, Sent, TO_CLIENT, TO_SERVER, add_region, add_ring,
    buffer, init, memory, message,
};
use stack::port::{AtOnce, Frame, Port, PortQueue, Route, RxBurst, TxBurst};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A server port, with the folder and the path of its socket.
fn server(name: &str) -> (Dir, PathBuf, Box<dyn Port>) {
    memif_peer::server(name, 512)
}

fn receive(queue: &mut dyn PortQueue) -> Vec<Vec<u8>> {
    let mut got = RxBurst::new();
    let mut all = Vec::new();
    for _ in 0..200 {
        queue.rx_burst(&mut got);
        all.extend(got.iter().map(|frame| frame.data().to_vec()));
        queue.recycle(&mut got);
    }
    all
}

/// Transmits frames; returns how many the port takes.
fn transmit(queue: &mut dyn PortQueue, frames: &[&[u8]]) -> usize {
    let mut burst: TxBurst = frames.iter().map(|bytes| Frame::from_vec(bytes.to_vec())).collect();
    queue.tx_burst(Route::default(), &mut burst)
}

/// Checks that a peer that follows the protocol can use the port.
fn works(path: &Path, port: &dyn Port, queue: &mut dyn PortQueue) {
    let peer = Peer::connect(path, port);
    peer.send_frame(0, b"from the next peer");
    assert_eq!(receive(queue), [b"from the next peer"]);
    peer.give_slots(10);
    assert_eq!(transmit(queue, &[b"to the next peer"]), 1);
    assert_eq!(peer.received(), 1);
    let mut bytes = [0; 16];
    peer.memory.read_exact_at(&mut bytes, u64::from(buffer(SLOTS))).unwrap();
    assert_eq!(&bytes, b"to the next peer");
    drop(peer);
    while port.link_up() {}
}

#[test]
fn a_peer_that_violates_the_handshake_is_refused_with_a_message() {
    let (_dir, path, port) = server("handshake");
    let mut queue = port.take_queue(0).unwrap();
    static NULL: LazyLock<File> = LazyLock::new(|| File::open("/dev/null").unwrap());
    type Change = Box<dyn for<'a> Fn(&'a Peer, &mut Vec<Sent<'a>>)>;
    let tricks: Vec<(&str, Change)> = vec![
        ("should bring one", Box::new(|_, script| script[1].1.clear())),
        ("should bring one", Box::new(|peer, script| script[1].1.push(peer.events[0].as_fd()))),
        ("more descriptors", Box::new(|peer, script| script[2].1 = vec![peer.events[0].as_fd(); 60])),
        ("should bring none", Box::new(|peer, script| script[0].1 = vec![peer.events[0].as_fd()])),
        ("should bring none", Box::new(|peer, script| script[4].1 = vec![peer.memory.as_fd()])),
        ("came when it should not", Box::new(|_, script| drop(script.remove(0)))),
        ("region 0, which is not here", Box::new(|_, script| drop(script.remove(1)))),
        ("the peer has 0 queues", Box::new(|_, script| drop(script.remove(2)))),
        ("came when it should not", Box::new(|_, script| script.insert(1, (init(), vec![])))),
        ("one region is taken", Box::new(|_, script| script.insert(2, script[1].clone()))),
        ("one region is taken", Box::new(|_, script| script[1].0 = add_region(1, SIZE))),
        ("there twice", Box::new(|_, script| script.insert(3, script[2].clone()))),
        ("of 127 bytes", Box::new(|_, script| script[0].0.truncate(127))),
        ("of 129 bytes", Box::new(|_, script| script[3].0.push(0))),
        ("unknown type 99", Box::new(|_, script| script[2].0 = message(99, &[]))),
        ("region 60000", Box::new(|_, script| script[2].0 = add_ring(true, 60000, TO_SERVER as u32, LOG2))),
        ("ends behind", Box::new(|_, script| script[2].0 = add_ring(true, 0, 0xffff_f000, LOG2))),
        ("2^200 slots", Box::new(|_, script| script[3].0 = add_ring(false, 0, TO_CLIENT as u32, 200))),
        ("cookie", Box::new(|_, script| script[3].0 = add_ring(false, 0, 4096, LOG2))),
        ("are offered", Box::new(|_, script| script[1].0 = add_region(0, SIZE + 1))),
        ("are offered", Box::new(|_, script| script[1].0 = add_region(0, u64::MAX))),
        ("could shrink", Box::new(|_, script| script[1].1 = vec![NULL.as_fd()])),
    ];
    let tricks_len = tricks.len() as u64;
    for (part, trick) in tricks {
        let peer = Peer::new(&path);
        let mut script = peer.script();
        trick(&peer, &mut script);
        peer.play(script);
        let words = peer.outcome(&*port).expect_err(part);
        assert!(words.contains(part), "{part}: {words}");
        assert!(!port.link_up());
    }
    assert_eq!(port.stats().refused, tricks_len);
    works(&path, &*port, &mut *queue);
}

#[test]
fn memory_that_could_go_is_not_mapped() {
    let (_dir, path, port) = server("seals");
    let mut queue = port.take_queue(0).unwrap();
    for seals in [SealFlags::empty(), SealFlags::GROW] {
        let peer = Peer::with(&path, memory(SIZE, seals));
        peer.play(peer.script());
        assert!(peer.outcome(&*port).unwrap_err().contains("could shrink"));
    }
    // Sealed memory cannot shrink while it is used.
    let peer = Peer::connect(&path, &*port);
    assert!(rustix::fs::ftruncate(&peer.memory, 0).is_err());
    // The peer may punch holes: they read as zeros.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&peer.memory, punch, 0, SIZE).unwrap();
    assert!(receive(&mut *queue).is_empty());
    drop(peer);
    while port.link_up() {}
    works(&path, &*port, &mut *queue);
}

#[test]
fn descriptors_of_what_is_received_are_not_believed() {
    let (_dir, path, port) = server("rx");
    let mut queue = port.take_queue(0).unwrap();
    let peer = Peer::connect(&path, &*port);
    let lens = [1, 60, 4000, 4219, 65535, u32::MAX];
    let places = [
        (0, 0xfff0_0000),
        (0, u32::MAX),
        (0, SIZE as u32 - 10),
        (1, buffer(0)),
        (7, buffer(0)),
        (60000, buffer(0)),
    ];
    let mut slot = 0;
    for len in lens {
        for (region, offset) in places {
            // This combination is valid.
            if (region, offset) != (0, SIZE as u32 - 10) || len > 10 {
                peer.describe(TO_SERVER, slot, 0, region, len, offset);
                slot += 1;
            }
        }
    }
    // Frames without a last buffer, and an empty frame.
    for i in 0..5 {
        peer.describe(TO_SERVER, slot + i, 1, 0, 1000, buffer(0));
    }
    peer.describe(TO_SERVER, slot + 5, 0, 0, 1000, buffer(0));
    peer.describe(TO_SERVER, slot + 6, 0, 0, 0, buffer(0));
    peer.describe(TO_SERVER, slot + 7, 1, 0, 100, buffer(0));
    peer.put(TO_SERVER + 6, &(slot + 8).to_le_bytes());
    assert!(receive(&mut *queue).is_empty());
    assert_eq!(port.stats().rx_dropped, u64::from(slot) + 3);
    peer.send_frame(slot + 8, b"a good one");
    assert_eq!(receive(&mut *queue), [b"a good one"]);
    assert_eq!(peer.word(TO_SERVER + 64), slot + 9, "its slots came back");

    // A frame in several buffers arrives whole.
    let next = slot + 9;
    for (i, piece) in [&b"in "[..], b"two ", b"or three"].iter().enumerate() {
        let at = next + i as u16;
        peer.put(u64::from(buffer(at)), piece);
        peer.describe(TO_SERVER, at, u16::from(i < 2), 0, piece.len() as u32, buffer(at));
    }
    peer.put(TO_SERVER + 6, &(next + 3).to_le_bytes());
    assert_eq!(receive(&mut *queue), [b"in two or three"]);

    // A ring full of one endless frame is drained in bounded time, and the frame after it is received.
    let next = next + 3;
    for i in 0..SLOTS {
        peer.describe(TO_SERVER, next + i, 1, 0, 1, buffer(0));
    }
    peer.put(TO_SERVER + 6, &(next + SLOTS).to_le_bytes());
    assert!(receive(&mut *queue).is_empty());
    peer.send_frame(next + SLOTS, b"after all that");
    assert_eq!(receive(&mut *queue), [b"after all that"]);
    assert!(port.link_up());
}

#[test]
fn buffers_to_send_in_are_looked_at_each_time() {
    let (_dir, path, port) = server("tx");
    let mut queue = port.take_queue(0).unwrap();
    let peer = Peer::connect(&path, &*port);
    peer.polls(true);
    let bad = [
        (0, BUFFER, 0xfff0_0000),
        (0, BUFFER, u32::MAX),
        (0, BUFFER, SIZE as u32 - 10),
        (0, 0, buffer(0)),
        (1, BUFFER, buffer(0)),
        (60000, u32::MAX, buffer(0)),
        (0, u32::MAX, SIZE as u32 - 10),
    ];
    for (slot, (region, length, offset)) in bad.iter().enumerate() {
        peer.describe(TO_CLIENT, slot as u16, 0, *region, *length, *offset);
    }
    let n = bad.len() as u16;
    peer.give_slots(n);
    let frame = [0xabu8; 100];
    let built = queue.build_burst(
        Route::default(),
        4,
        &mut AtOnce(|_: &mut [u8]| panic!("nothing can be built there")),
    );
    assert_eq!(built, None);
    for slot in 0..n {
        assert_eq!(transmit(&mut *queue, &[&frame]), 1);
        assert_eq!((peer.received(), port.stats().tx_dropped), (slot + 1, u64::from(slot) + 1));
    }
    assert_eq!(transmit(&mut *queue, &[&frame]), 0, "there is no room");

    // With small buffers a frame is spread over as many as it needs, once enough are available.
    for i in 0..10 {
        peer.describe(TO_CLIENT, n + i, 0, 0, 40, buffer(n + i));
    }
    peer.give_slots(n + 2);
    assert_eq!(transmit(&mut *queue, &[&frame]), 0, "two are too few");
    peer.give_slots(n + 3);
    assert_eq!(transmit(&mut *queue, &[&frame]), 1);
    let at = |slot: u16| TO_CLIENT + 128 + 16 * u64::from(slot);
    let pieces: Vec<_> = (n..n + 3).map(|slot| (peer.word(at(slot)), peer.word(at(slot) + 4))).collect();
    assert_eq!(pieces, [(1, 40), (1, 40), (0, 20)]);
    let mut bytes = [0; 20];
    peer.memory.read_exact_at(&mut bytes, u64::from(buffer(n + 2))).unwrap();
    assert_eq!(bytes, [0xab; 20]);

    // A frame that is too long for all buffers is never sent, and blocks no other frame.
    peer.give_slots(n + 3 + SLOTS);
    for slot in 0..SLOTS {
        peer.describe(TO_CLIENT, slot, 0, 0, 40, buffer(0));
    }
    let dropped = port.stats().tx_dropped;
    assert_eq!(transmit(&mut *queue, &[&[1; 4000], &frame]), 2);
    assert_eq!(port.stats().tx_dropped, dropped + 1);

    // Slots that point to the rings, and to each other: the frames overwrite them, which harms only the peer.
    let next = peer.received();
    for slot in 0..SLOTS {
        peer.describe(TO_CLIENT, slot, 0, 0, BUFFER, TO_CLIENT as u32 - 100);
    }
    peer.give_slots(next.wrapping_add(SLOTS));
    for _ in 0..4 {
        let _ = queue.build_burst(
            Route::default(),
            64,
            &mut AtOnce(|buffer: &mut [u8]| {
                buffer.fill(0xff);
                Some(buffer.len())
            }),
        );
        transmit(&mut *queue, &[&[0xff; 4000][..]; 32]);
        receive(&mut *queue);
    }
    drop(peer);
    while port.link_up() {}
    works(&path, &*port, &mut *queue);
}

#[test]
fn an_index_that_cannot_be_ends_the_link() {
    let (_dir, path, port) = server("index");
    let mut queue = port.take_queue(0).unwrap();
    for (i, head) in [SLOTS + 1, 0x8000, 0xffff].into_iter().enumerate() {
        for receiving in [true, false] {
            let peer = Peer::connect(&path, &*port);
            let refused = port.stats().refused;
            if receiving {
                peer.put(TO_SERVER + 6, &head.to_le_bytes());
                assert!(receive(&mut *queue).is_empty());
            } else {
                peer.give_slots(head);
                assert_eq!(transmit(&mut *queue, &[b"x"]), 0);
            }
            assert!(peer.outcome(&*port).unwrap_err().contains("index"), "{i}");
            assert!(!port.link_up());
            assert_eq!(port.stats().refused, refused + 1);
        }
    }
    works(&path, &*port, &mut *queue);
}

#[test]
fn events_wake_waiters_and_block_no_caller() {
    let (_dir, path, port) = server("events");
    let mut queue = port.take_queue(0).unwrap();
    let peer = Peer::connect(&path, &*port);
    let count = || {
        let mut bytes = [0; 8];
        rustix::io::read(&peer.events[1], &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    };
    peer.give_slots(SLOTS);
    assert_eq!((transmit(&mut *queue, &[b"a", b"b"]), count()), (2, 1), "one event a burst");
    let mut builds = 0;
    queue.build_burst(
        Route::default(),
        3,
        &mut AtOnce(|_: &mut [u8]| {
            builds += 1;
            (builds < 3).then_some(60)
        }),
    );
    assert_eq!(count(), 1);
    receive(&mut *queue);
    assert_eq!(count(), 1, "and one when it was looked at again");
    receive(&mut *queue);
    assert_eq!(count(), 0);
    peer.polls(true);
    assert_eq!((transmit(&mut *queue, &[b"c"]), count()), (1, 0));
    // The peer begins to sleep just after a frame was sent.
    peer.polls(false);
    receive(&mut *queue);
    assert_eq!(count(), 1);
    assert_eq!(peer.word(TO_SERVER + 4), 1, "we look by ourselves");

    // The peer makes the event descriptor blocking, and fills it.
    rustix::io::write(&peer.events[1], &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&peer.events[1], OFlags::empty()).unwrap();
    for _ in 0..100 {
        assert_eq!(transmit(&mut *queue, &[b"d"]), 1);
    }
    drop(peer);
    while port.link_up() {}

    // A file descriptor that is no eventfd.
    let peer = Peer::new(&path);
    let (pipe, _write) = std::io::pipe().unwrap();
    let mut script = peer.script();
    script[3].1 = vec![pipe.as_fd()];
    peer.play(script);
    assert!(peer.outcome(&*port).unwrap_err().contains("is no eventfd"));
}

#[test]
fn behind_a_short_frame_nothing_is_written() {
    // Goal: nothing leaks. Short frames are copied in blocks, and a buffer still holds bytes of an earlier frame, perhaps for another peer.
    let (_dir, path, port) = server("behind");
    let mut queue = port.take_queue(0).unwrap();
    let peer = Peer::connect(&path, &*port);
    peer.give_slots(SLOTS);
    // Use every buffer of the pool once.
    let mut used: Vec<Frame> = core::iter::from_fn(|| queue.alloc()).collect();
    used.iter_mut().for_each(|frame| assert!(frame.fill(&[0xaa; 600])));
    drop(used);
    for (slot, len) in [1, 15, 16, 17, 60, 511, 512].into_iter().enumerate() {
        let mut frame = queue.alloc().unwrap();
        assert!(frame.fill(&vec![7; len]));
        assert_eq!(queue.tx_burst(Route::default(), &mut core::iter::once(frame).collect()), 1);
        let mut bytes = vec![0xff; len + 64];
        peer.memory.read_exact_at(&mut bytes, u64::from(buffer(slot as u16 + SLOTS))).unwrap();
        let (sent, behind) = bytes.split_at(len);
        assert!(
            sent.iter().all(|byte| *byte == 7) && behind.iter().all(|byte| *byte == 0),
            "{len}: {bytes:x?}"
        );
    }
}

#[test]
fn silent_strangers_keep_no_peer_out() {
    let (_dir, path, port) = server("silent");
    let mut queue = port.take_queue(0).unwrap();
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(Peer::new(&path));
        port.maintain();
    }
    works(&path, &*port, &mut *queue);
    // A client that connects while another is connected is refused for that reason.
    let first = Peer::connect(&path, &*port);
    let second = Peer::new(&path);
    second.play(second.script());
    assert!(second.outcome(&*port).unwrap_err().contains("another client"));
    assert!(port.link_up());
    // A message without bytes is the end of the link; a second message of any kind violates the protocol.
    first.send(&message(CONNECT, &[]), &[]);
    assert!(first.outcome(&*port).unwrap_err().contains("CONNECT came when it should not"));
    let third = Peer::connect(&path, &*port);
    third.send(&[], &[]);
    assert!(third.outcome(&*port).unwrap_err().contains("gone"));
    works(&path, &*port, &mut *queue);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn memory_that_changes_while_it_is_read() {
    // Goal: a peer writes anything to its rings, all the time, while frames are received, sent and built. Every frame stays within bounds,
    // and the port continues to work.
    let (_dir, path, port) = server("scribble");
    let mut queue = port.take_queue(0).unwrap();
    let max = port.info().max_frame();
    let mut got = RxBurst::new();
    let mut frames = 0;
    for round in 0..6u64 {
        let peer = Peer::connect(&path, &*port);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(round);
                while !done.load(Ordering::Relaxed) {
                    let ring = [TO_SERVER, TO_CLIENT][random.below(2) as usize];
                    // Indexes near the right ones, so that the link lives for a while; arbitrary buffer descriptors.
                    let (head, tail) = (peer.word(ring + 6), peer.word(ring + 64));
                    match random.below(8) {
                        0 => peer.put(ring + 4, &(random.below(2) as u16).to_le_bytes()),
                        1 | 2 if ring == TO_SERVER => {
                            peer.put(ring + 6, &tail.wrapping_add(random.below(64) as u16).to_le_bytes());
                        }
                        1 | 2 => {
                            peer.put(ring + 6, &tail.wrapping_add(random.below(64) as u16).to_le_bytes())
                        }
                        _ => {
                            let lens = [0, 60, 256, 257, 1500, max as u32, max as u32 + 1, 65535, u32::MAX];
                            let offsets =
                                [buffer(3), 0, SIZE as u32 - 60, SIZE as u32, u32::MAX, TO_SERVER as u32];
                            let slot = head.wrapping_add(random.below(64) as u16);
                            let (flags, region) = (random.below(2) as u16, (random.below(8) / 7) as u16);
                            let len = lens[random.below(9) as usize];
                            peer.describe(ring, slot, flags, region, len, offsets[random.below(6) as usize]);
                        }
                    }
                }
            });
            for turn in 0..20_000u32 {
                queue.rx_burst(&mut got);
                for frame in &got {
                    frames += 1;
                    assert!((1..=max).contains(&frame.len()), "a frame of {} bytes", frame.len());
                }
                queue.recycle(&mut got);
                match turn % 3 {
                    0 => drop(queue.build_burst(
                        Route::default(),
                        8,
                        &mut AtOnce(|buffer: &mut [u8]| {
                            assert_eq!(buffer.len(), max);
                            buffer[..100].fill(turn as u8);
                            Some(100)
                        }),
                    )),
                    1 => drop(transmit(&mut *queue, &[&[1; 60], &[2; 1500]])),
                    _ => port.maintain(),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(peer);
        while port.link_up() {}
    }
    assert!(frames > 0, "some of it were frames");
    works(&path, &*port, &mut *queue);
}
