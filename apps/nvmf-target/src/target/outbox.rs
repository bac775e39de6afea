//! The send side of a connection: requests are posted at once, or wait for room in the send queue.

use std::collections::VecDeque;

use nvmf::wire::Cqe;
use nvmf::{Remote, Response};
use verbs::{PostError, PostErrorKind, SendQueue, SendWr, Sge};
use zerocopy::IntoBytes;

use super::tag::Tag;
use crate::store::CommandIndex;

/// Length of a response in bytes. Responses are posted inline.
pub const INLINE: u32 = size_of::<Cqe>() as u32;

/// A request to post.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing {
    /// An RDMA READ of a command's data into its buffer.
    Fetch(CommandIndex, Sge, Remote),
    /// A response, by SEND.
    Answer {
        response: Response,
        /// Data to write to the host before the response, by RDMA WRITE.
        data: Option<(Sge, Remote)>,
        /// The command that owns the buffer of the data, if they are in a buffer. It waits for the completion.
        command: Option<CommandIndex>,
    },
}

impl Outgoing {
    /// The command that waits for the completion of this request, if there is one.
    pub const fn command(&self) -> Option<CommandIndex> {
        match *self {
            Self::Fetch(command, ..) => Some(command),
            Self::Answer { command, .. } => command,
        }
    }
}

/// Why a request was not posted. It waits in the outbox.
pub enum NotPosted {
    /// There is no room in the send queue now, or the host can take no more responses.
    Later,
    /// The queue pair cannot send any more.
    Dead(PostError),
}

/// The send queue of a connection, and the requests that wait for room in it.
#[derive(Debug)]
pub struct Outbox {
    sq: SendQueue,
    /// How many responses the host has receives for, if these are fewer than its commands; else `None`.
    answers_max: Option<u16>,
    /// Responses that are posted and not completed; counted only with `answers_max`.
    answers: u16,
    /// Requests that wait for room, oldest first.
    waiting: VecDeque<Outgoing>,
    /// How many requests were posted so far.
    posted: u64,
}

impl Outbox {
    pub fn new(sq: SendQueue, answers_max: Option<u16>) -> Self {
        Self { sq, answers_max, answers: 0, waiting: VecDeque::new(), posted: 0 }
    }
    /// Whether any request waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Removes and returns the waiting requests, which are then never posted.
    pub fn take_waiting(&mut self) -> VecDeque<Outgoing> {
        std::mem::take(&mut self.waiting)
    }
    /// How many posted requests the host has not acknowledged yet.
    pub fn under_way(&self) -> u64 {
        self.sq.in_use() as u64
    }
    /// How many requests the host has acknowledged so far.
    pub fn taken(&self) -> u64 {
        self.posted - self.under_way()
    }

    /// Posts a request. Queues it instead if others wait already or there is no room.
    #[inline]
    pub fn post(&mut self, outgoing: Outgoing) -> Result<(), NotPosted> {
        if !self.waiting.is_empty() {
            self.waiting.push_back(outgoing);
            return Err(NotPosted::Later);
        }
        self.try_post(outgoing).map_err(|(left, why)| {
            self.waiting.push_back(left);
            why
        })
    }
    /// Posts waiting requests while there is room. Returns whether any was posted, and why the rest were not.
    pub fn post_waiting(&mut self) -> (bool, Result<(), NotPosted>) {
        let mut posted = false;
        while let Some(outgoing) = self.waiting.pop_front() {
            if let Err((left, why)) = self.try_post(outgoing) {
                self.waiting.push_front(left);
                return (posted, Err(why));
            }
            posted = true;
        }
        (posted, Ok(()))
    }
    /// Notes the completion of a signaled response.
    #[inline]
    pub fn answer_completed(&mut self) {
        self.answers = self.answers.saturating_sub(1);
    }

    /// Posts a request. If that fails, returns what is left to post, and why.
    #[inline]
    fn try_post(&mut self, outgoing: Outgoing) -> Result<(), (Outgoing, NotPosted)> {
        match outgoing {
            Outgoing::Fetch(command, to, Remote { address, key, .. }) => {
                let sges = [to];
                let read = SendWr::read(Tag::Fetched(command).to_raw(), &sges, address, key).signaled();
                self.sq.post_send([read]).map_err(|e| (outgoing, refused(e)))?;
                self.posted += 1;
            }
            Outgoing::Answer { response, data, command } => {
                if self.answers_max.is_some_and(|max| self.answers >= max) {
                    return Err((outgoing, NotPosted::Later));
                }
                let cqe = response.cqe.as_bytes();
                let id = command.map_or(Tag::Sent, Tag::Answered).to_raw();
                let send = match response.invalidate {
                    Some(key) => SendWr::send_with_inv(id, &[], key),
                    None => SendWr::send(id, &[]),
                }
                .inline(cqe);
                // Signaled only if the completion is needed. A request that fails has a completion in any case.
                let wanted = command.is_some() || self.answers_max.is_some();
                let send = if wanted { send.signaled() } else { send };
                match data {
                    None => {
                        self.sq.post_send([send]).map_err(|e| (outgoing, refused(e)))?;
                        self.posted += 1;
                    }
                    Some((sge, Remote { address, key, .. })) => {
                        let sges = [sge];
                        let write = SendWr::write(Tag::Sent.to_raw(), &sges, address, key);
                        self.sq.post_send([write, send]).map_err(|e| {
                            // The requests before `bad_wr` were posted. If the WRITE was, only the response is left.
                            self.posted += e.bad_wr as u64;
                            let data = if e.bad_wr == 1 { None } else { data };
                            (Outgoing::Answer { response, data, command }, refused(e))
                        })?;
                        self.posted += 2;
                    }
                }
                self.answers += u16::from(self.answers_max.is_some());
            }
        }
        Ok(())
    }
}

fn refused(e: PostError) -> NotPosted {
    match e.kind {
        PostErrorKind::Full { .. } => NotPosted::Later,
        _ => NotPosted::Dead(e),
    }
}
