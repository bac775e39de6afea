//! READ responses and message sequence numbers against queues that wrap: requests are posted while responses come, most of which
//! are those that a peer would send next, and the rest nearly so.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::Input;
use crate::node::SendWr;
use crate::peer::{Pkt, REMOTE_KEY, REMOTE_VA, Rig, ack_with, pkt};
use crate::seen::Seen;
use stack::id::{Mtu, QpState};
use stack::proto::status::{SendFlags, WcStatus, WrOpcode};
use stack::wire::{Kind, Opcode};

/// Steps of one input.
const STEPS: usize = 160;
/// Bytes of a request's place in the buffers, and places.
const PLACE: usize = 4096;
const PLACES: u64 = 8;
const MTU: usize = Mtu::Mtu256.bytes();

/// A request packet that the peer has yet to answer, or to answer again.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    kind: Kind,
    psn: u32,
    /// Bytes of a READ.
    len: usize,
}

/// The peer's state.
#[derive(Debug, Default)]
struct Peer {
    asked: VecDeque<Unanswered>,
    /// Answers given to the first one.
    given: usize,
    msn: u32,
}

/// A posted request.
#[derive(Debug)]
struct Posted {
    id: u64,
    signalled: bool,
    /// Bytes of a READ, where it is one.
    read: Option<usize>,
}

/// The byte that a response with this number is full of.
fn fill(psn: u32) -> u8 {
    (psn ^ psn >> 8) as u8 | 1
}

/// Responses, right ones and others, to a requester whose small queue is filled again and again.
///
/// # Panics
/// If a request completes out of order or twice; if a READ succeeds and its bytes are not those of the responses with its
/// numbers; if a byte is written beside a request's place.
pub fn read_rings(data: &[u8]) {
    let mut input = Input(data);
    let setup = input.u8();
    let mut rig = Rig::with(|c| {
        (c.receives, c.buffers) = (0, 64);
        c.qp.send_depth = [4, 1, 2, 8][usize::from(setup & 3)];
        c.qp.max_rd_atomic = [4, 1, 2, 16][usize::from(setup >> 2 & 3)];
        c.qp.mtu = Mtu::Mtu256;
        c.qp.sq_psn = [0x100, 0xff_fff0][usize::from(setup >> 4 & 1)];
        c.qp.timeout = [0, 10][usize::from(setup >> 5 & 1)];
    });
    let (mut peer, mut open, mut first, mut next_id) = (Peer::default(), VecDeque::new(), BTreeMap::new(), 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let sent = match input.u8() % 8 {
            0 | 1 => {
                // The next request's place is that of the one eight before: its bytes are checked first, if it is done.
                if open.len() as u64 >= PLACES {
                    completions(&mut rig, &mut open, &first);
                }
                let posted = post(&mut rig, &mut input, next_id);
                next_id += u64::from(posted.is_some());
                open.extend(posted);
                rig.run()
            }
            2 => rig.wait(Duration::from_nanos(1 << (input.u8() % 26))),
            3 => {
                completions(&mut rig, &mut open, &first);
                continue;
            }
            _ => {
                let answer = peer.answer(&mut input);
                let sent = rig.send(&answer);
                assert!(
                    sent.is_empty() || rig.state() != QpState::Err || sent.iter().all(|s| !s.is_request())
                );
                sent
            }
        };
        for seen in sent.iter().filter(|seen| seen.is_request()) {
            peer.observe(seen);
            // The first request packet of a READ has its first number.
            if seen.kind() == Kind::ReadRequest {
                let place = (seen.reth().va - REMOTE_VA) / PLACE as u64;
                first.entry(place).or_insert(seen.psn);
            }
        }
    }
    if rig.state() != QpState::Err {
        rig.node.modify_state(rig.now, rig.qp, QpState::Err).expect("ERR may be entered from everywhere");
    }
    rig.run();
    completions(&mut rig, &mut open, &first);
    assert!(open.iter().all(|posted: &Posted| !posted.signalled), "never completed: {open:?}");
    assert!(rig.node.regions().iter().all(|r| r.guards_intact()), "something was written beside a region");
    let region = rig.node.mr(rig.buf);
    let used = PLACES as usize * PLACE;
    assert!((used / 8..region.len() / 8).all(|word| region.word(8 * word) == 0), "beside the places");
}

/// Posts a request; `None` where the queue is full. Request `id` has its own place here and there.
fn post(rig: &mut Rig, input: &mut Input<'_>, id: u64) -> Option<Posted> {
    let (kind, len) = (input.u8(), input.below(PLACE + 1));
    let place = (id % PLACES) as usize * PLACE;
    let (opcode, len) = match kind % 6 {
        0..=2 => (WrOpcode::RdmaRead, len),
        3 => (WrOpcode::AtomicFetchAndAdd, 8),
        4 => (WrOpcode::Send, len),
        _ => (WrOpcode::RdmaWrite, len),
    };
    let wr = SendWr::new(id, opcode)
        .remote(REMOTE_VA + id * PLACE as u64, REMOTE_KEY)
        .sges(&[rig.sge(place, len)]);
    let wr = if kind & 0x80 != 0 { wr.unsignaled() } else { wr };
    let signalled = wr.flags.contains(SendFlags::SIGNALED);
    rig.node.post_send(rig.qp, &wr).ok()?;
    Some(Posted { id, signalled, read: (opcode == WrOpcode::RdmaRead).then_some(len) })
}

