//! The send side of UC and UD: every packet is sent once, and there are no answers (IBA 9.8.2, 9.8.3).
//!
//! It uses the send log and the PSNs of the reliable [`Requester`], but not its timer, retries, window or credits. A work request succeeds
//! when its last frame has been sent: [`Requester::left`].

use super::ack_requests::SinceAckReq;
use super::{Idle, LocalFailure, Operation, Remembered, RequestKind, Requester, Segment, SendRing};
use crate::id::Qpn;
use crate::proto::address::UdAddress;
use crate::proto::in_flight::InFlight;
use crate::proto::state::Gates;
use crate::proto::status::{SendFlags, WcStatus, WrOpcode};
use crate::proto::wqe::SendWqe;
use crate::wire::{Deth, Ext, Opcode, Transport};

impl Requester {
    /// Sequence number of the work request that the next packet belongs to, or why there is none. Does not start it, so that the caller can
    /// first look up the path to its destination.
    #[inline]
    pub(crate) fn peek_unreliable(
        &mut self,
        gates: Gates,
        epoch: u32,
        sq: &impl SendRing,
    ) -> Result<u32, Idle> {
        loop {
            if self.has_failed() {
                return Err(self.failed_idle());
            }
            let seq = self.log.current();
            if !self.log.all_sent() {
                if self.log.get(seq).kind.takes_no_psn() {
                    self.log.leave_current();
                    continue;
                }
                return if gates.has(Gates::TX_RETRY) { Ok(seq) } else { Err(Idle::NothingToDo) };
            }
            if seq == sq.published() || !gates.has(Gates::START_WQE) {
                return Err(Idle::NothingToDo);
            }
            if SendWqe::of(sq.slot(seq)).epoch == epoch {
                return Ok(seq);
            }
            self.log.start_without_psn(RequestKind::Stale);
        }
    }

