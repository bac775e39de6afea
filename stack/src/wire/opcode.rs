//! The opcode table: one row for each opcode of each transport. Everything else is derived from it.

use super::numbers::{BTH_LEN, CNP_PAYLOAD};
use crate::id::Mtu;

/// Transport class: the top three bits of an opcode (IBA 9.2.1; CNP: A17; XRC: A14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. In the table so that its packets are recognised; no queue pair has this type.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

impl Transport {
    /// The class that the top three bits of `code` name; `None` for the reserved and vendor classes.
    pub const fn of(code: u8) -> Option<Self> {
        match code >> 5 {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            2 => Some(Self::Rd),
            3 => Some(Self::Ud),
            4 => Some(Self::Cnp),
            5 => Some(Self::Xrc),
            _ => None,
        }
    }
}

/// What a packet does, without its place in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also the answer to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledgement, positive or negative.
    Ack,
    /// Answer to an atomic operation.
    AtomicAck,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
    /// RESYNC of reliable datagrams.
    Resync,
    /// FLUSH (IBA A19).
    Flush,
    /// ATOMIC WRITE (IBA A19).
    AtomicWrite,
    /// Congestion notification.
    Cnp,
}

impl Kind {
    const COUNT: usize = Self::Cnp as usize + 1;

    /// Whether a message of this kind may take several packets.
    const fn is_segmented(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::ReadResponse)
    }
    /// Whether the packet travels from requester to responder.
    const fn is_request(self) -> bool {
        !matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck | Self::Cnp)
    }
}

/// Place of a packet in its message. Kinds that never take more than one packet are `Only`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether this packet starts its message.
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }
    /// Whether this packet ends its message.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What the last packet of a message carries besides its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Tail {
    /// Nothing.
    None,
    /// Immediate data.
    Imm,
    /// An R_Key to invalidate.
    Inv,
}

/// The extension headers, in the order in which they follow the BTH (IBA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum ExtHeader {
    /// Reliable datagram: end-to-end context.
    Rdeth,
    /// XRC: shared receive queue number.
    Xrceth,
    /// Datagram: Q_Key and source queue pair.
    Deth,
    /// FLUSH: selectivity and placement.
    Feth,
    /// RDMA: address, R_Key, length.
    Reth,
    /// Atomic: address, R_Key, operands.
    AtomicEth,
    /// Acknowledgement: syndrome and MSN.
    Aeth,
    /// Original value of an atomic operation.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// R_Key to invalidate.
    Ieth,
}

impl ExtHeader {
    const COUNT: usize = Self::Ieth as usize + 1;

    /// Bytes on the wire.
    pub const fn size(self) -> usize {
        match self {
            Self::Rdeth | Self::Xrceth | Self::Feth | Self::Aeth | Self::ImmDt | Self::Ieth => 4,
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Reth => 16,
            Self::AtomicEth => 28,
        }
    }
}

/// Which payload lengths a row allows (IBA 9.7.4.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PayloadRule {
    /// Exactly the path MTU.
    Full,
    /// 1 byte up to the path MTU.
    Some,
    /// Nothing up to the path MTU.
    Any,
    /// Exactly this many bytes; 0 for headers only.
    Exactly(u8),
}

impl PayloadRule {
    /// Whether a payload of `len` bytes (pad not counted) obeys the rule at path MTU `mtu`.
    #[inline(always)]
    pub const fn allows(self, len: usize, mtu: Mtu) -> bool {
        match self {
            Self::Full => len == mtu.bytes(),
            Self::Some => len != 0 && len <= mtu.bytes(),
            Self::Any => len <= mtu.bytes(),
            Self::Exactly(n) => len == n as usize,
        }
    }
}

/// An opcode byte, known or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u8);

