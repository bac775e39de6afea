//! How a thread that drives shards sleeps until there may be work.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};

use super::claim::Core;
use super::inside_turn::inside_turn;
use crate::port::Armed;
use crate::sync::eventfd::{EventFd, to_wait_for, wait_readable};
use crate::sync::sleeper::{OTHERS, Sleep};

/// The longest sleep, after there was work, of a thread that drives shards: the port needs upkeep, and a peer may lose a wake-up.
pub(super) const SLEEP: Duration = Duration::from_millis(10);

/// A sleep that no event ends.
const NAP: Duration = Duration::from_micros(50);

/// Sleeps until one of the file descriptors is readable, or the time is over.
fn nap(fds: &[BorrowedFd<'_>], time: Duration) {
    match fds {
        [] => std::thread::sleep(time),
        fds => {
            wait_readable(&mut to_wait_for::<OTHERS>(fds.iter().copied()), time);
        }
    }
}

impl Core {
    /// Sleeps until one of `shards` (a bit mask) may have work, `fd` is readable, or `at_most` has passed. Returns at once if there is work
    /// already. Ports that cannot signal are checked every `look`. Work for other shards wakes the thread as well, except for shards in
    /// `left`, which other threads serve. With no shards the sleep is a pause, and a wake-up may be missed.
    pub(super) fn sleep(
        &self,
        shards: u32,
        left: u32,
        fd: Option<&EventFd>,
        at_most: Duration,
        look: Duration,
    ) {
        let sleeper = &self.shared.sleeper;
        match if shards == 0 { sleeper.begin_pause(0, !left) } else { sleeper.begin_for(0, !left) } {
            Some(sleep) => self.sleep_here(sleep, shards, fd.map(AsFd::as_fd).as_slice(), at_most, look),
            None => nap(fd.map(AsFd::as_fd).as_slice(), at_most.min(look)),
        }
    }
    /// As [`Core::sleep`], for the thread that drives one shard, with several file descriptors. Threads that drive other shards may sleep
    /// at the same time.
    pub(super) fn sleep_for(&self, shard: usize, fds: &[BorrowedFd<'_>], at_most: Duration, look: Duration) {
        if self.is_forked() || inside_turn() {
            return;
        }
        match self.shared.sleeper.begin_for(1 + shard, 1 << shard) {
            Some(sleep) => self.sleep_here(sleep, 1 << shard, fds, at_most, look),
            None => nap(fds, at_most.min(look)),
        }
    }
    /// As [`Core::sleep_for`], inside a poll of a queue that these shards, a bit mask, feed. No cancellation point: it makes system calls
    /// directly.
    #[cold]
    pub(super) fn sleep_in_poll(&self, shards: u32, at_most: Duration) {
        if shards == 0 || self.is_forked() || inside_turn() {
            return;
        }
        self.set_polled(shards, true);
        match self.shared.sleeper.begin_for(1 + shards.trailing_zeros() as usize, shards) {
            Some(sleep) => self.sleep_here(sleep, shards, &[], at_most, at_most),
            // The helper still sleeps for one of these shards, or another polling thread does.
            None => _ = wait_readable(&mut [], at_most.min(NAP)),
        }
        self.set_polled(shards, false);
    }
    fn sleep_here(
        &self,
        mut sleep: Sleep<'_>,
        shards: u32,
        fds: &[BorrowedFd<'_>],
        at_most: Duration,
        look: Duration,
    ) {
        let mut at_most = if self.stopped() { Duration::ZERO } else { at_most };
        for index in 0..self.cells.len() {
            if shards >> index & 1 == 0 {
                // Frames for this shard must not wake this thread: another one drives it. Removing a descriptor does not fail.
                let _ = sleep.watch(index, None);
                continue;
            }
            match self.arm(index) {
                Some((Armed::Down(again, event), due)) => {
                    at_most = at_most.min(due).min(again);
                    if sleep.watch(index, event).is_err() {
                        at_most = at_most.min(look);
                    }
                }
                Some((Armed::Event(event), due)) => {
                    at_most = at_most.min(due);
                    if sleep.watch(index, Some(event)).is_err() {
                        at_most = at_most.min(look);
                    }
                }
                Some((Armed::Unable, due)) => {
                    at_most = at_most.min(due).min(look);
                    // Removing a descriptor does not fail.
                    let _ = sleep.watch(index, None);
                }
                Some((Armed::Pending, _)) => at_most = Duration::ZERO,
                // Another thread turns this shard.
                None if !self.cells[index].is_dead() => at_most = at_most.min(look),
                None => {}
            }
        }
        if let Some(wait) = self.service.wait(self.now()) {
            at_most = at_most.min(wait);
        }
        if !at_most.is_zero() {
            sleep.wait(fds, at_most);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceConfig, Drive};
    use std::net::UdpSocket;
    use std::time::Instant;

    // Goal: frames wake a thread that sleeps for their shard, and no other: a wake-up of the others would cost the program a preemption.
    #[test]
    fn frames_wake_who_turns_their_shard_alone() {
        const PAUSE: Duration = Duration::from_millis(20);
        let port = "udp:127.47.94.1".parse::<crate::port::PortSpec>().unwrap();
        let device = Device::open(DeviceConfig::new(port).drive(Drive::Embedded)).unwrap();
        let (core, peer) = (device.core(), UdpSocket::bind("127.47.94.2:0").unwrap());
        let send = || assert_eq!(peer.send_to(&[0; 64], "127.47.94.1:4791").unwrap(), 64);
        let sleep = |shards, left, at_most| {
            let began = Instant::now();
            core.sleep(shards, left, None, at_most, PAUSE);
            began.elapsed()
        };
        for _ in 0..3 {
            // Once a thread has slept for a shard, the shard's descriptor is registered.
            sleep(1, 0, Duration::from_millis(1));
            for _ in 0..3 {
                send();
                assert!(sleep(0, 1, PAUSE) >= PAUSE);
            }
            // The frames are there, and an arrival again wakes a thread that sleeps for the shard.
            assert!(core.turn(0).is_some_and(|turn| turn.rx > 0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    send();
                });
                sleep(1, 0, Duration::MAX);
            });
            assert!(core.turn(0).is_some_and(|turn| turn.rx > 0));
        }
    }
}
