//! Any packets to one queue pair: requests and rubbish to one of any type in any state, responses to one that has
//! work outstanding.

use core::time::Duration;
use std::collections::VecDeque;

use super::Input;
use crate::node::{MrId, SendWr};
use crate::peer::{Pkt, REMOTE_KEY, REMOTE_VA, Rig, ack_with, bth_of, pkt, reseal};
use stack::id::{QpState, QpType};
use stack::mem::Access;
use stack::proto::status::{SendFlags, WcStatus, WrOpcode};
use stack::shard::counters::{Counter, CounterSnapshot};
use stack::wire::{Opcode, Transport};

/// Steps of one input.
const STEPS: usize = 48;
/// Buffers of the port: few, as making them takes longer than using them.
const BUFFERS: usize = 64;

/// Packets that any counter accounts for: received in one way or another, or dropped under a name.
fn accounted(c: &CounterSnapshot) -> u64 {
    use Counter as C;
    let ways = [
        C::NetFrames,
        C::HandedOver,
        C::RequestsReceived,
        C::RequestsRefused,
        C::PacketsHeld,
        C::DuplicatesAnswered,
        C::AcksReceived,
        C::NaksReceived,
        C::RnrNaksReceived,
        C::ResponsesReceived,
    ];
    ways.into_iter().map(|way| c.get(way)).sum::<u64>() + c.drops()
}

/// Whether a region holds nothing but zeros, as it was made.
fn untouched(rig: &Rig, mr: MrId, from: usize) -> bool {
    let region = rig.node.mr(mr);
    (from / 8..region.len() / 8).all(|word| region.word(8 * word) == 0)
}

fn guards(rig: &Rig) {
    assert!(rig.node.regions().iter().all(|r| r.guards_intact()), "something was written beside a region");
}

/// Any bytes to a queue pair of any type in any state.
///
/// # Panics
/// If a byte is written where the peer was granted nothing, or a frame disappears without a count.
pub fn responder_bytes(data: &[u8]) {
    let mut input = Input(data);
    let ty = input.pick(&[
        QpType::Rc,
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::XrcTgt,
        QpType::XrcIni,
        QpType::Gsi,
    ]);
    let state =
        input.pick(&[QpState::Rts, QpState::Rtr, QpState::Init, QpState::Sqd, QpState::Err, QpState::Reset]);
    let setup = input.u8();
    let receives = [16, 0, 1, 3][usize::from(setup & 3)];
    let takes_receives = ty != QpType::XrcIni;
    let mut rig = Rig::with(|c| {
        c.qp.ty = ty;
        c.buffers = BUFFERS;
        c.ipv6 = setup & 4 != 0;
        c.receives = if takes_receives { receives } else { 0 };
        c.qp.max_dest_rd_atomic = [4, 0, 1, 16][usize::from(setup >> 3 & 3)];
        c.qp.access = Access::from_bits_truncate(0x0f & u32::from(setup >> 5) | 0x0e);
        c.state = match state {
            QpState::Init | QpState::Rtr => state,
            _ => QpState::Rts,
        };
    });
    if matches!(state, QpState::Sqd | QpState::Err | QpState::Reset) {
        rig.node.modify_state(rig.now, rig.qp, state).expect("every type may enter it from RTS");
        rig.run();
    }
    let gone = rig.node.register(4096, crate::node::remote_rights());
    rig.node.deregister(gone);
    let mut next_id = 1 << 32;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 16 {
            0 => {
                let len = input.below(2048);
                let frame = input.take(len).to_vec();
                deliver(&mut rig, &frame);
            }
            1 => {
                let time = Duration::from_nanos(1 << (input.u8() % 30));
                rig.wait(time);
            }
            2 if takes_receives => {
                let sge = rig.node.mr(rig.recv).sge(input.below(64), input.below(4000));
                // Refused in some states, and when the queue is full.
                let _ = match rig.srq {
                    Some(srq) => rig.node.post_srq_recv(srq, next_id, &[sge]),
                    None => rig.node.post_recv(rig.qp, next_id, &[sge]),
                };
                next_id += 1;
                rig.run();
            }
            3 => {
                let to = input.pick(&[QpState::Err, QpState::Reset, QpState::Sqd, QpState::Rts]);
                let _ = rig.node.modify_state(rig.now, rig.qp, to);
                rig.run();
            }
            4 => drop(rig.cqes()),
            _ => {
                let frame = request(&mut rig, &mut input, gone);
                deliver(&mut rig, &frame);
            }
        }
    }
    guards(&rig);
    assert!(untouched(&rig, rig.buf, 0), "a peer wrote into memory that it has no right to");
    assert!(untouched(&rig, gone, 0), "a peer wrote into memory that is not registered any more");
}

