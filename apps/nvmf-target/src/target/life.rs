//! What happens to a connection besides its commands: timeouts, events, and its end, after which nothing of it is left.

use std::fmt::Display;
use std::time::Duration;

use nvmf::Queue;
use tracing::{debug, info};
use verbs::DrainKind;

use super::connection::{Connection, Ending};
use super::env::Env;
use super::network::Network;
use super::pace::Pace;

impl Env<'_> {
    /// The host may have said who it is.
    pub fn note_who(&mut self, connection: &mut Connection) {
        // It says so once.
        if connection.share.who().is_named() {
            return;
        }
        let Some(queue) = &connection.queue else { return };
        let who = queue.who();
        if who.is_named() {
            self.shared.rename(&mut connection.share, who, queue.is_named());
        }
    }

    /// Looks after a connection: timeouts, events, a host that takes nothing for as long as `patience` or is silent for `silence`.
    pub fn look_after(&mut self, connection: &mut Connection, patience: Duration, silence: Duration) {
        let now = self.now;
        let Some(queue) = &mut connection.queue else { return };
        let due = queue.poll_timeout().is_some_and(|due| now >= due);
        let end = if due { queue.handle_timeout(now).err() } else { queue.poll_end() };
        if let Some(end) = end {
            return self.close(connection, &end);
        }
        announce(connection);
        while let Some(response) = connection.queue.as_mut().and_then(|queue| queue.poll_response(now)) {
            self.note_who(connection);
            self.answer(connection, response, None, None);
        }
        let [patience, silence] = [patience, silence].map(|time| time.as_nanos() as u64);
        if connection.is_open() && connection.is_stuck(now.as_nanos(), patience) {
            self.close(connection, &"the host takes no responses");
        }
        if connection.is_open() && connection.is_gone(now.as_nanos(), silence) {
            self.close(connection, &"the host does not answer");
        }
    }

    /// Begins the end of a connection.
    #[cold]
    pub fn close(&mut self, connection: &mut Connection, why: &dyn Display) {
        if !connection.is_open() {
            return;
        }
        connection.ending = Ending::Flushing;
        let queue = connection.queue.take();
        match queue.as_ref().and_then(Queue::host) {
            Some(host) if connection.announced => {
                info!(%host, connection = connection.id.0, %why, "a host's queue ends");
            }
            _ => debug!(connection = connection.id.0, %why, "a connection ends"),
        }
        // All that the controller has is freed at once, so the host may connect again before this queue pair is flushed. But its new
        // connection has to wait until the storage has done the commands of this one.
        connection.in_flight = queue.as_ref().and_then(Queue::in_flight);
        drop(queue);
        // Fails if the connection was never established: then there is only the queue pair to end.
        if connection.cm_id.disconnect().is_err() {
            let _ = connection.qp.begin_drain(DrainKind::Qp);
        }
        for command in connection.outbox.take_waiting().iter().filter_map(|outgoing| outgoing.command()) {
            self.finish(connection, command);
        }
        for command in self.shared.forget_wants(&mut connection.share) {
            self.finish(connection, command);
        }
        if connection.commands == 0 {
            connection.in_flight = None;
        }
        self.statistics.counters.ended.add(1);
    }
    /// Goes on with the end of a connection; returns whether it is gone.
    pub fn is_over(&mut self, connection: &mut Connection, network: &mut Network, pace: &Pace) -> bool {
        match connection.ending {
            Ending::No => false,
            Ending::Flushing => {
                if network.is_flushed(&connection.qp) {
                    connection.ending = Ending::Flushed(pace.turns());
                }
                false
            }
            // The completions that were in the queue when the queue pair was flushed have been handled.
            Ending::Flushed(since) if pace.emptied_since(since) && connection.commands == 0 => {
                self.release(connection, network);
                true
            }
            Ending::Flushed(_) => false,
        }
    }
    /// Gives back all that a connection has.
    pub fn release(&mut self, connection: &mut Connection, network: &mut Network) {
        network.forget(&connection.qp);
        self.shared.receives.remove(connection.receives);
        self.shared.leave(&mut connection.share);
    }
}

/// Logs who has connected, once that is known.
fn announce(connection: &mut Connection) {
    let Some(queue) = connection.queue.as_ref().filter(|_| !connection.announced) else { return };
    let Some(host) = queue.host() else { return };
    connection.announced = true;
    let (qid, controller) = (queue.qid(), queue.cntlid());
    let subsystem = queue.subsystem();
    let subsystem = subsystem.as_ref().map_or("discovery", |nqn| nqn.as_str());
    info!(%host, subsystem, controller, qid, connection = connection.id.0, "a host's queue is connected");
}
