//! The header of a MAD, which precedes each message of connection management (IBA 13.4.3).

use super::MAD_LEN;
use super::counter::Counter;
use super::message::{BODY_LEN, Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 24;
const _: () = assert!(HEADER_LEN + BODY_LEN == MAD_LEN);

const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;
/// Load Alternate Path.
const ATTR_LAP: u16 = 0x0019;
/// Alternate Path Response.
const ATTR_APR: u16 = 0x001a;

/// A MAD of connection management.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Transaction ID: chosen by the side that begins an exchange, the same in all MADs of the exchange.
    pub tid: u64,
    /// Attribute modifier: 0, or a value of the enhanced connection establishment of Linux.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// A MAD with this transaction ID and message.
    pub fn new(tid: u64, message: impl Into<Message>) -> Self {
        Self { tid, modifier: 0, message: message.into() }
    }

    /// The MAD as it is sent.
    pub fn encode(&self) -> [u8; MAD_LEN] {
        let mut b = [0; MAD_LEN];
        (b[0], b[1], b[2], b[3]) = (BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND);
        b[8..16].copy_from_slice(&self.tid.to_be_bytes());
        b[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        b[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        self.message.write(&mut b[HEADER_LEN..]);
        b
    }

    /// Reads a MAD from the payload of a datagram.
    ///
    /// # Errors
    /// The counter for the reason to ignore it: the length, header or attribute is not that of a connection management message.
    pub fn decode(b: &[u8]) -> Result<Self, Counter> {
        let b: &[u8; MAD_LEN] = b.try_into().map_err(|_| Counter::BadLength)?;
        if b[0] != BASE_VERSION {
            return Err(Counter::BadBaseVersion);
        }
        if b[1] != CLASS_CM {
            return Err(Counter::BadClass);
        }
        if b[2] != CLASS_VERSION {
            return Err(Counter::BadClassVersion);
        }
        if b[3] != METHOD_SEND {
            return Err(Counter::BadMethod);
        }
        let body = &b[HEADER_LEN..];
        let message = match u16::from_be_bytes([b[16], b[17]]) {
            Req::ATTRIBUTE => Message::Req(Box::new(Req::read(body))),
            Mra::ATTRIBUTE => Message::Mra(Box::new(Mra::read(body))),
            Rej::ATTRIBUTE => Message::Rej(Box::new(Rej::read(body))),
            Rep::ATTRIBUTE => Message::Rep(Box::new(Rep::read(body))),
            Rtu::ATTRIBUTE => Message::Rtu(Box::new(Rtu::read(body))),
            Dreq::ATTRIBUTE => Message::Dreq(Box::new(Dreq::read(body))),
            Drep::ATTRIBUTE => Message::Drep(Box::new(Drep::read(body))),
            SidrReq::ATTRIBUTE => Message::SidrReq(Box::new(SidrReq::read(body))),
            SidrRep::ATTRIBUTE => Message::SidrRep(Box::new(SidrRep::read(body))),
            ATTR_LAP | ATTR_APR => return Err(Counter::NoAlternatePaths),
            _ => return Err(Counter::UnknownAttribute),
        };
        let word = |at: usize| b[at..at + 8].try_into().expect("8 bytes");
        let modifier = u32::from_be_bytes([b[20], b[21], b[22], b[23]]);
        Ok(Self { tid: u64::from_be_bytes(word(8)), modifier, message })
    }
}
