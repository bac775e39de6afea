//! Goal: two processes exchange frames over memif, whichever starts first, and continue after either is killed and started again.

use process::{PATIENCE, Peer, Ticker, exchange, open, socket};
use rustix::process::Signal;
use stack::port::{
    Armed, AtOnce, Build, Port, PortOptions, PortQueue, PortSpec, Route, RxBurst, Stalled, TxBurst,
};
use stack::sync::sleeper::Sleeper;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

mod process;

#[test]
fn child() {
    process::child();
}

/// A port in this process with role `ours`, and a process with the other end; the server starts first.
fn joined(ours: &str, spec: impl Fn(&str) -> String) -> (Box<dyn Port>, Peer) {
    if ours == "server" {
        let port = open(&spec("server"), 1);
        return (port, Peer::start(&spec("client"), 1));
    }
    let peer = Peer::start(&spec("server"), 1);
    (open(&spec("client"), 1), peer)
}

#[test]
fn the_client_may_start_first_and_the_server_again() {
    let path = socket("client-first");
    let port = open(&format!("memif:{},role=client", path.display()), 1);
    let mut queue = port.take_queue(0).unwrap();
    assert!(!port.link_up());
    let mut burst = TxBurst::new();
    let mut frame = queue.alloc().unwrap();
    frame.fill(&[0; 60]);
    burst.push(frame);
    assert_eq!(queue.tx_burst(Route::default(), &mut burst), 0, "no link, no frames");
    assert_eq!(queue.rx_burst(&mut RxBurst::new()), 0);

    let server = format!("memif:{},role=server", path.display());
    for round in 0..3 {
        let peer = Peer::start(&server, 1);
        exchange(&*port, &mut *queue, &format!("server started, round {round}"));
        assert!(port.link_up());
        drop(peer); // Killed: its socket file remains.
        assert!(path.exists());
        let start = Instant::now();
        while port.link_up() {
            assert!(start.elapsed() < PATIENCE, "the link stays up without a peer");
        }
    }
    assert!(port.stats().restarts >= 3);
    drop((port, queue, burst));
    let _ = std::fs::remove_file(&path);
}