/// A row of the table: what is known of one opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The opcode.
    pub opcode: Opcode,
    /// Its name, for example `RC_SEND_ONLY_IMM`.
    pub name: &'static str,
    /// Its transport class.
    pub transport: Transport,
    /// What it does.
    pub kind: Kind,
    /// Its place in the message.
    pub position: Position,
    /// What it carries besides data.
    pub tail: Tail,
    /// The extension headers, in wire order.
    pub headers: &'static [ExtHeader],
    /// Bytes of BTH and extension headers.
    pub header_len: u8,
    /// Whether it travels from requester to responder. CNPs and answers do not.
    pub request: bool,
    /// Whether it carries immediate data.
    pub has_imm: bool,
    /// Whether it carries an R_Key to invalidate.
    pub has_inv: bool,
    /// Whether it consumes a receive work request: the packet that starts a SEND, or carries a WRITE's immediate data.
    pub takes_recv: bool,
    /// Which payload lengths it allows.
    pub payload: PayloadRule,
    /// Offset of each header from the end of the BTH, [`Row::ABSENT`] if the row has none.
    offsets: [u8; ExtHeader::COUNT],
}

impl Row {
    const ABSENT: u8 = 0xff;

    /// Derives a row. Evaluated at compile time only, where a panic is a compile error.
    const fn new(
        code: u8,
        name: &'static str,
        kind: Kind,
        position: Position,
        headers: &'static [ExtHeader],
    ) -> Self {
        let Some(transport) = Transport::of(code) else { panic!("an opcode of a reserved class") };
        assert!(kind.is_segmented() || matches!(position, Position::Only), "this kind is never segmented");
        let mut offsets = [Self::ABSENT; ExtHeader::COUNT];
        let mut end = 0;
        let mut i = 0;
        while i < headers.len() {
            assert!(i == 0 || (headers[i - 1] as u8) < headers[i] as u8, "headers are not in wire order");
            offsets[headers[i] as usize] = end as u8;
            end += headers[i].size();
            i += 1;
        }
        let has_imm = offsets[ExtHeader::ImmDt as usize] != Self::ABSENT;
        let has_inv = offsets[ExtHeader::Ieth as usize] != Self::ABSENT;
        assert!(!(has_imm || has_inv) || position.ends(), "a tail comes with the last packet");
        Self {
            opcode: Opcode(code),
            name,
            transport,
            kind,
            position,
            tail: match (has_imm, has_inv) {
                (false, false) => Tail::None,
                (true, false) => Tail::Imm,
                (false, true) => Tail::Inv,
                (true, true) => panic!("immediate and invalidate exclude each other"),
            },
            headers,
            header_len: (BTH_LEN + end) as u8,
            request: kind.is_request(),
            has_imm,
            has_inv,
            takes_recv: match kind {
                Kind::Send => position.starts(),
                Kind::Write => has_imm,
                _ => false,
            },
            payload: match (kind, position) {
                (Kind::Send | Kind::Write | Kind::ReadResponse, Position::First | Position::Middle) => {
                    PayloadRule::Full
                }
                (Kind::Send | Kind::Write | Kind::ReadResponse, Position::Last) => PayloadRule::Some,
                (Kind::Send | Kind::Write | Kind::ReadResponse, Position::Only) => PayloadRule::Any,
                (Kind::AtomicWrite, _) => PayloadRule::Exactly(8),
                (Kind::Cnp, _) => PayloadRule::Exactly(CNP_PAYLOAD as u8),
                _ => PayloadRule::Exactly(0),
            },
            offsets,
        }
    }

    /// Offset of `header` from the end of the BTH; `None` if the row does not have it.
    #[inline]
    pub const fn offset_of(&self, header: ExtHeader) -> Option<usize> {
        match self.offsets[header as usize] {
            Self::ABSENT => None,
            at => Some(at as usize),
        }
    }

    /// Whether the row has `header`.
    #[inline]
    pub const fn has(&self, header: ExtHeader) -> bool {
        self.offsets[header as usize] != Self::ABSENT
    }

    /// Every row, by ascending opcode.
    pub fn all() -> &'static [Row] {
        &ROWS
    }
}

