//! What the IP host of the device has to do with a shard: frames that are no RoCE packets go to it, and what it sends leaves by
//! the shard that asked it.

use super::counters::Counter;
use super::env::Env;
use crate::id::{Gid, Mac};
use crate::net::{FRAME_MAX, Net};
use crate::port::Frame;
use crate::time::Instant;
use crate::wire::Discard;

impl Env {
    /// Asks the IP host something, and sends what it has to send on that.
    pub fn ask_host<R>(&mut self, ask: impl FnOnce(&mut Net, Instant) -> R) -> R {
        let shared = self.shared.clone();
        shared.with_net(|net| {
            let answer = ask(net, self.now);
            self.send_of_host(net);
            answer
        })
    }

    /// What the IP host has to send now, if something is due.
    #[inline]
    pub fn run_host(&mut self) {
        if self.now >= self.shared.net_deadline() {
            self.ask_host(|_, _| ());
        }
    }

    /// Frames that are no RoCE packets are the IP host's.
    pub fn receive_other(&mut self, frame: &Frame) {
        self.count(Counter::NetFrames);
        let reply = self.outbox.take_frame();
        let shared = self.shared.clone();
        shared.with_net(|net| {
            let mut none = [];
            let (mut reply, now) = (reply, self.now);
            let buffer = reply.as_mut().map_or(&mut none[..], |r| r.buffer_mut());
            let len = net.handle_frame(now, frame.data(), buffer);
            match (reply, len) {
                (Some(mut r), Some(len)) if !self.outbox.requests.frames.is_full() => {
                    r.set_len(len);
                    self.outbox.requests.frames.push(r);
                }
                (Some(r), _) => self.outbox.keep_frame(r),
                (None, _) => self.discard(Discard::NoBuffer),
            }
            self.send_of_host(net);
        });
    }

    /// A message that will be answered came in this frame: the reply goes to the Ethernet address that it came from.
    #[cold]
    pub fn note_reply_mac(&self, frame: &[u8], src: &Gid) {
        if let Some((_, rest)) = frame.split_first_chunk::<6>()
            && let Some((station, _)) = rest.split_first_chunk()
        {
            self.shared.with_net(|net| net.note_reply_mac(self.now, src, Mac(*station)));
        }
    }

    /// Sends what the IP host has to send. What finds no frame is lost as on the wire: it counts as one of the requests
    /// after which a neighbour is unreachable.
    fn send_of_host(&mut self, net: &mut Net) {
        while self.outbox.has_room_for_host() {
            let Some(mut frame) = self.outbox.take_frame() else {
                if net.poll_transmit(self.now, &mut [0; FRAME_MAX]).is_none() {
                    return;
                }
                self.discard(Discard::NoBuffer);
                continue;
            };
            match net.poll_transmit(self.now, frame.buffer_mut()) {
                Some(len) => {
                    frame.set_len(len);
                    self.outbox.requests.frames.push(frame);
                }
                None => return self.outbox.keep_frame(frame),
            }
        }
    }
}
