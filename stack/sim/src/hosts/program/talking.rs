//! What is requested over connections, what completes, and how an end of a connection comes to its own end.

use super::{Conn, FLUSHED, NOTICED, Phase, Run};
use crate::check::{self, Check};
use crate::flow::Flow;
use crate::hosts::world::{Process, World};
use crate::node::Node;
use stack::proto::status::WcStatus;
use stack::proto::wqe::Cqe;
use stack::time::Instant;

impl Run {
    /// The completions of a process.
    pub(super) fn poll(&mut self, process: Process) -> Check {
        let cqes = self.world.nodes[process].poll_cq(self.programs[process].cq, usize::MAX);
        for cqe in &cqes {
            self.world.note(|| {
                let kind = if cqe.opcode.is_recv() { "receive" } else { "send" };
                format!("process {process} {:?}: {kind} {} {:?}", cqe.qpn, cqe.wr_id, check::status(cqe))
            });
        }
        // Receives first, because an acknowledgement follows the message.
        for is_recv in [true, false] {
            for cqe in cqes.iter().filter(|cqe| cqe.opcode.is_recv() == is_recv) {
                self.completed(process, cqe, is_recv)
                    .map_err(|e| format!("process {process}, {:?}: {e}", cqe.qpn))?;
            }
        }
        self.world.nodes[process].events();
        Ok(())
    }

    pub(super) fn completed(&mut self, process: Process, cqe: &Cqe, is_recv: bool) -> Check {
        if self.world.nodes[process].qp(self.programs[process].ud).qpn == cqe.qpn {
            return self.datagram(process, cqe, is_recv);
        }
        let has = |flow: &Flow| match is_recv {
            true => (flow.to, flow.peer_qpn) == (process, cqe.qpn),
            false => (flow.from, flow.qpn) == (process, cqe.qpn),
        };
        let found = self
            .conns
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, conn)| Some((at, conn.flows.as_ref()?.iter().position(has)?)));
        let (at, flow) = found.ok_or("a completion of a queue pair that nobody has")?;
        let side = if is_recv { 1 - flow } else { flow };
        let allowed: &[WcStatus] = if self.may_end(at) {
            &[WcStatus::RetryExcErr, WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr]
        } else {
            &[]
        };
        let Self { world: World { nodes, .. }, conns, programs, report, .. } = self;
        let Conn { flows: Some(flows), .. } = &mut conns[at] else { unreachable!("one was found") };
        let flow = &mut flows[flow];
        if is_recv {
            flow.received(nodes, cqe, allowed, None)?;
        } else {
            let tally = &mut programs[flow.to].tally;
            report.add("requests", flow.sent(nodes, cqe, tally, allowed)?.requests);
        }
        if check::status(cqe) != WcStatus::Success {
            self.report.count("failed completions");
            self.failed(at, side)?;
        }
        Ok(())
    }

    /// A request failed: the program gives the connection up.
    pub(super) fn failed(&mut self, conn: usize, side: usize) -> Check {
        let now = self.world.now;
        let end = self.conns[conn].ends[side].as_ref().expect("it is there");
        if end.phase != Phase::Up {
            return Ok(());
        }
        // One whose peer's process has ended waits for the word of connection management.
        if end.notices_by.is_some() {
            self.conns[conn].may_end = true;
            return Ok(());
        }
        let (process, id) = (end.process, end.id);
        let _ = self.world.manager(process).machine.disconnect(now, id, b"");
        self.over(conn, side, "a request failed")
    }

    /// The next step of a connection.
    pub(super) fn advance(&mut self, at: usize) -> Check {
        let now = self.world.now;
        for side in 0..2 {
            let Some(end) = &self.conns[at].ends[side] else { continue };
            let process = end.process;
            if end.phase == Phase::Dead || !self.world.runs(process) {
                continue;
            }
            match end.phase {
                Phase::Up => self.talk(at, side)?,
                Phase::Over(since) => self.flush(at, side, since)?,
                _ => {}
            }
            self.notice(at, side, now)?;
        }
        Ok(())
    }

    /// By now the end of the other process must have been noticed.
    pub(super) fn notice(&mut self, at: usize, side: usize, now: Instant) -> Check {
        let end = self.conns[at].ends[side].as_ref().expect("it is there");
        let Some(by) = end.notices_by else { return Ok(()) };
        let by = by.max(self.programs[end.process].went_on.after(NOTICED));
        let left = match &self.conns[at].flows {
            Some(flows) if end.phase == Phase::Up => outstanding(&flows[side], &self.world.nodes),
            _ => 0,
        };
        if end.told && left == 0 {
            self.conns[at].ends[side].as_mut().expect("it is there").notices_by = None;
            self.report.count("deaths noticed");
        } else if now >= by {
            return Err(format!(
                "{at}: process {} has not noticed that its peer ended: {left} requests are outstanding, {}",
                end.process,
                if end.told { "and it was told" } else { "it was not told" }
            ));
        }
        Ok(())
    }

    /// An end that is connected posts, and may have enough.
    pub(super) fn talk(&mut self, at: usize, side: usize) -> Check {
        let now = self.world.now;
        let end = self.conns[at].ends[side].as_ref().expect("it is there");
        let (process, id, is_told) = (end.process, end.id, end.notices_by.is_some());
        if !self.is_calm && !is_told && self.rng.one_in(20_000) {
            let _ = self.world.manager(process).machine.disconnect(now, id, b"");
            self.report.count("disconnects");
            return self.over(at, side, "it has enough");
        }
        let Self { world: World { nodes, .. }, conns, programs, rng, choices, .. } = self;
        let Some(flows) = &mut conns[at].flows else { return Ok(()) };
        if !rng.one_in(4) && !flows[side].sends.failed() {
            let n = rng.range(1, 4);
            flows[1 - side].post_receives(nodes, rng, n);
        }
        let flow = &mut flows[side];
        // Not all at once, so that something is under way when a process ends.
        let n = if rng.one_in(3) { rng.below(4) } else { 0 };
        for _ in 0..n {
            let (board, to) = (programs[flow.to].board, flow.to);
            let tally = (board, &mut programs[to].tally);
            if flow.post(nodes, rng, choices.ops, tally).is_none() {
                break;
            }
        }
        Ok(())
    }

    /// A queue pair in ERR flushes; then it is destroyed.
    pub(super) fn flush(&mut self, at: usize, side: usize, since: Instant) -> Check {
        let (now, end) = (self.world.now, self.conns[at].ends[side].as_ref().expect("it is there"));
        let (process, qp) = (end.process, end.qp);
        let nodes = &self.world.nodes;
        let left = self.conns[at]
            .flows
            .as_ref()
            .map_or((0, 0), |flows| (outstanding(&flows[side], nodes), flows[1 - side].receives_left(nodes)));
        if left != (0, 0) {
            let by = since.max(self.programs[process].went_on).after(FLUSHED);
            return match now > by {
                true => Err(format!("{at}: process {process} did not flush {left:?} sends and receives")),
                false => Ok(()),
            };
        }
        if self.rng.one_in(2) {
            return Ok(()); // a little later
        }
        self.conns[at].ends[side].as_mut().expect("it is there").phase = Phase::Gone;
        self.world.nodes[process].destroy(qp);
        Ok(())
    }
}

/// Requests of a flow that have not ended. Of those that are not signalled and succeeded no completion tells.
fn outstanding(flow: &Flow, nodes: &[Node]) -> usize {
    let in_use = flow.sends.outstanding() > 0 && nodes[flow.from].sends_in_use(flow.qp) > 0;
    if flow.sends.awaits_none() && !in_use { 0 } else { flow.sends.outstanding() }
}