/// Completions come in order, and a READ that succeeded holds the bytes of its responses.
fn completions(rig: &mut Rig, open: &mut VecDeque<Posted>, first: &BTreeMap<u64, u32>) {
    for (id, status) in rig.done() {
        loop {
            let posted = open.pop_front().unwrap_or_else(|| panic!("{id} completes, and is not open"));
            if posted.id != id {
                assert!(!posted.signalled, "{id} completes before {posted:?}");
                continue;
            }
            // The queue holds no more than eight: what has this place next is not posted before.
            if let (WcStatus::Success, Some(len)) = (status, posted.read) {
                let psn = first.get(&id).copied().expect("a READ that succeeded was asked for");
                let bytes = rig.node.mr(rig.buf).read((id % PLACES) as usize * PLACE, len);
                for (n, chunk) in bytes.chunks(MTU).enumerate() {
                    let expected = fill(psn.wrapping_add(n as u32) & 0xff_ffff);
                    assert!(chunk.iter().all(|byte| *byte == expected), "READ {id}: wrong bytes in part {n}");
                }
            }
            break;
        }
    }
}

impl Peer {
    /// A request packet arrived: those from its number on have to be answered again.
    fn observe(&mut self, seen: &Seen) {
        let from = self.asked.iter().position(|asked| asked.psn == seen.psn);
        if let Some(from) = from {
            self.asked.truncate(from);
        }
        if self.asked.is_empty() || from == Some(0) {
            self.given = 0;
        }
        let len = if seen.kind() == Kind::ReadRequest { seen.reth().len as usize } else { 0 };
        self.asked.push_back(Unanswered { kind: seen.kind(), psn: seen.psn, len });
    }

    /// The peer's next packet, or one near it.
    fn answer(&mut self, input: &mut Input<'_>) -> Pkt {
        let twist = input.u8();
        let asked = self.asked.front().copied().unwrap_or(Unanswered { kind: Kind::Send, psn: 0xff, len: 0 });
        let parts = asked.len.div_ceil(MTU).max(1);
        let psn = asked.psn.wrapping_add(self.given as u32) & 0xff_ffff;
        let last = self.given + 1 == parts;
        // Its count of messages, or any; its credits, or any.
        let msn = match twist & 7 {
            7 => input.u32() & 0xff_ffff,
            6 => self.msn.wrapping_sub(input.u8().into()) & 0xff_ffff,
            _ => self.msn.wrapping_add(u32::from(last)) & 0xff_ffff,
        };
        let syndrome = if twist & 8 != 0 { input.u8() & 0x1f } else { 0x1f };
        let psn = if twist >= 0xe0 {
            psn.wrapping_add_signed(i32::from(input.u8() as i8 / 16)) & 0xff_ffff
        } else {
            psn
        };
        let part = if last { asked.len - self.given * MTU } else { MTU };
        let part = if twist >= 0xf8 { input.below(2 * MTU) & !3 } else { part };
        let packet = match asked.kind {
            Kind::ReadRequest => {
                let opcode = match (self.given == 0, last) {
                    (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                    (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                    (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                    (false, true) => Opcode::RC_READ_RESPONSE_LAST,
                };
                let data = vec![fill(psn); part];
                match opcode {
                    Opcode::RC_READ_RESPONSE_MIDDLE => pkt(opcode, psn).data(&data),
                    _ => pkt(opcode, psn).aeth(syndrome, msn).data(&data),
                }
            }
            Kind::FetchAdd => pkt(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn).atomic_ack(msn, 0x0101_0101_0101_0101),
            _ => {
                let syndrome = if twist & 0x70 == 0x70 { 0x20 | syndrome } else { syndrome };
                ack_with(psn, syndrome, msn)
            }
        };
        // Some answers the peer believes it gave, and did not; some it gives twice.
        if twist & 0x30 != 0x30 {
            self.given += 1;
            if self.given >= parts {
                self.asked.pop_front();
                self.given = 0;
                self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
            }
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::super::fires;
    use super::*;

    // Goal: a run of right answers completes READs that go many times round the queue, and the check of their bytes fires.
    #[test]
    fn right_answers_complete() {
        let mut rig = Rig::with(|c| {
            (c.receives, c.qp.send_depth, c.qp.mtu) = (0, 2, Mtu::Mtu256);
        });
        let (mut peer, mut open, mut first) = (Peer::default(), VecDeque::new(), BTreeMap::new());
        let mut done = 0;
        for id in 0..40 {
            open.extend(post(&mut rig, &mut Input(&[0, 2, 88]), id)); // a READ of 600 bytes
            for seen in rig.run() {
                peer.observe(&seen);
                first.insert(id, seen.psn);
            }
            (0..3).for_each(|_| drop(rig.send(&peer.answer(&mut Input(&[0])))));
            completions(&mut rig, &mut open, &first);
            done += u32::from(open.is_empty());
        }
        assert_eq!(done, 40);
        open.extend(post(&mut rig, &mut Input(&[0, 2, 88]), 40));
        rig.run().iter().for_each(|seen| peer.observe(seen));
        (0..3).for_each(|_| drop(rig.send(&peer.answer(&mut Input(&[0])))));
        first.insert(40, 7);
        assert!(fires(|| completions(&mut rig, &mut open, &first)), "bytes of other numbers");
    }
}
