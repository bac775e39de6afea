//! Which socket receives: each queue has one of its own on port 4791, and the kernel chooses it by the destination queue pair.

use core::ops::RangeInclusive;

use libc::sock_filter;

use crate::id::Qpn;

/// Ranges of numbers that a program tells apart at most. What is in none of them arrives at queue 0, and is handed over from there.
const RANGES: usize = 100;

/// Ranges of the numbers of several processes: the program has some 1200 instructions, as older kernels (before 6.8) take.
const GROUP_RANGES: usize = 380;

/// Offset of the word of a datagram's payload whose low 24 bits are the destination queue pair (IBA 9.2).
pub(super) const DEST_QP: usize = 4;
/// Offset of the word of a probe that is the index of the socket to which it goes: where a packet has its PSN.
pub(super) const INDEX: usize = 8;
/// The queue pair to which probes go.
pub(super) const PROBED: Qpn = Qpn::new(0);

/// Instructions of classic BPF.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ABOVE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_WORD: u32 = libc::BPF_RET | libc::BPF_A;

/// The program that returns the queue of a datagram. A datagram that is too short to have a destination ends it, which returns 0.
pub(super) fn program(numbers: &[(RangeInclusive<Qpn>, usize)]) -> Vec<sock_filter> {
    let mut program = load_number();
    for (range, queue) in numbers.iter().take(RANGES) {
        program.extend(return_in(range, *queue as u32));
    }
    program.push(instruction(RETURN, 0, (0, 0)));
    program
}

/// The program of a group: it returns the index of the socket of a number, and for a probe the one that this names.
pub(super) fn program_of_group(numbers: &[(RangeInclusive<Qpn>, u32)]) -> Vec<sock_filter> {
    let mut program = load_number();
    program.push(instruction(IF_EQUAL, 0, (0, 2)));
    program.push(instruction(LOAD_WORD, INDEX as u32, (0, 0)));
    program.push(instruction(RETURN_WORD, 0, (0, 0)));
    for (range, index) in joined(numbers).iter().take(GROUP_RANGES) {
        program.extend(return_in(range, *index));
    }
    program.push(instruction(RETURN, 0, (0, 0)));
    program
}

/// Ascending ranges, those that are next to each other and have one socket joined.
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

/// Returns this for a number of the range.
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
        let program = program_of_group(&numbers);
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
        assert!(program_of_group(&many).len() < 1200);
    }

    #[test]
    fn a_program_has_an_end() {
        let many: Vec<_> = (1..2000).map(|n| (Qpn::new(n * 8192)..=Qpn::new(n * 8192 + 4095), 1)).collect();
        assert!(program(&many).len() < 400);
    }
}
