//! The lives of a connection in a random run: it is drained, broken, torn down and made anew while other connections work.

use core::ops::Range;
use core::time::Duration;

use super::check::Check;
use super::flow::Flow;
use super::link::Fault;
use super::node::{CqId, MrId, QpConfig, QpId};
use super::swarm::Ends;
use super::workload::{Plant, Workload, flushed};
use stack::id::{QpState, QpType, Qpn};
use stack::proto::attr::{AttrMask, QpAttr};
use stack::proto::status::{AsyncEvent, WcStatus};
use stack::shard::EventElement;
use stack::time::Instant;

/// Most lives of a connection while the faults are on.
const LIVES: u32 = 4;
/// Virtual time within which a queue pair in ERR must have flushed all requests.
const FLUSH: Duration = Duration::from_millis(50);

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub node: usize,
    pub qp: QpId,
    pub qpn: Qpn,
    ty: QpType,
    shard: usize,
    /// The completion queue of both work queues.
    pub cq: CqId,
    /// Whether `cq` may be too small for all completions.
    pub tight: bool,
    /// The events about an overflow of `cq` that the program received.
    pub overran: Overran,
    /// How often the queue pair left RESET.
    lives: u32,
    /// First PSN that it sends in this life.
    psn: u32,
    /// Whether it was destroyed or is in RESET.
    gone: Option<Gone>,
}

/// The events about the overflow of a completion queue that the program received.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Overran {
    /// The event of the completion queue.
    pub cq: bool,
    /// Whether all completions before the lost one have been polled. The later ones are lost.
    pub polled: bool,
    /// Events of the queue pair: one for each life. A program that has not polled the event yet may begin another life with the same
    /// completion queue.
    pub qp: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gone {
    Reset,
    Destroyed,
}

/// The phase of a connection's life.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// The connection works.
    Live,
    /// One end is in SQD, at least until `until` while the faults are on. `psn` is its next PSN, once it is drained.
    Draining { end: usize, until: Instant, psn: Option<u32> },
    /// An event has ended the connection. While the faults are on, its programs do not notice before `until`.
    Broken { until: Instant },
    /// Both ends are in ERR and flush their requests.
    Flushing { until: Instant },
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    /// Two ends, or a single end that is connected to itself.
    pub ends: Vec<End>,
    /// Index of its first flow. Each end has a flow, except an XRC target.
    flow: usize,
    xrc: bool,
    pub phase: Phase,
    /// Number of lives, including this one.
    pub lives: u32,
    /// Whether requests may fail: retries may run out, or a fault was injected.
    pub may_end: bool,
    /// A region that it uses whose key was revoked, and the contents at that time.
    dead: Option<(usize, MrId, Vec<u8>)>,
    config: QpConfig,
}

impl Conn {
    /// The indices of its flows.
    pub fn flows(&self) -> Range<usize> {
        self.flow..self.flow + if self.xrc { 1 } else { self.ends.len() }
    }

    /// The ends of each flow: from, to.
    fn directions(&self) -> Vec<(End, End)> {
        let mut both = pairs(&self.ends);
        both.truncate(self.flows().len());
        both
    }

    /// The statuses that its requests may fail with.
    pub fn allowed(&self, teardown: bool) -> Vec<WcStatus> {
        let mut allowed = Vec::new();
        if self.may_end {
            allowed.extend([WcStatus::RetryExcErr, WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr]);
        }
        if self.dead.is_some() {
            allowed.extend([
                WcStatus::RemAccessErr,
                WcStatus::RemOpErr,
                WcStatus::LocProtErr,
                WcStatus::LocAccessErr,
                // The window ended with its region.
                WcStatus::LocQpOpErr,
                WcStatus::MwBindErr,
                WcStatus::RemInvReqErr,
            ]);
        }
        if teardown {
            allowed.push(WcStatus::WrFlushErr);
        }
        allowed
    }
}

impl Workload {
    /// The connection to which a flow belongs.
    pub fn conn_of(&self, flow: usize) -> usize {
        self.conns.iter().position(|c| c.flows().contains(&flow)).expect("it is in one")
    }

