//! Compares the opcode table with a second transcription of the specification, which lists each operation once for all transports.

use super::*;
use crate::id::Mtu;

/// Low five bits of the opcode; the transports that have it; extension headers on RC; payload; whether it is a response.
///
/// Transports: R RC, U UC, d RD, D UD, X XRC. Headers: r RETH, a AtomicETH, A AETH, k AtomicAckETH, i ImmDt, v IETH, f FETH. Payload: `=`
/// the path MTU, `+` at least one byte, `*` any length, `-` none, `8` 8 bytes.
const OPERATIONS: [(u8, &str, &str, char, bool); 26] = [
    (0x00, "RUdX", "", '=', false),
    (0x01, "RUdX", "", '=', false),
    (0x02, "RUdX", "", '+', false),
    (0x03, "RUdX", "i", '+', false),
    (0x04, "RUdDX", "", '*', false),
    (0x05, "RUdDX", "i", '*', false),
    (0x06, "RUdX", "r", '=', false),
    (0x07, "RUdX", "", '=', false),
    (0x08, "RUdX", "", '+', false),
    (0x09, "RUdX", "i", '+', false),
    (0x0a, "RUdX", "r", '*', false),
    (0x0b, "RUdX", "ri", '*', false),
    (0x0c, "RdX", "r", '-', false),
    (0x0d, "RdX", "A", '=', true),
    (0x0e, "RdX", "", '=', true),
    (0x0f, "RdX", "A", '+', true),
    (0x10, "RdX", "A", '*', true),
    (0x11, "RdX", "A", '-', true),
    (0x12, "RdX", "Ak", '-', true),
    (0x13, "RdX", "a", '-', false),
    (0x14, "RdX", "a", '-', false),
    (0x15, "d", "", '-', false),
    (0x16, "RX", "v", '+', false),
    (0x17, "RX", "v", '*', false),
    (0x1c, "RdX", "fr", '-', false),
    (0x1d, "RX", "r", '8', false),
];

/// Header bytes, header letters, payload and whether it is a response, from [`OPERATIONS`]. `None` if the opcode is unknown. Further
/// letters: e RDETH, x XRCETH, D DETH; payload `c` is 16 bytes, of a CNP.
fn expected(code: u8) -> Option<(usize, String, char, bool)> {
    if code == 0x81 {
        return Some((12, String::new(), 'c', true));
    }
    let class = *['R', 'U', 'd', 'D', '?', 'X', '?', '?'].get(usize::from(code / 32))?;
    let (_, _, headers, payload, answer) =
        OPERATIONS.iter().find(|(op, classes, ..)| *op == code % 32 && classes.contains(class))?;
    let prefix = match (class, answer) {
        ('X', false) => "x",
        ('d', false) => "eD",
        ('d', true) => "e",
        ('D', _) => "D",
        _ => "",
    };
    let letters = format!("{prefix}{headers}");
    let bytes: usize = letters
        .chars()
        .map(|l| match l {
            'e' | 'x' | 'A' | 'i' | 'v' | 'f' => 4,
            'D' | 'k' => 8,
            'r' => 16,
            'a' => 28,
            _ => unreachable!("not a header"),
        })
        .sum();
    Some((12 + bytes, letters, *payload, *answer))
}

#[test]
fn every_opcode_agrees_with_a_second_transcription() {
    let mut known = 0;
    for code in 0..=255 {
        let row = Opcode(code).row();
        let Some((header_len, letters, payload, answer)) = expected(code) else {
            assert!(row.is_none(), "{code:#04x} is unknown");
            continue;
        };
        known += 1;
        let row = row.unwrap_or_else(|| panic!("{code:#04x} is known"));
        assert_eq!(row.opcode, Opcode(code));
        assert_eq!(row.header_len as usize, header_len, "{}", row.name);
        let of = |h: &ExtHeader| match h {
            ExtHeader::Rdeth => 'e',
            ExtHeader::Xrceth => 'x',
            ExtHeader::Deth => 'D',
            ExtHeader::Feth => 'f',
            ExtHeader::Reth => 'r',
            ExtHeader::AtomicEth => 'a',
            ExtHeader::Aeth => 'A',
            ExtHeader::AtomicAckEth => 'k',
            ExtHeader::ImmDt => 'i',
            ExtHeader::Ieth => 'v',
        };
        assert_eq!(row.headers.iter().map(of).collect::<String>(), letters, "{}", row.name);
        let rule = match payload {
            '=' => PayloadRule::Full,
            '+' => PayloadRule::Some,
            '*' => PayloadRule::Any,
            '8' => PayloadRule::Exactly(8),
            'c' => PayloadRule::Exactly(16),
            _ => PayloadRule::Exactly(0),
        };
        assert_eq!(row.payload, rule, "{}", row.name);
        assert_eq!(row.request, !answer, "{}", row.name);
        assert_eq!(row.has_imm, letters.contains('i'), "{}", row.name);
        assert_eq!(row.has_inv, letters.contains('v'), "{}", row.name);
        let takes_recv = code != 0x81 && matches!(code % 32, 0x00 | 0x04 | 0x05 | 0x09 | 0x0b | 0x17);
        assert_eq!(row.takes_recv, takes_recv, "{}", row.name);
    }
    assert_eq!(known, 25 + 12 + 23 + 2 + 1 + 25);
    assert_eq!(Row::all().len(), known);
}

