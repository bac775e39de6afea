//! The receive side of UC and UD: a faulty packet is dropped, and nothing is ever answered (IBA 9.8.2.2, 9.8.3.2).
//!
//! The receive request of a dropped message is kept for the next one, which fills the buffers from their start.

use super::{Effect, InProgress, ReceiveSource, Received, Responder};
use crate::id::PdId;
use crate::mem::MrTable;
use crate::proto::fault::Fault;
use crate::wire::{Discard, Kind, Packet};

/// How many bytes at the start of a datagram's receive buffers hold the network header (IBA 11.4.1.2).
pub const GRH_LEN: usize = 40;

impl Responder {
    /// Whether this packet starts a message while another one is in progress. The last packet of that one was lost, so it is dropped.
    #[inline]
    pub(crate) fn cuts_off(&self, pkt: &Packet<'_>) -> bool {
        self.in_progress != InProgress::None && pkt.row.position.starts()
    }

    /// Checks a packet of an unreliable connection. A FIRST or ONLY starts a message whatever its PSN. A MIDDLE or LAST must follow the
    /// packet before it; otherwise it and the rest of its message are dropped. Carry out the returned effect, then call
    /// [`Responder::accept`].
    ///
    /// # Errors
    /// The reason for which the packet is dropped.
    #[inline]
    pub(crate) fn handle_message(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Effect, Discard> {
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
        self.check_message(pkt, pd, rq, keys).map_err(|fault| {
            self.drop_message();
            if fault == Fault::NoReceive { Discard::NoReceive } else { Discard::BadRequest }
        })
    }

    #[inline]
    fn check_message(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Effect, Fault> {
        self.check_enabled(pkt)?;
        self.take_resource(pkt, rq)?;
        self.check_packet_length(pkt)?;
        match pkt.row.kind {
            Kind::Send => self.check_send(pkt),
            Kind::Write => self.check_write(pkt, pd, keys),
            _ => Err(Fault::BadOpcode),
        }
    }

    /// Drops the rest of the message in progress.
    fn drop_message(&mut self) {
        self.in_progress = InProgress::None;
    }

    /// Gives up the receive request that is held, because it completed in error. The next message takes another one.
    pub fn let_go(&mut self) {
        self.holds_receive = false;
    }

    /// Checks a datagram for a queue pair with the Q_Key `qkey`. Place the network header into the first [`GRH_LEN`] bytes of the receive
    /// request and the payload after it, then call [`Responder::accept_datagram`].
    ///
    /// # Errors
    /// The reason for which the datagram is dropped. If it does not fit into the receive request, the request is kept: a datagram from
    /// anywhere must not use up a receive request or end the queue pair.
    #[inline]
    pub(crate) fn handle_datagram(
        &mut self,
        pkt: &Packet<'_>,
        qkey: u32,
        rq: &mut impl ReceiveSource,
    ) -> Result<Effect, Discard> {
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
        Ok(Effect::Receive { offset: GRH_LEN as u64 })
    }

    /// Counts the datagram that [`Responder::handle_datagram`] accepted as received: the caller has placed it.
    #[inline]
    pub(crate) fn accept_datagram(&mut self, pkt: &Packet<'_>) -> Received {
        self.received(pkt, (GRH_LEN + pkt.payload.len()) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReceivedTail, ResponderConfig};
    use super::*;
    use crate::id::{Mtu, Psn, Qpn};
    use crate::mem::{Access, GrantedRange, UserMemory};
    use crate::wire::{Deth, Ext, Flow, HEADERS_MAX, Header, Ingress, Opcode, Reth, Template, locate};

    /// Receive requests by the bytes they hold.
    struct Receives(Vec<u64>);

    impl ReceiveSource for Receives {
        fn take(&mut self) -> Option<u64> {
            if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
        }
    }

    const PD: PdId = PdId(3);
    const VA: u64 = 0x1_0000;

    struct Rig {
        responder: Responder,
        receives: Receives,
        keys: MrTable,
        key: u32,
    }

    impl Rig {
        fn new(receives: &[u64]) -> Self {
            let mut responder = Responder::new();
            let config = ResponderConfig { mtu: Mtu::Mtu256, access: Access::REMOTE_WRITE, min_rnr_timer: 0 };
            responder.start(&config, Psn::new(0xff_ffff), 0);
            let keys = MrTable::new();
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let key = keys.register(PD, UserMemory::nowhere(VA, 4096), rights, 77).unwrap();
            Self { responder, receives: Receives(receives.to_vec()), keys, key }
        }

        /// Hands a packet in, and accepts it if it is good: its effect and what it completed.
        fn send(&mut self, h: Header, len: usize) -> Result<(Effect, Option<Received>), Discard> {
            with_packet(h, len, |pkt| {
                let effect = self.responder.handle_message(pkt, PD, &mut self.receives, &self.keys)?;
                Ok((effect, self.responder.accept(pkt)))
            })
        }

        fn datagram(&mut self, qkey: u32, len: usize) -> Result<(Effect, Received), Discard> {
            let ext = Ext::Deth(Deth { qkey, src_qpn: Qpn::new(9) });
            let h = Header { opcode: Opcode::UD_SEND_ONLY, ext, ..Header::default() };
            with_packet(h, len, |pkt| {
                let effect = self.responder.handle_datagram(pkt, 5, &mut self.receives)?;
                Ok((effect, self.responder.accept_datagram(pkt)))
            })
        }
    }

    /// A packet with a payload of `len` zeros.
    fn with_packet<R>(mut h: Header, len: usize, f: impl FnOnce(&Packet<'_>) -> R) -> R {
        h.payload_len = len as u32;
        let mut buf = vec![0; HEADERS_MAX + len + 8];
        let template = Template::new(&Flow::default());
        let at = template.begin(&mut buf, &h);
        let end = template.seal(&mut buf, at, len);
        let Ok(Ingress::Roce(layout)) = locate(&buf[..end]) else { panic!("a sound packet") };
        f(&layout.packet(&buf[..end]))
    }

    fn head(opcode: Opcode, psn: u32) -> Header {
        Header { opcode, psn: Psn::new(psn), ..Header::default() }
    }

    fn receive(offset: u64) -> Effect {
        Effect::Receive { offset }
    }

    #[test]
    fn u01_u03_a_gap_drops_the_message_and_rewinds_its_receive() {
        let mut r = Rig::new(&[1000]);
        assert_eq!(r.send(head(Opcode::UC_SEND_FIRST, 0xff_ffff), 256), Ok((receive(0), None)));
        assert_eq!(r.send(head(Opcode::UC_SEND_MIDDLE, 0), 256), Ok((receive(256), None)));
        assert_eq!(r.send(head(Opcode::UC_SEND_MIDDLE, 2), 256), Err(Discard::OutOfSequence));
        // The number is right again; the message is gone all the same.
        assert_eq!(r.send(head(Opcode::UC_SEND_LAST, 1), 1), Err(Discard::OutOfSequence));
        assert!(r.responder.holds_receive() && r.receives.0.is_empty());
        let (effect, done) = r.send(head(Opcode::UC_SEND_ONLY, 77), 5).unwrap();
        assert_eq!((effect, done.unwrap().byte_len), (receive(0), 5));
        assert_eq!(r.responder.rq_psn().get(), 78);
        assert!(!r.responder.has_answer());
    }

    #[test]
    fn u02_a_first_cuts_off_what_is_in_progress() {
        let mut r = Rig::new(&[1000]);
        assert!(r.send(head(Opcode::UC_SEND_FIRST, 5), 256).is_ok());
        with_packet(head(Opcode::UC_SEND_FIRST, 6), 256, |pkt| assert!(r.responder.cuts_off(pkt)));
        with_packet(head(Opcode::UC_SEND_LAST, 6), 256, |pkt| assert!(!r.responder.cuts_off(pkt)));
        assert_eq!(r.send(head(Opcode::UC_SEND_FIRST, 6), 256), Ok((receive(0), None)));
        let imm = Header { ext: Ext::Imm([1, 2, 3, 4]), ..head(Opcode::UC_SEND_LAST_IMM, 7) };
        let (effect, done) = r.send(imm, 9).unwrap();
        assert_eq!((effect, done.unwrap().byte_len), (receive(256), 265));
        assert_eq!(done.unwrap().tail, Some(ReceivedTail::Imm([1, 2, 3, 4])));
    }

    // A key is looked up for every packet: one that is revoked in mid-message ends it.
    #[test]
    fn u04_a_write_is_checked_packet_by_packet() {
        let mut r = Rig::new(&[]);
        let reth = |len| Ext::Reth(Reth { va: VA, rkey: r.key, len });
        let first = Header { ext: reth(600), ..head(Opcode::UC_WRITE_FIRST, 0) };
        let too_long = Header { ext: reth(4097), ..head(Opcode::UC_WRITE_FIRST, 0) };
        assert_eq!(r.send(too_long, 256), Err(Discard::BadRequest));
        assert_eq!(
            r.send(first, 256),
            Ok((Effect::Write { place: GrantedRange::found(VA, 600), last: false }, None))
        );
        let placed = Effect::Write { place: GrantedRange::found(VA + 256, 344), last: false };
        assert_eq!(r.send(head(Opcode::UC_WRITE_MIDDLE, 1), 256), Ok((placed, None)));
        r.keys.revoke(r.key).unwrap();
        assert_eq!(r.send(head(Opcode::UC_WRITE_LAST, 2), 88), Err(Discard::BadRequest));
        assert_eq!(r.send(head(Opcode::UC_WRITE_LAST, 3), 88), Err(Discard::OutOfSequence));
    }

    #[test]
    fn u10_u13_u14_datagrams() {
        let mut r = Rig::new(&[]);
        assert_eq!(r.datagram(5, 10), Err(Discard::NoReceive));
        r.receives.0.extend([139, 40]);
        assert_eq!(r.datagram(6, 10), Err(Discard::BadQkey));
        assert_eq!((r.responder.holds_receive(), r.receives.0.len()), (false, 2));
        assert_eq!(r.datagram(5, 257), Err(Discard::BadRequest), "longer than the port's path MTU");
        assert_eq!(r.datagram(5, 100), Err(Discard::ReceiveTooSmall));
        let (effect, done) = r.datagram(5, 99).unwrap();
        assert_eq!((effect, done.byte_len), (receive(40), 139));
        assert_eq!(r.datagram(5, 1), Err(Discard::ReceiveTooSmall));
        assert_eq!(r.datagram(5, 0).unwrap().1.byte_len, 40, "the header alone");
        assert!(!r.responder.holds_receive());
    }
}
