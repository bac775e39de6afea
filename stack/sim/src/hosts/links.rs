//! Links between the processes of a host: made when a shard first needs one, after a while; rings of bounded size, in order, that lose
//! nothing; and their ends, which are told after all that had arrived.

use core::time::Duration;
use std::collections::VecDeque;

use super::host::{Host, Pid, Plant};
use stack::id::Qpn;
use stack::port::host::{FOREIGN_FOR, LINKS_MAX, REFUSED_FOR, Way};
use stack::registry::{Holder, Run};
use stack::time::Instant;

/// How long a process waits for one that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time after which every queue that has turns has been told of the end of a link.
const TOLD: Duration = Duration::from_millis(20);

/// A frame in a ring.
pub(super) struct Crossing {
    pub at: Instant,
    pub number: u64,
    pub bytes: Vec<u8>,
}

/// What leads to one of the two processes.
#[derive(Default)]
pub(super) struct Half {
    /// A ring for each of its queues.
    pub rings: Vec<VecDeque<Crossing>>,
    /// Frames that it took out of each.
    pub taken: Vec<u64>,
    /// When it notices that the other one has ended; `None`: that has not.
    pub over_at: Option<Instant>,
}

/// A link between two processes.
pub(super) struct Link {
    pub of: [Pid; 2],
    /// To the one and to the other.
    pub to: [Half; 2],
}

/// A process's end of a link.
pub(super) struct End {
    /// The link.
    pub link: usize,
    /// Which of the two the process is.
    pub side: usize,
    /// For each of its queues.
    pub state: Vec<State>,
}

/// What a queue knows of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is there.
    Up,
    /// It has ended, and there may be something left.
    Ending,
    /// Its end is told.
    Told,
    /// It is named nowhere any more.
    Free,
}

/// Two processes that come to have a link.
pub(super) struct Meeting {
    of: [Pid; 2],
    /// What the first one called for.
    runs: Vec<Run>,
    at: Instant,
    until: Instant,
}

/// How a number is reached, as a queue sees it.
pub(super) enum Reach {
    Link(u8),
    Asked,
    Vacant,
    Sockets,
}

impl Host {
    /// How a process reaches a number. Has a link made if there is none.
    pub(super) fn reach(&mut self, pid: Pid, number: Qpn) -> Reach {
        let run = Run::of(number.block());
        let process = &self.processes[pid];
        match process.published.way(run) {
            Way::Link(link) if process.ends[usize::from(link)].is_some() => Reach::Link(link),
            Way::Unknown => {
                if process.published.want(run) {
                    self.processes[pid].due = Instant::ZERO;
                }
                Reach::Asked
            }
            Way::Link(_) | Way::Asked => Reach::Asked,
            Way::Ourselves | Way::Unlinked => Reach::Sockets,
            Way::Vacant(leases) => match self.member(pid) {
                Some(member) if member.info(run).generation as u8 == leases => Reach::Vacant,
                _ => Reach::Asked,
            },
        }
    }

    /// The keeper of a process's links does what is due. Whether something became known that queues may wait for.
    pub(super) fn keep(&mut self, pid: Pid) -> bool {
        let (now, process) = (self.now, &mut self.processes[pid]);
        if now < process.due {
            return false;
        }
        let system_now = self.epoch + Duration::from_nanos(now.as_nanos());
        for run in process.published.take_wanted() {
            process.table.ask(run, system_now);
        }
        self.notice_ends(pid);
        self.processes[pid].table.expire(system_now);
        while let Some(run) = self.processes[pid].table.next_due(system_now) {
            self.call(pid, run);
        }
        let process = &mut self.processes[pid];
        let due = process
            .table
            .due()
            .map_or(Instant::FAR, |at| Instant::ZERO.after(at.saturating_duration_since(self.epoch)));
        let links = process.ends.iter().flatten();
        let ends = links.filter(|end| end.state[0] == State::Up);
        let noticed = ends.filter_map(|end| self.links[end.link].to[end.side].over_at).min();
        process.due = due.min(noticed.unwrap_or(Instant::FAR));
        process.table.take_news()
    }

    /// A process needs a link to whoever has a run.
    fn call(&mut self, pid: Pid, run: Run) {
        let now = self.system_now();
        let Some(member) = self.member(pid) else { return };
        // Counted before, so that a lease that is missed is not counted either.
        let leases = member.info(run).generation;
        let holder = member.holder_of(run);
        let table = &mut self.processes[pid].table;
        let other = match holder {
            Ok(Holder::Process(_)) => self.holder(run),
            Ok(Holder::Ourselves) => return table.ours(run),
            Ok(Holder::Nobody | Holder::Dead) => {
                self.counts.vacant += 1;
                return table.vacant(run, leases, now);
            }
            Ok(Holder::Foreign(_)) => return table.unlinked(run, now, FOREIGN_FOR),
            Ok(Holder::Unknown) | Err(_) => None,
        };
        let Some(other) = other else { return self.processes[pid].table.again(run, now) };
        if let Some(number) = self.number_of_link(pid, other) {
            self.processes[pid].table.up(run, number);
            return;
        }
        let is_of = |meeting: &&mut Meeting| meeting.of == [pid, other];
        if let Some(meeting) = self.meetings.iter_mut().find(is_of) {
            meeting.runs.push(run);
            return;
        }
        let at = self.now.after_nanos(self.rng.below(self.weather.meeting.as_nanos() as u64));
        let until = self.now.after(PATIENCE);
        self.meetings.push(Meeting { of: [pid, other], runs: vec![run], at, until });
    }

