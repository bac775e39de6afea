//! Control messages of the memif protocol, version 2.0: bytes to fields and back.
//!
//! A message has 128 bytes: a type, then packed fields in the processor's byte order, as both ends are on one machine (`memif.h` of VPP and
//! DPDK). The peer is not trusted: any bytes decode to a message or to an error.

/// Bytes of a message.
pub const MESSAGE: usize = 128;
/// The only version, 2.0.
pub const VERSION: u16 = 2 << 8;
/// Bytes of a secret.
pub const SECRET: usize = 24;
/// Bytes of a name.
const NAME: usize = 32;
/// Bytes of the reason in a [`Message::Disconnect`].
const SENTENCE: usize = 96;
/// The mode of an interface that carries Ethernet frames.
const ETHERNET: u8 = 0;
/// Flag of a ring: it carries frames from the client to the server.
const TO_SERVER: u16 = 1;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The previous message was accepted.
    Ack,
    /// The server's first message: its limits.
    Hello(Hello),
    /// The client's answer: its version and name.
    Init(Init),
    /// The client's memory. The message carries its descriptor.
    AddRegion {
        /// Number of the region.
        index: u16,
        /// Its length in bytes.
        size: u64,
    },
    /// A ring in the client's memory. The message carries the descriptor of the ring's eventfd.
    AddRing(AddRing),
    /// The client has sent everything.
    Connect {
        /// The client's name for its end.
        name: String,
    },
    /// The server uses the rings from now on.
    Connected {
        /// The server's name for its end.
        name: String,
    },
    /// The sender ends the connection.
    Disconnect {
        /// Why.
        why: String,
    },
}

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the program.
    pub name: String,
    /// Versions that it supports.
    pub versions: core::ops::RangeInclusive<u16>,
    /// Highest number of a region.
    pub region_max: u16,
    /// Highest number of a ring from server to client.
    pub to_client_max: u16,
    /// Highest number of a ring from client to server.
    pub to_server_max: u16,
    /// Base-2 logarithm of the most slots of a ring.
    pub log2_max: u8,
}

/// The version and name of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The version that it uses from now on.
    pub version: u16,
    /// Number of the server's interface to which it connects.
    pub id: u32,
    /// The interface mode: the kind of frames.
    pub mode: u8,
    /// The secret, zeros if none.
    pub secret: [u8; SECRET],
    /// Name of the program.
    pub name: String,
}

/// A ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// Whether frames go from the client to the server.
    pub to_server: bool,
    /// Its number among the rings of its direction.
    pub index: u16,
    /// Number of the region that contains it.
    pub region: u16,
    /// Offset of its first byte in the region.
    pub offset: u32,
    /// Base-2 logarithm of its slots.
    pub log2: u8,
    /// Bytes before each frame that are not part of the frame.
    pub private_header: u16,
}

impl Init {
    /// Whether the client wants Ethernet frames.
    pub fn is_ethernet(&self) -> bool {
        self.mode == ETHERNET
    }

    /// Makes the INIT message of this program.
    pub fn new(id: u32, secret: [u8; SECRET], name: &str) -> Self {
        Self { version: VERSION, id, mode: ETHERNET, secret, name: name.into() }
    }
}

/// Numbers of the message types.
const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

