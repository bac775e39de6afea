//! The machine: all connections of a device.

use crate::id::{Gid, Qpn};
use crate::time::Instant;

use super::*;

/// The connection manager of a device.
pub struct Machine {
    config: Config,
    counters: Counters,
}

impl Machine {
    /// A machine without listeners and connections.
    pub fn new(config: Config) -> Self {
        Self { config, counters: Counters::default() }
    }

    /// Our addresses: a REQ must name one of them, or the one it came to. Called at the start and at each change.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        let _ = gids;
    }

    /// Counts of everything.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How the machine is configured.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    // ── input and output ──

    /// A datagram that arrived at queue pair 1. `path` is as seen from here: `sgid` the address it came to, `dgid` its
    /// source; its hop limit does not matter. `mad` is the datagram's payload (without the 40 bytes of the GRH).
    pub fn handle_mad(&mut self, now: Instant, path: &Path, mad: &[u8]) {
        let _ = (now, path, mad);
    }

    /// When [`Machine::poll_timers`] is to be called next.
    pub fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// Does what is due at `now`, a bounded part of it: [`Machine::next_timer`] tells whether more is.
    pub fn poll_timers(&mut self, now: Instant) {
        let _ = now;
    }

    /// The next MAD to be sent. One that cannot be sent may be thrown away: timers send it again.
    pub fn poll_send(&mut self) -> Option<Send> {
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    // ── listeners ──

    /// Takes requests for a service id.
    ///
    /// A listener with an address of its own goes before one for all addresses.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Limit`].
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, listen: &Listen) -> Result<ListenId, Error> {
        let _ = listen;
        Err(Error::Limit("listeners"))
    }

    /// Takes no more requests. Those that have come stay: each wants to be accepted, rejected or destroyed.
    ///
    /// # Errors
    /// [`Error::NoListener`].
    pub fn close_listener(&mut self, id: ListenId) -> Result<(), Error> {
        Err(Error::NoListener(id))
    }

    // ── connections ──

    /// Sends a REQ. Ends in [`Event::ConnectResponse`], [`Event::Rejected`] or [`Event::Unreachable`].
    ///
    /// # Errors
    /// Everything in [`Connect`] that is out of range; [`Error::QpBusy`], [`Error::Limit`].
    #[doc(alias = "rdma_connect")]
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error> {
        let _ = (now, connect);
        Err(Error::Limit("connections"))
    }

    /// What the queue pair needs if a request is accepted with these parameters. Changes nothing: bring the queue
    /// pair to RTS first, receives posted, then [`Machine::accept`]: data can arrive with the RTU, or before it.
    ///
    /// # Errors
    /// Those of [`Machine::accept`].
    pub fn plan_accept(&self, id: ConnId, accept: &Accept) -> Result<QpParams, Error> {
        let _ = accept;
        Err(Error::NoConnection(id))
    }

    /// Sends a REP. Ends in [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`]. Returns what
    /// [`Machine::plan_accept`] does.
    ///
    /// # Errors
    /// Everything in [`Accept`] that is out of range; [`Error::QpBusy`], [`Error::State`], [`Error::NoConnection`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<QpParams, Error> {
        let _ = (now, accept);
        Err(Error::NoConnection(id))
    }

    /// Refuses a request, or a response. Ends the id of a request; a response's queue pair rests in TIMEWAIT.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Info`], [`Error::State`], [`Error::NoConnection`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, now: Instant, id: ConnId, reject: &Reject) -> Result<(), Error> {
        let _ = (now, reject);
        Err(Error::NoConnection(id))
    }

    /// Active side, after [`Event::ConnectResponse`]: the queue pair is in RTS. Sends the RTU; the connection is
    /// established. Up to 224 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::State`], [`Error::NoConnection`].
    #[doc(alias = "rdma_establish")]
    pub fn confirm(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let _ = (now, private_data);
        Err(Error::NoConnection(id))
    }

    /// Passive side: data arrived before the RTU (`IBV_EVENT_COMM_EST`). No error if the RTU came meanwhile.
    ///
    /// # Errors
    /// [`Error::State`] before accept and after the end, [`Error::NoConnection`].
    #[doc(alias = "rdma_notify")]
    pub fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        let _ = now;
        Err(Error::NoConnection(id))
    }

    /// Ends an established connection: sends a DREQ. Ends in [`Event::Disconnected`]. An accepted request that is not
    /// established yet is rejected instead (also [`Event::Disconnected`], of the kind `Agreed`). Up to 220 bytes
    /// of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::State`] in every other state, [`Error::NoConnection`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let _ = (now, private_data);
        Err(Error::NoConnection(id))
    }

    /// Gives a connection up in any state: the peer is told as far as it knows of it (REJ, DREQ with its retries), and
    /// no event comes any more but [`Event::TimeWaitExit`], if its queue pair has to rest.
    ///
    /// # Errors
    /// [`Error::NoConnection`].
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        let _ = now;
        Err(Error::NoConnection(id))
    }

    /// Whether a queue pair is in a connection, or rests in TIMEWAIT after one: its number must not be used again yet.
    pub fn qp_busy(&self, qpn: Qpn) -> bool {
        let _ = qpn;
        false
    }

    // ── datagram services ──

    /// Asks for the queue pair of a datagram service. Ends in [`Event::SidrReply`] or [`Event::SidrUnreachable`].
    ///
    /// # Errors
    /// Everything in [`SidrRequest`] that is out of range; [`Error::Limit`].
    pub fn sidr_request(&mut self, now: Instant, request: &SidrRequest) -> Result<SidrId, Error> {
        let _ = (now, request);
        Err(Error::Limit("SIDR exchanges"))
    }

    /// Answers an [`Event::SidrRequest`], and ends its id.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Info`], [`Error::NoSidr`].
    pub fn sidr_reply(&mut self, now: Instant, id: SidrId, reply: &SidrReply) -> Result<(), Error> {
        let _ = (now, reply);
        Err(Error::NoSidr(id))
    }

    /// Gives an exchange up: a request is not repeated, or gets no answer.
    ///
    /// # Errors
    /// [`Error::NoSidr`].
    pub fn sidr_destroy(&mut self, id: SidrId) -> Result<(), Error> {
        Err(Error::NoSidr(id))
    }
}