#[test]
fn ends_that_found_a_server_which_was_about_to_end_meet_each_other() {
    // Goal: two programs that start while the server of an earlier pair ends do not both stay clients.
    let path = socket("ending");
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let family = rustix::net::AddressFamily::UNIX;
    let server = rustix::net::socket_with(family, rustix::net::SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&server, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&server, 8).unwrap();
    let ends: [_; 2] = core::array::from_fn(|_| {
        let spec = format!("memif:{}", path.display());
        std::thread::spawn(move || open(&spec, 1))
    });
    // Both have connected to the ending server.
    let greeted = [rustix::net::accept(&server).unwrap(), rustix::net::accept(&server).unwrap()];
    drop((greeted, server));
    let ports = ends.map(|end| end.join().unwrap());
    let start = Instant::now();
    // Polling the link state makes each port take its steps.
    while ports.iter().filter(|port| port.link_up()).count() < 2 {
        assert!(start.elapsed() < PATIENCE, "no link");
    }
    drop(ports);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn the_end_of_a_process_is_seen_while_a_fork_of_it_lives_on() {
    // Goal: a forked child keeps no socket of its parent's port, so the peer sees the end, and the path is free for another server.
    for (ours, theirs) in [("client", "server"), ("server", "client")] {
        let path = socket(&format!("fork-{theirs}"));
        let spec = |role: &str| format!("memif:{},role={role}", path.display());
        let server = (ours == "server").then(|| open(&spec(ours), 1));
        let (peer, fork) = Peer::start_and_fork(&spec(theirs));
        let port = server.unwrap_or_else(|| open(&spec(ours), 1));
        let mut queue = port.take_queue(0).unwrap();
        exchange(&*port, &mut *queue, theirs);
        drop(peer); // Killed.
        let start = Instant::now();
        while port.link_up() {
            assert!(start.elapsed() < PATIENCE, "{theirs}: the link stays up without a peer");
            port.maintain();
        }
        let _successor = Peer::start(&spec(theirs), 1);
        exchange(&*port, &mut *queue, &format!("{theirs} again"));
        assert!(fork.lives());
        drop((port, queue));
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn the_client_may_start_again() {
    let path = socket("client-again");
    let port = open(&format!("memif:{}", path.display()), 1); // No process listens: this is the server.
    let mut queue = port.take_queue(0).unwrap();
    for round in 0..3 {
        let peer = Peer::start(&format!("memif:{}", path.display()), 1); // A process listens: this is a client.
        exchange(&*port, &mut *queue, &format!("client started, round {round}"));
        drop(peer);
    }
    drop((port, queue));
    assert!(!path.exists(), "the socket goes with the server");
}

#[test]
fn what_an_end_sent_before_it_left_is_received() {
    // Goal: frames that an end has sent before it left arrive, although its peer learns first that it has left.
    const FRAMES: u32 = 200;
    for leaves in ["client", "server"] {
        let path = socket(&format!("last-of-{leaves}"));
        let spec = |role: &str| format!("memif:{},role={role}", path.display());
        let (server, client) = (open(&spec("server"), 1), open(&spec("client"), 1));
        let (stays, goes) = if leaves == "client" { (server, client) } else { (client, server) };
        let (mut ours, mut theirs) = (stays.take_queue(0).unwrap(), goes.take_queue(0).unwrap());
        let start = Instant::now();
        while !stays.link_up() || !goes.link_up() {
            assert!(start.elapsed() < PATIENCE, "there is no link");
            stays.maintain();
            goes.maintain();
        }
        let mut received = RxBurst::new();
        assert_eq!(ours.rx_burst(&mut received), 0, "it has its rings");
        for number in 0..FRAMES {
            let mut frame = theirs.alloc().unwrap();
            frame.fill(&number.to_ne_bytes().repeat(15));
            let mut burst = TxBurst::new();
            burst.push(frame);
            assert_eq!(theirs.tx_burst(Route::default(), &mut burst), 1, "{leaves}: frame {number}");
        }
        drop((theirs, goes));
        while stays.link_up() {
            assert!(start.elapsed() < PATIENCE, "{leaves}: the link stays up without a peer");
            stays.maintain();
        }
        for number in 0..FRAMES {
            if received.is_empty() {
                assert!(!matches!(ours.arm(), Armed::Down(..)), "{leaves}: sleeps before frame {number}");
                assert!(ours.rx_burst(&mut received) > 0, "{leaves}: frame {number} is lost");
            }
            assert_eq!(
                received.remove(0).data(),
                number.to_ne_bytes().repeat(15),
                "{leaves}: frame {number}"
            );
        }
        assert!(received.is_empty());
        assert_eq!(ours.rx_burst(&mut received), 0, "{leaves}: nothing comes twice");
        drop((ours, stays));
        let _ = std::fs::remove_file(&path);
    }
}

/// Builds frames that carry their sequence number; number and kind are written when a frame is finished.
#[derive(Default)]
struct Numbered {
    max: usize,
    built: u32,
    burst: Vec<u32>,
    finished: bool,
}

const BUILT: u8 = 0xfe;

impl Numbered {
    fn byte(seq: u32, i: usize) -> u8 {
        (seq as usize * 7 + i) as u8
    }

    fn len(seq: u32, max: usize) -> usize {
        64 + seq as usize * 37 % (max - 63)
    }
}

impl Build for Numbered {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        assert!(buffer.len() >= self.max);
        if core::mem::take(&mut self.finished) {
            self.burst.clear();
        }
        let seq = self.built;
        self.built += 1;
        self.burst.push(seq);
        let n = Self::len(seq, self.max);
        buffer[..n].iter_mut().enumerate().for_each(|(i, to)| *to = Self::byte(seq, i));
        buffer[1..6].fill(0);
        Some(n)
    }

    fn finish(&mut self, i: usize, buffer: &mut [u8]) {
        buffer[1..5].copy_from_slice(&self.burst[i].to_be_bytes());
        buffer[5] = BUILT;
        self.finished = true;
    }
}

#[test]
fn frames_are_built_in_the_ring() {
    // Goal: either end builds all frames of a burst in place, then finishes each. The frames arrive whole and in order, around the ring
    // many times, and none is built without a link or without room.
    const SLOTS: usize = 16;
    for ours in ["server", "client"] {
        let path = socket(&format!("built-{ours}"));
        let (port, peer) = joined(ours, |role| format!("memif:{},role={role},rsize=4", path.display()));
        let mut queue = port.take_queue(0).unwrap();
        if ours == "server" && !port.link_up() {
            assert_eq!(
                queue.build_burst(
                    Route::default(),
                    1,
                    &mut AtOnce(|_: &mut [u8]| panic!("there is no link"))
                ),
                None
            );
        }
        exchange(&*port, &mut *queue, ours);

        let max = port.info().max_frame();
        let len = |seq: u32| Numbered::len(seq, max);
        let mut build = Numbered { max, ..Numbered::default() };
        let (mut seen, mut sent) = (0u32, 0u32);
        let mut clock = Ticker::new();
        let mut got = RxBurst::new();
        let start = Instant::now();
        let mut receive = |queue: &mut dyn PortQueue, seen: &mut u32| {
            clock.maintain(&*port);
            queue.rx_burst(&mut got);
            // Late answers of the exchange above have other contents.
            for data in got.iter().map(|frame| frame.data()).filter(|data| data[5] == BUILT) {
                let seq = u32::from_be_bytes(data[1..5].try_into().unwrap());
                assert_eq!((seq, data.len()), (*seen, len(*seen)), "{ours}");
                assert!((6..data.len()).all(|i| data[i] == Numbered::byte(seq, i)), "{ours}: frame {seq}");
                *seen += 1;
            }
            queue.recycle(&mut got);
            assert!(start.elapsed() < PATIENCE, "{ours}: {seen} frames came back");
        };
        while seen < 2000 {
            // The other end drops frames for which it has no room.
            let room = SLOTS / 2 - (sent - seen) as usize;
            sent += queue.build_burst(Route::default(), room, &mut build).expect("the link is up") as u32;
            receive(&mut *queue, &mut seen);
        }
        while seen < sent {
            receive(&mut *queue, &mut seen);
        }
        peer.signal(Signal::STOP);
        let filled = queue.build_burst(Route::default(), 1000, &mut build).expect("the link is up");
        assert_eq!(filled, SLOTS, "{ours}: a ring holds as many frames as it has slots");
        assert_eq!(
            queue.build_burst(Route::default(), 1, &mut AtOnce(|_: &mut [u8]| panic!("there is no room"))),
            Some(0)
        );
        assert_eq!(port.stats().tx_dropped, 0);
        let stalled = |queue: &mut dyn PortQueue, ms: u64| {
            let now = stack::time::Instant::ZERO.after(Duration::from_millis(ms));
            queue.stalled(Route::default(), now)
        };
        assert_eq!(
            [1, 2, 50_000, 60_001].map(|ms| stalled(&mut *queue, ms)),
            [
                Stalled::Perhaps(Duration::from_millis(1)),
                Stalled::Yes(Duration::from_millis(100)),
                Stalled::Yes(Duration::from_millis(100)),
                Stalled::No
            ]
        );
        peer.signal(Signal::CONT);
        sent += filled as u32;
        while seen < sent {
            receive(&mut *queue, &mut seen);
        }
        // A client returns its slots when it receives again.
        let start = Instant::now();
        while stalled(&mut *queue, 70_000) != Stalled::No {
            assert!(start.elapsed() < PATIENCE, "{ours}: the peer has taken everything");
            receive(&mut *queue, &mut seen);
        }
        assert_eq!(
            queue.build_burst(Route::default(), 1, &mut AtOnce(|_: &mut [u8]| None)),
            Some(0),
            "who has nothing more says so"
        );
    }
}

// Goal: short frames are copied in whole blocks, past their ends, but neither bytes nor length leak into the next frame.
#[test]
fn frames_of_every_length_come_back_whole() {
    const LONGEST_SHORT: usize = 512;
    for ours in ["server", "client"] {
        let path = socket(&format!("whole-{ours}"));
        let (port, _peer) = joined(ours, |role| format!("memif:{},role={role}", path.display()));
        let mut queue = port.take_queue(0).unwrap();
        exchange(&*port, &mut *queue, ours);

        let byte = |len: usize, i: usize| (len * 31 + i * 7) as u8;
        let max = port.info().max_frame();
        let lens: Vec<usize> = (15..LONGEST_SHORT + 40).chain(max - 20..=max).collect();
        let (mut sent, mut seen) = (0, 0);
        let mut got = RxBurst::new();
        let mut burst = TxBurst::new();
        let mut clock = Ticker::new();
        let start = Instant::now();
        while seen < lens.len() {
            clock.maintain(&*port);
            let more = (lens.len() - sent).min(64 - (sent - seen)).min(burst.remaining_capacity());
            queue.alloc_burst(&mut burst, more);
            for (frame, &len) in burst.iter_mut().zip(&lens[sent..]) {
                frame.set_len(len);
                frame.data_mut().iter_mut().enumerate().for_each(|(i, to)| *to = byte(len, i));
            }
            sent += queue.tx_burst(Route::default(), &mut burst);
            burst.clear();
            queue.rx_burst(&mut got);
            for data in got.iter().map(|frame| frame.data()) {
                // Late answers of the exchange above have other contents.
                if data.len() == lens[seen] && (1..data.len()).all(|i| data[i] == byte(data.len(), i)) {
                    seen += 1;
                }
            }
            queue.recycle(&mut got);
            assert!(start.elapsed() < PATIENCE, "{ours}: no frame of {} bytes came back", lens[seen]);
        }
    }
}

/// Bytes of a process's mappings of memif regions that are huge pages.
fn huge_bytes(peer: &Peer) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", peer.0.id())).unwrap();
    let mut of_memif = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(kb) = line.strip_prefix("ShmemPmdMapped:") {
            let kb: u64 = kb.trim().trim_end_matches(" kB").parse().unwrap();
            sum += if of_memif { kb << 10 } else { 0 };
        } else if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            of_memif = line.contains("memif_region");
        }
    }
    sum
}