    /// Creates a connection and its flows.
    pub fn create(&mut self, ends: Ends) {
        let sides = match ends {
            Ends::Two(a, b) => vec![(a, QpType::Rc), (b, QpType::Rc)],
            Ends::Itself(a) => vec![(a, QpType::Rc)],
            Ends::Xrc(a, b) => vec![(a, QpType::XrcIni), (b, QpType::XrcTgt)],
        };
        let config = self.swarm.qp;
        let mut made = Vec::new();
        for (node, ty) in sides {
            let shard = self.rng.below(self.swarm.shards[node] as u64) as usize;
            // Each side chooses its first PSN; the other side learns it.
            let psn = if made.is_empty() { config.sq_psn } else { self.rng.next() as u32 & 0xff_ffff };
            made.push(self.create_end(node, ty, shard, psn, None));
        }
        let flow = self.flows.len();
        self.conns.push(Conn {
            ends: made,
            flow,
            xrc: matches!(ends, Ends::Xrc(..)),
            phase: Phase::Live,
            lives: 0,
            may_end: false,
            dead: None,
            config,
        });
        let conn = self.conns.len() - 1;
        let range = self.conns[conn].flows();
        for (i, (from, to)) in range.clone().zip(self.conns[conn].directions()) {
            let mut new =
                Flow::new(&mut self.world.nodes, (from.node, from.qp), (to.node, to.qp), &self.swarm);
            // An XRC target sends nothing, and binds nothing.
            new.binder = (!self.conns[conn].xrc).then(|| range.start + range.end - 1 - i);
            self.flows.push(new);
        }
        self.live(conn);
    }

    /// Creates an end in RESET, sometimes with a completion queue of its own that is too small.
    fn create_end(&mut self, node: usize, ty: QpType, shard: usize, psn: u32, number: Option<Qpn>) -> End {
        let config = QpConfig { ty, ..self.swarm.qp };
        let tight = self.faulty && self.rng.ppm(self.swarm.program(node, Fault::CqOverflow));
        let cq = if tight {
            let room = u64::from((config.send_depth + config.recv_depth) / 2).max(1);
            self.world.nodes[node].create_cq(self.rng.range(1, room) as u32)
        } else {
            self.cqs[node]
        };
        let qp = self.world.nodes[node].create_qp_as(number, shard, config, cq, cq);
        let qpn = self.world.nodes[node].qp(qp).qpn;
        End { node, qp, qpn, ty, shard, cq, tight, overran: Overran::default(), lives: 1, psn, gone: None }
    }

    /// Handles the event of a completion queue that overflowed, or of a queue pair whose completion queue did.
    pub fn overflow(&mut self, node: usize, event: AsyncEvent, of: EventElement) -> Check {
        let is = |e: &End| {
            e.node == node && (of == EventElement::Qp(e.qpn) || of == self.world.nodes[node].cq_element(e.cq))
        };
        let found = self.conns.iter().enumerate().find_map(|(i, c)| Some((i, c.ends.iter().position(is)?)));
        let Some((i, k)) = found.filter(|(i, k)| self.conns[*i].ends[*k].tight) else {
            return Err(format!("{event:?} of {of:?}, which has room for everything"));
        };
        let end = &mut self.conns[i].ends[k];
        let again = if event == AsyncEvent::CqErr {
            core::mem::replace(&mut end.overran.cq, true)
        } else {
            end.overran.qp += 1;
            end.overran.qp > end.lives
        };
        if again {
            return Err(format!("{event:?} of {of:?} comes twice"));
        }
        if event == AsyncEvent::CqErr {
            self.world.fired.count(Fault::CqOverflow);
        }
        Ok(())
    }

    /// The ends of a node whose completion queue failed: it gets no further completions.
    pub fn failed_queues(&self, node: usize) -> Vec<(usize, usize)> {
        let ends = self.conns.iter().enumerate().flat_map(|(i, c)| (0..c.ends.len()).map(move |k| (i, k)));
        let failed = |&(i, k): &(usize, usize)| {
            let end = &self.conns[i].ends[k];
            end.node == node && end.tight && !end.overran.polled && self.world.nodes[node].cq_failed(end.cq)
        };
        ends.filter(failed).collect()
    }