/// The frame goes to the node, and a counter has its outcome.
fn deliver(rig: &mut Rig, frame: &[u8]) {
    let before = rig.node.counters();
    rig.send_frame(frame);
    let after = rig.node.counters();
    let received = after.get(Counter::RxFrames) - before.get(Counter::RxFrames);
    let accounted = accounted(&after) - accounted(&before);
    assert!(received >= 1, "the frame was not taken from the port");
    assert!(accounted >= received, "{received} frames were received, {accounted} are accounted for");
}

/// A frame with headers of the input's choice behind a good ICRC: an opcode, a number near the one that is
/// expected, addresses and keys near those that exist.
fn request(rig: &mut Rig, input: &mut Input<'_>, gone: MrId) -> Vec<u8> {
    let opcode = input.u8();
    let bits = input.u8();
    let psn = rig.node.query(rig.qp).rq_psn.wrapping_add_signed(i32::from(input.u8() as i8 / 8));
    let mut body = input.take(usize::from(bits >> 2 & 0x1f)).to_vec();
    if bits & 1 != 0 {
        // A RETH or AtomicETH, behind the headers that an XRC packet or a datagram has before it.
        let at = [0, 0, 4, 8][input.below(4)];
        body.resize(body.len().max(at + 28), 0);
        let offset = input.u16();
        // Close to either end of the region, or in it.
        let base = if offset & 0x8000 != 0 { rig.va(1 << 16).wrapping_sub(0x4000) } else { rig.va(0) };
        let va = base.wrapping_add(u64::from(offset & 0x7fff));
        let key = match input.below(8) {
            0 => rig.node.mr(rig.buf).key,
            1 => rig.node.mr(gone).key,
            2 => rig.rkey() ^ 1 << (input.u8() & 31),
            3 => 0,
            _ => rig.rkey(),
        };
        body[at..at + 8].copy_from_slice(&va.to_be_bytes());
        body[at + 8..at + 12].copy_from_slice(&key.to_be_bytes());
        let len = input.pick(&[0u32, 1, 8, 1024, 1025, 3000, 0x8000_0000, u32::MAX]);
        body[at + 12..at + 16].copy_from_slice(&len.to_be_bytes());
    }
    // An XRC packet names a queue, mostly the existing one.
    if let Some(srq) = rig.srq
        && bits & 0x40 == 0
    {
        let srqn = rig.node.srqn(srq).to_be_bytes();
        body.resize(body.len().max(srqn.len()), 0);
        body[..srqn.len()].copy_from_slice(&srqn);
    }
    let payload = input.pick(&[0usize, 1, 4, 8, 100, 1020, 1024, 1028, 2000, 2048]);
    let fill = input.u8();
    body.resize(body.len() + payload, fill);
    let mut frame = rig.frame(&pkt(Opcode::RC_SEND_ONLY, psn).data(&body));
    let bth = bth_of(&frame);
    frame[bth] = opcode;
    if bits & 2 != 0 {
        frame[bth + 1] = input.u8();
    }
    if bits & 0x80 != 0 {
        frame[bth + 8] = 0x80;
    }
    reseal(&mut frame);
    frame
}