// Goal: buffers are in huge pages. With small pages accesses to the buffers miss the TLB, which costs a fifth to a third of the speed. Both
// ends are separate processes, because in this process the rings of other tests come and go.
#[test]
fn rings_are_huge_pages_at_both_ends() {
    if !stack::device::collapse_slice(&vec![1u8; 6 << 20]) {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED rings_are_huge_pages_at_both_ends: the kernel makes none (MADV_COLLAPSE, Linux 6.1)"
        );
        return;
    }
    let path = socket("huge");
    let ends =
        ["server", "client"].map(|role| Peer::start(&format!("memif:{},role={role}", path.display()), 1));
    let start = Instant::now();
    while ends.iter().any(|end| huge_bytes(end) < 8 << 20) {
        let bytes = ends.each_ref().map(huge_bytes);
        assert!(start.elapsed() < PATIENCE, "server and client have {bytes:?} bytes of huge pages");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(ends);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn several_queues() {
    let path = socket("queues");
    let port = open(&format!("memif:{},role=server", path.display()), 3);
    let _peer = Peer::start(&format!("memif:{},role=client", path.display()), 3);
    for i in 0..3 {
        let mut queue = port.take_queue(i).unwrap();
        assert!(port.take_queue(i).is_none());
        exchange(&*port, &mut *queue, &format!("queue {i}"));
    }
}

#[test]
fn a_peer_that_dies_under_full_traffic_harms_nobody() {
    // Goal: the driver unmaps its rings while another thread uses them; nothing may be touched afterwards.
    let path = socket("dies");
    let server = format!("memif:{},role=server", path.display());
    let port: Arc<dyn Port> = Arc::from(open(&format!("memif:{},role=client", path.display()), 2));
    let done = Arc::new(AtomicBool::new(false));
    let echoed = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..2)
        .map(|i| {
            let (port, done, echoed) = (Arc::clone(&port), Arc::clone(&done), Arc::clone(&echoed));
            std::thread::spawn(move || {
                let mut queue = port.take_queue(i).unwrap();
                let mut got = RxBurst::new();
                let mut burst = TxBurst::new();
                let mut clock = Ticker::new();
                while !done.load(Ordering::Relaxed) {
                    // Both threads maintain the port concurrently.
                    clock.maintain(&*port);
                    while !burst.is_full() {
                        let Some(mut frame) = queue.alloc() else { break };
                        frame.set_len(1000);
                        burst.push(frame);
                    }
                    queue.tx_burst(Route::default(), &mut burst);
                    queue.rx_burst(&mut got);
                    echoed.fetch_add(got.len() as u64, Ordering::Relaxed);
                    queue.recycle(&mut got);
                }
            })
        })
        .collect();
    for _ in 0..6 {
        let peer = Peer::start(&server, 2);
        let before = echoed.load(Ordering::Relaxed);
        let start = Instant::now();
        while echoed.load(Ordering::Relaxed) < before + 10_000 {
            assert!(start.elapsed() < PATIENCE, "no traffic");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(peer);
    }
    done.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn ports_come_and_go_and_frames_outlive_them() {
    // Goal: a closed port returns its memory: far more rounds than memory would last for.
    let path = socket("again");
    let mut kept = Vec::new();
    for round in 0..40u8 {
        let options = PortOptions { queues: 2, frames: 512, ..PortOptions::default() };
        let spec: PortSpec = format!("memif:{},role=server", path.display()).parse().unwrap();
        let port = spec.open(&options).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let mut queue = port.take_queue(1).unwrap();
        drop(port);
        let mut frame = queue.alloc().unwrap();
        assert!(frame.capacity() >= 4218);
        frame.fill(&[round; 100]);
        if round % 16 == 0 {
            kept.push(frame);
        }
    }
    for (i, frame) in kept.iter().enumerate() {
        assert_eq!(frame.data(), [i as u8 * 16; 100]);
    }
}

#[test]
fn a_server_that_stands_still_stalls_no_other_port() {
    // Goal: when the server's backlog of unaccepted connections is full, connecting fails instead of blocking, because one thread maintains
    // all ports.
    let path = socket("still");
    let peer = Peer::start(&format!("memif:{},role=server", path.display()), 1);
    peer.signal(Signal::STOP);
    let port = open(&format!("memif:{},role=client", path.display()), 1);
    // Long enough for several attempts: the backlog holds two connections.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        port.maintain();
    }
    let (opened, other) = mpsc::channel();
    std::thread::spawn(move || {
        let path = socket("moving");
        opened.send(open(&format!("memif:{},role=server", path.display()), 1)).unwrap();
        let _ = std::fs::remove_file(&path);
    });
    let other = other.recv_timeout(PATIENCE);
    peer.signal(Signal::CONT);
    drop(other.expect("another port opens"));
    let mut clock = Ticker::new();
    let start = Instant::now();
    while !port.link_up() {
        assert!(start.elapsed() < PATIENCE, "no link");
        clock.maintain(&*port);
    }
}

#[test]
fn buffers_are_bounded_and_come_back() {
    let path = socket("bounded");
    let port = open(&format!("memif:{},role=server", path.display()), 1);
    let mut queue = port.take_queue(0).unwrap();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let frames: Vec<_> = std::iter::from_fn(|| queue.alloc()).collect();
        counts.push(frames.len());
        // On another thread, where the pool has no cache.
        std::thread::spawn(move || drop(frames)).join().unwrap();
    }
    assert!(counts[0] >= 1024 && counts.iter().all(|&n| n.abs_diff(counts[0]) <= 32), "{counts:?}");
}