impl Message {
    /// Its name in the protocol.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ack => "ACK",
            Self::Hello(_) => "HELLO",
            Self::Init(_) => "INIT",
            Self::AddRegion { .. } => "ADD_REGION",
            Self::AddRing(_) => "ADD_RING",
            Self::Connect { .. } => "CONNECT",
            Self::Connected { .. } => "CONNECTED",
            Self::Disconnect { .. } => "DISCONNECT",
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; MESSAGE] {
        let mut to = Writer { bytes: [0; MESSAGE], at: 0 };
        match self {
            Self::Ack => to.u16(ACK),
            Self::Hello(hello) => {
                to.u16(HELLO);
                to.text(&hello.name, NAME);
                to.u16(*hello.versions.start());
                to.u16(*hello.versions.end());
                to.u16(hello.region_max);
                to.u16(hello.to_client_max);
                to.u16(hello.to_server_max);
                to.put(&[hello.log2_max]);
            }
            Self::Init(init) => {
                to.u16(INIT);
                to.u16(init.version);
                to.put(&init.id.to_ne_bytes());
                to.put(&[init.mode]);
                to.put(&init.secret);
                to.text(&init.name, NAME);
            }
            Self::AddRegion { index, size } => {
                to.u16(ADD_REGION);
                to.u16(*index);
                to.put(&size.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                to.u16(ADD_RING);
                to.u16(if ring.to_server { TO_SERVER } else { 0 });
                to.u16(ring.index);
                to.u16(ring.region);
                to.put(&ring.offset.to_ne_bytes());
                to.put(&[ring.log2]);
                to.u16(ring.private_header);
            }
            Self::Connect { name } => {
                to.u16(CONNECT);
                to.text(name, NAME);
            }
            Self::Connected { name } => {
                to.u16(CONNECTED);
                to.text(name, NAME);
            }
            Self::Disconnect { why } => {
                to.u16(DISCONNECT);
                to.put(&0u32.to_ne_bytes());
                to.text(why, SENTENCE);
            }
        }
        to.bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Why the bytes are not a valid message.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != MESSAGE {
            return Err(format!("a control message of {} bytes, where all have {MESSAGE}", bytes.len()));
        }
        let mut from = Reader(bytes);
        Ok(match from.u16() {
            ACK => Self::Ack,
            HELLO => {
                let name = from.text(NAME);
                let versions = from.u16()..=from.u16();
                let (region_max, to_client_max, to_server_max) = (from.u16(), from.u16(), from.u16());
                let [log2_max] = from.take();
                Self::Hello(Hello { name, versions, region_max, to_client_max, to_server_max, log2_max })
            }
            INIT => {
                let (version, id) = (from.u16(), u32::from_ne_bytes(from.take()));
                let [mode] = from.take();
                Self::Init(Init { version, id, mode, secret: from.take(), name: from.text(NAME) })
            }
            ADD_REGION => Self::AddRegion { index: from.u16(), size: u64::from_ne_bytes(from.take()) },
            ADD_RING => {
                let to_server = from.u16() & TO_SERVER != 0;
                let (index, region) = (from.u16(), from.u16());
                let offset = u32::from_ne_bytes(from.take());
                let [log2] = from.take();
                let private_header = from.u16();
                Self::AddRing(AddRing { to_server, index, region, offset, log2, private_header })
            }
            CONNECT => Self::Connect { name: from.text(NAME) },
            CONNECTED => Self::Connected { name: from.text(NAME) },
            DISCONNECT => {
                let _code = from.take::<4>();
                Self::Disconnect { why: from.text(SENTENCE) }
            }
            other => return Err(format!("a control message of the unknown type {other}")),
        })
    }
}

/// Appends fields. They fit: the longest message is shorter than [`MESSAGE`].
struct Writer {
    bytes: [u8; MESSAGE],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends a text in `room` bytes, at least one of them zero; cuts off what does not fit.
    fn text(&mut self, text: &str, room: usize) {
        let end = |len: &usize| text.is_char_boundary(*len);
        let len = (0..=text.len().min(room - 1)).rev().find(end).unwrap_or(0);
        self.put(&text.as_bytes()[..len]);
        self.at += room - len;
    }
}