    /// Notes that all completions that an end's completion queue will ever have were polled.
    pub fn polled_to_the_end(&mut self, i: usize, k: usize) {
        let overran = &mut self.conns[i].ends[k].overran;
        if overran.cq {
            overran.polled = true;
            self.forget_requests(i, k);
            self.broken(i);
        }
    }

    /// Begins a new life: connects both ends, which are in RESET.
    fn live(&mut self, i: usize) {
        if !self.faulty {
            self.conns[i].config.rnr_retry = 7; // from now on everything must succeed
        }
        let ends = self.conns[i].ends.clone();
        for (from, to) in pairs(&ends) {
            let psns = (from.psn, to.psn);
            let config = QpConfig { ty: from.ty, sq_psn: psns.0, rq_psn: psns.1, ..self.conns[i].config };
            self.world.nodes[from.node].configure(from.qp, config);
        }
        let last = ends[ends.len() - 1];
        self.world.link_up((ends[0].node, ends[0].qp), (last.node, last.qp));
        let base = self.base();
        for (flow, (from, to)) in self.conns[i].flows().zip(self.conns[i].directions()) {
            let nodes = &mut self.world.nodes;
            let flow = &mut self.flows[flow];
            (flow.qp, flow.peer) = (from.qp, to.qp);
            (flow.qpn, flow.peer_qpn, flow.recv_cq) = (from.qpn, to.qpn, to.cq);
            flow.begin(nodes, &mut self.rng, base);
        }
        let conn = &mut self.conns[i];
        conn.phase = Phase::Live;
        conn.lives += 1;
        conn.may_end = self.swarm.may_fail && self.faulty || conn.ends.iter().any(|e| e.tight);
        conn.dead = None;
    }

    /// A request failed, as allowed: the connection ends.
    pub fn broken(&mut self, i: usize) {
        if !self.teardown && matches!(self.conns[i].phase, Phase::Live | Phase::Draining { .. }) {
            self.report.failed += 1;
            self.break_up(i);
        }
    }

    fn break_up(&mut self, i: usize) {
        let until = self.world.now.after_nanos(self.rng.below(400_000));
        self.conns[i].phase = Phase::Broken { until };
        self.conns[i].may_end = true;
    }

