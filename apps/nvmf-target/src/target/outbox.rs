//! What a connection sends: posted at once, or when there is room.

use std::collections::VecDeque;

use nvmf::wire::Cqe;
use nvmf::{Remote, Response};
use verbs::{PostError, PostErrorKind, SendQueue, SendWr, Sge};
use zerocopy::IntoBytes;

use super::tag::Tag;
use crate::store::CommandIndex;

/// Bytes of a response, which are posted inline.
pub const INLINE: u32 = size_of::<Cqe>() as u32;

/// What a connection sends.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing {
    /// An RDMA READ of a command's data, into its buffer.
    Fetch(CommandIndex, Sge, Remote),
    /// A response.
    Answer {
        response: Response,
        /// Data that go before it.
        data: Option<(Sge, Remote)>,
        /// The command whose buffer the data are in.
        command: Option<CommandIndex>,
    },
}

impl Outgoing {
    /// The command that waits for the completion of this request.
    pub const fn command(&self) -> Option<CommandIndex> {
        match *self {
            Self::Fetch(command, ..) => Some(command),
            Self::Answer { command, .. } => command,
        }
    }
}

/// Why something was not posted: it waits in the outbox.
pub enum NotPosted {
    /// There is no room now.
    Later,
    /// The queue pair cannot send any more.
    Dead(PostError),
}

/// The send queue of a connection, and what waits for room in it.
#[derive(Debug)]
pub struct Outbox {
    sq: SendQueue,
    /// Responses that the host can take at a time, if they are fewer than its commands.
    answers_max: Option<u16>,
    /// Responses that the host has not taken yet; counted only with `answers_max`.
    answers: u16,
    /// What waits for room, oldest first.
    waiting: VecDeque<Outgoing>,
    /// Requests that were posted so far.
    posted: u64,
}

impl Outbox {
    pub fn new(sq: SendQueue, answers_max: Option<u16>) -> Self {
        Self { sq, answers_max, answers: 0, waiting: VecDeque::new(), posted: 0 }
    }
    /// Whether something waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Takes out what waits, which is then never posted.
    pub fn take_waiting(&mut self) -> VecDeque<Outgoing> {
        std::mem::take(&mut self.waiting)
    }
    /// Requests that the host has not taken yet.
    pub fn under_way(&self) -> u64 {
        self.sq.in_use() as u64
    }
    /// Requests that the host has taken so far.
    pub fn taken(&self) -> u64 {
        self.posted - self.under_way()
    }

    /// Posts, after what waits already.
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
    /// Posts what waits, as far as there is room; returns whether anything was posted.
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
    /// Notes the completion of a response. Only responses that were posted signaled have one.
    #[inline]
    pub fn answer_completed(&mut self) {
        self.answers = self.answers.saturating_sub(1);
    }

    /// Posts; if that fails, returns what is left to post.
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
                // Signaled only where somebody waits for the completion; a request that fails completes in any case.
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
                            // Of the two, those before `bad_wr` were posted: if the data were, only the response is left.
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
