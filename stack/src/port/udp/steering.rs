//! Programs by which the kernel chooses the socket of a datagram: each queue has a socket on port 4791, chosen by the destination queue
//! pair.

use core::ops::RangeInclusive;

use libc::sock_filter;

use crate::id::Qpn;
use crate::registry::Run;

/// The most ranges of numbers in a program. A datagram for a number in none of them arrives at queue 0 and is handed over from there.
const RANGES: usize = 100;

/// The most ranges in a program for several processes: it has some 1200 instructions, as many as older kernels (before 6.8) accept.
const GROUP_RANGES: usize = 330;
/// The most services whose requests go directly to their listeners; requests for others go to the keeper first.
pub(super) const SERVICES: usize = 64;

/// Offset of the word of a datagram's payload whose low 24 bits are the destination queue pair (IBA 9.2).
pub(super) const DEST_QP: usize = 4;
/// Offset of the word of a probe that names the index of a socket; a packet has its PSN there.
pub(super) const INDEX: usize = 8;
/// The queue pair number of probes.
pub(super) const PROBED: Qpn = Qpn::new(0);

/// Offset of a MAD in a datagram to queue pair 1: after BTH and DETH.
pub(super) const MAD: usize = 20;
/// Offset of the attribute id of a MAD, two bytes (IBA 13.4.3).
pub(super) const ATTRIBUTE: usize = MAD + 16;
/// Offset of the body of a communication management message (IBA 12.6).
pub(super) const BODY: usize = MAD + 24;
/// Offset of the low half of the service id in REQ and SIDR_REQ.
pub(super) const SERVICE: usize = BODY + 12;
/// Offset of our communication id in all other messages of a peer except SIDR_REP.
pub(super) const REMOTE_ID: usize = BODY + 4;
/// Offset of our request id in SIDR_REP.
pub(super) const REQUEST_ID: usize = BODY;
/// Request for Communication.
pub(super) const REQ: u16 = 0x10;
/// Service ID Resolution Request.
pub(super) const SIDR_REQ: u16 = 0x17;
/// Service ID Resolution Response.
pub(super) const SIDR_REP: u16 = 0x18;

/// Instructions of classic BPF.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const GO: u32 = libc::BPF_JMP | libc::BPF_JA;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ABOVE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_WORD: u32 = libc::BPF_RET | libc::BPF_A;

/// Makes the program that returns the queue of a datagram. A datagram that is too short to have a destination ends the program, which
/// returns 0.
pub(super) fn program(numbers: &[(RangeInclusive<Qpn>, usize)]) -> Vec<sock_filter> {
    let mut program = load_number();
    for (range, queue) in numbers.iter().take(RANGES) {
        program.extend(return_in(range, *queue as u32));
    }
    program.push(instruction(RETURN, 0, (0, 0)));
    program
}

/// Makes the program of a group, which returns the index of a socket. A queue pair number leads to the socket of its range, a probe to the
/// index that it names. A communication management message goes to the process whose communication id is in it, or to the one that listens
/// for its service, otherwise to the keeper.
pub(super) fn program_of_group(
    numbers: &[(RangeInclusive<Qpn>, u32)],
    services: &[(u32, u32)],
    keeper: u32,
) -> Vec<sock_filter> {
    let mut program = load_number();
    program.push(instruction(IF_EQUAL, PROBED.get(), (0, 2)));
    program.push(instruction(LOAD_WORD, INDEX as u32, (0, 0)));
    program.push(instruction(RETURN_WORD, 0, (0, 0)));
    let services = services.iter().take(SERVICES);
    let by_service: Vec<_> = services
        .flat_map(|(service, index)| {
            [instruction(IF_EQUAL, *service, (0, 1)), instruction(RETURN, *index, (0, 0))]
        })
        .chain([instruction(RETURN, keeper, (0, 0))])
        .collect();
    let shift = [instruction(SHIFT_RIGHT, Run::ID_SHIFT, (0, 0))];
    let by_service_len = by_service.len() as u32;
    let of_mad = [
        instruction(LOAD_HALF, ATTRIBUTE as u32, (0, 0)),
        instruction(IF_EQUAL, REQ.into(), (6, 0)),
        instruction(IF_EQUAL, SIDR_REQ.into(), (5, 0)),
        instruction(IF_EQUAL, SIDR_REP.into(), (0, 2)),
        instruction(LOAD_WORD, REQUEST_ID as u32, (0, 0)),
        instruction(GO, by_service_len + 3, (0, 0)),
        instruction(LOAD_WORD, REMOTE_ID as u32, (0, 0)),
        instruction(GO, by_service_len + 1, (0, 0)),
        instruction(LOAD_WORD, SERVICE as u32, (0, 0)),
    ];
    program.push(instruction(IF_EQUAL, Qpn::GSI.get(), (1, 0)));
    program.push(instruction(GO, (of_mad.len() + by_service.len() + shift.len()) as u32, (0, 0)));
    program.extend(of_mad.into_iter().chain(by_service).chain(shift));
    for (range, index) in joined(numbers).iter().take(GROUP_RANGES) {
        program.extend(return_in(range, *index));
    }
    program.push(instruction(RETURN, keeper, (0, 0)));
    program
}