#[test]
fn foreign_and_long_frames() {
    let path = socket("foreign");
    let port = open(&format!("memif:{},role=server", path.display()), 1);
    let _peer = Peer::start(&format!("memif:{},role=client", path.display()), 1);
    let mut queue = port.take_queue(0).unwrap();
    exchange(&*port, &mut *queue, "before");
    let mut burst = TxBurst::new();
    burst.push(stack::port::Frame::from_vec(vec![0; port.info().max_frame() + 1]));
    burst.push(stack::port::Frame::from_vec(vec![7; 100]));
    let mut own = queue.alloc().unwrap();
    own.fill(&[8; 101]);
    burst.push(own);
    assert_eq!(queue.tx_burst(Route::default(), &mut burst), 3);
    assert_eq!(port.stats().tx_dropped, 1, "the long one");
    let mut answers = Vec::new();
    let start = Instant::now();
    while answers.len() < 2 && start.elapsed() < PATIENCE {
        let mut got = RxBurst::new();
        queue.rx_burst(&mut got);
        answers.extend(got.iter().map(|frame| (frame.len(), frame.data()[1])).filter(|&(len, _)| len < 1000));
    }
    assert_eq!(answers, [(100, 7), (101, 8)]);
}

#[test]
fn a_peer_with_longer_frames_does_not_overrun_buffers() {
    let path = socket("longer");
    let spec: PortSpec = format!("memif:{},role=server", path.display()).parse().unwrap();
    let port = spec.open(&PortOptions { mtu: 1500, frames: 1024, ..PortOptions::default() }).unwrap();
    let peer: PortSpec = format!("memif:{},role=client", path.display()).parse().unwrap();
    let peer = peer.open(&PortOptions { mtu: 9000, frames: 1024, ..PortOptions::default() }).unwrap();
    let (mut queue, mut from) = (port.take_queue(0).unwrap(), peer.take_queue(0).unwrap());
    let start = Instant::now();
    let mut got = RxBurst::new();
    while got.is_empty() {
        assert!(start.elapsed() < PATIENCE);
        peer.maintain();
        let mut burst = TxBurst::new();
        for len in [9018, 1514] {
            let Some(mut frame) = from.alloc() else { continue };
            frame.set_len(len);
            burst.push(frame);
        }
        from.tx_burst(Route::default(), &mut burst);
        queue.rx_burst(&mut got);
    }
    assert!(got.iter().all(|frame| frame.len() == 1514));
    assert!(port.stats().rx_dropped > 0, "the long frames are counted");
}

