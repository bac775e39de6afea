//! Service ID resolution (SIDR): asks a peer which queue pair serves a datagram service (IBA 12.11).

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::MAD_LEN;
use super::calls::{PKEY, check_path, check_timing, fits, fits_info, with_header};
use super::code;
use super::counter::Counter;
use super::error::Error;
use super::event::{Event, Path, Send, SidrId, SidrReply, SidrRequest};
use super::machine::{Begun, Machine, Timed, from_peer};
use super::mad::Mad;
use super::message::{SidrRep, SidrReq, padded};
use super::reason::SidrStatus;
use super::request::split_header;
use super::service::ServiceId;
use super::share::{Full, Shares};
use crate::id::{Gid, Qpn};
use crate::time::Instant;

/// How long an answer is kept for a retransmitted request: a little longer than the retransmission interval of Linux.
const ANSWER_HOLD: Duration = Duration::from_secs(5);

enum Side {
    /// Our request, not answered yet.
    Asked { request: Box<[u8; MAD_LEN]>, left: u8, interval: Duration, deadline: Instant },
    /// A peer's request, which the program has not answered yet.
    Pending { service_id: ServiceId },
    /// A peer's request that was answered.
    Answered { service_id: ServiceId, reply: Box<[u8; MAD_LEN]> },
}

struct Sidr {
    side: Side,
    path: Path,
    tid: u64,
    request_id: u32,
    timer: Instant,
    /// Whether its request or answer waits to be sent.
    queued: bool,
    /// Whether its request or answer was sent at least once.
    sent: bool,
}

impl Sidr {
    fn new(side: Side, path: Path, tid: u64, request_id: u32) -> Self {
        Self { side, path, tid, request_id, timer: Instant::FAR, queued: false, sent: false }
    }
}

/// All SIDR exchanges of a device.
#[derive(Default)]
pub(super) struct Sidrs {
    by_id: BTreeMap<SidrId, Sidr>,
    /// Exchanges that we began, by request ID.
    asked: BTreeMap<u32, SidrId>,
    /// Exchanges that peers began, by the peer's address and request ID.
    received: BTreeMap<(Gid, u32), SidrId>,
    /// Exchanges that peers began and that wait for the program, by peer.
    pending: Shares<SidrId>,
    /// Answered exchanges, by the time when they are removed.
    answered: BTreeSet<(Instant, SidrId)>,
}

impl Sidrs {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
    /// The flag that says whether the request or answer of an exchange waits to be sent; `None` if there is no such exchange.
    pub fn queued(&mut self, id: SidrId) -> Option<&mut bool> {
        self.by_id.get_mut(&id).map(|sidr| &mut sidr.queued)
    }
    /// Takes the request or answer of an exchange to send it. Also returns whether it was sent before.
    pub fn take_queued(&mut self, id: SidrId) -> Option<(Send, bool)> {
        let sidr = self.by_id.get_mut(&id)?;
        sidr.queued = false;
        match &sidr.side {
            Side::Asked { request: mad, .. } | Side::Answered { reply: mad, .. } => {
                let again = core::mem::replace(&mut sidr.sent, true);
                Some((Send { mad: **mad, path: sidr.path }, again))
            }
            Side::Pending { .. } => None,
        }
    }
    /// The address of the peer.
    pub fn host(&self, id: SidrId) -> Option<Gid> {
        self.by_id.get(&id).map(|sidr| sidr.path.dgid)
    }
    /// The retransmission interval of our request; `None` if the exchange is not ours.
    pub fn interval(&self, id: SidrId) -> Option<Duration> {
        match self.by_id.get(&id)?.side {
            Side::Asked { interval, .. } => Some(interval),
            _ => None,
        }
    }
}

/// Datagram services.
impl Machine {
    /// Asks a peer for the queue pair of a datagram service. The result comes as [`Event::SidrReply`] or [`Event::SidrUnreachable`].
    ///
    /// # Errors
    /// An error for each value in [`SidrRequest`] that is out of range; [`Error::Limit`] if there are too many exchanges.
    pub fn sidr_request(&mut self, now: Instant, request: &SidrRequest) -> Result<SidrId, Error> {
        check_path(&request.path)?;
        check_timing(&request.timing)?;
        let private_data = with_header(request.service_id, request.ip.as_ref(), &request.private_data)?;
        self.sidr_room(now, request.path.sgid).map_err(|_| Error::Limit("SIDR exchanges"))?;
        let request_id = self.random.id(&self.config.ids, |id| self.sidrs.asked.contains_key(&id));
        let tid = self.random.next();
        let mad =
            Mad::new(tid, SidrReq { request_id, pkey: PKEY, service_id: request.service_id, private_data })
                .encode();
        let interval = code::time(request.timing.remote_response);
        let left = request.timing.max_cm_retries;
        let deadline = now.after(interval * (u32::from(left) + 1));
        let side = Side::Asked { request: Box::new(mad), left, interval, deadline };
        let id = self.sidr_insert(Sidr::new(side, request.path, tid, request_id));
        self.sidrs.asked.insert(request_id, id);
        self.request(now, Timed::Sidr(id));
        Ok(id)
    }

