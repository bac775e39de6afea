//! Which socket receives: each queue has one of its own on port 4791, and the kernel chooses it by the destination queue pair.

use core::ops::RangeInclusive;

use libc::sock_filter;

use crate::id::Qpn;

/// Ranges of numbers that a program tells apart at most. What is in none of them arrives at queue 0, and is handed over from there.
const RANGES: usize = 100;

/// Offset of the word of a datagram's payload whose low 24 bits are the destination queue pair (IBA 9.2).
const DEST_QP: u32 = 4;

/// Instructions of classic BPF.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ABOVE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// The program that returns the queue of a datagram. A datagram that is too short to have a destination ends it, which returns 0.
pub(super) fn program(numbers: &[(RangeInclusive<Qpn>, usize)]) -> Vec<sock_filter> {
    let instruction = |code: u32, k: u32, (jt, jf): (u8, u8)| sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![instruction(LOAD_WORD, DEST_QP, (0, 0)), instruction(AND, 0xff_ffff, (0, 0))];
    for (range, queue) in numbers.iter().take(RANGES) {
        program.push(instruction(IF_AT_LEAST, range.start().get(), (0, 2)));
        program.push(instruction(IF_ABOVE, range.end().get(), (1, 0)));
        program.push(instruction(RETURN, *queue as u32, (0, 0)));
    }
    program.push(instruction(RETURN, 0, (0, 0)));
    program
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
                RETURN => return k,
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
    fn a_program_has_an_end() {
        let many: Vec<_> = (1..2000).map(|n| (Qpn::new(n * 8192)..=Qpn::new(n * 8192 + 4095), 1)).collect();
        assert!(program(&many).len() < 400);
    }
}