/// Takes fields off the front of a message, which is long enough for the fields of each type.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().expect("a message holds its fields");
        self.0 = rest;
        *bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    /// Takes a text that ends at a zero or after `room` bytes. Replaces control characters, because the peer wrote it and it is shown to
    /// users.
    fn text(&mut self, room: usize) -> String {
        let (bytes, rest) = self.0.split_at(room);
        self.0 = rest;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        vec![
            Message::Ack,
            Message::Hello(Hello {
                name: "server".into(),
                versions: 0x100..=0x201,
                region_max: 3,
                to_client_max: 4,
                to_server_max: 5,
                log2_max: 14,
            }),
            Message::Init(Init::new(0x0102_0304, *b"a secret of bytes: 24!!!", "client")),
            Message::AddRegion { index: 7, size: 0x0102_0304_0506_0708 },
            Message::AddRing(AddRing {
                to_server: true,
                index: 0x0102,
                region: 0x0304,
                offset: 0x0506_0708,
                log2: 9,
                private_header: 0x0a0b,
            }),
            Message::Connect { name: "one end".into() },
            Message::Connected { name: "the other".into() },
            Message::Disconnect { why: "so it goes".into() },
        ]
    }

    #[test]
    fn messages_come_back_as_they_went_out() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn fields_are_where_the_protocol_has_them() {
        // Goal: the encoding matches a second, independent transcription of `memif.h` of DPDK 22.11: type, then packed fields.
        let message = |index: usize| all()[index].encode();
        let hello = message(1);
        assert_eq!(
            (&hello[..8], &hello[34..]),
            (
                &b"\x02\0server"[..],
                &{
                    let mut rest = [0; 94];
                    rest[..11].copy_from_slice(&[0, 1, 1, 2, 3, 0, 4, 0, 5, 0, 14]);
                    rest
                }[..]
            )
        );
        let init = message(2);
        assert_eq!(init[..9], [3, 0, 0, 2, 4, 3, 2, 1, 0]);
        assert_eq!((&init[9..33], &init[33..39]), (&b"a secret of bytes: 24!!!"[..], &b"client"[..]));
        assert_eq!(message(3)[..13], [4, 0, 7, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(message(4)[..16], [5, 0, 1, 0, 2, 1, 4, 3, 8, 7, 6, 5, 9, 0x0b, 0x0a, 0]);
        assert_eq!(message(0)[..2], [1, 0]);
        assert_eq!(message(5)[..4], [6, 0, b'o', b'n']);
        assert_eq!(message(6)[..3], [7, 0, b't']);
        assert_eq!(message(7)[..7], [8, 0, 0, 0, 0, 0, b's']);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for len in [0, 1, 127, 129] {
            let error = Message::decode(&vec![1; len]).unwrap_err();
            assert!(error.contains(&format!("of {len} bytes")), "{error}");
        }
        for kind in [0u16, 9, 0xffff] {
            let mut bytes = [0; MESSAGE];
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            let error = Message::decode(&bytes).unwrap_err();
            assert!(error.contains(&format!("unknown type {kind}")), "{error}");
        }
    }

    #[test]
    fn texts_of_strangers_are_fit_to_be_shown() {
        let mut bytes = Message::Connect { name: String::new() }.encode();
        bytes[2..34].fill(0xff);
        bytes[2..6].copy_from_slice(b"a\x1b[2");
        let Ok(Message::Connect { name }) = Message::decode(&bytes) else { panic!() };
        assert!(name.starts_with("a?[2\u{fffd}"), "{name:?}");
        let long = Message::Disconnect { why: "ä".repeat(90) };
        let Ok(Message::Disconnect { why }) = Message::decode(&long.encode()) else { panic!() };
        assert_eq!(why, "ä".repeat(47), "a text is cut where a character ends");
    }

    #[test]
    fn any_bytes_are_a_message_or_a_sentence() {
        let mut state = 1u64;
        for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
            let mut bytes = [0; MESSAGE];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            let kind = u16::from(bytes[0] % 10);
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            if let Ok(message) = Message::decode(&bytes) {
                let again = Message::decode(&message.encode()).expect("what was understood can be said");
                assert_eq!(again.kind(), message.kind());
            }
        }
    }
}