    /// Answers an [`Event::SidrRequest`]. Ends the ID.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Info`], [`Error::NoSidr`].
    pub fn sidr_reply(&mut self, now: Instant, id: SidrId, reply: &SidrReply) -> Result<(), Error> {
        let sidr = self.sidrs.by_id.get_mut(&id).ok_or(Error::NoSidr(id))?;
        let Side::Pending { service_id } = sidr.side else { return Err(Error::NoSidr(id)) };
        fits(&reply.private_data, 136)?;
        fits_info(&reply.info)?;
        let success = reply.status == SidrStatus::SUCCESS;
        let mad = SidrRep {
            request_id: sidr.request_id,
            status: reply.status,
            info_length: reply.info.len() as u8,
            qpn: if success { reply.qpn } else { Qpn::default() },
            service_id,
            qkey: if success { reply.qkey } else { 0 },
            info: padded(&reply.info),
            private_data: padded(&reply.private_data),
            ..SidrRep::default()
        };
        let mad = Mad::new(sidr.tid, mad).encode();
        sidr.side = Side::Answered { service_id, reply: Box::new(mad) };
        self.sidrs.pending.remove(sidr.path.dgid, id);
        let end = now.after(ANSWER_HOLD);
        self.sidr_arm(id, end);
        self.sidrs.answered.insert((end, id));
        self.send_kept(Timed::Sidr(id));
        Ok(())
    }

    /// Gives up an exchange. Our request is not retransmitted; a peer's request is rejected (status 2).
    ///
    /// # Errors
    /// [`Error::NoSidr`].
    pub fn sidr_destroy(&mut self, now: Instant, id: SidrId) -> Result<(), Error> {
        let sidr = self.sidrs.by_id.get(&id).ok_or(Error::NoSidr(id))?;
        match sidr.side {
            Side::Asked { .. } => {}
            Side::Pending { service_id } => {
                let (path, tid, request_id) = (sidr.path, sidr.tid, sidr.request_id);
                self.sidr_refuse(path, tid, request_id, service_id, SidrStatus::REJECT);
            }
            Side::Answered { .. } => return Err(Error::NoSidr(id)),
        }
        self.sidr_remove(now, id);
        Ok(())
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        now: Instant,
        path: &Path,
        tid: u64,
        req: &SidrReq,
    ) -> Result<(), Counter> {
        let path = self.reply_path(path);
        let service_id = req.service_id;
        if let Some(&id) = self.sidrs.received.get(&(path.dgid, req.request_id)) {
            let sidr = &self.sidrs.by_id[&id];
            match &sidr.side {
                _ if sidr.tid != tid => {}
                Side::Pending { service_id: s } if *s == service_id => return Err(Counter::DuplicateSidr),
                Side::Answered { service_id: s, .. } if *s == service_id => {
                    self.send_kept(Timed::Sidr(id));
                    return Err(Counter::DuplicateSidr);
                }
                _ => {}
            }
            if matches!(sidr.side, Side::Pending { .. }) {
                return Err(Counter::WrongTransaction);
            }
            self.sidr_remove(now, id); // the peer reuses the request ID
        }
        let (ip, private_data) = split_header(service_id, &req.private_data).inspect_err(|_| {
            self.sidr_refuse(path, tid, req.request_id, service_id, SidrStatus::REJECT);
        })?;
        let asked = ip.map_or(path.sgid, |ip| Gid::from_ip(ip.dst));
        let Some(listener) = self.listeners.find(service_id, asked) else {
            self.sidr_refuse(path, tid, req.request_id, service_id, SidrStatus::UNSUPPORTED);
            return Err(Counter::NoListener);
        };
        if self.events_full() {
            return Err(Counter::SidrNoResources);
        }
        self.sidr_room(now, path.dgid).map_err(|_| Counter::SidrNoResources)?;
        let private_data = private_data.to_vec();
        let side = Side::Pending { service_id };
        let id = self.sidr_insert(Sidr::new(side, path, tid, req.request_id));
        self.sidrs.pending.insert(path.dgid, id);
        self.sidrs.received.insert((path.dgid, req.request_id), id);
        self.sidr_arm(id, now.after(self.config.limits.half_open_time));
        self.push_event(Event::SidrRequest { listener, id, service_id, path, ip, private_data });
        Ok(())
    }

