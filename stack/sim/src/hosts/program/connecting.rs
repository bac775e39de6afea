//! Listening, and connecting by connection management: what programs ask of it, and what it says.

use super::{Asked, Conn, End, PORTS, Phase, Run, SGID_INDEX};
use crate::check::Check;
use crate::flow::Flow;
use crate::hosts::world::{NETWORK_MTU, Process};
use crate::node::QpId;
use crate::swarm::{Swarm, rights};
use stack::cm::{
    Accept, ConnId, Connect, Disconnect, Event, IpHeader, Listen, Path, PeerAnswer, PortSpace, QpParams,
    Reject, ServiceId, Timing,
};
use stack::device::{cm_init, cm_rtr, cm_rts};
use stack::id::{Gid, QpState};
use stack::mem::Access;
use stack::proto::state::QP_ACCESS_FLAGS;
use stack::shard::PeerState;

impl Run {
    pub(super) fn service(port: u16) -> ServiceId {
        ServiceId::new(PortSpace::Tcp, 7000 + port)
    }

    /// A process listens at a port, or closes that.
    pub(super) fn toggle_listener(&mut self, process: Process) {
        let port = self.rng.below(PORTS.into()) as u16;
        let (service, pid) = (Self::service(port), self.world.pid_of(process));
        if let Some(id) = self.programs[process].services.remove(&port) {
            self.world.with_host(process, |host| host.listen(pid, service.0 as u32, false));
            self.world.manager(process).machine.close_listener(id).expect("it is there");
            self.report.count("listeners closed");
            return self.world.note(|| format!("process {process} closes {service:?}"));
        }
        if self.world.with_host(process, |host| host.listen(pid, service.0 as u32, true)) {
            let listen = Listen { service_id: service, address: None, backlog: 8 };
            let id = self.world.manager(process).machine.listen(&listen).expect("it does not listen yet");
            self.programs[process].services.insert(port, id);
            self.world.note(|| format!("process {process} listens for {service:?}"));
        }
    }

    /// A process connects to a service of a host, whoever listens there.
    pub(super) fn connect(&mut self, process: Process) {
        // Half of them on its own host.
        let any = self.rng.below(self.choices.processes.len() as u64) as usize;
        let host = if self.rng.one_in(2) { self.world.host_of(process) } else { any };
        let service_id = Self::service(self.rng.below(PORTS.into()) as u16);
        let config = self.config();
        let (now, number) = (self.world.now, self.conns.len() as u32);
        let dst = self.world.hosts[host].lock().addresses[1];
        let node = &mut self.world.nodes[process];
        let shard = self.rng.below(node.config.shards as u64) as usize;
        let cq = self.programs[process].cq;
        let qp = node.create_qp(shard, config, cq, cq);
        let (attr, mask) = cm_init();
        node.modify(now, qp, &attr, mask).expect("RESET to INIT");
        let (qpn, sgid) = (node.qp(qp).qpn, node.gid);
        let path = Path { sgid, dgid: Gid::from_ip(dst), hop_limit: 64, ..Path::default() };
        let connect = Connect {
            mtu: NETWORK_MTU,
            responder_resources: 4,
            initiator_depth: 4,
            min_rnr_timer: 1,
            timing: Timing {
                packet_lifetime: 8,
                remote_response: 11,
                local_response: 11,
                max_cm_retries: 15,
            },
            ip: Some(IpHeader { src_port: 1, src: sgid.to_ip(), dst }),
            private_data: number.to_be_bytes().to_vec(),
            ..Connect::new(service_id, path, qpn)
        };
        let id = self.world.manager(process).machine.connect(now, &connect);
        // A number may be used again that a connection before had.
        let Ok(id) = id else { return };
        self.report.count("connects");
        self.world
            .note(|| format!("{number}: process {process} {qpn:?} connects to {service_id:?} at {dst}"));
        let phase = Phase::Waiting;
        let end = End { process, qp, id, phase, told: false, notices_by: None };
        let ends = [Some(end), None];
        self.conns.push(Conn { began: now, ends, flows: None, may_end: false, lost_one: false });
    }