    /// The number at a process of its link with another one.
    fn number_of_link(&self, pid: Pid, other: Pid) -> Option<u8> {
        let up = |end: &End| end.state[0] == State::Up && self.links[end.link].of[1 - end.side] == other;
        self.processes[pid].ends.iter().position(|end| end.as_ref().is_some_and(up)).map(|at| at as u8)
    }

    /// Meetings whose time has come lead to links, or to none. Whether one did.
    pub(super) fn meet(&mut self) -> bool {
        let mut any = false;
        for meeting in core::mem::take(&mut self.meetings) {
            let [one, other] = meeting.of.map(|pid| &self.processes[pid]);
            if !one.is_alive {
                continue;
            }
            let is_stopped = one.is_stopped || other.is_stopped;
            if !other.is_alive && !one.is_stopped {
                self.retry(&meeting);
            } else if is_stopped && !one.is_stopped && self.now >= meeting.until {
                let now = self.system_now();
                let table = &mut self.processes[meeting.of[0]].table;
                meeting.runs.iter().for_each(|run| table.unlinked(*run, now, REFUSED_FOR));
            } else if is_stopped || self.now < meeting.at {
                self.meetings.push(meeting);
            } else {
                self.make_link(meeting);
                any = true;
            }
        }
        any
    }

    fn retry(&mut self, meeting: &Meeting) {
        let (pid, now) = (meeting.of[0], self.system_now());
        meeting.runs.iter().for_each(|run| self.processes[pid].table.again(*run, now));
        self.processes[pid].due = Instant::ZERO;
    }

    fn make_link(&mut self, meeting: Meeting) {
        let [pid, other] = meeting.of;
        if let Some(number) = self.number_of_link(pid, other) {
            // The other one called, too.
            meeting.runs.iter().for_each(|run| self.processes[pid].table.up(*run, number));
            return;
        }
        let [Some(_), Some(_)] = meeting.of.map(|pid| self.free_number(pid)) else {
            return self.retry(&meeting);
        };
        let link = self.links.len();
        let to = meeting.of.map(|pid| {
            let queues = self.processes[pid].queues.len();
            Half {
                rings: (0..queues).map(|_| VecDeque::new()).collect(),
                taken: vec![0; queues],
                over_at: None,
            }
        });
        self.links.push(Link { of: meeting.of, to });
        self.counts.links += 1;
        for (side, pid) in meeting.of.into_iter().enumerate() {
            let number = self.free_number(pid).expect("it had one a moment ago");
            let peer = meeting.of[1 - side];
            let runs: Vec<Run> = self.processes[peer].runs.iter().map(|(run, _)| *run).collect();
            let process = &mut self.processes[pid];
            let state = vec![State::Up; process.queues.len()];
            process.ends[number] = Some(End { link, side, state });
            for run in runs {
                process.table.up(run, number as u8);
            }
            process.due = Instant::ZERO;
        }
    }

    /// A number that no link of a process has.
    fn free_number(&mut self, pid: Pid) -> Option<usize> {
        let ends = &mut self.processes[pid].ends;
        let free = (0..LINKS_MAX).find(|number| ends.get(*number).is_none_or(Option::is_none))?;
        while ends.len() <= free {
            ends.push(None);
        }
        Some(free)
    }