impl Opcode {
    /// The table's row of this opcode; `None` if the opcode is unknown.
    #[inline]
    pub fn row(self) -> Option<&'static Row> {
        TABLE[self.0 as usize]
    }

    /// The RC opcode of a packet. `tail` matters only at the end of a message, `position` and `tail` only for kinds that have them, so a
    /// segmenter can pass the same `tail` for every packet.
    ///
    /// # Panics
    /// If RC has no such opcode: `Resync`, `Cnp`, or a WRITE that invalidates.
    #[inline]
    pub const fn rc(kind: Kind, position: Position, tail: Tail) -> Self {
        match Self::of(Transport::Rc, kind, position, tail) {
            Some(opcode) => opcode,
            None => panic!("RC has no such opcode"),
        }
    }

    /// Same as [`Opcode::rc`], for any transport; `None` if the transport has no such opcode.
    #[inline]
    pub const fn of(transport: Transport, kind: Kind, position: Position, tail: Tail) -> Option<Self> {
        match CODES[transport as usize][kind as usize][position as usize][tail as usize] {
            NO_CODE => None,
            code => Some(Self(code)),
        }
    }

    /// The same operation of another class: an XRC packet is an RC packet with an XRCETH and an opcode of its own class (IBA A14). If the
    /// class has no such operation, the resulting opcode has no row.
    #[inline]
    pub const fn in_class(self, transport: Transport) -> Self {
        Self(self.0 & 0x1f | (transport as u8) << 5)
    }

    /// The transport class; `None` for the reserved and vendor classes.
    #[inline]
    pub const fn transport(self) -> Option<Transport> {
        Transport::of(self.0)
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.row() {
            Some(row) => f.write_str(row.name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

/// Rows: `code name: kind position [extension headers];`
macro_rules! opcodes {
    ($($code:literal $name:ident: $kind:ident $position:ident [$($header:ident),*];)+) => {
        impl Opcode {
            $(
                #[doc = concat!("Opcode ", stringify!($code), ".")]
                pub const $name: Self = Self($code);
            )+
        }
        static ROWS: [Row; [$($code),+].len()] = ROWS_CONST;
        const ROWS_CONST: [Row; [$($code),+].len()] = [
            $(Row::new($code, stringify!($name), Kind::$kind, Position::$position, &[$(ExtHeader::$header),*])),+
        ];
    };
}

// IBA 9.2.1 table 35, A14 (XRC), A17 (CNP), A19 (FLUSH, ATOMIC WRITE).
#[rustfmt::skip]
opcodes! {
    0x00 RC_SEND_FIRST:               Send         First  [];
    0x01 RC_SEND_MIDDLE:              Send         Middle [];
    0x02 RC_SEND_LAST:                Send         Last   [];
    0x03 RC_SEND_LAST_IMM:            Send         Last   [ImmDt];
    0x04 RC_SEND_ONLY:                Send         Only   [];
    0x05 RC_SEND_ONLY_IMM:            Send         Only   [ImmDt];
    0x06 RC_WRITE_FIRST:              Write        First  [Reth];
    0x07 RC_WRITE_MIDDLE:             Write        Middle [];
    0x08 RC_WRITE_LAST:               Write        Last   [];
    0x09 RC_WRITE_LAST_IMM:           Write        Last   [ImmDt];
    0x0a RC_WRITE_ONLY:               Write        Only   [Reth];
    0x0b RC_WRITE_ONLY_IMM:           Write        Only   [Reth, ImmDt];
    0x0c RC_READ_REQUEST:             ReadRequest  Only   [Reth];
    0x0d RC_READ_RESPONSE_FIRST:      ReadResponse First  [Aeth];
    0x0e RC_READ_RESPONSE_MIDDLE:     ReadResponse Middle [];
    0x0f RC_READ_RESPONSE_LAST:       ReadResponse Last   [Aeth];
    0x10 RC_READ_RESPONSE_ONLY:       ReadResponse Only   [Aeth];
    0x11 RC_ACKNOWLEDGE:              Ack          Only   [Aeth];
    0x12 RC_ATOMIC_ACKNOWLEDGE:       AtomicAck    Only   [Aeth, AtomicAckEth];
    0x13 RC_CMP_SWAP:                 CmpSwap      Only   [AtomicEth];
    0x14 RC_FETCH_ADD:                FetchAdd     Only   [AtomicEth];
    0x16 RC_SEND_LAST_INV:            Send         Last   [Ieth];
    0x17 RC_SEND_ONLY_INV:            Send         Only   [Ieth];
    0x1c RC_FLUSH:                    Flush        Only   [Feth, Reth];
    0x1d RC_ATOMIC_WRITE:             AtomicWrite  Only   [Reth];

    0x20 UC_SEND_FIRST:               Send         First  [];
    0x21 UC_SEND_MIDDLE:              Send         Middle [];
    0x22 UC_SEND_LAST:                Send         Last   [];
    0x23 UC_SEND_LAST_IMM:            Send         Last   [ImmDt];
    0x24 UC_SEND_ONLY:                Send         Only   [];
    0x25 UC_SEND_ONLY_IMM:            Send         Only   [ImmDt];
    0x26 UC_WRITE_FIRST:              Write        First  [Reth];
    0x27 UC_WRITE_MIDDLE:             Write        Middle [];
    0x28 UC_WRITE_LAST:               Write        Last   [];
    0x29 UC_WRITE_LAST_IMM:           Write        Last   [ImmDt];
    0x2a UC_WRITE_ONLY:               Write        Only   [Reth];
    0x2b UC_WRITE_ONLY_IMM:           Write        Only   [Reth, ImmDt];

    0x40 RD_SEND_FIRST:               Send         First  [Rdeth, Deth];
    0x41 RD_SEND_MIDDLE:              Send         Middle [Rdeth, Deth];
    0x42 RD_SEND_LAST:                Send         Last   [Rdeth, Deth];
    0x43 RD_SEND_LAST_IMM:            Send         Last   [Rdeth, Deth, ImmDt];
    0x44 RD_SEND_ONLY:                Send         Only   [Rdeth, Deth];
    0x45 RD_SEND_ONLY_IMM:            Send         Only   [Rdeth, Deth, ImmDt];
    0x46 RD_WRITE_FIRST:              Write        First  [Rdeth, Deth, Reth];
    0x47 RD_WRITE_MIDDLE:             Write        Middle [Rdeth, Deth];
    0x48 RD_WRITE_LAST:               Write        Last   [Rdeth, Deth];
    0x49 RD_WRITE_LAST_IMM:           Write        Last   [Rdeth, Deth, ImmDt];
    0x4a RD_WRITE_ONLY:               Write        Only   [Rdeth, Deth, Reth];
    0x4b RD_WRITE_ONLY_IMM:           Write        Only   [Rdeth, Deth, Reth, ImmDt];
    0x4c RD_READ_REQUEST:             ReadRequest  Only   [Rdeth, Deth, Reth];
    0x4d RD_READ_RESPONSE_FIRST:      ReadResponse First  [Rdeth, Aeth];
    0x4e RD_READ_RESPONSE_MIDDLE:     ReadResponse Middle [Rdeth];
    0x4f RD_READ_RESPONSE_LAST:       ReadResponse Last   [Rdeth, Aeth];
    0x50 RD_READ_RESPONSE_ONLY:       ReadResponse Only   [Rdeth, Aeth];
    0x51 RD_ACKNOWLEDGE:              Ack          Only   [Rdeth, Aeth];
    0x52 RD_ATOMIC_ACKNOWLEDGE:       AtomicAck    Only   [Rdeth, Aeth, AtomicAckEth];
    0x53 RD_CMP_SWAP:                 CmpSwap      Only   [Rdeth, Deth, AtomicEth];
    0x54 RD_FETCH_ADD:                FetchAdd     Only   [Rdeth, Deth, AtomicEth];
    0x55 RD_RESYNC:                   Resync       Only   [Rdeth, Deth];
    0x5c RD_FLUSH:                    Flush        Only   [Rdeth, Deth, Feth, Reth];

    0x64 UD_SEND_ONLY:                Send         Only   [Deth];
    0x65 UD_SEND_ONLY_IMM:            Send         Only   [Deth, ImmDt];

    0x81 CNP:                         Cnp          Only   [];

    0xa0 XRC_SEND_FIRST:              Send         First  [Xrceth];
    0xa1 XRC_SEND_MIDDLE:             Send         Middle [Xrceth];
    0xa2 XRC_SEND_LAST:               Send         Last   [Xrceth];
    0xa3 XRC_SEND_LAST_IMM:           Send         Last   [Xrceth, ImmDt];
    0xa4 XRC_SEND_ONLY:               Send         Only   [Xrceth];
    0xa5 XRC_SEND_ONLY_IMM:           Send         Only   [Xrceth, ImmDt];
    0xa6 XRC_WRITE_FIRST:             Write        First  [Xrceth, Reth];
    0xa7 XRC_WRITE_MIDDLE:            Write        Middle [Xrceth];
    0xa8 XRC_WRITE_LAST:              Write        Last   [Xrceth];
    0xa9 XRC_WRITE_LAST_IMM:          Write        Last   [Xrceth, ImmDt];
    0xaa XRC_WRITE_ONLY:              Write        Only   [Xrceth, Reth];
    0xab XRC_WRITE_ONLY_IMM:          Write        Only   [Xrceth, Reth, ImmDt];
    0xac XRC_READ_REQUEST:            ReadRequest  Only   [Xrceth, Reth];
    0xad XRC_READ_RESPONSE_FIRST:     ReadResponse First  [Aeth];
    0xae XRC_READ_RESPONSE_MIDDLE:    ReadResponse Middle [];
    0xaf XRC_READ_RESPONSE_LAST:      ReadResponse Last   [Aeth];
    0xb0 XRC_READ_RESPONSE_ONLY:      ReadResponse Only   [Aeth];
    0xb1 XRC_ACKNOWLEDGE:             Ack          Only   [Aeth];
    0xb2 XRC_ATOMIC_ACKNOWLEDGE:      AtomicAck    Only   [Aeth, AtomicAckEth];
    0xb3 XRC_CMP_SWAP:                CmpSwap      Only   [Xrceth, AtomicEth];
    0xb4 XRC_FETCH_ADD:               FetchAdd     Only   [Xrceth, AtomicEth];
    0xb6 XRC_SEND_LAST_INV:           Send         Last   [Xrceth, Ieth];
    0xb7 XRC_SEND_ONLY_INV:           Send         Only   [Xrceth, Ieth];
    0xbc XRC_FLUSH:                   Flush        Only   [Xrceth, Feth, Reth];
    0xbd XRC_ATOMIC_WRITE:            AtomicWrite  Only   [Xrceth, Reth];
}

static TABLE: [Option<&'static Row>; 256] = {
    let mut table = [None; 256];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        let code = row.opcode.0 as usize;
        assert!(table[code].is_none(), "two rows with the same opcode");
        assert!(i == 0 || (ROWS_CONST[i - 1].opcode.0 as usize) < code, "rows are not in order");
        table[code] = Some(row);
        i += 1;
    }
    table
};

/// No row has this opcode: it belongs to the vendor classes.
const NO_CODE: u8 = 0xff;

/// Opcode by transport, kind, position and tail: the inverse of the table.
static CODES: [[[[u8; 3]; 4]; Kind::COUNT]; 6] = {
    let mut codes = [[[[NO_CODE; 3]; 4]; Kind::COUNT]; 6];
    let mut i = 0;
    while i < ROWS_CONST.len() {
        let row = &ROWS_CONST[i];
        let by_position = &mut codes[row.transport as usize][row.kind as usize];
        let mut position = 0;
        while position < 4 {
            if position == row.position as usize || !row.kind.is_segmented() {
                let mut tail = 0;
                while tail < 3 {
                    // Only the end of a SEND or WRITE has a choice of tails.
                    let chooses = matches!(row.kind, Kind::Send | Kind::Write) && row.position.ends();
                    if tail == row.tail as usize || !chooses {
                        assert!(by_position[position][tail] == NO_CODE, "two rows mean the same");
                        by_position[position][tail] = row.opcode.0;
                    }
                    tail += 1;
                }
            }
            position += 1;
        }
        i += 1;
    }
    codes
};

/// Bytes of the longest BTH with extension headers.
pub(super) const HEADER_LEN_MAX: usize = {
    let mut max = 0;
    let mut i = 0;
    while i < ROWS_CONST.len() {
        if ROWS_CONST[i].header_len > max {
            max = ROWS_CONST[i].header_len;
        }
        i += 1;
    }
    max as usize
};
