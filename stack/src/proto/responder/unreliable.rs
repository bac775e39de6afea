//! The receive side of UC and UD: what does not fit is dropped, and nothing is ever answered (IBA 9.8.2.2, 9.8.3.2).
//!
//! A dropped message keeps the receive request it held, for the next one; the buffers are filled from their start then.

use super::{InProgress, ReceiveSource, Received, Responder, Verdict};
use crate::id::PdId;
use crate::mem::MrTable;
use crate::proto::fault::Fault;
use crate::wire::{Discard, Kind, Packet};

/// Bytes at the start of a datagram's receive buffers that hold the network header (IBA 11.4.1.2).
pub const GRH_LEN: usize = 40;

impl Responder {
    /// Whether this packet starts a message while another one is in progress, which lost its end and is dropped.
    #[inline]
    pub fn cuts_off(&self, pkt: &Packet<'_>) -> bool {
        self.in_progress != InProgress::None && pkt.row.position.starts()
    }

    /// Checks a packet of an unreliable connection. A FIRST or ONLY starts a message whatever its sequence number; a
    /// MIDDLE or LAST must follow the packet before it, else it and the rest of its message are dropped. After
    /// placing, [`Responder::accept`] moves on.
    ///
    /// # Errors
    /// The name under which the packet is dropped.
    #[inline]
    pub fn handle_message(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Verdict, Discard> {
        if self.fatal.is_some() {
            return Err(Discard::BadState);
        }
        if pkt.row.position.starts() {
            self.in_progress = InProgress::None;
        } else if pkt.psn != self.epsn || self.check_sequence(pkt).is_err() {
            self.drop_message();
            return Err(Discard::OutOfSequence);
        }
        self.epsn = pkt.psn;
        self.check_message(pkt, pd, rq, keys).map_err(|reason| {
            self.drop_message();
            match reason {
                Ok(Fault::NoReceive) => Discard::NoReceive,
                Ok(_) => Discard::BadRequest,
                Err(discard) => discard,
            }
        })
    }

    #[inline]
    fn check_message(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Verdict, Result<Fault, Discard>> {
        self.check_enabled(pkt)?;
        self.take_resource(pkt, rq)?;
        self.check_packet_length(pkt)?;
        match pkt.row.kind {
            Kind::Send => self.check_send(pkt),
            Kind::Write => self.check_write(pkt, pd, keys),
            _ => Err(Fault::BadOpcode),
        }
        .map_err(Ok)
    }

    /// The rest of the message in progress is not wanted any more.
    fn drop_message(&mut self) {
        self.in_progress = InProgress::None;
    }

    /// The receive request held completed in error: the next message takes another one.
    pub fn let_go(&mut self) {
        self.holds_receive = false;
    }

    /// Checks a datagram for a queue pair with the Q_Key `qkey`. The network header goes to the first [`GRH_LEN`] bytes
    /// of the receive request, the payload behind it; then [`Responder::accept_datagram`].
    ///
    /// # Errors
    /// The name under which the datagram is dropped. One that does not fit into the receive request is dropped, and the
    /// request kept: a stranger's datagram must not use up a receive, or end the queue pair.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        pkt: &Packet<'_>,
        qkey: u32,
        rq: &mut impl ReceiveSource,
    ) -> Result<Verdict, Discard> {
        if self.fatal.is_some() {
            return Err(Discard::BadState);
        }
        if pkt.deth().qkey != qkey {
            return Err(Discard::BadQkey);
        }
        self.check_packet_length(pkt).map_err(|_| Discard::BadRequest)?;
        if !self.holds_receive {
            self.capacity = rq.take().ok_or(Discard::NoReceive)?;
            self.holds_receive = true;
        }
        if (GRH_LEN + pkt.payload.len()) as u64 > self.capacity {
            return Err(Discard::ReceiveTooSmall);
        }
        Ok(Verdict::Receive { offset: GRH_LEN as u64 })
    }

    /// The datagram that [`Responder::handle_datagram`] passed is placed.
    #[inline]
    pub fn accept_datagram(&mut self, pkt: &Packet<'_>) -> Received {
        self.received(pkt, (GRH_LEN + pkt.payload.len()) as u32)
    }
}