#[test]
fn errors_say_what_to_do() {
    let path = socket("busy");
    let spec = format!("memif:{},role=server", path.display());
    let _port = open(&spec, 1);
    let error = |spec: &str, options: &PortOptions| {
        spec.parse::<PortSpec>().unwrap().open(options).err().expect("an error").to_string()
    };
    let options = PortOptions { frames: 1024, ..PortOptions::default() };
    let busy = error(&spec, &options);
    assert!(busy.contains("another process listens") && busy.contains("take another path"), "{busy}");
    let option = error("memif:/tmp/roce-option.sock,colour=red", &options);
    assert!(option.contains("there is no option colour; the options are rsize"), "{option}");
}

// Goal: both ends sleep between frames and are woken by each frame, whenever it arrives between the last poll and the sleep. Nothing in
// this test makes up for a lost wake-up.
#[test]
fn an_end_that_sleeps_is_woken() {
    const ROUNDS: u32 = 5000;
    let path = socket("sleep");
    let spec = |role: &str| format!("memif:{},role={role}", path.display());
    let ports = ["server", "client"].map(|role| open(&spec(role), 1));
    let mut queues = ports.each_ref().map(|port| port.take_queue(0).unwrap());
    let start = Instant::now();
    // Each thread maintains its own end.
    while ports.each_ref().map(|port| port.link_up()) != [true, true] {
        assert!(start.elapsed() < PATIENCE, "no link");
    }
    let play = |queue: &mut Box<dyn PortQueue>, begins: bool| {
        let (sleeper, mut got, mut slept) = (Sleeper::default(), RxBurst::new(), 0);
        for round in 0..ROUNDS {
            if !begins || round > 0 {
                let start = Instant::now();
                while queue.rx_burst(&mut got) == 0 {
                    assert!(start.elapsed() < PATIENCE, "round {round}: nothing woke this end");
                    let mut sleep = sleeper.begin().unwrap();
                    match queue.arm() {
                        Armed::Event(event) => {
                            sleep.watch(0, Some(event)).unwrap();
                            slept += 1;
                            sleep.wait(&[], PATIENCE);
                        }
                        Armed::Pending => {}
                        other => panic!("this port tells when frames arrive, and not {other:?}"),
                    }
                }
                assert_eq!(got[0].data()[..4], (2 * round - u32::from(begins)).to_be_bytes());
                queue.recycle(&mut got);
            }
            // Sometimes the other end is asleep by now, and sometimes not yet.
            for _ in 0..round % 7 * 100 {
                std::hint::spin_loop();
            }
            let mut burst = TxBurst::new();
            let mut frame = queue.alloc().unwrap();
            frame.fill(&(2 * round + u32::from(!begins)).to_be_bytes().repeat(16));
            burst.push(frame);
            // A server sends into the slots that the client has given it.
            let start = Instant::now();
            while queue.tx_burst(Route::default(), &mut burst) == 0 {
                assert!(start.elapsed() < PATIENCE, "round {round}: nothing can be sent");
            }
        }
        slept
    };
    let [a, b] = &mut queues;
    let slept = std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, false));
        [play(a, true), other.join().unwrap()]
    });
    assert!(slept.iter().all(|slept| *slept > ROUNDS / 10), "slept {slept:?} times");
}

