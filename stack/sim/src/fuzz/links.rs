//! Links with a process that says and writes anything: greetings, descriptors, memory that changes between and during bursts.

use super::Input;
use crate::host_liar::{
    HELLO, LINK_VERSION, Liar, MAX_FRAME, NEWS, OFFER, REFUSED, SIZE, TO_CALLED, TO_CALLER, UP, about,
    message, offer,
};
use rustix::fs::FallocateFlags;
use stack::port::host::{LinkId, LinkQueue, Links, LinksConfig};
use stack::port::{AtOnce, Frame, RxBurst, TxBurst};
use stack::registry::{Registry, RegistryConfig};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Steps of one input.
const STEPS: usize = 200;
const GOOD: &[u8] = b"from a process that keeps to the rules";

static CONFIG: LazyLock<RegistryConfig> = LazyLock::new(|| RegistryConfig {
    space: format!("roce-fuzz-{}", std::process::id()),
    ..RegistryConfig::default()
});
static REGISTRY: LazyLock<Arc<Registry>> =
    LazyLock::new(|| Arc::new(Registry::join(&CONFIG).expect("nobody else has these names")));

/// Memory that the other process changes: near what is used, or anywhere.
fn change(liar: &Liar, input: &mut Input<'_>) {
    let ring = if input.bool() { TO_CALLED } else { TO_CALLER };
    let (at, bytes) = match input.u8() % 6 {
        0 => (ring + 4, u64::from(input.u16())),
        1 => (ring + 6, u64::from(input.u8() % 80)),
        2 => (ring + 6, u64::from(input.u16())),
        3 => (ring + 64, u64::from(input.u16())),
        4 => (u64::from(input.u32()) % (SIZE - 8), input.u64()),
        _ => {
            let lens = [0, 1, 60, 256, 257, 4000, 65535, u32::MAX];
            let word = u64::from(input.pick(&lens)) << 32 | u64::from(input.u8() & 1);
            (ring + 128 + 8 * u64::from(input.u8() % 128), word)
        }
    };
    if input.bool() {
        liar.their_news.write_all_at(&[input.u8() & 1], u64::from(input.u16()) % NEWS).expect("it has it");
    }
    let len = if at < ring + 128 && at >= ring { 2 } else { 8 };
    liar.memory.write_all_at(&bytes.to_ne_bytes()[..len], at).expect("it is its own memory");
}

/// A message, with descriptors.
fn say(liar: &Liar, input: &mut Input<'_>) {
    let mut numbers = offer();
    if input.bool() {
        let at = input.below(numbers.len());
        numbers[at] = input.u32();
    }
    let bytes = match input.u8() % 8 {
        0 => message(LINK_VERSION, HELLO, &about()),
        1 | 2 => message(LINK_VERSION, OFFER, &numbers),
        3 => message(LINK_VERSION, UP, &[input.u32() % 300]),
        4 => message(LINK_VERSION, REFUSED, &[u32::from(input.u8() % 6)]),
        5 => message(input.u32(), u32::from(input.u8() % 8), &numbers),
        6 => (0..input.u8()).map(|_| input.u8()).collect(),
        _ => {
            liar.send(&message(LINK_VERSION, OFFER, &offer()), &liar.offer_fds());
            return;
        }
    };
    let [memory, news] = liar.offer_fds();
    let known = [memory, news, liar.socket.as_fd()];
    let count = input.pick(&[0, 0, 1, 2, 2, 3, 3, 60]);
    let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| input.pick(&known)).collect();
    liar.send(&bytes, &fds);
}

fn receive(queue: &mut LinkQueue) -> Vec<Vec<u8>> {
    let mut got = RxBurst::new();
    queue.rx_burst(&mut got);
    let frames: Vec<_> = got.iter().map(|frame| frame.data().to_vec()).collect();
    assert!(
        frames.iter().all(|frame| (1..=MAX_FRAME).contains(&frame.len())),
        "a frame of no length that there is"
    );
    queue.recycle(&mut got);
    frames
}

/// Sends, on the first link that there is.
fn transmit(queue: &mut LinkQueue, liar: &Liar, input: &mut Input<'_>) {
    let link: Option<LinkId> = queue.links().next();
    let Some(link) = link else { return };
    if input.bool() {
        let len = usize::from(input.u16()) % (2 * MAX_FRAME);
        let mut burst: TxBurst = (0..input.u8() % 8).map(|_| Frame::from_vec(vec![7; len])).collect();
        queue.tx_burst(link, &mut burst);
        return;
    }
    let most = input.below(40);
    let mut build = AtOnce(|buffer: &mut [u8]| {
        assert_eq!(buffer.len(), MAX_FRAME);
        change(liar, input);
        buffer.fill(9);
        Some(1 + usize::from(input.u16()) % MAX_FRAME)
    });
    queue.build_burst(link, most, &mut build);
}

/// Whatever the other process does, frames that come are frames, nothing waits for it, and the next one gets its link.
///
/// # Panics
/// When that is not so.
pub fn host_links(bytes: &[u8]) {
    let mut input = Input(bytes);
    let second = Duration::from_secs(1);
    let config =
        LinksConfig { queues: 1, max_frame: MAX_FRAME, frames: 256, patience: 10 * second, stall: second };
    let links = Links::new(Arc::clone(&REGISTRY), &config).expect("there are descriptors");
    let mut queue = links.take_queue(0).expect("it has a queue");
    let run = REGISTRY.runs()[0].index();
    let call = |queue: &mut LinkQueue| loop {
        // A link that is over may not be noticed yet: this process is the other one as well, and does not end.
        receive(queue);
        while queue.next_ended().is_some() {}
        drop(queue.arm());
        if let Some(liar) = Liar::try_call(&CONFIG, run, Some(second)) {
            break liar;
        }
    };
    let mut liar = call(&mut queue);
    if input.u8() % 4 > 0 {
        let _ = liar.is_accepted();
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 10 {
            0 | 1 => say(&liar, &mut input),
            2 => liar = call(&mut queue),
            3 => drop(receive(&mut queue)),
            4 => drop(queue.arm()),
            5 => transmit(&mut queue, &liar, &mut input),
            6 => _ = liar.wake(usize::from(input.u8())),
            7 => {
                let _ = rustix::fs::ftruncate(&liar.memory, u64::from(input.u32()));
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(&liar.memory, hole, u64::from(input.u16()), SIZE / 2);
            }
            8 => drop(queue.next_ended()),
            _ => change(&liar, &mut input),
        }
    }
    drop(liar);
    let good = loop {
        let good = call(&mut queue);
        if good.is_accepted() {
            break good;
        }
    };
    good.send_first(GOOD);
    // What the one before it sent comes first.
    while !receive(&mut queue).iter().any(|frame| frame == GOOD) {
        drop(queue.next_ended());
    }
}
