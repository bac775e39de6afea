//! A memif whose peer does anything: control messages, descriptors, memory that changes between and during bursts.

use super::Input;
use crate::memif_peer::{
    BUFFER, Peer, SIZE, SLOTS, TO_CLIENT, TO_SERVER, add_region, add_ring, buffer, init, memory, message,
    server,
};
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use stack::port::{AtOnce, Frame, PortQueue, Route, RxBurst, TxBurst};
use std::os::fd::{AsFd, BorrowedFd};

/// What a server says to a second client.
const TAKEN: &str = "another client is connected already";
/// What it says to one whose turn another one has taken.
const OUTRUN: &str = "others came before this was done";

/// Steps of one input.
const STEPS: usize = 200;
const GOOD: &[u8] = b"from a peer that keeps to the rules";

/// Memory that the peer changes: near what is used, or anywhere.
fn change(peer: &Peer, input: &mut Input<'_>) {
    let ring = if input.u8() & 1 == 0 { TO_SERVER } else { TO_CLIENT };
    let (head, tail) = (peer.word(ring + 6), peer.word(ring + 64));
    let near = |input: &mut Input<'_>, of: u16| of.wrapping_add(u16::from(input.u8() % 64));
    match input.u8() % 8 {
        0 => peer.put(ring + 4, &input.u16().to_le_bytes()),
        1 => peer.put(ring + 6, &near(input, tail).to_le_bytes()),
        2 => peer.put(ring + 6, &input.u16().to_le_bytes()),
        3 => peer.put(ring + 64, &near(input, head).to_le_bytes()),
        4 => peer.put(ring + 64, &input.u16().to_le_bytes()),
        5 => peer.put(u64::from(input.u32()) % (SIZE - 8), &input.u64().to_le_bytes()),
        6 => {
            let slot = near(input, head);
            peer.describe(ring, slot, input.u16(), input.u16(), input.u32(), input.u32());
        }
        _ => {
            let slot = near(input, head);
            let lens = [0, 1, 60, 256, 257, 4000, BUFFER, 65535, u32::MAX];
            let places = [buffer(3), 0, SIZE as u32 - 60, SIZE as u32, u32::MAX, TO_SERVER as u32];
            let [len, place] = [input.u8(), input.u8()].map(usize::from);
            let flags = u16::from(input.u8() & 1);
            peer.describe(ring, slot, flags, 0, lens[len % lens.len()], places[place % places.len()]);
        }
    }
}

/// A message of the peer's, with descriptors.
fn say(peer: &Peer, input: &mut Input<'_>) {
    let bytes = match input.u8() % 6 {
        0 => init(),
        1 => add_region(input.u16(), if input.u8() & 1 == 0 { SIZE } else { input.u64() }),
        2 => add_ring(input.u8() & 1 == 0, input.u16(), input.u32(), input.u8()),
        3 => message(u16::from(input.u8() % 10), &[&input.u64().to_le_bytes(), &input.u64().to_le_bytes()]),
        4 => {
            let len = usize::from(input.u8());
            (0..len).map(|_| input.u8()).collect()
        }
        _ => return peer.play(peer.script()),
    };
    let known = [peer.memory.as_fd(), peer.events[0].as_fd(), peer.events[1].as_fd(), peer.socket.as_fd()];
    let count = [0, 0, 1, 1, 1, 2, 9, 60][usize::from(input.u8() % 8)];
    let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| known[usize::from(input.u8() % 4)]).collect();
    peer.send(&bytes, &fds);
}

fn receive(queue: &mut dyn PortQueue, max: usize) -> Vec<Vec<u8>> {
    let mut got = RxBurst::new();
    queue.rx_burst(&mut got);
    let frames: Vec<_> = got.iter().map(|frame| frame.data().to_vec()).collect();
    assert!(
        frames.iter().all(|frame| (1..=max).contains(&frame.len())),
        "a frame of no length that there is"
    );
    queue.recycle(&mut got);
    frames
}

/// Whatever the peer does, frames that come are frames, nothing waits for it, and the port takes the next peer.
///
/// # Panics
/// When that is not so.
pub fn memif_peer(bytes: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut input = Input(bytes);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let (_dir, path, port) = server(&format!("fuzz-{number}"), 256);
    let max = port.info().max_frame();
    let mut queue = port.take_queue(0).expect("it has a queue");
    // The port accepts between its bursts alone, and only a few peers can wait for that.
    let come = || Peer::among_others(&path, memory(SIZE, SealFlags::SHRINK), || port.maintain());
    let mut peer = come();
    if input.u8() % 4 > 0 {
        peer.play(peer.script());
        let _ = peer.outcome(&*port);
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 12 {
            0 | 1 => say(&peer, &mut input),
            2 => peer = come(),
            3 => port.maintain(),
            4 => drop(receive(&mut *queue, max)),
            5 => drop(queue.arm()),
            6 => {
                let len = usize::from(input.u16()) % (2 * max);
                let mut burst: TxBurst = (0..input.u8() % 8).map(|_| Frame::from_vec(vec![7; len])).collect();
                queue.tx_burst(Route::default(), &mut burst);
            }
            7 => {
                // The peer changes its memory while frames are built in it.
                let most = usize::from(input.u8() % 40);
                queue.build_burst(
                    Route::default(),
                    most,
                    &mut AtOnce(|buffer: &mut [u8]| {
                        assert_eq!(buffer.len(), max);
                        change(&peer, &mut input);
                        buffer.fill(9);
                        Some(1 + usize::from(input.u16()) % max)
                    }),
                );
            }
            8 => {
                let flags = if input.u8() & 1 == 0 { OFlags::empty() } else { OFlags::NONBLOCK };
                let _ = rustix::fs::fcntl_setfl(&peer.events[1], flags);
                if flags == OFlags::NONBLOCK {
                    let _ = rustix::io::write(&peer.events[1], &(u64::MAX - 1).to_ne_bytes());
                }
            }
            9 => {
                let _ = rustix::fs::ftruncate(&peer.memory, u64::from(input.u32()));
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(&peer.memory, hole, u64::from(input.u16()), SIZE / 2);
            }
            _ => change(&peer, &mut input),
        }
    }
    drop(peer);
    let good = loop {
        while port.link_up() {}
        let good = come();
        good.play(good.script());
        match good.outcome(&*port) {
            Ok(()) => break good,
            // A peer may have sent its own socket along: then it is there until a thread of the port has closed that. And one for which no
            // thread is free, as those of other ports of this process are busy, takes the turn of the one before it.
            Err(why) => {
                assert!([TAKEN, OUTRUN].contains(&&*why), "a peer that keeps to the rules connects: {why}")
            }
        }
    };
    good.send_frame(0, GOOD);
    good.give_slots(SLOTS);
    // What the peer before it sent comes first: each burst takes one of its slots at least.
    let mut bursts = (0..=SLOTS).map(|_| receive(&mut *queue, max));
    assert!(bursts.any(|frames| frames == [GOOD]), "the frame of the next peer does not come");
}