    /// What connection management says to a process.
    pub(super) fn events(&mut self, process: Process) -> Check {
        let now = self.world.now;
        let mut checks = core::mem::take(&mut self.programs[process].checks);
        checks.retain(|(id, check)| {
            let answer = match check.state() {
                PeerState::Asked => return true,
                PeerState::Alive => PeerAnswer::Answered,
                PeerState::Silent => PeerAnswer::Silent,
                _ => PeerAnswer::NotAsked,
            };
            self.world.manager(process).machine.peer_checked(now, *id, answer);
            false
        });
        self.programs[process].checks = checks;
        while let Some(event) = self.world.manager(process).machine.poll_event() {
            match event {
                Event::ConnectRequest { id, request, .. } => {
                    let number = request.private_data.first_chunk().expect("it is long enough");
                    let conn = u32::from_be_bytes(*number) as usize;
                    self.world.note(|| format!("{conn}: process {process} is asked"));
                    if let Some(first) = self.conns[conn].ends[1].as_ref().map(|end| end.process)
                        && first != process
                        && self.world.is_alive(first)
                    {
                        return Err(format!("{conn}: processes {first} and {process} get one request"));
                    }
                    let at = now.after_nanos(self.rng.below(20_000_000));
                    self.asked.push(Asked { at, process, id, conn });
                }
                Event::ConnectResponse { id, response } => self.responded(process, id, &response.params)?,
                Event::Established { id, .. } => {
                    let Some((conn, side)) = self.find(process, id) else { continue };
                    let end = self.conns[conn].ends[side].as_mut().expect("it is there");
                    if end.phase == Phase::Waiting {
                        end.phase = Phase::Up;
                        self.report.count("established");
                        self.must_notice(conn, side);
                    }
                }
                Event::Rejected { id, .. } => self.ended(process, id, "rejected", None)?,
                Event::Unreachable { id, .. } => self.ended(process, id, "unreachable", None)?,
                Event::Disconnected { id, how, .. } => self.ended(process, id, "disconnected", Some(how))?,
                Event::CheckPeer { id, .. } => {
                    let Some((conn, side)) = self.find(process, id) else { continue };
                    let end = self.conns[conn].ends[side].as_ref().expect("it is there");
                    if end.phase == Phase::Gone {
                        self.world.manager(process).machine.peer_checked(now, id, PeerAnswer::NotAsked);
                        continue;
                    }
                    let check = self.world.nodes[process].check_peer(now, end.qp);
                    self.programs[process].checks.push((id, check));
                    self.report.count("peers checked");
                }
                Event::TimeWaitExit { .. } => {}
                other => return Err(format!("process {process}: {other:?}")),
            }
        }
        Ok(())
    }

    /// The end of a connection that a connection manager calls so.
    pub(super) fn find(&self, process: Process, id: ConnId) -> Option<(usize, usize)> {
        let is = |end: &Option<End>| end.as_ref().is_some_and(|end| end.process == process && end.id == id);
        self.conns.iter().enumerate().find_map(|(at, conn)| Some((at, conn.ends.iter().position(is)?)))
    }

    /// Programs answer the requests that they got some time ago.
    pub(super) fn decide(&mut self) -> Check {
        let (now, mut due) = (self.world.now, Vec::new());
        let world = &self.world;
        self.asked.retain_mut(|asked| {
            let is_due = asked.at <= now && world.runs(asked.process);
            if is_due {
                due.push((asked.process, asked.id, asked.conn));
            }
            !is_due
        });
        due.into_iter().try_for_each(|(process, id, conn)| self.answer(process, id, conn))
    }

    pub(super) fn answer(&mut self, process: Process, id: ConnId, conn: usize) -> Check {
        let now = self.world.now;
        let has_other = self.conns[conn].ends[1].is_some();
        let began = self.conns[conn].ends[0].as_ref().map(|end| end.phase);
        let is_wanted = matches!(began, Some(Phase::Waiting | Phase::Dead))
            // The queue pair that began it has receives for whoever accepted first.
            && !has_other
            && !self.rng.one_in(12);
        if !is_wanted {
            // It may have given up meanwhile.
            let _ = self.world.manager(process).machine.reject(now, id, &Reject::consumer([]));
            return Ok(());
        }
        let config = self.config();
        let cq = self.programs[process].cq;
        let node = &mut self.world.nodes[process];
        let shard = self.rng.below(node.config.shards as u64) as usize;
        let qp = node.create_qp(shard, config, cq, cq);
        let accept = Accept { min_rnr_timer: 1, ..Accept::new(node.qp(qp).qpn) };
        let Ok(params) = self.world.manager(process).machine.plan_accept(id, &accept) else {
            self.world.nodes[process].destroy(qp);
            return Ok(());
        };
        let node = &mut self.world.nodes[process];
        let (attr, mask) = cm_init();
        node.modify(now, qp, &attr, mask).expect("RESET to INIT");
        self.world.note(|| format!("{conn}: process {process} {:?} accepts", params.qpn));
        self.make_ready(process, qp, &params);
        let end = End { process, qp, id, phase: Phase::Waiting, told: false, notices_by: None };
        self.conns[conn].ends[1] = Some(end);
        let first = self.conns[conn].ends[0].as_ref().expect("it began it");
        let (one, other) = ((first.process, first.qp), (process, qp));
        let is_dead = first.phase == Phase::Dead;
        let run = Swarm { max_len: 3000, ..Swarm::plain(self.choices.ops, &[]) };
        let mut flows =
            [(one, other), (other, one)].map(|(from, to)| Flow::new(&mut self.world.nodes, from, to, &run));
        for flow in &mut flows {
            flow.begin(&mut self.world.nodes, &mut self.rng, Access::empty());
            flow.post_receives(&mut self.world.nodes, &mut self.rng, u64::MAX);
        }
        if is_dead {
            flows[0].sender_gone();
            flows[1].receiver_gone();
        }
        self.conns[conn].flows = Some(flows);
        self.world.manager(process).machine.accept(now, id, &accept).map_err(|error| error.to_string())?;
        Ok(())
    }