    /// Moves both ends to ERR.
    pub fn break_ends(&mut self, i: usize) -> Check {
        for end in self.conns[i].ends.clone() {
            let now = self.world.now;
            if end.gone.is_none() {
                self.world.nodes[end.node]
                    .modify_state(now, end.qp, QpState::Err)
                    .map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// Advances the life of a connection in this turn.
    pub fn advance(&mut self, i: usize) -> Check {
        let now = self.world.now;
        match self.conns[i].phase.clone() {
            Phase::Live if self.faulty => {
                self.trouble(i);
                Ok(())
            }
            Phase::Live => Ok(()),
            Phase::Draining { end, until, psn } => self.drain(i, end, until, psn),
            Phase::Broken { until } if until > now && self.faulty => Ok(()),
            Phase::Broken { .. } => {
                // While the faults are on, a connection may stay broken.
                if self.faulty && self.conns[i].lives >= LIVES {
                    return Ok(());
                }
                self.break_ends(i)?;
                self.conns[i].phase = Phase::Flushing { until: now.after(FLUSH) };
                Ok(())
            }
            Phase::Flushing { until } => self.flush(i, until),
        }
    }

    /// Injects a fault into a working connection.
    fn trouble(&mut self, i: usize) {
        let k = self.rng.below(self.conns[i].ends.len() as u64) as usize;
        let end = self.conns[i].ends[k];
        let rate = |fault| self.swarm.program(end.node, fault);
        let faults = [Fault::Drain, Fault::ToError, Fault::ToReset, Fault::Destroy, Fault::Deregister];
        let Some(fault) = faults.into_iter().find(|f| self.rng.ppm(rate(*f))) else { return };
        if fault == Fault::Drain && end.ty == QpType::XrcTgt {
            return;
        }
        // Only while requests are outstanding, otherwise it tests nothing.
        let flow = self.conns[i].flow + k.min(self.conns[i].flows().len() - 1);
        if self.flows[flow].sends.outstanding() == 0 || fault != Fault::Drain && self.conns[i].lives >= LIVES
        {
            return;
        }
        let now = self.world.now;
        self.world.fired.count(fault);
        self.world.note(end.node, || format!("{} {:?}", fault.name(), end.qp));
        let node = &mut self.world.nodes[end.node];
        match fault {
            Fault::Drain => {
                if node.modify_state(now, end.qp, QpState::Sqd).is_ok() {
                    let until = now.after_nanos(self.rng.below(300_000));
                    self.conns[i].phase = Phase::Draining { end: k, until, psn: None };
                }
                return;
            }
            Fault::ToError => node.modify_state(now, end.qp, QpState::Err).expect("ERR is always allowed"),
            Fault::ToReset => {
                node.modify_state(now, end.qp, QpState::Reset).expect("RESET is always allowed");
                self.gone(i, k, Gone::Reset);
            }
            Fault::Destroy => {
                node.destroy(end.qp);
                self.gone(i, k, Gone::Destroyed);
            }
            _ => self.deregister(i),
        }
        self.break_up(i);
    }

    fn gone(&mut self, i: usize, k: usize, how: Gone) {
        self.conns[i].ends[k].gone = Some(how);
        self.forget_requests(i, k);
    }

    /// Forgets the requests of an end, as no completion will show how they ended.
    fn forget_requests(&mut self, i: usize, k: usize) {
        let conn = &self.conns[i];
        let (end, flows) = (conn.ends[k].qpn, &mut self.flows[conn.flows()]);
        flows.iter_mut().filter(|f| f.qpn == end).for_each(Flow::sender_gone);
        flows.iter_mut().filter(|f| f.peer_qpn == end).for_each(Flow::receiver_gone);
    }

    /// Deregisters one of a flow's regions, whether it is in use or not.
    fn deregister(&mut self, i: usize) {
        let n = self.conns[i].flows().len() as u64;
        let flow = &mut self.flows[self.conns[i].flow + self.rng.below(n) as usize];
        let none = MrId(usize::MAX);
        // A region with bound windows cannot be deregistered.
        flow.drop_window(&mut self.world.nodes);
        let (node, slot) = match self.rng.below(4) {
            0 => (flow.from, &mut flow.mrs.src),
            1 => (flow.from, &mut flow.mrs.sink),
            2 => (flow.to, &mut flow.mrs.target),
            _ => (flow.to, &mut flow.mrs.recv),
        };
        let mr = *slot;
        self.world.nodes[node].deregister(mr);
        let region = self.world.nodes[node].mr(mr);
        let held = region.read(0, region.len());
        if self.plant == Plant::DeadRegion && !self.planted {
            self.planted = true;
            region.write(0, &[!held[0]]);
        }
        debug_assert_ne!(mr, none);
        self.conns[i].dead = Some((node, mr, held));
    }

    /// Handles SQD: requests that had started finish, no other request starts, and the queue pair returns to RTS.
    fn drain(&mut self, i: usize, k: usize, until: Instant, psn: Option<u32>) -> Check {
        let (now, end) = (self.world.now, self.conns[i].ends[k]);
        let node = &mut self.world.nodes[end.node];
        if node.state(end.qp) != QpState::Sqd {
            self.conns[i].phase = Phase::Live; // it failed, as its completions will show
            return Ok(());
        }
        let attr = node.query(end.qp);
        match psn {
            None if attr.sq_draining => {}
            None => {
                self.conns[i].phase = Phase::Draining { end: k, until, psn: Some(attr.sq_psn) };
            }
            Some(psn) if psn != attr.sq_psn => {
                return Err(format!("{:?} was drained at {psn:#x} and starts requests", end.qp));
            }
            Some(_) if now >= until || !self.faulty => {
                let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
                node.modify(now, end.qp, &attr, AttrMask::STATE).map_err(|e| format!("SQD to RTS: {e}"))?;
                self.conns[i].phase = Phase::Live;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Waits until all requests of a connection in ERR are flushed; then begins its next life.
    fn flush(&mut self, i: usize, until: Instant) -> Check {
        let (flows, n) = (self.conns[i].flows(), self.conns[i].ends.len());
        let done = |f: &Flow| {
            // Unsignalled requests that succeeded have no completion.
            let gone = f.sends.outstanding() == 0;
            let in_use = if gone { 0 } else { self.world.nodes[f.from].sends_in_use(f.qp) };
            if f.sends.awaits_none() && in_use == 0 && f.receives_left(&self.world.nodes) == 0 {
                Ok(())
            } else {
                flushed(f, &self.world.nodes)
            }
        };
        let notified = |e: &End| match e.overran {
            Overran { cq: true, qp: 0, .. } if e.gone.is_none() => {
                Err(format!("{:?} got no event for the overflow of its completion queue", e.qpn))
            }
            _ => Ok(()),
        };
        let done = self.flows[flows.clone()].iter().try_for_each(done);
        if let Err(e) = done.and_then(|()| self.conns[i].ends.iter().try_for_each(notified)) {
            return if self.world.now > until { Err(e) } else { Ok(()) };
        }
        for flow in flows.clone() {
            self.flows[flow].matches(&self.world.nodes)?;
        }
        if let Some((node, mr, held)) = self.conns[i].dead.take() {
            let region = self.world.nodes[node].mr(mr);
            if region.read(0, region.len()) != held {
                return Err(format!("node {node}: a region was written after it was deregistered"));
            }
            for flow in &mut self.flows[flows] {
                let m = &mut flow.mrs;
                for slot in [&mut m.src, &mut m.sink] {
                    if flow.from == node && *slot == mr {
                        *slot = MrId(usize::MAX);
                    }
                }
                for slot in [&mut m.target, &mut m.recv] {
                    if flow.to == node && *slot == mr {
                        *slot = MrId(usize::MAX);
                    }
                }
            }
        }
        for k in 0..n {
            self.renew(i, k);
        }
        self.live(i);
        Ok(())
    }

    /// Moves one end back to RESET, with PSNs far from those before. A destroyed end is created again, perhaps under its old number.
    fn renew(&mut self, i: usize, k: usize) {
        let (now, end) = (self.world.now, self.conns[i].ends[k]);
        // Packets of the previous life that are still in flight must not match (IBA 9.7.1 leaves that to the programs of the connection).
        let psn = (end.psn + (1 << 22) + self.rng.below(1 << 20) as u32) & 0xff_ffff;
        let node = &mut self.world.nodes[end.node];
        // A queue pair whose completion queue overflowed cannot be used any more.
        let gone = match end.gone {
            Some(Gone::Destroyed) => true,
            _ if end.overran.cq || end.tight && !self.faulty => {
                node.destroy(end.qp);
                true
            }
            Some(Gone::Reset) => false,
            None => {
                node.modify_state(now, end.qp, QpState::Reset).expect("RESET is always allowed");
                false
            }
        };
        self.conns[i].ends[k] = if gone {
            let first = self.conns[i].flow;
            let flows = &mut self.flows[first..];
            if end.tight {
                // An XRC target's shared receive queues complete there, too.
                let flow = flows.iter_mut().find(|f| f.peer_qpn == end.qpn && f.to == end.node);
                flow.into_iter().for_each(|f| f.drop_queues(&mut self.world.nodes));
                self.world.nodes[end.node].destroy_cq(end.cq);
            }
            let again = self.rng.ppm(self.swarm.program(end.node, Fault::NumberAgain));
            if again {
                self.world.fired.count(Fault::NumberAgain);
            }
            self.create_end(end.node, end.ty, end.shard, psn, again.then_some(end.qpn))
        } else {
            End { psn, gone: None, lives: end.lives + 1, ..end }
        };
    }
}

/// The directions of a connection: from, to.
fn pairs(ends: &[End]) -> Vec<(End, End)> {
    match ends {
        [a, b] => vec![(*a, *b), (*b, *a)],
        [a] => vec![(*a, *a)],
        _ => unreachable!("a connection has one or two ends"),
    }
}