    /// Returns the next packet of an unreliable connection, or why there is none.
    #[inline]
    pub(crate) fn poll_message<'a>(
        &mut self,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
    ) -> Result<Segment<'a>, Idle> {
        let seq = self.peek_unreliable(gates, epoch, sq)?;
        let slot = sq.slot(seq);
        let wqe = SendWqe::of(slot);
        let Some(operation) = Operation::of(wqe) else {
            // An invalidation waits until all frames of earlier messages have been sent.
            return Err(self.start_local(wqe).err().unwrap_or_else(|| self.failed_idle()));
        };
        if operation.only.in_class(Transport::Uc).row().is_none() {
            self.fail_local(seq, WcStatus::LocQpOpErr);
            return Err(self.failed_idle());
        }
        if self.log.all_sent() {
            self.start_message(self.mtu.packets(wqe.length));
        }
        let (started, psn) = (self.log.get(seq), self.in_flight.cursor());
        // No acknowledgement is requested, and nothing is sent again.
        let mut segment = self.message_segment(seq, slot, operation, &started, psn, false);
        segment.opcode = segment.opcode.in_class(Transport::Uc);
        self.sent_for_good(psn == started.last);
        Ok(segment)
    }

    /// Returns the next datagram from queue pair `qpn`, whose Q_Key is `qkey`, or why there is none. A datagram that is longer than the
    /// path MTU of the port fails with `LOC_LEN_ERR` (IBA C10-93).
    #[inline]
    pub(crate) fn poll_datagram<'a>(
        &mut self,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
        qpn: Qpn,
        qkey: u32,
    ) -> Result<Segment<'a>, Idle> {
        let seq = self.peek_unreliable(gates, epoch, sq)?;
        let slot = sq.slot(seq);
        let wqe = SendWqe::of(slot);
        let checked = match (wqe.opcode(), UdAddress::of(slot)) {
            (WrOpcode::Send | WrOpcode::SendWithImm, Some(address)) => {
                if wqe.length as usize > self.mtu.bytes() { Err(WcStatus::LocLenErr) } else { Ok(address) }
            }
            _ => Err(WcStatus::LocQpOpErr),
        };
        let address = match checked {
            Ok(address) => address,
            Err(status) => {
                self.fail_local(seq, status);
                return Err(self.failed_idle());
            }
        };
        if self.log.all_sent() {
            self.start_message(1);
        }
        let deth = Deth { qkey: address.qkey(qkey), src_qpn: qpn };
        let (opcode, ext) = match wqe.opcode() {
            WrOpcode::SendWithImm => (Opcode::UD_SEND_ONLY_IMM, Ext::DethImm(deth, wqe.imm())),
            _ => (Opcode::UD_SEND_ONLY, Ext::Deth(deth)),
        };
        let segment = Segment {
            seq,
            slot,
            opcode,
            psn: self.in_flight.cursor(),
            ack_req: false,
            solicited: wqe.flags().contains(SendFlags::SOLICITED),
            ext,
            offset: 0,
            len: wqe.length,
            again: false,
            since_ack_req: SinceAckReq::NONE,
        };
        self.sent_for_good(true);
        Ok(segment)
    }

    #[inline]
    fn start_message(&mut self, packets: u32) {
        self.log.start(Remembered::new(self.log.assigned(), RequestKind::Message), packets);
    }

    /// Updates the state after a packet was handed out. `last`: it is the last of its request.
    #[inline]
    fn sent_for_good(&mut self, last: bool) {
        self.in_flight = InFlight::at(self.in_flight.cursor().add(1));
        if last {
            self.log.leave_current();
        }
    }

    /// Sequence number after the last work request whose packets are all built. Pass it to [`Requester::left`] once they have been sent.
    #[inline]
    pub fn built(&self) -> u32 {
        let current = self.log.current();
        self.failure.before_or_at(current).unwrap_or(current)
    }

    /// Completes every work request before `seq`: all their frames have been sent.
    #[inline]
    pub fn left(&mut self, seq: u32) {
        self.log.complete_before(seq);
    }

    /// SQE: forgets every work request before `seq`. PSNs stay, for a return to RTS.
    pub fn forget(&mut self, seq: u32) {
        self.log.drop_before(seq, self.in_flight.cursor());
        self.failure = LocalFailure::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Policies, RequesterConfig};
    use super::*;
    use crate::id::{Mtu, Psn, QpState, QpType};
    use crate::proto::address::{Source, UD_ADDR_GRANULES};
    use crate::proto::attr::GlobalRoute;
    use crate::proto::wqe::Granule;

    #[derive(Default)]
    struct Ring(Vec<Vec<Granule>>);

    impl Ring {
        fn post(&mut self, opcode: WrOpcode, length: u32, address: Option<UdAddress>) {
            let mut slot = vec![Granule::default(); 8];
            let mut wqe = SendWqe::new(self.0.len() as u64, opcode, SendFlags::SIGNALED);
            wqe.length = length;
            wqe.epoch = 1;
            wqe.arg0 = u32::from_ne_bytes([1, 2, 3, 4]).into();
            wqe.addr_granules = address.map_or(0, |_| UD_ADDR_GRANULES as u8);
            let body = wqe.put(&mut slot);
            if let Some(address) = address {
                address.put(body);
            }
            self.0.push(slot);
        }
    }

    impl SendRing for Ring {
        fn published(&self) -> u32 {
            self.0.len() as u32
        }
        fn slot(&self, seq: u32) -> &[Granule] {
            &self.0[seq as usize]
        }
    }

    fn requester(sq_psn: u32) -> Requester {
        let mut r = Requester::new(16, Policies::default());
        r.start(&RequesterConfig {
            mtu: Mtu::Mtu256,
            sq_psn: Psn::new(sq_psn),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 0,
        });
        r
    }

    const RTS: Gates = Gates::of(QpState::Rts, QpType::Uc);
    const SQD: Gates = Gates::of(QpState::Sqd, QpType::Uc);

    #[test]
    fn u06_messages_are_cut_and_ask_for_nothing() {
        let (mut r, mut ring) = (requester(0xff_fffe), Ring::default());
        ring.post(WrOpcode::Send, 600, None);
        ring.post(WrOpcode::RdmaWriteWithImm, 257, None);
        ring.post(WrOpcode::SendWithImm, 0, None);
        let mut seen = Vec::new();
        while let Ok(s) = r.poll_message(RTS, 1, &ring) {
            assert!(!s.ack_req && !s.again);
            seen.push((s.opcode, s.psn.get(), s.offset, s.len));
        }
        assert_eq!(
            seen,
            [
                (Opcode::UC_SEND_FIRST, 0xff_fffe, 0, 256),
                (Opcode::UC_SEND_MIDDLE, 0xff_ffff, 256, 256),
                (Opcode::UC_SEND_LAST, 0, 512, 88),
                (Opcode::UC_WRITE_FIRST, 1, 0, 256),
                (Opcode::UC_WRITE_LAST_IMM, 2, 256, 1),
                (Opcode::UC_SEND_ONLY_IMM, 3, 0, 0),
            ]
        );
        assert_eq!((r.head(), r.built(), r.sq_psn().get()), (0, 3, 4));
        assert_eq!(r.deadline(), crate::time::Instant::FAR, "no timer runs");
        r.left(2);
        assert!(!r.drained());
        r.left(3);
        assert!(r.drained());
    }

    #[test]
    fn a_drained_queue_ends_the_message_in_progress_and_starts_none() {
        let (mut r, mut ring) = (requester(0), Ring::default());
        ring.post(WrOpcode::Send, 300, None);
        ring.post(WrOpcode::Send, 1, None);
        assert!(r.poll_message(RTS, 1, &ring).is_ok());
        assert_eq!(r.poll_message(SQD, 1, &ring).unwrap().opcode, Opcode::UC_SEND_LAST);
        assert_eq!(r.poll_message(SQD, 1, &ring).unwrap_err(), Idle::NothingToDo);
        r.left(r.built());
        assert!(r.drained());
        assert_eq!(r.poll_message(RTS, 1, &ring).unwrap().psn.get(), 2);
    }

    #[test]
    fn u15_too_long_a_datagram_fails_after_what_was_before_it() {
        let (mut r, mut ring) = (requester(7), Ring::default());
        let address = UdAddress::new(&GlobalRoute::default(), Source::default(), 0).to(Qpn::new(5), 0x22);
        ring.post(WrOpcode::Send, 256, Some(address));
        ring.post(WrOpcode::Send, 257, Some(address));
        let s = r.poll_datagram(RTS, 1, &ring, Qpn::new(3), 0x11).unwrap();
        let deth = Deth { qkey: 0x22, src_qpn: Qpn::new(3) };
        assert_eq!((s.opcode, s.psn.get(), s.ext), (Opcode::UD_SEND_ONLY, 7, Ext::Deth(deth)));
        let poll = |r: &mut Requester, ring: &mut Ring| {
            r.poll_datagram(RTS, 1, ring, Qpn::new(3), 0x11).map(|s| s.psn.get())
        };
        assert_eq!(poll(&mut r, &mut ring), Err(Idle::Waiting), "the first has not left yet");
        assert_eq!((r.built(), r.local_failure()), (1, None));
        r.left(1);
        assert_eq!(poll(&mut r, &mut ring), Err(Idle::Failed));
        assert_eq!(r.local_failure(), Some(WcStatus::LocLenErr));
        // SQE and back: the numbers go on.
        r.forget(2);
        ring.post(WrOpcode::SendWithImm, 1, Some(address));
        let s = r.poll_datagram(RTS, 1, &ring, Qpn::new(3), 0x11).unwrap();
        assert_eq!((s.seq, s.psn.get(), s.opcode), (2, 8, Opcode::UD_SEND_ONLY_IMM));
    }

    #[test]
    fn requests_of_an_earlier_life_are_skipped() {
        let (mut r, mut ring) = (requester(0), Ring::default());
        for _ in 0..3 {
            ring.post(WrOpcode::Send, 1, None);
        }
        let stale = |ring: &mut Ring, i: usize| {
            let mut wqe = *SendWqe::of(&ring.0[i]);
            wqe.epoch = 0;
            wqe.put(&mut ring.0[i]);
        };
        stale(&mut ring, 0);
        stale(&mut ring, 2);
        let s = r.poll_message(RTS, 1, &ring).unwrap();
        assert_eq!((s.seq, s.psn.get(), r.head()), (1, 0, 1));
        assert_eq!(r.poll_message(RTS, 1, &ring).unwrap_err(), Idle::NothingToDo);
        assert_eq!(r.built(), 3);
        r.left(2);
        assert!(r.drained(), "a stale request needs no frame");
    }

    #[test]
    fn operations_without_a_packet_fail() {
        for opcode in [WrOpcode::RdmaRead, WrOpcode::SendWithInv, WrOpcode::AtomicFetchAndAdd] {
            let (mut r, mut ring) = (requester(0), Ring::default());
            ring.post(opcode, 8, None);
            assert_eq!(r.poll_message(RTS, 1, &ring).unwrap_err(), Idle::Failed);
            assert_eq!(r.local_failure(), Some(WcStatus::LocQpOpErr));
        }
        let (mut r, mut ring) = (requester(0), Ring::default());
        ring.post(WrOpcode::Send, 8, None);
        assert_eq!(r.poll_datagram(RTS, 1, &ring, Qpn::new(3), 1).unwrap_err(), Idle::Failed);
    }
}
