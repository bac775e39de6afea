//! A connection: a queue of a controller on a queue pair of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmf::fair::{Party, Who};
use nvmf::wire::Cqe;
use nvmf::{Accepted, InFlight, Queue, Remote, Response};
use verbs::rdma_cm::{CmId, IdState};
use verbs::{PeerCheck, PeerState, PostError, PostErrorKind, Qp, SendQueue, SendWr, Sge};
use zerocopy::IntoBytes;

use super::meter::Gauge;
use super::party::KINDS;
use super::pool::CLASSES;
use super::tag;

/// Bytes of a response, which are posted inline.
pub const INLINE: u32 = size_of::<Cqe>() as u32;

/// What a connection sends.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing {
    /// An RDMA READ of a command's data, into its buffer.
    Fetch(u32, Sge, Remote),
    /// A response.
    Answer {
        response: Response,
        /// Data that go before it.
        data: Option<(Sge, Remote)>,
        /// The command whose buffer the data are in.
        command: Option<u32>,
    },
}

/// Why nothing was posted.
pub enum NotPosted {
    /// There is no room now: what is left to post.
    Later(Outgoing),
    /// The queue pair cannot send any more.
    Dead(PostError),
}

/// A connection. Its parts are dropped in order: the handle before the queue pair, that before the identifier.
#[derive(Debug)]
pub struct Connection {
    sq: SendQueue,
    pub qp: Arc<Qp>,
    pub id: CmId,
    /// The controller's side; none once the connection ends.
    pub queue: Option<Queue>,
    /// Kept until no command waits for anything any more.
    pub in_flight: Option<InFlight>,
    /// Commands that the host may send at a time.
    pub receives: u16,
    /// Responses that it can take at a time, where these are fewer.
    sends_max: Option<u16>,
    sends: u16,
    /// Commands under way that wait for something.
    pub commands: u32,
    /// Those of them that wait for a buffer, by its class.
    pub want: [VecDeque<u32>; CLASSES],
    /// The host, and its place among those that share what the core has.
    pub who: Who,
    pub party: Party,
    /// The host is none that a subsystem names, as far as is known.
    pub guest: bool,
    /// Connections that the core had accepted before.
    pub number: u64,
    /// What this connection has of that.
    pub has: [usize; KINDS],
    /// What waits to be posted.
    pub waiting: VecDeque<Outgoing>,
    pub ending: Ending,
    /// It has been logged who the host is.
    pub announced: bool,
    /// What its commands are counted by, where they are.
    pub gauge: Option<Gauge>,
    /// Requests that were posted, ever.
    posted: u64,
    /// Whether the host takes what is under way, and whether it takes anything at all.
    watch: Watch,
    quiet: Watch,
    /// The host was silent for a while, and is being asked.
    check: Option<PeerCheck>,
}

/// Notices that a number stays the same.
#[derive(Debug, Default)]
struct Watch {
    /// The number, and since when it is that; none while nobody watches.
    seen: Option<(u64, u64)>,
}

impl Watch {
    /// How long the number has been this, while somebody watches.
    fn waited(&mut self, now: u64, watched: bool, number: u64) -> u64 {
        match self.seen {
            Some((seen, since)) if watched && seen == number => now.saturating_sub(since),
            _ => {
                self.seen = watched.then_some((number, now));
                0
            }
        }
    }
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    No,
    /// The queue pair is in ERR; what was posted is being flushed.
    Flushing,
    /// All completions are in the queue, since this turn.
    Flushed(u64),
}

impl Connection {
    pub fn new(accepted: Accepted, id: CmId, qp: Arc<Qp>, sq: SendQueue, party: Party) -> Self {
        let Accepted { queue, receives, sends, named, .. } = accepted;
        let who = queue.who();
        Self {
            sq,
            qp,
            id,
            queue: Some(queue),
            in_flight: None,
            receives,
            sends_max: (sends < receives).then_some(sends),
            sends: 0,
            commands: 0,
            want: Default::default(),
            who,
            party,
            guest: !named,
            number: 0,
            has: [0; KINDS],
            waiting: VecDeque::new(),
            ending: Ending::No,
            announced: false,
            gauge: None,
            posted: 0,
            watch: Watch::default(),
            quiet: Watch::default(),
            check: None,
        }
    }