    /// A process has ended: the others notice it a little later.
    pub(super) fn end_links(&mut self, pid: Pid) {
        let (now, most) = (self.now, self.weather.meeting.as_nanos() as u64);
        let plant = self.weather.plant;
        if plant == Some(Plant::EndsUntold) {
            return;
        }
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let is_of = link.of.contains(&pid);
            let is_wrong = plant == Some(Plant::EndsOthers) && !is_of;
            for side in 0..2 {
                let other = link.of[side];
                if (is_of && other != pid || is_wrong) && self.processes[other].is_alive {
                    link.to[side].over_at = Some(now.after_nanos(self.rng.below(most)));
                    self.processes[other].due = Instant::ZERO;
                }
            }
        }
    }

    /// Links whose other process has ended, as the keeper of a process notices it.
    fn notice_ends(&mut self, pid: Pid) {
        let early = self.weather.plant == Some(Plant::EndsEarly);
        let process = &mut self.processes[pid];
        for (number, end) in process.ends.iter_mut().enumerate() {
            let Some(end) = end.as_mut().filter(|end| end.state[0] == State::Up) else { continue };
            if self.links[end.link].to[end.side].over_at.is_none_or(|at| at > self.now) {
                continue;
            }
            process.table.end(number as u8);
            for (queue, state) in end.state.iter_mut().enumerate() {
                *state = State::Ending;
                if early {
                    *state = State::Told;
                    process.queues[queue].ended.push_back((number as u8, self.now));
                }
            }
        }
    }

    /// Takes the next frame for a queue out of a link's ring. `None`: there is none by now.
    pub(super) fn take_from(&mut self, pid: Pid, queue: usize, number: u8) -> Option<Vec<u8>> {
        let end = self.processes[pid].ends[usize::from(number)].as_ref()?;
        if !matches!(end.state[queue], State::Up | State::Ending) {
            return None;
        }
        let way = &mut self.links[end.link].to[end.side];
        // Who is gone has written all that there is.
        let now = if end.state[queue] == State::Ending { Instant::FAR } else { self.now };
        way.rings[queue].front().filter(|frame| frame.at <= now)?;
        let frame = way.rings[queue].pop_front()?;
        way.taken[queue] += 1;
        self.counts.by_links += 1;
        self.deliveries.once(frame.number);
        Some(frame.bytes)
    }

    /// Links that have ended are told to a queue once nothing of them is left for it.
    pub(super) fn settle(&mut self, pid: Pid, queue: usize) {
        let process = &mut self.processes[pid];
        for (number, end) in process.ends.iter_mut().enumerate() {
            let Some(end) = end.as_mut().filter(|end| end.state[queue] == State::Ending) else { continue };
            if self.links[end.link].to[end.side].rings[queue].is_empty() {
                end.state[queue] = State::Told;
                process.queues[queue].ended.push_back((number as u8, self.now));
            }
        }
    }

    /// The next link of which the end is told to a queue. The number of the one before becomes free.
    pub(super) fn next_ended(&mut self, pid: Pid, queue: usize) -> Option<u8> {
        let process = &mut self.processes[pid];
        let before = process.queues[queue].told.take();
        if let Some(number) = before.map(usize::from)
            && let Some(end) = &mut process.ends[number]
        {
            end.state[queue] = State::Free;
            if end.state.iter().all(|state| *state == State::Free) {
                process.ends[number] = None;
            }
        }
        let (number, _) = process.queues[queue].ended.pop_front()?;
        process.queues[queue].told = Some(number);
        process.queues[queue].stalls.remove(&number);
        self.counts.ends += 1;
        if let Some(end) = &process.ends[usize::from(number)]
            && let left = self.links[end.link].to[end.side].rings[queue].len()
            && left > 0
        {
            self.deliveries.fail(format!("the end of a link is told before {left} frames that had arrived"));
        }
        Some(number)
    }

    /// Every queue of a process that runs asks for the links that have ended, whether or not it has used them.
    pub(super) fn check_told(&mut self, pid: Pid) {
        let mut ended = self.processes[pid].queues.iter().flat_map(|queue| &queue.ended);
        if let Some((number, _)) = ended.find(|(_, since)| since.after(TOLD) < self.now) {
            let complaint =
                format!("link {number} of process {pid} has ended, and a queue does not ask for it");
            self.deliveries.fail(complaint);
        }
    }

    /// The ring into which a queue of a process sends on a link; `None`: the link has ended.
    pub(super) fn ring(&mut self, pid: Pid, queue: usize, number: u8) -> Option<(usize, usize, usize)> {
        let end = self.processes[pid].ends.get(usize::from(number))?.as_ref()?;
        if end.state[queue] != State::Up {
            return None;
        }
        let side = 1 - end.side;
        Some((end.link, side, queue % self.links[end.link].to[side].rings.len()))
    }

    /// How many frames a ring has room for.
    pub(super) fn room(&self, (link, side, ring): (usize, usize, usize)) -> usize {
        self.weather.ring.saturating_sub(self.links[link].to[side].rings[ring].len())
    }

    /// Sends a frame on a link; there is room.
    pub(super) fn cross(&mut self, (link, side, ring): (usize, usize, usize), bytes: &[u8]) {
        let number = self.next_frame();
        let delay = self.rng.below(self.weather.link_delay.as_nanos() as u64 + 1);
        let frames = &mut self.links[link].to[side].rings[ring];
        // In order.
        let at = self.now.after_nanos(delay).max(frames.back().map_or(Instant::ZERO, |last| last.at));
        frames.push_back(Crossing { at, number, bytes: bytes.to_vec() });
    }

    /// When the next frame arrives at a process by a link, or it has to be told of an end.
    pub(super) fn next_by_links(&self, pid: Pid) -> Option<Instant> {
        let process = &self.processes[pid];
        let told = process.queues.iter().any(|queue| !queue.ended.is_empty());
        let ends = process.ends.iter().flatten();
        let next = ends.flat_map(|end| {
            let rings = &self.links[end.link].to[end.side].rings;
            let ending = end.state.contains(&State::Ending).then_some(self.now);
            rings.iter().filter_map(|ring| ring.front()).map(|frame| frame.at).chain(ending)
        });
        next.chain(told.then_some(self.now)).min()
    }

    /// When the next two processes have a link.
    pub(super) fn next_meeting(&self) -> Option<Instant> {
        let can = |meeting: &&Meeting| !meeting.of.iter().any(|pid| self.processes[*pid].is_stopped);
        self.meetings.iter().filter(can).map(|meeting| meeting.at).min()
    }
}
