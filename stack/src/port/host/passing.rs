//! Passes packets of the network on to guests, by links ([`ForGuests`]).
//!
//! A packet for a guest waits while the link is made, and while it is full. How many wait is bounded, and the others are lost, as those
//! are that find a socket's buffer full: nobody else's packets wait for a guest.

use super::queue::{LinkQueue, Reach};
use crate::port::for_guests::{AT_ONCE, ForGuests};
use crate::port::frame::{Frame, TxBurst};
use crate::registry::Run;
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets of a queue that wait, in all and for one run of numbers.
const WAITING: usize = 1024;
const WAITING_FOR_ONE: usize = WAITING / 2;

/// The packets of a queue for guests.
pub(super) struct Passing {
    index: usize,
    received: Arc<ForGuests>,
    waiting: Vec<Waiting>,
    /// Whether a link is full, which no event tells the end of.
    is_stuck: bool,
}

/// Packets for a run, in the order in which they came: one at least.
struct Waiting {
    run: Run,
    frames: VecDeque<Frame>,
}

impl Passing {
    /// Those of a queue.
    pub fn new(index: usize, received: Arc<ForGuests>) -> Self {
        Self { index, received, waiting: Vec::new(), is_stuck: false }
    }

    /// Whether packets wait.
    #[inline]
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether some of them wait for room.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Whether the sockets have received some since the last call of [`pass_on`](Self::pass_on).
    #[inline]
    pub fn has_more(&self) -> bool {
        self.received.waits(self.index)
    }

    /// Passes on what can be.
    #[cold]
    pub fn pass_on(&mut self, links: &mut LinkQueue) {
        for (run, frame) in core::iter::from_fn(|| self.received.pop(self.index)).take(AT_ONCE) {
            if !wait(&mut self.waiting, run, frame) {
                links.counters().rx_strayed.add(1);
            }
        }
        self.is_stuck = false;
        self.waiting.retain_mut(|waiting| {
            match links.route_to(*waiting.run.numbers().start()) {
                Reach::Link(link) => {
                    while !waiting.frames.is_empty() {
                        let mut burst = TxBurst::new();
                        let count = waiting.frames.len().min(burst.capacity());
                        burst.extend(waiting.frames.drain(..count));
                        let taken = links.tx_burst(link, &mut burst);
                        links.counters().passed_on.add(taken as u64);
                        if !burst.is_empty() {
                            burst.drain(..).rev().for_each(|frame| waiting.frames.push_front(frame));
                            self.is_stuck = true;
                            break;
                        }
                    }
                }
                // The shard is woken when that is found out.
                Reach::Asked => {}
                Reach::Ourselves | Reach::Vacant | Reach::Unlinked => {
                    links.counters().rx_strayed.add(waiting.frames.len() as u64);
                    waiting.frames.clear();
                }
            }
            !waiting.frames.is_empty()
        });
    }
}

/// Has a packet wait, unless too many do.
fn wait(all: &mut Vec<Waiting>, run: Run, frame: Frame) -> bool {
    let count: usize = all.iter().map(|waiting| waiting.frames.len()).sum();
    if count >= WAITING {
        return false;
    }
    match all.iter_mut().find(|waiting| waiting.run == run) {
        Some(waiting) if waiting.frames.len() >= WAITING_FOR_ONE => return false,
        Some(waiting) => waiting.frames.push_back(frame),
        None => all.push(Waiting { run, frames: [frame].into() }),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a guest that takes nothing costs a bounded number of buffers, and leaves some to others; order is kept.
    #[test]
    fn what_waits_is_bounded_for_each_guest_and_for_all() {
        let mut all = Vec::new();
        let mut put = |run: usize, count: usize| {
            (0..count)
                .filter(|number| {
                    wait(&mut all, Run::at(run).unwrap(), Frame::from_vec(vec![*number as u8; 64]))
                })
                .count()
        };
        assert_eq!(put(1, 2 * WAITING), WAITING_FOR_ONE);
        assert_eq!(put(2, 3), 3);
        assert_eq!(put(3, WAITING) + WAITING_FOR_ONE + 3, WAITING);
        assert_eq!(put(2, 1), 0);
        let second: Vec<u8> = all[1].frames.iter().map(|frame| frame.data()[0]).collect();
        assert_eq!(second, [0, 1, 2]);
    }
}
