//! How the keeper makes links: it greets processes that call, calls processes that a shard needs, and handles their messages.

use super::greeting::{Fault, Message, Refusal};
use super::id::{LINKS_MAX, LinkId};
use super::keeper::Keeper;
use super::meeting::{self, Meeting, Step, Us};
use super::news::News;
use super::table::{FOREIGN_FOR, REFUSED_FOR};
use super::talk::{Heard, Talk};
use super::terms::{About, Offer};
use crate::port::share::{Party, Share};
use crate::registry::{Call, Called, Holder, Lies, Run};
use crate::sync::lock::lock;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Most handshakes at a time.
const MEETINGS_MAX: usize = 64;

impl Keeper {
    fn us(&self) -> Us {
        let runs = self.registry.runs().into_iter().collect();
        let about = About { queues: self.shared.queues, max_frame: self.shared.max_frame, runs };
        Us { about, news: Arc::clone(&self.shared.news_fd) }
    }

    /// The connection of a call, and the number of a new handshake.
    fn talk(&mut self, call: Call) -> (u64, Talk) {
        self.last_meeting += 1;
        let party = Party { port: self.port, uid: call.uid, pid: call.pid };
        (self.last_meeting, Talk::new(call, party))
    }

    /// A process calls: begins a handshake.
    pub(super) fn greet(&mut self, call: Call, now: Instant) {
        // A process that calls again has given up its earlier handshake. If there are too many, the oldest handshake of a caller is ended.
        let pid = call.pid;
        let calls = |meeting: &Meeting| matches!(meeting.step, Step::Offer);
        let same = self.meetings.iter().position(|meeting| pid != 0 && meeting.pid == pid && calls(meeting));
        let is_full = self.meetings.len() >= MEETINGS_MAX;
        let oldest = if is_full { self.meetings.iter().position(calls) } else { None };
        if let Some(before) = same.or(oldest).and_then(|at| self.meetings.remove(at)) {
            self.fail(before, now);
        }
        let (number, talk) = self.talk(call);
        if self.meetings.len() >= MEETINGS_MAX {
            return self.closing.push(talk);
        }
        let meeting = Meeting::called(number, talk, &self.us(), now, now + self.patience);
        self.meetings.push_back(meeting);
    }

    /// A shard needs a link to the process that holds this run: calls it.
    pub(super) fn call(&mut self, run: Run, now: Instant) {
        // Read before the call, so that a lease which the call misses is not included in the count.
        let leases = self.registry.leases(run);
        let call = match self.registry.call(run) {
            Ok(Called::Open(call)) => call,
            Ok(Called::Nobody(Holder::Ourselves)) => return self.table.ours(run),
            Ok(Called::Nobody(Holder::Nobody | Holder::Dead)) => return self.table.vacant(run, leases, now),
            Ok(Called::Nobody(Holder::Foreign(_))) => return self.table.unlinked(run, now, FOREIGN_FOR),
            Ok(Called::Nobody(Holder::Process(_) | Holder::Unknown)) => return self.table.again(run, now),
            Err(error) => {
                self.log(0, &error.to_string());
                return self.table.again(run, now);
            }
        };
        let same = |meeting: &&mut Meeting| call.pid != 0 && meeting.pid == call.pid;
        if let Some(link) = self.link_with(call.pid) {
            self.lead(run, &link);
        } else if let Some(meeting) = self.meetings.iter_mut().find(same) {
            meeting.runs.push(run);
        } else if self.meetings.len() < MEETINGS_MAX {
            let (number, talk) = self.talk(call);
            self.meetings.push_back(Meeting::calling(number, talk, run, now + self.patience));
            return;
        } else {
            self.table.again(run, now);
        }
        let (_, talk) = self.talk(call);
        self.closing.extend(talk.close());
    }

    /// Peeks at the connection of a handshake, and receives what it holds: descriptors on another thread.
    pub(super) fn look_at_meeting(&mut self, at: usize, now: Instant) {
        let meeting = &mut self.meetings[at];
        let is_late = now >= meeting.until;
        let lies = meeting.talk.as_mut().map_or(Lies::Nothing, |talk| {
            talk.flush(now);
            talk.look()
        });
        meeting.is_held = false;
        match lies {
            Lies::Bytes(len) => {
                if let Some(talk) = meeting.talk.take() {
                    let heard = talk.hear_bytes(len);
                    self.inbox.tell(meeting.number, talk, heard);
                }
            }
            Lies::Descriptors => {
                let Some(talk) = &meeting.talk else { return };
                let Some(share) = Share::take(talk.party) else {
                    meeting.is_held = true;
                    return self.end_late(at, is_late, now);
                };
                let (number, inbox) = (meeting.number, Arc::clone(&self.inbox));
                if let Some(talk) = meeting.talk.take() {
                    talk.hear(share, move |talk, heard| inbox.tell(number, talk, heard));
                }
            }
            Lies::End => {
                let ended = self.meetings.remove(at);
                ended.into_iter().for_each(|meeting| self.fail(meeting, now));
            }
            Lies::Nothing => self.end_late(at, is_late, now),
        }
    }

