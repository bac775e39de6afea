//! A connection: a queue of a controller on a queue pair of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmf::wire::Cqe;
use nvmf::{Accepted, InFlight, Queue, Remote, Response};
use verbs::rdma_cm::CmId;
use verbs::{PostError, PostErrorKind, Qp, SendQueue, SendWr, Sge};
use zerocopy::IntoBytes;

use super::meter::Gauge;
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
    /// Those of them that wait for a buffer, and how many have one, by its class.
    pub want: [VecDeque<u32>; CLASSES],
    pub have: [usize; CLASSES],
    /// What waits to be posted.
    pub waiting: VecDeque<Outgoing>,
    pub ending: Ending,
    /// It has been logged who the host is.
    pub announced: bool,
    /// What its commands are counted by, where they are.
    pub gauge: Option<Gauge>,
    /// Signalled requests that have not completed, and those that have.
    signalled: u32,
    completed: u64,
    /// The last request was not signalled: nothing tells whether the host took it.
    untold: bool,
    watch: Watch,
}

/// Notices that nothing completes.
#[derive(Debug, Default)]
struct Watch {
    /// How many had completed, and since when it is so many; none while nothing is under way.
    seen: Option<(u64, u64)>,
}

impl Watch {
    /// How long nothing has completed, of what is under way.
    fn waited(&mut self, now: u64, under_way: bool, completed: u64) -> u64 {
        match self.seen {
            Some((seen, since)) if under_way && seen == completed => now.saturating_sub(since),
            _ => {
                self.seen = under_way.then_some((completed, now));
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
    pub fn new(accepted: Accepted, id: CmId, qp: Arc<Qp>, sq: SendQueue) -> Self {
        let Accepted { queue, receives, sends, .. } = accepted;
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
            have: [0; CLASSES],
            waiting: VecDeque::new(),
            ending: Ending::No,
            announced: false,
            gauge: None,
            signalled: 0,
            completed: 0,
            untold: false,
            watch: Watch::default(),
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
                self.signalled += 1;
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
                    None => self.sq.post_send([send]).map_err(|e| refused(e, outgoing))?,
                    Some((sge, Remote { address, key, .. })) => {
                        let sges = [sge];
                        let write = SendWr::write(tag::SENT, &sges, address, key);
                        self.sq.post_send([write, send]).map_err(|e| {
                            // The data have gone, the response has not.
                            let data = if e.bad_wr == 1 { None } else { data };
                            refused(e, Outgoing::Answer { response, data, command })
                        })?;
                    }
                }
                self.untold = !wanted;
                if wanted {
                    self.signalled += 1;
                    self.sends += u16::from(self.sends_max.is_some());
                }
            }
        }
        Ok(())
    }
    /// A signalled request has completed.
    #[inline]
    pub fn completed(&mut self, kind: u64) {
        self.signalled = self.signalled.saturating_sub(1);
        self.completed += 1;
        if self.sends_max.is_some() && kind != tag::FETCHED {
            self.sends = self.sends.saturating_sub(1);
        }
    }

    /// Whether nothing of what was posted has completed for `patience` nanoseconds: call it now and then.
    pub fn is_stuck(&mut self, now: u64, patience: u64) -> bool {
        // An RDMA WRITE of no bytes: it completes when the host has taken what was sent before.
        if self.untold && self.signalled == 0 {
            let probe = SendWr::write(tag::SENT, &[], 0, 0).signaled();
            if self.sq.post_send([probe]).is_ok() {
                (self.untold, self.signalled) = (false, 1);
            }
        }
        let under_way = self.signalled > 0 || !self.waiting.is_empty();
        self.watch.waited(now, under_way, self.completed) >= patience
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
