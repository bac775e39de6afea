//! Events of connection management: connection requests, which are refused, accepted or given to another core; and the ends of existing
//! connections.

use std::net::SocketAddr;

use nvmf::wire::cm::RejectReason;
use nvmf::{Accepted, Arrival, Queue};
use tracing::{debug, info};
use verbs::VerbsError;
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, ConnParam};
use zerocopy::IntoBytes;

use super::connection::Connection;
use super::core::Core;
use super::ids::ConnId;
use super::shared::Room;
use super::siblings::Admitted;

impl Core<'_> {
    pub(super) fn handle_event(&mut self, mut event: CmEvent) {
        match event.event() {
            CmEventType::ConnectRequest => {
                let Some(cm_id) = event.take_id() else { return };
                let Some(port) = self.network.port_of(&event) else { return };
                // If the peer accepts no RDMA READ, its Write commands could not be executed.
                let reads = event.peer().is_none_or(|peer| peer.initiator_depth > 0);
                match self.judge(&cm_id, port, event.private_data(), reads) {
                    Ok(accepted) => {
                        if let Some(admitted) = self.siblings.assign(Admitted { cm_id, accepted }) {
                            self.admit(admitted);
                        }
                    }
                    Err(reason) => {
                        debug!(peer = ?cm_id.peer_addr(), %reason, "a connection is refused");
                        self.refuse(&cm_id, reason);
                    }
                }
            }
            CmEventType::Disconnected
            | CmEventType::ConnectError
            | CmEventType::Unreachable
            | CmEventType::Rejected
            | CmEventType::DeviceRemoval => {
                let connection = self.connections.get_mut(ConnId(event.context() as u32));
                if let Some(connection) = connection.filter(|connection| event.is_of(&connection.cm_id)) {
                    self.env.close(connection, &event.event());
                }
            }
            _ => {}
        }
    }
    fn judge(&self, cm_id: &CmId, port: u16, private: &[u8], reads: bool) -> Result<Accepted, RejectReason> {
        let nowhere = SocketAddr::from(([0; 4], 0));
        let local = cm_id.local_addr().unwrap_or(nowhere);
        let arrival = Arrival { port, local, peer: cm_id.peer_addr().unwrap_or(nowhere).ip() };
        let accepted = Queue::accept(&self.env.target, self.env.now, arrival, private)?;
        if !reads {
            return Err(RejectReason::Reads);
        }
        Ok(accepted)
    }
    fn refuse(&self, cm_id: &CmId, reason: RejectReason) {
        self.env.statistics.counters.refused.add(1);
        // Fails if the peer is gone.
        let _ = cm_id.reject(reason.data().as_bytes());
    }
    pub(super) fn admit(&mut self, Admitted { cm_id, mut accepted }: Admitted) {
        let peer = cm_id.peer_addr();
        let (env, who) = (&mut self.env, accepted.queue.who());
        match env.shared.room(who, accepted.named, env.target.names_hosts()) {
            Room::Free => {}
            Room::Kept => accepted.queue.keep_for_named(),
            Room::None => {
                let places = env.shared.places_of(who.address);
                env.statistics.no_place(env.now, who.address, places);
                if let Some(connection) = self.connections.replaceable(who.address) {
                    env.close(connection, &"the host does not say who it is, and others want its place");
                }
                return self.refuse(&cm_id, RejectReason::Resources);
            }
        }
        match self.try_admit(cm_id, accepted) {
            Ok(id) => {
                self.env.statistics.counters.accepted.add(1);
                debug!(?peer, connection = id.0, "a host connects");
            }
            // The `cm_id` was dropped, which rejects the request.
            Err(e) => {
                self.env.statistics.counters.refused.add(1);
                info!(?peer, error = %e, "a connection could not be accepted");
            }
        }
    }
    fn try_admit(&mut self, cm_id: CmId, accepted: Accepted) -> Result<ConnId, VerbsError> {
        let Self { connections, env, network, .. } = self;
        let (id, commands) = (connections.next_id(), accepted.receives);
        let (qp, sq) = network.create_qp(&cm_id, commands, env.shared.receives.srq())?;
        cm_id.set_context(id.0.into());
        let reply = accepted.reply;
        let share = env.shared.join(id, accepted.queue.who(), accepted.named);
        env.shared.receives.add(commands);
        let mut connection = Connection::new(id, accepted, cm_id, qp, sq, share);
        connection.accepted_before = env.statistics.counters.accepted.get();
        connection.gauge = env.statistics.gauge(commands);
        let reply = ConnParam::with_data(reply.as_bytes());
        if let Err(e) = env.shared.receives.refill().and_then(|()| connection.cm_id.accept(&reply)) {
            env.release(&mut connection, network);
            return Err(e);
        }
        connections.insert(connection);
        Ok(id)
    }
}
