//! A decoded packet of a link, which owns its data and can be compared.

use core::fmt;

use stack::id::Qpn;
use stack::proto::tables::{NakCode, Syndrome};
use stack::time::Instant;
use stack::wire::{Aeth, AtomicEth, Ext, Ingress, Kind, Opcode, Reth, Transport, icrc, locate};

/// A decoded RoCE packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// When it was on the link.
    pub at: Instant,
    /// Opcode.
    pub opcode: Opcode,
    /// UDP source port.
    pub src_port: u16,
    /// Destination queue pair.
    pub dqpn: Qpn,
    /// Packet sequence number.
    pub psn: u32,
    /// Requests an acknowledgement.
    pub ack_req: bool,
    /// Solicited event.
    pub solicited: bool,
    /// Extension headers.
    pub ext: Ext,
    /// Payload, without pad.
    pub payload: Vec<u8>,
}

impl Seen {
    /// Decodes a frame. `None` if it is not a RoCE packet, or its ICRC is wrong.
    pub fn decode(at: Instant, frame: &[u8]) -> Option<Self> {
        let Ok(Ingress::Roce(layout)) = locate(frame) else { return None };
        let mut copy = frame.to_vec();
        if !icrc::check(&mut copy, &layout, None) {
            return None;
        }
        let packet = layout.packet(frame);
        let header = packet.to_header()?;
        Some(Self {
            at,
            opcode: header.opcode,
            src_port: layout.flow(frame).src_port,
            dqpn: packet.dqpn(),
            psn: packet.psn.get(),
            ack_req: packet.ack_req,
            solicited: packet.solicited(),
            ext: header.ext,
            payload: packet.payload.to_vec(),
        })
    }

    /// The kind of its opcode.
    pub fn kind(&self) -> Kind {
        self.opcode.row().expect("a decoded opcode is known").kind
    }

    /// Its transport service.
    pub fn transport(&self) -> Transport {
        self.opcode.row().expect("a decoded opcode is known").transport
    }

    /// Whether it goes from requester to responder.
    pub fn is_request(&self) -> bool {
        self.opcode.row().expect("a decoded opcode is known").request
    }

    /// Its AETH.
    ///
    /// # Panics
    /// If it has none; likewise the other accessors of headers.
    pub fn aeth(&self) -> Aeth {
        match self.ext {
            Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => aeth,
            _ => panic!("{self:?} has no AETH"),
        }
    }

    /// Its RETH.
    pub fn reth(&self) -> Reth {
        match self.ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) | Ext::FlushReth(_, reth) => reth,
            _ => panic!("{self:?} has no RETH"),
        }
    }

    /// Its AtomicETH.
    pub fn atomic(&self) -> AtomicEth {
        match self.ext {
            Ext::Atomic(atomic) => atomic,
            _ => panic!("{self:?} has no AtomicETH"),
        }
    }

    /// The value that an atomic replaced.
    pub fn original(&self) -> u64 {
        match self.ext {
            Ext::AtomicAck(_, original) => original,
            _ => panic!("{self:?} is no ATOMIC ACKNOWLEDGE"),
        }
    }

    /// Whether it is a positive acknowledgement of `psn`.
    pub fn is_ack(&self, psn: u32) -> bool {
        self.opcode == Opcode::RC_ACKNOWLEDGE && self.psn == psn && self.aeth().syndrome >> 5 == 0
    }

    /// Whether it is a NAK with this code and PSN.
    pub fn is_nak(&self, psn: u32, code: NakCode) -> bool {
        self.opcode == Opcode::RC_ACKNOWLEDGE && self.psn == psn && self.aeth().syndrome == code as u8
    }

    /// Whether it is an RNR NAK with this timer code and PSN.
    pub fn is_rnr(&self, psn: u32, timer: u8) -> bool {
        self.opcode == Opcode::RC_ACKNOWLEDGE
            && self.psn == psn
            && Syndrome::decode(self.aeth().syndrome) == Syndrome::RnrNak { timer }
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} psn {:#x}", self.opcode, self.psn)?;
        if self.ack_req {
            f.write_str(" A")?;
        }
        if self.solicited {
            f.write_str(" SE")?;
        }
        match self.ext {
            Ext::None => {}
            Ext::Aeth(a) => write!(f, " syndrome {:#04x} msn {}", a.syndrome, a.msn)?,
            Ext::AtomicAck(a, v) => write!(f, " syndrome {:#04x} msn {} original {v:#x}", a.syndrome, a.msn)?,
            ext => write!(f, " {ext:?}")?,
        }
        if !self.payload.is_empty() {
            write!(f, " {} bytes", self.payload.len())?;
        }
        Ok(())
    }
}
