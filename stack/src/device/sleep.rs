//! How a thread that turns shards sleeps until there may be work.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};

use super::claim::Core;
use super::inside_turn::inside_turn;
use crate::port::Armed;
use crate::sync::eventfd::{EventFd, to_wait_for, wait_readable};
use crate::sync::sleeper::{OTHERS, Sleep};

/// The longest sleep, after there was work, of a thread that turns shards: the port has to be maintained, and a peer may lose a
/// wake-up.
pub(super) const SLEEP: Duration = Duration::from_millis(10);

/// A sleep that nothing ends.
const NAP: Duration = Duration::from_micros(50);

/// Sleeps until one of the descriptors is readable, or the time is over.
fn nap(fds: &[BorrowedFd<'_>], time: Duration) {
    match fds {
        [] => std::thread::sleep(time),
        fds => {
            wait_readable(&mut to_wait_for::<OTHERS>(fds.iter().copied()), time);
        }
    }
}

impl Core {
    /// Sleeps until one of these shards, as bits, may have work, `fd` is readable, or `at_most` is over. Ports that cannot signal
    /// are checked every `look`. Returns at once where there is work already. Work for other shards wakes the thread as well, but for
    /// those that are `left` to others. Without shards it is a pause, of which nobody has to know for sure.
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
    /// As [`Core::sleep`], for the thread that turns one shard, and with several descriptors. Threads that turn others may sleep at the
    /// same time.
    pub(super) fn sleep_for(&self, shard: usize, fds: &[BorrowedFd<'_>], at_most: Duration, look: Duration) {
        if self.is_forked() || inside_turn() {
            return;
        }
        match self.shared.sleeper.begin_for(1 + shard, 1 << shard) {
            Some(sleep) => self.sleep_here(sleep, 1 << shard, fds, at_most, look),
            None => nap(fds, at_most.min(look)),
        }
    }
    /// As [`Core::sleep_for`], inside a poll of a queue that these shards, as bits, feed. No cancellation point: it makes system calls
    /// by itself.
    #[cold]
    pub(super) fn sleep_in_poll(&self, shards: u32, at_most: Duration) {
        if shards == 0 || self.is_forked() || inside_turn() {
            return;
        }
        self.set_polled(shards, true);
        match self.shared.sleeper.begin_for(1 + shards.trailing_zeros() as usize, shards) {
            Some(sleep) => self.sleep_here(sleep, shards, &[], at_most, at_most),
            // The helper sleeps for one of them still, or another thread that polls does.
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
                // Its frames are for whoever turns it, and wake nobody here: removing a descriptor does not fail.
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
                // Another thread turns it.
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

    // Goal: frames wake a thread that sleeps for their shard, and nobody whose program turns it: each would cost that a preemption.
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
            // Once a thread has slept for it, its descriptor is known.
            sleep(1, 0, Duration::from_millis(1));
            for _ in 0..3 {
                send();
                assert!(sleep(0, 1, PAUSE) >= PAUSE);
            }
            // They are there, and an arrival wakes whoever sleeps for the shard again.
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
