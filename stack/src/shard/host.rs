//! The IP host of the device, as a shard uses it: the host receives frames that are no RoCE packets, and the shard that calls the
//! host sends the host's frames.

use super::counters::{Counter, Counters};
use super::outbox::{Outbox, Traffic};
use super::shared::Shared;
use crate::id::{Gid, Mac};
use crate::net::{FRAME_MAX, Net};
use crate::port::{Frame, Route};
use crate::time::Instant;
use crate::wire::Discard;

/// The host's frames leave by the first route. A port with several routes has its IP host below it, and then this host sends nothing.
const ROUTE: Route = Route(0);

/// Access to the IP host, with what a shard needs to call it. Frames that the host sends go to the outbox.
pub(super) struct IpHost<'a> {
    pub now: Instant,
    pub shared: &'a Shared,
    pub counters: &'a Counters,
    pub outbox: &'a mut Outbox,
}

impl IpHost<'_> {
    /// Calls the IP host, then sends the frames that it has ready.
    pub fn ask<R>(&mut self, ask: impl FnOnce(&mut Net, Instant) -> R) -> R {
        self.shared.with_net(|net| {
            let answer = ask(net, self.now);
            self.send(net);
            answer
        })
    }

    /// Runs the IP host if something is due, and sends its frames.
    #[inline]
    pub fn run(&mut self) {
        if self.now >= self.shared.net_deadline() {
            self.ask(|_, _| ());
        }
    }

    /// Passes a frame that is no RoCE packet to the IP host, which counts its outcome.
    pub fn receive(&mut self, frame: &Frame) {
        self.counters.add(Counter::NetFrames, 1);
        let full = self.outbox.room(Traffic::Requests, ROUTE) == 0;
        let mut reply = if full { None } else { self.outbox.take_frame() };
        self.shared.with_net(|net| {
            let buffer = reply.as_mut().map_or(&mut [][..], |reply| reply.buffer_mut());
            let len = net.handle_frame(self.now, frame.data(), buffer);
            match (reply, len) {
                (Some(mut reply), Some(len)) => {
                    reply.set_len(len);
                    self.outbox.push(Traffic::Requests, ROUTE, reply);
                }
                (Some(reply), None) => self.outbox.keep_frame(reply),
                (None, _) => {}
            }
            self.send(net);
        });
    }

    /// Notes where a message that will be answered came from: the reply goes to the source Ethernet address of this frame.
    #[cold]
    pub fn note_reply_mac(&self, frame: &[u8], src: &Gid) {
        if let Some((_, rest)) = frame.split_first_chunk::<6>()
            && let Some((station, _)) = rest.split_first_chunk()
        {
            self.shared.with_net(|net| net.note_reply_mac(self.now, src, Mac(*station)));
        }
    }

    /// Sends the frames that the IP host has ready. A frame without a buffer is lost as on the wire: it counts as one of the
    /// solicitations after which a neighbour is unreachable.
    fn send(&mut self, net: &mut Net) {
        while self.outbox.has_room_for_host() {
            let Some(mut frame) = self.outbox.take_frame() else {
                if net.poll_transmit(self.now, &mut [0; FRAME_MAX]).is_none() {
                    return;
                }
                self.counters.discard(Discard::NoBuffer, 1);
                continue;
            };
            match net.poll_transmit(self.now, frame.buffer_mut()) {
                Some(len) => {
                    frame.set_len(len);
                    self.outbox.push(Traffic::Requests, ROUTE, frame);
                }
                None => return self.outbox.keep_frame(frame),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{FRAME_MAX, NetConfig, NetCounter};
    use crate::port::TxBurst;
    use crate::port::limited::Limited;
    use crate::shard::env::Env;
    use crate::shard::scale::shared;

    const OURS: [u8; 4] = [10, 0, 0, 1];

    fn env(buffers: usize) -> Env {
        Env::new(0, shared(1, 4), Box::new(Limited { takes: 0, buffers }), Instant::from_nanos(1_000_000_000))
    }

    /// Frames of a neighbour that has an address, and resolves the device's: an announcement and a request.
    fn frames_of_a_neighbour() -> [Frame; 2] {
        let mut peer = Net::new(&NetConfig::new(Mac([2, 0, 0, 0, 0, 0x21])));
        peer.add_address([10, 0, 0, 2].into(), 24);
        peer.resolve(Instant::ZERO, &Gid::v4(OURS));
        [(); 2].map(|()| {
            let mut out = vec![0; FRAME_MAX];
            let len = peer.poll_transmit(Instant::ZERO, &mut out).expect("both are due");
            out.truncate(len);
            Frame::from_vec(out)
        })
    }

    /// The outcome of frames at the IP host, and the number of frames that the shard dropped.
    fn outcomes(env: &Env) -> (Vec<(NetCounter, u64)>, u64) {
        let counted = |net: &mut Net| net.counters().filter(|(_, n)| *n > 0).collect();
        (env.shared.with_net(counted), env.counters.snapshot().drops())
    }

    #[test]
    fn an_answer_that_cannot_be_sent_is_counted_as_such() {
        let [_, question] = frames_of_a_neighbour();
        // Buffers exist, and one is left in the end; but the waiting frames leave no room for another.
        let mut full = env(TxBurst::new().capacity() + 1);
        while full.outbox.room(Traffic::Requests, ROUTE) > 0 {
            let frame = full.outbox.take_frame().expect("it has a buffer");
            full.outbox.push(Traffic::Requests, ROUTE, frame);
        }
        full.host().receive(&question);
        let unanswered = (vec![(NetCounter::NeighbourLearned, 1), (NetCounter::NoReplyBuffer, 1)], 0);
        assert_eq!(outcomes(&full), unanswered);
        assert!(full.outbox.take_frame().is_some(), "the buffer is there for who has room");

        let mut without = env(0);
        without.host().receive(&question);
        assert_eq!(outcomes(&without), unanswered);

        let mut well = env(1);
        well.host().receive(&question);
        let answered = (vec![(NetCounter::ArpAnswered, 1), (NetCounter::NeighbourLearned, 1)], 0);
        assert_eq!(outcomes(&well), answered);
        assert_eq!(well.outbox.backlog(), 1);
    }

    #[test]
    fn a_frame_without_an_answer_needs_no_buffer() {
        let [announcement, _] = frames_of_a_neighbour();
        let mut env = env(0);
        env.host().receive(&announcement);
        assert_eq!(outcomes(&env), (vec![(NetCounter::NotForUs, 1)], 0));
    }
}