    pub(super) fn make_ready(&mut self, process: Process, qp: QpId, params: &QpParams) {
        let now = self.world.now;
        let (mut rtr, mask) = cm_rtr(params, SGID_INDEX);
        rtr.qp_access_flags = rights().bits() & QP_ACCESS_FLAGS;
        let node = &mut self.world.nodes[process];
        node.modify(now, qp, &rtr, mask).expect("the parameters fit the queue pair");
        let (rts, mask) = cm_rts(params);
        node.modify(now, qp, &rts, mask).expect("the parameters fit the queue pair");
    }

    /// The other end has accepted.
    pub(super) fn responded(&mut self, process: Process, id: ConnId, params: &QpParams) -> Check {
        let now = self.world.now;
        let Some((conn, 0)) = self.find(process, id) else { return Err("a response to nothing".into()) };
        let [Some(end), other] = &self.conns[conn].ends else { unreachable!("it began it") };
        let qp = end.qp;
        let peer = self.conns[conn].flows.as_ref().filter(|_| other.is_some()).map(|flows| flows[0].peer_qpn);
        if peer != Some(params.dest_qpn) && !self.conns[conn].lost_one {
            return Err(format!("{conn}: {:?} answers, and {peer:?} accepted", params.dest_qpn));
        }
        if peer != Some(params.dest_qpn) || self.rng.one_in(20) {
            let _ = self.world.manager(process).machine.reject(now, id, &Reject::consumer([]));
            return self.over(conn, 0, "rejected by itself");
        }
        self.make_ready(process, qp, params);
        self.world.manager(process).machine.confirm(now, id, b"").map_err(|error| error.to_string())?;
        self.conns[conn].ends[0].as_mut().expect("it began it").phase = Phase::Up;
        self.report.count("connected");
        self.world.note(|| format!("{conn}: process {process} is connected with {:?}", params.dest_qpn));
        self.must_notice(conn, 0);
        Ok(())
    }

    /// Connection management says that a connection is over.
    pub(super) fn ended(
        &mut self,
        process: Process,
        id: ConnId,
        what: &'static str,
        how: Option<Disconnect>,
    ) -> Check {
        let Some((conn, side)) = self.find(process, id) else { return Ok(()) };
        self.report.count(what);
        self.world.note(|| format!("{conn}: {what} {how:?} at process {process}"));
        let is_excused = self.may_end(conn);
        let end = self.conns[conn].ends[side].as_ref().expect("it is there");
        let other = self.conns[conn].ends[1 - side].as_ref();
        if how == Some(Disconnect::PeerEnded) {
            self.report.count("peers ended");
            if other.is_none_or(|other| self.world.is_alive(other.process)) {
                return Err(format!("{conn}: the process of a peer has ended, and it has not"));
            }
        }
        if end.phase == Phase::Up && !is_excused {
            return Err(format!("{conn}: {what} {how:?}, for no reason"));
        }
        self.over(conn, side, what)
    }

    /// An end of a connection is over for its program.
    pub(super) fn over(&mut self, conn: usize, side: usize, why: &str) -> Check {
        let now = self.world.now;
        let conn_of = &mut self.conns[conn];
        conn_of.may_end = true;
        let end = conn_of.ends[side].as_mut().expect("it is there");
        end.told = true;
        if matches!(end.phase, Phase::Waiting | Phase::Up) {
            end.phase = Phase::Over(now);
            let (process, qp) = (end.process, end.qp);
            self.world.note(|| format!("{conn}: over at process {process}: {why}"));
            self.world.nodes[process].modify_state(now, qp, QpState::Err).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Whether the requests of a connection may fail.
    pub(super) fn may_end(&self, conn: usize) -> bool {
        let conn = &self.conns[conn];
        let [Some(one), Some(other)] = conn.ends.each_ref().map(Option::as_ref) else { return true };
        let hosts = [one.process, other.process].map(|process| self.world.host_of(process));
        let is_stopped = |host: usize| {
            self.troubled[host] >= conn.began
                || self.world.alive(Some(host)).into_iter().any(|process| self.world.is_stopped(process))
        };
        conn.may_end || hosts[0] != hosts[1] && hosts.into_iter().any(is_stopped)
    }
}
