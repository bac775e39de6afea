//! How the keeper makes links: it greets those who call, calls those whom a shard needs, and takes what they say.

use super::greeting::{Fault, Message, Refusal};
use super::id::{LINKS_MAX, LinkId};
use super::keeper::Keeper;
use super::meeting::{self, Meeting, Step, Us};
use super::news::News;
use super::table::{FOREIGN_FOR, REFUSED_FOR};
use super::talk::{Heard, Lying, Talk};
use super::terms::{About, Offer};
use crate::port::share::{Party, Share};
use crate::registry::{Call, Called, Holder, Run};
use crate::sync::lock::lock;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Processes with which a link is being made at the same time.
const MEETINGS_MAX: usize = 64;

impl Keeper {
    fn us(&self) -> Us {
        let runs = self.registry.runs().into_iter().collect();
        let about = About { queues: self.shared.queues, max_frame: self.shared.max_frame, runs };
        Us { about, news: Arc::clone(&self.shared.news_fd) }
    }

    /// A connection to a process, and the number of a meeting with it.
    fn talk(&mut self, call: Call) -> (u64, Talk) {
        self.last_meeting += 1;
        let party = Party { pid: call.pid, ..self.us };
        (self.last_meeting, Talk::new(call, party))
    }

    /// A process calls.
    pub(super) fn greet(&mut self, call: Call, now: Instant) {
        // It has given up what it tried before; of many the oldest one gives way.
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

    /// A shard needs a link to whoever has this run.
    pub(super) fn call(&mut self, run: Run, now: Instant) {
        // Counted before, so that a lease that is missed is not counted either.
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

    /// Looks whether something lies in the connection of a meeting, and has it heard.
    pub(super) fn look_at_meeting(&mut self, at: usize, now: Instant) {
        let meeting = &mut self.meetings[at];
        let is_late = now >= meeting.until;
        let lies = meeting.talk.as_mut().map_or(Lying::Nothing, |talk| {
            talk.flush(now);
            talk.look()
        });
        meeting.is_held = false;
        match lies {
            Lying::Bytes(bytes, len) => {
                if let Some(talk) = meeting.talk.take() {
                    let heard = talk.hear_bytes(bytes, len);
                    self.inbox.tell(meeting.number, talk, heard);
                }
            }
            Lying::Descriptors => {
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
            Lying::End => {
                let ended = self.meetings.remove(at);
                ended.into_iter().for_each(|meeting| self.fail(meeting, now));
            }
            Lying::Nothing => self.end_late(at, is_late, now),
        }
    }

    /// Gives up a process that has kept this one waiting too long. (One that is being heard has not: then a thread of this process waits
    /// for a core.)
    fn end_late(&mut self, at: usize, is_late: bool, now: Instant) {
        if is_late
            && self.meetings[at].talk.is_some()
            && let Some(meeting) = self.meetings.remove(at)
        {
            self.log(meeting.pid, "it does not answer; continue it if it is stopped, or end it");
            self.give_up(meeting, now);
        }
    }

    /// Takes what was heard in a meeting.
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

    /// A process that was called greets.
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

    /// A process that called offers memory.
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
                // The connection carries wake-ups from then on.
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

    /// A meeting leads to no link now: whoever waits for it waits on.
    fn fail(&mut self, meeting: Meeting, now: Instant) {
        meeting.runs.iter().for_each(|run| self.table.again(*run, now));
        self.closing.extend(meeting.talk.and_then(Talk::close));
    }

    /// A meeting leads to no link: whoever waits for it is told that there is no way.
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