    /// Ends a handshake whose deadline is over. (Not while a thread receives from it: then that thread waits for a core, and the peer is
    /// not to blame.)
    fn end_late(&mut self, at: usize, is_late: bool, now: Instant) {
        if is_late
            && self.meetings[at].talk.is_some()
            && let Some(meeting) = self.meetings.remove(at)
        {
            self.log(meeting.pid, "it does not answer; continue it if it is stopped, or end it");
            self.give_up(meeting, now);
        }
    }

    /// Handles a message that was received in a handshake.
    pub(super) fn take_heard(&mut self, number: u64, talk: Talk, heard: Heard, now: Instant) {
        let Some(at) = self.meetings.iter().position(|meeting| meeting.number == number) else {
            return self.closing.push(talk);
        };
        let Some(mut meeting) = self.meetings.remove(at) else { return };
        match (&meeting.step, heard) {
            (_, Heard::Nothing) => {
                meeting.talk = Some(talk);
                self.meetings.push_back(meeting);
            }
            (Step::Hello, Heard::Hello(them, news)) => self.offer(meeting, talk, them, news, now),
            (Step::Offer, Heard::Offer(them, offer, memory, theirs, news)) => {
                self.accept(meeting, talk, &them, (offer, memory, theirs, news), now);
            }
            (Step::Up(..), Heard::Up(theirs)) => {
                if let Step::Up(them, ours, made) = meeting.step {
                    self.publish(talk, &them, *made, [ours, theirs], &meeting.runs);
                }
            }
            (_, heard) => {
                meeting.talk = Some(talk);
                match heard {
                    Heard::End | Heard::Refused(Refusal::Linked) => self.fail(meeting, now),
                    Heard::Refused(why) => {
                        self.log(meeting.pid, &format!("it refuses: {why}"));
                        self.give_up(meeting, now);
                    }
                    Heard::Wrong(why) => self.refuse(meeting, Refusal::Wrong, &why, now),
                    _ => self.refuse(meeting, Refusal::Wrong, &Fault::Order.to_string(), now),
                }
            }
        }
    }

    /// HELLO of a process that was called: sends an offer.
    fn offer(&mut self, mut meeting: Meeting, mut talk: Talk, them: About, news: News, now: Instant) {
        if let Some(link) = self.link_with(meeting.pid) {
            meeting.runs.iter().for_each(|run| self.lead(*run, &link));
            return self.closing.push(talk);
        }
        let offered = self.number().and_then(|link| {
            meeting::offer(&self.us(), &them, news, link, &mut talk, now).map(|made| (link, made))
        });
        meeting.talk = Some(talk);
        match offered {
            Ok((link, made)) => {
                meeting.step = Step::Up(them, link, Box::new(made));
                meeting.until = now + self.patience;
                self.meetings.push_back(meeting);
            }
            Err((refusal, why)) => self.refuse(meeting, refusal, &why, now),
        }
    }

    /// OFFER of a process that called: maps the memory and sends UP.
    fn accept(
        &mut self,
        mut meeting: Meeting,
        mut talk: Talk,
        them: &About,
        (offer, memory, theirs, news): (Offer, OwnedFd, LinkId, News),
        now: Instant,
    ) {
        let (us, pid) = (self.us(), meeting.pid);
        let has_offer = |other: &Meeting| pid != 0 && other.pid == pid && matches!(other.step, Step::Up(..));
        let ours_counts = us.about.runs < them.runs && self.meetings.iter().any(has_offer);
        if ours_counts || self.link_with(pid).is_some() {
            talk.say(now, &Message::Refused(Refusal::Linked), Vec::new());
            meeting.talk = Some(talk);
            return self.fail(meeting, now);
        }
        let made = self
            .number()
            .and_then(|link| meeting::accept(&us, them, offer, &memory, news).map(|made| (link, made)));
        match made {
            Ok((ours, made)) => {
                // From then on the connection carries wake-ups, so UP must have been sent.
                if !talk.say(now, &Message::Up(ours), Vec::new()) {
                    meeting.talk = Some(talk);
                    return self.fail(meeting, now);
                }
                self.publish(talk, them, made, [ours, theirs], &meeting.runs);
            }
            Err((refusal, why)) => {
                meeting.talk = Some(talk);
                self.refuse(meeting, refusal, &why, now);
            }
        }
    }

    fn number(&mut self) -> Result<LinkId, (Refusal, String)> {
        let full = || (Refusal::Full, format!("this process has {LINKS_MAX} links already"));
        self.free_number().ok_or_else(full)
    }

    /// A handshake fails for now: its runs are called again later.
    fn fail(&mut self, meeting: Meeting, now: Instant) {
        meeting.runs.iter().for_each(|run| self.table.again(*run, now));
        self.closing.extend(meeting.talk.and_then(Talk::close));
    }

    /// A handshake fails for good: no link to its runs is made for [`REFUSED_FOR`].
    fn give_up(&mut self, meeting: Meeting, now: Instant) {
        meeting.runs.iter().for_each(|run| self.table.unlinked(*run, now, REFUSED_FOR));
        self.closing.extend(meeting.talk.and_then(Talk::close));
    }

    fn refuse(&mut self, mut meeting: Meeting, refusal: Refusal, why: &str, now: Instant) {
        if let Some(talk) = &mut meeting.talk {
            talk.say(now, &Message::Refused(refusal), Vec::new());
        }
        self.log(meeting.pid, why);
        lock(&self.shared.counts).refused += 1;
        self.give_up(meeting, now);
    }
}