/// A send request of the input's choice; `None` for one that the node would not take.
fn work(rig: &Rig, input: &mut Input<'_>, id: u64) -> SendWr {
    let opcode = input.pick(&[
        WrOpcode::Send,
        WrOpcode::RdmaWrite,
        WrOpcode::RdmaRead,
        WrOpcode::RdmaRead,
        WrOpcode::AtomicCmpAndSwp,
        WrOpcode::AtomicFetchAndAdd,
        WrOpcode::SendWithImm,
        WrOpcode::RdmaWriteWithImm,
        WrOpcode::SendWithInv,
        WrOpcode::AtomicWrite,
        WrOpcode::Flush,
        WrOpcode::LocalInv,
        WrOpcode::BindMw,
    ]);
    let bits = input.u8();
    let wr = SendWr::new(id, opcode).remote(REMOTE_VA, REMOTE_KEY).operands(1, 2);
    let wr = if matches!(opcode, WrOpcode::Flush | WrOpcode::LocalInv | WrOpcode::BindMw) {
        // No such key is ours: the last two end the queue pair.
        wr
    } else if matches!(
        opcode,
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicWrite
    ) {
        wr.sges(&[rig.sge(8, 8)])
    } else if bits & 1 != 0 && opcode != WrOpcode::RdmaRead {
        wr.inline(&[7; 100])
    } else {
        let len = input.below(5000);
        let cut = input.below(len + 1);
        let mut second = rig.sge(8192, len - cut);
        if bits & 0x40 != 0 {
            second.lkey ^= 1; // no such key
        }
        wr.sges(&[rig.sge(3, cut), second])
    };
    let wr = if bits & 2 != 0 { wr.unsignaled() } else { wr };
    let wr = if bits & 4 != 0 { wr.with(SendFlags::FENCE) } else { wr };
    if bits & 8 != 0 { wr.with(SendFlags::SOLICITED) } else { wr }
}

/// Half of the buffers of the node's own requests: the rest must stay as it is.
const USED: usize = 1 << 15;

/// Any responses, behind a good ICRC, to a requester that has work outstanding.
///
/// # Panics
/// If a request completes out of order, twice, or never although the queue pair is in ERR; if an unsignalled one completes with
/// success; if a byte is written that no request wanted.
pub fn completer_bytes(data: &[u8]) {
    let mut input = Input(data);
    let setup = input.u8();
    let mut rig = Rig::with(|c| {
        c.receives = 0;
        c.buffers = BUFFERS;
        c.ipv6 = setup & 1 != 0;
        c.qp.max_rd_atomic = [4, 1, 16, 0][usize::from(setup >> 1 & 3)];
        c.qp.timeout = [8, 0, 1, 14][usize::from(setup >> 3 & 3)];
        c.qp.retry_cnt = setup >> 5;
        let more = input.u8();
        c.qp.rnr_retry = more & 7;
        c.qp.ty = if more & 8 == 0 { QpType::Rc } else { QpType::XrcIni };
        c.qp.sq_psn = [0x100, 0xff_fffa][usize::from(input.u8() & 1)];
    });
    let (first, ty) = (rig.node.qp(rig.qp).config.sq_psn, rig.node.qp(rig.qp).config.ty);
    // Requests without a completion: number, and whether success makes one.
    let mut open: VecDeque<(u64, bool)> = VecDeque::new();
    let mut next_id = 0;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0 | 1 => {
                let wr = work(&rig, &mut input, next_id);
                let signalled = wr.flags.contains(SendFlags::SIGNALED);
                if rig.node.post_send(rig.qp, &wr).is_ok() {
                    open.push_back((next_id, signalled));
                    next_id += 1;
                }
                rig.run();
            }
            2 => {
                let time = Duration::from_nanos(1 << (input.u8() % 30));
                rig.wait(time);
            }
            3 => completions(&mut rig, &mut open),
            _ => {
                let packet = response(&mut input, first);
                let packet = if ty == QpType::XrcIni { packet.in_class(Transport::Xrc) } else { packet };
                let over = rig.state() == QpState::Err;
                let sent = rig.send(&packet);
                assert!(sent.is_empty() || !over, "in ERR it sends {sent:?}");
            }
        }
    }
    if rig.state() != QpState::Err {
        rig.node.modify_state(rig.now, rig.qp, QpState::Err).expect("ERR may be entered from everywhere");
    }
    rig.run();
    completions(&mut rig, &mut open);
    // Unsignalled successes are the only requests without a completion.
    assert!(open.iter().all(|(_, signalled)| !signalled), "never completed: {open:?}");
    guards(&rig);
    assert!(untouched(&rig, rig.buf, USED), "a response was placed where no request wanted it");
    assert!(untouched(&rig, rig.mr, 0), "a response was placed in memory of others");
}