    /// Posts, after what waits already.
    #[inline]
    pub fn post(&mut self, outgoing: Outgoing) -> Result<(), NotPosted> {
        if !self.waiting.is_empty() {
            return Err(NotPosted::Later(outgoing));
        }
        self.post_now(outgoing)
    }
    /// Posts before what waits.
    #[inline]
    pub fn post_now(&mut self, outgoing: Outgoing) -> Result<(), NotPosted> {
        match outgoing {
            Outgoing::Fetch(command, to, Remote { address, key, .. }) => {
                let sges = [to];
                let read = SendWr::read(tag::FETCHED | command as u64, &sges, address, key).signaled();
                self.sq.post_send([read]).map_err(|e| refused(e, outgoing))?;
                self.posted += 1;
            }
            Outgoing::Answer { response, data, command } => {
                if self.sends_max.is_some_and(|max| self.sends >= max) {
                    return Err(NotPosted::Later(outgoing));
                }
                let cqe = response.cqe.as_bytes();
                let id = command.map_or(tag::SENT, |n| tag::ANSWERED | n as u64);
                let send = match response.invalidate {
                    Some(key) => SendWr::send_with_inv(id, &[], key),
                    None => SendWr::send(id, &[]),
                }
                .inline(cqe);
                // Where nobody waits for it a completion would only cost: errors complete all the same.
                let wanted = command.is_some() || self.sends_max.is_some();
                let send = if wanted { send.signaled() } else { send };
                match data {
                    None => {
                        self.sq.post_send([send]).map_err(|e| refused(e, outgoing))?;
                        self.posted += 1;
                    }
                    Some((sge, Remote { address, key, .. })) => {
                        let sges = [sge];
                        let write = SendWr::write(tag::SENT, &sges, address, key);
                        self.sq.post_send([write, send]).map_err(|e| {
                            // The data have gone, the response has not.
                            self.posted += e.bad_wr as u64;
                            let data = if e.bad_wr == 1 { None } else { data };
                            refused(e, Outgoing::Answer { response, data, command })
                        })?;
                        self.posted += 2;
                    }
                }
                if wanted {
                    self.sends += u16::from(self.sends_max.is_some());
                }
            }
        }
        Ok(())
    }
    /// A signalled request has completed.
    #[inline]
    pub fn completed(&mut self, kind: u64) {
        if self.sends_max.is_some() && kind != tag::FETCHED {
            self.sends = self.sends.saturating_sub(1);
        }
    }

    /// Requests that the host has not taken yet.
    fn under_way(&self) -> u64 {
        self.sq.in_use() as u64
    }
    /// Whether the host has taken nothing of what is to be sent to it for `patience` nanoseconds: call it now and then.
    pub fn is_stuck(&mut self, now: u64, patience: u64) -> bool {
        let under_way = self.under_way();
        let waits = under_way > 0 || !self.waiting.is_empty();
        self.watch.waited(now, waits, self.posted - under_way) >= patience
    }
    /// Whether the host is gone: call it now and then. A host that has taken nothing for `silence` nanoseconds, which may be because
    /// there was nothing, is asked whether it still has its end of the connection.
    pub fn is_gone(&mut self, now: u64, silence: u64) -> bool {
        let taken = self.posted - self.under_way();
        let quiet = self.quiet.waited(now, true, taken);
        match self.check.as_ref().map(PeerCheck::state) {
            // Before it is established the connection has a limit of its own.
            None if quiet >= silence && self.id.state() == IdState::Connected => {
                self.check = self.qp.check_peer().ok(); // it fails where the device does
                false
            }
            None | Some(PeerState::Asked) => false,
            Some(PeerState::Alive) => {
                (self.check, self.quiet) = (None, Watch::default());
                false
            }
            Some(_) => true,
        }
    }
}

fn refused(e: PostError, outgoing: Outgoing) -> NotPosted {
    match e.kind {
        PostErrorKind::Full { .. } => NotPosted::Later(outgoing),
        _ => NotPosted::Dead(e),
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;

    // Goal: the time counts from when something was under way and nothing completed, however long the target runs already.
    #[test]
    fn waiting_begins_when_something_is_under_way() {
        let mut watch = Watch::default();
        assert_eq!(watch.waited(1000, false, 0), 0);
        assert_eq!(watch.waited(2000, true, 0), 0, "it has just begun");
        assert_eq!(watch.waited(2500, true, 0), 500);
        assert_eq!(watch.waited(3000, true, 1), 0, "something completed");
        assert_eq!(watch.waited(3700, true, 1), 700);
        assert_eq!(watch.waited(4000, false, 1), 0);
        assert_eq!(watch.waited(9000, true, 1), 0, "it was idle meanwhile");
        assert_eq!(Watch::default().waited(u64::MAX, true, 0), 0);
    }
}