/// Sorts ranges, and joins adjacent ones that have the same socket.
fn joined(numbers: &[(RangeInclusive<Qpn>, u32)]) -> Vec<(RangeInclusive<Qpn>, u32)> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by_key(|(range, _)| *range.start());
    numbers.dedup_by(|(next, index), (range, before)| {
        let joins = index == before && range.end().get() + 1 == next.start().get();
        if joins {
            *range = *range.start()..=*next.end();
        }
        joins
    });
    numbers
}

fn instruction(code: u32, k: u32, (jt, jf): (u8, u8)) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

fn load_number() -> Vec<sock_filter> {
    vec![instruction(LOAD_WORD, DEST_QP as u32, (0, 0)), instruction(AND, 0xff_ffff, (0, 0))]
}

/// Returns `what` for a number of the range.
fn return_in(range: &RangeInclusive<Qpn>, what: u32) -> [sock_filter; 3] {
    [
        instruction(IF_AT_LEAST, range.start().get(), (0, 2)),
        instruction(IF_ABOVE, range.end().get(), (1, 0)),
        instruction(RETURN, what, (0, 0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program returns for a datagram.
    fn run(program: &[sock_filter], datagram: &[u8]) -> u32 {
        let (mut at, mut word) = (0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                LOAD_WORD => match datagram.get(k as usize..).and_then(|from| from.first_chunk()) {
                    Some(bytes) => word = u32::from_be_bytes(*bytes),
                    None => return 0,
                },
                LOAD_HALF => match datagram.get(k as usize..).and_then(|from| from.first_chunk()) {
                    Some(bytes) => word = u16::from_be_bytes(*bytes).into(),
                    None => return 0,
                },
                SHIFT_RIGHT => word >>= k,
                GO => at += k as usize,
                AND => word &= k,
                IF_AT_LEAST => at += usize::from(if word >= k { jt } else { jf }),
                IF_ABOVE => at += usize::from(if word > k { jt } else { jf }),
                IF_EQUAL => at += usize::from(if word == k { jt } else { jf }),
                RETURN => return k,
                RETURN_WORD => return word,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn each_number_has_its_queue() {
        let of = |from: u32, to: u32, queue| (Qpn::new(from)..=Qpn::new(to), queue);
        let program = program(&[of(0x1000, 0x2fff, 3), of(0x5000, 0x5fff, 1), of(0xfff_000, 0xfff_ffe, 2)]);
        for (number, queue) in [
            (0, 0),
            (1, 0),
            (0xfff, 0),
            (0x1000, 3),
            (0x2000, 3),
            (0x2fff, 3),
            (0x3000, 0),
            (0x4fff, 0),
            (0x5000, 1),
            (0x5fff, 1),
            (0x6000, 0),
            (0xfff_000, 2),
            (0xfff_fff, 0),
        ] {
            let mut datagram = [0xff; 12];
            datagram[5..8].copy_from_slice(&u32::to_be_bytes(number)[1..]);
            assert_eq!(run(&program, &datagram), queue, "{number:#x}");
        }
        assert_eq!(run(&program, &[0xff; 7]), 0, "no destination");
    }

    #[test]
    fn a_probe_goes_where_it_says_and_all_else_by_its_number() {
        let of = |from: u32, to: u32, index| (Qpn::new(from)..=Qpn::new(to), index);
        let numbers =
            [of(0x5000, 0x5fff, 9), of(0x1000, 0x1fff, 7), of(0x2000, 0x2fff, 7), of(0x3000, 0x3fff, 8)];
        assert_eq!(joined(&numbers), [of(0x1000, 0x2fff, 7), of(0x3000, 0x3fff, 8), of(0x5000, 0x5fff, 9)]);
        let program = program_of_group(&numbers, &[], 0);
        let datagram = |number: u32, word: u32| {
            let mut datagram = [0xff; 12];
            datagram[5..8].copy_from_slice(&number.to_be_bytes()[1..]);
            datagram[8..].copy_from_slice(&word.to_be_bytes());
            datagram
        };
        for (number, index) in [(1, 0), (0x1000, 7), (0x2fff, 7), (0x3000, 8), (0x4000, 0), (0x5123, 9)] {
            assert_eq!(run(&program, &datagram(number, 3)), index, "{number:#x}");
        }
        assert_eq!([3, 0x1234].map(|index| run(&program, &datagram(0, index))), [3, 0x1234]);
        assert_eq!(run(&program, &datagram(0, 3)[..10]), 0, "cut");
        let many: Vec<_> = (1..2000).map(|n| of(n * 8192, n * 8192 + 4095, n)).collect();
        let services: Vec<_> = (0..2000).map(|n| (n, n)).collect();
        assert!(program_of_group(&many, &services, 0).len() < 1200);
    }

    // Goal: with any number of services, and for any message, the kernel chooses the process that the message is for.
    #[test]
    fn messages_of_connection_management_go_to_whom_they_are_for() {
        let of = |from: u32, to: u32, index| (Qpn::new(from)..=Qpn::new(to), index);
        let numbers = [of(0x5000, 0x5fff, 9), of(0x1000, 0x1fff, 7), of(0xff_8000, 0xff_efff, 8)];
        let mad = |attribute: u16, at: usize, word: u32| {
            let mut datagram = [0xff; MAD + 256];
            datagram[4..8].copy_from_slice(&1u32.to_be_bytes());
            datagram[ATTRIBUTE..ATTRIBUTE + 2].copy_from_slice(&attribute.to_be_bytes());
            datagram[at..at + 4].copy_from_slice(&word.to_be_bytes());
            datagram
        };
        for count in [0, 1, SERVICES as u32, 2 * SERVICES as u32] {
            let services: Vec<_> = (0..count).map(|n| (0x0106_0000 + n, 100 + n)).collect();
            let program = program_of_group(&numbers, &services, 50);
            for attribute in [REQ, SIDR_REQ] {
                for n in [0, 1, SERVICES as u32 - 1, SERVICES as u32] {
                    let index = if n < count.min(SERVICES as u32) { 100 + n } else { 50 };
                    let request = mad(attribute, SERVICE, 0x0106_0000 + n);
                    assert_eq!(run(&program, &request), index, "{attribute:#x} {n} of {count}");
                }
            }
            for attribute in (0x11..=0x1a).filter(|attribute| *attribute != SIDR_REQ) {
                let at = if attribute == SIDR_REP { REQUEST_ID } else { REMOTE_ID };
                for (id, index) in
                    [(0x50_0000, 9), (0x1f_ffff, 7), (0xffef_ffff, 8), (0x20_0000, 50), (0, 50)]
                {
                    assert_eq!(run(&program, &mad(attribute, at, id)), index, "{attribute:#x} {id:#x}");
                }
            }
            assert_eq!(run(&program, &mad(REQ, SERVICE, 0)[..SERVICE + 3]), 0, "cut");
        }
    }

    #[test]
    fn a_program_has_an_end() {
        let many: Vec<_> = (1..2000).map(|n| (Qpn::new(n * 8192)..=Qpn::new(n * 8192 + 4095), 1)).collect();
        assert!(program(&many).len() < 400);
    }
}