// Goal: an end without a peer need not be polled: a connecting client wakes the server, and a client knows when it will try again.
#[test]
fn an_end_without_a_peer_sleeps_until_one_comes() {
    let path = socket("alone");
    let spec = |role: &str| format!("memif:{},role={role}", path.display());
    let client = open(&spec("client"), 1);
    let mut from_client = client.take_queue(0).unwrap();
    let Armed::Down(again, None) = from_client.arm() else { panic!("there is no server") };
    assert!(again <= Duration::from_secs(1), "{again:?}");
    let server = open(&spec("server"), 1);
    let mut from_server = server.take_queue(0).unwrap();
    let sleeper = Sleeper::default();
    let mut sleep = sleeper.begin().unwrap();
    let Armed::Down(_, Some(event)) = from_server.arm() else { panic!("there is no client") };
    sleep.watch(0, Some(event)).unwrap();
    // The client connects on a thread of its own; the server does nothing until it is woken.
    let (start, woken) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !(client.link_up() && woken.load(Ordering::Acquire)) && start.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
        });
        sleep.wait(&[], PATIENCE);
        assert!(start.elapsed() < PATIENCE, "nothing woke the server");
        woken.store(true, Ordering::Release);
        // During the handshake with the client the server may sleep; it is woken when the link is up.
        loop {
            let mut sleep = sleeper.begin().unwrap();
            match from_server.arm() {
                Armed::Down(at_most, event) => {
                    assert!(at_most <= Duration::from_secs(1));
                    sleep.watch(0, event).unwrap();
                    sleep.wait(&[], at_most);
                }
                Armed::Pending | Armed::Unable => {}
                Armed::Event(_) => break,
            }
            assert!(start.elapsed() < PATIENCE, "no link");
            from_server.rx_burst(&mut RxBurst::new());
        }
    });
    assert!(matches!(from_server.arm(), Armed::Event(_)));
}