    pub(super) fn handle_sidr_rep(
        &mut self,
        now: Instant,
        path: &Path,
        tid: u64,
        rep: &SidrRep,
    ) -> Result<(), Counter> {
        let info = rep.info.get(..usize::from(rep.info_length)).ok_or(Counter::BadField)?;
        let id = *self.sidrs.asked.get(&rep.request_id).ok_or(Counter::UnknownId)?;
        let sidr = &self.sidrs.by_id[&id];
        from_peer(&sidr.path, path)?;
        if sidr.tid != tid {
            return Err(Counter::WrongTransaction);
        }
        let reply = Event::SidrReply {
            id,
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            path: sidr.path,
            info: info.to_vec(),
            private_data: rep.private_data.to_vec(),
        };
        self.sidr_remove(now, id);
        self.push_event(reply);
        Ok(())
    }

    pub(super) fn sidr_timer(&mut self, now: Instant, id: SidrId) {
        let Some(sidr) = self.sidrs.by_id.get_mut(&id) else { return };
        match &mut sidr.side {
            Side::Asked { left, deadline, .. } if *left > 0 && now < *deadline => {
                *left -= 1;
                self.request(now, Timed::Sidr(id));
            }
            Side::Asked { .. } => self.sidr_unreachable(now, id, Counter::Unreachable),
            Side::Pending { .. } => self.sidr_unreachable(now, id, Counter::Undecided),
            Side::Answered { .. } => self.sidr_remove(now, id),
        }
    }

    fn sidr_unreachable(&mut self, now: Instant, id: SidrId, why: Counter) {
        self.sidr_remove(now, id);
        self.counters.count(why);
        self.push_event(Event::SidrUnreachable { id });
    }

    /// Answers a request that the program does not see, or gave up.
    fn sidr_refuse(
        &mut self,
        path: Path,
        tid: u64,
        request_id: u32,
        service_id: ServiceId,
        status: SidrStatus,
    ) {
        let rep = SidrRep { request_id, status, service_id, ..SidrRep::default() };
        self.answer(path, &Mad::new(tid, rep));
    }

    /// Makes room for one more exchange of `host`: removes the oldest answered one. If there is none, gives up the oldest request that
    /// waits for the program, of the host with most of those.
    fn sidr_room(&mut self, now: Instant, host: Gid) -> Result<(), Full> {
        while self.sidrs.len() >= self.config.limits.sidr {
            match self.sidrs.answered.first() {
                Some(&(_, id)) => self.sidr_remove(now, id),
                None => {
                    let id = self.sidrs.pending.room(0, host)?.ok_or(Full)?;
                    self.sidr_unreachable(now, id, Counter::PushedOut);
                }
            }
        }
        Ok(())
    }

    fn sidr_insert(&mut self, sidr: Sidr) -> SidrId {
        let id = SidrId(self.new_id());
        self.sidrs.by_id.insert(id, sidr);
        id
    }

    pub(super) fn sidr_arm(&mut self, id: SidrId, at: Instant) {
        let Some(sidr) = self.sidrs.by_id.get_mut(&id) else { return };
        let at = if let Side::Asked { deadline, .. } = sidr.side { at.min(deadline) } else { at };
        self.timers.remove(&(sidr.timer, Timed::Sidr(id)));
        sidr.timer = at;
        self.timers.insert((at, Timed::Sidr(id)));
        self.began(Begun::Timer(Timed::Sidr(id)));
    }

    /// Postpones the timer and deadline of our request, because it was sent `late_ns` after the time from which they count.
    pub(super) fn sidr_left_late(&mut self, id: SidrId, late_ns: u64) {
        let Some(sidr) = self.sidrs.by_id.get_mut(&id) else { return };
        if let Side::Asked { deadline, .. } = &mut sidr.side {
            *deadline = deadline.after_nanos(late_ns);
            let at = sidr.timer.after_nanos(late_ns);
            self.sidr_arm(id, at);
        }
    }

    fn sidr_remove(&mut self, now: Instant, id: SidrId) {
        let Some(sidr) = self.sidrs.by_id.remove(&id) else { return };
        self.timers.remove(&(sidr.timer, Timed::Sidr(id)));
        match sidr.side {
            Side::Asked { .. } => self.sidrs.asked.remove(&sidr.request_id),
            _ => self.sidrs.received.remove(&(sidr.path.dgid, sidr.request_id)),
        };
        self.sidrs.pending.remove(sidr.path.dgid, id);
        self.sidrs.answered.remove(&(sidr.timer, id));
        self.answered(now, Timed::Sidr(id));
    }
}