#[test]
fn names_say_what_rows_mean() {
    for row in Row::all() {
        let transport = format!("{:?}", row.transport).to_uppercase();
        assert!(row.name.starts_with(&transport), "{}", row.name);
        assert_eq!(row.name.ends_with("_IMM"), row.has_imm, "{}", row.name);
        assert_eq!(row.name.ends_with("_INV"), row.has_inv, "{}", row.name);
        let place = format!("{:?}", row.position).to_uppercase();
        let has_place =
            row.name.contains("SEND") || row.name.contains("RESPONSE") || row.name.contains("WRITE_");
        if has_place {
            assert!(row.name.contains(&format!("_{place}")), "{}", row.name);
        }
        assert_eq!(format!("{:?}", row.opcode), row.name);
    }
    assert_eq!(format!("{:?}", Opcode(0xe0)), "0xe0");
}

#[test]
fn opcodes_are_found_by_meaning() {
    for row in Row::all() {
        assert_eq!(
            Opcode::of(row.transport, row.kind, row.position, row.tail),
            Some(row.opcode),
            "{}",
            row.name
        );
    }
    use {Kind::*, Position::*};
    const FIRST: Opcode = Opcode::rc(Send, First, Tail::Imm);
    assert_eq!(FIRST, Opcode::RC_SEND_FIRST, "the tail comes last");
    assert_eq!(Opcode::rc(Send, Last, Tail::Inv), Opcode::RC_SEND_LAST_INV);
    assert_eq!(Opcode::rc(Write, Only, Tail::Imm), Opcode::RC_WRITE_ONLY_IMM);
    assert_eq!(Opcode::rc(Ack, Last, Tail::None), Opcode::RC_ACKNOWLEDGE, "an ACK has no position");
    assert_eq!(Opcode::of(Transport::Rc, Write, Last, Tail::Inv), None);
    assert_eq!(Opcode::of(Transport::Uc, ReadRequest, Only, Tail::None), None);
    assert_eq!(Opcode::of(Transport::Ud, Send, First, Tail::None), None);
}

#[test]
fn payload_rules_follow_the_path_mtu() {
    let mtu = Mtu::Mtu1024;
    let allowed = |rule: PayloadRule| [0, 1, 8, 1023, 1024, 1025].map(|len| rule.allows(len, mtu));
    assert_eq!(allowed(PayloadRule::Full), [false, false, false, false, true, false]);
    assert_eq!(allowed(PayloadRule::Some), [false, true, true, true, true, false]);
    assert_eq!(allowed(PayloadRule::Any), [true, true, true, true, true, false]);
    assert_eq!(allowed(PayloadRule::Exactly(0)), [true, false, false, false, false, false]);
    assert_eq!(allowed(PayloadRule::Exactly(8)), [false, false, true, false, false, false]);
}

#[test]
fn discards_have_names_and_indices() {
    assert_eq!(Discard::ALL.len(), Discard::COUNT);
    for (index, reason) in Discard::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, index);
        assert!(!Discard::ALL[..index].iter().any(|other| other.name() == reason.name()));
        assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{reason}");
        let camel: String = format!("{reason:?}").to_lowercase();
        assert_eq!(reason.name().replace('_', ""), camel);
    }
    assert_eq!(Discard::BadEtherType.name(), "bad_ether_type");
    assert_eq!(Discard::TooShort.to_string(), "too_short");
}