fn completions(rig: &mut Rig, open: &mut VecDeque<(u64, bool)>) {
    for (id, status) in rig.done() {
        loop {
            let Some((oldest, signalled)) = open.pop_front() else {
                panic!("{id} completes, {status:?}: it is not open")
            };
            if oldest == id {
                assert!(signalled || status != WcStatus::Success, "{id} is not signalled and completes");
                break;
            }
            assert!(!signalled, "{id} completes before {oldest}");
        }
    }
}

/// A response of the input's choice, near the numbers that are outstanding.
fn response(input: &mut Input<'_>, first: u32) -> Pkt {
    let psn = (first + u32::from(input.u8() / 4)).wrapping_sub(4) & 0xff_ffff;
    let msn = u32::from(input.u8());
    let syndrome = match input.u8() {
        s @ 0..0x60 => s & 0x1f,
        s @ 0x60..0x90 => 0x20 | s & 0x1f,
        s @ 0x90..0xd0 => 0x60 | s & 7,
        s => s,
    };
    let len = input.pick(&[1024usize, 1024, 1024, 0, 4, 500, 1000, 1028, 2048]);
    match input.u8() % 8 {
        0 | 1 => ack_with(psn, syndrome, msn),
        2 => pkt(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn).atomic_ack(msn, 0x5555),
        3 => pkt(Opcode::RC_READ_RESPONSE_FIRST, psn).aeth(syndrome, msn).len(len),
        4 => pkt(Opcode::RC_READ_RESPONSE_MIDDLE, psn).len(len),
        5 => pkt(Opcode::RC_READ_RESPONSE_LAST, psn).aeth(syndrome, msn).len(len),
        6 => pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(syndrome, msn).len(len),
        _ => pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(0x1f, msn).len(input.below(1025)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fires;
    use super::*;

    // Goal: each checker of the targets sees the fault that it is there for.
    #[test]
    fn checkers_fire() {
        let rig = Rig::new();
        assert!(untouched(&rig, rig.buf, 0));
        rig.node.mr(rig.buf).write(USED + 8, &[1]);
        assert!(!untouched(&rig, rig.buf, USED) && untouched(&rig, rig.mr, 0));
        guards(&rig);
        rig.node.mr(rig.mr).spoil_guard();
        assert!(fires(|| guards(&rig)));

        let posted = |n: usize| {
            let mut rig = Rig::new();
            rig.unlimited();
            for id in 0..n as u64 {
                let wr = rig.wr(id, WrOpcode::Send, 8);
                rig.node.post_send(rig.qp, &wr).unwrap();
            }
            rig.run();
            rig.send(&ack_with(0x100 + n as u32 - 1, 0x1f, n as u32));
            rig
        };
        let check = |n, open: &[(u64, bool)]| {
            let mut open = open.iter().copied().collect();
            fires(|| completions(&mut posted(n), &mut open))
        };
        assert!(!check(2, &[(0, true), (1, true)]));
        assert!(check(2, &[(0, true)]), "a completion of nothing");
        assert!(check(1, &[(0, false)]), "a completion that nobody asked for");
        assert!(check(1, &[(7, true), (0, true)]), "one that should have come before");
    }
}
